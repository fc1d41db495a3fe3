"""The rows of `top`: topics, summed up from their partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from kmirror.columns import COUNT, DURATION, TEXT, Column, Table, one_of
from kmirror.engine.status.topic_state import TopicState
from kmirror.errors import NOT_COPYING, Reason
from kmirror.ops.show.tables import MirrorRow, PartitionRow, shown_duration, shown_rate
from kmirror.ops.show.totals import Totals, totals


@dataclass(frozen=True, slots=True)
class TopicRow:
    """One topic as `top` shows it; `reason` is why the first of the partitions that are not copied is not."""

    mirror: str
    topic: str
    partitions: int
    state: TopicState
    reason: Reason | None
    totals: Totals

    @property
    def code(self) -> Reason | TopicState:
        """Return the code that decides the colour: why nothing is copied, else the state."""
        return self.reason if self.reason is not None and self.reason in NOT_COPYING else self.state


#: Reasons that a state already implies.
_IMPLIED = (Reason.SOURCE_UNREACHABLE, Reason.PAUSED_BY_OPERATOR)


def shown_state(state: TopicState | None, reason: Reason | None) -> str | None:
    """Return a state with its reason; the reason alone if nothing is copied, as the state is only the last known."""
    if reason in NOT_COPYING or state is None:
        return reason
    return state if reason is None or reason in _IMPLIED else f"{state} ({reason})"


_COLUMNS: tuple[Column[TopicRow], ...] = (
    Column("mirror", TEXT, "the mirror", lambda row: row.mirror, "MIRROR"),
    Column("topic", TEXT, "the topic on the destination", lambda row: row.topic, "TOPIC"),
    Column(
        "lag",
        COUNT,
        "offsets",
        lambda row: row.totals.lag,
        "LAG",
        cell=lambda row: row.totals.shown_lag,
        is_number=True,
    ),
    Column(
        "timeLagMs",
        DURATION,
        "the largest of its partitions",
        lambda row: row.totals.time_lag_ms,
        "TIME-LAG",
        cell=lambda row: shown_duration(row.totals.time_lag_ms),
        is_number=True,
    ),
    Column(
        "bytesPerSecond",
        COUNT,
        "how fast it is copied",
        lambda row: row.totals.bytes_per_second,
        "RATE",
        cell=lambda row: shown_rate(row.totals.bytes_per_second),
        is_number=True,
    ),
    Column(
        "etaMs",
        DURATION,
        "when all of it is copied",
        lambda row: row.totals.eta_ms,
        "ETA",
        cell=lambda row: shown_duration(row.totals.eta_ms),
        is_number=True,
    ),
    Column(
        "state",
        one_of("topic state", TopicState),
        "state of the topic",
        lambda row: row.state,
        "STATE",
        cell=lambda row: shown_state(row.state, row.reason),
        code=lambda row: row.code,
    ),
)
TOPICS = Table(_COLUMNS, "TOPIC RATE LAG TIME-LAG ETA STATE")
TOPICS_OF_MIRRORS = Table(_COLUMNS, "MIRROR TOPIC RATE LAG TIME-LAG ETA STATE")


@dataclass(frozen=True, slots=True)
class Overview:
    """The content of `top` at one time; `unreadable` has a sentence for each record that cannot be read."""

    mirrors: tuple[MirrorRow, ...]
    topics: tuple[TopicRow, ...]
    totals: Totals
    unreadable: tuple[str, ...] = ()


def topic_rows(rows: Iterable[PartitionRow]) -> list[TopicRow]:
    """Sum up topics from the rows of their partitions, which are adjacent."""
    return [
        _topic_row(mirror, topic, list(own))
        for (mirror, topic), own in groupby(rows, lambda row: (row.mirror, row.topic))
    ]


def _topic_row(mirror: str, topic: str, rows: list[PartitionRow]) -> TopicRow:
    failed = (row.reason for row in rows if row.failed)
    idle = (row.reason for row in rows if row.reason in NOT_COPYING)
    reasons = (row.reason for row in rows if row.reason is not None)
    reason = next(failed, None) or next(idle, None) or next(reasons, None)
    return TopicRow(mirror, topic, len(rows), rows[0].topic_state, reason, totals(rows))
