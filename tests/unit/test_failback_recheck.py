"""What a failback looks at again before it deletes anything: what is unknown is not taken for a change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.list_offsets import OffsetAnswer
from kmirror.cluster.protocol.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.engine.clock import now_ms
from kmirror.errors import BrokerError, KmirrorError, RefusedError, TimedOutError, UnreachableError
from kmirror.ops.add import archive_admin
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.progress import TopicStep, TopicWork
from kmirror.ops.failback.recheck import is_usable, require_untouched
from kmirror.state.archive_proofs import Proof

TOPIC_ID = bytes(range(16))
WORK = TopicWork("orders", TopicStep.SAVED, format_topic_id(TOPIC_ID), ends={0: 100})


@dataclass
class Cluster:
    """A cluster as its brokers describe it."""

    code: int = 0
    end: OffsetAnswer = field(default_factory=lambda: OffsetAnswer(0, 100, 0))
    silent: frozenset[int] = frozenset()

    def metadata(self, _: object) -> Any:
        partition = PartitionMetadata(0, 0, 1, 5, (1, 2), (1, 2))
        return ClusterMetadata(
            "A", 1, {}, {"orders": TopicMetadata("orders", self.code, TOPIC_ID, False, {0: partition})}
        )

    def newest_metadata(self, topics: object) -> tuple[Any, frozenset[int]]:
        return self.metadata(topics), self.silent

    def list_offsets(self, wanted: Any, **_: object) -> dict[TopicPartition, OffsetAnswer]:
        return dict.fromkeys(wanted, self.end)


def look_at(cluster: Cluster) -> None:
    require_untouched(cast(Destination, SimpleNamespace(client=cluster)), WORK)


def test_a_topic_that_is_as_it_was_may_be_deleted() -> None:
    look_at(Cluster())


def test_what_another_client_did_is_refused() -> None:
    with pytest.raises(RefusedError, match="another client wrote to orders-0: it ended at 100, and ends at 101 now"):
        look_at(Cluster(end=OffsetAnswer(0, 101, 0)))
    with pytest.raises(RefusedError, match="orders was deleted"):
        look_at(Cluster(Code.UNKNOWN_TOPIC_OR_PARTITION))


def test_a_leader_that_is_away_is_no_client_that_wrote() -> None:
    with pytest.raises(UnreachableError, match="the log end of orders-0 here: LEADER_NOT_AVAILABLE"):
        look_at(Cluster(end=OffsetAnswer(Code.LEADER_NOT_AVAILABLE, None, -1)))


def test_a_broker_that_may_lead_it_and_have_more_is_waited_for() -> None:
    with pytest.raises(TimedOutError, match="who leads orders-0 here is not certain: broker 2 does not answer"):
        look_at(Cluster(silent=frozenset({2})))


def test_a_topic_that_no_broker_describes_now_is_not_deleted() -> None:
    with pytest.raises(KmirrorError, match="the destination does not describe orders: BROKER_NOT_AVAILABLE"):
        look_at(Cluster(Code.BROKER_NOT_AVAILABLE))


DAY_MS = 86_400_000
BEGUN = replace(WORK, step=TopicStep.ARCHIVE, archive="orders.kmirror-archive.1", ranges={0: (90, 100)})
PROVED = replace(BEGUN, step=TopicStep.SAVED, proved={0: Proof(format_topic_id(TOPIC_ID) or "", 100, 100, 10, 0)})


def is_usable_after(age_ms: int, work: TopicWork, kept_ms: int | None, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(archive_admin, "kept_ms", lambda *_: kept_ms)
    archive = ArchiveCluster(end=OffsetAnswer(0, 100, 0, now_ms() - age_ms))
    return is_usable(cast(Destination, SimpleNamespace(client=archive)), work)


class ArchiveCluster(Cluster):
    """A cluster with the archive; the answer is that of its partition."""

    def metadata(self, topics: Any) -> Any:
        (found,) = super().metadata(topics).topics.values()
        return SimpleNamespace(topics=dict.fromkeys(topics, found))


@pytest.mark.parametrize("work", [BEGUN, PROVED], ids=["begun", "proved"])
def test_an_archive_that_soon_deletes_records_is_not_used(work: TopicWork, monkeypatch: pytest.MonkeyPatch) -> None:
    for age_ms, kept_ms, wanted in (
        (60_000, DAY_MS, True),
        (DAY_MS - 7_200_000, DAY_MS, True),
        (DAY_MS - 1_800_000, DAY_MS, False),
        (40 * DAY_MS, DAY_MS, False),
        (40 * DAY_MS, None, True),
        # as long as it keeps anything at all
        (60_000, 600_000, True),
        (400_000, 600_000, False),
    ):
        assert is_usable_after(age_ms, work, kept_ms, monkeypatch) is wanted, (age_ms, kept_ms)


def test_an_archive_that_was_not_created_yet_is_created() -> None:
    missing = SimpleNamespace(client=ArchiveCluster(Code.UNKNOWN_TOPIC_OR_PARTITION))
    assert is_usable(cast(Destination, missing), BEGUN)
    assert is_usable(cast(Destination, missing), replace(BEGUN, archive=None, ranges={}))


def test_how_old_an_archive_is_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition whose leader is away may have the oldest record."""
    monkeypatch.setattr(archive_admin, "kept_ms", lambda *_: DAY_MS)
    away = ArchiveCluster(end=OffsetAnswer(Code.LEADER_NOT_AVAILABLE, None, -1))
    with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
        archive_admin.kept_until_ms(cast(Any, away), "orders.kmirror-archive.1", [0])
    empty = ArchiveCluster(end=OffsetAnswer(0, None, -1))
    until_ms = archive_admin.kept_until_ms(cast(Any, empty), "orders.kmirror-archive.1", [0])
    assert until_ms is not None
    assert until_ms >= DAY_MS
