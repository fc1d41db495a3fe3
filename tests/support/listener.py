"""A listener that is no broker of ours: it records who connects and what they send, and never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass(slots=True)
class Listener:
    """Its address, and the bytes of each connection, empty for one that only connected."""

    address: str
    received: list[bytes] = field(default_factory=list)


@contextmanager
def listening() -> Iterator[Listener]:
    """Listen on a port of this machine until the `with` block ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = Listener(f"127.0.0.1:{server.getsockname()[1]}")
        threads = [threading.Thread(target=_accept, args=(server, found))]
        threads[0].start()
        try:
            yield found
        finally:
            server.shutdown(socket.SHUT_RDWR)
            threads[0].join()


def _accept(server: socket.socket, found: Listener) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            connection.settimeout(1)
            found.received.append(b"")
            found.received[-1] = connection.recv(1 << 16)
