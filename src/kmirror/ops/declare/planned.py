"""The changes of `apply`, and what each makes of the stored state. Pure.

`lines` is what people review, `topic_names` the mirror topic that each line is about, if they are about topics. `after`
says what becomes of the state, so that a dry run can rehearse the next change; `topics` are those that were added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from kmirror.errors import Reason
from kmirror.ops.base.change_rows import ChangeAction
from kmirror.settings.other_tools import PAUSED
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.value_types import StartFrom
from kmirror.state.record_kinds import Record
from kmirror.state.records import (
    DesiredState,
    Key,
    MirrorRecord,
    PartitionState,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State


@dataclass(frozen=True, slots=True)
class CreateMirror:
    """Create a mirror that is not there."""

    mirror: str
    source: Mapping[str, str]
    settings: Mapping[str, str]
    paused: bool

    action = ChangeAction.CREATE
    topic_names = ()

    @property
    def lines(self) -> tuple[str, ...]:
        settings = [f"{key}={value}" for key, value in sorted(self.settings.items())]
        more = [f"with {', '.join(settings)}"] if settings else []
        more += ["paused"] if self.paused else []
        return (", ".join([f"+ create mirror {self.mirror} of {self.source.get('bootstrap.servers')}", *more]),)

    @property
    def properties(self) -> dict[str, str]:
        """Return what `create` is given."""
        return {**self.source, **self.settings, **({PAUSED: "true"} if self.paused else {})}

    def after(self, state: State, topics: Collection[str]) -> Changes:
        return Changes((MirrorRecord(self.mirror, self.source, self.settings, None, "", 0, paused=self.paused),))


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Change settings of a mirror, or client properties of its source; `before` are the texts of those that change."""

    mirror: str
    changed: Mapping[str, str]
    unset: tuple[str, ...] = ()
    before: Mapping[str, str] = field(default_factory=dict)
    #: Which of the keys are client properties of the source.
    connection: frozenset[str] = frozenset()

    action = ChangeAction.CONFIG
    topic_names = ()

    @property
    def lines(self) -> tuple[str, ...]:
        new = {**self.changed, **dict.fromkeys(self.unset, "default")}
        return tuple(f"~ {key}: {self.before.get(key) or 'not set'} → {text or 'empty'}" for key, text in new.items())

    def after(self, state: State, topics: Collection[str]) -> Changes:
        record = state.mirror(self.mirror)
        if record is None:
            return Changes()
        both = [dict(record.source), dict(record.settings)]
        for key in self.unset:
            both[0].pop(key, None)
            both[1].pop(key, None)
        for key, text in self.changed.items():
            both[key not in self.connection][key] = text
        return Changes((replace(record, source=both[0], settings=both[1]),))


