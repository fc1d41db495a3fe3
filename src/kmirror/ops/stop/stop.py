"""Stop mirroring to topics, so that they are ordinary topics afterwards: what failover, remove and promote share.

1. The topics' records say that they are being stopped, and why: engines let go of them, other verbs keep away.
2. Whoever could still write is shut out. An engine that gives the topics up says that nothing is on its way any more.
   Where it does not, or where that is wanted anyway, its producer ids are shut out at every leader (`cluster.fence`),
   and its lease is taken.
   Beside that the source is asked where it ends (`ops.stop_look`); nothing waits for it here.
3. Where the source's records end is recorded, the last mirrored offset (LMO): where the log ends, unless other clients
   wrote to it. From here on the topic can be written.
4. Filler of a first copy that was never finished is deleted; groups, settings and rights are brought to what they are
   to be (`ops.stop_aftermath`).
5. The records say STOPPED, and what the source was known to have after that.

Killed anywhere, the same command goes on: what is recorded is not done again, everything else can be done twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kmirror.cluster.fence import Fenced, Writer, fence, log_ends
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.spec import own_producer_id
from kmirror.errors import ExitCode, Reason, RefusedError
from kmirror.ops.context import Destination, actor, change, naming_cluster, now_ms, require_mirror
from kmirror.ops.results import GroupResult, Outcome, TopicResult
from kmirror.ops.show.rows import is_gone
from kmirror.ops.stop.aftermath import bring_to_rest
from kmirror.ops.stop.facts import StopLook
from kmirror.ops.stop.handover import Handover, await_handover
from kmirror.ops.stop.report import Seen, incomplete_told, places_of, spread_told, stopped_row, unmirrored_row
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import canonical, parse_settings
from kmirror.state.client import boottime
from kmirror.state.events import Event
from kmirror.state.lease import EngineIdentity, Lease
from kmirror.state.records import (
    PENDING_STOP,
    AtStop,
    DesiredState,
    EngineState,
    Guard,
    Key,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRow,
    Rebuild,
    RebuildStep,
    Record,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State
from kmirror.words import at_time

#: How long an engine that is at work may take to give topics up.
_HANDOVER_S = 5.0
#: How long the lanes of an engine whose lease was taken may go on, at most, by the lease's own length.
_LEASE_TTL_MS = 5_000
#: How long the deletion of a topic that was being rebuilt may take to be carried out.
_DELETION_S = 3.0
_RUN_AGAIN = "run the same command again to finish"
_MOST_TOPICS_IN_EVENT = 100

Checkpoint = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StopRequest:
    """What is to be stopped, and how; `topics` are destination names."""

    mirror: str
    verb: str
    topics: tuple[str, ...]
    reason: Reason
    #: The whole mirror: its discovery ends with it, and its engine.
    whole: bool = False
    #: Shut the mirror's producers out at the brokers also where its engine has given the topics up.
    always_fence: bool = False
    #: Where markers may not be written, shut them out by one visible record per partition.
    fence_with_record: bool = False
    #: Make no topic writable before where each of them ends is recorded.
    together: bool = False
    #: Source topics that discovery is not to bring back.
    exclude: tuple[str, ...] = ()


@dataclass(slots=True)
class Stopping:
    """How a stop went: results by topic and partition, and how long its steps took, in seconds."""

    results: list[TopicResult] = field(default_factory=list)
    groups: list[GroupResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)
    #: Where the source's records end in each log.
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    #: Why the source did not say where it ends; None when it did, or was not asked.
    source_trouble: str | None = None


def is_stopped(state: State, topic: TopicRecord) -> bool:
    """Tell whether mirroring to a topic has been stopped, with all that belongs to it."""
    return topic.desired is DesiredState.STOPPED and topic.pending_operation is None


def stop(destination: Destination, request: StopRequest, checkpoint: Checkpoint = lambda _: None) -> Stopping:
    """Stop mirroring to these topics; `checkpoint` is called with the name of each step that has been recorded.

    Raises:
        RefusedError: no such mirror; a topic is being rebuilt or added by somebody else at the very moment.
        UnreachableError: the destination does not answer; the same command goes on.
    """
    return _Stop(destination, request, checkpoint).run()


class _Stop:
    def __init__(self, destination: Destination, request: StopRequest, checkpoint: Checkpoint) -> None:
        self._destination = destination
        self._request = request
        self._checkpoint = checkpoint
        self._done = Stopping()
        self._began = boottime()
        self._failed: dict[str, TopicResult] = {}

    def run(self) -> Stopping:
        request = self._request
        with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
            state = self._claim()
            topics = [
                topic
                for name in request.topics
                if (topic := state.topic(request.mirror, name)) and topic.pending_operation == PENDING_STOP
            ]
            for name in sorted({*request.topics} - {topic.topic for topic in topics}):
                self._tell_of_stopped(state, name)
            if topics:
                must_fence = self._take_charge([topic.topic for topic in topics])
                topics = self._without_gone(state, topics)
                with StopLook(self._destination, state, require_mirror(state, request.mirror), topics) as look:
                    self._record_ends(look, self._shut_out(state, topics, look, must_fence=must_fence))
                    if request.together and self._failed:
                        self._hold([topic.topic for topic in topics])
                    else:
                        self._come_to_rest(look, topics)
            elif request.whole:
                self._end_engine()
                self._step("engine ended")
        return self._done

    # -- 1: the claim ---------------------------------------------------------------------------------------------

    def _claim(self) -> State:
        """Record what is wanted; return the state with it."""
        request, claimed = self._request, [State()]
        rebuilds: dict[str, Rebuild] = {}

        def decide(state: State) -> Changes:
            rebuilds.clear()
            mirror = require_mirror(state, request.mirror)
            records: list[MirrorRecord | TopicRecord] = []
            if (changed := _with_filters(mirror, request)) != mirror:
                records.append(changed)
            for name in request.topics:
                topic = state.topic(request.mirror, name)
                if topic is None or is_stopped(state, topic):
                    continue
                replacing = topic.rebuild is not None and topic.rebuild.step is RebuildStep.REPLACE
                records.append(
                    replace(
                        topic,
                        desired=DesiredState.STOPPED,
                        pending_operation=PENDING_STOP,
                        stop_reason=topic.stop_reason or request.reason,
                        rebuild=None,
                        archive=topic.rebuild.archive if topic.rebuild and replacing else topic.archive,
                    )
                )
                if topic.rebuild is not None:
                    rebuilds[name] = topic.rebuild
            after: dict[Key, Record] = {record.key: record for record in records}
            claimed[0] = State.of([*{**state.records, **after}.values(), *state.unknown])
            unchanged = all(state.records.get(key) == record for key, record in after.items())
            return Changes() if unchanged else Changes(tuple(records))

        change(self._destination, request.mirror, decide)
        self._step("claimed")
        for name, rebuild in rebuilds.items():
            kept = {
                RebuildStep.ARCHIVE: "its old records are still in it",
                RebuildStep.REPLACE: f"all its old records are in {rebuild.archive}",
            }[rebuild.step]
            self._done.warnings.append(f"{name} was being rebuilt because it did not match its source: {kept}")
        if any(rebuild.step is RebuildStep.REPLACE for rebuild in rebuilds.values()):
            # its deletion may have been sent right before the claim
            time.sleep(_DELETION_S)
        return claimed[0]

    def _tell_of_stopped(self, state: State, name: str) -> None:
        topic = state.topic(self._request.mirror, name)
        if topic is None:
            self._done.results.append(TopicResult(name, None, Outcome.NOOP, f"{name} is not a mirror topic"))
        else:
            self._done.results += stopped_already(state, topic)

    # -- 2: who could still write ---------------------------------------------------------------------------------

    def _without_gone(self, state: State, topics: Sequence[TopicRecord]) -> list[TopicRecord]:
        """Have done with topics that were deleted, or are somebody else's by now; return the others."""
        found = self._destination.client.metadata([topic.topic for topic in topics]).topics
        left = []
        for topic in topics:
            here = found.get(topic.topic)
            if topic.destination_topic_id is None or is_gone(topic, here):
                never = topic.destination_topic_id is None
                word = "had not become a mirror topic yet" if never else "is gone"
                word += f"; its old records are in {topic.archive}" if topic.archive else ""
                self._finish([topic], {})
                self._done.results.append(TopicResult(topic.topic, None, Outcome.DONE, f"{topic.topic} {word}"))
            elif here is not None and here.error_code:
                self._fail(
                    topic.topic, f"the destination does not describe {topic.topic}: {code_name(here.error_code)}"
                )
            else:
                left.append(topic)
        return left

    def _take_charge(self, topics: Sequence[str]) -> bool:
        """Have the engine let go; return whether the brokers have to shut it out."""
        request = self._request
        if request.whole:
            silent = self._end_engine()
            self._step("engine fenced")
            return request.always_fence or silent
        states = (PartitionState.STOPPING, PartitionState.STOPPED)
        ended = await_handover(self._destination, request.mirror, topics, states, _HANDOVER_S)
        if ended is Handover.LATE:
            self._done.warnings.append(f"the engine did not release the topics within {_HANDOVER_S:g} s and was fenced")
        if ended is not Handover.CLEAN:
            self._end_engine()
        self._step("engine released the topics" if ended is Handover.CLEAN else "engine fenced")
        return request.always_fence or ended is not Handover.CLEAN

    def _end_engine(self) -> bool:
        """Take the lease from whoever has it; return whether somebody may have had it."""
        store, mirror = self._destination.store, self._request.mirror
        engine = self._destination.state().engine(mirror)
        if engine is None or (engine.state is EngineState.RELEASED and not engine.settle_ms):
            return False
        if engine.state is EngineState.RELEASED:
            return True
        lease = Lease.acquire(store, mirror, EngineIdentity.of_this_process(), _LEASE_TTL_MS, take_over=True)
        try:
            lease.release()
        finally:
            lease.close()
        return True

    def _shut_out(
        self, state: State, topics: Sequence[TopicRecord], look: StopLook, *, must_fence: bool
    ) -> dict[TopicPartition, Fenced]:
        """Shut the mirror's producers out where that is to be; return where the logs ended."""
        request, client = self._request, self._destination.client
        look.ask_source()
        writers = {
            place: _writer(state, topic, place, look.seen.get(place))
            for topic in topics
            for place in places_of(topic)
            if _last_mirrored(state, topic, place.partition) is None
        }
        if not writers:
            return {}
        if not must_fence:
            return log_ends(client, writers)
        found = fence(client, writers)
        refused = {p: w for p, w in writers.items() if found[p].error_code in _REFUSED}
        if refused and request.fence_with_record:
            found |= fence(client, refused, with_record=True)
        elif refused:
            # nobody is shut out at the brokers: what is on its way arrives until their lease has run out
            engine = self._destination.state().engine(request.mirror)
            time.sleep((engine.settle_ms if engine else 0) / 1000)
            found |= log_ends(client, refused)
            self._done.warnings.append(
                "the mirror's producers were not fenced at the brokers: kmirror lacks the right to write markers "
                "(ALTER or CLUSTER_ACTION on the cluster). Only its lease keeps a forgotten engine from writing; "
                "--fence-with-record fences it at the cost of one visible record per partition"
            )
        return found

    # -- 3: where the source's records end ------------------------------------------------------------------------

    def _record_ends(self, look: StopLook, found: Mapping[TopicPartition, Fenced]) -> None:
        request = self._request
        self._step("writers fenced" if any(end.is_shut_out for end in found.values()) else "ends read")
        at_stop = look.found(found)
        self._done.warnings += look.warnings
        for place, end in sorted(found.items()):
            if end.error_code:
                why = f"the leader of {place} cannot be asked: {code_name(end.error_code)}"
                self._fail(place.topic, why, place.partition)

        def decide(state: State) -> Changes:
            records = []
            for place, known in at_stop.items():
                topic = state.topic(request.mirror, place.topic)
                if topic is None or topic.pending_operation != PENDING_STOP:
                    continue
                record = state.partition(request.mirror, *place)
                if record is None:
                    at = now_ms()
                    record = PartitionRecord(request.mirror, *place, PartitionState.LOG_ALIGNMENT, at)
                if record.last_mirrored_offset is None:
                    row = look.seen[place].row if place in look.seen else None
                    records.append(ended(record, topic, look.last_mirrored_offsets[place], known, row))
            return Changes(tuple(records))

        if found:
            change(self._destination, request.mirror, decide)
        self._step("ends recorded")

    def _hold(self, topics: Sequence[str]) -> None:
        """Leave the stop of these topics unfinished, since another one that goes with them cannot be stopped now."""
        missed = next(iter(self._failed))
        for name in topics:
            if name not in self._failed:
                word = f"{name} is no longer mirrored and not yet writable: {missed} cannot be stopped with it"
                self._done.results.append(TopicResult(name, None, Outcome.TIMED_OUT, word, hint=_RUN_AGAIN))

    # -- 4, 5: all that belongs to it -----------------------------------------------------------------------------

    def _come_to_rest(self, look: StopLook, topics: Sequence[TopicRecord]) -> None:
        request = self._request
        state = self._destination.state()
        resting = [topic for topic in topics if topic.topic not in self._failed]
        aftermath = bring_to_rest(self._destination, state, request.mirror, resting, self._step)
        self._done.groups += aftermath.groups
        self._done.warnings += aftermath.warnings
        for name, error in aftermath.troubles.items():
            self._fail(name, error.message, reason=error.reason, hint=error.hint)
        finished = [topic for topic in resting if topic.topic not in self._failed]
        known = _known_at_stop(state, finished)
        ends = {place: record.last_mirrored_offset or 0 for place, (record, _) in known.items()}
        at_stop = look.answered({place: one for place, (_, one) in known.items()}, ends)
        source = look.source()
        self._done.source_trouble = source.trouble
        self._step("source asked")
        self._finish(finished, at_stop)
        for topic in finished:
            for place in places_of(topic):
                record = state.partition(request.mirror, *place)
                if record is not None and place in at_stop:
                    record = replace(record, at_stop=at_stop[place])
                self._done.results.append(stopped_row(place, record, Outcome.DONE, request.reason))
        for place, records in source.unmirrored.items():
            if place.topic in {topic.topic for topic in finished}:
                self._done.results.append(unmirrored_row(place, records, request.reason))
        self._done.ends |= ends
        self._done.warnings += incomplete_told(state, request.mirror, finished, look.seen)
        self._done.warnings += spread_told(finished, look.seen)

    def _finish(self, topics: Sequence[TopicRecord], at_stop: Mapping[TopicPartition, AtStop]) -> None:
        """Record that these topics are stopped."""
        request = self._request

        def decide(state: State) -> Changes:
            records: list[TopicRecord | PartitionRecord] = []
            told: dict[str, object] = {}
            for known in topics:
                topic = state.topic(request.mirror, known.topic)
                if topic is None or topic.pending_operation != PENDING_STOP:
                    continue
                for record in state.partitions(request.mirror, topic.topic):
                    stopped = replace(
                        record,
                        state=PartitionState.STOPPED,
                        state_time_ms=now_ms(),
                        reason=topic.stop_reason,
                        message=None,
                        retry_attempt=0,
                        failed_offset=None,
                        at_stop=at_stop.get(TopicPartition(topic.topic, record.partition), record.at_stop),
                    )
                    records.append(stopped)
                    if len(told) < _MOST_TOPICS_IN_EVENT:
                        told[f"{topic.topic}-{record.partition}"] = record.last_mirrored_offset
                records.append(replace(topic, pending_operation=None, deferred=None))
            if not records:
                return Changes()
            names = [topic.topic for topic in topics]
            details = {"topics": names[:_MOST_TOPICS_IN_EVENT], "count": len(names), "lastMirroredOffsets": told}
            event = Event(now_ms(), request.mirror, request.verb, actor(), ExitCode.OK.name, details)
            return Changes(tuple(records), (), (event,))

        if topics:
            change(self._destination, request.mirror, decide)
        self._step("stopped")

    def _fail(
        self,
        topic: str,
        message: str,
        partition: int | None = None,
        reason: Reason | None = None,
        hint: str | None = None,
    ) -> None:
        row = TopicResult(topic, partition, Outcome.FAILED, message, reason, hint=hint or _RUN_AGAIN)
        self._failed[topic] = row
        self._done.results.append(row)

    def _step(self, name: str) -> None:
        self._done.steps[name] = self._done.steps.get(name, 0.0) + boottime() - self._began
        self._began = boottime()
        self._checkpoint(name)


