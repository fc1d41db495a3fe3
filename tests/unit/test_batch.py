"""Walking and guarding record batches, against batches and checksums that a second library makes."""

from __future__ import annotations

import pickle
import random
import struct
from typing import Any

import pytest
from kafka.record._crc32c import crc as slow_crc32c  # pure Python: shares no code with ours
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kmirror.cluster.protocol.batch import (
    BATCH_OVERHEAD,
    HEADER,
    PRODUCER_POSITION,
    BatchHeader,
    CorruptBatchError,
    batch_headers,
    crc_of,
    set_producer,
)

NONE, GZIP = 0, 1


def foreign_batch(
    count: int, *, codec: int = NONE, base_offset: int = 0, producer: tuple[int, int, int] = (-1, -1, -1)
) -> bytes:
    """Make a batch with the second library, as it would lie in a log."""
    builder = DefaultRecordBatchBuilder(2, codec, False, *producer, 1 << 30)
    for delta in range(count):
        builder.append(delta, 1_000_000 + delta * 7, b"key" * delta, b"value" * 20, [("h", None), ("", b"x")])
    batch = bytes(builder.build())
    return struct.pack(">q", base_offset) + batch[8:12] + struct.pack(">i", 5) + batch[16:]


def headers_of(data: bytes | bytearray) -> list[BatchHeader]:
    return list(batch_headers(memoryview(data)))


def seen(batch: Any) -> tuple[object, ...]:
    """Name what both libraries say of a batch."""
    return (
        batch.base_offset,
        batch.size_in_bytes,
        batch.magic,
        batch.crc,
        batch.attributes,
        batch.last_offset_delta,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.next_offset,
        batch.is_transactional,
    )


@pytest.mark.parametrize("codec", [NONE, GZIP])
@pytest.mark.parametrize("producer", [(-1, -1, -1), (1 << 62, 3, 0x7FFFFFFF)])
def test_a_batch_is_seen_as_a_second_library_sees_it(codec: int, producer: tuple[int, int, int]) -> None:
    data = foreign_batch(9, codec=codec, base_offset=1 << 50, producer=producer)
    (header,) = headers_of(data)
    theirs = DefaultRecordBatch(data)
    assert seen(header) == seen(theirs)
    assert (header.base_timestamp, header.record_count) == (theirs.first_timestamp, theirs.records_count)
    assert header.partition_leader_epoch == theirs.leader_epoch == 5
    assert header.compression_type == ("gzip" if codec else "none")
    assert crc_of(memoryview(data)) == header.crc == slow_crc32c(data[21:])
    assert theirs.validate_crc()


def test_batches_are_walked_one_after_another() -> None:
    parts = [foreign_batch(n, codec=n % 2, base_offset=n * 100) for n in range(1, 6)]
    headers = headers_of(b"".join(parts))
    assert [h.base_offset for h in headers] == [100, 200, 300, 400, 500]
    assert [h.next_offset for h in headers] == [101, 202, 303, 404, 505]
    assert [h.size_in_bytes for h in headers] == [len(p) for p in parts]
    assert [h.position for h in headers] == [sum(map(len, parts[:i])) for i in range(5)]


def test_a_batch_cut_off_at_the_end_is_omitted() -> None:
    first, second = foreign_batch(2), foreign_batch(3, base_offset=2)
    for cut in range(len(second)):
        assert [h.next_offset for h in headers_of(first + second[:cut])] == [2]
    assert headers_of(b"") == []


@pytest.mark.parametrize(
    ("attributes", "name"),
    [(0x08, "is_log_append_time"), (0x10, "is_transactional"), (0x20, "is_control")],
)
def test_each_attribute_bit_has_its_meaning(attributes: int, name: str) -> None:
    data = bytearray(foreign_batch(1))
    names = ("is_log_append_time", "is_transactional", "is_control")
    assert [getattr(headers_of(data)[0], n) for n in names] == [False] * 3
    struct.pack_into(">h", data, 21, attributes)
    assert {n for n in names if getattr(headers_of(data)[0], n)} == {name}


