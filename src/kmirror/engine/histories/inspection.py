"""Gather the facts that `judge` needs about some partitions, by asking both clusters. Blocking; decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, OffsetAnswer, ProducersAnswer
from kmirror.cluster.producer_expiration import producer_expiration_ms
from kmirror.cluster.protocol.batch import OversizedBatchError, UnsupportedFormatError
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.engine.clock import now_ms
from kmirror.engine.histories import identity_check as presence
from kmirror.engine.histories.filler_end import filler_end
from kmirror.engine.histories.foreign_writers import foreign_writers_in
from kmirror.engine.histories.fork import Fork
from kmirror.engine.histories.fork_search import Question, search_forks
from kmirror.engine.histories.judge import Facts, Tail, Trouble
from kmirror.engine.histories.tail_reader import Obstacle, TailReader
from kmirror.engine.histories.tails import DamagedLogError, Ends, Finding
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason
from kmirror.state.assignment import Assignment

_LOOK_UP_TIMEOUT = 10.0


class Inspector:
    """Look at partitions on both sides; keeps its connections."""

    def __init__(self, source: ClusterClient, destination: ClusterClient, source_cluster_id: str | None) -> None:
        self._source = source
        self._destination = destination
        self._source_cluster_id = source_cluster_id
        self._tails = TailReader(source, destination)
        self._expiration_ms: dict[int, int | None] = {}
        self.source_metadata: ClusterMetadata | None = None
        self.destination_metadata: ClusterMetadata | None = None
        #: What is wrong with the link to the source, and since when (epoch ms); None while nothing is.
        self._link_trouble: tuple[Reason, int] | None = None

    def inspect(self, assignments: Sequence[Assignment]) -> list[Facts]:
        """Return the facts of each partition, in order."""
        try:
            source = self._source.metadata({a.source_topic for a in assignments}, timeout=_LOOK_UP_TIMEOUT)
            presence.require_cluster(self._source_cluster_id, source.cluster_id)
        except (KmirrorError, OutcomeUnknown) as error:
            return [Facts(trouble=self._source_trouble(error))] * len(assignments)
        try:
            destination = self._destination.metadata({a.topic for a in assignments}, timeout=_LOOK_UP_TIMEOUT)
        except (KmirrorError, OutcomeUnknown) as error:
            return [Facts(trouble=_link_trouble(error, Reason.DESTINATION_UNREACHABLE))] * len(assignments)
        self.source_metadata, self.destination_metadata = source, destination
        troubles = {
            **presence.troubles(presence.AT_DESTINATION, self._destination, destination, assignments),
            **presence.troubles(presence.AT_SOURCE, self._source, source, assignments),
        }
        good = [a for a in assignments if a not in troubles]
        try:
            here = self._look_at_destination(good)
        except (KmirrorError, OutcomeUnknown) as error:
            trouble = _link_trouble(error, Reason.DESTINATION_UNREACHABLE)
            return [Facts(trouble=troubles.get(a) or trouble) for a in assignments]
        try:
            views = self._look_at_source(good, here)
        except (KmirrorError, OutcomeUnknown) as error:
            trouble = self._source_trouble(error)
            return [Facts(trouble=troubles.get(a) or trouble) for a in assignments]
        self._link_trouble = None
        seen = {a: self._facts(a, views, source, destination) for a in good}
        ends = {a: _ends(facts) for a, facts in seen.items() if facts.trouble is None}
        for a, found in self._tails.compare(ends, source, destination).items():
            seen[a] = _with_tail(a, seen[a], found)
        seen |= {a: self._with_filler(a, facts) for a, facts in seen.items() if _may_begin_with_filler(a, facts)}
        seen |= self._with_forks({a: facts for a, facts in seen.items() if _may_differ(facts)})
        return [seen[a] if a in seen else Facts(trouble=troubles[a]) for a in assignments]

    def _source_trouble(self, error: KmirrorError | OutcomeUnknown) -> Trouble:
        """Say what is wrong with the link to the source as a whole, and since when."""
        trouble = _link_trouble(error, Reason.SOURCE_UNREACHABLE)
        if self._link_trouble is None or self._link_trouble[0] is not trouble.reason:
            self._link_trouble = trouble.reason, now_ms()
        state = "LINK_FAILED" if trouble.reason in presence.LINK_REFUSED else "SOURCE_UNAVAILABLE"
        since = datetime.fromtimestamp(self._link_trouble[1] // 1000, UTC)
        return replace(trouble, message=f"the source: {trouble.message}; {state} since {since:%Y-%m-%dT%H:%M:%SZ}")

    def _with_filler(self, assignment: Assignment, facts: Facts) -> Facts:
        """Return facts with where the filler ends that the destination begins with, if it does."""
        start, end = facts.destination_log_start, facts.destination_log_end
        try:
            found = filler_end(self._destination, assignment.destination, start, end, assignment.producer_id)
        except (KmirrorError, OutcomeUnknown) as error:
            return Facts(trouble=_tail_trouble(assignment, Obstacle("destination", error)))
        # filler up to the end is still being written; after it is what came of the source, markers perhaps
        is_done = found is not None and found < end
        return replace(facts, only_filler=False, filler_end=found) if is_done else facts

    def _with_forks(self, differing: Mapping[Assignment, Facts]) -> dict[Assignment, Facts]:
        """Return facts with where exactly the two logs fork, and who wrote what follows."""
        questions = {
            Question(
                a.source, a.destination, _ends(facts), None if facts.differs_at is None else facts.differs_at + 1
            ): a
            for a, facts in differing.items()
        }
        found: dict[Assignment, Facts] = {}
        for answer in search_forks(self._source, self._destination, list(questions)).found if questions else ():
            assignment = questions[answer.question]
            facts = differing[assignment]
            if answer.fork is None:
                side = answer.troubled_side or "source"
                obstacle = Obstacle(side, answer.trouble or KmirrorError("where the logs part was not found"))
                found[assignment] = Facts(trouble=_tail_trouble(assignment, obstacle))
                continue
            fork = _with_strange_records(answer.fork, facts.differs_at)
            try:
                foreign_writers = foreign_writers_in(
                    self._destination,
                    assignment.destination,
                    fork.offset,
                    facts.destination_log_end,
                    assignment.producer_id,
                )
            except (KmirrorError, OutcomeUnknown) as error:
                found[assignment] = Facts(trouble=_tail_trouble(assignment, Obstacle("destination", error)))
            else:
                found[assignment] = replace(facts, fork=fork, foreign_writers=foreign_writers)
        return found

    def _look_at_destination(self, assignments: Collection[Assignment]) -> _Destination:
        ask = _LookUps(self._destination, [a.destination for a in assignments])
        # The log end on both sides of the look at the producers: equal, or the two answers do not belong together.
        log_end = ask(LATEST, log_end=True)
        producers = self._destination.describe_producers(ask.left, timeout=_LOOK_UP_TIMEOUT)
        return _Destination(log_end, producers, ask(LATEST, log_end=True), ask(LATEST), ask(EARLIEST))

    def _look_at_source(self, assignments: Collection[Assignment], here: _Destination) -> _Views:
        ask = _LookUps(self._source, [a.source for a in assignments])
        return _Views(here, ask(EARLIEST), ask(LATEST, read_committed=True), ask(LATEST), ask(LATEST, log_end=True))

    def _facts(
        self,
        assignment: Assignment,
        views: _Views,
        source: ClusterMetadata,
        destination: ClusterMetadata,
    ) -> Facts:
        """Return all that the look-ups say; how the ends compare is not in it yet."""
        numbers: list[int] = []
        here = views.destination
        for partition, answers, reason in (
            (assignment.source, views.source_start, Reason.SOURCE_UNREACHABLE),
            (assignment.source, views.last_stable, Reason.SOURCE_UNREACHABLE),
            (assignment.source, views.high_watermark, Reason.SOURCE_UNREACHABLE),
            (assignment.source, views.source_end, Reason.SOURCE_UNREACHABLE),
            (assignment.destination, here.start, Reason.DESTINATION_UNREACHABLE),
            (assignment.destination, here.end, Reason.DESTINATION_UNREACHABLE),
            (assignment.destination, here.end_after, Reason.DESTINATION_UNREACHABLE),
            (assignment.destination, here.replicated, Reason.DESTINATION_UNREACHABLE),
        ):
            answer = answers[partition]
            if answer.offset is None:
                return Facts(trouble=_partition_trouble(partition, answer.error_code, reason, "DESCRIBE"))
            numbers.append(answer.offset)
        if numbers[5] != numbers[6]:
            what = f"{assignment.destination} is being appended to: its log end is still moving"
            return Facts(trouble=Trouble(Reason.DESTINATION_UNREACHABLE, what))
        if numbers[7] < numbers[5]:
            # markers that are lost with a leader leave no gap in our sequence numbers that its successor would notice
            what = f"{assignment.destination} is not replicated up to its end yet"
            return Facts(trouble=Trouble(Reason.DESTINATION_UNREACHABLE, what))
        remembered = here.producers[assignment.destination]
        if remembered.error_code:
            return Facts(
                trouble=_partition_trouble(
                    assignment.destination, remembered.error_code, Reason.DESTINATION_UNREACHABLE, "READ"
                )
            )
        source_leader = source.leader(assignment.source)
        destination_leader = destination.leader(assignment.destination)
        if not source_leader or not destination_leader:
            return Facts(trouble=Trouble(Reason.DESTINATION_UNREACHABLE, "a leader is being elected"))
        log_start, last_stable, high_watermark, source_end, destination_start, destination_end, _, _ = numbers
        leader_id = destination_leader.leader_id or 0
        return Facts(
            source_topic_id=source.topics[assignment.source_topic].topic_id,
            destination_topic_id=destination.topics[assignment.topic].topic_id,
            source_leader=(source_leader.leader_id or 0, source_leader.leader_epoch),
            destination_leader=(leader_id, destination_leader.leader_epoch),
            source_log_start=log_start,
            source_log_end=source_end,
            last_stable_offset=last_stable,
            high_watermark=high_watermark,
            destination_log_start=destination_start,
            destination_log_end=destination_end,
            producer=next((p for p in remembered.producers if p.producer_id == assignment.producer_id), None),
            producer_id_expiration_ms=self._expiration(leader_id),
        )

    def _expiration(self, node_id: int) -> int | None:
        if node_id not in self._expiration_ms:
            self._expiration_ms[node_id] = producer_expiration_ms(self._destination, [node_id]).get(node_id)
        return self._expiration_ms[node_id]


class _LookUps:
    """Look up offsets of the same partitions again and again; a broker that gave no answer once is not asked again.

    Each such look-up takes its whole time, and the other partitions wait for it.
    """

    def __init__(self, client: ClusterClient, partitions: Collection[TopicPartition]) -> None:
        self._client = client
        self._failed: dict[TopicPartition, OffsetAnswer] = {}
        self.left = list(partitions)

    def __call__(self, timestamp: int, *, read_committed: bool = False, log_end: bool = False) -> Answers:
        found = self._client.list_offsets(
            dict.fromkeys(self.left, timestamp),
            read_committed=read_committed,
            log_end=log_end,
            timeout=_LOOK_UP_TIMEOUT,
        )
        self._failed |= {p: answer for p, answer in found.items() if answer.offset is None}
        self.left = [p for p in self.left if p not in self._failed]
        return found | self._failed


Answers = Mapping[TopicPartition, OffsetAnswer]


@dataclass(frozen=True, slots=True)
class _Destination:
    """Hold what one round of look-ups at the destination brought."""

    end: Answers
    producers: Mapping[TopicPartition, ProducersAnswer]
    end_after: Answers
    replicated: Answers
    start: Answers


@dataclass(frozen=True, slots=True)
class _Views:
    """Hold what one round of look-ups brought."""

    destination: _Destination
    source_start: Answers
    last_stable: Answers
    high_watermark: Answers
    source_end: Answers


def _ends(facts: Facts) -> Ends:
    return Ends(
        facts.source_log_start, facts.last_stable_offset, facts.destination_log_start, facts.destination_log_end
    )


def _may_begin_with_filler(assignment: Assignment, facts: Facts) -> bool:
    """Tell whether the destination begins at 0, and was to begin further on."""
    if facts.trouble or facts.destination_log_start:
        return False
    return facts.destination_log_end > 0 and max(facts.source_log_start, assignment.first_offset) > 0


def _with_strange_records(fork: Fork, differs_at: int | None) -> Fork:
    """Let the logs fork where the tails differ, if that is lower.

    A record of another writer where the source shows none, since its cleaner was there, contradicts nothing that a
    search sees: it knows no writers.
    """
    if differs_at is None or fork.offset <= differs_at:
        return fork
    agreed_at = fork.agreed_at if fork.agreed_at is not None and fork.agreed_at < differs_at else None
    return replace(fork, offset=differs_at, contradicts=True, agreed_at=agreed_at)


def _may_differ(facts: Facts) -> bool:
    """Tell whether the logs are known to fork, or the mirror holds what its source has not."""
    if facts.trouble:
        return False
    longer = facts.source_log_end < facts.destination_log_end and not facts.only_filler
    return facts.tail is Tail.DIFFERENT or facts.unproven or longer


def _with_tail(assignment: Assignment, facts: Facts, found: Finding | Obstacle) -> Facts:
    if isinstance(found, Obstacle):
        return Facts(trouble=_tail_trouble(assignment, found))
    return replace(
        facts,
        tail=found.tail,
        tail_epoch=found.epoch,
        tail_producer_id=found.producer_id,
        differs_at=found.differs_at,
        only_filler=found.only_filler,
        unproven=found.unproven,
    )


def _tail_trouble(assignment: Assignment, obstacle: Obstacle) -> Trouble:
    side, error = obstacle
    partition = assignment.source if side == "source" else assignment.destination
    reason = Reason.SOURCE_UNREACHABLE if side == "source" else Reason.DESTINATION_UNREACHABLE
    if isinstance(error, BrokerError):
        return _partition_trouble(partition, error.code, reason, "READ")
    if isinstance(error, DamagedLogError | OversizedBatchError | UnsupportedFormatError) and error.reason:
        return Trouble(error.reason, f"comparing {assignment.destination} with {assignment.source}: {error}", True)
    return _link_trouble(error, reason)


def _link_trouble(error: KmirrorError | OutcomeUnknown, default: Reason) -> Trouble:
    if isinstance(error, KmirrorError) and error.reason:
        return Trouble(error.reason, str(error))
    if isinstance(error, BrokerError) and error.code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Trouble(Reason.NOT_AUTHORIZED, str(error), True)
    return Trouble(default, str(error))


def _partition_trouble(partition: TopicPartition, code: int, reason: Reason, right: str) -> Trouble:
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Trouble(Reason.NOT_AUTHORIZED, f"no right to {right} topic {partition.topic}", True)
    if code:
        return Trouble(reason, f"looking up {partition}: {code_name(code)} ({code})")
    return Trouble(reason, f"looking up {partition}: no offset is known yet")
