"""Tie a worker process to its driver, so that no worker writes after its driver is gone or a successor took over.

The ancestors of a worker are the Python daemon that forked it, the JVM that started the daemon, and the driver. Three
dangers:

* The daemon is killed. Its workers would live on, so the kernel kills each with it (`prctl`, Linux); the daemon
  requests that at the fork, before a worker runs any code of its own.
* The JVM or the driver dies while the daemon is frozen and cannot end its workers. A thread checks twice a second.
* The worker is stopped (SIGSTOP), a successor takes over, the worker is continued. It must not send one more byte, so
  SIGCONT ends the process. The handler is the C function `_exit` itself, because Python runs its own handlers only
  between two bytecodes, which is after the bytes have left.

The last one needs care with threads. The kernel delivers SIGCONT to any one thread that does not block it, and the
others run on for some microseconds. So SIGCONT is blocked in the main thread, hence in every thread it starts, and
unblocked only in the one thread that sends: it takes the signal before its next instruction.

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
_CHECK_SECONDS = 0.5

_libc = ctypes.CDLL(None, use_errno=True)
_libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_libc.signal.restype = ctypes.c_void_p

#: The process id that is already tied: a fork has another one and starts untied.
_tied_process: int | None = None
#: The thread that may send; the main thread loses this right when its next task begins.
_sender: threading.Thread | None = None


def tie_children() -> None:
    """Make every child forked from now on die with this process; the daemon calls this from its main thread.

    The kernel ties a child to the *thread* that forked it, and the daemon forks from its main thread only.
    """
    os.register_at_fork(after_in_child=partial(die_with_parent, os.getpid()))


def tie_to_driver(generations: int) -> None:
    """End this process as soon as one of its ancestors dies; every task calls this first, in its main thread.

    `generations` is the number of ancestors to watch: 1 the daemon, 2 also the JVM, 3 also the driver that started it.
    Without /proc only the parent is known.
    """
    global _tied_process, _sender  # noqa: PLW0603 - a process is tied once and has one sender
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    if _sender is threading.main_thread():
        _sender = None
    if _tied_process == os.getpid():
        return
    ancestors = _ancestors(generations)
    die_with_parent(ancestors[0])
    threading.Thread(target=_watch, args=(ancestors,), name="lifeline", daemon=True).start()
    _tied_process = os.getpid()


def die_on_continue() -> None:
    """Make the process die instead of continuing after a SIGSTOP; the one thread that sends calls this before it sends.

    Exact for the calling thread: it executes no further instruction. A thread that it starts later would not block
    SIGCONT and would defeat this, so start other threads before, or with `start_beside`. The exit status is 18, the
    number of SIGCONT. Raises RuntimeError if another live thread has the right to send.
    """
    global _sender  # noqa: PLW0603 - a process has one sender
    this_thread = threading.current_thread()
    if _sender is not None and _sender is not this_thread and _sender.is_alive():
        raise RuntimeError(f"thread {_sender.name} of this process already sends, so {this_thread.name} cannot")
    _sender = this_thread
    _libc.signal(signal.SIGCONT, ctypes.cast(_libc._exit, ctypes.c_void_p))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCONT})


def start_beside(thread: threading.Thread) -> None:
    """Start a thread from the one that sends, such that the new one does not take SIGCONT in its place."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def parent_of(process: int) -> int | None:
    """Return the parent of `process`; None if unknown (no such process, or no /proc)."""
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return None
    # the name, in parentheses, may contain anything; state and parent follow it
    return int(stat.rpartition(b")")[2].split()[1])


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when `parent` dies; end it now if `parent` is already dead."""
    prctl: Callable[..., int] | None = getattr(_libc, "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _ancestors(generations: int) -> list[int]:
    ancestors = [os.getppid()]
    while len(ancestors) < generations and (parent := parent_of(ancestors[-1])) is not None:
        ancestors.append(parent)
    return ancestors


def _watch(ancestors: list[int]) -> None:
    while _ancestors(len(ancestors)) == ancestors:
        time.sleep(_CHECK_SECONDS)
    os._exit(1)
