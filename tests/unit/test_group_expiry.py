"""When offsets are committed again, and which the source has dropped."""

from __future__ import annotations

from dataclasses import replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.ops.groups.expiry import ABSENT_S, FORGOTTEN_MS, Absences, OffsetsRetention, Renewals, is_forgotten
from kmirror.state.group_records import GroupRecord

AT, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
KEY = ("g", AT)


def test_offsets_are_committed_again_long_before_they_expire() -> None:
    renewals = Renewals(OffsetsRetention(600, is_known=True))
    assert renewals.is_due("g", 1_000), "when its offsets were committed last is not known"
    renewals.note({"g"}, {"g", "h"}, 1_000)
    assert [renewals.is_due("g", now) for now in (1_000, 1_059, 1_060)] == [False, False, True]
    renewals.note({"h"}, {"h"}, 1_001)
    assert renewals.is_due("g", 1_001), "forgotten with its group"
    assert not renewals.is_due("h", 1_001)


def test_an_offset_counts_as_dropped_only_after_a_while() -> None:
    absences = Absences()
    assert absences.dropped({"g": frozenset({AT})}, set(), 0) == {}
    assert absences.dropped({}, {KEY}, 10) == {}
    assert absences.dropped({}, {KEY}, 9 + ABSENT_S) == {}
    # unknown for a moment, or there again: it counts from the start
    assert absences.dropped({}, set(), 9 + ABSENT_S) == {}
    assert absences.dropped({}, {KEY}, 10 + ABSENT_S) == {}
    assert absences.dropped({}, {KEY}, 10 + 2 * ABSENT_S) == {KEY: True}
    absences.forget([KEY])
    assert absences.dropped({}, set(), 11 + 2 * ABSENT_S) == {}


def test_what_was_never_seen_at_the_source_is_another_matter() -> None:
    absences = Absences()
    assert absences.dropped({"g": frozenset({OTHER})}, {KEY}, 0) == {}
    assert absences.dropped({"g": frozenset({OTHER})}, {KEY}, ABSENT_S) == {KEY: False}


def test_a_group_is_forgotten_a_day_after_the_source_was_known_to_have_nothing_of_it() -> None:
    absent = {"t": (0,)}
    known = GroupRecord("m", "g", "g", "consumer", 1_000, {"t": {0: (40,)}}, absent=absent)
    assert [is_forgotten(known, 1_000 + age) for age in (0, FORGOTTEN_MS - 1, FORGOTTEN_MS)] == [False, False, True]
    more = replace(known, offsets={"t": {0: (40,), 1: (3,)}})
    assert not is_forgotten(more, 1_000 + FORGOTTEN_MS)
    assert is_forgotten(replace(more, absent={"t": (0, 1)}), 1_000 + FORGOTTEN_MS)
    assert is_forgotten(replace(known, offsets={}, absent={}), 1_000 + FORGOTTEN_MS), "only ever skipped"
