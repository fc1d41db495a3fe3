"""The metrics of `run` and `serve`: each is declared once, with its meaning and its value. Pure.

Those of what topics and partitions show are declared with their columns (`kmirror.status`); the others are here.

A value that is not known has no sample: an absent series cannot be taken for a zero. /metrics and docs/metrics.md are
both made from these declarations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar, cast

from kmirror.columns import DURATION, Column
from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.engine.status.health import KNOWN_SECONDS
from kmirror.errors import NOT_COPYING, Reason
from kmirror.state.group_records import LASTING_REASONS
from kmirror.state.records import EngineRecord, Latencies, PartitionState
from kmirror.status.mirror_status import throttle_of
from kmirror.status.objective_state import ObjectiveState
from kmirror.status.partition_row import PARTITIONS, PER_PARTITION, PartitionRow
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TOPICS
from kmirror.web.served import ServedMirror

#: The values of its labels except those of its mirror, and its own: that of a histogram are the latencies of requests.
Value = tuple[tuple[str, ...], float | Latencies]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """Declare one metric; those of mirrors have the label `mirror`, from `serve` also `cluster`, before their `labels`.

    From `run` the label `cluster` is left out.

    `kip_1279` and `cluster_linking` name the closest metric in Apache Kafka's proposal and at Confluent.
    """

    name: str
    unit: str
    meaning: str
    #: With labels the samples, otherwise the value; None while it is not known.
    value: Callable[[T], Any]
    #: When there is no sample, in words; "" if there always is one.
    absent: str = ""
    kip_1279: str = ""
    cluster_linking: str = ""
    labels: tuple[str, ...] = ()
    is_histogram: bool = False
    #: True for what only a mirror's engine knows: `serve` has no sample of it.
    of_engine: bool = False

    def samples(self, of: T) -> Iterable[Value]:
        """Return the samples of a run, a watched cluster or a mirror; what is not known has none."""
        if self.of_engine and cast(ServedMirror, of).snapshot is None:
            return []
        found = self.value(of)
        if self.labels:
            return cast(Iterable[Value], found)
        return [] if found is None else [((), found)]

    @property
    def kind(self) -> str:
        """The type, in Prometheus' words: the names of counters say that they are."""
        return "histogram" if self.is_histogram else "counter" if self.name.endswith("_total") else "gauge"


def _of_engine(
    name: str, unit: str, meaning: str, value: Callable[[MirrorSnapshot], Any], absent: str = "", **more: Any
) -> Metric[ServedMirror]:
    """Return a metric of what only the mirror's engine knows."""
    return Metric(name, unit, meaning, lambda mirror: value(_snapshot(mirror)), absent, of_engine=True, **more)


def _total(counter: str, unit: str, meaning: str) -> Metric[ServedMirror]:
    """Return the metric of a field of Counters."""
    return _of_engine(f"kmirror_{counter}_total", unit, meaning, lambda snapshot: getattr(snapshot.counters, counter))


def _snapshot(mirror: ServedMirror) -> MirrorSnapshot:
    """Return what the mirror's engine knows, for metrics that only it has."""
    return cast(MirrorSnapshot, mirror.snapshot)


def _age(snapshot: MirrorSnapshot, moment: float) -> float:
    """Return the seconds since a time of the engine's clock."""
    return max(0.0, snapshot.at - moment)


def _engine(mirror: ServedMirror) -> EngineRecord | None:
    """Return the record of the engine in charge."""
    if mirror.snapshot is not None:
        return mirror.snapshot.engine
    health = mirror.status.health if mirror.status is not None else None
    return health.record if health is not None and health.name is not None else None


def _of_record(value: Callable[[EngineRecord], float]) -> Callable[[ServedMirror], float | None]:
    """Return the value that is in the record of the engine in charge."""

    def found(mirror: ServedMirror) -> float | None:
        engine = _engine(mirror)
        return None if engine is None else value(engine)

    return found


def _heartbeat_age(mirror: ServedMirror) -> float | None:
    """Return how old the last heartbeat is by our clock, as the engine's health knows it."""
    health = mirror.status.health if mirror.status is not None else None
    return None if health is None or health.name is None or health.age_ms is None else health.age_ms / 1000


def _counted(codes: Iterable[str], found: Iterable[str | None]) -> Iterator[Value]:
    """Yield how many there are of each code, zeros included."""
    counts = Counter(found)
    return (((str(code),), counts[code]) for code in codes)


