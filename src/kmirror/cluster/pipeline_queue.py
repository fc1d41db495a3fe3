"""The appends to one partition, and to one broker: what waits, what is in flight, what may be sent now. No I/O here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kmirror.cluster.append import OffsetAppender, as_run
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import LeaderAddress, TopicPartition
from kmirror.cluster.protocol.pieces import Run
from kmirror.cluster.stream import Stream
from kmirror.errors import HistoriesDifferError, KmirrorError

#: Brokers remember the last five batches of a producer.
REQUESTS_IN_FLIGHT = 5
#: A request is sent when this much waits to be sent, or this long after the last one.
_ENOUGH_BYTES = 64 << 10
_LINGER_S = 0.005
_ANSWER_BYTES = 64 << 10
_BATCH_BYTES = 256 << 10
#: The approximate size of a record without its key, value and headers.
_RECORD_BYTES = 16
#: The largest clock difference at which we still judge correctly whether the leader remembers our producer id.
_CLOCK_SLACK_MS = 30_000


class AppendStoppedError(KmirrorError):
    """An append that was not tried because an earlier one failed; continue from `log_end_offset` after `resume`.

    `log_end_offset` is None if it is unknown, because the outcome of what was sent is: wait ten seconds.
    """

    def __init__(self, partition: TopicPartition, log_end_offset: int | None, why: str) -> None:
        where = "its log end is unknown" if log_end_offset is None else f"it ends at offset {log_end_offset}"
        super().__init__(
            f"appending to {partition} has stopped, {where}: {why}",
            "call resume() and append again from the offset that it returns",
        )
        self.args = (partition, log_end_offset, why)
        self.partition = partition
        self.log_end_offset = log_end_offset
        self.why = why


class PendingAppend:
    """The future of one call of `append`: records to be put into a batch, or a batch as it is (`run`)."""

    __slots__ = ("_changed", "_error", "_is_done", "base_offset", "next_offset", "records", "run", "size")

    def __init__(
        self, given: Iterable[Record] | memoryview | bytes | bytearray, changed: threading.Condition | None = None
    ) -> None:
        self.run: Run | None = None
        self.records: Sequence[Record] = ()
        if isinstance(given, memoryview | bytes | bytearray):
            run = self.run = as_run(given)
            self.base_offset, self.next_offset, self.size = run.base_offset, run.next_offset, len(run.data)
        else:
            records = self.records = list(given)
            if not records:
                raise CorruptBatchError(-1, "there are no records")
            offset = self.base_offset = records[0].offset
            size = 0
            for record in records:
                if record.offset != offset:
                    raise CorruptBatchError(self.base_offset, "a batch needs records at consecutive offsets")
                offset += 1
                size += _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
                for name, content in record.headers:
                    size += len(name) + len(content or b"")
            self.next_offset, self.size = offset, size
        self._changed = changed or threading.Condition()
        self._is_done = False
        self._error: Exception | None = None

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._is_done

    def result(self, timeout: float | None = None) -> int:
        """Wait until the records are appended, and return the log end after them.

        Raises:
            TimeoutError: the outcome is not known after `timeout` seconds; the append continues.
            what `OffsetAppender.append` raises, or AppendStoppedError.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self.next_offset

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait, and return why the records were not appended; None where they were. Raises TimeoutError."""
        if not self._is_done:
            with self._changed:
                if not self._changed.wait_for(self.done, timeout):
                    raise TimeoutError("not answered yet")
        return self._error

    def as_run(self) -> Run:
        """Return the records as one batch. Raises CorruptBatchError if a record cannot be encoded."""
        return self.run or _run_of([self])

    def end(self, error: Exception | None = None) -> None:
        """Record the outcome; the pipeline wakes the threads that wait for it."""
        self._error = error
        self.records, self.run = (), None
        self._is_done = True


class PendingBatch:
    """Appends that are sent to a partition as one batch."""

    __slots__ = ("items", "run", "size")

    def __init__(self, items: list[PendingAppend], run: Run) -> None:
        self.items, self.run = items, run
        self.size = sum(item.size for item in items)


class PartitionQueue:
    """One partition; `inbox`, `next_offset` and `stopped` are shared with callers, all else is the thread's own."""

    def __init__(self, partition: TopicPartition, appender: OffsetAppender) -> None:
        self.partition = partition
        self.appender = appender
        #: The offset after everything that was given to `append`.
        self.next_offset = appender.log_end_offset
        self.inbox: list[PendingAppend] = []
        self.queue: deque[PendingAppend] = deque()
        self.stopped: AppendStoppedError | None = None
        #: None where it has to be looked up.
        self.leader: LeaderAddress | None = None
        self.expiration_ms: int | None = None
        #: Batches in flight, and those that were in flight around one that failed, in the order of their offsets.
        self.in_flight: deque[PendingBatch] = deque()
        self.unsettled: deque[PendingBatch] = deque()
        self.is_troubled = False
        #: Some of what was sent may have been appended without an answer that says so; some may yet arrive.
        self.in_doubt = False
        self.may_arrive = False
        #: The error of a batch that the leader did not append as it was sent.
        self.altered: HistoriesDifferError | None = None

    @property
    def is_remembered(self) -> bool:
        """True while the leader surely remembers our producer id, whatever the outcome of the batches in flight."""
        kept_by = self.appender.last_timestamp
        if kept_by is None or self.expiration_ms is None:
            return False
        oldest = min([kept_by, *(batch.run.max_timestamp for batch in (*self.in_flight, *self.unsettled))])
        return oldest + self.expiration_ms - _CLOCK_SLACK_MS > time.time_ns() // 1_000_000

    @property
    def end(self) -> int:
        """The log end once everything in flight is appended."""
        return self.in_flight[-1].run.next_offset if self.in_flight else self.appender.log_end_offset

    @property
    def may_send(self) -> bool:
        """True if the next batch may be sent now."""
        if self.is_troubled or not self.queue or self.queue[0].base_offset != self.end:
            return False
        return not self.in_flight or self.is_remembered

    @property
    def is_blocked(self) -> bool:
        """True if nothing can be sent before recovery, a leader look-up or filling, which can be done now."""
        if self.in_flight or self.stopped is not None:
            return False
        is_held_up = self.leader is None or (self.queue and self.queue[0].base_offset != self.end)
        return self.is_troubled or bool(self.queue and is_held_up)

    def next_batch(self) -> PendingBatch:
        """Take the next batch from the queue. Raises CorruptBatchError if it cannot be encoded; it is removed, too."""
        items = [self.queue.popleft()]
        size, end, is_whole = items[0].size, items[0].next_offset, items[0].run is not None
        while self.queue and not is_whole:
            item = self.queue[0]
            if item.run is not None or item.base_offset != end or size + item.size > _BATCH_BYTES:
                break
            items.append(self.queue.popleft())
            size, end = size + item.size, item.next_offset
        try:
            return PendingBatch(items, items[0].run or _run_of(items))
        except CorruptBatchError:
            # recovery appends them one by one, and so finds the bad one
            self.unsettled.append(PendingBatch(items, UNBUILT))
            self.is_troubled = True
            raise


