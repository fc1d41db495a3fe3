"""The ends of two logs, compared by what applications are shown of them: what is found, and what is read for it."""

from __future__ import annotations

import pickle
import random
from dataclasses import replace
from typing import Any

import pytest

from kmirror.cluster.protocol.filler import FILLER_KEY
from kmirror.engine.histories.judge import TailMatch
from kmirror.engine.histories.stretches import DamagedLogError, LogEnds, Section, Sections, UnprovenError
from kmirror.engine.histories.tails import TailFinding, compare_tails
from kmirror.errors import Reason
from tests.support.histories import (
    FOREIGN_ID,
    OLD_ID,
    OWN_ID,
    WHOLE,
    Log,
    batch,
    compare,
    copied,
    marker,
    record,
    without,
)
from tests.support.log_batches import ABORT, LogBatch, encode
from tests.support.logs import LONG_SEEDS, build_log


def ours(first: int, count: int = 1, name: str = "s", **fields: object) -> LogBatch:
    """Make a batch of the destination's that we wrote."""
    return batch(first, count, name, producer_id=OWN_ID, producer_epoch=0, base_sequence=first, **fields)


def aborted(first: int, count: int = 1) -> tuple[Log, int]:
    """Return a source that begins with an aborted transaction, and where its marker is."""
    stored = batch(first, count, producer_id=3, producer_epoch=0, base_sequence=0, transaction=1)
    return Log([stored, marker(first + count, 3, ABORT)], aborted=[(3, first, first + count)]), first + count


def found(source: Log, destination: Log, **others: int) -> TailFinding:
    return compare(source, destination, **others)[0]


# -- the normal case ---------------------------------------------------------------------------------------------------


def test_a_copy_to_the_byte_takes_one_read_of_each_side() -> None:
    source = Log([batch(0, 5), batch(5, 3), batch(8, 9)], epochs=[(5, 4)])
    finding, reads = compare(source, Log([ours(0, 5), ours(5, 3)]))
    assert finding == TailFinding(TailMatch.SAME, 4, OWN_ID)
    assert reads == [(7, 7)]


def test_a_copy_of_committed_data_is_plain() -> None:
    source = Log([batch(0, 2, producer_id=3, producer_epoch=0, base_sequence=0, transaction=1), marker(2, 3)])
    assert found(source, Log([ours(0, 2)])).tail is TailMatch.SAME


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_count_and_not_how_they_are_packed(codec: str) -> None:
    source = Log([batch(0, 40, codec=codec)])
    assert found(source, Log([ours(0, 40)])).tail is TailMatch.SAME
    assert found(source, Log([ours(0, 7), ours(7, 33, codec="zstd")])).tail is TailMatch.SAME


def test_the_destination_may_end_inside_a_batch_of_the_source() -> None:
    source = Log([batch(0, 40)], epochs=[(0, 2)])
    assert compare(source, Log([ours(0, 7)])) == (TailFinding(TailMatch.SAME, 2, OWN_ID), [(6, 6)])


def test_smaller_batches_of_the_source_are_read_until_the_destinations_is_covered() -> None:
    source = Log([batch(i) for i in range(40)])
    finding, reads = compare(source, Log([ours(0, 40)]), section_bytes=1000)
    assert finding.tail is TailMatch.SAME
    assert reads[:2] == [(39, 39), (None, 0)]
    changed = Log([batch(i, 1, "s" if i else "another") for i in range(40)])
    assert found(changed, Log([ours(0, 40)]), section_bytes=1000) == TailFinding(TailMatch.DIFFERENT, 0, OWN_ID, 0)


def test_log_append_time_is_the_time_that_counts() -> None:
    source = Log([batch(0, 3, append_time=99)])
    made_anew = LogBatch(0, 2, source.batches[0].visible, 99, producer_id=OWN_ID)
    assert found(source, Log([made_anew])).tail is TailMatch.SAME
    assert found(source, Log([ours(0, 3)])).tail is TailMatch.DIFFERENT


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_messages_of_old_formats_are_read_too(codec: str) -> None:
    plain = [record(offset)._replace(headers=()) for offset in range(6)]
    old = LogBatch(0, 5, tuple(plain), plain[-1].timestamp, magic=1, codec=codec)
    copy = LogBatch(0, 3, tuple(plain[:4]), plain[3].timestamp, producer_id=OWN_ID)
    assert found(Log([old]), Log([copy])).tail is TailMatch.SAME
    wrong = replace(copy, records=(*plain[:3], record(3, "another")._replace(headers=())))
    assert found(Log([old]), Log([wrong])) == TailFinding(TailMatch.DIFFERENT, None, OWN_ID, 3)


