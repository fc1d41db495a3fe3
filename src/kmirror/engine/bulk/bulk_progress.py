"""Progress of running tasks: each sends its count to the driver in datagrams.

A count is the total so far, so a lost or repeated one changes nothing. Where datagrams do not get through, progress
advances when tasks end; nothing else depends on them. A token keeps out datagrams of others.

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
_SEND_SECONDS = 0.25
_POLL_SECONDS = 0.5


class ProgressAddress(NamedTuple):
    """Where a driver listens, and the token it accepts counts with."""

    host: str
    port: int
    token: bytes


class ProgressCounter:
    """Count what one task has done, and send the count from time to time."""

    def __init__(self, send: Callable[[int], None]) -> None:
        self.done = 0
        self._send = send
        self._sent_at = 0.0

    def add(self, count: int) -> None:
        """Count `count` more units as done."""
        self.done += count
        at = time.monotonic()
        if at - self._sent_at >= _SEND_SECONDS:
            self._sent_at = at
            self._send(self.done)


@contextlib.contextmanager
def reporting_progress(address: ProgressAddress | None, task: int) -> Iterator[ProgressCounter]:
    """Yield a counter that reports the progress of a task to the driver, if the driver can be reached."""
    if address is None:
        yield ProgressCounter(lambda _: None)
        return
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)[
                0
            ]
            sender = stack.enter_context(socket.socket(family, kind, protocol))
            sender.setblocking(False)
        except OSError:
            yield ProgressCounter(lambda _: None)
            return

        def send(done: int) -> None:
            with contextlib.suppress(OSError):
                sender.sendto(_MESSAGE.pack(address.token, task, done), target)

        yield ProgressCounter(send)


@contextlib.contextmanager
def receiving_progress(host: str, bind: str, reported: Callable[[int, int], None]) -> Iterator[ProgressAddress | None]:
    """Listen at address `bind`, which workers know as `host`; call `reported` with a task's number and its count.

    Yields None if that is not possible.
    """
    token = secrets.token_bytes(16)
    with contextlib.ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(bind, 0, type=socket.SOCK_DGRAM)[0]
            receiver = stack.enter_context(socket.socket(family, kind, protocol))
            receiver.bind(address)
            receiver.settimeout(_POLL_SECONDS)
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
                        reported(task, done)

        thread = threading.Thread(target=listen, name="kmirror-progress", daemon=True)
        thread.start()
        try:
            yield ProgressAddress(host, receiver.getsockname()[1], token)
        finally:
            over.set()
            # an empty datagram wakes the thread
            with contextlib.suppress(OSError):
                receiver.sendto(b"", receiver.getsockname())
            thread.join(_POLL_SECONDS)
