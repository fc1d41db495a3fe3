"""Which source topics match a mirror's filters and are not mirror topics yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicMetadata
from kmirror.settings.table import Settings
from kmirror.state.records import DesiredState, TopicRecord

_ARCHIVE = ".kmirror-archive."


@dataclass(frozen=True, slots=True)
class NewSourceTopics:
    """Source topics by name: those to make mirror topics, and those that match but that we may not describe."""

    topics: tuple[str, ...]
    hidden: tuple[str, ...] = ()


def is_internal(topic: TopicMetadata) -> bool:
    """Return whether filters never match a topic: Kafka's internal topics, ours, and archives."""
    return topic.is_internal or topic.name.startswith("__") or _ARCHIVE in topic.name


def new_source_topics(
    settings: Settings, source: Mapping[str, TopicMetadata], mirrored: Iterable[TopicRecord]
) -> NewSourceTopics:
    """Return the topics that discovery is to add.

    `mirrored` are the known topics; stopped and paused ones, and those of another operation, stay unchanged.
    """
    known = {topic.source_topic for topic in mirrored}
    found, hidden = [], []
    for name, topic in sorted(source.items()):
        if name in known or is_internal(topic) or not settings.selects(name):
            continue
        if topic.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
            hidden.append(name)
        elif not topic.error_code:
            found.append(name)
    return NewSourceTopics(tuple(found), tuple(hidden))


def is_deleted(topic: TopicRecord, here: TopicMetadata | None) -> bool:
    """Return whether an ACTIVE mirror topic was deleted by its owner, and no topic has its name now."""
    return (
        topic.desired is DesiredState.ACTIVE
        and topic.pending_operation is None
        and here is not None
        and here.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    )
