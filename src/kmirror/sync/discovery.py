"""Which topics of the source a mirror's filters take that are not mirror topics yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicMetadata
from kmirror.settings.table import Settings
from kmirror.state.records import DesiredState, TopicRecord

_ARCHIVE = ".kmirror-archive."


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Source topics by name: those to be made mirror topics, and those that filters take but that it does not show."""

    topics: tuple[str, ...]
    hidden: tuple[str, ...] = ()


def is_internal(topic: TopicMetadata) -> bool:
    """Tell whether a topic is never taken by a filter: Kafka's internal ones, ours, and archives."""
    return topic.is_internal or topic.name.startswith("__") or _ARCHIVE in topic.name


def newcomers(
    settings: Settings,
    source: Mapping[str, TopicMetadata],
    mirrored: Iterable[TopicRecord],
) -> Newcomers:
    """Return what discovery is to add.

    `mirrored` are the topics that are known: stopped, paused or under another operation, they stay unchanged.
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
    return Newcomers(tuple(found), tuple(hidden))


def is_deleted(topic: TopicRecord, here: TopicMetadata | None) -> bool:
    """Tell whether a mirror topic that is wanted was deleted by its owner, and no topic has its name now."""
    return (
        topic.desired is DesiredState.ACTIVE
        and topic.pending_operation is None
        and here is not None
        and here.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    )