# -- differences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"timestamp": 1}, {"key": b"other"}, {"key": None}, {"value": b"other"}, {"value": None}, {"headers": ()}],
)
def test_whatever_an_application_would_notice_is_a_difference(change: dict[str, Any]) -> None:
    stored = ours(0, 5)
    changed = replace(stored, records=(*stored.records[:3], stored.records[3]._replace(**change), stored.records[4]))
    assert found(Log([batch(0, 5)]), Log([changed])) == TailFinding(TailMatch.DIFFERENT, 0, OWN_ID, 3)


def test_the_writer_of_what_differs_is_named() -> None:
    source = Log([batch(0, 9)])
    foreign = batch(5, 2, "foreign", producer_id=FOREIGN_ID)
    assert found(source, Log([ours(0, 5), foreign])) == TailFinding(TailMatch.DIFFERENT, 0, FOREIGN_ID, 5)
    transaction = [replace(foreign, transaction=1), marker(7, FOREIGN_ID)]
    assert found(source, Log([ours(0, 5), *transaction])).producer_id == FOREIGN_ID
    anonymous = batch(5, 2, "foreign")
    assert found(source, Log([ours(0, 5), anonymous])) == TailFinding(TailMatch.DIFFERENT, 0, -1, 5)


def test_a_marker_where_the_source_shows_a_record_is_a_difference() -> None:
    assert found(Log([batch(0, 9)]), Log([ours(0, 5), marker(5)])) == TailFinding(TailMatch.DIFFERENT, 0, OWN_ID, 5)


def test_a_record_where_the_source_has_a_marker_is_a_difference() -> None:
    source = Log([batch(0, 5), marker(5, 3)])
    assert found(source, Log([ours(0, 5), ours(5)])) == TailFinding(TailMatch.DIFFERENT, 0, OWN_ID, 5)


def test_a_record_of_an_aborted_transaction_must_not_be_in_the_copy() -> None:
    source, end = aborted(0, 3)
    assert found(source, Log([ours(0, 3)])) == TailFinding(TailMatch.DIFFERENT, 0, OWN_ID, 0)
    assert found(source, Log([marker(offset) for offset in range(end + 1)])) == TailFinding(
        TailMatch.NOTHING, 0, OWN_ID
    )


# -- what says nothing -------------------------------------------------------------------------------------------------


def test_below_markers_the_first_records_decide() -> None:
    source, end = aborted(10, 30)
    source.batches.insert(0, batch(0, 10))
    markers = [marker(offset) for offset in range(10, end + 1)]
    finding, reads = compare(source, Log([ours(0, 10), *markers]), section_bytes=300)
    assert finding == TailFinding(TailMatch.SAME, 0, OWN_ID)
    assert len(reads) < 20
    assert found(source, Log([ours(0, 10, "x"), *markers])).differs_at == 0


def test_what_either_cleaner_removed_is_no_difference() -> None:
    source, destination = batch(0, 10), ours(0, 10)
    last, last_ours = batch(10, 2), ours(10, 2)
    for offset in range(10):
        one = Log([without(source, offset), last])
        other = Log([without(destination, (offset + 1) % 10), without(last_ours, 10, 11)])
        assert found(one, other).tail is TailMatch.SAME
    assert found(Log([last]), Log([destination])).tail is TailMatch.NOTHING
    assert found(Log([without(source, *range(10)), last]), Log([destination])).tail is TailMatch.NOTHING
    assert found(Log([source]), Log([without(destination, *range(10))])).tail is TailMatch.NOTHING


def test_from_an_offset_on_our_markers_count_as_holes() -> None:
    source, copied_records = Log([batch(0, 9)]), [ours(0, 5), *(marker(offset) for offset in range(5, 8))]
    for low, differs_at in ((5, None), (6, 5), (8, 7)):
        finding = found(source, Log(list(copied_records)), holes_from=low)
        assert (finding.tail, finding.differs_at) == (
            (TailMatch.SAME, None) if differs_at is None else (TailMatch.DIFFERENT, differs_at)
        )
    # neither those of another writer, nor records
    assert found(source, Log([ours(0, 5), marker(5, OLD_ID)]), holes_from=0).differs_at == 5
    assert found(Log([batch(0, 5), batch(5, 4, "x")]), Log([ours(0, 9)]), holes_from=0).differs_at == 5
    assert found(Log([batch(0, 5), marker(5, 3)]), Log([ours(0, 6)]), holes_from=0).differs_at == 5
    # and below them, records decide
    assert found(source, Log([ours(0, 5, "x"), *copied_records[1:]]), holes_from=0).differs_at == 0


