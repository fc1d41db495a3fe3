"""A picture of clusters on the whole terminal, until q or Ctrl-C: it leaves the terminal as it was.

It is drawn anew after each look, each second, for each key and each change of size. Who draws decides nothing here:
lines are made from what was seen, the time and the size.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from kmirror.cli.keyboard import keys_at_once, read_keys
from kmirror.cli.layout import Line
from kmirror.cli.looking import Looker
from kmirror.cli.screen import Screen
from kmirror.cli.sight import P, Sight
from kmirror.engine.clock import now
from kmirror.errors import UsageError

if TYPE_CHECKING:
    from rich.live import Live

_FRAME_SECONDS = 1.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class View(Protocol[P]):
    """Draw what was seen, and take keys."""

    def lines(self, sight: Sight[P], at: float, width: int, height: int) -> Sequence[Line]:
        """Return what the terminal shows at a moment: no more lines than it has."""

    def press(self, key: str) -> bool:
        """Take a key; tell whether to go on."""


def require_terminal(screen: Screen, command: str, instead: str) -> None:
    """Refuse to show something alive where nobody looks. Raises UsageError."""
    if not (screen.is_terminal and screen.stdin.isatty()):
        raise UsageError(f"{command} needs a terminal", instead)


def show_live(screen: Screen, opened: AbstractContextManager[Callable[[], P]], view: View[P]) -> None:
    """Show what is looked at until the user leaves.

    Raises:
        KmirrorError: what is looked at is not there any more.
    """
    with _Signals() as signals, Looker(opened, signals.wake) as looker:
        while True:
            with keys_at_once(screen.stdin) as keys, _whole_terminal(screen) as live:
                _draw_until(signals, looker, view, keys, live)
            if not signals.is_to_stop:
                break
            # as with any other program, the shell goes on and `fg` comes back
            signals.is_to_stop = False
            os.kill(os.getpid(), signal.SIGSTOP)
    if looker.failure is not None:
        raise looker.failure


def _draw_until(signals: _Signals, looker: Looker[P], view: View[P], keys: int, live: Live) -> None:
    from rich.text import Text

    while True:
        size = live.console.size
        lines = view.lines(looker.sight, now(), size.width, size.height)
        drawn = (Text.assemble(*line, no_wrap=True, overflow="ellipsis") for line in lines)
        live.update(Text("\n", no_wrap=True, overflow="ellipsis").join(drawn), refresh=True)
        ready = signals.wait(keys, _FRAME_SECONDS)
        pressed = read_keys(keys) if ready else []
        if pressed is None or not all(view.press(key) for key in pressed):
            return
        if signals.is_to_end or signals.is_to_stop or looker.failure is not None:
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
            # terminals that were resized meanwhile may keep what they were shown last
            live.console.clear()


class _Signals:
    """Have signals wake a wait instead of ending the process in the middle of a line."""

    def __init__(self) -> None:
        self.is_to_end = False
        #: Ctrl-Z.
        self.is_to_stop = False
        self._woken, self._waker = socket.socketpair()

    def __enter__(self) -> _Signals:
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._before = {
            **{number: signal.signal(number, self._end) for number in _ENDING},
            signal.SIGTSTP: signal.signal(signal.SIGTSTP, self._stop),
            # without a handler it would wake nobody
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
        """Wait for a key, a signal or `wake`; tell whether a key was pressed."""
        woken = self._woken.fileno()
        ready, _, _ = select.select([keys, woken], [], [], seconds)
        if woken in ready:
            self._woken.recv(1024)
        return keys in ready

    def _end(self, *_: object) -> None:
        self.is_to_end = True

    def _stop(self, *_: object) -> None:
        self.is_to_stop = True
