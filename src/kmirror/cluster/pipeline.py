"""Append records at the offsets they carry, to many partitions at once and without waiting for each answer.

    with AppendPipeline(config, producer_id=(1 << 62) + 1) as out:
        futures = [out.append(TopicPartition("orders", n % 12), [record]) for n, record in ...]

Records for a partition whose leader is busy are collected into one batch; a request holds a batch for each of a
broker's partitions, and up to five requests to a broker are in flight. `result()` of what `append` returns is the log
end after its records; the offset in every answer is checked.

The rules are those of `kmirror.cluster.append`, which also does everything out of the ordinary: filling, and recovery
from a lost connection, a moved leader or a refusal. A batch is sent before the one before it is answered only while the
leader surely remembers our producer id, so that a second batch cannot land in the place of a refused first one.

After an append fails, nothing more is sent to its partition: later appends fail with `AppendStoppedError`, which says
from which offset to continue, and `append` raises it until `resume` is called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Self, TypeVar

from kmirror.cluster.append import InvalidProduceOffsetError, OffsetAppender
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import SETTLE_S, Connection
from kmirror.cluster.loop import Loop
from kmirror.cluster.pipeline_queue import (
    UNBUILT,
    AppendStoppedError,
    BrokerQueue,
    PartitionQueue,
    PendingAppend,
    PendingBatch,
)
from kmirror.cluster.producers import producer_expiration_ms
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.batch import CorruptBatchError
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.codes import PERHAPS_WRITTEN, Code
from kmirror.cluster.protocol.metadata import LeaderAddress, TopicPartition
from kmirror.cluster.protocol.wire import FrameError
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, UnreachableError

_REQUEST_BYTES = 1 << 20
#: `append` waits while more than this is neither appended nor refused.
_MOST_BYTES = 16 << 20
#: How often to check whether a broker's throttle is over.
_THROTTLE_S = 0.05
_LONG_S = 3600.0

T = TypeVar("T")


class AppendPipeline:
    """Append to partitions of one cluster from a thread of its own; it must be their only writer.

    `append` may be called by any thread, for one partition in the order of offsets. Leaving the block waits for all
    answers.
    """

    def __init__(self, config: ClientConfig, *, producer_id: int) -> None:
        self._config = config
        self._producer_id = producer_id
        self._client = ClusterClient(config)
        self._partitions: dict[TopicPartition, PartitionQueue] = {}
        self._brokers: dict[int, BrokerQueue] = {}
        self._loop = Loop()
        #: Guards what callers and the thread share: the fields below, and `inbox`, `next_offset`, `stopped` of queues.
        self._changed = threading.Condition()
        self._ready: dict[PartitionQueue, None] = {}
        self._bytes = 0
        self._open_items = 0
        self._is_idle = False
        self._is_over = False
        self._fault: BaseException | None = None
        #: Of the bytes given to `append`, those in flight.
        self._bytes_in_flight = 0
        self._thread = threading.Thread(target=self._run, name="append-pipeline", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Wait for all answers, and close all connections. Raises as `flush`, unless another error is being raised."""
        try:
            if error is None:
                self.flush()
        finally:
            with self._changed:
                self._is_over = True
            self._loop.wake()
            self._thread.join()

    def log_end_offset(self, partition: TopicPartition) -> int:
        """Return the offset of the next append, after all that are in flight.

        Raises:
            as `OffsetAppender.__enter__`; AppendStoppedError.
        """
        found = self._partition(partition)
        with self._changed:
            if found.stopped is not None:
                raise found.stopped
            return found.next_offset

    def append(
        self, partition: TopicPartition, records: Iterable[Record] | memoryview | bytes | bytearray
    ) -> PendingAppend:
        """Append records, or one whole batch of format 2, at the offsets they carry; its result is the new log end.

        Offsets between the previous append and the first record are filled. Blocks while too much is in flight.

        Raises:
            InvalidProduceOffsetError: the log, with what is in flight, ends above the first offset.
            CorruptBatchError: the offsets are not consecutive, or the batch is broken.
            AppendStoppedError: an append before it failed; call `resume`.
            as `OffsetAppender.__enter__`, for the first append to a partition.
        """
        found = self._partitions.get(partition) or self._partition(partition)
        item = PendingAppend(records, self._changed)
        with self._changed:
            while self._bytes >= _MOST_BYTES and found.stopped is None and self._fault is None:
                self._changed.wait()
            self._require_open()
            if found.stopped is not None:
                raise found.stopped
            if item.base_offset < found.next_offset:
                raise InvalidProduceOffsetError(partition, item.base_offset, found.next_offset)
            found.inbox.append(item)
            found.next_offset = item.next_offset
            self._bytes += item.size
            self._open_items += 1
            self._ready[found] = None
            is_idle, self._is_idle = self._is_idle, False
        if is_idle:
            self._loop.wake()
        return item

    def resume(self, partition: TopicPartition) -> int:
        """Read where the log ends after an append failed, and continue there. Raises as `OffsetAppender.__enter__`.

        After OutcomeUnknown, wait ten seconds first.
        """
        return self._call(lambda: self._opened(partition)).next_offset

    def flush(self) -> None:
        """Wait until everything is answered.

        Raises:
            AppendStoppedError: of the first partition that has stopped.
        """
        with self._changed:
            while self._open_items and self._fault is None:
                self._changed.wait()
            self._require_open()
            for found in self._partitions.values():
                if found.stopped is not None:
                    raise found.stopped

    def _require_open(self) -> None:
        if self._fault is not None:
            raise KmirrorError(f"the pipeline has failed: {self._fault!r}", "use a new one") from self._fault
        if self._is_over:
            raise KmirrorError("the pipeline is closed", "use a new one")

    def _partition(self, partition: TopicPartition) -> PartitionQueue:
        found = self._partitions.get(partition)
        return found or self._call(lambda: self._partitions.get(partition) or self._opened(partition))

    def _call(self, function: Callable[[], T]) -> T:
        """Have the thread call a function, and return its result."""
        future: Future[T] = Future()

        def call(_: float) -> None:
            try:
                self._require_open()
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        with self._changed:
            self._require_open()
            self._loop.post(call)
        return future.result()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        fault: BaseException | None = None
        try:
            while not self._is_over:
                self._turn()
        except BaseException as error:
            fault = error
        finally:
            self._end(fault)

    def _end(self, fault: BaseException | None) -> None:
        """Fail everything that waits, and close all connections."""
        why = "the pipeline was closed" if fault is None else f"the pipeline has failed: {fault!r}"
        with self._changed:
            self._fault, self._is_over = fault, True
        self._loop.take_events()
        for found in self._partitions.values():
            sent = [item for batch in (*found.unsettled, *found.in_flight) for item in batch.items]
            self._fail(sent, OutcomeUnknown(f"appending to {found.partition}: {why}"))
            self._fail([*found.queue, *found.inbox], AppendStoppedError(found.partition, None, why))
        for broker in self._brokers.values():
            broker.stream.close()
        self._loop.close()
        self._client.close()

    def _turn(self) -> None:
        self._loop.take_events()
        with self._changed:
            ready, self._ready = self._ready, {}
            for found in ready:
                found.queue += found.inbox
                found.inbox.clear()
        for found in ready:
            if found.is_blocked:
                self._unblock(found)
        left = self._send(ready)
        with self._changed:
            # what callers added in the meantime comes after what already waits
            self._ready = {**dict.fromkeys(left), **self._ready}
            now = time.monotonic()
            pause = min((self._pause(found, now) for found in self._ready), default=None)
            if self._is_over:
                pause = 0
            self._is_idle = pause is None or pause == _LONG_S
        self._receive(None if self._is_idle else pause)

    def _pause(self, found: PartitionQueue, now: float) -> float:
        """Return for how many seconds nothing can be done for a partition, unless an answer comes."""
        if found.inbox or found.is_blocked:
            return 0
        broker = self._brokers.get(found.leader.node_id) if found.leader else None
        if broker is None or not found.may_send or not broker.has_room:
            return _LONG_S
        return broker.seconds_left(self._waiting_bytes, now)

    @property
    def _waiting_bytes(self) -> int:
        return self._bytes - self._bytes_in_flight

    def _opened(self, partition: TopicPartition) -> PartitionQueue:
        before = self._partitions.get(partition)
        if before is not None and before.stopped is None:
            raise KmirrorError(f"{partition} has not stopped", "resume only a partition that has stopped")
        appender = OffsetAppender(self._client, partition, producer_id=self._producer_id)
        found = PartitionQueue(partition, appender.__enter__())
        with self._changed:
            self._partitions[partition] = found
        return found

    def _unblock(self, found: PartitionQueue) -> None:
        """Recover from a failure, look up the leader, or fill the offsets before the next records."""
        if not found.is_troubled and found.leader is None:
            try:
                leader = found.appender.leader()
                expiration_ms = producer_expiration_ms(self._client, [leader.node_id]).get(leader.node_id)
                self._connect(leader)
                found.leader, found.expiration_ms = leader, expiration_ms
            except UnreachableError:
                # `_recover` retries, and so finds out whether that lasts
                found.unsettled.append(PendingBatch([found.queue.popleft()], UNBUILT))
                found.is_troubled = True
            except Exception as error:
                self._stop(found, error)
        if found.is_troubled:
            self._recover(found)
        if found.stopped is None and found.queue and found.queue[0].base_offset != found.end:
            try:
                found.appender.fill(found.queue[0].base_offset)
            except Exception as error:
                self._stop(found, error)

    def _connect(self, leader: LeaderAddress) -> None:
        node_id, host, port, *_ = leader
        known = self._brokers.get(node_id)
        if known is not None:
            if not known.connection.must_be_replaced or known.requests:
                return
            self._disconnect(node_id, known)
        connection = Connection.open(host, port, self._config)
        try:
            broker = self._brokers[node_id] = BrokerQueue(connection)
        except KmirrorError:
            connection.close()
            raise
        self._loop.add(broker.stream, lambda _: None)

    def _disconnect(self, node_id: int, broker: BrokerQueue) -> None:
        self._loop.remove(broker.stream)
        del self._brokers[node_id]

    def _send(self, ready: Iterable[PartitionQueue]) -> list[PartitionQueue]:
        """Send what may be sent, a request to each broker; return the partitions that have more."""
        left: list[PartitionQueue] = []
        requests: dict[int, tuple[list[produce.Append], list[tuple[PartitionQueue, PendingBatch]]]] = {}
        sizes: dict[int, int] = {}
        now = time.monotonic()
        for found in ready:
            broker = self._brokers.get(found.leader.node_id) if found.leader else None
            if broker is None or found.leader is None or (broker.connection.must_be_replaced and not broker.requests):
                found.leader = None
            elif found.may_send and broker.has_room and not broker.seconds_left(self._waiting_bytes, now):
                node_id = found.leader.node_id
                if not sizes.get(node_id) or sizes[node_id] + found.queue[0].size < _REQUEST_BYTES:
                    with suppress(CorruptBatchError):
                        batch = found.next_batch()
                        found.appender.assign_sequence(batch.run)
                        found.in_flight.append(batch)
                        appends, sent = requests.setdefault(node_id, ([], []))
                        topic, partition = found.partition
                        appends.append(produce.Append(topic, found.leader.topic_id, partition, batch.run.data))
                        sent.append((found, batch))
                        self._bytes_in_flight += batch.size
                        sizes[node_id] = sizes.get(node_id, 0) + len(batch.run.data)
            if found.stopped is None and (found.queue or found.is_troubled):
                left.append(found)
        for node_id, (appends, sent) in requests.items():
            broker = self._brokers[node_id]
            appends.sort(key=lambda append: append.topic)
            correlation_id = broker.sent(sent, now)
            try:
                broker.stream.send(
                    produce.request(
                        correlation_id,
                        broker.version,
                        self._config.client_id,
                        appends,
                        acks=produce.ACKS_ALL,
                        timeout_ms=self._config.request_timeout_ms,
                    )
                )
            except OutcomeUnknown:
                self._lost(node_id, broker)
        return left

    def _receive(self, timeout: float | None) -> None:
        """Read answers; wait `timeout` seconds for them or for a caller, None for as long as it takes."""
        oldest = min((b.requests[0].sent_at for b in self._brokers.values() if b.requests), default=None)
        patience = self._config.request_timeout_ms / 1000
        if timeout is None and oldest is not None:
            timeout = max(0.0, oldest + patience - time.monotonic())
        if any(broker.connection.is_throttled for broker in self._brokers.values()):
            timeout = _THROTTLE_S if timeout is None else min(timeout, _THROTTLE_S)
        for broker in self._brokers.values():
            self._loop.watch(broker.stream)
        self._loop.wait(timeout)
        for node_id, broker in list(self._brokers.items()):
            try:
                broker.stream.flush()
                while (frame := broker.stream.receive()) is not None:
                    self._answered(broker, frame)
                if broker.requests and time.monotonic() > broker.requests[0].sent_at + patience:
                    raise OutcomeUnknown(f"{broker.connection.address} has not answered for {patience:.0f} s")
            except (OutcomeUnknown, FrameError, ValueError):
                self._lost(node_id, broker)

    def _answered(self, broker: BrokerQueue, frame: memoryview) -> None:
        broker.stream.require_answer(frame, broker.requests[0].correlation_id if broker.requests else None)
        answers, throttle_time_ms = produce.answer(frame, broker.version)
        broker.connection.note_throttle(throttle_time_ms)
        by_id = broker.version >= produce.FIRST_VERSION_WITH_TOPIC_IDS
        by_partition = {(answer.topic, answer.partition): answer for answer in answers}
        for found, batch in broker.requests.popleft().batches:
            topic = found.leader.topic_id if by_id and found.leader else found.partition.topic
            self._settle(found, batch, by_partition.get((topic, found.partition.partition)))

    def _settle(self, found: PartitionQueue, batch: PendingBatch, answer: produce.AppendAnswer | None) -> None:
        """Take one partition's answer, None if there was none. Answers come in the order of the batches."""
        found.in_flight.popleft()
        self._bytes_in_flight -= batch.size
        code = None if answer is None else answer.error_code
        altered = found.appender.altered(batch.run, answer) if answer is not None and code == Code.NONE else None
        if code == Code.NONE and altered is None and not found.is_troubled:
            found.appender.appended(batch.run)
            self._succeed(batch.items)
            return
        found.unsettled.append(batch)
        found.is_troubled = True
        found.may_arrive = found.may_arrive or code is None
        found.in_doubt = found.in_doubt or code is None or code in PERHAPS_WRITTEN or code == Code.NONE
        found.altered = found.altered or altered
        with self._changed:
            self._ready[found] = None

    def _lost(self, node_id: int, broker: BrokerQueue) -> None:
        """Note that the outcome of everything in flight to a broker is unknown."""
        self._disconnect(node_id, broker)
        for request in broker.requests:
            for found, batch in request.batches:
                self._settle(found, batch, None)

    # -- recovery -----------------------------------------------------------------------------------------------------

    def _recover(self, found: PartitionQueue) -> None:
        """Find out which unsettled batches were appended; append the others, one after the other."""
        out, unsettled = found.appender, found.unsettled
        found.leader = None
        try:
            if found.altered is not None:
                raise found.altered
            if found.in_doubt:
                if found.may_arrive and not found.is_remembered:
                    time.sleep(SETTLE_S)
                state = out.read_state(in_doubt=True)
                ends = [out.log_end_offset, *(batch.run.next_offset for batch in unsettled if batch.run is not UNBUILT)]
                if state.log_end not in ends:
                    raise out.mismatch(f"it ends at offset {state.log_end} instead of {out.log_end_offset}")
                for _ in range(ends.index(state.log_end)):
                    out.appended(unsettled[0].run)
                    self._succeed(unsettled.popleft().items)
                out.resume(state)
            while unsettled:
                self._append_blocking(found, unsettled[0])
                unsettled.popleft()
            found.is_troubled = found.in_doubt = found.may_arrive = False
        except Exception as error:
            self._stop(found, error)

    def _append_blocking(self, found: PartitionQueue, batch: PendingBatch) -> None:
        out = found.appender
        try:
            if batch.run is not UNBUILT:
                out.append_run(batch.run, in_doubt=found.in_doubt)
                self._succeed(batch.items)
                return
        except BrokerError:
            if len(batch.items) == 1:
                raise
            out.resume(out.read_state())
        # the batch is refused, or could not be built: append its items one by one
        while batch.items:
            run = batch.items[0].as_run()
            if run.base_offset > out.log_end_offset:
                out.fill(run.base_offset)
            out.append_run(run)
            self._succeed([batch.items.pop(0)])

    def _stop(self, found: PartitionQueue, error: Exception) -> None:
        """Fail what is left of a partition: the append that failed, those sent with it, and those after it."""
        sent = [item for batch in found.unsettled for item in batch.items]
        found.unsettled.clear()
        stopped = AppendStoppedError(found.partition, None, str(error))
        with self._changed:
            found.stopped = stopped
            waiting = [*found.queue, *found.inbox]
            found.queue.clear()
            found.inbox.clear()
        if not sent and waiting:
            sent.append(waiting.pop(0))
        if not isinstance(error, OutcomeUnknown):
            with suppress(KmirrorError, OutcomeUnknown):
                stopped = AppendStoppedError(found.partition, found.appender.read_state().log_end, str(error))
        stopped.__cause__ = error
        with self._changed:
            found.stopped = stopped
        if isinstance(error, BrokerError | CorruptBatchError):
            sent, later = sent[:1], sent[1:]
            waiting = later + waiting
        self._fail(sent, error)
        self._fail(waiting, stopped)

    def _succeed(self, items: Sequence[PendingAppend]) -> None:
        for item in items:
            item.end()
        self._release(items)

    def _fail(self, items: Iterable[PendingAppend], error: Exception) -> None:
        failed = list(items)
        for item in failed:
            item.end(error)
        self._release(failed)

    def _release(self, items: Sequence[PendingAppend]) -> None:
        with self._changed:
            self._bytes -= sum(item.size for item in items)
            self._open_items -= len(items)
            self._changed.notify_all()
