"""What is known of watched clusters at any time, for HTTP threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kmirror.engine.clock import epoch_ms, now, now_ms
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.web.recent import Events
from kmirror.web.served import WATCHING, ClusterStatus, ServedStatus
from kmirror.web.watched_cluster import TURN_SECONDS, WatchedCluster
from kmirror.words import at_time

#: A client that asks more often gets the same answer again: making one takes work.
_SAME_SECONDS = 1.0


class WatchService:
    """Answer for watched clusters; for any thread."""

    def __init__(self, clusters: Sequence[WatchedCluster], charge: ChargeKeeper) -> None:
        self._clusters = clusters
        self.charge = charge
        self._lock = threading.Lock()
        self._last: tuple[float, ServedStatus] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the clusters until the `with` block ends."""
        try:
            for cluster in self._clusters:
                cluster.start()
            yield
        finally:
            for cluster in self._clusters:
                cluster.close()

    @property
    def clusters(self) -> tuple[ClusterStatus, ...]:
        """Whether the clusters can be read."""
        return tuple(cluster.status for cluster in self._clusters)

    @property
    def stuck(self) -> str | None:
        """Why the service counts as stuck; None while all its threads turn."""
        oldest = min(self._clusters, key=lambda cluster: cluster.turned_at)
        if now() - oldest.turned_at <= TURN_SECONDS:
            return None
        last = at_time(epoch_ms(oldest.turned_at))
        return f"the thread that reads cluster {oldest.name} is stuck: it last began at {last}"

    @property
    def alive(self) -> str:
        """What runs while it is not stuck."""
        return "the clusters are being watched"

    def status(self) -> ServedStatus:
        """Return what is known now, or was within the last second."""
        with self._lock:
            if self._last is None or now() - self._last[0] > _SAME_SECONDS:
                mirrors = tuple(mirror for cluster in self._clusters for mirror in cluster.mirrors())
                self._last = now(), ServedStatus(WATCHING, now_ms(), None, mirrors, clusters=self.clusters)
            return self._last[1]

    def events(self) -> Sequence[tuple[str | None, Events]]:
        """Return the recent events of each cluster, with its name."""
        for cluster in self._clusters:
            cluster.ask_events()
        return [(cluster.name, cluster.events()) for cluster in self._clusters]
