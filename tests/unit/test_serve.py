"""What `run --http` listens on and answers: each path, each trouble, and clients that take their time."""

from __future__ import annotations

import json
import math
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest

from kmirror.engine.driver.driver import STOPPING
from kmirror.engine.driver.engines import NotCopied
from kmirror.engine.driver.snapshots import Snapshots
from kmirror.engine.status.journal import Level, Note
from kmirror.errors import ExitCode, RefusedError, UsageError
from kmirror.state.history_records import HistoryPoint
from kmirror.state.records import DesiredState, PartitionRecord, PartitionState
from kmirror.web import answers
from kmirror.web import http_server as server
from kmirror.web import run_service as service
from kmirror.web.address import Address
from kmirror.web.answers import Service
from kmirror.web.http_server import MOST_CLIENTS, serving
from kmirror.web.look import page_text
from kmirror.web.requests import HttpRequest
from kmirror.web.run_service import RunService
from tests.support.json_documents import check
from tests.support.live_engine import NOW_MS, no_events, row, silent, snapshot, topic_record, turning, view
from tests.support.scraped import asking, fetching
from tests.support.waiting import PATIENCE_S

ANYWHERE = Address("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8080", "127.0.0.1", 8080),
        ("0", "127.0.0.1", 0),
        ("0.0.0.0:9000", "0.0.0.0", 9000),
        ("metrics.example:65535", "metrics.example", 65_535),
        ("[::1]:80", "::1", 80),
    ],
)
def test_an_address_is_a_port_on_this_machine_unless_a_host_is_given(text: str, host: str, port: int) -> None:
    found = Address.parse(text)
    assert (found.host, found.port) == (host, port)
    assert Address.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", ":8080", "http://h:1", "h", "h:", "65536", "::1:80", "h:1:2", "-1", "8 0"])
def test_what_is_no_address_is_refused_with_two_that_are(text: str) -> None:
    with pytest.raises(UsageError, match="is neither a port nor HOST:PORT") as refused:
        Address.parse(text, "--metrics-port")
    assert refused.value.message.startswith("--metrics-port ")
    assert "--metrics-port 0.0.0.0:8080" in (refused.value.hint or "")


# -- what is answered --------------------------------------------------------------------------------------------------


def test_where_all_topics_are_stopped_nothing_is_said_to_flow() -> None:
    stopped = topic_record("t", desired=DesiredState.STOPPED)
    end = PartitionRecord("m", "t", 0, PartitionState.STOPPED, NOW_MS - 9, last_mirrored_offset=100)
    with turning(snapshot(row(copied=100), records=(stopped, end))) as found:
        assert asking(found)("/readyz") == (200, "nothing to copy: all topics are stopped\n")


def test_while_records_flow_everything_says_so() -> None:
    with turning(snapshot(row(copied=100))) as found:
        get = asking(found)
        assert get("/healthz") == (200, "the driver is running\n")
        assert get("/readyz") == (200, "records flow\n")
        reported = json.loads(get("/status.json")[1])
        check("status", reported)
        assert (reported["phase"], reported["ready"], reported["missing"]) == ("copying", True, None)
        assert [one["mirror"] for one in reported["mirrors"]] == ["m"]
        assert [(one["topic"], one["lag"]) for one in reported["partitions"]] == [("t", 0)]
        assert get("/")[1] == page_text().decode()
        status, text = get("/nowhere")
        assert (status, "/healthz" in text) == (404, True)


def test_the_last_hour_is_served_and_unknown_events_are_not_none() -> None:
    points = ((NOW_MS - 15_000, HistoryPoint(5, None, 1, None, 12.5, 0.25, 0, 1, "NO_WORKERS")),)
    with turning(replace(snapshot(row(copied=100)), history=points)) as found:
        reported = json.loads(asking(found)("/history.json")[1])
    check("history", reported)
    assert [(one["mirror"], len(one["points"])) for one in reported["mirrors"]] == [("m", 1)]
    (point,) = reported["mirrors"][0]["points"]
    assert (point["lag"], point["lagUnknown"], point["recordsPerSecond"], point["phase"]) == (
        None,
        1,
        0.25,
        "NO_WORKERS",
    )
    assert reported["events"] is None
    assert reported["eventsTrouble"] == "the events are not known: there is no destination here"