def test_it_is_known_from_where_on_all_was_compared() -> None:
    source = Log([batch(0, 5), *(marker(offset, 3) for offset in range(5, 205))])
    destination = Log([ours(0, 5), *(marker(offset) for offset in range(5, 205))])
    assert found(source, destination).compared_from == 0
    # so few bytes at a time leave something out between the greatest distances
    assert found(source, destination, section_bytes=1000).compared_from > 180
    assert found(Log([batch(0, 9)]), Log([ours(0, 5), ours(5, 4)])).compared_from == 5
    assert found(Log(start=3, end=9), Log([marker(offset) for offset in range(9)])).compared_from == 3


def test_an_emptied_log_has_nothing_to_compare() -> None:
    assert compare(Log(start=7), Log(start=7)) == (TailFinding(), [])
    assert compare(Log(start=9), Log([ours(0, 7)])) == (TailFinding(producer_id=OWN_ID), [(6, None)])
    assert compare(Log([batch(0, 9)]), Log(start=7)) == (TailFinding(), [])


def test_below_a_log_start_nothing_is_compared() -> None:
    assert found(Log([batch(0, 9, "x"), batch(9, 2)], start=9), Log([ours(0, 11)])).tail is TailMatch.SAME
    assert found(Log([batch(0, 11)]), Log([ours(0, 9, "x"), ours(9, 2)], start=9)).tail is TailMatch.SAME


def test_what_the_source_does_not_show_yet_is_not_compared() -> None:
    source = Log([batch(0, 5), batch(5, 5, "x")], visible=5, epochs=[(0, 3)])
    assert found(source, Log([ours(0, 5), ours(5, 5)])) == TailFinding(TailMatch.SAME, None, OWN_ID)


def test_an_epoch_is_named_only_where_the_source_has_a_batch_at_the_end() -> None:
    """A fetch with the epoch of a batch further back would get a diverging epoch."""
    epochs = [(0, 1), (5, 2)]
    destination = Log([ours(0, 5), ours(5, 5)])
    assert found(Log([batch(0, 5), batch(5, 5)], epochs=epochs), destination).epoch == 2
    assert found(Log([batch(0, 5), batch(10, 5)], epochs=epochs), destination) == TailFinding(
        TailMatch.SAME, None, OWN_ID
    )


def test_the_walk_back_doubles_its_steps() -> None:
    source = Log([batch(0, 1), batch(5000, 1)])
    finding, reads = compare(source, Log([ours(i) for i in range(5000)]), section_bytes=300)
    assert finding.tail is TailMatch.SAME
    assert [here for here, _ in reads if here is not None][:4] == [4999, 4998, 4996, 4992]
    assert len(reads) < 40


def test_the_few_records_of_a_compacted_source_are_searched_in_the_copy() -> None:
    source = Log([batch(0, 5), batch(1234, 1), batch(3000, 1)])
    markers = [marker(offset) for offset in range(5, 3000)]
    finding, reads = compare(source, Log([ours(0, 5), *markers]), section_bytes=300)
    assert (finding.tail, finding.differs_at) == (TailMatch.DIFFERENT, 1234)
    assert len(reads) < 40
    markers[1234 - 5] = ours(1234)
    assert found(source, Log([ours(0, 5), *markers]), section_bytes=300).tail is TailMatch.SAME


# -- other writers -----------------------------------------------------------------------------------------------------


def test_records_of_others_are_not_excused_by_holes_of_the_source() -> None:
    """They follow what we wrote, so they were not copied, though the source no longer has what was there."""
    source = Log([batch(0, 5), batch(9, 2)])
    foreign = batch(5, 2, "foreign", producer_id=FOREIGN_ID)
    assert found(source, Log([ours(0, 5), foreign])) == TailFinding(TailMatch.DIFFERENT, None, FOREIGN_ID, 5)
    assert found(source, Log([ours(0, 5), ours(5, 2)])).tail is TailMatch.SAME


