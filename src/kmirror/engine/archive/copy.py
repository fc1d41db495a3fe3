"""Copy what consumers see of one partition into its archive. Blocking; it resumes exactly after a kill at any time.

The last record of the archive is the only checkpoint. Batches are appended at offsets (`cluster/append.py`) with a
producer id of the archive's own, so a batch that is sent twice is written once, and one that does not belong at the end
of the archive is rejected.

A new copy fences any earlier one: a marker raises the producer epoch, and only then the end of the archive is read.
Records older than `producer.id.expiration.ms` make the leader forget that at its next check; so each batch of such
records is followed by another marker, which restores it. Without the right to write markers (ALTER on the cluster)
there is neither: two copies of old records at the same time could then write twice. The check would find that before
anything is deleted.

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

from kmirror.cluster.append import OffsetAppender, StampedAppender
from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.producers import producer_expiration_ms
from kmirror.cluster.protocol.batch import COMPRESSION_MASK, COMPRESSION_TYPES, BatchHeader, CorruptBatchError, crc_of
from kmirror.cluster.protocol.batch_records import Record, make_batch, read_records
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.engine.archive.archive_topic import (
    Origin,
    Range,
    archive_producer_id,
    checked_ranges,
    is_left_over_filler,
    is_only_filler,
    origin_headers,
    origin_of,
)
from kmirror.engine.compare.logs import offset_of
from kmirror.engine.compare.visible_log import VisibleBatch, VisibleLog
from kmirror.errors import HistoriesDifferError, Reason, RefusedError
from kmirror.work import Add, unwatched

#: The size of a batch of the archive, unless a single record is larger or the archive takes less.
_BATCH_BYTES = 1 << 20
#: The bytes of a record in addition to its key, value and headers, including the three added headers.
_RECORD_OVERHEAD = 100
#: How far before the end of the archive to search for its last record first: markers may follow it.
_LOOK_BACK = 16
_TRIES = 20
_PAUSE_S = 0.05
_OLD_CODEC_POSITION = 17
_LARGEST = "max.message.bytes"


@dataclass(frozen=True, slots=True)
class Archived:
    """What one call has copied, after the record of original offset `resumed_after`; None if the archive was empty."""

    records: int
    resumed_after: int | None
    #: False if markers may not be written, see the module docstring.
    guarded: bool


class _End(NamedTuple):
    """The original offset of an archive's last record, the highest producer epoch of its last batches, and its end."""

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
    """Copy the records at offsets `ranges` of `partition` to the end of `archive`, after those already there.

    Call it always with the same ranges, ordered and disjoint, for one archive. What consumers do not see is left out:
    markers, aborted transactions, our filler. So are records that the log has already lost. Both clients, of one
    cluster, must have no other user meanwhile. `progress` is called for each appended batch with the number of newly
    copied offsets.

    Raises:
        RefusedError: the archive has other records, or takes no batch with one of these; the log does not show all of
            the ranges; FENCED: another copy has begun to write to the same archive.
        HistoriesDifferError: another client writes to the archive.
        CorruptBatchError, UnsupportedFormatError: a batch of the partition cannot be read.
        BrokerError: the cluster refuses.
        OutcomeUnknown: a batch was perhaps written, or may yet be; call again after ten seconds.
        UnreachableError: a leader does not respond.
    """
    wanted = checked_ranges(ranges)
    expiration_ms = _expiration_ms(writing)
    with ExitStack() as stack:
        out, guarded = _taken_over(stack, writing, archive)
        resumed_after = _end_of(writing, archive).offset
        if resumed_after is not None and not any(low <= resumed_after < high for low, high in wanted):
            raise RefusedError(
                f"archive {archive} ends with the record of offset {resumed_after}, which is not among these ranges",
                "use another archive",
            )
        writer = _Writer(out, expiration_ms if guarded else None, progress, archive, _largest_batch(writing, archive))
        executor = stack.enter_context(ThreadPoolExecutor(1, "read-ahead"))
        for low, high in _remaining(wanted, resumed_after):
            writer.begin(low)
            log = VisibleLog(reading, partition, low, high, executor)
            for batch in log.batches():
                for record in _records_to_save(batch, low, high):
                    writer.take(record, _codec_of(batch), batch.header.partition_leader_epoch)
            if log.ended_at is not None and log.ended_at < high:
                raise _hidden(partition, log, high)
        writer.flush()
    return Archived(writer.records, resumed_after, guarded)


