"""Ask a source where it ends while its mirror is being stopped, without delaying the stop.

The request runs in its own thread, started together with the fencing. The stop waits for the answer until
`SOURCE_TIMEOUT_S` after that: the source may be gone, or accept connections and not answer. Every broker is
asked who leads: one that is cut off from the others still answers as the leader that it was.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from kmirror.cluster.client import EARLIEST, LATEST, MAX_TIMESTAMP, ClusterClient, Lookup, OffsetAnswer
from kmirror.cluster.connection import UnsupportedVersionError
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import now_ms, require_same_cluster
from kmirror.ops.show.cluster_view import SOURCE_REQUEST_S, SOURCE_TIMEOUT_S, BackgroundQuery
from kmirror.state.records import MirrorRecord, TopicRecord

#: Limit for the ends, which are asked first; the other requests get the remaining time.
_ENDS_S = 1.5
_SHORTEST_S = 0.1
_LOOKUPS = (Lookup(LATEST), Lookup(LATEST, read_committed=True), Lookup(EARLIEST))


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """Where a source partition ends: its last stable offset, and if asked the record with the latest timestamp.

    A `high_watermark` above it is that of an open transaction. `log_start` is known of partitions that only the source
    has. A source that `went_back` ends before a copy of it that was made earlier.
    """

    offset: int
    high_watermark: int | None = None
    newest: OffsetAnswer | None = None
    log_start: int | None = None
    went_back: bool = False


@dataclass(frozen=True, slots=True)
class SourceEnds:
    """The source's answer at `time_ms`, by mirror partition; with `trouble` it did not answer.

    `notes` report by mirror topic that the source topic is gone or recreated: its ends are omitted. `unmirrored` has
    the partitions that only the source has, None where the end is unknown; `absent` has those that it certainly lacks.
    """

    time_ms: int
    ends: Mapping[TopicPartition, SourceEnd] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    unmirrored: Mapping[TopicPartition, SourceEnd | None] = field(default_factory=dict)
    absent: frozenset[TopicPartition] = frozenset()
    trouble: str | None = None


class SourceEndsRequest:
    """Ask a mirror's source about these topics: `start`, then `answer` any number of times, then `close`.

    `known_ends` is where the mirror's logs ended at some time: the newest timestamp is only asked for partitions that
    have more at the source.
    """

    def __init__(
        self, mirror: MirrorRecord, topics: Sequence[TopicRecord], known_ends: Mapping[TopicPartition, int]
    ) -> None:
        self._asker = BackgroundQuery(mirror.source, mirror.source_cluster_id)
        self._request = partial(_ask, topics=tuple(topics), known_ends=known_ends, cluster_id=mirror.source_cluster_id)
        self._until: float | None = None

    def start(self) -> None:
        """Start asking, the first time this is called."""
        if self._until is None:
            self._until = time.monotonic() + SOURCE_TIMEOUT_S
            self._asker.start(self._request)

    def answer(self) -> SourceEnds:
        """Return the source's answer, or that it did not answer in time."""
        self.start()
        found = self._asker.answer(self._until or 0.0)
        if isinstance(found, SourceEnds):
            return found
        why = found.message if isinstance(found, KmirrorError) else f"no answer within {SOURCE_TIMEOUT_S:g} s"
        return SourceEnds(now_ms(), trouble=why)

    def close(self) -> None:
        """Close the connections."""
        self._asker.close()


def _ask(
    client: ClusterClient,
    *,
    topics: Sequence[TopicRecord],
    known_ends: Mapping[TopicPartition, int],
    cluster_id: str | None,
) -> SourceEnds:
    until = time.monotonic() + SOURCE_REQUEST_S

    def left(most: float = SOURCE_REQUEST_S) -> float:
        return max(_SHORTEST_S, min(most, until - time.monotonic()))

    metadata, silent = client.newest_metadata(sorted({topic.source_topic for topic in topics}), timeout=left())
    require_same_cluster(cluster_id, metadata.cluster_id)
    notes: dict[str, str] = {}
    there: dict[TopicPartition, TopicPartition] = {}
    surplus: dict[TopicPartition, TopicPartition] = {}
    absent: set[TopicPartition] = set()
    unmirrored: dict[TopicPartition, SourceEnd | None] = {}
    for topic in topics:
        found = metadata.topics.get(topic.source_topic)
        if found is None or found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            notes[topic.topic] = f"the source has no topic {topic.source_topic} any more"
        elif found.error_code:
            notes[topic.topic] = f"the source does not describe topic {topic.source_topic}"
        elif topic.source_topic_id and found.printed_topic_id not in (None, topic.source_topic_id):
            notes[topic.topic] = (
                f"the source topic {topic.source_topic} was deleted and created again: its current records were not"
                " copied"
            )
        else:
            if not silent:
                mine = range(topic.partitions)
                absent |= {TopicPartition(topic.topic, p) for p in mine if p not in found.partitions}
            for p in found.partitions:
                partition, ours = TopicPartition(topic.source_topic, p), TopicPartition(topic.topic, p)
                if p >= topic.partitions:
                    unmirrored[ours] = None
                # one whose leader may be a broker that does not answer: what another says is not its end
                if not metadata.has_replica_on(partition, silent):
                    (there if p < topic.partitions else surplus)[partition] = ours
    at = now_ms()
    # the high watermark first: a last stable offset looked up after it is lower only if a transaction is open
    marks, stable, starts = client.look_up_offsets(
        [*there, *surplus], _LOOKUPS, metadata=metadata, timeout=left(_ENDS_S)
    )
    ends: dict[TopicPartition, SourceEnd] = {}
    for partition, answer in stable.items():
        mark = marks[partition].offset
        if answer.offset is None or mark is None:
            continue
        if partition in there:
            went_back = answer.offset < known_ends.get(there[partition], 0)
            ends[there[partition]] = SourceEnd(answer.offset, max(mark, answer.offset), went_back=went_back)
        else:
            unmirrored[surplus[partition]] = SourceEnd(answer.offset, log_start=starts[partition].offset)
    lagging = [p for p, ours in there.items() if ours in ends and ends[ours].offset > known_ends.get(ours, 0)]
    try:
        newest = _newest(client, lagging, left()) if lagging else {}
    except (KmirrorError, OutcomeUnknown):
        newest = {}
    for partition, answer in newest.items():
        ends[there[partition]] = replace(ends[there[partition]], newest=answer)
    return SourceEnds(at, ends, notes, unmirrored, frozenset(absent))


def _newest(
    client: ClusterClient, partitions: Sequence[TopicPartition], timeout: float
) -> Mapping[TopicPartition, OffsetAnswer]:
    """Look up the newest timestamps; brokers before Kafka 3.0 cannot."""
    try:
        return client.list_offsets(dict.fromkeys(partitions, MAX_TIMESTAMP), timeout=timeout)
    except UnsupportedVersionError:
        return {}
