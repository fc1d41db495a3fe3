"""What an engine reads of its mirror in `__kmirror_state`: lanes' reports, settings, topics' states. No I/O.

A topic comes with the records of its partitions as they stood when it was written: what an `add` has decided about a
partition is written before the topic it belongs to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from kmirror.state.records import (
    Key,
    LaneRowsRecord,
    MirrorRecord,
    PartitionRecord,
    ProgressRecord,
    Record,
    Removed,
    TopicRecord,
    Unknown,
)
from kmirror.state.snapshot import checked

#: Kinds of records that an engine obeys or writes over: it must be able to read all of them.
_OBEYED = ("mirror", "topic", "partition")


@dataclass(frozen=True, slots=True)
class FeedTopic:
    """What the log says of a topic, and what it said of the topic's partitions when that was written."""

    topic: TopicRecord
    partitions: tuple[PartitionRecord, ...]


class Replica:
    """What the log says of a mirror's partitions, as it is read; topics are passed on with what it said of theirs.

    The log is read from its start. What it says there is history, and stood in the state that the engine began with:
    only topics' states at its end are passed on, and each change after that. So are records that cannot be read.
    """

    def __init__(self, mirror: str) -> None:
        self._mirror = mirror
        self._partitions: defaultdict[str, dict[int, PartitionRecord]] = defaultdict(dict)
        self._history: dict[str, TopicRecord] | None = {}
        self._last_mirror: MirrorRecord | None = None
        self._unreadable: dict[Key, Unknown] = {}

    def take(self, met: object) -> list[ProgressRecord | LaneRowsRecord | FeedTopic | MirrorRecord | Unknown]:
        """Take the next record; return what is to be passed on now."""
        met = checked(met)
        if isinstance(met, MirrorRecord | TopicRecord | PartitionRecord | Removed):
            self._unreadable.pop(met.key, None)
        match met:
            case Unknown((str(kind), self._mirror, *_)) if kind in _OBEYED:
                if self._history is None:
                    return [met]
                self._unreadable[met.key] = met
            case ProgressRecord() | LaneRowsRecord() if met.mirror == self._mirror:
                return [met]
            case MirrorRecord() if met.name == self._mirror:
                if self._history is None:
                    return [met]
                self._last_mirror = met
            case PartitionRecord() if met.mirror == self._mirror:
                self._partitions[met.topic][met.partition] = met
            case Removed(("partition", self._mirror, str(topic), int(partition))):
                self._partitions[topic].pop(partition, None)
            case TopicRecord() if met.mirror == self._mirror:
                if self._history is None:
                    return [self._with_partitions(met)]
                self._history[met.topic] = met
        return []

    def catch_up(self) -> list[FeedTopic | MirrorRecord | Unknown]:
        """Note that the log's end was reached; the first time return the mirror's and its topics' state."""
        history, self._history = self._history or {}, None
        mirror, self._last_mirror = self._last_mirror, None
        unreadable, self._unreadable = self._unreadable, {}
        topics = (self._with_partitions(topic) for topic in history.values())
        return [*unreadable.values(), *([mirror] if mirror else []), *topics]

    def _with_partitions(self, topic: TopicRecord) -> FeedTopic:
        return FeedTopic(topic, tuple(self._partitions[topic.topic].values()))


class StoredRecords:
    """Keep what is stored of one mirror, by key: first as the engine found it, and from the log's end on as it is read.

    One thread takes records; `copy` is for any.
    """

    def __init__(self, mirror: str, found: Iterable[Record | Unknown]) -> None:
        self._mirror = mirror
        self._records: dict[Key, Record | Unknown] = {one.key: one for one in found if _is_of(one.key, mirror)}
        #: What was read before the log's end was reached for the first time; it ends as what is stored.
        self._read: dict[Key, Record | Unknown] | None = {}

    def take(self, met: Record | Removed | Unknown) -> None:
        """Take the next record of the log."""
        records = self._records if self._read is None else self._read
        if not _is_of(met.key, self._mirror):
            return
        if isinstance(met, Removed):
            records.pop(met.key, None)
        else:
            records[met.key] = met

    def catch_up(self) -> None:
        """Note that the log's end was reached."""
        if self._read is not None:
            self._records, self._read = self._read, None

    def copy(self) -> dict[Key, Record | Unknown]:
        """Return what is stored now, as far as is known."""
        return self._records.copy()


def _is_of(key: Key, mirror: str) -> bool:
    return key[1:2] == (mirror,)