class SentRequest(NamedTuple):
    """A Produce request in flight, with the batches that are in it."""

    correlation_id: int
    sent_at: float
    batches: list[tuple[PartitionQueue, PendingBatch]]


class BrokerQueue:
    """A connection to a broker, and the requests in flight on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.stream = Stream(connection, _ANSWER_BYTES)
        self.version = connection.version_for(produce.API)
        self.requests: deque[SentRequest] = deque()
        self._last_sent_at = 0.0

    @property
    def has_room(self) -> bool:
        """True while another request may be sent."""
        held_up = self.stream.sending or self.connection.is_throttled or self.connection.must_be_replaced
        return len(self.requests) < REQUESTS_IN_FLIGHT and not held_up

    def seconds_left(self, waiting_bytes: int, now: float) -> float:
        """Return the time until a request may be sent if there is room; `waiting_bytes` wait to be sent."""
        return 0.0 if waiting_bytes >= _ENOUGH_BYTES else max(0.0, self._last_sent_at + _LINGER_S - now)

    def sent(self, batches: list[tuple[PartitionQueue, PendingBatch]], now: float) -> int:
        """Note that these batches are sent now; return the correlation id of their request."""
        request = SentRequest(self.connection.next_correlation_id(), now, batches)
        self.requests.append(request)
        self._last_sent_at = now
        return request.correlation_id


def _run_of(items: Sequence[PendingAppend]) -> Run:
    """Put records into one batch. Raises CorruptBatchError if one cannot be encoded."""
    records = [record for item in items for record in item.records]
    try:
        batch = memoryview(make_batch(records))
    except Exception as error:  # keys, values and headers come from callers and may be of any type
        raise CorruptBatchError(records[0].offset, str(error) or type(error).__name__) from error
    return Run(records[0].offset, records[-1].offset + 1, max(record.timestamp for record in records), batch)


#: Stands for a batch that could not be built from several items.
UNBUILT = Run(0, 0, 0, memoryview(b""))
