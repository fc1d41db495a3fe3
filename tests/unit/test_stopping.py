"""A command that ends cleanly at SIGTERM: the signal may come at any moment, and several times.

Once the handler itself set the event. An engine whose command had been killed got SIGTERM twice, the second time while
the first was being handled, and waited for ever for the lock that it held.
"""

from __future__ import annotations

import os
import pty
import signal
import sys
import threading
from pathlib import Path

import pytest

from kmirror.ops.run.signals import at_hangup, stopping
from tests.support.waiting import PATIENCE_S


@pytest.mark.timeout(30)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_comes_while_the_events_lock_is_held(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopping() as stop:
        with stop._cond:  # type: ignore[attr-defined]  # as in the midst of `set` or `wait`
            for _ in range(3):
                signal.raise_signal(number)
        assert stop.wait(10)
    assert signal.getsignal(number) is before


def test_a_hangup_that_is_ignored_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert not stop.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_without_a_signal_nothing_stops() -> None:
    threads = threading.active_count()
    with stopping() as stop:
        assert not stop.is_set()
    assert not stop.is_set()
    assert threading.active_count() == threads


@pytest.mark.timeout(30)
def test_a_hangup_is_a_wish_to_reload_each_time() -> None:
    before, stop, heard = signal.getsignal(signal.SIGHUP), threading.Event(), threading.Semaphore(0)
    with at_hangup(stop) as hangup:
        hangup.then = heard.release
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
            assert heard.acquire(timeout=PATIENCE_S)
    assert not stop.is_set()
    assert signal.getsignal(signal.SIGHUP) is before


PROGRAM = """
import sys, threading
from kmirror.ops.run.signals import at_hangup
stop, heard = threading.Event(), threading.Event()
with at_hangup(stop) as hangup:
    hangup.then = heard.set
    print("ready", flush=True)
    if sys.argv[2] == "reload":
        heard.wait(20)
    else:
        stop.wait(20)
open(sys.argv[1], "w").write(f"{stop.is_set()} {heard.is_set()}")
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("wish", "reported"), [("reload", "False True"), ("close", "True False")])
def test_a_terminal_that_is_closed_ends_it_and_a_signal_does_not(tmp_path: Path, wish: str, reported: str) -> None:
    answer = tmp_path / "answer"
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM, str(answer), wish])
    try:
        # the end of the line may come by itself: a terminal closed before it makes the print fail
        heard = b""
        while not heard.endswith(b"\n"):
            heard += os.read(terminal, 100)
        assert heard == b"ready\r\n"
        if wish == "reload":
            os.kill(child, signal.SIGHUP)
            os.waitpid(child, 0)
    finally:
        os.close(terminal)
    if wish == "close":
        os.waitpid(child, 0)
    assert answer.read_text() == reported
