"""When an engine's record counts as an answer to the verb that waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kmirror.ops.base.handover import all_released
from kmirror.state.records import DesiredState, PartitionRecord, PartitionState, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State

PAUSED, FAILED, MIRRORING = PartitionState.PAUSED, PartitionState.FAILED, PartitionState.MIRRORING
STOPPING, STOPPED = PartitionState.STOPPING, PartitionState.STOPPED
RELEASED = (PAUSED, FAILED)
TOPIC = TopicRecord(
    "m", "orders", "orders", "s", "d", DesiredState.PAUSED, 2, TopicOrigin.CREATED, pause_id="second pause"
)


def record(state: PartitionState, pause_id: str | None = None, partition: int = 0) -> PartitionRecord:
    return PartitionRecord("m", "orders", partition, state, 1, pause_id=pause_id)


def is_released(
    *records: PartitionRecord, topic: TopicRecord = TOPIC, states: Sequence[PartitionState] = RELEASED
) -> bool:
    return all_released(State.of([topic, *records]), "m", ["orders"], states)


@pytest.mark.parametrize("state", RELEASED)
def test_a_pause_is_confirmed_once_every_partition_answers_it(state: PartitionState) -> None:
    assert is_released(record(state, "second pause"), record(PAUSED, "second pause", 1))
    assert not is_released(record(state, "second pause"))
    assert not is_released(record(state, "second pause"), record(MIRRORING, None, 1))


@pytest.mark.parametrize("state", RELEASED)
@pytest.mark.parametrize("before", [None, "first pause"])
def test_an_answer_to_an_earlier_pause_does_not_count(state: PartitionState, before: str | None) -> None:
    # FAILED, too: `recover` may have it copied again, and the engine has not written that yet
    assert not is_released(record(state, before), record(PAUSED, "second pause", 1))


def test_a_pause_of_an_older_version_is_answered_without_an_id() -> None:
    theirs = replace(TOPIC, pause_id=None)
    assert is_released(record(PAUSED), record(FAILED, None, 1), topic=theirs)
    # and is none to ours, after a resume
    assert not is_released(record(PAUSED), record(FAILED, None, 1))


def test_a_stop_is_confirmed_whatever_pause_was_before_it() -> None:
    stopped = replace(TOPIC, desired=DesiredState.STOPPED)
    states = (STOPPING, STOPPED)
    assert is_released(record(STOPPING), record(STOPPED, None, 1), topic=stopped, states=states)
    assert not is_released(record(STOPPING), record(PAUSED, "second pause", 1), topic=stopped, states=states)


def test_what_is_not_a_mirror_topic_needs_no_release() -> None:
    assert is_released(topic=replace(TOPIC, destination_topic_id=None))
    assert all_released(State.of([]), "m", ["orders"], RELEASED)
