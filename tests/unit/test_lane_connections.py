"""The life of a lane's connections: what is sent and received over them, and what ends them, each once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from kmirror.cluster.connection import Connection
from kmirror.cluster.loop import Loop
from kmirror.cluster.stream import Stream
from kmirror.engine.clock import now
from kmirror.engine.lane.brokers.connections import Connections
from kmirror.errors import Reason
from tests.support.frames import PLAIN, framed

TIMEOUT = 30.0


class Line:
    """A connection that waits for an answer since `waits_since`."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.waits_since: float | None = None


class Owner:
    """Remember what happened."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.ended: list[str] = []
        self.is_wanted = True

    def opened(self, key: int, stream: Stream, versions: tuple[int, ...], /) -> Line | None:
        assert versions == (key,)
        return Line(stream) if self.is_wanted else None

    def refused(self, key: int, message: str, reason: Reason | None, at: float, /) -> None:
        self.ended.append(f"{key} refused: {message}")

    def answered(self, link: Line, view: memoryview, /) -> None:
        self.frames.append(bytes(view))

    def lost(self, link: Line, message: str, at: float, /) -> None:
        self.ended.append(message)


class Lane:
    """Connections with their owner, and a broker's end of each that was opened."""

    def __init__(self) -> None:
        self.loop, self.owner, self.deadline = Loop(now), Owner(), now() + 1000
        self.theirs: list[socket.socket] = []
        self.asked: list[int] = []
        self.answers: list[Any] = []
        requests: Any = SimpleNamespace(connect=self._connect)
        self.links: Connections[int, Line] = Connections(
            "fill", int, self.loop, requests, TIMEOUT, lambda: self.deadline
        )
        self.links.owner = self.owner

    def _connect(self, kind: str, node_id: int, done: Any, failed: Any) -> None:
        self.asked.append(node_id)
        self.answers.append((done, failed))

    def open(self, key: int) -> Line:
        self.links.open(key)
        done, _ = self.answers.pop()
        ours, theirs = socket.socketpair()
        self.theirs.append(theirs)
        done(Stream(Connection("there", 1, PLAIN, ours), 1000), (key,), now())
        link = self.links.get(key)
        assert link is not None
        return link

    def turn(self) -> None:
        for ready, mask in self.loop.wait(5.0):
            ready(mask)

    def close(self) -> None:
        self.links.hang_up()
        for theirs in self.theirs:
            theirs.close()
        self.loop.close()


@pytest.fixture
def lane() -> Iterator[Lane]:
    with closing(Lane()) as made:
        yield made


def test_one_that_is_open_or_being_opened_is_not_opened_again(lane: Lane) -> None:
    lane.links.open(3)
    lane.links.open(3)
    assert lane.asked == [3]
    assert lane.links.items() == [(3, None)]
    lane.answers.pop()[1]("no such host", None, now())
    assert lane.owner.ended == ["3 refused: no such host"]
    lane.open(3)
    lane.links.open(3)
    assert lane.asked == [3, 3]


def test_one_that_is_not_wanted_any_more_is_closed(lane: Lane) -> None:
    lane.owner.is_wanted = False
    with pytest.raises(AssertionError):
        lane.open(3)
    assert lane.theirs[0].recv(1) == b""
    assert lane.links.items() == []
    assert lane.owner.ended == []


def test_what_the_socket_does_not_take_at_once_is_sent_when_it_does(lane: Lane) -> None:
    link, (theirs,) = lane.open(3), lane.theirs
    sent = bytes(8 << 20)
    assert lane.links.send(link, [sent])
    assert link.stream.sending
    received = 0
    while received < len(sent):
        received += len(theirs.recv(1 << 20))
        if link.stream.sending:
            lane.turn()
    theirs.sendall(framed(b"1234"))
    lane.turn()
    assert lane.owner.frames == [b"1234"]


def test_a_broker_that_does_not_answer_in_time_is_hung_up_on_once(lane: Lane) -> None:
    link, other = lane.open(3), lane.open(4)
    link.waits_since, other.waits_since = now() - TIMEOUT - 1, now()
    lane.links.on_tick(now())
    lane.links.on_tick(now())
    assert lane.owner.ended == ["there:1: no response in time"]
    assert lane.links.opened == [other]
    assert not lane.links.close(link)
    assert lane.theirs[0].recv(1) == b""


def test_a_connection_that_breaks_is_lost_once(lane: Lane) -> None:
    link = lane.open(3)
    lane.theirs[0].close()
    lane.turn()
    lane.links.lose(link, "again")
    assert len(lane.owner.ended) == 1
    assert "closed the connection" in lane.owner.ended[0]


def test_a_session_that_expires_ends_when_nothing_is_in_flight(lane: Lane) -> None:
    link = lane.open(3)
    assert not lane.links.must_end(link)
    link.stream.connection._replace_at = 0.0
    link.waits_since = now()
    assert lane.links.must_end(link)
    assert lane.owner.ended == []
    link.waits_since = None
    assert lane.links.must_end(link)
    assert lane.owner.ended == ["there:1: the session has expired"]


def test_after_the_deadline_no_byte_is_sent_and_what_waits_for_answers_is_lost(lane: Lane) -> None:
    idle, waiting, sending = lane.open(3), lane.open(4), lane.open(5)
    waiting.waits_since = now()
    lane.deadline = 0.0
    lane.links.on_tick(now())
    assert lane.links.opened == [idle, sending]
    assert not lane.links.send(sending, [b"late"])
    assert lane.links.opened == [idle]
    assert lane.owner.ended == ["there:1: this lane's deadline has passed"] * 2
    assert lane.theirs[2].recv(1) == b""
