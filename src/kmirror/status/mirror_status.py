"""The status of a mirror: its topics, and its row in `list` and `/status.json`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kmirror.columns import COUNT, DURATION, REASON, TEXT, TIME, Table, columns_of, one_of, shown, table_row
from kmirror.errors import NOT_COPYING, Reason
from kmirror.settings.objectives import Objectives
from kmirror.settings.parsing import stored_settings
from kmirror.state.engine_findings import NotAdded
from kmirror.state.records import MirrorRecord
from kmirror.status.engine_health import EngineHealth
from kmirror.status.objective_state import ObjectiveState
from kmirror.status.partition_row import LIMIT, NO_ENGINE, RATE, PartitionRow, shown_duration
from kmirror.status.topic_state import SourceTrouble, TopicState
from kmirror.status.topic_status import TopicStatus, shown_lag, totals

#: A mirror's state is the first of these that one of its topics is in.
_WORST_FIRST = (
    TopicState.FAILED,
    TopicState.PENDING_STOPPED,
    TopicState.SOURCE_UNAVAILABLE,
    TopicState.LINK_FAILED,
    TopicState.PENDING_MIRROR,
    TopicState.ACTIVE,
    TopicState.PAUSED,
    TopicState.STOPPED,
)


@table_row
class MirrorRow:
    """One mirror, as `list` shows it.

    `topics`, `stopped_topics` of them and `partitions` are counts, `state` sums up the topics' states (None without
    topics), `engine` is in charge or has been silent for less than a minute (None without one), `max_lag` is the
    largest known lag, a lower bound if `lag_unknown` partitions have none. `reason` is why nothing is copied.
    """

    mirror: str = shown(TEXT, "the mirror", "MIRROR")
    topics: int = shown(COUNT, "how many topics it has", "TOPICS")
    partitions: int = shown(COUNT, "how many partitions the topics have", "PARTITIONS")
    source_cluster_id: str | None = shown(
        TEXT.null_when("not recorded"), "id of the source cluster", "SOURCE-CLUSTER-ID"
    )
    source_bootstrap_server: str | None = shown(
        TEXT.null_when("not recorded"), "addresses of the source, comma-separated", "SOURCE"
    )
    state: TopicState | None = shown(
        one_of("topic state", TopicState).null_when("it has no topics, and its source answers"),
        "the worst state among its topics; STOPPED if all of them are",
        "STATE",
    )
    engine: str | None = shown(TEXT.null_when(NO_ENGINE), "the engine in charge", "ENGINE")
    max_lag: int | None = shown(
        COUNT.null_when("no lag is known"),
        "the largest known lag among its partitions",
        "MAX-LAG",
        of_row=lambda mirror: shown_lag(mirror.max_lag, mirror.lag_unknown),
    )
    reason: Reason | None = shown(
        REASON.null_when("all is well"), "the reason of the first partition that is not copied", "REASON", default=None
    )
    engine_last_seen_ms: int | None = shown(
        TIME.null_when("no engine ever ran"), "the last heartbeat of an engine", default=None
    )
    engine_age_ms: int | None = shown(
        DURATION.null_when("no engine ever ran, or its clock is ahead"),
        "how long ago that was",
        "HEARTBEAT-AGE",
        cell=shown_duration,
        default=None,
    )
    throttle_bytes_per_second: int | None = shown(LIMIT, "the mirror's throttle.bytes.per.second", default=None)
    bytes_per_second: int | None = shown(
        RATE.null_when("no lane reports on any of its partitions"), "how fast it is copied", default=None
    )
    max_time_lag_ms: int | None = shown(
        DURATION.null_when("unknown for a partition that is not STOPPED, or there is no such partition"),
        "the largest timeLagMs among its partitions",
        default=None,
    )
    eta_ms: int | None = shown(
        DURATION.null_when(
            "it has no partitions but STOPPED ones, one that lags is not being copied, its lag or speed is unknown,"
            " or the source grows faster than the copy"
        ),
        "time until the lag of all its partitions is 0 at the present speed",
        default=None,
    )
    lag_unknown: int = shown(COUNT, "for how many partitions that are not STOPPED the lag is unknown", default=0)
    stopped_topics: int = shown(
        COUNT, "how many of its topics are STOPPED: promoted, failed over or removed", "STOPPED"
    )
    objectives_within: int = shown(COUNT, "how many of its topics are within their objectives", default=0)
    objectives_breached: int = shown(COUNT, "how many of its topics have breached their objectives", default=0)
    objectives_unknown: int = shown(COUNT, "of how many of its topics that is unknown", default=0)
    not_added: int | None = shown(
        COUNT.null_when("no engine copies it"),
        "how many source topics its filters select that its engine could not add",
        default=None,
    )
    failing_jobs: int | None = shown(
        COUNT.null_when("no engine copies it"),
        "how many of what its engine does beside copying has failed for long: groups, settings, rights, discovery",
        default=None,
    )

    def to_json(self) -> dict[str, Any]:
        """Return the row as `--json` prints it."""
        return MIRRORS.document(self)


MIRRORS: Table[MirrorRow] = Table(
    columns_of(MirrorRow),
    "MIRROR TOPICS STOPPED PARTITIONS STATE MAX-LAG SOURCE-CLUSTER-ID SOURCE ENGINE HEARTBEAT-AGE REASON",
    none="no mirrors on this destination; `kmirror create` makes one",
)
#: As Kafka's cluster mirroring shows it (KIP-1279).
KAFKA_MIRRORS: Table[MirrorRow] = Table(
    tuple(replace(one, header="SOURCE-BOOTSTRAP-SERVER") if one.header == "SOURCE" else one for one in MIRRORS.columns),
    "MIRROR TOPICS SOURCE-CLUSTER-ID SOURCE-BOOTSTRAP-SERVER",
    none="No mirrors found",
)


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """One mirror with topics of it, sorted by name, out of `topic_count`; `trouble` is what its source has.

    `not_added` are the source topics that discovery could not add, each with a sentence; `failing_jobs` is how much
    of what its engine should do beside copying it does not.
    """

    record: MirrorRecord
    topics: tuple[TopicStatus, ...]
    topic_count: int
    health: EngineHealth
    trouble: SourceTrouble
    not_added: NotAdded
    failing_jobs: int = 0

    @property
    def partitions(self) -> list[PartitionRow]:
        """Its partitions, by topic and number."""
        return [row for topic in self.topics for row in topic.partitions]

    def changed(self, change: Callable[[PartitionRow], PartitionRow]) -> MirrorStatus:
        """Return the mirror after a change of its partitions."""
        return replace(self, topics=tuple(topic.changed(change) for topic in self.topics))

    @property
    def row(self) -> MirrorRow:
        """Sum up the mirror."""
        states = {topic.state for topic in self.topics}
        worst = next((one for one in _WORST_FIRST if one in states), None)
        if worst is None:
            worst = _state_without_topics(self.trouble, self.health)
        rows, health = self.partitions, self.health
        sums, objectives = totals(rows), Counter(topic.objective_state for topic in self.topics)
        idle = (row.reason for row in rows if row.reason in NOT_COPYING)
        reasons = (row.reason for row in rows if row.topic_state is worst and row.reason is not None)
        return MirrorRow(
            mirror=self.record.name,
            topics=self.topic_count,
            stopped_topics=sum(topic.state is TopicState.STOPPED for topic in self.topics),
            partitions=len(rows),
            source_cluster_id=self.record.source_cluster_id,
            source_bootstrap_server=self.record.source.get("bootstrap.servers"),
            state=worst,
            engine=health.name,
            max_lag=max((row.lag for row in rows if row.lag is not None), default=None),
            lag_unknown=sums.unknown_lags,
            reason=health.reason if health.problem else next(idle, None) or next(reasons, None),
            engine_last_seen_ms=health.last_seen_ms,
            engine_age_ms=health.age_ms,
            throttle_bytes_per_second=throttle_of(self.record),
            bytes_per_second=sums.bytes_per_second,
            max_time_lag_ms=sums.time_lag_ms,
            eta_ms=sums.eta_ms,
            objectives_within=objectives[ObjectiveState.WITHIN],
            objectives_breached=objectives[ObjectiveState.BREACHED],
            objectives_unknown=objectives[ObjectiveState.UNKNOWN],
            not_added=self.not_added.topics if health.reason is None else None,
            failing_jobs=self.failing_jobs if health.reason is None else None,
        )


def objectives_of(mirror: MirrorRecord) -> Objectives:
    """Return the objectives of a mirror's topics."""
    return stored_settings(mirror.settings).objective_rpo


def throttle_of(mirror: MirrorRecord) -> int | None:
    """Return a mirror's limit in bytes per second; None if it has none."""
    return stored_settings(mirror.settings).throttle_bytes_per_second or None


def _state_without_topics(trouble: SourceTrouble, health: EngineHealth) -> TopicState | None:
    if trouble is SourceTrouble.SILENT:
        return TopicState.SOURCE_UNAVAILABLE
    is_refused = trouble is SourceTrouble.REFUSED or health.reason is Reason.STATE_UNREADABLE
    return TopicState.LINK_FAILED if is_refused else None
