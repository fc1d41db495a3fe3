"""Stored batches of every kind become dense batches and holes that show the same records at the same offsets."""

from __future__ import annotations

import gzip
import random
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from kafka.record.default_records import DefaultRecordBatch

from kmirror.cluster.protocol.batch import (
    BATCH_OVERHEAD,
    BatchHeader,
    CorruptBatchError,
    UnsupportedFormatError,
    batch_headers,
    crc_of,
)
from kmirror.cluster.protocol.batch_records import Record, read_records
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.isolation import BatchKind, Isolation
from kmirror.cluster.protocol.pieces import Hole, Run, pieces
from kmirror.errors import Reason
from tests.support.log_batches import ABORT, COMMIT, LogBatch, VisibleRecord, control_record, encode
from tests.support.logs import LONG_SEEDS, BuiltLog, build_log

CODECS = ["none", "gzip", "snappy", "snappy-raw", "lz4", "zstd"]
ALL = 1 << 30
SECOND = 1_700_000_000_000
Piece = Run | Hole


def record(offset: int, size: int = 40) -> VisibleRecord:
    """Return a record unlike its neighbours, with everything an application may write."""
    chance = random.Random(offset)
    key = None if offset % 7 == 0 else b"key-%d" % offset
    value = None if offset % 5 == 0 else chance.randbytes(size // 4) * 4
    headers = (("name", b"%d" % offset), ("null", None), ("", b"")) if offset % 3 else ()
    return VisibleRecord(offset, SECOND + chance.randrange(-(10**7), 10**7), key, value, headers)


def batch(offsets: Sequence[int], base: int = 100, last: int = 109, *, size: int = 40, **changes: object) -> LogBatch:
    """Return a stored batch that takes `base` to `last` and has records at `offsets`."""
    records = tuple(record(offset, size) for offset in offsets)
    made = LogBatch(base, last, records, max((r.timestamp for r in records), default=SECOND))
    return replace(made, **changes)  # type: ignore[arg-type]


def cut(stored: LogBatch | bytes, start: int = 0, *, visible: bool = True, max_bytes: int = ALL) -> list[Piece]:
    data = encode(stored) if isinstance(stored, LogBatch) else stored
    return pieces(memoryview(bytearray(data)), start=start, visible=visible, max_bytes=max_bytes)


def span(piece: Piece) -> tuple[str, int, int]:
    return type(piece).__name__, piece.base_offset, piece.next_offset


def header_of(run: Run) -> BatchHeader:
    (header,) = batch_headers(run.data)
    return header


def read(found: Sequence[Piece]) -> list[VisibleRecord]:
    """Read all runs, and check that each is what brokers take."""
    records: list[VisibleRecord] = []
    for run in found:
        if isinstance(run, Hole):
            continue
        header = header_of(run)
        assert not run.data.readonly
        assert (header.base_offset, header.next_offset) == (run.base_offset, run.next_offset)
        assert header.size_in_bytes == len(run.data)
        assert header.crc == crc_of(run.data)
        assert header.magic == 2
        assert not header.has_holes
        assert header.attributes & ~0x07 == 0
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        inside = [visible(one) for one in read_records(run.data, header)]
        assert [one.offset for one in inside] == list(range(run.base_offset, run.next_offset))
        assert header.max_timestamp == run.max_timestamp == max(one.timestamp for one in inside)
        if header.compression_type in {"none", "gzip"}:
            theirs = DefaultRecordBatch(bytes(run.data))
            assert theirs.validate_crc()
            assert [VisibleRecord(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs] == inside
        records += inside
    return records


def visible(one: Record) -> VisibleRecord:
    return VisibleRecord(one.offset, one.timestamp, one.key, one.value, one.headers)


def assert_covers(found: Sequence[Piece], start: int, end: int) -> None:
    """Check that pieces cover a range without a gap, with no hole split in two."""
    if start >= end:
        assert found == []
        return
    assert (found[0].base_offset, found[-1].next_offset) == (start, end)
    for one, other in pairwise(found):
        assert one.next_offset == other.base_offset
        assert not (isinstance(one, Hole) and isinstance(other, Hole))


def codec_of(name: str) -> str:
    return name.removesuffix("-raw")


# -- a batch stays as it is where it can ------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_a_dense_batch_is_changed_in_its_header_alone_and_in_place(codec: str) -> None:
    stored = batch(range(100, 110), codec=codec, producer_id=7, producer_epoch=1, base_sequence=5, transaction=1)
    buffer = bytearray(b"before" + encode(stored) + b"behind")
    before = bytes(buffer)
    (run,) = pieces(memoryview(buffer)[6:-6], start=100, max_bytes=ALL)
    assert span(run) == ("Run", 100, 110)
    assert isinstance(run, Run)
    assert run.data.obj is buffer
    assert read([run]) == list(stored.visible)
    changed = {i - 6 for i in range(len(buffer)) if buffer[i] != before[i]}
    assert changed <= {*range(17, 23), *range(43, 57)}  # CRC and attributes, producer
    assert header_of(run).compression_type == codec_of(codec)


def test_bytes_that_cannot_be_written_to_are_copied() -> None:
    data = encode(batch(range(100, 110)))
    (run,) = pieces(memoryview(data), start=100, max_bytes=ALL)
    assert read([run]) == [record(offset) for offset in range(100, 110)]


def test_a_delete_horizon_changes_no_timestamp() -> None:
    stored = batch(range(100, 110), delete_horizon_ms=SECOND + 86_400_000)
    (run,) = cut(stored, 100)
    assert read([run]) == list(stored.records)
    stored = batch([101, 104, 105], delete_horizon_ms=SECOND + 86_400_000, codec="zstd")
    assert read(cut(stored, 100)) == list(stored.records)


# -- where it begins --------------------------------------------------------------------------------------------------


def test_offsets_before_a_batch_are_a_hole() -> None:
    found = cut(batch(range(100, 110)), 40)
    assert [span(piece) for piece in found] == [("Hole", 40, 100), ("Run", 100, 110)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("start", [101, 105, 109])
def test_records_before_the_start_are_omitted(codec: str, start: int) -> None:
    found = cut(batch(range(100, 110), codec=codec), start)
    assert [span(piece) for piece in found] == [("Run", start, 110)]
    assert read(found) == [record(offset) for offset in range(start, 110)]


@pytest.mark.parametrize("start", [110, 111, 5000])
def test_behind_a_batch_nothing_of_it_is_left(start: int) -> None:
    assert cut(batch(range(100, 110)), start) == []
    assert cut(batch([]), start) == []
    assert cut(batch(range(100, 110)), start, visible=False) == []


# -- what is not there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_a_compacted_batch_becomes_runs_and_holes(codec: str) -> None:
    stored = batch([101, 102, 105, 108], codec=codec)
    found = cut(stored, 90)
    assert [span(piece) for piece in found] == [
        ("Hole", 90, 101),
        ("Run", 101, 103),
        ("Hole", 103, 105),
        ("Run", 105, 106),
        ("Hole", 106, 108),
        ("Run", 108, 109),
        ("Hole", 109, 110),
    ]
    assert read(found) == list(stored.records)
    assert {header_of(run).compression_type for run in found if isinstance(run, Run)} == {codec_of(codec)}


def test_the_bytes_of_records_stay() -> None:
    """Only length and offset delta are rewritten."""
    stored = batch([103], size=16)
    (_, run, _) = cut(stored, 100)
    assert isinstance(run, Run)
    before, after = encode(stored)[BATCH_OVERHEAD:], bytes(run.data[BATCH_OVERHEAD:])
    assert len(before) == len(after)
    assert [i for i in range(len(before)) if before[i] != after[i]] == [3]  # the offset delta


@pytest.mark.parametrize("offsets", [[], [100], [109]])
def test_few_records_or_none_are_left(offsets: list[int]) -> None:
    found = cut(batch(offsets), 100)
    assert_covers(found, 100, 110)
    assert read(found) == [record(offset) for offset in offsets]


def test_an_emptied_batch_is_a_hole_whatever_codec_it_names() -> None:
    empty = bytearray(encode(batch([])))
    struct.pack_into(">h", empty, 21, 0x04 | 0x10)
    struct.pack_into(">I", empty, 17, crc_of(memoryview(empty)))
    assert cut(bytes(empty), 95) == [Hole(95, 110)]


@pytest.mark.parametrize("start", [95, 100, 104])
def test_an_invisible_batch_is_one_hole(start: int) -> None:
    assert cut(batch(range(100, 110), transaction=1, producer_id=7), start, visible=False) == [Hole(start, 110)]
    marker = LogBatch(109, 109, (control_record(109, 5, COMMIT, 0),), 5, transaction=1, marker=COMMIT)
    assert cut(marker, start) == [Hole(start, 110)]


def test_large_offset_deltas_shrink_and_grow() -> None:
    offsets = [*range(100, 300), *range(20_000, 20_100), 90_000]
    stored = batch(offsets, last=100_000)
    found = cut(stored, 100)
    assert_covers(found, 100, 100_001)
    assert read(found) == list(stored.records)


# -- LogAppendTime ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("offsets", [range(100, 110), [101, 104]])
def test_records_with_log_append_time_keep_the_timestamp_they_show(codec: str, offsets: Sequence[int]) -> None:
    stored = batch(offsets, codec=codec, append_time=SECOND + 77)
    found = cut(stored, 100)
    assert read(found) == list(stored.visible)
    assert {one.timestamp for one in read(found)} == {SECOND + 77}


# -- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("max_bytes", [3000, 9000, 50_000])
def test_a_run_that_is_too_large_is_split(codec: str, max_bytes: int) -> None:
    stored = batch(range(100, 200), last=199, size=2000, codec=codec)
    found = cut(stored, 100, max_bytes=max_bytes)
    assert_covers(found, 100, 200)
    assert read(found) == list(stored.records)
    assert max(len(piece.data) for piece in found if isinstance(piece, Run)) <= max_bytes
    if len(encode(stored)) > max_bytes and codec != "snappy":  # which is smaller in one block than in several
        assert len(found) > 1
    assert len(found) <= 3 * len(encode(stored)) // max_bytes + 2


def test_a_record_that_is_too_large_stays_alone() -> None:
    records = (record(100), record(101)._replace(value=bytes(range(256)) * 40), record(102))
    found = cut(LogBatch(100, 102, records, max(r.timestamp for r in records)), 100, max_bytes=500)
    assert [span(piece) for piece in found] == [("Run", 100, 101), ("Run", 101, 102), ("Run", 102, 103)]
    assert read(found) == list(records)


def test_a_limit_below_a_header_leaves_every_record_alone() -> None:
    assert len(cut(batch(range(100, 110)), 100, max_bytes=10)) == 10


# -- old formats ------------------------------------------------------------------------------------------------------


def old(magic: int, offsets: Sequence[int], codec: str = "none", **changes: object) -> LogBatch:
    records = tuple(
        VisibleRecord(o, -1 if magic == 0 else record(o).timestamp, record(o).key, record(o).value) for o in offsets
    )
    made = LogBatch(offsets[0], offsets[-1], records, max(r.timestamp for r in records), magic=magic, codec=codec)
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["gzip", "snappy", "snappy-raw", "lz4"])
def test_wrapped_messages_of_old_formats_become_batches(magic: int, codec: str) -> None:
    stored = old(magic, [100, 101, 102, 105, 109], codec)
    found = cut(stored, 97)
    assert [span(piece) for piece in found] == [
        ("Hole", 97, 100),
        ("Run", 100, 103),
        ("Hole", 103, 105),
        ("Run", 105, 106),
        ("Hole", 106, 109),
        ("Run", 109, 110),
    ]
    assert read(found) == list(stored.records)
    assert {header_of(run).compression_type for run in found if isinstance(run, Run)} == {codec_of(codec)}
    assert read(cut(stored, 102)) == list(stored.records[2:])
    assert cut(stored, 97, visible=False) == [Hole(97, 110)]
    assert cut(stored, 110) == []


@pytest.mark.parametrize("magic", [0, 1])
def test_a_plain_message_of_an_old_format_becomes_a_batch(magic: int) -> None:
    for offset in (100, 105):  # one of them without a value
        stored = old(magic, [offset])
        found = cut(stored, offset)
        assert [span(piece) for piece in found] == [("Run", offset, offset + 1)]
        assert read(found) == list(stored.records)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_old_messages_with_log_append_time_keep_the_timestamp_they_show(codec: str) -> None:
    stored = old(1, [100, 101] if codec == "gzip" else [100], codec, append_time=SECOND + 5)
    assert read(cut(stored, 100)) == list(stored.visible)


def test_absolute_offsets_inside_a_wrapper_of_format_1_are_understood() -> None:
    """Some writers left them absolute; the last one then is the wrapper's own."""
    relative, absolute = old(1, [100, 101], "gzip"), old(0, [100, 101], "gzip")
    assert (
        [one.offset for one in read(cut(relative, 0))] == [one.offset for one in read(cut(absolute, 0))] == [100, 101]
    )


def test_every_byte_of_an_old_message_is_checked() -> None:
    for stored in (encode(old(1, [100])), encode(old(0, [100, 101], "gzip"))):
        for position in range(12, len(stored)):
            broken = bytearray(stored)
            broken[position] ^= 0x10
            if broken[16] > 1:
                continue  # another format, by what it says
            with pytest.raises(CorruptBatchError, match="offset 10"):
                cut(bytes(broken))


def test_an_old_message_cut_off_anywhere_is_corrupt() -> None:
    stored = encode(old(1, [100, 101], "gzip"))
    for size in range(len(stored)):
        with pytest.raises(CorruptBatchError):
            cut(stored[:size])


def with_right_checksum(stored: bytearray) -> bytes:
    struct.pack_into(">I", stored, 12, zlib.crc32(stored[16:]))
    return bytes(stored)


def test_a_codec_that_old_formats_do_not_have_is_unsupported() -> None:
    stored = bytearray(encode(old(1, [100, 101], "gzip")))
    stored[17] = 4
    with pytest.raises(UnsupportedFormatError, match="compression type 4") as caught:
        cut(with_right_checksum(stored))
    assert caught.value.reason is Reason.UNSUPPORTED_MESSAGE_FORMAT


def wrapper(value: bytes | None) -> bytes:
    """Return a gzip wrapper of format 1 at offset 101 with this content."""
    content = struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value
    body = struct.pack(">bbq", 1, 1, SECOND) + struct.pack(">i", -1) + content
    return struct.pack(">qiI", 101, 4 + len(body), zlib.crc32(body)) + body


def test_a_wrapper_in_a_wrapper_and_one_without_content_are_corrupt() -> None:
    plain = encode(old(1, [0])) + encode(old(1, [1]))
    assert [one.offset for one in read(cut(wrapper(gzip.compress(plain)), 100))] == [100, 101]
    inside = encode(old(1, [0, 1], "gzip"))
    for value in (None, gzip.compress(b""), gzip.compress(inside), gzip.compress(plain[:-1]), b"no gzip"):
        with pytest.raises(CorruptBatchError, match="offset 101"):
            cut(wrapper(value))
    for others in ([1, 0], [1, 1]):  # offsets that do not grow
        with pytest.raises(CorruptBatchError, match="do not grow"):
            cut(wrapper(gzip.compress(b"".join(encode(old(1, [offset])) for offset in others))))


# -- hostile bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_every_byte_under_the_checksum_is_checked(codec: str) -> None:
    stored = encode(batch([101, 104, 105], codec=codec))
    for position in range(17, len(stored)):
        broken = bytearray(stored)
        broken[position] ^= 0x10
        with pytest.raises(CorruptBatchError, match="offset 100"):
            cut(bytes(broken))


def recrc(stored: bytearray) -> bytes:
    struct.pack_into(">I", stored, 17, crc_of(memoryview(stored)))
    return bytes(stored)


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_under_a_right_checksum_is_records_or_corrupt(codec: str) -> None:
    chance = random.Random(4)
    stored = encode(batch([101, 104, 105], codec=codec))
    corrupt = 0
    for _ in range(400):
        broken = bytearray(stored)
        for _ in range(chance.randrange(1, 4)):
            broken[chance.randrange(BATCH_OVERHEAD, len(broken))] = chance.randrange(256)
        try:
            assert_covers(cut(recrc(broken), 100), 100, 110)
        except CorruptBatchError:
            corrupt += 1
    assert corrupt > 50


@pytest.mark.parametrize("size", [0, 11, 16, 17, 60, 61, 100])
def test_a_batch_that_is_cut_off_is_corrupt(size: int) -> None:
    with pytest.raises(CorruptBatchError):
        cut(encode(batch([101, 104, 105]))[:size])


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [(57, ">i", -1), (57, ">i", 11), (57, ">i", 4), (57, ">i", 2), (23, ">i", -1), (23, ">i", 3)],
    ids=[
        "count below 0",
        "more records than offsets",
        "a record too few",
        "one too many",
        "no offset",
        "fewer offsets",
    ],
)
def test_numbers_that_do_not_fit_are_corrupt(position: int, layout: str, value: int) -> None:
    stored = bytearray(encode(batch([101, 104, 105])))
    struct.pack_into(layout, stored, position, value)
    with pytest.raises(CorruptBatchError):
        cut(recrc(stored), 0)


def test_what_a_newer_kafka_may_bring_is_unsupported() -> None:
    stored = bytearray(encode(batch([101, 104])))
    struct.pack_into(">h", stored, 21, 6)
    with pytest.raises(UnsupportedFormatError, match="compression type 6") as caught:
        cut(recrc(stored), 0)
    assert caught.value.reason is Reason.UNSUPPORTED_MESSAGE_FORMAT
    stored[16] = 3
    with pytest.raises(UnsupportedFormatError, match="message format 3"):
        cut(bytes(stored))


# -- whole logs -------------------------------------------------------------------------------------------------------


def aborted_transactions(log: BuiltLog) -> list[AbortedTransaction]:
    """Return what a broker would list: each aborted transaction of which the log still has records."""
    aborted = {one.transaction for one in log.batches if one.marker == ABORT}
    first: dict[int | None, AbortedTransaction] = {}
    for one in log.batches:
        if one.transaction in aborted and one.marker is None:
            first.setdefault(one.transaction, AbortedTransaction(one.producer_id, one.base_offset))
    found = list(first.values())
    random.Random(log.seed).shuffle(found)
    return found


def copied(log: BuiltLog, max_bytes: int) -> tuple[list[Piece], int]:
    """Take a built log apart, up to its last stable offset; return the pieces and where they end."""
    isolation = Isolation(aborted_transactions(log))
    found: list[Piece] = []
    position = log.log_start_offset
    for base_offset in sorted(log.segments):
        segment = memoryview(bytearray(log.segments[base_offset]))
        for header in batch_headers(segment):
            if header.base_offset >= log.last_stable_offset:
                return found, position
            stored = segment[header.position : header.position + header.size_in_bytes]
            visible = isolation.kind(stored) is BatchKind.DATA
            part = pieces(stored, start=position, visible=visible, max_bytes=max_bytes)
            if part:
                assert part[0].base_offset == position
                position = part[-1].next_offset
            found += part
    return found, position


@pytest.mark.slow
def test_random_logs_of_everything_a_broker_may_hold() -> None:
    for seed in LONG_SEEDS:
        log = build_log(seed)
        max_bytes = random.Random(seed).choice([ALL, 1000, 20_000])
        found, end = copied(log, max_bytes)
        for one, other in pairwise(found):
            assert one.next_offset == other.base_offset
        assert read(found) == list(log.expected), seed
        assert end <= log.last_stable_offset
        for run in found:
            if isinstance(run, Run):
                assert len(run.data) <= max_bytes or run.next_offset == run.base_offset + 1
