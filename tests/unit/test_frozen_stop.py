"""A stop that was frozen asks again whether its topics are still its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from kmirror.errors import Reason
from kmirror.ops.stop import stop as stop_module
from kmirror.ops.stop import work as work_module
from kmirror.ops.stop.first_source import FirstSource
from kmirror.ops.stop.make_writable import find_settings
from kmirror.ops.stop.steps import StepRunner
from kmirror.ops.stop.stop import STOP
from kmirror.ops.stop.work import StopRequest, StopWork
from kmirror.state.records import DesiredState
from kmirror.state.snapshot import Changes, State
from tests.support.live_engine import mirror_record, topic_record


class Frozen:
    """A destination whose clock, and what is stored there, are set by hand."""

    condition = config = None

    def __init__(self, *topics: str) -> None:
        self.now = 1000.0
        self.stored = State.of([mirror_record("m"), *(topic_record(name, mirror="m") for name in topics)])
        request = StopRequest("m", "failover", topics, Reason.FAILED_OVER)
        self.work = StopWork(cast(Any, self), request, StepRunner(), self.stored)

    def state(self) -> State:
        return self.stored

    def require_condition(self, state: State) -> None:
        pass

    def mirror_again(self, topic: str) -> None:
        """Do what `remove` and `add` of another host do."""
        found = self.stored.topic("m", topic)
        assert found is not None
        again = replace(found, desired=DesiredState.ACTIVE, pending_operation=None, added_at_ms=1)
        self.stored = self.stored.after(Changes((again,)))


def test_a_stop_that_was_frozen_while_it_wrote_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = Frozen("orders")

    def change(_: object, __: str, decide: Callable[[State], Changes]) -> None:
        frozen.stored = frozen.stored.after(decide(frozen.stored))
        frozen.mirror_again("orders")
        frozen.now += 600

    monkeypatch.setattr(stop_module, "change", change)
    for module in (stop_module, work_module):
        monkeypatch.setattr(module, "boottime", lambda: frozen.now)
    claim, report = STOP[:2]
    assert claim.act is not None
    claim.act(frozen.work)
    report.read(frozen.work)
    assert [topic.topic for topic in frozen.work.left] == ["orders"]
    frozen.work.drop_taken()
    assert [(row.topic, row.reason) for row in frozen.work.done.results] == [("orders", Reason.FENCED)]
    assert not frozen.work.left


def test_a_topic_that_was_dropped_does_not_come_back_with_its_settings() -> None:
    frozen = Frozen("dropped", "orders")
    work = frozen.work
    work.topics = frozen.stored.topics("m")
    work.first_source = FirstSource(None, work.topics)
    work.present = {"orders": {}}, {}
    work.topics = [topic for topic in work.topics if topic.topic == "orders"]
    find_settings(work)
    assert [topic.topic for topic in work.topics] == ["orders"]
