"""Filler is made quickly, read by anybody, and known again for certain."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from kmirror.cluster.protocol.batch import BATCH_OVERHEAD, BatchHeader, batch_headers, crc_of, set_producer
from kmirror.cluster.protocol.batch_records import Record, make_batch, read_records
from kmirror.cluster.protocol.filler import FILLER_KEY, FILLER_RECORDS, filler_batch, is_filler


def read(batch: bytearray) -> tuple[BatchHeader, list[Record]]:
    view = memoryview(batch)
    (header,) = batch_headers(view)
    assert header.crc == crc_of(view)
    return header, list(read_records(view, header))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 66, 8191, 8192, 8193, 8194, FILLER_RECORDS])
def test_every_offset_is_taken_by_a_record_with_the_key_and_nothing_else(count: int) -> None:
    batch = filler_batch(count, 1_700_000_000_000, base_offset=700)
    header, records = read(batch)
    assert (header.base_offset, header.next_offset, header.record_count) == (700, 700 + count, count)
    assert not header.has_holes
    assert [record.offset for record in records] == list(range(700, 700 + count))
    assert {(record.key, record.value, record.headers) for record in records} == {(FILLER_KEY, None, ())}
    assert {record.timestamp for record in records} == {header.max_timestamp}
    assert header.max_timestamp == 1_700_000_000_000
    assert is_filler(memoryview(batch))


def test_a_full_batch_is_small_and_each_one_is_its_own() -> None:
    one, other = filler_batch(FILLER_RECORDS, 1_700_000_000_000), filler_batch(FILLER_RECORDS, 1_700_000_000_000)
    assert len(one) < 100_000
    set_producer(memoryview(one), 1 << 62, 0, 5)
    assert is_filler(memoryview(one))
    assert read(other)[0].producer_id == -1


@pytest.mark.parametrize("count", [0, -1, FILLER_RECORDS + 1])
def test_a_batch_has_a_bounded_number_of_records(count: int) -> None:
    with pytest.raises(ValueError, match="filler batch has 1 to"):
        filler_batch(count, 1_700_000_000_000)


def made(
    *, key: bytes | None = FILLER_KEY, value: bytes | None = None, codec: str = "zstd", count: int = 3
) -> bytearray:
    return made_of(*(Record(i, 5, key, value) for i in range(count)), codec=codec)


def made_of(*records: Record, codec: str = "zstd") -> bytearray:
    return make_batch(list(records), compression_type=codec)


def test_filler_is_recognised_by_its_records_from_any_client() -> None:
    assert is_filler(memoryview(made()))


@pytest.mark.parametrize(
    "other",
    [
        lambda: made(key=FILLER_KEY + b"!"),
        lambda: made(key=None),
        lambda: made(value=b""),
        lambda: made(codec="none"),
        lambda: made_of(Record(0, 5, FILLER_KEY, None), Record(1, 6, FILLER_KEY, None)),
        lambda: made_of(Record(0, 5, FILLER_KEY, None, (("h", None),))),
        lambda: made_of(Record(0, 5, FILLER_KEY, None), Record(1, 5, b"k", b"v")),
        lambda: made()[:BATCH_OVERHEAD],
        lambda: made()[:30],
        lambda: made(count=1, value=bytes(64 << 20)),
    ],
    ids=["key", "no key", "value", "codec", "timestamp", "header", "second record", "no records", "cut off", "bomb"],
)
def test_what_differs_in_anything_is_none(other: Callable[[], bytearray]) -> None:
    assert not is_filler(memoryview(other()))


@pytest.mark.parametrize(("position", "value"), [(57, 2), (57, 4), (57, 0), (23, 7), (16, 1)])
def test_a_header_that_says_something_else_is_none(position: int, value: int) -> None:
    batch = made()
    struct.pack_into(">b" if position == 16 else ">i", batch, position, value)
    assert not is_filler(memoryview(batch))
