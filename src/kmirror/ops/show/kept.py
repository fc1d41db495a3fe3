"""How many offsets a mirror keeps that its source has already deleted. Pure.

A mirror topic has no retention of its own: a running engine follows the source's log start. Without one nothing is
deleted, and the destination's disks fill.
"""

from __future__ import annotations

from kmirror.errors import NOT_COPYING, Reason
from kmirror.state.records import PartitionState
from kmirror.words import counted

_NOT_COPIED = NOT_COPYING | {Reason.PAUSED_BY_OPERATOR}


def kept_offsets(
    source_log_start: int | None, destination_log_start: int | None, destination_offset: int | None
) -> int | None:
    """Return how many offsets of the mirror are below the source's log start; None if an argument is unknown."""
    if source_log_start is None or destination_log_start is None or destination_offset is None:
        return None
    return max(0, min(source_log_start, destination_offset) - destination_log_start)


def with_kept(
    message: str | None, kept: int | None, state: PartitionState, reason: Reason | None, *, source_answers: bool
) -> str | None:
    """Return a row's message, and how much is kept if nothing is copied; the source may have deleted more since."""
    copied = state is not PartitionState.FAILED and reason not in _NOT_COPIED
    if copied or state is PartitionState.STOPPED or not kept:
        return message
    least = "" if source_answers else "at least "
    offsets = counted(kept, "offset")
    note = f"the mirror keeps {least}{offsets} that the source has deleted, until an engine copies it again"
    return f"{message}; {note}" if message else note
