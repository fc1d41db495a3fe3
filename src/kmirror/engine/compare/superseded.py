"""Decide whether records that are missing in one log of a compacted topic were removed by compaction.

Each log is compacted independently, so a record may be missing in one of them once a later one of its key is there.
Compaction also removes tombstones, after a while, but never before all older records of the key (KIP-534): a missing
tombstone is explained if no older record of its key is left, and so are the records that it superseded. And it removes
every record without a key, which a topic may have from before it was compacted. Each pass of a cleaner begins at the
log's start, so a missing record without a key is explained only if the log has none before it either.

The hashes of keys that wait for a later record are kept, in memory or, after `spill`, on disk; `unexplained` searches
the log for the remaining ones.

A later record that the other log lacks explains nothing if it is the missing record itself at another offset: then the
key waits in the other log, and both are reported as one difference at the lower offset.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from hashlib import blake2b

from kmirror.cluster.protocol.batch_records import Record
from kmirror.engine.compare.difference import summary_of
from kmirror.engine.compare.keys_on_disk import KeysOnDisk, KeyWait, MissingRecord
from kmirror.engine.compare.visible_log import Log


class Superseded:
    """The keys whose records are missing in one log and present in the other."""

    def __init__(self, log: Log, other: Log) -> None:
        #: Records found missing so far, explained or not.
        self.count = 0
        self._log = log
        self._other = other
        self._waiting: dict[bytes, KeyWait] = {}
        self._on_disk: KeysOnDisk | None = None
        #: From here on the log may have records without a key that were read; None: it has none.
        self._keyless_from: int | None = 0

    @property
    def needs_every_record(self) -> bool:
        """True if `seen` must be called for each record: records without a key are missing, and none is left so far."""
        return self._keyless_from is None

    def __len__(self) -> int:
        """Return how many keys wait in memory."""
        return len(self._waiting)

    def spill(self) -> None:
        """Move the keys that wait to disk. Raises RefusedError."""
        if self._waiting:
            self._on_disk = self._on_disk or KeysOnDisk()
            for key, wait in self._waiting.items():
                self._on_disk.add(key, wait)
            self._waiting.clear()

    def close(self) -> None:
        """Forget the keys on disk."""
        if self._on_disk is not None:
            self._on_disk.close()
            self._on_disk = None

    def excuses(self, record: Record) -> bool:
        """Note a missing record; return False if nothing later can explain it."""
        if not self._log.is_compacted() or (record.key is None and self._has_keyless_below(record.offset)):
            return False
        self.count += 1
        if record.key is not None:
            self._wait(_hash(record.key), record)
        return True

    def _has_keyless_below(self, offset: int) -> bool:
        """Return whether the log has a record without a key before an offset; a cleaner may have removed those seen."""
        if self._keyless_from is not None:
            with closing(self._log.scan(self._keyless_from, offset)) as records:
                if any(record.key is None for record in records):
                    return True
            self._keyless_from = None
        return False

    def _wait(self, key: bytes, record: Record) -> None:
        known = self._waiting.get(key)
        first = known.first if known else MissingRecord(summary_of(record))
        self._waiting[key] = KeyWait(first, record.offset, record.value is None)

    def seen(self, record: Record) -> None:
        """Note that this record is in the log."""
        if record.key is None:
            self._keyless_from = record.offset if self._keyless_from is None else self._keyless_from
        elif self._waiting:
            self._waiting.pop(_hash(record.key), None)

    def seen_alone(self, record: Record, other: Superseded) -> None:
        """Note that this record is in the log but not in the other, as `other` already knows."""
        if not self._waiting or record.key is None:
            self.seen(record)
            return
        key = _hash(record.key)
        wait = self._waiting.pop(key, None)
        if wait is not None and wait.first.record[1:] == summary_of(record)[1:]:
            other._wait_for_moved(key, wait.first)

    def _wait_for_moved(self, key: bytes, first: MissingRecord) -> None:
        """Have a key wait in this log for a record that the other log has at another offset."""
        known = self._waiting[key]
        if first.record.offset < known.first.record.offset:
            self._waiting[key] = replace(known, first=MissingRecord(first.record, not first.in_other))

    def unexplained(self, position: int, end: int) -> MissingRecord | None:
        """Search for the waiting keys, and return the first missing record that nothing explains, or None.

        The logs are compared up to `position`, of `end` in all. Afterwards no key waits.
        """
        if self._on_disk is not None:
            self.spill()
            try:
                return self._unexplained_on_disk(self._on_disk, position, end)
            finally:
                self.close()
        if self._waiting:
            self._search_ahead(position)
        if self._waiting and position < end:
            self._search_tombstones(position, end)
        if any(wait.last_is_tombstone for wait in self._waiting.values()):
            self._drop_complete_tombstones()
        left = [wait.first for wait in self._waiting.values()]
        self._waiting.clear()
        return min(left, key=lambda missing: missing.record.offset, default=None)

    def _unexplained_on_disk(self, on_disk: KeysOnDisk, position: int, end: int) -> MissingRecord | None:
        # a tombstone is explained by what the log lacks before it
        start = None if on_disk.has_tombstones or position < end else on_disk.first_offset
        with closing(self._log.scan(start)) as records:
            for record in records:
                if record.key is not None:
                    on_disk.seen(_hash(record.key), record.offset)
        if position < end:
            with closing(self._other.scan(position, end)) as records:
                for record in records:
                    if record.key is not None:
                        on_disk.seen_in_other(_hash(record.key), record.offset, is_tombstone=record.value is None)
        return on_disk.unexplained()

    def _search_ahead(self, position: int) -> None:
        with closing(self._log.scan(position)) as records:
            for record in records:
                self.seen(record)
                if not self._waiting:
                    return

    def _search_tombstones(self, position: int, end: int) -> None:
        """Search for tombstones that explain missing records after the position of the comparison."""
        with closing(self._other.scan(position, end)) as records:
            for record in records:
                if record.key is not None and (key := _hash(record.key)) in self._waiting:
                    self._wait(key, record)

    def _drop_complete_tombstones(self) -> None:
        """Drop keys whose last missing record is a tombstone and that have no older record in the log."""
        gone = {key: wait.last_offset for key, wait in self._waiting.items() if wait.last_is_tombstone}
        with closing(self._log.scan(None, max(gone.values()))) as records:
            for record in records:
                if record.key is not None and record.offset < gone.get(key := _hash(record.key), -1):
                    del gone[key]
        for key in gone:
            del self._waiting[key]


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
