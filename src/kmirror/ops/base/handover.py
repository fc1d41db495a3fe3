"""Wait until the engine has released topics that it must stop copying, or is known to be gone.

An engine confirms in the partitions' records, once its lanes have confirmed that nothing can arrive there any more
(`engine.mirror`); the lanes continue with their other partitions. An engine that ended cleanly confirmed before it
ended. What a silent engine still sends is unknown: a caller that must rule that out fences it at the brokers.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from enum import Enum, auto

from kmirror.ops.base.context import Destination
from kmirror.state.engine_identity import EngineSilence
from kmirror.state.records import EngineState, PartitionRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.state.waiting import Deadline, boottime

_STEP_S = 0.1


class Handover(Enum):
    """How a handover ended."""

    #: Nothing of ours is in flight to the topics.
    CLEAN = auto()
    #: The engine has not ended cleanly, and sends no heartbeats.
    SILENT = auto()
    #: The engine is running, and did not release the topics in time.
    LATE = auto()


def await_handover(
    destination: Destination,
    mirror: str,
    topics: Collection[str],
    states: Collection[PartitionState],
    patience_s: float,
    silence: EngineSilence | None = None,
) -> Handover:
    """Wait until the engine has recorded one of `states` for all partitions of these topics.

    An engine counts as silent if its heartbeat has not changed for the length of its lease, by the local clock;
    `silence` then has its record.

    Raises UnreachableError: the destination does not answer.
    """
    silence, until = silence or EngineSilence(), Deadline(patience_s)
    released_at: float | None = None
    while True:
        state = destination.state()
        silence.take(engine := state.engine(mirror))
        if engine is None:
            return Handover.CLEAN
        if engine.state is EngineState.RELEASED:
            # requests of engines before it may still be appended for this long
            released_at = released_at or boottime()
            if boottime() >= released_at + engine.settle_ms / 1000:
                return Handover.CLEAN
        elif all_released(state, mirror, topics, states):
            return Handover.CLEAN
        elif silence.outlasts_lease:
            return Handover.SILENT
        elif until.passed:
            return Handover.LATE
        time.sleep(_STEP_S)


def all_released(state: State, mirror: str, topics: Collection[str], states: Collection[PartitionState]) -> bool:
    """Return whether the engine has recorded one of `states` for all partitions of these topics.

    A topic may be resumed and paused again before its engine has recorded anything: what it recorded for the earlier
    pause does not count. Records of a stop need no such check: `add`, which reverts a stop, rewrites them.
    """
    for name in topics:
        topic = state.topic(mirror, name)
        if topic is None or topic.destination_topic_id is None:
            continue  # not a mirror topic (yet): no engine copies to it
        found = {record.partition: record for record in state.partitions(mirror, name)}
        for partition in range(topic.partitions):
            record = found.get(partition)
            if record is None or record.state not in states or not _answers(record, topic):
                return False
    return True


def _answers(record: PartitionRecord, topic: TopicRecord) -> bool:
    """Return whether an engine wrote the record in answer to the present request, not to an earlier pause."""
    is_stop = record.state in (PartitionState.STOPPING, PartitionState.STOPPED)
    return is_stop or record.pause_id == topic.pause_id
