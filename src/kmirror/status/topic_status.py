"""The status of a topic: its state, and what its partitions come to together. Pure.

STOPPED partitions do not count in totals. A value that is unknown for one of the others is unknown for the whole,
except sums. Each column is declared with its field or property, also those of the page of `run --http`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kmirror.columns import (
    COUNT,
    DURATION,
    REASON,
    TEXT,
    Gauge,
    Table,
    columns_of,
    list_of,
    one_of,
    showing,
    shown,
    table_row,
)
from kmirror.errors import NOT_COPYING, Reason
from kmirror.state.records import PartitionState
from kmirror.status.objective_state import ObjectiveState, objective_state
from kmirror.status.partition_row import (
    OBJECTIVE,
    OBJECTIVE_STATE,
    RATE,
    PartitionRow,
    eta_ms,
    shown_duration,
    shown_rate,
)
from kmirror.status.topic_state import TopicState

#: Reasons that a state already implies.
_IMPLIED = (Reason.SOURCE_UNREACHABLE, Reason.PAUSED_BY_OPERATOR)
_UNKNOWN = "it is unknown for a partition that is not STOPPED, or all are STOPPED"


def shown_state(state: TopicState | None, reason: Reason | None) -> str | None:
    """Return a state with its reason; the reason alone if nothing is copied, as the state is only the last known."""
    if reason in NOT_COPYING or state is None:
        return reason
    return state if reason is None or reason in _IMPLIED else f"{state} ({reason})"


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals over partitions.

    `lag` is the sum of the known lags, None if none is known; it is unknown for `unknown_lags` partitions.
    `bytes_per_second` is None if no lane reports. `time_lag_ms` is the largest, `eta_ms` the time until all are done.
    """

    lag: int | None
    unknown_lags: int
    bytes_per_second: int | None
    time_lag_ms: int | None
    eta_ms: int | None


def shown_lag(lag: int | None, unknown_lags: int) -> str | None:
    """Return a sum of lags for people, as a lower bound if some are unknown."""
    return None if lag is None else f"{'≥' if unknown_lags else ''}{lag:,}"


def totals(rows: Iterable[PartitionRow]) -> Totals:
    """Sum up these partitions."""
    wanted = [row for row in rows if row.state is not PartitionState.STOPPED]
    lags = [row.lag for row in wanted if row.lag is not None]
    rates = [row.bytes_per_second for row in wanted if row.bytes_per_second is not None]
    time_lags = [row.time_lag_ms for row in wanted if row.time_lag_ms is not None]
    return Totals(
        lag=sum(lags) if lags else None,
        unknown_lags=len(wanted) - len(lags),
        bytes_per_second=sum(rates) if rates else None,
        time_lag_ms=max(time_lags) if time_lags and len(time_lags) == len(wanted) else None,
        eta_ms=_eta_of(wanted),
    )


def _eta_of(rows: Sequence[PartitionRow]) -> int | None:
    """Return the time until all are done if they share their speed: one that is done leaves its share to the others."""
    lacking = [row for row in rows if row.lag != 0]
    if not lacking:
        return 0 if rows else None
    if any(row.lag is None or row.closing_speed is None for row in lacking):
        return None
    behind = [row for row in lacking if not row.keeps_up] or lacking
    return eta_ms(sum(row.lag or 0 for row in behind), sum(row.closing_speed or 0 for row in behind))


