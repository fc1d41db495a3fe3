"""Look up the coordinators of groups and of transactional ids (FindCoordinator)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import IntEnum

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient, seconds_left
from kmirror.cluster.protocol.codes import Code

#: A coordinator's node id, host and port.
Coordinator = tuple[int, str, int]
#: The first version for several keys at once (Kafka 3.0); before, an answer does not repeat its one key.
_FIRST_OF_MANY = 4


class KeyType(IntEnum):
    """What is coordinated."""

    GROUP = 0
    TRANSACTION = 1


def find_coordinators(
    client: ClusterClient, key_type: KeyType, keys: Iterable[str], timeout: float
) -> dict[str, Coordinator | int]:
    """Return the coordinator of each key, within `timeout` seconds; an error code for one that has none now.

    Raises:
        UnreachableError: no broker answers.
    """
    left, deadline = list(keys), time.monotonic() + timeout
    found: dict[str, Coordinator | int] = dict.fromkeys(left, int(Code.COORDINATOR_NOT_AVAILABLE))
    while left:
        request = kafka.FindCoordinatorRequest(key=left[0], key_type=key_type, coordinator_keys=left)
        answer = client.ask_any(request, timeout=seconds_left(deadline))
        has_many = answer.API_VERSION >= _FIRST_OF_MANY
        for key, one in [(one.key, one) for one in answer.coordinators] if has_many else [(left[0], answer)]:
            if key in found:
                found[key] = one.error_code or (one.node_id, one.host, one.port)
        left = [] if has_many else left[1:]
    return found