@dataclass(frozen=True, slots=True)
class AddTopics:
    """Add source topics by names and patterns."""

    mirror: str
    patterns: tuple[str, ...]
    adopt: bool = False
    allow_missing: bool = False
    start_from: StartFrom | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    #: Of the names at the destination.
    prefix: str = ""

    action = ChangeAction.ADD

    @property
    def topic_names(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{one}" for one in self.patterns)

    @property
    def lines(self) -> tuple[str, ...]:
        how = ["adopted if they exist"] if self.adopt else []
        how += [f"from {self.start_from}"] if self.start_from is not None else []
        how += [f"with {key}={value}" for key, value in sorted(self.config.items())]
        text = f", {', '.join(how)}" if how else ""
        names = set(TopicSelector(self.patterns).names)
        return tuple(f"+ add {'topic' if one in names else 'pattern'} {one}{text}" for one in self.patterns)

    def after(self, state: State, topics: Collection[str]) -> Changes:
        record = state.mirror(self.mirror)
        if record is None:
            return Changes()
        desired = DesiredState.PAUSED if record.paused else DesiredState.ACTIVE
        new: list[Record] = [
            TopicRecord(self.mirror, one, one.removeprefix(self.prefix), None, None, desired, 0, TopicOrigin.CREATED)
            for one in topics
        ]
        kept = TopicSelector.parse([text]) if (text := record.settings.get("topics.include")) else TopicSelector()
        include = kept.plus(TopicSelector(TopicSelector(self.patterns).expressions))
        settings = {**record.settings, **({"topics.include": str(include)} if include.patterns else {})}
        return Changes((replace(record, settings=settings), *new))


@dataclass(frozen=True, slots=True)
class SwitchTopics:
    """Pause or resume mirror topics, or the whole mirror (None)."""

    mirror: str
    topics: tuple[str, ...] | None
    paused: bool

    @property
    def action(self) -> ChangeAction:
        return ChangeAction.PAUSE if self.paused else ChangeAction.RESUME

    @property
    def lines(self) -> tuple[str, ...]:
        verb = self.action.lower()
        if self.topics is None:
            return (f"~ {verb} mirror {self.mirror}",)
        return tuple(f"~ {verb} topic {one}" for one in self.topics)

    @property
    def topic_names(self) -> tuple[str, ...]:
        return self.topics or ()

    def after(self, state: State, topics: Collection[str]) -> Changes:
        both = DesiredState.ACTIVE, DesiredState.PAUSED
        before, after = both if self.paused else both[::-1]
        changed: list[Record] = [
            replace(one, desired=after)
            for one in state.topics(self.mirror)
            if one.desired is before and (self.topics is None or one.topic in self.topics)
        ]
        record = state.mirror(self.mirror)
        if self.topics is None and record is not None:
            changed.append(replace(record, paused=self.paused))
        return Changes(tuple(changed))


@dataclass(frozen=True, slots=True)
class StopTopics:
    """Make mirror topics writable: some, as `remove` does, or all (None), as `failover` does."""

    mirror: str
    topics: tuple[str, ...] | None

    action = ChangeAction.REMOVE

    @property
    def lines(self) -> tuple[str, ...]:
        if self.topics is None:
            return (f"- fail over mirror {self.mirror}: its topics become writable",)
        return tuple(f"- remove topic {one}: it becomes writable" for one in self.topics)

    @property
    def topic_names(self) -> tuple[str, ...]:
        return self.topics or ()

    def after(self, state: State, topics: Collection[str]) -> Changes:
        found = [one for one in state.topics(self.mirror) if self.topics is None or one.topic in self.topics]
        partitions = [one for topic in found for one in state.partitions(self.mirror, topic.topic)]
        record = state.mirror(self.mirror)
        ended = [replace(record, discovery_ended=True)] if record is not None and self.topics is None else []
        engine: tuple[Key, ...] = (("engine", self.mirror),) if self.topics is None else ()
        stopped = [replace(one, desired=DesiredState.STOPPED, pending_operation=None) for one in found]
        return Changes((*ended, *stopped, *(replace(one, state=PartitionState.STOPPED) for one in partitions)), engine)


@dataclass(frozen=True, slots=True)
class DeleteMirror:
    """Delete a mirror, and keep its topics."""

    mirror: str

    action = ChangeAction.DELETE
    topic_names = ()

    @property
    def lines(self) -> tuple[str, ...]:
        return (f"- delete mirror {self.mirror}",)

    def after(self, state: State, topics: Collection[str]) -> Changes:
        return Changes((), state.keys_of(self.mirror))


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the file asks for and `apply` does not do; `hint` is what to type."""

    mirror: str
    line: str
    message: str
    hint: str | None
    reason: Reason | None = None

    action = ChangeAction.REFUSE
    topic_names = ()

    @property
    def lines(self) -> tuple[str, ...]:
        return (self.line,)

    def after(self, state: State, topics: Collection[str]) -> Changes:
        return Changes()


PlannedChange = CreateMirror | ConfigChange | AddTopics | SwitchTopics | StopTopics | DeleteMirror | Refusal
