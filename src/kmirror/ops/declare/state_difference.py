"""The difference between what a file declares and what is stored, as changes in the order of their doing. Pure.

What is stored and not in the file stays as it is, unless it is pruned. Pruned without being named are settings, client
properties, filters, and mirrors that never had a topic: nothing is lost by that, and no other command asks before it.
What makes a topic writable, or forgets where topics were stopped, has to be named.

What an operator has stopped is never mirrored again because a file still lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from kmirror.commands import command_line, on_mirror, on_topics, option
from kmirror.errors import UsageError
from kmirror.ops.add.add_plan import is_added
from kmirror.ops.declare.declared import EXCLUDE, INCLUDE, Declared, DeclaredMirror, DeclaredTopics
from kmirror.ops.declare.planned import (
    AddTopics,
    ConfigChange,
    CreateMirror,
    DeleteMirror,
    PlannedChange,
    Refusal,
    StopTopics,
    SwitchTopics,
)
from kmirror.ops.stop.work import is_stopped
from kmirror.settings.parsing import setting_of, stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import SETTINGS, Settings
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.words import listed

_FILTERS = (INCLUDE, EXCLUDE)


@dataclass(frozen=True, slots=True)
class Prune:
    """What is removed if the file does not have it; `topics` (destination names) and `mirrors` are named one by one."""

    all: bool = False
    topics: frozenset[str] = frozenset()
    mirrors: frozenset[str] = frozenset()

    @classmethod
    def of(cls, everything: bool, topics: TopicSelector | None, mirrors: Iterable[str]) -> Prune:
        """Return what is pruned. Raises UsageError: a topic is not given by its name."""
        if topics is not None and topics.expressions:
            raise UsageError(f"{topics.expressions[0]} is not the name of a topic to prune", "name each topic")
        return cls(everything, frozenset(topics.names if topics is not None else ()), frozenset(mirrors))


@dataclass(slots=True)
class MirrorDifference:
    """The changes of one mirror, and what is in the state, not in the file, and left as it is."""

    changes: list[PlannedChange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def names_to_visit(declared: Declared, state: State, prune: Prune) -> tuple[str, ...]:
    """Return the mirrors of the file, then those that are stored or named and not in it.

    Raises:
        UsageError: what is named to be pruned is in the file.
    """
    of_file = [one.name for one in declared.mirrors]
    if both := sorted(prune.mirrors.intersection(of_file)):
        raise UsageError(f"--prune-mirror {both[0]}: it is in {declared.path}", "remove it from the file first")
    for mirror in declared.mirrors:
        declares = _declares(mirror)
        for topic in state.topics(mirror.name):
            if topic.topic in prune.topics and declares(topic) and not is_stopped(topic):
                raise UsageError(
                    f"--prune-topics {topic.topic}: it is in {declared.path}", "remove it from the file first"
                )
    stored = (one.name for one in state.mirrors)
    return tuple(dict.fromkeys([*of_file, *sorted({*stored, *prune.mirrors})]))


def unknown_names(state: State, prune: Prune) -> Iterator[Refusal]:
    """Yield a refusal for each topic that is named to be pruned and belongs to no mirror."""
    known = {topic.topic for mirror in state.mirrors for topic in state.topics(mirror.name)}
    for name in sorted(prune.topics - known):
        message = f"{name}: no such mirror topic on this destination"
        yield Refusal("", f"- remove topic {name}", message, "`kmirror describe` lists the mirror topics")


def difference(declared: DeclaredMirror | None, name: str, state: State, prune: Prune) -> MirrorDifference:
    """Return what leads from the stored mirror of this name to the one in the file; `declared` None: it has none.

    Raises:
        RefusedError: a newer kmirror wrote records of the mirror that this version cannot read.
    """
    if declared is not None or prune.all or name in prune.mirrors:
        state.require_readable(name)
    found = MirrorDifference()
    record = state.mirror(name)
    if declared is None:
        _undeclared(name, state, prune, found)
    elif record is None:
        exclude = {EXCLUDE: declared.filters[EXCLUDE]} if declared.exclude else {}
        settings = {**declared.settings, **exclude}
        found.changes.append(CreateMirror(name, declared.source, settings, declared.paused is True))
        found.changes += (
            _adding(name, one, one.patterns, declared.settings.get("topic.prefix", "")) for one in declared.topics
        )
        # the new topics are as the mirror is
        if declared.paused is not None and declared.otherwise:
            found.changes.append(SwitchTopics(name, tuple(sorted(declared.otherwise)), not declared.paused))
    else:
        _changed(declared, record, state, prune, found)
    return found


def _declares(mirror: DeclaredMirror) -> Callable[[TopicRecord], bool]:
    """Return whether the file has a topic, by its name or by what selects topics."""
    auto = {key: text for key, text in mirror.settings.items() if key.startswith("auto.create.mirror.topics.")}
    names, filters = frozenset(mirror.patterns), stored_settings(auto)
    include, exclude = TopicSelector(mirror.patterns), TopicSelector(mirror.exclude)

    def declares(topic: TopicRecord) -> bool:
        source = topic.source_topic
        return source in names or ((include.matches(source) or filters.selects(source)) and not exclude.matches(source))

    return declares


def _changed(mirror: DeclaredMirror, record: MirrorRecord, state: State, prune: Prune, found: MirrorDifference) -> None:
    topics = state.topics(mirror.name)
    settings = stored_settings(record.settings)
    refusals = _refused(mirror, record, settings, topics)
    early, late = _copying(mirror, record, topics, found)
    found.changes += early
    config = _config(mirror, record, settings, topics, prune, found)
    if config.changed or config.unset:
        found.changes.append(config)
    found.changes += _added(mirror, record, settings, topics)
    found.changes += late
    found.changes += _removed(mirror, topics, prune, found)
    found.changes += refusals


def _refused(
    mirror: DeclaredMirror, record: MirrorRecord, settings: Settings, topics: Iterable[TopicRecord]
) -> Iterator[Refusal]:
    """Yield what the file asks for and no command does."""
    for key, text in mirror.settings.items():
        row = setting_of(key)
        before = getattr(settings, row.attribute)
        if not row.changeable and row.kind.read(key, text) != before:
            yield Refusal(
                mirror.name,
                f"~ {key}: {_text_of(settings, key) or 'empty'} → {text or 'empty'}",
                f"{key} cannot be changed once the mirror exists",
                "create a new mirror with that setting, or restore its value in the file",
            )
    stopped = {one.source_topic: one.topic for one in topics if one.desired is DesiredState.STOPPED}
    if left := [name for name, here in stopped.items() if name in mirror.patterns or here in mirror.otherwise]:
        yield Refusal(
            mirror.name,
            f"+ add topic {listed(left)}",
            f"{listed(left)}: stopped by an operator, and mirrored again only by one",
            f"remove it from the file, or `{on_topics('add', mirror.name, left, '--adopt')}`",
        )
    if record.discovery_ended and (new := _missing(TopicSelector(mirror.patterns).expressions, settings)):
        yield Refusal(
            mirror.name,
            f"+ add pattern {listed(new)}",
            "failed over as a whole: it discovers no topics",
            f"remove {listed(new)} from the file, or `{on_mirror('failback', mirror.name)} …`",
        )


def _missing(patterns: Iterable[str], settings: Settings) -> list[str]:
    return [one for one in patterns if one not in settings.topics_include.patterns]


def _config(
    mirror: DeclaredMirror,
    record: MirrorRecord,
    settings: Settings,
    topics: Iterable[TopicRecord],
    prune: Prune,
    found: MirrorDifference,
) -> ConfigChange:
    changed = {key: text for key, text in mirror.source.items() if record.source.get(key) != text}
    for key, text in mirror.settings.items():
        row = setting_of(key)
        if row.changeable and row.kind.read(key, text) != getattr(settings, row.attribute):
            changed[key] = text
    extra = [key for key in record.source if key not in mirror.source]
    extra += [
        row.key
        for row in SETTINGS
        if row.key in record.settings.keys() - mirror.settings.keys() - set(_FILTERS)
        and row.changeable
        and getattr(settings, row.attribute) != row.default
    ]
    unset = list(extra) if prune.all else []
    filters, extra_filters = _filters(mirror, record, settings, topics, prune)
    for key, patterns in filters.items():
        if patterns:
            changed[key] = ",".join(patterns)
        else:
            unset.append(key)
    if not prune.all and (left := [*extra_filters, *extra]):
        found.notes.append(f"mirror {mirror.name}: not in the file, and left as it is: {listed(left)}")
    connection = frozenset({*mirror.source, *record.source})
    before = {
        key: record.source.get(key, "") if key in connection else _text_of(settings, key) for key in (*changed, *unset)
    }
    return ConfigChange(mirror.name, changed, tuple(unset), before, connection)


def _text_of(settings: Settings, key: str) -> str:
    row = setting_of(key)
    return row.kind.write(getattr(settings, row.attribute))


def _filters(
    mirror: DeclaredMirror, record: MirrorRecord, settings: Settings, topics: Iterable[TopicRecord], prune: Prune
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the filters that change, and what the stored ones have that the file has not."""
    # what `remove` excluded keeps discovery from bringing a stopped topic back
    stopped = {one.source_topic for one in topics if one.desired is DesiredState.STOPPED}
    stored = {INCLUDE: settings.topics_include.patterns, EXCLUDE: settings.topics_exclude.patterns}
    wanted = {INCLUDE: mirror.patterns, EXCLUDE: mirror.exclude}
    kept_anyway = {INCLUDE: set(stored[INCLUDE]) if record.discovery_ended else set(), EXCLUDE: stopped}
    changed, extra = {}, []
    for key in _FILTERS:
        more = [one for one in stored[key] if one not in wanted[key] and one not in kept_anyway[key]]
        extra += [f"{one} in {key}" for one in more]
        after = tuple(one for one in stored[key] if not prune.all or one not in more)
        if key == EXCLUDE:  # patterns to include are added, with the topics that they match
            after = tuple(dict.fromkeys([*after, *mirror.exclude]))
        if after != stored[key]:
            changed[key] = after
    return changed, extra


