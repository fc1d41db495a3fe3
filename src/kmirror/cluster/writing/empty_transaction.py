"""Fill offsets by transactions without records, for principals that may not write markers. Blocking.

The coordinator ends a transaction with one marker on each of its partitions (KIP-98), even if it has no records there.
That needs only WRITE on the transactional ids and on the topics. One id takes some milliseconds for a transaction; many
ids at once, over several connections to each coordinator, write some thousand offsets a second on one partition, and as
many on each further partition of their transactions.

A transaction is begun and committed by two requests sent together (`protocol/transactions`). Its markers are counted
once its partitions are known to be added; the next one of its id begins when they are written. After an answer that is
missing or says too little, nothing is repeated: new producer epochs (`settle`) fence all ids and end what they have
begun, with one marker on each partition, or none. Then nothing is in flight, and the caller compares the log ends.

Over a distance round trips count: an id gets its epoch when it is first needed, and all that are needed get theirs
together, in one round trip to each coordinator.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from kmirror.cluster.client import ClusterClient, seconds_left
from kmirror.cluster.connection import ConnectFailedError, Connection
from kmirror.cluster.coordinators import Coordinator
from kmirror.cluster.protocol import transactions
from kmirror.cluster.protocol.codes import NOT_COORDINATOR, Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import Exchange
from kmirror.cluster.threaded_calls import call_each
from kmirror.cluster.writing.transaction_coordinators import FENCED, HINT, begin, transaction_coordinators
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason, RefusedError, UnreachableError

#: Time after which the coordinator aborts a transaction.
TRANSACTION_TIMEOUT_MS = 60_000

#: The most connections to one coordinator: a broker takes one request at a time from each.
_CONNECTIONS = 4
#: Connections that were idle for so long are not used again: brokers close them after ten minutes by default.
_IDLE_S = 60.0
_STEP_S = 0.002
_FIND_STEP_S = 0.01
_LONGEST_STEP_S = 0.2


@dataclass(slots=True)
class _Id:
    """One transactional id, which no other client may use at the same time."""

    name: str
    #: Producer id and epoch; None before it is prepared.
    producer: tuple[int, int] | None = None
    #: The coordinator's node id, host and port.
    coordinator: Coordinator | None = None
    #: True while its transaction has partitions and is not known to be committed.
    is_open: bool = False
    #: True while markers of its last transaction may be missing.
    is_ending: bool = False


@dataclass(slots=True)
class _Line:
    """A connection to a coordinator, the ids that use it, and what was sent and is not answered."""

    connection: Connection
    ids: list[_Id] = field(default_factory=list)
    #: By correlation id: the id, the partitions to add, None for a commit, and the request.
    in_flight: dict[int, tuple[_Id, list[TopicPartition] | None, Exchange]] = field(default_factory=dict)

    def ask(self, one: _Id, partitions: list[TopicPartition] | None, request: Exchange, client_id: str) -> bytes:
        """Note a request; return it encoded."""
        number = self.connection.next_correlation_id()
        self.in_flight[number] = one, partitions, request
        return request.encode(number, transactions.VERSION, client_id)


class EmptyTransactions:
    """Write markers with these transactional ids."""

    def __init__(self, client: ClusterClient, transactional_ids: Sequence[str]) -> None:
        self._client = client
        self._ids = [_Id(name) for name in transactional_ids]
        self._timeout_s = client.config.request_timeout_ms / 1000
        #: Connections by node id and number.
        self._connections: dict[tuple[int, int], Connection] = {}
        self._used_at = 0.0
        #: True after a fill that raised.
        self._must_settle = False

    def settle(self) -> None:
        """Fence any client that used the ids before, and wait until their open transactions have ended.

        That may write markers: read log ends after this, not before. Call it before the first `prepare` if such a
        client may have left any open, and after a `fill` that raised.

        Raises:
            BrokerError: refused.
            UnreachableError: a coordinator does not answer.
        """
        for one in self._ids:
            one.producer = None
        self._begin(self._ids)
        self._must_settle = False

    def prepare(self, count: int) -> None:
        """Have the first `count` ids ready for `fill`, as it needs so many to write `count` markers on a partition.

        Raises:
            BrokerError: refused; nothing is begun.
            UnreachableError: a coordinator does not answer; nothing is begun.
        """
        if self._must_settle:
            raise RuntimeError("a fill has failed: settle first")
        self._begin([one for one in self._ids[:count] if one.producer is None])

    def _begin(self, ids: Sequence[_Id]) -> None:
        """Get a new producer epoch for each of these ids, all those of a coordinator together."""
        deadline, pause = time.monotonic() + self._timeout_s, _STEP_S
        while ids:
            self._find_coordinators(ids, deadline)
            asked: dict[Coordinator, list[_Id]] = defaultdict(list)
            for one in ids:
                if one.coordinator is not None:
                    asked[one.coordinator].append(one)
            troubles = call_each(
                lambda item: self._ask(item[0], item[1], deadline), asked.items(), "kmirror-coordinators"
            )
            ids = [one for one in ids if one.producer is None]
            if ids and time.monotonic() > deadline:
                trouble = next(filter(None, troubles), "the coordinator is busy")
                raise UnreachableError(f"the transaction coordinator of {ids[0].name} does not answer: {trouble}", HINT)
            if ids:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_STEP_S)

    def _ask(self, coordinator: Coordinator, ids: Sequence[_Id], deadline: float) -> str | None:
        """Ask a coordinator for new epochs of its ids; return why some have to be asked for again, if that is known."""
        requests = [begin(one.name, TRANSACTION_TIMEOUT_MS) for one in ids]
        try:
            connection = self._client.connect(*coordinator)
            answers = connection.request_all(requests, timeout=seconds_left(deadline))
        except (ConnectFailedError, OutcomeUnknown) as error:
            for one in ids:
                one.coordinator = None
            return str(error)
        trouble = None
        for one, answer in zip(ids, answers, strict=True):
            if answer.error_code in NOT_COORDINATOR:
                one.coordinator, trouble = None, code_name(answer.error_code)
            elif not answer.error_code:
                one.producer = answer.producer_id, answer.producer_epoch
            elif answer.error_code != Code.CONCURRENT_TRANSACTIONS:
                raise _error_of(one.name, answer.error_code, "beginning a transaction")
        return trouble

    def fill(
        self, counts: Mapping[TopicPartition, int], may_begin: Callable[[], bool] = lambda: True
    ) -> dict[TopicPartition, int]:
        """Write so many markers on each partition, and return how many are written; fewer if `may_begin` is false.

        Raises:
            OutcomeUnknown: how many were written is not known.
            BrokerError: refused; some may be written.
            RefusedError: another client uses a transactional id; some may be written.
            UnreachableError: a coordinator does not answer; some may be written.
        """
        left = {partition: count for partition, count in counts.items() if count}
        filled = dict.fromkeys(counts, 0)
        ready = [one for one in self._ids[: max(left.values(), default=0)] if one.producer is not None]
        if self._must_settle or (left and not ready):
            raise RuntimeError("prepare transactional ids first, and settle them after a fill that failed")
        deadline = time.monotonic() + self._timeout_s
        self._must_settle = True
        try:
            lines = deque(self._lines(ready))
            while lines:
                line = lines.popleft()
                moved = self._receive(line, left, filled, deadline)
                if time.monotonic() > deadline:
                    raise UnreachableError(f"the markers of {line.ids[0].name} are not written", HINT)
                if not moved:
                    time.sleep(_STEP_S)
                if self._send(line, left, may_begin, deadline):
                    lines.append(line)
        except BaseException:
            self.close()
            for one in self._ids:
                one.coordinator, one.is_open, one.is_ending = None, False, False
            raise
        self._must_settle, self._used_at = False, time.monotonic()
        return filled

    def _lines(self, ids: Sequence[_Id]) -> list[_Line]:
        """Return connections to the coordinators of these ids; those that are missing are opened together."""
        if time.monotonic() - self._used_at > _IDLE_S:
            self.close()
        used: dict[tuple[int, int], list[_Id]] = defaultdict(list)
        missing: dict[tuple[int, int], tuple[str, int]] = {}
        numbers: dict[int, int] = defaultdict(int)
        for one in ids:
            if one.coordinator is None:
                continue
            node_id, host, port = one.coordinator
            key = node_id, numbers[node_id] % _CONNECTIONS
            numbers[node_id] += 1
            used[key].append(one)
            if key in self._connections and self._connections[key].must_be_replaced:
                self._connections.pop(key).close()
            if key not in self._connections:
                missing[key] = host, port

        def take(key: tuple[int, int]) -> None:
            self._connections[key] = self._client.spare_connections.take(*missing[key])

        call_each(take, missing, "kmirror-coordinators")
        return [_Line(self._connections[key], on_it) for key, on_it in used.items()]

    def _send(
        self, line: _Line, left: dict[TopicPartition, int], may_begin: Callable[[], bool], deadline: float
    ) -> bool:
        """Begin and commit a transaction of each id that is free; return False if there is nothing to wait for."""
        connection, client_id = line.connection, self._client.config.client_id
        frames: list[bytes] = []
        for one in line.ids:
            if one.producer is None:
                continue
            if left and not one.is_open and may_begin():
                partitions = list(left)
                for partition in partitions:
                    left[partition] -= 1
                    if not left[partition]:
                        del left[partition]
                adding = transactions.add_partitions(one.name, one.producer, partitions)
                frames.append(line.ask(one, partitions, adding, client_id))
            elif not one.is_ending:
                continue
            frames.append(line.ask(one, None, transactions.end(one.name, one.producer, commits=True), client_id))
        if frames:
            connection.wait_for_throttle(seconds_left(deadline))
            connection.send_frame([b"".join(frames)], seconds_left(deadline))
        return bool(frames)

    def _receive(
        self, line: _Line, left: dict[TopicPartition, int], filled: dict[TopicPartition, int], deadline: float
    ) -> bool:
        """Take the answers on a connection; return False if the coordinator did nothing since the last time."""
        moved = not line.in_flight
        connection = line.connection
        for number, (one, partitions, request) in line.in_flight.items():
            answer, throttle_time_ms = request.decode(connection.receive_frame(number, deadline), transactions.VERSION)
            connection.note_throttle(throttle_time_ms)
            code, at = (answer, None) if partitions is None else transactions.refusal_of(answer)
            if code == Code.CONCURRENT_TRANSACTIONS:
                for partition in partitions or ():
                    left[partition] = left.get(partition, 0) + 1
                continue
            if code:
                _refuse(
                    one.name, code, "ending a transaction" if partitions is None else f"adding {at} to a transaction"
                )
            if partitions is not None and answer.keys() != set(partitions):
                raise OutcomeUnknown(f"the coordinator says nothing of some partitions of {one.name}")
            moved = True
            if partitions is None:
                one.is_ending, one.is_open = one.is_open, False
                continue
            one.is_open = one.is_ending = True
            for partition in partitions:
                filled[partition] += 1
        line.in_flight.clear()
        return moved

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _find_coordinators(self, ids: Sequence[_Id], deadline: float) -> None:
        while names := {one.name: one for one in ids if one.coordinator is None}:
            left = seconds_left(deadline)
            for name, found in transaction_coordinators(self._client, names, left).items():
                names[name].coordinator = None if isinstance(found, int) else found
            if waiting := next((name for name, one in names.items() if one.coordinator is None), None):
                if time.monotonic() > deadline:
                    raise UnreachableError(f"{waiting} has no transaction coordinator", HINT)
                time.sleep(_FIND_STEP_S)


def _refuse(transactional_id: str, code: int, what: str) -> NoReturn:
    if code in NOT_COORDINATOR:
        raise OutcomeUnknown(f"the coordinator of {transactional_id} has moved: {code_name(code)}")
    if code == Code.INVALID_TXN_STATE:
        raise OutcomeUnknown(f"the coordinator aborted the transaction of {transactional_id} on its own")
    raise _error_of(transactional_id, code, what)


def _error_of(transactional_id: str, code: int, what: str) -> KmirrorError:
    if code not in FENCED:
        return BrokerError(code, code_name(code), f"{what} with the transactional id {transactional_id}")
    return RefusedError(
        f"another client uses the transactional id {transactional_id}",
        "run only one engine per mirror at a time",
        Reason.FENCED,
    )
