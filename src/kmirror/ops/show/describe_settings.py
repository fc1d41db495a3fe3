"""`describe --settings`: which settings of mirror topics differ from their sources', or are deferred, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.columns import TEXT, Table, columns_of, one_of, shown, table_row
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, naming_cluster, require_same_cluster
from kmirror.ops.base.selection import select_stored_topics
from kmirror.ops.base.source_settings import source_settings
from kmirror.ops.show.cluster_view import SOURCE_TIMEOUT_S
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.sync.setting_changes import ComparedSetting, SettingState, compare_settings
from kmirror.words import one_line

_UNREAD = "the topic's settings cannot be read"


@table_row
class TopicSettingRow:
    """One setting of one mirror topic on both sides; `key` is None if the topic's settings cannot be read."""

    mirror: str = shown(TEXT, "the mirror", "MIRROR")
    topic: str = shown(TEXT, "the topic on the destination", "TOPIC")
    source_topic: str = shown(TEXT, "the topic on the source")
    key: str | None = shown(TEXT.null_when(_UNREAD), "the setting's name", "KEY", default=None)
    source_value: str | None = shown(
        TEXT.null_when("unknown, or not set there"),
        "its value on the source",
        "SOURCE",
        of_row=lambda row: _one_word(row.source_value),
        default=None,
    )
    destination_value: str | None = shown(
        TEXT.null_when("unknown, or not set there"),
        "its value on the destination",
        "DESTINATION",
        of_row=lambda row: _one_word(row.destination_value),
        default=None,
    )
    state: SettingState | None = shown(
        one_of("setting state", SettingState).null_when(_UNREAD), "how the two values relate", "STATE", default=None
    )
    why: str = shown(TEXT, "the same as a sentence", "WHY", of_row=lambda row: one_line(row.why))


def _one_word(value: str | None) -> str | None:
    """Return a value without spaces, `""` for an empty one."""
    return None if value is None else "".join(value.split()) or '""'


TOPIC_SETTINGS: Table[TopicSettingRow] = Table(
    columns_of(TopicSettingRow),
    "MIRROR TOPIC KEY SOURCE DESTINATION STATE WHY",
    none="no topic is mirrored: there are no settings to compare",
)


def describe_settings(
    destination: Destination, mirror: str | None = None, topics: TopicSelector | None = None
) -> tuple[TopicSettingRow, ...]:
    """Return the rows sorted by mirror, topic, key; stopped topics have none, because they are not synced.

    A source that does not answer within 3 s leaves its values unknown.

    Raises:
        RefusedError: no such mirror, or a plain name among `topics` is no topic of it.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    wanted = [t for t in select_stored_topics(state, mirror, topics) if t.desired is not DesiredState.STOPPED]
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        here = topic_settings(destination.client, [topic.topic for topic in wanted])
    rows: list[TopicSettingRow] = []
    for record in state.mirrors:
        mine = [topic for topic in wanted if topic.mirror == record.name]
        there = _at_source(record, [topic.source_topic for topic in mine]) if mine else {}
        for topic in mine:
            rows += _rows(record, topic, there.get(topic.source_topic), here.get(topic.topic, 0))
    return tuple(rows)


def _at_source(mirror: MirrorRecord, topics: Collection[str]) -> Mapping[str, TopicSettings | int]:
    """Return the source's topic settings; empty if it does not answer or is another cluster."""
    timeout_ms = int(SOURCE_TIMEOUT_S * 1000)
    try:
        config = replace(client_config(mirror.source), connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms)
        with ClusterClient(config) as client:
            require_same_cluster(mirror.source_cluster_id, client.metadata([]).cluster_id)
            return source_settings(client, mirror.source, topics, timeout_ms).topics
    except (KmirrorError, OutcomeUnknown):
        return {}


def _rows(
    mirror: MirrorRecord, topic: TopicRecord, there: TopicSettings | int | None, here: TopicSettings | int
) -> Iterable[TopicSettingRow]:
    if isinstance(here, int):
        why = f"the destination does not return its settings: {code_name(here)}"
        yield TopicSettingRow(mirror=topic.mirror, topic=topic.topic, source_topic=topic.source_topic, why=why)
        return
    settings = stored_settings(mirror.settings)
    compared: list[ComparedSetting] = compare_settings(
        topic,
        None if isinstance(there, int) else there,
        here,
        settings.excluded_properties,
        is_synced=settings.sync_topic_configs_enabled,
    )
    for one in compared:
        yield TopicSettingRow(
            mirror=topic.mirror,
            topic=topic.topic,
            source_topic=topic.source_topic,
            key=one.key,
            source_value=one.source_value,
            destination_value=one.destination_value,
            state=one.state,
            why=one.why,
        )
