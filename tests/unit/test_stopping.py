"""A command that ends cleanly at SIGTERM: the signal may come at any moment, and several times.

Once the handler itself set the event. An engine whose command had been killed got SIGTERM twice, the second time while
the first was being handled, and waited for ever for the lock that it held.
"""

from __future__ import annotations

import signal
import threading

import pytest

from kmirror.ops.run.signals import stopping


@pytest.mark.timeout(30)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_the_events_lock_is_held(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopping() as stop:
        with stop._cond:  # type: ignore[attr-defined]  # as in the midst of `set` or `wait`
            for _ in range(3):
                signal.raise_signal(number)
        assert stop.wait(10)
    assert signal.getsignal(number) is before


def test_without_a_signal_nothing_stops() -> None:
    threads = threading.active_count()
    with stopping() as stop:
        assert not stop.is_set()
    assert not stop.is_set()
    assert threading.active_count() == threads
