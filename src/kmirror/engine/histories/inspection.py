"""Gather the facts that `judge` needs about partitions, from both clusters. Blocking; decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup, OffsetAnswer
from kmirror.cluster.producers import ProducersAnswer, append_limits, describe_producers
from kmirror.cluster.protocol.batch import OversizedBatchError, UnsupportedFormatError
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.protocol.produce import AppendLimits
from kmirror.cluster.reader import PartitionReader, SilentLogError
from kmirror.engine.clock import now_ms
from kmirror.engine.compare.visible_log import compacted_topics
from kmirror.engine.histories import identity_check
from kmirror.engine.histories.filler_end import find_filler_end
from kmirror.engine.histories.fork import Fork
from kmirror.engine.histories.fork_search import ForkQuestion, search_forks
from kmirror.engine.histories.judge import Facts, ForeignWriters, SourceMark, TailMatch, Trouble, is_unproven
from kmirror.engine.histories.section_reader import Reading, ReadLimits, SectionReader, Unreadable
from kmirror.engine.histories.source_leaders import SourceLeaders, successor
from kmirror.engine.histories.stretches import DamagedLogError, LogEnds
from kmirror.engine.histories.tails import TailFinding, compare_tails
from kmirror.errors import LINK_REFUSED, BrokerError, KmirrorError, OutcomeUnknown, Reason
from kmirror.state.assignment import Assignment

_LOOKUP_TIMEOUT = 10.0
#: How long a silent log holds up the other partitions of an inspection.
_PATIENCE_S = 1.0
#: The most bytes read to count foreign records; the count is a lower bound if there are more.
_MOST_COUNTED_BYTES = 64 << 20
#: First the destination's last batch, after which nothing comes; then stretches further back. Usually one request per
#: side and leader is enough for dozens of partitions.
_TAIL_READ_LIMITS = ReadLimits(
    at_once=32,
    first_bytes=1 << 20,
    stretch_bytes=256 << 10,
    most_bytes=1 << 20,
    reads_until_more=1,
    is_source_alike=True,
    is_destination_committed=False,
)
#: One batch, usually the first of the log, shows whether it is filler; then all of that is read.
_FILLER_READ_LIMITS = replace(
    _TAIL_READ_LIMITS, at_once=128, first_bytes=16 << 10, stretch_bytes=1 << 20, most_bytes=1 << 20
)


#: Of each lookup of a cluster, the answers by partition.
_Answers = Sequence[Mapping[TopicPartition, OffsetAnswer]]
_NO_MARKS: Mapping[Assignment, SourceMark] = {}


class Inspector:
    """Inspect partitions on both sides; keeps its connections."""

    def __init__(self, source: ClusterClient, destination: ClusterClient) -> None:
        self._source = source
        self._destination = destination
        self.leaders = SourceLeaders(source)
        self._tail_reader = SectionReader(source, destination, _TAIL_READ_LIMITS)
        self._filler_reader = SectionReader(source, destination, _FILLER_READ_LIMITS)
        self._limits: dict[int, AppendLimits] = {}
        self.source_metadata: ClusterMetadata | None = None
        self.destination_metadata: ClusterMetadata | None = None
        #: The trouble with the link to the source, and since when (epoch ms); None without trouble.
        self._link_trouble: tuple[Reason, int] | None = None

    def inspect(
        self, assignments: Sequence[Assignment], marks: Mapping[Assignment, SourceMark] = _NO_MARKS
    ) -> list[Facts]:
        """Return the facts of each partition, in order; `marks` say what some of them were copied from."""
        try:
            source = self.leaders.metadata({a.source_topic for a in assignments}, _LOOKUP_TIMEOUT)
        except (KmirrorError, OutcomeUnknown) as error:
            return [Facts(trouble=self._source_trouble(error))] * len(assignments)
        try:
            destination = self._destination.metadata({a.topic for a in assignments}, timeout=_LOOKUP_TIMEOUT)
        except (KmirrorError, OutcomeUnknown) as error:
            return [Facts(trouble=_link_trouble(error, Reason.DESTINATION_UNREACHABLE))] * len(assignments)
        self.source_metadata, self.destination_metadata = source, destination
        troubles = {
            **identity_check.troubles(identity_check.AT_DESTINATION, self._destination, destination, assignments),
            **identity_check.troubles(identity_check.AT_SOURCE, self._source, source, assignments),
        }
        good = [a for a in assignments if a not in troubles]
        try:
            here, producers = self._read_destination(good)
        except (KmirrorError, OutcomeUnknown) as error:
            trouble = _link_trouble(error, Reason.DESTINATION_UNREACHABLE)
            return [Facts(trouble=troubles.get(a) or trouble) for a in assignments]
        try:
            there = self._read_source(good, source)
        except (KmirrorError, OutcomeUnknown) as error:
            trouble = self._source_trouble(error)
            return [Facts(trouble=troubles.get(a) or trouble) for a in assignments]
        self._link_trouble = None
        seen = {a: self._facts(a, there, here, producers, source, destination) for a in good}
        ends = {a: _ends(facts) for a, facts in seen.items() if facts.trouble is None}
        for a, found in self.compare_tails(ends, source, destination).items():
            seen[a] = _with_tail(a, seen[a], found)
        marked = {a: marks[a] for a, facts in seen.items() if a in marks and _may_be_holes(a, facts, marks[a])}
        seen |= self._with_holes(marked, seen, source, destination)
        behind = [
            a for a, facts in seen.items() if not facts.trouble and facts.destination_log_end < facts.high_watermark
        ]
        before = self._tail_reader.epochs_before([a.source for a in behind], source)
        seen |= {a: replace(seen[a], epoch_before=before.get(a.source)) for a in behind}
        suspects = {a: facts for a, facts in seen.items() if _may_begin_with_filler(a, facts)}
        seen |= self._with_filler(suspects, source, destination)
        differing = {a: facts for a, facts in seen.items() if _may_differ(a, facts)}
        doubts = self.leaders.doubts({a.source for a in differing}, source, _LOOKUP_TIMEOUT)
        for assignment in [a for a in differing if a.source in doubts]:
            del differing[assignment]
            seen[assignment] = Facts(trouble=Trouble(Reason.SOURCE_UNREACHABLE, doubts[assignment.source]))
        seen |= self._with_forks(differing)
        return [seen[a] if a in seen else Facts(trouble=troubles[a]) for a in assignments]

    def compare_tails(
        self,
        ends: Mapping[Assignment, LogEnds],
        source: ClusterMetadata,
        destination: ClusterMetadata,
        marks: Mapping[Assignment, SourceMark] = _NO_MARKS,
    ) -> dict[Assignment, TailFinding | Unreadable]:
        """Return how the tails of each partition compare, or the obstacle; with a mark, our markers count as holes.

        The metadata names the leaders; a leader that has changed since then is an obstacle too.
        """
        holes_from = {a: mark.compared_from for a, mark in marks.items()}
        readings = {
            a: Reading(a.source, a.destination, both, compare_tails(both, a.producer_id, holes_from.get(a)))
            for a, both in ends.items()
        }
        self._tail_reader.serve(list(readings.values()), source, destination)
        return {a: reading.result for a, reading in readings.items() if reading.result is not None}

    def _with_holes(
        self,
        marks: Mapping[Assignment, SourceMark],
        seen: Mapping[Assignment, Facts],
        source: ClusterMetadata,
        destination: ClusterMetadata,
    ) -> dict[Assignment, Facts]:
        """Return the facts of those partitions that differ only where the leader that was copied from had holes.

        Each replica's cleaner works by itself: a new leader of a compacted topic may still have the records.
        """
        found: dict[Assignment, Facts] = {}
        unchanged: dict[Assignment, SourceMark] = {}
        for a, mark in marks.items():
            try:
                if compacted_topics(self._source, [a.source_topic]) and self._tail_reader.is_still(
                    mark, a.source, source
                ):
                    unchanged[a] = mark
            except (KmirrorError, OutcomeUnknown) as error:
                # who may not read the settings gets no excuse
                if not (isinstance(error, BrokerError) and error.code == Code.TOPIC_AUTHORIZATION_FAILED):
                    found[a] = Facts(trouble=_tail_trouble(a, Unreadable("source", error)))
        ends = {a: _ends(seen[a]) for a in unchanged}
        for a, again in self.compare_tails(ends, source, destination, unchanged).items():
            if isinstance(again, Unreadable) or again.tail is not TailMatch.DIFFERENT:
                found[a] = _with_tail(a, replace(seen[a], is_still=True), again)
        return found

    def _source_trouble(self, error: KmirrorError | OutcomeUnknown) -> Trouble:
        """Return the trouble with the link to the source as a whole, with the time since when."""
        trouble = _link_trouble(error, Reason.SOURCE_UNREACHABLE)
        if self._link_trouble is None or self._link_trouble[0] is not trouble.reason:
            self._link_trouble = trouble.reason, now_ms()
        state = "LINK_FAILED" if trouble.reason in LINK_REFUSED else "SOURCE_UNAVAILABLE"
        since = datetime.fromtimestamp(self._link_trouble[1] // 1000, UTC)
        return replace(trouble, message=f"the source: {trouble.message}; {state} since {since:%Y-%m-%dT%H:%M:%SZ}")

    def _with_filler(
        self, suspects: Mapping[Assignment, Facts], source: ClusterMetadata, destination: ClusterMetadata
    ) -> dict[Assignment, Facts]:
        """Return facts with the end of the filler that the destination begins with, if it does."""
        readings = {
            a: Reading(
                a.source,
                a.destination,
                ends := _ends(facts),
                find_filler_end(ends.destination_start, ends.destination_end, a.producer_id),
            )
            for a, facts in suspects.items()
        }
        self._filler_reader.serve(list(readings.values()), source, destination)
        found: dict[Assignment, Facts] = {}
        for a, reading in readings.items():
            facts, end = suspects[a], reading.result
            if isinstance(end, Unreadable):
                found[a] = Facts(trouble=_tail_trouble(a, end))
            elif end is not None and facts.destination_log_start < end < facts.destination_log_end:
                found[a] = replace(facts, filler_end=end)
        return found

    def _with_forks(self, differing: Mapping[Assignment, Facts]) -> dict[Assignment, Facts]:
        """Return facts with the exact fork of the two logs, and who wrote what follows."""
        questions = {
            ForkQuestion(
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
                obstacle = Unreadable(side, answer.trouble or KmirrorError("the fork of the logs was not found"))
                found[assignment] = Facts(trouble=_tail_trouble(assignment, obstacle))
                continue
            fork = _with_foreign_records(answer.fork, facts.differs_at)
            try:
                foreign_writers = _foreign_writers(
                    self._destination,
                    assignment.destination,
                    fork.offset,
                    facts.destination_log_end,
                    assignment.producer_id,
                )
            except (KmirrorError, OutcomeUnknown) as error:
                found[assignment] = Facts(trouble=_tail_trouble(assignment, Unreadable("destination", error)))
            else:
                found[assignment] = replace(facts, fork=fork, foreign_writers=foreign_writers)
        return found

    def _read_destination(
        self, assignments: Collection[Assignment]
    ) -> tuple[_Answers, Mapping[TopicPartition, ProducersAnswer]]:
        """Return where logs start, end, still end a moment later, and are replicated; and what producers are known."""
        partitions = [a.destination for a in assignments]
        client, log_end = self._destination, Lookup(LATEST, log_end=True)
        # The log end before and after the producer states: if it differs, the answers do not belong together.
        (before,) = client.look_up_offsets(partitions, [log_end], timeout=_LOOKUP_TIMEOUT)
        # each further request for a partition without an answer would last until its time-out, and hold up the others
        left = [p for p in partitions if before[p].offset is not None]
        producers = describe_producers(client, left, timeout=_LOOKUP_TIMEOUT)
        lookups = [log_end, Lookup(LATEST), Lookup(EARLIEST)]
        later = client.look_up_offsets(left, lookups, timeout=_LOOKUP_TIMEOUT)
        end_after, replicated, start = ({**before, **answers} for answers in later)
        return (start, before, end_after, replicated), producers

    def _read_source(self, assignments: Collection[Assignment], source: ClusterMetadata) -> _Answers:
        """Return where logs start, their last stable offsets, high watermarks and ends."""
        partitions = [a.source for a in assignments]
        ends = [Lookup(LATEST, read_committed=True), Lookup(LATEST), Lookup(LATEST, log_end=True)]
        lookups = [Lookup(EARLIEST), *ends]
        return self._source.look_up_offsets(partitions, lookups, metadata=source, timeout=_LOOKUP_TIMEOUT)

    def _facts(
        self,
        assignment: Assignment,
        there: _Answers,
        here: _Answers,
        producers: Mapping[TopicPartition, ProducersAnswer],
        source: ClusterMetadata,
        destination: ClusterMetadata,
    ) -> Facts:
        """Return the facts of all lookups; how the tails compare is added later."""
        offsets: list[int] = []
        for client, partition, reason, lookups in (
            (self._source, assignment.source, Reason.SOURCE_UNREACHABLE, there),
            (self._destination, assignment.destination, Reason.DESTINATION_UNREACHABLE, here),
        ):
            for answer in (found[partition] for found in lookups):
                if answer.offset is None:
                    if answer.error_code == Code.BROKER_NOT_AVAILABLE and (why := client.unanswered.get(partition)):
                        return Facts(trouble=Trouble(reason, f"looking up {partition}: {why}"))
                    return Facts(trouble=_partition_trouble(partition, answer.error_code, reason, "DESCRIBE"))
                offsets.append(answer.offset)
        log_start, last_stable, high_watermark, source_end, *offsets_here = offsets
        destination_start, destination_end, end_after, replicated = offsets_here
        if destination_end != end_after:
            what = f"{assignment.destination} is being appended to: its log end is still moving"
            return Facts(trouble=Trouble(Reason.DESTINATION_UNREACHABLE, what))
        if replicated < destination_end:
            # if markers are lost with a leader, our sequence numbers have no gap that its successor would notice
            what = f"{assignment.destination} is not replicated up to its end yet"
            return Facts(trouble=Trouble(Reason.DESTINATION_UNREACHABLE, what))
        known = producers[assignment.destination]
        if known.error_code:
            reason = Reason.DESTINATION_UNREACHABLE
            return Facts(trouble=_partition_trouble(assignment.destination, known.error_code, reason, "READ"))
        source_leader = source.leader(assignment.source)
        destination_leader = destination.leader(assignment.destination)
        if not source_leader or not destination_leader:
            side = identity_check.AT_DESTINATION if source_leader else identity_check.AT_SOURCE
            return Facts(trouble=Trouble(side.unreachable, f"{side.partition(assignment)}: a leader is being elected"))
        answered = there[-1][assignment.source].leader_epoch
        if answered >= 0 and (newer := successor(source, assignment.source, answered)):
            return Facts(trouble=Trouble(Reason.SOURCE_UNREACHABLE, newer))
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
            producer=next((p for p in known.producers if p.producer_id == assignment.producer_id), None),
            destination_limits=self._limits_of(leader_id),
        )

    def _limits_of(self, node_id: int) -> AppendLimits:
        if (known := self._limits.get(node_id)) is None:
            known = self._limits[node_id] = append_limits(self._destination, node_id)
        return known

    def forget_limits(self, node_id: int) -> None:
        """Read the settings of a destination broker again: it may have been restarted. Any thread may call this."""
        self._limits.pop(node_id, None)


def _foreign_writers(client: ClusterClient, partition: TopicPartition, low: int, high: int, own: int) -> ForeignWriters:
    """Count the records from `low` to `high` (exclusive) that producer id `own` did not write, without markers.

    Raises:
        KmirrorError, OutcomeUnknown: the partition cannot be read.
    """
    first = producer = None
    records = size_in_bytes = 0
    for section in PartitionReader(client, partition, patience_s=_PATIENCE_S).batches(low, high):
        for header in section.headers:
            if header.is_control or header.next_offset <= low or header.base_offset >= high:
                continue
            first = header.producer_id if first is None else first
            if header.producer_id != own:
                inside = min(header.next_offset, high) - max(header.base_offset, low)
                records += min(header.record_count, inside)
                producer = header.producer_id if producer is None else producer
        size_in_bytes += len(section.data)
        if size_in_bytes > _MOST_COUNTED_BYTES:
            return ForeignWriters(first, records, producer, is_complete=False)
    return ForeignWriters(first, records, producer)


def _ends(facts: Facts) -> LogEnds:
    return LogEnds(
        facts.source_log_start, facts.last_stable_offset, facts.destination_log_start, facts.destination_log_end
    )


def _may_be_holes(assignment: Assignment, facts: Facts, mark: SourceMark) -> bool:
    """Return whether a difference may be a hole of an earlier leader: we wrote it, and the copy is as we left it."""
    if facts.trouble or facts.tail is not TailMatch.DIFFERENT or facts.tail_producer_id != assignment.producer_id:
        return False
    return facts.destination_log_end == mark.copied_to and facts.source_leader[1] > mark.leader_epoch


def _may_begin_with_filler(assignment: Assignment, facts: Facts) -> bool:
    """Return True if the destination starts at 0, but should start later, and has more than filler."""
    if facts.trouble or facts.destination_log_start or facts.only_filler:
        return False
    return facts.destination_log_end > 0 and max(facts.source_log_start, assignment.first_offset) > 0


def _with_foreign_records(fork: Fork, differs_at: int | None) -> Fork:
    """Return the fork at the offset where the tails differ, if that is lower.

    A record of another writer where the source has a hole from compaction is no contradiction for a fork search, which
    ignores producer ids.
    """
    if differs_at is None or fork.offset <= differs_at:
        return fork
    agreed_at = fork.agreed_at if fork.agreed_at is not None and fork.agreed_at < differs_at else None
    return replace(fork, offset=differs_at, contradicts=True, agreed_at=agreed_at)


def _may_differ(assignment: Assignment, facts: Facts) -> bool:
    """Return True if the logs are known to fork, or may, or the mirror has more than its source."""
    if facts.trouble:
        return False
    longer = facts.source_log_end < facts.destination_log_end and not facts.only_filler
    return facts.tail is TailMatch.DIFFERENT or is_unproven(assignment, facts) or longer


def _with_tail(assignment: Assignment, facts: Facts, found: TailFinding | Unreadable) -> Facts:
    if isinstance(found, Unreadable):
        return Facts(trouble=_tail_trouble(assignment, found))
    return replace(
        facts,
        tail=found.tail,
        tail_epoch=found.epoch,
        tail_producer_id=found.producer_id,
        differs_at=found.differs_at,
        compared_from=found.compared_from,
        only_filler=found.only_filler,
        unproven=found.unproven,
    )


def _tail_trouble(assignment: Assignment, obstacle: Unreadable) -> Trouble:
    side, error = obstacle
    partition = assignment.source if side == "source" else assignment.destination
    reason = Reason.SOURCE_UNREACHABLE if side == "source" else Reason.DESTINATION_UNREACHABLE
    if isinstance(error, BrokerError):
        return _partition_trouble(partition, error.code, reason, "READ")
    if isinstance(error, DamagedLogError | OversizedBatchError | UnsupportedFormatError) and error.reason:
        return Trouble(error.reason, f"comparing {assignment.destination} with {assignment.source}: {error}", True)
    if side == "source" and isinstance(error, SilentLogError):
        reason = Reason.SOURCE_SILENT
    return _link_trouble(error, reason)


def _link_trouble(error: KmirrorError | OutcomeUnknown, default: Reason) -> Trouble:
    if default is Reason.DESTINATION_UNREACHABLE:
        return identity_check.destination_trouble(error, "the destination")
    if isinstance(error, KmirrorError) and error.reason:
        return Trouble(error.reason, str(error))
    if isinstance(error, BrokerError) and error.code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Trouble(Reason.NOT_AUTHORIZED, str(error), True)
    return Trouble(default, str(error))


def _partition_trouble(partition: TopicPartition, code: int, reason: Reason, right: str) -> Trouble:
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        side = "source" if reason is Reason.SOURCE_UNREACHABLE else "mirror"
        return Trouble(Reason.NOT_AUTHORIZED, f"no right to {right} {side} topic {partition.topic}", True)
    if code:
        return Trouble(reason, f"looking up {partition}: {code_name(code)} ({code})")
    return Trouble(reason, f"looking up {partition}: no offset is known yet")
