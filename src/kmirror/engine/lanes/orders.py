"""What lanes are told to do: the partitions to copy, and everything they need for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.spec import LaneSpec, own_producer_id
from kmirror.engine.status.mirror_topics import MirrorTopics
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment
from kmirror.state.lease import Lease


class LaneOrders:
    """Make the specs and assignments of one mirror's lanes."""

    def __init__(
        self,
        topics: MirrorTopics,
        partitions: MirrorPartitions,
        lease: Lease,
        destination_properties: Mapping[str, str],
        destination_cluster_id: str | None = None,
    ) -> None:
        self.mirror = topics.record.name
        self._topics = topics
        self._partitions = partitions
        self._lease = lease
        self._destination_properties = dict(destination_properties)
        self._destination_cluster_id = destination_cluster_id

    def assignments(self) -> list[Assignment]:
        """Return the assignments of all partitions to copy now, without what `with_state` adds."""
        settings = self._topics.settings
        found = []
        for topic in (one for one in self._topics.by_name.values() if one.is_copied):
            for partition in range(topic.partitions):
                record = self._partitions.records.get(TopicPartition(topic.topic, partition))
                guard = record.guard if record else None
                found.append(
                    Assignment(
                        topic=topic.topic,
                        partition=partition,
                        source_topic=topic.source_topic,
                        source_topic_id=topic.source_topic_id,
                        destination_topic_id=topic.destination_topic_id,
                        producer_id=guard.producer_id
                        if guard
                        else own_producer_id(self.mirror, topic.topic, partition),
                        producer_epoch=guard.producer_epoch if guard else 0,
                        first_offset=(record.first_offset or 0) if record else 0,
                        compared_end=record.compared_end if record else None,
                        recovery=(topic.recoveries or {}).get(partition),
                        follows_truncation=settings.source_truncation_policy == "follow",
                        merges_batches=settings.copy_merge_batches == "auto",
                    )
                )
        return found

    def spec(
        self,
        lane: int,
        generation: int,
        assignments: Iterable[Assignment],
        *,
        predecessor_may_write: bool,
        unsettled: Sequence[int],
    ) -> LaneSpec:
        """Return what a lane is started with."""
        return LaneSpec(
            self.mirror,
            lane,
            generation,
            self._lease.record.lease_id,
            self._topics.record.source,
            self._destination_properties,
            tuple(self.with_state(assignment) for assignment in assignments),
            self._lease.record.ttl_ms,
            predecessor_may_write,
            self._topics.settings.retry_timeout_ms,
            self._topics.record.source_cluster_id,
            tuple(unsettled),
            self._destination_cluster_id,
        )

    def with_state(self, assignment: Assignment) -> Assignment:
        """Return an assignment with what a lane must know of its partition, but that changes no plan."""
        assignment = replace(assignment, source_seen=self._partitions.source_seen(assignment.destination))
        record = self._partitions.records.get(assignment.destination)
        if record is None:
            return assignment
        misplaced = record.reason is Reason.OFFSET_MISMATCH
        return replace(
            assignment,
            begun=record.begun,
            known_end=self._partitions.known_end(assignment.destination) if record.begun else None,
            mismatch_offset=record.failed_offset if misplaced else None,
            mismatch=record.message if misplaced else None,
        )
