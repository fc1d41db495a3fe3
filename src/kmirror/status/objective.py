"""Whether topics are within their objectives (`objective.rpo`), why one is not, and since when. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kmirror.columns import DURATION, TEXT, TIME, Table, columns_of, one_of, showing, shown, table_row
from kmirror.errors import Reason
from kmirror.state.event_records import Event
from kmirror.status.partition_row import PartitionRow

#: What the events of objectives are named.
OBJECTIVE, BREACHED, MET = "objective", "BREACHED", "MET"

_OF_SOURCE = frozenset(
    {
        Reason.SOURCE_UNREACHABLE,
        Reason.SOURCE_SILENT,
        Reason.AUTHENTICATION_FAILED,
        Reason.SOURCE_CLUSTER_CHANGED,
        Reason.SOURCE_TOPIC_DELETED,
        Reason.SOURCE_TOPIC_RECREATED,
        Reason.SOURCE_TRUNCATED,
        Reason.SOURCE_DIVERGED,
        Reason.OPEN_TRANSACTION,
        Reason.SECRET_UNRESOLVED,
    }
)
_OF_DESTINATION = frozenset(
    {
        Reason.DESTINATION_UNREACHABLE,
        Reason.DESTINATION_WRITTEN,
        Reason.DESTINATION_TOPIC_DELETED,
        Reason.DESTINATION_TRUNCATED,
        Reason.OFFSET_MISMATCH,
        Reason.RECORD_REJECTED,
    }
)


class BreachCause(StrEnum):
    """What kept a topic from its objective."""

    SOURCE = "SOURCE"
    PATH = "PATH"
    DESTINATION = "DESTINATION"
    THROTTLE = "THROTTLE"
    NO_ENGINE = "NO_ENGINE"
    NO_WORKERS = "NO_WORKERS"
    PAUSED = "PAUSED"
    FAILED = "FAILED"
    COPY = "COPY"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a topic is behind: a code, and a sentence."""

    code: BreachCause
    message: str


def trouble_of(rows: Sequence[PartitionRow]) -> Cause | None:
    """Return what keeps partitions of a topic from being copied; None if all are copied."""
    troubled = next((row for row in rows if row.reason is not None), None)
    return None if troubled is None else _by_reason(troubled)


def cause_of(
    rows: Sequence[PartitionRow],
    engine_since_ms: int,
    now_ms: int,
    *,
    is_throttled: bool,
    earlier: Cause | None = None,
) -> Cause:
    """Return why a topic with these partitions has breached its objective, as its running engine sees it.

    `is_throttled`: lanes wait for the mirror's limit now. `earlier` is the last trouble since it was within it.
    """
    behind = max(rows, key=lambda row: row.time_lag_ms or 0)
    if (trouble := trouble_of(rows) or earlier) is not None:
        return trouble
    limit = behind.throttle_bytes_per_second
    if is_throttled and limit is not None:
        return Cause(BreachCause.THROTTLE, f"copying is limited to {limit:,} bytes/s (throttle.bytes.per.second)")
    breached_ms = now_ms - (behind.time_lag_ms or 0) + (behind.objective_ms or 0)
    if breached_ms < engine_since_ms:
        return Cause(BreachCause.NO_ENGINE, "no engine copied the mirror when the objective was breached")
    if (path := next((row.limited_by for row in rows if row.limited_by), None)) is not None:
        return Cause(BreachCause.PATH, f"limited by: {path}")
    return Cause(BreachCause.COPY, "the copy is slower than the source, or catches up")


def _by_reason(row: PartitionRow) -> Cause:
    message = row.error_message or str(row.reason)
    match row.reason:
        case Reason.NO_ENGINE:
            return Cause(BreachCause.NO_ENGINE, message)
        case Reason.NO_WORKERS:
            return Cause(BreachCause.NO_WORKERS, message)
        case Reason.PAUSED_BY_OPERATOR:
            return Cause(BreachCause.PAUSED, message)
        case Reason.ENGINE_SILENT:
            return Cause(BreachCause.DESTINATION, message)
    if row.reason in _OF_SOURCE:
        return Cause(BreachCause.SOURCE, message)
    return Cause(BreachCause.DESTINATION if row.reason in _OF_DESTINATION else BreachCause.FAILED, message)


@table_row
class Breach:
    """One time for which a topic was not within its objective; times in epoch milliseconds."""

    mirror: str = shown(TEXT, "the mirror")
    topic: str = shown(TEXT, "the topic on the destination", "TOPIC")
    from_ms: int = shown(TIME, "when an engine found it breached", "FROM")
    until_ms: int | None = shown(
        TIME.null_when("it is not met again, as far as is known"),
        "when it was met again, or an engine started that did not find it breached",
        "UNTIL",
    )
    objective_ms: int = shown(DURATION, "the objective", "OBJECTIVE")
    cause: str = shown(one_of("cause", BreachCause), "what kept the topic from it", "CAUSE")
    message: str = shown(TEXT, "the cause as a sentence", "WHY")

    @property
    @showing(DURATION.null_when("untilMs is null"), "how long it lasted", "LASTED", after="until_ms")
    def lasted_ms(self) -> int | None:
        """How long it lasted; None if it has not ended."""
        return None if self.until_ms is None else max(0, self.until_ms - self.from_ms)


BREACHES: Table[Breach] = Table(columns_of(Breach), "FROM UNTIL LASTED TOPIC OBJECTIVE CAUSE WHY", none="no breaches")


def breaches_of(events: Iterable[Event]) -> tuple[Breach, ...]:
    """Return the breaches that events tell of, in the order in which they began.

    An engine that starts knows of no earlier breach: it records one again if the topic is still behind.
    """
    found: list[Breach] = []
    #: By mirror and topic: the place of a breach that has not ended, and when an engine started since.
    left: dict[tuple[str, str], tuple[int, int | None]] = {}
    for event in events:
        key = event.mirror, str(event.details.get("topic"))
        if (event.what, event.result) == ("run", "started"):
            for one, (place, since) in left.items():
                if one[0] == event.mirror and since is None:
                    left[one] = place, event.time_ms
        elif event.what != OBJECTIVE:
            continue
        elif event.result == BREACHED:
            if key in left:
                left[key] = left[key][0], None
                continue
            left[key] = len(found), None
            found.append(_breach(event))
        elif event.result == MET and key in left:
            place, _ = left.pop(key)
            found[place] = _ended(found[place], event.time_ms)
    for place, since in left.values():
        found[place] = _ended(found[place], since)
    return tuple(found)


def _breach(event: Event) -> Breach:
    details: Mapping[str, Any] = event.details
    objective_ms, cause = details.get("objectiveMs"), details.get("cause")
    return Breach(
        mirror=event.mirror,
        topic=str(details.get("topic")),
        from_ms=event.time_ms,
        until_ms=None,
        objective_ms=objective_ms if isinstance(objective_ms, int) else 0,
        cause=cause if cause in set(BreachCause) else BreachCause.COPY,
        message=str(details.get("message") or ""),
    )


def _ended(breach: Breach, until_ms: int | None) -> Breach:
    fields = {
        name: getattr(breach, name) for name in ("mirror", "topic", "from_ms", "objective_ms", "cause", "message")
    }
    return Breach(**fields, until_ms=until_ms)
