"""The records of `__kmirror_state` about mirrors, their topics, partitions and lanes, and engines.

`record_kinds` has all kinds of records, and how they are stored. Unknown fields of a newer kmirror are kept in `extra`.
Pure and light: lanes import this module in Spark workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from kmirror.cluster.security.trust import StoredProperties
from kmirror.errors import Reason
from kmirror.state.archive_proofs import Proof
from kmirror.state.assignment import Recovery, SourceSeen
from kmirror.state.engine_findings import JobFailure, Lacking, NotAdded

#: The kind, then the names: ("partition", "m", "orders", 3).
Key = tuple[str | int, ...]


class PartitionState(StrEnum):
    """The state of a mirror partition."""

    LOG_ALIGNMENT = "LOG_ALIGNMENT"
    MIRRORING = "MIRRORING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


class DesiredState(StrEnum):
    """The state that operators want a topic to be in."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class TopicOrigin(StrEnum):
    """How a destination topic became a mirror topic."""

    CREATED = "CREATED"
    ADOPTED = "ADOPTED"


class RebuildStep(StrEnum):
    """The next step of a topic's rebuild."""

    ARCHIVE = "ARCHIVE"
    #: The archive is complete: the topic may be deleted and created again.
    REPLACE = "REPLACE"


#: A topic's `pending_operation`: an `add` is unfinished; it is rebuilt; a promote waits for lag 0; it is being stopped.
PENDING_ADD = "add"
PENDING_REBUILD = "rebuild"
PENDING_PROMOTE = "promote"
PENDING_STOP = "stop"


class EngineState(StrEnum):
    """The state of an engine's lease; RELEASED means that all its lanes have ended."""

    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    RELEASED = "RELEASED"


class Incarnation(NamedTuple):
    """The plan's generation and Spark's attempt, which distinguish one run of a lane from earlier ones."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class MirrorRecord:
    """A mirror; `source` and `settings` hold stored strings, secrets only as references.

    `source` is marked as coming from a record, wherever it is used: the host's policy judges it there.
    """

    name: str
    source: Mapping[str, str]
    settings: Mapping[str, str]
    source_cluster_id: str | None
    created_by: str
    created_at_ms: int
    #: True while the whole mirror is paused: topics discovered later start paused.
    paused: bool = False
    #: True once the whole mirror was failed over: new source topics are no longer added.
    discovery_ended: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", StoredProperties(self.source))

    @property
    def key(self) -> Key:
        return ("mirror", self.name)


@dataclass(frozen=True, slots=True)
class Rebuild:
    """The progress of a topic's rebuild, so that the next engine can continue it.

    `ranges` are the offsets to archive, by partition, end exclusive; None before they are known. `groups` are the
    offsets that consumer groups had committed, by partition. `trouble` is why the last attempt failed, if it did.
    `proved` is what the archive was found to hold, by partition. `replicas` and `own_settings` are the old topic's.
    """

    reason: Reason
    step: RebuildStep
    archive: str
    since_ms: int
    ranges: Mapping[int, tuple[tuple[int, int], ...]] | None = None
    groups: Mapping[str, Mapping[int, int]] | None = None
    trouble: str | None = None
    proved: Mapping[int, Proof] | None = None
    replicas: int | None = None
    own_settings: Mapping[str, str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kept_in(self) -> str | None:
        """The archive that gets the topic's records; None if there are none to archive: it is not created."""
        return self.archive if any(low < high for own in (self.ranges or {}).values() for low, high in own) else None


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """What operators decided about a mirror topic; topic ids as Kafka prints them (base64url, no padding).

    `partitions` counts the mirrored ones: it grows before a lane copies a record of a partition that the source added.
    `deferred` are the source's settings that the destination topic gets when mirroring stops; `inherited` are those
    that the source takes from its brokers. `settings` are those that kmirror set; `settled` what the destination takes
    instead of those that kmirror would set, None for those that are left alone. `first_offsets` is where an unfinished
    `add` decided to begin, until the partitions' records have that; `recoveries` are the last requests, by partition.
    """

    mirror: str
    topic: str
    source_topic: str
    source_topic_id: str | None
    destination_topic_id: str | None
    desired: DesiredState
    partitions: int
    origin: TopicOrigin
    pending_operation: str | None = None
    deferred: Mapping[str, str] | None = None
    first_offsets: Mapping[int, int] | None = None
    recoveries: Mapping[int, Recovery] | None = None
    #: Its rebuild, if one is in progress. When it was last rebuilt, and where its old records are.
    rebuild: Rebuild | None = None
    rebuilt_at_ms: int | None = None
    archive: str | None = None
    #: Why mirroring was stopped, or is being stopped; None while it is not.
    stop_reason: Reason | None = None
    settings: Mapping[str, str] | None = None
    settled: Mapping[str, str | None] | None = None
    inherited: tuple[str, ...] | None = None
    #: Id of the last `pause`; None if it was never paused since it became a mirror topic.
    pause_id: str | None = None
    #: When the settings of the first source were last read; None if the source topic is not a mirror topic itself.
    first_source_seen_ms: int | None = None
    #: When it last became a mirror topic: earlier reports of lanes are about another copy.
    added_at_ms: int | None = None
    #: Why it was not known then whether the source has the topic from this cluster.
    upstream_unknown: str | None = None
    #: Which cluster is in charge (`status.in_charge`): the term of its stop, None for the first; whether the source has
    #: on record that this cluster may take over, or nothing; and by cluster id the terms of those that may here.
    term: int | None = None
    announced: bool | None = None
    standbys: Mapping[str, int] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("topic", self.mirror, self.topic)

    @property
    def is_copied(self) -> bool:
        """Return whether lanes should copy the topic now."""
        return self.desired is DesiredState.ACTIVE and self.pending_operation in (None, PENDING_PROMOTE)


