"""Choose TCP ports that are free, and likely to stay free while a broker is down.

They are below the kernel's range for outgoing connections: a port in that range could be taken while its broker
restarts by any client, even by one that connects to that very port. A process keeps the ports that it chose for as long
as it lives, by a lock on a file in the user's cache: of several that start clusters at the same time, no two choose the
same port, also while the broker of one is down.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import threading
from pathlib import Path

from kmirror_sandbox.jars import cache_directory

LOOPBACK = "127.0.0.1"
_LOWEST = 10_000
#: Of a process that starts clusters for days, the oldest ports are free again: there are some 22,000.
_KEPT = 2_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class _Claims:
    """The ports that this process chose: each is one locked byte of a file; the kernel frees them when it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: int | None = None
        self._ports: dict[int, None] = {}

    def take(self, port: int) -> bool:
        """Claim a port; return whether this process has not chosen it before, and no other has."""
        with self._lock:
            if port in self._ports:
                return False
            try:
                fcntl.lockf(self._opened(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            except BlockingIOError:
                return False
            except OSError:
                pass  # no cache that can be written: with Kafka's jars elsewhere, a cluster starts all the same
            self._ports[port] = None
            if len(self._ports) > _KEPT:
                oldest = next(iter(self._ports))
                del self._ports[oldest]
                if self._file is not None:
                    fcntl.lockf(self._file, fcntl.LOCK_UN, 1, oldest)
            return True

    def _opened(self) -> int:
        """Return the file, which stays open: closing any descriptor of it would end all its locks."""
        if self._file is None:
            folder = cache_directory(os.environ)
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.open(folder / "ports.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file


_claims = _Claims()


def free_ports(count: int, *, in_a_row: bool = False) -> list[int]:
    """Return `count` different free ports that no other process chooses while this one lives.

    A program that chooses by other means may still take one before it is used.
    """
    highest = _first_ephemeral_port() - 1
    ports: list[int] = []
    while len(ports) < count:
        if in_a_row:
            port = ports[-1] + 1 if ports else random.randint(_LOWEST, highest - count)
        else:
            port = random.randint(_LOWEST, highest)
        if is_free(port) and _claims.take(port):
            ports.append(port)
        elif in_a_row:
            ports.clear()
    return ports


def is_free(port: int) -> bool:
    """Return whether a broker could listen on this port of the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _first_ephemeral_port() -> int:
    if _EPHEMERAL_RANGE.exists():
        first = int(_EPHEMERAL_RANGE.read_text(encoding="utf-8").split()[0])
        if first > _LOWEST + 1000:
            return first
    return 32_768