_REFUSED = (Code.CLUSTER_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED)


def _with_filters(mirror: MirrorRecord, request: StopRequest) -> MirrorRecord:
    """Return the mirror's record with its discovery ended, or with filters that leave topics out."""
    changed = replace(mirror, discovery_ended=True) if request.whole else mirror
    settings = parse_settings(mirror.settings)
    more = tuple(name for name in request.exclude if name not in settings.topics_exclude.patterns)
    if not more:
        return changed
    exclude = settings.topics_exclude.plus(TopicSelector(more))
    include = TopicSelector(tuple(p for p in settings.topics_include.patterns if p not in more))
    filters = canonical({"topics.include": str(include), "topics.exclude": str(exclude)})
    kept = {key: value for key, value in mirror.settings.items() if key not in filters}
    return replace(changed, settings=kept | {key: value for key, value in filters.items() if value})


def _last_mirrored(state: State, topic: TopicRecord, partition: int) -> int | None:
    record = state.partition(topic.mirror, topic.topic, partition)
    return record.last_mirrored_offset if record else None


def _writer(state: State, topic: TopicRecord, place: TopicPartition, seen: Seen | None) -> Writer:
    record = state.partition(topic.mirror, *place)
    guard = record.guard if record else None
    known_end = (seen.row.destination_offset or 0) if seen else 0
    if guard is None:
        return Writer(own_producer_id(topic.mirror, *place), 0, known_end)
    return Writer(guard.producer_id, guard.producer_epoch, known_end)


