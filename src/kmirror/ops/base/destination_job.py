"""What jobs of an engine have in common: a connection to the destination, and how often they read both clusters.

Each job has connections of its own, but all of a process read the stored state together. It is that of all mirrors, so
stores of their own would take memory and work that grow with the square of the number of mirrors.

They read both clusters as often as their settings say, but not at the copy's expense: reading what brokers return for
thousands of topics takes processor time. How long a job pauses depends on what its last run took, so that it uses a
small share of one core at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.ops.base.context import Destination, naming_source, source_config
from kmirror.settings.table import Settings
from kmirror.state.records import MirrorRecord
from kmirror.state.store import StateStore

#: At most a two-hundredth of a core for each job.
_PAUSE_PER_WORK = 200.0

_lock = threading.Lock()
_shared: list[SharedStore] = []


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


@dataclass(slots=True, eq=False)
class SharedStore:
    """A store that several threads read; it does not return what lanes report."""

    store: StateStore
    users: int = 0

    @classmethod
    def take(cls, config: ClientConfig) -> SharedStore:
        """Return the process's one for this destination, to be given back."""
        with _lock:
            for one in _shared:
                known = one.store.client_config
                if (known, known.cluster_id) == (config, config.cluster_id):
                    break
            else:
                one = cls(StateStore(config))
                one.store.wants_reports = False
                _shared.append(one)
            one.users += 1
            return one

    def give_back(self) -> None:
        """Close its connections if no one else uses it."""
        with _lock:
            self.users -= 1
            if self.users:
                return
            _shared.remove(self)
        self.store.close()


class JobDestination(Destination):
    """A destination whose `store` other jobs of this process use too; it does not return what lanes report."""

    def __init__(self, properties: Mapping[str, str], client: ClusterClient, found: ClusterMetadata) -> None:
        super().__init__(properties, client, found)
        self._used: SharedStore | None = SharedStore.take(self.config)
        self.store = self._used.store

    def close(self) -> None:
        """Close all connections, those of the store with the last job that uses it."""
        self.client.close()
        used, self._used = self._used, None
        if used is not None:
            used.give_back()


class DestinationJob:
    """A job of one mirror that connects to the destination when it first needs to, until it is closed.

    It goes to no other cluster than `cluster_id`, if that is given.
    """

    def __init__(self, mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None) -> None:
        self._mirror = mirror
        self._properties = dict(destination_properties)
        self._cluster_id = cluster_id
        self._opened: Destination | None = None
        #: The client of the source that the last run has left, and how it was to connect.
        self._kept: tuple[ClientConfig, ClusterClient] | None = None
        self._pace = Pace()

    def interval_s(self, settings: Settings) -> float:
        """Return `refresh.interval.seconds`, or more where what the job measures of itself takes much work."""
        return self._pace.interval_s(settings.refresh_interval_seconds)

    def has_work(self, settings: Settings) -> bool:
        """Return whether these settings give it anything to do."""
        del settings
        return True

    @property
    def _destination(self) -> Destination:
        if self._opened is None:
            self._opened = JobDestination.open(self._properties, cluster_id=self._cluster_id)
        return self._opened

    @contextmanager
    def _source_of(self, mirror: MirrorRecord) -> Iterator[ClusterClient]:
        """Connect to the mirror's source, over the last run's connections if all went well and nothing has changed.

        Raises as `source_client` does.
        """
        kept, self._kept = self._kept, None
        with naming_source(mirror.source_cluster_id), ExitStack() as stack:
            if kept is not None:
                stack.callback(kept[1].close)
            config = source_config(mirror.source, mirror.source_cluster_id)
            if kept is None or kept[0] != config:
                stack.close()
                kept = config, stack.enter_context(ClusterClient(config))
            yield kept[1]
            self._kept = kept
            stack.pop_all()

    def close(self) -> None:
        """Close connections."""
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None
