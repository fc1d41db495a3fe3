"""Connect a socket to a host within a time, which the lookup of its name and all its addresses share."""

from __future__ import annotations

import re
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack
from math import inf
from typing import Any

from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.socket_buffers import set_buffers

#: Any address has so many seconds, however many share the time.
LEAST_SECONDS = 0.1
#: An answer to a lookup that took this long is used for so long: some callers wait less than the lookup takes.
_SLOW_S, _KEPT_S = 0.5, 30.0
#: No name has them; the system's resolver ends one at NUL, and would look up only what is before.
_IN_NO_NAME = re.compile(r"[\s\x00-\x1f\x7f]")


class _Lookups:
    """The names that are looked up. The system's resolver has no time limit, so each has a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The lookups that run, and the answers that were slow, with when they are too old.
        self._answers: dict[tuple[str, int], tuple[Future[list[Any]], float]] = {}

    def addresses(self, host: str, port: int, timeout: float) -> list[Any]:
        """Return what `getaddrinfo` finds. Raises OSError, also if it finds nothing in time; it is not asked twice."""
        with self._lock:
            answer, until = self._answers.get((host, port), (Future(), 0.0))
            if time.monotonic() >= until:
                answer = Future()
                threading.Thread(
                    target=self._look_up, args=(host, port, answer), name="kmirror-lookup", daemon=True
                ).start()
                self._answers[host, port] = answer, inf
        try:
            return answer.result(timeout)
        except TimeoutError:
            raise OSError(f"its name did not resolve within {timeout:.1f} s") from None

    def _look_up(self, host: str, port: int, answer: Future[list[Any]]) -> None:
        began = time.monotonic()
        found: list[Any] = []
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.set_result(found)
        except Exception as error:
            answer.set_exception(error)
        ended = time.monotonic()
        with self._lock:
            if found and ended - began >= _SLOW_S:
                self._answers[host, port] = answer, ended + _KEPT_S
            else:
                del self._answers[host, port]


_LOOKUPS = _Lookups()


def connected(host: str, port: int, config: ClientConfig, timeout: float) -> socket.socket:
    """Return a socket that is connected to one of a host's addresses.

    Raises:
        OSError: none of them answers within `timeout` seconds, or there is none.
        ValueError: it is not a valid host name.
    """
    if _IN_NO_NAME.search(host):
        raise ValueError("not a valid host name")
    deadline = time.monotonic() + timeout
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = _LOOKUPS.addresses(host, port, timeout)
    failed: OSError | None = None
    for tried, (family, kind, protocol, _, address) in enumerate(found):
        try:
            with ExitStack() as stack:
                sock = stack.enter_context(socket.socket(family, kind, protocol))
                sock.settimeout(max(LEAST_SECONDS, (deadline - time.monotonic()) / (len(found) - tried)))
                set_buffers(sock, config)
                sock.connect(address)
                sock.settimeout(timeout)
                stack.pop_all()
                return sock
        except OSError as error:
            failed = error
    raise failed or OSError("it has no address")
