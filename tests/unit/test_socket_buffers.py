"""The buffers of connections: the system's, unless the user asks for a size; and whether the system gives that."""

from __future__ import annotations

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.cluster.socket_buffers import SocketBuffer, buffers_here, set_buffers
from tests.support.frames import PLAIN

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sizes that Linux gives")
GREEDY = 2_000_000_000


def limit(name: str) -> int:
    """Return what this machine gives at most."""
    return int(Path(f"/proc/sys/net/core/{name}").read_text())


def sizes(sock: socket.socket) -> tuple[int, ...]:
    """Return the sizes of a socket's buffers as the system reports them."""
    return tuple(sock.getsockopt(socket.SOL_SOCKET, option) for option in (socket.SO_SNDBUF, socket.SO_RCVBUF))


def test_a_socket_is_left_alone_by_default() -> None:
    with socket.socket() as sock:
        before = sizes(sock)
        assert (set_buffers(sock, PLAIN), sizes(sock)) == ((), before)


def test_the_users_sizes_are_set_and_reported_as_they_were_asked_for() -> None:
    with socket.socket() as sock:
        found = set_buffers(sock, replace(PLAIN, send_buffer_bytes=50_000, receive_buffer_bytes=60_000))
        assert sizes(sock) == (100_000, 120_000)  # Linux reports the double
    assert found == (
        SocketBuffer("send.buffer.bytes", 50_000, 50_000),
        SocketBuffer("receive.buffer.bytes", 60_000, 60_000),
    )
    assert not any(buffer.is_capped for buffer in found)


def test_what_the_system_does_not_give_is_found_with_the_limit_to_raise() -> None:
    found = buffers_here(replace(PLAIN, send_buffer_bytes=GREEDY, receive_buffer_bytes=GREEDY))
    assert [(buffer.given, buffer.is_capped, buffer.limit) for buffer in found] == [
        (limit("wmem_max"), True, "net.core.wmem_max"),
        (limit("rmem_max"), True, "net.core.rmem_max"),
    ]
