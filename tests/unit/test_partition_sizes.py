"""The sizes of partitions with several leaders, which are asked at once: no answer is taken for another one's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.topics.log_dirs import partition_sizes, stored_sizes

SIZES = {TopicPartition("t", 0): 10, TopicPartition("t", 1): 20, TopicPartition("gone", 0): None}


class Leaders:
    """A leader for each partition; all are asked before the first one's answer is read."""

    def per_leader(
        self, partitions: Iterable[TopicPartition], build: Callable[..., Any], read: Callable[..., Any], **_: object
    ) -> dict[TopicPartition, tuple[int, Any]]:
        asked = [([one], build([one], None)) for one in partitions]
        found = (each for led, request in asked for each in read(answered(request), led))
        return {partition: (code, size) for partition, code, size in found}


def answered(request: Any) -> Any:
    """Answer a DescribeLogDirs request for one partition, as a broker that has `SIZES`."""
    (topic,) = request.topics
    size = SIZES[TopicPartition(topic.topic, *topic.partitions)]
    stored = SimpleNamespace(partition_index=topic.partitions[0], partition_size=size, is_future_key=False)
    topics = [] if size is None else [SimpleNamespace(name=topic.topic, partitions=[stored])]
    return SimpleNamespace(results=[SimpleNamespace(topics=topics)])


def test_an_answer_without_any_folder_is_that_of_a_missing_right() -> None:
    class Closed(Leaders):
        def per_leader(self, partitions: Any, build: Any, read: Any, **_: object) -> dict[TopicPartition, Any]:
            return {p: (code, size) for p, code, size in read(SimpleNamespace(results=[]), list(partitions))}

    found = stored_sizes(cast(ClusterClient, Closed()), SIZES)
    assert set(found.values()) == {(int(Code.CLUSTER_AUTHORIZATION_FAILED), None)}


def test_each_leader_answers_for_its_own_partitions() -> None:
    assert partition_sizes(cast(ClusterClient, Leaders()), SIZES) == {
        partition: size for partition, size in SIZES.items() if size is not None
    }
