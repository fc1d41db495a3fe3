"""Serve HTTP while an engine runs: one thread accepts connections, and each request has a thread.

Requests only read, and must not delay the copy, whatever clients do: the number of clients, the time that one may take,
and the size of a request are limited.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from kmirror.errors import RefusedError
from kmirror.ops.serve.address import Address
from kmirror.ops.serve.answers import Answer, answer
from kmirror.ops.serve.service import Service

_logger = logging.getLogger(__name__)

#: Clients served at a time; others get 503.
MOST_CLIENTS = 32
#: How long a client may be silent, and how long it may take in all.
_SILENCE_SECONDS, _CLIENT_SECONDS = 5.0, 30.0
_POLL_SECONDS = 0.2
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class _Handler(BaseHTTPRequestHandler):
    """Answer one request, and close the connection."""

    server: _Server
    server_version, sys_version = "kmirror", ""
    timeout = _SILENCE_SECONDS

    def do_GET(self) -> None:
        """Answer with head and body."""
        try:
            found = answer(self.server.service, urlsplit(self.path).path, self.headers.get("Accept", ""))
        except Exception as error:  # a bug: it must be visible, and must not end the copy
            _logger.exception("answering %s failed", self.path)
            found = Answer.of_text(HTTPStatus.INTERNAL_SERVER_ERROR, f"kmirror failed to answer: {error!r}")
        self._send(found)

    #: The same; `_send` omits the body.
    do_HEAD = do_GET  # noqa: N815

    def _refuse(self) -> None:
        refused = Answer.of_text(
            HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered: nothing is changed here"
        )
        self._send(refused, {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = _refuse  # noqa: N815

    def _send(self, found: Answer, more: dict[str, str] | None = None) -> None:
        self.send_response(found.status)
        headers = {
            "Content-Type": found.content_type,
            "Content-Length": str(len(found.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **(found.headers or {}),
            **(more or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log requests for -vv."""
        _logger.debug("%s %s", self.address_string(), format % args)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = MOST_CLIENTS

    def __init__(self, address: Address, service: Service) -> None:
        self.service = service
        self._places = threading.Semaphore(MOST_CLIENTS)
        #: Since when each connection is served.
        self._served: dict[socket.socket, float] = {}
        self.address_family, *_, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        super().__init__((str(where[0]), address.port), _Handler)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(*self.socket.getsockname()[:2])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it in a thread of its own, if there is a free one."""
        if not self._places.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.settimeout(_POLL_SECONDS)
                request.sendall(_BUSY)
            self.shutdown_request(request)
            return
        self._served[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it, and free the thread's place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._served.pop(request, None)
            self._places.release()

    def service_actions(self) -> None:
        """Close the connections of clients that take too long."""
        latest = time.monotonic() - _CLIENT_SECONDS
        for request in [one for one, since in self._served.copy().items() if since < latest]:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log it: clients that hang up do not matter, and a bug of ours must not end the copy."""
        _logger.debug("serving %s failed", client_address, exc_info=True)


@contextlib.contextmanager
def serving(address: Address, service: Service) -> Iterator[Address]:
    """Serve until the `with` block ends; yield the address that is listened on.

    Raises:
        RefusedError: the address cannot be listened on.
    """
    try:
        server = _Server(address, service)
    except OSError as error:
        raise RefusedError(f"--http: cannot listen on {address}: {_cause(error)}", _hint(error, address)) from error
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="kmirror-http", daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        server.shutdown()
        server.server_close()


def _cause(error: OSError) -> str:
    return (
        "another process listens there" if error.errno == errno.EADDRINUSE else (error.strerror or str(error)).lower()
    )


def _hint(error: OSError, address: Address) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"`ss -ltnp 'sport = :{address.port}'` shows which; end it, or give another port, or 0 for a free one"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "give a port of 1024 or more"
    return "give an address of this machine, or only a port"