def ended(
    record: PartitionRecord, topic: TopicRecord, last_mirrored_offset: int, known: AtStop, row: ProgressRow | None
) -> PartitionRecord:
    """Return the record with where the copy ended; a later mirror of the topic writes under another producer id."""
    epoch = row.last_epoch if row is not None and row.last_epoch is not None else record.last_mirrored_epoch
    salt = f"{topic.topic}\0{topic.destination_topic_id}\0{known.log_end}"
    return replace(
        record,
        state=PartitionState.STOPPING,
        state_time_ms=now_ms(),
        reason=None,
        message=None,
        last_mirrored_offset=last_mirrored_offset,
        last_mirrored_epoch=epoch,
        guard=Guard(own_producer_id(topic.mirror, salt, record.partition), 0, -1, 0),
        at_stop=known,
    )


def stopped_already(state: State, topic: TopicRecord) -> list[TopicResult]:
    """Return what is remembered of a topic that was stopped before, by partition."""
    records = state.partitions(topic.mirror, topic.topic)
    why = topic.stop_reason or "STOPPED"
    if not records:
        return [TopicResult(topic.topic, None, Outcome.NOOP, f"{topic.topic} was already stopped ({why})")]
    return [
        stopped_row(
            TopicPartition(topic.topic, record.partition),
            record,
            Outcome.NOOP,
            record.reason,
            f"was already stopped ({why}, {at_time(record.state_time_ms)})",
        )
        for record in records
    ]


def _known_at_stop(state: State, topics: Sequence[TopicRecord]) -> dict[TopicPartition, tuple[PartitionRecord, AtStop]]:
    """Return what is recorded of partitions whose end is recorded."""
    found = {}
    for topic in topics:
        for record in state.partitions(topic.mirror, topic.topic):
            if record.last_mirrored_offset is not None:
                known = record.at_stop or AtStop(record.state_time_ms, record.last_mirrored_offset)
                found[TopicPartition(topic.topic, record.partition)] = record, known
    return found


def require_not_failed_over(state: State, mirror: MirrorRecord) -> None:
    """Refuse to run a mirror that was failed over as a whole and has got no topic since.

    Raises:
        RefusedError: says what can be done instead.
    """
    if mirror.discovery_ended and all(is_stopped(state, topic) for topic in state.topics(mirror.name)):
        raise RefusedError(
            f"mirror {mirror.name} was failed over as a whole: there is nothing to copy",
            "`kmirror failback` mirrors in the other direction; `kmirror add` mirrors topics again",
        )
