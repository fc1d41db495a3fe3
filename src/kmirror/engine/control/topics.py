"""What operators want of a mirror: its settings and its topics, as the engine reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.control.journal import Journal, Level
from kmirror.engine.control.partitions import MirrorPartitions
from kmirror.engine.control.state_feed import FeedTopic
from kmirror.settings.table import Settings, stored_settings, unknown_settings
from kmirror.state.records import PENDING_PROMOTE, PENDING_REBUILD, DesiredState, MirrorRecord, TopicRecord
from kmirror.words import counted


class MirrorTopics:
    """Keep one mirror's record and topics; for one thread, except where a method says otherwise."""

    def __init__(
        self, record: MirrorRecord, topics: Iterable[TopicRecord], partitions: MirrorPartitions, journal: Journal
    ) -> None:
        self.record = record
        self.settings: Settings = stored_settings(record.settings)
        self.by_name = {topic.topic: topic for topic in topics}
        self._partitions = partitions
        self._journal = journal
        self._tell_unknown(())
        #: How many partitions topics have that have grown since they were added.
        self._counts: dict[str, int] = {}
        #: Released topics: their record when they were released, and for which pause.
        self._released: dict[str, tuple[DesiredState, str | None]] = {}
        #: By topic, its partitions; see `places`.
        self._places: dict[str, list[TopicPartition]] = {}
        #: Topics of which it is to be found out whether they are to be released; and those that are to be rebuilt.
        self._to_look_at = set(self.by_name)
        self._claimed = {topic.topic for topic in self.by_name.values() if _is_claimed(topic)}

    def take_mirror(self, record: MirrorRecord) -> bool:
        """Take changed settings, and how to log in; return whether they are changed."""
        if record == self.record:
            return False
        before = unknown_settings(self.record.settings)
        self.record, self.settings = record, stored_settings(record.settings)
        self._tell_unknown(before)
        return True

    def _tell_unknown(self, told: Collection[str]) -> None:
        if news := [key for key in unknown_settings(self.record.settings) if key not in told]:
            self._journal.note(f"this kmirror does not know {', '.join(news)}: without effect here", Level.WARNING)

    def take(self, fed: FeedTopic) -> bool:
        """Take a topic's state; return whether that is news."""
        record, before = fed.topic, self.by_name.get(fed.topic.topic)
        if record == before:
            return False
        self.by_name[record.topic] = record
        self._to_look_at.add(record.topic)
        (self._claimed.add if _is_claimed(record) else self._claimed.discard)(record.topic)
        goes_on = (
            before is not None
            and before.desired is not DesiredState.STOPPED
            and before.destination_topic_id == record.destination_topic_id
        )
        if not is_copied(record):
            self._partitions.forget_targets(record.topic)
        if record.desired is DesiredState.STOPPED or goes_on:
            if before is not None and before.recoveries != record.recoveries:
                self._partitions.forget_failures(record.topic)
            return True
        self._counts.pop(record.topic, None)
        self._released.pop(record.topic, None)
        self._partitions.forget_targets(record.topic)
        self._partitions.replace(record.topic, fed.partitions)
        return True

    def take_partition_counts(self, counts: Mapping[str, int]) -> bool:
        """Take how many partitions topics have at the source; return whether any has more than before."""
        is_news = False
        for topic, count in counts.items():
            record = self.by_name.get(topic)
            if record and count > (known := self.partition_count(record)):
                self._journal.note(f"{topic} has {counted(count - known, 'more partition')} at the source: copied too")
                self._journal.record("partitions", "added", {"topic": topic, "partitions": count})
                self._counts[topic] = count
                is_news = True
        return is_news

    def release(self, is_free: Callable[[str], bool]) -> bool:
        """Note that no lane has these topics any more; return whether anything is to be stored."""
        is_news = False
        for name in list(self._to_look_at):
            topic = self.by_name[name]
            wish = topic.desired, topic.pause_id
            if topic.desired is DesiredState.ACTIVE:
                self._released.pop(name, None)
            elif topic.destination_topic_id is None:
                pass  # no mirror topic yet: what its `add` writes of the partitions must not be overwritten
            elif self._released.get(name) != wish:
                if not is_free(name):
                    continue
                self._released[name] = wish
                is_news |= self._partitions.release(topic, self.partition_count(topic))
            self._to_look_at.discard(name)
        return is_news

    def partition_count(self, topic: TopicRecord) -> int:
        """Return how many partitions a topic has, as far as is known."""
        return max(topic.partitions, self._counts.get(topic.topic, 0))

    def active(self) -> list[TopicRecord]:
        """Return the topics that operators want to be copied; from any thread."""
        return [topic for topic in self.by_name.copy().values() if topic.desired is DesiredState.ACTIVE]

    def idle(self) -> list[TopicRecord]:
        """Return the topics that are not to be copied now and not stopped either: paused, stopping, being rebuilt."""
        return [t for t in self.by_name.values() if t.desired is not DesiredState.STOPPED and not is_copied(t)]

    def claimed(self) -> list[str]:
        """Return the topics that are to be rebuilt."""
        return sorted(self._claimed)

    def places(self) -> dict[str, list[TopicPartition]]:
        """Return the partitions that lanes are to copy now, by topic."""
        return {name: self._places_of(topic) for name, topic in self.by_name.items() if is_copied(topic)}

    def _places_of(self, topic: TopicRecord) -> list[TopicPartition]:
        known, count = self._places.get(topic.topic, []), self.partition_count(topic)
        if len(known) != count:
            known = self._places[topic.topic] = [TopicPartition(topic.topic, partition) for partition in range(count)]
        return known


def _is_claimed(topic: TopicRecord) -> bool:
    return topic.pending_operation == PENDING_REBUILD


def is_copied(topic: TopicRecord) -> bool:
    """Tell whether lanes are to copy a topic now."""
    return topic.desired is DesiredState.ACTIVE and topic.pending_operation in (None, PENDING_PROMOTE)
