"""Signals as calls in a thread: those that end a command, and SIGHUP, which makes an engine log in again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Set an event at Ctrl-C, SIGTERM or SIGHUP (a lost terminal) instead of dying; only the main thread can."""
    stop = threading.Event()
    # with nohup a process outlives its terminal
    hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    with _handling((signal.SIGINT, signal.SIGTERM, *hangup), stop.set):
        yield stop


class Hangup:
    """What happens at SIGHUP, in another thread; nothing until `then` is set."""

    def __init__(self) -> None:
        self.then: Callable[[], None] = lambda: None


@contextmanager
def at_hangup(stop: threading.Event) -> Iterator[Hangup]:
    """Yield what to do at SIGHUP; if it means that the terminal is gone, set `stop`. Only the main thread can."""
    hangup = Hangup()
    # with nohup a process outlives its terminal
    ends_with_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN

    def act() -> None:
        if ends_with_terminal and not _has_terminal():
            stop.set()
        else:
            hangup.then()

    with _handling((signal.SIGHUP,), act):
        yield hangup


@contextmanager
def _handling(numbers: tuple[signal.Signals, ...], act: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # a handler runs between any two lines of this thread, even where it holds a lock that `act` takes
    received: SimpleQueue[bool] = SimpleQueue()

    def pass_on() -> None:
        while received.get():
            act()

    listener = threading.Thread(target=pass_on, name="signals", daemon=True)
    listener.start()
    # None: it was not installed from Python, and cannot be put back from here
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}
    for number in before:
        signal.signal(number, lambda *_: received.put(True))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        received.put(False)
        listener.join()


def _has_terminal() -> bool:
    """Return True if this process still has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
