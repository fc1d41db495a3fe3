"""The checksum by which writers and the oracle name a record: key, value and headers, null told from empty."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

Headers = Sequence[tuple[str, bytes | None]]


def content_of(key: bytes | None, value: bytes | None, headers: Headers | None = None) -> int:
    """Return the checksum of what a record holds, its timestamp aside."""
    head = f"{key!r}|{value is None}|{[tuple(one) for one in headers or ()]!r}"
    return zlib.crc32(value or b"", zlib.crc32(head.encode()))
