"""The records of `__kmirror_state`, and their JSON.

A key is a JSON array of the kind and the names, a value a JSON object that carries its schema version `v`. What a
newer kmirror wrote is never lost: fields this version does not know ride along in `extra`, and whole records it
cannot read (an unknown kind, a higher `v`, a state it has no word for) come back as `Unknown`, never to be changed.

Pure and light: lanes import this module in Spark workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import compress
from typing import Any, NamedTuple

from kmirror.errors import Reason
from kmirror.state.assignment import COLUMNS, Assignment, Recovery
from kmirror.state.client_records import ClientsRecord, SourceAclsRecord
from kmirror.state.group_records import GroupRecord, GroupsRecord
from kmirror.state.history_records import HistoryPoint, HistoryRecord
from kmirror.state.rights_records import RightsRecord
from kmirror.state.stored import SCHEMA_VERSION, UNREADABLE, dump, load, parse, read
from kmirror.state.workflow_records import WorkflowRecord

#: The kind, then the names: ("partition", "m", "orders", 3).
Key = tuple[str | int, ...]


class PartitionState(StrEnum):
    """Name what a partition is doing."""

    LOG_ALIGNMENT = "LOG_ALIGNMENT"
    MIRRORING = "MIRRORING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    FAILED = "FAILED"


class DesiredState(StrEnum):
    """Name what operators want of a topic."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class TopicOrigin(StrEnum):
    """Name how a destination topic became a mirror topic."""

    CREATED = "CREATED"
    ADOPTED = "ADOPTED"


class RebuildStep(StrEnum):
    """Name the next step of a topic's rebuild."""

    ARCHIVE = "ARCHIVE"
    #: All that would be lost is in the archive; from here on the topic may be deleted and created again.
    REPLACE = "REPLACE"


#: What a topic's `pending_operation` says while it is rebuilt; while a promote waits for lag 0; while it is stopped.
PENDING_REBUILD = "rebuild"
PENDING_PROMOTE = "promote"
PENDING_STOP = "stop"


class EngineState(StrEnum):
    """Name how far an engine's time in charge has come; RELEASED means that all its lanes have ended."""

    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    RELEASED = "RELEASED"


class Incarnation(NamedTuple):
    """Tell one run of a lane from the runs before it: the plan's generation and Spark's attempt."""

    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class MirrorRecord:
    """Describe a mirror; `source` and `settings` hold stored strings, secrets only as references."""

    name: str
    source: Mapping[str, str]
    settings: Mapping[str, str]
    source_cluster_id: str | None
    created_by: str
    created_at_ms: int
    #: True while the whole mirror is paused: topics that come later are paused from their beginning.
    paused: bool = False
    #: True once the mirror as a whole was failed over: topics that the source gets later are not taken.
    discovery_ended: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("mirror", self.name)


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Say how far the rebuild of a topic is, so that the next engine continues there.

    `ranges` are the offsets to archive, by partition, first and last exclusive; None before they are known. `groups`
    are the offsets that consumer groups had committed, by partition.
    """

    reason: Reason
    step: RebuildStep
    archive: str
    since_ms: int
    ranges: Mapping[int, tuple[tuple[int, int], ...]] | None = None
    groups: Mapping[str, Mapping[int, int]] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """Say what operators decided about a mirror topic; topic ids as Kafka prints them (base64url, no padding).

    `deferred` are topic settings the source wants and the destination topic gets when mirroring stops; the `inherited`
    ones the source takes from its brokers. `settings` are those that kmirror set. `first_offsets`
    keeps, by partition, where an `add` that is under way has decided to begin, so that an interrupted one is finished
    with the same offsets; afterwards the partitions' records tell. `recoveries` are the last ones, by partition.
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
    #: How far its rebuild is, None without one. When it was last rebuilt, and where its old records are.
    rebuild: Rebuild | None = None
    rebuilt_at_ms: int | None = None
    archive: str | None = None
    #: Why mirroring was stopped, or is being stopped; None while it is not.
    stop_reason: Reason | None = None
    settings: Mapping[str, str] | None = None
    inherited: tuple[str, ...] | None = None
    #: Names the last `pause`; None when no operator has paused it since it became a mirror topic.
    pause_id: str | None = None
    #: When the settings of the first source were last read; None where the source topic is not a mirror topic itself.
    first_source_seen_ms: int | None = None
    #: When it became a mirror topic, the last time: what lanes reported before is about another copy.
    added_at_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("topic", self.mirror, self.topic)


