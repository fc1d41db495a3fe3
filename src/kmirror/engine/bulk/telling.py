"""How far tasks are, told while they run: each sends its count to the driver in datagrams.

A count is all that is done by then, so one that is lost, or comes twice, changes nothing. Where datagrams do not get
through, progress moves when tasks end; nothing else depends on them. A token tells ours from others'.

This module runs in workers.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from kmirror.work import WorkIsOverError

_MESSAGE = struct.Struct("!16sIQ")
_PAUSE_S = 0.25
_LOOK_S = 0.5


class Ear(NamedTuple):
    """Where a driver listens, and the token that it takes counts with."""

    host: str
    port: int
    token: bytes


class Teller:
    """Count what one task does, and send the count on now and then."""

    def __init__(self, send: Callable[[int], None]) -> None:
        self.done = 0
        self._send = send
        self._sent_at = 0.0

    def add(self, count: int) -> None:
        """Count so much more as done."""
        self.done += count
        at = time.monotonic()
        if at - self._sent_at >= _PAUSE_S:
            self._sent_at = at
            self._send(self.done)


@contextlib.contextmanager
def telling(ear: Ear | None, task: int) -> Iterator[Teller]:
    """Yield what tells the driver how far a task is, as far as it can be reached."""
    if ear is None:
        yield Teller(lambda _: None)
        return
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(ear.host, ear.port, type=socket.SOCK_DGRAM)[0]
            sender = stack.enter_context(socket.socket(family, kind, protocol))
            sender.setblocking(False)
        except OSError:
            yield Teller(lambda _: None)
            return

        def send(done: int) -> None:
            with contextlib.suppress(OSError):
                sender.sendto(_MESSAGE.pack(ear.token, task, done), address)

        yield Teller(send)


@contextlib.contextmanager
def listening(host: str, bind: str, heard: Callable[[int, int], None]) -> Iterator[Ear | None]:
    """Listen at address `bind`, which workers know as `host`; `heard` is given a task's number and its count.

    Yields None where that is not possible.
    """
    token = secrets.token_bytes(16)
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(bind, 0, type=socket.SOCK_DGRAM)[0]
            receiver = stack.enter_context(socket.socket(family, kind, protocol))
            receiver.bind(address)
            receiver.settimeout(_LOOK_S)
        except OSError:
            yield None
            return
        over = threading.Event()

        def listen() -> None:
            while not over.is_set():
                try:
                    message = receiver.recv(_MESSAGE.size + 1)
                except TimeoutError:
                    continue
                except OSError:
                    return
                if len(message) != _MESSAGE.size:
                    continue
                sent, task, done = _MESSAGE.unpack(message)
                if secrets.compare_digest(sent, token):
                    with contextlib.suppress(WorkIsOverError):
                        heard(task, done)

        thread = threading.Thread(target=listen, name="kmirror-progress", daemon=True)
        thread.start()
        try:
            yield Ear(host, receiver.getsockname()[1], token)
        finally:
            over.set()
            # an empty datagram wakes it up
            with contextlib.suppress(OSError):
                receiver.sendto(b"", receiver.getsockname())
            thread.join(_LOOK_S)