def _partition_state(row: PartitionRow) -> str:
    """Return the state as `describe` shows it: the reason why nothing is copied, otherwise the stored state."""
    return row.reason if row.is_idle and row.reason is not None else row.state


def _is_lag_missing(row: PartitionRow) -> bool:
    is_idle = row.state is PartitionState.STOPPED or row.reason is Reason.PAUSED_BY_OPERATOR
    return row.lag is None and not is_idle


def _copied(of: Literal["records", "bytes"]) -> Callable[[ServedMirror], Iterator[Value]]:
    def values(mirror: ServedMirror) -> Iterator[Value]:
        copied = _snapshot(mirror).counters.copied
        return (((t.topic,), getattr(copied[t.topic], of) if t.topic in copied else 0) for t in mirror.topics)

    return values


def _partitions(mirror: ServedMirror) -> list[PartitionRow]:
    """Return the partitions that have metrics of their own."""
    if mirror.settings is None or not mirror.settings.metrics_per_partition:
        return []
    return [row for row in mirror.partitions if not row.is_stopped]


def _of_rows(
    columns: Iterable[Column[T]], labels: tuple[str, ...], rows: Callable[[ServedMirror], Iterable[T]]
) -> Iterator[Metric[ServedMirror]]:
    """Yield the metrics that columns declare, of these rows of a mirror; `labels` are fields of theirs."""

    def values(column: Column[T], mirror: ServedMirror) -> Iterator[Value]:
        is_known = column.gauge.is_known if column.gauge is not None else None
        parts = 1000 if column.type.words == DURATION.words else 1
        for row in rows(mirror):
            value: Any = column.value(row) if is_known is None or is_known(row) else None
            if value is not None:
                yield tuple(str(getattr(row, label)) for label in labels), value / parts

    for column in columns:
        if (gauge := column.gauge) is not None:
            same = gauge.absent, gauge.kip_1279, gauge.cluster_linking, labels
            yield Metric(gauge.name, gauge.unit, gauge.meaning, partial(values, column), *same)


def _source_offsets(mirror: ServedMirror) -> Iterator[Value]:
    known_ms = mirror.time_ms - KNOWN_SECONDS * 1000
    for row in _partitions(mirror):
        if row.source_offset is not None and row.as_of_ms is not None and row.as_of_ms >= known_ms:
            yield (row.topic, str(row.partition)), row.source_offset


def _source_up(mirror: ServedMirror) -> bool | None:
    if mirror.snapshot is None:
        engine = _engine(mirror)
        is_heard = mirror.status is not None and mirror.status.health.reason is None
        return engine.source_reason is None if engine is not None and is_heard else None
    if mirror.snapshot.source_trouble is not None:
        return False
    return None if mirror.snapshot.source_seen_at is None else True


def _lanes_silent(mirror: ServedMirror) -> int | None:
    if mirror.snapshot is not None:
        return len(mirror.snapshot.silent_lanes)
    engine = _engine(mirror)
    return None if engine is None else len(engine.silent_lanes or {})


def _lane_ages(snapshot: MirrorSnapshot) -> Iterator[Value]:
    return (
        ((str(lane),), _age(snapshot, at))
        for lane, at in sorted(snapshot.lanes_reported_at.items())
        if lane in snapshot.lanes
    )


def _job_ages(snapshot: MirrorSnapshot) -> Iterator[Value]:
    for name, job in JOBS.items():
        if name in snapshot.jobs:
            yield (job,), _age(snapshot, snapshot.jobs_done_at.get(name, snapshot.began_at))


def _objectives_met(mirror: ServedMirror) -> Iterator[Value]:
    for topic in mirror.topics:
        if topic.objective_state not in (None, ObjectiveState.UNKNOWN):
            yield (topic.topic,), topic.objective_state is ObjectiveState.WITHIN


#: The side jobs: their names in sentences, and in labels.
JOBS = {
    "group offsets": "groups",
    "topic settings": "settings",
    "rights": "rights",
    "discovery": "discovery",
    "clients": "clients",
    "checkpoints": "checkpoints",
    "heartbeats": "heartbeats",
}
PARTITION_STATES = (*PartitionState, *sorted(NOT_COPYING))
_NO_ENGINE = "from `serve` while no engine is in charge"
_FETCHER = "of `MirrorFetcherManager`"
_LINK = "of `ClusterLinkFetcherManager`"