def _added(
    mirror: DeclaredMirror, record: MirrorRecord, settings: Settings, topics: Iterable[TopicRecord]
) -> Iterator[AddTopics]:
    mirrored = {one.source_topic for one in topics if is_added(one) or one.desired is DesiredState.STOPPED}
    for one in mirror.topics:
        new = _missing(one.patterns, settings)
        ended = set(TopicSelector(tuple(new)).expressions) if record.discovery_ended else set()
        if left := tuple(pattern for pattern in new if pattern not in mirrored and pattern not in ended):
            yield _adding(mirror.name, one, left, settings.topic_prefix)


def _adding(mirror: str, group: DeclaredTopics, patterns: tuple[str, ...], prefix: str) -> AddTopics:
    how = (group.adopt, group.allow_missing, group.start_from, group.config)
    return AddTopics(mirror, patterns, *how, prefix=prefix)


def _copying(
    mirror: DeclaredMirror, record: MirrorRecord, topics: Iterable[TopicRecord], found: MirrorDifference
) -> tuple[list[PlannedChange], list[PlannedChange]]:
    """Return what is paused before anything else is done, and what is paused or resumed afterwards."""
    if mirror.paused is None:
        if record.paused:
            found.notes.append(f"mirror {mirror.name} is paused, and stays so: the file does not say whether it is")
        return [], []
    name, early, late = mirror.name, list[PlannedChange](), list[PlannedChange]()
    wanted = {one.topic: mirror.paused is not (one.topic in mirror.otherwise) for one in topics if is_added(one)}
    is_paused = {one.topic: one.desired is DesiredState.PAUSED for one in topics if is_added(one)}
    if record.paused is not mirror.paused:
        # all topics follow the mirror
        (early if mirror.paused else late).append(SwitchTopics(name, None, mirror.paused))
        is_paused = dict.fromkeys(is_paused, mirror.paused)
    pausing = tuple(one for one, paused in wanted.items() if paused and not is_paused[one])
    resuming = tuple(one for one, paused in wanted.items() if not paused and is_paused[one])
    if pausing:
        (late or early).append(SwitchTopics(name, pausing, paused=True))
    if resuming:
        late.append(SwitchTopics(name, resuming, paused=False))
    stopped = {one.topic for one in topics if one.desired is DesiredState.STOPPED}
    if new := tuple(sorted(mirror.otherwise - wanted.keys() - stopped)):
        # topics that this file adds; the verb refuses names that are none
        late.append(SwitchTopics(name, new, not mirror.paused))
    return early, late


