"""Poll clusters in a thread, so that the screen never waits for one, and keep the last observation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic

from kmirror.cli.terminal.observation import Observation, P
from kmirror.engine.clock import now
from kmirror.errors import KmirrorError, OutcomeUnknown, RefusedError, UsageError

#: Between the end of a poll and the next one.
PAUSE_SECONDS = 2.0
#: How long leaving waits for a poll in progress; that poll closes its connections itself when it returns.
_END_SECONDS = 1.0


class Poller(Generic[P]):
    """Poll during a `with` block: call what `opened` yields, close it at the end; call `notify` after each poll."""

    def __init__(
        self,
        opened: AbstractContextManager[Callable[[], P]],
        notify: Callable[[], None],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._opened, self._notify, self._pause_seconds = opened, notify, pause_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kmirror-poller", daemon=True)
        #: Always replaced as a whole.
        self.observed: Observation[P] = Observation()
        #: What ended the polling: a mirror that is gone, or a bug.
        self.failure: Exception | None = None

    def __enter__(self) -> Poller[P]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            with self._opened as read:
                while not self._over.is_set():
                    self._poll(read)
                    self._notify()
                    self._over.wait(self._pause_seconds)
        except Exception as error:
            self.failure = error
            self._notify()

    def _poll(self, read: Callable[[], P]) -> None:
        before, began = self.observed, now()
        self.observed = Observation(before.snapshot, before.observed_at, began, before.error, before.failing_since)
        try:
            self.observed = Observation(read(), began)
        except (RefusedError, UsageError):
            raise
        except (KmirrorError, OutcomeUnknown) as error:
            since = began if before.failing_since is None else before.failing_since
            self.observed = Observation(before.snapshot, before.observed_at, None, str(error), since)