def test_each_mirror_that_is_not_well_is_named_with_its_cause() -> None:
    not_copied = {"o": NotCopied("an engine is in charge of it elsewhere")}
    with turning(silent(snapshot(row(), row("u"))), not_copied=not_copied) as found:
        get = asking(found)
        assert get("/healthz")[0] == 200
        status, text = get("/readyz")
        assert status == 503
        first, second = text.splitlines()
        assert first.startswith("m: t-0 is not healthy: no worker has reported on lane 0 for 1m; check ")
        assert first.endswith(", and one more topic")
        assert second == "o: an engine is in charge of it elsewhere"
        reported = json.loads(get("/status.json")[1])
        assert (reported["ready"], reported["missing"]) == (False, text.strip())


def test_a_run_without_mirrors_lives_and_is_not_ready() -> None:
    with turning() as found:
        assert asking(found)("/healthz")[0] == 200
        assert asking(found)("/readyz") == (503, "there is no mirror to copy\n")


@pytest.mark.parametrize(
    ("words", "phase"),
    [("waiting", "waiting"), ("starting", "starting"), ("waiting since 2026-11-23T07:02:17Z for Spark", "waiting")],
)
def test_before_it_copies_a_run_lives_and_says_what_it_waits_for(words: str, phase: str) -> None:
    found = RunService(Snapshots(), no_events())
    get = asking(found)
    found.show(view(words))
    assert get("/healthz")[0] == 200
    assert get("/readyz") == (503, f"{words}\n")
    reported = json.loads(get("/status.json")[1])
    check("status", reported)
    assert (reported["phase"], reported["ready"], reported["mirrors"], reported["partitions"]) == (
        phase,
        False,
        None,
        None,
    )


def test_the_cause_of_a_wait_is_shown_for_as_long_as_it_waits() -> None:
    found = RunService(Snapshots(), no_events())
    get = asking(found)
    why = Note(0, Level.WARNING, "m", "waiting for the clusters: connection refused")
    found.show(view("waiting since T", notes=(why,)))
    found.show(view("waiting since T", notes=(Note(0, Level.INFO, "m", "hello"),)))
    assert get("/readyz")[1] == "waiting since T: waiting for the clusters: connection refused\n"
    found.show(view("starting"))
    found._last = None
    assert get("/readyz")[1] == "starting\n"


def test_an_engine_that_ends_is_not_ready() -> None:
    with turning(snapshot(row(copied=100)), phase=STOPPING) as found:
        assert asking(found)("/readyz") == (503, "stopping\n")


def test_a_driver_that_does_not_turn_is_dead_and_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(service, "TURN_SECONDS", 0.05)
    with turning(snapshot(row())) as found:
        pass
    time.sleep(0.06)
    get = asking(found)
    status, why = get("/healthz")
    assert (status, why.startswith("the driver is stuck: its loop last ran at 20")) == (503, True)
    for path in ("/readyz", "/metrics"):
        assert get(path) == (503, "the driver is stuck: it has not answered for 0.05 s\n")
    status, body = get("/status.json")
    check("error", json.loads(body))
    assert status == 503


def test_frequent_requests_get_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    known = snapshot(row())
    with turning(known) as found:
        assert found.status() is found.status()
        monkeypatch.setattr(service, "_SAME_SECONDS", 0.0)
        assert found.status() is not found.status()


# -- the server --------------------------------------------------------------------------------------------------------


@contextmanager
def served() -> Iterator[Address]:
    with turning(snapshot(row(copied=100))) as found, serving(ANYWHERE, found) as address:
        yield address


