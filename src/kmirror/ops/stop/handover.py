"""Wait until an engine has given up topics that it is not to copy any more, or is known not to be there.

An engine says so in the partitions' records, once its lanes, which go on with the rest, have said that nothing can
arrive there any more (`engine.mirror`). One that has ended cleanly said so before. Of one that is silent nobody knows
what it still sends: whoever needs to know shuts it out at the brokers.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from enum import Enum, auto

from kmirror.ops.context import Destination
from kmirror.state.client import boottime
from kmirror.state.records import EngineRecord, EngineState, PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State

_STEP_S = 0.1


class Handover(Enum):
    """Name how it ended."""

    #: Nothing of ours is on its way to the topics.
    CLEAN = auto()
    #: An engine has not ended cleanly, and is silent.
    SILENT = auto()
    #: An engine is at work, and has not given them up in time.
    LATE = auto()


def await_handover(
    destination: Destination,
    mirror: str,
    topics: Collection[str],
    states: Collection[PartitionState],
    patience_s: float,
) -> Handover:
    """Wait until all partitions of these topics are in one of `states` by their engine's word.

    An engine counts as silent when its heartbeat has not moved for as long as its lease lasts, by this clock.

    Raises:
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    engine, seen_at = state.engine(mirror), boottime()
    until = boottime() + patience_s
    released_at: float | None = None
    while True:
        if engine is None:
            return Handover.CLEAN
        if engine.state is EngineState.RELEASED:
            # what engines before it have left behind may write for so long
            released_at = released_at or boottime()
            if boottime() >= released_at + engine.settle_ms / 1000:
                return Handover.CLEAN
        elif all_given_up(state, mirror, topics, states):
            return Handover.CLEAN
        elif boottime() - seen_at > engine.ttl_ms / 1000:
            return Handover.SILENT
        elif boottime() > until and _is_alive(engine, seen_at):
            return Handover.LATE
        time.sleep(_STEP_S)
        state = destination.state()
        found = state.engine(mirror)
        if found != engine:
            engine, seen_at = found, boottime()


def _is_alive(engine: EngineRecord, seen_at: float) -> bool:
    return boottime() - seen_at < engine.ttl_ms / 1000


def all_given_up(state: State, mirror: str, topics: Collection[str], states: Collection[PartitionState]) -> bool:
    """Tell whether an engine has said of all partitions of these topics that they are in one of `states`.

    A topic may be resumed and paused again before its engine has written a word on it: what it said to the pause before
    does not count. What it said to a stop needs no such care: who takes a stop back (`add`) writes the records anew.
    """
    for name in topics:
        topic = state.topic(mirror, name)
        if topic is None or topic.destination_topic_id is None:
            continue  # no mirror topic, or not yet: nobody copies to it
        found = {record.partition: record for record in state.partitions(mirror, name)}
        for partition in range(topic.partitions):
            record = found.get(partition)
            if record is None or record.state not in states or not _answers(record, topic):
                return False
    return True


def _answers(record: PartitionRecord, topic: TopicRecord) -> bool:
    """Tell whether an engine wrote the record after it heard of what is wanted now."""
    is_for_good = record.state in (PartitionState.STOPPING, PartitionState.STOPPED)
    return is_for_good or record.pause_id == topic.pause_id
