"""Search the forks of many partitions in parallel, in threads or in Spark (`fork` has the algorithm).

This module runs in workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NamedTuple

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import LEADER_MOVED
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.engine.bulk.runner import Runner, Task
from kmirror.engine.histories.fork import Fork, find_fork
from kmirror.engine.histories.section_reader import Reading, ReadLimits, SectionReader, Unreadable
from kmirror.engine.histories.stretches import LogEnds, Side
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, TimedOutError, UnreachableError
from kmirror.work import Add, Meter, unwatched

#: Enough for some batches of usual size; a larger batch is requested again, and the next ones of its log at once.
_READ_LIMITS = ReadLimits(
    at_once=128,
    first_bytes=32 << 10,
    stretch_bytes=32 << 10,
    most_bytes=1 << 20,
    reads_until_more=16,
    is_source_alike=False,
    is_destination_committed=True,
)
#: A task should run for at least about a second.
_MOST_PER_TASK = 256
_LEAST_PER_TASK = 32
#: About how many bytes one search reads at most.
SEARCH_BYTES = 512 << 10
#: How many times to try a partition whose leader moves.
_TRIES = 5


class ForkQuestion(NamedTuple):
    """Two logs to find the fork of. Both `ends` are last stable offsets; `hint` as in `find_fork`."""

    source: TopicPartition
    destination: TopicPartition
    ends: LogEnds
    hint: int | None = None


@dataclass(frozen=True, slots=True)
class ForkWorkUnit:
    """What one task searches, and how it connects to both clusters."""

    source: ClusterAccess
    destination: ClusterAccess
    questions: tuple[ForkQuestion, ...]


@dataclass(frozen=True, slots=True)
class ForkAnswer:
    """The answer to one question: a fork, or a trouble and its side. `reads` counts the reads of both logs.

    A trouble that `may_pass` is one of a partition whose leader moves; it lasted for some seconds.
    """

    question: ForkQuestion
    fork: Fork | None
    trouble: KmirrorError | None = None
    troubled_side: Side | None = None
    reads: int = 0
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class ForkSearchResult:
    """The answers of one work unit, and how many Fetch requests it took."""

    found: tuple[ForkAnswer, ...]
    requests: int


def fork_work_units(
    questions: Sequence[ForkQuestion],
    slots: int,
    source: ClusterAccess,
    destination: ClusterAccess,
) -> list[ForkWorkUnit]:
    """Divide the questions evenly among tasks for `slots`. No log may be in two questions."""
    size = min(_MOST_PER_TASK, max(_LEAST_PER_TASK, -(-len(questions) // max(1, slots))))
    return [
        ForkWorkUnit(source, destination, tuple(questions[first : first + size]))
        for first in range(0, len(questions), size)
    ]


def find_forks(
    runner: Runner,
    name: str,
    questions: Sequence[ForkQuestion],
    source: ClusterAccess,
    destination: ClusterAccess,
    meter: Meter,
) -> Iterator[ForkAnswer]:
    """Search forks in parallel, and yield them as they are found; `meter` counts the questions."""
    units = fork_work_units(questions, runner.slots, source, destination)
    tasks = [Task(unit, len(unit.questions)) for unit in units]
    with closing(runner.run(name, search_work_unit, tasks, meter)) as results:
        for result in results:
            yield from result.found


def search_work_unit(unit: ForkWorkUnit, progress: Add = unwatched) -> ForkSearchResult:
    """Search the forks of a work unit: the body of one task. Errors are answers too.

    `progress` is called with the number of questions answered since the last call.
    """
    with ExitStack() as stack:
        try:
            source = stack.enter_context(ClusterClient(unit.source.config()))
            destination = stack.enter_context(ClusterClient(unit.destination.config()))
        except KmirrorError as error:
            return ForkSearchResult(tuple(ForkAnswer(question, None, error) for question in unit.questions), 0)
        return search_forks(source, destination, unit.questions, progress)


def search_forks(
    source: ClusterClient, destination: ClusterClient, questions: Sequence[ForkQuestion], progress: Add = unwatched
) -> ForkSearchResult:
    """Search forks together, in the order of the questions; partitions whose leader moves are tried again."""
    reader = SectionReader(source, destination, _READ_LIMITS)
    found: dict[ForkQuestion, ForkAnswer] = {}
    remaining: Sequence[ForkQuestion] = questions
    unreported = len(questions)

    def answered(count: int) -> None:
        nonlocal unreported
        # a question that is tried again is answered twice
        count = min(count, unreported)
        unreported -= count
        progress(count)

    for attempt in range(_TRIES):
        if attempt:
            source.pause(attempt)
        found |= {answer.question: answer for answer in _search(reader, source, destination, remaining, answered)}
        remaining = [question for question in remaining if found[question].may_pass]
        if not remaining:
            break
    return ForkSearchResult(tuple(found[question] for question in questions), reader.requests)


def _search(
    reader: SectionReader,
    source: ClusterClient,
    destination: ClusterClient,
    questions: Sequence[ForkQuestion],
    progress: Add,
) -> Iterator[ForkAnswer]:
    sides: tuple[tuple[Side, ClusterClient, set[str]], ...] = (
        ("source", source, {question.source.topic for question in questions}),
        ("destination", destination, {question.destination.topic for question in questions}),
    )
    metadata: list[ClusterMetadata] = []
    for side, client, topics in sides:
        try:
            metadata.append(client.metadata(topics))
        except (KmirrorError, OutcomeUnknown) as error:
            yield from (ForkAnswer(question, None, _as_kmirror_error(error), side) for question in questions)
            return
    readings = [Reading(q.source, q.destination, q.ends, find_fork(q.ends, q.hint)) for q in questions]
    source_metadata, destination_metadata = metadata
    reader.serve(readings, source_metadata, destination_metadata, progress)
    for question, reading in zip(questions, readings, strict=True):
        if isinstance(reading.result, Unreadable):
            side, trouble = reading.result.side, _as_kmirror_error(reading.result.error)
            may_pass = isinstance(trouble, UnreachableError | TimedOutError) or (
                isinstance(trouble, BrokerError) and trouble.code in LEADER_MOVED
            )
            yield ForkAnswer(question, None, trouble, side, reading.reads, may_pass)
        else:
            yield ForkAnswer(question, reading.result, reads=reading.reads)


def _as_kmirror_error(error: KmirrorError | OutcomeUnknown) -> KmirrorError:
    return error if isinstance(error, KmirrorError) else UnreachableError(str(error))
