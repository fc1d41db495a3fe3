"""Threads beside the one that matters: whatever they do not expect must not end them in silence."""

from __future__ import annotations

import threading
from collections.abc import Callable


def guarded_thread(run: Callable[[], None], name: str, broken: Callable[[Exception], None]) -> threading.Thread:
    """Return a daemon thread that runs `run` when started, and hands on what that raises."""

    def guarded() -> None:
        try:
            run()
        except Exception as error:
            broken(error)

    return threading.Thread(target=guarded, name=name, daemon=True)
