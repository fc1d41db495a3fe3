"""The desired state of a mirror: its settings and its topics, as the engine reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.status.journal import Level, MirrorJournal
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.engine.status.state_feed import FeedTopic
from kmirror.settings.parsing import stored_settings, unknown_settings
from kmirror.settings.table import Settings
from kmirror.state.records import PENDING_REBUILD, DesiredState, MirrorRecord, TopicRecord
from kmirror.words import counted


class MirrorTopics:
    """Keep one mirror's record and topics; for one thread, except where a method says otherwise."""

    def __init__(
        self, record: MirrorRecord, topics: Iterable[TopicRecord], partitions: MirrorPartitions, journal: MirrorJournal
    ) -> None:
        self.record = record
        self.settings: Settings = stored_settings(record.settings)
        self.by_name = {topic.topic: topic for topic in topics}
        self._partitions = partitions
        self._journal = journal
        self._report_unknown(())
        #: By released topic, the desired state and the pause for which it was released.
        self._released: dict[str, tuple[DesiredState, str | None]] = {}
        #: By topic, its partitions; see `wanted_partitions`.
        self._of_topic: dict[str, list[TopicPartition]] = {}
        #: Topics that may have to be released; and topics to rebuild.
        self._to_check = set(self.by_name)
        self._claimed = {topic.topic for topic in self.by_name.values() if _is_claimed(topic)}

    def take_mirror(self, record: MirrorRecord) -> bool:
        """Take the mirror's record, with its settings and login; return whether it has changed."""
        if record == self.record:
            return False
        before = unknown_settings(self.record.settings)
        self.record, self.settings = record, stored_settings(record.settings)
        self._report_unknown(before)
        return True

    def _report_unknown(self, reported: Collection[str]) -> None:
        if unknown := [key for key in unknown_settings(self.record.settings) if key not in reported]:
            self._journal.note(f"this kmirror ignores unknown settings: {', '.join(unknown)}", Level.WARNING)

    def take(self, fed: FeedTopic) -> bool:
        """Take a topic's record; return whether it has changed."""
        record, before = fed.topic, self.by_name.get(fed.topic.topic)
        if record == before:
            return False
        self.by_name[record.topic] = record
        self._to_check.add(record.topic)
        (self._claimed.add if _is_claimed(record) else self._claimed.discard)(record.topic)
        is_continued = (
            before is not None
            and before.desired is not DesiredState.STOPPED
            and before.destination_topic_id == record.destination_topic_id
        )
        if not record.is_copied:
            self._partitions.forget_targets(record.topic)
        if before is not None and is_continued and record.partitions > before.partitions:
            more = counted(record.partitions - before.partitions, "more partition")
            self._journal.note(f"{record.topic} has {more} at the source: copied too")
        if record.desired is DesiredState.STOPPED or is_continued:
            if before is not None and before.recoveries != record.recoveries:
                self._partitions.forget_failures(record.topic)
            return True
        self._released.pop(record.topic, None)
        self._partitions.forget_targets(record.topic)
        self._partitions.replace(record.topic, fed.partitions)
        return True

    def release(self, is_free: Callable[[str], bool]) -> bool:
        """Release topics that are not copied and that no lane has; return whether any record has changed."""
        has_changed = False
        for name in list(self._to_check):
            topic = self.by_name[name]
            target = topic.desired, topic.pause_id
            if topic.desired is DesiredState.ACTIVE:
                self._released.pop(name, None)
            elif topic.destination_topic_id is None:
                pass  # no mirror topic yet: the partition records that its `add` writes must not be overwritten
            elif self._released.get(name) != target:
                if not is_free(name):
                    continue
                self._released[name] = target
                has_changed |= self._partitions.release(topic, topic.partitions)
            self._to_check.discard(name)
        return has_changed

    def active(self) -> list[TopicRecord]:
        """Return the topics whose desired state is ACTIVE; from any thread."""
        return [topic for topic in self.by_name.copy().values() if topic.desired is DesiredState.ACTIVE]

    def paused(self) -> list[TopicRecord]:
        """Return the paused mirror topics; from any thread."""
        return [
            topic
            for topic in self.by_name.copy().values()
            if topic.desired is DesiredState.PAUSED and topic.destination_topic_id is not None
        ]

    def idle(self) -> list[TopicRecord]:
        """Return the topics that are neither copied nor stopped: paused, stopping, being rebuilt."""
        return [t for t in self.by_name.values() if t.desired is not DesiredState.STOPPED and not t.is_copied]

    def claimed(self) -> list[str]:
        """Return the topics to rebuild."""
        return sorted(self._claimed)

    def wanted_partitions(self) -> dict[str, list[TopicPartition]]:
        """Return the partitions that lanes should copy now, by topic."""
        return {name: self._partitions_of(topic) for name, topic in self.by_name.items() if topic.is_copied}

    def _partitions_of(self, topic: TopicRecord) -> list[TopicPartition]:
        known = self._of_topic.get(topic.topic, [])
        if len(known) != topic.partitions:
            known = [TopicPartition(topic.topic, partition) for partition in range(topic.partitions)]
            self._of_topic[topic.topic] = known
        return known


def _is_claimed(topic: TopicRecord) -> bool:
    return topic.pending_operation == PENDING_REBUILD
