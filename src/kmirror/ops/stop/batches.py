"""`promote --batch`: promote a number of topics at a time, each batch all or nothing, with a pause and a check between.

Each batch is a promote of its own with --together. After the pause its partitions must be STOPPED and readable, and the
remaining topics healthy. A failed batch or check ends it: the remaining topics stay mirrored. The same command, run
again, makes new batches of what is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import EARLIEST, LATEST
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import PartitionReader
from kmirror.errors import ExitCode, KmirrorError, OutcomeUnknown, UsageError
from kmirror.ops.base.client_gaps import gap_sentences
from kmirror.ops.base.context import Destination, as_kmirror_error, now_ms, require_mirror
from kmirror.ops.base.evidence import Batch, evidence_of
from kmirror.ops.base.own_engine import OwnEngine
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.selection import select_topics
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.show.left_behind import LeftBehind
from kmirror.ops.show.wait import Condition, wait
from kmirror.ops.stop.clients import ClientComparison
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest, PromoteView, Watcher
from kmirror.ops.stop.report import VerbReport, sorted_rows
from kmirror.ops.stop.source_after_stop import rows_of_stopped
from kmirror.ops.stop.steps import Gate, StepRunner, no_gate
from kmirror.ops.stop.work import RUN_AGAIN, is_stopped
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import MirrorRecord, PartitionState
from kmirror.words import counted

#: Time for the remaining topics to be reported as healthy.
_HEALTH_MS = 30_000
_CONTINUE = "it stays mirrored; fix the cause, then run the same command again: it continues with what is left"


@dataclass(slots=True)
class _BatchResults:
    """The results of the batches so far."""

    rows: list[TopicResult] = field(default_factory=list)
    parts: list[VerbResult] = field(default_factory=list)
    runner: StepRunner = field(default_factory=StepRunner)
    batches: list[Batch] = field(default_factory=list)

    def add(self, done: VerbReport, topics: Sequence[str], began_ms: int) -> None:
        """Add the result of a batch."""
        result = done.result
        self.rows += result.results
        self.parts.append(result)
        self.batches.append(Batch(tuple(topics), began_ms, now_ms(), result.exit_code))


def promote_in_batches(
    destination: Destination,
    request: PromoteRequest,
    size: int,
    pause_ms: int = 0,
    watcher: Watcher = lambda _: None,
    stopping: threading.Event | None = None,
    *,
    dry_run: bool = False,
    health_ms: int = _HEALTH_MS,
    gate: Gate = no_gate,
) -> VerbReport:
    """Promote `size` topics at a time, each batch all or nothing; `request.timeout_ms` is for all batches.

    `gate` is called once, before the first change.

    Raises:
        UsageError: `size` is below 1, or the flags exclude each other.
        RefusedError, TimedOutError, UnreachableError: as `promote`, before the first batch.
    """
    if size < 1:
        raise UsageError(f"--batch {size} is not a number of topics", "give 1 or more")
    if request.together:
        raise UsageError("--together and --batch exclude each other", "give one of them: each batch is stopped whole")
    began, began_ms, event = time.monotonic(), now_ms(), stopping or threading.Event()
    state = destination.state()
    mirror = require_mirror(state, request.mirror)
    chosen = select_topics(state.topics(mirror.name), request.topics, f"of mirror {mirror.name}", request.exclude)
    left = [topic.topic for topic in chosen if not is_stopped(topic)]
    batches = [left[first : first + size] for first in range(0, len(left), size)]
    if dry_run or not batches:
        return _with_plan(
            promote(destination, request, watcher, stopping, dry_run=dry_run, gate=gate), batches, pause_ms
        )

    def say(line: str) -> None:
        watcher(PromoteView(time.monotonic() - began, lines=(line,)))

    def seconds_left() -> float | None:
        return None if request.timeout_ms is None else began + request.timeout_ms / 1000 - time.monotonic()

    is_passed = False

    def pass_once(record: MirrorRecord, _: Sequence[str]) -> None:
        nonlocal is_passed
        if not is_passed:
            is_passed = True
            gate(record, [topic.topic for topic in chosen])

    done_so_far, why = _BatchResults(), ""
    with OwnEngine(mirror.name, destination.properties, request.master) as own:
        for number, names in enumerate(batches, 1):
            rest = seconds_left()
            if event.is_set() or (rest is not None and rest <= 0):
                why = "interrupted" if event.is_set() else "the time ran out"
                break
            say(f"batch {number} of {len(batches)}: {', '.join(names)}")
            timeout_ms = None if rest is None else max(1, round(rest * 1000))
            selected = TopicSelector(tuple(names))
            part = replace(request, topics=selected, exclude=None, timeout_ms=timeout_ms, together=True)
            at = now_ms()
            try:
                done = promote(destination, part, watcher, event, own=own, runner=done_so_far.runner, gate=pass_once)
            except KmirrorError as error:
                if number == 1:
                    raise
                outcome = Outcome.TIMED_OUT if error.exit_code == ExitCode.TIMED_OUT else Outcome.FAILED
                message = f"it is unknown whether it was stopped: {error.message}"
                done_so_far.rows += [
                    TopicResult(name, None, outcome, f"{name}: {message}", error.reason, hint=error.hint or RUN_AGAIN)
                    for name in names
                ]
                why = f"batch {number} failed"
                break
            done_so_far.add(done, names, at)
            if done.result.exit_code:
                why = f"batch {number} was not stopped as a whole"
                break
            to_come = [name for one in batches[number:] for name in one]
            if to_come and pause_ms:
                say(f"batch {number} of {len(batches)} is stopped; the next follows after {pause_ms / 1000:g} s")
            if to_come:
                rest = seconds_left()
                event.wait(pause_ms / 1000 if rest is None else max(0.0, min(pause_ms / 1000, rest)))
            if trouble := _trouble(destination, mirror.name, names, [] if event.is_set() else to_come, health_ms):
                done_so_far.rows = _with_trouble(done_so_far.rows, trouble)
                why = f"the check after batch {number} failed"
                break
    reached = {row.topic for row in done_so_far.rows}
    done_so_far.rows += not_reached_rows([name for name in left if name not in reached], why, done_so_far.rows)
    stopped_before = [topic for topic in chosen if topic.topic not in left]
    earlier, warnings = rows_of_stopped(destination, mirror, state, stopped_before, dry_run=False)
    rows = sorted_rows([*done_so_far.rows, *earlier])
    whole = request.topics is None and request.exclude is None
    with closing(ClientComparison(destination, mirror)) as clients, LeftBehind(mirror, whole=whole) as behind:
        warnings += [warning for one in done_so_far.parts for warning in _own_warnings(one)]
        result = VerbResult.of(
            "promote",
            mirror.name,
            rows,
            groups=[row for one in done_so_far.parts for row in one.groups],
            warnings=dict.fromkeys([*warnings, *behind.warnings(destination.state)]),
            clients=clients.gaps(chosen),
            steps=done_so_far.runner.done,
            blocked=tuple(row for one in done_so_far.parts for row in one.blocked),
        )
    evidence = evidence_of(
        destination, mirror, result, began_ms, done_so_far.runner.seconds, together=False, batches=done_so_far.batches
    )
    return VerbReport(result, evidence)


def not_reached_rows(topics: Collection[str], why: str, rows: Collection[TopicResult]) -> list[TopicResult]:
    """Return the rows of topics whose batch was not begun: TIMED_OUT if all that went wrong was, else REFUSED."""
    bad = [row for row in rows if row.result not in (Outcome.DONE, Outcome.NOOP)]
    outcome = Outcome.TIMED_OUT if all(row.result is Outcome.TIMED_OUT for row in bad) else Outcome.REFUSED
    return [
        TopicResult(name, None, outcome, f"{name} was not stopped: {why} before its turn", hint=_CONTINUE)
        for name in topics
    ]


def _own_warnings(part: VerbResult) -> list[str]:
    """Return a batch's warnings without those on clients, which are reported once for all batches."""
    of_clients = set(gap_sentences(part.clients)) if part.clients is not None else set()
    return [warning for warning in part.warnings if warning not in of_clients]


