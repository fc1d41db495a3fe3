"""The judge: every rule, the order of the rules, and random histories it must never be taken in by."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from kmirror.cluster.client import ProducerState
from kmirror.engine.judge import Copy, Facts, Fail, Tail, Trouble, Verdict, Wait, judge
from kmirror.engine.spec import Assignment
from kmirror.errors import Reason

SOURCE_ID, DESTINATION_ID, ANOTHER_ID = b"\x01" * 16, b"\x02" * 16, b"\x03" * 16
PRODUCER_ID = (1 << 62) + 5
ASSIGNMENT = Assignment("mirrored", 3, "orders", SOURCE_ID, DESTINATION_ID, PRODUCER_ID)
AWAY = Trouble(Reason.SOURCE_UNREACHABLE, "nobody answers")


def producer(last_sequence: int, epoch: int = 0) -> ProducerState:
    return ProducerState(PRODUCER_ID, epoch, last_sequence, 1_700_000_000_000, -1, None)


#: A destination that ends at 100, all of it ours and the same as in the source, which ends at 150.
FINE = Facts(
    source_topic_id=SOURCE_ID,
    destination_topic_id=DESTINATION_ID,
    source_log_end=150,
    last_stable_offset=140,
    high_watermark=145,
    destination_log_end=100,
    producer=producer(99),
    tail=Tail.SAME,
    tail_epoch=4,
)

RECREATED = {"source_topic_id": ANOTHER_ID}
REPLACED = {"destination_topic_id": ANOTHER_ID}
FENCED = {"producer": producer(99, epoch=1)}
FOREIGN = {"producer": producer(90)}
REWRITTEN = {"tail": Tail.DIFFERENT}
NOT_OURS = {"tail": Tail.DIFFERENT, "producer": None}
LOST = {"tail": Tail.NOTHING, "source_log_start": 100}
SHORTER = {"source_log_end": 98, "high_watermark": 98, "tail": Tail.NOTHING}
TRIMMED = {"source_log_start": 101, "tail": Tail.NOTHING}


def seen(**changes: object) -> Facts:
    return replace(FINE, **changes)  # type: ignore[arg-type]


def verdict(facts: Facts, acknowledged: int | None = None) -> Verdict:
    return judge(ASSIGNMENT, acknowledged, facts)


@pytest.mark.parametrize(
    ("changes", "acknowledged", "reason", "offset", "words"),
    [
        (RECREATED, None, Reason.SOURCE_TOPIC_RECREATED, 100, "orders was deleted and created again"),
        (REPLACED, None, Reason.DESTINATION_TOPIC_DELETED, 100, "mirrored was deleted and created again"),
        (FENCED, None, Reason.FENCED, 100, "producer epoch 1, ours is 0"),
        (FOREIGN, None, Reason.DESTINATION_WRITTEN, 100, "ends at offset 100"),
        (REWRITTEN, None, Reason.SOURCE_DIVERGED, 100, "orders-3 was rewritten"),
        (NOT_OURS, None, Reason.DESTINATION_WRITTEN, 100, "mirrored-3 just below offset 100"),
        (LOST, 120, Reason.DESTINATION_TRUNCATED, 100, "lost its offsets 100 to 119"),
        (SHORTER, None, Reason.SOURCE_DIVERGED, 98, "2 records that it had are gone"),
        (TRIMMED, None, Reason.SOURCE_TRUNCATED, 100, "its 1 records 100 to 100 were deleted"),
    ],
)
def test_each_misfit_has_its_reason(
    changes: dict[str, object], acknowledged: int | None, reason: Reason, offset: int, words: str
) -> None:
    found = verdict(seen(**changes), acknowledged)
    assert isinstance(found, Fail)
    assert (found.reason, found.offset) == (reason, offset)
    assert words in found.message


@pytest.mark.parametrize(
    ("earlier", "later", "reason"),
    [
        (RECREATED, REPLACED, Reason.SOURCE_TOPIC_RECREATED),
        (RECREATED, FENCED, Reason.SOURCE_TOPIC_RECREATED),
        (RECREATED, REWRITTEN, Reason.SOURCE_TOPIC_RECREATED),
        (RECREATED, SHORTER, Reason.SOURCE_TOPIC_RECREATED),
        (REPLACED, FENCED, Reason.DESTINATION_TOPIC_DELETED),
        (REPLACED, SHORTER, Reason.DESTINATION_TOPIC_DELETED),
        (FENCED, REWRITTEN, Reason.FENCED),
        (FENCED, {"producer": producer(90, epoch=1)}, Reason.FENCED),
        (FENCED, SHORTER, Reason.FENCED),
        (FOREIGN, REWRITTEN, Reason.DESTINATION_WRITTEN),
        (FOREIGN, SHORTER, Reason.DESTINATION_WRITTEN),
        (REWRITTEN, {"source_log_end": 98}, Reason.SOURCE_DIVERGED),
        (SHORTER, {"source_log_start": 101}, Reason.SOURCE_DIVERGED),
    ],
)
def test_of_two_misfits_the_earlier_rule_decides(
    earlier: dict[str, object], later: dict[str, object], reason: Reason
) -> None:
    both = verdict(seen(**later | earlier))
    assert isinstance(both, Fail)
    assert both.reason is reason


@pytest.mark.parametrize("changes", [{}, RECREATED, REPLACED, FENCED, FOREIGN, REWRITTEN, NOT_OURS, SHORTER, TRIMMED])
def test_a_failed_look_up_goes_before_everything(changes: dict[str, object]) -> None:
    assert verdict(seen(trouble=AWAY, **changes), 120) == Wait(AWAY)


def test_one_history_goes_on_where_the_destination_ends() -> None:
    assert verdict(FINE) == Copy(100)
    assert verdict(seen(tail=Tail.SAME), 100) == Copy(100)


def test_the_start_of_a_mirror() -> None:
    assert verdict(seen(destination_log_end=0, producer=None, tail=Tail.NOTHING)) == Copy(0)


def test_a_destination_that_has_everything() -> None:
    assert verdict(seen(source_log_end=100, last_stable_offset=100, high_watermark=100)) == Copy(100)


def test_an_unknown_topic_id_proves_nothing() -> None:
    unknown = replace(ASSIGNMENT, source_topic_id=None, destination_topic_id=None)
    assert judge(unknown, None, FINE) == Copy(100)
    assert verdict(seen(source_topic_id=None)) == Copy(100)


def test_a_producer_the_broker_forgot_proves_nothing() -> None:
    assert verdict(seen(producer=None)) == Copy(100)


@pytest.mark.parametrize(("epoch", "ours"), [(0, 0), (0, 1), (1, 1)])
def test_a_producer_epoch_up_to_ours_is_not_a_fence(epoch: int, ours: int) -> None:
    assignment = replace(ASSIGNMENT, producer_epoch=ours)
    assert judge(assignment, None, seen(producer=producer(99, epoch))) == Copy(100)


@pytest.mark.parametrize(
    ("end", "filled", "last_sequence"),
    [
        (100, 0, 99),
        (100, 40, 59),
        (100, 100, -1),
        (1 << 31, 0, 0x7FFFFFFF),
        ((1 << 31) + 1, 0, 0),
        ((1 << 33) + 7, 7, 0x7FFFFFFF),
    ],
)
def test_sequences_count_data_offsets_and_wrap(end: int, filled: int, last_sequence: int) -> None:
    assignment = replace(ASSIGNMENT, filled_offsets=filled)
    facts = seen(destination_log_end=end, source_log_end=1 << 40, high_watermark=1 << 40)
    assert judge(assignment, None, replace(facts, producer=producer(last_sequence))) == Copy(end)
    wrong = judge(assignment, None, replace(facts, producer=producer((last_sequence + 1) & 0x7FFFFFFF)))
    assert isinstance(wrong, Fail)
    assert wrong.reason is Reason.DESTINATION_WRITTEN


def test_records_the_destination_lost_are_copied_again() -> None:
    assert verdict(FINE, acknowledged=130) == Copy(100, copied_again=30)
    assert verdict(FINE, acknowledged=100) == Copy(100, copied_again=0)
    assert verdict(FINE, acknowledged=90) == Copy(100, copied_again=0)


def test_a_destination_that_lost_everything_is_filled_again() -> None:
    empty = seen(destination_log_end=0, producer=None, tail=Tail.NOTHING)
    assert verdict(empty, acknowledged=100) == Copy(0, copied_again=100)


def test_a_source_that_was_trimmed_up_to_the_destinations_end_goes_on() -> None:
    assert verdict(seen(source_log_start=100, tail=Tail.NOTHING)) == Copy(100)


def test_a_source_that_does_not_show_the_tail_yet_is_waited_for() -> None:
    """After an unclean election the new leader's high watermark may lag: it has other records there, and hides them.

    Going on without the comparison would append the new history behind the old one's tail.
    """
    found = verdict(seen(tail=Tail.NOTHING, tail_epoch=-1, high_watermark=80, last_stable_offset=80))
    assert isinstance(found, Wait)


# -- random histories --------------------------------------------------------------------------------------------------


@dataclass
class History:
    """Two logs as lists of record names, and what is known and remembered of them."""

    source: list[str]
    source_start: int
    source_visible: int
    destination: list[str]
    same_source: bool
    same_destination: bool
    epoch: int
    last_sequence: int | None
    acknowledged: int | None

    @classmethod
    def of(cls, rng: random.Random) -> History:
        source = [f"s{i}" for i in range(rng.randrange(12))]
        destination = source[: rng.randrange(len(source) + 1)]
        last_sequence: int | None = len(destination) - 1
        acknowledged = rng.choice([None, len(destination), rng.randrange(14)])
        if rng.random() < 0.2:  # somebody else wrote to the destination
            destination = [*destination, *(f"x{i}" for i in range(rng.randrange(1, 4)))]
        if rng.random() < 0.2:  # the source forked, and may have grown since
            fork = rng.randrange(len(source) + 1)
            source = [*source[:fork], *(f"f{i}" for i in range(rng.randrange(8)))]
        if rng.random() < 0.2:  # the destination lost its tail, and its leader knows
            destination = destination[: rng.randrange(len(destination) + 1)]
            last_sequence = min(last_sequence or 0, len(destination) - 1)
        start = rng.randrange(len(source) + 1) if rng.random() < 0.2 else 0
        visible = len(source) if rng.random() < 0.8 else rng.randrange(start, len(source) + 1)
        return cls(
            source,
            start,
            visible,
            destination,
            rng.random() < 0.9,
            rng.random() < 0.9,
            1 if rng.random() < 0.1 else 0,
            None if rng.random() < 0.4 or last_sequence == -1 else last_sequence,
            acknowledged,
        )

    @property
    def end(self) -> int:
        return len(self.destination)

    @property
    def tail(self) -> Tail:
        if self.acknowledged == self.end:
            return Tail.SAME
        if not self.source_start < self.end <= self.source_visible:
            return Tail.NOTHING
        return Tail.SAME if self.source[self.end - 1] == self.destination[-1] else Tail.DIFFERENT

    @property
    def facts(self) -> Facts:
        return Facts(
            source_topic_id=SOURCE_ID if self.same_source else ANOTHER_ID,
            destination_topic_id=DESTINATION_ID if self.same_destination else ANOTHER_ID,
            source_log_start=self.source_start,
            source_log_end=len(self.source),
            high_watermark=self.source_visible,
            last_stable_offset=self.source_visible,
            destination_log_end=self.end,
            producer=None if self.last_sequence is None else producer(self.last_sequence, self.epoch),
            tail=self.tail,
        )

    @property
    def fits(self) -> bool:
        """Tell whether a look from above finds nothing wrong at all."""
        lost = self.acknowledged is not None and self.end < self.acknowledged
        return (
            self.same_source
            and self.same_destination
            and (self.last_sequence is None or self.epoch == 0)
            and self.last_sequence in {None, self.end - 1}
            and self.source[: self.end] == self.destination
            and self.source_start <= self.end
            and (self.source_visible >= self.end or self.tail is Tail.SAME)
            and not (lost and self.tail is Tail.NOTHING and self.end > 0)
        )


HISTORIES = [History.of(random.Random(seed)) for seed in range(5000)]


def test_the_histories_are_of_all_kinds() -> None:
    assert {h.tail for h in HISTORIES} == set(Tail)
    found = {verdict(h.facts, h.acknowledged) for h in HISTORIES}
    assert {v.reason for v in found if isinstance(v, Fail)} == {
        Reason.SOURCE_TOPIC_RECREATED,
        Reason.DESTINATION_TOPIC_DELETED,
        Reason.FENCED,
        Reason.DESTINATION_WRITTEN,
        Reason.SOURCE_DIVERGED,
        Reason.DESTINATION_TRUNCATED,
        Reason.SOURCE_TRUNCATED,
    }
    assert 500 < sum(h.fits for h in HISTORIES) < 4500


@pytest.mark.parametrize("troubled", [False, True])
def test_what_fits_is_copied_and_what_does_not_is_not(troubled: bool) -> None:
    for h in HISTORIES:
        facts = replace(h.facts, trouble=AWAY) if troubled else h.facts
        found = verdict(facts, h.acknowledged)
        if troubled:
            assert found == Wait(AWAY)
        elif h.fits:
            assert isinstance(found, Copy), (h, found)
        if isinstance(found, Copy):
            assert found.offset == h.end
            assert found.copied_again == max(0, (h.acknowledged or 0) - h.end)
            assert h.same_source, h
            assert h.same_destination, h
            assert h.tail is not Tail.DIFFERENT, h
            assert h.source_start <= h.end <= len(h.source), h
            assert h.last_sequence is None or (h.last_sequence, h.epoch) == (h.end - 1, 0), h


def test_no_copy_goes_on_behind_a_tail_that_could_be_compared_and_was_not() -> None:
    for h in HISTORIES:
        if h.tail is Tail.NOTHING and h.source_start < h.end:
            assert not isinstance(verdict(h.facts, h.acknowledged), Copy), h


def test_a_failure_names_an_offset_both_could_have() -> None:
    for h in HISTORIES:
        found = verdict(h.facts, h.acknowledged)
        if isinstance(found, Fail):
            assert 0 <= found.offset <= h.end
