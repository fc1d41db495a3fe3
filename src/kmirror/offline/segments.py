"""Segment files, read batch by batch: where a log can be cut, and how much follows.

A log can be cut only between batches. The remaining part of the segment that is cut is validated completely, because
the broker reads it again when it starts, and would itself truncate the log at a corrupt batch.

A producer snapshot belongs to the beginning of a segment and has what its broker knew there of each producer: version
i16, crc u32, count i32, then per producer id i64, epoch i16, last sequence i32, last offset i64, offset delta i32,
timestamp i64, coordinator epoch i32, first offset of its open transaction i64 (-1 for none).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from kmirror.cluster.protocol.batch import BatchHeader, CorruptBatchError, batch_headers, crc_of
from kmirror.errors import RefusedError
from kmirror.offline.folder import Folder
from kmirror.work import Add, unwatched

_SNAPSHOT = struct.Struct(">hIi")
_SNAPSHOT_VERSION = struct.pack(">h", 1)
_PRODUCER = struct.Struct(">qhiqiqiq")

RECOVER_FIRST = "start the broker, let it recover, stop it cleanly, and try again"


@dataclass(frozen=True, slots=True)
class KeptPart:
    """The beginning of a segment that stays: its size, and the offset after its last batch.

    `log_end_offset` is the segment's base offset if no batch stays, as for a broker. `open_transactions` has by
    producer id the first offsets of transactions that end after it.
    """

    size_in_bytes: int
    log_end_offset: int
    open_transactions: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Amount:
    """The amount of data in a part of a log; transaction markers count as batches, not as records.

    `log_end_offset` is the offset after its last complete batch, None if it has none; `last_epoch` is the highest
    leader epoch of its batches, -1 if it has none.
    """

    records: int = 0
    batches: int = 0
    size_in_bytes: int = 0
    log_end_offset: int | None = None
    last_epoch: int = -1

    def __add__(self, later: Amount) -> Amount:
        end = self.log_end_offset if later.log_end_offset is None else later.log_end_offset
        return Amount(
            self.records + later.records,
            self.batches + later.batches,
            self.size_in_bytes + later.size_in_bytes,
            end,
            max(self.last_epoch, later.last_epoch),
        )


def open_transactions(root: Folder, snapshot: str) -> dict[int, int]:
    """Return the first offsets of the open transactions in a producer snapshot, by producer id.

    Returns nothing for a snapshot that is missing or has another version. Raises OSError.
    """
    try:
        with root.reader(snapshot) as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    if len(data) < _SNAPSHOT.size or data[:2] != _SNAPSHOT_VERSION:
        return {}
    count = min(_SNAPSHOT.unpack_from(data)[2], (len(data) - _SNAPSHOT.size) // _PRODUCER.size)
    entries = (_PRODUCER.unpack_from(data, _SNAPSHOT.size + index * _PRODUCER.size) for index in range(count))
    return {entry[0]: entry[-1] for entry in entries if entry[-1] >= 0}


def kept_part(
    root: Folder,
    segment: str,
    base_offset: int,
    cut_offset: int,
    open_before: Mapping[int, int],
    progress: Add = unwatched,
) -> KeptPart:
    """Return what stays of a segment if the log is cut at an offset; `open_before` are transactions open at its start.

    `progress` is called with the number of bytes checked.

    Raises:
        RefusedError: a batch spans the cut, has an old format, or is corrupt.
        OSError: the file cannot be read.
    """
    size_in_bytes, log_end_offset, still_open = 0, base_offset, dict(open_before)
    data = _mapped(root, segment)
    try:
        for header in batch_headers(data):
            if header.base_offset >= cut_offset:
                return KeptPart(size_in_bytes, log_end_offset, still_open)
            _require_good(data, header, cut_offset, segment)
            size_in_bytes, log_end_offset = header.position + header.size_in_bytes, header.next_offset
            progress(header.size_in_bytes)
            if header.is_control:
                still_open.pop(header.producer_id, None)
            elif header.is_transactional:
                still_open.setdefault(header.producer_id, header.base_offset)
    except CorruptBatchError as error:
        raise RefusedError(f"{_name(segment)}: {error.message}", RECOVER_FIRST) from None
    if size_in_bytes != len(data):
        raise RefusedError(f"{_name(segment)} ends with an incomplete batch at offset {log_end_offset}", RECOVER_FIRST)
    return KeptPart(size_in_bytes, log_end_offset, still_open)


def amount(root: Folder, segment: str, position: int = 0, progress: Add = unwatched) -> Amount:
    """Return how much a segment holds from a position, the start of a batch; bytes count up to the end of the file.

    `progress` is called with the number of bytes counted.

    Raises:
        RefusedError: a batch has an old format.
        OSError: the file cannot be read.
    """
    records = batches = 0
    log_end_offset, last_epoch = None, -1
    data = _mapped(root, segment)[position:]
    with suppress(CorruptBatchError):  # an unclean end of the last segment; it is removed too
        for header in batch_headers(data):
            _require_format(header, segment)
            records += 0 if header.is_control else header.record_count
            batches += 1
            log_end_offset, last_epoch = header.next_offset, max(last_epoch, header.partition_leader_epoch)
            progress(header.size_in_bytes)
    return Amount(records, batches, len(data), log_end_offset, last_epoch)


def _require_good(data: memoryview, header: BatchHeader, cut_offset: int, segment: str) -> None:
    _require_format(header, segment)
    if header.next_offset > cut_offset:
        raise RefusedError(
            f"the cut at {cut_offset} is inside a batch (offsets {header.base_offset} to {header.next_offset - 1})",
            "a log can be cut only between batches; the plan is not for this log",
        )
    if crc_of(data[header.position : header.position + header.size_in_bytes]) != header.crc:
        raise RefusedError(
            f"{_name(segment)}: the batch at offset {header.base_offset} is corrupt; the broker would truncate the"
            " log there",
            "restore this replica from another broker",
        )


def _require_format(header: BatchHeader, segment: str) -> None:
    if header.magic != 2:
        raise RefusedError(
            f"{_name(segment)} holds message format {header.magic} (offset {header.base_offset})",
            "only logs in format 2 can be truncated; recreate the topic instead",
        )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _mapped(root: Folder, path: str) -> memoryview:
    """Return a file's bytes; they are unmapped when nothing refers to them any more."""
    with root.reader(path) as file:
        if file.seek(0, 2) == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
