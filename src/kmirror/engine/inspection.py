"""Gather the facts that `judge` needs about some partitions, by asking both clusters. Blocking; decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kmirror.cluster.batch import BATCH_OVERHEAD, batch_headers, crc_of
from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, OffsetAnswer, ProducersAnswer
from kmirror.cluster.codes import Code, code_name
from kmirror.cluster.metadata import ClusterMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.reader import read_batch_at
from kmirror.engine.judge import Facts, Tail, Trouble
from kmirror.engine.spec import Assignment
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason

_EXPIRATION = "producer.id.expiration.ms"
_LOOK_UP_TIMEOUT = 10.0


class Inspector:
    """Look at partitions on both sides; keeps its connections."""

    def __init__(self, source: ClusterClient, destination: ClusterClient, source_cluster_id: str | None) -> None:
        self._source = source
        self._destination = destination
        self._source_cluster_id = source_cluster_id
        self._expiration_ms: dict[int, int | None] = {}
        self.source_metadata: ClusterMetadata | None = None
        self.destination_metadata: ClusterMetadata | None = None

    def inspect(self, assignments: Sequence[Assignment]) -> list[Facts]:
        """Return the facts of each partition, in order."""
        try:
            source = self._source.metadata({a.source_topic for a in assignments}, timeout=_LOOK_UP_TIMEOUT)
        except (KmirrorError, OutcomeUnknown) as error:
            return [Facts(trouble=_link_trouble(error, Reason.SOURCE_UNREACHABLE))] * len(assignments)
        if self._source_cluster_id and source.cluster_id != self._source_cluster_id:
            message = (
                f"another cluster answers at the source's address: its id is {source.cluster_id}, "
                f"this mirror's source is {self._source_cluster_id}"
            )
            return [Facts(trouble=Trouble(Reason.SOURCE_CLUSTER_CHANGED, message))] * len(assignments)
        try:
            destination = self._destination.metadata({a.topic for a in assignments}, timeout=_LOOK_UP_TIMEOUT)
        except (KmirrorError, OutcomeUnknown) as error:
            return [Facts(trouble=_link_trouble(error, Reason.DESTINATION_UNREACHABLE))] * len(assignments)
        self.source_metadata, self.destination_metadata = source, destination
        troubles = {
            a: _topic_trouble(a, source.topics.get(a.source_topic), destination.topics.get(a.topic))
            for a in assignments
        }
        good = [a for a in assignments if troubles[a] is None]
        try:
            views = self._views(good)
        except (KmirrorError, OutcomeUnknown) as error:
            trouble = _link_trouble(error, Reason.DESTINATION_UNREACHABLE)
            return [Facts(trouble=troubles[a] or trouble) for a in assignments]
        return [
            Facts(trouble=troubles[assignment])
            if troubles[assignment]
            else self._facts(assignment, views, source, destination)
            for assignment in assignments
        ]

    def _views(self, assignments: Iterable[Assignment]) -> _Views:
        sources = [a.source for a in assignments]
        destinations = [a.destination for a in assignments]
        latest, earliest = dict.fromkeys(sources, LATEST), dict.fromkeys(sources, EARLIEST)
        ask = self._destination.list_offsets
        # The log end on both sides of the look at the producers: equal, or the two answers do not belong together.
        log_end = ask(dict.fromkeys(destinations, LATEST), log_end=True, timeout=_LOOK_UP_TIMEOUT)
        producers = self._destination.describe_producers(destinations, timeout=_LOOK_UP_TIMEOUT)
        log_end_after = ask(dict.fromkeys(destinations, LATEST), log_end=True, timeout=_LOOK_UP_TIMEOUT)
        log_start = ask(dict.fromkeys(destinations, EARLIEST), timeout=_LOOK_UP_TIMEOUT)
        listed = self._source.list_offsets
        return _Views(
            listed(earliest, timeout=_LOOK_UP_TIMEOUT),
            listed(latest, read_committed=True, timeout=_LOOK_UP_TIMEOUT),
            listed(latest, timeout=_LOOK_UP_TIMEOUT),
            listed(latest, log_end=True, timeout=_LOOK_UP_TIMEOUT),
            log_start,
            log_end,
            log_end_after,
            producers,
        )

    def _facts(
        self,
        assignment: Assignment,
        views: _Views,
        source: ClusterMetadata,
        destination: ClusterMetadata,
    ) -> Facts:
        numbers: list[int] = []
        for partition, answers, reason in (
            (assignment.source, views.source_start, Reason.SOURCE_UNREACHABLE),
            (assignment.source, views.last_stable, Reason.SOURCE_UNREACHABLE),
            (assignment.source, views.high_watermark, Reason.SOURCE_UNREACHABLE),
            (assignment.source, views.source_end, Reason.SOURCE_UNREACHABLE),
            (assignment.destination, views.destination_start, Reason.DESTINATION_UNREACHABLE),
            (assignment.destination, views.destination_end, Reason.DESTINATION_UNREACHABLE),
            (assignment.destination, views.destination_end_after, Reason.DESTINATION_UNREACHABLE),
        ):
            answer = answers[partition]
            if answer.offset is None:
                return Facts(trouble=_partition_trouble(partition, answer.error_code, reason, "DESCRIBE"))
            numbers.append(answer.offset)
        if numbers[5] != numbers[6]:
            what = f"{assignment.destination} is being appended to: its log end is still moving"
            return Facts(trouble=Trouble(Reason.DESTINATION_UNREACHABLE, what))
        remembered = views.producers[assignment.destination]
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
        log_start, last_stable, high_watermark, source_end, destination_start, destination_end, _ = numbers
        try:
            tail, epoch = self._compare_tail(assignment, max(log_start, destination_start), destination_end)
        except (KmirrorError, OutcomeUnknown) as error:
            return Facts(trouble=_link_trouble(error, Reason.SOURCE_UNREACHABLE))
        leader_id = destination_leader.leader_id or 0
        return Facts(
            None,
            source.topics[assignment.source_topic].topic_id,
            destination.topics[assignment.topic].topic_id,
            (source_leader.leader_id or 0, source_leader.leader_epoch),
            (leader_id, destination_leader.leader_epoch),
            log_start,
            source_end,
            last_stable,
            high_watermark,
            destination_start,
            destination_end,
            next((p for p in remembered.producers if p.producer_id == assignment.producer_id), None),
            tail,
            epoch,
            self._expiration(leader_id),
        )

    def _compare_tail(self, assignment: Assignment, start: int, end: int) -> tuple[Tail, int]:
        """Compare the batches that hold offset `end - 1` on both sides."""
        if end <= start:
            return Tail.NOTHING, -1
        ours = read_batch_at(self._destination, assignment.destination, end - 1)
        theirs = read_batch_at(self._source, assignment.source, end - 1)
        if ours is None or theirs is None:
            return Tail.NOTHING, -1
        one, other = next(batch_headers(ours)), next(batch_headers(theirs))
        same = (
            one.base_offset == other.base_offset
            and one.record_count == other.record_count
            and one.base_timestamp == other.base_timestamp
            and one.max_timestamp == other.max_timestamp
            and one.attributes == other.attributes
            and ours[BATCH_OVERHEAD : one.size_in_bytes] == theirs[BATCH_OVERHEAD : other.size_in_bytes]
            and crc_of(theirs[: other.size_in_bytes]) == other.crc
        )
        return (Tail.SAME, other.partition_leader_epoch) if same else (Tail.DIFFERENT, -1)

    def _expiration(self, node_id: int) -> int | None:
        if node_id not in self._expiration_ms:
            found = self._destination.broker_configs([node_id], [_EXPIRATION]).get(node_id, {})
            value = found.get(_EXPIRATION)
            self._expiration_ms[node_id] = int(value) if value else None
        return self._expiration_ms[node_id]


class _Views:
    """Hold the answers of one round of look-ups."""

    __slots__ = (
        "destination_end",
        "destination_end_after",
        "destination_start",
        "high_watermark",
        "last_stable",
        "producers",
        "source_end",
        "source_start",
    )

    def __init__(
        self,
        source_start: Mapping[TopicPartition, OffsetAnswer],
        last_stable: Mapping[TopicPartition, OffsetAnswer],
        high_watermark: Mapping[TopicPartition, OffsetAnswer],
        source_end: Mapping[TopicPartition, OffsetAnswer],
        destination_start: Mapping[TopicPartition, OffsetAnswer],
        destination_end: Mapping[TopicPartition, OffsetAnswer],
        destination_end_after: Mapping[TopicPartition, OffsetAnswer],
        producers: Mapping[TopicPartition, ProducersAnswer],
    ) -> None:
        self.source_start = source_start
        self.last_stable = last_stable
        self.high_watermark = high_watermark
        self.source_end = source_end
        self.destination_start = destination_start
        self.destination_end = destination_end
        self.destination_end_after = destination_end_after
        self.producers = producers


def _link_trouble(error: KmirrorError | OutcomeUnknown, default: Reason) -> Trouble:
    if isinstance(error, KmirrorError) and error.reason:
        return Trouble(error.reason, str(error))
    if isinstance(error, BrokerError) and error.code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Trouble(Reason.NOT_AUTHORIZED, str(error), True)
    return Trouble(default, str(error))


def _topic_trouble(
    assignment: Assignment, source: TopicMetadata | None, destination: TopicMetadata | None
) -> Trouble | None:
    for topic, name, gone, unreachable, side in (
        (source, assignment.source_topic, Reason.SOURCE_TOPIC_DELETED, Reason.SOURCE_UNREACHABLE, "source"),
        (destination, assignment.topic, Reason.DESTINATION_TOPIC_DELETED, Reason.DESTINATION_UNREACHABLE, "mirror"),
    ):
        code = topic.error_code if topic else Code.UNKNOWN_TOPIC_OR_PARTITION
        if code == Code.TOPIC_AUTHORIZATION_FAILED:
            return Trouble(Reason.NOT_AUTHORIZED, f"no right to DESCRIBE {side} topic {name}", True)
        if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            return Trouble(gone, f"{side} topic {name} does not exist", True)
        if code and code != Code.LEADER_NOT_AVAILABLE:
            return Trouble(unreachable, f"{side} topic {name}: {code_name(code)} ({code})")
        if topic and assignment.partition not in topic.partitions:
            return Trouble(gone, f"{side} topic {name} has no partition {assignment.partition}", True)
    return None


def _partition_trouble(partition: TopicPartition, code: int, reason: Reason, right: str) -> Trouble:
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return Trouble(Reason.NOT_AUTHORIZED, f"no right to {right} topic {partition.topic}", True)
    if code:
        return Trouble(reason, f"looking up {partition}: {code_name(code)} ({code})")
    return Trouble(reason, f"looking up {partition}: no offset is known yet")