def _removed(
    mirror: DeclaredMirror, topics: Iterable[TopicRecord], prune: Prune, found: MirrorDifference
) -> Iterator[PlannedChange]:
    declares = _declares(mirror)
    left = [one.topic for one in topics if not is_stopped(one) and not declares(one)]
    named = tuple(one for one in left if one in prune.topics)
    rest = [one for one in left if one not in prune.topics]
    if named:
        yield StopTopics(mirror.name, named)
    if rest and prune.all:
        yield Refusal(
            mirror.name,
            f"- remove topic {listed(rest)}",
            f"{listed(rest)}: not in the file, but removing makes a topic writable",
            f"add `{command_line(*option('--prune-topics', ','.join(rest)))}` to remove it, or list it in the file",
        )
    elif rest:
        found.notes.append(f"mirror {mirror.name}: not in the file, and mirrored as before: {listed(rest)}")


def _undeclared(name: str, state: State, prune: Prune, found: MirrorDifference) -> None:
    """Find what is done with a mirror that is stored, or named, and not in the file."""
    topics = state.topics(name)
    alive = [one.topic for one in topics if not is_stopped(one)]
    if name in prune.mirrors:
        found.changes += [StopTopics(name, None)] if alive else []
        found.changes.append(DeleteMirror(name))
        return
    if named := tuple(one for one in alive if one in prune.topics):
        found.changes.append(StopTopics(name, named))
    if prune.all and not topics:
        found.changes.append(DeleteMirror(name))
    elif prune.all:
        found.changes.append(
            Refusal(
                name,
                f"- delete mirror {name}",
                "not in the file, but it has topics"
                + (", which become writable" if alive else ", and where they were stopped would be forgotten"),
                f"add `{command_line(*option('--prune-mirror', name))}` to delete it, or list it in the file",
            )
        )
    else:
        found.notes.append(f"mirror {name}: not in the file, and left as it is")