def _with_plan(done: VerbReport, batches: Sequence[Sequence[str]], pause_ms: int) -> VerbReport:
    """Add the planned batches to a dry run."""
    pause = f", with {pause_ms / 1000:g} s in between" if pause_ms else ""
    lines = [f"the topics would be promoted in {counted(len(batches), 'batch', 'batches')}{pause}"]
    lines += [f"batch {number}: {', '.join(names)}" for number, names in enumerate(batches, 1)]
    return replace(done, result=replace(done.result, warnings=(*done.result.warnings, *lines)))


def _trouble(
    destination: Destination, mirror: str, stopped: Collection[str], to_come: Sequence[str], health_ms: int
) -> dict[str, TopicResult]:
    """Check a stopped batch and the remaining topics; return a row for each topic that fails the check."""
    try:
        found = _unreadable(destination, mirror, stopped)
        if to_come:
            health = wait(destination, mirror, Condition.HEALTHY, health_ms, topics=TopicSelector(tuple(to_come)))
            found |= {row.topic or "": row for row in health.results if row.result is not Outcome.DONE}
    except (KmirrorError, OutcomeUnknown) as error:
        failed = as_kmirror_error(error)
        why = f"it is unknown whether the stopped batches are readable and the rest is healthy: {failed.message}"
        name = next(iter(to_come), next(iter(stopped)))
        return {name: TopicResult(name, None, Outcome.TIMED_OUT, why, failed.reason, hint=failed.hint)}
    return found


def _unreadable(destination: Destination, mirror: str, topics: Collection[str]) -> dict[str, TopicResult]:
    """Return a row for each topic that is not STOPPED, or has a partition that cannot be read at its end."""
    state, client = destination.state(), destination.client
    records = [record for name in topics for record in state.partitions(mirror, name)]
    partitions = {TopicPartition(record.topic, record.partition): record for record in records}
    starts = client.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(partitions, LATEST))
    found: dict[str, TopicResult] = {}
    for partition, record in partitions.items():
        start, end, why = starts[partition].offset, ends[partition].offset, None
        if record.state is not PartitionState.STOPPED:
            why = f"it is {record.state}"
        elif start is None or end is None:
            why = "it has no leader"
        elif start < end:
            try:
                PartitionReader(client, partition).read_known(end - 1, max_bytes=1)
            except (KmirrorError, OutcomeUnknown) as error:
                why = f"it cannot be read: {error}"
        if why is not None:
            message = f"{partition} was promoted, but {why}"
            row = TopicResult(*partition, Outcome.FAILED, message, hint="check with `kmirror describe`")
            found.setdefault(partition.topic, row)
    return found


def _with_trouble(rows: Sequence[TopicResult], trouble: Mapping[str, TopicResult]) -> list[TopicResult]:
    """Return the rows, with those of a check replacing earlier rows of the same partitions."""
    replaced = {(row.topic, row.partition) for row in trouble.values()}
    return [*(row for row in rows if (row.topic, row.partition) not in replaced), *trouble.values()]
