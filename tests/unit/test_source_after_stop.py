"""What a promote says of a source that it has read once more after its stop, or has not. No sockets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.errors import ExitCode, Reason, UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.ops.base.results import exit_code_of
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.stop.promote_readiness import ANOTHER
from kmirror.ops.stop.report import stopped_row, totals_of, totals_sentences
from kmirror.ops.stop.source_after_stop import SourceAfterStop, check_source_after_stop, rows_of_stopped
from kmirror.ops.stop.work import StopResults
from kmirror.state.records import AtStop, DesiredState, MirrorRecord, PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import Changes, State
from tests.unit.test_promote_readiness import MIRROR, PLACES, TOPIC, Ends

#: Both copies end at 10, and so did the source when they were stopped; it was not read after that.
UNREAD = AtStop(1_000, 10, source_offset=10, source_as_of_ms=1_000, source_answered=True, unchecked=True)
READ = replace(UNREAD, unchecked=None)
STOPPED = replace(TOPIC, desired=DesiredState.STOPPED, stop_reason=Reason.PROMOTED)


def record_of(partition: int, known: AtStop) -> PartitionRecord:
    record = PartitionRecord("m", "t", partition, PartitionState.STOPPED, 1_000, Reason.PROMOTED)
    return replace(record, last_mirrored_offset=10, at_stop=known)


def checked(source: Ends, known: AtStop = UNREAD) -> SourceAfterStop:
    rows = [stopped_row(p, record_of(p.partition, known), Outcome.DONE, Reason.PROMOTED) for p in PLACES]
    done = StopResults(rows, ends=dict.fromkeys(PLACES, 10))
    return check_source_after_stop(cast(ClusterClient, source), {"t": TOPIC}, done)


def outcomes(rows: Sequence[TopicResult]) -> list[tuple[int | None, Outcome, Reason | None]]:
    return [(row.partition, row.result, row.reason) for row in rows]


def test_what_was_not_read_after_the_stop_is_not_done_yet_and_never_said_to_be_complete() -> None:
    """Once, it was DONE with exit code 0, and a failover said later that nothing was lost."""
    rows = checked(Ends(10, None)).rows
    assert outcomes(rows) == [(0, Outcome.DONE, Reason.PROMOTED), (1, Outcome.TIMED_OUT, Reason.PROMOTED)]
    assert [row.is_complete for row in rows] == [True, False]
    assert rows[1].message == "t-1 is stopped at 10, but not checked after the stop: the source may have received more"
    assert exit_code_of(rows) is ExitCode.TIMED_OUT
    later = [stopped_row(PLACES[0], record_of(0, known), Outcome.NOOP, Reason.PROMOTED) for known in (READ, UNREAD)]
    said = ["nothing is lost" in str(row.message) for row in later]
    assert said == [True, False]
    assert "nothing is lost" not in totals_sentences(totals_of(later[1:], None))[0]


def test_a_source_that_ends_before_the_copy_has_lost_records() -> None:
    """Cut to 5, it has received 3 more since: once, the row said that it had no further records."""
    after = checked(Ends(10, 8))
    went_back = (1, Outcome.FAILED, Reason.SOURCE_DIVERGED)
    assert outcomes(after.rows) == [(0, Outcome.DONE, Reason.PROMOTED), went_back]
    assert exit_code_of(after.rows) is ExitCode.HISTORIES_DIFFER
    # the next promote finds it on record
    known = after.checked(UNREAD, PLACES[1])
    row = stopped_row(PLACES[1], record_of(1, known), Outcome.NOOP, Reason.PROMOTED)
    assert not row.is_complete
    nothing = check_source_after_stop(cast(ClusterClient, Ends()), {"t": TOPIC}, StopResults([row]))
    assert outcomes(nothing.rows) == [went_back]


def test_what_only_the_destination_has_is_settled() -> None:
    after = checked(Ends(10))
    assert outcomes(after.rows) == [(p, Outcome.DONE, Reason.PROMOTED) for p in (0, 1)]
    assert after.absent == [PLACES[1]]
    assert after.checked(UNREAD, PLACES[1]).unchecked is None


def test_a_source_topic_that_is_deleted_before_it_is_read_is_no_success() -> None:
    source = Ends(None, None)
    source.error = Code.UNKNOWN_TOPIC_OR_PARTITION
    assert {row.reason for row in checked(source).rows} == {Reason.SOURCE_TOPIC_DELETED}
    # a broker that does not answer may know better
    source.silent = frozenset({2})
    assert {row.result for row in checked(source).rows} == {Outcome.TIMED_OUT}


class Rerun:
    """The same promote, run again: what the source and its own mirrors say now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *known: AtStop) -> None:
        self.records = [record_of(number, one) for number, one in enumerate(known)]
        self.source = Ends(*(10 for _ in known))
        #: What a mirror of the source has of the topic, or why that cannot be read.
        self.there: TopicRecord | UnreachableError | None = None
        self.recorded: dict[int, AtStop | None] = {}

        @contextmanager
        def source_client(*_: object) -> Iterator[Ends]:
            yield self.source

        monkeypatch.setattr("kmirror.ops.stop.source_after_stop.source_client", source_client)
        monkeypatch.setattr("kmirror.ops.stop.source_after_stop.change", self.change)
        monkeypatch.setattr("kmirror.ops.stop.copied_back.stored_state_on", self.stored)

    def stored(self, *_: object) -> State:
        if isinstance(self.there, UnreachableError):
            raise self.there
        back = MirrorRecord("back", {}, {}, "B", "x", 0)
        return State.of([back, *([self.there] if self.there else [])])

    def change(self, _: object, __: str, decide: Any) -> Changes:
        changes: Changes = decide(State.of([MIRROR, STOPPED, *self.records]))
        self.recorded = {record.partition: record.at_stop for record in changes.records}  # type: ignore[union-attr]
        return changes

    def rows(self) -> list[TopicResult]:
        class Here:
            cluster_id = "B"

        state = State.of([MIRROR, STOPPED, *self.records])
        return rows_of_stopped(cast(Destination, Here()), MIRROR, state, [STOPPED], dry_run=False)[0]


