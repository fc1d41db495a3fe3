"""How far a failback is, as it is remembered on the old source: one record for all of it, and one for each topic that
is saved, and then cut or created again. Whoever starts the command again goes on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.archive.archiving import Proof
from kmirror.errors import Reason, RefusedError
from kmirror.ops.context import Destination, actor, change, now_ms
from kmirror.state.events import Event
from kmirror.state.snapshot import Changes, State
from kmirror.state.workflow_records import WorkflowRecord

FAILBACK = "failback"


class TopicStep(StrEnum):
    """Name what has been done for a topic of which something lies beyond the fork."""

    #: It is decided what goes into which archive.
    ARCHIVE = "ARCHIVE"
    #: All that is to be saved is in the archive, and was found there: the log may be cut, or the topic deleted.
    SAVED = "SAVED"
    #: The topic was deleted.
    CREATE = "CREATE"
    #: Comparing all of it has found a difference that the search for the fork had not.
    DIFFERS = "DIFFERS"


@dataclass(frozen=True, slots=True)
class TopicWork:
    """One topic under way.

    By partition: `ranges` are the offsets that are saved, `ends` where its logs ended, `limits` where they part from
    the new primary's, `differs` where they were found to differ, `proved` what the archive was found to hold. `groups`
    are what groups had committed, by partition.
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

    @property
    def places(self) -> dict[TopicPartition, int]:
        """Return up to where groups may stand, by partition."""
        return {TopicPartition(self.topic, p): limit for p, limit in self.limits.items()}

    def facts(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {
            "topic_id": self.topic_id,
            "archive": self.archive,
            "ranges": {str(p): list(bounds) for p, bounds in self.ranges.items()},
            "ends": {str(p): end for p, end in self.ends.items()},
            "limits": {str(p): limit for p, limit in self.limits.items()},
            "groups": {group: {str(p): at for p, at in offsets.items()} for group, offsets in self.groups.items()},
            "differs": {str(p): at for p, at in self.differs.items()},
            "records": self.records,
            "proved": {str(p): list(proof) for p, proof in self.proved.items()},
        }

    @classmethod
    def of(cls, topic: str, record: WorkflowRecord) -> TopicWork:
        """Read a stored one. Raises RefusedError where a newer kmirror wrote it."""
        facts = record.facts
        try:
            return cls(
                topic,
                TopicStep(record.step),
                facts["topic_id"],
                facts["archive"],
                {int(p): (int(low), int(high)) for p, (low, high) in facts["ranges"].items()},
                {int(p): int(end) for p, end in facts["ends"].items()},
                {int(p): int(limit) for p, limit in facts["limits"].items()},
                {group: {int(p): int(at) for p, at in some.items()} for group, some in facts["groups"].items()},
                # an older version wrote none
                {
                    int(p): Proof(str(archive), *map(int, rest))
                    for p, (archive, *rest) in facts.get("proved", {}).items()
                },
                {int(p): int(at) for p, at in facts["differs"].items()},
                int(facts["records"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RefusedError(
                f"progress of the failback of {topic} cannot be read: {error}",
                "use the kmirror version that started it, or a newer one",
            ) from None


class Progress:
    """Keep the records of one failback."""

    def __init__(self, destination: Destination, mirror: str) -> None:
        self._destination = destination
        self._mirror = mirror
        self._known: dict[str, WorkflowRecord] = {}
        #: True when an earlier one was begun and has not come to its end.
        self.is_under_way = False

    def load(self, state: State, topics: Collection[str]) -> dict[str, TopicWork]:
        """Return what is under way of these topics."""
        self.is_under_way = state.workflow(self._mirror, FAILBACK) is not None
        found = {name: state.workflow(self._mirror, _name(name)) for name in topics}
        self._known = {name: record for name, record in found.items() if record is not None}
        return {name: TopicWork.of(name, record) for name, record in self._known.items()}

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Record that somebody is at it."""

        def decide(state: State) -> Changes:
            found = state.workflow(self._mirror, FAILBACK)
            began = found.began_ms if found else now_ms()
            record = WorkflowRecord(self._mirror, FAILBACK, "BEGUN", actor(), began, now_ms(), facts)
            event = Event(now_ms(), self._mirror, FAILBACK, actor(), "BEGUN" if found is None else "RESUMED", facts)
            return Changes((record,), (), (event,))

        change(self._destination, self._mirror, decide)

    def note(self, work: TopicWork, *, tells: bool = True) -> TopicWork:
        """Record how far a topic is, and return it; `tells`: with an event.

        Raises:
            RefusedError: somebody else is at the same (FENCED).
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
                    f"another failback of {work.topic} {how}",
                    "check with `kmirror events`",
                    Reason.FENCED,
                )
            details = {"topic": work.topic, "archive": work.archive, "records": work.records}
            event = Event(now, self._mirror, FAILBACK, actor(), work.step, details)
            return Changes((record,), (), (event,) if tells else ())

        change(self._destination, self._mirror, decide)
        self._known[work.topic] = record
        return work

    def forget(self, topics: Collection[str]) -> None:
        """Forget topics that are done."""
        keys = [self._known.pop(name).key for name in topics if name in self._known]
        if keys:
            change(self._destination, self._mirror, lambda _: Changes((), tuple(keys)))

    def finish(self, outcome: str, details: Mapping[str, Any], *, is_over: bool) -> None:
        """Tell how it ended; where it `is_over`, nothing is left to go on with."""

        def decide(state: State) -> Changes:
            found = state.workflow(self._mirror, FAILBACK)
            event = Event(now_ms(), self._mirror, FAILBACK, actor(), outcome, details)
            if found is None:
                return Changes((), (), (event,))
            if is_over:
                return Changes((), (found.key,), (event,))
            return Changes((replace(found, step=outcome, last_seen_ms=now_ms()),), (), (event,))

        change(self._destination, self._mirror, decide)


def _name(topic: str) -> str:
    return f"{FAILBACK} {topic}"
