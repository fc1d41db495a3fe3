"""What is served of mirrors, whether their engines run in this process or their clusters are only watched. Pure.

`run --http` makes it of what its engines know (`web.live_mirror`), `serve` of what is stored on each cluster
(`web.stored_mirror`); paths, JSON and metrics are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from kmirror.columns import (
    COUNT,
    FLAG,
    TEXT,
    TIME,
    Column,
    R,
    Table,
    Type,
    columns_of,
    list_of,
    object_of,
    shown,
    table_row,
)
from kmirror.engine.driver.engines import NotCopied
from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.wait import Condition, judge, not_added_results
from kmirror.settings.table import Settings
from kmirror.state.history_records import TimedPoint, points_of
from kmirror.state.records import PartitionState
from kmirror.state.snapshot import State
from kmirror.status.engine_health import EngineHealth
from kmirror.status.mirror_status import MIRRORS, MirrorRow, MirrorStatus
from kmirror.status.partition_row import PartitionRow
from kmirror.status.topic_state import TopicState
from kmirror.status.topic_status import TopicStatus, Totals, totals
from kmirror.words import at_time

#: A watched cluster that was not read for this long counts as unknown.
FRESH_MS = 10_000
#: The phase of `serve`.
WATCHING = "watching"


#: What is cached of a mirror, and the same until its partitions change.
_SUMS = ("partitions", "totals", "is_reported", "is_settled", "failed", "topic_states")


class StuckError(Exception):
    """The threads that know what is served do not respond."""


@dataclass(frozen=True)
class ServedMirror:
    """One mirror at a time; `status` and `settings` are None if it is deleted.

    `cluster` is None for `run`. `snapshot` is what its engine knows besides, if it runs in this process.
    """

    name: str
    cluster: str | None
    time_ms: int
    state: State
    settings: Settings | None
    status: MirrorStatus | None
    #: What `wait --for healthy` would miss; None if it would succeed.
    missing: str | None
    snapshot: MirrorSnapshot | None = None
    #: Whether its engine runs on this host; None without one.
    engine_is_here: bool | None = None
    #: Whether time alone changes no end of a log that is known.
    are_ends_settled: bool = False

    @property
    def topics(self) -> tuple[TopicStatus, ...]:
        """Its topics."""
        return self.status.topics if self.status is not None else ()

    @cached_property
    def partitions(self) -> list[PartitionRow]:
        """Its partitions."""
        return self.status.partitions if self.status is not None else []

    @cached_property
    def row(self) -> MirrorRow | None:
        """Its row in `list`."""
        return self.status.row if self.status is not None else None

    @cached_property
    def totals(self) -> Totals:
        """Totals over its partitions."""
        return totals(self.partitions)

    @cached_property
    def is_reported(self) -> bool:
        """Whether an engine reports all partitions that are not stopped."""
        return all(row.is_reported or row.is_stopped for row in self.partitions)

    @cached_property
    def is_settled(self) -> bool:
        """Whether time alone changes nothing but the age of the engine's heartbeat."""
        return self.are_ends_settled and all(row.is_settled for row in self.partitions)

    @cached_property
    def failed(self) -> int:
        """How many of its partitions are FAILED."""
        return sum(row.failed for row in self.partitions)

    @cached_property
    def topic_states(self) -> Mapping[TopicState, int]:
        """How many of its topics are in each state."""
        return Counter(topic.state for topic in self.topics)

    def later(self, state: State, health: EngineHealth, time_ms: int) -> ServedMirror:
        """Return the same mirror at a later time, when nothing but the time of its engine's heartbeat is new."""
        if self.status is None or self.row is None:
            return self
        found = replace(self, state=state, time_ms=time_ms, status=replace(self.status, health=health))
        known = {name: value for name, value in vars(self).items() if name in _SUMS}
        row = replace(self.row, engine_last_seen_ms=health.last_seen_ms, engine_age_ms=health.age_ms)
        vars(found).update(known, row=row)
        return found

    def points(self, from_ms: int, until_ms: int) -> list[TimedPoint]:
        """Return the points of its history in a span of time, oldest first."""
        recent = self.snapshot.history if self.snapshot is not None else ()
        stored = points_of(self.state.history(self.name))
        older = [one for one in stored if not recent or one[0] < recent[0][0]]
        return [one for one in (*older, *recent) if from_ms <= one[0] <= until_ms]


@table_row(kw_only=False)
class ClusterStatus:
    """A watched cluster: `as_of_ms` is when its state was last read in full, `error` why it cannot be so now."""

    name: str = shown(TEXT, "its name in kmirror.toml, or its addresses")
    cluster_id: str | None = shown(TEXT.null_when("it has never answered"), "its id")
    bootstrap_servers: str = shown(TEXT, "its addresses, comma-separated")
    as_of_ms: int | None = shown(
        TIME.null_when("it was never read"),
        "when its state was last read in full; what is shown of it is of then",
        key="asOf",
    )
    #: Whether it was read lately enough.
    is_fresh: bool
    error: str | None = shown(
        TEXT.null_when("it can be read"), "why it cannot be read now, or not all that is stored", default=None
    )
    error_since_ms: int | None = shown(TIME.null_when("it can be read"), "since when", key="errorSince", default=None)
    offsets_as_of_ms: int | None = shown(
        TIME.null_when("they were never read"),
        "when the offsets of mirrors that no engine reports were last read, at both clusters",
        key="offsetsAsOf",
        default=None,
    )

    @property
    def missing(self) -> str | None:
        """Why what is known of it is not current; None if it is."""
        if self.is_fresh:
            return None
        last = f"last read at {at_time(self.as_of_ms)}" if self.as_of_ms is not None else "not read yet"
        return f"{last}: {self.error}" if self.error is not None else last