@dataclass(frozen=True, slots=True)
class Guard:
    """Store what the destination's broker knows of us: our producer and how many offsets our markers filled."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    filled_offsets: int
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AtStop:
    """Keep what was known of a partition when its mirroring stopped, at `time_ms`; unknown numbers are None.

    The source ended at `source_offset` at `source_as_of_ms`. From the last mirrored offset to `log_end` the log holds
    what is not the source's: `foreign_records`, at least that many where `foreign_is_complete` is false.
    """

    time_ms: int
    log_end: int
    last_timestamp_ms: int | None = None
    source_offset: int | None = None
    source_high_watermark: int | None = None
    source_max_timestamp_ms: int | None = None
    source_as_of_ms: int | None = None
    #: How fast the source's end grew when that was last measured.
    records_per_second: float | None = None
    #: What else is known of the source's topic, for people: that it is gone, or another one.
    source_note: str | None = None
    #: Why it had FAILED, and from where on a source of another history differs.
    failure: Reason | None = None
    failure_message: str | None = None
    fork_offset: int | None = None
    foreign_records: int = 0
    foreign_producer_id: int | None = None
    foreign_is_complete: bool = True
    #: Whether the source's end is its own answer to the stop, not what a lane saw before; None: not recorded.
    source_answered: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """Hold what must outlive the engine about one destination partition; offsets exclusive, as in Kafka."""

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
    #: The first offset of a mirror that does not begin at the source's log start; fixed once.
    first_offset: int | None = None
    #: True when records of the source have been in the destination: an empty log is not the beginning then.
    begun: bool = False
    #: True when the two logs have been aligned once: no filler is left that a reader could see.
    aligned: bool = False
    #: Up to here the source lost records before they were copied, and the copy continued after them.
    lost_until: int | None = None
    #: The topic's `pause_id` that an engine answers by this record: none of its requests is under way any more.
    pause_id: str | None = None
    #: What its stop found; None while it is mirrored.
    at_stop: AtStop | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("partition", self.mirror, self.topic, self.partition)


#: Seconds: a report without a time of its own describes the source as seen at most so long before.
FRESH_SECONDS = 2.0


class ProgressRow(NamedTuple):
    """Report one partition as its lane last saw it; the names are also the columns of the stored form."""

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
    #: Records of the source have been in the destination.
    begun: bool = False
    #: The offset at which the lane made the destination's log begin; None when it did not.
    aligned_to: int | None = None
    #: The offsets that the lane skipped because the source had lost them, the last one exclusive; None: it did not.
    lost_from: int | None = None
    lost_until: int | None = None
    #: The offsets that the destination had lost, and that the lane copies again; the last one exclusive.
    again_from: int | None = None
    again_until: int | None = None
    #: The source's leader epoch of the last batch that was copied, None while that is not known.
    last_epoch: int | None = None
    #: When the source was asked for these values; None: within `FRESH_SECONDS` before the report.
    source_seen_ms: int | None = None
    #: How often a partition in trouble has been retried.
    retry_attempt: int = 0
    #: The number of the last operator's request (`Recovery`) that the lane follows.
    recovery: int | None = None
    #: The offset at which a FAILED partition cannot continue; None while it has not.
    failed_offset: int | None = None
    #: How fast the source's end grew when the lane last measured it; None before it could.
    records_per_second: float | None = None
    #: How fast the destination's end grew, measured in the same way.
    offsets_per_second: float | None = None
    #: While the lane has not all that the source has: when it last had; None where it never had.
    caught_up_ms: int | None = None
    #: What the lane has copied since it took the partition, the last time.
    records_copied: int = 0
    bytes_copied: int = 0


class LaneRun(NamedTuple):
    """Name one run of a lane among those of all engines."""

    lease_id: str
    generation: int
    attempt: int


#: Upper bounds in seconds, inclusive, of the classes that requests are counted in; the last class has none.
LATENCY_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Latencies(NamedTuple):
    """Count requests by how long they took, one number a class, and sum up how long that was."""

    counts: tuple[int, ...]
    seconds: float


NONE_YET = Latencies((0,) * (len(LATENCY_BOUNDS) + 1), 0.0)


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """Report what one incarnation of a lane saw at `time_ms`."""

    mirror: str
    lane: int
    lease_id: str
    generation: int
    attempt: int
    host: str
    pid: int
    time_ms: int
    rows: tuple[ProgressRow, ...]
    #: True when the lane may not write markers, and fills offsets by empty transactions instead.
    fills_by_transactions: bool = False
    #: The last change that it goes by; and the last for which all partitions to be released are released.
    taken: int = 0
    given_up: int = 0
    #: Since it began: bytes fetched from the source, and for how long its share of the throttle kept it from fetching.
    fetched_bytes: int = 0
    throttled_ms: int = 0
    #: Since it began: batches appended; batches of the source taken apart for it, and put together; offsets filled.
    batches_copied: int = 0
    batches_taken_apart: int = 0
    batches_merged: int = 0
    offsets_filled: int = 0
    #: From request to answer, of fetches that brought records, the wait for records included; and of appends.
    fetch_latencies: Latencies = NONE_YET
    produce_latencies: Latencies = NONE_YET
    #: How many `LaneRowsRecord`s of the same run belong to this: `rows` then holds only those that differ from them.
    pages: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("progress", self.mirror, self.lane)

    @property
    def run(self) -> LaneRun:
        return LaneRun(self.lease_id, self.generation, self.attempt)


@dataclass(frozen=True, slots=True)
class LaneRowsRecord:
    """Keep rows of a lane's report that have not changed for a while, so that they are not stored with each report.

    They are as old as the last report of the same run, which repeats them by not naming them.
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
class LaneChangeRecord:
    """Tell one run of a lane what changes of its work; `revision` counts such changes from 1, without a gap.

    Only the last one is kept for long: a lane that misses one before it has to be restarted, with all its work.
    """

    mirror: str
    lane: int
    lease_id: str
    generation: int
    revision: int
    #: Topics and partitions to release: nothing more is sent to them.
    given_up: tuple[tuple[str, int], ...]
    taken: tuple[Assignment, ...]
    #: False when no older claim can still write to what is taken.
    predecessor_may_write: bool
    #: The lanes that may have left transactions open in what is taken.
    unsettled_lanes: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("change", self.mirror, self.lane)


