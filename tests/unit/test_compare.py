"""Two logs are compared record by record, on batches made by hand."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace

import pytest
from crc32c import crc32c

from kmirror.cluster.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CONTROL,
    HEADER,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    CorruptBatchError,
    batch_headers,
)
from kmirror.cluster.fetch import AbortedTransaction
from kmirror.cluster.records import Record, make_batch
from kmirror.engine.compare import compare_logs
from kmirror.engine.difference import Difference, Kind, PartitionComparison
from kmirror.engine.superseded import Superseded
from kmirror.engine.visible_log import Batch, UnsupportedFormatError, visible_batches

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def record(offset: int, **changes: object) -> Record:
    plain = Record(offset, 1_700_000_000_000 + offset, b"k%d" % (offset % 7), b"v%d" % offset, (("h", b"%d" % offset),))
    return replace(plain, **changes)  # type: ignore[arg-type]


def records(start: int, end: int) -> list[Record]:
    return [record(offset) for offset in range(start, end)]


def batches_of(log: Iterable[Record], size: int = 10, codec: str = "none") -> list[bytearray]:
    """Return batches of up to `size` records; a missing offset begins a new one."""
    made: list[list[Record]] = []
    for one in log:
        if not made or len(made[-1]) == size or made[-1][-1].offset + 1 != one.offset:
            made.append([])
        made[-1].append(one)
    return [make_batch(batch, compression_type=codec) for batch in made]


def stamped(batch: bytearray, **changes: int) -> bytearray:
    """Return the batch with some of its header's fields changed, its true length, and a right checksum."""
    base_offset, _, *fields = HEADER.unpack_from(batch)
    header = BatchHeader(0, len(batch), base_offset, *fields)._replace(**changes)
    out = bytearray(batch)

    def pack(crc: int) -> None:
        written = header._replace(crc=crc)
        HEADER.pack_into(out, 0, written.base_offset, len(out) - LOG_OVERHEAD, *written[3:])

    pack(0)
    pack(crc32c(memoryview(out)[ATTRIBUTES_POSITION:]))
    return out


def marker(offset: int, producer_id: int, *, commit: bool) -> bytearray:
    """Return a transaction marker."""
    batch = make_batch([Record(offset, 0, b"\0\0\0\1" if commit else b"\0\0\0\0", b"\0\0\0\0\0\0")])
    return stamped(batch, attributes=CONTROL | TRANSACTIONAL, producer_id=producer_id, producer_epoch=0)


@dataclass
class MadeLog:
    """A log of batches made by hand, all in one fetch answer."""

    stored: list[bytearray]
    floor: int = 0
    ended_at: int | None = None
    log_end_offset: int | None = None
    compacted: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()
    scans: int = 0

    def batches(self) -> Iterator[Batch]:
        data = memoryview(b"".join(self.stored))
        yield from visible_batches(data, batch_headers(data), self.aborted)

    def scan(self, start: int | None = None, end: int | None = None) -> Generator[Record, None, None]:
        self.scans += 1
        for batch in self.batches():
            for one in batch.records():
                if (start or 0) <= one.offset and (end is None or one.offset < end):
                    yield one

    def is_compacted(self) -> bool:
        return self.compacted


def compare(
    source: MadeLog | list[Record], destination: MadeLog | list[Record], start: int = 0, end: int = 100
) -> PartitionComparison:
    one, other = (log if isinstance(log, MadeLog) else MadeLog(batches_of(log)) for log in (source, destination))
    return compare_logs(one, other, start, end)


def difference(
    source: MadeLog | list[Record], destination: MadeLog | list[Record], start: int = 0, end: int = 100
) -> Difference:
    found = compare(source, destination, start, end)
    assert not found.equal
    assert found.first_difference is not None
    return found.first_difference


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
        ({"value": b"v99"}, "value differ"),
        ({"value": None}, "value differ"),
        ({"key": None}, "key differ"),
        ({"key": b"", "value": b""}, "key and value differ"),
        ({"headers": ()}, "headers differ"),
        ({"headers": (("h", None),)}, "headers differ"),
        ({"headers": (("H", b"42"),)}, "headers differ"),
        ({"timestamp": 5}, "the timestamp is 1700000000042 at the source, 5 at the destination"),
    ],
)
def test_a_single_difference_is_found_at_its_offset(
    changes: dict[str, object], what: str, codec: str, size: int
) -> None:
    changed = [record(offset, **changes) if offset == 42 else record(offset) for offset in range(100)]
    found = difference(records(0, 100), MadeLog(batches_of(changed, size, codec)))
    assert (found.offset, found.kind, found.what) == (42, Kind.CONTENT, what)
    assert found.source
    assert found.destination
    assert found.source.timestamp == 1_700_000_000_042
    same_content = found.source.checksum == found.destination.checksum
    assert same_content == ("timestamp" in changes)


