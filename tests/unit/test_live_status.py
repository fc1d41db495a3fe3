"""What a running engine keeps of its topics' status, and when it is made again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver import live_status as module
from kmirror.engine.driver.live_status import LiveStatus
from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.engine.status.counters import Counters
from kmirror.engine.status.history import Sample
from kmirror.errors import KmirrorError, Reason
from kmirror.state.engine_findings import Lacking
from kmirror.state.record_kinds import Record
from kmirror.state.records import (
    PENDING_PROMOTE,
    DesiredState,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
)
from kmirror.state.workflow_records import PROMOTE, WorkflowRecord
from kmirror.status.rules import topic_status
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TopicStatus
from tests.support.live_engine import AT, NOW_MS, live_status, mirror_record, row, snapshot, topic_record

COPIED = (row("a", copied=100), row("b", copied=100))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics whose status was made, in order."""
    found: list[str] = []

    def noted(topic: object, *more: object) -> TopicStatus:
        found.append(topic.topic)  # type: ignore[attr-defined]
        return topic_status(topic, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "topic_status", noted)
    return found


def later(live: LiveStatus, seconds: float) -> tuple[TopicStatus, ...]:
    return live.current(AT + seconds, NOW_MS + int(1000 * seconds))


def reported(live: LiveStatus, topic: str, at: float = AT, **more: object) -> None:
    """Have the lane report a new row on a topic."""
    new = row(topic, **more)  # type: ignore[arg-type]
    report = ProgressRecord("m", 0, "l", 1, 0, "h1", 9, NOW_MS, (new,))
    live._health.take_lane(report, at, is_complete=False)
    live.take(report)
    live._partitions.take_row(TopicPartition(topic, 0), report, new, at)


def test_only_topics_with_new_reports_are_made_again(made: list[str]) -> None:
    live = live_status(snapshot(*COPIED))
    assert [(one.topic, one.state, one.lag) for one in later(live, 0)] == [("a", "ACTIVE", 0), ("b", "ACTIVE", 0)]
    assert made == ["a", "b"]
    assert [one.lag_as_of_ms for one in later(live, 1)] == [NOW_MS - 3_000] * 2
    assert made == ["a", "b"]
    reported(live, "b", copied=90, state=PartitionState.FAILED, reason=Reason.RECORD_REJECTED)
    assert [(one.topic, one.state) for one in later(live, 1)] == [("a", "ACTIVE"), ("b", "FAILED")]
    assert made == ["a", "b", "b"]


def test_the_time_of_a_lag_that_did_not_change_is_new() -> None:
    live = live_status(snapshot(*COPIED))
    before = [one.lag_as_of_ms for one in later(live, 0)]
    live._health.take_lane(ProgressRecord("m", 0, "l", 1, 0, "h1", 9, NOW_MS, ()), AT + 6, is_complete=False)
    assert before == [NOW_MS - 3_000] * 2
    live._lease.record = replace(live._lease.record, last_seen_ms=NOW_MS + 6_000)
    assert [one.lag_as_of_ms for one in later(live, 7)] == [NOW_MS + 4_000] * 2


def test_how_long_a_topic_is_behind_grows_without_a_report(made: list[str]) -> None:
    live = live_status(snapshot(row("a", copied=90), row("b", copied=100)))
    assert [one.time_lag_ms for one in later(live, 0)] == [4_000, 0]
    assert [one.time_lag_ms for one in later(live, 2)] == [6_000, 0]
    assert made == ["a", "b", "a"]


def test_all_are_made_again_while_anything_but_rows_may_change_them(made: list[str]) -> None:
    live = live_status(snapshot(*COPIED))
    assert {one.state for one in later(live, 0)} == {"ACTIVE"}
    live._source.trouble = KmirrorError("down", reason=Reason.SOURCE_UNREACHABLE)
    assert {one.state for one in later(live, 1)} == {"SOURCE_UNAVAILABLE"}
    live._source.trouble = None
    assert {one.state for one in later(live, 2)} == {"ACTIVE"}, "the first look after trouble"
    assert made == ["a", "b"] * 3
    later(live, 3)
    assert made == ["a", "b"] * 3
    # no heartbeat is accepted any more
    assert {(one.state, one.reason, one.lag) for one in later(live, 12)} == {
        (TopicState.LINK_FAILED, Reason.ENGINE_SILENT, None)
    }


