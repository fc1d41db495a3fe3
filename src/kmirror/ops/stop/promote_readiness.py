"""What a topic lacks before it may be promoted, and what came at its source after that: looked at, not decided."""

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
from kmirror.ops.stop.report import Seen, last_seen
from kmirror.ops.stop.work import Stopping
from kmirror.state.records import MirrorRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.words import counted

_SOURCE_S = 10.0
#: A copy that reaches in this time what its source held is close enough to keep producers waiting for the rest.
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Missing:
    """What a topic still lacks: the lag where it is known, and a sentence; None: it is ready."""

    topic: str
    lag: int | None
    what: str | None
    #: True when nothing but time is missing.
    passes: bool = False
    #: True when the first copy is complete, and the rest is only seconds behind its source.
    is_close: bool = False


@dataclass(slots=True)
class _End:
    """Where a source partition ended when it was last looked at, and since when."""

    last_stable_offset: int
    high_watermark: int
    since: float


@dataclass(slots=True)
class Goal:
    """An end of a source partition that the copy is to reach, when it was seen, and how long the one before took."""

    offset: int
    at: float
    took: float | None = None

    def is_close(self, copied: int, now: float, end: int) -> bool:
        """Tell whether the copy, which ends at `copied` now, follows its source within seconds."""
        if copied >= self.offset:
            self.offset, self.at, self.took = end, now, now - self.at
        return self.took is not None and max(self.took, now - self.at) <= _CLOSE_S


@dataclass(slots=True)
class Look:
    """How the partitions stand: what is missing by topic, and what cannot be waited for."""

    missing: dict[str, Missing] = field(default_factory=dict)
    failed: dict[str, list[TopicResult]] = field(default_factory=dict)


