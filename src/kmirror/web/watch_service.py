"""What is known of watched clusters at any time, for HTTP threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kmirror.engine.clock import epoch_ms, now, now_ms
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import MirrorRecord
from kmirror.web.recent import Events
from kmirror.web.served import WATCHING, ClusterStatus, ServedStatus
from kmirror.web.watched_cluster import WatchedCluster
from kmirror.words import at_time

#: A client that asks more often gets the same answer again: making one takes work.
_SAME_SECONDS = 1.0
#: How long an answer waits for what is read only while someone asks.
_PATIENCE_SECONDS = 0.7


class WatchService:
    """Answer for watched clusters; for any thread."""

    def __init__(self, clusters: Sequence[WatchedCluster], charge: ChargeKeeper) -> None:
        self._clusters = clusters
        self.charge = charge
        self._lock = threading.Lock()
        self._sums: tuple[float, ServedStatus] | None = None

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
        for cluster in self._clusters:
            if cluster.is_stuck:
                last = at_time(epoch_ms(cluster.turned_at))
                return f"the thread that reads cluster {cluster.name} is stuck: it last began at {last}"
        return None

    @property
    def alive(self) -> str:
        """What runs while it is not stuck."""
        return "the clusters are being watched"

    def status(self, mirror: str | None = None, *, only_sums: bool = False) -> ServedStatus:
        """Return what is known now, of one mirror or of all; of all with `only_sums` it may be seconds old."""
        with self._lock:
            if mirror is None and only_sums and self._sums is not None and now() - self._sums[0] <= _SAME_SECONDS:
                return self._sums[1]

            def is_exact(record: MirrorRecord) -> bool:
                return mirror is not None or not only_sums or stored_settings(record.settings).metrics_per_partition

            for cluster in self._clusters:
                cluster.want_reports()
            until = now() + _PATIENCE_SECONDS
            mirrors = tuple(one for cluster in self._clusters for one in cluster.mirrors(is_exact, until, mirror))
            found = ServedStatus(WATCHING, now_ms(), None, mirrors, clusters=self.clusters)
            if mirror is None:
                self._sums = now(), found
            return found

    def events(self) -> Sequence[tuple[str | None, Events]]:
        """Return the recent events of each cluster, with its name."""
        for cluster in self._clusters:
            cluster.ask_events()
        return [(cluster.name, cluster.events()) for cluster in self._clusters]