def test_the_first_of_several_differences_is_told() -> None:
    changed = [record(offset, value=b"x") if offset in (17, 18, 93) else record(offset) for offset in range(100)]
    found = difference(records(0, 100), changed)
    assert found.offset == 17


@pytest.mark.parametrize("offset", [0, 9, 10, 42, 98])
def test_a_record_that_one_side_lacks(offset: int) -> None:
    whole, lacking = records(0, 100), [one for one in records(0, 100) if one.offset != offset]
    missing = difference(whole, lacking)
    assert (missing.offset, missing.kind, missing.destination) == (offset, Kind.MISSING, None)
    assert missing.source
    assert missing.source.offset == offset
    extra = difference(lacking, whole)
    assert (extra.offset, extra.kind, extra.source) == (offset, Kind.EXTRA, None)


def test_records_shifted_by_one() -> None:
    shifted = [replace(one, offset=one.offset + (one.offset >= 30)) for one in records(0, 99)]
    found = difference(records(0, 100), shifted)
    assert (found.offset, found.kind) == (30, Kind.MISSING)


def test_holes_on_both_sides_are_equal() -> None:
    holes = [one for one in records(0, 100) if one.offset % 5]
    found = compare(holes, MadeLog(batches_of(holes, 3)))
    assert found.equal
    assert found.records == 80


def test_a_destination_that_ends_too_early() -> None:
    short = MadeLog(batches_of(records(0, 60)), ended_at=60, log_end_offset=60)
    found = difference(records(0, 100), short)
    assert (found.offset, found.kind) == (60, Kind.MISSING_TAIL)
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
    ("log_end", "what"),
    [(60, "the source ends at offset 60"), (80, "the source is not committed beyond offset 60")],
)
def test_a_destination_that_goes_on_beyond_the_source(log_end: int, what: str) -> None:
    short = MadeLog(batches_of(records(0, 60)), ended_at=60, log_end_offset=log_end)
    found = difference(short, records(0, 100))
    assert (found.offset, found.kind, found.source) == (60, Kind.EXTRA_TAIL, None)
    assert found.what.startswith(what)
    hidden = MadeLog(batches_of(records(0, 100)), ended_at=100, log_end_offset=120)
    assert difference(short, hidden, end=120) == found


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
    assert (found.offset, found.kind) == (30, Kind.CORRUPT)
    assert f"the {side} stores at offset 30 is corrupt" in found.what


def test_a_rotten_batch_concerns_only_ranges_that_it_lies_in() -> None:
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
    assert (found.offset, found.kind) == (29, Kind.MISSING)


def test_a_batch_with_a_right_checksum_that_cannot_be_decompressed() -> None:
    broken = MadeLog(batches_of(records(0, 100), codec="gzip"))
    broken.stored[2] = stamped(broken.stored[2][:BATCH_OVERHEAD] + b"no gzip at all")
    found = difference(MadeLog(batches_of(records(0, 100), codec="gzip")), broken)
    assert (found.offset, found.kind) == (20, Kind.CORRUPT)


def test_an_old_message_format_cannot_be_compared() -> None:
    old = MadeLog([bytearray(b"\0" * 7 + b"\0" + b"\0\0\0\x20" + b"\0" * 4 + b"\1" + b"\0" * 40)])
    with pytest.raises(UnsupportedFormatError):
        list(old.batches())
    found = compare(old, records(0, 100))
    assert found.first_difference is None
    assert found.obstacle
    assert "message format 1" in found.obstacle


def test_log_append_time_shows_one_timestamp_for_the_whole_batch() -> None:
    def at(shown: int) -> MadeLog:
        return MadeLog(
            [stamped(batch, attributes=LOG_APPEND_TIME, max_timestamp=shown) for batch in batches_of(records(0, 100))]
        )

    shown = 1_800_000_000_000
    assert compare(at(shown), [replace(one, timestamp=shown) for one in records(0, 100)]).equal
    assert compare(at(shown), at(shown)).equal
    found = difference(at(shown), records(0, 100))
    assert found.offset == 0
    assert found.source
    assert found.source.timestamp == shown
    assert difference(at(shown), at(shown + 1)).offset == 0
    last = 1_700_000_000_009
    kept = [stamped(batch, attributes=LOG_APPEND_TIME) for batch in batches_of(records(0, 10))]
    found = difference(MadeLog(kept), records(0, 10), end=10)
    assert found.what == f"the timestamp is {last} at the source, {last - 9} at the destination"