@pytest.mark.parametrize(
    ("code", "name"), [(0, "none"), (1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd"), (5, "unknown(5)")]
)
def test_codecs_are_named_as_in_compression_type(code: int, name: str) -> None:
    data = bytearray(foreign_batch(1))
    struct.pack_into(">h", data, 21, 0x40 | code)
    assert headers_of(data)[0].compression_type == name


@pytest.mark.parametrize(("count", "last_delta", "holes"), [(3, 2, False), (2, 2, True), (0, 2, True), (1, 0, False)])
def test_a_batch_with_fewer_records_than_offsets_has_holes(count: int, last_delta: int, holes: bool) -> None:
    data = bytearray(foreign_batch(1))
    struct.pack_into(">i", data, 23, last_delta)
    struct.pack_into(">i", data, 57, count)
    assert headers_of(data)[0].has_holes is holes


def test_an_old_message_format_is_recognised_by_its_magic() -> None:
    # offset, size, crc, magic 1, attributes, timestamp, no key, no value
    message = struct.pack(">qiIbbqii", 77, 22, 0, 1, 0, 1_000, -1, -1)
    old, new = headers_of(message + foreign_batch(1, base_offset=78))
    assert (old.base_offset, old.magic, old.size_in_bytes, old.next_offset) == (77, 1, len(message), 78)
    assert (new.base_offset, new.magic) == (78, 2)


# -- the guard --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_the_guard_changes_only_what_it_must(codec: int) -> None:
    before = foreign_batch(9, codec=codec, base_offset=1234, producer=(55, 1, 9))
    batch = bytearray(before)
    set_producer(memoryview(batch), (1 << 62) + 17, 3, 0x7FFFFFF0)
    (header,) = headers_of(batch)
    assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (
        0,
        (1 << 62) + 17,
        3,
        0x7FFFFFF0,
    )
    assert header.crc == slow_crc32c(batch[21:])
    assert DefaultRecordBatch(batch).validate_crc()
    changed = {i for i, (old, new) in enumerate(zip(before, batch, strict=True)) if old != new}
    base_offset, crc, producer = range(8), range(17, 21), range(PRODUCER_POSITION, PRODUCER_POSITION + 14)
    assert changed <= {*base_offset, *crc, *producer}


def test_the_guard_works_inside_a_larger_buffer() -> None:
    parts = [foreign_batch(3, base_offset=10), foreign_batch(2, base_offset=13), foreign_batch(1, base_offset=15)]
    data = bytearray(b"".join(parts))
    _, middle, _ = headers_of(data)
    set_producer(memoryview(data)[middle.position : middle.position + middle.size_in_bytes], 7, 0, 13)
    first, guarded, last = headers_of(data)
    assert data[: middle.position] == parts[0]
    assert data[last.position :] == parts[2]
    assert (first.base_offset, guarded.base_offset, guarded.base_sequence, last.base_offset) == (10, 0, 13, 15)


# -- hostile bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [-(1 << 31), -12, -1, 0, 4])
def test_a_length_that_cannot_be_is_corrupt(length: int) -> None:
    data = foreign_batch(1, base_offset=41) + foreign_batch(1, base_offset=42)[:8] + struct.pack(">i", length)
    with pytest.raises(CorruptBatchError, match="offset 42") as caught:
        headers_of(data + bytes(100))
    assert caught.value.offset == 42


@pytest.mark.parametrize("length", [5, 48])
def test_a_batch_shorter_than_a_header_is_corrupt(length: int) -> None:
    data = bytearray(foreign_batch(1, base_offset=42))
    struct.pack_into(">i", data, 8, length)
    with pytest.raises(CorruptBatchError, match="less than a header"):
        headers_of(data)


def test_a_length_above_the_buffers_is_a_batch_cut_off() -> None:
    data = bytearray(foreign_batch(1))
    struct.pack_into(">i", data, 8, 0x7FFFFFFF)
    assert headers_of(data) == []


def test_garbage_is_batches_or_corrupt_and_ends() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        data = bytearray(b"".join(foreign_batch(1 + rng.randrange(2)) for _ in range(2)))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            headers = headers_of(data)
        except CorruptBatchError:
            continue
        assert sum(h.size_in_bytes for h in headers) <= len(data)


def test_the_header_is_as_long_as_the_layout_says() -> None:
    assert HEADER.size == BATCH_OVERHEAD == 61


def test_a_corrupt_batch_error_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(CorruptBatchError(9, "torn")))
    assert (error.offset, error.detail, str(error)) == (9, "torn", "the batch at offset 9 is corrupt: torn")
