"""Signals as calls in a thread of its own: what tells a command to end, and an engine to log in anew."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Set an event at Ctrl-C or SIGTERM instead of dying of it; only the main thread can."""
    stop = threading.Event()
    with _hearing((signal.SIGINT, signal.SIGTERM), stop.set):
        yield stop


class Hangup:
    """What is done at SIGHUP, in another thread; nothing until `then` is set."""

    def __init__(self) -> None:
        self.then: Callable[[], None] = lambda: None


@contextmanager
def at_hangup(stop: threading.Event) -> Iterator[Hangup]:
    """Say what to do at SIGHUP; when it means that the terminal is gone, `stop` is set. Only the main thread can."""
    hangup = Hangup()
    # who was started with nohup outlives its terminal
    ends_with_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

    def heard() -> None:
        if ends_with_terminal and not _has_terminal():
            stop.set()
        else:
            hangup.then()

    with _hearing((signal.SIGHUP,), heard):
        yield hangup


@contextmanager
def _hearing(numbers: tuple[signal.Signals, ...], act: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # a handler runs between any two lines of this very thread, also where it holds a lock that `act` takes
    heard: SimpleQueue[bool] = SimpleQueue()

    def pass_on() -> None:
        while heard.get():
            act()

    listener = threading.Thread(target=pass_on, name="signals", daemon=True)
    listener.start()
    before = {number: signal.getsignal(number) for number in numbers}
    for number in before:
        signal.signal(number, lambda *_: heard.put(True))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        heard.put(False)
        listener.join()


def _has_terminal() -> bool:
    """Tell whether this process has a controlling terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
