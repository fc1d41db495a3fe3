"""Records inside batches: made and read, against a second library's reader and writer."""

from __future__ import annotations

import random
import struct

import cramjam
import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kio.records.readers import read_batch as read_by_kio

from kmirror.cluster.protocol.batch import BATCH_OVERHEAD, CorruptBatchError, batch_headers, crc_of
from kmirror.cluster.protocol.batch_records import Record, compress, decompress, make_batch, read_records

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
SECOND = 1_700_000_000_000

#: What an application may write: nulls, nothing, much, any bytes, timestamps in any order.
RECORDS = [
    Record(100, SECOND, b"key", b"value"),
    Record(101, SECOND + 5000, None, b"no key"),
    Record(102, SECOND - 9000, b"tombstone", None),
    Record(103, SECOND, None, None),
    Record(104, SECOND, b"", b""),
    Record(105, SECOND + 1, b"k", b"v", (("name", b"content"), ("name", b"again"), ("null", None), ("", b""))),
    Record(106, SECOND, bytes(range(256)), b"x" * 100_000, (("ключ", b"\xff"),)),
]


def read(batch: bytes | bytearray) -> list[Record]:
    view = memoryview(batch)
    return [record for header in batch_headers(view) for record in read_records(view, header)]


def read_by_kafka_python(batch: bytes | bytearray) -> list[Record]:
    decoded = DefaultRecordBatch(batch)
    assert decoded.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in decoded]


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_made_is_read_again(codec: str) -> None:
    batch = make_batch(RECORDS, compression_type=codec, leader_epoch=4)
    (header,) = batch_headers(memoryview(batch))
    assert (header.base_offset, header.next_offset, header.record_count) == (100, 107, 7)
    assert (header.base_timestamp, header.max_timestamp) == (SECOND, SECOND + 5000)
    assert (header.partition_leader_epoch, header.compression_type, header.has_holes) == (4, codec, False)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert crc_of(memoryview(batch)) == header.crc
    assert read(batch) == RECORDS


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_what_is_made_is_read_by_a_second_library(codec: str) -> None:
    assert read_by_kafka_python(make_batch(RECORDS, compression_type=codec)) == RECORDS


