"""Small batches put into one: the same records at the same offsets, and nothing joined that must not be."""

from __future__ import annotations

import random
import struct

import pytest
from crc32c import crc32c

from kmirror.cluster.protocol import merge as merging
from kmirror.cluster.protocol.batch import batch_headers, set_producer
from kmirror.cluster.protocol.batch_records import Record, make_batch, read_records
from kmirror.cluster.protocol.merge import (
    FEW_BYTES,
    FEW_PLAIN_BYTES,
    FEW_PLAIN_RECORDS,
    FEW_RECORDS,
    MERGED_BYTES,
    Merged,
    merge,
)

NOW = 1_700_000_000_000


def record(offset: int, timestamp: int = NOW, value: bytes | None = b"v") -> Record:
    return Record(offset, timestamp, b"k%d" % offset, value, (("h", b"x"), ("empty", None)))


def batch(offset: int, count: int = 1, codec: str = "none", epoch: int = 3, timestamp: int = NOW) -> bytes:
    records = [record(offset + i, timestamp + i) for i in range(count)]
    return bytes(make_batch(records, compression_type=codec, leader_epoch=epoch))


def changed(data: bytes, layout: str, position: int, value: int) -> bytes:
    """Write a value into a batch."""
    found = bytearray(data)
    struct.pack_into(layout, found, position, value)
    return bytes(found)


def signed(data: bytes) -> bytes:
    """Give changed bytes a right checksum."""
    return changed(data, ">I", 17, crc32c(data[21:]))


def records_of(data: bytes | memoryview) -> list[Record]:
    view = memoryview(bytes(data))
    return [one for header in batch_headers(view) for one in read_records(view, header)]


def joined(*batches: bytes, base_offset: int = 0) -> Merged | None:
    return merge(memoryview(b"".join(batches)), 0, base_offset)


def record_sets(seed: int, codec: str) -> list[bytes]:
    """Return batches of random records: nulls, headers, times that go back and forth."""
    chance, made, offset = random.Random(seed), [], 1000
    for _ in range(60):
        count = chance.choice((1, 1, 2, 5, FEW_RECORDS))
        records = [
            Record(
                offset + i,
                NOW + chance.choice((0, 1, -5, 70_000, -(10**9), 10**12)),
                chance.choice((None, b"", chance.randbytes(chance.choice((3, 70, 200))))),
                chance.choice((None, b"", chance.randbytes(chance.choice((1, 62, 63, 64, 130))))),
                tuple((f"h{n}", chance.choice((None, b"", b"1" * n))) for n in range(chance.choice((0, 0, 1, 70)))),
            )
            for i in range(count)
        ]
        offset += count
        made.append(bytes(make_batch(records, compression_type=codec, leader_epoch=4)))
    return made


@pytest.mark.parametrize("codec", ["none", "lz4", "snappy", "zstd"])
@pytest.mark.parametrize("seed", range(5))
def test_the_records_of_a_merged_batch_are_those_of_its_parts(codec: str, seed: int) -> None:
    parts = [part for part in record_sets(seed, codec) if len(part) <= FEW_BYTES]
    whole = b"".join(parts)
    wanted = records_of(whole)
    offset, position, found, appended = 1000, 0, [], 0
    while (made := merge(memoryview(whole), position, offset)) is not None:
        (header,) = batch_headers(made.data)
        assert (header.base_offset, header.next_offset) == (offset, made.next_offset)
        assert header.record_count == header.last_offset_delta + 1 == made.next_offset - offset
        assert (header.compression_type, header.partition_leader_epoch) == (codec, made.leader_epoch)
        assert header.max_timestamp == made.max_timestamp == max(one.timestamp for one in records_of(made.data))
        found += records_of(made.data)
        set_producer(made.data, 7, 1, offset)
        (header,) = batch_headers(made.data)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, offset)
        assert header.crc == crc32c(made.data[21:])
        offset, position, appended = made.next_offset, made.end, appended + made.batches
    # what is left is the part behind the first batch that is too large to be joined
    assert found == wanted[: len(found)]
    assert appended > 1
    assert found[-1].offset + 1 == offset


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_all_that_fits_is_joined(codec: str) -> None:
    parts = [batch(2 * i, 2, codec, timestamp=NOW + i) for i in range(50)]
    made = joined(*parts)
    assert made is not None
    assert (made.batches, made.next_offset, made.end) == (50, 100, sum(map(len, parts)))
    assert records_of(made.data) == records_of(b"".join(parts))
    assert len(made.data) < sum(map(len, parts)) * 0.8


