"""`recover`: have FAILED partitions tried again at once, and say what may be lost on the way.

What is wanted is recorded with the topic. An engine in charge hears of it and begins those partitions anew; the next
one to start does so anyway. Nothing is given up that was not accepted here: a loss is accepted from where the copy
stands, and that consent is used up as soon as a record behind it was copied.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import ExitCode, Reason
from kmirror.ops.context import Destination, actor, change, now_ms, require_mirror
from kmirror.ops.next_steps import next_step
from kmirror.ops.results import Outcome, TopicResult, VerbResult
from kmirror.ops.selection import select_topics
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.describe import read_rows
from kmirror.ops.show.rows import engine_in_charge, reports_of
from kmirror.ops.show.tables import PartitionRow
from kmirror.settings.patterns import TopicSelector
from kmirror.state.assignment import Recovery
from kmirror.state.events import Event
from kmirror.state.records import PartitionState, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.words import counted
from kmirror.work import Add, Meter, Watch, unwatched

#: How long an engine in charge is waited for.
_WAIT_S = 60.0
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Consent:
    """What the operator accepts."""

    loss: bool = False
    #: With a loss: the mirror's log is to begin behind it.
    trim: bool = False
    #: Topics may be archived and rebuilt whose source was deleted and created again; or whose histories part.
    reset: bool = False
    divergence: bool = False


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is to be recorded for one FAILED partition, and what to say of it."""

    place: TopicPartition
    told: str
    lost: tuple[int, int] | None = None
    rebuilds: Reason | None = None


#: Which consent a reason asks for.
_RESETS = frozenset({Reason.SOURCE_TOPIC_RECREATED, Reason.PARTITIONS_DECREASED})
_DIVERGENCES = frozenset({Reason.SOURCE_DIVERGED, Reason.DESTINATION_WRITTEN, Reason.OFFSET_MISMATCH})
#: How records came to be lost.
_WHYS = {
    Reason.SOURCE_TRUNCATED: "which the source deleted before they were copied",
    Reason.DESTINATION_TRUNCATED: "which the destination lost and the source no longer has",
}


def recover(
    destination: Destination,
    mirror: str,
    topics: TopicSelector | None = None,
    consent: Consent | None = None,
    watch: Watch = unwatched,
    *,
    dry_run: bool = False,
) -> VerbResult:
    """Have the FAILED partitions of these topics tried again; one result each.

    With an engine in charge, DONE means that the partition is copied again; without, that the next engine will try.
    `watch` is shown how waiting for it goes.

    Raises:
        RefusedError: no such mirror, or a plain name among `topics` is no topic of it.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    require_mirror(state, mirror)
    chosen = select_topics(state.topics(mirror), topics, f"of mirror {mirror}")
    with Prober(destination) as prober:
        rows, _ = read_rows(prober, state, chosen, ())
    failed = [row for row in rows if row.failed]
    if not failed:
        return _result(mirror, [TopicResult(None, None, Outcome.NOOP, "no partition is FAILED")], dry_run)
    decided = [_decide(row, consent or Consent()) for row in failed]
    wishes = [one for one in decided if isinstance(one, _Wish)]
    results = [one for one in decided if isinstance(one, TopicResult)]
    if dry_run or not wishes:
        return _result(mirror, [*results, *(_done(wish, f"would be retried{wish.told}") for wish in wishes)], dry_run)
    asked_ms = now_ms()
    numbers = _record(destination, mirror, wishes, trims=consent is not None and consent.trim)
    if engine_in_charge(destination.state(), mirror, now_ms()) is None:
        hint = f"no engine is in charge; `kmirror run --mirror {mirror}` starts one"
        results += [_done(wish, f"will be retried{wish.told}") for wish in wishes]
        return _result(mirror, results, dry_run, warnings=[hint])
    with Meter(watch, "waiting for the engine to resume copying", "partition", len(wishes)) as meter:
        deadline = time.monotonic() + _WAIT_S
        results += _wait(destination.state, mirror, wishes, numbers, asked_ms, deadline, meter.add)
    return _result(mirror, results, dry_run)


def _decide(row: PartitionRow, consent: Consent) -> _Wish | TopicResult:
    place = TopicPartition(row.topic, row.partition)
    # what a destination that lost records still has may be kept, or archived
    is_rest_archived = row.reason is Reason.DESTINATION_TRUNCATED and consent.divergence and not consent.loss
    if row.reason in _RESETS | _DIVERGENCES or is_rest_archived:
        if not (consent.reset if row.reason in _RESETS else consent.divergence):
            hint = next_step(row.reason, row.mirror, row.topic)
            return TopicResult(row.topic, row.partition, Outcome.REFUSED, row.error_message, row.reason, hint=hint)
        what = "all of its records" if row.reason in _RESETS else "the records that the source does not have"
        return _Wish(place, f"; {what} are archived, and the topic is rebuilt from its source", rebuilds=row.reason)
    start, end = row.source_log_start, row.destination_offset
    if row.reason not in _WHYS or start is None or end is None or start <= end:
        return _Wish(place, "")
    what = f"{counted(start - end, 'record')}, {end} to {start - 1}, {_WHYS[row.reason]}"
    if not consent.loss:
        message = f"{place} can continue only without {what}"
        hint = next_step(row.reason, row.mirror, row.topic)
        return TopicResult(row.topic, row.partition, Outcome.REFUSED, message, row.reason, hint=hint)
    trimmed = f"; its log will start at {start}" if consent.trim else ""
    return _Wish(place, f" and continues without {what}{trimmed}", (end, start))


def _record(
    destination: Destination, mirror: str, wishes: Sequence[_Wish], *, trims: bool
) -> dict[TopicPartition, int]:
    """Record what is wanted; return by which number each partition's wish is known."""
    numbers: dict[TopicPartition, int] = {}
    by_topic: defaultdict[str, list[_Wish]] = defaultdict(list)
    for wish in wishes:
        by_topic[wish.place.topic].append(wish)

    def decide(state: State) -> Changes:
        records = [
            _with_recoveries(record, by_topic[record.topic], trims=trims)
            for record in state.topics(mirror)
            if record.topic in by_topic
        ]
        for record in records:
            places = [TopicPartition(record.topic, partition) for partition in record.recoveries or {}]
            numbers.update((place, (record.recoveries or {})[place.partition].number) for place in places)
        lost = [
            {"topic": wish.place.topic, "partition": wish.place.partition, "from": wish.lost[0], "until": wish.lost[1]}
            for wish in wishes
            if wish.lost
        ]
        details = {"partitions": [str(wish.place) for wish in wishes][:100], "count": len(wishes), "accepted": lost}
        event = Event(now_ms(), mirror, "recover", actor(), ExitCode.OK.name, details)
        return Changes(tuple(records), (), (event,))

    change(destination, mirror, decide)
    return numbers


