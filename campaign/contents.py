"""The checksum by which writers and the oracle identify a record: key, value and headers, with null unlike empty."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

Headers = Sequence[tuple[str, bytes | None]]


def content_of(key: bytes | None, value: bytes | None, headers: Headers | None = None) -> int:
    """Return the checksum of a record's contents, without its timestamp."""
    head = f"{key!r}|{value is None}|{[tuple(one) for one in headers or ()]!r}"
    return zlib.crc32(value or b"", zlib.crc32(head.encode()))
