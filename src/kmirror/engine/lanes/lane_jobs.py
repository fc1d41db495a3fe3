"""The Spark jobs of one mirror's lanes: each run of a lane is a job with one task."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from kmirror.engine.executors import Executor
from kmirror.engine.lane.lane import run_lane
from kmirror.engine.lanes.known_lane import KnownLane
from kmirror.engine.spec import LaneResult, LaneSpec


class LaneRunner(Protocol):
    """What runs lanes: Spark."""

    def submit(
        self,
        name: str,
        function: Callable[[LaneSpec, int], LaneResult],
        argument: LaneSpec,
        place: Executor | None = None,
    ) -> Future[LaneResult]: ...

    def cancel(self, name: str) -> None: ...

    def is_waiting(self, name: str) -> bool:
        """Return True if no worker has started the lane yet."""


class LaneJobs:
    """Start and cancel the jobs of one mirror's lanes."""

    def __init__(self, mirror: str, lease_id: str, runner: LaneRunner) -> None:
        self._mirror = mirror
        self._lease_id = lease_id
        self._runner = runner
        self._cancelled: list[Future[LaneResult]] = []

    @property
    def are_ending(self) -> bool:
        """True while a cancelled job may still run."""
        return bool(self._cancelled)

    def name(self, lane: KnownLane) -> str:
        """Return the Spark job name; an earlier engine of this process may have left jobs with other lease ids."""
        return f"{self._mirror}-lane-{lane.lane}-{lane.generation}-{self._lease_id[:8]}"

    def start(self, lane: KnownLane, spec: LaneSpec, at: float) -> None:
        """Submit a run of a lane."""
        lane.future = self._runner.submit(self.name(lane), run_lane, spec, lane.place)
        lane.submitted_at, lane.reported_at, lane.attempt = at, None, 0
        lane.is_outdated = False

    def is_waiting(self, lane: KnownLane) -> bool:
        """Return True if no worker has started the lane's run yet."""
        return self._runner.is_waiting(self.name(lane))

    def cancel(self, lane: KnownLane, future: Future[LaneResult]) -> None:
        """Cancel a lane's run, in a thread: Spark may take seconds."""
        self._cancelled.append(future)
        threading.Thread(target=self._runner.cancel, args=(self.name(lane),), daemon=True).start()

    def forget_ended(self) -> None:
        """Forget the cancelled jobs that have ended."""
        self._cancelled = [future for future in self._cancelled if not future.done()]
