"""Look at the two topics of a rebuild: whether they exist, under which id, and where their logs start and end."""

from __future__ import annotations

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.topics.leaders import newest_leaders
from kmirror.errors import UnreachableError


def require_topic(source: ClusterClient, name: str) -> TopicMetadata:
    """Return a topic of the source. Raises UnreachableError: it has none of this name now."""
    found = source.metadata([name]).topics.get(name)
    if found is None or found.error_code or not found.partitions:
        raise UnreachableError(f"the source has no topic {name} now", "it is rebuilt once it exists again")
    return found


def require_id(found: TopicMetadata, known: str | None, cluster: str) -> None:
    """Raise UnreachableError if the id of a topic that had one is not shown: a later topic would not be noticed."""
    if known is not None and found.printed_topic_id is None:
        raise UnreachableError(f"the {cluster} shows topic {found.name} without its topic id", "kmirror retries it")


def certain_bounds(
    client: ClusterClient, topic: str, partitions: int, *, read_committed: bool = False
) -> dict[int, tuple[int, int]]:
    """Return log start and end of each partition, as the newest leaders say.

    The end is the log end offset, or with `read_committed` the last stable one.
    """
    topic_partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
    end_lookup = Lookup(LATEST, read_committed=read_committed, log_end=not read_committed)
    leaders = newest_leaders(client, topic_partitions)
    starts, ends = client.look_up_offsets(topic_partitions, (Lookup(EARLIEST), end_lookup), metadata=leaders)
    found = {}
    for topic_partition in topic_partitions:
        start, end = starts[topic_partition].offset, ends[topic_partition].offset
        if start is None or end is None:
            raise UnreachableError(f"the offsets of {topic_partition} are unknown at the moment", "kmirror retries it")
        found[topic_partition.partition] = (start, end)
    return found
