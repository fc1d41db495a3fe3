"""Two logs are compared record by record, on batches made by hand."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    CorruptBatchError,
)
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.filler import FILLER_KEY
from kmirror.cluster.protocol.records import Record, make_batch
from kmirror.engine.compare.difference import Difference, Kind, PartitionComparison
from kmirror.engine.compare.logs import compare_logs
from kmirror.engine.compare.superseded import Superseded
from kmirror.engine.compare.visible_log import UnknownFormatError
from kmirror.errors import Reason
from tests.support.log_batches import LogBatch, VisibleRecord, encode
from tests.support.made_logs import MadeLog, batches_of, marker, stamped

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def record(offset: int, **changes: object) -> Record:
    plain = Record(offset, 1_700_000_000_000 + offset, b"k%d" % (offset % 7), b"v%d" % offset, (("h", b"%d" % offset),))
    return replace(plain, **changes)  # type: ignore[arg-type]


def records(start: int, end: int) -> list[Record]:
    return [record(offset) for offset in range(start, end)]


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


def _offset(one: Record) -> int:
    return one.offset


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


def test_offsets_at_the_end_that_show_nothing_are_compared_too() -> None:
    def ended(at: int | None, log_end: int | None = None) -> MadeLog:
        return MadeLog(batches_of(records(0, 60)), ended_at=at, log_end_offset=log_end or at)

    assert compare(ended(100), ended(100)).equal
    assert compare(ended(None), ended(None)).equal
    beyond = difference(ended(98), ended(100))
    assert (beyond.offset, beyond.kind, beyond.source, beyond.destination) == (98, Kind.EXTRA_TAIL, None, None)
    assert beyond.what == "the source ends at offset 98; offsets 98 to 99 are lacking, which show no records"
    short = difference(ended(100), ended(99))
    assert (short.offset, short.kind) == (99, Kind.MISSING_TAIL)
    undecided = difference(ended(98, 120), ended(100))
    assert undecided.what.startswith("the source is not committed beyond offset 98: a transaction is open there; ")
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
    assert (found.offset, found.kind) == (3, Kind.FILLER)
    assert found.source
    assert found.destination
    # where the source has a hole, and where it no longer reaches back to
    for floor in (0, 10):
        found = difference(at_source(10, floor), at_destination(*range(10)))
        assert (found.offset, found.kind, found.source) == (0, Kind.FILLER, None)
        assert "filler" in found.what
    assert compare(at_destination(3), at_destination(3)).equal
    own = [replace(FILLER, offset=0, value=b"an application's"), *records(1, 100)]
    assert difference(records(0, 100), own).kind is Kind.CONTENT


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


def messages(log: Iterable[Record], magic: int, codec: str = "none", append_time: int | None = None) -> bytes:
    """Return records in message format 0 or 1, as one producer sent them."""
    visible = tuple(VisibleRecord(one.offset, one.timestamp, one.key, one.value) for one in log)
    return encode(
        LogBatch(visible[0].offset, visible[-1].offset, visible, 0, magic, codec=codec, append_time=append_time)
    )


def old_records(start: int, end: int, magic: int = 1) -> list[Record]:
    """Return records as formats without headers, and without timestamps in format 0, can hold them."""
    changes = {"headers": ()} if magic else {"headers": (), "timestamp": -1}
    return [record(offset, **changes) for offset in range(start, end)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize("magic", [0, 1])
class TestOldMessageFormats:
    """They are shown as consumers are shown them, and so are equal to what they were converted to."""

    def old(self, magic: int, codec: str) -> MadeLog:
        log = old_records(0, 60, magic)
        # of a wrapper that begins with offset 20 the cleaner has left every third message
        parts = (log[:20], log[20:40:3], log[40:])
        return MadeLog([*(bytearray(messages(part, magic, codec)) for part in parts), *batches_of(records(60, 100))])

    def converted(self, magic: int) -> list[Record]:
        log = old_records(0, 60, magic)
        return [*log[:20], *log[20:40:3], *log[40:], *records(60, 100)]

    def test_equal(self, magic: int, codec: str) -> None:
        old, new = self.old(magic, codec), self.converted(magic)
        found = compare(old, new)
        assert found.equal
        assert found.records == len(new) == 87
        assert found.size_in_bytes == sum(map(len, old.stored))
        assert compare(MadeLog(batches_of(new)), old).equal
        assert compare(old, old).equal

    def test_both_sides_are_old(self, magic: int, codec: str) -> None:
        log = [Record(offset, -1 if magic == 0 else 5, b"k", b"v") for offset in range(3)]
        changed = [*log[:1], replace(log[1], value=b"w"), log[2]]
        one, other = (MadeLog([bytearray(messages(each, magic, codec))]) for each in (log, changed))
        assert compare(one, one, end=3).equal
        assert difference(one, other, end=3).offset == 1

    @pytest.mark.parametrize("changes", [{"timestamp": 0}, {"key": None}, {"value": b""}, {"headers": (("h", b""),)}])
    def test_one_differing_record(self, magic: int, codec: str, changes: dict[str, object]) -> None:
        new = self.converted(magic)
        for index in (0, 5, 20, 22, 46):
            changed = [replace(one, **changes) if one is new[index] else one for one in new]  # type: ignore[arg-type]
            found = difference(self.old(magic, codec), changed)
            assert (found.offset, found.kind) == (new[index].offset, Kind.CONTENT)
            assert found.source
            assert found.source.timestamp == new[index].timestamp

    def test_a_record_less_and_one_too_many(self, magic: int, codec: str) -> None:
        new = self.converted(magic)
        found = difference(self.old(magic, codec), [one for one in new if one.offset != 23])
        assert (found.offset, found.kind) == (23, Kind.MISSING)
        extra = sorted([*new, old_records(24, 25, magic)[0]], key=lambda one: one.offset)
        found = difference(self.old(magic, codec), extra)
        assert (found.offset, found.kind) == (24, Kind.EXTRA)

    @pytest.mark.parametrize(("start", "end"), [(0, 30), (30, 45), (7, 8), (22, 23), (20, 24), (58, 64)])
    def test_a_range_begins_and_ends_within_a_wrapper(self, magic: int, codec: str, start: int, end: int) -> None:
        new = self.converted(magic)
        found = compare(self.old(magic, codec), new, start, end)
        assert found.equal
        assert found.records == sum(start <= one.offset < end for one in new)
        for one in (one for one in new if one.offset in (start, end - 1)):
            changed = [replace(other, value=b"x") if other is one else other for other in new]
            assert difference(self.old(magic, codec), changed, start, end).offset == one.offset

    def test_one_that_rotted(self, magic: int, codec: str) -> None:
        """All that may be in it is not compared; of a wrapper nobody knows where it begins."""
        rotten = self.old(magic, codec)
        rotten.stored[1][-1] ^= 1
        found = difference(rotten, self.converted(magic))
        assert (found.offset, found.kind) == (36 if codec == "none" else 20, Kind.CORRUPT)
        assert "the message at offset 38: its checksum is" in found.what
        assert compare(rotten, self.converted(magic), end=20).equal


def test_append_time_of_a_wrapper_is_that_of_all_its_messages() -> None:
    old = MadeLog([bytearray(messages(old_records(0, 10), 1, "gzip", append_time=1_800_000_000_000))])
    assert compare(old, [replace(one, timestamp=1_800_000_000_000) for one in old_records(0, 10)], end=10).equal
    found = difference(old, old_records(0, 10), end=10)
    assert found.what == f"the timestamp is 1800000000000 at the source, {record(0).timestamp} at the destination"


class TestUnknownFormats:
    """What cannot be read is no difference; what lies before it is compared."""

    def unknown(self, what: str) -> MadeLog:
        """Return a log whose batch from 50 to 59 is of this kind."""
        if what == "format":
            batch = stamped(make_batch(records(50, 60)), magic=3)
        elif what == "codec":
            batch = stamped(make_batch(records(50, 60)), attributes=5)
        else:
            batch = bytearray(messages(old_records(50, 60), 1, "gzip"))
            batch[17] = 4
            batch[12:16] = zlib.crc32(batch[16:]).to_bytes(4)
        return MadeLog([*batches_of(records(0, 50)), batch, *batches_of(records(60, 100))])

    @pytest.mark.parametrize(
        ("what", "message"),
        [
            ("format", "the batch at offset 50 has message format 3"),
            ("codec", "the batch at offset 50 has the unknown compression type 5"),
            ("old codec", "the message at offset 59, of format 1, has the unknown compression type 4"),
        ],
    )
    def test_they_cannot_be_compared(self, what: str, message: str) -> None:
        with pytest.raises(UnknownFormatError) as caught:
            compare(self.unknown(what), records(0, 100))
        assert caught.value.offset == 50
        assert str(caught.value) == f"the source cannot be read from offset 50 on: {message}"
        assert caught.value.reason is Reason.UNSUPPORTED_MESSAGE_FORMAT
        assert caught.value.hint
        assert pickle.loads(pickle.dumps(caught.value)).offset == 50
        with pytest.raises(UnknownFormatError, match="the destination cannot be read"):
            compare(records(0, 100), self.unknown(what))

    @pytest.mark.parametrize("what", ["format", "codec", "old codec"])
    def test_what_differs_before_them_is_told(self, what: str) -> None:
        assert compare(self.unknown(what), records(0, 100), end=50).equal
        log = self.unknown(what)
        changed = [record(one.offset, value=b"x") if one.offset == 49 else one for one in records(0, 100)]
        assert difference(log, changed).offset == 49
        # nothing stands from 45 to 49
        log.stored[4] = make_batch(records(40, 45))
        lacking = [one for one in records(0, 100) if not 45 <= one.offset < 48]
        if what == "codec":
            assert difference(log, lacking).offset == 48
        else:  # or does it? nobody knows where such a batch begins
            with pytest.raises(UnknownFormatError, match="from offset 45 on"):
                compare(log, lacking)

    def test_compacted_topics_are_searched_no_further(self) -> None:
        log = self.unknown("codec")
        log.stored[0] = make_batch([record(i, key=b"once") if i == 3 else record(i) for i in range(10)])
        log.compacted = True
        lacking = [one for one in records(0, 100) if one.offset != 3]
        with pytest.raises(UnknownFormatError):
            compare(log, MadeLog(batches_of(lacking), compacted=True))
        # what is missing at 3 may have been deleted by something that cannot be read; the difference is one in any case
        differing = [record(one.offset, value=b"x") if one.offset == 9 else one for one in lacking]
        found = difference(log, MadeLog(batches_of(differing), compacted=True))
        assert (found.offset, found.kind) == (9, Kind.CONTENT)
        whole = MadeLog([log.stored[0], *batches_of(records(10, 100))], compacted=True)
        found = difference(whole, MadeLog(batches_of(differing), compacted=True))
        assert (found.offset, found.kind) == (3, Kind.MISSING)


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

    def test_what_supersedes_does_not_differ_itself(self) -> None:
        """Every record stands one offset further on; the first ones of their keys stand at their own by chance."""
        log = [record(i, key=b"k%d" % i) for i in range(20)]
        shifted = [*log[:8], *(replace(one, offset=one.offset + 1) for one in log[8:19])]
        found = difference(self.compacted(log), self.compacted(shifted), end=20)
        assert (found.offset, found.kind, found.destination) == (8, Kind.MISSING, None)
        found = difference(self.compacted(shifted), self.compacted(log), end=20)
        assert (found.offset, found.kind, found.source) == (8, Kind.EXTRA, None)

    def test_a_record_whose_key_still_follows_may_be_missing_before_a_difference(self) -> None:
        log = [record(i, key=b"same" if i in (3, 8) else b"k%d" % i) for i in range(20)]
        changed = [replace(one, timestamp=5) if one.offset == 8 else one for one in log if one.offset != 3]
        assert difference(self.compacted(log), self.compacted(changed), end=20).offset == 8

    def test_one_record_at_another_offset_is_told_where_it_should_be(self) -> None:
        """A key's last record has moved into a hole: missing here, standing alone there."""
        log = [record(i, key=b"k%d" % i) for i in range(20) if i != 12]
        for start, to in ((11, 12), (13, 12)):
            moved = sorted((replace(one, offset=to) if one.offset == start else one for one in log), key=_offset)
            # a range that ends with offset 12 takes what stands at 13 for a later record
            for end in (20, 13) if start == 11 else (20,):
                found = difference(self.compacted(log), self.compacted(moved), end=end)
                wanted = (11, Kind.MISSING) if start == 11 else (12, Kind.EXTRA)
                assert (found.offset, found.kind) == wanted, end
                found = difference(self.compacted(moved), self.compacted(log), end=end)
                wanted = (11, Kind.EXTRA) if start == 11 else (12, Kind.MISSING)
                assert (found.offset, found.kind) == wanted, end

    def test_another_record_of_the_key_supersedes_though_it_stands_alone(self) -> None:
        log = [record(i, key=b"k%d" % i) for i in range(20) if i != 12]
        other = sorted([*(one for one in log if one.offset != 11), record(12, key=b"k11", value=b"x")], key=_offset)
        found = difference(self.compacted(log), self.compacted(other), end=20)
        assert (found.offset, found.kind) == (12, Kind.EXTRA)

    def test_the_same_content_written_twice_is_superseded_all_the_same(self) -> None:
        """Both cleaners have been there, each up to another record of the key; the last one is on both sides."""
        twice = [record(i, key=b"same", value=b"", headers=(), timestamp=7) for i in range(3)]
        log = [*twice, *(record(i, key=b"k%d" % i) for i in range(3, 10))]
        later = [*log[:1], *log[2:]]
        assert compare(self.compacted(log[1:]), self.compacted(later), end=10).equal
        assert compare(self.compacted(later), self.compacted(log[1:]), end=10).equal
        gone = difference(self.compacted(log[1:]), self.compacted([*log[:1], *log[3:]]), end=10)
        assert (gone.offset, gone.kind) == (0, Kind.EXTRA)

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
        monkeypatch.setattr("kmirror.engine.compare.logs._MOST_WAITING", most)
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