@dataclass(frozen=True, slots=True)
class Guard:
    """The producer state that the destination's broker has for us, and how many offsets our markers filled."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    filled_offsets: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AtStop:
    """What was known of a partition when its mirroring stopped, at `time_ms`; unknown numbers are None.

    The source ended at `source_offset` at `source_as_of_ms`; `source_went_back` if the copy was longer before. From the
    last mirrored offset to `log_end` are `foreign_records`, or more where `foreign_is_complete` is false. A partition
    that is `source_only` never existed here; its log at the source began at `source_log_start`.
    """

    time_ms: int
    log_end: int
    last_timestamp_ms: int | None = None
    source_offset: int | None = None
    source_high_watermark: int | None = None
    source_max_timestamp_ms: int | None = None
    source_as_of_ms: int | None = None
    #: Last measured growth of the source's end.
    records_per_second: float | None = None
    #: When a connection to the source broke for the first time after `source_as_of_ms`.
    source_lost_ms: int | None = None
    #: A note for people about the source's topic: that it is gone, or was recreated.
    source_note: str | None = None
    #: Why it had FAILED, and the fork if the source's history differs.
    failure: Reason | None = None
    failure_message: str | None = None
    fork_offset: int | None = None
    foreign_records: int = 0
    foreign_producer_id: int | None = None
    foreign_is_complete: bool = True
    #: True if the source itself answered during the stop, False if a lane had seen its end before; None: not recorded.
    source_answered: bool | None = None
    source_went_back: bool | None = None
    source_only: bool | None = None
    source_log_start: int | None = None
    #: True until a promote has read the source once more after the stop; and if its topic was another one by then.
    unchecked: bool | None = None
    source_recreated: bool | None = None
    #: True once the source topic was found to have become a mirror topic of this one: nothing is left to be checked.
    copied_back: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """What must outlive the engine about one destination partition; offsets are exclusive, as in Kafka."""

    mirror: str
    topic: str
    partition: int
    state: PartitionState
    state_time_ms: int
    reason: Reason | None = None
    message: str | None = None
    retry_attempt: int = 0
    last_mirrored_offset: int | None = None
    last_mirrored_epoch: int | None = None
    failed_offset: int | None = None
    guard: Guard | None = None
    initial_copy_complete: bool = False
    #: When that became true; None before, and for copies by older versions.
    initial_copy_ms: int | None = None
    #: Where a copy begins that does not begin at the source's log start; or the source's log, if adopted with more.
    first_offset: int | None = None
    #: True once records of the source were in the destination: an empty log then does not mean a fresh start.
    begun: bool = False
    #: Of an adopted log: its end when it was compared, record for record, with its source's; None: it was not.
    compared_end: int | None = None
    #: True once the two logs were aligned: no filler is left that a reader could see.
    aligned: bool = False
    #: Up to here the source lost records before they were copied, and the copy continued after the loss.
    lost_until: int | None = None
    #: The topic's `pause_id` that the engine confirms with this record: none of its requests is in flight any more.
    pause_id: str | None = None
    #: What the stop found; None while it is mirrored. And what the source last returned before it was paused.
    at_stop: AtStop | None = None
    source_seen: SourceSeen | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("partition", self.mirror, self.topic, self.partition)


#: Seconds: unless it says something else, a report describes the source as seen at most this long before.
FRESH_SECONDS = 2.0


class ProgressRow(NamedTuple):
    """One partition as its lane last saw it; the names are also the columns of the stored form."""

    topic: str
    partition: int
    source_offset: int | None
    source_high_watermark: int | None
    source_log_start: int | None
    destination_offset: int | None
    last_timestamp_ms: int | None
    state: PartitionState
    reason: Reason | None = None
    message: str | None = None
    bytes_per_second: float = 0.0
    #: True once records of the source were in the destination.
    begun: bool = False
    #: The offset to which the lane advanced the destination's log start; None if it did not.
    aligned_to: int | None = None
    #: The offsets that the lane skipped because the source had lost them, end exclusive; None if it skipped none.
    lost_from: int | None = None
    lost_until: int | None = None
    #: The offsets that the destination had lost and the lane copies again, end exclusive.
    again_from: int | None = None
    again_until: int | None = None
    #: The source's leader epoch of the last copied batch; None: unknown.
    last_epoch: int | None = None
    #: When the source returned these values; None: within the report's `seen_within_ms` before it.
    source_seen_ms: int | None = None
    #: How often a partition in trouble has been retried.
    retry_attempt: int = 0
    #: The number of the last operator's request (`Recovery`) that the lane follows.
    recovery: int | None = None
    #: The offset at which a FAILED partition cannot continue; None unless it is FAILED.
    failed_offset: int | None = None
    #: Last measured growth of the source's end; None before the first measurement.
    records_per_second: float | None = None
    #: Growth of the destination's end, measured the same way.
    offsets_per_second: float | None = None
    #: While the lane is behind: when it last had caught up with the source; None: never.
    caught_up_ms: int | None = None
    #: What the lane has copied since the partition was last assigned to it.
    records_copied: int = 0
    bytes_copied: int = 0
    #: When a connection to the source broke for the first time after that; None: none has.
    source_lost_ms: int | None = None
    #: How many offsets without records the lane still fills before it copies the next record; None: few or none.
    offsets_to_fill: int | None = None


class LaneRun(NamedTuple):
    """One run of a lane among those of all engines."""

    lease_id: str
    generation: int
    attempt: int


#: Upper bounds of the latency histogram's buckets in seconds, inclusive; the last bucket has none.
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Latencies(NamedTuple):
    """A latency histogram: requests per bucket, and the sum of their latencies."""

    counts: tuple[int, ...]
    seconds: float


NONE_YET = Latencies((0,) * (len(LATENCY_BOUNDS) + 1), 0.0)


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """The report of one incarnation of a lane at `time_ms`."""

    mirror: str
    lane: int
    lease_id: str
    generation: int
    attempt: int
    host: str
    pid: int
    time_ms: int
    rows: tuple[ProgressRow, ...]
    #: True if the lane may not write markers, and fills offsets with empty transactions instead.
    fills_by_transactions: bool = False
    #: The last change that the lane applied; and the last one whose revoked partitions are all released.
    taken: int = 0
    given_up: int = 0
    #: Since it began: bytes fetched from the source, and for how long the throttle kept it from fetching.
    fetched_bytes: int = 0
    throttled_ms: int = 0
    #: Since it began: batches appended; source batches split, and merged, for that; offsets filled.
    batches_copied: int = 0
    batches_taken_apart: int = 0
    batches_merged: int = 0
    offsets_filled: int = 0
    #: From request to answer: of fetches that returned records, including the wait for them; and of appends.
    fetch_latencies: Latencies = NONE_YET
    produce_latencies: Latencies = NONE_YET
    #: How many `LaneRowsRecord`s of the same run belong to this: `rows` then holds only those that differ from them.
    pages: int = 0
    #: While the path to the source limits how fast it copies: over how many connections, and bytes per second in all.
    path_connections: int = 0
    path_bytes_per_second: int = 0
    #: Why a source broker did not accept another connection, the first time; None if none was refused.
    connections_refused: str | None = None
    #: How long before the report the source returned what rows without a time of their own say, at most.
    seen_within_ms: int = int(FRESH_SECONDS * 1000)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def as_of_ms(self, row: ProgressRow) -> int:
        """Return the latest time at which the source's values in a row of this report held for certain."""
        return self.time_ms - self.seen_within_ms if row.source_seen_ms is None else row.source_seen_ms

    @property
    def key(self) -> Key:
        return ("progress", self.mirror, self.lane)

    @property
    def run(self) -> LaneRun:
        return LaneRun(self.lease_id, self.generation, self.attempt)