class Completeness:
    """Look at both clusters again and again, and say what each topic of a mirror still lacks. For one thread."""

    def __init__(self, destination: Destination, mirror: MirrorRecord, idle_ms: int | None) -> None:
        self._destination = destination
        self._mirror = mirror
        self._idle_ms = idle_ms
        self._ends: dict[TopicPartition, _End] = {}
        #: Brokers of the source that did not answer when its ends were last asked for.
        self._silent: frozenset[int] = frozenset()
        self._goals: dict[TopicPartition, Goal] = {}
        #: The engine's last heartbeat, and how far its clock is off where that was seen to move.
        self._heartbeat_ms: int | None = None
        self._clock_trouble: str | None = None

    def look(self, source: ClusterClient, state: State, waiting: Mapping[str, TopicRecord]) -> Look:
        """Look at both clusters; say what each topic lacks."""
        look = Look()
        self._see_clock(state)
        try:
            with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
                self.see_ends(source, waiting.values())
            here = self._destination.client.list_offsets(
                {TopicPartition(t.topic, p): LATEST for t in waiting.values() for p in range(t.partitions)},
                log_end=True,
            )
        except (KmirrorError, OutcomeUnknown) as error:
            for name in waiting:
                look.missing[name] = Missing(name, None, str(error))
            return look
        ends = {place: answer.offset for place, answer in here.items()}
        seen = last_seen(state, self._mirror.name)
        for name, topic in waiting.items():
            failed = []
            for p in range(topic.partitions):
                place = TopicPartition(name, p)
                record, row = state.partition(topic.mirror, *place), seen[place].row if place in seen else None
                if (
                    record is not None
                    and record.state is PartitionState.FAILED
                    and (row is None or row.state is PartitionState.FAILED)
                ):
                    hint = f"`kmirror describe --mirror {topic.mirror} --failed` shows the cause; it stays mirrored"
                    failed.append(
                        TopicResult(*place, Outcome.FAILED, record.message or "FAILED", record.reason, hint=hint)
                    )
            if failed:
                look.failed[name] = failed
            else:
                look.missing[name] = self._missing(state, topic, ends, seen)
        return look

    def _see_clock(self, state: State) -> None:
        """Find out whether the engine's reports seem older than they are, and so older than what they are about."""
        engine = state.engine(self._mirror.name)
        if engine is None or engine.last_seen_ms == self._heartbeat_ms:
            return
        if self._heartbeat_ms is not None:
            self._clock_trouble = clock_trouble(engine, now_ms())
        self._heartbeat_ms = engine.last_seen_ms

    def see_ends(self, source: ClusterClient, topics: Collection[TopicRecord]) -> None:
        """Look where these topics end at the source. Raises UnreachableError."""
        places = {TopicPartition(t.source_topic, p): LATEST for t in topics for p in range(t.partitions)}
        found, self._silent = source.newest_metadata({t.source_topic for t in topics}, timeout=_SOURCE_S)
        # the high watermark first: a last stable offset asked for later is below it only if a transaction is open,
        # while the other way round every record that arrives in between would look like one
        marks = source.list_offsets(places, metadata=found, timeout=_SOURCE_S)
        stable = source.list_offsets(places, read_committed=True, metadata=found, timeout=_SOURCE_S)
        for place in places:
            last_stable, mark = stable[place], marks[place]
            if last_stable.offset is None or mark.offset is None or found.has_replica_on(place, self._silent):
                self._ends.pop(place, None)
                continue
            seen = (last_stable.offset, max(mark.offset, last_stable.offset))
            known = self._ends.get(place)
            if known is None or (known.last_stable_offset, known.high_watermark) != seen:
                self._ends[place] = _End(*seen, time.monotonic())

    def _missing(
        self,
        state: State,
        topic: TopicRecord,
        here: Mapping[TopicPartition, int | None],
        seen: Mapping[TopicPartition, Seen],
    ) -> Missing:
        lag, unknown, moved_at, follows = 0, 0, 0.0, True
        open_partitions, incomplete, doubtful = [], [], []
        for p in range(topic.partitions):
            place = TopicPartition(topic.topic, p)
            end, mine = self._ends.get(TopicPartition(topic.source_topic, p)), here.get(place)
            if end is None or mine is None:
                unknown += 1
                continue
            lag += max(0, end.last_stable_offset - mine)
            now = time.monotonic()
            goal = self._goals.setdefault(place, Goal(end.last_stable_offset, now))
            follows &= goal.is_close(mine, now, end.last_stable_offset)
            moved_at = max(moved_at, end.since)
            if end.high_watermark > end.last_stable_offset:
                open_partitions.append(p)
            record = state.partition(topic.mirror, *place)
            if not (record is not None and record.initial_copy_complete):
                incomplete.append(p)
            elif record.state is PartitionState.FAILED or not self._is_copied(seen.get(place), mine):
                doubtful.append(p)
        what, passes = None, False
        if unknown:
            what = f"{counted(unknown, 'partition has', 'partitions have')} no leader or no known end offset"
            if self._silent:
                what += f": {_silence_text(self._silent)}"
        elif lag:
            what = counted(lag, "record")
        elif open_partitions:
            what = self._open_told(topic, open_partitions)
        elif incomplete:
            what = f"the first copy is not complete ({counted(len(incomplete), 'partition')})"
        elif self._idle_ms is not None and (still := time.monotonic() - moved_at) < self._idle_ms / 1000:
            passes = True
            what = f"producers: the source's end moved {still:.0f} s ago, required: {self._idle_ms / 1000:g} s"
        elif doubtful:
            passes = True
            what = f"the engine has not yet confirmed that everything is copied ({counted(len(doubtful), 'partition')})"
            what += f": {self._clock_trouble}" if self._clock_trouble else ""
        is_close = follows and not unknown and not incomplete
        return Missing(topic.topic, None if unknown else lag, what, passes, is_close)

    def _is_copied(self, seen: Seen | None, end: int) -> bool:
        """Tell whether a lane has brought a log to its end; equal ends alone may be another client's records.

        Where producers may go on, reports are always a moment behind the log's end.
        """
        row = seen.row if seen else None
        if row is None or row.state is not PartitionState.MIRRORING or row.destination_offset is None:
            return False
        return row.destination_offset == end or self._idle_ms is None

    def _open_told(self, topic: TopicRecord, partitions: Sequence[int]) -> str:
        """Name the transaction that is open at the source."""
        place = TopicPartition(topic.source_topic, partitions[0])
        named = "a transaction is open"
        try:
            with source_client(self._mirror.source) as client:
                found = open_transactions([place], client, _SOURCE_S / 2).get(place)
            if found is not None:
                named = f"a {found} is open since offset {found.start_offset} of {place}; to end it: " + abort_command(
                    self._mirror.source, place, found.start_offset
                )
        except (KmirrorError, OutcomeUnknown):
            pass
        return named

    def source_ends(self, topic: TopicRecord) -> list[int | None]:
        """Return the high watermarks of a topic as they were last seen at the source, by partition."""
        ends = (self._ends.get(TopicPartition(topic.source_topic, p)) for p in range(topic.partitions))
        return [end.high_watermark if end else None for end in ends]


