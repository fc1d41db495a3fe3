"""Look at a mirror's source now and then: its partitions, its ends, its starts. What follows from it is done here too.

Partitions that were added at the source are added at the destination; records that the source deleted long enough ago
are deleted there (`log_starts`). Runs in a thread of its own, with clients of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.security import ClientConfig
from kmirror.cluster.trim import trim_compacted
from kmirror.engine.clock import now
from kmirror.engine.log_starts import LogStarts
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.settings import Settings
from kmirror.state.records import TopicRecord


@dataclass(frozen=True, slots=True)
class Scouted:
    """What was seen of the source, by mirror topic and partition; `trouble` when it does not answer."""

    partitions: Mapping[str, int] = field(default_factory=dict)
    source_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    trouble: KmirrorError | None = None
    #: Why the mirror does not follow the source's log starts; None in the normal case.
    log_start_trouble: KmirrorError | None = None


class Scout:
    """Look at one mirror's source. `topics` are those that are copied, `ends` how far their partitions are."""

    def __init__(
        self,
        settings: Settings,
        source: ClientConfig,
        destination: ClientConfig,
        topics: Callable[[], Sequence[TopicRecord]],
        ends: Callable[[], Mapping[TopicPartition, int]],
    ) -> None:
        self._settings = settings
        self._configs = source, destination
        self._topics = topics
        self._ends = ends
        self._log_starts = LogStarts(settings.follow_log_start_delay_ms / 1000)

    def run(self, stop: threading.Event, tell: Callable[[Scouted], None]) -> None:
        """Look again and again until `stop` is set."""
        with ClusterClient(self._configs[0]) as source, ClusterClient(self._configs[1]) as destination:
            while not stop.is_set():
                try:
                    seen = self._look(source, destination)
                except (KmirrorError, OutcomeUnknown) as error:
                    seen = Scouted(trouble=_known(error))
                tell(seen)
                stop.wait(self._settings.refresh_interval_seconds)

    def _look(self, source: ClusterClient, destination: ClusterClient) -> Scouted:
        topics = self._topics()
        if not topics:
            return Scouted()
        found = source.metadata({t.source_topic for t in topics})
        counts = {
            t.topic: len(found.topics[t.source_topic].partitions) for t in topics if t.source_topic in found.topics
        }
        grown = {t.topic: counts[t.topic] for t in topics if counts.get(t.topic, 0) > t.partitions}
        if grown:
            there = destination.metadata(grown)
            missing = {t: n for t, n in grown.items() if len(there.topics[t].partitions) < n}
            if missing:
                destination.create_partitions(missing)
        places = {
            TopicPartition(t.source_topic, p): TopicPartition(t.topic, p)
            for t in topics
            for p in range(counts.get(t.topic, 0))
        }
        ends = source.list_offsets(dict.fromkeys(places, LATEST), read_committed=True)
        offsets = {places[p]: answer.offset for p, answer in ends.items() if answer.offset is not None}
        trouble = None
        if self._settings.follow_log_start:
            starts = source.list_offsets(dict.fromkeys(places, EARLIEST))
            same = {t.source_topic for t in topics if _is_the_one_added(t, found)}
            seen = {places[p]: a.offset for p, a in starts.items() if a.offset is not None and p.topic in same}
            self._log_starts.seen(seen, now())
            trouble = self._follow_log_starts(destination)
        return Scouted(counts, offsets, log_start_trouble=trouble)

    def _follow_log_starts(self, destination: ClusterClient) -> KmirrorError | None:
        """Delete in the mirror what the source has deleted long enough ago; return why that failed, if it did."""
        due = self._log_starts.due(self._ends(), now())
        if not due:
            return None
        try:
            for partition, answer in destination.list_offsets(dict.fromkeys(due, EARLIEST)).items():
                if answer.offset is not None and answer.offset >= due[partition]:
                    self._log_starts.trimmed(partition, due.pop(partition))
            refused = 0
            for partition, trimmed in trim_compacted(destination, due).items():
                if not trimmed.error_code:
                    self._log_starts.trimmed(partition, due[partition])
                refused = refused or trimmed.error_code
        except (KmirrorError, OutcomeUnknown) as error:
            return _known(error)
        return KmirrorError(f"deleting records is refused (error {refused})") if refused else None


def _known(error: KmirrorError | OutcomeUnknown) -> KmirrorError:
    return error if isinstance(error, KmirrorError) else KmirrorError(str(error))


def _is_the_one_added(topic: TopicRecord, found: ClusterMetadata) -> bool:
    """Tell whether the source topic is the one that was added, not another of its name."""
    seen = found.topics.get(topic.source_topic)
    return seen is not None and seen.printed_topic_id in (None, topic.source_topic_id)
