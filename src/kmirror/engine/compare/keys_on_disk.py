"""Keys that wait for a later record, more of them than are kept in memory: resolved on disk, with one scan of the log.

What waits, and where the log has records of any key, is appended to temporary files in buckets of keys. Then one bucket
after the other is resolved in memory. The files take 58 bytes for a key that waits and 25 for a record that is scanned,
in the worker's folder for temporary files.

This module runs in workers.
"""

from __future__ import annotations

import struct
import tempfile
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kmirror.engine.compare.difference import RecordSummary
from kmirror.errors import RefusedError

_BUCKETS = 512
_CHUNK_BYTES = 8 << 10
#: Key, first and last offset, timestamp, checksum, whether the other log lacks it, and whether the last is a tombstone.
_WAIT = struct.Struct("<16sqqq16s??")
#: Key, offset and what it is.
_SIGHT = struct.Struct("<16sqB")
_IN_LOG, _IN_OTHER, _TOMBSTONE_IN_OTHER = range(3)


class MissingRecord(NamedTuple):
    """A record that a log lacks; `in_other`: the other of the two logs lacks it."""

    record: RecordSummary
    in_other: bool = False


@dataclass(frozen=True, slots=True)
class KeyWait:
    """The first record of a key that is missing since the key was last seen, and facts of the last one."""

    first: MissingRecord
    last_offset: int
    last_is_tombstone: bool


class KeysOnDisk:
    """The keys that wait in one log, and what could explain their missing records. Keys are hashes of 16 bytes.

    Add what waits in the order of the log, each key at most once before `seen` or a later wait; then all of the log
    from `first_offset` on, from its start if `has_tombstones`; then what the other log has after that.
    """

    def __init__(self) -> None:
        self.first_offset: int | None = None
        self.has_tombstones = False
        self._waits = _Buckets(_WAIT)
        self._sights = _Buckets(_SIGHT)

    def close(self) -> None:
        """Remove the files."""
        self._waits.close()
        self._sights.close()

    def add(self, key: bytes, wait: KeyWait) -> None:
        """Add a key that waits."""
        (offset, timestamp, checksum), in_other = wait.first
        if self.first_offset is None or offset < self.first_offset:
            self.first_offset = offset
        self.has_tombstones = self.has_tombstones or wait.last_is_tombstone
        content = bytes.fromhex(checksum)
        self._waits.add(key, offset, wait.last_offset, timestamp, content, in_other, wait.last_is_tombstone)

    def seen(self, key: bytes, offset: int) -> None:
        """Note a record of the log."""
        self._sights.add(key, offset, _IN_LOG)

    def seen_in_other(self, key: bytes, offset: int, *, is_tombstone: bool) -> None:
        """Note a record of the other log, after everything that was added: it may be missing too."""
        self._sights.add(key, offset, _TOMBSTONE_IN_OTHER if is_tombstone else _IN_OTHER)

    def unexplained(self) -> MissingRecord | None:
        """Return the first missing record that nothing explains, or None."""
        left = (missing for bucket in range(_BUCKETS) for missing in self._unexplained_in(bucket))
        return min(left, key=lambda missing: missing.record.offset, default=None)

    def _unexplained_in(self, bucket: int) -> Iterator[MissingRecord]:
        waits: defaultdict[bytes, list[KeyWait]] = defaultdict(list)
        for key, offset, last_offset, timestamp, content, in_other, is_tombstone in self._waits.read(bucket):
            first = MissingRecord(RecordSummary(offset, timestamp, content.hex()), in_other)
            waits[key].append(KeyWait(first, last_offset, is_tombstone))
        seen: defaultdict[bytes, list[int]] = defaultdict(list)
        for key, offset, kind in self._sights.read(bucket):
            if kind == _IN_LOG and key in waits:
                seen[key].append(offset)
            elif key in waits and not _is_any_between(seen[key], waits[key][-1].last_offset, offset + 1):
                # the log lacks this one too, so the key waits for a later one
                waits[key][-1] = replace(
                    waits[key][-1], last_offset=offset, last_is_tombstone=kind == _TOMBSTONE_IN_OTHER
                )
        for key, of_key in waits.items():
            if (missing := _unexplained(of_key, seen[key])) is not None:
                yield missing


def _unexplained(waits: Sequence[KeyWait], seen: Sequence[int]) -> MissingRecord | None:
    """Return the first missing record of one key that nothing explains; the log has the key at the offsets `seen`."""
    pending = waits[0]
    for wait in waits[1:]:
        is_explained = _is_any_between(seen, pending.last_offset, wait.first.record.offset)
        pending = wait if is_explained else replace(wait, first=pending.first)
    before, after = bisect_left(seen, pending.last_offset), bisect_right(seen, pending.last_offset)
    is_gone_for_good = pending.last_is_tombstone and not before
    return None if after < len(seen) or is_gone_for_good else pending.first


def _is_any_between(offsets: Sequence[int], low: int, high: int) -> bool:
    """Return True if one of these ascending offsets is between the two."""
    at = bisect_right(offsets, low)
    return at < len(offsets) and offsets[at] < high


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise RefusedError for what the folder for temporary files does not allow."""
    try:
        yield
    except OSError as error:
        raise RefusedError(
            f"the keys of a compacted partition cannot be kept in {tempfile.tempdir or 'a file'}: {error.strerror}",
            "set TMPDIR to a folder that has room and can be written to",
        ) from None


class _Buckets:
    """Entries that begin with a key, appended to a temporary file in chunks, and read again bucket by bucket."""

    def __init__(self, entry: struct.Struct) -> None:
        self._entry = entry
        with _refusing():
            self._file = tempfile.TemporaryFile(prefix="kmirror-")  # noqa: SIM115
        self._buffers = [bytearray() for _ in range(_BUCKETS)]
        #: Where each bucket's chunks are in the file.
        self._positions: list[list[int]] = [[] for _ in range(_BUCKETS)]
        self._most = _CHUNK_BYTES // entry.size * entry.size

    def close(self) -> None:
        # what is still buffered is written first
        with suppress(OSError):
            self._file.close()

    def add(self, key: bytes, *fields: Any) -> None:
        bucket = int.from_bytes(key[:2]) % _BUCKETS
        buffer = self._buffers[bucket]
        buffer += self._entry.pack(key, *fields)
        if len(buffer) == self._most:
            self._positions[bucket].append(self._file.tell())
            with _refusing():
                self._file.write(buffer)
            buffer.clear()

    def read(self, bucket: int) -> Iterator[tuple[Any, ...]]:
        for position in self._positions[bucket]:
            with _refusing():
                self._file.seek(position)
                chunk = self._file.read(self._most)
            yield from self._entry.iter_unpack(chunk)
        yield from self._entry.iter_unpack(self._buffers[bucket])