def test_headers_decide_what_the_same_bytes_mean() -> None:
    stored = batches_of(records(0, 100))
    later = [stamped(batch, base_timestamp=5) for batch in stored]
    assert difference(MadeLog(stored), MadeLog(later)).offset == 0
    fewer = [*stored[:4], stamped(stored[4], record_count=9), *stored[5:]]
    found = difference(MadeLog(stored), MadeLog(fewer))
    assert (found.offset, found.kind) == (40, Kind.CORRUPT)
    squeezed = [*stored[:4], stamped(stored[4], attributes=CODECS.index("gzip")), *stored[5:]]
    found = difference(MadeLog(stored), MadeLog(squeezed))
    assert (found.offset, found.kind) == (40, Kind.CORRUPT)


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
    assert (shown.offset, shown.kind) == (0, Kind.EXTRA)


def test_an_emptied_batch_is_no_record() -> None:
    emptied = stamped(make_batch(records(10, 20))[:BATCH_OVERHEAD], record_count=0)
    source = MadeLog([*batches_of(records(0, 10)), emptied, *batches_of(records(20, 100))])
    assert compare(source, [*records(0, 10), *records(20, 100)]).equal


def test_what_retention_took_meanwhile_is_noted() -> None:
    late = MadeLog(batches_of(records(30, 100)), floor=30)
    found = compare(records(0, 100), late)
    assert found.equal
    assert found.notes == (
        "30 records below offset 30 were not compared: the destination's log has come to start there",
    )
    assert compare(records(0, 100), MadeLog(batches_of(records(31, 100)), floor=30)).first_difference
    # the log starts within a batch, of which the rest is stored and no longer to be read
    late.floor = 33
    found = compare(records(0, 100), late)
    assert found.equal
    assert found.records == 67


def test_progress_is_told_in_bytes() -> None:
    log = MadeLog(batches_of(records(0, 100)))
    told: list[int] = []
    found = compare_logs(log, log, 0, 100, told.append)
    assert sum(told) == found.size_in_bytes


