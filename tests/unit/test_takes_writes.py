"""Which topics a switchover says take writes. No sockets."""

from __future__ import annotations

import threading
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import BrokerError, KmirrorError, Reason, UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.switchover import SwitchoverRequest, _Switchover
from kmirror.ops.stop.promote_request import PromoteView
from kmirror.ops.stop.steps import StepRunner
from kmirror.state.records import DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State

MIRROR = MirrorRecord("m", {}, {}, "A", "x", 0)
REFUSED = UnreachableError("we lack WRITE", None, Reason.NOT_AUTHORIZED)
AWAY = BrokerError(8, "BROKER_NOT_AVAILABLE", "probing")


@pytest.mark.parametrize(
    ("refused", "said", "recorded"),
    [
        ({}, ["b:9092 takes writes now"], {"topics", "count", "writableSinceMs"}),
        (
            {"t": AWAY},
            ["not known whether t can be written here: probing", "b:9092 takes writes now"],
            {"topics", "count", "writableSinceMs"},
        ),
        (
            {"t": REFUSED},
            ["kmirror is denied WRITE on t here", "b:9092 takes writes now"],
            {"topics", "count", "denied", "writableSinceMs"},
        ),
        (
            {"t": REFUSED, "u": REFUSED},
            ["kmirror is denied WRITE on t, u here"],
            {"topics", "count", "denied"},
        ),
    ],
)
def test_a_topic_on_which_writes_are_denied_does_not_take_writes(
    monkeypatch: pytest.MonkeyPatch, refused: dict[str, KmirrorError], said: list[str], recorded: set[str]
) -> None:
    """Once, clients of a topic that its operator had frozen were to be started here, where it was denied them, too."""
    topics = [TopicRecord("m", t, t, None, None, DesiredState.STOPPED, 2, TopicOrigin.CREATED) for t in ("t", "u")]
    kept: list[dict[str, Any]] = []
    views: list[PromoteView] = []

    def probed(_: object, partitions: Collection[TopicPartition]) -> dict[TopicPartition, KmirrorError | None]:
        assert len(partitions) == 4
        return {one: refused.get(one.topic) if one.partition else None for one in partitions}

    monkeypatch.setattr("kmirror.ops.failback.switchover.probe_writable", probed)
    monkeypatch.setattr("kmirror.ops.failback.progress.Workflow.begin", lambda _, __, facts: kept.append(facts))
    here = SimpleNamespace(
        state=lambda: State.of([MIRROR, *topics]), client=None, config=SimpleNamespace(bootstrap_servers=[("b", 9092)])
    )
    request, runner = SwitchoverRequest("m", {}), StepRunner()
    work = _Switchover(
        cast(Destination, here), request, MIRROR, ["t", "u"], set(), views.append, threading.Event(), runner, 0
    )
    work.record_writable()
    (view,) = views
    assert [line[: len(begin)] for line, begin in zip(view.lines, said, strict=True)] == said
    if "writableSinceMs" in recorded:
        assert f"start clients of {2 - len(refused)} topic" in view.lines[-1]
    assert [set(facts) for facts in kept] == [recorded]
