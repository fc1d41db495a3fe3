"""Write records in transactions with one transactional id. Blocking.

Of all writers with an id only the last one to `begin` may write: the coordinator ends the transaction of the one
before, and refuses all that it sends afterwards (KIP-98). A transaction takes three round trips: its partitions are
added, its records are appended, it is committed.

What goes wrong before the commit is sent is tried again with a new epoch, which ends what was begun, and is refused if
another writer has begun meanwhile (KIP-360). A commit without an answer is sent again: what has ended stays as it is.
Only if its outcome cannot be learnt is it in doubt.

What was decided by reading a partition is not committed there once it has a newer leader than the one that was read
(`decided_by`): that one may have been cut off from its cluster, and have answered with what was committed before.

What needs no transaction may be appended alone (`lone_batches`), in one round trip. The leader of a partition refuses
an old epoch only once a later writer with the id has written there: what is appended alone lands before that, or never.

Requests are of versions without transactions of the second kind (KIP-890), in which every commit brings a new epoch.

A coordinator may forget a partition: if it has no leader for a moment while the transaction's markers are written, as
when its only broker is killed and starts again, Kafka 4.3 takes it for deleted, and the transaction stays open there
for ever. `end_forgotten` ends it as the coordinator has ended the rest of it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kmirror.cluster.client import LEAST_S, ClusterClient
from kmirror.cluster.connection import Connection
from kmirror.cluster.coordinators import Coordinator
from kmirror.cluster.producers import describe_producers
from kmirror.cluster.protocol import produce, transactions
from kmirror.cluster.protocol.batch import SEQUENCE_MASK, set_producer, set_transactional
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import LEADER_MOVED, NOT_COORDINATOR, Code, code_name
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, LeaderAddress, TopicPartition
from kmirror.cluster.protocol.wire import Exchange, FrameError
from kmirror.cluster.topics.leaders import NoLeaderError, is_older, require_leaders
from kmirror.cluster.writing.transaction_coordinators import (
    FENCED,
    HINT,
    begin,
    last_transaction,
    transaction_coordinators,
)
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason, UnreachableError

#: Over a distance bytes cost round trips. Of all codecs a broker reads this one without native code.
_COMPRESSION_TYPE = "gzip"
#: Fewer bytes take no round trip less, and more processor time of all who read them. In a transaction all are
#: compressed: then brokers with an older message format say what is wrong (UNSUPPORTED_FOR_MESSAGE_FORMAT, on 2.8).
_COMPRESSED_FROM = 1_000
#: The most bytes of a batch before compression, unless one record has more: topics accept a megabyte by default.
_BATCH_BYTES = 500_000
#: What a record takes besides its key and its value, at most.
_RECORD_BYTES = 30
#: The longest wait for one answer.
_ANSWER_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.2
HIGHEST_PRODUCE_VERSION = 11
#: After some 32,000 epochs an id gets another producer id.
_MOST_EPOCHS = 30_000
#: What a coordinator answers later. -1: it fails on a commit that meets another writer's beginning (seen on 4.3).
_LATER = {*NOT_COORDINATOR, Code.CONCURRENT_TRANSACTIONS, Code.UNKNOWN_SERVER_ERROR}
_FENCED = FENCED | {Code.INVALID_PRODUCER_ID_MAPPING}
#: The id's transaction has ended: aborted by the coordinator, as it took too long, or by another writer.
_ENDED = _FENCED | {Code.INVALID_TXN_STATE}
_PASSING = LEADER_MOVED | {
    Code.REQUEST_TIMED_OUT,
    Code.NOT_ENOUGH_REPLICAS,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Code.KAFKA_STORAGE_ERROR,
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Code.UNKNOWN_PRODUCER_ID,
    Code.TRANSACTION_ABORTABLE,
    *_LATER,
}

#: Whether a transaction in this state has been committed, or will be; else it is aborted.
_IS_COMMITTED = {"PrepareCommit": True, "CompleteCommit": True, "PrepareAbort": False, "CompleteAbort": False}

#: Seconds that are left.
Remaining = Callable[[], float]
#: A Produce request: its connection, correlation id and version, itself, and the partitions it is for.
_Sent = tuple[Connection, int, int, Exchange, set[TopicPartition]]


class FencedError(KmirrorError):
    """Another writer has begun with the transactional id, or the transaction took too long; nothing is written."""


class CommitInDoubtError(KmirrorError):
    """No broker says whether a transaction was committed; `place` is topic and offset of one of its records."""

    def __init__(self, place: tuple[str, int], cause: str) -> None:
        super().__init__(f"a commit was not confirmed: {cause}")
        self.args = (place, cause)
        self.place = place
        self.cause = cause


class _PassingError(Exception):
    """Trouble that may pass."""


class _Answered(NamedTuple):
    """The coordinator's answer. `in_doubt` if an earlier request may have been carried out without an answer."""

    code: int
    content: Any
    in_doubt: bool


