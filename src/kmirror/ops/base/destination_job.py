"""What jobs of an engine have in common: a connection to the destination, and how often they read both clusters.

That is as often as their settings say, but not at the copy's expense: reading what brokers return for thousands of
topics takes processor time. How long a job pauses depends on what its last run took, so that it uses a small share of
one core at most.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kmirror.ops.base.context import Destination
from kmirror.settings.table import Settings

#: At most a two-hundredth of a core for each job.
_PAUSE_PER_WORK = 200.0


class Pace:
    """Compute how long to pause after a run; for one thread."""

    def __init__(self) -> None:
        self._work_s = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the processor time of this thread in the body."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._work_s = time.thread_time() - began

    def interval_s(self, wanted_s: float) -> float:
        """Return the pause in seconds: `wanted_s`, or more if the last run took much work."""
        return max(float(wanted_s), self._work_s * _PAUSE_PER_WORK)


class DestinationJob:
    """A job of one mirror that connects to the destination when it first needs to, until it is closed.

    It goes to no other cluster than `cluster_id`, if that is given.
    """

    def __init__(self, mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None) -> None:
        self._mirror = mirror
        self._properties = dict(destination_properties)
        self._cluster_id = cluster_id
        self._opened: Destination | None = None
        self._pace = Pace()

    def interval_s(self, settings: Settings) -> float:
        """Return `refresh.interval.seconds`, or more where what the job measures of itself takes much work."""
        return self._pace.interval_s(settings.refresh_interval_seconds)

    @property
    def _destination(self) -> Destination:
        if self._opened is None:
            self._opened = Destination.open(self._properties, cluster_id=self._cluster_id)
        return self._opened

    def close(self) -> None:
        """Close connections."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
