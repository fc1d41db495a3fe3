"""When an engine's word counts as an answer to the verb that waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kmirror.ops.stop.handover import all_released
from kmirror.state.records import DesiredState, PartitionRecord, PartitionState, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State

PAUSED, FAILED, MIRRORING = PartitionState.PAUSED, PartitionState.FAILED, PartitionState.MIRRORING
STOPPING, STOPPED = PartitionState.STOPPING, PartitionState.STOPPED
LET_GO = (PAUSED, FAILED)
TOPIC = TopicRecord(
    "m", "orders", "orders", "s", "d", DesiredState.PAUSED, 2, TopicOrigin.CREATED, pause_id="second pause"
)


def said(state: PartitionState, pause_id: str | None = None, partition: int = 0) -> PartitionRecord:
    return PartitionRecord("m", "orders", partition, state, 1, pause_id=pause_id)


def is_over(*records: PartitionRecord, topic: TopicRecord = TOPIC, states: Sequence[PartitionState] = LET_GO) -> bool:
    return all_released(State.of([topic, *records]), "m", ["orders"], states)


@pytest.mark.parametrize("state", LET_GO)
def test_a_pause_is_over_when_every_partition_has_been_answered_for_it(state: PartitionState) -> None:
    assert is_over(said(state, "second pause"), said(PAUSED, "second pause", 1))
    assert not is_over(said(state, "second pause"))
    assert not is_over(said(state, "second pause"), said(MIRRORING, None, 1))


@pytest.mark.parametrize("state", LET_GO)
@pytest.mark.parametrize("before", [None, "first pause"])
def test_what_was_said_before_the_pause_is_no_answer_to_it(state: PartitionState, before: str | None) -> None:
    # FAILED, too: `recover` may have it copied again, and the engine has not written that yet
    assert not is_over(said(state, before), said(PAUSED, "second pause", 1))


def test_a_pause_of_an_older_version_is_answered_without_a_name() -> None:
    theirs = replace(TOPIC, pause_id=None)
    assert is_over(said(PAUSED), said(FAILED, None, 1), topic=theirs)
    # and is none to ours, after a resume
    assert not is_over(said(PAUSED), said(FAILED, None, 1))


def test_a_stop_is_over_whatever_pause_was_before_it() -> None:
    stopped = replace(TOPIC, desired=DesiredState.STOPPED)
    states = (STOPPING, STOPPED)
    assert is_over(said(STOPPING), said(STOPPED, None, 1), topic=stopped, states=states)
    assert not is_over(said(STOPPING), said(PAUSED, "second pause", 1), topic=stopped, states=states)


def test_nobody_has_to_give_up_what_is_no_mirror_topic() -> None:
    assert is_over(topic=replace(TOPIC, destination_topic_id=None))
    assert all_released(State.of([]), "m", ["orders"], LET_GO)
