"""Read a mirror's source periodically: partition counts, log ends, log starts; and follow what changes there.

Partitions that were added at the source are added at the destination (`growth`); records that the source deleted long
enough ago are deleted there (`log_starts`). It is run by a pool (`job_pool`), with clients of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from math import inf

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.topics.trim import trim_compacted
from kmirror.engine.clock import now
from kmirror.engine.driver.growth import add_partitions, is_original_mirror
from kmirror.engine.driver.log_starts import LogStarts
from kmirror.engine.driver.source_login import LoginReport, SourceLogin
from kmirror.engine.status.health import MirrorHealth
from kmirror.engine.status.mirror_topics import MirrorTopics
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.state.engine_findings import Lacking
from kmirror.state.records import TopicRecord
from kmirror.state.store import StateStore

#: How soon a source that could not be read is read again, longer each time.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
#: How often its ends are read while lanes do not report them, and how often to check whether they do.
_ENDS_SECONDS = 3.0
_STEP_SECONDS = 0.5
#: Reading uses at most 1/200 of a core.
_PAUSE_PER_WORK = 200.0
#: Log starts are followed after a delay, and read this often within it: each minute of an hour.
_READS_PER_DELAY = 60


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What was read of the source, by mirror topic and partition; `trouble` if it does not answer."""

    source_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: When the ends were requested.
    seen_at: float = 0.0
    trouble: KmirrorError | None = None
    #: The mirror topics that lack partitions of their sources, and where these partitions' logs begin there; None: not
    #: read this time.
    lacking: Mapping[str, Lacking] | None = None
    lacking_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Why the mirror does not follow the source's log starts; None in the normal case.
    log_start_trouble: KmirrorError | None = None
    #: The ends of paused partitions, at the source and at the destination; None: not read this time.
    paused: Mapping[TopicPartition, tuple[int, int]] | None = None
    #: What is wrong with addresses in bootstrap.servers that do not lead to the source.
    passed_over: Mapping[str, str] = field(default_factory=dict)


class _DestinationSilent(Exception):  # noqa: N818 - the source has not failed
    """The destination does not answer, or refuses us."""


