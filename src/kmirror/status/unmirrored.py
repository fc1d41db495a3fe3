"""Partitions and topics that exist on one of the clusters, but do not belong to the mirror. Pure: no I/O, no clock.

What the source has and nobody copies is lag, its whole log. What the destination alone has is shown, and harmless.
Source topics that the filters select are discovered; which ones could not be added is what the engine last found.
"""

from __future__ import annotations

from dataclasses import dataclass

from kmirror.errors import Reason
from kmirror.settings.parsing import stored_settings
from kmirror.state.engine_findings import Lacking, NotAdded
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.observed import ClusterSnapshot
from kmirror.words import counted, visible

_LATER = "a running engine adds it within refresh.interval.seconds"


@dataclass(frozen=True, slots=True)
class UnmirroredPartition:
    """A partition that does not belong to the mirror, and why; it is `extra` if the source certainly lacks it."""

    reason: Reason
    message: str
    is_extra: bool = False


def unmirrored_partitions(
    topic: TopicRecord,
    mirrored: int,
    lacking: Lacking | None,
    destination: ClusterSnapshot,
    source: ClusterSnapshot | None,
) -> dict[int, UnmirroredPartition]:
    """Return the partitions from `mirrored` on that a cluster has; `lacking` is what the engine last knew of them."""
    if topic.desired is DesiredState.STOPPED:
        return {}
    there = source.partitions_of(topic.source_topic, topic.source_topic_id) if source is not None else None
    here = destination.partitions_of(topic.topic, topic.destination_topic_id) or frozenset()
    known = frozenset(range(lacking.partitions)) if there is None and lacking is not None else there or frozenset()
    refused = lacking is not None and lacking.partitions > mirrored
    found = {}
    for partition in sorted(one for one in known | here if one >= mirrored):
        if partition in known and lacking is not None and refused:
            message = f"the source has this partition, the mirror lacks it: {lacking.message}"
            found[partition] = UnmirroredPartition(lacking.reason or Reason.PARTITION_MISSING, message)
        elif partition in known:
            message = f"the source has this partition, and nobody copies it yet: {_LATER}"
            found[partition] = UnmirroredPartition(Reason.PARTITION_MISSING, message)
        elif there is None:
            message = "nobody copies this partition, and whether the source has it is unknown"
            found[partition] = UnmirroredPartition(Reason.PARTITION_MISSING, message)
        else:
            message = (
                f"the source has no such partition, only {counted(len(there), 'partition')}: nothing is copied to it"
            )
            found[partition] = UnmirroredPartition(Reason.PARTITIONS_DECREASED, message, is_extra=True)
    return found


def not_added_topics(state: State, mirror: MirrorRecord) -> NotAdded:
    """Return what discovery could not add when the engine last looked, with whole sentences, as far as it still holds.

    Of topics beyond the first ones, only how many there were is known.
    """
    engine = state.engine(mirror.name)
    if engine is None or engine.not_added is None or mirror.discovery_ended:
        return NotAdded(0, {})
    settings = stored_settings(mirror.settings)
    if not settings.discovers:
        return NotAdded(0, {})
    mirrored = {topic.source_topic for topic in state.topics(mirror.name)}
    what = f"matches the filters of mirror {visible(mirror.name)} and is not mirrored"
    found = {
        name: f"source topic {visible(name)} {what}: {why}"
        for name, why in engine.not_added.why.items()
        if settings.selects(name) and name not in mirrored
    }
    return NotAdded(engine.not_added.topics - len(engine.not_added.why) + len(found), found)


def not_added_notes(found: NotAdded) -> list[str]:
    """Return the sentences, and one for how many more topics there are."""
    more = found.topics - len(found.why)
    what = counted(more, "more source topic matches", "more source topics match")
    others = [f"{what} its filters; `kmirror events` says why they are not mirrored"] if more > 0 else []
    return [*found.why.values(), *others]
