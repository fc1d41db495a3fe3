"""Search the forks of many partitions: shared out, searched side by side in threads or in Spark (`fork`).

This module runs in workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NamedTuple

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import LEADER_MOVED
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.bulk.runner import Runner, Task
from kmirror.engine.histories.fork import Fork, find_fork
from kmirror.engine.histories.section_reader import Obstacle, Reading, ReadLimits, SectionReader
from kmirror.engine.histories.stretches import Ends, Side
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, UnreachableError
from kmirror.work import Add, Meter, unwatched

#: Enough for some batches of a usual size; a larger batch is asked for again, and its log's next ones at once.
_READ_LIMITS = ReadLimits(
    at_once=128,
    first_bytes=32 << 10,
    stretch_bytes=32 << 10,
    most_bytes=1 << 20,
    reads_until_more=16,
    is_source_alike=False,
    is_destination_committed=True,
)
#: A task should run for about a second at least.
_MOST_PER_SHARE = 256
_LEAST_PER_SHARE = 32
#: What searching one fork reads at most, about.
SEARCH_BYTES = 512 << 10
#: How often a partition whose leader moves is searched.
_TRIES = 5


class Question(NamedTuple):
    """Two logs whose fork is wanted. Both `ends` are last stable offsets; `hint` as in `find_fork`."""

    source: TopicPartition
    destination: TopicPartition
    ends: Ends
    hint: int | None = None


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """What one task searches, and how it reaches both clusters; the properties hold references, no secrets."""

    source_properties: Mapping[str, str]
    destination_properties: Mapping[str, str]
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one question: a fork, or on which side what was in the way. So many times both logs were read.

    A trouble that `may_pass` is one of a partition whose leader moves; it did not pass within some seconds.
    """

    question: Question
    fork: Fork | None
    trouble: KmirrorError | None = None
    troubled_side: Side | None = None
    reads: int = 0
    may_pass: bool = False


@dataclass(frozen=True, slots=True)
class Searched:
    """What came of one share, and how many Fetch requests it took."""

    found: tuple[Found, ...]
    requests: int


def fork_shares(
    questions: Sequence[Question],
    slots: int,
    source_properties: Mapping[str, str],
    destination_properties: Mapping[str, str],
) -> list[WorkUnit]:
    """Share the questions out evenly among so many tasks at once. No log may be in two questions."""
    size = min(_MOST_PER_SHARE, max(_LEAST_PER_SHARE, -(-len(questions) // max(1, slots))))
    return [
        WorkUnit(source_properties, destination_properties, tuple(questions[first : first + size]))
        for first in range(0, len(questions), size)
    ]


def find_forks(
    runner: Runner,
    name: str,
    questions: Sequence[Question],
    source_properties: Mapping[str, str],
    destination_properties: Mapping[str, str],
    meter: Meter,
) -> Iterator[Found]:
    """Search forks side by side, and yield them as they are found; `meter` counts the questions."""
    shares = fork_shares(questions, runner.slots, source_properties, destination_properties)
    tasks = [Task(share, len(share.questions)) for share in shares]
    with closing(runner.run(name, search_share, tasks, meter)) as answers:
        for searched in answers:
            yield from searched.found


def search_share(share: WorkUnit, progress: Add = unwatched) -> Searched:
    """Search the forks of a share: the body of one task. What goes wrong is an answer too.

    `progress` is given how many more questions are answered.
    """
    with ExitStack() as stack:
        try:
            source = stack.enter_context(ClusterClient(client_config(share.source_properties)))
            destination = stack.enter_context(ClusterClient(client_config(share.destination_properties)))
        except KmirrorError as error:
            return Searched(tuple(Found(question, None, error) for question in share.questions), 0)
        return search_forks(source, destination, share.questions, progress)


def search_forks(
    source: ClusterClient, destination: ClusterClient, questions: Sequence[Question], progress: Add = unwatched
) -> Searched:
    """Search forks side by side, in the order of the questions; partitions whose leader moves are tried again."""
    reader = SectionReader(source, destination, _READ_LIMITS)
    found: dict[Question, Found] = {}
    left: Sequence[Question] = questions
    unsaid = len(questions)

    def answered(count: int) -> None:
        nonlocal unsaid
        # one that is tried again is answered twice
        count = min(count, unsaid)
        unsaid -= count
        progress(count)

    for attempt in range(_TRIES):
        if attempt:
            source.pause(attempt)
        found |= {answer.question: answer for answer in _search(reader, source, destination, left, answered)}
        left = [question for question in left if found[question].may_pass]
        if not left:
            break
    return Searched(tuple(found[question] for question in questions), reader.requests)


def _search(
    reader: SectionReader,
    source: ClusterClient,
    destination: ClusterClient,
    questions: Sequence[Question],
    progress: Add,
) -> Iterator[Found]:
    sides: tuple[tuple[Side, ClusterClient, set[str]], ...] = (
        ("source", source, {question.source.topic for question in questions}),
        ("destination", destination, {question.destination.topic for question in questions}),
    )
    metadata: list[ClusterMetadata] = []
    for side, client, topics in sides:
        try:
            metadata.append(client.metadata(topics))
        except (KmirrorError, OutcomeUnknown) as error:
            yield from (Found(question, None, _plain(error), side) for question in questions)
            return
    readings = [Reading(q.source, q.destination, q.ends, find_fork(q.ends, q.hint)) for q in questions]
    there, here = metadata
    reader.serve(readings, there, here, progress)
    for question, reading in zip(questions, readings, strict=True):
        if isinstance(reading.result, Obstacle):
            side, trouble = reading.result.side, _plain(reading.result.error)
            may_pass = isinstance(trouble, UnreachableError) or (
                isinstance(trouble, BrokerError) and trouble.code in LEADER_MOVED
            )
            yield Found(question, None, trouble, side, reading.reads, may_pass)
        else:
            yield Found(question, reading.result, reads=reading.reads)


def _plain(error: KmirrorError | OutcomeUnknown) -> KmirrorError:
    return error if isinstance(error, KmirrorError) else UnreachableError(str(error))
