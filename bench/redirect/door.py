"""The door that clients have as their bootstrap address, which follows the cluster in charge.

`Switch` is a small stand-in for a TCP balancer with health checks: it forwards connections to a broker of the cluster
in charge, closes those to the other one, and accepts none while neither is.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Protocol, Self

from kmirror.errors import KmirrorError
from kmirror.ops.base.context import Destination
from kmirror.state.records import PartitionState
from kmirror_sandbox.ports import LOOPBACK

_CHECK_S = 0.5
_CONNECT_S = 2.0
_MOST_BYTES = 65_536


class Door(Protocol):
    """What clients get as `bootstrap.servers`; it follows the cluster in charge by itself."""

    @property
    def address(self) -> str:
        """Return host:port."""


def cluster_in_charge(mirror: str, clusters: Mapping[str, Mapping[str, str]]) -> Callable[[], str | None]:
    """Return a check of which of two clusters has the topics of a mirror as ordinary ones; None while unknown.

    `clusters` are client properties by name, the first source first. The cluster that stopped mirroring last is in
    charge, and the first source before that.
    """

    def check() -> str | None:
        stops: dict[str, int] = {}
        for number, (name, properties) in enumerate(clusters.items()):
            try:
                with Destination.open(properties) as destination:
                    state = destination.state()
            except KmirrorError:
                continue
            partitions = [one for topic in state.topics(mirror) for one in state.partitions(mirror, topic.topic)]
            if all(one.state is PartitionState.STOPPED for one in partitions):
                stops[name] = max((one.state_time_ms for one in partitions), default=-number)
        return max(stops, key=lambda name: stops[name]) if stops else None

    return check


class Switch:
    """A door in this process; `brokers` by cluster, `check` returns the name of the one in charge."""

    def __init__(self, brokers: Mapping[str, str], check: Callable[[], str | None]) -> None:
        self._brokers = {name: [_address(one) for one in text.split(",")] for name, text in brokers.items()}
        self._check = check
        self._listener = socket.create_server((LOOPBACK, 0))
        self._leads_to: str | None = None
        self._open: dict[socket.socket, str] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._turn = count()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._follow, self._accept)]

    @property
    def address(self) -> str:
        """Return host:port."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    @property
    def leads_to(self) -> str | None:
        """Return the cluster to which it leads now."""
        return self._leads_to

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.close()
        self._close(lambda _: True)

    def _follow(self) -> None:
        while not self._ended.is_set():
            found = self._check()
            self._leads_to = found
            self._close(lambda name, found=found: name != found)  # type: ignore[misc]
            self._ended.wait(_CHECK_S)

    def _close(self, goes: Callable[[str], bool]) -> None:
        with self._lock:
            closed = [one for one, name in self._open.items() if goes(name)]
            for one in closed:
                del self._open[one]
                _hang_up(one)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        name = self._leads_to
        broker = self._connect(name) if name is not None else None
        if name is None or broker is None:
            client.close()
            return
        with self._lock:
            self._open |= {client: name, broker: name}
        threading.Thread(target=_pump, args=(broker, client), daemon=True).start()
        _pump(client, broker)
        with self._lock:
            for one in (client, broker):
                self._open.pop(one, None)

    def _connect(self, name: str) -> socket.socket | None:
        brokers = self._brokers[name]
        for _ in brokers:
            with suppress(OSError):
                return socket.create_connection(brokers[next(self._turn) % len(brokers)], _CONNECT_S)
        return None


def _pump(source: socket.socket, target: socket.socket) -> None:
    source.settimeout(None)
    with suppress(OSError):
        while found := source.recv(_MOST_BYTES):
            target.sendall(found)
    for one in (source, target):
        _hang_up(one)


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