@dataclass(frozen=True, slots=True)
class EngineRecord:
    """Say who is in charge of a mirror, until when that holds, and which incarnation of each lane may write.

    `pid_start_time` is in clock ticks since boot, which with `boot_id` tells a process from a later one of its number.
    `ttl_ms`: how long after this heartbeat its lanes may write; `settle_ms`: how long lanes of engines before it may,
    and runs of its own lanes that it has overruled. The last fields are what it judges itself: which lanes have not
    reported for long, and why the source does not answer.
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
    #: By lane, the last change that it has to go by; lanes without changes are left out.
    revisions: Mapping[int, int] | None = None
    #: Lanes without reports, and the time of the last one (or of the engine's start); None: all report.
    silent_lanes: Mapping[int, int] | None = None
    source_reason: Reason | None = None
    source_message: str | None = None
    #: By lane, the bytes a second that it may fetch; None: no limit.
    throttle: Mapping[int, int] | None = None
    #: The mirror topics that are behind and are copied first: nothing is fetched of others; None: all are alike.
    first_topics: tuple[str, ...] | None = None
    #: By lane, the host and the executor that run it, as far as Spark's driver knows; None: it runs none elsewhere.
    places: Mapping[int, str] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return ("engine", self.mirror)

    @property
    def is_of_command(self) -> bool:
        """Tell whether a command holds the lease for a moment, to shut out an engine that does not answer."""
        return self.master is None

    @property
    def name(self) -> str:
        """Return it for people: the host, and Spark's application there or the process."""
        return f"{self.host}/{self.application_id or self.pid}"


