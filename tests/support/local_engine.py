"""An engine whose lanes are threads of the test instead of Spark's tasks: the rest is what `run` runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kmirror.engine.clock import now
from kmirror.engine.driver.driver import Limits, RunView, drive
from kmirror.engine.driver.engines import Engines
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.engine.driver.side_jobs import SideJob
from kmirror.engine.driver.snapshots import Snapshots
from kmirror.engine.executors import Executor, Placement
from kmirror.engine.lane.lane import Lane
from kmirror.engine.spec import LaneSpec
from kmirror.ops.base.context import Destination
from kmirror.ops.jobs.rebuild import TopicRebuilder
from kmirror.ops.run.engine_start import LEASE_TTL_MS
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.lease import Lease
from kmirror.web.recent import RecentEvents
from kmirror.web.run_service import RunService
from tests.support.waiting import PATIENCE_S


class Threads:
    """Run lanes, and everything else that an engine gives to Spark, in threads."""

    slots = spare_slots = 2
    driver_host = bind_address = "127.0.0.1"

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(8)
        #: Every lane that was ever started.
        self.lanes: list[Lane] = []
        #: The executors that the threads pretend to belong to; none: it is unknown where they run.
        self.executors: tuple[Executor, ...] = ()
        self._places: dict[str, tuple[Executor, Future[Any]]] = {}

    def submit(
        self, name: str, function: Callable[[Any, int], Any], argument: Any, place: Executor | None = None
    ) -> Future[Any]:
        if isinstance(argument, LaneSpec):
            lane = Lane(argument, 0)
            self.lanes.append(lane)
            future = self._pool.submit(lane.run)
            if self.executors:
                self._places[name] = place or self.executors[0], future
            return future
        return self._pool.submit(function, argument, 0)

    def map(
        self, name: str, function: Callable[[Any, int], Any], arguments: Iterable[Any], at_once: int | None = None
    ) -> Generator[Any, None, None]:
        """Yield function(argument, 0) of all `arguments`."""
        yield from self._pool.map(lambda argument: function(argument, 0), arguments)

    @property
    def placement(self) -> Placement | None:
        """Return where lanes run that have not ended."""
        if not self.executors:
            return None
        places = {name: place for name, (place, future) in self._places.items() if not future.done()}
        return Placement(self.executors, places)

    def cancel(self, name: str) -> None:
        """Let it end by itself."""

    def failures_of_executors(self, *_: object) -> list[Exception]:
        """Ask no one: the threads are on this machine."""
        return []

    def is_waiting(self, name: str) -> bool:
        """Report that it runs: a thread begins at once."""
        return False


class LocalEngine:
    """Copy one mirror until the `with` block ends, or `kill`, which leaves the lease unchanged."""

    def __init__(
        self,
        destination: Destination,
        mirror: str,
        side_jobs: Sequence[SideJob] = (),
        executors: tuple[Executor, ...] = (),
    ) -> None:
        self._executors = executors
        self._own = Destination.open(destination.properties)
        self._mirror = mirror
        self._side_jobs = side_jobs
        self._stop = threading.Event()
        self.notes: list[str] = []
        self._snapshots = Snapshots()
        #: Answers HTTP for it.
        self._recent = RecentEvents(lambda: Destination.open(destination.properties))
        self.service = RunService(self._snapshots, self._recent)

    def _show(self, view: RunView) -> None:
        self.service.show(view)
        self.notes += [note.text for note in view.notes]

    def __enter__(self) -> LocalEngine:
        lease = Lease.acquire(self._own.store, self._mirror, EngineIdentity.of_this_process(), LEASE_TTL_MS)
        threads = self.threads = Threads()
        threads.executors = self._executors
        self.engine = MirrorEngine(
            self._mirror,
            self._own.state(),
            lease,
            self._own.properties,
            threads,
            "tester@here",
            TopicRebuilder(self._own.properties, self._mirror, threads),
            self._side_jobs,
            self._own.cluster_id,
        )
        self.engines = Engines([self.engine])
        self.engines.placement = lambda: threads.placement
        self._thread = threading.Thread(
            target=lambda: drive(self.engines, self._stop, Limits(), self._show, now(), snapshots=self._snapshots),
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the engine did not end"
        self._recent.close()
        self._own.close()

    @property
    def lanes(self) -> list[Lane]:
        """Every lane that was ever started."""
        return self.threads.lanes

    def catch_up(self, seconds: float = PATIENCE_S) -> None:
        """Wait until everything that the source holds now is copied."""
        self.engine.partitions.targets = None
        until = time.monotonic() + seconds
        while not self.engine.caught_up:
            assert time.monotonic() < until, f"not caught up: {self.engine.partitions.rows}"
            time.sleep(0.1)