def test_only_what_was_never_read_is_read_by_the_next_promote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, one partition with the mark had all of its topic judged by records of weeks later."""
    again = Rerun(monkeypatch, READ, UNREAD)
    again.source.ends = [30, 10]
    assert outcomes(again.rows()) == [(p, Outcome.NOOP, Reason.PROMOTED) for p in (0, 1)]
    assert {number: one and one.unchecked for number, one in again.recorded.items()} == {1: None}
    again.source.ends = [30, 12]
    assert outcomes(again.rows())[1] == (1, Outcome.FAILED, Reason.SOURCE_WRITTEN_AFTER_STOP)


@pytest.mark.parametrize("desired", [DesiredState.ACTIVE, DesiredState.STOPPED])
@pytest.mark.parametrize("known", [UNREAD, replace(READ, source_offset=12)])
def test_what_is_or_was_copied_back_is_no_loss(
    monkeypatch: pytest.MonkeyPatch, known: AtStop, desired: DesiredState
) -> None:
    again = Rerun(monkeypatch, known)
    again.source.ends = [15]
    again.there = replace(TOPIC, mirror="back", partitions=1, desired=desired, added_at_ms=2_000)
    (row,) = again.rows()
    assert (row.result, row.is_complete) == (Outcome.NOOP, False)
    assert row.message == "t-0 is stopped at 10; since then, its source topic is a mirror topic of this one"
    stop = again.recorded[0]
    assert stop is not None
    assert (stop.unchecked, stop.copied_back) == (None, True)
    # that stays so when the mirror there is forgotten
    again.records, again.there = [record_of(0, stop)], None
    assert again.rows()[0].result is Outcome.NOOP


def test_a_copy_that_the_source_had_before_the_stop_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Rerun(monkeypatch, UNREAD)
    again.source.ends = [15]
    again.there = replace(STOPPED, mirror="back", partitions=1, added_at_ms=500)
    assert outcomes(again.rows()) == [(0, Outcome.FAILED, Reason.SOURCE_WRITTEN_AFTER_STOP)]


def test_nothing_is_called_lost_while_it_is_unknown_whether_it_was_copied_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, the destination's own records, copied back, were recorded as lost for good."""
    again = Rerun(monkeypatch, UNREAD, UNREAD)
    again.source.ends = [10, 15]
    again.there = UnreachableError("it does not answer", "start it", Reason.SOURCE_UNREACHABLE)
    rows = again.rows()
    assert [row.result for row in rows] == [Outcome.NOOP, Outcome.TIMED_OUT]
    assert rows[1].hint == "start it; run the same command again: it checks"
    assert list(again.recorded) == [0]


@pytest.mark.parametrize("reason", [Reason.NOT_AUTHORIZED, Reason.AUTHENTICATION_FAILED])
def test_what_the_source_has_is_reported_where_it_may_never_be_known_whether_it_was_copied_back(
    monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    """Once, each repeat read that the source had more, but said only that it may have, each time with exit code 5."""
    again = Rerun(monkeypatch, UNREAD, UNREAD)
    again.there = UnreachableError("we may not read it", "grant READ", reason)
    again.source.ends = [10, 15]
    for _ in range(2):
        rows = again.rows()
        written = (1, Outcome.FAILED, Reason.SOURCE_WRITTEN_AFTER_STOP)
        assert outcomes(rows) == [(0, Outcome.NOOP, Reason.PROMOTED), written]
        assert (rows[1].lag, exit_code_of(rows)) == (5, ExitCode.PARTLY_DONE)
        more = "the source received 5 offsets that the copy lacks, unless the topic was copied back from here"
        assert rows[1].message == f"t-1 is stopped at 10; after that, {more}"
        assert rows[1].hint == "grant READ; run the same command again: it checks"
        assert list(again.recorded) == [0]
    again.source.ends = [10, 8]
    assert outcomes(again.rows())[1] == (1, Outcome.FAILED, Reason.SOURCE_DIVERGED)
    # partitions that were added, and a topic that was recreated
    again.source.ends, again.source.partitions = [10, 10, 3], 3
    assert outcomes(again.rows())[2] == (2, Outcome.FAILED, Reason.SOURCE_WRITTEN_AFTER_STOP)
    assert 2 not in again.recorded
    with monkeypatch.context() as recreated:
        recreated.setattr("kmirror.ops.stop.source_after_stop.count_of", lambda *_: ANOTHER)
        assert outcomes(again.rows()) == [(p, Outcome.FAILED, Reason.SOURCE_TOPIC_RECREATED) for p in (0, 1)]
        assert again.recorded == {}
    # once it can be read, it is settled as always
    again.source.ends, again.source.partitions, again.there = [10, 15], 2, None
    assert (
        again.rows()[1].hint
        == "stop the producers; `kmirror add --adopt` resumes mirroring if nothing was written here since"
    )
    assert list(again.recorded) == [0, 1]


def test_the_mark_is_that_of_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was never marked is not read: nothing is asked of the source."""
    again = Rerun(monkeypatch, READ)
    again.there = UnreachableError("it must not be asked", None, Reason.SOURCE_UNREACHABLE)
    assert outcomes(again.rows()) == [(0, Outcome.NOOP, Reason.PROMOTED)]
    assert again.recorded == {}
