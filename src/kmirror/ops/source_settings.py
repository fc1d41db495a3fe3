"""The settings of source topics as mirrors take them over: of a topic that is itself a mirror topic there, those of the
first source, which kmirror remembers on that cluster.

Reads only. What is remembered there is asked for only where a topic has settings as mirror topics have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.topic_setting import TopicSettings
from kmirror.cluster.topic_settings import topic_settings
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.context import now_ms, told
from kmirror.ops.upstream import remembered_on
from kmirror.state.records import TopicRecord
from kmirror.state.snapshot import State, unreadable_error
from kmirror.sync.topic_settings import as_first_source, holds_all_back, holds_back


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What counts as the settings of source topics; an error code where a topic's are not told."""

    topics: Mapping[str, TopicSettings | int]
    #: By topic that is a mirror topic there, when its first source's settings were read.
    first_source_seen_ms: Mapping[str, int] = field(default_factory=dict)
    #: Topics that are mirror topics there, and the settings behind them cannot be read: why.
    untold: Mapping[str, str] = field(default_factory=dict)


def source_settings(
    client: ClusterClient, properties: Mapping[str, str], topics: Iterable[str], patience_ms: int | None = None
) -> SourceSettings:
    """Read the settings of topics; `properties` are what `client` was made from, `patience_ms` bounds the second look.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    found = topic_settings(client, topics)
    suspects = {name: one for name, one in found.items() if not isinstance(one, int) and holds_back(one)}
    if not suspects:
        return SourceSettings(found)
    seen_ms = now_ms()
    try:
        state = remembered_on(properties, patience_ms)
        for record in state.unreadable() if state is not None else ():
            raise unreadable_error(record)
    except (KmirrorError, OutcomeUnknown) as error:
        why = told(error).message
        return SourceSettings(found, untold={name: why for name, one in suspects.items() if holds_all_back(one)})
    ids = {name: one.printed_topic_id for name, one in client.metadata(suspects).topics.items() if not one.error_code}
    seen: dict[str, int] = {}
    for name, settings in suspects.items():
        remembered = _mirror_topic(state, name, ids.get(name)) if state is not None else None
        if remembered is None:
            continue
        found[name] = as_first_source(settings, remembered)
        # as old as what that cluster knows, where it has it from others itself
        seen[name] = min(seen_ms, remembered.first_source_seen_ms or seen_ms)
    return SourceSettings(found, seen)


def _mirror_topic(state: State, topic: str, topic_id: str | None) -> TopicRecord | None:
    """Return the record of a topic that is mirrored to, or has not got its own settings yet since that ended."""
    for mirror in state.mirrors:
        found = state.topic(mirror.name, topic)
        if found is not None and found.deferred is not None and found.destination_topic_id in (None, topic_id):
            return found
    return None
