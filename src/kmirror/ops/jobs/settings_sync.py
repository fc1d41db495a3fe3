"""The job that keeps the settings of mirror topics equal to those of their sources.

It changes the brokers first, then records what kmirror has set. If it dies between the two, a key counts as set by
someone at the destination: it is kept, never removed. Right before, it reads whether the topics are still mirrored:
nothing else would keep a run that takes long from undoing what a stop has set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.topics.policies import refuses_settings, settled_to_change
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.engine.driver.side_jobs import JobEvent, JobView
from kmirror.engine.status.journal import Level
from kmirror.errors import KmirrorError, Reason
from kmirror.ops.add.topic_admin import TopicAdmin
from kmirror.ops.base.context import Destination, change, naming_cluster, require_same_cluster
from kmirror.ops.base.destination_job import DestinationJob
from kmirror.ops.base.source_settings import source_settings
from kmirror.settings.table import Settings
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC, losing_policy
from kmirror.state.records import PENDING_PROMOTE, DesiredState, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.sync.setting_changes import MIRROR_VALUES, SettingsSync, as_first_source, settling, sync_settings
from kmirror.words import listed

_WHAT = "settings"
_LIMIT = "max.message.bytes"
_RECORDS_AT_ONCE = 200
_FAILED = "FAILED"
_OWN = (STATE_TOPIC, EVENTS_TOPIC)
#: How many topics a sentence names.
_NAMED = 5
#: How old the recorded time may be at which the first source's settings were read.
_RECORDED_EVERY_MS = 600_000


class SettingsSyncJob(DestinationJob):
    """Keep the settings of mirror topics equal to their sources'; see `engine.driver.side_jobs.SideJob`."""

    name = "topic settings"

    def __init__(self, mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None) -> None:
        super().__init__(mirror, destination_properties, cluster_id)
        #: By topic, the last reported trouble.
        self._reported: dict[str, str] = {}
        #: By topic and setting, the source's value that the destination refused when it was last asked.
        self._refused: dict[tuple[str, str], str | None] = {}

    def has_work(self, settings: Settings) -> bool:
        """Return whether these settings give it anything to do."""
        return settings.sync_topic_configs_enabled

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Read both sides once, and change what differs."""
        topics = [topic for topic in view.topics if _follows(topic)]
        if topics and view.settings.sync_topic_configs_enabled:
            with self._pace.measured():
                yield from joined_failures(self._sync(view, topics))

    def _sync(self, view: JobView, topics: Sequence[TopicRecord]) -> Iterator[JobEvent]:
        destination = self._destination
        with self._source_of(view.mirror) as source:
            metadata = source.metadata([topic.source_topic for topic in topics])
            require_same_cluster(view.mirror.source_cluster_id, metadata.cluster_id)
            source_ids = {
                name: found.printed_topic_id for name, found in metadata.topics.items() if not found.error_code
            }
            same = [topic for topic in topics if source_ids.get(topic.source_topic) == topic.source_topic_id]
            found = source_settings(source, view.mirror.source, [topic.source_topic for topic in same])
        with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
            same = _still_ours(destination.client, same)
            settings_here = topic_settings(destination.client, [*(topic.topic for topic in same), *_OWN])
        yield from self._watch_own_topics(destination, settings_here)
        wanted: dict[str, SettingsSync] = {}
        for topic in same:
            there, present = found.topics.get(topic.source_topic, 0), settings_here.get(topic.topic, 0)
            if isinstance(there, int):
                yield from self._trouble(topic.topic, f"the source does not return its settings: {code_name(there)}")
                continue
            if isinstance(present, int):
                what = f"the destination does not return its settings: {code_name(present)}"
                yield from self._trouble(topic.topic, what)
                continue
            seen_ms = found.first_source_seen_ms.get(topic.source_topic)
            if unknown := found.unreadable.get(topic.source_topic):
                yield from self._trouble(
                    topic.topic,
                    f"its source is a mirror topic too, and its deferred settings there are unknown: {unknown}",
                )
                # keep what was known of the first source's settings
                there = as_first_source(there, topic)
                seen_ms = topic.first_source_seen_ms
            sync = self._settled(destination.client, view, topic, there, present)
            if isinstance(sync, str):
                yield from self._trouble(topic.topic, sync)
                continue
            after = sync.record
            if after != topic or _is_stale(topic.first_source_seen_ms, seen_ms):
                after = replace(after, first_source_seen_ms=seen_ms)
            if sync.changes or after != topic:
                wanted[topic.topic] = replace(sync, record=after)
            elif not unknown:
                self._reported.pop(topic.topic, None)
        yield from self._apply(destination, {topic.topic: topic for topic in same}, wanted)

    def _settled(
        self, client: ClusterClient, view: JobView, topic: TopicRecord, there: TopicSettings, present: TopicSettings
    ) -> SettingsSync | str:
        """Return the changes that the destination takes, or why it takes none.

        Where it refused a batch as too large, it is asked once more for a larger limit than was settled for; where it
        takes no value in place of the source's, once for each value that the source gets.
        """
        exclude = view.settings.excluded_properties
        known = topic.settled or {}
        left_out = {
            (topic.topic, key): found.value
            for key, value in known.items()
            if value is None and key not in MIRROR_VALUES and (found := there.get(key)) is not None
        }
        again = {key for (_, key), _ in left_out.items() - self._refused.items()}
        if known.get(_LIMIT) is not None and _is_rejected(view, topic):
            again.add(_LIMIT)
        kept = {key: value for key, value in known.items() if key not in again}
        tried = replace(topic, settled=kept) if again else topic
        sync = sync_settings(tried, there, present, exclude)
        try:
            settled = settled_to_change(client, topic.topic, sync.changes)
        except KmirrorError as error:
            # any other refusal is shown by the change itself
            return error.message if refuses_settings(error) else sync
        self._refused |= left_out
        return sync_settings(settling(tried, settled), there, present, exclude) if settled else sync

    def _apply(
        self, destination: Destination, before: Mapping[str, TopicRecord], wanted: dict[str, SettingsSync]
    ) -> Iterator[JobEvent]:
        changes = {topic: sync.changes for topic, sync in wanted.items() if sync.changes}
        if changes:
            # a stop does not wait for this run, and the settings that it found may be those that a stop has applied
            state = destination.state()
            wanted = {t: sync for t, sync in wanted.items() if _still_follows(state.topic(self._mirror, t), before[t])}
            changes = {topic: settings for topic, settings in changes.items() if topic in wanted}
        outcomes = TopicAdmin(destination).set_settings(changes) if changes else {}
        for topic, error in outcomes.items():
            if error is not None:
                del wanted[topic]
                yield from self._trouble(topic, error.message)
        names = list(wanted)
        for start in range(0, len(names), _RECORDS_AT_ONCE):
            some = names[start : start + _RECORDS_AT_ONCE]
            self._record(destination, {name: (before[name], wanted[name].record) for name in some})
            for name in some:
                self._reported.pop(name, None)
                yield _change_event(before[name], wanted[name])

    def _record(self, destination: Destination, records: Mapping[str, tuple[TopicRecord, TopicRecord]]) -> None:
        """Record what was set; of a topic that a command has changed meanwhile, only the fields about settings."""

        def decide(state: State) -> Changes:
            changed = []
            for before, after in records.values():
                present = state.topic(self._mirror, before.topic)
                if present is None or not _still_follows(present, before):
                    continue
                changed.append(
                    replace(
                        present,
                        settings=after.settings,
                        settled=after.settled,
                        deferred=after.deferred,
                        inherited=after.inherited,
                        first_source_seen_ms=after.first_source_seen_ms,
                    )
                )
            return Changes(tuple(changed))

        change(destination, self._mirror, decide)

    def _watch_own_topics(
        self, destination: Destination, present: Mapping[str, TopicSettings | int]
    ) -> Iterator[JobEvent]:
        """Warn, once, of a cleanup policy that someone has set and that will lose what is stored of the mirrors."""
        for topic in _OWN:
            settings = present.get(topic, 0)
            error = None if isinstance(settings, int) else losing_policy(destination.config, topic, settings)
            if error is None:
                self._reported.pop(topic, None)
            elif self._reported.get(topic) != error.message:
                self._reported[topic] = error.message
                yield JobEvent(f"{error.message}: {error.hint}", level=Level.WARNING)

    def _trouble(self, topic: str, message: str) -> Iterator[JobEvent]:
        if self._reported.get(topic) != message:
            self._reported[topic] = message
            yield JobEvent(None, _WHAT, _FAILED, {"topic": topic, "message": message}, Level.WARNING)


def joined_failures(events: Iterable[JobEvent]) -> Iterator[JobEvent]:
    """Pass on events, those of failures last, with one sentence for all topics that failed alike."""
    failures: dict[object, list[JobEvent]] = {}
    try:
        for event in events:
            if event.result == _FAILED:
                failures.setdefault(event.details["message"], []).append(event)
            else:
                yield event
    finally:
        for message, alike in failures.items():
            topics = listed([str(event.details["topic"]) for event in alike], _NAMED)
            note = f"the settings of {topics} cannot be synced from {'its' if len(alike) == 1 else 'their'} source"
            yield replace(alike[0], note=f"{note}: {message}")
            yield from alike[1:]


def _is_stale(recorded_ms: int | None, seen_ms: int | None) -> bool:
    """Return whether the time at which the first source's settings were read must be recorded again."""
    if recorded_ms is None or seen_ms is None:
        return recorded_ms is not seen_ms
    return seen_ms - recorded_ms >= _RECORDED_EVERY_MS