def test_what_is_made_is_read_by_a_third_library() -> None:
    batch = bytes(make_batch(RECORDS))
    decoded, size = read_by_kio(batch, 0)
    assert size == len(batch)
    assert (decoded.base_offset, decoded.last_offset_delta, decoded.max_timestamp) == (100, 6, SECOND + 5000)
    # kio rounds timestamps down to whole seconds
    assert [
        (
            r.offset,
            int(r.timestamp.timestamp()),
            r.key,
            r.value,
            tuple(((h.key or b"").decode(), h.value) for h in r.headers),
        )
        for r in decoded.records
    ] == [(r.offset, r.timestamp // 1000, r.key, r.value, r.headers) for r in RECORDS]


@pytest.mark.parametrize("codec", [0, 1])
def test_what_a_second_library_makes_is_read(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, False, 9, 0, 5, 1 << 30)
    for r in RECORDS:
        builder.append(r.offset - 100, r.timestamp, r.key, r.value, list(r.headers))
    batch = struct.pack(">q", 100) + bytes(builder.build())[8:]
    assert read(batch) == RECORDS == read_by_kafka_python(batch)


def test_random_batches_go_both_ways() -> None:
    rng = random.Random(5)
    for _ in range(200):
        base = rng.choice([0, 1, 1 << 31, (1 << 62) - 500])
        records = [
            Record(
                base + i,
                rng.choice([-1, 0, SECOND, SECOND + rng.randrange(1 << 40)]),
                rng.choice([None, rng.randbytes(rng.randrange(200))]),
                rng.choice([None, rng.randbytes(rng.randrange(20_000))]),
                tuple((f"h{j}", rng.choice([None, rng.randbytes(rng.randrange(9))])) for j in range(rng.randrange(4))),
            )
            for i in range(rng.randrange(1, 9))
        ]
        codec = rng.choice(CODECS)
        batch = make_batch(records, compression_type=codec)
        assert read(batch) == records
        if codec in {"none", "gzip"}:
            assert read_by_kafka_python(batch) == records


def test_a_batch_at_log_append_time_shows_one_timestamp() -> None:
    batch = make_batch(RECORDS)
    struct.pack_into(">h", batch, 21, 0x08)
    assert {r.timestamp for r in read(batch)} == {SECOND + 5000}
    assert {r.timestamp for r in read_by_kafka_python(recrc(batch))} == {SECOND + 5000}


def test_a_compacted_batch_shows_what_is_left() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for delta in (1, 4):
        builder.append(delta, SECOND, b"k", b"v", [])
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, 500)
    struct.pack_into(">i", batch, 23, 6)  # the last offset stays when the last record goes
    (header,) = batch_headers(memoryview(batch))
    assert [r.offset for r in read(batch)] == [501, 504]
    assert (header.next_offset, header.has_holes) == (507, True)


def test_a_batch_without_records_is_read_as_none() -> None:
    # what compaction leaves of a producer's last batch: a header, uncompressed
    empty = make_batch([Record(7, SECOND, None, None)])[:BATCH_OVERHEAD]
    struct.pack_into(">i", empty, 8, BATCH_OVERHEAD - 12)
    struct.pack_into(">i", empty, 57, 0)
    assert read(empty) == []


@pytest.mark.parametrize(
    "records", [[], [Record(1, 0, None, None), Record(3, 0, None, None)], [Record(2, 0, None, None)] * 2]
)
def test_a_batch_is_made_of_consecutive_offsets_only(records: list[Record]) -> None:
    with pytest.raises(ValueError, match="consecutive offsets"):
        make_batch(records)


# -- codecs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 100, 200_000])
def test_each_codec_both_ways(codec: str, size: int) -> None:
    data = random.Random(size).randbytes(size // 2) + b"a" * (size - size // 2)
    assert bytes(decompress(memoryview(compress(data, codec)), codec)) == data


def test_raw_snappy_is_read_too() -> None:
    # a literal of 5 bytes: the length, the tag (length - 1) << 2, the bytes
    assert bytes(decompress(memoryview(b"\x05\x10hello"), "snappy")) == b"hello"


def test_xerial_snappy_of_several_blocks_is_read() -> None:
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for block in (b"\x05\x10hello", b"\x01\x00!"):
        framed += struct.pack(">i", len(block)) + block
    assert bytes(decompress(memoryview(framed), "snappy")) == b"hello!"


@pytest.mark.parametrize("size", [0, 1, 100, 65_536, 65_537, 300_000])
@pytest.mark.parametrize("shrinks", [True, False])
def test_lz4_frames_are_those_of_javas_client(size: int, shrinks: bool) -> None:
    data = (b"to be or not " * (size // 13 + 1))[:size] if shrinks else random.Random(size).randbytes(size)
    frame = compress(data, "lz4")
    assert frame[:7].hex() == "04224d18604082"
    assert frame[-4:] == bytes(4)
    assert bytes(cramjam.lz4.decompress(frame)) == data
    assert bytes(decompress(memoryview(frame), "lz4")) == data


@pytest.mark.parametrize("size", [0, 5000, 300_000])
def test_lz4_frames_of_other_clients_are_read(size: int) -> None:
    data = random.Random(size).randbytes(size // 2) * 2
    frame = bytes(cramjam.lz4.compress(data))
    assert frame[:7] != compress(data, "lz4")[:7]
    assert bytes(decompress(memoryview(frame), "lz4")) == data


@pytest.mark.parametrize("position", range(7, 12))
def test_a_damaged_lz4_frame_is_a_value_error(position: int) -> None:
    frame = bytearray(compress(b"to be or not to be, " * 40, "lz4"))
    frame[position] ^= 0xFF
    with pytest.raises(ValueError, match=r"."):
        decompress(memoryview(frame), "lz4")


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "unknown(6)"])
def test_bytes_of_another_codec_are_a_value_error(codec: str) -> None:
    with pytest.raises(ValueError, match=r"snappy|gzip|lz4|frame|compression|header"):
        decompress(memoryview(b"certainly not compressed at all"), codec)


# -- hostile bytes ----------------------------------------------------------------------------------------------------


def recrc(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc_of(memoryview(batch)))
    return batch


@pytest.mark.parametrize("codec", CODECS)
def test_records_cut_off_anywhere_are_corrupt(codec: str) -> None:
    whole = make_batch([*RECORDS[:5], Record(105, SECOND, b"k", b"v" * 30)], compression_type=codec)
    for size in range(BATCH_OVERHEAD, len(whole)):
        cut = whole[:size]
        struct.pack_into(">i", cut, 8, size - 12)
        with pytest.raises(CorruptBatchError, match="offset 100"):
            read(cut)


@pytest.mark.parametrize("count", [8, 1000, 0x7FFFFFFF])
def test_a_count_larger_than_the_records_is_corrupt(count: int) -> None:
    batch = make_batch(RECORDS)
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(CorruptBatchError):
        read(batch)


def test_a_count_smaller_than_the_records_is_corrupt() -> None:
    batch = make_batch(RECORDS)
    struct.pack_into(">i", batch, 57, 3)
    with pytest.raises(CorruptBatchError, match="left after the last record"):
        read(batch)


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_is_records_or_corrupt(codec: str) -> None:
    rng = random.Random(6)
    whole = make_batch(RECORDS[:6], compression_type=codec)
    corrupt = 0
    for _ in range(500):
        batch = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            batch[rng.randrange(BATCH_OVERHEAD, len(batch))] = rng.randrange(256)
        try:
            read(batch)
        except CorruptBatchError:
            corrupt += 1
    assert corrupt > 100


@pytest.mark.parametrize(
    "section",
    [
        b"\xff" * 11,  # a length of more than ten bytes
        b"\x0e\x00\x00\x00\xff\xff\xff\xff\x0f\x00\x00",  # a key of a thousand million bytes
        b"\x10\x00\x00\x00\x01\x01\x02\x01\x01",  # a header without a name
        b"\x0e\x00\x00\x00\x01\x01\x00\x00",  # longer than its content
        b"\x0c\x00\x00\x00\x01\x01\x01",  # minus one headers
    ],
    ids=["varint", "key", "nameless header", "length", "header count"],
)
def test_a_record_that_cannot_be_is_corrupt(section: bytes) -> None:
    batch = make_batch([Record(100, SECOND, None, None)])[:BATCH_OVERHEAD] + section
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with pytest.raises(CorruptBatchError):
        read(batch)