def _taken_over(stack: ExitStack, client: ClusterClient, archive: TopicPartition) -> tuple[OffsetAppender, bool]:
    """Return an appender that alone has its producer epoch, and True; or, without the right, any appender and False.

    Two copies that read the same end of the archive at the same time would take the same epoch. So nothing but our own
    marker may follow the end that we read before.
    """
    for attempt in range(_TRIES):
        seen = _end_of(client, archive)
        out = stack.enter_context(StampedAppender(client, archive, producer_id=archive_producer_id(archive)))
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
    """Return after how long brokers forget a producer id; 0 if unknown for one."""
    nodes = list(client.metadata([]).brokers)
    expirations = producer_expiration_ms(client, nodes)
    return min((expirations.get(node, 0) for node in nodes), default=0)


def _largest_batch(client: ClusterClient, archive: TopicPartition) -> int:
    """Return the bytes of the largest batch that an archive takes, as far as is known."""
    found = topic_settings(client, [archive.topic], [_LARGEST])[archive.topic]
    value = None if isinstance(found, int) or _LARGEST not in found else found[_LARGEST].value
    return int(value) if value else 2**31 - 1


def _remaining(ranges: Sequence[Range], resumed_after: int | None) -> Iterator[Range]:
    for low, high in ranges:
        first = low if resumed_after is None else max(low, resumed_after + 1)
        if first < high:
            yield first, high


def _hidden(partition: TopicPartition, log: VisibleLog, high: int) -> RefusedError:
    if log.log_end_offset is not None and log.ended_at is not None and log.log_end_offset > log.ended_at:
        why = "a transaction is open there, or too few replicas are in sync"
        return RefusedError(f"{partition} shows consumers nothing from offset {log.ended_at} on: {why}", "try later")
    return RefusedError(
        f"{partition} ends at offset {log.ended_at}, before {high}: it has lost records", "check why it ends there"
    )


def _records_to_save(batch: VisibleBatch, low: int, high: int) -> Iterator[Record]:
    if is_only_filler(batch):
        return
    for record in batch.records():
        if low <= record.offset < high and not is_left_over_filler(batch, record):
            yield record


def _codec_of(batch: VisibleBatch) -> str:
    header = batch.header
    if batch.unwrapped is None:
        return header.compression_type
    return COMPRESSION_TYPES[batch.data[header.position + _OLD_CODEC_POSITION] & COMPRESSION_MASK]


def _end_of(client: ClusterClient, archive: TopicPartition) -> _End:
    """Read the end of an archive backwards, in growing stretches, until there is a record."""
    start, end = offset_of(client, archive, EARLIEST), offset_of(client, archive, LATEST)
    producer_id = archive_producer_id(archive)
    epoch, distance = -1, _LOOK_BACK
    while True:
        first = max(start, end - distance)
        newest: tuple[memoryview, BatchHeader] | None = None
        for section in PartitionReader(client, archive).batches(first, end):
            for header in section.headers:
                if header.producer_id == producer_id:
                    epoch = max(epoch, header.producer_epoch)
                if not header.is_control:
                    newest = section.data, header
        if newest is not None:
            return _End(_last_original_offset(archive, *newest), epoch, end)
        if first == start:
            return _End(None, epoch, end)
        distance *= 16


