"""Looks at both clusters of mirrors that no engine reports, while someone asks: by a thread, and not often.

They go on between requests for as long as someone may ask again, so that an answer need not wait for them, nor for a
source that does not answer, and still shows a lag of now or none.

A mirror whose engine reports is looked at now and then: what only the clusters know, such as where the logs of stopped
topics end, changes seldom. How often depends on what a look costs, so that it never takes much of a core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now, now_ms
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import Destination
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.describe import Looked, look_at
from kmirror.ops.show.open_transactions import open_transactions
from kmirror.state.snapshot import State
from kmirror.status.observed import ClusterSnapshot
from kmirror.web.stored_mirror import OffsetLook

#: For how long after a request what was asked for is read.
WANTED_SECONDS = 60.0
#: The least time between two looks at a mirror that no engine reports, and at others.
_PAUSE_SECONDS, _LONG_PAUSE_SECONDS = 5.0, 60.0
#: Looks take at most this part of a core; but a lag that no engine reports is looked at this often, or it is unknown.
_SHARE, _MOST_PAUSE_SECONDS = 0.01, 15.0
#: A look this old says nothing more, or one that is twice as old as the time between two looks at such a mirror.
_OLD_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class _Taken:
    look: OffsetLook
    at: float
    #: When the next one may begin, if an engine reports the mirror or not.
    soon: float
    late: float


class OffsetLooks:
    """Keep the last look at each mirror of one cluster; for any thread. Call `close` at the end."""

    def __init__(self, open_destination: Callable[[], Destination]) -> None:
        self._open = open_destination
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._taken: dict[str, _Taken] = {}
        #: By mirror that someone asked for: if no engine reports it, and when that was.
        self._asked: dict[str, tuple[bool, float]] = {}
        self._not_before = 0.0
        self._destination: Destination | None = None
        self._prober: Prober | None = None
        self._closed = False
        #: When the last look began; None before the first.
        self.as_of_ms: int | None = None

    def last(self, mirror: str) -> OffsetLook | None:
        """Return the last look at a mirror, unless it is old."""
        found = self._taken.get(mirror)
        if found is None or now() - found.at > max(_OLD_SECONDS, 2 * (self._next_at(mirror, found) - found.at)):
            return None
        return found.look

    def ask(self, state: State, mirrors: Mapping[str, bool] | None = None) -> threading.Thread | None:
        """Begin a look at those mirrors for which it is time; return the thread that looks, if one does.

        Only those count that are asked for, now or lately. A mirror is true if no engine reports all that it must copy.
        """
        at, names = now(), {record.name for record in state.mirrors}
        with self._lock:
            self._asked.update({name: (is_unreported, at) for name, is_unreported in (mirrors or {}).items()})
            for kept in (self._asked, self._taken):
                for name in kept.keys() - names:
                    del kept[name]
            if self._thread is None and not self._closed and at >= self._not_before:
                wanted = [name for name, (_, asked_at) in self._asked.items() if at - asked_at <= WANTED_SECONDS]
                due = [name for name in wanted if self._is_due(name)]
                if due:
                    self._thread = threading.Thread(
                        target=self._look, args=(state, due), name="kmirror-offsets", daemon=True
                    )
                    self._thread.start()
            return self._thread

    def close(self) -> None:
        """Close the connections; a look in progress closes them when it ends."""
        with self._lock:
            self._closed = True
            if self._thread is None:
                self._disconnect()

    def _is_due(self, mirror: str) -> bool:
        found = self._taken.get(mirror)
        return found is None or now() >= self._next_at(mirror, found)

    def _next_at(self, mirror: str, found: _Taken) -> float:
        is_unreported, _ = self._asked.get(mirror, (True, 0.0))
        return found.soon if is_unreported else found.late

    def _look(self, state: State, mirrors: list[str]) -> None:
        at, as_of_ms, used = now(), now_ms(), time.process_time()
        try:
            if self._prober is None:
                self._destination = self._open()
                self._prober = Prober(self._destination)
            topics = [topic for name in mirrors for topic in state.topics(name)]
            empty = [
                record for name in mirrors if not state.topics(name) and (record := state.mirror(name)) is not None
            ]
            looked = look_at(self._prober, state, topics, empty)
            held = {name: self._standing_still(name, one) for name, one in looked.sources.items()}
            opened = self._prober.ask_sources(
                [(looked.mirrors[name][0], partial(open_transactions, at)) for name, at in held.items() if at]
            )
            # also what other threads used meanwhile, so it is rather too much
            pause = (time.process_time() - used) / _SHARE
            for name, (_, owned) in looked.mirrors.items():
                archives = [topic.rebuild.archive for topic in owned if topic.rebuild is not None]
                here = looked.destination.of_topics([*(topic.topic for topic in owned), *archives])
                owned_topics = {topic.topic: topic for topic in owned}
                look = OffsetLook(here, self._source_of(name, looked), owned_topics, opened.get(name, {}))
                soon = min(max(_PAUSE_SECONDS, pause), _MOST_PAUSE_SECONDS)
                self._taken[name] = _Taken(look, at, at + soon, at + max(_LONG_PAUSE_SECONDS, pause))
            self.as_of_ms = as_of_ms
        except (KmirrorError, OutcomeUnknown):
            # who reads the cluster's state says why it does not answer
            self._not_before = now() + _PAUSE_SECONDS
            self._disconnect()
        finally:
            with self._lock:
                self._thread = None
                if self._closed:
                    self._disconnect()

    def _source_of(self, mirror: str, looked: Looked) -> ClusterSnapshot | None:
        """Return the snapshot of a source; trouble that is no other than at the last look is the same."""
        found, before = looked.sources.get(mirror), self._taken.get(mirror)
        known = before.look.source if before is not None else None
        if found is None or known is None or found.trouble is None or known.trouble is None:
            return found
        is_same = type(found.trouble) is type(known.trouble) and found.trouble.args == known.trouble.args
        return replace(found, trouble=known.trouble) if is_same else found

    def _standing_still(self, mirror: str, source: ClusterSnapshot) -> list[TopicPartition]:
        """Return the partitions of a source with records that are not committed, and the same last look."""
        before = self._taken.get(mirror)
        known = before.look.source if before is not None else None
        if known is None:
            return []
        return [
            at
            for at, stable in source.last_stable_offset.items()
            if stable < source.high_watermark.get(at, stable) and known.last_stable_offset.get(at) == stable
        ]

    def _disconnect(self) -> None:
        if self._prober is not None:
            self._prober.close()
            self._prober = None
        if self._destination is not None:
            self._destination.close()
            self._destination = None
