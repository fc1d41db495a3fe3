"""What a stop says was lost: the time of its numbers, what is an estimate, what is unknown."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmirror.cluster.client import OffsetAnswer
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import PartitionMetadata, TopicMetadata, TopicPartition
from kmirror.errors import Reason
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.stop.mirrored_end import MirroredEnd
from kmirror.ops.stop.report import (
    Failure,
    LastReport,
    at_stop_from_reports,
    failure_of,
    last_reports,
    needs_attention,
    source_only_record,
    spread_warnings,
    stopped_row,
    totals_of,
    totals_sentences,
    with_all_partitions,
    with_source_answer,
)
from kmirror.ops.stop.source_ends import SourceEnd, SourceEnds
from kmirror.ops.stop.stop import _find_mirrored_ends
from kmirror.state.records import (
    AtStop,
    DesiredState,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import State
from tests.support.live_engine import topic_record

PARTITION = PartitionMetadata(0, 0, 1, 0, (1,), (1,))
PLACE = TopicPartition("orders", 0)
STOP = 1_000_000_000_000
ROW = ProgressRow("orders", 0, 100, 100, 0, 100, STOP - 3000, PartitionState.MIRRORING, records_per_second=20.0)
RECORD = PartitionRecord("m", "orders", 0, PartitionState.STOPPED, STOP, last_mirrored_offset=100)
FRESH = AtStop(STOP, 100, STOP - 3000, 100, 100, None, STOP - 1000, 20.0)


def row(known: AtStop | None, lmo: int = 100) -> TopicResult:
    record = replace(RECORD, at_stop=known, last_mirrored_offset=lmo)
    return stopped_row(PLACE, record, Outcome.DONE, Reason.FAILED_OVER)


def test_an_old_number_is_reported_with_its_time_and_an_estimate() -> None:
    old = row(replace(FRESH, source_as_of_ms=STOP - 200_000))
    assert (old.lag, old.estimated_more, old.rpo_ms) == (0, 4000, None)
    assert old.message == (
        "orders-0 is stopped at 100; 0 offsets known lost: the source ended at 100 at 2001-09-09T01:43:20Z, 3m20s "
        "before the stop; about 4,000 more since then at 20 offsets a second, an estimate"
    )
    totals = totals_of([old], "no answer within 3 s")
    assert (totals.rpo_ms, totals.rpo_at_least_ms, totals.estimated_more_records) == (None, None, 4000)
    assert totals_sentences(totals) == [
        "1 partition: 0 offsets known lost as of 2001-09-09T01:43:20Z, 3m20s before the stop; later records are lost "
        "too",
        "about 4,000 more offsets lost, an estimate from the last known rates",
        "RPO: not known; the last mirrored record is from 2001-09-09T01:46:37Z",
        "the source does not answer now: no answer within 3 s",
    ]


def test_a_current_number_needs_no_estimate() -> None:
    fresh = row(FRESH)
    assert (fresh.lag, fresh.estimated_more, fresh.rpo_ms) == (0, None, 0)
    assert not needs_attention(fresh)
    assert "estimate" not in str(fresh.message)


def test_totals_are_as_old_as_their_oldest_row() -> None:
    totals = totals_of([row(FRESH), row(replace(FRESH, source_as_of_ms=STOP - 60_000)), row(FRESH)], None)
    assert totals.as_of_ms == STOP - 60_000
    assert "1m before the stop; later records are lost too" in totals_sentences(totals)[0]


def test_what_was_promoted_earlier_has_lost_nothing_and_takes_part_in_no_total() -> None:
    earlier = replace(FRESH, time_ms=STOP - 500_000, source_as_of_ms=STOP - 700_000, source_answered=None)
    promoted = stopped_row(PLACE, replace(RECORD, at_stop=earlier), Outcome.NOOP, Reason.PROMOTED)
    assert promoted.message == "orders-0 is stopped at 100; nothing is lost: the source ended at 100"
    assert (promoted.estimated_more, promoted.rpo_ms, needs_attention(promoted)) == (None, 0, False)
    assert totals_sentences(totals_of([promoted, promoted], None)) == [
        "2 partitions: nothing is lost, promoted with all that the source had"
    ]
    totals = totals_of([promoted, row(FRESH)], None)
    assert (totals.partitions, totals.complete_partitions, totals.as_of_ms) == (2, 1, STOP - 1000)
    assert totals_sentences(totals)[0] == "2 partitions: 0 offsets known lost as of 2001-09-09T01:46:39Z"


def test_totals_compare_each_source_end_with_the_stop_of_its_own_partition() -> None:
    hour = 3_600_000
    waves = [replace(FRESH, time_ms=STOP - at, source_as_of_ms=STOP - at - 500) for at in (2 * hour, hour, 0)]
    totals = totals_of([row(one) for one in waves], None)
    assert totals.age_ms == 500
    assert "before the stop" not in totals_sentences(totals)[0]


def test_idle_partitions_do_not_date_the_last_mirrored_record() -> None:
    week = 7 * 24 * 3_600_000
    old = replace(FRESH, source_answered=False)
    idle = replace(old, last_timestamp_ms=STOP - week, records_per_second=0.0)
    assert totals_of([row(old), row(idle)], "gone").last_mirrored_timestamp_ms == STOP - 3000
    other = replace(idle, last_timestamp_ms=STOP - 9)
    assert totals_of([row(idle), row(other)], None).last_mirrored_timestamp_ms == STOP - 9


def test_copies_of_busy_and_idle_topics_that_have_everything_end_together() -> None:
    week = 7 * 24 * 3_600_000

    def reports(**rows: ProgressRow) -> dict[TopicPartition, LastReport]:
        return {TopicPartition(topic, 0): LastReport(one, STOP - 1000, STOP) for topic, one in rows.items()}

    topics = [topic_record("busy"), topic_record("idle")]
    idle = ROW._replace(topic="idle", last_timestamp_ms=STOP - week)
    assert spread_warnings(topics, reports(busy=ROW, idle=idle)) == []
    behind = idle._replace(destination_offset=90, caught_up_ms=STOP - 61_000)
    assert spread_warnings(topics, reports(busy=ROW, idle=behind)) == [
        "the topics' copies end 60.000 s apart: idle is the furthest behind, busy the furthest ahead"
    ]


def test_a_source_that_does_not_answer_the_stop_may_have_received_more_since_a_second_ago() -> None:
    known = at_stop_from_reports(MirroredEnd(100), 100, None, LastReport(ROW, STOP - 1000), STOP)
    assert known == replace(FRESH, source_answered=False)
    silent = row(with_source_answer(PLACE, known, SourceEnds(STOP + 5, trouble="gone"), 100))
    assert (silent.lag, silent.estimated_more, silent.rpo_ms) == (0, 20, None)
    assert str(silent.message).endswith(
        "0 offsets known lost: the source ended at 100 at 2001-09-09T01:46:39Z, 1s before the stop; about 20 more since"
        " then at 20 offsets a second, an estimate"
    )
    totals = totals_of([silent], "gone")
    assert (totals.known_lost_records, totals.rpo_ms, totals.rpo_at_least_ms) == (0, None, None)
    assert "1s before the stop; later records are lost too" in totals_sentences(totals)[0]
    # it has answered: also where a lane whose clock is ahead reports a later time
    for answered_ms in (STOP + 5, STOP - 1005):
        found = row(with_source_answer(PLACE, known, SourceEnds(answered_ms, {PLACE: SourceEnd(100)}), 100))
        assert (found.lag, found.estimated_more, found.rpo_ms) == (0, None, 0)
        assert "before the stop" not in str(found.message)
    # This test once asked for the lane's end here, as the newer one. The report was read before the source was asked:
    # only the lane's clock makes it look newer, and the answer was lost.
    newer = with_source_answer(PLACE, known, SourceEnds(STOP - 1005, {PLACE: SourceEnd(110)}), 100)
    assert (newer.source_offset, newer.source_as_of_ms, row(newer).lag) == (110, STOP - 1005, 10)


def test_the_loss_has_two_bounds_if_it_is_known_when_the_connections_broke() -> None:
    seen = LastReport(ROW._replace(source_lost_ms=STOP - 29_950), STOP - 30_000)
    known = at_stop_from_reports(MirroredEnd(100), 100, None, seen, STOP)
    dead = row(with_source_answer(PLACE, known, SourceEnds(STOP + 5, trouble="gone"), 100))
    assert (dead.lag, dead.estimated_more_at_loss, dead.estimated_more) == (0, 1, 600)
    assert (dead.rpo_ms, dead.rpo_at_loss_ms) == (None, 50)
    assert str(dead.message).endswith(
        "about 1 more if the source died at 2001-09-09T01:46:10Z, when a connection to it broke, or 600 if it took "
        "writes until the stop, at 20 offsets a second, an estimate"
    )
    # the part of a record that each of many partitions may have lost counts
    slow = LastReport(seen.row._replace(records_per_second=1.0), STOP - 30_000)
    many = [row(at_stop_from_reports(MirroredEnd(100), 100, None, slow, STOP))] * 1000
    totals = totals_of(many, "gone")
    assert (totals.estimated_more_at_loss_records, totals.estimated_more_records) == (50, 30_000)
    assert (totals.rpo_ms, totals.rpo_at_loss_ms) == (None, 50)
    assert totals_sentences(totals)[1:3] == [
        "about 50 more if the source died at 2001-09-09T01:46:10Z, when a connection to it broke, or 30,000 if it took "
        "writes until the stop, an estimate from the last known rates",
        "RPO: not known, at most 0.05 s if the source died at 2001-09-09T01:46:10Z; the last mirrored record is from "
        "2001-09-09T01:46:37Z",
    ]
    # a timestamp that is ahead of the time of the report bounds nothing
    assert row(replace(known, last_timestamp_ms=STOP, source_offset=110, source_lost_ms=STOP + 9)).rpo_at_loss_ms == 9
    assert row(replace(known, last_timestamp_ms=STOP + 9, source_offset=110)).rpo_at_loss_ms is None
    ahead = replace(known, last_timestamp_ms=STOP + 31_000, source_offset=110, source_lost_ms=STOP + 40_000)
    assert row(ahead).rpo_at_loss_ms is None
    # one whose connection did not break is counted in full
    held = row(at_stop_from_reports(MirroredEnd(100), 100, None, LastReport(ROW, STOP - 30_000), STOP))
    assert totals_of([dead, held], "gone").estimated_more_at_loss_records == 601
    assert totals_of([dead, held], "gone").rpo_at_loss_ms is None
    # what it answers is later than any break
    answered = row(with_source_answer(PLACE, known, SourceEnds(STOP + 5, {PLACE: SourceEnd(110)}), 100))
    assert (answered.lag, answered.estimated_more_at_loss, answered.at_stop and answered.at_stop.source_lost_ms) == (
        10,
        None,
        None,
    )


def test_an_end_that_was_never_read_is_an_unknown_loss() -> None:
    unknown = row(AtStop(STOP, 100))
    assert (unknown.lag, unknown.rpo_ms, unknown.estimated_more) == (None, None, None)
    assert needs_attention(unknown)
    assert needs_attention(row(None))
    nothing = totals_of([unknown, unknown], "no answer within 3 s")
    assert (nothing.known_lost_records, nothing.partitions_unknown) == (None, 2)
    assert totals_sentences(nothing)[:2] == ["2 partitions", "2 partitions: the loss is unknown"]
    totals = totals_of([unknown, row(replace(FRESH, source_offset=150, source_max_timestamp_ms=STOP))], None)
    assert (totals.partitions, totals.partitions_unknown, totals.known_lost_records) == (2, 1, 50)
    assert (totals.rpo_ms, totals.rpo_at_least_ms) == (None, 3000)
    assert "RPO: at least 3 s; the last mirrored record is from 2001-09-09T01:46:37Z" in totals_sentences(totals)


def test_the_newest_observation_of_the_source_counts() -> None:
    answer = SourceEnds(STOP + 5, {PLACE: SourceEnd(130, 140, OffsetAnswer(0, 129, 1, STOP))})
    known = with_source_answer(PLACE, FRESH, answer, 100)
    assert (known.source_offset, known.source_high_watermark, known.source_as_of_ms) == (130, 140, STOP + 5)
    found = row(known)
    assert (found.lag, found.rpo_ms) == (30, 3000)
    assert "up to 10 more follow an open transaction" in str(found.message)
    # what is silent leaves the lane's last report; what is another topic now says nothing of the old one
    assert with_source_answer(PLACE, FRESH, SourceEnds(STOP, trouble="gone"), 100) == FRESH
    noted = with_source_answer(
        PLACE, FRESH, SourceEnds(STOP, notes={"orders": "the source has no topic orders any more"}), 100
    )
    assert noted == replace(FRESH, source_note="the source has no topic orders any more")
    assert needs_attention(row(noted))


def test_a_partition_that_had_failed() -> None:
    truncated = Failure(Reason.SOURCE_TRUNCATED, "the source starts at offset 150", 100)
    known = at_stop_from_reports(
        MirroredEnd(100), 100, truncated, LastReport(ROW._replace(source_offset=650), STOP), STOP
    )
    found = row(known)
    assert found.lag == 550
    assert "it had FAILED with SOURCE_TRUNCATED: the source starts at offset 150" in str(found.message)
    # of a history that was written again, all from the fork on is lost
    diverged = replace(truncated, reason=Reason.SOURCE_DIVERGED, offset=90)
    known = at_stop_from_reports(MirroredEnd(100), 100, diverged, LastReport(ROW, STOP), STOP)
    assert row(known).lag == 10
    assert totals_of([row(known), row(FRESH)], None).failed_partitions == 1


def test_the_reason_of_a_failure_comes_from_the_record_or_a_report() -> None:
    failed = replace(RECORD, state=PartitionState.FAILED, reason=Reason.LOOP, message="round", failed_offset=7)
    loop = Failure(Reason.LOOP, "round", 7)
    assert failure_of(failed, None) == loop
    assert failure_of(replace(failed, state=PartitionState.STOPPING), LastReport(ROW, STOP, STOP + 1)) == loop
    # a lane that looks at it again says MIRRORING before it knows: the record says when it resumes
    assert failure_of(failed, LastReport(ROW, STOP, STOP + 1)) == loop
    assert failure_of(replace(failed, state=PartitionState.MIRRORING, reason=None), LastReport(ROW, STOP, STOP)) is None
    newer = ROW._replace(state=PartitionState.FAILED, reason=Reason.CORRUPT_BATCH, message="crc", failed_offset=9)
    assert failure_of(None, LastReport(newer, STOP, STOP)) == Failure(Reason.CORRUPT_BATCH, "crc", 9)
    assert failure_of(None, None) is None


def test_reports_on_another_copy_are_ignored() -> None:
    progress = ProgressRecord("m", 0, "L", 1, 0, "h", 1, STOP, (ROW,))
    topic = TopicRecord("m", "orders", "orders", None, None, DesiredState.ACTIVE, 1, TopicOrigin.ADOPTED)
    assert last_reports(State.of([progress, topic]), "m")[PLACE].time_ms == STOP
    for since in (replace(topic, added_at_ms=STOP + 1), replace(topic, rebuilt_at_ms=STOP + 1)):
        assert last_reports(State.of([progress, since]), "m") == {}


ADDED = TopicPartition("orders", 1)


def added(end: SourceEnd | None) -> TopicResult:
    return stopped_row(ADDED, source_only_record("m", ADDED, end, STOP, STOP), Outcome.DONE, Reason.FAILED_OVER)


def test_partitions_that_only_the_source_has_count() -> None:
    surplus = added(SourceEnd(120, log_start=50))
    assert surplus.message == "orders-1 exists on the source only, with 70 offsets: none of them was copied"
    assert needs_attention(surplus)
    totals = totals_of([row(FRESH), surplus], None)
    assert (totals.known_lost_records, totals.rpo_ms) == (70, None)
    # where its log begins is unknown: no record may be forgotten
    assert added(SourceEnd(120)).lag == 120


def test_a_partition_that_only_the_source_has_is_an_unknown_loss_while_its_end_is_unknown() -> None:
    silent = added(None)
    assert "the number of its offsets is unknown" in str(silent.message)
    totals = totals_of([row(FRESH), silent], None)
    assert (totals.known_lost_records, totals.partitions_unknown, totals.rpo_ms) == (0, 1, None)


def test_a_partition_that_the_source_certainly_lacks_has_lost_nothing() -> None:
    answer = SourceEnds(STOP + 5, absent=frozenset({ADDED}))
    known = with_source_answer(ADDED, AtStop(STOP, 0), answer, 0)
    found = stopped_row(ADDED, replace(RECORD, partition=1, at_stop=known, last_mirrored_offset=0), Outcome.DONE, None)
    assert (found.lag, found.rpo_ms) == (0, 0)
    assert "the source has no such partition" in str(found.message)


def test_all_partitions_there_are_count_whatever_was_stored() -> None:
    topic = TopicRecord("m", "orders", "orders", None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)
    theirs = replace(topic, destination_topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
    here = TopicMetadata("orders", 0, bytes(15) + b"\1", False, dict.fromkeys(range(3), PARTITION))
    recorded = State.of([topic, replace(RECORD, partition=1)])
    assert with_all_partitions(State(), theirs, here).partitions == 3
    assert with_all_partitions(recorded, topic, None).partitions == 2
    # another topic has its name now, or nothing is known of it
    assert with_all_partitions(State(), theirs, replace(here, topic_id=bytes(15) + b"\2")).partitions == 1
    assert with_all_partitions(State(), theirs, replace(here, error_code=5)).partitions == 1
    assert with_all_partitions(State(), topic, here).partitions == 1


@pytest.mark.parametrize("went_back", [True, False])
def test_a_source_that_went_back_may_have_received_other_records(went_back: bool) -> None:
    """As after an unclean election: 0 offsets are known lost, and that is not all.

    Without that, the copy is longer only by what arrived after the source was asked.
    """
    answer = SourceEnds(STOP + 5, {PLACE: SourceEnd(90, 90, went_back=went_back)})
    shorter = row(with_source_answer(PLACE, FRESH, answer, 100), lmo=100)
    assert "0 offsets known lost: the source ended at 90 at" in str(shorter.message)
    assert str(shorter.message).endswith("those that it received since are lost, too") is went_back
    assert shorter.rpo_ms == (None if went_back else 0)
    assert needs_attention(shorter) is went_back


def test_a_broker_that_does_not_answer_is_named_where_an_end_is_unknown() -> None:
    """Where a load balancer before one broker is down, BROKER_NOT_AVAILABLE alone does not say where to look."""
    why, failed = "broker 2 does not answer: cannot connect to lb2:9092: connection refused", []
    work = SimpleNamespace(
        destination=SimpleNamespace(client=SimpleNamespace(unanswered={PLACE: why})),
        facts=SimpleNamespace(at_stop=lambda _: {}, warnings=[]),
        done=SimpleNamespace(warnings=[]),
        log_ends={PLACE: OffsetAnswer(Code.BROKER_NOT_AVAILABLE, None, -1)},
        fail=lambda topic, error, partition: failed.append((topic, partition, str(error), error.hint)),
    )
    _find_mirrored_ends(cast(Any, work))
    assert failed == [("orders", 0, f"where orders-0 ends is unknown: {why}", "run the same command again to finish")]
