"""Addresses that do not answer, all of them or all but a slow one: they share the time that a caller has.

A site that went dark took a caller's time-out once for each address of it, twice where there were several, and as long
as the resolver liked for each name. `serve`, which watches living clusters too, was restarted for that.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse

from kmirror.cluster import connecting, reaching
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import ConnectFailedError, Connection
from kmirror.cluster.protocol import api_versions
from kmirror.cluster.reaching import SilentAddresses, open_any
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.cluster.seen_brokers import Address
from kmirror.engine.clock import now
from kmirror.errors import UnreachableError
from kmirror.ops.base import context
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.state.snapshot import State
from kmirror.web import watched_cluster
from kmirror.web.watch_service import WatchService
from kmirror.web.watched_cluster import WatchedCluster
from tests.support.waiting import wait_until
from tests.support.wire import closed_port, listener

COUNT = 12


@pytest.fixture
def silent() -> Iterator[list[Address]]:
    """Return addresses at which connections are made and nothing is answered, as by frozen hosts."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(COUNT)]
        yield [server.getsockname() for server in servers]


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Address, float]]:
    """Return each attempt to connect: the address, and the seconds it was given. No address is known to be silent."""
    made: list[tuple[Address, float]] = []
    open_it = Connection.open

    def opens(host: str, port: int, config: ClientConfig) -> Any:
        made.append(((host, port), config.connect_timeout_ms / 1000))
        return open_it(host, port, config)

    monkeypatch.setattr(Connection, "open", opens)
    monkeypatch.setattr(reaching, "SILENT_ADDRESSES", SilentAddresses())
    return made


def config_of(addresses: Sequence[Address]) -> ClientConfig:
    return client_config({"bootstrap.servers": ",".join(f"{host}:{port}" for host, port in addresses)})


def answering(after: float) -> Callable[[socket.socket], None]:
    """Return a broker that answers ApiVersions after so many seconds."""
    kind = ApiVersionsResponse.ApiVersion
    message = ApiVersionsResponse(error_code=0, api_keys=[kind(api_key=3, min_version=0, max_version=12)])
    message.API_VERSION = api_versions.VERSION

    def answer(sock: socket.socket) -> None:
        with suppress(OSError):
            asked = sock.recv(4096)
            time.sleep(after)
            message.with_header(correlation_id=struct.unpack_from(">i", asked, 8)[0])
            sock.sendall(message.encode(header=True, framed=True))

    return lambda sock: threading.Thread(target=answer, args=(sock,), daemon=True).start()


def test_silent_addresses_share_the_time_that_there_is(
    silent: list[Address], attempts: list[tuple[Address, float]]
) -> None:
    errors: dict[Address, UnreachableError] = {}
    for _ in range(2):  # the second time they are known to be silent
        attempts.clear()
        errors.clear()
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="timed out"):
            open_any(silent, config_of(silent), 1.6, errors)
        assert time.monotonic() - began < COUNT  # a second each is more than they have
        assert {address for address, _ in attempts} == errors.keys() == set(silent)
        assert max(seconds for _, seconds in attempts) <= 1.6


def test_a_slow_broker_among_silent_addresses_has_the_time_that_it_needs(
    silent: list[Address], attempts: list[tuple[Address, float]]
) -> None:
    with listener(answering(after=1.0)) as port:
        addresses = [*silent[:7], ("127.0.0.1", port)]
        with closing(open_any(addresses, config_of(addresses), 5.0, {})) as found:
            assert found.port == port


