"""Whether a time lag is within an objective. Pure."""

from __future__ import annotations

from enum import StrEnum


class ObjectiveState(StrEnum):
    """Whether a topic or partition is within its objective; what is unknown is never within."""

    WITHIN = "WITHIN"
    BREACHED = "BREACHED"
    UNKNOWN = "UNKNOWN"


def objective_state(objective_ms: int | None, time_lag_ms: int | None) -> ObjectiveState | None:
    """Return whether a time lag is within an objective; None if there is none."""
    if objective_ms is None:
        return None
    if time_lag_ms is None:
        return ObjectiveState.UNKNOWN
    return ObjectiveState.WITHIN if time_lag_ms <= objective_ms else ObjectiveState.BREACHED