class TestCompaction:
    """Both cleaners work on their own; the keys of `record` repeat every seven offsets."""

    def compacted(self, log: Iterable[Record]) -> MadeLog:
        return MadeLog(batches_of(log), compacted=True)

    def cleaned(self, log: list[Record], below: int) -> list[Record]:
        """Remove what has a later record of its key, among the records below an offset."""
        last = {one.key: one.offset for one in log if one.offset < below}
        return [one for one in log if one.offset >= below or last[one.key] == one.offset]

    @pytest.mark.parametrize("below", [7, 14, 50, 100])
    def test_a_missing_record_is_superseded_by_a_later_one_of_its_key(self, below: int) -> None:
        log = records(0, 100)
        missing = below - 7
        for found, side in (
            (compare(self.compacted(log), self.compacted(self.cleaned(log, below))), "destination"),
            (compare(self.compacted(self.cleaned(log, below)), self.compacted(log)), "source"),
        ):
            assert found.equal
            assert found.records == 100 - missing
            told = [note for note in found.notes if f"{missing} records" in note and f"missing in the {side}" in note]
            assert len(told) == (missing > 0)

    def test_both_cleaners_may_have_come_to_different_places(self) -> None:
        log = records(0, 100)
        assert compare(self.compacted(self.cleaned(log, 40)), self.compacted(self.cleaned(log, 80))).equal

    def test_a_topic_that_is_not_compacted_has_no_such_excuse(self) -> None:
        log = records(0, 100)
        found = difference(self.compacted(log), MadeLog(batches_of(self.cleaned(log, 50))))
        assert (found.offset, found.kind) == (0, Kind.MISSING)

    def test_the_last_record_of_a_key_must_be_there(self) -> None:
        log = records(0, 100)
        lacking = [one for one in self.cleaned(log, 50) if one.offset != 97]
        found = difference(self.compacted(log), self.compacted(lacking))
        # 97 is the last of its key: 43 to 48 and 49 have later ones, what 97 itself superseded stands there
        assert (found.offset, found.kind) == (97, Kind.MISSING)
        assert found.source
        assert found.source.timestamp == 1_700_000_000_097

    def test_the_first_unexplained_record_of_a_key_is_told(self) -> None:
        log = records(0, 100)
        lacking = [one for one in log if one.key != b"k3" or one.offset < 50]
        found = difference(self.compacted(lacking), self.compacted(log))
        assert (found.offset, found.kind) == (52, Kind.EXTRA)

    def test_the_later_record_may_lie_beyond_the_range(self) -> None:
        log = records(0, 100)
        cleaned = self.compacted(self.cleaned(log, 100))
        found = compare(self.compacted(log), cleaned, 0, 50)
        assert found.equal
        assert cleaned.scans == 1

    def test_the_later_record_may_lie_in_a_batch_that_is_the_same_on_both_sides(self) -> None:
        log = [record(i, key=b"same" if i in (3, 12) else b"%d" % i) for i in range(30)]
        stored = batches_of(log[:3] + log[4:10]) + batches_of(log[10:20]) + batches_of(log[20:], size=3)
        assert compare(self.compacted(log), MadeLog(stored, compacted=True), end=30).equal

    def test_an_earlier_record_of_its_key_is_no_later_one(self) -> None:
        log = records(0, 20)
        found = difference(self.compacted(log), self.compacted(log[:15] + log[16:]), end=20)
        assert (found.offset, found.kind) == (15, Kind.MISSING)

    def test_of_several_unexplained_records_the_first_is_told(self) -> None:
        log = records(0, 100)
        for keys in ((b"k3", b"k5"), (b"k5", b"k3")):
            lacking = [one for one in log if one.key not in keys]
            assert difference(self.compacted(log), self.compacted(lacking)).offset == 3
        both = difference(
            self.compacted([one for one in log if one.key != b"k2"]),
            self.compacted([one for one in log if one.key != b"k3"]),
        )
        assert (both.offset, both.kind) == (2, Kind.EXTRA)

    def test_what_was_searched_for_is_not_searched_again(self) -> None:
        log = self.compacted(records(0, 10))
        missing = Superseded(log, log)
        assert missing.excuses(record(20, key=b"gone"))
        assert missing.unexplained(10, 10) is not None
        assert len(missing) == 0

    def test_a_differing_record_is_told_unless_an_earlier_one_is_missing(self) -> None:
        log = records(0, 100)
        differing = [record(one.offset, value=b"x") if one.offset == 70 else one for one in self.cleaned(log, 50)]
        found = difference(self.compacted(log), self.compacted(differing))
        assert (found.offset, found.kind) == (70, Kind.CONTENT)
        lacking = [one for one in differing if one.key != b"k3"]
        found = difference(self.compacted(log), self.compacted(lacking))
        assert (found.offset, found.kind) == (3, Kind.MISSING)

    def test_records_without_a_key_are_never_superseded(self) -> None:
        log = [record(offset, key=None) for offset in range(10)]
        found = difference(self.compacted(log), self.compacted(log[1:]), end=10)
        assert (found.offset, found.kind) == (0, Kind.MISSING)

    def test_a_tombstone_goes_when_its_key_is_gone(self) -> None:
        log = [*records(0, 50), record(50, key=b"k3", value=None), *records(51, 58)]
        del log[52]  # the record of k3 behind the tombstone
        gone = [one for one in log if one.key != b"k3"]
        assert compare(self.compacted(log), self.compacted(gone), end=58).equal
        assert compare(self.compacted(gone), self.compacted(log), end=58).equal

    def test_a_tombstone_must_not_go_before_what_it_deletes(self) -> None:
        log = [*records(0, 50), record(50, key=b"k3", value=None)]
        found = difference(self.compacted(log), self.compacted(log[:50]), end=51)
        assert (found.offset, found.kind) == (50, Kind.MISSING)
        found = difference(self.compacted(log[:50]), self.compacted(log), end=51)
        assert (found.offset, found.kind) == (50, Kind.EXTRA)

    @pytest.mark.parametrize("most", [0, 1, 3])
    def test_few_keys_are_remembered_at_a_time(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kmirror.engine.compare._MOST_WAITING", most)
        log = [*records(0, 50), record(50, key=b"k3", value=None), *records(51, 58)]
        del log[52]
        cleaned = [one for one in self.cleaned(log, 50) if one.key != b"k3"]
        one, other = self.compacted(log), self.compacted(cleaned)
        assert compare(one, other, end=58).equal
        assert compare(other, one, end=58).equal
        assert other.scans > 2
        lacking = self.compacted([one for one in cleaned if one.key != b"k5"])
        found = difference(one, lacking, end=58)
        assert (found.offset, found.kind) == (5, Kind.MISSING)


def test_what_cannot_be_a_batch_is_corrupt() -> None:
    with pytest.raises(CorruptBatchError):
        list(MadeLog([bytearray(b"\0" * 30)]).batches())
