"""Logs are compared whatever format their batches have: what Kafka wrote before 0.11, and unknown ones."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.batch import LOG_APPEND_TIME
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.engine.compare.difference import DifferenceKind
from kmirror.engine.compare.visible_log import UnknownFormatError
from kmirror.errors import Reason
from tests.support.comparing import CODECS, compare, difference, record, records
from tests.support.log_batches import LogBatch, VisibleRecord, encode
from tests.support.made_logs import MadeLog, batches_of, stamped


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
            assert (found.offset, found.kind) == (new[index].offset, DifferenceKind.CONTENT)
            assert found.source
            assert found.source.timestamp == new[index].timestamp

    def test_a_record_less_and_one_too_many(self, magic: int, codec: str) -> None:
        new = self.converted(magic)
        found = difference(self.old(magic, codec), [one for one in new if one.offset != 23])
        assert (found.offset, found.kind) == (23, DifferenceKind.MISSING)
        extra = sorted([*new, old_records(24, 25, magic)[0]], key=lambda one: one.offset)
        found = difference(self.old(magic, codec), extra)
        assert (found.offset, found.kind) == (24, DifferenceKind.EXTRA)

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
        """All that may be in it is not compared; where a wrapper begins is unknown."""
        rotten = self.old(magic, codec)
        rotten.stored[1][-1] ^= 1
        found = difference(rotten, self.converted(magic))
        assert (found.offset, found.kind) == (36 if codec == "none" else 20, DifferenceKind.CORRUPT)
        assert "the message at offset 38: its checksum is" in found.what
        assert compare(rotten, self.converted(magic), end=20).equal


def test_append_time_of_a_wrapper_is_that_of_all_its_messages() -> None:
    old = MadeLog([bytearray(messages(old_records(0, 10), 1, "gzip", append_time=1_800_000_000_000))])
    assert compare(old, [replace(one, timestamp=1_800_000_000_000) for one in old_records(0, 10)], end=10).equal
    found = difference(old, old_records(0, 10), end=10)
    assert found.what == f"the timestamp is 1800000000000 at the source, {record(0).timestamp} at the destination"


class TestUnknownFormats:
    """What cannot be read is no difference; what precedes it is compared."""

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
    def test_what_differs_before_them_is_reported(self, what: str) -> None:
        assert compare(self.unknown(what), records(0, 100), end=50).equal
        log = self.unknown(what)
        changed = [record(one.offset, value=b"x") if one.offset == 49 else one for one in records(0, 100)]
        assert difference(log, changed).offset == 49
        # nothing is from 45 to 49
        log.stored[4] = make_batch(records(40, 45))
        lacking = [one for one in records(0, 100) if not 45 <= one.offset < 48]
        if what == "codec":
            assert difference(log, lacking).offset == 48
        else:  # or does it? where such a batch begins is unknown
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
        assert (found.offset, found.kind) == (9, DifferenceKind.CONTENT)
        whole = MadeLog([log.stored[0], *batches_of(records(10, 100))], compacted=True)
        found = difference(whole, MadeLog(batches_of(differing), compacted=True))
        assert (found.offset, found.kind) == (3, DifferenceKind.MISSING)


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
    assert (found.offset, found.kind) == (40, DifferenceKind.CORRUPT)
    squeezed = [*stored[:4], stamped(stored[4], attributes=CODECS.index("gzip")), *stored[5:]]
    found = difference(MadeLog(stored), MadeLog(squeezed))
    assert (found.offset, found.kind) == (40, DifferenceKind.CORRUPT)
