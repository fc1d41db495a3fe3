"""The channel from a driver to the processes on its machine that host lanes: a Unix socket, and what goes over it.

Over it go client properties, secrets included. So each side lets in only processes of its own user, and the driver only
those that know a key that it gave to Spark for them. The socket has a name without a file: no path is too long for it,
and no program that cleans temporary folders removes it.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import sys
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from kmirror.engine.spec import LaneResult, LaneSpec

#: This needs names without files, and the kernel's word for who is at the other end.
IS_POSSIBLE = sys.platform == "linux"
_KEY_BYTES = 32
_KEY_SECONDS = 10.0
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class HostSpec:
    """The number of a process that hosts lanes, and how it reaches its driver."""

    number: int
    address: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class StartLane:
    """Have a host start a lane."""

    name: str
    spec: LaneSpec


@dataclass(frozen=True, slots=True)
class CancelLane:
    """Have a host end a lane that sends nothing more, and does not say how it ended."""

    name: str


@dataclass(frozen=True, slots=True)
class LaneEnded:
    """A lane has ended: how, or else by which error."""

    name: str
    result: LaneResult | None
    error: str | None


@dataclass(frozen=True, slots=True)
class HostReady:
    """A process hosts lanes from now on."""

    number: int
    pid: int


class LaneListener:
    """The driver's end. Its key is in `spec`."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._address = b"\0kmirror-" + secrets.token_hex(16).encode()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self._address)
        self._socket.listen()

    def close(self) -> None:
        """Take no more connections; `accept` in another thread ends."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def spec(self, number: int) -> HostSpec:
        """Return what the host with this number needs to connect."""
        return HostSpec(number, self._address, self._key)

    def accept(self) -> socket.socket:
        """Return the next connection, which may be anybody's; raises OSError if there is none."""
        return self._socket.accept()[0]

    def admit(self, accepted: socket.socket) -> Connection | None:
        """Return a connection to exchange messages with; None, and it is closed, for a stranger."""
        accepted.settimeout(_KEY_SECONDS)
        try:
            is_known = _is_own(accepted) and hmac.compare_digest(_read_key(accepted), self._key)
        except OSError:
            is_known = False
        if is_known:
            return _connection(accepted)
        accepted.close()
        return None


def connect(spec: HostSpec) -> Connection:
    """Return a host's connection to its driver.

    Raises:
        OSError: the driver is gone.
        PermissionError: another user has its address.
    """
    connecting = socket.socket(socket.AF_UNIX)
    try:
        connecting.connect(spec.address)
        if not _is_own(connecting):
            raise PermissionError("the address of the driver belongs to another user")
        connecting.sendall(spec.key)
    except BaseException:
        connecting.close()
        raise
    return _connection(connecting)


def _connection(connected: socket.socket) -> Connection:
    connected.settimeout(None)
    return Connection(connected.detach())


def _is_own(connected: socket.socket) -> bool:
    """Return True if a process of this user is at the other end."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(found)[1] == os.geteuid())


def _read_key(accepted: socket.socket) -> bytes:
    key = b""
    while len(key) < _KEY_BYTES and (more := accepted.recv(_KEY_BYTES - len(key))):
        key += more
    return key
