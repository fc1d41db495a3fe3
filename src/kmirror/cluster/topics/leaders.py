"""Whether topics have leaders: an election takes a moment, but no request helps a topic whose replicas are all down.

And whether a leader still is one: a broker that is cut off from the others answers as the leader that it was.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence, Set
from contextlib import suppress

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import metadata as metadata_codec
from kmirror.cluster.protocol.metadata import ClusterMetadata, LeaderAddress, TopicPartition
from kmirror.errors import Reason, TimedOutError, UnreachableError

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


def newest_leaders(client: ClusterClient, partitions: Collection[TopicPartition], where: str = "") -> ClusterMetadata:
    """Ask all brokers who leads partitions; return the newest that any of them says. Errors say `where` that is.

    Raises:
        TimedOutError: as `leader_doubt`.
        UnreachableError: no broker answers.
    """
    found, silent = client.newest_metadata({partition.topic for partition in partitions})
    if doubt := leader_doubt(found, silent, partitions, where):
        raise doubt
    return found


def leader_doubt(
    found: ClusterMetadata, silent: Set[int], partitions: Iterable[TopicPartition], where: str = ""
) -> TimedOutError | None:
    """Return an error if a `silent` broker has a replica of a partition: it may lead it, and its log end later."""
    unsure = next((partition for partition in partitions if found.has_replica_on(partition, silent)), None)
    if unsure is None:
        return None
    who, does = ("broker", "does") if len(silent) == 1 else ("brokers", "do")
    silence = f"{who} {', '.join(map(str, sorted(silent)))} {does} not answer"
    partition = f"{unsure} {where}".rstrip()
    return TimedOutError(f"who leads {partition} is not certain: {silence}", f"try again once the {who} {does}")


def is_older(partition: TopicPartition, read: LeaderAddress | None, known: ClusterMetadata) -> bool:
    """Return whether a partition was read from an older leader than the one known, or as another topic's."""
    leader = known.leader_address(partition)
    if leader is None or read is None or read.topic_id != leader.topic_id:
        return leader is not None
    return 0 <= read.leader_epoch < leader.leader_epoch


def newer_leader(
    client: ClusterClient, partition: TopicPartition, known: ClusterMetadata, seconds: float, *, strictly: bool = True
) -> ClusterMetadata | None:
    """Return what a broker knows of a newer leader than that of `known`; None if no replica's broker knows of one.

    A leader that is cut off from the controllers names itself; the brokers of the other replicas learn of an election
    from the controllers. A newer leader was in sync when the connection was lost, and a leader that is cut off cannot
    take it from that list. So every replica that any of them calls in sync must answer, the leader as well, and with
    three or more most of all: Kafka 4 also elects some that were in sync before. One that is stopped is not on it.
    Not `strictly`, most are enough: one that has just broken down is not in the way then, but may have been elected.

    Raises:
        TimedOutError: too many do not answer, or the topic was created again.
    """
    topic = known.topics[partition.topic]
    ours = topic.partitions.get(partition.partition)
    if ours is None:
        raise TimedOutError(f"who leads {partition} is not certain")
    if {*ours.replicas} == {ours.leader_id}:
        return None
    asked = [known.brokers[node_id] for node_id in sorted(ours.replicas) if node_id in known.brokers]
    wait, question = min(seconds, _LAST_S), metadata_codec.exchange([partition.topic])
    found = list(zip(asked, client.ask_each(asked, question, timeout=wait), strict=True))
    what = f"whether broker {ours.leader_id} still leads {partition} is not certain"
    newest, answer, heard, in_sync = ours.leader_epoch, None, set[int](), {*ours.in_sync_replicas}
    for broker, one in found:
        there = one.topics.get(partition.topic) if one is not None else None
        theirs = there.partitions.get(partition.partition) if there is not None and not there.error_code else None
        if there is None or theirs is None:
            continue
        if there.topic_id != topic.topic_id:
            raise TimedOutError(f"{what}: broker {broker.node_id} knows another topic of this name")
        heard.add(broker.node_id)
        in_sync.update(theirs.in_sync_replicas)
        if theirs.leader_epoch > newest:
            newest, answer = theirs.leader_epoch, one
    silent = [node_id for node_id in sorted(ours.replicas) if node_id not in heard]
    has_few = len(ours.replicas) > 2 and 2 * len(silent) >= len(ours.replicas)
    if answer is None and (has_few or (strictly and not in_sync.isdisjoint(silent))):
        who = f"its {'replica' if len(silent) == 1 else 'replicas'} on {', '.join(map(str, silent))} did not answer"
        raise TimedOutError(f"{what}: {who}")
    return answer
