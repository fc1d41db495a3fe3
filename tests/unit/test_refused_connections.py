"""More connections to a broker that are refused: it accepts no more only if it answers over those that were open.

A source broker that was restarted was reported as one that accepts a single connection, and a real limit never was.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kmirror.cluster.protocol.read_ahead import LONG_ROUND_TRIP
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane.ahead import Ahead
from kmirror.engine.lane.pace.breadth import Breadth
from kmirror.engine.lane.pace.throttle import Throttle
from kmirror.engine.lane.spreading import BrokerPath, Spreading

CONFIG = client_config({"bootstrap.servers": "there:1"})


class Link:
    """A connection that is open until it is closed."""

    def __init__(self, node_id: int) -> None:
        self.node_id, self.seen_at, self.is_open = node_id, 0.0, True
        self.stream = SimpleNamespace(fileno=lambda: 5 if self.is_open else -1)


def test_a_source_broker_that_is_down_is_not_said_to_limit_connections() -> None:
    control = SimpleNamespace(connections=64, connections_refused=None)
    elsewhere, before = Link(2), Link(1)
    lane: Any = SimpleNamespace(
        control=control,
        sources=SimpleNamespace(opened=[elsewhere, before]),
        source_config=CONFIG,
        loop=None,
        background_requests=None,
    )
    unused: Any = None
    ahead = Ahead(lane, Throttle(0.0), unused, unused, unused)
    ahead.path_opened(1, LONG_ROUND_TRIP)

    def reported(message: str, at: float, answers: Link) -> str | None:
        """Return what is reported of a refusal, after an answer to a request that was sent later."""
        ahead.refused((1, 0), message, None, at)
        ahead.on_tick(at)
        assert control.connections_refused is None, "it may be going down"
        answers.seen_at = at + 0.1
        ahead.on_tick(at + 0.2)
        return control.connections_refused

    assert reported("connection reset", 1.0, elsewhere) is None
    before.is_open = False
    after = lane.sources.opened[1] = Link(1)
    ahead.on_tick(2.0)
    after.seen_at = 2.5
    ahead.on_tick(3.0)
    assert control.connections_refused is None
    assert reported("it hung up", 4.0, after) == "broker 1 of the source accepts no more than 1 connection: it hung up"


def test_a_destination_broker_that_is_down_is_not_said_to_limit_connections(caplog: pytest.LogCaptureFixture) -> None:
    links: list[Any] = [Link(2), Link(1)]
    lane: Any = SimpleNamespace(destinations=SimpleNamespace(opened=links), all=[])
    spreading = Spreading(lane)
    spreading._paths[1] = BrokerPath(Breadth(64, LONG_ROUND_TRIP))

    def answered(sent_at: float) -> list[str]:
        spreading.answered(links[1], 100, 0.1, sent_at + 0.1, is_throttled=False)
        return [record.getMessage() for record in caplog.records]

    spreading.refused((1, 1), "connection reset", 1.0)
    assert answered(0.9) == [], "it may be going down"
    links[1].is_open = False
    links[1] = Link(1)
    assert answered(2.0) == []
    for at in (3.0, 4.0):
        spreading.refused((1, 1), "it hung up", at)
        assert answered(at + 0.5) == ["no more than 1 connection to append at broker 1: it hung up"]
