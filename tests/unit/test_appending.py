"""The sending side of a lane's connection to a destination broker."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

from kmirror.cluster.connection import Connection, Stream
from kmirror.cluster.protocol import produce
from kmirror.engine.clock import now_ms
from kmirror.engine.lane.appending import REQUESTS_IN_FLIGHT, Appending
from kmirror.engine.lane.links import DestinationLink, ProduceRequest
from tests.support.frames import PLAIN
from tests.support.partition_shell import Shell, facts, remembered, stored


def test_a_connection_that_breaks_under_the_last_request_that_may_be_sent_is_only_lost() -> None:
    shell, today = Shell(), now_ms()
    shell.inspect(facts(producer=remembered(0, today)))
    shell.fetch(*(stored(number, timestamp=today) for number in range(2)))
    shell.copy.may_send(today)
    shell.copy.take()
    shell.answer()
    ours, theirs = socket.socketpair()
    stream = Stream(Connection("there", 2, PLAIN, ours), 1000)
    link = DestinationLink(2, stream, produce.HIGHEST_VERSION)
    link.in_flight.extend(ProduceRequest(number, 0.0, [], 0, 0, False) for number in range(REQUESTS_IN_FLIGHT - 1))
    link.ready[shell.copy] = None
    theirs.close()
    work: Any = SimpleNamespace(
        loop=SimpleNamespace(hang_up=lambda link: link.stream.close()),
        destination_config=PLAIN,
        control=SimpleNamespace(deadline=float("inf")),
        destinations={2: link},
        all=[shell.copy],
        many_topics=False,
        may_send=lambda _: True,
    )
    others: Any = SimpleNamespace(collect=lambda: None, lose=lambda *_: None)
    Appending(work, others, others).pump(link)
    assert work.destinations == {}
    assert len(link.in_flight) == REQUESTS_IN_FLIGHT
    assert shell.status == "waiting"
