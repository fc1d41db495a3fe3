"""Two logs are compared record by record, on batches made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch import ATTRIBUTES_POSITION, BATCH_OVERHEAD, TRANSACTIONAL, CorruptBatchError
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.filler import FILLER_KEY
from kmirror.engine.compare.difference import DifferenceKind
from kmirror.engine.compare.logs import compare_logs
from tests.support.comparing import CODECS, compare, difference, record, records
from tests.support.made_logs import MadeLog, batches_of, marker, stamped


@pytest.mark.parametrize("source_codec", CODECS)
@pytest.mark.parametrize("destination_codec", CODECS)
def test_the_codec_makes_no_difference(source_codec: str, destination_codec: str) -> None:
    source = MadeLog(batches_of(records(0, 100), codec=source_codec))
    found = compare(source, MadeLog(batches_of(records(0, 100), codec=destination_codec)))
    assert found.equal
    assert found.records == 100
    assert found.size_in_bytes == sum(map(len, source.stored))


@pytest.mark.parametrize("sizes", [(10, 7), (1, 100), (33, 32)])
def test_where_batches_begin_makes_no_difference(sizes: tuple[int, int]) -> None:
    one, other = (MadeLog(batches_of(records(0, 100), size)) for size in sizes)
    found = compare(one, other)
    assert found.equal
    assert found.records == 100


@pytest.mark.parametrize("size", [10, 7], ids=["same batches", "other batches"])
@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"value": b"v99"}, "value differs"),
        ({"value": None}, "value differs"),
        ({"key": None}, "key differs"),
        ({"key": b"", "value": b""}, "key and value differ"),
        ({"headers": ()}, "headers differ"),
        ({"headers": (("h", None),)}, "headers differ"),
        ({"headers": (("H", b"42"),)}, "headers differ"),
        # as read from a name that is not UTF-8
        ({"headers": (("\udcff", b"42"),)}, "headers differ"),
        ({"timestamp": 5}, "the timestamp is 1700000000042 at the source, 5 at the destination"),
    ],
)
def test_a_single_difference_is_found_at_its_offset(
    changes: dict[str, object], what: str, codec: str, size: int
) -> None:
    changed = [record(offset, **changes) if offset == 42 else record(offset) for offset in range(100)]
    found = difference(records(0, 100), MadeLog(batches_of(changed, size, codec)))
    assert (found.offset, found.kind, found.what) == (42, DifferenceKind.CONTENT, what)
    assert found.source
    assert found.destination
    assert found.source.timestamp == 1_700_000_000_042
    same_content = found.source.checksum == found.destination.checksum
    assert same_content == ("timestamp" in changes)


def test_the_first_of_several_differences_is_reported() -> None:
    changed = [record(offset, value=b"x") if offset in (17, 18, 93) else record(offset) for offset in range(100)]
    found = difference(records(0, 100), changed)
    assert found.offset == 17


@pytest.mark.parametrize("offset", [0, 9, 10, 42, 98])
def test_a_record_that_one_side_lacks(offset: int) -> None:
    whole, lacking = records(0, 100), [one for one in records(0, 100) if one.offset != offset]
    missing = difference(whole, lacking)
    assert (missing.offset, missing.kind, missing.destination) == (offset, DifferenceKind.MISSING, None)
    assert missing.source
    assert missing.source.offset == offset
    extra = difference(lacking, whole)
    assert (extra.offset, extra.kind, extra.source) == (offset, DifferenceKind.EXTRA, None)


def test_records_shifted_by_one() -> None:
    shifted = [replace(one, offset=one.offset + (one.offset >= 30)) for one in records(0, 99)]
    found = difference(records(0, 100), shifted)
    assert (found.offset, found.kind) == (30, DifferenceKind.MISSING)


def test_holes_on_both_sides_are_equal() -> None:
    holes = [one for one in records(0, 100) if one.offset % 5]
    found = compare(holes, MadeLog(batches_of(holes, 3)))
    assert found.equal
    assert found.records == 80


def test_a_destination_that_ends_too_early() -> None:
    short = MadeLog(batches_of(records(0, 60)), ended_at=60, log_end_offset=60)
    found = difference(records(0, 100), short)
    assert (found.offset, found.kind) == (60, DifferenceKind.MISSING_TAIL)
    assert found.what == "the destination ends at offset 60"


def test_a_destination_whose_end_is_hidden_from_consumers_cannot_be_compared() -> None:
    hidden = MadeLog(batches_of(records(0, 60)), ended_at=60, log_end_offset=100)
    found = compare(records(0, 100), hidden)
    assert found.first_difference is None
    assert not found.equal
    assert found.obstacle
    assert "from offset 60 to its end 100" in found.obstacle
    short = MadeLog(batches_of(records(0, 60)), ended_at=60, log_end_offset=60)
    assert compare(short, hidden).obstacle == found.obstacle


@pytest.mark.parametrize(
    ("log_end", "is_open", "what"),
    [
        (60, False, "the source ends at offset 60"),
        (80, False, "the source shows nothing from offset 60 on, and ends at offset 80"),
        (100, True, "the source is not committed after offset 60: a transaction is open there"),
    ],
)
def test_a_destination_that_continues_after_the_source(log_end: int, is_open: bool, what: str) -> None:
    short = MadeLog(batches_of(records(0, 60)), ended_at=60, log_end_offset=log_end, has_open_transaction=is_open)
    found = difference(short, records(0, 100))
    assert (found.offset, found.kind, found.source) == (60, DifferenceKind.EXTRA_TAIL, None)
    assert found.what == what
    hidden = MadeLog(batches_of(records(0, 100)), ended_at=100, log_end_offset=120)
    assert difference(short, hidden, end=120) == found


@pytest.mark.parametrize("destination", [100, 60], ids=["records", "nothing that shows"])
def test_a_source_that_does_not_show_what_was_copied_cannot_be_compared(destination: int) -> None:
    """A new leader with too few replicas in sync shows less than the last one did, for as long as that lasts."""
    hidden = MadeLog(batches_of(records(0, 60)), ended_at=60, log_end_offset=100)
    found = compare(hidden, MadeLog(batches_of(records(0, destination)), ended_at=100, log_end_offset=100))
    assert found.first_difference is None
    assert found.obstacle
    assert found.obstacle.startswith("the source shows consumers nothing from offset 60 to its end 100: ")
    assert found.records == 60


def test_offsets_at_the_end_that_show_nothing_are_compared_too() -> None:
    def ended(at: int | None, log_end: int | None = None, *, is_open: bool = False) -> MadeLog:
        end = log_end or at
        return MadeLog(batches_of(records(0, 60)), ended_at=at, log_end_offset=end, has_open_transaction=is_open)

    assert compare(ended(100), ended(100)).equal
    assert compare(ended(None), ended(None)).equal
    beyond = difference(ended(98), ended(100))
    assert (beyond.offset, beyond.kind, beyond.source, beyond.destination) == (
        98,
        DifferenceKind.EXTRA_TAIL,
        None,
        None,
    )
    assert beyond.what == "the source ends at offset 98; offsets 98 to 99, which show no records, are missing"
    short = difference(ended(100), ended(99))
    assert (short.offset, short.kind) == (99, DifferenceKind.MISSING_TAIL)
    undecided = difference(ended(98, 120, is_open=True), ended(100))
    assert undecided.what.startswith("the source is not committed after offset 98: a transaction is open there; ")
    assert compare(ended(100), ended(60, 100)).obstacle


FILLER = Record(0, 1_700_000_000_000, FILLER_KEY, None)


@pytest.mark.parametrize("compacted", [False, True])
def test_filler_that_was_left_is_never_in_order(compacted: bool) -> None:
    def at_destination(*offsets: int) -> MadeLog:
        log = [replace(FILLER, offset=one.offset) if one.offset in offsets else one for one in records(0, 100)]
        return MadeLog(batches_of(log), compacted=compacted)

    def at_source(start: int, floor: int) -> MadeLog:
        return MadeLog(batches_of(records(start, 100)), floor=floor, compacted=compacted)

    found = difference(at_source(0, 0), at_destination(3, 4))
    assert (found.offset, found.kind) == (3, DifferenceKind.FILLER)
    assert found.source
    assert found.destination
    # where the source has a hole, and where it no longer reaches back to
    for floor in (0, 10):
        found = difference(at_source(10, floor), at_destination(*range(10)))
        assert (found.offset, found.kind, found.source) == (0, DifferenceKind.FILLER, None)
        assert "filler" in found.what
    assert compare(at_destination(3), at_destination(3)).equal
    own = [replace(FILLER, offset=0, value=b"an application's"), *records(1, 100)]
    assert difference(records(0, 100), own).kind is DifferenceKind.CONTENT


@pytest.mark.parametrize("start", [0, 10, 14, 20])
@pytest.mark.parametrize("end", [21, 25, 30, 31])
def test_a_range_ends_where_it_says(start: int, end: int) -> None:
    """Differences right before and behind the range are of no interest to it; those at its rim are."""
    source = records(0, 100)

    def differing_at(*offsets: int) -> list[Record]:
        return [record(one.offset, value=b"x") if one.offset in offsets else one for one in source]

    outside = compare(source, differing_at(start - 1, end), start, end)
    assert outside.equal
    assert outside.records == end - start
    for offset in (start, end - 1):
        found = difference(source, differing_at(offset), start, end)
        assert found.offset == offset


def test_ranges_add_up_to_the_whole() -> None:
    log = MadeLog(batches_of(records(0, 100)))
    ranges = [compare(log, log, start, start + 25) for start in range(0, 100, 25)]
    whole = compare(log, log)
    assert sum(one.records for one in ranges) == whole.records == 100
    assert sum(one.size_in_bytes for one in ranges) == whole.size_in_bytes


@pytest.mark.parametrize("side", ["source", "destination"])
@pytest.mark.parametrize("byte", [ATTRIBUTES_POSITION, BATCH_OVERHEAD + 3, -1])
def test_a_batch_that_rotted_in_storage(side: str, byte: int) -> None:
    good, rotten = MadeLog(batches_of(records(0, 100))), MadeLog(batches_of(records(0, 100)))
    rotten.stored[3][byte] ^= 0x40
    found = difference(rotten, good) if side == "source" else difference(good, rotten)
    assert (found.offset, found.kind) == (30, DifferenceKind.CORRUPT)
    assert f"the {side} stores at offset 30 is corrupt" in found.what


def test_a_corrupt_batch_concerns_only_ranges_that_contain_it() -> None:
    rotten = MadeLog(batches_of(records(0, 100)))
    rotten.stored[3][-1] ^= 1
    assert compare(records(0, 100), rotten, end=30).equal
    assert difference(records(0, 100), rotten, start=34, end=36).offset == 34
    assert difference(records(0, 100), rotten, end=31).offset == 30


def test_records_before_a_rotten_batch_are_compared_first() -> None:
    lacking = MadeLog(batches_of(one for one in records(0, 100) if one.offset != 29))
    rotten = next(batch for batch in lacking.stored if batch.startswith(b"\0" * 7 + b"\x1e"))
    rotten[-1] ^= 1
    found = difference(records(0, 100), lacking)
    assert (found.offset, found.kind) == (29, DifferenceKind.MISSING)


def test_a_batch_with_a_right_checksum_that_cannot_be_decompressed() -> None:
    broken = MadeLog(batches_of(records(0, 100), codec="gzip"))
    broken.stored[2] = stamped(broken.stored[2][:BATCH_OVERHEAD] + b"no gzip at all")
    found = difference(MadeLog(batches_of(records(0, 100), codec="gzip")), broken)
    assert (found.offset, found.kind) == (20, DifferenceKind.CORRUPT)


def test_markers_and_what_they_aborted_are_no_records() -> None:
    """Producer 7 aborts, 8 commits; both write again afterwards. The broker lists aborted transactions in no order."""

    def written(start: int, producer_id: int) -> bytearray:
        batch = make_batch(records(start, start + 5))
        return stamped(batch, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0)

    source = MadeLog(
        [
            written(0, 7),
            written(5, 8),
            marker(10, 7, commit=False),
            marker(11, 8, commit=True),
            written(12, 7),
            marker(17, 7, commit=True),
            written(18, 8),
            marker(23, 8, commit=False),
            stamped(make_batch(records(24, 30)), producer_id=9),
            stamped(marker(30, 9, commit=False)[:BATCH_OVERHEAD], record_count=0),
            written(31, 9),
        ],
        aborted=(
            AbortedTransaction(9, 100),
            AbortedTransaction(8, 18),
            AbortedTransaction(9, 20),
            AbortedTransaction(7, 0),
        ),
    )
    visible = [*records(5, 10), *records(12, 17), *records(24, 30), *records(31, 36)]
    found = compare(source, visible)
    assert found.equal
    assert found.records == len(visible)
    shown = difference(source, records(0, 36))
    assert (shown.offset, shown.kind) == (0, DifferenceKind.EXTRA)


def test_an_emptied_batch_is_no_record() -> None:
    emptied = stamped(make_batch(records(10, 20))[:BATCH_OVERHEAD], record_count=0)
    source = MadeLog([*batches_of(records(0, 10)), emptied, *batches_of(records(20, 100))])
    assert compare(source, [*records(0, 10), *records(20, 100)]).equal


def test_what_retention_took_meanwhile_is_noted() -> None:
    late = MadeLog(batches_of(records(30, 100)), floor=30)
    found = compare(records(0, 100), late)
    assert found.equal
    assert found.notes == ("30 records below offset 30 were not compared: the destination's log now starts there",)
    assert compare(records(0, 100), MadeLog(batches_of(records(31, 100)), floor=30)).first_difference
    # the log starts within a batch, of which the rest is stored and no longer to be read
    late.floor = 33
    found = compare(records(0, 100), late)
    assert found.equal
    assert found.records == 67


def test_progress_counts_offsets_up_to_the_end_whatever_they_show() -> None:
    log = MadeLog(batches_of(records(0, 100)))
    reported: list[int] = []
    compare_logs(log, log, 0, 130, reported.append)
    assert len(reported) > 2
    assert sum(reported) == 130


def test_what_cannot_be_a_batch_is_corrupt() -> None:
    with pytest.raises(CorruptBatchError):
        list(MadeLog([bytearray(b"\0" * 30)]).batches())
