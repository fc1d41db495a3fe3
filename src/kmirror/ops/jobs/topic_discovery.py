"""The job that makes new source topics mirror topics, as the mirror's filters say.

It adds topics as `add` does, a hundred at a time, and adopts none. A topic that cannot be added is reported once, and
retried from time to time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicMetadata
from kmirror.engine.clock import now
from kmirror.engine.driver.side_jobs import Discovered, JobEvent, JobView
from kmirror.engine.status.journal import Level
from kmirror.errors import Reason
from kmirror.ops.add.add import add_discovered
from kmirror.ops.add.add_plan import owner_of
from kmirror.ops.base.context import naming_cluster, require_mirror, require_same_cluster
from kmirror.ops.base.destination_job import DestinationJob
from kmirror.ops.base.standby import announce_takeover
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.upstream import by_reason, unknown_loop, upstream_of
from kmirror.settings.parsing import stored_settings
from kmirror.settings.table import Settings
from kmirror.state.engine_findings import NotAdded
from kmirror.state.records import PENDING_ADD, MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.in_charge import FIRST_TERM, term_of
from kmirror.sync.discovery import is_deleted, new_source_topics
from kmirror.words import listed

_TOPICS_AT_ONCE = 100
_TOPICS_IN_NOTE = 10
#: Of how many topics that cannot be added the reasons are stored.
_REASONS_STORED = 10
#: How soon a topic that could not be added is retried.
_RETRY_S = 60.0
#: How long after a try to announce topics at the source the next one begins.
_ANNOUNCE_S = 600.0


class DiscoveryJob(DestinationJob):
    """Add new topics of the source to the mirror; see `engine.driver.side_jobs.SideJob`."""

    name = "discovery"

    def __init__(self, mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None) -> None:
        super().__init__(mirror, destination_properties, cluster_id)
        #: By source topic, the last reported reason why it is not added, and when it is retried.
        self._reported: dict[str, str] = {}
        self._retry_at: dict[str, float] = {}
        self._told: NotAdded | None = None
        #: By source topic, the last reported reason why it is unknown where it comes from.
        self._unknown: dict[str, str] = {}
        #: Topics that an `add` had claimed when they were last read; None before that.
        self._claims: dict[str, TopicRecord] | None = None
        self._announce_at = 0.0

    def has_work(self, settings: Settings) -> bool:
        """Return whether these settings give it anything to do."""
        return settings.discovers

    def run(self, view: JobView) -> Iterator[JobEvent | Discovered]:
        """Read the source's topics once, and add new ones."""
        if view.settings.discovers and not view.mirror.discovery_ended:
            yield from self._discover(view)
            yield from self._announce(view)
        else:
            self._reported.clear()
        found = sorted(self._reported.items())
        not_added = NotAdded(len(found), dict(found[:_REASONS_STORED])) if found else None
        if not_added != self._told:
            self._told = not_added
            yield Discovered(not_added)

    def _discover(self, view: JobView) -> Iterator[JobEvent]:
        with self._source_of(view.mirror) as source:
            # adding what is found is other work, and no reason to read less often
            with self._pace.measured():
                found = _topics_of(source, view.mirror, view.settings)
                if not self._may_be_new(view, found):
                    return
            state = self._destination.state()
            mirror = require_mirror(state, self._mirror)
            if stored_settings(mirror.settings).discovers and not mirror.discovery_ended:
                yield from self._take(source, state, mirror, found)

    def _announce(self, view: JobView) -> Iterator[JobEvent]:
        """Have the source record that this cluster may take over what was discovered, as `add` does for its topics."""
        waiting = [one.topic for one in view.topics if term_of(one) > FIRST_TERM and not one.announced]
        if waiting and now() >= self._announce_at:
            self._announce_at = now() + _ANNOUNCE_S
            if (trouble := announce_takeover(self._destination, view.mirror, waiting)) is not None:
                yield JobEvent(trouble, level=Level.WARNING)

    def _may_be_new(self, view: JobView, found: Mapping[str, TopicMetadata]) -> bool:
        """Return whether, by what the engine knows, a closer check is worth it: most runs end here."""
        deleted = {p.topic for p, known in view.partitions.items() if _says_deleted(known.reason)}
        settled = [t for t in view.topics if t.topic not in deleted and t.pending_operation != PENDING_ADD]
        new = new_source_topics(view.settings, found, settled)
        for name in self._reported.keys() - {*new.topics, *new.hidden}:  # gone, added by hand, or no longer selected
            del self._reported[name]
        return bool(self._due((*new.topics, *new.hidden)))

    def _due(self, names: Iterable[str]) -> list[str]:
        at = now()
        return [name for name in names if self._retry_at.get(name, 0.0) <= at]

    def _take(
        self, source: ClusterClient, state: State, mirror: MirrorRecord, found: Mapping[str, TopicMetadata]
    ) -> Iterator[JobEvent]:
        destination, settings, mirrored = self._destination, stored_settings(mirror.settings), state.topics(mirror.name)
        deleted = self._deleted(destination.client, state, mirrored)
        unsettled = self._abandoned(mirrored) | deleted
        new = new_source_topics(settings, found, [topic for topic in mirrored if topic.topic not in unsettled])
        for name in self._due(new.hidden):
            message = f"no right to see source topic {name}, or it does not exist; grant DESCRIBE and READ on it"
            yield from self._skip(name, TopicResult(None, None, Outcome.REFUSED, message, Reason.NOT_AUTHORIZED))
        due = self._due(new.topics)
        existing = _existing(destination.client, settings.topic_prefix, due)
        names = []
        for name in due:
            topic = settings.topic_prefix + name
            if topic in existing and state.topic(mirror.name, topic) is None:
                owner = owner_of(state, topic, mirror.name)
                whose = f"belongs to mirror {owner}" if owner else "already exists on the destination"
                message = f"topic {topic} {whose}, and is not adopted; adopt it with `kmirror add --adopt`"
                yield from self._skip(name, TopicResult(topic, None, Outcome.REFUSED, message))
            else:
                names.append(name)
        if names:
            upstream = upstream_of(mirror, destination.cluster_id, settings.topic_prefix, names)
            new_unknown = {topic: why for topic, why in upstream.unknown.items() if self._unknown.get(topic) != why}
            self._unknown |= new_unknown
            for why, topics in by_reason(new_unknown).items():
                details = {"sourceTopics": topics[:_TOPICS_AT_ONCE], "count": len(topics), "message": why}
                yield JobEvent(unknown_loop(why, topics), "discovery", "UNKNOWN", details, Level.WARNING)
            if anew := [name for name in names if settings.topic_prefix + name in deleted]:
                what = "deleted here, and the mirror's filters match: mirrored anew, with all of its history"
                details = {"sourceTopics": anew[:_TOPICS_AT_ONCE], "count": len(anew), "message": what}
                yield JobEvent(
                    f"{listed(anew, _TOPICS_IN_NOTE)}: {what}", "discovery", "RECREATING", details, Level.WARNING
                )
            for start in range(0, len(names), _TOPICS_AT_ONCE):
                some = names[start : start + _TOPICS_AT_ONCE]
                rows, weaker = add_discovered(destination, source, destination.state(), mirror, found, some, upstream)
                yield from self._outcome(rows, settings.topic_prefix)
                yield from (JobEvent(note, level=Level.WARNING) for note in weaker)

    def _abandoned(self, mirrored: Sequence[TopicRecord]) -> set[str]:
        """Return mirror topics that an `add` has claimed which did not finish."""
        claims = {topic.topic: topic for topic in mirrored if topic.pending_operation == PENDING_ADD}
        # a running `add` finishes its claims before the next run; those found by the first run are of a dead engine
        before, self._claims = claims if self._claims is None else self._claims, claims
        return {name for name, claim in claims.items() if before.get(name) == claim}

    def _deleted(self, client: ClusterClient, state: State, mirrored: Sequence[TopicRecord]) -> set[str]:
        """Return mirror topics that their owner has deleted."""
        suspects = [
            topic
            for topic in mirrored
            if any(_says_deleted(known.reason) for known in state.partitions(topic.mirror, topic.topic))
        ]
        here = _topics_here(client, [topic.topic for topic in suspects])
        return {topic.topic for topic in suspects if is_deleted(topic, here.get(topic.topic))}

    def _outcome(self, rows: Sequence[TopicResult], prefix: str) -> Iterator[JobEvent]:
        added = []
        for row in rows:
            name = (row.topic or "").removeprefix(prefix)
            if row.result is Outcome.DONE:
                added.append(name)
                self._reported.pop(name, None)
                self._retry_at.pop(name, None)
            else:
                yield from self._skip(name, row)
        if added:
            # `add` has written their event
            yield JobEvent(f"now mirroring new source topics: {listed(added, _TOPICS_IN_NOTE)}")

    def _skip(self, name: str, row: TopicResult) -> Iterator[JobEvent]:
        """Report once why a topic is not added, unless it is not meant to be."""
        self._retry_at[name] = now() + _RETRY_S
        message = row.message or row.result.value
        if row.result is Outcome.NOOP:
            self._reported.pop(name, None)
        elif self._reported.get(name) != message:
            self._reported[name] = message
            details = {"sourceTopic": name, "topic": row.topic, "reason": row.reason, "message": message}
            yield JobEvent(f"not mirrored: {message}", "discovery", row.result.value, details, Level.WARNING)


def _topics_of(source: ClusterClient, mirror: MirrorRecord, settings: Settings) -> dict[str, TopicMetadata]:
    """Return all topics of the source, and what it says of those that filters name and its list leaves out."""
    metadata = source.metadata()
    require_same_cluster(mirror.source_cluster_id, metadata.cluster_id)
    unseen = [name for name in settings.named_topics if name not in metadata.topics]
    return {**metadata.topics, **(source.metadata(unseen).topics if unseen else {})}


def _existing(client: ClusterClient, prefix: str, names: Sequence[str]) -> set[str]:
    """Return which destination topics of these source topics exist, visible to us or not."""
    here = _topics_here(client, [prefix + name for name in names])
    return {name for name, topic in here.items() if topic.error_code in (0, Code.TOPIC_AUTHORIZATION_FAILED)}


def _topics_here(client: ClusterClient, topics: Collection[str]) -> Mapping[str, TopicMetadata]:
    if not topics:
        return {}
    with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
        return client.metadata(topics).topics


def _says_deleted(reason: Reason | None) -> bool:
    return reason is Reason.DESTINATION_TOPIC_DELETED
