"""Find out what stopping topics means: where the source's records end in each copy, what the source has, what is lost.

A stop and its dry run share this. The destination is read here; a separate thread asks the source (`source_ends`), so
that it never delays a stop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import read_batch_at
from kmirror.cluster.writing.fence import FenceResult
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, now_ms
from kmirror.ops.stop.mirrored_end import Evidence, mirrored_ends
from kmirror.ops.stop.report import (
    at_stop_from_reports,
    failure_of,
    last_reports,
    source_only_record,
    with_source_answer,
)
from kmirror.ops.stop.source_ends import SourceEndsRequest
from kmirror.state.records import AtStop, MirrorRecord, PartitionRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.partition_row import known_lost

#: Time to read the timestamps of last mirrored records; partitions left after that keep what their lane reported.
_READING_S = 2.0
#: Reasons with which an inspection reports records of another client, and their offset.
_WRITTEN = frozenset({Reason.DESTINATION_WRITTEN, Reason.OFFSET_MISMATCH})


class StopFacts:
    """What is found out about the topics of one stop; `state` is the stored state at its beginning."""

    def __init__(
        self, destination: Destination, state: State, mirror: MirrorRecord, topics: Sequence[TopicRecord]
    ) -> None:
        self._client: ClusterClient = destination.client
        self._state = state
        self._mirror = mirror.name
        self._topics = {topic.topic: topic for topic in topics}
        self.reports = last_reports(state, mirror.name)
        known = {partition: report.row.destination_offset or 0 for partition, report in self.reports.items()}
        #: The request to the source: its answer takes a few seconds at most.
        self.request = SourceEndsRequest(mirror, topics, known)
        #: Where the source's records end in each log, once `at_stop` has been called.
        self.last_mirrored_offsets: dict[TopicPartition, int] = {}
        self.warnings: list[str] = []

    def unmirrored(self) -> dict[TopicPartition, PartitionRecord]:
        """Return the records of partitions that only the source has, by its answer or by what its engine last knew."""
        answer, at = self.request.answer(), now_ms()
        found = dict(answer.unmirrored)
        if answer.trouble is not None:
            engine = self._state.engine(self._mirror)
            lacking = (engine.lacking or {}) if engine is not None else {}
            for topic in self._topics.values():
                count = lacking[topic.topic].partitions if topic.topic in lacking else 0
                found |= {TopicPartition(topic.topic, p): None for p in range(topic.partitions, count)}
        return {
            partition: source_only_record(self._mirror, partition, end, answer.time_ms, at)
            for partition, end in sorted(found.items())
        }

    def at_stop(self, ends: Mapping[TopicPartition, FenceResult]) -> dict[TopicPartition, AtStop]:
        """Return what is known of partitions whose logs end at `ends`, and set their last mirrored offsets."""
        at = now_ms()
        failures = {
            partition: failure_of(
                self._state.partition(self._topics[partition.topic].mirror, *partition), self.reports.get(partition)
            )
            for partition in ends
        }
        evidence = {}
        for partition, end in ends.items():
            if end.end_offset is None:
                continue
            topic, report, failure = self._topics[partition.topic], self.reports.get(partition), failures[partition]
            confirmed = report.row.destination_offset if report is not None else None
            if failure is not None and failure.reason is Reason.SOURCE_TRUNCATED:
                confirmed = failure.offset if confirmed is None else confirmed  # an inspection compared all up to there
            evidence[partition] = Evidence(
                end.end_offset,
                confirmed if confirmed is not None and confirmed <= end.end_offset else None,
                failure.offset if failure is not None and failure.reason in _WRITTEN else None,
                end.last_sequence,
                is_adopted=topic.origin is TopicOrigin.ADOPTED and topic.rebuilt_at_ms is None,
            )
        found = {}
        for partition, end_of in mirrored_ends(self._client, evidence).items():
            self.last_mirrored_offsets[partition] = end_of.offset
            log_end = evidence[partition].log_end
            found[partition] = at_stop_from_reports(
                end_of, log_end, failures[partition], self.reports.get(partition), at
            )
            if end_of.trouble is not None:
                self.warnings.append(f"{partition}: {end_of.trouble}")
        return found

    def with_source_answer(
        self, known: Mapping[TopicPartition, AtStop], last_mirrored_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, AtStop]:
        """Return what is known, updated with the source's answer where it has arrived."""
        answer = self.request.answer()
        found = {
            partition: with_source_answer(partition, one, answer, last_mirrored_offsets[partition])
            for partition, one in known.items()
        }
        until = time.monotonic() + _READING_S
        for partition, one in found.items():
            end = last_mirrored_offsets[partition]
            if one.source_max_timestamp_ms is None or not known_lost(end, one) or self._is_reported(partition, end):
                continue
            if time.monotonic() < until:
                timestamp = self._timestamp_before(partition, end)
                found[partition] = one if timestamp is None else replace(one, last_timestamp_ms=timestamp)
        return found

    def _is_reported(self, partition: TopicPartition, end: int) -> bool:
        """Return whether a lane has reported the timestamp of the last record before `end`."""
        row = self.reports[partition].row if partition in self.reports else None
        return row is not None and row.destination_offset == end and row.last_timestamp_ms is not None

    def _timestamp_before(self, partition: TopicPartition, end: int) -> int | None:
        """Return the timestamp of the batch of records that ends there; None for a marker, or if it cannot be read."""
        try:
            batch = read_batch_at(self._client, partition, end - 1) if end else None
        except (KmirrorError, OutcomeUnknown):
            return None
        header = next(batch_headers(batch), None) if batch is not None else None
        return None if header is None or header.is_control else header.max_timestamp