@dataclass(frozen=True, slots=True)
class LaneRowsRecord:
    """Rows of a lane's report that have not changed for a while, so that they are not stored with each report.

    They hold as of the last report of the same run: a report repeats every row that it leaves out.
    """

    mirror: str
    lane: int
    page: int
    lease_id: str
    generation: int
    attempt: int
    rows: tuple[ProgressRow, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("rows", self.mirror, self.lane, self.page)

    @property
    def run(self) -> LaneRun:
        return LaneRun(self.lease_id, self.generation, self.attempt)


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """The engine in charge of a mirror, until when that holds, and which incarnation of each lane may write.

    `pid_start_time` is in clock ticks since boot; with `boot_id` it distinguishes a process from a later one with the
    same pid. `ttl_ms`: how long after this heartbeat its lanes may write; `settle_ms`: how long lanes of earlier
    engines may, and replaced runs of its own lanes. The last fields are the engine's own findings: which lanes have not
    reported for long, why the source does not answer, which topics lack partitions, which broker throttles it,
    which jobs fail.
    """

    mirror: str
    lease_id: str
    state: EngineState
    host: str
    boot_id: str
    pid: int
    pid_start_time: int
    application_id: str | None
    master: str | None
    since_ms: int
    last_seen_ms: int
    ttl_ms: int
    settle_ms: int = 0
    lanes: Mapping[int, Incarnation] = field(default_factory=dict)
    #: By lane, the last change that it has to apply; lanes without changes are left out.
    revisions: Mapping[int, int] | None = None
    #: Lanes without current reports, and the time of the last one (or of the engine's start); None: all report.
    silent_lanes: Mapping[int, int] | None = None
    source_reason: Reason | None = None
    source_message: str | None = None
    #: By lane, the bytes per second that it may fetch; None: no limit.
    throttle: Mapping[int, int] | None = None
    #: How many connections each lane may open to a broker, and how many bytes it may hold; None: as few as it can.
    connections: int | None = None
    buffer_bytes: int | None = None
    #: The lagging mirror topics that are copied first, while others are not fetched; None: no priority.
    first_topics: tuple[str, ...] | None = None
    #: By lane, the host and executor that run it, as far as Spark's driver knows; None: all run in the driver.
    places: Mapping[int, str] | None = None
    #: The mirror topics that lack partitions of their sources, and the source topics that could not be added.
    lacking: Mapping[str, Lacking] | None = None
    not_added: NotAdded | None = None
    #: By name, the side jobs that have failed for long; None: none has.
    failing_jobs: Mapping[str, JobFailure] | None = None
    #: The destination's broker that lately made it wait for long, as a client quota is used up; None: none did.
    throttled_by: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("engine", self.mirror)

    @property
    def held_by_command(self) -> bool:
        """Return whether a command holds the lease for a moment, to fence an engine that does not respond."""
        return self.master is None

    @property
    def name(self) -> str:
        """Return the engine's name for people: host, and Spark application or process."""
        return f"{self.host}/{self.application_id or self.pid}"
