"""The metrics of a running engine: each is declared once, with its meaning and its value. Pure.

Those of what topics and partitions show are declared with their columns (`kmirror.status`); the others are here.

A value that is not known has no sample: an absent series cannot be taken for a zero. /metrics and docs/metrics.md are
both made from these declarations.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar, cast

from kmirror import __version__
from kmirror.columns import DURATION, Column
from kmirror.engine.driver.engines import NotCopied
from kmirror.engine.status.health import KNOWN_SECONDS
from kmirror.errors import NOT_COPYING, Reason
from kmirror.state.group_records import LASTING_REASONS
from kmirror.state.records import Latencies, PartitionState
from kmirror.status.mirror_status import throttle_of
from kmirror.status.objective_state import ObjectiveState
from kmirror.status.partition_row import PARTITIONS, PER_PARTITION, PartitionRow
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TOPICS
from kmirror.web.live_mirror import LiveMirror

#: The values of its labels except `mirror`, and its own: that of a histogram are the latencies of requests.
Value = tuple[tuple[str, ...], float | Latencies]


@dataclass(frozen=True, slots=True)
class RunStatus:
    """What is known of a run: its phase; while it copies, its mirrors, and those without an engine."""

    phase: str
    time_ms: int
    #: What it waits for; None once it copies.
    waits_for: str | None
    mirrors: tuple[LiveMirror, ...] = ()
    not_copied: Mapping[str, NotCopied] = field(default_factory=dict)

    @property
    def are_stopped(self) -> bool:
        """True if every topic of every mirror is STOPPED: there is nothing to copy."""
        rows = [row for one in self.mirrors for row in one.partitions]
        is_copying = self.waits_for is None and not self.not_copied
        return is_copying and bool(rows) and all(row.state is PartitionState.STOPPED for row in rows)

    @property
    def missing(self) -> str | None:
        """Why records do not flow, a line for each mirror; None if they do, or if all topics are STOPPED."""
        if self.waits_for is not None:
            return self.waits_for
        found = {one.name: one.missing for one in self.mirrors if one.missing is not None}
        found |= {mirror: not_copied.why for mirror, not_copied in self.not_copied.items()}
        if not self.mirrors and not found:
            return "there is no mirror to copy"
        return "\n".join(f"{mirror}: {why}" for mirror, why in sorted(found.items())) or None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """Declare one metric; those of mirrors have the label `mirror` before their `labels`.

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

    def samples(self, of: T) -> Iterable[Value]:
        """Return the samples of a run or a mirror; what is not known has none."""
        found = self.value(of)
        if self.labels:
            return cast(Iterable[Value], found)
        return [] if found is None else [((), found)]

    @property
    def kind(self) -> str:
        """The type, in Prometheus' words: the names of counters say that they are."""
        return "histogram" if self.is_histogram else "counter" if self.name.endswith("_total") else "gauge"


def _total(counter: str, unit: str, meaning: str) -> Metric[LiveMirror]:
    """Return the metric of a field of Counters."""
    return Metric(f"kmirror_{counter}_total", unit, meaning, lambda mirror: getattr(mirror.snapshot.counters, counter))


def _counted(codes: Iterable[str], found: Iterable[str | None]) -> Iterator[Value]:
    """Yield how many there are of each code, zeros included."""
    counts = Counter(found)
    return (((str(code),), counts[code]) for code in codes)


def _healthy(run: RunStatus) -> Iterator[Value]:
    yield from (((one.name,), one.missing is None) for one in run.mirrors)
    yield from (((mirror,), False) for mirror in run.not_copied)


def _partition_state(row: PartitionRow) -> str:
    """Return the state as `describe` shows it: the reason why nothing is copied, otherwise the stored state."""
    return row.reason if row.is_idle and row.reason is not None else row.state


def _is_lag_missing(row: PartitionRow) -> bool:
    is_idle = row.state is PartitionState.STOPPED or row.reason is Reason.PAUSED_BY_OPERATOR
    return row.lag is None and not is_idle


