"""Who leads the source's partitions, by the newest that any broker has said.

A broker that is cut off from the others still answers as the leader that it was, and names itself: it has no new
records, and its log may end before what was copied from its successor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import metadata as metadata_codec
from kmirror.cluster.protocol.metadata import (
    ClusterMetadata,
    TopicMetadata,
    TopicPartition,
    TopicsCache,
)
from kmirror.words import counted


class SourceLeaders:
    """Ask who leads partitions, and remember the newest; for one thread."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        #: The newest that is known of all topics asked for so far; replaced if any of it changes. None before.
        self._known: ClusterMetadata | None = None
        self._cache = TopicsCache()
        #: What the broker that was last asked by `ask_next` answered, and how many were.
        self._heard: Mapping[str, TopicMetadata] | None = None
        self._asked = 0

    def metadata(self, topics: Collection[str], timeout: float) -> ClusterMetadata:
        """Ask for topics; all brokers, if the one that answers names an older leader than known.

        Raises:
            UnreachableError: no broker answers.
        """
        found = self._client.metadata(topics, timeout=timeout)
        if self._known is None or not _is_older(found, self._known):
            return self._remember(found)
        return self._ask_all(topics, timeout)[0]

    def ask_next(self, topics: Collection[str]) -> ClusterMetadata | None:
        """Ask one broker, another each time; return the newest that is known then of all topics, None before."""
        known = self._known
        if known is None or len(known.brokers) < 2:
            return known
        self._asked += 1
        broker = known.brokers[sorted(known.brokers)[self._asked % len(known.brokers)]]
        (answer,) = self._client.ask_each([broker], metadata_codec.exchange(sorted(topics), self._cache))
        if answer is not None and answer.topics is not self._heard:
            self._heard = answer.topics
            if _is_older(known, answer):
                self._known = metadata_codec.newest([known, answer])
        return self._known

    def doubts(
        self, partitions: Collection[TopicPartition], read: ClusterMetadata, timeout: float
    ) -> dict[TopicPartition, str]:
        """Ask all brokers about partitions; return those of which an older leader may have been `read`, and why.

        Raises:
            UnreachableError: no broker answers.
        """
        if not partitions:
            return {}
        found, silent = self._ask_all({p.topic for p in partitions}, timeout)
        doubts = {}
        for partition in partitions:
            ours = read.leader(partition)
            if ours is None:
                continue
            if newer := successor(found, partition, ours.leader_epoch):
                doubts[partition] = newer
            elif found.has_replica_on(partition, silent):
                what = f"whether broker {ours.leader_id} still leads {partition} is not certain"
                doubts[partition] = f"{what}: {counted(len(silent), 'broker does', 'brokers do')} not answer"
        return doubts

    def _ask_all(self, topics: Collection[str], timeout: float) -> tuple[ClusterMetadata, frozenset[int]]:
        """Ask all brokers; return the newest, and the brokers that do not answer.

        What is known is newer only if one of those said it: of an older source that was restored, all say the same.
        """
        found, silent = self._client.newest_metadata(topics, timeout=timeout)
        if silent and self._known is not None:
            found = metadata_codec.newest([found, self._known])
        return self._remember(found), silent

    def _remember(self, found: ClusterMetadata) -> ClusterMetadata:
        known = self._known.topics if self._known is not None else {}
        certain = {name: topic for name, topic in found.topics.items() if not topic.error_code}
        self._known = replace(found, topics={**known, **certain})
        return found


def successor(known: ClusterMetadata, partition: TopicPartition, leader_epoch: int) -> str | None:
    """Return in words who leads a partition now, if its leader epoch is higher than this one; else None."""
    topic = known.topics.get(partition.topic)
    now = topic.partitions.get(partition.partition) if topic else None
    if now is None or now.leader_epoch <= leader_epoch:
        return None
    who = "no broker" if now.leader_id is None else f"broker {now.leader_id}"
    return f"the leader of {partition} has changed: {who} leads it now, leader epoch {now.leader_epoch}"


def _is_older(found: ClusterMetadata, other: ClusterMetadata) -> bool:
    """Return whether an answer names an older leader of some partition than another one."""
    for name, topic in found.topics.items():
        there = other.topics.get(name)
        if there is None or there.partitions is topic.partitions or there.topic_id != topic.topic_id:
            continue
        newer = there.partitions
        if any(p.leader_epoch < newer[index].leader_epoch for index, p in topic.partitions.items() if index in newer):
            return True
    return False
