"""HTTP answers with a time limit for the whole answer, headers included.

The time-out of urllib is for each read from the socket: an answer that arrives byte by byte has no limit.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from io import BufferedReader, RawIOBase
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, Request


def timed_handlers(until: float, context: ssl.SSLContext | None) -> tuple[HTTPHandler, HTTPSHandler]:
    """Return handlers whose reads raise TimeoutError after `until` (`time.monotonic()`)."""

    def timed(kind: type[HTTPConnection]) -> Callable[..., Any]:
        class Timed(kind):  # type: ignore[misc, valid-type]
            def response_class(self, sock: socket.socket, *args: Any, **options: Any) -> HTTPResponse:
                answer = HTTPResponse(sock, *args, **options)
                answer.fp.close()
                answer.fp = BufferedReader(_TimedReads(sock, until))
                return answer

        return Timed

    class Plain(HTTPHandler):
        def http_open(self, req: Request) -> HTTPResponse:
            return self.do_open(timed(HTTPConnection), req)

    class Tls(HTTPSHandler):
        def https_open(self, req: Request) -> HTTPResponse:
            return self.do_open(timed(HTTPSConnection), req, context=context)

    return Plain(), Tls()


class _TimedReads(RawIOBase):
    """What arrives at a socket until a time."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._socket, self._until, self._longest = sock, until, sock.gettimeout() or until
        self._reads = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer is not complete in time")
        self._socket.settimeout(min(left, self._longest))
        return self._reads.readinto(buffer)

    def close(self) -> None:
        self._reads.close()
        super().close()