def _with_recoveries(record: TopicRecord, wishes: Sequence[_Wish], *, trims: bool) -> TopicRecord:
    known = dict(record.recoveries or {})
    for wish in wishes:
        before = known.get(wish.place.partition)
        lost_from, lost_until = wish.lost or (None, None)
        number = before.number + 1 if before else 1
        known[wish.place.partition] = Recovery(
            number, lost_from, lost_until, trims and wish.lost is not None, wish.rebuilds
        )
    return replace(record, recoveries=known)


def _wait(
    read: Callable[[], State],
    mirror: str,
    wishes: Sequence[_Wish],
    numbers: Mapping[TopicPartition, int],
    asked_ms: int,
    deadline: float,
    progress: Add,
) -> list[TopicResult]:
    """Wait until a lane that knows of the wish has said what became of each partition, or one after its rebuilding."""
    left = {wish.place: wish for wish in wishes}
    results: dict[TopicPartition, TopicResult] = {}
    said: dict[TopicPartition, str] = {}
    while True:
        state = read()
        reports = reports_of(state, mirror)
        for place, wish in list(left.items()):
            report = reports.get(place)
            if report is None or not (wish.rebuilds or (report.row.recovery or 0) >= numbers.get(place, 0)):
                continue
            topic = state.topic(mirror, place.topic)
            rebuilt_ms = (topic.rebuilt_at_ms or 0) if topic else 0
            if wish.rebuilds and (rebuilt_ms < asked_ms or report.time_ms < rebuilt_ms):
                said[place] = "its topic is still being rebuilt"
                continue
            row = report.row
            if row.state is PartitionState.FAILED:
                hint = next_step(row.reason, mirror, place.topic)
                results[place] = TopicResult(*place, Outcome.FAILED, row.message, row.reason, hint=hint)
            elif row.state is PartitionState.MIRRORING:
                results[place] = _done(wish, f"resumed copying{wish.told}")
            else:
                said[place] = row.message or "its logs are being compared"
                continue
            del left[place]
            progress(1)
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(_PAUSE_S)
    for place in left:
        message = said.get(place, "the engine has not restarted it yet")
        hint = "`kmirror describe` shows its progress"
        results[place] = TopicResult(*place, Outcome.TIMED_OUT, message, hint=hint)
    return [results[wish.place] for wish in wishes]


def _done(wish: _Wish, what: str) -> TopicResult:
    return TopicResult(*wish.place, Outcome.DONE, f"{wish.place} {what}")


def _result(mirror: str, rows: Sequence[TopicResult], dry_run: bool, warnings: Sequence[str] = ()) -> VerbResult:
    ordered = sorted(rows, key=lambda row: (row.topic or "", row.partition or 0))
    return VerbResult.of("recover", mirror, ordered, dry_run=dry_run, warnings=warnings)
