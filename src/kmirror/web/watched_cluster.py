"""One cluster that `serve` watches: its stored state, read about once a second, and what is known of its mirrors.

The cluster may be down, refuse the login, or answer again as another one: the thread that reads it never ends because
of that. What was last read is kept, with its time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kmirror.engine.clock import now, now_ms
from kmirror.errors import KmirrorError, OutcomeUnknown, TimedOutError
from kmirror.ops.base.context import Destination
from kmirror.ops.base.retrying import is_transient
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from kmirror.state.waiting import Deadline
from kmirror.status.engine_health import HeardEngines
from kmirror.web.mirror_cache import LONGEST_PAUSE_SECONDS, SHARE, MirrorCache
from kmirror.web.offset_looks import WANTED_SECONDS, OffsetLooks
from kmirror.web.recent import Events, RecentEvents
from kmirror.web.served import FRESH_MS, ClusterStatus, ServedMirror
from kmirror.words import one_line

#: Takes what was read: name, id and addresses of the cluster, its state, and when the read began (`engine.clock.now`).
Taken = Callable[[str, str, str, State, float], None]
#: Takes the name of a cluster that was not certainly read as it is, and why.
Doubted = Callable[[str, str], None]

_READ_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 5.0
#: How long one turn of the thread may take, at most: it opens connections, and reads. Longer while the cluster cannot
#: be read: what it logs in with may be dark too, and not all of that has a time limit. A restart would read it no
#: sooner, and take away what is known of the others.
_TURN_SECONDS, _DARK_TURN_SECONDS = 60.0, 600.0

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Read:
    """A state, and when it was asked for, by the wall clock and by ours."""

    state: State
    time_ms: int
    at: float

    @property
    def is_fresh(self) -> bool:
        """Whether that was lately enough."""
        return now() - self.at <= FRESH_MS / 1000


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
        doubted: Doubted | None = None,
    ) -> None:
        self.name = name
        self._properties = properties
        self._expected = expect_cluster_id
        self._taken, self._doubted = taken, doubted
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"kmirror-watch-{name}", daemon=True)
        self._bootstrap_servers = properties().get("bootstrap.servers", "")
        self._cluster_id: str | None = None
        self._read: _Read | None = None
        self._error: tuple[str, int] | None = None
        #: Why, and since when, it may have committed what is not known.
        self._doubt: tuple[str, int] | None = None
        self._destination: Destination | None = None
        self._looks = OffsetLooks(self._open)
        self._heard = HeardEngines()
        self._cache = MirrorCache(name, self._heard.heard_ms)
        #: When someone last asked for what lanes report: it costs more than all else; set when it has been read since;
        #: set to read at once.
        self._asked_at = -WANTED_SECONDS
        self._with_reports = threading.Event()
        #: Reports are not read again before this.
        self._reports_not_before = 0.0
        self._woken = threading.Event()
        self._recent = RecentEvents(self._open)
        #: When its thread last turned.
        self.turned_at = now()

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """End; a request in progress is not waited for."""
        self._stop.set()
        self._woken.set()
        self._looks.close()
        self._recent.close()

    @property
    def status(self) -> ClusterStatus:
        """Whether it can be read."""
        read, error = self._read, self._error or self._doubt
        return ClusterStatus(
            self.name,
            self._cluster_id,
            self._bootstrap_servers,
            None if read is None else read.time_ms,
            read is not None and read.is_fresh,
            None if error is None else error[0],
            None if error is None else error[1],
            self._looks.as_of_ms,
        )

    @property
    def is_stuck(self) -> bool:
        """Whether its thread has not turned for too long."""
        is_read = self._read is not None and self._error is None
        return now() - self.turned_at > (_TURN_SECONDS if is_read else _DARK_TURN_SECONDS)

    def events(self) -> Events:
        """Return its recent events."""
        return self._recent.last()

    def ask_events(self) -> None:
        """Begin to read its recent events."""
        self._recent.ask()

    def mirrors(
        self, is_exact: Callable[[MirrorRecord], bool], until: float, mirror: str | None = None
    ) -> tuple[ServedMirror, ...]:
        """Return its mirrors, or only one: those that must be exact as they are now, others as seconds ago at most.

        While it cannot be read, they are as they were when it was. What lanes report, and a look at the clusters, is
        waited for where there is none, at most `until` a time of `engine.clock.now`. For one thread at a time.
        """
        if self._read is not None and self._error is None:
            self._with_reports.wait(max(0.0, until - now()))
        found, read = self._mirrors(is_exact, mirror), self._read
        if read is None or not read.is_fresh:
            return found
        unreported = {one.name: not one.is_reported for one in found}
        looking = self._looks.ask(read.state, unreported)
        if all(self._looks.last(name) for name, is_so in unreported.items() if is_so):
            return found
        if looking is not None:
            looking.join(max(0.0, until - now()))
        return self._mirrors(is_exact, mirror)

    def want_reports(self) -> None:
        """Have what lanes report read for some time, and at once if it was not."""
        was_wanted, self._asked_at = self._are_reports_wanted, now()
        if not was_wanted:
            self._with_reports.clear()
            self._woken.set()

    @property
    def _are_reports_wanted(self) -> bool:
        return now() - self._asked_at <= WANTED_SECONDS

    def _mirrors(self, is_exact: Callable[[MirrorRecord], bool], mirror: str | None) -> tuple[ServedMirror, ...]:
        read = self._read
        if read is None:
            return ()
        time_ms = now_ms() if read.is_fresh else read.time_ms  # what is not known is not judged
        return self._cache.mirrors(read.state, self._looks.last, time_ms, is_exact, mirror)

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
                    # a broker that keeps a turn waiting must not make what was read before too old
                    self._woken.wait(max(_FIRST_PAUSE_SECONDS, _READ_SECONDS - (now() - self.turned_at)))
                    self._woken.clear()
        finally:
            self._disconnect()

    def _turn(self) -> None:
        if self._destination is None:
            self._destination = self._open()
            self._cluster_id = self._destination.cluster_id
            self._bootstrap_servers = self._destination.bootstrap_server
        destination, sent_at, time_ms = self._destination, now(), now_ms()
        is_first = not self._with_reports.is_set()
        wants_reports = self._are_reports_wanted and (is_first or sent_at >= self._reports_not_before)
        destination.store.wants_reports, used = wants_reports, time.thread_time()
        try:
            state, doubt = destination.store.read_certain(Deadline(_TIMEOUT_SECONDS)), None
            self._doubt = None
        except TimedOutError as error:
            # a transaction stays open, or the leader may be none any more: what was committed since is not known
            doubt, sent_at = error, now()
            state = destination.store.read(_TIMEOUT_SECONDS)
            if self._doubt is not None:
                time_ms = self._doubt[1]
            self._doubt = _text_of(doubt), time_ms
        self._read, self._error = _Read(state, time_ms, sent_at), None
        self._heard.take(state, now_ms())
        self._looks.ask(state)
        if wants_reports:
            pause = (time.thread_time() - used) / SHARE
            self._reports_not_before = sent_at + min(LONGEST_PAUSE_SECONDS, pause)
            self._with_reports.set()
        if doubt is not None and self._doubted is not None:
            self._doubted(self.name, doubt.message)
        if doubt is None and self._taken is not None:
            self._taken(self.name, destination.cluster_id, self._bootstrap_servers, state, sent_at)

    def _fail(self, error: Exception) -> None:
        since = self._error[1] if self._error is not None else now_ms()
        self._error = _text_of(error), since
        if not is_transient(error) or self._has_other_properties():
            self._disconnect()

    def _has_other_properties(self) -> bool:
        """Return whether what its files say is not what it is connected with."""
        try:
            return self._destination is not None and dict(self._properties()) != dict(self._destination.properties)
        except KmirrorError:
            return False

    def _disconnect(self) -> None:
        if self._destination is not None:
            self._destination.close()
            self._destination = None


def _text_of(error: Exception) -> str:
    hint = getattr(error, "hint", None)
    text = one_line(str(error)) or type(error).__name__
    return f"{text}; {one_line(hint)}" if hint else text
