"""Verbs as tables of steps: how a table is carried out, and what must be recorded before something is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kmirror.ops.failback.steps import PLANNED, RECREATED
from kmirror.ops.stop.steps import Clock, Step, carry_out
from kmirror.ops.stop.stop import CLAIM, STOP


@dataclass
class Diary:
    lines: list[str] = field(default_factory=list)
    is_over: bool = False


def writing(line: str, reached: str | None) -> Step[Diary]:
    def run(diary: Diary) -> str | None:
        diary.lines.append(line)
        return reached

    return Step(f"write {line}", run)


def ending(diary: Diary) -> None:
    diary.is_over = True


def test_steps_are_carried_out_in_their_order_until_the_work_is_over() -> None:
    diary, reached = Diary(), list[str]()
    clock = Clock(reached.append, {"looked": 2.0})
    carry_out((writing("a", "one"), writing("b", None), Step("end", ending), writing("c", "three")), diary, clock)
    assert diary.lines == ["a", "b"]
    assert reached == ["one"]
    assert list(clock.seconds) == ["looked", "one"]
    assert clock.seconds["looked"] == 2.0


def test_a_step_that_is_reached_twice_is_timed_as_one() -> None:
    clock = Clock(seconds={"stopped": 5.0})
    carry_out((writing("a", "stopped"), writing("b", "stopped")), Diary(), clock)
    assert list(clock.seconds) == ["stopped"]
    assert clock.seconds["stopped"] >= 5.0


@pytest.mark.parametrize(
    ("table", "loses"),
    [
        pytest.param(RECREATED, "delete the topic", id="failback --recreate"),
        pytest.param(PLANNED, "find the batches", id="failback --offline"),
        pytest.param(STOP, "delete filler", id="stop"),
    ],
)
def test_what_loses_something_comes_right_after_a_record(table: Sequence[Step[Any]], loses: str) -> None:
    (at,) = [index for index, step in enumerate(table) if step.does.startswith(loses)]
    assert table[at - 1].durable


def test_a_stop_begins_with_a_record_fences_before_the_next_and_ends_with_one() -> None:
    assert CLAIM[0].durable
    assert STOP[0].does.startswith("fence")
    assert STOP[1].durable
    assert STOP[-1].durable
