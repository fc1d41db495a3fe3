"""The metrics of a running engine: each is declared once, with its meaning and its value. Pure.

A value that is not known has no sample: an absent series cannot be taken for a zero. /metrics and docs/metrics.md are
both made from these declarations.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from kmirror import __version__
from kmirror.engine.driver.engines import NotCopied
from kmirror.engine.status.health import KNOWN_SECONDS
from kmirror.errors import NOT_COPYING, Reason
from kmirror.state.group_records import LASTING_REASONS
from kmirror.state.records import Latencies, PartitionState
from kmirror.status.mirror_status import throttle_of
from kmirror.status.partition_row import PartitionRow
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TopicStatus
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
    kind: Literal["gauge", "counter", "histogram"]
    unit: str
    meaning: str
    values: Callable[[T], Iterable[Value]]
    #: When there is no sample, in words; "" if there always is one.
    absent: str = ""
    kip_1279: str = ""
    cluster_linking: str = ""
    labels: tuple[str, ...] = ()


def _one(value: float | Latencies | None) -> list[Value]:
    return [] if value is None else [((), value)]


def _total(counter: str, unit: str, meaning: str) -> Metric[LiveMirror]:
    """Return the metric of a field of Counters."""

    def values(mirror: LiveMirror) -> list[Value]:
        return _one(getattr(mirror.snapshot.counters, counter))

    return Metric(f"kmirror_{counter}_total", "counter", unit, meaning, values)


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


def _topics(value: Callable[[TopicStatus], float | None]) -> Callable[[LiveMirror], Iterator[Value]]:
    def values(mirror: LiveMirror) -> Iterator[Value]:
        return (((topic.topic,), found) for topic in mirror.topics if (found := value(topic)) is not None)

    return values


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _copied(of: Literal["records", "bytes"]) -> Callable[[LiveMirror], Iterator[Value]]:
    def values(mirror: LiveMirror) -> Iterator[Value]:
        copied = mirror.snapshot.counters.copied
        return (((t.topic,), getattr(copied[t.topic], of) if t.topic in copied else 0) for t in mirror.topics)

    return values


def _partitions(value: Callable[[PartitionRow], float | None]) -> Callable[[LiveMirror], Iterator[Value]]:
    def values(mirror: LiveMirror) -> Iterator[Value]:
        if mirror.settings is None or not mirror.settings.metrics_per_partition:
            return
        for row in mirror.partitions:
            if (found := value(row)) is not None and row.state is not PartitionState.STOPPED:
                yield (row.topic, str(row.partition)), found

    return values


def _source_offsets(mirror: LiveMirror) -> Iterator[Value]:
    known_ms = mirror.snapshot.time_ms - KNOWN_SECONDS * 1000
    return _partitions(
        lambda row: row.source_offset if row.as_of_ms is not None and row.as_of_ms >= known_ms else None
    )(mirror)


def _source_up(mirror: LiveMirror) -> list[Value]:
    snapshot = mirror.snapshot
    is_known = snapshot.source_trouble is not None or snapshot.source_seen_at is not None
    return _one(snapshot.source_trouble is None if is_known else None)


def _source_age(mirror: LiveMirror) -> list[Value]:
    seen_at = mirror.snapshot.source_seen_at
    return _one(None if seen_at is None else mirror.age(seen_at))


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


def _groups_skipped(mirror: LiveMirror) -> Iterator[Value]:
    return _counted(sorted(LASTING_REASONS), (one.skipped for one in mirror.state.groups(mirror.name)))


def _groups(mirror: LiveMirror) -> list[Value]:
    found = mirror.state.groups_checked(mirror.name)
    return _one(None if found is None else found.groups)


def _heartbeat_age(mirror: LiveMirror) -> list[Value]:
    snapshot = mirror.snapshot
    return _one(max(0, snapshot.time_ms - snapshot.engine.last_seen_ms) / 1000)


def _throttle(mirror: LiveMirror) -> list[Value]:
    return _one(throttle_of(mirror.status.record) if mirror.status is not None else None)


def _topic_records(mirror: LiveMirror, of: Literal["rebuild", "archive"]) -> int:
    return sum(getattr(one, of) is not None for one in mirror.state.topics(mirror.name))


#: The side jobs: their names in sentences, and in labels.
JOBS = {"group offsets": "groups", "topic settings": "settings", "rights": "rights", "discovery": "discovery"}
PARTITION_STATES = (*PartitionState, *sorted(NOT_COPYING))
_FETCHER = "of `MirrorFetcherManager`"
_LINK = "of `ClusterLinkFetcherManager`"
_SETTING = "unless the mirror has `metrics.per.partition=true`"

#: The values of `phase`.
PHASES = ("waiting", "starting", "copying", "stopping")
RUN_METRICS: tuple[Metric[RunStatus], ...] = (
    Metric(
        "kmirror_build_info",
        "gauge",
        "1",
        "1; its labels are the versions of kmirror and of Python",
        lambda _: [((__version__, sys.version.split()[0]), 1)],
        labels=("version", "python"),
    ),
    Metric(
        "kmirror_run_phase",
        "gauge",
        "1 or 0",
        f"1 for the current phase of `run`: {', '.join(PHASES)}; a mirror has metrics only while `run` is copying",
        lambda run: (((one,), one == run.phase) for one in PHASES),
        labels=("phase",),
    ),
    Metric(
        "kmirror_healthy",
        "gauge",
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
        "gauge",
        "epoch seconds",
        "when the engine took charge of the mirror",
        lambda mirror: _one(mirror.snapshot.engine.since_ms / 1000),
    ),
    Metric(
        "kmirror_engine_heartbeat_age_seconds",
        "gauge",
        "seconds",
        "since the destination last accepted a heartbeat of the engine; one is due every second",
        _heartbeat_age,
    ),
    Metric(
        "kmirror_source_up",
        "gauge",
        "1 or 0",
        "1 while the source answers the engine and may be mirrored",
        _source_up,
        "before the first answer",
        cluster_linking="`link-count`",
    ),
    Metric(
        "kmirror_source_answer_age_seconds",
        "gauge",
        "seconds",
        "since the source last answered the source monitor; one answer is due every `refresh.interval.seconds`",
        _source_age,
        "before the first answer",
    ),
    Metric(
        "kmirror_topics",
        "gauge",
        "topics",
        "topics by topic state",
        lambda mirror: _counted(TopicState, (topic.state for topic in mirror.topics)),
        cluster_linking="`mirror-topic-count`",
        labels=("state",),
    ),
    Metric(
        "kmirror_partitions",
        "gauge",
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
        "gauge",
        "partitions",
        "partitions by reason code; those without a reason are not counted",
        lambda mirror: _counted(Reason, (row.reason for row in mirror.partitions)),
        labels=("reason",),
    ),
    Metric(
        "kmirror_partitions_lag_unknown",
        "gauge",
        "partitions",
        "partitions that must be copied and whose lag is unknown now; the lag of their topics is absent",
        lambda mirror: _one(sum(map(_is_lag_missing, mirror.partitions))),
    ),
    Metric(
        "kmirror_topic_lag_offsets",
        "gauge",
        "offsets",
        "offsets that the destination lacks, summed over the partitions",
        _topics(lambda topic: None if topic.lag_unknown else topic.lag),
        "while the lag of one of its partitions is unknown, and if all are STOPPED",
        f"`MaxLag` {_FETCHER}",
        f"`MaxLag` {_LINK}",
        labels=("topic",),
    ),
    Metric(
        "kmirror_topic_lag_seconds",
        "gauge",
        "seconds",
        "`timeLagMs` of `describe`, the largest of its partitions",
        _topics(lambda topic: _seconds(topic.time_lag_ms)),
        "while it is unknown for one of its partitions, and if all are STOPPED",
        labels=("topic",),
    ),
    Metric(
        "kmirror_topic_partitions_failed",
        "gauge",
        "partitions",
        "partitions of the topic that are FAILED",
        _topics(lambda topic: topic.failed),
        cluster_linking="`failed-mirror-partition-count`",
        labels=("topic",),
    ),
    Metric(
        "kmirror_topic_records_copied_total",
        "counter",
        "records",
        "records copied since the engine began",
        _copied("records"),
        labels=("topic",),
    ),
    Metric(
        "kmirror_topic_bytes_copied_total",
        "counter",
        "bytes",
        "bytes of the batches copied since the engine began, as they are stored",
        _copied("bytes"),
        "",
        "`BytesPerSec` of `FetcherStats`",
        "`BytesPerSec`",
        labels=("topic",),
    ),
    Metric(
        "kmirror_partition_lag_offsets",
        "gauge",
        "offsets",
        "offsets that the destination lacks",
        _partitions(lambda row: row.lag),
        f"{_SETTING}; while it is unknown; if STOPPED",
        "`ConsumerLag` of `FetcherLagMetrics`",
        "`ConsumerLag` of `FetcherLagMetrics`",
        labels=("topic", "partition"),
    ),
    Metric(
        "kmirror_partition_lag_seconds",
        "gauge",
        "seconds",
        "`timeLagMs` of `describe`",
        _partitions(lambda row: _seconds(row.time_lag_ms)),
        f"{_SETTING}; while it is unknown; if STOPPED",
        labels=("topic", "partition"),
    ),
    Metric(
        "kmirror_partition_source_offset",
        "gauge",
        "offset, exclusive",
        "the source's last stable offset, as the source returned it within the last 10 seconds",
        _source_offsets,
        f"{_SETTING}; while the source does not return it; if STOPPED",
        labels=("topic", "partition"),
    ),
    Metric(
        "kmirror_partition_destination_offset",
        "gauge",
        "offset, exclusive",
        "the destination's log end, as the lane that copies the partition last reported it",
        _partitions(lambda row: row.destination_offset),
        f"{_SETTING}; before a lane has reported; if STOPPED",
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
        "counter",
        "seconds",
        "how long lanes have waited for `throttle.bytes.per.second`, summed over the lanes",
        lambda mirror: _one(mirror.snapshot.counters.throttled_ms / 1000),
    ),
    Metric(
        "kmirror_throttle_limit_bytes_per_second",
        "gauge",
        "bytes per second",
        "the mirror's `throttle.bytes.per.second`",
        _throttle,
        "if there is no limit",
    ),
    Metric(
        "kmirror_fetch_duration_seconds",
        "histogram",
        "seconds",
        "from request to answer of fetches that returned records; includes the source's wait for records",
        lambda mirror: _one(mirror.snapshot.counters.fetch_latencies),
    ),
    Metric(
        "kmirror_produce_duration_seconds",
        "histogram",
        "seconds",
        "from request to answer of appends at the destination",
        lambda mirror: _one(mirror.snapshot.counters.produce_latencies),
    ),
    Metric(
        "kmirror_lanes",
        "gauge",
        "lanes",
        "lanes that should be copying",
        lambda mirror: _one(len(mirror.snapshot.lanes)),
    ),
    Metric(
        "kmirror_lanes_silent",
        "gauge",
        "lanes",
        "lanes that no worker has reported on for 10 seconds",
        lambda mirror: _one(len(mirror.snapshot.silent_lanes)),
        kip_1279=f"`DeadThreadCount` {_FETCHER}",
        cluster_linking=f"`DeadThreadCount` {_LINK}",
    ),
    Metric(
        "kmirror_lane_report_age_seconds",
        "gauge",
        "seconds",
        "since a lane last reported; a report is due every 2 seconds",
        _lane_ages,
        "before its first report; `kmirror_lanes_silent` counts it",
        labels=("lane",),
    ),
    Metric(
        "kmirror_lane_restarts_total",
        "counter",
        "restarts",
        "lanes that died, stopped responding or lost their worker, and were started again",
        lambda mirror: _one(mirror.snapshot.lane_restarts),
    ),
    Metric(
        "kmirror_job_success_age_seconds",
        "gauge",
        "seconds",
        "since a side job last succeeded, or since the engine started if it has not yet; a job that is switched off has"
        " nothing to do and succeeds",
        _job_ages,
        cluster_linking="`link-task-count`",
        labels=("sync",),
    ),
    Metric(
        "kmirror_groups",
        "gauge",
        "groups",
        "groups of the source whose offsets are synced or would be, when they were last counted (about once a minute)",
        _groups,
        "before they were first counted",
    ),
    Metric(
        "kmirror_groups_skipped",
        "gauge",
        "groups",
        "groups whose offsets or metadata are not synced until someone acts, by the reason of `describe --groups`",
        _groups_skipped,
        labels=("reason",),
    ),
    Metric(
        "kmirror_failures_total",
        "counter",
        "failures",
        "how often a partition became FAILED, or FAILED for another reason",
        lambda mirror: _one(mirror.snapshot.events["partition", "FAILED"]),
    ),
    Metric(
        "kmirror_losses_total",
        "counter",
        "losses",
        "how often copying resumed after records that the source had lost before they were copied",
        lambda mirror: _one(mirror.snapshot.events["partition", "LOSS_ACCEPTED"]),
    ),
    Metric(
        "kmirror_lost_records_total",
        "counter",
        "offsets",
        "how many offsets these losses skipped",
        lambda mirror: _one(mirror.snapshot.lost_records),
    ),
    Metric(
        "kmirror_rebuilds_total",
        "counter",
        "rebuilds",
        "topics rebuilt because their source was recreated or its history rewritten",
        lambda mirror: _one(mirror.snapshot.rebuilds),
    ),
    Metric(
        "kmirror_topics_rebuilding",
        "gauge",
        "topics",
        "topics that are being rebuilt now",
        lambda mirror: _one(_topic_records(mirror, "rebuild")),
    ),
    Metric(
        "kmirror_topics_archived",
        "gauge",
        "topics",
        "topics whose records from before their last rebuild are in an archive",
        lambda mirror: _one(_topic_records(mirror, "archive")),
    ),
)
