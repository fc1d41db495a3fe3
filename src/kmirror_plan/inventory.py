"""What a source cluster has, as plain data: topics, groups, producers, and what could not be seen. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.columns import COUNT, FLAG, TEXT, Type, list_of, one_of, shown, table_row
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings
from kmirror.words import byte_count, byte_rate

#: Bytes as stored, compressed.
BYTES = Type("integer", "bytes", minimum=0)
BYTES_PER_SECOND = Type("number", "bytes per second", minimum=0)


class Shape(StrEnum):
    """What a topic is, as its name and settings show."""

    APPLICATION = "application"
    #: Of a Kafka Streams application.
    CHANGELOG = "changelog"
    REPARTITION = "repartition"
    #: Where Connect's workers keep configurations, offsets and states.
    CONNECT = "connect"
    #: Where a schema registry keeps schemas.
    SCHEMAS = "schemas"
    #: Of MirrorMaker 2 itself: it is not mirrored.
    MIRRORMAKER = "mirrormaker"


@table_row
class TopicFacts:
    """One topic of the source."""

    topic: str = shown(TEXT, "its name", "TOPIC")
    shape: Shape = shown(one_of("shape", Shape), "what it is, as its name and settings show", "SHAPE")
    partitions: int = shown(COUNT, "partitions", "PARTITIONS")
    offsets: int | None = shown(COUNT.null_when("a leader does not answer"), "offsets between its ends", "OFFSETS")
    size: int | None = shown(
        BYTES.null_when("a partition has no leader, or brokers do not say its bytes and no batch could be read"),
        "bytes to copy: one replica as stored, remote storage included",
        "BYTES",
        key="bytes",
        cell=byte_count,
    )
    rate: float | None = shown(
        BYTES_PER_SECOND.null_when("it could not be read twice"),
        "bytes written per second, as seen between two readings",
        "RATE",
        key="bytesPerSecond",
        cell=byte_rate,
    )
    is_estimate: bool = shown(
        FLAG, "whether bytes are offsets times the mean size of sampled records", default=False, key="bytesAreEstimated"
    )
    is_compacted: bool = shown(FLAG, "whether it is compacted", default=False)
    is_tiered: bool = shown(FLAG, "whether older segments are in remote storage", default=False)
    is_transactional: bool | None = shown(
        FLAG.null_when("it was not sampled"), "whether a sampled batch was of a transaction", default=None
    )
    retention_ms: int | None = shown(
        Type("integer", "ms").null_when("it could not be read"), "retention.ms; -1 keeps records forever", default=None
    )
    codecs: tuple[str, ...] = shown(list_of(TEXT), "compression of the sampled batches", default=())
    has_old_format: bool = shown(FLAG, "whether a sampled batch has message format 0 or 1", default=False)
    largest_batch: int | None = shown(
        BYTES.null_when("it was not sampled"), "the largest of the sampled batches", default=None
    )
    mean_batch: int | None = shown(
        BYTES.null_when("it was not sampled"), "mean size of the sampled batches", default=None
    )


@table_row
class GroupFacts:
    """One group and the topics it reads: those it has committed for, subscribes to, or is assigned."""

    group: str = shown(TEXT, "its name", "GROUP")
    kind: GroupKind = shown(one_of("kind", GroupKind), "its kind", "KIND")
    members: int | None = shown(COUNT.null_when("its coordinator does not say"), "members now", "MEMBERS")
    reads: tuple[str, ...] = shown(list_of(TEXT), "topics that it reads")


@table_row
class ProducerFacts:
    """One producer that brokers remember, and the topics it has written to within the last day or so."""

    name: str = shown(TEXT, "its transactional id, or its producer id", "PRODUCER")
    transactional_id: str | None = shown(
        TEXT.null_when("it has none, or we may not see it"), "its transactional id", default=None
    )
    writes: tuple[str, ...] = shown(list_of(TEXT), "topics that it writes to")


@table_row
class Unseen:
    """Something that the plan lacks because it could not be read."""

    what: str = shown(TEXT, "what is not known", "UNKNOWN")
    why: str = shown(TEXT, "why", "WHY")
    hint: str | None = shown(TEXT.null_when("there is nothing to type"), "what to do about it", default=None)


@dataclass(frozen=True, slots=True)
class Inventory:
    """A source cluster as it was at `read_at_ms`; rates are between two readings, `sample_ms` apart."""

    cluster_id: str
    read_at_ms: int
    sample_ms: int
    topics: tuple[TopicFacts, ...]
    groups: tuple[GroupFacts, ...]
    producers: tuple[ProducerFacts, ...]
    #: Client quotas, principals with ACLs, and users with SCRAM credentials; None where we may not see them.
    principals: tuple[str, ...] | None
    quotas: int | None
    scram_users: tuple[str, ...] | None
    unseen: tuple[Unseen, ...] = ()


_OWN = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata", "__remote_log_metadata"}
)
_MIRRORMAKER = re.compile(
    r"(?:.*[.-])?heartbeats|.*\.checkpoints\.internal|mm2-(?:offset-syncs|configs|offsets|status)\..*"
)
_CONNECT = re.compile(r"(.*connect.*)[-_.](?:configs?|offsets?|status(?:es)?)")


def is_mirrored(topic: str) -> bool:
    """Return whether a topic is to be planned: not one of Kafka's own, nor kmirror's."""
    return topic not in _OWN and not topic.startswith("__kmirror_")


def choice_of(settings: Settings, topics: TopicSelector | None) -> Callable[[str], bool]:
    """Return whether a topic is chosen: one of `topics`, or else of the mirror's filters, and not excluded by these."""
    uses_filters = topics is None and settings.discovers

    def is_chosen(name: str) -> bool:
        if not is_mirrored(name) or settings.topics_exclude.matches(name):
            return False
        return settings.selects(name) if uses_filters else topics is None or topics.matches(name)

    return is_chosen


def shape_of(topic: str, *, is_compacted: bool, groups: Iterable[str]) -> Shape:
    """Return what a topic is, by its name and settings; `groups` may be Streams applications with topics."""
    if _MIRRORMAKER.fullmatch(topic):
        return Shape.MIRRORMAKER
    if topic == "_schemas":
        return Shape.SCHEMAS
    if is_compacted and _CONNECT.fullmatch(topic):
        return Shape.CONNECT
    if streams_application(topic, groups) is not None:
        return Shape.CHANGELOG if topic.endswith("-changelog") else Shape.REPARTITION
    return Shape.APPLICATION


def connect_cluster(topic: str) -> str:
    """Return the cluster of Connect's workers that a topic of shape `CONNECT` is of, as its name says."""
    found = _CONNECT.fullmatch(topic)
    return found[1] if found else topic


def streams_application(topic: str, groups: Iterable[str]) -> str | None:
    """Return the Streams application, which is a group, that an internal topic is of; None if it is of none."""
    if not topic.endswith(("-changelog", "-repartition")):
        return None
    return max((group for group in groups if topic.startswith(f"{group}-")), key=len, default=None)


#: A thread's transactional id, of exactly-once Streams applications: the group, and ids of process and thread or task.
_STREAMS_ID = re.compile(r"(.+?)-(?:[0-9a-f-]{36}-[0-9]+|[0-9]+_[0-9]+)")


def streams_group_of(transactional_id: str, groups: Iterable[str]) -> str | None:
    """Return the Streams application that writes with a transactional id, if it is one."""
    found = _STREAMS_ID.fullmatch(transactional_id)
    return found[1] if found and found[1] in set(groups) else None
