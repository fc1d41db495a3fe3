"""When to rebuild topics whose source was recreated or has another history, and in which steps.

The work itself is passed in from above (`Rebuilder`): it decides, records and rebuilds, and may take minutes. A topic
is claimed first, so that no lane's plan includes it; the rebuild starts when no lane can write to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from kmirror.engine.threads import call_in_thread
from kmirror.errors import Reason, RefusedError, described_error
from kmirror.work import Watch, WorkView

_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
#: How long it may take until the stored claim of a rebuilt topic is seen to be gone, in seconds.
_READ_BACK = 5.0
#: On how many topics of a mirror to work at the same time.
_AT_ONCE = 8


class ConsentNeededError(RefusedError):
    """A topic is not rebuilt automatically: an operator must decide."""


class Rebuilder(Protocol):
    """Rebuild topics of one mirror; called in threads."""

    def begin(self, topic: str, reason: Reason, *, consented: bool) -> None:
        """Claim a topic. Raises ConsentNeededError if an operator must decide."""

    def carry_out(self, topic: str, watch: Watch) -> None:
        """Rebuild a claimed topic, from its last finished step; after any exception it can be called again."""


@dataclass(slots=True)
class _Work:
    """One topic: whether a thread works on it or is to, and when the next attempt is due."""

    is_running: bool = False
    next_at: float = 0.0
    attempts: int = 0
    reported: str | None = None
    #: True once a claim was made; it is forgotten when it is read back.
    is_done: bool = False
    #: How far its thread is, as it last reported.
    view: WorkView | None = None

    def take(self, view: WorkView) -> None:
        """Keep what the thread reports."""
        self.view = view


class Rebuilds:
    """Rebuild topics of one mirror; for one thread. `note` takes sentences for watchers."""

    def __init__(self, rebuilder: Rebuilder, note: Callable[[str], None]) -> None:
        self._rebuilder = rebuilder
        self._note = note
        self._claims: dict[str, _Work] = {}
        self._refused: set[str] = set()
        self._work: dict[str, _Work] = {}
        #: How many topics were rebuilt.
        self.done = 0
        #: The steps that wait for a thread, and those that have one.
        self._waiting: deque[tuple[str, _Work, Callable[[], None]]] = deque()
        self._threads: list[tuple[str, _Work, Future[None]]] = []

    def want(self, topic: str, reason: Reason, at: float, *, consented: bool) -> None:
        """Claim a topic, unless it is being claimed, a claim has just failed, or an operator must decide."""
        work = self._claims.setdefault(topic, _Work())
        if self.is_wanted(topic) or at < work.next_at or (topic in self._refused and not consented):
            return
        self._refused.discard(topic)
        self._start(topic, work, lambda: self._rebuilder.begin(topic, reason, consented=consented))

    def is_wanted(self, topic: str) -> bool:
        """Return whether a topic is being claimed, or its claim has not been read back yet."""
        work = self._claims.get(topic)
        return work is not None and (work.is_running or work.is_done)

    def tick(self, claimed: Collection[str], is_free: Callable[[str], bool], at: float) -> None:
        """Take the next step. `claimed` are the stored claims; `is_free` returns whether no lane has a topic."""
        if not (claimed or self._work or self._waiting or self._threads):
            return
        self._take_ends(at)
        for topic in claimed:
            self._claims.pop(topic, None)
            work = self._work.setdefault(topic, _Work())
            if not work.is_running and at >= work.next_at and is_free(topic):
                self._start(topic, work, partial(self._rebuilder.carry_out, topic, work.take))
        for topic in [topic for topic, work in self._work.items() if topic not in claimed and not work.is_running]:
            del self._work[topic]
        while self._waiting and len(self._threads) < _AT_ONCE:
            topic, work, step = self._waiting.popleft()
            self._threads.append((topic, work, call_in_thread(step, f"kmirror-rebuild {topic}")))

    @property
    def progress(self) -> dict[str, WorkView]:
        """How far the topics are that are being archived."""
        return {topic: work.view for topic, work in self._work.items() if work.is_running and work.view is not None}

    def _start(self, topic: str, work: _Work, step: Callable[[], None]) -> None:
        work.is_running = True
        self._waiting.append((topic, work, step))

    def _take_ends(self, at: float) -> None:
        ended = [one for one in self._threads if one[2].done()]
        self._threads = [one for one in self._threads if one not in ended]
        for topic, work, step in ended:
            work.is_running = False
            error = step.exception()
            if error is None:
                self.done += self._work.get(topic) is work
                work.is_done = True
                work.next_at = at + _READ_BACK
                continue
            if not isinstance(error, Exception):
                raise error
            text = described_error(error)
            if work.reported != text:
                work.reported = text
                self._note(f"{topic} is not rebuilt: {text}")
            if isinstance(error, ConsentNeededError):
                self._claims.pop(topic, None)
                self._refused.add(topic)
            work.attempts += 1
            work.next_at = at + min(_LONGEST_PAUSE, _PAUSE * 2 ** min(work.attempts - 1, 10))