class _NotAnsweredError(Exception):
    def __init__(self, trouble: str, *, in_doubt: bool) -> None:
        super().__init__(trouble)
        self.in_doubt = in_doubt


class TransactionalWriter:
    """Write with one transactional id; nobody else uses its client meanwhile. After an exception, begin again.

    What a commit that raised has begun ends with the next `begin`, or when the transaction times out.
    """

    def __init__(self, client: ClusterClient, transactional_id: str, *, transaction_timeout_ms: int) -> None:
        self._client = client
        self._id = transactional_id
        self._timeout_ms = transaction_timeout_ms
        self._producer = (-1, -1)
        self._coordinator: Coordinator | None = None
        self._metadata: ClusterMetadata | None = None
        #: By whom a partition that decides what is committed was read; None if it had no leader.
        self._read: tuple[TopicPartition, LeaderAddress | None] | None = None
        self._sequences: dict[TopicPartition, int] = defaultdict(int)
        #: Whether the id's last transaction was committed, as its epoch was taken; None: unknown.
        self._was_committed: bool | None = None

    @property
    def leaders(self) -> ClusterMetadata | None:
        """The leaders that were written to last, or looked up."""
        return self._metadata

    def begin(
        self, topics: Sequence[str], remaining: Remaining, *, patiently: bool, leaders: ClusterMetadata | None = None
    ) -> None:
        """Fence whoever used the id before, and wait until its transaction has ended.

        The `leaders` of these topics are looked up unless they are given. If no broker can be reached, wait for one
        while time remains, but only `patiently`.

        Raises:
            BrokerError: refused.
            NoLeaderError: a topic has no leader, which an election would have changed.
            UnreachableError: no answer in time, or no broker can be reached.
        """
        self._metadata = leaders
        while True:
            try:
                self._look_up(topics, remaining)
                break
            except UnreachableError as error:
                _raise_if_lasting(error)
                if not patiently or not remaining():
                    raise
                time.sleep(min(_LONGEST_PAUSE_S, remaining()))
        self._producer, self._read = (-1, -1), None
        self._take_epoch(remaining)

    def decided_by(self, partition: TopicPartition, leader: LeaderAddress | None) -> None:
        """Take by which leader a partition was read after `begin`: what is committed follows from that."""
        self._read = partition, leader

    def commit(
        self, records: Mapping[TopicPartition, Sequence[tuple[bytes, bytes | None]]], remaining: Remaining
    ) -> tuple[str, int]:
        """Append keys and values to partitions, all or none; return topic and offset of one record.

        Raises:
            BrokerError: refused; nothing is written.
            CommitInDoubtError: the commit was sent, and not answered.
            FencedError: nothing is written; `leaders` may name who to read from.
            NoLeaderError: a topic has no leader; nothing is written.
            UnreachableError: no answer in time; nothing is written.
        """
        batches = {partition: list(_batches(given)) for partition, given in records.items()}
        pause = _FIRST_PAUSE_S
        while True:
            try:
                self._add(list(batches), remaining)
                place = self._append(batches, remaining)
                break
            except _PassingError as trouble:
                if not remaining():
                    raise UnreachableError(f"nothing was written: {trouble}", HINT) from trouble
            time.sleep(min(pause, remaining()))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            self._start_over(remaining)
        self._commit(place, remaining)
        return place

    @property
    def can_append_alone(self) -> bool:
        """False where the next epochs may be of another producer id, which would not fence this one at leaders."""
        return self._producer[1] < _MOST_EPOCHS

    def batch_alone(self, partition: TopicPartition, key: bytes, value: bytes) -> memoryview:
        """Return a record as a batch to append next, without a transaction (`lone_batches`).

        Whether the coordinator still knows this writer is not asked: a transaction shows that. If it may not have been
        appended, begin again: it is by then, or before the next transaction of this id, or never.
        """
        (records,) = _batches([(key, value)])
        return self._batch(partition, records)

    def end_forgotten(self, partitions: Sequence[TopicPartition], remaining: Remaining) -> bool:
        """End what the coordinator has left open in partitions before `begin`; return whether there was something.

        Where it is unknown how the transaction ended, it stays open.

        Raises:
            BrokerError: refused.
            FencedError: another writer has begun with the id.
            UnreachableError: no answer in time.
        """
        producer_id, producer_epoch = self._producer
        known = describe_producers(self._client, partitions, timeout=_patience(remaining))
        # of an older epoch: the coordinator gave a new one only when it had ended all that it knew of
        forgotten = [
            partition
            for partition, answer in known.items()
            for one in answer.producers
            if one.producer_id == producer_id
            and one.producer_epoch < producer_epoch
            and one.current_txn_start_offset is not None
        ]
        if not forgotten or self._was_committed is None:
            return False
        try:
            self._add(forgotten, remaining)
            code, _, _ = self._end(remaining, commits=self._was_committed)
        except (_NotAnsweredError, _PassingError) as trouble:
            raise UnreachableError(f"a forgotten transaction is still open: {trouble}", HINT) from trouble
        if code in _ENDED:
            raise FencedError(code_name(code))
        if code:
            raise BrokerError(code, code_name(code), f"ending a forgotten transaction of {self._id}")
        return True

    def _look_up(self, topics: Sequence[str], remaining: Remaining) -> None:
        """Find the leaders and the coordinator, and connect to all of them; each may move until it is needed."""
        found = self._metadata or self._client.metadata(topics, timeout=_patience(remaining))
        self._metadata = require_leaders(self._client, topics, found, remaining())
        leaders = [self._metadata.leader_address(TopicPartition(topic, 0)) for topic in topics]
        wanted = {Broker(one.node_id, one.host, one.port) for one in leaders if one is not None}
        with suppress(UnreachableError, OutcomeUnknown):
            wanted.add(Broker(*self._found(remaining)))
        self._client.connect_each(wanted, _patience(remaining))

    def _connected(self, node_id: int, host: str, port: int, remaining: Remaining) -> Connection:
        connection = self._client.connect(node_id, host, port, timeout=_patience(remaining))
        connection.require_cluster(_patience(remaining))
        return connection

    def _start_over(self, remaining: Remaining) -> None:
        """End what was begun; what may still be on its way is of an old epoch then."""
        try:
            code, _, _ = self._end(remaining, commits=False)
        except _NotAnsweredError as trouble:
            raise UnreachableError(f"nothing was written: {trouble}", HINT) from trouble
        if code in _FENCED:
            raise FencedError(code_name(code))
        if code not in {0, Code.INVALID_TXN_STATE}:  # nothing was begun
            raise BrokerError(code, code_name(code), f"ending a transaction of {self._id}")
        self._take_epoch(remaining)

    def _end(self, remaining: Remaining, *, commits: bool) -> _Answered:
        request = transactions.end(self._id, self._producer, commits=commits)
        return self._ask(lambda connection, seconds: (connection.request(request, timeout=seconds), None), remaining)

    def _take_epoch(self, remaining: Remaining) -> None:
        """Take a new epoch; with the one we have only if it is still the id's last."""
        request = begin(self._id, self._timeout_ms, self._producer)
        question = last_transaction(self._id)

        def ask(connection: Connection, seconds: float) -> tuple[int, Any]:
            # together: a new epoch makes the coordinator forget how the last transaction ended
            both = [question, request] if question.api.key in connection.api_versions else [request]
            *described, answer = connection.request_all(both, timeout=seconds)
            states = [one.transaction_state for found in described for one in found.transaction_states]
            self._was_committed = _IS_COMMITTED.get(states[0]) if states else None
            return answer.error_code, answer

        what = f"taking the transactional id {self._id}"
        try:
            code, answer, _ = self._ask(ask, remaining)
        except _NotAnsweredError as trouble:
            raise UnreachableError(f"{what}: {trouble}", HINT) from trouble
        if code in _ENDED:
            raise FencedError(code_name(code))
        if code:
            raise BrokerError(code, code_name(code), what)
        self._producer = answer.producer_id, answer.producer_epoch
        self._sequences.clear()

    def _add(self, partitions: Sequence[TopicPartition], remaining: Remaining) -> None:
        request = transactions.add_partitions(self._id, self._producer, partitions)

        def ask(connection: Connection, seconds: float) -> tuple[int, Any]:
            codes = connection.request(request, timeout=seconds)
            if codes.keys() != set(partitions):
                raise FrameError("it says nothing of some partitions")
            return transactions.refusal_of(codes)

        try:
            code, refused, _ = self._ask(ask, remaining)
        except _NotAnsweredError as trouble:
            raise _PassingError(str(trouble)) from trouble
        self._require(code, f"adding {refused and refused.topic} to a transaction")

    def _append(self, batches: Mapping[TopicPartition, list[list[Record]]], remaining: Remaining) -> tuple[str, int]:
        """Append everything in the open transaction; return topic and offset of one record."""
        known, self._metadata = self._metadata, None  # until everything is appended: it may be what is wrong
        if known is None:
            try:
                topics = sorted({one.topic for one in batches})
                known = self._client.metadata(topics, timeout=_patience(remaining))
                known = require_leaders(self._client, topics, known, remaining())
            except UnreachableError as error:
                _raise_if_lasting(error)
                raise _PassingError(str(error)) from error
        if self._read is not None and is_older(*self._read, known):
            self._metadata = known
            raise FencedError(f"{self._read[0]} has another leader than the one that was read")
        by_leader: dict[LeaderAddress, dict[TopicPartition, list[list[Record]]]] = defaultdict(dict)
        for partition, given in batches.items():
            leader = known.leader_address(partition)
            if leader is None:
                raise _PassingError(f"{partition} has no leader")
            by_leader[leader._replace(topic_id=b"", leader_epoch=-1)][partition] = given
        place: tuple[str, int] | None = None
        sent: list[_Sent] = []
        try:
            for leader, led in by_leader.items():
                connection = self._connected(leader.node_id, leader.host, leader.port, remaining)
                self._send(connection, led, sent, remaining)
            for connection, number, version, asked, partitions in sent:
                until = time.monotonic() + _patience(remaining)
                answers, throttle_time_ms = asked.decode(connection.receive_frame(number, until), version)
                connection.note_throttle(throttle_time_ms)
                if answers.keys() != partitions:
                    raise FrameError("a Produce answer says nothing of some partitions")
                for (topic, _), answer in answers.items():
                    self._require(answer.error_code, f"appending to {topic}", answer.error_message)
                    place = place or (topic, answer.base_offset)
        except BaseException as error:
            for connection, *_ in sent:
                connection.close()  # answers may be on their way
            if isinstance(error, UnreachableError | OutcomeUnknown | FrameError):
                _raise_if_lasting(error)
                raise _PassingError(str(error)) from error
            raise
        if place is None:
            raise ValueError("a transaction needs records")
        self._metadata = known
        return place

    def _send(
        self,
        connection: Connection,
        batches: Mapping[TopicPartition, list[list[Record]]],
        sent: list[_Sent],
        remaining: Remaining,
    ) -> None:
        """Send all batches of partitions of one leader, no request waiting for the last; add them to `sent`."""
        version = connection.version_for(produce.API._replace(highest=HIGHEST_PRODUCE_VERSION))
        for turn in range(max(map(len, batches.values()))):
            appends = []
            for partition in sorted(one for one, given in batches.items() if turn < len(given)):
                batch = self._batch(partition, batches[partition][turn], is_transactional=True)
                appends.append(produce.Append(partition.topic, b"", partition.partition, batch))
            number, seconds = connection.next_correlation_id(), _patience(remaining)
            asked = produce.exchange(appends, int(1000 * seconds), self._id)
            connection.wait_for_throttle(seconds)
            partitions = {TopicPartition(one.topic, one.partition) for one in appends}
            sent.append((connection, number, version, asked, partitions))
            connection.send_frame([asked.encode(number, version, self._client.config.client_id)], seconds)

    def _batch(
        self, partition: TopicPartition, records: Sequence[Record], *, is_transactional: bool = False
    ) -> memoryview:
        size = sum(len(one.key or b"") + len(one.value or b"") for one in records)
        is_small = size < _COMPRESSED_FROM and not is_transactional
        compression_type = "none" if is_small else _COMPRESSION_TYPE
        batch = memoryview(make_batch(records, compression_type=compression_type))
        if is_transactional:
            set_transactional(batch)
        set_producer(batch, *self._producer, self._sequences[partition])
        self._sequences[partition] = (self._sequences[partition] + len(records)) & SEQUENCE_MASK
        return batch

    def _commit(self, place: tuple[str, int], remaining: Remaining) -> None:
        try:
            code, _, in_doubt = self._end(remaining, commits=True)
        except _NotAnsweredError as trouble:
            if trouble.in_doubt:
                raise CommitInDoubtError(place, str(trouble)) from trouble
            raise UnreachableError(f"nothing was written: {trouble}", HINT) from trouble
        except KmirrorError as error:
            # a coordinator that is looked for again may refuse us
            raise CommitInDoubtError(place, str(error)) from error
        if code and (in_doubt or code not in {*_ENDED, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}):
            raise CommitInDoubtError(place, code_name(code))
        self._require(code, f"committing with the transactional id {self._id}")

    def _require(self, code: int, what: str, detail: str | None = None) -> None:
        """Raise unless the code is 0; the commit is not sent then."""
        if code in _ENDED:
            raise FencedError(f"{what}: {code_name(code)}")
        if code in _PASSING:
            raise _PassingError(f"{what}: {code_name(code)}")
        if code:
            raise BrokerError(code, code_name(code), what, detail)

    def _ask(self, ask: Callable[[Connection, float], tuple[int, Any]], remaining: Remaining) -> _Answered:
        """Ask the coordinator until its answer is not "later".

        Raises:
            BrokerError: the id's coordinator may not be known to us.
            UnreachableError: a broker refuses our login.
            _NotAnsweredError: time is up.
        """
        in_doubt, trouble, pause = False, "the transaction coordinator does not answer", _FIRST_PAUSE_S
        while True:
            was_sent = False
            try:
                connection = self._connected(*self._found(remaining), remaining)
                was_sent = True
                code, content = ask(connection, _patience(remaining))
            except (UnreachableError, OutcomeUnknown, FrameError) as error:
                _raise_if_lasting(error)
                self._coordinator, trouble = None, str(error)
                in_doubt |= was_sent and not isinstance(error, UnreachableError)
            else:
                if code not in _LATER:
                    return _Answered(code, content, in_doubt)
                trouble = code_name(code)
                # but for this one, what was asked may be in the coordinator's log
                in_doubt |= code != Code.CONCURRENT_TRANSACTIONS
                if code in NOT_COORDINATOR:
                    self._coordinator = None
            if not remaining():
                raise _NotAnsweredError(trouble, in_doubt=in_doubt)
            time.sleep(min(pause, remaining()))
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _found(self, remaining: Remaining) -> Coordinator:
        if self._coordinator is None:
            found = transaction_coordinators(self._client, [self._id], _patience(remaining))[self._id]
            if isinstance(found, int):
                raise UnreachableError(f"no transaction coordinator: {code_name(found)}", HINT)
            self._coordinator = found
        return self._coordinator


def _patience(remaining: Remaining) -> float:
    return min(_ANSWER_S, max(LEAST_S, remaining()))


def _raise_if_lasting(error: Exception) -> None:
    is_refused = isinstance(error, UnreachableError) and error.reason is Reason.AUTHENTICATION_FAILED
    if is_refused or isinstance(error, NoLeaderError):
        raise error


def _batches(records: Sequence[tuple[bytes, bytes | None]]) -> Iterator[list[Record]]:
    """Cut records into batches that a topic accepts."""
    now_ms = time.time_ns() // 1_000_000
    batch: list[Record] = []
    size = 0
    for key, value in records:
        more = len(key) + len(value or b"") + _RECORD_BYTES
        if batch and size + more > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(Record(len(batch), now_ms, key, value))
        size += more
    if batch:
        yield batch
