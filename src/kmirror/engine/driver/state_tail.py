"""One thread that reads `__kmirror_state` for all mirrors of a process, and passes on to each what concerns it.

Nearly all records are of other mirrors than a given one: if each engine read them itself, the work would grow with the
square of their number. What is stored is kept by mirror, so that an engine that starts later is passed it without
another read of the log. Where the log has to be read again from its start, what it does not have any more is removed:
the topic may be another one, and brokers delete tombstones (`state.store`). Engines are passed only what is different
in the end: older values come first.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.follower import PartitionFollower, PollResult
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.engine.lane.reports.state_log import STATE_PARTITION
from kmirror.engine.threads import guarded_thread
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.state.internal_topics import StoredValues
from kmirror.state.record_kinds import Record, Removed, Unknown, decode, mirror_of
from kmirror.state.store import FORGET_AFTER_S
from kmirror.state.waiting import boottime

_POLL_MS = 500
_PAUSE = 0.5
#: Many mirrors write hundreds of small transactions a second: several are read at once.
_LEAST_SECONDS = 0.05


class StateReader(Protocol):
    """What is passed the records of one mirror; called in the thread that reads."""

    def take_stored(self, read: Record | Removed | Unknown) -> None:
        """Take the next record: first what is stored, in the order in which it was written, then what follows."""

    def catch_up(self) -> None:
        """Note that all that was stored when it began to follow has been passed; called once."""

    def take_answer(self, error: KmirrorError | OutcomeUnknown | None) -> None:
        """Take why the destination did not answer; None if it answers, again or for the first time."""

    def broken(self, error: Exception) -> None:
        """Take an unexpected error, after which nothing is passed any more."""


@dataclass(slots=True, eq=False)
class _Follower:
    mirror: str
    reader: StateReader
    has_caught_up: bool = False
    #: Whether the destination answered last; None before the first time.
    is_answered: bool | None = None


class StateTail:
    """Follow the state of one destination from the first call of `follow` until `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._followers: tuple[_Follower, ...] = ()
        self._stored = StoredValues()
        #: By mirror, the keys of what is stored; what was written last comes last.
        self._keys: defaultdict[str, dict[bytes, None]] = defaultdict(dict)
        #: What was read since the log was begun to be read from its start; None once all was.
        self._again: StoredValues | None = None
        self._stop = threading.Event()
        self._is_running = False

    def follow(self, config: ClientConfig, mirror: str, reader: StateReader) -> Callable[[], None]:
        """Pass on a mirror's records until the returned function is called. All calls name the same destination."""
        follower = _Follower(mirror, reader)
        with self._lock:
            self._followers += (follower,)
            if not self._is_running:
                self._is_running = True
                guarded_thread(lambda: self._run(config), "kmirror-follow", self._broken).start()
        return lambda: self._leave(follower)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()

    def _leave(self, follower: _Follower) -> None:
        with self._lock:
            self._followers = tuple(one for one in self._followers if one is not follower)

    def _broken(self, error: Exception) -> None:
        with self._lock:
            self._is_running = False
            followers, self._followers = self._followers, ()
            self._stored, self._keys, self._again = StoredValues(), defaultdict(dict), None
        for follower in followers:
            follower.reader.broken(error)

    def _run(self, config: ClientConfig) -> None:
        with ClusterClient(config) as client:
            tail = PartitionFollower(client, STATE_PARTITION, read_committed=True)
            beginnings, answered_at = 0, boottime()
            while not self._stop.is_set():
                # only an answer to a later request has all that was stored when they began
                followers = self._followers
                if boottime() - answered_at > FORGET_AFTER_S:
                    tail.begin_again()
                try:
                    answer = tail.poll(_POLL_MS)
                except (KmirrorError, OutcomeUnknown) as error:
                    for follower in followers:
                        self._pass(follower, lambda one, error=error: _fail(one, error))  # type: ignore[misc]
                    self._stop.wait(_PAUSE)
                    continue
                answered_at = boottime()
                if tail.beginnings != beginnings:
                    beginnings, self._again = tail.beginnings, StoredValues()
                self._take(answer, followers)
                if answer.records:
                    self._stop.wait(_LEAST_SECONDS)
            tail.close()

    def _take(self, answer: PollResult, followers: tuple[_Follower, ...]) -> None:
        by_mirror: defaultdict[str, list[_Follower]] = defaultdict(list)
        for follower in followers:
            if follower.has_caught_up:
                by_mirror[follower.mirror].append(follower)
        for key, value in self._changes(answer):
            if (mirror := mirror_of(key)) is None:
                continue
            self._stored.take(key, value)
            keys = self._keys[mirror]
            keys.pop(key, None)
            if value is not None:
                keys[key] = None
            elif not keys:
                del self._keys[mirror]
            if mirror in by_mirror:
                read = decode(key, value)
                for follower in by_mirror[mirror]:
                    self._pass(follower, lambda one, read=read: one.reader.take_stored(read))  # type: ignore[misc]
        for follower in followers:
            if not follower.is_answered:
                follower.is_answered = True
                self._pass(follower, lambda one: one.reader.take_answer(None))
            if answer.reached_end and not follower.has_caught_up:
                follower.has_caught_up = True
                self._pass(follower, self._catch_up)

    def _changes(self, answer: PollResult) -> list[tuple[bytes, bytes | None]]:
        read = [(record.key, record.value) for record in answer.records if record.key is not None]
        if self._again is None:
            return read
        for key, value in read:
            self._again.take(key, value)
        if not answer.reached_end:
            return []
        again, before, self._again = self._again.values, self._stored.values, None
        changed: list[tuple[bytes, bytes | None]] = [(key, one) for key, one in again.items() if before.get(key) != one]
        return changed + [(key, None) for key in before.keys() - again.keys()]

    def _catch_up(self, follower: _Follower) -> None:
        for key in self._keys.get(follower.mirror, ()):
            follower.reader.take_stored(decode(key, self._stored.values[key]))
        follower.reader.catch_up()

    def _pass(self, follower: _Follower, call: Callable[[_Follower], None]) -> None:
        """Call something of one follower, which ends alone if that fails."""
        try:
            call(follower)
        except Exception as error:
            self._leave(follower)
            follower.reader.broken(error)


def _fail(follower: _Follower, error: KmirrorError | OutcomeUnknown) -> None:
    follower.is_answered = False
    follower.reader.take_answer(error)
