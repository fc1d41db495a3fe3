"""What a topic lacks before it may be promoted. Decides nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, seconds_left
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.commands import on_mirror
from kmirror.engine.driver.growth import add_partitions
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, actor, naming_cluster, now_ms, source_client
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.show.open_transactions import abort_command, open_transactions
from kmirror.ops.stop.report import LastReport, last_reports
from kmirror.state.engine_findings import Lacking
from kmirror.state.records import MirrorRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.engine_health import clock_trouble
from kmirror.words import counted, listed

#: Instead of a count: the topic of that name is not the one that is mirrored.
ANOTHER = "another topic has its name now"
_SOURCE_S, _DESTINATION_S = 10.0, 30.0
_MOST_NAMED, _MOST_ADDED = 5, 10
#: Least time between two attempts to add partitions.
_ADD_AGAIN_S = 5.0
#: A copy this far behind its source is close enough to block producers until it has the rest.
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Missing:
    """What a topic still lacks: the lag if known, and a sentence; with `what` None it is ready."""

    topic: str
    lag: int | None
    what: str | None
    #: True if nothing but time is missing.
    only_time: bool = False
    #: True if the first copy is complete, and the copy is only seconds behind its source.
    is_close: bool = False
    #: What else is missing.
    others: tuple[str, ...] = ()


@dataclass(slots=True)
class _End:
    """Where a source partition ended when it was last read, and since when it has not moved."""

    last_stable_offset: int
    high_watermark: int
    since: float


@dataclass(slots=True)
class Goal:
    """An end of a source partition that the copy must reach, when it was read, and how long the previous one took."""

    offset: int
    at: float
    took: float | None = None

    def is_close(self, copied: int, now: float, end: int) -> bool:
        """Return whether the copy, which ends at `copied` now, follows its source within seconds."""
        if copied >= self.offset:
            self.offset, self.at, self.took = end, now, now - self.at
        return self.took is not None and max(self.took, now - self.at) <= _CLOSE_S


@dataclass(slots=True)
class Readiness:
    """By topic: what is missing, or the rows of FAILED partitions, for which waiting does not help."""

    missing: dict[str, Missing] = field(default_factory=dict)
    failed: dict[str, list[TopicResult]] = field(default_factory=dict)


class ReadinessChecker:
    """Find out, each time it is asked, what each topic of a mirror still lacks. For one thread."""

    def __init__(self, destination: Destination, mirror: MirrorRecord, idle_ms: int | None) -> None:
        self._destination = destination
        self._mirror = mirror
        self._idle_ms = idle_ms
        self._ends: dict[TopicPartition, _End] = {}
        #: By source topic, how many partitions it has, or why that is unknown.
        self._counts: dict[str, int | str] = {}
        #: Where the logs of partitions begin at the source that nobody copies.
        self._starts: dict[TopicPartition, int] = {}
        #: The topics to which partitions could not be added.
        self._lacking: Mapping[str, Lacking] = {}
        #: When partitions were last added, by `time.monotonic`.
        self._added_at = -math.inf
        #: By topic, how many partitions it has here.
        self._here: dict[str, int] = {}
        #: Brokers of the source that did not answer when its ends were last asked for.
        self._silent: frozenset[int] = frozenset()
        self._goals: dict[TopicPartition, Goal] = {}
        #: When lanes had last reported on copies that end after their source, as first seen.
        self._reported_ms: dict[TopicPartition, int] = {}
        #: The engine's last heartbeat; and if its clock differs from ours, as found at a new heartbeat, by how much.
        self._heartbeat_ms: int | None = None
        self._clock_trouble: str | None = None

    def check(
        self, source: ClusterClient, state: State, waiting: Mapping[str, TopicRecord], until: float = math.inf
    ) -> Readiness:
        """Read both clusters, and return what each topic lacks; brokers are not waited for after `until`."""
        readiness = Readiness()
        self._check_clock(state)
        try:
            with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
                self.read_source_ends(source, waiting.values(), until)
            deadline = min(until, time.monotonic() + _DESTINATION_S)
            known = self._destination.client.metadata(waiting, timeout=seconds_left(deadline))
            self._here = {t.name: len(t.partitions) for t in known.topics.values() if not t.error_code}
            here = self._destination.client.list_offsets(
                {
                    partition: LATEST
                    for name, topic in waiting.items()
                    for p in range(self._count(topic))
                    if known.leader(partition := TopicPartition(name, p)) is not None
                },
                metadata=known,
                timeout=seconds_left(deadline),
            )
        except (KmirrorError, OutcomeUnknown) as error:
            for name in waiting:
                readiness.missing[name] = Missing(name, None, str(error))
            return readiness
        ends = {partition: answer.offset for partition, answer in here.items()}
        reports = last_reports(state, self._mirror.name)
        for name, topic in waiting.items():
            failed = []
            for p in range(topic.partitions):
                partition = TopicPartition(name, p)
                record = state.partition(topic.mirror, *partition)
                row = reports[partition].row if partition in reports else None
                if (
                    record is not None
                    and record.state is PartitionState.FAILED
                    and (row is None or row.state is PartitionState.FAILED)
                ):
                    hint = f"`{on_mirror('describe', topic.mirror)} --failed` shows the cause; it stays mirrored"
                    failed.append(
                        TopicResult(*partition, Outcome.FAILED, record.message or "FAILED", record.reason, hint=hint)
                    )
            if failed:
                readiness.failed[name] = failed
            else:
                readiness.missing[name] = self._missing(state, topic, ends, reports)
        return readiness

    def _check_clock(self, state: State) -> None:
        """Find out whether the engine's clock makes its reports look older than they are."""
        engine = state.engine(self._mirror.name)
        if engine is None or engine.last_seen_ms == self._heartbeat_ms:
            return
        if self._heartbeat_ms is not None:
            self._clock_trouble = clock_trouble(engine, now_ms())
        self._heartbeat_ms = engine.last_seen_ms

    def read_source_ends(self, source: ClusterClient, topics: Collection[TopicRecord], until: float = math.inf) -> None:
        """Read where these topics end at the source, by `until` at the latest. Raises UnreachableError."""
        deadline = min(until, time.monotonic() + _SOURCE_S)
        names = {t.source_topic for t in topics}
        metadata, self._silent = source.newest_metadata(names, timeout=seconds_left(deadline))
        self._counts |= {t.source_topic: count_of(t, metadata) for t in topics}
        partitions = {TopicPartition(t.source_topic, p): LATEST for t in topics for p in range(self._count(t))}
        # those without a leader, or with one that is not known now, would hold up all others at each look
        led = {
            partition: LATEST
            for partition in partitions
            if metadata.leader(partition) is not None and not metadata.has_replica_on(partition, self._silent)
        }
        # the high watermark first: a last stable offset asked for later is below it only if a transaction is open,
        # while the other way round every record that arrives in between would look like one
        marks = source.list_offsets(led, metadata=metadata, timeout=seconds_left(deadline))
        stable = source.list_offsets(led, read_committed=True, metadata=metadata, timeout=seconds_left(deadline))
        added = {TopicPartition(t.source_topic, p) for t in topics for p in self._unmirrored(t)} & led.keys()
        starts = source.list_offsets(dict.fromkeys(added, EARLIEST), metadata=metadata, timeout=seconds_left(deadline))
        self._starts = {partition: answer.offset or 0 for partition, answer in starts.items()}
        for partition in partitions:
            last_stable, mark = (found[partition].offset if partition in led else None for found in (stable, marks))
            if last_stable is None or mark is None:
                self._ends.pop(partition, None)
                continue
            seen = (last_stable, max(mark, last_stable))
            known = self._ends.get(partition)
            if known is None or (known.last_stable_offset, known.high_watermark) != seen:
                self._ends[partition] = _End(*seen, time.monotonic())

    def _count(self, topic: TopicRecord) -> int:
        """Return how many partitions a topic has, at the source or mirrored."""
        there = self._counts.get(topic.source_topic)
        return max(topic.partitions, there) if isinstance(there, int) else topic.partitions

    def _unmirrored(self, topic: TopicRecord) -> range:
        """Return the partitions of the source that do not belong to the mirror yet."""
        return range(topic.partitions, self._count(topic))

    def add_partitions(self, topics: Iterable[TopicRecord], say: Callable[[str], None]) -> None:
        """Add the partitions that the sources of these topics have and the mirror lacks, for the engine to copy."""
        grown = [(topic, self._count(topic)) for topic in topics if self._unmirrored(topic)]
        if not grown or time.monotonic() - self._added_at < _ADD_AGAIN_S:
            return
        try:
            found = add_partitions(self._destination.client, self._destination.store, grown, actor())
            self._lacking = {topic: one for topic, one in found.items() if one is not None}
            if added := [topic for topic, one in found.items() if one is None]:
                say(f"partitions that the source has added are mirrored too: {listed(added, _MOST_ADDED)}")
        except (KmirrorError, OutcomeUnknown) as error:
            self._lacking = {topic.topic: Lacking(count, None, str(error)) for topic, count in grown}
        self._added_at = time.monotonic()

    def extra_partitions(self, topic: TopicRecord) -> list[TopicPartition]:
        """Return the partitions that only the destination has; none while those of the source are unknown."""
        there = self._counts.get(topic.source_topic)
        if not isinstance(there, int):
            return []
        return [TopicPartition(topic.topic, p) for p in range(there, self._here.get(topic.topic, 0))]

    def partition_trouble(self, topic: TopicRecord) -> str | None:
        """Return why a topic cannot be stopped with all partitions of its source, None if it can."""
        there = self._counts.get(topic.source_topic, "it was not asked")
        if isinstance(there, str):
            return f"how many partitions {topic.source_topic} has at the source is unknown: {there}"
        if not self._unmirrored(topic):
            return None
        partitions = [TopicPartition(topic.topic, p) for p in self._unmirrored(topic)]
        named = listed([str(partition) for partition in partitions], _MOST_NAMED)
        is_are = "is" if len(partitions) == 1 else "are"
        lacking = self._lacking.get(topic.topic)
        why = f": {lacking.message}" if lacking is not None else ""
        return f"{named} {is_are} new at the source and not mirrored yet{why}"

    def _missing(
        self,
        state: State,
        topic: TopicRecord,
        here: Mapping[TopicPartition, int | None],
        reports: Mapping[TopicPartition, LastReport],
    ) -> Missing:
        lag, unknown, moved_at, follows = 0, 0, 0.0, True
        open_partitions, incomplete, unconfirmed = [], [], []
        for p in range(self._count(topic)):
            partition, there = TopicPartition(topic.topic, p), TopicPartition(topic.source_topic, p)
            end, mine = self._ends.get(there), here.get(partition)
            if p >= self._here.get(topic.topic, 0):
                mine = self._starts.get(there)
            if end is None or mine is None:
                unknown += 1
                continue
            lag += max(0, end.last_stable_offset - mine)
            now = time.monotonic()
            goal = self._goals.setdefault(partition, Goal(end.last_stable_offset, now))
            follows &= goal.is_close(mine, now, end.last_stable_offset)
            moved_at = max(moved_at, end.since)
            if end.high_watermark > end.last_stable_offset:
                open_partitions.append(p)
            record = state.partition(topic.mirror, *partition)
            if not (record is not None and record.initial_copy_complete):
                incomplete.append(p)
            elif record.state is PartitionState.FAILED or not self._is_copied(partition, reports, mine, end):
                unconfirmed.append(p)
        only_time: list[str] = []
        causes: list[str] = []
        if (trouble := self.partition_trouble(topic)) is not None:
            causes.append(trouble)
            follows = False
        elif unknown:
            text = f"{counted(unknown, 'partition has', 'partitions have')} no leader or no known end offset"
            causes.append(text + (f": {silence_text(self._silent)}" if self._silent else ""))
        if lag:
            causes.append(counted(lag, "offset"))
        if open_partitions:
            # naming the transaction takes requests, which nobody reads while more is missing
            causes.append("a transaction is open" if causes else self._open_text(topic, open_partitions))
        if incomplete:
            causes.append(f"the first copy is not complete ({counted(len(incomplete), 'partition')})")
        if self._idle_ms is not None and (still := time.monotonic() - moved_at) < self._idle_ms / 1000:
            only_time.append(
                f"producers: the source's end moved {still:.0f} s ago, required: {self._idle_ms / 1000:g} s"
            )
        if unconfirmed and not causes and not only_time:
            many = counted(len(unconfirmed), "partition")
            clock = f": {self._clock_trouble}" if self._clock_trouble else ""
            only_time.append(f"the engine has not yet confirmed that everything is copied ({many}){clock}")
        is_close = follows and not unknown and not incomplete
        found = (*causes, *only_time)
        what, others = (found[0], found[1:]) if found else (None, ())
        return Missing(topic.topic, None if unknown else lag, what, bool(only_time) and not causes, is_close, others)

    def _is_copied(
        self, partition: TopicPartition, reports: Mapping[TopicPartition, LastReport], end: int, there: _End
    ) -> bool:
        """Return whether a lane has copied up to the log end; equal ends alone may be due to another client's records.

        With --allow-producers, reports are always a moment behind the log end. A source that ends before its copy may
        have lost records and received others since: that only a lane can tell which has seen this end.
        """
        report = reports.get(partition)
        if report is None or report.row.state is not PartitionState.MIRRORING or report.row.destination_offset is None:
            return False
        if there.last_stable_offset < end:
            is_new = report.time_ms != self._reported_ms.setdefault(partition, report.time_ms)
            if not is_new or report.row.reason or report.row.source_offset != there.last_stable_offset:
                return False
        return report.row.destination_offset == end or self._idle_ms is None

    def _open_text(self, topic: TopicRecord, partitions: Sequence[int]) -> str:
        """Describe the transaction that is open at the source."""
        partition = TopicPartition(topic.source_topic, partitions[0])
        named = "a transaction is open"
        try:
            with source_client(self._mirror.source, self._mirror.source_cluster_id) as client:
                found = open_transactions([partition], client, _SOURCE_S / 2).get(partition)
            if found is not None:
                named = (
                    f"a {found} is open since offset {found.start_offset} of {partition}; to end it: "
                    + abort_command(self._mirror.source, partition, found.start_offset)
                )
        except (KmirrorError, OutcomeUnknown):
            pass
        return named

    def high_watermarks(self, topic: TopicRecord) -> list[int | None]:
        """Return the high watermarks of a topic as last read at the source, by partition."""
        ends = (self._ends.get(TopicPartition(topic.source_topic, p)) for p in range(self._count(topic)))
        return [end.high_watermark if end else None for end in ends]


