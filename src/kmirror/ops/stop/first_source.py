"""The first source's topic settings for a mirror of a mirror that stops: read from the source again, else last known.

A source that is a mirror itself has stored the settings of its own source. It is asked in a thread, in parallel to the
stop, for a few seconds at most: a source that is down or hangs never delays a failover longer than that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.rights.acl_commands import alter_topic
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import settled
from kmirror.ops.base.context import now_ms, require_same_cluster
from kmirror.ops.base.source_settings import SourceSettings, source_settings
from kmirror.ops.show.cluster_view import SOURCE_TIMEOUT_S, BackgroundQuery
from kmirror.settings.durations import format_duration
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import MirrorRecord, TopicRecord
from kmirror.sync.setting_changes import knows_no_first_source, settings_for
from kmirror.words import at_time, listed, visible


class FirstSource:
    """Ask a mirror's source for the first source's settings of `topics` that are mirror topics there."""

    def __init__(self, mirror: MirrorRecord | None, topics: Sequence[TopicRecord]) -> None:
        self._topics = tuple(topics)
        self._mirror = mirror
        self._asked = [topic for topic in topics if mirror is not None and _is_asked(mirror, topic)]
        self._until = time.monotonic() + SOURCE_TIMEOUT_S
        if mirror is not None and self._asked:
            self._query = BackgroundQuery(mirror.source, mirror.source_cluster_id)
            self._query.start(self._ask)
            self._query.close()  # when it ends

    def applied(self, login: ClientConfig, warnings: list[str]) -> list[TopicRecord]:
        """Return all topics, updated with the answer; adds to `warnings` what is older, or unknown.

        `login` is the destination's client configuration.
        """
        if not self._asked:
            return list(self._topics)
        found, asked = self._query.answer(self._until), {topic.topic for topic in self._asked}
        answer = found if isinstance(found, SourceSettings) else None
        why = "it does not report which settings it defers there"
        if answer is None:
            why = found.message if found is not None else f"it did not answer within {SOURCE_TIMEOUT_S:g} s"
        settled, stale = [], []
        for topic in self._topics:
            fresh = self._fresh(topic, answer) if topic.topic in asked else topic
            settled.append(fresh or topic)
            if fresh is None:
                stale.append(topic)
        warnings += _warnings(stale, [t for t in settled if knows_no_first_source(t)], why, login)
        return settled

    def _ask(self, client: ClusterClient) -> SourceSettings:
        mirror = settled(self._mirror, "the mirror")
        there = client.metadata([topic.source_topic for topic in self._asked])
        require_same_cluster(mirror.source_cluster_id, there.cluster_id)
        same = [
            topic.source_topic
            for topic in self._asked
            if there.topics[topic.source_topic].printed_topic_id == topic.source_topic_id
        ]
        return source_settings(client, mirror.source, same, int(SOURCE_TIMEOUT_S * 1000))

    def _fresh(self, topic: TopicRecord, answer: SourceSettings | None) -> TopicRecord | None:
        """Return the topic with the settings the source returned now, None if it returned none."""
        found = answer.topics.get(topic.source_topic, 0) if answer is not None else 0
        if answer is None or self._mirror is None or isinstance(found, int) or topic.source_topic in answer.unreadable:
            return None
        exclude = stored_settings(self._mirror.settings).excluded_properties
        plan = settings_for(found, None, exclude)
        return replace(topic, deferred=dict(plan.deferred), inherited=plan.inherited)


def _warnings(
    stale: Sequence[TopicRecord], unknown: Sequence[TopicRecord], why: str, login: ClientConfig
) -> Iterable[str]:
    known = [topic for topic in stale if topic not in unknown]
    seen = [topic.first_source_seen_ms for topic in known if topic.first_source_seen_ms is not None]
    if known:
        when = ""
        if seen:
            age = format_duration(max(0, now_ms() - min(seen)))
            when = f", as read at {at_time(min(seen))} ({age} ago)"
        yield (
            f"{_names(known)}: the source is a mirror too, and did not return the settings of its own source "
            f"({why}): they get the last known ones{when}; compare them with the first source"
        )
    if unknown:
        kept = ", ".join(visible(f"{key}={value}") for key, value in sorted((unknown[0].deferred or {}).items()))
        yield (
            f"{_names(unknown)}: the source is a mirror too, and the settings of its own source were never known "
            f"here: they keep {kept}, so no record is deleted by time or size; set what you want: "
            + alter_topic(login, unknown[0].topic, "retention.ms=MS,retention.bytes=BYTES")
        )


def _is_asked(mirror: MirrorRecord, topic: TopicRecord) -> bool:
    """Return whether the source topic is a mirror topic whose first source's settings are synced."""
    if knows_no_first_source(topic):
        return True
    return topic.first_source_seen_ms is not None and stored_settings(mirror.settings).sync_topic_configs_enabled


def _names(topics: Sequence[TopicRecord]) -> str:
    return listed([topic.topic for topic in topics])