def _copied(of: Literal["records", "bytes"]) -> Callable[[LiveMirror], Iterator[Value]]:
    def values(mirror: LiveMirror) -> Iterator[Value]:
        copied = mirror.snapshot.counters.copied
        return (((t.topic,), getattr(copied[t.topic], of) if t.topic in copied else 0) for t in mirror.topics)

    return values


def _partitions(mirror: LiveMirror) -> list[PartitionRow]:
    """Return the partitions that have metrics of their own."""
    if mirror.settings is None or not mirror.settings.metrics_per_partition:
        return []
    return [row for row in mirror.partitions if not row.is_stopped]


def _of_rows(
    columns: Iterable[Column[T]], labels: tuple[str, ...], rows: Callable[[LiveMirror], Iterable[T]]
) -> Iterator[Metric[LiveMirror]]:
    """Yield the metrics that columns declare, of these rows of a mirror; `labels` are fields of theirs."""

    def values(column: Column[T], mirror: LiveMirror) -> Iterator[Value]:
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


def _source_offsets(mirror: LiveMirror) -> Iterator[Value]:
    known_ms = mirror.snapshot.time_ms - KNOWN_SECONDS * 1000
    for row in _partitions(mirror):
        if row.source_offset is not None and row.as_of_ms is not None and row.as_of_ms >= known_ms:
            yield (row.topic, str(row.partition)), row.source_offset


def _source_up(mirror: LiveMirror) -> bool | None:
    if mirror.snapshot.source_trouble is not None:
        return False
    return None if mirror.snapshot.source_seen_at is None else True


def _lane_ages(mirror: LiveMirror) -> Iterator[Value]:
    snapshot = mirror.snapshot
    return (
        ((str(lane),), mirror.age(at))
        for lane, at in sorted(snapshot.lanes_reported_at.items())
        if lane in snapshot.lanes
    )


def _job_ages(mirror: LiveMirror) -> Iterator[Value]:
    snapshot = mirror.snapshot
    for name, job in JOBS.items():
        if name in snapshot.jobs:
            yield (job,), mirror.age(snapshot.jobs_done_at.get(name, snapshot.began_at))


def _objectives_met(mirror: LiveMirror) -> Iterator[Value]:
    for topic in mirror.topics:
        if topic.objective_state not in (None, ObjectiveState.UNKNOWN):
            yield (topic.topic,), topic.objective_state is ObjectiveState.WITHIN


def _groups_skipped(mirror: LiveMirror) -> Iterator[Value]:
    return _counted(sorted(LASTING_REASONS), (one.skipped for one in mirror.state.groups(mirror.name)))


#: The side jobs: their names in sentences, and in labels.
JOBS = {"group offsets": "groups", "topic settings": "settings", "rights": "rights", "discovery": "discovery"}
PARTITION_STATES = (*PartitionState, *sorted(NOT_COPYING))
_FETCHER = "of `MirrorFetcherManager`"
_LINK = "of `ClusterLinkFetcherManager`"

