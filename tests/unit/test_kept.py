"""How much a mirror keeps of what its source has deleted, and where that is reported."""

from __future__ import annotations

import pytest

from kmirror.errors import Reason
from kmirror.ops.show.kept import kept_offsets, with_kept
from kmirror.state.records import PartitionState


@pytest.mark.parametrize(
    ("source_start", "start", "end", "kept"),
    [(40, 10, 90, 30), (10, 40, 90, 0), (120, 10, 90, 80), (None, 10, 90, None), (40, None, 90, None)],
)
def test_only_what_the_mirror_holds_counts(
    source_start: int | None, start: int | None, end: int | None, kept: int | None
) -> None:
    assert kept_offsets(source_start, start, end) == kept


def message(kept: int | None, state: PartitionState, reason: Reason | None, *, answers: bool = True) -> str | None:
    return with_kept("why", kept, state, reason, source_answers=answers)


def test_what_is_kept_is_reported_where_nothing_is_copied() -> None:
    text = "the mirror keeps 30 offsets that the source has deleted, until an engine copies it again"
    assert message(30, PartitionState.MIRRORING, Reason.NO_ENGINE) == f"why; {text}"
    assert message(30, PartitionState.PAUSED, Reason.PAUSED_BY_OPERATOR) == f"why; {text}"
    assert message(30, PartitionState.FAILED, Reason.RECORD_REJECTED, answers=False) == (
        f"why; {text.replace('keeps', 'keeps at least')}"
    )


def test_what_is_kept_is_not_reported_where_it_is_copied_or_unknown() -> None:
    for kept in (0, None):
        assert message(kept, PartitionState.MIRRORING, Reason.NO_ENGINE) == "why"
    assert message(30, PartitionState.MIRRORING, None) == "why"
    assert message(30, PartitionState.STOPPED, Reason.PROMOTED) == "why"
