"""`recover` waits until an engine has rebuilt a topic; the engine's host and the operator's may disagree on the time.

Times of both were compared: with the operator's clock an hour ahead a rebuilt topic was waited for in vain, and with it
an hour behind an earlier rebuild counted as the one that was asked for.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.mirrors.recover import _previewed, _Retry, _unless_changed, _wait
from kmirror.state.records import PartitionState, ProgressRecord, ProgressRow
from kmirror.state.snapshot import State
from tests.support.live_engine import topic_record

PLACE = TopicPartition("orders", 0)
HOUR_MS = 3_600_000


def state(rebuilt_ms: int | None, reported_ms: int, reported: PartitionState, reason: Reason | None = None) -> State:
    row = ProgressRow("orders", 0, 100, 100, 0, 100, None, reported, reason)
    record = ProgressRecord("m", 0, "l", 1, 0, "h1", 9, reported_ms, (row,))
    return State.of([replace(topic_record("orders"), rebuilt_at_ms=rebuilt_ms), record])


@pytest.mark.parametrize("offset_ms", [-HOUR_MS, 0, HOUR_MS])
@pytest.mark.parametrize("had_one", [True, False])
def test_a_rebuild_is_recognised_by_its_own_time(offset_ms: int, had_one: bool) -> None:
    there = int(time.time() * 1000) + offset_ms
    earlier = there - 60_000 if had_one else None
    states = [
        state(earlier, there - 1000, PartitionState.FAILED, Reason.SOURCE_DIVERGED),
        state(there + 1000, there - 1000, PartitionState.FAILED, Reason.SOURCE_DIVERGED),
        state(there + 1000, there + 2000, PartitionState.MIRRORING),
    ]
    retry = _Retry(PLACE, "", rebuilds=Reason.SOURCE_DIVERGED)
    (found,) = _wait(
        lambda: states.pop(0), "m", [retry], {PLACE: 1}, {"orders": earlier}, time.monotonic() + 60, lambda _: None
    )
    assert (found.result, states) == (Outcome.DONE, []), found


def test_only_what_was_shown_is_accepted() -> None:
    """The source deleted more while the question was open, and all of it was accepted with the answer."""
    few, more = (_Retry(PLACE, f" and continues without {lost}", lost) for lost in ((5, 15), (5, 900)))
    shown = [_previewed(few)]
    retried = _Retry(TopicPartition("orders", 1), "")
    assert _unless_changed([few, retried], shown) == [few, retried]
    refused, kept = _unless_changed([more, retried], shown)
    assert isinstance(refused, TopicResult)
    assert (refused.result, kept) == (Outcome.REFUSED, retried)
    assert "without (5, 900)" in (refused.message or "")
    (rebuilt,) = _unless_changed([_Retry(PLACE, "; rebuilt", rebuilds=Reason.SOURCE_DIVERGED)], shown)
    assert isinstance(rebuilt, TopicResult)
