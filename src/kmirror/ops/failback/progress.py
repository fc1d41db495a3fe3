"""The progress of a failback, as stored on the old source: one record for the whole, and one for each topic that is
archived and then cut or recreated. The same command, run again, resumes from there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason, RefusedError
from kmirror.ops.base.context import Destination, actor, change, now_ms, own_event
from kmirror.state.archive_proofs import Proof
from kmirror.state.event_records import Event
from kmirror.state.snapshot import Changes, State
from kmirror.state.stored import UNREADABLE, dump, load, read
from kmirror.state.workflow_records import WorkflowRecord

FAILBACK = "failback"


class TopicStep(StrEnum):
    """How far a topic is that has records after the fork."""

    #: It is decided which records go into which archive.
    ARCHIVE = "ARCHIVE"
    #: The archive holds these records, and was verified: the log may be cut, or the topic deleted.
    SAVED = "SAVED"
    #: The topic was deleted.
    CREATE = "CREATE"
    #: A full comparison has found a difference that the search for the fork had not.
    DIFFERS = "DIFFERS"


@dataclass(frozen=True, slots=True)
class TopicWork:
    """The progress of one topic.

    By partition: `ranges` are the offsets to archive after the forks and `older` those before the new primary's copy
    began, `ends` where its logs ended, `limits` where they fork from the
    new primary's, `differs` where they were found to differ, `proved` what the archive was found to hold. `groups` are
    the offsets that groups had committed, by partition. `kept_ms` is how long the archive keeps its records, None: for
    ever. `settings` are those of the topic that are never synced.
    """

    topic: str
    step: TopicStep
    topic_id: str | None
    archive: str | None = None
    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)
    limits: Mapping[int, int] = field(default_factory=dict)
    groups: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    proved: Mapping[int, Proof] = field(default_factory=dict)
    differs: Mapping[int, int] = field(default_factory=dict)
    records: int = 0
    kept_ms: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1
    older: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def to_archive(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """The offsets to archive, by partition."""
        partitions = sorted({*self.older, *self.ranges})
        return {p: tuple(some[p] for some in (self.older, self.ranges) if p in some) for p in partitions}

    @property
    def group_limits(self) -> dict[TopicPartition, int]:
        """The highest offset that groups may have, by partition."""
        return {TopicPartition(self.topic, p): limit for p, limit in self.limits.items()}

    @property
    def offsets_after_forks(self) -> int:
        """How many offsets its logs had after the forks."""
        return sum(max(0, end - self.limits.get(p, end)) for p, end in self.ends.items())

    def facts(self) -> dict[str, Any]:
        """Return the facts of its stored record, as they are read back."""
        found: dict[str, Any] = load(dump({one.name: getattr(self, one.name) for one in fields(self)[2:]}))
        return found

    @classmethod
    def of(cls, topic: str, record: WorkflowRecord) -> TopicWork:
        """Read a stored record. Raises RefusedError if it cannot be read, as when a newer kmirror wrote it."""
        try:
            return read(cls, dict(record.facts), (topic, str(record.step)))
        except UNREADABLE as error:
            raise RefusedError(
                f"progress of the failback of {topic} cannot be read: {error}",
                "use the kmirror version that started it, or a newer one",
            ) from None


class Workflow:
    """The stored progress of an operation on a mirror; each change of it is an event, too."""

    def __init__(self, destination: Destination, mirror: str, name: str) -> None:
        self._destination = destination
        self._mirror = mirror
        self._name = name

    def has_reached(self, steps: Collection[str], facts: Mapping[str, Any]) -> bool:
        """Return whether one of these steps is recorded, with these facts among others."""
        found = self._destination.state().workflow(self._mirror, self._name)
        return found is not None and found.step in steps and found.facts.items() >= facts.items()

    def begin(self, step: str, facts: Mapping[str, Any], resumed: str | None = None) -> None:
        """Record a step; the event says `resumed`, if given, where an earlier run has recorded one."""

        def decide(state: State) -> Changes:
            found = state.workflow(self._mirror, self._name)
            began = found.began_ms if found else now_ms()
            record = WorkflowRecord(self._mirror, self._name, step, actor(), began, now_ms(), facts)
            result = resumed if found and resumed else step
            return Changes((record,), (), (own_event(self._mirror, self._name, result, facts),))

        change(self._destination, self._mirror, decide)

    def finish(self, outcome: str, details: Mapping[str, Any], *, is_over: bool) -> None:
        """Record how it ended; with `is_over`, delete its record: there is nothing left to resume."""

        def decide(state: State) -> Changes:
            found = state.workflow(self._mirror, self._name)
            event = own_event(self._mirror, self._name, outcome, details)
            if found is None:
                return Changes((), (), (event,))
            if is_over:
                return Changes((), (found.key,), (event,))
            return Changes((replace(found, step=outcome, last_seen_ms=now_ms()),), (), (event,))

        change(self._destination, self._mirror, decide)


class Progress(Workflow):
    """Read and write the stored progress of one failback, and of its topics."""

    def __init__(self, destination: Destination, mirror: str) -> None:
        super().__init__(destination, mirror, FAILBACK)
        self._known: dict[str, WorkflowRecord] = {}
        #: True if an earlier run was begun and has not finished.
        self.is_unfinished = False

    def load(self, state: State, topics: Collection[str]) -> dict[str, TopicWork]:
        """Return the stored progress of these topics."""
        self.is_unfinished = state.workflow(self._mirror, FAILBACK) is not None
        found = {name: state.workflow(self._mirror, _name(name)) for name in topics}
        self._known = {name: record for name, record in found.items() if record is not None}
        return {name: TopicWork.of(name, record) for name, record in self._known.items()}

    def record(self, work: TopicWork, *, with_event: bool = True) -> TopicWork:
        """Record the progress of a topic, and return it.

        Raises RefusedError: another failback of the topic is in progress, or has finished (FENCED).
        """
        now = now_ms()
        before = self._known.get(work.topic)
        began = before.began_ms if before else now
        record = WorkflowRecord(self._mirror, _name(work.topic), work.step, actor(), began, now, work.facts())

        def decide(state: State) -> Changes:
            found = state.workflow(self._mirror, _name(work.topic))
            if found not in (before, record):
                how = f"is in progress: {found.actor}" if found else "has finished"
                raise RefusedError(
                    f"another failback of {work.topic} {how}", "check with `kmirror events`", Reason.FENCED
                )
            details = {
                "topic": work.topic,
                "archive": work.archive,
                "records": work.records,
                "retentionMs": work.kept_ms,
                "offsets": work.offsets_after_forks,
                "partitions": {
                    str(p): {
                        "fork": work.limits.get(p),
                        "logEnd": end,
                        "archived": list(work.ranges[p]) if p in work.ranges else None,
                        "olderArchived": list(work.older[p]) if p in work.older else None,
                    }
                    for p, end in work.ends.items()
                },
            }
            event = Event(now, self._mirror, FAILBACK, actor(), work.step, details)
            return Changes((record,), (), (event,) if with_event else ())

        change(self._destination, self._mirror, decide)
        self._known[work.topic] = record
        return work

    def delete(self, topics: Collection[str]) -> None:
        """Delete the progress of topics that are done."""
        keys = [self._known.pop(name).key for name in topics if name in self._known]
        if keys:
            change(self._destination, self._mirror, lambda _: Changes((), tuple(keys)))


def _name(topic: str) -> str:
    return f"{FAILBACK} {topic}"
