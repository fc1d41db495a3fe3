"""A live full-screen view of clusters until q or Ctrl-C, which then restores the terminal.

It is redrawn after each poll, each second, on each key and on each resize. A view only turns an observation, the time
and the size into lines.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from kmirror.cli.terminal.keyboard import keys_at_once, read_keys
from kmirror.cli.terminal.layout import Line
from kmirror.cli.terminal.observation import Observation, P
from kmirror.cli.terminal.poller import Poller
from kmirror.cli.terminal.screen import Screen
from kmirror.engine.clock import now
from kmirror.errors import UsageError

if TYPE_CHECKING:
    from rich.live import Live

_FRAME_SECONDS = 1.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class View(Protocol[P]):
    """Draw an observation and handle keys."""

    def lines(self, observed: Observation[P], at: float, width: int, height: int) -> Sequence[Line]:
        """Return the lines to show at the time `at`, at most `height` of them."""

    def press(self, key: str) -> bool:
        """Handle a key; return False to quit."""


def require_terminal(screen: Screen, command: str, instead: str) -> None:
    """Raise UsageError unless stdin and stdout are a terminal."""
    if not (screen.is_terminal and screen.stdin.isatty()):
        raise UsageError(f"{command} needs a terminal", instead)


def show_live(screen: Screen, opened: AbstractContextManager[Callable[[], P]], view: View[P]) -> None:
    """Show what `opened` reads until the user quits.

    Raises:
        KmirrorError: what is shown no longer exists.
    """
    with _Signals() as signals, Poller(opened, signals.wake) as poller:
        while True:
            with keys_at_once(screen.stdin) as keys, _whole_terminal(screen) as live:
                _draw_until(signals, poller, view, keys, live)
            if not signals.is_suspended:
                break
            # back to the shell, until `fg`
            signals.is_suspended = False
            os.kill(os.getpid(), signal.SIGSTOP)
    if poller.failure is not None:
        raise poller.failure


def _draw_until(signals: _Signals, poller: Poller[P], view: View[P], keys: int, live: Live) -> None:
    from rich.text import Text

    while True:
        size = live.console.size
        lines = view.lines(poller.observed, now(), size.width, size.height)
        drawn = (Text.assemble(*line, no_wrap=True, overflow="ellipsis") for line in lines)
        live.update(Text("\n", no_wrap=True, overflow="ellipsis").join(drawn), refresh=True)
        ready = signals.wait(keys, _FRAME_SECONDS)
        pressed = read_keys(keys) if ready else []
        if pressed is None or not all(view.press(key) for key in pressed):
            return
        if signals.is_ended or signals.is_suspended or poller.failure is not None:
            return


@contextmanager
def _whole_terminal(screen: Screen) -> Iterator[Live]:
    from rich.live import Live

    with Live(
        console=screen.console(), screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as live:
        try:
            yield live
        finally:
            # a terminal that was resized meanwhile may keep the last frame
            live.console.clear()


class _Signals:
    """Let signals wake a wait instead of ending the process in the middle of a line."""

    def __init__(self) -> None:
        self.is_ended = False
        #: By Ctrl-Z.
        self.is_suspended = False
        self._woken, self._waker = socket.socketpair()

    def __enter__(self) -> _Signals:
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._before = {
            **{number: signal.signal(number, self._end) for number in _ENDING},
            signal.SIGTSTP: signal.signal(signal.SIGTSTP, self._suspend),
            # without a handler it would not wake the wait
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._woken.close()
        self._waker.close()

    def wake(self) -> None:
        """End the wait, from another thread."""
        try:
            self._waker.send(b"\0")
        except OSError:
            return  # woken already, or over

    def wait(self, keys: int, seconds: float) -> bool:
        """Wait for a key, a signal or `wake`; return whether a key was pressed."""
        woken = self._woken.fileno()
        ready, _, _ = select.select([keys, woken], [], [], seconds)
        if woken in ready:
            self._woken.recv(1024)
        return keys in ready

    def _end(self, *_: object) -> None:
        self.is_ended = True

    def _suspend(self, *_: object) -> None:
        self.is_suspended = True
