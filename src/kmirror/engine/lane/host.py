"""Many lanes in one process, so that many mirrors do not cost an interpreter each.

One thread gives the lanes their turns, one after another, whenever something has come for them: only one thread of a
process may send (`lifeline`). Another takes orders from the driver. A lane that fails ends alone; if the process dies,
or the driver does, all its lanes end with it.
"""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

from kmirror.cluster.loop import Loop, Ready
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.engine import lifeline
from kmirror.engine.clock import now
from kmirror.engine.lane.lane import Lane, destination_config_of
from kmirror.engine.lane.reports.state_log import StateLog
from kmirror.engine.lane_channel import CancelLane, HostReady, HostSpec, LaneEnded, StartLane, connect
from kmirror.engine.threads import call_in_thread
from kmirror.engine.worker_logins import Logins, require_logins
from kmirror.errors import KmirrorError

#: How long to wait for messages, and without lanes for events.
_WAIT_SECONDS = 1.0
#: How long lanes may take to end their threads once the driver wants no more.
_CLOSE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _HostedLane:
    """A lane, its turns, and when the next one is due at the latest."""

    name: str
    lane: Lane
    turns: Generator[float, list[tuple[Ready, int]]]
    due_at: float = 0.0


class LaneHost:
    """Run lanes; `tell` takes what becomes of them, in any thread."""

    def __init__(self, tell: Callable[[LaneEnded], None]) -> None:
        self._tell = tell
        self._loop = Loop(now)
        self._lanes: dict[str, _HostedLane] = {}
        #: Lanes without more turns, and why: how they end takes time.
        self._leaving: queue.SimpleQueue[tuple[_HostedLane, str | None] | None] = queue.SimpleQueue()
        self._stopping = False
        #: The state of the destination, and how it is connected to: in one run that is the same for all lanes.
        self._state_log: tuple[ClientConfig, StateLog] | None = None

    def start(self, order: StartLane) -> None:
        """Start a lane; for the thread that takes orders."""
        spec = order.spec
        try:
            require_logins(Logins(spec.mirror, spec.source_properties, spec.destination_properties), 0)
            config = destination_config_of(spec)
            if self._state_log is None or self._state_log[0] != config:
                self._state_log = config, StateLog(config)
            lane = Lane(spec, 0, self._state_log[1])
            lane.start()
        except Exception as error:
            self._tell(LaneEnded(order.name, None, _text(error)))
            return
        self._loop.post(lambda _: self._add(_HostedLane(order.name, lane, lane.turns())))

    def cancel(self, order: CancelLane) -> None:
        """End a lane at once; for the thread that takes orders."""
        self._loop.post(lambda _: self._cancel(order.name))

    def stop(self) -> None:
        """Have `run` end; from any thread."""
        self._loop.post(lambda _: self._stop())

    def run(self, before_sending: Callable[[], None] = lambda: None) -> None:
        """Give lanes their turns until `stop`; `before_sending` is called once, before the first."""
        leave = call_in_thread(self._see_off, "kmirror-leave")
        before_sending()
        try:
            while not self._stopping:
                due_at = min((one.due_at for one in self._lanes.values()), default=now() + _WAIT_SECONDS)
                for ready, mask in self._loop.wait(max(0.0, due_at - now())):
                    ready(mask)
                self._loop.take_events()
                at = now()
                for lane in [one for one in self._lanes.values() if one.due_at <= at]:
                    self._turn(lane)
        finally:
            for name in list(self._lanes):
                self._cancel(name)
            self._leaving.put(None)
            leave.result(_CLOSE_SECONDS)
            self._loop.close()

    def _stop(self) -> None:
        self._stopping = True

    def _add(self, lane: _HostedLane) -> None:
        self._lanes[lane.name] = lane
        self._loop.watch_loop(lane.lane.loop, lambda _: self._is_due(lane))
        self._step(lane, lambda: next(lane.turns))

    def _is_due(self, lane: _HostedLane) -> None:
        lane.due_at = 0.0

    def _turn(self, lane: _HostedLane) -> None:
        self._step(lane, lambda: lane.turns.send(lane.lane.loop.wait(0)))

    def _step(self, lane: _HostedLane, step: Callable[[], float]) -> None:
        """Take a lane's next step, which returns when the one after it is due at the latest."""
        try:
            lane.due_at = now() + step()
        except StopIteration:
            self._leave(lane, None)
        except Exception as error:
            traceback.print_exc()
            self._leave(lane, _text(error))

    def _cancel(self, name: str) -> None:
        if (lane := self._lanes.get(name)) is not None:
            lane.turns.close()
            self._leave(lane, "it was cancelled")

    def _leave(self, lane: _HostedLane, error: str | None) -> None:
        self._loop.leave_loop(lane.lane.loop)
        del self._lanes[lane.name]
        self._leaving.put((lane, error))

    def _see_off(self) -> None:
        """Close lanes, each in a thread of its own: one that is connecting takes seconds."""
        threads: list[threading.Thread] = []
        while (leaving := self._leaving.get()) is not None:
            threads = [one for one in threads if one.is_alive()]
            threads.append(threading.Thread(target=self._close, args=leaving, name="kmirror-close", daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def _close(self, hosted: _HostedLane, error: str | None) -> None:
        try:
            hosted.lane.close()
        finally:
            self._tell(LaneEnded(hosted.name, None if error else hosted.lane.result, error))


def run_host(spec: HostSpec, _: int) -> None:
    """Host lanes in a Spark worker, as the driver orders; if the worker is stopped and continued, it sends no byte."""
    with suppress(EOFError, ConnectionError), closing(connect(spec)) as driver:
        lock = threading.Lock()

        def tell(message: HostReady | LaneEnded) -> None:
            with lock, suppress(OSError):
                driver.send(message)

        host = LaneHost(tell)
        sending = call_in_thread(partial(host.run, lifeline.die_on_continue), "kmirror-send")
        tell(HostReady(spec.number, os.getpid()))
        try:
            while not sending.done():
                if driver.poll(_WAIT_SECONDS):
                    order = driver.recv()
                    if order is None:
                        break
                    (host.start if isinstance(order, StartLane) else host.cancel)(order)
        finally:
            host.stop()
            sending.result()


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, KmirrorError) else f"{type(error).__name__}: {error}"
