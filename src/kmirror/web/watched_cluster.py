"""One cluster that `serve` watches: its stored state, read about once a second, and what is known of its mirrors.

The cluster may be down, refuse the login, or answer again as another one: the thread that reads it never ends because
of that. What was last read is kept, with its time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kmirror.engine.clock import now, now_ms
from kmirror.errors import KmirrorError, OutcomeUnknown, TimedOutError
from kmirror.ops.base.context import Destination
from kmirror.ops.base.retrying import is_transient
from kmirror.ops.show.describe import health_of
from kmirror.state.lease import has_ended
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from kmirror.state.waiting import Deadline
from kmirror.web.offset_looks import OffsetLooks
from kmirror.web.recent import Events, RecentEvents
from kmirror.web.served import FRESH_MS, ClusterStatus, ServedMirror
from kmirror.web.stored_mirror import stored_mirror
from kmirror.words import one_line

#: Takes what was read: name, id and addresses of the cluster, its state, and when the read began (`engine.clock.now`).
Taken = Callable[[str, str, str, State, float], None]

_READ_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 5.0
#: How long one turn of the thread may take, at most: it opens connections, and reads.
TURN_SECONDS = 60.0
#: How long an answer waits for a look at the clusters where there is none.
_PATIENCE_SECONDS = 0.7

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    """A state, and when it was read."""

    state: State
    time_ms: int


class WatchedCluster:
    """Watch one cluster from `start` to `close`; everything else is for any thread.

    `properties` returns its client properties, which are read again after trouble.
    """

    def __init__(
        self,
        name: str,
        properties: Callable[[], Mapping[str, str]],
        expect_cluster_id: str | None = None,
        taken: Taken | None = None,
    ) -> None:
        self.name = name
        self._properties = properties
        self._expected = expect_cluster_id
        self._taken = taken
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"kmirror-watch-{name}", daemon=True)
        self._bootstrap_servers = properties().get("bootstrap.servers", "")
        self._cluster_id: str | None = None
        self._read: _Read | None = None
        self._error: tuple[str, int] | None = None
        self._destination: Destination | None = None
        self._looks = OffsetLooks(self._open)
        self._recent = RecentEvents(self._open)
        #: When its thread last turned.
        self.turned_at = now()

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """End; a request in progress is not waited for."""
        self._stop.set()
        self._looks.close()
        self._recent.close()

    @property
    def status(self) -> ClusterStatus:
        """Whether it can be read."""
        read, error = self._read, self._error
        return ClusterStatus(
            self.name,
            self._cluster_id,
            self._bootstrap_servers,
            None if read is None else read.time_ms,
            read is not None and now_ms() - read.time_ms <= FRESH_MS,
            None if error is None else error[0],
            None if error is None else error[1],
            self._looks.as_of_ms,
        )

    def events(self) -> Events:
        """Return its recent events."""
        return self._recent.last()

    def ask_events(self) -> None:
        """Begin to read its recent events."""
        self._recent.ask()

    def mirrors(self) -> tuple[ServedMirror, ...]:
        """Return its mirrors as they are now; while it cannot be read, as they were."""
        found, read = self._mirrors(), self._read
        if read is None or not self.status.is_fresh:
            return found
        unreported = {
            one.name: any(not row.is_reported and not row.is_stopped for row in one.partitions) for one in found
        }
        looking = self._looks.ask(read.state, unreported)
        self._looks.forget(unreported)
        if looking is None or all(self._looks.last(name) for name, is_so in unreported.items() if is_so):
            return found
        looking.join(_PATIENCE_SECONDS)
        return self._mirrors()

    def _mirrors(self) -> tuple[ServedMirror, ...]:
        read = self._read
        if read is None:
            return ()
        time_ms = now_ms()
        if time_ms - read.time_ms > FRESH_MS:
            time_ms = read.time_ms  # what is not known is not judged
        return tuple(self._mirror(read.state, record, time_ms) for record in read.state.mirrors)

    def _mirror(self, state: State, record: MirrorRecord, time_ms: int) -> ServedMirror:
        engine, health = state.engine(record.name), health_of(state, record.name, time_ms)
        is_here = engine is not None and has_ended(engine) is False
        return stored_mirror(self.name, state, record, self._looks.last(record.name), health, time_ms, is_here=is_here)

    def _open(self) -> Destination:
        """Connect to it; once it is known, to no other cluster at its addresses. Raises KmirrorError."""
        return Destination.open(self._properties(), self._expected, cluster_id=self._cluster_id)

    def _watch(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        try:
            while not self._stop.is_set():
                self.turned_at = now()
                try:
                    self._turn()
                except Exception as error:
                    if not isinstance(error, KmirrorError | OutcomeUnknown):
                        _logger.exception("reading cluster %s failed", self.name)
                    self._fail(error)
                    self._stop.wait(pause)
                    pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)
                else:
                    pause = _FIRST_PAUSE_SECONDS
                    self._stop.wait(_READ_SECONDS)
        finally:
            self._disconnect()

    def _turn(self) -> None:
        if self._destination is None:
            self._destination = self._open()
            self._cluster_id = self._destination.cluster_id
            self._bootstrap_servers = self._destination.bootstrap_server
        destination, sent_at, time_ms = self._destination, now(), now_ms()
        try:
            state, is_complete = destination.store.read_complete(Deadline(_TIMEOUT_SECONDS)), True
        except TimedOutError:
            # a transaction stays open: what it hides is not known
            state, is_complete = destination.store.read(_TIMEOUT_SECONDS), False
        self._read, self._error = _Read(state, time_ms), None
        if self._taken is not None and is_complete:
            self._taken(self.name, destination.cluster_id, self._bootstrap_servers, state, sent_at)

    def _fail(self, error: Exception) -> None:
        since = self._error[1] if self._error is not None else now_ms()
        self._error = one_line(str(error)) or type(error).__name__, since
        if not is_transient(error):
            self._disconnect()

    def _disconnect(self) -> None:
        if self._destination is not None:
            self._destination.close()
            self._destination = None
