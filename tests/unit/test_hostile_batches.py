"""Invalid batches: at most one partition fails, and never is more memory used than allowed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import strategies as st

from kmirror.cluster.protocol.batch import (
    BATCH_OVERHEAD,
    CorruptBatchError,
    OversizedBatchError,
    UnsupportedFormatError,
    batch_headers,
)
from kmirror.cluster.protocol.batch_records import (
    MAX_SECTION_BYTES,
    Record,
    SectionTooLargeError,
    compress,
    decompress,
    make_batch,
    read_records,
)
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.filler import is_filler
from kmirror.cluster.protocol.isolation import Isolation
from kmirror.cluster.protocol.merge import merge
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.old_format import read_messages
from kmirror.cluster.protocol.pieces import Hole, Run, pieces
from kmirror.cluster.protocol.wire import read_varint, varint
from kmirror.engine.histories.judge import Fail
from kmirror.engine.lane.partition.counts import Counts
from kmirror.engine.lane.partition.intake import Frame, Gap, GuardedBatch, Intake
from kmirror.errors import Reason
from tests.support.hostile import (
    AMOUNTS,
    NEIGHBOURS,
    NOW,
    SOUND_BATCHES,
    SOUND_OLD,
    batch,
    corrupted,
    corrupted_batches,
    explore,
    repaired,
)

START, HIGH_WATERMARK = 100, 130
#: Transactions of this producer are aborted.
ABORTED = [AbortedTransaction(7, 90)]
ANY_BATCH = corrupted_batches(SOUND_BATCHES) | corrupted(SOUND_OLD)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)


def intake(*, merges: bool = True) -> Intake:
    made = Intake(TopicPartition("t", 0), 1 << 62, 0, Counts(), merges=merges)
    made.restart(START, 3, 0, producer_is_known=True)
    return made


def take_in(data: bytes, *, merges: bool = True) -> tuple[Intake, Fail | None]:
    made = intake(merges=merges)
    view = memoryview(bytearray(data))
    return made, made.take_in(view, ABORTED, Frame(view), high_watermark=HIGH_WATERMARK)


def check_taken(data: bytes) -> None:
    """What is queued covers offsets without a break, none of those omitted is above the high watermark."""
    taken, failure = take_in(data)
    assert failure is None or failure.reason in {Reason.CORRUPT_BATCH, Reason.UNSUPPORTED_MESSAGE_FORMAT}
    queue = list(taken.queue)
    assert [one.next_offset for one in queue][-1:] == ([taken.next_offset] if queue else [])
    assert taken.queued_bytes == sum(len(item.data) for item in queue if isinstance(item, GuardedBatch))
    assert failure is None or failure.offset == taken.next_offset
    assert not queue or queue[0].base_offset == START
    assert all(one.next_offset == other.base_offset for one, other in pairwise(queue))
    for item in queue:
        if isinstance(item, Gap):
            assert item.next_offset <= HIGH_WATERMARK + 1, "filled up to where the source has nothing"
            continue
        assert isinstance(item, GuardedBatch)
        (header,) = batch_headers(item.data)
        assert header.record_count == item.next_offset - item.base_offset == header.last_offset_delta + 1
        assert crc32c(item.data[21:]) == header.crc
        assert not header.is_control
        assert not header.is_transactional
        assert not header.is_log_append_time


@AMOUNTS
def test_a_lane_takes_what_it_is_sent_or_fails_one_partition(amount: int) -> None:
    explore(amount * 3, ANY_BATCH, check_taken)
    explore(amount, corrupted(NEIGHBOURS), check_taken)
    explore(amount, st.lists(ANY_BATCH, min_size=2, max_size=4).map(b"".join), check_taken)


def moved(data: bytes, layout: str, position: int, value: int) -> bytes:
    """Return a batch with another number in its header, and the checksum for it."""
    spoilt = bytearray(data)
    struct.pack_into(layout, spoilt, position, value)
    return bytes(repaired(spoilt))


#: What was found once.
CORPUS = {
    "records' times exceed 64 bits": moved(batch((100, 105), 100, 105), ">q", 27, (1 << 63) - 2),
    "a sound batch and a negative length": batch(range(100, 110)) + struct.pack(">qi", 110, -60) + bytes(60),
    "a snappy block without a length": bytes(
        repaired(bytearray(batch((100, 105), 100, 105, codec="snappy")[:77]) + bytes(3)),
    ),
    "the offset after it exceeds 64 bits": moved(batch(range(100, 110)), ">q", 0, (1 << 63) - 5),
    "dense by its header, and a record in it says another offset": moved(
        batch(range(100, 110)), ">b", batch(range(100, 110)).index(b"\x08\x08\x08k104") + 1, 9
    ),
}


@pytest.mark.parametrize("data", CORPUS.values(), ids=CORPUS.keys())
def test_what_was_found_once_is_a_failure_or_a_copy(data: bytes) -> None:
    check_taken(data)
    check_read(data)
    check_pieces((data, START - 5, True, 1 << 20))


def check_read(data: bytes) -> None:
    view = memoryview(data)
    with suppress(CorruptBatchError):
        for header in batch_headers(view):
            if header.magic == 2:
                Isolation(ABORTED).kind(view[header.position : header.position + header.size_in_bytes])
                list(read_records(view, header))
    assert not is_filler(view)
    with suppress(CorruptBatchError, UnsupportedFormatError):
        read_messages(view)


@AMOUNTS
def test_records_are_read_or_the_batch_is_corrupt(amount: int) -> None:
    explore(amount * 2, ANY_BATCH, check_read)


def check_pieces(given: tuple[bytes, int, bool, int]) -> None:
    data, start, shown, max_bytes = given
    try:
        found = pieces(memoryview(data), start=start, visible=shown, max_bytes=max_bytes)
    except (CorruptBatchError, UnsupportedFormatError):
        return
    assert not found or found[0].base_offset == start
    assert all(one.next_offset == other.base_offset for one, other in pairwise(found))
    for part in found:
        if isinstance(part, Run):
            (header,) = batch_headers(part.data)
            offsets = [record.offset for record in read_sound(part.data)]
            # what was left as it lay says of its records what the source's says
            as_it_lay = part.data[BATCH_OVERHEAD:] == data[BATCH_OVERHEAD:]
            assert as_it_lay or not offsets or offsets == list(range(part.base_offset, part.next_offset))
            assert header.max_timestamp == part.max_timestamp


def read_sound(data: memoryview) -> list[Record]:
    """Read a run; one that was left as it lay may be broken inside, which its destination's broker looks at."""
    try:
        return [record for header in batch_headers(data) for record in read_records(data, header)]
    except CorruptBatchError:
        return []


