"""The judge, and random histories it must never be taken in by."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from kmirror.cluster.protocol.batch import SEQUENCE_MASK
from kmirror.engine.histories.judge import AdvanceStart, Copy, Facts, Fail, Verdict, Wait, judge
from kmirror.errors import Reason
from kmirror.state.assignment import Recovery
from tests.support.histories import WHOLE, History, build, compare
from tests.support.judging import ASSIGNMENT, DESTINATION_ID, SOURCE_ID, producer, verdict

SEEDS = range(2000)
#: Read whole logs at once, or hardly more than a batch at a time.
SIZES = [WHOLE, 300]


@cache
def judged(seed: int, section_bytes: int) -> tuple[History, Facts, Verdict]:
    history = build(seed)
    source, destination = history.source, history.destination
    finding, _ = compare(source, destination, section_bytes)
    facts = Facts(
        source_topic_id=SOURCE_ID,
        destination_topic_id=DESTINATION_ID,
        source_log_start=source.start,
        source_log_end=source.end,
        last_stable_offset=source.shown_end,
        high_watermark=source.shown_end,
        destination_log_start=destination.start,
        destination_log_end=destination.end,
        producer=None if history.last_sequence is None else producer(history.last_sequence),
        tail=finding.tail,
        tail_epoch=finding.epoch,
        tail_producer_id=finding.producer_id,
        differs_at=finding.differs_at,
        only_filler=finding.only_filler,
        unproven=finding.unproven,
    )
    return history, facts, verdict(facts)


@pytest.mark.slow
def test_the_histories_are_of_all_kinds() -> None:
    held = Counter(what for seed in SEEDS for what in judged(seed, WHOLE)[0].happened)
    assert min(held.values()) >= 50, held
    found = Counter(
        (type(v).__name__, v.reason if isinstance(v, Fail) else None) for v in (judged(s, WHOLE)[2] for s in SEEDS)
    )
    assert set(found) == {
        ("Copy", None),
        ("AdvanceStart", None),
        ("Wait", None),
        ("Fail", Reason.DESTINATION_WRITTEN),
        ("Fail", Reason.SOURCE_DIVERGED),
        ("Fail", Reason.SOURCE_TRUNCATED),
    }
    assert min(found.values()) >= 20, found


@pytest.mark.slow
@pytest.mark.parametrize("section_bytes", SIZES)
def test_nothing_is_copied_behind_what_is_not_the_sources(section_bytes: int) -> None:
    for seed in SEEDS:
        h, facts, found = judged(seed, section_bytes)
        if not isinstance(found, Copy):
            continue
        end = h.destination.end
        assert found.offset == end, seed
        assert h.source.start <= end <= h.source.shown_end, (seed, h.happened)
        assert not h.destination.filler_end or "foreign" in h.happened, (seed, h.happened)
        if h.last_sequence is not None:
            assert (end - found.filled_offsets) & SEQUENCE_MASK == h.last_sequence + 1, seed
        said = h.evidence()
        dense = h.happened.isdisjoint({"source cleaned before", "source cleaned", "destination cleaned"})
        if said and (dense or section_bytes == WHOLE):
            assert said[max(said)], (seed, h.happened, facts)
        # records of others remain only where this cannot be known: below the source's start, or adopted like the rest
        floor = max(h.source.start, h.destination.start)
        strange = [
            o for o, r in h.destination.shown().items() if o >= floor and (r.value or b"").startswith(b"foreign")
        ]
        assert not strange or "adopted" in h.happened, (seed, h.happened)


@pytest.mark.parametrize("section_bytes", SIZES)
def test_what_only_time_has_changed_continues(section_bytes: int) -> None:
    alarming = {"foreign", "source forked", "hidden", "still filling", "adopted"}
    calm = 0
    for seed in SEEDS:
        h, facts, found = judged(seed, section_bytes)
        if alarming & h.happened or h.source.start > h.destination.end:
            continue
        calm += 1
        assert isinstance(found, Copy), (seed, h.happened, facts, found)
    assert calm > 300


@pytest.mark.parametrize("section_bytes", SIZES)
def test_each_verdict_is_true(section_bytes: int) -> None:
    for seed in SEEDS:
        h, facts, found = judged(seed, section_bytes)
        about = (seed, h.happened, facts, found)
        end = h.destination.end
        if isinstance(found, Wait):
            assert h.source.shown_end < end or h.destination.filler_end > h.source.start, about
        elif isinstance(found, AdvanceStart):
            assert end in {h.destination.filler_end, h.destination.start}, about
            assert end <= found.to == h.source.start, about
        elif isinstance(found, Fail):
            assert 0 <= found.offset <= end, about
            if found.reason is Reason.DESTINATION_WRITTEN:
                assert not h.happened.isdisjoint({"foreign", "adopted"}), about
                assert "foreign" in h.happened or "source forked" in h.happened or facts.unproven, about
            elif found.reason is Reason.SOURCE_DIVERGED:
                # or it cannot be known: others wrote after others, or nothing of it is left
                nobody_can_tell = {"foreign", "adopted"} <= h.happened or h.destination.start == end
                assert "source forked" in h.happened or nobody_can_tell, about
            else:
                assert found.reason is Reason.SOURCE_TRUNCATED, about
                assert h.source.start > end, about


def test_adopted_records_are_taken_as_they_are() -> None:
    """Also where the source's cleaner has removed the last of them since."""
    alarming = {"foreign", "source forked", "hidden", "still filling"}
    adopted = [judged(seed, WHOLE) for seed in SEEDS if "adopted" in judged(seed, WHOLE)[0].happened]
    calm = [(h, f, v) for h, f, v in adopted if not alarming & h.happened and h.source.start <= h.destination.end]
    assert len(calm) > 50
    for h, facts, found in calm:
        assert isinstance(found, Copy) or facts.unproven, (h.happened, facts, found)


