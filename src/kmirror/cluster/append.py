"""Append records at the offsets they carry, on stock brokers: one partition, one request at a time. Blocking.

    from kmirror.cluster.append import OffsetAppender
    from kmirror.cluster.client import ClusterClient
    from kmirror.cluster.protocol.metadata import TopicPartition
    from kmirror.cluster.protocol.batch_records import Record
    from kmirror.cluster.security.client_config import client_config

    with ClusterClient(client_config({"bootstrap.servers": "localhost:9092"})) as client:
        with OffsetAppender(client, TopicPartition("orders", 0), producer_id=(1 << 62) + 1) as out:
            end = out.append([Record(100, 1_700_000_000_000, b"key", b"value")])   # 101

If the log ends before the first record's offset, the offsets between are filled with markers, which consumers are never
shown; if it ends after it, the append is refused with the log end. So when `append` returns, the log ends exactly after
the records; otherwise it raises an error that says why not.

The topic needs `compression.type=producer`, `message.timestamp.type=CreateTime` and wide
`message.timestamp.before/after.max.ms`, as a mirror topic has them. No other client may write to it. The rights needed:
WRITE, READ (for DescribeProducers) and DESCRIBE on the topic; ALTER or CLUSTER_ACTION on the cluster, for filling only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

from kmirror.cluster.client import LATEST, ClusterClient, require
from kmirror.cluster.connection import SETTLE_S, ConnectFailedError
from kmirror.cluster.producers import REQUEST_LIMIT, append_limits, describe_producers
from kmirror.cluster.protocol import markers, produce
from kmirror.cluster.protocol.batch import SEQUENCE_MASK, CorruptBatchError, batch_headers, set_producer
from kmirror.cluster.protocol.batch_records import Record, make_batch, read_records
from kmirror.cluster.protocol.codes import LEADER_MOVED, PERHAPS_WRITTEN, UNAUTHORIZED, Code, code_name
from kmirror.cluster.protocol.fill_plan import (
    MAX_PRODUCER_EPOCH,
    Done,
    Failed,
    FillPlan,
    Obstacle,
    ReadLeader,
    WriteMarkers,
)
from kmirror.cluster.protocol.metadata import LeaderAddress, TopicPartition
from kmirror.cluster.protocol.pieces import Run, pieces
from kmirror.cluster.protocol.produce import ProducerState
from kmirror.cluster.protocol.wire import Exchange, FrameError
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.errors import (
    BrokerError,
    HistoriesDifferError,
    KmirrorError,
    OutcomeUnknown,
    Reason,
    RefusedError,
    UnreachableError,
    UsageError,
)
from kmirror.words import visible

_LARGEST_BATCH = 2**31 - 1
_TRIES = 20
#: The leader may hang up on a batch of this size because of its limit for requests; it is tried no more often.
_LARGE_BYTES, _LARGE_TRIES = 512 << 10, 3
_NOTHING_WRITTEN = LEADER_MOVED - PERHAPS_WRITTEN | {Code.NOT_ENOUGH_REPLICAS}


class InvalidProduceOffsetError(KmirrorError):
    """Records for offsets that the log already has; nothing was written. `log_end_offset` is the lowest it accepts."""

    def __init__(self, partition: TopicPartition, offset: int, log_end_offset: int) -> None:
        super().__init__(
            f"{partition} ends at offset {log_end_offset}: records for offset {offset} cannot be appended",
            f"append records starting at offset {log_end_offset}",
        )
        self.args = (partition, offset, log_end_offset)
        self.partition = partition
        self.offset = offset
        self.log_end_offset = log_end_offset


class LeaderState(NamedTuple):
    """A partition as its leader reports it; `producer` is ours, None if the leader does not remember it."""

    producer: ProducerState | None
    log_end: int
    high_watermark: int


class OffsetAppender:
    """Append to one partition. It must be the only writer, and the only user of the client.

    Entering reads where the log ends. After any exception but InvalidProduceOffsetError and CorruptBatchError, use a
    new one; after OutcomeUnknown, wait ten seconds first.
    """

    def __init__(self, client: ClusterClient, partition: TopicPartition, *, producer_id: int) -> None:
        if producer_id < produce.FIRST_OWN_PRODUCER_ID:
            raise UsageError(
                f"producer id {producer_id} is in the range that brokers assign",
                f"take one from {produce.FIRST_OWN_PRODUCER_ID} up",
            )
        self._client = client
        self._partition = partition
        self._producer_id = producer_id
        self._producer_epoch = 0
        self._coordinator_epoch = 0
        #: The sequence number of the next record.
        self._sequence = 0
        #: True while the leader surely knows our producer id.
        self._is_known = False
        #: The timestamp of the last record of ours that it remembers; None for none.
        self.last_timestamp: int | None = None
        self._leader: LeaderAddress | None = None
        self.log_end_offset = 0

    def __enter__(self) -> Self:
        """Read where the log ends.

        Raises:
            BrokerError: refused, for instance without READ or DESCRIBE on the topic.
            UnreachableError: the partition's leader does not answer.
        """
        self.resume(self.read_state())
        return self

    def __exit__(self, *_: object) -> None:
        self._leader = None

    def append(self, records: Iterable[Record] | memoryview | bytes | bytearray) -> int:
        """Append records, or one whole batch of format 2, at the offsets they carry; return the new log end.

        The offsets must be consecutive. Those between the log end and the first record are filled.

        Raises:
            InvalidProduceOffsetError: the log ends above the first offset; nothing was written.
            CorruptBatchError: the offsets are not consecutive, or the batch is broken; nothing was written.
            HistoriesDifferError: another client wrote to the partition.
            RefusedError: another client uses the producer id, or markers may not be written.
            BrokerError: the records are refused.
            OutcomeUnknown: it is unknown whether the records, or markers, were or will be written.
            UnreachableError: the partition's leader does not answer; nothing is in flight.
        """
        run = as_run(records)
        if run.base_offset < self.log_end_offset:
            raise InvalidProduceOffsetError(self._partition, run.base_offset, self.log_end_offset)
        if run.base_offset > self.log_end_offset:
            self.fill(run.base_offset)
        self.append_run(run)
        return self.log_end_offset

    def take_over(self, *, above: int = -1) -> None:
        """Fence other writers with this producer id by one marker, and continue after what they have written.

        Their batches and markers are refused from then on (FENCED), for as long as the leader remembers the producer
        id. `above` is the highest producer epoch known to have been used, besides the one that the leader remembers.

        Raises:
            RefusedError: markers may not be written (NOT_AUTHORIZED; nothing was), or another writer fenced us.
            BrokerError: refused for another reason.
            OutcomeUnknown: it is unknown whether the marker was or will be written.
            UnreachableError: the partition's leader does not answer; nothing is in flight.
        """
        epoch, in_doubt = max(self._producer_epoch, above), False
        for attempt in range(_TRIES):
            epoch = min(epoch + 1, MAX_PRODUCER_EPOCH)
            code = self.write_markers(WriteMarkers(1, epoch, self._coordinator_epoch))
            if code in UNAUTHORIZED:
                message = f"{self._partition}: no right to write markers (ALTER on the cluster)"
                raise self._refusal(Failed(Obstacle.NOT_AUTHORIZED, message, self.log_end_offset))
            if code == Code.NONE:
                # earlier requests without an answer have a lower epoch: they are refused from now on
                state = self.read_state(in_doubt=in_doubt)
                if state.producer and state.producer.producer_epoch > epoch:
                    raise self._refusal(Failed(Obstacle.FENCED, "another writer took over", state.log_end))
                self._producer_epoch, self._sequence = epoch, 0
                self.resume(state)
                return
            in_doubt = in_doubt or code is None or code in PERHAPS_WRITTEN
            self._client.pause(attempt)
            self._leader = None
            state = self._read_once(in_doubt)
            if state.producer:
                epoch = max(epoch, state.producer.producer_epoch)
                self._coordinator_epoch = max(self._coordinator_epoch, state.producer.coordinator_epoch + 1)
        raise _no_progress(f"taking over {self._partition} makes no progress", in_doubt)

    def renew(self) -> None:
        """Write one marker, so that the leader remembers our producer id from now, however old the records are.

        Raises:
            as `append` where it fills.
        """
        self.fill(self.log_end_offset + 1)

    # -- filling --------------------------------------------------------------------------------------------------

    def fill(self, end: int) -> None:
        """Fill the offsets from the log end up to `end`. Raises as `append`."""
        plan = self._plan(end)
        troubles, waited = 0, False
        while not isinstance(plan.step, Done):
            if troubles > _TRIES:
                raise _no_progress(f"filling {self._partition} up to offset {end} makes no progress", plan.in_doubt)
            match plan.step:
                case WriteMarkers() as step:
                    code = self.write_markers(step)
                    troubles = 0 if code == Code.NONE else troubles + 1
                    if code is None:
                        plan.unanswered()
                    else:
                        plan.answered(code)
                case ReadLeader():
                    plan.leader_read(*self._read_once(plan.in_doubt))
                    troubles += isinstance(plan.step, ReadLeader)
                case Failed() as failed:
                    if failed.obstacle is not Obstacle.UNDECIDED or waited:
                        raise self._refusal(failed)
                    time.sleep(SETTLE_S)
                    waited = True
                    self._coordinator_epoch = plan.unused_coordinator_epoch
                    self.resume(self.read_state(in_doubt=True))
                    plan = self._plan(end)
            if troubles:
                self._client.pause(troubles)
                self._leader = None
        self._coordinator_epoch = plan.step.coordinator_epoch
        if plan.step.producer_epoch != self._producer_epoch or not self._is_known:
            self._sequence = 0
        self._producer_epoch, self._is_known = plan.step.producer_epoch, True
        self.log_end_offset = end

    def _plan(self, end: int) -> FillPlan:
        return FillPlan(
            self.log_end_offset,
            end,
            producer_epoch=self._producer_epoch,
            coordinator_epoch=self._coordinator_epoch,
        )

    def write_markers(self, step: WriteMarkers) -> int | None:
        """Send one request for markers as it is.

        Returns the leader's error code; None without an answer, LEADER_NOT_AVAILABLE if nothing was sent.
        """
        topic, partition = self._partition
        fill = markers.Fill(
            topic, partition, self._producer_id, step.producer_epoch, step.count, step.coordinator_epoch
        )
        try:
            codes: dict[TopicPartition, int] = self._ask(lambda _: markers.exchange([fill]))
        except UnreachableError:
            return Code.LEADER_NOT_AVAILABLE
        except (OutcomeUnknown, FrameError):
            return None
        return codes.get(self._partition)

    def _refusal(self, failed: Failed) -> Exception:
        message = f"{self._partition} could not be filled: {failed.message}"
        match failed.obstacle:
            case Obstacle.NOT_AUTHORIZED:
                hint = grant_line(self._client.config, ("ALTER",), "--cluster")
                return RefusedError(message, hint, Reason.NOT_AUTHORIZED)
            case Obstacle.FENCED:
                return RefusedError(message, "use each producer id in one writer only", Reason.FENCED)
            case Obstacle.UNDECIDED:
                return OutcomeUnknown(message)
            case Obstacle.OVERSHOT | Obstacle.TRUNCATED:
                return HistoriesDifferError(
                    message, "make sure that no other client writes to it", Reason.OFFSET_MISMATCH
                )

    # -- records --------------------------------------------------------------------------------------------------

    def append_run(self, run: Run, *, in_doubt: bool = False) -> None:
        """Append a batch at the log end; `in_doubt` if it was sent before without an answer. Raises as `append`."""
        for attempt in range(_TRIES):
            self.assign_sequence(run)
            answer = self.send(run)
            code = answer.error_code if answer else None
            if answer and code == Code.NONE:
                if altered := self.altered(run, answer):
                    raise altered
                self.appended(run)
                return
            if code is None and len(run.data) >= _LARGE_BYTES:
                self._require_fit(run, attempt)
            if code is None or code in PERHAPS_WRITTEN:
                in_doubt = True
                if code is None and not self._is_known:
                    time.sleep(SETTLE_S)
            elif code == Code.INVALID_PRODUCER_EPOCH:
                raise RefusedError(
                    f"another client writes to {self._partition} with producer id {self._producer_id}",
                    "use each producer id in one writer only",
                    Reason.FENCED,
                )
            elif code not in _NOTHING_WRITTEN and code != Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                detail = visible(answer.error_message or "") if answer else None
                raise BrokerError(code, code_name(code), f"appending to {self._partition}", detail)
            self._client.pause(attempt)
            self._leader = None
            state = self.read_state(in_doubt=in_doubt)
            if in_doubt and state.log_end == run.next_offset:
                self.appended(run)
                return
            if state.log_end != run.base_offset:
                raise self.mismatch(f"it ends at offset {state.log_end} instead of {run.base_offset}")
            if not in_doubt:
                self.resume(state)
        raise _no_progress(f"appending to {self._partition} makes no progress", in_doubt)

    def _require_fit(self, run: Run, attempt: int) -> None:
        """Raise an error if it is too large a batch that has got no answer so often."""
        what, leader = f"appending to {self._partition}", self._leader or self.leader()
        limit = append_limits(self._client, leader.node_id).request_bytes
        append = produce.Append(self._partition.topic, leader.topic_id, self._partition.partition, run.data)
        size = produce.request_bytes(produce.LOWEST_VERSION, self._client.config.client_id, [append])
        if limit is not None and size > limit:
            why = f"a request with {len(run.data):,} bytes is above {REQUEST_LIMIT}={limit} of broker {leader.node_id}"
            raise BrokerError(Code.MESSAGE_TOO_LARGE, code_name(Code.MESSAGE_TOO_LARGE), what, why)
        if attempt + 1 >= _LARGE_TRIES:
            why = f"a request with {len(run.data):,} bytes may be above its {REQUEST_LIMIT}"
            raise OutcomeUnknown(f"{what}: broker {leader.node_id} gave no answer {_LARGE_TRIES} times: {why}")

    def send(self, run: Run) -> produce.AppendAnswer | None:
        """Send one batch with the producer fields that it has.

        Returns the leader's answer; None without one, LEADER_NOT_AVAILABLE if nothing was sent.
        """
        (topic, partition), timeout_ms = self._partition, self._client.config.request_timeout_ms
        try:
            answers: dict[TopicPartition, produce.AppendAnswer] = self._ask(
                lambda topic_id: produce.exchange([produce.Append(topic, topic_id, partition, run.data)], timeout_ms)
            )
        except UnreachableError:
            return produce.AppendAnswer(topic, partition, Code.LEADER_NOT_AVAILABLE, -1, None)
        except (OutcomeUnknown, FrameError):
            return None
        return answers.get(self._partition)

    def assign_sequence(self, run: Run) -> None:
        """Set the producer fields of a batch for the log end, or one that follows others in flight there."""
        ahead = run.base_offset - self.log_end_offset
        set_producer(run.data, self._producer_id, self._producer_epoch, (self._sequence + ahead) & SEQUENCE_MASK)

    def appended(self, run: Run) -> None:
        """Note that the leader has appended this batch at the log end."""
        self._sequence = (self._sequence + run.next_offset - run.base_offset) & SEQUENCE_MASK
        self._is_known = True
        self.last_timestamp = run.max_timestamp
        self.log_end_offset = run.next_offset

    def mismatch(self, what: str, hint: str = "another client writes to it") -> HistoriesDifferError:
        """Return the error for a log whose end is not the one we appended to."""
        return HistoriesDifferError(
            f"{self._partition}: {what}", f"{hint}; nothing was repaired", Reason.OFFSET_MISMATCH
        )

    def altered(self, run: Run, answer: produce.AppendAnswer) -> HistoriesDifferError | None:
        """Return the error for a batch that was appended, but not as it was sent; None if it was."""
        if answer.base_offset != run.base_offset:
            return self.mismatch(f"records for offset {run.base_offset} were appended at offset {answer.base_offset}")
        if answer.log_append_time not in {None, run.max_timestamp}:
            what = f"the broker replaced the timestamps of the records at offset {run.base_offset}"
            return self.mismatch(what, "set message.timestamp.type=CreateTime on the topic")
        return None

    # -- the leader -----------------------------------------------------------------------------------------------

    def _read_once(self, in_doubt: bool) -> LeaderState:
        """Read the state of our producer, the log end and the high watermark, in this order."""
        partition = self._partition
        try:
            producers = describe_producers(self._client, [partition])[partition]
            require(producers.error_code, f"describing the producers of {partition}")
            ends = []
            for log_end in (True, False):
                found = self._client.list_offsets({partition: LATEST}, log_end=log_end)[partition]
                require(found.error_code, f"looking up the end of {partition}")
                ends.append(found.offset or 0)
        except KmirrorError as error:
            if in_doubt:
                raise OutcomeUnknown(f"something was sent to {partition}, then: {error}") from error
            raise
        known = (producer for producer in producers.producers if producer.producer_id == self._producer_id)
        return LeaderState(next(known, None), ends[0], ends[1])

    def read_state(self, *, in_doubt: bool = False) -> LeaderState:
        """Read the partition's state once the log is replicated up to its end."""
        for attempt in range(_TRIES):
            state = self._read_once(in_doubt)
            if state.high_watermark >= state.log_end:
                return state
            self._client.pause(attempt)
        raise _no_progress(f"{self._partition} has too few in-sync replicas", in_doubt)

    def resume(self, state: LeaderState) -> None:
        """Continue from what the leader knows."""
        self.log_end_offset = state.log_end
        producer = state.producer
        self._is_known = producer is not None
        self.last_timestamp = producer.last_timestamp if producer else None
        if producer:
            self._producer_epoch = max(self._producer_epoch, producer.producer_epoch)
            self._sequence = (producer.last_sequence + 1) & SEQUENCE_MASK
        self._coordinator_epoch = max(self._coordinator_epoch, (producer.coordinator_epoch if producer else -1) + 1)

    def _ask(self, exchange_with: Callable[[bytes], Exchange]) -> Any:
        """Send the leader what `exchange_with` returns for the topic's id; return the decoded answer.

        Raises:
            UnreachableError: nothing was sent.
            OutcomeUnknown, FrameError: it was sent, and not answered.
        """
        self._leader = leader = self._leader or self.leader()
        connection = self._client.connect(leader.node_id, leader.host, leader.port)
        connection.wait_for_throttle()
        return connection.request(exchange_with(leader.topic_id))

    def leader(self) -> LeaderAddress:
        """Look up the partition's leader. Raises UnreachableError."""
        leader = self._client.metadata([self._partition.topic]).leader_address(self._partition)
        if leader is None:
            raise ConnectFailedError(f"{self._partition} has no leader", "check that all brokers are up")
        return leader


