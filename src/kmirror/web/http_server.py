"""Serve HTTP, beside an engine or without one: one thread accepts connections, and each request has a thread.

Requests only read, and must not delay the copy, whatever clients do: the number of clients, the time that one may take,
and the size of a request are limited. Probes decide whether an engine is killed, so slow clients must not keep them
out: some places are only for probes, and who has not sent a request yet makes room for who comes.

A page elsewhere may have a browser ask for our answers under a name of its own that resolves to us (DNS rebinding). So
the `Host` header must be an address, this machine, or a name that the operator gave.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Collection, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from kmirror.engine.driver.driver import Watcher
from kmirror.engine.driver.snapshots import Snapshots
from kmirror.errors import RefusedError
from kmirror.ops.base.context import Destination
from kmirror.web.address import Address, named_host
from kmirror.web.answers import Service, answer
from kmirror.web.charge_answers import IN_CHARGE_PATH
from kmirror.web.recent import RecentEvents
from kmirror.web.requests import Answer
from kmirror.web.run_service import RunService

_logger = logging.getLogger(__name__)

#: Clients served at a time, and those of them that only probes may be; others get 503.
MOST_CLIENTS, FOR_PROBES = 32, 4
_PROBES = frozenset({"/healthz", "/readyz"})
#: How long a client may take for the head of its request, may be silent, and may take in all.
_HEAD_SECONDS, _SILENCE_SECONDS, _CLIENT_SECONDS = 2.0, 5.0, 30.0
#: How long a client that makes room may take to be gone.
_LEAVE_SECONDS = 0.5
_POLL_SECONDS = 0.2
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class _Handler(BaseHTTPRequestHandler):
    """Answer one request, and close the connection."""

    server: _Server
    server_version, sys_version = "kmirror", ""
    timeout = _SILENCE_SECONDS

    def parse_request(self) -> bool:
        """Parse the head; from then on the client has more time, and keeps its place."""
        is_sound = super().parse_request()
        if is_sound:
            self.server.head_is_read(self.connection)
        return is_sound

    def do_GET(self) -> None:
        """Answer with head and body."""
        if self._is_misdirected():
            return
        path = urlsplit(self.path).path
        with self.server.place_to_answer(is_probe=path in _PROBES or path.startswith(IN_CHARGE_PATH)) as has_place:
            if not has_place:
                self._send(Answer.of_text(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients"), {"Retry-After": "1"})
                return
            self._send(self._found())

    def _found(self) -> Answer:
        try:
            return answer(self.server.service, self.path, self.headers.get("Accept", ""))
        except Exception as error:  # a bug: it must be visible, and must not end the copy
            _logger.exception("answering %s failed", self.path)
            return Answer.of_text(HTTPStatus.INTERNAL_SERVER_ERROR, f"kmirror failed to answer: {error!r}")

    #: The same; `_send` omits the body.
    do_HEAD = do_GET  # noqa: N815

    def _is_misdirected(self) -> bool:
        """Refuse a request that was sent to a name which is not ours."""
        name = named_host(self.headers.get("Host", ""))
        if name is None or name in self.server.hosts:
            return False
        text = f"{name} is not a name of this server; `--http-host NAME` gives it one"
        self._send(Answer.of_text(HTTPStatus.MISDIRECTED_REQUEST, text))
        return True

    def _refuse(self) -> None:
        if self._is_misdirected():
            return
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

    def __init__(self, address: Address, service: Service, hosts: Collection[str]) -> None:
        self.service = service
        machine = socket.gethostname().lower()
        self.hosts = frozenset({"localhost", machine, machine.partition(".")[0], address.host.lower(), *hosts})
        self._places = threading.Semaphore(MOST_CLIENTS)
        self._answers = threading.Semaphore(MOST_CLIENTS - FOR_PROBES)
        #: Since when each connection is served, oldest first, and those of them whose request is known.
        self._served: dict[socket.socket, float] = {}
        self._known: set[socket.socket] = set()
        self.address_family, *_, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        super().__init__((str(where[0]), address.port), _Handler)

    @property
    def address(self) -> Address:
        """Where it listens."""
        return Address(*self.socket.getsockname()[:2])

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it in a thread of its own, if there is a free one, or a client that can make room."""
        if not self._places.acquire(blocking=False) and not self._make_room():
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
            self._known.discard(request)
            self._places.release()

    def head_is_read(self, request: socket.socket) -> None:
        """Note that a connection's request is known."""
        self._known.add(request)

    @contextlib.contextmanager
    def place_to_answer(self, *, is_probe: bool) -> Iterator[bool]:
        """Yield whether a request may be answered now; probes always may."""
        has_place = is_probe or self._answers.acquire(blocking=False)
        try:
            yield has_place
        finally:
            if has_place and not is_probe:
                self._answers.release()

    def _make_room(self) -> bool:
        """Hang up on the client that waits longest without a request, and take its place; False if there is none."""
        waiting = [one for one in self._served.copy() if one not in self._known]
        if not waiting:
            return False
        _hang_up(waiting[0])
        return self._places.acquire(timeout=_LEAVE_SECONDS)

    def service_actions(self) -> None:
        """Close the connections of clients that take too long."""
        at = time.monotonic()
        for request, since in self._served.copy().items():
            if at - since > (_CLIENT_SECONDS if request in self._known else _HEAD_SECONDS):
                _hang_up(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log it: clients that hang up do not matter, and a bug of ours must not end the copy."""
        _logger.debug("serving %s failed", client_address, exc_info=True)


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(address: Address, service: Service, hosts: Collection[str] = ()) -> Iterator[Address]:
    """Serve until the `with` block ends; yield the address that is listened on. `hosts` are more names of the server.

    Raises:
        RefusedError: the address cannot be listened on.
    """
    try:
        server = _Server(address, service, hosts)
    except OSError as error:
        raise RefusedError(f"--http: cannot listen on {address}: {_cause(error)}", _hint(error, address)) from error
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_SECONDS,), name="kmirror-http", daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def serving_run(
    open_destination: Callable[[], Destination], address: Address, hosts: Collection[str], snapshots: Snapshots
) -> Iterator[tuple[str, Watcher]]:
    """Serve a run until the `with` block ends; yield where, and what takes the run's views.

    Raises:
        RefusedError: the address cannot be listened on.
    """
    with contextlib.closing(RecentEvents(open_destination)) as recent:
        service = RunService(snapshots, recent)
        with serving(address, service, hosts) as listening:
            yield str(listening), service.show


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