def without_unblocked(look: Look, blocked: Collection[str]) -> Look:
    """Return the look with no topic ready whose producers could still write when it was taken."""
    waits = f"producers: they are blocked once its copy is less than {_CLOSE_S:g} s behind"
    missing = {
        name: one if name in blocked or one.what is not None else replace(one, what=waits, passes=True)
        for name, one in look.missing.items()
    }
    return Look(missing, look.failed)


def to_block(look: Look, blocked: Collection[str], *, together: bool) -> list[str]:
    """Return the topics whose producers are to be blocked now; with `together` none before all are close."""
    if together and not all(one.is_close or name in blocked for name, one in look.missing.items()):
        return []
    return [name for name, one in look.missing.items() if one.is_close and name not in blocked]


def after_the_stop(
    source: ClusterClient, topics: Mapping[str, TopicRecord], done: Stopping
) -> tuple[list[TopicResult], list[str]]:
    """Look where the source ends after a stop; return the stop's rows with what came there after all, and warnings."""
    asked = {TopicPartition(topics[place.topic].source_topic, place.partition): place for place in done.ends}
    warnings = []
    try:
        found, silent = source.newest_metadata({place.topic for place in asked}, timeout=_SOURCE_S)
        settled = [place for place in asked if not found.has_replica_on(place, silent)]
        marks = source.list_offsets(dict.fromkeys(settled, LATEST), metadata=found, timeout=_SOURCE_S)
        if len(settled) < len(asked):
            missing = counted(len(asked) - len(settled), "partition")
            warnings.append(f"the ends of {missing} could not be read again after the stop: {_silence_text(silent)}")
    except (KmirrorError, OutcomeUnknown) as error:
        marks = {}
        warnings.append(f"the source's ends could not be read again after the stop: {error}")
    ends: dict[TopicPartition, int] = {}
    for there, place in asked.items():
        answer = marks.get(there)
        if answer is not None and answer.offset is not None:
            ends[place] = answer.offset
        elif answer is not None and answer.error_code:
            warnings.append(f"{there} could not be read after the stop: {code_name(answer.error_code)}")
    rows = []
    for row in done.results:
        place = TopicPartition(row.topic or "", -1 if row.partition is None else row.partition)
        late = ends[place] - done.ends[place] if place in ends else None
        rows.append(row if late is None else _written_after(row, place, late) if late > 0 else _complete(row, place))
    return rows, warnings


def _silence_text(brokers: Collection[int]) -> str:
    noun, verb = ("broker", "does") if len(brokers) == 1 else ("brokers", "do")
    return f"{noun} {', '.join(map(str, sorted(brokers)))} of the source {verb} not answer, and may lead by now"


def _complete(row: TopicResult, place: TopicPartition) -> TopicResult:
    """Return a row with what the source was just seen to hold, not what lanes saw of it last."""
    message = f"{place} is stopped at {row.last_mirrored_offset}; checked after that, the source had no further records"
    return replace(row, message=message, lag=0)


def _written_after(row: TopicResult, place: TopicPartition, count: int) -> TopicResult:
    return TopicResult(
        *place,
        Outcome.FAILED,
        f"{place} is stopped at {row.last_mirrored_offset}; after that, the source received "
        f"{counted(count, 'record')} that the copy lacks",
        Reason.SOURCE_WRITTEN_AFTER_STOP,
        last_mirrored_offset=row.last_mirrored_offset,
        lag=count,
        hint="stop the producers; `kmirror add --adopt` resumes mirroring if nothing was written here since",
    )