@dataclass(frozen=True, slots=True)
class ServedStatus:
    """What is known of a run, or of watched clusters, at a time.

    A run has a phase; while it copies, its mirrors, and those without an engine.
    """

    phase: str
    time_ms: int
    #: What it waits for; None once it copies.
    waits_for: str | None
    mirrors: tuple[ServedMirror, ...] = ()
    not_copied: Mapping[str, NotCopied] = field(default_factory=dict)
    #: The watched clusters; None for `run`.
    clusters: tuple[ClusterStatus, ...] | None = None

    @property
    def current_mirrors(self) -> tuple[ServedMirror, ...]:
        """The mirrors of which something is known now."""
        unread = {one.name for one in self.clusters or () if not one.is_fresh}
        return tuple(one for one in self.mirrors if one.cluster not in unread)

    @property
    def are_stopped(self) -> bool:
        """True if every topic of every mirror is STOPPED: there is nothing to copy."""
        rows = [row for one in self.mirrors for row in one.partitions]
        is_copying = self.waits_for is None and not self.not_copied
        return is_copying and bool(rows) and all(row.state is PartitionState.STOPPED for row in rows)

    @property
    def missing(self) -> str | None:
        """Why records do not flow, a line for each mirror; None if they do, or if all topics are STOPPED.

        Of watched clusters: which cannot be read, a line for each.
        """
        if self.clusters is not None:
            lines = (f"{one.name}: {why}" for one in self.clusters if (why := one.missing) is not None)
            return "\n".join(lines) or None
        if self.waits_for is not None:
            return self.waits_for
        found = {one.name: one.missing for one in self.mirrors if one.missing is not None}
        found |= {mirror: not_copied.why for mirror, not_copied in self.not_copied.items()}
        if not self.mirrors and not found:
            return "there is no mirror to copy"
        return "\n".join(f"{mirror}: {why}" for mirror, why in sorted(found.items())) or None

    @property
    def well(self) -> str:
        """What is well if nothing is missing."""
        if self.clusters is not None:
            return "all watched clusters are read"
        return "nothing to copy: all topics are stopped" if self.are_stopped else "records flow"


def missing_of(mirror: MirrorStatus) -> str | None:
    """Return what keeps a mirror from being healthy, as `wait --for healthy` judges it."""
    rows = mirror.partitions
    bad = [one for one in judge(Condition.HEALTHY, rows, {}) if one.result is not Outcome.DONE]
    bad += not_added_results(mirror.record, mirror.not_added)
    if not rows and not bad:
        return f"mirror {mirror.record.name} has no topics yet"
    if not bad:
        return None
    more = f", and {len(bad) - 1:,} more topics" if len(bad) > 2 else ", and one more topic" if len(bad) == 2 else ""
    return f"{bad[0].message}{more}"


#: The first key of rows of mirrors, topics, partitions, points and events.
CLUSTER: Column[str | None] = Column(
    "cluster",
    TEXT.null_when("`run` serves it"),
    "the watched cluster: its name in kmirror.toml, or its addresses",
    lambda cluster: cluster,
)


def in_clusters(table: Table[R]) -> Type:
    """Return the type of a table's rows with the names of their clusters."""
    return list_of(object_of((CLUSTER, *table.columns)))


def documents(table: Table[R], rows: Iterable[tuple[str | None, R]] | None) -> list[dict[str, Any]] | None:
    """Return rows with the names of their clusters as JSON; None if they are not known."""
    return None if rows is None else [{CLUSTER.key: cluster, **table.document(row)} for cluster, row in rows]


_OF_MIRROR: tuple[Column[ServedMirror], ...] = (
    Column(
        "lag",
        COUNT.null_when("no lag is known"),
        "offsets that the destination is behind, summed over the partitions where that is known",
        lambda mirror: mirror.totals.lag,
    ),
    Column("failed", COUNT, "how many of its partitions are FAILED", lambda mirror: mirror.failed),
    Column(
        "topicStates",
        Type("object", "object", items=COUNT),
        "how many of its topics are in each state",
        lambda mirror: dict(mirror.topic_states),
    ),
    Column(
        "engineIsHere",
        FLAG.null_when("no engine is in charge"),
        "whether the engine runs on the host that answers",
        lambda mirror: mirror.engine_is_here,
    ),
    Column(
        "missing",
        TEXT.null_when("records flow, or all topics are STOPPED"),
        "why `wait --for healthy` would not succeed",
        lambda mirror: mirror.missing,
    ),
)


SERVED_MIRRORS: Table[ServedMirror] = Table(
    (
        CLUSTER.of_part(lambda mirror: mirror.cluster),
        *(column.of_part(lambda mirror: mirror.row) for column in MIRRORS.columns),
        *_OF_MIRROR,
    ),
    "",
)
CLUSTERS: Table[ClusterStatus] = Table(columns_of(ClusterStatus), "")
