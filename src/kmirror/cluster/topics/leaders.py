"""Whether topics have leaders: an election takes a moment, but no request helps a topic whose replicas are all down."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.errors import Reason, UnreachableError

#: Brokers name the old leader until they take it for dead, and then elect another one at once: who has none for this
#: long has no replica to elect.
_ELECTION_S = 10.0
_STEP_S, _LEAST_S = 0.1, 0.1
#: How long all brokers may take to answer in the end.
_LAST_S = 2.0


class NoLeaderError(UnreachableError):
    """A topic of the destination has no leader, and more than an election was waited for."""


def require_leaders(
    client: ClusterClient, topics: Sequence[str], found: ClusterMetadata, seconds: float
) -> ClusterMetadata:
    """Wait until the first partitions of these topics have leaders, where they exist; return who they are.

    `found` was just read. Waits for `seconds` at most, and no longer than an election takes.

    Raises:
        NoLeaderError: one has none, according to all brokers that answer.
        UnreachableError: no broker answers any more.
    """
    until = time.monotonic() + min(seconds, _ELECTION_S)
    while without := _without(found, topics):
        if time.monotonic() < until:
            time.sleep(_STEP_S)
            with suppress(UnreachableError):
                found = client.metadata(topics, timeout=max(_LEAST_S, until - time.monotonic()))
            continue
        # a broker that is cut off from the others knows of no election
        found, _ = client.newest_metadata(topics, timeout=_LAST_S)
        if without := _without(found, topics):
            holders = sorted({node for topic in without for node in found.topics[topic].partitions[0].replicas})
            which = f"{'broker' if len(holders) == 1 else 'brokers'} {', '.join(map(str, holders))}"
            raise NoLeaderError(
                f"{' and '.join(without)} {'has' if len(without) == 1 else 'have'} no leader",
                f"bring back the replicas: start {which}, or restore the log directories there",
                Reason.DESTINATION_UNREACHABLE,
            )
    return found


def _without(found: ClusterMetadata, topics: Iterable[str]) -> list[str]:
    partitions = {name: topic.partitions.get(0) for name, topic in found.topics.items()}
    return [name for name in topics if (first := partitions.get(name)) is not None and first.leader_id is None]
