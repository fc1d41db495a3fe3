"""Read a mirror's source periodically: partition counts, log ends, log starts; and follow what changes there.

Partitions that were added at the source are added at the destination (`growth`); records that the source deleted long
enough ago are deleted there (`log_starts`). Runs in a thread of its own, with clients of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.settings.table import Settings
from kmirror.state.records import Lacking, TopicRecord
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
    """Read one mirror's source. `topics` returns the topics that are copied, `ends` how far their copies are.

    Of those that are `paused` it reads only the ends, of both clusters.

    While `ends_are_wanted`, because lanes do not report them, the source's ends are read more often than the rest.
    `reported` returns those partitions whose source ends lanes report.
    """

    def __init__(
        self,
        actor: str,
        settings: Callable[[], Settings],
        login: SourceLogin,
        destination: ClientConfig,
        topics: Callable[[], Sequence[TopicRecord]],
        paused: Callable[[], Sequence[TopicRecord]],
        ends: Callable[[], Mapping[TopicPartition, int]],
        ends_are_wanted: Callable[[], bool] = lambda: False,
        reported: Callable[[Iterable[TopicPartition]], Collection[TopicPartition]] = lambda _: (),
    ) -> None:
        self._actor = actor
        self._current_settings = settings
        self._login = login
        self._destination = destination
        self._topics = topics
        self._paused = paused
        self._ends = ends
        self._ends_are_wanted = ends_are_wanted
        self._reported = reported
        self._log_starts = LogStarts(settings().follow_log_start_delay_ms / 1000)
        #: Least seconds between two reads: more where there is much to read.
        self._least_pause = 0.0
        #: When the source's log starts were last read.
        self._starts_read_at = -inf

    def run(self, stop: threading.Event, report: Callable[[SourceReport | LoginReport], None]) -> None:
        """Read repeatedly until `stop` is set."""
        with ClusterClient(self._destination) as destination:
            while not stop.is_set():
                with ClusterClient(self._login.config) as source:
                    self._watch(source, destination, stop, report)

    def _watch(
        self,
        source: ClusterClient,
        destination: ClusterClient,
        stop: threading.Event,
        report: Callable[[SourceReport | LoginReport], None],
    ) -> None:
        """Read repeatedly until `stop` is set or there is another login to the source."""
        failures, complete_at = 0, -inf
        while not stop.is_set():
            if self._login.is_due and (renewed := self._login.renew()) is not None:
                report(renewed)
                if renewed.trouble is None:
                    return
            began, worked = now(), time.thread_time()
            pause: float = max(self._current_settings().refresh_interval_seconds, self._least_pause)
            is_due = began - complete_at >= pause
            found, is_done = self._read(source, destination, is_due=is_due)
            if is_due:
                self._least_pause = _PAUSE_PER_WORK * (time.thread_time() - worked)
            if is_done:
                complete_at = began if is_due else complete_at
                failures = 0
            else:
                pause = min(pause, _LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 10))
                pause = max(pause, self._least_pause if found.lacking else 0.0)
                failures += 1
            report(replace(found, passed_over=source.passed_over))
            self._wait(stop, pause if failures else complete_at + pause - now())

    def _read(self, source: ClusterClient, destination: ClusterClient, *, is_due: bool) -> tuple[SourceReport, bool]:
        """Read the source's ends, and everything else if that is due; return whether it succeeded."""
        try:
            if not is_due:
                return self._read_ends(source), True
            try:
                report = self._read_all(source, destination)
                return report, not report.lacking
            except _DestinationSilent:
                # heartbeats report that; the source may be fine
                return self._read_ends(source), False
        except (KmirrorError, OutcomeUnknown) as error:
            return SourceReport(trouble=_known(error)), False

    def _wait(self, stop: threading.Event, pause: float) -> None:
        """Wait; return early if the source's ends are wanted or its login must be renewed."""
        began = now()
        while (left := pause - (now() - began)) > 0 and not stop.wait(min(_STEP_SECONDS, left)):
            if self._login.is_due or (now() - began >= _ENDS_SECONDS and self._ends_are_wanted()):
                return

    def _read_ends(self, source: ClusterClient) -> SourceReport:
        topics = self._topics()
        found = source.metadata({t.source_topic for t in topics})
        partitions = {
            TopicPartition(t.source_topic, p): TopicPartition(t.topic, p)
            for t in topics
            if _is_original_source(t, found)
            for p in range(min(t.partitions, len(found.topics[t.source_topic].partitions)))
        }
        seen_at = now()
        return SourceReport(source_offsets=_ends(source, partitions, found), seen_at=seen_at)

    def _read_all(self, source: ClusterClient, destination: ClusterClient) -> SourceReport:
        topics, paused = self._topics(), self._paused()
        if not topics and not paused:
            return SourceReport(lacking={}, paused={})
        found = source.metadata({t.source_topic for t in (*topics, *paused)})
        counts = {
            t.topic: len(found.topics[t.source_topic].partitions) for t in topics if t.source_topic in found.topics
        }
        grown = self._grow(
            destination, [(t, counts[t.topic]) for t in topics if _is_original_source(t, found) and t.topic in counts]
        )
        lacking = {topic: one for topic, one in grown.items() if one is not None}
        counts = {
            t.topic: counts[t.topic] if t.topic in grown else min(counts[t.topic], t.partitions)
            for t in topics
            if t.topic in counts
        }
        partitions = [TopicPartition(topic, p) for topic, count in counts.items() for p in range(count)]
        sources = {t.topic: t.source_topic for t in topics}
        reported = self._reported(partitions)
        seen_at = now()
        offsets = _ends(
            source, {TopicPartition(sources[p.topic], p.partition): p for p in partitions if p not in reported}, found
        )
        missing = {
            TopicPartition(t.source_topic, p): TopicPartition(t.topic, p)
            for t in topics
            if t.topic in lacking
            for p in range(t.partitions, counts[t.topic])
        }
        starts = source.list_offsets(dict.fromkeys(missing, EARLIEST), metadata=found) if missing else {}
        lacking_starts = {missing[p]: answer.offset for p, answer in starts.items() if answer.offset is not None}
        trouble = None
        delay = self._current_settings().follow_log_start_delay_ms / 1000
        if (
            topics
            and self._current_settings().follow_log_start
            and seen_at - self._starts_read_at >= delay / _READS_PER_DELAY
        ):
            same = self._ours(destination, [t for t in topics if _is_original_source(t, found)])
            wanted = {TopicPartition(sources[p.topic], p.partition): p for p in partitions if p.topic in same}
            starts = source.list_offsets(dict.fromkeys(wanted, EARLIEST), metadata=found)
            self._starts_read_at = seen_at
            self._log_starts.delay = delay
            self._log_starts.observe({wanted[p]: a.offset for p, a in starts.items() if a.offset is not None}, now())
            trouble = self._follow_log_starts(destination, same.keys())
        paused_ends = self._ends_of_paused(source, destination, paused, found)
        return SourceReport(offsets, seen_at, None, lacking, lacking_starts, trouble, paused_ends)

    def _ends_of_paused(
        self, source: ClusterClient, destination: ClusterClient, topics: Sequence[TopicRecord], found: ClusterMetadata
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the ends of paused partitions at source and destination, where both are known."""
        originals = [t for t in topics if _is_original_source(t, found)]
        if not originals:
            return {}
        ours = self._ours(destination, originals)
        partitions = {
            TopicPartition(t.source_topic, p): TopicPartition(t.topic, p)
            for t in originals
            if t.topic in ours
            for p in range(min(t.partitions, len(found.topics[t.source_topic].partitions)))
        }
        ends = _ends(source, partitions, found)
        with _destination():
            copied = destination.list_offsets(dict.fromkeys(ends, LATEST), log_end=True)
        return {p: (end, offset) for p, end in ends.items() if (offset := copied[p].offset) is not None}

    def _grow(self, destination: ClusterClient, counts: Sequence[tuple[TopicRecord, int]]) -> dict[str, Lacking | None]:
        """Add the partitions that were added at the source to mirror topics; return what each of these still lacks."""
        grown = [(topic, count) for topic, count in counts if count > topic.partitions]
        if not grown:
            return {}
        with _destination(), closing(StateStore(self._destination)) as store:
            return add_partitions(destination, store, grown, self._actor)

    def _ours(self, destination: ClusterClient, topics: Sequence[TopicRecord]) -> dict[str, int]:
        """Return the partition counts of mirror topics, without other topics that have their names now."""
        with _destination():
            here = destination.metadata({t.topic for t in topics})
        return {t.topic: len(here.topics[t.topic].partitions) for t in topics if is_original_mirror(t, here)}

    def _follow_log_starts(self, destination: ClusterClient, topics: Collection[str]) -> KmirrorError | None:
        """Delete records in the mirror that the source deleted long enough ago; return why that failed, if it did."""
        due = {p: to for p, to in self._log_starts.due(self._ends(), now()).items() if p.topic in topics}
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


@contextmanager
def _destination() -> Iterator[None]:
    """Raise _DestinationSilent if the destination does not answer or refuses us: that is no trouble of the source."""
    try:
        yield
    except (KmirrorError, OutcomeUnknown) as error:
        raise _DestinationSilent from error


def _ends(
    source: ClusterClient, partitions: Mapping[TopicPartition, TopicPartition], known: ClusterMetadata
) -> dict[TopicPartition, int]:
    """Return the source's ends by destination partition; `partitions` maps source to destination partitions."""
    ends = source.list_offsets(dict.fromkeys(partitions, LATEST), read_committed=True, metadata=known)
    return {partitions[p]: answer.offset for p, answer in ends.items() if answer.offset is not None}


def _known(error: KmirrorError | OutcomeUnknown) -> KmirrorError:
    return error if isinstance(error, KmirrorError) else KmirrorError(str(error))


def _is_original_source(topic: TopicRecord, found: ClusterMetadata) -> bool:
    """Return whether the source topic is the one that was added, not another one of its name."""
    seen = found.topics.get(topic.source_topic)
    return seen is not None and seen.printed_topic_id in (None, topic.source_topic_id)