def asked(address: Address, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection(address.host, address.port, timeout=PATIENCE_S)
    connection.request(method, path, headers=headers)
    found = connection.getresponse()
    return found.status, dict(found.getheaders()), found.read()


def test_head_is_get_without_the_body_and_nothing_else_is_allowed() -> None:
    with served() as address:
        status, headers, body = asked(address, "GET", "/healthz?probe=1")
        assert (status, body) == (200, b"the driver is running\n")
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert (headers["Cache-Control"], headers["Server"].strip()) == ("no-store", "kmirror")
        again, same, nothing = asked(address, "HEAD", "/healthz")
        assert (again, same["Content-Length"], nothing) == (200, headers["Content-Length"], b"")
        assert asked(address, "HEAD", "/nowhere")[0] == 404
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            status, headers, _ = asked(address, method, "/healthz")
            assert (status, headers["Allow"]) == (405, "GET, HEAD")
        # each of them has given its place back
        assert {asked(address, "HEAD", "/healthz")[0] for _ in range(MOST_CLIENTS)} == {200}
        policy = asked(address, "GET", "/")[1]["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy


def test_metrics_are_text_or_openmetrics_as_the_client_asks() -> None:
    with served() as address:
        _, headers, body = asked(address, "GET", "/metrics")
        assert headers["Content-Type"].startswith("text/plain; version=")
        assert b'kmirror_healthy{mirror="m"} 1.0' in body
        _, headers, body = asked(address, "GET", "/metrics", Accept="application/openmetrics-text; version=1.0.0")
        assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert body.endswith(b"# EOF\n")


def test_silent_clients_do_not_block_others_and_are_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server._Handler, "timeout", 0.3)
    with served() as address, ExitStack() as stack:
        idle = [
            stack.enter_context(socket.create_connection((address.host, address.port))) for _ in range(MOST_CLIENTS - 1)
        ]
        assert fetching(str(address))("/healthz")[0] == 200
        for one in idle:
            one.settimeout(PATIENCE_S)
            assert one.recv(1) == b""


def test_a_client_that_trickles_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_SECONDS", 0.3)
    with served() as address, socket.create_connection((address.host, address.port)) as slow:
        slow.settimeout(PATIENCE_S)
        slow.sendall(b"GET /metrics HTTP/1.0\r\n")
        assert slow.recv(1) == b""


def test_an_error_of_ours_is_answered_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(found: Service, request: HttpRequest) -> Any:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(answers, "ROUTES", {"/metrics": broken})
    with served() as address:
        assert fetching(str(address))("/metrics") == (500, "kmirror failed to answer: ZeroDivisionError('oh')\n")
    assert "answering /metrics failed" in caplog.text


def test_a_port_that_is_taken_and_a_host_that_is_not_here_are_refused() -> None:
    with served() as address:
        with pytest.raises(
            RefusedError, match=f"--http: cannot listen on {address}: another process listens there"
        ) as refused:
            serving(address, RunService(Snapshots(), no_events())).__enter__()
        assert refused.value.exit_code is ExitCode.REFUSED
        assert f"ss -ltnp 'sport = :{address.port}'" in (refused.value.hint or "")
    with pytest.raises(RefusedError, match=r"cannot listen on 192\.0\.2\.1:0: "):
        serving(replace(ANYWHERE, host="192.0.2.1"), RunService(Snapshots(), no_events())).__enter__()
    with pytest.raises(RefusedError, match=r"cannot listen on nowhere\.invalid:0: "):
        serving(replace(ANYWHERE, host="nowhere.invalid"), RunService(Snapshots(), no_events())).__enter__()


def test_when_it_ends_nothing_listens_any_more_though_a_client_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_SECONDS", math.inf)  # a client that is waited for never lets it end
    monkeypatch.setattr(server._Handler, "timeout", None)
    with ExitStack() as stack:
        with served() as address:
            stack.enter_context(socket.create_connection((address.host, address.port)))
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http://{address}/healthz", timeout=PATIENCE_S)