METRICS: tuple[Metric[ServedMirror], ...] = (
    Metric(
        "kmirror_engine_start_time_seconds",
        "epoch seconds",
        "when the engine took charge of the mirror",
        _of_record(lambda engine: engine.since_ms / 1000),
        _NO_ENGINE,
    ),
    Metric(
        "kmirror_engine_heartbeat_age_seconds",
        "seconds",
        "since the destination last accepted a heartbeat of the engine; one is due every second",
        _heartbeat_age,
        f"{_NO_ENGINE}, and if its clock is ahead until a heartbeat arrives",
    ),
    Metric(
        "kmirror_source_up",
        "1 or 0",
        "1 while the source answers the engine and may be mirrored",
        _source_up,
        "before the first answer; from `serve` while no engine reports",
        cluster_linking="`link-count`",
    ),
    _of_engine(
        "kmirror_source_answer_age_seconds",
        "seconds",
        "since the source last answered the source monitor; one answer is due every `refresh.interval.seconds`",
        lambda snapshot: None if snapshot.source_seen_at is None else _age(snapshot, snapshot.source_seen_at),
        "before the first answer",
    ),
    Metric(
        "kmirror_topics",
        "topics",
        "topics by topic state",
        lambda mirror: _counted(TopicState, (topic.state for topic in mirror.topics)),
        cluster_linking="`mirror-topic-count`",
        labels=("state",),
    ),
    Metric(
        "kmirror_partitions",
        "partitions",
        "partitions by state; those that are not copied now count as "
        f"{', '.join(f'`{code}`' for code in sorted(NOT_COPYING))}, whatever their stored state is",
        lambda mirror: _counted(PARTITION_STATES, map(_partition_state, mirror.partitions)),
        kip_1279=f"`FailedPartitionsCount` {_FETCHER}",
        cluster_linking=f"`FailedPartitionsCount` {_LINK}",
        labels=("state",),
    ),
    Metric(
        "kmirror_partitions_by_reason",
        "partitions",
        "partitions by reason code; those without a reason are not counted",
        lambda mirror: _counted(Reason, (row.reason for row in mirror.partitions)),
        labels=("reason",),
    ),
    Metric(
        "kmirror_partitions_lag_unknown",
        "partitions",
        "partitions that must be copied and whose lag is unknown now; the lag of their topics is absent",
        lambda mirror: sum(map(_is_lag_missing, mirror.partitions)),
    ),
    *_of_rows(TOPICS.columns, ("topic",), lambda mirror: mirror.topics),
    Metric(
        "kmirror_topic_objective_met",
        "1 or 0",
        "1 while the topic is within its objective, 0 while it is not",
        _objectives_met,
        "while the time lag is unknown; if the topic has no objective",
        labels=("topic",),
    ),
    Metric(
        "kmirror_objectives",
        "topics",
        "topics with an objective, by whether they are within it",
        lambda mirror: _counted(ObjectiveState, (topic.objective_state for topic in mirror.topics)),
        labels=("state",),
    ),
    Metric(
        "kmirror_topic_records_copied_total",
        "records",
        "records copied since the engine began",
        _copied("records"),
        labels=("topic",),
        of_engine=True,
    ),
    Metric(
        "kmirror_topic_bytes_copied_total",
        "bytes",
        "bytes of the batches copied since the engine began, as they are stored",
        _copied("bytes"),
        "",
        "`BytesPerSec` of `FetcherStats`",
        "`BytesPerSec`",
        labels=("topic",),
        of_engine=True,
    ),
    *_of_rows(PARTITIONS.columns, ("topic", "partition"), _partitions),
    Metric(
        "kmirror_partition_source_offset",
        "offset, exclusive",
        "the source's last stable offset, as the source returned it within the last 10 seconds",
        _source_offsets,
        f"{PER_PARTITION}; while the source does not return it; if STOPPED",
        labels=("topic", "partition"),
    ),
    _total("batches_copied", "batches", "batches appended since the engine began"),
    _total(
        "batches_taken_apart",
        "batches",
        "batches of the source that could not be sent as they are, and were decoded and rebuilt",
    ),
    _total(
        "batches_merged",
        "batches",
        "small batches of the source that were merged with their neighbours (copy.merge.batches)",
    ),
    _total("offsets_filled", "offsets", "offsets at which the source shows no record, filled at the destination"),
    _total("fetched_bytes", "bytes", "bytes fetched from the source"),
    _of_engine(
        "kmirror_throttled_seconds_total",
        "seconds",
        "how long lanes have waited for `throttle.bytes.per.second`, summed over the lanes",
        lambda snapshot: snapshot.counters.throttled_ms / 1000,
    ),
    Metric(
        "kmirror_throttle_limit_bytes_per_second",
        "bytes per second",
        "the mirror's `throttle.bytes.per.second`",
        lambda mirror: throttle_of(mirror.status.record) if mirror.status is not None else None,
        "if there is no limit",
    ),
    _of_engine(
        "kmirror_fetch_duration_seconds",
        "seconds",
        "from request to answer of fetches that returned records; includes the source's wait for records",
        lambda snapshot: snapshot.counters.fetch_latencies,
        is_histogram=True,
    ),
    _of_engine(
        "kmirror_produce_duration_seconds",
        "seconds",
        "from request to answer of appends at the destination",
        lambda snapshot: snapshot.counters.produce_latencies,
        is_histogram=True,
    ),
    Metric(
        "kmirror_lanes",
        "lanes",
        "lanes that should be copying",
        _of_record(lambda engine: len(engine.lanes)),
        _NO_ENGINE,
    ),
    Metric(
        "kmirror_lanes_silent",
        "lanes",
        "lanes that no worker has reported on for 10 seconds",
        _lanes_silent,
        _NO_ENGINE,
        kip_1279=f"`DeadThreadCount` {_FETCHER}",
        cluster_linking=f"`DeadThreadCount` {_LINK}",
    ),
    _of_engine(
        "kmirror_lane_report_age_seconds",
        "seconds",
        "since a lane last reported; a report is due every 2 seconds",
        _lane_ages,
        "before its first report; `kmirror_lanes_silent` counts it",
        labels=("lane",),
    ),
    _of_engine(
        "kmirror_lane_restarts_total",
        "restarts",
        "lanes that died, stopped responding or lost their worker, and were started again",
        lambda snapshot: snapshot.lane_restarts,
    ),
    _of_engine(
        "kmirror_job_success_age_seconds",
        "seconds",
        "since a side job last succeeded, or since the engine started if it has not yet; a job that is switched off has"
        " nothing to do and succeeds",
        _job_ages,
        cluster_linking="`link-task-count`",
        labels=("sync",),
    ),
    Metric(
        "kmirror_source_topics_not_added",
        "topics",
        "source topics that its filters select and that its engine could not add when it last looked",
        lambda mirror: None if mirror.row is None else mirror.row.not_added,
        "while no engine copies it",
    ),
    Metric(
        "kmirror_groups",
        "groups",
        "groups of the source whose offsets are synced or would be, when they were last counted (about once a minute)",
        lambda mirror: None if (found := mirror.state.groups_checked(mirror.name)) is None else found.groups,
        "before they were first counted",
    ),
    Metric(
        "kmirror_groups_skipped",
        "groups",
        "groups whose offsets or metadata are not synced until someone acts, by the reason of `describe --groups`",
        lambda mirror: _counted(sorted(LASTING_REASONS), (one.skipped for one in mirror.state.groups(mirror.name))),
        labels=("reason",),
    ),
    _of_engine(
        "kmirror_failures_total",
        "failures",
        "how often a partition became FAILED, or FAILED for another reason",
        lambda snapshot: snapshot.events["partition", "FAILED"],
    ),
    _of_engine(
        "kmirror_losses_total",
        "losses",
        "how often copying resumed after records that the source had lost before they were copied",
        lambda snapshot: snapshot.events["partition", "LOSS_ACCEPTED"],
    ),
    _of_engine(
        "kmirror_lost_records_total",
        "offsets",
        "how many offsets these losses skipped",
        lambda snapshot: snapshot.lost_records,
    ),
    _of_engine(
        "kmirror_rebuilds_total",
        "rebuilds",
        "topics rebuilt because their source was recreated or its history rewritten",
        lambda snapshot: snapshot.rebuilds,
    ),
    Metric(
        "kmirror_topics_rebuilding",
        "topics",
        "topics that are being rebuilt now",
        lambda mirror: sum(one.rebuild is not None for one in mirror.state.topics(mirror.name)),
    ),
    Metric(
        "kmirror_topics_archived",
        "topics",
        "topics whose records from before their last rebuild are in an archive",
        lambda mirror: sum(one.archive is not None for one in mirror.state.topics(mirror.name)),
    ),
)
