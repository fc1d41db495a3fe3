"""Hostile bytes: sound ones, corrupted in a few places, and how they are tried."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.log_batches import COMMIT, LogBatch, VisibleRecord, control_record, encode

NOW = 1_700_000_000_000

_QUICK, _SLOW, _LONG = 50, 200, 5_000
#: Parametrize a test with this: the same few examples every day, and many others in `make test-long`.
AMOUNTS = pytest.mark.parametrize(
    "amount",
    [
        pytest.param(_QUICK, id="quick"),
        pytest.param(_SLOW, id="slow", marks=pytest.mark.slow),
        pytest.param(_LONG, id="long", marks=pytest.mark.long),
    ],
)
_CRC_AT, _CHECKED_FROM = 17, 21
_HEADER_BYTES = 61
#: Boundary values of integers of two, four and eight bytes.
_NUMBERS = (0, 1, -1, 0x7F, 0x80, 0x7FFF, -0x8000, 0x7FFFFFFF, -0x80000000, 1 << 62, (1 << 63) - 1, -1 << 63)
_LAYOUTS = (">b", ">h", ">i", ">q")


def explore(amount: int, what: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Check this many examples; a failing one is shrunk as far as possible."""
    profile = settings(
        max_examples=amount,
        derandomize=amount < _LONG,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    profile(given(what)(check))()


@st.composite
def corrupted(draw: st.DrawFn, sound: Sequence[bytes]) -> bytes:
    """Take one of these, and flip, cut, double, overwrite in up to four places."""
    data = bytearray(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 5)):
            case 0:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                data[at] = draw(st.sampled_from((0, 1, 0x7F, 0x80, 0xFE, 0xFF)))
            case 2:
                layout, number = draw(st.sampled_from(_LAYOUTS)), draw(st.sampled_from(_NUMBERS))
                bits = 8 * struct.calcsize(layout)
                wrapped = (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
                packed = struct.pack(layout, wrapped)
                data[at : at + len(packed)] = packed
            case 3:
                del data[at : at + draw(st.integers(1, 16))]
            case 4:
                data[at:at] = data[at : at + draw(st.integers(1, 16))]
            case _:
                data[at:at] = b"\xff" * draw(st.integers(1, 12))
    return bytes(data)


@st.composite
def corrupted_batches(draw: st.DrawFn, sound: Sequence[bytes]) -> bytes:
    """Corrupt one of these batches, and mostly repair its length and its checksum, so that the inside is reached."""
    data = bytearray(draw(corrupted(sound)))
    return bytes(repaired(data)) if draw(st.integers(0, 4)) else bytes(data)


def repaired(data: bytearray) -> bytearray:
    """Give a batch the length and the checksum that fit its bytes."""
    if len(data) >= _HEADER_BYTES:
        data[16] = 2
        struct.pack_into(">i", data, 8, len(data) - 12)
        struct.pack_into(">I", data, _CRC_AT, crc32c(data[_CHECKED_FROM:]))
    return data


def record(offset: int, value: bytes | None = b"value") -> VisibleRecord:
    return VisibleRecord(offset, NOW + offset, b"k%d" % offset, value, (("h", b"x"), ("n", None)))


def batch(offsets: Sequence[int], base: int = 100, last: int = 109, **changes: Any) -> bytes:
    """Return a stored batch with records at these offsets."""
    return encode(LogBatch(base, last, tuple(record(offset) for offset in offsets), NOW, **changes), 3)


DENSE = range(100, 110)
CODECS = ("none", "gzip", "snappy", "snappy-raw", "lz4", "zstd")
#: One of each kind that logs hold; the last ones are in the old formats.
SOUND_BATCHES = [
    *(batch(DENSE, codec=codec) for codec in CODECS),
    *(batch((101, 104, 105), codec=codec) for codec in CODECS),
    batch(()),
    batch(DENSE, append_time=NOW + 5),
    batch(DENSE, transaction=1, producer_id=7, producer_epoch=0, base_sequence=0),
    batch((102, 109), delete_horizon_ms=NOW),
    encode(LogBatch(100, 100, (control_record(100, NOW, COMMIT, 4),), NOW, transaction=1, marker=COMMIT), 3),
]
SOUND_OLD = [
    batch((109,), 109, 109, magic=0),
    batch((109,), 109, 109, magic=1),
    *(batch(DENSE, magic=magic, codec=codec) for magic in (0, 1) for codec in ("gzip", "snappy", "lz4")),
]
#: Small neighbours, as merging takes them.
NEIGHBOURS = [
    b"".join(batch(range(at, at + 3), at, at + 2, codec=codec) for at in range(100, 130, 3)) for codec in CODECS
]
