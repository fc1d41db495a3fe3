"""Find the transactional id of a producer id (ListTransactions, KIP-664).

Every broker is asked for the transactions that it coordinates. One that we may not see (DESCRIBE on its transactional
id) is silently left out, and so is a hanging one, which no coordinator knows any more.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress

from kmirror.cluster.client import ClusterClient
from kmirror.errors import KmirrorError, OutcomeUnknown

_SHORTEST_S = 0.1


def transactions_of(
    client: ClusterClient, producer_ids: Collection[int], patience_s: float
) -> dict[int, tuple[str, str]]:
    """Return transactional id and state by producer id, from the brokers that answer within `patience_s` seconds.

    Raises:
        UnreachableError: no broker answers.
    """
    from kafka.protocol.admin import ListTransactionsRequest

    until = time.monotonic() + patience_s
    found: dict[int, tuple[str, str]] = {}
    for broker in client.metadata([], timeout=patience_s).brokers.values():
        with suppress(KmirrorError, OutcomeUnknown):
            left = max(until - time.monotonic(), _SHORTEST_S)
            connection = client.connect(broker.node_id, broker.host, broker.port, timeout=left)
            request = ListTransactionsRequest(state_filters=[], producer_id_filters=sorted(producer_ids))
            answer = connection.request(request, highest=0, timeout=left)
            if not answer.error_code:
                for one in answer.transaction_states:
                    found[one.producer_id] = (one.transactional_id, one.transaction_state)
    return found
