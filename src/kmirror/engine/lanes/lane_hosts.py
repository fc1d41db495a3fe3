"""The driver's side of processes that host lanes: which lane runs in which, and what becomes of it.

There are at most as many as the machine has cores, and each is one function that Spark runs. If one dies, its lanes
have ended; Spark starts another in its place.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Protocol

from kmirror.engine.executors import Executor
from kmirror.engine.lane.host import run_host
from kmirror.engine.lane_channel import CancelLane, HostReady, HostSpec, LaneEnded, LaneListener, StartLane
from kmirror.engine.spec import LaneResult, LaneSpec
from kmirror.errors import KmirrorError

#: A host that has not ended a lane by then is killed.
_CANCEL_SECONDS = 3.0
_PAUSE_SECONDS = 0.5

_Order = StartLane | CancelLane


class HostRunner(Protocol):
    """What runs the processes: Spark."""

    def submit(self, name: str, function: Callable[[HostSpec, int], None], argument: HostSpec) -> Future[None]: ...

    def cancel(self, name: str) -> None: ...


@dataclass(slots=True)
class _LaneOrder:
    """A lane that a host runs or is to run."""

    spec: LaneSpec
    future: Future[LaneResult] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class _Host:
    """One process, and the lanes that it has or will get."""

    number: int
    lanes: dict[str, _LaneOrder] = field(default_factory=dict)
    #: None while the process is starting.
    connection: Connection | None = None
    orders: queue.SimpleQueue[_Order | None] = field(default_factory=queue.SimpleQueue)

    @property
    def job(self) -> str:
        return f"lane host {self.number}"


class LaneHosts:
    """Run lanes in `count` processes; from any thread."""

    def __init__(self, runner: HostRunner, count: int) -> None:
        self._runner = runner
        self._count = count
        self._numbers = itertools.count()
        self._hosts: dict[int, _Host] = {}
        self._lock = threading.Lock()
        self._listener = LaneListener()
        self._closing = threading.Event()
        threading.Thread(target=self._accept, name="lane hosts", daemon=True).start()

    def submit(
        self,
        name: str,
        function: Callable[[LaneSpec, int], LaneResult],
        argument: LaneSpec,
        place: Executor | None = None,
    ) -> Future[LaneResult]:
        """Have the host with the fewest lanes run one; what runs one in a process of its own is not used."""
        del function, place
        lane = _LaneOrder(argument)
        with self._lock:
            host = min(self._hosts.values(), key=lambda one: len(one.lanes), default=None)
            if is_new := host is None or (bool(host.lanes) and len(self._hosts) < self._count):
                host = _Host(next(self._numbers))
                self._hosts[host.number] = host
            host.lanes[name] = lane
            if host.connection is not None:
                host.orders.put(StartLane(name, argument))
        if is_new:
            try:
                running = self._runner.submit(host.job, run_host, self._listener.spec(host.number))
            except BaseException:
                with self._lock:
                    del self._hosts[host.number]
                raise
            running.add_done_callback(partial(self._host_ended, host))
        return lane.future

    def cancel(self, name: str) -> None:
        """End a lane: when this returns, it sends nothing more. One that its host does not end ends with the host."""
        with self._lock:
            host = next((one for one in self._hosts.values() if name in one.lanes), None)
            if host is None:
                return
            lane = host.lanes[name]
            is_running = host.connection is not None
            if is_running:
                host.orders.put(CancelLane(name))
            else:
                del host.lanes[name]
        if not is_running:
            lane.future.set_exception(KmirrorError("it was cancelled"))
        elif not wait([lane.future], _CANCEL_SECONDS).done:
            self._runner.cancel(host.job)

    def is_waiting(self, name: str) -> bool:
        """Return True while the process that is to run the lane is starting."""
        with self._lock:
            return any(name in host.lanes and host.connection is None for host in self._hosts.values())

    def close(self) -> None:
        """Let the processes end."""
        self._closing.set()
        self._listener.close()
        with self._lock:
            hosts, self._hosts = list(self._hosts.values()), {}
        for host in hosts:
            host.orders.put(None)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                accepted = self._listener.accept()
            except OSError:  # closed, or for a moment this process may open no more files
                self._closing.wait(_PAUSE_SECONDS)
                continue
            # one that says nothing keeps nobody waiting
            admit = partial(self._listener.admit, accepted)
            threading.Thread(target=self._serve, args=(admit,), name="lane host", daemon=True).start()

    def _serve(self, admit: Callable[[], Connection | None]) -> None:
        """Take what a host says, until it ends."""
        if (connection := admit()) is None:
            return
        with connection, suppress(EOFError, OSError):
            ready = connection.recv()
            host = self._connected(ready, connection) if isinstance(ready, HostReady) else None
            if host is None:
                return
            try:
                while True:
                    self._take(host, connection.recv())
            finally:
                self._lose(host, connection, f"its process, {ready.pid}, has ended")

    def _connected(self, ready: HostReady, connection: Connection) -> _Host | None:
        with self._lock:
            host = self._hosts.get(ready.number)
            if host is None:
                return None
            if host.connection is None:
                host.connection, host.orders = connection, queue.SimpleQueue()
                for name, lane in host.lanes.items():
                    host.orders.put(StartLane(name, lane.spec))
                threading.Thread(
                    target=_send_all, args=(connection, host.orders), name="lane orders", daemon=True
                ).start()
                return host
        return None

    def _take(self, host: _Host, message: LaneEnded) -> None:
        with self._lock:
            lane = host.lanes.pop(message.name, None)
        if lane is None:
            return
        if message.result is not None:
            lane.future.set_result(message.result)
        else:
            lane.future.set_exception(KmirrorError(message.error or ""))

    def _host_ended(self, host: _Host, ran: Future[None]) -> None:
        """Forget a process that Spark does not start again."""
        with self._lock:
            self._hosts.pop(host.number, None)
        error = ran.exception()
        self._lose(host, host.connection, "its process has ended" if error is None else str(error))

    def _lose(self, host: _Host, connection: Connection | None, why: str) -> None:
        """End the lanes that a process had when it ended."""
        with self._lock:
            if host.connection is not connection:
                return
            lanes, host.lanes = host.lanes, {}
            host.connection = None
            host.orders.put(None)
        for lane in lanes.values():
            lane.future.set_exception(KmirrorError(why))


def _send_all(connection: Connection, orders: queue.SimpleQueue[_Order | None]) -> None:
    """Send orders in the background: a frozen process takes none, and nobody may wait for it."""
    with suppress(OSError):
        while True:
            order = orders.get()
            connection.send(order)  # a last one of None lets the host end
            if order is None:
                return
