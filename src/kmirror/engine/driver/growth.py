"""Follow source topics that get more partitions: add them at the destination, and count them in the topic's record.

Lanes copy as many partitions of a topic as its record counts, so every command knows a partition before its first
record is copied. Partitions that an older kmirror added without counting them are counted here as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.cluster.topics.topic_requests import create_partitions
from kmirror.engine.clock import now_ms
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason
from kmirror.state.engine_findings import Lacking
from kmirror.state.event_records import Event
from kmirror.state.lock import transact
from kmirror.state.records import TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import StateStore

_REFUSED = (Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED)


def is_original_mirror(topic: TopicRecord, found: ClusterMetadata) -> bool:
    """Return whether the destination topic is the one that became a mirror topic."""
    seen = found.topics.get(topic.topic)
    return seen is not None and not seen.error_code and seen.printed_topic_id in (None, topic.destination_topic_id)


def add_partitions(
    destination: ClusterClient, store: StateStore, grown: Sequence[tuple[TopicRecord, int]], actor: str
) -> dict[str, Lacking | None]:
    """Bring topics of one mirror to these partition counts, and record that; return what each still lacks.

    Topics that are not copied now, and others that have a mirror topic's name now, are left alone, and left out.

    Raises:
        UnreachableError, OutcomeUnknown: the destination does not answer.
    """
    copied = [(topic, count) for topic, count in grown if topic.is_copied]
    here = destination.metadata({topic.topic for topic, _ in copied})
    found: dict[str, Lacking | None] = {}
    there: dict[str, tuple[TopicRecord, int]] = {}
    for topic, count in copied:
        if not is_original_mirror(topic, here):
            continue
        try:
            if len(here.topics[topic.topic].partitions) < count:
                # tried again with the next look: a quota that is used up must not hold up other topics
                create_partitions(destination, {topic.topic: count}, quota_wait_s=0)
        except BrokerError as error:
            reason = Reason.NOT_AUTHORIZED if error.code in _REFUSED else None
            found[topic.topic] = Lacking(count, reason, f"the destination: {error}")
        else:
            there[topic.topic] = topic, count
            found[topic.topic] = None
    try:
        _record(store, there, actor)
    except (KmirrorError, OutcomeUnknown) as error:
        why = f"recording the added partitions: {error}"
        found |= {name: Lacking(count, None, why) for name, (_, count) in there.items()}
    return found


def _record(store: StateStore, there: Mapping[str, tuple[TopicRecord, int]], actor: str) -> None:
    """Record how many partitions mirror topics have now."""
    if not there:
        return
    mirror = next(topic.mirror for topic, _ in there.values())

    def decide(state: State) -> Changes:
        records, events = [], []
        for name, (known, count) in there.items():
            topic = state.topic(mirror, name)
            is_same = topic is not None and topic.destination_topic_id == known.destination_topic_id
            if topic is None or not is_same or not topic.is_copied or topic.partitions >= count:
                continue
            records.append(replace(topic, partitions=count))
            details = {"topic": name, "partitions": count}
            events.append(Event(now_ms(), mirror, "partitions", actor, "added", details))
        return Changes(tuple(records), (), tuple(events))

    transact(store, mirror, decide)