@table_row
class TopicStatus:
    """One topic with its partitions, which are at least one."""

    mirror: str = shown(TEXT, "the mirror", "MIRROR")
    topic: str = shown(TEXT, "the topic on the destination", "TOPIC")
    state: TopicState = shown(
        one_of("topic state", TopicState),
        "state of the topic",
        "STATE",
        of_row=lambda topic: shown_state(topic.state, topic.reason),
        code=lambda topic: topic.code,
    )
    lag: int | None = shown(
        COUNT.null_when("no lag is known, or all are STOPPED"),
        "offsets that the destination is behind, summed over the partitions where that is known",
        "LAG",
        of_row=lambda topic: shown_lag(topic.lag, topic.lag_unknown),
        gauge=Gauge(
            "kmirror_topic_lag_offsets",
            "offsets",
            "offsets that the destination lacks, summed over the partitions",
            "while the lag of one of its partitions is unknown, and if all are STOPPED",
            "`MaxLag` of `MirrorFetcherManager`",
            "`MaxLag` of `ClusterLinkFetcherManager`",
            is_known=lambda topic: not topic.lag_unknown,
        ),
    )
    lag_unknown: int = shown(COUNT, "for how many partitions it is unknown")
    time_lag_ms: int | None = shown(
        DURATION.null_when(_UNKNOWN),
        "the largest timeLagMs of its partitions",
        "TIME-LAG",
        cell=shown_duration,
        gauge=Gauge(
            "kmirror_topic_lag_seconds",
            "seconds",
            "`timeLagMs` of `describe`, the largest of its partitions",
            "while it is unknown for one of its partitions, and if all are STOPPED",
        ),
    )
    bytes_per_second: int | None = shown(
        RATE.null_when("no lane reports on it"), "how fast it is copied", "RATE", cell=shown_rate
    )
    eta_ms: int | None = shown(
        DURATION.null_when(f"{_UNKNOWN}, or the source grows faster than the copy"),
        "time until the lag of all its partitions is 0 at the present speed",
        "ETA",
        cell=shown_duration,
    )
    objective_ms: int | None = shown(
        OBJECTIVE,
        "the longest time lag that objective.rpo allows",
        "OBJECTIVE",
        cell=shown_duration,
        gauge=Gauge(
            "kmirror_topic_objective_seconds",
            "seconds",
            "the longest time lag that `objective.rpo` allows for the topic",
            "if no pattern of `objective.rpo` matches, and if all its partitions are STOPPED",
        ),
    )
    #: Whether lanes should copy it: it is not paused, stopped or being rebuilt.
    is_wanted: bool
    partitions: tuple[PartitionRow, ...]
    #: When all the ends that the lag compares were last known.
    lag_as_of_ms: int | None

    @classmethod
    def of(cls, partitions: Sequence[PartitionRow], *, is_wanted: bool = True) -> TopicStatus:
        """Sum up the partitions of a topic."""
        first = partitions[0]
        sums = totals(partitions)
        as_of = [row.lag_as_of_ms for row in partitions if row.lag_as_of_ms is not None]
        return cls(
            mirror=first.mirror,
            topic=first.topic,
            state=first.topic_state,
            is_wanted=is_wanted,
            partitions=tuple(partitions),
            lag=sums.lag,
            lag_unknown=sums.unknown_lags,
            time_lag_ms=sums.time_lag_ms,
            bytes_per_second=sums.bytes_per_second,
            eta_ms=sums.eta_ms,
            objective_ms=next((row.objective_ms for row in partitions if not row.is_stopped), None),
            lag_as_of_ms=min(as_of) if len(as_of) == len(partitions) else None,
        )

    def changed(self, change: Callable[[PartitionRow], PartitionRow]) -> TopicStatus:
        """Return the topic after a change of its partitions."""
        return replace(TopicStatus.of([*map(change, self.partitions)]), is_wanted=self.is_wanted)

    @property
    def _telling(self) -> PartitionRow:
        """The partition whose reason is the topic's: one that FAILED, one that nothing copies, or any with a reason."""
        rows = self.partitions
        return (
            next((row for row in rows if row.failed), None)
            or next((row for row in rows if row.reason in NOT_COPYING), None)
            or next((row for row in rows if row.reason is not None), rows[0])
        )

    @property
    @showing(REASON.null_when("all is well"), "the reason of the first partition that is not copied", after="state")
    def reason(self) -> Reason | None:
        """Why the first of the partitions that are not copied is not."""
        return self._telling.reason

    @property
    @showing(list_of(one_of("reason", Reason)), "the reasons of all its partitions", after="reason")
    def reasons(self) -> list[Reason]:
        """The different reasons of its partitions."""
        return list(dict.fromkeys(row.reason for row in self.partitions if row.reason is not None))

    @property
    @showing(TEXT.null_when("there is nothing to report"), "the reason as a sentence", after="reasons")
    def error_message(self) -> str | None:
        """The sentence for the reason."""
        return self._telling.error_message

    @property
    @showing(COUNT, "how many partitions it has", "PARTITIONS", key="partitions", after="error_message")
    def partition_count(self) -> int:
        """How many partitions it has."""
        return len(self.partitions)

    @property
    @showing(
        COUNT,
        "how many of them are FAILED",
        after="partition_count",
        gauge=Gauge(
            "kmirror_topic_partitions_failed",
            "partitions",
            "partitions of the topic that are FAILED",
            cluster_linking="`failed-mirror-partition-count`",
        ),
    )
    def failed(self) -> int:
        """How many of its partitions are FAILED."""
        return sum(row.failed for row in self.partitions)

    @property
    @showing(COUNT.null_when("there are few or none"), "offsets at which the source has no records, still to be filled")
    def offsets_to_fill(self) -> int | None:
        """How many offsets are to be filled."""
        return sum(row.offsets_to_fill or 0 for row in self.partitions if not row.is_stopped) or None

    @property
    @showing(
        OBJECTIVE_STATE,
        "whether timeLagMs is within objectiveMs; UNKNOWN while it is unknown, unless a partition is not within it",
        "RPO",
        after="objective_ms",
    )
    def objective_state(self) -> ObjectiveState | None:
        """Whether the topic is within its objective; None if it has none."""
        found = objective_state(self.objective_ms, self.time_lag_ms)
        if found is ObjectiveState.UNKNOWN:
            # what is not known of one partition hides no breach of another
            wanted = [one for one in self.partitions if not one.is_stopped]
            if any(objective_state(self.objective_ms, one.time_lag_ms) is ObjectiveState.BREACHED for one in wanted):
                return ObjectiveState.BREACHED
        return found

    @property
    def code(self) -> Reason | TopicState:
        """Return the code that decides the colour: why nothing is copied, else the state."""
        return self.reason if self.reason is not None and self.reason in NOT_COPYING else self.state

    @property
    def is_stopping(self) -> bool:
        """Return whether a stop of the topic is under way."""
        return any(row.state is PartitionState.STOPPING for row in self.partitions)


_COLUMNS = columns_of(TopicStatus)
_OPTIONAL = "OBJECTIVE RPO"
TOPICS = Table(_COLUMNS, "TOPIC RATE LAG TIME-LAG OBJECTIVE RPO ETA STATE", optional=_OPTIONAL)
#: The table of the page of `run --http`, and of a report's topics.
TOPICS_ON_PAGE = Table(_COLUMNS, "TOPIC STATE PARTITIONS LAG TIME-LAG OBJECTIVE RPO RATE ETA", optional=_OPTIONAL)
TOPICS_OF_MIRRORS = Table(_COLUMNS, "MIRROR TOPIC RATE LAG TIME-LAG OBJECTIVE RPO ETA STATE", optional=_OPTIONAL)
