"""What ties a worker to its driver, so that no worker writes after its driver is gone or after a successor took over.

A worker's line goes up: the Python daemon that forked it, the JVM that started the daemon, the driver. Three dangers:

* The daemon is killed. Its workers would live on, so the kernel is told to kill each with it (`prctl`, Linux); the
  daemon asks for that at the fork, before a worker runs a line of its own.
* The JVM or the driver dies while the daemon is frozen and cannot pass it on. A thread looks twice a second.
* The worker is stopped (SIGSTOP), a successor takes over, the worker is continued. Then it must not send one more byte:
  SIGCONT ends the process. The handler is the C function `_exit` itself, because Python runs its own handlers only
  between two lines of Python, which is after the bytes have left.

That last one needs care with threads. The kernel hands SIGCONT to any one thread that does not block it, and the others
run on for some microseconds. So SIGCONT is blocked in the main thread, hence in every thread it starts, and unblocked
only in the one thread that sends: that thread meets the signal before it returns to its next instruction.

This module runs in workers: it imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_SECONDS = 0.5

_libc = ctypes.CDLL(None, use_errno=True)
_libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_libc.signal.restype = ctypes.c_void_p

#: The process that is tied already: a fork of it is another process and starts untied.
_tied_process: int | None = None
#: The thread that may send; the main thread loses that when its next task begins.
_sender: threading.Thread | None = None


def tie_children() -> None:
    """Make every child forked from now on die with this process. The daemon calls it, from its main thread.

    The kernel's tie is to the *thread* that forked, and the daemon forks from its main thread only.
    """
    os.register_at_fork(after_in_child=partial(die_with_parent, os.getpid()))


def tie_to_driver(generations: int) -> None:
    """End this process as soon as one of its ancestors dies: the first thing every task does, in its main thread.

    `generations` counts the ancestors that matter: 1 the daemon, 2 also the JVM, 3 also the driver that started it. A
    system without /proc shows the parent alone.
    """
    global _tied_process, _sender  # noqa: PLW0603 - a process has one line and one sender
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    if _sender is threading.main_thread():
        _sender = None
    if _tied_process == os.getpid():
        return
    line = _ancestors(generations)
    die_with_parent(line[0])
    threading.Thread(target=_watch, args=(line,), name="lifeline", daemon=True).start()
    _tied_process = os.getpid()


def die_on_continue() -> None:
    """Let the process die instead of continuing after a SIGSTOP; the one thread that sends calls it before it sends.

    Exact for the calling thread: it does not execute another instruction of its own. A thread that it starts later
    would not block SIGCONT and would spoil that, so other threads are started before this call. The exit status is 18,
    SIGCONT's number. Raises RuntimeError when another thread has the right to send and still runs.
    """
    global _sender  # noqa: PLW0603 - a process has one sender
    this_thread = threading.current_thread()
    if _sender is not None and _sender is not this_thread and _sender.is_alive():
        raise RuntimeError(f"thread {_sender.name} of this process sends already, {this_thread.name} cannot too")
    _sender = this_thread
    _libc.signal(signal.SIGCONT, ctypes.cast(_libc._exit, ctypes.c_void_p))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCONT})


def parent_of(process: int) -> int | None:
    """Return the parent of `process`; None when that cannot be known (no such process, or no /proc)."""
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may hold anything; state and parent follow it.
    return int(stat.rpartition(b")")[2].split()[1])


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when `parent` dies; end it now if that has happened already."""
    prctl: Callable[..., int] | None = getattr(_libc, "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _ancestors(generations: int) -> list[int]:
    line = [os.getppid()]
    while len(line) < generations and (parent := parent_of(line[-1])) is not None:
        line.append(parent)
    return line


def _watch(line: list[int]) -> None:
    while _ancestors(len(line)) == line:
        time.sleep(_LOOK_EVERY_SECONDS)
    os._exit(1)