@AMOUNTS
def test_a_batch_is_taken_apart_into_what_covers_its_offsets(amount: int) -> None:
    limits = st.sampled_from((0, 80, 150, 1 << 20))
    explore(amount * 2, st.tuples(ANY_BATCH, st.integers(95, 112), st.booleans(), limits), check_pieces)


# -- round trips -------------------------------------------------------------------------------------------------------


def check_number(value: int) -> None:
    data = varint(value)
    assert len(data) <= 10
    assert read_varint(data, 0) == (value, len(data))


@AMOUNTS
def test_a_number_comes_back(amount: int) -> None:
    explore(amount, NUMBERS, check_number)


@AMOUNTS
def test_any_bytes_are_a_number_of_64_bits_or_none(amount: int) -> None:
    def check(data: bytes) -> None:
        try:
            value, position = read_varint(data, 0)
        except (ValueError, IndexError):
            return
        assert -(1 << 63) <= value < 1 << 63
        assert 0 < position <= 10

    explore(amount, st.binary(max_size=12), check)


FIELD = st.none() | st.binary(max_size=40)
TIMES = NUMBERS | st.integers(NOW, NOW + 9)
CODEC = st.sampled_from(("none", "gzip", "snappy", "lz4", "zstd"))


@st.composite
def record_lists(draw: st.DrawFn) -> list[list[Record]]:
    """Return the records of some batches, one behind the other."""
    made, offset = [], START
    for size in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        records = []
        for _ in range(size):
            headers = tuple(draw(st.lists(st.tuples(st.sampled_from(("", "h", "ключ")), FIELD), max_size=2)))
            records.append(Record(offset, draw(TIMES), draw(FIELD), draw(FIELD), headers))
            offset += 1
        made.append(records)
    return made


def check_merged(given: tuple[list[list[Record]], str]) -> None:
    lists, codec = given
    batches = [bytes(make_batch(records, compression_type=codec, leader_epoch=3)) for records in lists]
    assert [read_sound(memoryview(data)) for data in batches] == lists
    merged = merge(memoryview(b"".join(batches)), 0, START)
    if merged is not None:
        records = [one for part in lists for one in part]
        assert read_sound(merged.data) == records[: merged.next_offset - START]


@AMOUNTS
def test_records_come_back_also_from_batches_put_together(amount: int) -> None:
    explore(amount, st.tuples(record_lists(), CODEC), check_merged)


def test_a_header_whose_name_is_no_text_comes_back_as_it_was() -> None:
    stored = make_batch([Record(0, NOW, b"k", b"v", (("\udcff\udc80", b"x"),))])
    assert b"\xff\x80" in stored
    (found,) = read_sound(memoryview(stored))
    assert make_batch([found]) == stored


# -- bombs -------------------------------------------------------------------------------------------------------------


