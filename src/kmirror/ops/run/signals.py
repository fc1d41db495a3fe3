"""Signals as events: what tells a command to end, where its thread can look."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Set an event at Ctrl-C or SIGTERM instead of dying of it; only the main thread can."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    # a handler runs between any two lines of this very thread, also where it holds the event's lock: it must not set it
    heard: SimpleQueue[bool] = SimpleQueue()

    def pass_on() -> None:
        if heard.get():
            stop.set()

    listener = threading.Thread(target=pass_on, name="signals", daemon=True)
    listener.start()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: heard.put(True))
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        heard.put(False)
        listener.join()