BREAKS = {
    "another leader epoch": batch(2, epoch=4),
    "another codec": batch(2, codec="lz4"),
    "a gap": batch(3),
    "an offset twice": batch(0),
    "LogAppendTime": signed(changed(batch(2), ">h", 21, 0x08)),
    "a transaction": signed(changed(batch(2), ">h", 21, 0x10)),
    "a marker": signed(changed(batch(2), ">h", 21, 0x30)),
    "a delete horizon": signed(changed(batch(2), ">h", 21, 0x40)),
    "a hole": signed(changed(batch(2, 3), ">i", 57, 2)),
    "no records": signed(changed(changed(batch(2)[:61], ">i", 57, 0), ">i", 8, 49)),
    "many records": batch(2, FEW_PLAIN_RECORDS + 1),
    "a wrong checksum": changed(batch(2), ">I", 17, 1),
    "an old format": changed(batch(2), ">b", 16, 1),
    "the end of what was read": batch(2)[:-1],
    "a length that cannot be": changed(batch(2), ">i", 8, 5),
    "a negative length": changed(batch(2), ">i", 8, -9),
    "many bytes": bytes(make_batch([record(2, value=bytes(FEW_PLAIN_BYTES))], leader_epoch=3)),
    "a record longer than its batch": signed(changed(batch(2), ">b", 61, 0x7E)),
    "a record of no length": signed(changed(batch(2), ">b", 61, 0)),
    "a record of a negative length": signed(changed(batch(2), ">b", 61, 3)),
    "record attributes": signed(changed(batch(2), ">b", 62, 1)),
    "a wrong offset delta": signed(changed(batch(2), ">b", 64, 2)),
    "bytes after the last record": signed(changed(batch(2) + b"\0", ">i", 8, len(batch(2)) - 11)),
    "a number without end": signed(batch(2)[:63] + b"\xff" * (len(batch(2)) - 63)),
}


@pytest.mark.parametrize("what", BREAKS)
def test_what_must_not_be_joined_ends_a_merged_batch(what: str) -> None:
    before = batch(0), batch(1)
    made = joined(*before, BREAKS[what], batch(3), batch(4))
    assert made is not None
    assert (made.batches, made.next_offset, made.end) == (2, 2, sum(map(len, before)))
    assert joined(before[0], BREAKS[what]) is None
    assert joined(BREAKS[what], batch(3), base_offset=2) is None


def test_what_would_have_to_be_compressed_again_is_joined_up_to_a_lower_limit() -> None:
    value = random.Random(1).randbytes(FEW_BYTES)
    large = bytes(make_batch([record(2, value=value)], leader_epoch=3, compression_type="lz4"))
    assert FEW_BYTES < len(large) < FEW_PLAIN_BYTES
    before = batch(0, codec="lz4"), batch(1, codec="lz4")
    for more, number in ((batch(2, FEW_RECORDS, "lz4"), 3), (batch(2, FEW_RECORDS + 1, "lz4"), 2), (large, 2)):
        made = joined(*before, more)
        assert made is not None
        assert made.batches == number
    plain = joined(batch(0, FEW_RECORDS + 1), batch(FEW_RECORDS + 1, FEW_PLAIN_RECORDS))
    assert plain is not None
    assert plain.next_offset == FEW_RECORDS + 1 + FEW_PLAIN_RECORDS


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd"])
def test_compressed_bytes_that_cannot_be_read_are_left_to_others(codec: str) -> None:
    whole = batch(1, codec=codec)
    broken = signed(whole[:61] + bytes(reversed(whole[61:])))
    assert joined(batch(0, codec=codec), broken) is None


def test_gzip_is_not_worth_it() -> None:
    assert joined(batch(0, codec="gzip"), batch(1, codec="gzip")) is None


def test_one_alone_stays_as_it_is() -> None:
    assert joined(batch(0)) is None
    assert joined(b"") is None
    assert joined(batch(0), batch(1), base_offset=5) is None


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_merged_batch_has_an_end(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = bytes(7000)
    parts = [bytes(make_batch([record(i, value=value)], leader_epoch=3, compression_type=codec)) for i in range(60)]
    made = joined(*parts)
    assert made is not None
    assert MERGED_BYTES * 0.9 < made.next_offset * len(value) <= MERGED_BYTES
    monkeypatch.setattr(merging, "MERGED_BYTES", 10)
    assert joined(*parts) is None


def test_tiny_records_far_into_a_merged_batch_begin_another() -> None:
    batches = [
        bytes(make_batch([Record(offset + i, NOW, None, None) for i in range(FEW_PLAIN_RECORDS)], leader_epoch=3))
        for offset in range(0, 500 * FEW_PLAIN_RECORDS, FEW_PLAIN_RECORDS)
    ]
    everything, at = memoryview(b"".join(batches)), 0
    found: list[Record] = []
    while (merged := merge(everything, at, len(found))) is not None:
        found += records_of(merged.data)
        at = merged.end
    assert at == len(everything)
    assert found == records_of(everything)


def test_timestamps_of_any_size_are_kept() -> None:
    times = (NOW, -1, 0, 2**62, -(2**62), NOW - 1)
    parts = [bytes(make_batch([record(i, time)], leader_epoch=3)) for i, time in enumerate(times)]
    made = joined(*parts)
    assert made is not None
    assert [one.timestamp for one in records_of(made.data)] == list(times)
    assert struct.unpack_from(">qq", made.data, 27) == (NOW, 2**62)