#: The values of `phase`.
PHASES = ("waiting", "starting", "copying", "stopping")
RUN_METRICS: tuple[Metric[RunStatus], ...] = (
    Metric(
        "kmirror_build_info",
        "1",
        "1; its labels are the versions of kmirror and of Python",
        lambda _: [((__version__, sys.version.split()[0]), 1)],
        labels=("version", "python"),
    ),
    Metric(
        "kmirror_run_phase",
        "1 or 0",
        f"1 for the current phase of `run`: {', '.join(PHASES)}; a mirror has metrics only while `run` is copying",
        lambda run: (((one,), one == run.phase) for one in PHASES),
        labels=("phase",),
    ),
    Metric(
        "kmirror_healthy",
        "1 or 0",
        "1 while `wait --for healthy` would succeed: records flow; with `--all` 0 for each mirror without an engine",
        _healthy,
        "while `run` waits or starts",
        labels=("mirror",),
    ),
)
METRICS: tuple[Metric[LiveMirror], ...] = (
    Metric(
        "kmirror_engine_start_time_seconds",
        "epoch seconds",
        "when the engine took charge of the mirror",
        lambda mirror: mirror.snapshot.engine.since_ms / 1000,
    ),
    Metric(
        "kmirror_engine_heartbeat_age_seconds",
        "seconds",
        "since the destination last accepted a heartbeat of the engine; one is due every second",
        lambda mirror: max(0, mirror.snapshot.time_ms - mirror.snapshot.engine.last_seen_ms) / 1000,
    ),
    Metric(
        "kmirror_source_up",
        "1 or 0",
        "1 while the source answers the engine and may be mirrored",
        _source_up,
        "before the first answer",
        cluster_linking="`link-count`",
    ),
    Metric(
        "kmirror_source_answer_age_seconds",
        "seconds",
        "since the source last answered the source monitor; one answer is due every `refresh.interval.seconds`",
        lambda mirror: None if (seen_at := mirror.snapshot.source_seen_at) is None else mirror.age(seen_at),
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
    Metric(
        "kmirror_throttled_seconds_total",
        "seconds",
        "how long lanes have waited for `throttle.bytes.per.second`, summed over the lanes",
        lambda mirror: mirror.snapshot.counters.throttled_ms / 1000,
    ),
    Metric(
        "kmirror_throttle_limit_bytes_per_second",
        "bytes per second",
        "the mirror's `throttle.bytes.per.second`",
        lambda mirror: throttle_of(mirror.status.record) if mirror.status is not None else None,
        "if there is no limit",
    ),
    Metric(
        "kmirror_fetch_duration_seconds",
        "seconds",
        "from request to answer of fetches that returned records; includes the source's wait for records",
        lambda mirror: mirror.snapshot.counters.fetch_latencies,
        is_histogram=True,
    ),
    Metric(
        "kmirror_produce_duration_seconds",
        "seconds",
        "from request to answer of appends at the destination",
        lambda mirror: mirror.snapshot.counters.produce_latencies,
        is_histogram=True,
    ),
    Metric(
        "kmirror_lanes",
        "lanes",
        "lanes that should be copying",
        lambda mirror: len(mirror.snapshot.lanes),
    ),
    Metric(
        "kmirror_lanes_silent",
        "lanes",
        "lanes that no worker has reported on for 10 seconds",
        lambda mirror: len(mirror.snapshot.silent_lanes),
        kip_1279=f"`DeadThreadCount` {_FETCHER}",
        cluster_linking=f"`DeadThreadCount` {_LINK}",
    ),
    Metric(
        "kmirror_lane_report_age_seconds",
        "seconds",
        "since a lane last reported; a report is due every 2 seconds",
        _lane_ages,
        "before its first report; `kmirror_lanes_silent` counts it",
        labels=("lane",),
    ),
    Metric(
        "kmirror_lane_restarts_total",
        "restarts",
        "lanes that died, stopped responding or lost their worker, and were started again",
        lambda mirror: mirror.snapshot.lane_restarts,
    ),
    Metric(
        "kmirror_job_success_age_seconds",
        "seconds",
        "since a side job last succeeded, or since the engine started if it has not yet; a job that is switched off has"
        " nothing to do and succeeds",
        _job_ages,
        cluster_linking="`link-task-count`",
        labels=("sync",),
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
        _groups_skipped,
        labels=("reason",),
    ),
    Metric(
        "kmirror_failures_total",
        "failures",
        "how often a partition became FAILED, or FAILED for another reason",
        lambda mirror: mirror.snapshot.events["partition", "FAILED"],
    ),
    Metric(
        "kmirror_losses_total",
        "losses",
        "how often copying resumed after records that the source had lost before they were copied",
        lambda mirror: mirror.snapshot.events["partition", "LOSS_ACCEPTED"],
    ),
    Metric(
        "kmirror_lost_records_total",
        "offsets",
        "how many offsets these losses skipped",
        lambda mirror: mirror.snapshot.lost_records,
    ),
    Metric(
        "kmirror_rebuilds_total",
        "rebuilds",
        "topics rebuilt because their source was recreated or its history rewritten",
        lambda mirror: mirror.snapshot.rebuilds,
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
