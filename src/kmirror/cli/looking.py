"""Looking again and again in a thread of its own, so that nobody waits for a cluster, and what was seen last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Generic

from kmirror.cli.sight import P, Sight
from kmirror.engine.clock import now
from kmirror.errors import KmirrorError, OutcomeUnknown, RefusedError, UsageError

#: Between the end of a look and the next one.
PAUSE_SECONDS = 2.0
#: So long the end waits for a look under way; it closes its connections by itself when it comes back.
_END_SECONDS = 1.0


class Looker(Generic[P]):
    """Look in a `with` block. `opened` gives what looks, and closes it in the end; `tell` is called after each look."""

    def __init__(
        self,
        opened: AbstractContextManager[Callable[[], P]],
        tell: Callable[[], None],
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._opened, self._tell, self._pause_seconds = opened, tell, pause_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kmirror-looker", daemon=True)
        #: One value, replaced as a whole.
        self.sight: Sight[P] = Sight()
        #: What ends all looking: a mirror that is gone, an error of ours.
        self.failure: Exception | None = None

    def __enter__(self) -> Looker[P]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            with self._opened as look:
                while not self._over.is_set():
                    self._look(look)
                    self._tell()
                    self._over.wait(self._pause_seconds)
        except Exception as error:
            self.failure = error
            self._tell()

    def _look(self, look: Callable[[], P]) -> None:
        before, began = self.sight, now()
        self.sight = Sight(before.picture, before.seen_at, began, before.trouble, before.failing_since)
        try:
            self.sight = Sight(look(), began)
        except (RefusedError, UsageError):
            raise
        except (KmirrorError, OutcomeUnknown) as error:
            since = began if before.failing_since is None else before.failing_since
            self.sight = Sight(before.picture, before.seen_at, None, str(error), since)
