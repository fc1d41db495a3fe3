"""What waits to be appended to one partition, what is on its way there, and what may go out now. No I/O here."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

from kmirror.cluster.append import OffsetAppender, as_run
from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.pieces import Run
from kmirror.cluster.protocol.records import Record, make_batch
from kmirror.errors import KmirrorError

_BATCH_BYTES = 256 << 10
#: What a record takes beside its key, value and headers, roughly.
_RECORD_BYTES = 16
#: Clocks may differ by this much before the age of the leader's memory is misjudged.
_CLOCK_SLACK_MS = 30_000


class AppendStoppedError(KmirrorError):
    """An append that was not tried because one before it failed; go on from `log_end_offset` after `resume`.

    `log_end_offset` is None where it is not known, because the fate of what was sent is not: wait ten seconds.
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


class Appending:
    """One call of `append`, on its way: records to be put into a batch, or a batch as it is (`run`)."""

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
        """Tell whether it is known how it ended."""
        return self._is_done

    def result(self, timeout: float | None = None) -> int:
        """Wait until the records are appended, and return the log end after them.

        Raises:
            TimeoutError: it is not known after so many seconds; it goes on all the same.
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
        """Return it as one batch. Raises CorruptBatchError where a record cannot be written."""
        return self.run or _run_of([self])

    def end(self, error: Exception | None = None) -> None:
        """Note how it ended; who waits is told by the pipeline."""
        self._error = error
        self.records, self.run = (), None
        self._is_done = True


class Batch:
    """What is sent to a partition in one piece."""

    __slots__ = ("items", "run", "size")

    def __init__(self, items: list[Appending], run: Run) -> None:
        self.items, self.run = items, run
        self.size = sum(item.size for item in items)


class PartitionQueue:
    """One partition; `inbox`, `next_offset` and `stopped` are shared with callers, all else is the thread's own."""

    def __init__(self, place: TopicPartition, appender: OffsetAppender) -> None:
        self.place = place
        self.appender = appender
        #: What follows all that was given to `append`.
        self.next_offset = appender.log_end_offset
        self.inbox: list[Appending] = []
        self.queue: deque[Appending] = deque()
        self.stopped: AppendStoppedError | None = None
        #: Node id, host and port of the leader, and the topic's id; None where it is to be looked up.
        self.leader: tuple[int, str, int, bytes] | None = None
        self.expiration_ms: int | None = None
        #: Batches on their way, and those before and behind one that went wrong, in the order of their offsets.
        self.in_flight: deque[Batch] = deque()
        self.unsettled: deque[Batch] = deque()
        self.is_troubled = False
        #: Some of what was sent may have been written without our knowing.
        self.in_doubt = False
        #: Where a batch belongs, and where the leader put it.
        self.landed_elsewhere: tuple[int, int] | None = None

    @property
    def is_remembered(self) -> bool:
        """True while the leader surely knows our producer id, whatever comes of the batches in flight."""
        kept_by = self.appender.last_timestamp
        if kept_by is None or self.expiration_ms is None:
            return False
        oldest = min([kept_by, *(batch.run.max_timestamp for batch in (*self.in_flight, *self.unsettled))])
        return oldest + self.expiration_ms - _CLOCK_SLACK_MS > time.time_ns() // 1_000_000

    @property
    def end(self) -> int:
        """Where the log ends once all that is in flight is appended."""
        return self.in_flight[-1].run.next_offset if self.in_flight else self.appender.log_end_offset

    @property
    def may_send(self) -> bool:
        """True where the next batch may go out now."""
        if self.is_troubled or not self.queue or self.queue[0].base_offset != self.end:
            return False
        return not self.in_flight or self.is_remembered

    @property
    def needs_care(self) -> bool:
        """True where something is to be done about it that is not plain, and can be done now."""
        if self.in_flight or self.stopped is not None:
            return False
        is_held_up = self.leader is None or (self.queue and self.queue[0].base_offset != self.end)
        return self.is_troubled or bool(self.queue and is_held_up)

    def next_batch(self) -> Batch:
        """Take the next batch from the queue. Raises CorruptBatchError where it cannot be written; it is taken, too."""
        items = [self.queue.popleft()]
        size, end, is_whole = items[0].size, items[0].next_offset, items[0].run is not None
        while self.queue and not is_whole:
            item = self.queue[0]
            if item.run is not None or item.base_offset != end or size + item.size > _BATCH_BYTES:
                break
            items.append(self.queue.popleft())
            size, end = size + item.size, item.next_offset
        try:
            return Batch(items, items[0].run or _run_of(items))
        except CorruptBatchError:
            # which of them it is, is found one by one
            self.unsettled.append(Batch(items, UNMADE))
            self.is_troubled = True
            raise


def _run_of(items: Sequence[Appending]) -> Run:
    """Put records into one batch. Raises CorruptBatchError where one cannot be written."""
    records = [record for item in items for record in item.records]
    try:
        batch = memoryview(make_batch(records))
    except Exception as error:  # whatever there is in keys, values and headers that is no such thing
        raise CorruptBatchError(records[0].offset, str(error) or type(error).__name__) from error
    return Run(records[0].offset, records[-1].offset + 1, max(record.timestamp for record in records), batch)


#: Stands for a batch that could not be made of several items.
UNMADE = Run(0, 0, 0, memoryview(b""))
