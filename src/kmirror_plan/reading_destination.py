"""Read what a destination has room for; it only reads."""

from __future__ import annotations

from collections.abc import Collection

from kmirror.cluster.topics.log_dirs import disk_use
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.replication import NEW_TOPICS, replication_of
from kmirror.settings.table import Settings
from kmirror_plan.migration_plan import Room


def read_room(destination: Destination, settings: Settings, topics: Collection[str]) -> Room:
    """Return what the destination has; `topics` are the names at the source.

    Raises:
        UnreachableError: it does not answer.
    """
    client = destination.client
    found = client.metadata(None)
    names = {settings.topic_prefix + topic for topic in topics}
    state = destination.state()
    known = replication_of(client, settings, []).get(NEW_TOPICS)
    use = disk_use(client, "")
    is_whole = not any(topic.error_code for topic in found.topics.values())
    replicas = sum(len(one.replicas) for topic in found.topics.values() for one in topic.partitions.values())
    mirrored = {record.topic for mirror in state.mirrors for record in state.topics(mirror.name)}
    return Room(
        cluster_id=destination.cluster_id,
        brokers=len(found.brokers),
        replicas=replicas if is_whole else None,
        free=None if use is None else use.free_bytes,
        replication_factor=None if known is None else known.replicas,
        taken=tuple(sorted((names & found.topics.keys()) - mirrored)),
    )