def random_consent(seed: int, end: int) -> tuple[Recovery | None, bool]:
    """Return what an operator may have accepted at some time, and whether losses are followed by policy."""
    chance = random.Random(seed)
    if chance.random() < 0.2:
        return None, chance.random() < 0.5
    lost_from: int | None = end + chance.choice([-3, -1, 0, 0, 0, 1, 3])
    lost_until = lost_from + chance.randrange(12) if lost_from is not None else None
    if chance.random() < 0.2:
        lost_from = lost_until = None
    rebuilds = chance.choice([None, Reason.SOURCE_DIVERGED, Reason.SOURCE_TOPIC_RECREATED])
    return Recovery(1, lost_from, lost_until, chance.random() < 0.4, rebuilds), chance.random() < 0.2


def test_consent_changes_what_becomes_of_a_loss_and_nothing_else() -> None:
    went_past = Counter[str]()
    for seed in SEEDS:
        h, facts, unasked = judged(seed, WHOLE)
        end = h.destination.end
        recovery, follows = random_consent(seed, end)
        assignment = replace(ASSIGNMENT, recovery=recovery, follows_truncation=follows)
        found = judge(assignment, None, facts)
        about = (seed, h.happened, facts, recovery, follows, found)
        accepted = recovery is not None and recovery.lost_from is not None and recovery.lost_until is not None
        covered = accepted and recovery.lost_from <= end <= recovery.lost_until  # type: ignore[union-attr, operator]
        if isinstance(unasked, Fail) and unasked.reason is Reason.SOURCE_TRUNCATED:
            if not (covered or follows):
                assert found == unasked, about
                continue
            # exactly what the source has lost is skipped, and reported as such
            assert isinstance(found, Copy), about
            assert (found.offset, found.skip_to) == (end, h.source.start), about
            went_past["accepted" if covered else "followed"] += 1
        elif isinstance(unasked, Copy):
            assert isinstance(found, Copy), about
            assert replace(found, trim_to=None) == replace(unasked, trim_to=None), about
        else:
            assert found == unasked, about
            continue
        assert isinstance(found, Copy)
        if found.trim_to is not None:
            # nothing is deleted that the source has, and nothing unasked
            assert recovery is not None, about
            assert recovery.trims, about
            assert found.trim_to <= max(h.source.start, recovery.lost_until or 0), about
            assert found.trim_to <= max(end, found.skip_to or 0), "the copy would wait for ever"
            went_past["trimmed"] += 1
    assert min(went_past[what] for what in ("accepted", "followed", "trimmed")) >= 10, went_past


def test_every_verdict_but_copy_is_explained() -> None:
    for seed in SEEDS:
        _, _, found = judged(seed, WHOLE)
        if isinstance(found, Fail):
            assert "orders" in found.message or "mirrored" in found.message or "the source" in found.message, found
            assert found.message[0].islower() or found.message[0].isdigit(), found
        elif isinstance(found, Wait):
            assert found.trouble.message, found
