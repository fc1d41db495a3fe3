"""What an engine hears of its mirror as it follows `__kmirror_state`: lanes' reports, and how topics stand. No I/O.

A topic comes with the records of its partitions as they stood when it was written: what an `add` has decided about a
partition is written before the topic it belongs to.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from kmirror.state.records import PartitionRecord, ProgressRecord, Removed, TopicRecord


@dataclass(frozen=True, slots=True)
class HeardTopic:
    """What the log says of a topic, and what it said of the topic's partitions when that was written."""

    topic: TopicRecord
    partitions: tuple[PartitionRecord, ...]


class Replica:
    """What the log says of a mirror's partitions, as it is read; topics are passed on with what it said of theirs.

    The log is read from its start. What it says there is history, and stood in the state that the engine began with:
    only how topics stand where it ends is passed on, and each change after that.
    """

    def __init__(self, mirror: str) -> None:
        self._mirror = mirror
        self._partitions: defaultdict[str, dict[int, PartitionRecord]] = defaultdict(dict)
        self._history: dict[str, TopicRecord] | None = {}

    def take(self, met: object) -> list[ProgressRecord | HeardTopic]:
        """Take the next record; return what is to be passed on now."""
        match met:
            case ProgressRecord() if met.mirror == self._mirror:
                return [met]
            case PartitionRecord() if met.mirror == self._mirror:
                self._partitions[met.topic][met.partition] = met
            case Removed(("partition", self._mirror, str(topic), int(partition))):
                self._partitions[topic].pop(partition, None)
            case TopicRecord() if met.mirror == self._mirror:
                if self._history is None:
                    return [self._with_partitions(met)]
                self._history[met.topic] = met
        return []

    def catch_up(self) -> list[HeardTopic]:
        """Note that the end of the log was reached; return how topics stand when that is the first time."""
        history, self._history = self._history or {}, None
        return [self._with_partitions(topic) for topic in history.values()]

    def _with_partitions(self, topic: TopicRecord) -> HeardTopic:
        return HeardTopic(topic, tuple(self._partitions[topic.topic].values()))
