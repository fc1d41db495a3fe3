"""A stream passes whole frames on, and nothing waits for it, however the bytes arrive."""

from __future__ import annotations

import random
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from kmirror.cluster.connection import MAX_FRAME_BYTES, Connection
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.wire import FrameError
from kmirror.cluster.stream import Stream
from kmirror.engine.lane.brokers.links import DestinationLink, ProduceRequest
from kmirror.errors import OutcomeUnknown
from tests.support.frames import PLAIN, framed, is_readable, receive
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def ends() -> Iterator[tuple[Stream, socket.socket]]:
    """Return a stream, and the other end of its connection."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    theirs.settimeout(PATIENCE_S)
    stream = Stream(Connection("there", 1, PLAIN, ours), 100_000)
    yield stream, theirs
    stream.close()
    theirs.close()


@pytest.fixture
def tcp_ends() -> Iterator[tuple[Stream, socket.socket]]:
    """Return a stream over TCP whose socket holds little, and the other end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.socket()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
        ours.connect(server.getsockname())
        theirs, _ = server.accept()
    theirs.settimeout(PATIENCE_S)
    theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = Stream(Connection("there", 1, PLAIN, ours), 8 << 20)
    yield stream, theirs
    stream.close()
    theirs.close()


def test_parts_of_a_frame_that_fit_into_the_socket_wake_no_reader(tcp_ends: tuple[Stream, socket.socket]) -> None:
    stream, theirs = tcp_ends
    frame = random.Random(3).randbytes(60_000)
    theirs.sendall(framed(frame)[:30_000])
    assert is_readable(stream)
    assert stream.receive() is None  # what is here is read
    theirs.sendall(framed(frame)[30_000:50_000])
    assert is_readable(stream, within=0.3) is (sys.platform != "linux")
    theirs.sendall(framed(frame)[50_000:])
    assert is_readable(stream)
    assert receive(stream) == frame
    theirs.sendall(framed(b"next"))
    assert is_readable(stream)
    assert bytes(receive(stream)) == b"next"


def test_several_answers_are_waited_for_at_once(tcp_ends: tuple[Stream, socket.socket]) -> None:
    stream, theirs = tcp_ends
    link = DestinationLink(1, 0, stream, produce.HIGHEST_VERSION)
    for number in range(3):
        batches = [(None, None)] * 8
        link.in_flight.append(ProduceRequest(number, 0.0, batches, 0, 0, False))  # type: ignore[arg-type]
    frame = bytes(produce.least_answer_bytes(8) - 4)
    link.await_answers(2)
    theirs.sendall(framed(frame))
    assert is_readable(stream, within=0.3) is (sys.platform != "linux")
    theirs.sendall(framed(frame))
    assert is_readable(stream)
    assert [bytes(stream.receive() or b""), bytes(stream.receive() or b""), stream.receive()] == [frame, frame, None]
    theirs.sendall(framed(frame))
    assert is_readable(stream, within=0.3) is (sys.platform != "linux")
    link.await_answers(1)
    assert is_readable(stream)


def test_a_frame_larger_than_its_socket_gets_through(tcp_ends: tuple[Stream, socket.socket]) -> None:
    stream, theirs = tcp_ends
    frame = random.Random(4).randbytes(8 << 20)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(theirs.sendall, framed(frame))
        assert receive(stream) == frame
        sent.result()


def test_a_connection_that_ends_in_the_middle_of_a_frame_is_reported(tcp_ends: tuple[Stream, socket.socket]) -> None:
    stream, theirs = tcp_ends
    theirs.sendall(framed(bytes(60_000))[:30_000])
    assert is_readable(stream)
    assert stream.receive() is None
    theirs.close()
    assert is_readable(stream)
    with pytest.raises(OutcomeUnknown):
        stream.receive()


def test_frames_arrive_whole_however_they_are_cut(ends: tuple[Stream, socket.socket]) -> None:
    stream, theirs = ends
    rng = random.Random(7)
    frames = [rng.randbytes(size) for size in (4, 5, 3000, 100, 90_000, 100_000, 100_001, 4)]
    data = b"".join(map(framed, frames))
    found = []
    position = 0
    while position < len(data):
        step = rng.choice([1, 2, 3, 5, 1000, 5000])
        theirs.sendall(data[position : position + step])
        position += step
        while (frame := stream.receive()) is not None:
            found.append(bytes(frame))
            stream.recycle(frame)
    assert found == frames


def test_several_frames_in_one_piece_come_one_by_one(ends: tuple[Stream, socket.socket]) -> None:
    stream, theirs = ends
    theirs.sendall(framed(b"first") + framed(b"second") + framed(b"thi rd")[:6])
    assert [bytes(stream.receive() or b""), bytes(stream.receive() or b"")] == [b"first", b"second"]
    assert stream.receive() is None
    theirs.sendall(framed(b"thi rd")[6:])
    assert bytes(stream.receive() or b"") == b"thi rd"


def test_a_large_buffer_is_used_again_once_it_is_given_back(ends: tuple[Stream, socket.socket]) -> None:
    stream, theirs = ends

    def next_frame() -> memoryview:
        theirs.sendall(framed(bytes(50_000)))
        return receive(stream)

    first = next_frame()
    second = next_frame()
    assert first.obj is not second.obj
    stream.recycle(first)
    assert next_frame().obj is first.obj


def test_streams_may_share_the_buffers_that_are_kept() -> None:
    spare = deque[bytearray](maxlen=2)
    ours, others = socket.socketpair()
    with closing(ours), closing(others):
        first, other = (Stream(Connection("there", 1, PLAIN, one), 100_000, spare) for one in (ours, others))
        frames = [stream._buffer(50_000) for stream in (first, other, other)]
        for frame in frames:
            first.recycle(frame)
        assert len(spare) == 2
        assert other._buffer(50_000).obj is frames[2].obj


def test_sending_continues_where_the_socket_stopped(ends: tuple[Stream, socket.socket]) -> None:
    stream, theirs = ends
    rng = random.Random(8)
    buffers = [rng.randbytes(rng.randrange(1, 4000)) for _ in range(3000)]
    stream.send(buffers[:1500])
    stream.send(buffers[1500:])
    assert stream._rest
    wanted, got = b"".join(buffers), bytearray()
    while len(got) < len(wanted):
        got += theirs.recv(50_000)
        stream.flush()
    assert not stream.sending
    assert bytes(got) == wanted


@pytest.mark.parametrize("size", [-1, 0, 3, MAX_FRAME_BYTES + 1])
def test_a_stream_refuses_sizes_that_cannot_be(ends: tuple[Stream, socket.socket], size: int) -> None:
    stream, theirs = ends
    theirs.sendall(struct.pack(">i", size))
    with pytest.raises(FrameError, match=f"{size} bytes"):
        stream.receive()


def test_a_stream_whose_other_end_is_gone(ends: tuple[Stream, socket.socket]) -> None:
    stream, theirs = ends
    theirs.sendall(framed(b"last")[:6])
    assert stream.receive() is None
    theirs.close()
    with pytest.raises(OutcomeUnknown, match="closed the connection"):
        stream.receive()
    with pytest.raises(OutcomeUnknown):
        stream.send([b"anything"])
