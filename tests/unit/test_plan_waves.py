"""Waves, predicted times, needs, differences, the runbook and the page of a plan."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest

from kmirror.errors import UsageError
from kmirror.ops.check.findings import CheckLine
from kmirror.settings.parsing import parse_settings
from kmirror_plan.applications import Application
from kmirror_plan.cli.plan_command import parse_size
from kmirror_plan.differences import changes_between
from kmirror_plan.inventory import Inventory, Shape, TopicFacts, Unseen, shape_of, streams_group_of
from kmirror_plan.migration_plan import MigrationPlan, Room, make_plan
from kmirror_plan.plan_page import plan_page, summary
from kmirror_plan.runbook import runbook, wave_files
from kmirror_plan.trial import rate_of, samples
from kmirror_plan.waves import START_SECONDS, CopyRates, Wave, WaveLimits, waves_of
from tests.support.strict_html import StrictHtml
from tests.unit.test_plan_applications import group, producer, topic

MEGABYTE = 1_000_000
ROOM = Room(cluster_id="there", brokers=3, replicas=300, free=100 * MEGABYTE, replication_factor=3, taken=())


def application(name: str) -> Application:
    return Application(name=name, topics=(f"{name}.t",), groups=(name,), producers=())


def waves(
    sizes: dict[str, int | None],
    limits: WaveLimits | None = None,
    rate: float | None = None,
    written: float | None = 0.0,
) -> tuple[Wave, ...]:
    topics = {f"{name}.t": topic(f"{name}.t", size=size, rate=written) for name, size in sizes.items()}
    return waves_of([application(name) for name in sizes], topics, frozenset(), CopyRates(rate), limits or WaveLimits())


def test_the_smallest_move_first_and_what_is_too_large_moves_alone() -> None:
    found = waves({"a": 50, "b": 10, "c": 500, "d": 20, "e": 40}, WaveLimits(size=60))
    assert [wave.applications for wave in found] == [("b", "d"), ("e",), ("a",), ("c",)]
    assert [wave.number for wave in found] == [1, 2, 3, 4]
    assert [bool(wave.exceeds) for wave in found] == [False, False, False, True]


def test_waves_are_limited_by_time_if_a_rate_is_known() -> None:
    found = waves({"a": 3 * MEGABYTE, "b": 4 * MEGABYTE}, WaveLimits(seconds=START_SECONDS + 5), rate=MEGABYTE)
    assert [wave.applications for wave in found] == [("a",), ("b",)]
    assert [wave.copy_seconds for wave in found] == [START_SECONDS + 3, START_SECONDS + 4]


@pytest.mark.parametrize(
    ("written", "caught_up", "never"),
    [(0.0, START_SECONDS + 10, False), (0.5 * MEGABYTE, 2 * (START_SECONDS + 10), False), (MEGABYTE, None, True)],
)
def test_a_copy_catches_up_only_if_it_is_faster_than_what_is_written(
    written: float, caught_up: float | None, never: bool
) -> None:
    (wave,) = waves({"a": 10 * MEGABYTE}, rate=MEGABYTE, written=written)
    assert (wave.copy_seconds, wave.caught_up_seconds, wave.never_catches_up) == (START_SECONDS + 10, caught_up, never)


def test_what_is_not_known_is_not_predicted() -> None:
    assert [wave.copy_seconds for wave in waves({"a": 10}, rate=None)] == [None]
    found = waves({"a": None, "b": 5}, rate=1.0)
    assert [(wave.size, wave.copy_seconds) for wave in found] == [(5, START_SECONDS + 5), (None, None)]
    (wave,) = waves({"a": 10}, rate=1.0, written=None)
    assert (wave.copy_seconds, wave.caught_up_seconds, wave.never_catches_up) == (START_SECONDS + 10, None, False)


@pytest.mark.parametrize("limits", [WaveLimits(), WaveLimits(size=60), WaveLimits(seconds=START_SECONDS + 60)])
def test_what_is_of_unknown_size_moves_alone_and_last_and_the_others_within_the_limits(limits: WaveLimits) -> None:
    found = waves({"a": None, "b": 40, "c": None, "d": 50, "e": 10}, limits, rate=1.0)
    together = [("e", "b", "d")] if limits.size is limits.seconds is None else [("e", "b"), ("d",)]
    assert [wave.applications for wave in found] == [*together, ("a",), ("c",)]
    unknown = "the size of 1 topic is not known"
    assert [wave.exceeds for wave in found] == [*[None] * len(together), unknown, unknown]


@pytest.mark.parametrize(
    ("limits", "exceeds"),
    [
        (WaveLimits(size=60), "--wave-bytes 60 B"),
        (WaveLimits(seconds=START_SECONDS + 60), "--wave-time 1m2s"),
        (WaveLimits(size=99), "the size of 1 topic is not known"),
    ],
)
def test_what_is_known_of_an_application_counts_though_another_of_its_topics_is_not(
    limits: WaveLimits, exceeds: str
) -> None:
    topics = {"a": topic("a", size=70), "b": topic("b", size=None)}
    one = Application(name="one", topics=("a", "b"), groups=(), producers=())
    (wave,) = waves_of([one], topics, frozenset(), CopyRates(1.0), limits)
    assert (wave.size, wave.copy_seconds, wave.exceeds) == (None, None, exceeds)


def test_a_copy_never_catches_up_if_the_topics_whose_rates_are_known_are_too_much_for_it() -> None:
    topics = {"a": topic("a", size=1, rate=2.0), "b": topic("b", size=1, rate=None)}
    one = Application(name="one", topics=("a", "b"), groups=(), producers=())
    (wave,) = waves_of([one], topics, frozenset(), CopyRates(1.0), WaveLimits())
    assert (wave.rate, wave.caught_up_seconds, wave.never_catches_up) == (None, None, True)


def test_schemas_move_first_and_topics_that_all_use_last() -> None:
    topics = {name: topic(name, size=size) for name, size in (("_schemas", 90), ("a.t", 10), ("errors", 1))}
    some = [Application(name=name, topics=(name,), groups=(), producers=()) for name in topics]
    found = waves_of(some, topics, frozenset({"errors"}), CopyRates(), WaveLimits())
    assert [wave.topics for wave in found] == [("_schemas",), ("a.t",), ("errors",)]


@pytest.mark.parametrize(
    ("name", "is_compacted", "shape"),
    [
        ("orders", False, Shape.APPLICATION),
        ("billing-store-changelog", True, Shape.CHANGELOG),
        ("billing-by-key-repartition", False, Shape.REPARTITION),
        ("unknown-store-changelog", True, Shape.APPLICATION),
        ("my-connect-offsets", True, Shape.CONNECT),
        ("connect-configs", False, Shape.APPLICATION),
        ("_schemas", True, Shape.SCHEMAS),
        ("mm2-offset-syncs.b.internal", True, Shape.MIRRORMAKER),
        ("east.heartbeats", False, Shape.MIRRORMAKER),
    ],
)
def test_what_a_topic_is_shows_in_its_name(name: str, is_compacted: bool, shape: Shape) -> None:
    assert shape_of(name, is_compacted=is_compacted, groups=["billing"]) is shape


def test_threads_of_a_streams_application_are_known_by_their_transactional_ids() -> None:
    process = "a1b2c3d4-0000-4000-8000-000000000000"
    assert streams_group_of(f"billing-{process}-3", ["billing"]) == "billing"
    assert streams_group_of("billing-0_3", ["billing"]) == "billing"
    assert streams_group_of("billing-writer", ["billing"]) is None
    assert streams_group_of(f"other-{process}-3", ["billing"]) is None


@pytest.mark.parametrize(
    ("text", "size"), [("500", 500), ("1.5KB", 1500), ("80MB/s", 80 * MEGABYTE), ("2GiB", 2 << 30), ("1t", 10**12)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text, "--wave-bytes") == size


@pytest.mark.parametrize("text", ["", "0", "-5MB", "5 apples", "MB", "1e9", "5XB", "5iB", "800Mb/s", "800mb"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--wave-bytes"):
        parse_size(text, "--wave-bytes")


def plan(
    *topics: TopicFacts, room: Room = ROOM, findings: tuple[CheckLine, ...] = (), **inventory: Any
) -> MigrationPlan:
    found = Inventory(
        **{
            "cluster_id": "here",
            "read_at_ms": 1_000,
            "sample_ms": 1_000,
            "topics": topics,
            "groups": (),
            "producers": (),
            "principals": None,
            "quotas": None,
            "scram_users": None,
            **inventory,
        }
    )
    return make_plan(
        found,
        room,
        findings,
        made_ms=1,
        mirror_config={},
        options={},
        limits=WaveLimits(),
        rates=CopyRates(1.0 * MEGABYTE),
    )


@pytest.mark.parametrize(
    ("room", "verdicts"),
    [
        (ROOM, {"disk": True, "partitions": True}),
        (replace(ROOM, free=10 * MEGABYTE), {"disk": False, "partitions": True}),
        (replace(ROOM, free=None), {"disk": None, "partitions": True}),
        (replace(ROOM, replicas=11_999), {"disk": True, "partitions": False}),
        (replace(ROOM, replication_factor=None), {"disk": None, "partitions": None}),
        (replace(ROOM, taken=("a",)), {"disk": True, "partitions": True, "names": False}),
    ],
)
def test_what_the_destination_lacks_is_said(room: Room, verdicts: dict[str, bool | None]) -> None:
    made = plan(topic("a", size=10 * MEGABYTE), room=room)
    assert {need.what: need.is_enough for need in made.needs} == verdicts


def test_a_topic_of_unknown_size_makes_enough_room_unknown_but_not_too_little() -> None:
    unknown = topic("b", size=None)
    assert plan(topic("a", size=10), unknown).needs[0].is_enough is None
    assert plan(topic("a", size=50 * MEGABYTE), unknown).needs[0].is_enough is False


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a"], "1 topic (10 B) of 1 application moves in 1 wave."),
        (["a", "b"], "2 topics (20 B) of 2 applications move in 1 wave."),
    ],
)
def test_one_topic_moves_and_several_move(names: list[str], said: str) -> None:
    topics = [topic(f"{name}.t", size=10) for name in names]
    made = plan(*topics, groups=[group(name, f"{name}.t") for name in names])
    assert next(iter(summary(made))) == ("", said)


def test_two_plans_differ_in_what_changed() -> None:
    before = plan(topic("a", size=10 * MEGABYTE), groups=(group("g", "a"),)).to_json()
    assert changes_between(before, before) == []
    line = CheckLine(cluster="source", what="rights on topic a", ok=False, message="we lack READ", hint="grant it")
    now = plan(
        topic("a", size=20 * MEGABYTE, partitions=5), topic("b"), groups=(group("g", "a", "b"),), findings=(line,)
    ).to_json()
    found = {(one.change.value, one.kind, one.name): one.message for one in changes_between(before, now)}
    assert found == {
        ("CHANGED", "topic", "a"): "partitions: 3 → 5; bytes: 10.0 MB → 20.0 MB",
        ("ADDED", "topic", "b"): "",
        ("CHANGED", "group", "g"): "reads now also b",
        ("CHANGED", "application", "g"): "topics now also b",
        ("ADDED", "finding", "rights on topic a"): "we lack READ",
    }


def test_the_page_and_the_runbook_say_that_a_size_is_not_known_and_do_not_take_it_for_none() -> None:
    made = plan(topic("a", size=5), topic("b", size=None))
    page, commands = plan_page(made), runbook(made, "m", (), ())
    assert "<title>a: 1 topic, 5 B</title>" in page
    assert "<title>b: 1 topic, of unknown size</title>" in page
    (unknown, known) = re.findall(r"wait .* --timeout (\w+)", commands)[::-1]
    assert (known, unknown) == ("1h", "1d")


HOSTILE = "<script>alert(1)</script>\x1b[2J"


def test_names_of_others_do_no_harm_in_the_page_and_in_the_runbook() -> None:
    made = plan(
        topic("a", size=5),
        groups=(group(HOSTILE, "a"),),
        producers=(producer(HOSTILE, "a"),),
        unseen=(Unseen(what=HOSTILE, why=HOSTILE),),
    )
    text = plan_page(made)
    StrictHtml(text)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    commands = runbook(
        made, "m", ("--mirror-config", f"{HOSTILE}.properties"), ("--bootstrap-server", "b:9092; rm -rf /")
    )
    assert "\x1b" not in commands
    for line in commands.splitlines():
        if line.startswith("kmirror "):
            assert shlex.split(line)[0] == "kmirror"
            assert "; rm -rf /'" in line
    assert wave_files(made) == {"wave-01.topics": "a\n"}


def test_the_runbook_copies_by_waves_and_names_topics_as_they_are_called_there() -> None:
    made = replace(plan(topic("a.b", size=5)), mirror_config={"topics.include": "a.*", "topic.prefix": "p."})
    assert wave_files(made) == {"wave-01.topics": "a.b\n", "wave-01-copies.topics": "p.a.b\n"}
    typed = [line.split() for line in runbook(made, "m", ("--config", "topic.prefix=p."), ()).splitlines()]
    commands = {words[1]: words for words in typed if words[:1] == ["kmirror"]}
    assert commands["create"][-4:] == ["--config", "topic.prefix=p.", "--config", "topics.include="]
    assert "@wave-01.topics" in commands["add"]
    for verb in ("wait", "verify", "promote"):
        assert "@wave-01-copies.topics" in commands[verb]


FILTERS = '{"topicFilters":[{"name":"a","patternType":"PREFIXED","filterType":"INCLUDE"}]}'


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"bootstrap.servers": "a:9092"}, []),
        ({"mirror.topics.include": "a.*"}, ["mirror.topics.include="]),
        (
            {"auto.create.mirror.topics.enable": "true", "auto.create.mirror.topics.filters": FILTERS},
            ["auto.create.mirror.topics.enable=false", "auto.create.mirror.topics.filters="],
        ),
    ],
)
def test_the_runbook_switches_off_whatever_would_copy_all_topics_at_once(
    given: dict[str, str], options: list[str]
) -> None:
    made = replace(plan(topic("a.b", size=5)), mirror_config=given)
    (create,) = [line for line in runbook(made, "m", (), ()).splitlines() if line.startswith("kmirror create")]
    assert shlex.split(create)[4:] == [word for one in options for word in ("--config", one)]
    # as `create` merges them
    settings = {key: value for key, value in given.items() if key != "bootstrap.servers"}
    assert not parse_settings(settings | dict(one.split("=") for one in options)).discovers


def test_a_rate_is_of_the_time_in_which_an_engine_has_found_its_pace() -> None:
    slow_start = [(0.0, 1.0), (10.0, 20.0)]
    steady = [(10.0 + second, 20.0 + 10 * second) for second in range(1, 9)]
    assert rate_of([*slow_start, *steady]) == pytest.approx(10.0)


@pytest.mark.parametrize("looks", [[], [(0.0, 5.0)], [(0.0, 1.0), (0.1, 50.0), (0.2, 100.0)]])
def test_what_took_too_short_has_no_rate(looks: list[tuple[float, float]]) -> None:
    assert rate_of(looks) is None


def test_a_trial_takes_the_largest_topics_of_each_class_and_as_many_as_show_a_quota() -> None:
    found = [
        topic(f"t{size}", size=size, mean_batch=batch) for batch in (100, 100_000) for size in range(batch, batch + 9)
    ]
    found.append(topic("empty", size=0, mean_batch=100))
    of_size = {name: [one.size for one in some] for name, some in samples(found, 200, 0.0).items()}
    assert of_size == {"large": [100_008], "small": [108, 107]}
    of_size = {name: [one.size for one in some] for name, some in samples(found, 200, 250.0).items()}
    assert of_size == {"large": [100_008], "small": [108, 107, 106]}


def test_times_are_predicted_by_the_class_of_batches() -> None:
    topics = {
        "a.t": topic("a.t", size=MEGABYTE, mean_batch=500_000),
        "b.t": topic("b.t", size=MEGABYTE, mean_batch=100),
    }
    rates = CopyRates(2.0 * MEGABYTE, {"small": 0.5 * MEGABYTE})
    (wave,) = waves_of([application("a"), application("b")], topics, frozenset(), rates, WaveLimits())
    assert wave.copy_seconds == START_SECONDS + 0.5 + 2