def section(size: int) -> bytes:
    return bytes(size)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_becomes_too_large_is_refused_as_such(codec: str) -> None:
    small = compress(section(3 << 20), codec)
    assert len(decompress(memoryview(small), codec, 3 << 20)) == 3 << 20
    with pytest.raises(SectionTooLargeError, match="more than 2 MB"):
        decompress(memoryview(small), codec, 2 << 20)


def test_a_length_that_a_snappy_block_claims_takes_no_memory() -> None:
    with pytest.raises(SectionTooLargeError):
        decompress(memoryview(b"\xfe\xff\xff\xff\x0f" + bytes(20)), "snappy")


def bomb(count: int, last: int) -> bytes:
    """Return a batch of some KB, the records of which take more than allowed."""
    section = bytes(cramjam.zstd.compress(bytes(64 << 20))) * (MAX_SECTION_BYTES // (64 << 20) + 1)
    data = bytearray(batch((100,), 100, last, codec="zstd")[:61] + section)
    struct.pack_into(">i", data, 57, count)
    return bytes(repaired(data))


def test_a_bomb_is_copied_unopened_where_it_can_be_and_is_a_failure_with_its_reason_elsewhere() -> None:
    dense, with_holes = bomb(10, 109), bomb(9, 109)
    assert len(dense) < 64 << 10
    taken, failure = take_in(dense)
    assert (failure, taken.next_offset) == (None, 110)
    taken, failure = take_in(with_holes)
    assert failure is not None
    assert (failure.reason, failure.offset, taken.next_offset) == (Reason.UNSUPPORTED_MESSAGE_FORMAT, 100, 100)
    assert "records take more than 256 MB when they are decompressed" in failure.message
    (header,) = batch_headers(memoryview(with_holes))
    with pytest.raises(OversizedBatchError, match="cannot be opened"):
        next(read_records(memoryview(with_holes), header))


def test_small_batches_that_are_bombs_are_not_put_together() -> None:
    parts = []
    for base in (100, 101):
        data = bytearray(batch((base,), base, base, codec="zstd")[:61] + bytes(cramjam.zstd.compress(bytes(1 << 20))))
        parts.append(bytes(repaired(data)))
    taken, failure = take_in(b"".join(parts))
    assert failure is None
    assert [(one.base_offset, one.next_offset) for one in taken.queue] == [(100, 101), (101, 102)]


def test_more_records_than_are_taken_apart_at_once_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmirror.cluster.protocol.pieces._ROWS_AT_ONCE", 4)
    offsets = [100, 101, 103, 104, 105, 106, 107, 110, 111, 112, 113, 114]
    data = batch(offsets, 100, 120, codec="lz4")
    found = pieces(memoryview(data), start=101, visible=True, max_bytes=1 << 20)
    assert [r.offset for part in found if isinstance(part, Run) for r in read_sound(part.data)] == offsets[1:]
    left_out = [
        offset for part in found if isinstance(part, Hole) for offset in range(part.base_offset, part.next_offset)
    ]
    assert left_out == [102, 108, 109, *range(115, 121)]
    assert all(one.next_offset == other.base_offset for one, other in pairwise(found))


# -- false -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(lambda data: moved(data, ">q", 0, 131), id="a base offset above the high watermark"),
        pytest.param(lambda data: moved(data, ">q", 0, (1 << 63) - 20), id="one at the end of all offsets"),
        pytest.param(lambda data: moved(data, ">q", 0, 80), id="one that is copied already"),
        pytest.param(lambda data: moved(data, ">i", 23, 60), id="a delta above the high watermark"),
        pytest.param(lambda data: moved(data, ">i", 23, (1 << 31) - 1), id="the largest delta"),
        pytest.param(lambda data: moved(data, ">i", 23, -1), id="a negative delta"),
        pytest.param(lambda data: moved(data, ">i", 57, 11), id="more records than offsets"),
        pytest.param(lambda data: moved(data, ">i", 57, -1), id="a negative count"),
        pytest.param(lambda data: data[:8] + struct.pack(">i", -1) + data[12:], id="a negative length"),
        pytest.param(lambda data: data[:8] + struct.pack(">i", (1 << 31) - 1) + data[12:], id="the largest length"),
        pytest.param(lambda data: data[:-1] + b"!", id="a wrong checksum"),
    ],
)
def test_nothing_is_taken_of_a_batch_that_cannot_be(lie: Callable[[bytes], bytes]) -> None:
    taken, _ = take_in(lie(batch(range(100, 110))))
    assert (taken.next_offset, list(taken.queue)) == (START, [])


def test_a_marker_that_takes_many_offsets_is_none() -> None:
    marker = moved(SOUND_BATCHES[-1], ">i", 23, 20)
    taken, failure = take_in(marker)
    assert failure is not None
    assert (failure.reason, taken.next_offset) == (Reason.CORRUPT_BATCH, START)
