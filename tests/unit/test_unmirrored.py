"""Partitions that only one of the clusters has: what no lane copies is lag, what only the destination has is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import PartitionMetadata, TopicMetadata, TopicPartition
from kmirror.errors import KmirrorError, Reason
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.wait import Condition, judge
from kmirror.state.engine_findings import Lacking
from kmirror.state.records import DesiredState
from kmirror.state.snapshot import State
from kmirror.status.observed import ClusterSnapshot
from kmirror.status.partition_row import PartitionRow
from kmirror.status.topic_state import TopicState
from kmirror.web.live_mirror import live_mirror
from tests.support.live_engine import AT, NOW_MS, row, snapshot, topic_record
from tests.support.statuses import status_of

REFUSED = Lacking(3, Reason.NOT_AUTHORIZED, "adding partitions to t: TOPIC_AUTHORIZATION_FAILED (29)")


def cluster(count: int | None, ends: Mapping[int, int], *, error: int = 0, starts: int = 0) -> ClusterSnapshot:
    """Return what a cluster says of topic t; with None nothing."""
    partitions = {p: PartitionMetadata(p, 0, 1, 0, (1,), (1,)) for p in range(count or 0)}
    topics = {} if count is None else {"t": TopicMetadata("t", error, bytes(16), False, partitions)}
    offsets = {TopicPartition("t", p): end for p, end in ends.items()}
    return ClusterSnapshot(
        NOW_MS,
        topics,
        log_start_offset=dict.fromkeys(offsets, starts),
        last_stable_offset=offsets,
        high_watermark=offsets,
    )


def rows(
    source: ClusterSnapshot | None,
    destination: ClusterSnapshot,
    lacking: Lacking | None = None,
    desired: DesiredState = DesiredState.ACTIVE,
) -> list[PartitionRow]:
    """Return the rows of topic t, whose partition 0 is copied; `lacking` is what its engine knows."""
    found, topic = snapshot(row(copied=100)), topic_record("t", desired=desired)
    engine = replace(found.engine, lacking=None if lacking is None else {"t": lacking})
    state = State.of({**found.stored, topic.key: topic, engine.key: engine}.values())
    mirror = state.mirror("m")
    assert mirror is not None
    return status_of(state, mirror, [topic], destination, source, NOW_MS, engine_has_ended=False).partitions


def test_what_only_the_source_has_is_lag_from_its_log_start() -> None:
    (own, added) = rows(cluster(2, {0: 100, 1: 70}, starts=20), cluster(1, {0: 100}))
    assert (own.lag, own.reason) == (0, None)
    assert (added.source_offset, added.destination_offset, added.lag) == (70, None, 50)
    assert (added.reason, added.topic_state) == (Reason.PARTITION_MISSING, TopicState.PENDING_MIRROR)
    assert own.topic_state is TopicState.PENDING_MIRROR
    for condition in (Condition.CAUGHT_UP, Condition.HEALTHY):
        (judged,) = judge(condition, [own, added], {TopicPartition("t", p): 100 for p in range(2)})
        assert judged.result is Outcome.TIMED_OUT


def test_a_refusal_is_reported_with_its_cause() -> None:
    added = rows(cluster(3, {0: 100, 1: 70, 2: 5}), cluster(1, {0: 100}), REFUSED)[1:]
    assert [one.reason for one in added] == [Reason.NOT_AUTHORIZED] * 2
    assert all("TOPIC_AUTHORIZATION_FAILED" in str(one.error_message) for one in added)


@pytest.mark.parametrize(
    "source",
    [
        None,
        ClusterSnapshot(NOW_MS, trouble=KmirrorError("down")),
        cluster(3, {}, error=Code.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_a_source_that_says_nothing_proves_nothing(source: ClusterSnapshot | None) -> None:
    """What the engine last knew is shown, with an unknown lag; and what is here beside it is not called extra."""
    found = rows(source, cluster(1, {0: 100}), REFUSED)
    assert [(one.partition, one.lag) for one in found] == [(0, None), (1, None), (2, None)]
    (_, beside) = rows(source, cluster(2, {0: 100, 1: 0}))
    assert not beside.is_extra
    assert beside.lag is None


def test_what_only_the_destination_has_holds_nothing_up() -> None:
    (own, extra) = rows(cluster(1, {0: 100}), cluster(2, {0: 100, 1: 4}))
    assert (extra.is_extra, extra.lag, extra.reason) == (True, 0, Reason.PARTITIONS_DECREASED)
    assert own.topic_state is TopicState.ACTIVE
    for condition in (Condition.CAUGHT_UP, Condition.HEALTHY):
        (judged,) = judge(condition, [own, extra], {TopicPartition("t", 0): 100})
        assert judged.result is Outcome.DONE


def test_a_stopped_topic_is_one_like_any_other() -> None:
    assert len(rows(None, cluster(3, {0: 100, 1: 1, 2: 1}), desired=DesiredState.STOPPED)) == 1


def test_an_engine_shows_what_it_cannot_add() -> None:
    ends = {TopicPartition("t", 0): (AT - 1, 100), TopicPartition("t", 1): (AT - 1, 70)}
    lacking = Lacking(2, None, "a quota")
    found = snapshot(
        row(copied=100), source_ends=ends, lacking={"t": lacking}, lacking_starts={TopicPartition("t", 1): 20}
    )
    live = live_mirror(found)
    assert [(one.partition, one.lag, one.reason) for one in live.partitions] == [
        (0, 0, None),
        (1, 50, Reason.PARTITION_MISSING),
    ]
    assert live.missing is not None
