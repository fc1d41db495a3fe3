"""The settings of source topics that mirrors follow; for a mirror topic there, those of the first source.

kmirror's stored state on that cluster has the latter. It is read only if a topic has settings like those of mirror
topics. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import as_kmirror_error, now_ms
from kmirror.ops.base.upstream import stored_state_on
from kmirror.state.records import TopicRecord
from kmirror.state.snapshot import State, unreadable_error
from kmirror.sync.setting_changes import as_first_source, has_a_mirror_value, has_all_mirror_values


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The settings of source topics; an error code for a topic whose settings the source does not return."""

    topics: Mapping[str, TopicSettings | int]
    #: For topics that are mirror topics there: when their first source's settings were read.
    first_source_seen_ms: Mapping[str, int] = field(default_factory=dict)
    #: For topics that are mirror topics there, but whose first source's settings cannot be read: why.
    unreadable: Mapping[str, str] = field(default_factory=dict)


def source_settings(
    client: ClusterClient, properties: Mapping[str, str], topics: Iterable[str], timeout_ms: int | None = None
) -> SourceSettings:
    """Read the settings of topics; `client` was made from `properties`, `timeout_ms` bounds reading the stored state.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    found = topic_settings(client, topics)
    suspects = {name: one for name, one in found.items() if not isinstance(one, int) and has_a_mirror_value(one)}
    if not suspects:
        return SourceSettings(found)
    seen_ms = now_ms()
    try:
        state = stored_state_on(properties, timeout_ms, client if timeout_ms is None else None)
        for record in state.unreadable():
            raise unreadable_error(record)
    except (KmirrorError, OutcomeUnknown) as error:
        why = as_kmirror_error(error).message
        deferring = [name for name, one in suspects.items() if has_all_mirror_values(one)]
        return SourceSettings(found, unreadable=dict.fromkeys(deferring, why))
    ids = {name: one.printed_topic_id for name, one in client.metadata(suspects).topics.items() if not one.error_code}
    seen: dict[str, int] = {}
    for name, settings in suspects.items():
        stored = _mirror_topic(state, name, ids.get(name))
        if stored is None:
            continue
        found[name] = as_first_source(settings, stored)
        # that cluster may itself have read them from another one, earlier
        seen[name] = min(seen_ms, stored.first_source_seen_ms or seen_ms)
    return SourceSettings(found, seen)


def _mirror_topic(state: State, topic: str, topic_id: str | None) -> TopicRecord | None:
    """Return the record of a mirror topic, or of a stopped one that has not got its own settings yet."""
    for mirror in state.mirrors:
        found = state.topic(mirror.name, topic)
        if found is not None and found.deferred is not None and found.destination_topic_id in (None, topic_id):
            return found
    return None
