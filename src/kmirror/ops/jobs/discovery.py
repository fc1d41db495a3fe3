"""The job beside the copy that makes topics which appear at the source mirror topics, as the mirror's filters say.

It takes the way of `add`, a hundred topics at a time, and adopts nothing. What cannot be taken is told once, and tried
again now and then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicMetadata
from kmirror.engine.clock import now
from kmirror.engine.control.journal import Level
from kmirror.engine.control.side_jobs import JobEvent, JobView
from kmirror.errors import Reason
from kmirror.ops.add.add import add_discovered
from kmirror.ops.add.plan import owner_of
from kmirror.ops.context import (
    PENDING_ADD,
    Destination,
    naming_cluster,
    require_mirror,
    require_same_cluster,
    source_client,
)
from kmirror.ops.jobs.pace import Pace
from kmirror.ops.results import Outcome, TopicResult
from kmirror.ops.upstream import upstream_of
from kmirror.settings.table import Settings, stored_settings
from kmirror.state.records import MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.sync.discovery import is_deleted, new_source_topics

_TOPICS_AT_ONCE = 100
_TOPICS_IN_NOTE = 10
#: How soon a topic that could not be taken is tried again.
_AGAIN_S = 60.0


class DiscoveryJob:
    """Take new topics of the source into the mirror; see `engine.side_jobs.SideJob`."""

    name = "discovery"

    def __init__(self, mirror: str, destination_properties: Mapping[str, str]) -> None:
        self._mirror = mirror
        self._properties = dict(destination_properties)
        self._destination: Destination | None = None
        self._pace = Pace()
        #: By source topic, what was told last of why it is not taken, and when it is tried again.
        self._said: dict[str, str] = {}
        self._again_at: dict[str, float] = {}
        #: Claims as the last look saw them, None before the first.
        self._claims: dict[str, TopicRecord] | None = None

    def interval_s(self, settings: Settings) -> float:
        """Return the time between two looks: `refresh.interval.seconds`, longer where looking takes much work."""
        return self._pace.interval_s(settings.refresh_interval_seconds)

    def run(self, view: JobView) -> Iterable[JobEvent]:
        """Look once, and add what is new."""
        if view.settings.discovers and not view.mirror.discovery_ended:
            yield from self._discover(view)

    def close(self) -> None:
        """Let go of connections."""
        if self._destination is not None:
            self._destination.close()
            self._destination = None

    def _discover(self, view: JobView) -> Iterator[JobEvent]:
        with source_client(view.mirror.source) as source:
            # what is found is work of its own, and no reason to look less often
            with self._pace.measured():
                found = _topics_of(source, view.mirror, view.settings)
                if not self._may_be_new(view, found):
                    return
            if self._destination is None:
                self._destination = Destination.open(self._properties)
            state = self._destination.state()
            mirror = require_mirror(state, self._mirror)
            settings = stored_settings(mirror.settings)
            if settings.discovers and not mirror.discovery_ended:
                yield from self._take(self._destination, source, state, mirror, settings, found)

    def _may_be_new(self, view: JobView, found: Mapping[str, TopicMetadata]) -> bool:
        """Tell, from what the engine knows, whether a closer look is worth it: most looks end here."""
        deleted = {p.topic for p, known in view.partitions.items() if _says_deleted(known.reason)}
        settled = [t for t in view.topics if t.topic not in deleted and t.pending_operation != PENDING_ADD]
        new = new_source_topics(view.settings, found, settled)
        return bool(self._due((*new.topics, *new.hidden)))

    def _due(self, names: Iterable[str]) -> list[str]:
        at = now()
        return [name for name in names if self._again_at.get(name, 0.0) <= at]

    def _take(
        self,
        destination: Destination,
        source: ClusterClient,
        state: State,
        mirror: MirrorRecord,
        settings: Settings,
        found: Mapping[str, TopicMetadata],
    ) -> Iterator[JobEvent]:
        mirrored = state.topics(mirror.name)
        unsettled = self._unsettled(destination.client, state, mirrored)
        new = new_source_topics(settings, found, [topic for topic in mirrored if topic.topic not in unsettled])
        for name in self._due(new.hidden):
            told = f"no right to see source topic {name}, or it does not exist; grant DESCRIBE and READ on it"
            yield from self._left(name, TopicResult(None, None, Outcome.REFUSED, told, Reason.NOT_AUTHORIZED))
        due = self._due(new.topics)
        existing = _existing(destination.client, settings.topic_prefix, due)
        names = []
        for name in due:
            topic = settings.topic_prefix + name
            if topic in existing and state.topic(mirror.name, topic) is None:
                owner = owner_of(state, topic, mirror.name)
                whose = f"belongs to mirror {owner}" if owner else "already exists on the destination"
                told = f"topic {topic} {whose}, and is not adopted; adopt it with `kmirror add --adopt`"
                yield from self._left(name, TopicResult(topic, None, Outcome.REFUSED, told))
            else:
                names.append(name)
        if names:
            warnings: list[str] = []
            upstream = upstream_of(mirror, destination.cluster_id, settings.topic_prefix, names, warnings.append)
            for start in range(0, len(names), _TOPICS_AT_ONCE):
                some = names[start : start + _TOPICS_AT_ONCE]
                rows = add_discovered(destination, source, destination.state(), mirror, found, some, upstream)
                yield from self._outcome(rows, settings.topic_prefix)

    def _unsettled(self, client: ClusterClient, state: State, mirrored: Sequence[TopicRecord]) -> set[str]:
        """Return mirror topics that begin anew: claimed by an `add` that did not finish, or deleted by their owner."""
        claims = {topic.topic: topic for topic in mirrored if topic.pending_operation == PENDING_ADD}
        # an `add` that is at work has finished its own before the next look; before the first, an engine died of it
        before, self._claims = claims if self._claims is None else self._claims, claims
        abandoned = {name for name, claim in claims.items() if before.get(name) == claim}
        suspects = [
            topic
            for topic in mirrored
            if any(_says_deleted(known.reason) for known in state.partitions(topic.mirror, topic.topic))
        ]
        here = _topics_here(client, [topic.topic for topic in suspects])
        return abandoned | {topic.topic for topic in suspects if is_deleted(topic, here.get(topic.topic))}

    def _outcome(self, rows: Sequence[TopicResult], prefix: str) -> Iterator[JobEvent]:
        added = []
        for row in rows:
            name = (row.topic or "").removeprefix(prefix)
            if row.result is Outcome.DONE:
                added.append(name)
                self._said.pop(name, None)
                self._again_at.pop(name, None)
            else:
                yield from self._left(name, row)
        if added:
            more = len(added) - _TOPICS_IN_NOTE
            shown = ", ".join(added[:_TOPICS_IN_NOTE]) + (f" and {more} more" if more > 0 else "")
            # their event was written together with them
            yield JobEvent(f"now mirroring new source topics: {shown}")

    def _left(self, name: str, row: TopicResult) -> Iterator[JobEvent]:
        """Tell once why a topic is not taken; that it is not meant to be is no news."""
        self._again_at[name] = now() + _AGAIN_S
        message = row.message or row.result.value
        if row.result is not Outcome.NOOP and self._said.get(name) != message:
            self._said[name] = message
            details = {"sourceTopic": name, "topic": row.topic, "reason": row.reason, "message": message}
            yield JobEvent(f"not mirrored: {message}", "discovery", row.result.value, details, Level.WARNING)


def _topics_of(source: ClusterClient, mirror: MirrorRecord, settings: Settings) -> dict[str, TopicMetadata]:
    """Return all topics of the source, and what it says of those that filters name and a list keeps silent about."""
    metadata = source.metadata()
    require_same_cluster(mirror.source_cluster_id, metadata.cluster_id)
    unseen = [name for name in settings.named_topics if name not in metadata.topics]
    return {**metadata.topics, **(source.metadata(unseen).topics if unseen else {})}


def _existing(client: ClusterClient, prefix: str, names: Sequence[str]) -> set[str]:
    """Return the destination topics of these source topics that are there already, whether we may see them or not."""
    here = _topics_here(client, [prefix + name for name in names])
    return {name for name, topic in here.items() if topic.error_code in (0, Code.TOPIC_AUTHORIZATION_FAILED)}


def _topics_here(client: ClusterClient, topics: Collection[str]) -> Mapping[str, TopicMetadata]:
    if not topics:
        return {}
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        return client.metadata(topics).topics


def _says_deleted(reason: Reason | None) -> bool:
    return reason is Reason.DESTINATION_TOPIC_DELETED
