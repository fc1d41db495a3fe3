"""The records of MirrorMaker 2's own topics, as its clients read them. Pure.

Offsets are the same on both clusters, so each record has the same offset twice. Formats are those of `OffsetSync`,
`Checkpoint` and `Heartbeat` of Kafka's connect-mirror-client: big-endian, strings with a length of two bytes;
checkpoints and heartbeats begin with a version, which is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack
from typing import NamedTuple

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.settings.table import Settings
from kmirror.sync.group_changes import Bounds, GroupView, MirroredTopics, clamped

HEARTBEATS_TOPIC = "heartbeats"
_VERSION = pack(">h", 0)


class CompactedRecord(NamedTuple):
    """One record of a compacted topic."""

    key: bytes
    value: bytes


def offset_syncs_topic(settings: Settings) -> str:
    """Return the topic of offset syncs, named after the source because it is on the target."""
    return f"mm2-offset-syncs.{settings.source_cluster_alias}.internal"


def checkpoints_topic(settings: Settings) -> str:
    """Return the topic of checkpoints."""
    return f"{settings.source_cluster_alias}.checkpoints.internal"


def own_topics(settings: Settings) -> tuple[str, ...]:
    """Return the topics that a mirror writes for MirrorMaker 2's clients."""
    wanted = (
        (settings.emit_offset_syncs_enabled, offset_syncs_topic(settings)),
        (settings.emit_checkpoints_enabled, checkpoints_topic(settings)),
        (settings.emit_heartbeats_enabled, HEARTBEATS_TOPIC),
    )
    return tuple(topic for is_wanted, topic in wanted if is_wanted)


def offset_syncs(topics: MirroredTopics, ends: Mapping[TopicPartition, int]) -> dict[bytes, bytes]:
    """Return an offset sync for each mirror partition whose log end is known; its key has the source's topic."""
    sources = {topic: source for source, topic in topics.names.items()}
    return dict(
        CompactedRecord(_text(sources[at.topic]) + pack(">i", at.partition), pack(">qq", end, end))
        for at, end in ends.items()
        if at.topic in sources
    )


def checkpoints(
    groups: Mapping[str, GroupView], topics: MirroredTopics, bounds: Mapping[TopicPartition, Bounds]
) -> dict[bytes, bytes]:
    """Return a checkpoint for each offset that a group of the source has committed for a mirrored partition.

    Its offset at the destination is clamped to the mirror topic's log, as a consumer needs it. Partitions that are not
    copied now, or whose log is unknown, have none.
    """
    found = {}
    for group, view in groups.items():
        for at, committed in view.committed.items():
            partition = topics.destination_of(at)
            if partition is None or partition not in bounds or topics.reason_to_wait(partition) is not None:
                continue
            entry = checkpoint(group, partition, committed.offset, clamped(committed.offset, bounds[partition]))
            found[entry.key] = entry.value
    return found


def checkpoint(group: str, topic_partition: TopicPartition, source_offset: int, offset: int) -> CompactedRecord:
    """Return one checkpoint, with empty metadata."""
    key = _text(group) + _text(topic_partition.topic) + pack(">i", topic_partition.partition)
    return CompactedRecord(key, _VERSION + pack(">qq", source_offset, offset) + _text(""))


def heartbeat(settings: Settings, now_ms: int) -> CompactedRecord:
    """Return a heartbeat with this time."""
    key = _text(settings.source_cluster_alias) + _text(settings.target_cluster_alias)
    return CompactedRecord(key, _VERSION + pack(">q", now_ms))


def _text(text: str) -> bytes:
    encoded = text.encode()
    return pack(">h", len(encoded)) + encoded
