"""Fill offsets by transactions without records, for principals that may not write markers. Blocking, and slow.

The coordinator ends a transaction with one marker on each of its partitions (KIP-98), even if it has no records there.
That needs only WRITE on the transactional id and on the topics. Some 100 offsets a second on one partition, 10,000 over
100 partitions in one transaction.

The outcome of a request without an answer is found out, so that nothing stays in flight:

* EndTxn is repeated: ending a transaction that has ended writes nothing more;
* AddPartitionsToTxn is not: it might begin another transaction later. A new producer epoch fences it, and ends what it
  began, with one marker on each partition, or none. The caller compares the log ends.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import ConnectFailedError
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import BrokerError, OutcomeUnknown, Reason, RefusedError, UnreachableError

#: Time after which the coordinator aborts a transaction.
TRANSACTION_TIMEOUT_MS = 60_000

_CONCURRENT_TRANSACTIONS = 51
_INVALID_TXN_STATE = 48
_OPERATION_NOT_ATTEMPTED = 55
_FENCED = {Code.INVALID_PRODUCER_EPOCH, 90}
_TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
_NOT_COORDINATOR = {
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
}
_NAMES = {
    _INVALID_TXN_STATE: "INVALID_TXN_STATE",
    _TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
}
#: FindCoordinator's key type for transactional ids.
_TRANSACTION = 1
#: The last version for clients; later ones are for brokers, with several transactions (KIP-890).
_HIGHEST_CLIENT_VERSION = 3
_STEP_S = 0.01
_LONGEST_STEP_S = 0.2


class EmptyTransactions:
    """Write markers with one transactional id, which no other client may use at the same time."""

    def __init__(self, client: ClusterClient, transactional_id: str) -> None:
        self._client = client
        self._transactional_id = transactional_id
        self._timeout_s = client.config.request_timeout_ms / 1000
        #: The coordinator's node id, host and port.
        self._coordinator: tuple[int, str, int] | None = None
        #: Producer id and epoch; None while an earlier transaction may be open.
        self._producer: tuple[int, int] | None = None

    def settle(self) -> None:
        """Fence any client that used the transactional id before, and wait until its open transaction has ended.

        That may write a marker on each of its partitions: read log ends after this, not before. Call it before the
        first `fill_once`, and after one that raised anything but OutcomeUnknown.

        Raises:
            BrokerError: refused.
            UnreachableError: the coordinator does not answer.
        """
        from kafka.protocol.producer import InitProducerIdRequest

        request = InitProducerIdRequest(
            transactional_id=self._transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            producer_id=-1,
            producer_epoch=-1,
        )
        deadline = time.monotonic() + self._timeout_s
        answer = self._ask(request, deadline, lambda answer: answer.error_code, highest=4, repeat=True)
        self._require(answer.error_code, "beginning a transaction")
        self._producer = (answer.producer_id, answer.producer_epoch)

    def fill_once(self, partitions: Iterable[TopicPartition]) -> None:
        """Write exactly one marker on each partition, and return when they are written.

        Raises:
            OutcomeUnknown: each partition has one more marker, or none, and nothing is in flight any more.
            BrokerError: refused; no marker was written.
            RefusedError: another client uses the transactional id; each partition may have one more marker.
            UnreachableError: the coordinator does not answer; a marker may still be written, until `settle`.
        """
        assert self._producer is not None, "settle first"
        wanted = sorted(set(partitions))
        if not wanted:
            return
        producer, self._producer = self._producer, None
        deadline = time.monotonic() + self._timeout_s
        try:
            self._add(producer, wanted, deadline)
            # the first answer means that the end is decided, the second that all markers are written
            for _ in range(2):
                self._end(producer, deadline)
        except OutcomeUnknown:
            self.settle()
            raise
        self._producer = producer

    def _add(self, producer: tuple[int, int], partitions: list[TopicPartition], deadline: float) -> None:
        from kafka.protocol.producer import AddPartitionsToTxnRequest

        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in partitions:
            by_topic[topic].append(partition)
        topic_type = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self._transactional_id,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[topic_type(name=name, partitions=indexes) for name, indexes in by_topic.items()],
        )

        def codes(answer: Any) -> dict[TopicPartition, int]:
            return {
                TopicPartition(topic.name, result.partition_index): result.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            }

        def worst(answer: Any) -> int:
            found = set(codes(answer).values()) - {0}
            return min(found - {_OPERATION_NOT_ATTEMPTED} or found, default=0)

        answer = self._ask(request, deadline, worst, highest=_HIGHEST_CLIENT_VERSION, repeat=False)
        code = worst(answer)
        where = next((partition for partition, found in codes(answer).items() if found == code), None)
        self._require(code, f"adding {where} to a transaction")

    def _end(self, producer: tuple[int, int], deadline: float) -> None:
        from kafka.protocol.producer import EndTxnRequest

        request = EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=True,
        )
        answer = self._ask(
            request, deadline, lambda answer: answer.error_code, highest=_HIGHEST_CLIENT_VERSION, repeat=True
        )
        if answer.error_code == _INVALID_TXN_STATE:
            raise OutcomeUnknown(f"the coordinator aborted the transaction of {self._transactional_id} on its own")
        self._require(answer.error_code, "ending a transaction")

    def _ask(self, request: Any, deadline: float, code_of: Any, *, highest: int, repeat: bool) -> Any:
        """Ask the coordinator until its answer is not "later"; repeat a request without an answer only if `repeat`."""
        pause = _STEP_S
        trouble = "the coordinator is busy"
        while time.monotonic() < deadline:
            try:
                self._coordinator = self._coordinator or self._find(deadline)
                connection = self._client.connect(*self._coordinator)
                answer = connection.request(request, highest=highest, timeout=max(deadline - time.monotonic(), 0.1))
            except ConnectFailedError as error:
                self._coordinator, trouble = None, str(error)
            except OutcomeUnknown as error:
                self._coordinator, trouble = None, str(error)
                if not repeat:
                    raise
            else:
                code = code_of(answer)
                if code in _NOT_COORDINATOR:
                    self._coordinator, trouble = None, code_name(code)
                elif code != _CONCURRENT_TRANSACTIONS:
                    return answer
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_STEP_S)
        raise UnreachableError(
            f"the transaction coordinator of {self._transactional_id} does not answer: {trouble}",
            "check that all brokers are up; the topic __transaction_state needs its in-sync replicas",
        )

    def _find(self, deadline: float) -> tuple[int, str, int]:
        from kafka.protocol.metadata import FindCoordinatorRequest

        while True:
            request = FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=[self._transactional_id])
            (found,) = self._client.ask_any(request, timeout=max(deadline - time.monotonic(), 0.1)).coordinators
            if found.error_code not in _NOT_COORDINATOR:
                self._require(found.error_code, "looking for the transaction coordinator")
                return found.node_id, found.host, found.port
            if time.monotonic() > deadline:
                message = f"{self._transactional_id} has no transaction coordinator"
                raise UnreachableError(message, "check that all brokers are up")
            time.sleep(_STEP_S)

    def _require(self, code: int, what: str) -> None:
        if code in _FENCED:
            raise RefusedError(
                f"another client uses the transactional id {self._transactional_id}",
                "run only one engine per mirror at a time",
                Reason.FENCED,
            )
        if code:
            name = _NAMES.get(code) or code_name(code)
            raise BrokerError(code, name, f"{what} with the transactional id {self._transactional_id}")
