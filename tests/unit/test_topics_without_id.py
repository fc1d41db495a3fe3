"""A broker that shows a topic without its id says neither that it is another topic nor that one is gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, PartitionMetadata, TopicMetadata
from kmirror.cluster.protocol.wire import NO_TOPIC_ID, format_topic_id
from kmirror.engine.histories.identity_check import AT_DESTINATION, AT_SOURCE, TopicSide, _missing_partition
from kmirror.errors import KmirrorError, Reason, UnreachableError
from kmirror.ops.base.gone import is_there
from kmirror.ops.jobs import rebuild_claim
from kmirror.ops.jobs.rebuild_topics import require_id
from kmirror.state.records import MirrorRecord
from tests.support.judging import ANOTHER_ID, ASSIGNMENT, DESTINATION_ID, SOURCE_ID

KNOWN = cast(str, format_topic_id(SOURCE_ID))


def shown(topic: str, topic_id: bytes, error_code: int = 0) -> ClusterMetadata:
    """Return an answer about a topic with one partition; that of the assignment is 3."""
    partitions = {0: PartitionMetadata(0, 0, 1, 0, (1,), (1,))}
    metadata = TopicMetadata(topic, error_code, topic_id, False, {} if error_code else partitions)
    return ClusterMetadata("cluster", 1, {1: Broker(1, "host", 9092)}, {topic: metadata})


class Answering:
    """A client whose brokers give these answers."""

    def __init__(self, *answers: ClusterMetadata | None) -> None:
        self._answers = answers

    def metadata(self, topics: Iterable[str] | None) -> ClusterMetadata:
        return next(one for one in self._answers if one is not None)

    def ask_each(self, brokers: Iterable[Broker], exchange: Any) -> list[ClusterMetadata | None]:
        return list(self._answers)


@pytest.mark.parametrize(
    ("side", "topic", "own_id", "other", "missing"),
    [
        (AT_SOURCE, "orders", SOURCE_ID, Reason.PARTITIONS_DECREASED, Reason.SOURCE_TOPIC_DELETED),
        (
            AT_DESTINATION,
            "mirrored",
            DESTINATION_ID,
            Reason.DESTINATION_TOPIC_DELETED,
            Reason.DESTINATION_TOPIC_DELETED,
        ),
    ],
    ids=["source", "destination"],
)
def test_a_missing_partition_of_an_unnamed_topic_proves_nothing(
    side: TopicSide, topic: str, own_id: bytes, other: Reason, missing: Reason
) -> None:
    for topic_id, reason in ((ANOTHER_ID, other), (own_id, missing), (NO_TOPIC_ID, side.unreachable)):
        found = _missing_partition(side, ASSIGNMENT, shown(topic, topic_id))
        assert found is not None
        assert (found.reason, found.permanent_after_retries) == (reason, topic_id is not NO_TOPIC_ID)


@pytest.mark.parametrize(
    ("answer", "may_exist"),
    [
        (shown("orders", ANOTHER_ID), False),
        (shown("orders", NO_TOPIC_ID, Code.UNKNOWN_TOPIC_OR_PARTITION), False),
        (shown("orders", SOURCE_ID), True),
        (shown("orders", NO_TOPIC_ID), True),
        (shown("orders", NO_TOPIC_ID, Code.TOPIC_AUTHORIZATION_FAILED), True),
    ],
    ids=["another", "unknown", "same", "without an id", "forbidden"],
)
def test_a_topic_is_not_rebuilt_while_a_broker_may_show_the_mirrored_one(
    monkeypatch: pytest.MonkeyPatch, answer: ClusterMetadata, may_exist: bool
) -> None:
    @contextmanager
    def opened(source: Mapping[str, str], cluster_id: str | None) -> Iterator[Answering]:
        yield Answering(shown("orders", ANOTHER_ID), answer)

    monkeypatch.setattr(rebuild_claim, "source_client", opened)
    mirror = MirrorRecord("m", {}, {}, "cluster", "me", 0)
    for consented in (False, True):
        if may_exist:
            with pytest.raises(UnreachableError, match="may still exist"):
                rebuild_claim._require_gone(mirror, "orders", KNOWN, consented=consented)
        else:
            rebuild_claim._require_gone(mirror, "orders", KNOWN, consented=consented)


def test_an_id_is_not_replaced_by_none() -> None:
    for topic_id in (SOURCE_ID, ANOTHER_ID):
        require_id(shown("orders", topic_id).topics["orders"], KNOWN, "source")
    without = shown("orders", NO_TOPIC_ID).topics["orders"]
    require_id(without, None, "source")
    with pytest.raises(UnreachableError, match="without its topic id"):
        require_id(without, KNOWN, "source")


def test_a_topic_without_an_id_is_not_gone() -> None:
    def found(topic_id: bytes, known: str | None) -> bool:
        return is_there(cast(ClusterClient, Answering(shown("orders", topic_id))), "orders", known)

    assert found(SOURCE_ID, KNOWN)
    assert not found(ANOTHER_ID, KNOWN)
    assert found(NO_TOPIC_ID, None)
    with pytest.raises(KmirrorError, match="without its topic id"):
        found(NO_TOPIC_ID, KNOWN)
