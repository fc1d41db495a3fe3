"""Find out what a stop of topics means: where the source's records end, what the source has now, what is lost.

A stop and its rehearsal use it alike. The destination is read here; the source is asked in a thread of its own
(`source_ends`), so that it never delays a stop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.fence import FenceResult
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import read_batch_at
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.context import Destination, now_ms
from kmirror.ops.stop.mirrored_end import Evidence, mirrored_ends
from kmirror.ops.stop.report import failure_of, found_at_stop, known_lost, last_seen, with_answer
from kmirror.ops.stop.source_ends import SourceEnds, SourceQuestion
from kmirror.state.records import AtStop, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State

#: Reading the timestamps of last mirrored records ends after so long; what is left keeps what its lane reported.
_READING_S = 2.0
#: Reasons for which an inspection has found records of another client, and where.
_WRITTEN = frozenset({Reason.DESTINATION_WRITTEN, Reason.OFFSET_MISMATCH})


class StopLook:
    """Look at the topics of one stop; `state` is that of its beginning."""

    def __init__(
        self, destination: Destination, state: State, mirror: MirrorRecord, topics: Sequence[TopicRecord]
    ) -> None:
        self._client: ClusterClient = destination.client
        self._state = state
        self._topics = {topic.topic: topic for topic in topics}
        self.seen = last_seen(state, mirror.name)
        known = {place: seen.row.destination_offset or 0 for place, seen in self.seen.items()}
        self._question = SourceQuestion(mirror, topics, known)
        #: Where each log's records of the source end.
        self.last_mirrored_offsets: dict[TopicPartition, int] = {}
        self.warnings: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._question.close()

    def ask_source(self) -> None:
        """Begin to ask the source for its ends."""
        self._question.begin()

    def source(self) -> SourceEnds:
        """Return what the source says; waits for it, but never long."""
        return self._question.answer()

    def found(self, ends: Mapping[TopicPartition, FenceResult]) -> dict[TopicPartition, AtStop]:
        """Return what is known of partitions whose logs end there, and note their last mirrored offsets."""
        at = now_ms()
        failures = {
            place: failure_of(self._state.partition(self._topics[place.topic].mirror, *place), self.seen.get(place))
            for place in ends
        }
        evidence = {}
        for place, end in ends.items():
            if end.end_offset is None:
                continue
            topic, seen, failure = self._topics[place.topic], self.seen.get(place), failures[place]
            confirmed = seen.row.destination_offset if seen is not None else None
            if failure is not None and failure.reason is Reason.SOURCE_TRUNCATED:
                confirmed = failure.offset if confirmed is None else confirmed  # an inspection compared all up to there
            evidence[place] = Evidence(
                end.end_offset,
                confirmed if confirmed is not None and confirmed <= end.end_offset else None,
                failure.offset if failure is not None and failure.reason in _WRITTEN else None,
                end.last_sequence,
                is_adopted=topic.origin is TopicOrigin.ADOPTED and topic.rebuilt_at_ms is None,
            )
        found = {}
        for place, end_of in mirrored_ends(self._client, evidence).items():
            self.last_mirrored_offsets[place] = end_of.offset
            log_end = evidence[place].log_end
            found[place] = found_at_stop(end_of, log_end, failures[place], self.seen.get(place), at)
            if end_of.trouble is not None:
                self.warnings.append(f"{place}: {end_of.trouble}")
        return found

    def answered(
        self, known: Mapping[TopicPartition, AtStop], last_mirrored_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, AtStop]:
        """Return what is known with the source's answer, where it has come by now."""
        answer = self.source()
        found = {place: with_answer(place, one, answer) for place, one in known.items()}
        until = time.monotonic() + _READING_S
        for place, one in found.items():
            end = last_mirrored_offsets[place]
            if one.source_max_timestamp_ms is None or not known_lost(end, one) or self._is_reported(place, end):
                continue
            if time.monotonic() < until:
                timestamp = self._timestamp_before(place, end)
                found[place] = one if timestamp is None else replace(one, last_timestamp_ms=timestamp)
        return found

    def _is_reported(self, place: TopicPartition, end: int) -> bool:
        """Tell whether a lane has reported the timestamp of the last record before `end`."""
        row = self.seen[place].row if place in self.seen else None
        return row is not None and row.destination_offset == end and row.last_timestamp_ms is not None

    def _timestamp_before(self, place: TopicPartition, end: int) -> int | None:
        """Return the timestamp of the batch of records that ends there; None where a marker does, or it is unread."""
        try:
            batch = read_batch_at(self._client, place, end - 1) if end else None
        except (KmirrorError, OutcomeUnknown):
            return None
        header = next(batch_headers(batch), None) if batch is not None else None
        return None if header is None or header.is_control else header.max_timestamp
