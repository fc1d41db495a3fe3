"""The buffers of a connection's socket: the system's, or as large as the user's client properties ask.

Unless it is told otherwise, Linux adapts both buffers to what a connection carries, up to the third value of
net.ipv4.tcp_rmem and tcp_wmem, often 6 and 4 MB. A buffer that a program sets keeps its size, and no program gets more
than net.core.rmem_max and wmem_max, often 208 KB: over 80 ms that is 2.6 MB/s.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from dataclasses import dataclass

from kmirror.cluster.security.client_config import ClientConfig


@dataclass(frozen=True, slots=True)
class SocketBuffer:
    """A buffer of a socket, in bytes: what a client property asked for, and what the system gave."""

    key: str
    asked: int
    given: int

    @property
    def is_capped(self) -> bool:
        """True if the system gave less."""
        return self.given < self.asked

    @property
    def limit(self) -> str:
        """The name of Linux's limit on it."""
        return "net.core.rmem_max" if self.key == "receive.buffer.bytes" else "net.core.wmem_max"


def set_buffers(sock: socket.socket, config: ClientConfig) -> tuple[SocketBuffer, ...]:
    """Set the buffers that the client properties name, and return them.

    Call it before the connection is made: the scale of its window, which limits what it can carry, is agreed then.
    """
    asked = (
        ("send.buffer.bytes", socket.SO_SNDBUF, config.send_buffer_bytes),
        ("receive.buffer.bytes", socket.SO_RCVBUF, config.receive_buffer_bytes),
    )
    return tuple(_set(sock, key, option, size) for key, option, size in asked if size is not None)


def buffers_here(config: ClientConfig) -> tuple[SocketBuffer, ...]:
    """Return the buffers that the client properties name, as this machine gives them."""
    with socket.socket() as sock:
        return set_buffers(sock, config)


def _set(sock: socket.socket, key: str, option: int, size: int) -> SocketBuffer:
    with contextlib.suppress(OSError):  # some systems refuse more than they allow instead of giving less
        sock.setsockopt(socket.SOL_SOCKET, option, size)
    given = sock.getsockopt(socket.SOL_SOCKET, option)
    # socket(7): Linux doubles the size, to have room for its own bookkeeping, and reports the double
    return SocketBuffer(key, size, given // 2 if sys.platform == "linux" else given)