def test_an_address_that_is_only_slow_is_not_said_to_be_of_no_use(
    silent: list[Address], attempts: list[tuple[Address, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers to the second attempt, after the first has failed."""
    monkeypatch.setattr(reaching, "EACH_SECONDS", 0.3)
    with listener(answering(after=1.0)) as port:
        config = config_of([silent[0], ("127.0.0.1", port)])
        with ClusterClient(config) as client:
            assert client.any_connection(60.0).port == port
            assert [address for address, _ in attempts].count(("127.0.0.1", port)) == 2
            assert client.passed_over.keys() == {f"127.0.0.1:{silent[0][1]}"}


def test_a_quick_broker_after_a_silent_address_is_found_and_refusals_take_no_time(
    silent: list[Address], attempts: list[tuple[Address, float]]
) -> None:
    with listener(answering(after=0.0)) as port:
        closed = "127.0.0.1", closed_port()
        addresses = [closed, silent[0], ("127.0.0.1", port)]
        errors: dict[Address, UnreachableError] = {}
        with closing(open_any(addresses, config_of(addresses), 20.0, errors)) as found:
            assert found.port == port
    assert [address for address, _ in attempts] == addresses, "one after the other"
    assert [seconds for _, seconds in attempts[1:]] == [2.0, 2.0]
    assert errors.keys() == {closed, silent[0]}


def test_connections_that_come_too_late_are_closed(
    attempts: list[tuple[Address, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both brokers have been silent, and are tried at once; only one connection is wanted."""
    open_it, opened = reaching.open_connection, list[Connection]()

    def opens(*what: Any, **more: Any) -> Connection:
        opened.append(found := open_it(*what, **more))
        return found

    monkeypatch.setattr(reaching, "open_connection", opens)
    with listener(answering(after=0.2)) as one, listener(answering(after=0.2)) as other:
        addresses = [("127.0.0.1", one), ("127.0.0.1", other)]
        for address in addresses:
            reaching.SILENT_ADDRESSES.note(address, UnreachableError("silent"))
        with closing(open_any(addresses, config_of(addresses), 60.0, {})) as found:
            wait_until(lambda: len(opened) == 2)
            wait_until(lambda: [one for one in opened if one.socket.fileno() >= 0] == [found])


class Resolver:
    """A resolver whose answers are those of the system, others, or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._resolve = socket.getaddrinfo
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.addresses: Sequence[Address] = ()
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)
        monkeypatch.setattr(connecting, "_LOOKUPS", connecting._Lookups())

    def _answer(self, host: str, port: int, **how: Any) -> Any:
        if not host.endswith(".invalid") or how.get("flags") == socket.AI_NUMERICHOST:
            return self._resolve(host, port, **how)
        self.asked.append(host)
        self.answers.wait(60)
        return [one for address in self.addresses for one in self._resolve(*address, **how)]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    found = Resolver(monkeypatch)
    yield found
    found.answers.set()


def hurried(seconds: float) -> ClientConfig:
    return client_config(
        {"bootstrap.servers": "a.invalid:1", "socket.connection.setup.timeout.ms": str(int(1000 * seconds))}
    )


def test_a_name_that_does_not_resolve_is_not_waited_for_longer_and_looked_up_once(resolver: Resolver) -> None:
    for _ in range(3):
        with pytest.raises(ConnectFailedError, match=r"cannot connect to a.invalid:1: its name did not resolve within"):
            Connection.open("a.invalid", 1, hurried(0.2))
    assert resolver.asked == ["a.invalid"], "the first lookup still lasts"
    resolver.answers.set()
    with listener(answering(after=0.0)) as port:
        resolver.addresses = [("127.0.0.1", port)]
        wait_until(lambda: opens("a.invalid", 1))


def test_an_answer_that_came_late_is_used_by_those_who_could_not_wait_for_it(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a dead name server each lookup takes seconds: who waits two for a broker never connected."""
    with listener(answering(after=0.0)) as port:
        resolver.addresses = [("127.0.0.1", port)]
        with pytest.raises(ConnectFailedError, match="did not resolve"):
            Connection.open("a.invalid", 1, hurried(2 * connecting._SLOW_S))
        resolver.answers.set()
        assert opens("a.invalid", 1)
        resolver.answers.clear()  # another lookup takes long again
        assert opens("a.invalid", 1)
        assert resolver.asked == ["a.invalid"]
        resolver.answers.set()
        later = time.monotonic() + connecting._KEPT_S
        monkeypatch.setattr(connecting, "time", SimpleNamespace(monotonic=lambda: later))
        assert opens("a.invalid", 1)
        assert len(resolver.asked) == 2, "names come to mean other addresses"


def test_an_answer_that_came_at_once_is_not_used_again(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "_SLOW_S", 60.0)  # on a busy machine any answer may take a while
    resolver.answers.set()
    with listener(answering(after=0.0)) as port:
        resolver.addresses = [("127.0.0.1", port)]
        assert opens("a.invalid", 1)
        assert opens("a.invalid", 1)
        assert len(resolver.asked) == 2


def opens(host: str, port: int) -> bool:
    """Return whether a connection can be opened."""
    try:
        Connection.open(host, port, hurried(20)).close()
    except ConnectFailedError:
        return False
    return True


def test_the_addresses_of_a_name_share_the_time_that_there_is(resolver: Resolver) -> None:
    resolver.answers.set()
    with ExitStack() as stack:
        full = [stack.enter_context(full_server()) for _ in range(5)]
        port = stack.enter_context(listener(answering(after=0.0)))
        resolver.addresses = [*full, ("127.0.0.1", port)]
        began = time.monotonic()
        Connection.open("a.invalid", 1, hurried(2.0)).close()
        assert time.monotonic() - began < 8  # five times two seconds are more


@contextmanager
def full_server() -> Iterator[Address]:
    """Yield an address that answers no attempt to connect: as many connections as may wait there do."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield server.getsockname()


@pytest.mark.parametrize("dark", ["hosts", "names"])
def test_serve_lives_while_a_cluster_is_dark(
    silent: list[Address], attempts: list[object], resolver: Resolver, monkeypatch: pytest.MonkeyPatch, dark: str
) -> None:
    monkeypatch.setattr(context, "REACH_TIMEOUT_S", 2.0)
    hosts = silent if dark == "hosts" else [(f"{index}.invalid", 1) for index in range(COUNT)]
    servers = ",".join(f"{host}:{port}" for host, port in hosts)
    watched = WatchedCluster("dark", lambda: {"bootstrap.servers": servers})
    service = WatchService([watched], ChargeKeeper(["dark"]))
    with service.watching():
        began = watched.turned_at
        wait_until(lambda: watched.turned_at > began + 0.5)
        before = watched.turned_at
        wait_until(lambda: watched.turned_at > before)
        assert watched.status.error is not None
        assert watched.turned_at - before < COUNT / 2
        assert service.stuck is None


class HangingStore:
    """A state that can be read once."""

    wants_reports = False
    cluster_id, bootstrap_server, properties = (
        "c",
        "127.0.0.1:1",
        MappingProxyType({"bootstrap.servers": "127.0.0.1:1"}),
    )

    def __init__(self, released: threading.Event) -> None:
        self.store, self.reads = self, 0
        self._released = released

    def read_certain(self, _: object) -> State:
        """Return nothing the first time, then hang."""
        self.reads += 1
        if self.reads > 1:
            self._released.wait(60)
        return State()

    def close(self) -> None:
        """Close nothing."""


def test_what_hangs_is_stuck_after_a_minute_but_a_cluster_that_cannot_be_read_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released, later = threading.Event(), [0.0]
    store = HangingStore(released)
    # the thread of the dark one is not started: it never gets so far as to read
    dark, read = (WatchedCluster(name, lambda: store.properties) for name in ("dark", "read"))
    services = [WatchService([one], ChargeKeeper([one.name])) for one in (dark, read)]
    monkeypatch.setattr(watched_cluster, "now", lambda: now() + later[0])
    monkeypatch.setattr(WatchedCluster, "_open", lambda one: store)
    try:
        with services[1].watching():
            wait_until(lambda: store.reads == 2)
            for seconds, stuck in ((50.0, [False, False]), (100.0, [False, True]), (1000.0, [True, True])):
                later[0] = seconds
                assert [one.stuck is not None for one in services] == stuck
    finally:
        released.set()
    assert str(services[1].stuck).startswith("the thread that reads cluster read is stuck: it last began at ")
