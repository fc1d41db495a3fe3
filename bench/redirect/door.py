"""The door that clients have as their bootstrap address: a real HAProxy, which follows the cluster in charge.

A `LateDoor` follows it late, like a name that is cached.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Self

from bench.processes import Running, kmirror, start
from bench.redirect.site import MIRROR, NEW, OLD, RedirectSite
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.haproxy import Door, Site, haproxy

_CHECK_S = 0.5
_CONNECT_S = 2.0
_MOST_BYTES = 65_536


@contextmanager
def opened_door(site: RedirectSite, folder: Path) -> Iterator[Door]:
    """Run HAProxy with the configuration in deploy/, and the `kmirror serve` that it asks; begin when it is open."""
    config = folder / "kmirror.toml"
    config.write_text("\n".join(f"[clusters.{name}]\n{site.connection(name)}" for name in (OLD, NEW)), encoding="utf-8")
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    log = folder / "serve.log"
    serve = Running([start(["env", f"KMIRROR_CONFIG={config}", *kmirror("serve", "--http", address)], log)], log, False)
    try:
        with haproxy(MIRROR, Site(OLD, site.brokers(OLD)), Site(NEW, site.brokers(NEW)), [address]) as door:
            deadline = time.monotonic() + 120
            while leads_to(door) is None:
                serve.check()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the door does not open:\n{door.log[-2000:]}")
                time.sleep(_CHECK_S)
            yield door
    finally:
        serve.kill()


def leads_to(door: Door) -> str | None:
    """Return the cluster to which a door leads now."""
    return {frozenset("a"): OLD, frozenset("b"): NEW}.get(frozenset(door.open_to()))


class LateDoor:
    """Forward connections to a broker of the cluster that `check` names; `brokers` are addresses by cluster."""

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