def test_an_adopted_log_is_of_others_all_through() -> None:
    source = Log([batch(0, 5), batch(9, 2)])
    assert found(source, Log([batch(0, 5), batch(5, 2)])) == TailFinding(TailMatch.SAME, None, -1)
    another_mirrors = [replace(ours(0, 5), producer_id=OLD_ID), replace(ours(5, 2), producer_id=OLD_ID)]
    assert found(source, Log(another_mirrors)) == TailFinding(TailMatch.SAME, None, OLD_ID)


def test_what_was_adopted_is_below_what_was_copied() -> None:
    source = Log([batch(4, 2), batch(10)])
    markers = [marker(offset) for offset in range(6, 10)]
    assert found(source, Log([batch(0, 4), ours(4, 2), *markers])) == TailFinding(TailMatch.SAME, None, OWN_ID)


def test_records_of_others_with_nothing_to_compare_are_unproven() -> None:
    source = Log([batch(9, 2)])
    assert found(source, Log([batch(0, 5)])) == TailFinding(TailMatch.NOTHING, None, -1, unproven=True)
    assert found(source, Log([ours(0, 5)])) == TailFinding(TailMatch.NOTHING, None, OWN_ID)


def test_records_of_others_after_what_the_source_shows_are_noticed() -> None:
    source = Log([batch(0, 5)])
    foreign = batch(5, 2, "foreign", producer_id=FOREIGN_ID)
    assert found(source, Log([ours(0, 5), foreign])) == TailFinding(TailMatch.DIFFERENT, None, FOREIGN_ID, 5)
    assert found(source, Log([ours(0, 5), ours(5, 2)])) == TailFinding(TailMatch.SAME, None, OWN_ID)


def test_markers_of_others_are_as_good_as_ours() -> None:
    source, end = aborted(5, 1)
    source.batches.insert(0, batch(0, 5))
    assert found(source, Log([ours(0, 5), marker(5, FOREIGN_ID), marker(end, FOREIGN_ID)])).tail is TailMatch.SAME


# -- filler ------------------------------------------------------------------------------------------------------------


def test_filler_at_the_end_is_reported() -> None:
    source = Log([batch(90_000, 5)], start=90_000)
    finding, reads = compare(source, Log(filler_end=500))
    assert finding == TailFinding(producer_id=OWN_ID, only_filler=True)
    assert reads == [(499, None), (0, None)]
    assert found(source, Log(filler_end=90_000)).only_filler


def test_filler_at_the_end_is_reported_where_it_cannot_be_the_sources() -> None:
    assert found(Log([batch(0, 900)], start=400), Log(filler_end=500)).only_filler


def test_filler_is_ours_or_none() -> None:
    records = tuple(record(o)._replace(key=FILLER_KEY, value=None, headers=()) for o in range(500))
    same_timestamp = tuple(r._replace(timestamp=records[0].timestamp) for r in records)
    copied_from = LogBatch(0, 499, same_timestamp, same_timestamp[0].timestamp, codec="zstd")
    assert found(Log([copied_from]), Log([replace(copied_from, producer_id=OWN_ID)])).tail is TailMatch.SAME
    elsewhere = Log([replace(copied_from, producer_id=FOREIGN_ID)])
    assert not found(Log([batch(600, 5)], start=600), elsewhere).only_filler


@pytest.mark.parametrize("section_bytes", [1, WHOLE])
def test_a_log_with_anything_else_is_not_only_filler(section_bytes: int) -> None:
    """Also where the walk back would step over it."""
    source = Log([batch(90_000, 5)], start=90_000)
    markers = [marker(offset) for offset in range(500, 510)]
    assert not found(source, Log(markers, filler_end=500), section_bytes=section_bytes).only_filler
    for index in range(10):
        hidden_record = [*markers[:index], ours(500 + index), *markers[index + 1 :]]
        assert not found(source, Log(hidden_record, filler_end=500), section_bytes=section_bytes).only_filler


