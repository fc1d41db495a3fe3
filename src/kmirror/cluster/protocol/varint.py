"""The signed variable-length integers inside records: zig-zag, 7 bits a byte, lowest first (KIP-98)."""

from __future__ import annotations

from kmirror.cluster.protocol.wire import Buffer, unsigned_varint

#: A 64-bit number takes at most ten bytes.
_LONGEST = 10
_MASK = (1 << 64) - 1
_SIGN = 1 << 63
_TABLE_SIZE = 1 << 14


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Read a number; return it and the position after it.

    Raises:
        ValueError: it has more than ten bytes.
        IndexError: the data ends in the middle of it.
    """
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63:
                value &= _MASK  # the tenth byte has room for more bits, which Java drops
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift == 7 * _LONGEST:
            raise ValueError("a number has more than ten bytes")


def varint(value: int) -> bytes:
    """Encode a number of 64 bits; only the lower 64 bits of a larger one, as Java does."""
    if 0 <= value < _TABLE_SIZE:
        return _TABLE[value]
    value = int64(value)
    return unsigned_varint((value << 1) ^ (value >> 63))


def int64(value: int) -> int:
    """Wrap a number to 64 bits, as Java's long does on overflow."""
    return ((value + _SIGN) & _MASK) - _SIGN


#: Most offset deltas and lengths are small.
_TABLE = tuple(unsigned_varint(value << 1) for value in range(_TABLE_SIZE))
