"""`run --http`, with clients that want an engine killed by its probes, and browsers on pages of others."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPConnection

import pytest

from kmirror.web import answers
from kmirror.web import http_server as server
from kmirror.web.address import Address, named_host
from kmirror.web.http_server import FOR_PROBES, MOST_CLIENTS, serving
from kmirror.web.look import page_policy, page_text
from kmirror.web.requests import Answer
from tests.support.live_engine import row, snapshot, turning
from tests.support.scraped import fetching
from tests.support.waiting import PATIENCE_S


@contextmanager
def served(*hosts: str) -> Iterator[Address]:
    with turning(snapshot(row(copied=100))) as found, serving(Address("127.0.0.1", 0), found, hosts) as address:
        yield address


def connected(stack: ExitStack, address: Address) -> socket.socket:
    made = stack.enter_context(socket.create_connection((address.host, address.port)))
    made.settimeout(PATIENCE_S)
    return made


def asked(address: Address, path: str, host: str | None) -> int:
    connection = HTTPConnection(address.host, address.port, timeout=PATIENCE_S)
    connection.putrequest("GET", path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    return connection.getresponse().status


# -- slow clients ------------------------------------------------------------------------------------------------------


def test_clients_that_say_nothing_fail_no_probe() -> None:
    with served() as address, ExitStack() as stack:
        idle = [connected(stack, address) for _ in range(MOST_CLIENTS)]
        for _ in range(3):
            assert fetching(str(address))("/healthz")[0] == 200
        assert idle[0].recv(1) == b"", "the oldest made room"


def test_clients_that_come_all_the_time_fail_no_probe() -> None:
    with served() as address, ExitStack() as stack:
        done = threading.Event()

        def flood() -> None:
            while not done.is_set():
                connected(stack, address)
                time.sleep(0.002)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            assert {fetching(str(address))("/readyz")[0] for _ in range(20)} == {200}
        finally:
            done.set()
            thread.join()


def test_a_head_takes_two_seconds_at_most() -> None:
    with served() as address, ExitStack() as stack:
        trickling = connected(stack, address)
        began = time.monotonic()
        trickling.sendall(b"GET /healthz HTTP/1.0\r\n")
        with suppress(OSError):  # the pipe breaks, or the connection is reset
            while True:
                trickling.sendall(b"X-Slow: 1\r\n")
                time.sleep(0.1)
        assert time.monotonic() - began > 1.5


@pytest.mark.slow
def test_answers_that_no_client_takes_leave_places_to_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Answer.of_text(HTTPStatus.OK, "x" * 50_000_000)
    monkeypatch.setattr(answers, "ROUTES", {**answers.ROUTES, "/status.json": lambda *_: large})
    with served() as address, ExitStack() as stack:
        slow = [connected(stack, address) for _ in range(MOST_CLIENTS)]
        for one in slow:
            one.sendall(b"GET /status.json HTTP/1.0\r\n\r\n")
        answered = [one.recv(12) for one in slow]
        assert answered.count(b"HTTP/1.0 503") == FOR_PROBES
        assert fetching(str(address))("/healthz")[0] == 200
        assert fetching(str(address))("/metrics")[0] == 503
        with monkeypatch.context() as hurried:
            hurried.setattr(server, "_CLIENT_SECONDS", 0.0)
            time.sleep(1)
        assert fetching(str(address))("/metrics")[0] == 200, "they have left their places"


# -- other names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/status.json", "/history.json", "/metrics", "/healthz", "/nowhere"])
def test_a_name_that_is_not_ours_gets_nothing(path: str) -> None:
    with served("kmirror.example") as address:
        for host in (
            "evil.example",
            f"evil.example:{address.port}",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
        ):
            assert asked(address, path, host) == 421
        known = 404 if path == "/nowhere" else 200
        ours = ("localhost", f"LOCALHOST.:{address.port}", "10.1.2.3:80", "[::1]:8", "kmirror.example:1")
        for name in (None, "", *ours, socket.gethostname()):
            assert asked(address, path, name) == known


def test_hosts_are_read_as_browsers_write_them() -> None:
    assert named_host("Evil.Example:80") == "evil.example"
    assert named_host("[fe80::1]:80") is None
    assert named_host("0x7f.1") == "0x7f.1"


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_runs_no_script_but_its_own() -> None:
    policy, page = page_policy(), page_text().decode()
    assert "unsafe" not in policy
    for name, directive in (("script", "script-src"), ("style", "style-src")):
        (part,) = re.findall(f"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", page)