class StampedAppender(OffsetAppender):
    """Appends also where the broker replaces timestamps: what is stored is compared afterwards."""

    def altered(self, run: Run, answer: produce.AppendAnswer) -> HistoriesDifferError | None:
        return super().altered(run, answer._replace(log_append_time=None))


def _no_progress(message: str, in_doubt: bool) -> Exception:
    return OutcomeUnknown(message) if in_doubt else UnreachableError(message, "check that the partition's leader is up")


def as_run(records: Iterable[Record] | memoryview | bytes | bytearray) -> Run:
    """Make one dense batch of records, or check one that is given; every record is at the offset it carries."""
    if isinstance(records, memoryview | bytes | bytearray):
        batch = memoryview(bytearray(records))
    else:
        made = list(records)
        offset = made[0].offset if made else -1
        try:
            batch = memoryview(make_batch(made))
        except ValueError as error:
            raise CorruptBatchError(offset, str(error)) from None
    headers = list(batch_headers(batch))
    offset = headers[0].base_offset if headers else -1
    if len(headers) != 1 or headers[0].size_in_bytes != len(batch) or headers[0].magic != 2:
        raise CorruptBatchError(offset, "it is not one whole batch of format 2")
    found = pieces(batch, start=offset, max_bytes=_LARGEST_BATCH)
    if len(found) != 1 or not isinstance(found[0], Run):
        raise CorruptBatchError(offset, "a batch to append needs records at consecutive offsets")
    run = found[0]
    written = next(batch_headers(run.data))
    if any(record.offset != offset + index for index, record in enumerate(read_records(run.data, written))):
        raise CorruptBatchError(offset, "a batch to append needs records at consecutive offsets")
    return run