def _follows(topic: TopicRecord) -> bool:
    return topic.desired is DesiredState.ACTIVE and topic.pending_operation in (None, PENDING_PROMOTE)


def _is_rejected(view: JobView, topic: TopicRecord) -> bool:
    """Return whether the destination rejects a batch of the topic."""
    return any(
        (found := view.partitions.get(TopicPartition(topic.topic, index))) is not None
        and found.reason is Reason.RECORD_REJECTED
        for index in range(topic.partitions)
    )


def _still_follows(present: TopicRecord | None, before: TopicRecord) -> bool:
    """Return whether a topic still is the one that was looked at, and mirrored."""
    return present is not None and _follows(present) and _identity(present) == _identity(before)


def _identity(topic: TopicRecord) -> tuple[str | None, str | None]:
    return topic.source_topic_id, topic.destination_topic_id


def _still_ours(client: ClusterClient, topics: Sequence[TopicRecord]) -> list[TopicRecord]:
    """Return those whose destination topic is the original mirror topic, not another one of its name."""
    here = client.metadata([topic.topic for topic in topics]).topics if topics else {}
    return [
        topic
        for topic in topics
        if (found := here.get(topic.topic)) is not None
        and not found.error_code
        and found.printed_topic_id == topic.destination_topic_id
    ]


def _change_event(before: TopicRecord, sync: SettingsSync) -> JobEvent:
    """Return the event of one topic's change; a change that only a stop will apply is not shown to watchers."""
    after = sync.record
    set_to = {key: value for key, value in sync.changes.items() if value is not None}
    removed = sorted(key for key, value in sync.changes.items() if value is None)
    deferred = {
        key: (after.deferred or {}).get(key)
        for key in sorted({*(before.deferred or {}), *(after.deferred or {})})
        if (before.deferred or {}).get(key) != (after.deferred or {}).get(key)
    }
    words = [f"{key}={value}" for key, value in sorted(set_to.items())] + [f"{key} removed" for key in removed]
    note = f"settings of {before.topic} synced from its source: {', '.join(words)}" if words else None
    details = {"topic": before.topic, "set": set_to, "removed": removed, "heldBack": deferred}
    is_news = bool(words or deferred)
    return JobEvent(note, _WHAT if is_news else None, "CHANGED", details)
