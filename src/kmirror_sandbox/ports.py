"""Choose TCP ports that are free, and likely to stay free while a broker is down.

They are below the kernel's range for outgoing connections: a port in that range could be taken while its broker
restarts by any client, even by one that connects to that very port.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
_LOWEST = 10_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports. Another process may still take one before it is used."""
    highest = _first_ephemeral_port() - 1
    ports: list[int] = []
    while len(ports) < count:
        port = random.randint(_LOWEST, highest)
        if port not in ports and is_free(port):
            ports.append(port)
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
