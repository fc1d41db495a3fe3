"""The judge: every rule, and the order of the rules; random histories are in test_judge_histories.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch import SEQUENCE_MASK
from kmirror.cluster.protocol.wire import NO_TOPIC_ID
from kmirror.engine.histories.fork import Fork
from kmirror.engine.histories.judge import (
    AdvanceStart,
    Copy,
    Facts,
    Fail,
    ForeignWriters,
    TailMatch,
    Trouble,
    Verdict,
    Wait,
    judge,
)
from kmirror.errors import Reason
from kmirror.state.assignment import Recovery
from tests.support.histories import OWN_ID
from tests.support.judging import ANOTHER_ID, ASSIGNMENT, DESTINATION_ID, SOURCE_ID, producer, verdict

AWAY = Trouble(Reason.SOURCE_UNREACHABLE, "no one answers")
FOREIGN_ID = 7

#: A destination that ends at 100, all of it ours and the same as in the source, which ends at 150.
FINE = Facts(
    source_topic_id=SOURCE_ID,
    destination_topic_id=DESTINATION_ID,
    source_log_end=150,
    last_stable_offset=140,
    high_watermark=145,
    destination_log_end=100,
    producer=producer(99),
    tail=TailMatch.SAME,
    tail_epoch=4,
    tail_producer_id=OWN_ID,
)

RECREATED = {"source_topic_id": ANOTHER_ID}
REPLACED = {"destination_topic_id": ANOTHER_ID}
FENCED = {"producer": producer(99, epoch=1)}
REWRITTEN = {"tail": TailMatch.DIFFERENT, "differs_at": 95}
NOT_OURS = REWRITTEN | {"tail_producer_id": FOREIGN_ID}
ANONYMOUS = REWRITTEN | {"tail_producer_id": -1}
FORKED = REWRITTEN | {"fork": Fork(90, True, 89), "foreign_writers": ForeignWriters(OWN_ID)}
UNPROVEN_FORK = REWRITTEN | {"fork": Fork(90, True, None), "foreign_writers": ForeignWriters(OWN_ID)}
#: Our records follow those of another writer.
WRITTEN = FORKED | {"foreign_writers": ForeignWriters(FOREIGN_ID, 5, FOREIGN_ID)}
OVERWRITTEN = FORKED | {"foreign_writers": ForeignWriters(FOREIGN_ID, 1, FOREIGN_ID, is_complete=False)}
SHORTER = {"source_log_end": 98, "last_stable_offset": 98, "high_watermark": 98, "tail": TailMatch.NOTHING}
OVERGROWN = SHORTER | {"tail_producer_id": FOREIGN_ID, "unproven": True}
HIDDEN = {"tail": TailMatch.NOTHING, "tail_epoch": None, "high_watermark": 80, "last_stable_offset": 80}
UNPROVEN = {"tail": TailMatch.NOTHING, "tail_producer_id": FOREIGN_ID, "unproven": True}
LOST = {"tail": TailMatch.NOTHING, "source_log_start": 100}
TRIMMED = {"source_log_start": 101, "tail": TailMatch.NOTHING}
#: The first 100 of 120 offsets are filled.
FILLING = {"only_filler": True, "source_log_start": 120, "tail": TailMatch.NOTHING}


def seen(**changes: object) -> Facts:
    return replace(FINE, **changes)  # type: ignore[arg-type]


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "acknowledged", "reason", "offset", "words"),
    [
        (RECREATED, None, Reason.SOURCE_TOPIC_RECREATED, 100, "orders was deleted and created again"),
        (REPLACED, None, Reason.DESTINATION_TOPIC_DELETED, 100, "mirrored was deleted and created again"),
        (FENCED, None, Reason.FENCED, 100, "producer epoch 1, ours is 0"),
        (REWRITTEN, None, Reason.SOURCE_DIVERGED, 100, "orders-3 was rewritten: at offset 95"),
        (FORKED, None, Reason.SOURCE_DIVERGED, 90, "from offset 90 on it differs from what was copied, 10 offsets up"),
        (
            UNPROVEN_FORK,
            None,
            Reason.SOURCE_DIVERGED,
            90,
            "offset 99; below that, nothing remains that both sides have",
        ),
        (NOT_OURS, None, Reason.DESTINATION_WRITTEN, 95, "mirrored-3 (from offset 95 on, producer id 7): it differs"),
        (ANONYMOUS, None, Reason.DESTINATION_WRITTEN, 95, "from offset 95 on, a producer without an id)"),
        (WRITTEN, None, Reason.DESTINATION_WRITTEN, 90, "mirrored-3 (5 records, from offset 90 on, producer id 7)"),
        (OVERWRITTEN, None, Reason.DESTINATION_WRITTEN, 90, "(at least 1 record, from offset 90 on, producer id 7)"),
        (SHORTER, None, Reason.SOURCE_DIVERGED, 98, "2 records are no longer there"),
        (OVERGROWN, None, Reason.DESTINATION_WRITTEN, 98, "it ends at offset 100, and its source at 98"),
        (UNPROVEN, None, Reason.DESTINATION_WRITTEN, 100, "(producer id 7): the last records are not this"),
        (LOST, 120, Reason.DESTINATION_TRUNCATED, 100, "lost offsets 100 to 119"),
        (TRIMMED, None, Reason.SOURCE_TRUNCATED, 100, "its 1 offset 100 was deleted"),
    ],
)
def test_each_misfit_has_its_reason(
    changes: dict[str, object], acknowledged: int | None, reason: Reason, offset: int, words: str
) -> None:
    found = verdict(seen(**changes), acknowledged)
    assert isinstance(found, Fail)
    assert (found.reason, found.offset) == (reason, offset)
    assert words in found.message


@pytest.mark.parametrize("compared_end", [None, 99, 101])
def test_only_an_end_that_was_compared_needs_no_other_proof(compared_end: int | None) -> None:
    facts = seen(**UNPROVEN)
    assert isinstance(judge(replace(ASSIGNMENT, compared_end=100), None, facts), Copy)
    assert isinstance(judge(replace(ASSIGNMENT, compared_end=compared_end), None, facts), Fail)
    # and no comparison excuses what differs now
    assert isinstance(judge(replace(ASSIGNMENT, compared_end=100), None, seen(**NOT_OURS)), Fail)


@pytest.mark.parametrize(
    ("earlier", "later", "reason"),
    [
        (RECREATED, REPLACED, Reason.SOURCE_TOPIC_RECREATED),
        (RECREATED, FENCED, Reason.SOURCE_TOPIC_RECREATED),
        (RECREATED, REWRITTEN, Reason.SOURCE_TOPIC_RECREATED),
        (RECREATED, SHORTER, Reason.SOURCE_TOPIC_RECREATED),
        (RECREATED, HIDDEN, Reason.SOURCE_TOPIC_RECREATED),
        (RECREATED, FILLING, Reason.SOURCE_TOPIC_RECREATED),
        (REPLACED, FENCED, Reason.DESTINATION_TOPIC_DELETED),
        (REPLACED, SHORTER, Reason.DESTINATION_TOPIC_DELETED),
        (FENCED, REWRITTEN, Reason.FENCED),
        (FENCED, SHORTER, Reason.FENCED),
        (FENCED, HIDDEN, Reason.FENCED),
        (FENCED, FILLING, Reason.FENCED),
        (NOT_OURS, {"source_log_end": 98}, Reason.DESTINATION_WRITTEN),
        (REWRITTEN, {"source_log_end": 98}, Reason.SOURCE_DIVERGED),
        (REWRITTEN, {"last_stable_offset": 98}, Reason.SOURCE_DIVERGED),
        (SHORTER, {"source_log_start": 101}, Reason.SOURCE_DIVERGED),
    ],
)
def test_of_two_misfits_the_earlier_rule_decides(
    earlier: dict[str, object], later: dict[str, object], reason: Reason
) -> None:
    both = verdict(seen(**later | earlier))
    assert isinstance(both, Fail)
    assert both.reason is reason


@pytest.mark.parametrize(
    "changes", [{}, RECREATED, REPLACED, FENCED, REWRITTEN, NOT_OURS, SHORTER, HIDDEN, UNPROVEN, TRIMMED, FILLING]
)
def test_a_failed_lookup_comes_before_everything(changes: dict[str, object]) -> None:
    assert verdict(seen(trouble=AWAY, **changes), 120) == Wait(AWAY)


# -- continuing --------------------------------------------------------------------------------------------------------


def test_one_history_continues_where_the_destination_ends() -> None:
    assert verdict(FINE) == Copy(100)
    assert verdict(FINE, 100) == Copy(100)


def test_the_start_of_a_mirror() -> None:
    assert verdict(seen(destination_log_end=0, producer=None, tail=TailMatch.NOTHING)) == Copy(0)


def test_a_destination_that_has_everything() -> None:
    assert verdict(seen(source_log_end=100, last_stable_offset=100, high_watermark=100)) == Copy(100)


def test_an_unknown_topic_id_proves_nothing() -> None:
    unknown = replace(ASSIGNMENT, source_topic_id=None, destination_topic_id=None)
    assert judge(unknown, None, FINE) == Copy(100)
    for none in (None, NO_TOPIC_ID):
        assert verdict(seen(source_topic_id=none, destination_topic_id=none)) == Copy(100)


def test_nothing_to_compare_is_no_alarm() -> None:
    """Markers, aborted transactions and cleaners leave logs like that, and a source that was emptied."""
    assert verdict(seen(tail=TailMatch.NOTHING)) == Copy(100)
    assert verdict(seen(source_log_start=100, tail=TailMatch.NOTHING)) == Copy(100)
    emptied = seen(source_log_start=100, destination_log_start=100, tail=TailMatch.NOTHING, tail_producer_id=None)
    assert verdict(emptied) == Copy(100)


@pytest.mark.parametrize(("epoch", "ours"), [(0, 0), (1, 1)])
def test_our_own_producer_epoch_is_not_a_fence(epoch: int, ours: int) -> None:
    assignment = replace(ASSIGNMENT, producer_epoch=ours)
    assert judge(assignment, None, seen(producer=producer(99, epoch))) == Copy(100)


def test_records_the_destination_lost_are_copied_again() -> None:
    assert verdict(FINE, 130) == Copy(100, copied_again=30)
    assert verdict(FINE, 100) == Copy(100, copied_again=0)
    assert verdict(FINE, 90) == Copy(100, copied_again=0)


def test_a_destination_that_lost_everything_is_filled_again() -> None:
    empty = seen(destination_log_end=0, producer=None, tail=TailMatch.NOTHING, tail_producer_id=None)
    assert verdict(empty, 100) == Copy(0, copied_again=100)


def test_a_destination_that_lost_everything_is_not_begun_further_on_unasked() -> None:
    empty = seen(
        destination_log_end=0, producer=None, tail=TailMatch.NOTHING, tail_producer_id=None, source_log_start=30
    )
    found = verdict(empty, 100)
    assert isinstance(found, Fail)
    assert (found.reason, found.offset) == (Reason.DESTINATION_TRUNCATED, 0)


@pytest.mark.parametrize(
    "changes", [HIDDEN, HIDDEN | {"tail": TailMatch.SAME}, HIDDEN | UNPROVEN | {"last_stable_offset": 80}]
)
def test_a_source_that_does_not_show_the_tail_yet_is_waited_for(changes: dict[str, object]) -> None:
    """After an unclean election the new leader's high watermark may lag: it has other records there, and hides them.

    Continuing without the comparison would append the new history behind the old one's tail.
    """
    found = verdict(seen(**changes))
    assert isinstance(found, Wait)
    assert not found.trouble.permanent_after_retries


# -- sequence numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "last_sequence", "filled"),
    [
        (100, 99, 0),
        (100, 59, 40),
        (100, -1, 100),
        (1 << 31, 0x7FFFFFFF, 0),
        ((1 << 31) + 1, 0, 0),
        ((1 << 31) + 41, 0x7FFFFFFF, 41),
        ((1 << 33) + 7, 0x7FFFFFFF, 7),
        (100, 0x7FFFFFFF, 100),
        (3, 0x7FFFFFFE, 4),
    ],
)
def test_the_next_sequence_follows_the_one_the_leader_knows(end: int, last_sequence: int, filled: int) -> None:
    facts = seen(destination_log_end=end, source_log_end=1 << 40, last_stable_offset=1 << 40)
    found = verdict(replace(facts, producer=producer(last_sequence)))
    assert found == Copy(end, filled_offsets=filled)
    assert (end - filled) & SEQUENCE_MASK == (last_sequence + 1) & SEQUENCE_MASK


def test_a_producer_the_leader_does_not_know_begins_with_the_offset() -> None:
    assert verdict(seen(producer=None)) == Copy(100)


def test_a_new_producer_epoch_begins_with_sequence_0() -> None:
    found = judge(replace(ASSIGNMENT, producer_epoch=1), None, seen(producer=producer(59)))
    assert found == Copy(100, filled_offsets=100)


def test_markers_use_epochs_above_the_coordinator_epoch_the_leader_knows() -> None:
    assert seen(producer=producer(59, coordinator_epoch=6)).unused_coordinator_epoch == 7
    assert seen(producer=None).unused_coordinator_epoch == 0


# -- the beginning of a log --------------------------------------------------------------------------------------------


EMPTY = {"destination_log_end": 0, "producer": None, "tail": TailMatch.NOTHING, "tail_producer_id": None}


def test_an_empty_destination_is_brought_to_where_the_source_starts() -> None:
    assert verdict(seen(**EMPTY, source_log_start=40)) == AdvanceStart(40)


def test_a_half_filled_destination_is_filled_on_and_keeps_its_sequence_numbers() -> None:
    assert verdict(seen(**FILLING)) == AdvanceStart(120)
    assert verdict(seen(**FILLING | {"producer": producer(59)})) == AdvanceStart(120, filled_offsets=40)


def test_filler_that_reaches_far_enough_has_still_to_be_trimmed() -> None:
    assert verdict(seen(**FILLING | {"source_log_start": 100})) == AdvanceStart(100)


def test_a_source_that_moved_on_meanwhile_is_followed() -> None:
    assert verdict(seen(**FILLING | {"source_log_start": 140})) == AdvanceStart(140)
    trimmed = seen(destination_log_start=100, tail=TailMatch.NOTHING, tail_producer_id=None, source_log_start=140)
    assert verdict(trimmed, 100) == AdvanceStart(140)


def test_filler_that_its_leader_lost_is_written_again() -> None:
    assert verdict(seen(**FILLING), 120) == AdvanceStart(120)


def test_an_empty_log_that_had_records_has_lost_those_that_came_since() -> None:
    emptied = seen(destination_log_start=100, tail=TailMatch.NOTHING, tail_producer_id=None, source_log_start=140)
    found = verdict(emptied, begun=True)
    assert isinstance(found, Fail)
    assert (found.reason, found.offset) == (Reason.SOURCE_TRUNCATED, 100)
    assert "its 40 offsets 100 to 139 were deleted" in found.message


def test_filler_above_the_sources_start_is_not_built_upon() -> None:
    """A source start goes back when a new leader has not caught up with the deletions of the old one."""
    found = verdict(seen(**FILLING | {"source_log_start": 90}))
    assert isinstance(found, Wait)
    assert (found.trouble.reason, found.trouble.permanent_after_retries) == (Reason.SOURCE_DIVERGED, True)
    assert "prepared to start at offset 100" in found.trouble.message


def test_a_mirror_may_begin_further_on_than_its_source() -> None:
    assert verdict(seen(**EMPTY), first_offset=60) == AdvanceStart(60)
    assert verdict(seen(**FILLING | {"source_log_start": 0}), first_offset=100) == AdvanceStart(100)
    assert verdict(seen(**FILLING | {"source_log_start": 130}), first_offset=110) == AdvanceStart(130)
    begun = seen(destination_log_start=60, source_log_start=10)
    assert verdict(begun, first_offset=60) == Copy(100)


def test_a_log_with_records_is_never_raised() -> None:
    for changes in (TRIMMED, TRIMMED | {"destination_log_start": 99}):
        found = verdict(seen(**changes))
        assert isinstance(found, Fail)
        assert found.reason is Reason.SOURCE_TRUNCATED


# -- losses that are accepted --


def after_recovery(facts: Facts, recovery: Recovery | None, **others: bool) -> Verdict:
    return judge(replace(ASSIGNMENT, recovery=recovery, **others), None, facts, begun=True)  # type: ignore[arg-type]


def test_a_loss_that_was_accepted_is_gone_past() -> None:
    lost = seen(source_log_start=130, tail=TailMatch.NOTHING)
    assert after_recovery(lost, Recovery(1, 100, 130)) == Copy(100, skip_to=130)
    assert after_recovery(lost, Recovery(1, 100, 130, trims=True)) == Copy(100, skip_to=130, trim_to=130)
    # what the source has lost since belongs to the same loss: nothing behind it was copied
    assert after_recovery(lost, Recovery(1, 100, 120)) == Copy(100, skip_to=130)
    # interrupted while it skips the loss
    assert after_recovery(lost, Recovery(1, 90, 130)) == Copy(100, skip_to=130)


def test_a_loss_at_the_destination_is_gone_past_where_it_was_accepted() -> None:
    lost = seen(**LOST | {"source_log_start": 120})
    accepted, another = (replace(ASSIGNMENT, recovery=Recovery(1, low, 120)) for low in (100, 101))
    # what the source has lost too is not reported as copied again
    assert judge(accepted, 120, lost, begun=True) == Copy(100, skip_to=120)
    found = judge(another, 120, lost, begun=True)
    assert isinstance(found, Fail)
    assert found.reason is Reason.DESTINATION_TRUNCATED


@pytest.mark.parametrize("recovery", [None, Recovery(1), Recovery(1, 101, 130), Recovery(1, 80, 99)])
def test_another_loss_is_not(recovery: Recovery | None) -> None:
    found = after_recovery(seen(source_log_start=130, tail=TailMatch.NOTHING), recovery)
    assert isinstance(found, Fail)
    assert (found.reason, found.offset) == (Reason.SOURCE_TRUNCATED, 100)


def test_consent_to_a_loss_is_consent_to_nothing_else() -> None:
    for changes, reason in ((REWRITTEN, Reason.SOURCE_DIVERGED), (RECREATED, Reason.SOURCE_TOPIC_RECREATED)):
        found = after_recovery(seen(**changes), Recovery(1, 0, 1000), follows_truncation=True)
        assert isinstance(found, Fail)
        assert found.reason is reason


def test_the_log_is_trimmed_behind_a_loss_also_when_that_was_interrupted() -> None:
    recovery = Recovery(1, 60, 100, trims=True)
    assert after_recovery(seen(source_log_start=100), recovery) == Copy(100, trim_to=100)
    assert after_recovery(seen(source_log_start=100, destination_log_start=100), recovery) == Copy(100)


def test_every_loss_is_gone_past_where_that_is_the_policy() -> None:
    lost = seen(source_log_start=130, tail=TailMatch.NOTHING)
    assert after_recovery(lost, None, follows_truncation=True) == Copy(100, skip_to=130)


def test_filler_that_a_broker_had_back_after_its_death_is_trimmed_again() -> None:
    assert verdict(seen(source_log_start=60, filler_end=50)) == Copy(100, trim_to=50)


def test_nothing_is_trimmed_that_the_source_has() -> None:
    """A new leader of the source may have an older log start; and a client may have written what looks like filler."""
    assert verdict(seen(source_log_start=50, filler_end=50)) == Copy(100, trim_to=50)
    assert verdict(seen(source_log_start=10, filler_end=50), first_offset=50) == Copy(100, trim_to=50)
    found = verdict(seen(source_log_start=1, filler_end=50))
    assert isinstance(found, Wait)
    assert (found.trouble.reason, found.trouble.permanent_after_retries) == (Reason.SOURCE_DIVERGED, True)
    assert "prepared to start at offset 50" in found.trouble.message


def test_what_was_copied_is_no_filler() -> None:
    """A client of the source wrote what looks like it, and it is all that is left; the source has lost what follows."""
    left = FILLING | {"destination_log_start": 90}
    found = verdict(seen(**left), 100, begun=True)
    assert isinstance(found, Fail)
    assert (found.reason, found.offset) == (Reason.SOURCE_TRUNCATED, 100)
    # a source that retention has emptied
    assert verdict(seen(**left | {"source_log_start": 100}), 100, begun=True) == Copy(100)
    # the filler of a new log may start above 0: its source was trimmed again before it was copied
    assert verdict(seen(**left), 100) == AdvanceStart(120)


@pytest.mark.parametrize("acknowledged", [None, 100, 120, 130])
def test_a_log_that_an_election_threw_back_into_its_filler_is_filled_again(acknowledged: int | None) -> None:
    """Also after an interruption, and by another lane that does not know what was copied."""
    assert verdict(seen(**FILLING), acknowledged, begun=True) == AdvanceStart(120)


def test_a_log_back_in_its_filler_skips_nothing_that_was_never_copied() -> None:
    found = verdict(seen(**FILLING), 110, begun=True)
    assert isinstance(found, Fail)
    assert (found.reason, found.offset) == (Reason.DESTINATION_TRUNCATED, 100)


def test_filler_that_came_back_is_trimmed_after_an_accepted_loss() -> None:
    accepted = replace(ASSIGNMENT, recovery=Recovery(1, 100, 130))
    facts = seen(
        destination_log_start=0, destination_log_end=100, source_log_start=130, only_filler=True, tail=TailMatch.NOTHING
    )
    assert judge(accepted, 120, facts, begun=True) == Copy(100, skip_to=130, trim_to=100)
