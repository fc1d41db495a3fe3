"""Copy what applications are shown of one partition into its archive. Blocking; killed at any time, it resumes exactly.

The archive's last record says how far it is; there is no other checkpoint. Batches are appended at offsets
(`cluster/append.py`) under a producer id of the archive's own, so what is sent twice is written once, and what does not
belong at the end of the archive is refused.

A copy that starts fences any earlier one: a marker raises the producer epoch, and only then the archive's end is
read. Records older than `producer.id.expiration.ms` make the leader forget all that, at its next look; so another
marker follows each batch of such records at once and brings it back. Without the right to write markers (ALTER on the
cluster) there is neither: two that copy old records at the same time could then write twice. That would be found by
`archive_check`, before anything is deleted.

This module runs in workers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.producer_expiration import producer_expiration_ms
from kmirror.cluster.protocol.batch import (
    COMPRESSION_MASK,
    COMPRESSION_TYPES,
    BatchHeader,
    CorruptBatchError,
    batch_headers,
    crc_of,
)
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.records import Record, make_batch, read_records
from kmirror.cluster.reader import read_batches
from kmirror.engine.archive.archive_topic import (
    Origin,
    Range,
    archive_producer_id,
    checked_ranges,
    origin_headers,
    origin_of,
)
from kmirror.engine.archive.not_archived import is_left_over_filler, is_only_filler
from kmirror.engine.compare.logs import offset_of
from kmirror.engine.compare.visible_log import Batch, VisibleLog
from kmirror.errors import HistoriesDifferError, Reason, RefusedError, UnreachableError
from kmirror.work import Add, unwatched

#: A batch of the archive takes about so many bytes of records, or one larger record.
_BATCH_BYTES = 1 << 20
#: What a record takes beside its key, value and headers, the three new ones included.
_RECORD_OVERHEAD = 100
#: How far before the archive's end its last record is looked for first: markers may follow it.
_LOOK_BACK = 16
_TRIES = 20
_PAUSE_S = 0.05
_OLD_CODEC_POSITION = 17


@dataclass(frozen=True, slots=True)
class Archived:
    """What one call has copied. `behind` is the old offset of what was there already, None where nothing was."""

    records: int
    size_in_bytes: int
    behind: int | None
    #: False where markers may not be written: see this module's first lines.
    guarded: bool


class _End(NamedTuple):
    """An archive's last record's old offset, the highest producer epoch of its last batches, and where it ends."""

    offset: int | None
    producer_epoch: int
    log_end_offset: int


def archive_partition(
    reading: ClusterClient,
    writing: ClusterClient,
    partition: TopicPartition,
    archive: TopicPartition,
    ranges: Sequence[Range],
    progress: Add = unwatched,
) -> Archived:
    """Copy the records at offsets `ranges` of `partition` to the end of `archive`, after those that are there already.

    Always to be called with the same ranges, in order and apart, for one archive. What no consumer is shown is left
    out: markers, aborted transactions, filler of ours. Records that the log has lost already are left out too.
    Both clients, of one cluster, must have no other user meanwhile. `progress` is given how many more offsets
    are behind it, after each batch appended.

    Raises:
        RefusedError: the archive holds something else; the log does not show all of the ranges; FENCED: another copy
            has begun to write the same archive.
        HistoriesDifferError: another client writes to the archive.
        CorruptBatchError, UnsupportedFormatError: a batch of the partition cannot be read.
        BrokerError: the cluster refuses.
        OutcomeUnknown: a batch may have been written, or will be; call again after ten seconds.
        UnreachableError: a leader does not answer.
    """
    wanted = checked_ranges(ranges)
    expiration_ms = _expiration_ms(writing)
    with ExitStack() as stack:
        out, guarded = _taken_over(stack, writing, archive)
        behind = _end_of(writing, archive).offset
        if behind is not None and not any(low <= behind < high for low, high in wanted):
            raise RefusedError(
                f"archive {archive} ends with the record of offset {behind}, which is not one of those to archive",
                "use another archive",
            )
        writer = _Writer(out, expiration_ms if guarded else None, progress)
        executor = stack.enter_context(ThreadPoolExecutor(1, "read-ahead"))
        for low, high in _left(wanted, behind):
            writer.begin(low)
            log = VisibleLog(reading, partition, low, high, executor)
            for batch in log.batches():
                for record in _records_to_save(batch, low, high):
                    writer.take(record, _codec_of(batch), batch.header.partition_leader_epoch)
            if log.ended_at is not None and log.ended_at < high:
                raise _hidden(partition, log, high)
        writer.flush()
    return Archived(writer.records, writer.size_in_bytes, behind, guarded)


def _taken_over(stack: ExitStack, client: ClusterClient, archive: TopicPartition) -> tuple[OffsetAppender, bool]:
    """Return an appender that is the only one of its producer epoch, and True; or any and False, without the right.

    Two copies that see the same end of the archive at the same time would take the same epoch. So nothing but
    our own marker may follow the end that we saw before.
    """
    for attempt in range(_TRIES):
        seen = _end_of(client, archive)
        out = stack.enter_context(OffsetAppender(client, archive, producer_id=archive_producer_id(archive)))
        try:
            out.take_over(above=seen.producer_epoch)
        except RefusedError as error:
            if error.reason is Reason.NOT_AUTHORIZED:
                return out, False
            if error.reason is not Reason.FENCED:
                raise
        if out.log_end_offset == seen.log_end_offset + 1:
            return out, True
        time.sleep(random.random() * _PAUSE_S * (attempt + 1))
    raise RefusedError(f"other clients write to {archive}", "run only one engine per mirror", Reason.FENCED)


def _expiration_ms(client: ClusterClient) -> int:
    """Return after how long brokers forget a producer id; 0 where one does not say."""
    nodes = list(client.metadata([]).brokers)
    told = producer_expiration_ms(client, nodes)
    return min((told.get(node, 0) for node in nodes), default=0)


def _left(ranges: Sequence[Range], behind: int | None) -> Iterator[Range]:
    for low, high in ranges:
        first = low if behind is None else max(low, behind + 1)
        if first < high:
            yield first, high


def _hidden(partition: TopicPartition, log: VisibleLog, high: int) -> RefusedError:
    if log.log_end_offset is not None and log.ended_at is not None and log.log_end_offset > log.ended_at:
        why = "a transaction is open there, or too few replicas are in sync"
        return RefusedError(f"{partition} shows consumers nothing from offset {log.ended_at} on: {why}", "try later")
    return RefusedError(f"{partition} ends at offset {log.ended_at}, before {high}: it has lost records", "look at it")


# -- what is saved -----------------------------------------------------------------------------------------------------


def _records_to_save(batch: Batch, low: int, high: int) -> Iterator[Record]:
    if is_only_filler(batch):
        return
    for record in batch.records():
        if low <= record.offset < high and not is_left_over_filler(batch, record):
            yield record


def _codec_of(batch: Batch) -> str:
    header = batch.header
    if batch.unwrapped is None:
        return header.compression_type
    return COMPRESSION_TYPES[batch.data[header.position + _OLD_CODEC_POSITION] & COMPRESSION_MASK]


# -- the archive -------------------------------------------------------------------------------------------------------


def _end_of(client: ClusterClient, archive: TopicPartition) -> _End:
    """Read the end of an archive backwards, in stretches that double, until there is a record."""
    start, end = offset_of(client, archive, EARLIEST), offset_of(client, archive, LATEST)
    producer_id = archive_producer_id(archive)
    epoch, distance = -1, _LOOK_BACK
    while True:
        first = max(start, end - distance)
        newest: tuple[memoryview, BatchHeader] | None = None
        reached = first
        for section, section_end in read_batches(client, archive, first, end):
            reached = section_end
            for header in batch_headers(section):
                if header.producer_id == producer_id:
                    epoch = max(epoch, header.producer_epoch)
                if not header.is_control:
                    newest = section, header
        if reached < end:
            raise UnreachableError(f"{archive} cannot be read up to its end {end}", "are all its replicas in sync?")
        if newest is not None:
            return _End(_last_old_offset(archive, *newest), epoch, end)
        if first == start:
            return _End(None, epoch, end)
        distance *= 16


def next_old_offset(client: ClusterClient, archive: TopicPartition, start: int, end: int) -> int | None:
    """Return which offset the next record from `start` on, below `end`, of an archive had; None without one.

    It only says where to look: a batch that is damaged, or no archive's, counts as none.

    Raises:
        UnreachableError, BrokerError: the archive cannot be read.
    """
    try:
        for section, _ in read_batches(client, archive, start, end):
            for header in batch_headers(section):
                if header.is_control:
                    continue
                record = next((one for one in read_records(section, header) if one.offset >= start), None)
                if record is not None:
                    found = origin_of(record)
                    return None if found is None else found[0].offset
    except CorruptBatchError:
        pass
    return None


def _last_old_offset(archive: TopicPartition, section: memoryview, header: BatchHeader) -> int:
    crc = crc_of(section[header.position : header.position + header.size_in_bytes])
    if crc != header.crc:
        raise CorruptBatchError(header.base_offset, f"the checksum of {archive} is {crc:08x}, not {header.crc:08x}")
    *_, last = read_records(section, header)
    found = origin_of(last)
    if found is None:
        raise RefusedError(
            f"{archive} holds a record at offset {last.offset} that is not an archive's", "use another archive"
        )
    return found[0].offset


class _Writer:
    """Put records together to batches, and append them."""

    def __init__(self, out: OffsetAppender, expiration_ms: int | None, progress: Add) -> None:
        self.records = 0
        self.size_in_bytes = 0
        self._out = out
        #: None where no markers may be written.
        self._expiration_ms = expiration_ms
        self._progress = progress
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._codec = "none"
        self._next_offset = 0
        #: Up to where progress was told.
        self._told = 0

    def begin(self, offset: int) -> None:
        """Begin another range of offsets."""
        self.flush()
        self._told = offset

    def take(self, record: Record, codec: str, leader_epoch: int) -> None:
        """Add a record to the batch, or begin another one."""
        if record.offset < self._next_offset:
            message = f"the log has a record at offset {record.offset} behind the one at {self._next_offset - 1}"
            raise HistoriesDifferError(message, "its offsets should grow", Reason.CORRUPT_BATCH)
        size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        if self._pending and (codec != self._codec or self._pending_bytes + size > _BATCH_BYTES):
            self.flush()
        headers = record.headers + origin_headers(Origin(record.offset, leader_epoch, record.timestamp))
        self._pending.append(Record(0, record.timestamp, record.key, record.value, headers))
        self._pending_bytes += size
        self._codec = codec
        self._next_offset = record.offset + 1

    def flush(self) -> None:
        """Append what is pending."""
        if not self._pending:
            return
        base = self._out.log_end_offset
        batch = make_batch(
            (Record(base + index, *_rest(record)) for index, record in enumerate(self._pending)),
            compression_type=self._codec,
        )
        self._out.append(batch)
        self.records += len(self._pending)
        self.size_in_bytes += len(batch)
        if self._expiration_ms is not None:
            latest_ms = max(record.timestamp for record in self._pending)
            if latest_ms < time.time_ns() // 1_000_000 - self._expiration_ms // 2:
                self._out.renew()
        self._pending.clear()
        self._pending_bytes = 0
        self._progress(self._next_offset - self._told)
        self._told = self._next_offset


def _rest(record: Record) -> tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    return record.timestamp, record.key, record.value, record.headers
