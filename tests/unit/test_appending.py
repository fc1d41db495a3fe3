"""The sending side of a lane's connection to a destination broker."""

from __future__ import annotations

import socket
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol import produce
from kmirror.cluster.stream import Stream
from kmirror.engine.clock import now_ms
from kmirror.engine.lane.appending import Appending
from kmirror.engine.lane.brokers.connections import Connections
from kmirror.engine.lane.brokers.links import REQUESTS_IN_FLIGHT, DestinationLink, ProduceRequest
from tests.support.frames import PLAIN
from tests.support.partition_shell import Shell, facts, producer_state, stored


class Sending:
    """A link with a batch to send, and room for one more request, until `deadline`; `theirs` is the broker's end."""

    def __init__(self, deadline: float) -> None:
        self.shell, today = Shell(), now_ms()
        self.shell.inspect(facts(producer=producer_state(0, today)))
        self.shell.fetch(*(stored(number, timestamp=today) for number in range(2)))
        self.shell.copy.may_send(today)
        self.shell.copy.take()
        self.shell.answer()
        ours, self.theirs = socket.socketpair()
        stream = Stream(Connection("there", 2, PLAIN, ours), 1000)
        self.link = DestinationLink(2, 0, stream, produce.HIGHEST_VERSION)
        self.link.in_flight.extend(ProduceRequest(n, 0.0, [], 0, 0, False) for n in range(REQUESTS_IN_FLIGHT - 1))
        self.link.ready[self.shell.copy] = None
        loop: Any = SimpleNamespace(add=lambda *_: None, hang_up=lambda stream: stream.close())
        nothing: Any = None
        self.work: Any = SimpleNamespace(
            destination_config=PLAIN,
            control=SimpleNamespace(deadline=deadline),
            destinations=Connections("destination", itemgetter(0), loop, nothing, 30.0, lambda: deadline),
            all=[self.shell.copy],
            background_requests=SimpleNamespace(forget_limits=lambda _: None),
            many_topics=False,
            may_send=lambda _: True,
        )
        self.work.destinations.add(self.link.key, self.link)

    def pump(self) -> None:
        others: Any = SimpleNamespace(collect=lambda: None, lose=lambda *_: None)
        Appending(self.work, others, others).pump(self.link)


def test_a_connection_that_breaks_under_the_last_request_that_may_be_sent_is_only_lost() -> None:
    sending = Sending(deadline=float("inf"))
    sending.theirs.close()
    sending.pump()
    assert sending.work.destinations.items() == []
    assert len(sending.link.in_flight) == REQUESTS_IN_FLIGHT
    assert sending.shell.status == "waiting"


def test_a_lane_whose_time_ends_while_it_makes_a_request_hangs_up_and_sends_no_byte() -> None:
    sending = Sending(deadline=0.0)
    sending.pump()
    assert sending.work.destinations.items() == []
    with sending.theirs as theirs:
        assert theirs.recv(1) == b""
    assert sending.shell.status == "waiting"
    # it may have been sent, as far as the copy knows
    assert sending.shell.copy.retry.trouble is not None
