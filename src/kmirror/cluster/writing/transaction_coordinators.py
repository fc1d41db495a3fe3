"""What writers of transactions have in common: where coordinators are, how to begin, and what codes mean."""

from __future__ import annotations

from collections.abc import Iterable

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import exchange_of
from kmirror.cluster.coordinators import Coordinator, KeyType, find_coordinators
from kmirror.cluster.protocol.codes import NOT_COORDINATOR, Code, code_name
from kmirror.cluster.protocol.wire import Exchange
from kmirror.errors import BrokerError

HINT = (
    "check that all brokers and their log directories are up; __transaction_state and the topics that are written to"
    " need their in-sync replicas"
)
#: Another client has begun with the transactional id.
FENCED = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
#: The highest version for clients without transactions of the second kind (KIP-890).
_HIGHEST_BEGIN_VERSION = 4


def transaction_coordinators(
    client: ClusterClient, transactional_ids: Iterable[str], timeout: float
) -> dict[str, Coordinator | int]:
    """Return the coordinator of each id, within `timeout` seconds; the error code for one that has none now.

    Raises:
        BrokerError: refused.
        UnreachableError: no broker answers.
    """
    found = find_coordinators(client, KeyType.TRANSACTION, transactional_ids, timeout)
    for name, one in found.items():
        if isinstance(one, int) and one not in NOT_COORDINATOR:
            raise BrokerError(one, code_name(one), f"looking for the coordinator of the transactional id {name}")
    return found


def last_transaction(transactional_id: str) -> Exchange:
    """Return the request for the state of an id's last transaction."""
    return exchange_of(kafka.DescribeTransactionsRequest(transactional_ids=[transactional_id]), highest=0)


def begin(transactional_id: str, timeout_ms: int, producer: tuple[int, int] = (-1, -1)) -> Exchange:
    """Return the request for a new producer epoch; with a `producer` id and epoch, only if it is still the last."""
    producer_id, producer_epoch = producer
    request = kafka.InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    return exchange_of(request, highest=_HIGHEST_BEGIN_VERSION)
