"""What a topic lacks before it may be promoted, and what its source received after the stop. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.context import Destination, naming_cluster, now_ms, source_client
from kmirror.ops.results import Outcome, TopicResult
from kmirror.ops.show.engine_health import clock_trouble
from kmirror.ops.stop.open_transactions import abort_command, open_transactions
from kmirror.ops.stop.report import LastReport, last_reports
from kmirror.ops.stop.work import StopResults
from kmirror.state.records import MirrorRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.words import counted

_SOURCE_S = 10.0
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
        #: Brokers of the source that did not answer when its ends were last asked for.
        self._silent: frozenset[int] = frozenset()
        self._goals: dict[TopicPartition, Goal] = {}
        #: The engine's last heartbeat; and if its clock differs from ours, as found at a new heartbeat, by how much.
        self._heartbeat_ms: int | None = None
        self._clock_trouble: str | None = None

    def check(self, source: ClusterClient, state: State, waiting: Mapping[str, TopicRecord]) -> Readiness:
        """Read both clusters, and return what each topic lacks."""
        readiness = Readiness()
        self._check_clock(state)
        try:
            with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
                self.read_source_ends(source, waiting.values())
            here = self._destination.client.list_offsets(
                {TopicPartition(t.topic, p): LATEST for t in waiting.values() for p in range(t.partitions)},
                log_end=True,
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
                    hint = f"`kmirror describe --mirror {topic.mirror} --failed` shows the cause; it stays mirrored"
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

    def read_source_ends(self, source: ClusterClient, topics: Collection[TopicRecord]) -> None:
        """Read where these topics end at the source. Raises UnreachableError."""
        partitions = {TopicPartition(t.source_topic, p): LATEST for t in topics for p in range(t.partitions)}
        found, self._silent = source.newest_metadata({t.source_topic for t in topics}, timeout=_SOURCE_S)
        # the high watermark first: a last stable offset asked for later is below it only if a transaction is open,
        # while the other way round every record that arrives in between would look like one
        marks = source.list_offsets(partitions, metadata=found, timeout=_SOURCE_S)
        stable = source.list_offsets(partitions, read_committed=True, metadata=found, timeout=_SOURCE_S)
        for partition in partitions:
            last_stable, mark = stable[partition], marks[partition]
            if last_stable.offset is None or mark.offset is None or found.has_replica_on(partition, self._silent):
                self._ends.pop(partition, None)
                continue
            seen = (last_stable.offset, max(mark.offset, last_stable.offset))
            known = self._ends.get(partition)
            if known is None or (known.last_stable_offset, known.high_watermark) != seen:
                self._ends[partition] = _End(*seen, time.monotonic())

    def _missing(
        self,
        state: State,
        topic: TopicRecord,
        here: Mapping[TopicPartition, int | None],
        reports: Mapping[TopicPartition, LastReport],
    ) -> Missing:
        lag, unknown, moved_at, follows = 0, 0, 0.0, True
        open_partitions, incomplete, unconfirmed = [], [], []
        for p in range(topic.partitions):
            partition = TopicPartition(topic.topic, p)
            end, mine = self._ends.get(TopicPartition(topic.source_topic, p)), here.get(partition)
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
            elif record.state is PartitionState.FAILED or not self._is_copied(reports.get(partition), mine):
                unconfirmed.append(p)
        what, only_time = None, False
        if unknown:
            what = f"{counted(unknown, 'partition has', 'partitions have')} no leader or no known end offset"
            if self._silent:
                what += f": {_silence_text(self._silent)}"
        elif lag:
            what = counted(lag, "record")
        elif open_partitions:
            what = self._open_text(topic, open_partitions)
        elif incomplete:
            what = f"the first copy is not complete ({counted(len(incomplete), 'partition')})"
        elif self._idle_ms is not None and (still := time.monotonic() - moved_at) < self._idle_ms / 1000:
            only_time = True
            what = f"producers: the source's end moved {still:.0f} s ago, required: {self._idle_ms / 1000:g} s"
        elif unconfirmed:
            only_time = True
            many = counted(len(unconfirmed), "partition")
            what = f"the engine has not yet confirmed that everything is copied ({many})"
            what += f": {self._clock_trouble}" if self._clock_trouble else ""
        is_close = follows and not unknown and not incomplete
        return Missing(topic.topic, None if unknown else lag, what, only_time, is_close)

    def _is_copied(self, report: LastReport | None, end: int) -> bool:
        """Return whether a lane has copied up to the log end; equal ends alone may be due to another client's records.

        With --allow-producers, reports are always a moment behind the log end.
        """
        row = report.row if report else None
        if row is None or row.state is not PartitionState.MIRRORING or row.destination_offset is None:
            return False
        return row.destination_offset == end or self._idle_ms is None

    def _open_text(self, topic: TopicRecord, partitions: Sequence[int]) -> str:
        """Describe the transaction that is open at the source."""
        partition = TopicPartition(topic.source_topic, partitions[0])
        named = "a transaction is open"
        try:
            with source_client(self._mirror.source) as client:
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
        ends = (self._ends.get(TopicPartition(topic.source_topic, p)) for p in range(topic.partitions))
        return [end.high_watermark if end else None for end in ends]


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


def check_source_after_stop(
    source: ClusterClient, topics: Mapping[str, TopicRecord], done: StopResults
) -> tuple[list[TopicResult], list[str]]:
    """Read where the source ends after a stop; return the stop's rows with what it received late, and warnings."""
    asked = {
        TopicPartition(topics[topic_partition.topic].source_topic, topic_partition.partition): topic_partition
        for topic_partition in done.ends
    }
    warnings = []
    try:
        found, silent = source.newest_metadata({topic_partition.topic for topic_partition in asked}, timeout=_SOURCE_S)
        settled = [topic_partition for topic_partition in asked if not found.has_replica_on(topic_partition, silent)]
        marks = source.list_offsets(dict.fromkeys(settled, LATEST), metadata=found, timeout=_SOURCE_S)
        if len(settled) < len(asked):
            missing = counted(len(asked) - len(settled), "partition")
            warnings.append(f"the ends of {missing} could not be read again after the stop: {_silence_text(silent)}")
    except (KmirrorError, OutcomeUnknown) as error:
        marks = {}
        warnings.append(f"the source's ends could not be read again after the stop: {error}")
    ends: dict[TopicPartition, int] = {}
    for there, topic_partition in asked.items():
        answer = marks.get(there)
        if answer is not None and answer.offset is not None:
            ends[topic_partition] = answer.offset
        elif answer is not None and answer.error_code:
            warnings.append(f"{there} could not be read after the stop: {code_name(answer.error_code)}")
    rows = []
    for row in done.results:
        topic_partition = TopicPartition(row.topic or "", -1 if row.partition is None else row.partition)
        late = ends[topic_partition] - done.ends[topic_partition] if topic_partition in ends else None
        rows.append(
            row
            if late is None
            else _written_after(row, topic_partition, late)
            if late > 0
            else _complete(row, topic_partition)
        )
    return rows, warnings


def _silence_text(brokers: Collection[int]) -> str:
    noun, verb = ("broker", "does") if len(brokers) == 1 else ("brokers", "do")
    return f"{noun} {', '.join(map(str, sorted(brokers)))} of the source {verb} not answer, and may lead by now"


def _complete(row: TopicResult, partition: TopicPartition) -> TopicResult:
    """Return a row that reports the source's end as just read, not as lanes last reported it."""
    message = (
        f"{partition} is stopped at {row.last_mirrored_offset}; checked after that, the source had no further records"
    )
    return replace(row, message=message, lag=0)


def _written_after(row: TopicResult, partition: TopicPartition, count: int) -> TopicResult:
    return TopicResult(
        *partition,
        Outcome.FAILED,
        f"{partition} is stopped at {row.last_mirrored_offset}; after that, the source received "
        f"{counted(count, 'record')} that the copy lacks",
        Reason.SOURCE_WRITTEN_AFTER_STOP,
        last_mirrored_offset=row.last_mirrored_offset,
        lag=count,
        hint="stop the producers; `kmirror add --adopt` resumes mirroring if nothing was written here since",
    )
