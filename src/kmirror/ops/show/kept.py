"""How much a mirror keeps of what its source has deleted already. Pure.

A mirror topic has no retention of its own: a running engine follows the source's log start. While nobody copies,
nothing is deleted, and the disks of the destination fill.
"""

from __future__ import annotations

from kmirror.errors import NOT_COPYING, Reason
from kmirror.state.records import PartitionState
from kmirror.words import counted

_NOBODY_COPIES = NOT_COPYING | {Reason.PAUSED_BY_OPERATOR}


def kept_offsets(
    source_log_start: int | None, destination_log_start: int | None, destination_offset: int | None
) -> int | None:
    """Return how many offsets of the mirror lie below the source's log start; None while one of them is unknown."""
    if source_log_start is None or destination_log_start is None or destination_offset is None:
        return None
    return max(0, min(source_log_start, destination_offset) - destination_log_start)


def with_kept(
    message: str | None, kept: int | None, state: PartitionState, reason: Reason | None, *, source_answers: bool
) -> str | None:
    """Return a row's message, and how much is kept where nobody copies; the source may have deleted more since."""
    copied = state is not PartitionState.FAILED and reason not in _NOBODY_COPIES
    if copied or state is PartitionState.STOPPED or not kept:
        return message
    least = "" if source_answers else "at least "
    offsets = counted(kept, "offset")
    told = f"the mirror keeps {least}{offsets} that the source has deleted, until an engine copies it again"
    return f"{message}; {told}" if message else told
