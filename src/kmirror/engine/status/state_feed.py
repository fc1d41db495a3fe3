"""What an engine reads of its mirror in `__kmirror_state`: lane reports, settings, topic states. No I/O.

A topic comes with the records of its partitions at the time it was written: an `add` writes what it decided for a
partition before the topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from kmirror.state.record_kinds import Record, Removed, Unknown
from kmirror.state.records import Key, LaneRowsRecord, MirrorRecord, PartitionRecord, ProgressRecord, TopicRecord
from kmirror.state.snapshot import checked

#: Kinds of records that an engine follows or overwrites: it must be able to read all of them.
_OBEYED = ("mirror", "topic", "partition")


@dataclass(frozen=True, slots=True)
class FeedTopic:
    """A topic's record, and the records of its partitions at the time it was written."""

    topic: TopicRecord
    partitions: tuple[PartitionRecord, ...]


class StateFeed:
    """Follow one mirror's records in the log, and pass on what its engine must know.

    The log is read from its start. What is there is in the state that the engine started with: only the mirror's and
    its topics' records at the log's end are passed on, and each change after that. So are records that cannot be read.
    """

    def __init__(self, mirror: str) -> None:
        self._mirror = mirror
        self._partitions: defaultdict[str, dict[int, PartitionRecord]] = defaultdict(dict)
        self._history: dict[str, TopicRecord] | None = {}
        self._last_mirror: MirrorRecord | None = None
        self._unreadable: dict[Key, Unknown] = {}

    def take(self, read: object) -> list[ProgressRecord | LaneRowsRecord | FeedTopic | MirrorRecord | Unknown]:
        """Take the next record; return what to pass on now."""
        record = checked(read)
        if isinstance(record, MirrorRecord | TopicRecord | PartitionRecord | Removed):
            self._unreadable.pop(record.key, None)
        match record:
            case Unknown((str(kind), self._mirror, *_)) if kind in _OBEYED:
                if self._history is None:
                    return [record]
                self._unreadable[record.key] = record
            case ProgressRecord() | LaneRowsRecord() if record.mirror == self._mirror:
                return [record]
            case MirrorRecord() if record.name == self._mirror:
                if self._history is None:
                    return [record]
                self._last_mirror = record
            case PartitionRecord() if record.mirror == self._mirror:
                self._partitions[record.topic][record.partition] = record
            case Removed(("partition", self._mirror, str(topic), int(partition))):
                self._partitions[topic].pop(partition, None)
            case TopicRecord() if record.mirror == self._mirror:
                if self._history is None:
                    return [self._with_partitions(record)]
                self._history[record.topic] = record
        return []

    def catch_up(self) -> list[FeedTopic | MirrorRecord | Unknown]:
        """Note that the log's end was reached; the first time return the records of the mirror and its topics."""
        history, self._history = self._history or {}, None
        mirror, self._last_mirror = self._last_mirror, None
        unreadable, self._unreadable = self._unreadable, {}
        topics = (self._with_partitions(topic) for topic in history.values())
        return [*unreadable.values(), *([mirror] if mirror else []), *topics]

    def _with_partitions(self, topic: TopicRecord) -> FeedTopic:
        return FeedTopic(topic, tuple(self._partitions[topic.topic].values()))


class StoredRecords:
    """Keep what is stored of one mirror, by key: as the engine found it, until the log has been read once to its end.

    One thread takes records; any thread may call `copy`.
    """

    def __init__(self, mirror: str, found: Iterable[Record | Unknown]) -> None:
        self._mirror = mirror
        self._records: dict[Key, Record | Unknown] = {one.key: one for one in found if _is_of(one.key, mirror)}
        #: What is read until the log's end is reached for the first time; None after that.
        self._read: dict[Key, Record | Unknown] | None = {}

    def take(self, read: Record | Removed | Unknown) -> None:
        """Take the next record of the log."""
        records = self._records if self._read is None else self._read
        if not _is_of(read.key, self._mirror):
            return
        if isinstance(read, Removed):
            records.pop(read.key, None)
        else:
            records[read.key] = read

    def catch_up(self) -> None:
        """Note that the log's end was reached."""
        if self._read is not None:
            self._records, self._read = self._read, None

    def get(self, key: Key) -> Record | Unknown | None:
        """Return one of the records."""
        return self._records.get(key)

    def copy(self) -> dict[Key, Record | Unknown]:
        """Return what is stored, as far as it was read."""
        return self._records.copy()


def _is_of(key: Key, mirror: str) -> bool:
    return key[1:2] == (mirror,)
