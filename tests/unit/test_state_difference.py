"""The difference between a file and what is stored, and the file of what is stored: pure, so tried on many of both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from kmirror.errors import RefusedError, UsageError
from kmirror.ops.add.add_plan import is_added
from kmirror.ops.declare.declared import Declared, DeclaredMirror, DeclaredTopics
from kmirror.ops.declare.export import file_of
from kmirror.ops.declare.mirrors_file import read_mirrors_file
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
from kmirror.ops.declare.state_difference import Prune, difference, names_to_visit, unknown_names
from kmirror.settings.parsing import parse_settings, stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.record_kinds import Unknown
from kmirror.state.records import PENDING_ADD, PENDING_STOP, DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import Changes, State
from tests.support.hostile import AMOUNTS, explore

SOURCE = {"bootstrap.servers": "a:9092"}
#: As many worlds take a minute.
MOST = 2_000
#: The topics of the source.
UNIVERSE = ("a", "b", "c", "d1", "d2", "e1")
EVERYTHING = Prune(True, frozenset(f"p.{topic}" for topic in UNIVERSE) | frozenset(UNIVERSE), frozenset())


def record(**settings: str) -> MirrorRecord:
    """Return a mirror with settings, `_` for `.`."""
    given = {key.replace("_", "."): text for key, text in settings.items()}
    return MirrorRecord("m", SOURCE, given, "C", "me", 1)


def topic(name: str, desired: DesiredState = DesiredState.ACTIVE, pending: str | None = None) -> TopicRecord:
    return TopicRecord("m", name, name, "S", "D", desired, 1, TopicOrigin.CREATED, pending)


def mirror(*topics: str, **more: object) -> DeclaredMirror:
    """Return what a file says of a mirror with these topics."""
    groups = (DeclaredTopics(topics),) if topics else ()
    return replace(DeclaredMirror("m", SOURCE, topics=groups), **more)  # type: ignore[arg-type]


def changes(declared: DeclaredMirror | None, state: State, prune: Prune = EVERYTHING) -> list[PlannedChange]:
    return difference(declared, "m", state, prune).changes


def acting(found: Iterable[PlannedChange]) -> list[PlannedChange]:
    return [one for one in found if not isinstance(one, Refusal)]


# -- a model of what the verbs do -----------------------------------------------------------------------------------


def carried_out(state: State, one: PlannedChange) -> State:
    """Return the state after the verb, of a source that has all topics of the universe."""
    before = state.mirror(one.mirror)
    added: list[str] = []
    if isinstance(one, AddTopics):
        assert before is not None
        settings, known = stored_settings(before.settings), {t.source_topic for t in state.topics(one.mirror)}
        chosen = TopicSelector(one.patterns)
        names = [
            name
            for name in UNIVERSE
            if name in one.patterns or (chosen.matches(name) and not settings.topics_exclude.matches(name))
        ]
        added = [f"{settings.topic_prefix}{name}" for name in names if name not in known]
    after = state.after(one.after(state, added))
    found = after.mirror(one.mirror)
    if isinstance(one, AddTopics) and found is not None:
        # a pattern that is added is no longer excluded
        settings = stored_settings(found.settings)
        left = [p for p in settings.topics_exclude.patterns if p not in one.patterns]
        after = after.after(Changes((replace(found, settings=with_filter(found, "topics.exclude", left)),)))
    if isinstance(one, StopTopics) and one.topics is not None and found is not None:
        names = [name.removeprefix(stored_settings(found.settings).topic_prefix) for name in one.topics]
        settings = stored_settings(found.settings)
        exclude = dict.fromkeys([*settings.topics_exclude.patterns, *names])
        include = [p for p in settings.topics_include.patterns if p not in names]
        kept = replace(found, settings=with_filter(found, "topics.exclude", exclude))
        after = after.after(Changes((replace(kept, settings=with_filter(kept, "topics.include", include)),)))
    return after


def with_filter(found: MirrorRecord, key: str, patterns: Iterable[str]) -> dict[str, str]:
    rest = {name: text for name, text in found.settings.items() if name != key}
    text = ",".join(patterns)
    return {**rest, key: text} if text else rest


def applied(state: State, found: Iterable[PlannedChange]) -> State:
    for one in found:
        state = carried_out(state, one)
    return state


#: What a file has to write so that it is read again: quotes, braces that look like variables, characters of all kinds.
TEXTS = st.one_of(
    st.sampled_from(("x", "{{", "{{x}}", "{{{", "it's", 'say "x"', "a\\b", "'\"\\", "ü\n\t\x7f", "")),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
CHOSEN = st.lists(st.sampled_from(("a", "b", "c", "d1", r"d\d", "[de]1")), unique=True, max_size=4)
EXCLUDED = st.lists(st.sampled_from(("c", "d2", "e.*", "x{1,3}")), unique=True, max_size=2)
SOME_SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "retry.timeout.ms": st.sampled_from(("1", "300000")),
        "copy.lanes": st.sampled_from(("auto", "4")),
        "groups.exclude": st.sampled_from(("", r"a\.b,c")),
        "follow.log.start": st.sampled_from(("true", "false")),
    },
)
CLIENT = st.dictionaries(st.sampled_from(("client.id", "client.rack")), TEXTS, max_size=2)


@st.composite
def declarations(draw: st.DrawFn, prefix: str | None = None) -> DeclaredMirror:
    """Make what a file may say of a mirror."""
    chosen, exclude, settings = draw(CHOSEN), draw(EXCLUDED), dict(draw(SOME_SETTINGS))
    cut = draw(st.integers(0, len(chosen)))
    groups = tuple(DeclaredTopics(tuple(part)) for part in (chosen[:cut], chosen[cut:]) if part)
    prefix = draw(st.sampled_from(("", "p."))) if prefix is None else prefix
    if prefix:
        settings["topic.prefix"] = prefix
    source = {**SOURCE, **draw(CLIENT)}
    paused = draw(st.sampled_from((None, True, False)))
    named = [p for p in chosen if p in UNIVERSE and p not in exclude]
    others = draw(st.lists(st.sampled_from(named), unique=True)) if named and paused is not None else []
    groups = tuple(
        replace(one, patterns=left) for one in groups if (left := tuple(p for p in one.patterns if p not in exclude))
    )
    return DeclaredMirror(
        "m", source, settings, groups, tuple(exclude), paused, frozenset(f"{prefix}{one}" for one in others)
    )


def operators_do(topics: tuple[str, ...] | None) -> list[PlannedChange]:
    return [SwitchTopics("m", topics, paused=True), SwitchTopics("m", topics, paused=False), StopTopics("m", topics)]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[State, DeclaredMirror]:
    """Make what is stored, and a file: the state is what another file has led to, changed by operators since."""
    before = draw(declarations())
    state = applied(State(), acting(changes(before, State())))
    for name in draw(st.lists(st.sampled_from([t.topic for t in state.topics("m")] or ["a"]), max_size=3)):
        state = carried_out(state, draw(st.sampled_from(operators_do((name,)))))
    if draw(st.booleans()):
        state = carried_out(state, draw(st.sampled_from(operators_do(None))))
    if draw(st.integers(0, 4)) == 0:
        state = State()
    return state, draw(declarations(before.settings.get("topic.prefix", "")))


@pytest.mark.slow
@AMOUNTS
def test_the_changes_lead_to_what_the_file_says_and_the_second_time_there_are_none(amount: int) -> None:
    def check(world: tuple[State, DeclaredMirror]) -> None:
        state, declared = world
        prune = replace(EVERYTHING, topics=frozenset(t for t in EVERYTHING.topics if not is_declared(declared, t)))
        found = changes(declared, state, prune)
        after = applied(state, acting(found))
        assert_is_as_declared(declared, after)
        refused = [one for one in found if isinstance(one, Refusal)]
        assert changes(declared, after, prune) == refused

    explore(min(amount, MOST), worlds(), check)


def is_declared(declared: DeclaredMirror, name: str) -> bool:
    source = name.removeprefix(declared.settings.get("topic.prefix", ""))
    include, exclude = TopicSelector(declared.patterns), TopicSelector(declared.exclude)
    return source in declared.patterns or (include.matches(source) and not exclude.matches(source))


def assert_is_as_declared(declared: DeclaredMirror, state: State) -> None:
    found = state.mirror("m")
    assert found is not None
    assert found.source == declared.source
    ours = {key: text for key, text in found.settings.items() if key not in ("topics.include", "topics.exclude")}
    assert stored_settings(ours) == parse_settings(declared.settings)
    topics = {one.source_topic: one for one in state.topics("m")}
    stopped = {name for name, one in topics.items() if one.desired is DesiredState.STOPPED}
    settings = stored_settings(found.settings)
    expressions = set(TopicSelector(declared.patterns).expressions)
    if not found.discovery_ended:
        assert set(settings.topics_include.patterns) == expressions
    assert set(declared.exclude) <= set(settings.topics_exclude.patterns) <= {*declared.exclude, *stopped}
    for name, one in topics.items():
        assert name in stopped or is_declared(declared, one.topic)
        if name not in stopped and declared.paused is not None:
            paused = declared.paused is not (one.topic in declared.otherwise)
            assert one.desired is (DesiredState.PAUSED if paused else DesiredState.ACTIVE)
    assert {name for name in declared.patterns if name in UNIVERSE} <= topics.keys()
    assert declared.paused in (None, found.paused)


@AMOUNTS
def test_without_pruning_nothing_is_taken_away(amount: int) -> None:
    def check(world: tuple[State, DeclaredMirror]) -> None:
        state, declared = world
        found = changes(declared, state, Prune())
        assert not any(isinstance(one, StopTopics | DeleteMirror) for one in found)
        assert not any(isinstance(one, ConfigChange) and one.unset for one in found)
        after = applied(state, acting(found))
        before = state.mirror("m")
        now = after.mirror("m")
        assert now is not None
        if before is not None:
            assert before.source.keys() <= now.source.keys()
            assert before.settings.keys() - {"topics.exclude"} <= now.settings.keys()
        mirrored = {one.topic for one in state.topics("m") if is_added(one)}
        assert mirrored <= {one.topic for one in after.topics("m") if is_added(one)}
        assert acting(changes(declared, after, Prune())) == []

    explore(min(amount, MOST), worlds(), check)


@AMOUNTS
def test_what_is_exported_is_what_is_stored(amount: int, tmp_path: Path) -> None:
    file = tmp_path / "mirrors.toml"

    def check(world: tuple[State, DeclaredMirror]) -> None:
        state, declared = world
        for stored in (state, applied(state, acting(changes(declared, state, Prune())))):
            text = file_of(stored, [one.name for one in stored.mirrors])
            if not stored.mirrors:
                continue
            file.write_text(text, encoding="utf-8")
            read = read_mirrors_file(file)
            # what is mirrored and excluded by its name can be written only as excluded
            exclude = stored_settings(stored.mirrors[0].settings).topics_exclude.patterns
            is_odd = any(is_added(one) and one.source_topic in exclude for one in stored.topics("m"))
            found = difference(read.mirror("m"), "m", stored, Prune(not is_odd))
            assert (found.changes, [] if is_odd else found.notes) == ([], []), text
            assert file_of(stored, ["m"]) == text

    explore(min(amount, MOST), worlds(), check)


# -- single cases ---------------------------------------------------------------------------------------------------


def test_a_new_mirror_is_created_with_its_exclusions_and_then_gets_its_topics() -> None:
    declared = mirror("a", "b.*", exclude=("x",), settings={"copy.lanes": "2"}, paused=True, otherwise=frozenset({"a"}))
    assert changes(declared, State()) == [
        CreateMirror("m", SOURCE, {"copy.lanes": "2", "topics.exclude": "x"}, True),
        AddTopics("m", ("a", "b.*")),
        SwitchTopics("m", ("a",), paused=False),
    ]


def test_lines_are_what_people_review() -> None:
    state = State.of([record(retry_timeout_ms="1", topics_include="old.*"), topic("a"), topic("gone")])
    declared = mirror("a", "new.*", settings={"copy.lanes": "2"}, paused=True, source={**SOURCE, "client.id": "x"})
    found = changes(declared, state, Prune(True, frozenset({"gone"})))
    assert [line for one in found for line in one.lines] == [
        "~ pause mirror m",
        "~ client.id: not set → x",
        "~ copy.lanes: auto → 2",
        "~ retry.timeout.ms: 1 → default",
        "~ topics.include: old.* → default",
        "+ add pattern new.*",
        "- remove topic gone: it becomes writable",
    ]


def test_a_topic_whose_add_was_interrupted_is_added_again_and_one_whose_removal_was_is_removed_again() -> None:
    state = State.of(
        [record(), topic("a", pending=PENDING_ADD), topic("b", DesiredState.STOPPED, PENDING_STOP), topic("c")]
    )
    assert changes(mirror("a", "c"), state, Prune(topics=frozenset({"b"}))) == [
        AddTopics("m", ("a",)),
        StopTopics("m", ("b",)),
    ]


def test_what_was_stopped_is_not_mirrored_again() -> None:
    state = State.of([record(), topic("a", DesiredState.STOPPED), topic("b")])
    (refusal,) = changes(mirror("a", "b"), state)
    assert isinstance(refusal, Refusal)
    assert refusal.message == "a: stopped by an operator, and mirrored again only by one"
    assert "`kmirror add --mirror m --topics a --adopt`" in (refusal.hint or "")
    ended = State.of([replace(record(), discovery_ended=True)])
    assert [type(one) for one in changes(mirror("a.*"), ended)] == [Refusal]


def test_what_is_named_to_be_pruned_must_not_be_in_the_file() -> None:
    declared = Declared(Path("f"), (mirror("a.*"),))
    state = State.of([record(), topic("a1")])
    for prune in (Prune(topics=frozenset({"a1"})), Prune(mirrors=frozenset({"m"}))):
        with pytest.raises(UsageError, match="it is in f"):
            names_to_visit(declared, state, prune)
    assert [one.message for one in unknown_names(state, Prune(topics=frozenset({"a1", "x"})))] == [
        "x: no such mirror topic on this destination"
    ]


def test_topics_to_prune_are_named() -> None:
    state = State.of([record(), topic("a"), topic("b"), topic("c")])
    removed, refusal = changes(mirror("a"), state, Prune(True, frozenset({"c"})))
    assert removed == StopTopics("m", ("c",))
    assert isinstance(refusal, Refusal)
    assert (refusal.message, refusal.hint) == (
        "b: not in the file, but removing makes a topic writable",
        "add `--prune-topics b` to remove it, or list it in the file",
    )
    assert Prune.of(True, TopicSelector(("a.b", "c")), ["m"]) == Prune(True, frozenset({"a.b", "c"}), frozenset({"m"}))
    with pytest.raises(UsageError, match=r"a\.\* is not the name of a topic to prune"):
        Prune.of(False, TopicSelector(("a.*",)), ())


def test_a_mirror_that_is_not_in_the_file_is_deleted_only_if_nothing_is_lost_or_it_is_named() -> None:
    empty, stopped = State.of([record()]), State.of([record(), topic("a", DesiredState.STOPPED)])
    alive = State.of([record(), topic("a")])
    assert changes(None, empty, Prune()) == changes(None, alive, Prune()) == []
    assert changes(None, empty, Prune(True)) == [DeleteMirror("m")]
    for state, why in ((stopped, "would be forgotten"), (alive, "which become writable")):
        (refusal,) = changes(None, state, Prune(True))
        assert isinstance(refusal, Refusal)
        assert why in refusal.message
        assert "--prune-mirror m" in (refusal.hint or "")
    named = Prune(mirrors=frozenset({"m"}))
    assert changes(None, stopped, named) == [DeleteMirror("m")]
    assert changes(None, alive, named) == [StopTopics("m", None), DeleteMirror("m")]
    # whether it was ever there, `delete` finds out
    assert changes(None, State(), named) == [DeleteMirror("m")]


def test_what_a_newer_version_wrote_is_refused_where_it_matters() -> None:
    state = State.of([record(), Unknown(("topic", "m", "a"), "its schema version is 9")])
    with pytest.raises(RefusedError, match="cannot be read"):
        changes(mirror(), state, Prune())
    assert changes(None, state, Prune()) == []
    with pytest.raises(RefusedError, match="cannot be read"):
        file_of(state, ["m"])


def test_a_setting_that_only_a_newer_version_knows_is_neither_exported_nor_pruned() -> None:
    state = State.of([record(new_setting="x")])
    text = file_of(state, ["m"])
    assert "# new.setting: set by a newer kmirror" in text
    assert changes(mirror(), state) == []