@pytest.mark.parametrize("section_bytes", [1, WHOLE])
def test_a_copied_record_that_looks_like_filler_hides_nothing(section_bytes: int) -> None:
    """A client of the source wrote it, and the source has deleted or cleaned it since."""
    records = tuple(record(o)._replace(timestamp=1, key=FILLER_KEY, value=None, headers=()) for o in range(90, 100))
    planted = LogBatch(90, 99, records, 1, codec="zstd", producer_id=OWN_ID)
    for begin in ([ours(0, 90)], [marker(o) for o in range(90)], [ours(80, 10)]):
        copy = Log([*begin, planted], start=begin[0].base_offset)
        for source in (Log([batch(900, 5)], start=900), Log(start=100)):
            assert found(source, copy, section_bytes=section_bytes) == TailFinding(producer_id=OWN_ID)
    copy = Log([ours(0, 90), planted])
    same, other = Log([batch(0, 90), batch(100)]), Log([batch(0, 90, "t"), batch(100)])
    assert found(same, copy, section_bytes=section_bytes).tail is TailMatch.SAME
    assert found(other, copy, section_bytes=section_bytes).tail is TailMatch.DIFFERENT


# -- damage ------------------------------------------------------------------------------------------------------------


def with_flipped_bit(data: bytes, position: int) -> memoryview:
    changed = bytearray(data)
    changed[position] ^= 4
    return memoryview(changed)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_damaged_batch_is_named(side: str) -> None:
    good, bad = memoryview(encode(ours(0, 5))), with_flipped_bit(encode(ours(0, 5)), 80)
    comparing = compare_tails(LogEnds(0, 5, 0, 5), OWN_ID)
    next(comparing)
    here, there = (good, bad) if side == "source" else (bad, good)
    with pytest.raises(DamagedLogError, match=f"the {side}'s batch at offset 0 is corrupt: its checksum") as caught:
        comparing.send(Sections(Section(4, here), Section(4, there)))
    assert caught.value.reason is Reason.CORRUPT_BATCH
    assert (caught.value.side, str(pickle.loads(pickle.dumps(caught.value)))) == (side, str(caught.value))


@pytest.mark.parametrize("side", ["source", "destination"])
@pytest.mark.parametrize("brought", ["nothing", "what was not asked for"])
def test_a_read_that_proves_nothing_is_no_finding(side: str, brought: str) -> None:
    good, silent = (memoryview(encode(ours(0, 5))) for _ in range(2))
    silent = silent[:0] if brought == "nothing" else memoryview(encode(ours(0, 3)))
    comparing = compare_tails(LogEnds(0, 5, 0, 5), OWN_ID)
    next(comparing)
    here, there = (good, silent) if side == "source" else (silent, good)
    with pytest.raises(UnprovenError, match=f"the {side} returned nothing that leads past offset 4") as caught:
        comparing.send(Sections(Section(4, here), Section(4, there)))
    assert (caught.value.side, str(pickle.loads(pickle.dumps(caught.value)))) == (side, str(caught.value))


# -- logs of all kinds -------------------------------------------------------------------------------------------------


def as_log(seed: int) -> Log:
    """Return the log of all kinds of batches that this seed builds."""
    built = build_log(seed)
    first: dict[int | None, int] = {}
    aborted_transactions = []
    for stored in built.batches:
        begun = first.setdefault(stored.transaction, stored.base_offset)
        if stored.marker == ABORT:
            aborted_transactions.append((stored.producer_id, begun, stored.base_offset))
    return Log(
        list(built.batches),
        built.log_start_offset,
        built.log_end_offset,
        built.last_stable_offset,
        aborted_transactions,
    )


@pytest.mark.slow
@pytest.mark.parametrize("section_bytes", [300, WHOLE])
def test_a_true_copy_of_any_log_is_the_same_and_a_false_one_is_not(section_bytes: int) -> None:
    compared = 0
    for seed in LONG_SEEDS:
        source, rng = as_log(seed), random.Random(seed)
        end = rng.randint(source.start, source.shown_end)
        destination, _ = copied(source, end, rng)
        shown = [offset for offset in source.shown() if offset < end]
        finding = found(source, destination, section_bytes=section_bytes)
        if section_bytes < WHOLE:
            # so few bytes at a time, one record among many markers can be stepped over
            assert finding.tail is not TailMatch.DIFFERENT, seed
            compared += finding.tail is TailMatch.SAME
            continue
        assert finding.tail is (TailMatch.SAME if shown else TailMatch.NOTHING), seed
        if not shown:
            continue
        compared += 1
        last = next(b for b in destination.batches if b.base_offset <= shown[-1] < b.next_offset)
        wrong = replace(last, records=(*last.records[:-1], last.records[-1]._replace(value=b"another")))
        destination.batches[destination.batches.index(last)] = wrong
        finding = found(source, destination, section_bytes=section_bytes)
        assert (finding.tail, finding.differs_at) == (TailMatch.DIFFERENT, shown[-1]), seed
    assert compared > 100
