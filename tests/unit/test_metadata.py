"""The Metadata request as it is encoded by hand, against the codec of another library."""

from __future__ import annotations

import contextlib
import random
from uuid import UUID

import pytest
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from kmirror.cluster.protocol import metadata
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, PartitionMetadata, TopicMetadata
from kmirror.cluster.protocol.wire import NO_TOPIC_ID, FrameError
from tests.unit.test_markers_and_log_end import framed

VERSIONS = range(metadata.LOWEST_VERSION, metadata.HIGHEST_VERSION + 1)
_Broker = MetadataResponse.MetadataResponseBroker
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition
_ID = bytes(range(16))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topics", [None, [], ["a"], ["a", "b" * 249]])
def test_topics_are_asked_for_by_name(version: int, topics: list[str] | None) -> None:
    data = metadata.request(7, version, "kmirror", topics)
    read = MetadataRequest.decode(data, version=version, header=True, framed=True)
    assert (read.header.correlation_id, read.header.client_id) == (7, "kmirror")
    assert (None if read.topics is None else [topic.name for topic in read.topics]) == topics
    assert not read.allow_auto_topic_creation
    assert not read.include_topic_authorized_operations


def made(version: int) -> memoryview:
    def partition(number: int, code: int, leader: int, nodes: list[int]) -> object:
        return _Partition(
            error_code=code,
            partition_index=number,
            leader_id=leader,
            leader_epoch=number + 3,
            replica_nodes=nodes,
            isr_nodes=nodes[:1],
            offline_replicas=nodes[1:],
        )

    topics = [
        _Topic(
            error_code=0,
            name="orders",
            topic_id=UUID(bytes=_ID),
            is_internal=False,
            partitions=[partition(1, 5, -1, []), partition(0, 0, 2, [2, 1, 3])],
        ),
        _Topic(error_code=3, name="gone", topic_id=UUID(int=0), is_internal=True, partitions=[]),
    ]
    answer = MetadataResponse(
        throttle_time_ms=40,
        brokers=[
            _Broker(node_id=2, host="host-2", port=9094, rack="r"),
            _Broker(node_id=1, host="h", port=1, rack=None),
        ],
        cluster_id="cluster",
        controller_id=2,
        topics=topics,
    )
    return framed(answer, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_brokers_topics_and_partitions_are_read(version: int) -> None:
    topic_id = _ID if version >= 10 else NO_TOPIC_ID
    orders = {
        0: PartitionMetadata(0, 0, 2, 3, (2, 1, 3), (2,)),
        1: PartitionMetadata(1, 5, None, 4, (), ()),
    }
    assert metadata.answer(made(version), version) == (
        ClusterMetadata(
            "cluster",
            2,
            {2: Broker(2, "host-2", 9094), 1: Broker(1, "h", 1)},
            {
                "orders": TopicMetadata("orders", 0, topic_id, False, orders),
                "gone": TopicMetadata("gone", 3, NO_TOPIC_ID, True, {}),
            },
        ),
        40,
    )


@pytest.mark.parametrize("count", [0, 1, 14, 15, 16, 127, 128, 300])
def test_replicas_are_read_however_many_they_are(count: int) -> None:
    nodes = list(range(count))
    partition = _Partition(
        error_code=0,
        partition_index=0,
        leader_id=0,
        leader_epoch=0,
        replica_nodes=nodes,
        isr_nodes=[],
        offline_replicas=nodes,
    )
    topic = _Topic(error_code=0, name="t", topic_id=UUID(bytes=_ID), is_internal=False, partitions=[partition])
    answer = MetadataResponse(throttle_time_ms=0, brokers=[], cluster_id=None, controller_id=-1, topics=[topic])
    found, _ = metadata.answer(framed(answer, 12), 12)
    assert (found.cluster_id, found.controller_id) == (None, None)
    assert found.topics["t"].partitions == {0: PartitionMetadata(0, 0, 0, 0, tuple(nodes), ())}


def test_an_equal_answer_about_many_topics_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_CACHED_BYTES", 1)
    cache, whole = metadata.TopicsCache(), bytes(made(12))
    first, _ = metadata.answer(memoryview(whole), 12, cache)
    again, throttle_time_ms = metadata.answer(memoryview(bytearray(whole)), 12, cache)
    assert (again, throttle_time_ms) == (first, 40)
    assert again.topics is first.topics
    # any byte may make a difference
    for position in range(whole.index(b"orders"), len(whole)):
        other = bytearray(whole)
        other[position] ^= 1
        with contextlib.suppress(FrameError):
            fresh, _ = metadata.answer(memoryview(other), 12)
            assert metadata.answer(memoryview(other), 12, cache)[0] == fresh
    # so may the version
    assert metadata.answer(memoryview(whole), 12, cache)[0] == first
    with contextlib.suppress(FrameError):
        assert metadata.answer(memoryview(whole), 9, cache)[0] != first


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_cut_off_anywhere_is_a_frame_error(version: int) -> None:
    data = made(version)
    # a broker may leave out nothing but what follows the last topic, of which we read nothing
    for cut in range(4, len(data) - 6):
        with pytest.raises(FrameError):
            metadata.answer(data[:cut], version)


def test_garbage_is_an_answer_or_a_frame_error() -> None:
    rng, whole, refused = random.Random(5), bytes(made(12)), 0
    for position in range(4, len(whole)):
        for garbage in (b"\xff", b"\xff\xff\xff\xff\x0f", b"\x00", rng.randbytes(4)):
            data = whole[:position] + garbage + whole[position + len(garbage) :]
            try:
                metadata.answer(memoryview(data), 12)
            except FrameError:
                refused += 1
    assert refused > len(whole)