def test_a_topic_whose_record_changes_is_made_again(made: list[str]) -> None:
    live = live_status(snapshot(*COPIED, records=[WorkflowRecord("m", PROMOTE, "WAITING", "op@h", 0, NOW_MS)]))
    later(live, 0)
    live._topics.by_name["a"] = topic_record("a", pending_operation=PENDING_PROMOTE)
    assert [one.state for one in later(live, 1)] == ["PENDING_STOPPED", "ACTIVE"]
    assert made == ["a", "b", "a"]
    # the promote that waited is gone
    live._lease.record = replace(live._lease.record, last_seen_ms=NOW_MS + 60_000)
    assert [one.state for one in later(live, 60)] == ["ACTIVE", "ACTIVE"]


def test_topics_that_are_paused_or_stopped_are_made_again_only_for_a_reason(made: list[str]) -> None:
    records: list[Record] = [
        topic_record("p", desired=DesiredState.PAUSED),
        PartitionRecord("m", "p", 0, PartitionState.PAUSED, NOW_MS - 9_000, aligned=True),
        topic_record("s", desired=DesiredState.STOPPED),
        PartitionRecord("m", "s", 0, PartitionState.STOPPED, NOW_MS - 9_000, Reason.PROMOTED),
    ]
    ends = {TopicPartition("p", 0): (50, 43)}
    live = live_status(snapshot(records=records, paused_ends=(AT - 5, ends)))
    assert [(one.topic, one.state, one.lag, one.is_wanted) for one in later(live, 0)] == [
        ("p", "PAUSED", 7, False),
        ("s", "STOPPED", None, False),
    ]
    later(live, 1)
    assert made == ["p", "s"], "although no lane reports"
    live._source.paused_ends = AT + 1, {TopicPartition("p", 0): (60, 43)}
    assert [one.lag for one in later(live, 2)] == [17, None]
    assert made == ["p", "s", "p"]


def test_a_topic_that_lacks_a_partition_says_why() -> None:
    lacking = {"a": Lacking(2, Reason.NOT_AUTHORIZED, "refused")}
    known = snapshot(*COPIED, lacking=lacking, lacking_starts={TopicPartition("a", 1): 0})
    known = replace(known, engine=replace(known.engine, lacking=lacking))
    live = live_status(known)
    (a, b) = later(live, 0)
    assert (a.state, a.partition_count, a.reason) == (TopicState.PENDING_MIRROR, 2, Reason.NOT_AUTHORIZED)
    assert (a.error_message or "").endswith("the mirror lacks it: refused")
    assert (b.state, b.partition_count, live.lacks_partitions) == (TopicState.ACTIVE, 1, True)


def test_an_engine_that_ends_shows_what_it_copied_last() -> None:
    known = snapshot(*COPIED)
    live = live_status(known)
    later(live, 0)
    live._lanes.stopping = True
    live._lease.record = replace(known.engine, lanes={})
    assert {one.state for one in later(live, 1)} == {"ACTIVE"}
    live.end(AT + 1, NOW_MS + 1_000)
    assert {one.state for one in later(live, 500)} == {"ACTIVE"}


def sample(known: MirrorSnapshot) -> Sample:
    return Sample.of(live_status(known).current(AT, NOW_MS), Counters(), known.source_trouble)


def test_a_sample_sums_up_what_is_shown() -> None:
    records: list[Record] = [
        topic_record("p", desired=DesiredState.PAUSED),
        PartitionRecord("m", "p", 0, PartitionState.PAUSED, NOW_MS - 9_000, aligned=True),
    ]
    failed = row("f", copied=95, state=PartitionState.FAILED, reason=Reason.RECORD_REJECTED)
    ends = (AT - 5, {TopicPartition("p", 0): (50, 43)})
    found = sample(snapshot(row("a"), failed, records=records, paused_ends=ends))
    assert (found.lag, found.lag_unknown, found.failed, found.not_copied, found.phase) == (22, 0, 1, 1, None)
    assert (found.time_lag_ms, found.bytes_copied) == (4_000, 0)
    down = KmirrorError("down", reason=Reason.SOURCE_UNREACHABLE)
    found = sample(snapshot(row("a", source_seen_ms=NOW_MS - 20_000), source_trouble=down, source_ends={}))
    assert (found.lag, found.lag_unknown, found.phase) == (None, 1, "SOURCE_UNREACHABLE")
    silent = replace(known := snapshot(row("a")), engine=replace(known.engine, last_seen_ms=NOW_MS - 30_000))
    found = sample(silent)
    assert (found.lag, found.not_copied, found.phase, found.bytes_copied) == (None, 1, "ENGINE_SILENT", None)
    assert sample(snapshot(mirror=mirror_record())).phase == "NOTHING_TO_COPY"