def count_of(topic: TopicRecord, found: ClusterMetadata) -> int | str:
    """Return how many partitions a topic has at the source, or why that is unknown."""
    there = found.topics.get(topic.source_topic)
    if there is None or there.error_code:
        return code_name(Code.UNKNOWN_TOPIC_OR_PARTITION if there is None else there.error_code)
    if topic.source_topic_id is not None and there.printed_topic_id not in (None, topic.source_topic_id):
        return ANOTHER
    return len(there.partitions)


def not_ready_until_blocked(readiness: Readiness, blocked: Collection[str]) -> Readiness:
    """Return the readiness with no topic ready whose producers could still write when it was read."""
    waits = f"producers: they are blocked once its copy is less than {_CLOSE_S:g} s behind"
    missing = {
        name: one if name in blocked or one.what is not None else replace(one, what=waits, only_time=True)
        for name, one in readiness.missing.items()
    }
    return Readiness(missing, readiness.failed)


def topics_to_block(readiness: Readiness, blocked: Collection[str], *, together: bool) -> list[str]:
    """Return the topics whose producers must be blocked now; with `together` none before all are close."""
    if together and not all(one.is_close or name in blocked for name, one in readiness.missing.items()):
        return []
    return [name for name, one in readiness.missing.items() if one.is_close and name not in blocked]


def silence_text(brokers: Collection[int]) -> str:
    """Return that these brokers of the source do not answer."""
    noun, verb = ("broker", "does") if len(brokers) == 1 else ("brokers", "do")
    return f"{noun} {', '.join(map(str, sorted(brokers)))} of the source {verb} not answer, and may lead by now"