Record = (
    MirrorRecord
    | TopicRecord
    | PartitionRecord
    | ProgressRecord
    | LaneRowsRecord
    | LaneChangeRecord
    | EngineRecord
    | RightsRecord
    | ClientsRecord
    | SourceAclsRecord
    | GroupRecord
    | GroupsRecord
    | WorkflowRecord
    | HistoryRecord
)


@dataclass(frozen=True, slots=True)
class Removed:
    """Stand for a tombstone: the record of this key is gone."""

    key: Key


@dataclass(frozen=True, slots=True)
class Unknown:
    """Stand for a record that this version cannot read, and say why; `key` is empty when not even that can be read."""

    key: Key
    problem: str


def encode(record: Record) -> tuple[bytes, bytes]:
    """Return the record's key and value as they are stored."""
    key = record.key
    value: dict[str, Any] = {"v": SCHEMA_VERSION}
    if isinstance(record, ProgressRecord | LaneRowsRecord):
        value["columns"] = ProgressRow._fields
    elif isinstance(record, LaneChangeRecord):
        value["columns"] = COLUMNS
    value |= _fields_of(record, skip=len(key) - 1)  # the names that open the record are in the key
    if isinstance(record, HistoryRecord):
        # a column of which nothing is known in this hour is left out
        used = [any(cell is not None for cell in column) for column in zip(*record.points, strict=True)]
        value["columns"] = list(compress(HistoryPoint._fields, used))
        value["points"] = [list(compress(point, used)) for point in record.points]
    return encode_key(key), dump(value, _stored)


def encode_key(key: Key) -> bytes:
    """Return the stored form of a key; with a null value it is the record's tombstone."""
    return dump(key)


def may_be_of(key: bytes, mirror: str) -> bool:
    """Tell whether a stored key may be of a mirror, without reading it; False is certain."""
    return dump(mirror) in key


def decode(key: bytes, value: bytes | None) -> Record | Removed | Unknown:
    """Read one stored record; never raises: what cannot be read is `Unknown`."""
    try:
        names = _key_of(key)
    except UNREADABLE as error:
        return Unknown((), f"its key cannot be read: {error}")
    if value is None:
        return Removed(names)
    kind = KINDS.get(str(names[0]))
    if kind is None:
        return Unknown(names, f"records of kind {names[0]!r} are not known to this version")
    try:
        stored = parse(value)
        if rows := _ROWS.get(str(names[0])):
            columns = stored.pop("columns")
            stored[rows] = [dict(zip(columns, row, strict=True)) for row in stored[rows]]
        record: Record = read(kind, stored, names[1:])
        if record.key != names:
            raise ValueError(f"its key has {len(names)} parts")
        return record
    except UNREADABLE as error:
        return Unknown(names, str(error))


def _stored(part: Any) -> dict[str, Any] | list[Any]:
    return [getattr(part, name) for name in COLUMNS] if isinstance(part, Assignment) else _fields_of(part)


def _fields_of(record: Any, skip: int = 0) -> dict[str, Any]:
    # the fields after the key's names, None left out, and what a newer version had added
    known = {f.name: getattr(record, f.name) for f in fields(record)[skip:] if f.name != "extra"}
    extra: Mapping[str, Any] = record.extra
    return {name: value for name, value in known.items() if value is not None} | dict(extra)


def _key_of(key: bytes) -> Key:
    parsed = load(key)
    if not isinstance(parsed, list) or not parsed or not all(type(name) in (str, int) for name in parsed):
        raise ValueError("not an array of kind and names")
    return tuple(parsed)


#: The kinds this version reads.
KINDS: Mapping[str, type[Record]] = {
    "mirror": MirrorRecord,
    "topic": TopicRecord,
    "partition": PartitionRecord,
    "progress": ProgressRecord,
    "rows": LaneRowsRecord,
    "change": LaneChangeRecord,
    "engine": EngineRecord,
    "rights": RightsRecord,
    "clients": ClientsRecord,
    "acls": SourceAclsRecord,
    "group": GroupRecord,
    "groups": GroupsRecord,
    "workflow": WorkflowRecord,
    "history": HistoryRecord,
}
#: Rows are stored without their columns' names, which are stored once in `columns`.
_ROWS = {"progress": "rows", "rows": "rows", "change": "taken", "history": "points"}
