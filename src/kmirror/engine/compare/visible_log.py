"""One partition's log as a read_committed consumer sees it: its data batches in order, read ahead. Blocking.

What a consumer never sees is left out: markers, and batches of aborted transactions. Messages of the formats 0 and 1
are unwrapped. Every batch's checksum is verified before the batch is returned.

A log may have less than requested, and each case is reported:

* it starts later (retention, DeleteRecords), perhaps only since reading began: `floor`;
* it ends earlier: `ended_at` is where consumers stop reading; `log_end_offset` is higher while a transaction is open
  (`has_open_transaction`), a follower lags, or too few replicas are in sync.

A log that returns nothing although it goes on is neither: reading it raises SilentLogError.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup, require
from kmirror.cluster.protocol.batch import (
    COMPRESSION_MASK,
    COMPRESSION_TYPES,
    BatchHeader,
    CorruptBatchError,
    OversizedBatchError,
    UnsupportedFormatError,
    crc_of,
)
from kmirror.cluster.protocol.batch_records import Record, read_records
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.isolation import BatchKind, Isolation
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.old_format import read_messages
from kmirror.cluster.protocol.read_up_to import AtEnd, Batches, NoBatches
from kmirror.cluster.reader import PartitionReader, SilentLogError
from kmirror.cluster.topics.leaders import is_older, newest_leaders
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import BrokerError, Reason, TimedOutError

_FORMAT = 2
_FETCH_BYTES = 1 << 20
_WAIT_MS = 500
#: How long to wait for a log to reach the requested offset: a new leader learns its high watermark from the next
#: fetch of its followers.
_PATIENCE_S = 3.0


class UnknownFormatError(UnsupportedFormatError):
    """A batch has an unreadable format or codec; all records below `offset` precede it."""

    def __init__(self, offset: int, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint, Reason.UNSUPPORTED_MESSAGE_FORMAT)
        self.args = (offset, message, hint)
        self.offset = offset


class VisibleBatch(NamedTuple):
    """One stored batch at `header.position` of `data`.

    Batches of format 0 or 1 are already read (`unwrapped`); of their header only the offsets are valid.
    """

    data: memoryview
    header: BatchHeader
    unwrapped: Sequence[Record] | None = None

    def records(self) -> Iterator[Record]:
        """Return the records; raises CorruptBatchError."""
        return read_records(self.data, self.header) if self.unwrapped is None else iter(self.unwrapped)


class Log(Protocol):
    """What comparisons need of a log; see `VisibleLog`."""

    @property
    def floor(self) -> int: ...
    @property
    def ended_at(self) -> int | None: ...
    @property
    def log_end_offset(self) -> int | None: ...
    @property
    def has_open_transaction(self) -> bool: ...
    def batches(self) -> Iterator[VisibleBatch]: ...
    def scan(self, start: int | None = None, end: int | None = None) -> Generator[Record, None, None]: ...
    def is_compacted(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Section:
    """The result of one read: batches and where to continue, or the end of the log."""

    data: memoryview
    headers: Sequence[BatchHeader]
    aborted: Sequence[AbortedTransaction]
    next_offset: int
    floor: int
    #: None while there may be more.
    ended_at: int | None = None
    log_end_offset: int | None = None
    has_open_transaction: bool = False


def visible_batches(
    data: memoryview,
    headers: Iterable[BatchHeader],
    aborted_transactions: Iterable[AbortedTransaction],
    start: int = 0,
) -> Iterator[VisibleBatch]:
    """Yield the batches of one fetch response that a read_committed consumer sees.

    `aborted_transactions` is the list in the response. Offsets below `start` do not matter.

    Raises:
        CorruptBatchError: a checksum does not match, or an old message or a marker cannot be read.
        UnknownFormatError: a message format or codec cannot be read.
    """
    isolation = Isolation(aborted_transactions)
    reached = start
    for header in headers:
        whole = data[header.position : header.position + header.size_in_bytes]
        if header.magic < _FORMAT:
            yield _unwrapped(whole, header, reached)
        elif header.magic > _FORMAT:
            raise _unknown(reached, header, f"message format {header.magic}")
        else:
            crc = crc_of(whole)
            if crc != header.crc:
                detail = f"its checksum is {crc:08x}, its header says {header.crc:08x}"
                raise CorruptBatchError(header.base_offset, detail)
            if isolation.kind(whole) is BatchKind.DATA:
                codec = header.attributes & COMPRESSION_MASK
                if codec >= len(COMPRESSION_TYPES):
                    raise _unknown(header.base_offset, header, f"the unknown compression type {codec}")
                yield VisibleBatch(data, header)
        reached = max(reached, header.next_offset)


def _unwrapped(whole: memoryview, header: BatchHeader, reached: int) -> VisibleBatch:
    """Read a message of an old format, which may wrap many; `reached` is the lowest offset that it can contain."""
    try:
        _, messages = read_messages(whole)
    except OversizedBatchError as error:
        raise UnknownFormatError(reached, error.message, error.hint) from None
    except CorruptBatchError as error:
        raise CorruptBatchError(reached, f"the message at offset {header.base_offset}: {error.detail}") from None
    except UnsupportedFormatError as error:
        raise UnknownFormatError(reached, error.message, error.hint) from None
    # a wrapper has the offset of the last message in it
    first, end = messages[0].offset, header.next_offset
    known = header._replace(base_offset=first, last_offset_delta=end - 1 - first, record_count=len(messages))
    return VisibleBatch(whole, known._replace(position=0), [Record(*message) for message in messages])


def _unknown(offset: int, header: BatchHeader, what: str) -> UnknownFormatError:
    return UnknownFormatError(
        offset,
        f"the batch at offset {header.base_offset} has {what}",
        "a later version of kmirror may support it; or rewrite its records with a current client",
    )


def compacted_topics(client: ClusterClient, topics: Iterable[str]) -> frozenset[str]:
    """Return those of the topics whose cleanup.policy removes superseded records.

    Raises:
        BrokerError: the settings of a topic cannot be read.
    """
    compacted = set()
    for topic, settings in topic_settings(client, topics, ["cleanup.policy"]).items():
        if isinstance(settings, int):
            raise BrokerError(settings, code_name(settings), f"reading the settings of {topic}")
        if any("compact" in (setting.value or "") for setting in settings.values()):
            compacted.add(topic)
    return frozenset(compacted)


def _up_to(headers: Iterable[BatchHeader], end: int) -> list[BatchHeader]:
    """Return the batches up to the one that reaches `end`."""
    found = []
    for header in headers:
        found.append(header)
        if header.next_offset >= end:
            break
    return found


class VisibleLog:
    """Read one partition from `start` to `end`; one fetch runs ahead on `executor`, over a long path many.

    The client must have no other user meanwhile. Raises UnreachableError, BrokerError, SilentLogError.
    """

    def __init__(
        self, client: ClusterClient, partition: TopicPartition, start: int, end: int, executor: Executor
    ) -> None:
        self.floor = start
        self.ended_at: int | None = None
        self.log_end_offset: int | None = None
        self.has_open_transaction = False
        self._client = client
        self._partition = partition
        self._start = start
        self._end = end
        self._executor = executor
        self._reader = PartitionReader(client, partition, read_committed=True)
        self._ahead: Future[_Section] | None = None
        self._compacted: bool | None = None

    def batches(self) -> Iterator[VisibleBatch]:
        """Yield the visible batches with offsets in the range; the first and the last may have others too.

        The first fetch is sent now.
        """
        if self._start < self._end:
            self._reader.read_ahead(self._end)
            self._ahead = self._executor.submit(self._read, self._start)
        return self._batches()

    def _batches(self) -> Iterator[VisibleBatch]:
        offset = self._start
        try:
            while self._ahead is not None:
                section = self._ahead.result()
                reached, offset, self.floor = offset, section.next_offset, section.floor
                self.ended_at, self.log_end_offset = section.ended_at, section.log_end_offset
                self.has_open_transaction = section.has_open_transaction
                if self.ended_at is not None:
                    return
                # the next response travels while this one is processed
                self._ahead = self._executor.submit(self._read, offset) if offset < self._end else None
                yield from visible_batches(section.data, section.headers, section.aborted, reached)
            self.ended_at = self._end
        finally:
            self._reader.close()

    def scan(self, start: int | None = None, end: int | None = None) -> Generator[Record, None, None]:
        """Yield visible records of another range of the same log; None for the current log start and end."""
        self._await_ahead()
        log_start, _, _, readable_end = self._bounds()
        first = log_start if start is None else max(start, log_start)
        last = readable_end if end is None else min(end, readable_end)
        other = VisibleLog(self._client, self._partition, first, last, self._executor)
        try:
            for batch in other.batches():
                yield from (record for record in batch.records() if first <= record.offset < last)
        finally:
            other._await_ahead()

    def is_compacted(self) -> bool:
        """Return True if the topic's cleanup.policy removes superseded records."""
        if self._compacted is None:
            self._await_ahead()
            self._compacted = bool(compacted_topics(self._client, [self._partition.topic]))
        return self._compacted

    def require_newest_leader(self) -> None:
        """Raise TimedOutError if there may be a newer leader, whose log ends later; UnreachableError, as reading."""
        self._await_ahead()
        found = newest_leaders(self._client, [self._partition])
        if found.leader(self._partition) is None or is_older(self._partition, self._reader.leader, found):
            raise TimedOutError(f"the leader of {self._partition} has changed since it was read", "try again")

    def _await_ahead(self) -> None:
        """Wait for the fetch that runs ahead: the client handles one request at a time."""
        if self._ahead is not None:
            wait([self._ahead])

    def _read(self, offset: int) -> _Section:
        nothing = memoryview(b"")
        floor = self.floor
        deadline, ended_at = time.monotonic() + _PATIENCE_S, -1
        while True:
            refused: BrokerError | None = None
            try:
                found = self._reader.read_on(offset, max_bytes=_FETCH_BYTES, max_wait_ms=_WAIT_MS)
            except BrokerError as error:
                if error.code != Code.OFFSET_OUT_OF_RANGE:
                    raise
                refused = error
                start = self._bounds()[0]
                if offset < start:
                    offset = floor = start
                    if start >= self._end:
                        return _Section(nothing, (), (), self._end, floor)
                    continue
                time.sleep(_WAIT_MS / 1000)
            else:
                if isinstance(found, Batches):
                    headers = _up_to(found.headers, self._end)
                    return _Section(found.data, headers, found.aborted_transactions, headers[-1].next_offset, floor)
                if isinstance(found, NoBatches):
                    offset = found.until
                    if offset >= self._end:
                        return _Section(nothing, (), (), self._end, floor)
            if time.monotonic() > deadline:
                _, log_end, high_watermark, readable_end = self._bounds()
                if readable_end <= offset:
                    # every marker below the log end is replicated, and counts
                    is_open = high_watermark >= log_end > readable_end
                    return _Section(nothing, (), (), offset, floor, readable_end, log_end, is_open)
                if refused is not None:
                    raise refused
                if isinstance(found, AtEnd) and ended_at != offset:
                    ended_at = offset  # a transaction may just have ended
                elif isinstance(found, AtEnd):
                    why = f"the leader that was read from ends at {found.end}"
                    raise SilentLogError(self._partition, offset, readable_end, why)

    def _bounds(self) -> list[int]:
        """Return log start, log end, high watermark and last stable offset, looked up in this order."""
        lookups = [Lookup(EARLIEST), Lookup(LATEST, log_end=True), Lookup(LATEST), Lookup(LATEST, read_committed=True)]
        offsets = []
        for answers in self._client.look_up_offsets([self._partition], lookups):
            answer = answers[self._partition]
            require(answer.error_code, f"looking up the offsets of {self._partition}")
            offsets.append(answer.offset or 0)
        return offsets