class SourceMonitor:
    """Read one mirror's source; of paused topics only the ends, of both clusters.

    While lanes do not report the source's ends, they are read more often than the rest.
    """

    name = "source"

    def __init__(
        self,
        actor: str,
        topics: MirrorTopics,
        partitions: MirrorPartitions,
        health: MirrorHealth,
        login: SourceLogin,
        destination: ClientConfig,
        report: Callable[[SourceReport | LoginReport], None],
    ) -> None:
        self._actor = actor
        self._topics, self._partitions, self._health = topics, partitions, health
        self._login = login
        self._report = report
        self._log_starts = LogStarts(topics.settings.follow_log_start_delay_ms / 1000)
        self._destination = ClusterClient(destination)
        self._source = ClusterClient(login.config)
        #: Least seconds between two reads: more where there is much to read.
        self._least_pause = 0.0
        #: When everything was last read, and when the source's log starts were.
        self._complete_at = self._starts_read_at = -inf
        self._failures = 0
        #: When the last read ended, when the next one is due, and when to check next whether it must be earlier.
        self._read_at = self._next_at = self.asleep_until = -inf

    def is_due(self, at: float) -> bool:
        """Return whether to read now: it is time, the source's ends are wanted, or its login must be renewed."""
        self.asleep_until = at if at >= self._next_at else min(self._next_at, at + _STEP_SECONDS)
        return at >= self._next_at or (
            self._login.is_due or (at - self._read_at >= _ENDS_SECONDS and self._health.wants_ends)
        )

    def run(self) -> None:
        """Read, and report what was found."""
        if self._login.is_due and (renewed := self._login.renew()) is not None:
            self._report(renewed)
            if renewed.trouble is None:
                self._source.close()
                self._source = ClusterClient(self._login.config)
                self._failures, self._complete_at = 0, -inf
        began, worked = now(), time.thread_time()
        pause: float = max(self._topics.settings.refresh_interval_seconds, self._least_pause)
        is_due = began - self._complete_at >= pause
        found, is_done = self._read(is_due=is_due)
        if is_due:
            self._least_pause = _PAUSE_PER_WORK * (time.thread_time() - worked)
        if is_done:
            self._complete_at = began if is_due else self._complete_at
            self._failures = 0
        else:
            pause = min(pause, _LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10))
            pause = max(pause, self._least_pause if found.lacking else 0.0)
            self._failures += 1
        self._report(replace(found, passed_over=self._source.passed_over))
        self._read_at = now()
        self._next_at = (self._read_at if self._failures else self._complete_at) + pause

    def close(self) -> None:
        """Close the connections to both clusters."""
        self._source.close()
        self._destination.close()

    def _read(self, *, is_due: bool) -> tuple[SourceReport, bool]:
        """Read the source's ends, and everything else if that is due; return whether it succeeded."""
        try:
            if not is_due:
                return self._read_ends(), True
            try:
                report = self._read_all()
                return report, not report.lacking
            except _DestinationSilent:
                # heartbeats report that; the source may be fine
                return self._read_ends(), False
        except (KmirrorError, OutcomeUnknown) as error:
            return SourceReport(trouble=_known(error)), False

    def _read_ends(self) -> SourceReport:
        topics = self._topics.active()
        found = self._source.metadata({t.source_topic for t in topics})
        seen_at = now()
        return SourceReport(self._ends_of([t for t in topics if _is_original_source(t, found)], found), seen_at)

    def _ends_of(self, topics: Sequence[TopicRecord], found: ClusterMetadata) -> dict[TopicPartition, int]:
        """Return the source's ends of the partitions that both sides have."""
        counts = {t.topic: min(t.partitions, len(found.topics[t.source_topic].partitions)) for t in topics}
        return self._offsets(
            {TopicPartition(t.topic, p): t.source_topic for t in topics for p in range(counts[t.topic])}, LATEST, found
        )

    def _offsets(
        self, sources: Mapping[TopicPartition, str], which: int, found: ClusterMetadata
    ) -> dict[TopicPartition, int]:
        """Return the source's offsets by destination partition; `sources` are the source topics of these."""
        partitions = {TopicPartition(source, p.partition): p for p, source in sources.items()}
        answers = self._source.list_offsets(
            dict.fromkeys(partitions, which), read_committed=which == LATEST, metadata=found
        )
        return {partitions[p]: answer.offset for p, answer in answers.items() if answer.offset is not None}

    def _read_all(self) -> SourceReport:
        topics, paused = self._topics.active(), self._topics.paused()
        if not topics and not paused:
            return SourceReport(lacking={}, paused={})
        found = self._source.metadata({t.source_topic for t in (*topics, *paused)})
        counts = {
            t.topic: len(found.topics[t.source_topic].partitions) for t in topics if t.source_topic in found.topics
        }
        grown = self._grow(
            [(t, counts[t.topic]) for t in topics if _is_original_source(t, found) and t.topic in counts]
        )
        lacking = {topic: one for topic, one in grown.items() if one is not None}
        counts = {
            t.topic: counts[t.topic] if t.topic in grown else min(counts[t.topic], t.partitions)
            for t in topics
            if t.topic in counts
        }
        sources = {t.topic: t.source_topic for t in topics}
        partitions = {TopicPartition(t, p): sources[t] for t, count in counts.items() for p in range(count)}
        # ends that lanes report are not read, once the partitions' targets are known
        targets, seen_at = self._partitions.targets or {}, now()
        unreported = {
            p: source
            for p, source in partitions.items()
            if p not in targets or not self._health.is_end_reported(p, seen_at)
        }
        offsets = self._offsets(unreported, LATEST, found)
        missing = {
            TopicPartition(t.topic, p): t.source_topic
            for t in topics
            if t.topic in lacking
            for p in range(t.partitions, counts[t.topic])
        }
        lacking_starts = self._offsets(missing, EARLIEST, found) if missing else {}
        trouble = None
        delay = self._topics.settings.follow_log_start_delay_ms / 1000
        if (
            topics
            and self._topics.settings.follow_log_start
            and seen_at - self._starts_read_at >= delay / _READS_PER_DELAY
        ):
            same = self._ours([t for t in topics if _is_original_source(t, found)])
            starts = self._offsets({p: source for p, source in partitions.items() if p.topic in same}, EARLIEST, found)
            self._starts_read_at = seen_at
            self._log_starts.delay = delay
            self._log_starts.observe(starts, now())
            trouble = self._follow_log_starts(same.keys())
        paused_ends = self._ends_of_paused(paused, found)
        return SourceReport(offsets, seen_at, None, lacking, lacking_starts, trouble, paused_ends)

    def _ends_of_paused(
        self, topics: Sequence[TopicRecord], found: ClusterMetadata
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the ends of paused partitions at source and destination, where both are known."""
        originals = [t for t in topics if _is_original_source(t, found)]
        if not originals:
            return {}
        ours = self._ours(originals)
        ends = self._ends_of([t for t in originals if t.topic in ours], found)
        with _destination():
            copied = self._destination.list_offsets(dict.fromkeys(ends, LATEST))
        return {p: (end, offset) for p, end in ends.items() if (offset := copied[p].offset) is not None}

    def _grow(self, counts: Sequence[tuple[TopicRecord, int]]) -> dict[str, Lacking | None]:
        """Add the partitions that were added at the source to mirror topics; return what each of these still lacks."""
        grown = [(topic, count) for topic, count in counts if count > topic.partitions]
        if not grown:
            return {}
        with _destination(), closing(StateStore(self._destination.config)) as store:
            return add_partitions(self._destination, store, grown, self._actor)

    def _ours(self, topics: Sequence[TopicRecord]) -> dict[str, int]:
        """Return the partition counts of mirror topics, without other topics that have their names now."""
        with _destination():
            here = self._destination.metadata({t.topic for t in topics})
        return {t.topic: len(here.topics[t.topic].partitions) for t in topics if is_original_mirror(t, here)}

    def _follow_log_starts(self, topics: Collection[str]) -> KmirrorError | None:
        """Delete records in the mirror that the source deleted long enough ago; return why that failed, if it did."""
        due = {
            p: to
            for p, to in self._log_starts.due(self._partitions.copied_up_to(), now()).items()
            if p.topic in topics and to > self._partitions.kept_until(p)
        }
        if not due:
            return None
        try:
            for partition, answer in self._destination.list_offsets(dict.fromkeys(due, EARLIEST)).items():
                if answer.offset is not None and answer.offset >= due[partition]:
                    self._log_starts.trimmed(partition, due.pop(partition))
            refused = 0
            for partition, trimmed in trim_compacted(self._destination, due).items():
                if not trimmed.error_code:
                    self._log_starts.trimmed(partition, due[partition])
                refused = refused or trimmed.error_code
        except (KmirrorError, OutcomeUnknown) as error:
            return _known(error)
        return KmirrorError(f"deleting records is refused (error {refused})") if refused else None


@contextmanager
def _destination() -> Iterator[None]:
    """Raise _DestinationSilent if the destination does not answer or refuses us: that is no trouble of the source."""
    try:
        yield
    except (KmirrorError, OutcomeUnknown) as error:
        raise _DestinationSilent from error


def _known(error: KmirrorError | OutcomeUnknown) -> KmirrorError:
    return error if isinstance(error, KmirrorError) else KmirrorError(str(error))


def _is_original_source(topic: TopicRecord, found: ClusterMetadata) -> bool:
    """Return whether the source topic is the one that was added, not another one of its name."""
    seen = found.topics.get(topic.source_topic)
    return seen is not None and seen.printed_topic_id in (None, topic.source_topic_id)
