"""What follows when mirroring to topics has ended: they get what was held back, and become fit for their new owners.

Needs the destination only. All of it can be done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kmirror.cluster.acl_commands import grant_line
from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.topic_settings import topic_defaults, topic_settings
from kmirror.cluster.trim import restore_settings, trim_compacted
from kmirror.engine.histories.filler_end import filler_end
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.add.topic_admin import TopicAdmin
from kmirror.ops.context import Destination, told
from kmirror.ops.groups.sync import clamp_groups
from kmirror.ops.results import GroupResult
from kmirror.ops.rights.at_stop import lift_rights, probe_writable
from kmirror.ops.stop.first_source import FirstSource
from kmirror.state.records import TopicRecord
from kmirror.state.snapshot import State
from kmirror.state.store import STATE_TOPIC
from kmirror.sync.topic_settings import settings_at_stop

_FINISHES = "run the same command again to finish"


@dataclass(slots=True)
class Aftermath:
    """How it went: what became of groups, what whoever stopped the topics should know, and by topic what failed."""

    groups: list[GroupResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    troubles: dict[str, KmirrorError] = field(default_factory=dict)


def bring_to_rest(
    destination: Destination,
    state: State,
    mirror: str,
    topics: Sequence[TopicRecord],
    step: Callable[[str], None],
) -> Aftermath:
    """Do all that belongs to the stop of these topics; the ends of their logs are recorded in `state`.

    `step` is told the name of each part when it is done.
    """
    after = Aftermath()
    first_source = FirstSource(state.mirror(mirror), topics)
    _trim_fillers(destination, state, mirror, topics, after)
    step("filler trimmed")
    _clamp_groups(destination, mirror, topics, after)
    step("groups clamped")
    topics = first_source.applied(destination.config, after.warnings)
    _apply_settings(destination, topics, after)
    step("settings applied")
    _lift_rights(destination, mirror, topics, after)
    step("rights lifted")
    return after


def _left(topics: Iterable[TopicRecord], after: Aftermath) -> list[TopicRecord]:
    return [topic for topic in topics if topic.topic not in after.troubles]


def _trim_fillers(
    destination: Destination, state: State, mirror: str, topics: Sequence[TopicRecord], after: Aftermath
) -> None:
    """Delete filler in front of the records, of first copies that never came so far."""
    client = destination.client
    suspects: list[TopicPartition] = []
    for topic in topics:
        for partition in range(topic.partitions):
            record = state.partition(mirror, topic.topic, partition)
            if record is not None and record.last_mirrored_offset and not (record.aligned or record.begun):
                suspects.append(TopicPartition(topic.topic, partition))
    try:
        restore_settings(client, [topic.topic for topic in topics])
        starts = client.list_offsets(dict.fromkeys(suspects, EARLIEST))
        ends = client.list_offsets(dict.fromkeys(suspects, LATEST), log_end=True)
        trims: dict[TopicPartition, int] = {}
        for place in suspects:
            start, end = starts[place].offset, ends[place].offset
            if start is None or end is None or start == end:
                continue
            own = _writer_at(client, place, start)
            if own >= FIRST_OWN_PRODUCER_ID and (found := filler_end(client, place, start, end, own)):
                trims[place] = found
        for place, trimmed in trim_compacted(client, trims).items() if trims else ():
            if trimmed.error_code:
                after.troubles[place.topic] = KmirrorError(
                    f"the filler in {place} could not be deleted (error {trimmed.error_code})",
                    f"until then readers are shown {trims[place]} empty records; DELETE on the topic is needed",
                )
            else:
                after.warnings.append(f"{place} held no record of its source yet, and is empty at {trims[place]}")
    except (KmirrorError, OutcomeUnknown) as error:
        for name in {place.topic for place in suspects} or {topic.topic for topic in topics}:
            after.troubles.setdefault(name, told(error))


def _writer_at(client: ClusterClient, place: TopicPartition, start: int) -> int:
    """Return the producer id of the batch with which a log begins; -1 where there is none."""
    headers = batch_headers(PartitionReader(client, place).fetch(start).records)
    return next((header.producer_id for header in headers if header.next_offset > start), -1)


def _apply_settings(destination: Destination, topics: Sequence[TopicRecord], after: Aftermath) -> None:
    """Give topics the settings that were held back while they were mirrored."""
    left = _left(topics, after)
    try:
        present = topic_settings(destination.client, [topic.topic for topic in left])
        defaults = topic_defaults(destination.client, STATE_TOPIC)
        changes: dict[str, Mapping[str, str | None]] = {}
        for topic in left:
            found = present.get(topic.topic, 0)
            if isinstance(found, int):
                after.troubles[topic.topic] = KmirrorError(
                    f"the settings of {topic.topic} cannot be read",
                    grant_line(destination.config, ("DESCRIBE_CONFIGS",), f"--topic {topic.topic}"),
                    Reason.NOT_AUTHORIZED,
                )
            elif change := settings_at_stop(topic, found, defaults):
                changes[topic.topic] = change
        for name, error in TopicAdmin(destination.store).set_settings(changes).items() if changes else ():
            if error is not None:
                after.troubles[name] = KmirrorError(
                    f"{name} did not get its deferred settings: {error.message}",
                    _FINISHES if error.hint is None else f"{_FINISHES}; before that: {error.hint}",
                    error.reason,
                )
    except (KmirrorError, OutcomeUnknown) as error:
        for topic in left:
            after.troubles.setdefault(topic.topic, told(error))


def _clamp_groups(destination: Destination, mirror: str, topics: Sequence[TopicRecord], after: Aftermath) -> None:
    """Bring the offsets that were synced for groups into the logs."""
    client = destination.client
    places = [TopicPartition(topic.topic, p) for topic in _left(topics, after) for p in range(topic.partitions)]
    try:
        starts = client.list_offsets(dict.fromkeys(places, EARLIEST))
        ends = client.list_offsets(dict.fromkeys(places, LATEST), log_end=True)
        ranges = {
            place: (start, end)
            for place in places
            if (start := starts[place].offset) is not None and (end := ends[place].offset) is not None
        }
        after.groups += clamp_groups(destination, mirror, ranges)
    except (KmirrorError, OutcomeUnknown) as error:
        after.warnings.append(f"group offsets could not be read: {error}")


def _lift_rights(destination: Destination, mirror: str, topics: Sequence[TopicRecord], after: Aftermath) -> None:
    """Lift the write protection, and prove it by a probe."""
    left = _left(topics, after)
    if not left:
        return
    try:
        for name, lifted in lift_rights(destination, mirror, [topic.topic for topic in left]).items():
            if lifted.error is not None:
                after.troubles[name] = lifted.error
        places = [TopicPartition(topic.topic, p) for topic in _left(left, after) for p in range(topic.partitions)]
        for place, error in probe_writable(destination, places).items():
            if error is not None:
                after.warnings.append(f"whether {place} can be written could not be probed: {error.message}")
    except (KmirrorError, OutcomeUnknown) as error:
        for topic in left:
            after.troubles.setdefault(topic.topic, told(error))
