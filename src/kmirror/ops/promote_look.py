"""What a topic still lacks before it may be promoted: looked at on both clusters, without deciding anything."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.metadata import TopicPartition
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.context import Destination, naming_cluster, source_client
from kmirror.ops.held_back import open_transactions
from kmirror.ops.results import Outcome, TopicResult
from kmirror.ops.stop_report import last_seen
from kmirror.state.records import MirrorRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State

_SOURCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Missing:
    """What a topic still lacks: the lag where it is known, and a sentence; None: it is ready."""

    topic: str
    lag: int | None
    what: str | None


@dataclass(slots=True)
class _End:
    """Where a source partition ended when it was last looked at, and since when."""

    last_stable_offset: int
    high_watermark: int
    since: float


@dataclass(slots=True)
class Look:
    """How the partitions stand: what is missing by topic, and what cannot be waited for."""

    missing: dict[str, Missing] = field(default_factory=dict)
    failed: dict[str, list[TopicResult]] = field(default_factory=dict)


class Completeness:
    """Look at both clusters again and again, and say what each topic of a mirror still lacks. For one thread."""

    def __init__(self, destination: Destination, mirror: MirrorRecord, idle_ms: int | None) -> None:
        self._destination = destination
        self._mirror = mirror
        self._idle_ms = idle_ms
        self._ends: dict[TopicPartition, _End] = {}

    def look(self, source: ClusterClient, state: State, waiting: Mapping[str, TopicRecord]) -> Look:
        """Look at both clusters; say what each topic lacks."""
        look = Look()
        try:
            with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
                self.see_ends(source, waiting.values())
            here = self._destination.client.list_offsets(
                {TopicPartition(t.topic, p): LATEST for t in waiting.values() for p in range(t.partitions)},
                log_end=True,
            )
        except (KmirrorError, OutcomeUnknown) as error:
            for name in waiting:
                look.missing[name] = Missing(name, None, str(error))
            return look
        ends = {place: answer.offset for place, answer in here.items()}
        seen = last_seen(state, self._mirror.name)
        for name, topic in waiting.items():
            failed = []
            for p in range(topic.partitions):
                place = TopicPartition(name, p)
                record, row = state.partition(topic.mirror, *place), seen[place].row if place in seen else None
                if (
                    record is not None
                    and record.state is PartitionState.FAILED
                    and (row is None or row.state is PartitionState.FAILED)
                ):
                    hint = f"`kmirror describe --mirror {topic.mirror} --failed` says more; it is mirrored on"
                    failed.append(
                        TopicResult(*place, Outcome.FAILED, record.message or "FAILED", record.reason, hint=hint)
                    )
            if failed:
                look.failed[name] = failed
            else:
                look.missing[name] = self._missing(state, topic, ends)
        return look

    def see_ends(self, source: ClusterClient, topics: Collection[TopicRecord]) -> None:
        """Look where these topics end at the source. Raises UnreachableError."""
        places = {TopicPartition(t.source_topic, p): LATEST for t in topics for p in range(t.partitions)}
        stable = source.list_offsets(places, read_committed=True, timeout=_SOURCE_S)
        marks = source.list_offsets(places, timeout=_SOURCE_S)
        for place in places:
            last_stable, mark = stable[place], marks[place]
            if last_stable.offset is None or mark.offset is None:
                self._ends.pop(place, None)
                continue
            known = self._ends.get(place)
            if known is None or (known.last_stable_offset, known.high_watermark) != (last_stable.offset, mark.offset):
                self._ends[place] = _End(last_stable.offset, mark.offset, time.monotonic())

    def _missing(self, state: State, topic: TopicRecord, here: Mapping[TopicPartition, int | None]) -> Missing:
        lag, unknown, moved_at = 0, 0, 0.0
        open_partitions, incomplete = [], []
        for p in range(topic.partitions):
            place = TopicPartition(topic.topic, p)
            end, mine = self._ends.get(TopicPartition(topic.source_topic, p)), here.get(place)
            if end is None or mine is None:
                unknown += 1
                continue
            lag += max(0, end.last_stable_offset - mine)
            moved_at = max(moved_at, end.since)
            if end.high_watermark != end.last_stable_offset:
                open_partitions.append(p)
            record = state.partition(topic.mirror, *place)
            if not (record is not None and record.initial_copy_complete):
                incomplete.append(p)
        what = None
        if unknown:
            what = f"{unknown} partitions have no leader, or do not say where they end"
        elif lag:
            what = f"{lag:,} records"
        elif open_partitions:
            what = self._open_told(topic, open_partitions)
        elif incomplete:
            what = f"the first copy is not complete ({len(incomplete)} partitions)"
        elif self._idle_ms is not None and (still := time.monotonic() - moved_at) < self._idle_ms / 1000:
            what = f"producers: the source's end moved {still:.0f} s ago, wanted are {self._idle_ms / 1000:g} s"
        return Missing(topic.topic, None if unknown else lag, what)

    def _open_told(self, topic: TopicRecord, partitions: Sequence[int]) -> str:
        """Name the transaction that is open at the source."""
        place = TopicPartition(topic.source_topic, partitions[0])
        named = "a transaction is open"
        try:
            with source_client(self._mirror.source) as client:
                found = open_transactions([place], client, _SOURCE_S / 2).get(place)
            if found is not None:
                named = (
                    f"a transaction of producer id {found.producer_id} is open since offset {found.start_offset} of "
                    f"{place}; to end it: kafka-transactions.sh --bootstrap-server "
                    f"{self._mirror.source.get('bootstrap.servers', 'SOURCE')} abort --topic {place.topic} --partition "
                    f"{place.partition} --start-offset {found.start_offset}"
                )
        except (KmirrorError, OutcomeUnknown):
            pass
        return named

    def source_ends(self, topic: TopicRecord) -> list[int | None]:
        """Return the high watermarks of a topic as they were last seen at the source, by partition."""
        ends = (self._ends.get(TopicPartition(topic.source_topic, p)) for p in range(topic.partitions))
        return [end.high_watermark if end else None for end in ends]