def next_original_offset(client: ClusterClient, archive: TopicPartition, start: int, end: int) -> int | None:
    """Return the original offset of an archive's next record from `start` to `end`; None without one.

    It is only a hint: a corrupt batch or one that is not an archive's counts as none.

    Raises:
        UnreachableError, BrokerError: the archive cannot be read.
    """
    try:
        for section in PartitionReader(client, archive).batches(start, end):
            for header in section.headers:
                if header.is_control:
                    continue
                record = next((one for one in read_records(section.data, header) if one.offset >= start), None)
                if record is not None:
                    found = origin_of(record)
                    return None if found is None else found[0].offset
    except CorruptBatchError:
        pass
    return None


def _last_original_offset(archive: TopicPartition, section: memoryview, header: BatchHeader) -> int:
    crc = crc_of(section[header.position : header.position + header.size_in_bytes])
    if crc != header.crc:
        raise CorruptBatchError(header.base_offset, f"the checksum of {archive} is {crc:08x}, not {header.crc:08x}")
    *_, last = read_records(section, header)
    found = origin_of(last)
    if found is None:
        raise RefusedError(
            f"{archive} holds a record at offset {last.offset} that is not an archived one", "use another archive"
        )
    return found[0].offset


class _Writer:
    """Group records into batches, and append them."""

    def __init__(
        self,
        out: OffsetAppender,
        expiration_ms: int | None,
        progress: Add,
        archive: TopicPartition,
        largest_batch: int,
    ) -> None:
        self._archive = archive
        self._largest_batch = largest_batch
        self.records = 0
        self._out = out
        #: None if no markers may be written.
        self._expiration_ms = expiration_ms
        self._progress = progress
        self._pending: list[Record] = []
        self._pending_bytes = 0
        self._codec = "none"
        self._next_offset = 0
        #: Progress is reported up to here.
        self._reported = 0

    def begin(self, offset: int) -> None:
        """Begin the next range of offsets."""
        self.flush()
        self._reported = offset

    def take(self, record: Record, codec: str, leader_epoch: int) -> None:
        """Add a record to the current batch, or begin the next batch."""
        if record.offset < self._next_offset:
            message = f"the log has a record at offset {record.offset} after the one at {self._next_offset - 1}"
            raise HistoriesDifferError(message, "its offsets should increase", Reason.CORRUPT_BATCH)
        size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
        size += sum(len(name) + len(value or b"") for name, value in record.headers)
        most = min(_BATCH_BYTES, self._largest_batch)
        if self._pending and (codec != self._codec or self._pending_bytes + size > most):
            self.flush()
        headers = record.headers + origin_headers(Origin(record.offset, leader_epoch, record.timestamp))
        self._pending.append(Record(0, record.timestamp, record.key, record.value, headers))
        self._pending_bytes += size
        self._codec = codec
        self._next_offset = record.offset + 1

    def flush(self) -> None:
        """Append the pending records."""
        if not self._pending:
            return
        self._append(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._progress(self._next_offset - self._reported)
        self._reported = self._next_offset

    def _append(self, records: Sequence[Record]) -> None:
        base = self._out.log_end_offset
        batch = make_batch(
            (Record(base + index, *_rest(record)) for index, record in enumerate(records)),
            compression_type=self._codec,
        )
        if len(batch) > self._largest_batch:
            self._require_several(records, len(batch))
            half = len(records) // 2
            for some in (records[:half], records[half:]):
                self._append(some)
            return
        self._out.append(batch)
        self.records += len(records)
        if self._expiration_ms is not None:
            latest_ms = max(record.timestamp for record in records)
            if latest_ms < time.time_ns() // 1_000_000 - self._expiration_ms // 2:
                self._out.renew()

    def _require_several(self, records: Sequence[Record], size: int) -> None:
        if len(records) == 1 and (found := origin_of(records[0])):
            raise RefusedError(
                f"{self._archive} takes batches of at most {self._largest_batch:,} bytes, but with the headers of an"
                f" archive the record at offset {found[0].offset} alone takes {size:,}",
                f"set {_LARGEST}={size} or more on {self._archive.topic}",
            )


def _rest(record: Record) -> tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    return record.timestamp, record.key, record.value, record.headers
