"""Verbs as tables of steps: how a table is walked and rehearsed, and what must be recorded before something is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kmirror.ops.failback.carry_out import CUT, MIRROR
from kmirror.ops.failback.steps import CREATED, PLANNED, RECREATED
from kmirror.ops.failback.switchover import BEGIN, SWITCHOVER
from kmirror.ops.stop.promote import PROMOTE
from kmirror.ops.stop.steps import Step, StepRunner
from kmirror.ops.stop.stop import STOP

TABLES: dict[str, Sequence[Step[Any]]] = {
    "stop": STOP,
    "promote": PROMOTE,
    "switchover": (*BEGIN, *SWITCHOVER),
    "failback": MIRROR,
    "failback --offline": CUT,
    "failback of a topic, --recreate": RECREATED,
    "failback of a topic that was deleted": CREATED,
    "failback of a topic, --offline": PLANNED,
}


@dataclass
class Diary:
    lines: list[str] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    is_over: bool = False

    def entry(self, line: str, name: str | None = None) -> Step[Diary]:
        """Return a durable step that stores a line."""

        def read(diary: Diary) -> None:
            diary.lines.append(f"read {line}")

        def act(diary: Diary) -> str | None:
            diary.lines.append(f"store {line}")
            diary.stored.add(line)
            return name

        def rehearse(diary: Diary) -> None:
            diary.lines.append(f"imagine {line}")

        return Step(line, act, read, rehearse, recorded=lambda diary: line in diary.stored)


def ending(diary: Diary) -> None:
    diary.is_over = True


def reading(diary: Diary) -> str:
    diary.lines.append("look")
    return "looked"


def test_steps_are_taken_in_their_order_until_the_work_is_over() -> None:
    diary, reached = Diary(), list[str]()
    runner = StepRunner(reached.append, {"planned": 2.0})
    entry = diary.entry
    runner.walk((entry("a", "one"), Step("look", read=reading), entry("b"), Step("end", ending), entry("c")), diary)
    assert diary.lines == ["read a", "store a", "look", "read b", "store b"]
    assert reached == ["a", "b", "end"]
    assert runner.done == ("a", "b", "end"), "who only reads has done nothing"
    assert list(runner.seconds) == ["planned", "one", "looked"]
    assert runner.seconds["planned"] == 2.0


def test_what_is_stored_or_not_needed_is_neither_done_again_nor_announced() -> None:
    diary, reached = Diary(stored={"a"}), list[str]()
    idle: Step[Diary] = Step("idle", ending, needed=lambda _: False)
    for acts in (False, True):
        runner = StepRunner(reached.append, acts=acts)
        runner.walk((diary.entry("a"), idle, diary.entry("b")), diary)
        assert runner.done == ("b",)
    assert diary.lines == [*("read a", "read b", "imagine b"), *("read a", "read b", "store b")]
    assert reached == ["b"]


def test_a_rehearsal_reads_the_same_and_says_the_same_but_does_not_act() -> None:
    def nested(runner: StepRunner, diary: Diary) -> Step[Diary]:
        def walk(_: Diary) -> None:
            runner.walk((diary.entry("b", "two"),), diary)

        return Step("each", walk, rehearse=walk)

    said = {}
    for acts in (False, True):
        diary, runner = Diary(), StepRunner(acts=acts)
        runner.walk((diary.entry("a", "one"), nested(runner, diary)), diary)
        said[acts] = runner.done
        assert [line for line in diary.lines if line.startswith("read")] == ["read a", "read b"]
        assert bool(diary.stored) is acts
        assert list(runner.seconds) == (["one", "two"] if acts else [])
    assert said[False] == said[True] == ("a", "each", "b")


def test_a_name_that_is_reached_twice_is_timed_as_one() -> None:
    runner = StepRunner(seconds={"stopped": 5.0})
    diary = Diary()
    runner.walk((diary.entry("a", "stopped"), diary.entry("b", "stopped")), diary)
    assert list(runner.seconds) == ["stopped"]
    assert runner.seconds["stopped"] >= 5.0


@pytest.mark.parametrize(("acts", "notes"), [(True, ["run the same command again to finish"]), (False, [])])
def test_an_interruption_says_once_that_the_same_command_finishes(acts: bool, notes: list[str]) -> None:
    def interrupted(_: Diary) -> None:
        raise KeyboardInterrupt

    def nested(diary: Diary) -> None:
        runner.walk((Step("interrupted", read=interrupted),), diary)

    runner = StepRunner(acts=acts)
    with pytest.raises(KeyboardInterrupt) as raised:
        runner.walk((Step("each", nested, rehearse=nested),), Diary())
    assert getattr(raised.value, "__notes__", []) == notes


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_each_step_says_what_it_does_in_words_of_its_own(table: Sequence[Step[Any]]) -> None:
    sentences = [step.does for step in table]
    assert len(set(sentences)) == len(sentences)
    assert all(text[0].islower() and not text.endswith(".") for text in sentences)


@pytest.mark.parametrize(
    ("table", "loses"),
    [
        pytest.param(RECREATED, "delete the topic", id="failback --recreate"),
        pytest.param(PLANNED, "find the batches", id="failback --offline"),
        pytest.param(STOP, "delete filler", id="stop"),
    ],
)
def test_what_loses_something_comes_right_after_a_record(table: Sequence[Step[Any]], loses: str) -> None:
    acts = [step for step in table if step.act is not None]
    (at,) = [index for index, step in enumerate(acts) if step.does.startswith(loses)]
    assert acts[at - 1].recorded is not None


def test_a_stop_begins_with_a_record_fences_before_the_ends_are_recorded_and_ends_with_one() -> None:
    acts = [step for step in STOP if step.act is not None]
    (fence,) = [index for index, step in enumerate(acts) if step.does.startswith("fence")]
    (ends,) = [index for index, step in enumerate(acts) if "(LMO)" in step.does]
    assert ends == fence + 1
    assert all(acts[index].recorded is not None for index in (0, ends, -1))
