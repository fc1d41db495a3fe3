"""A program: import all that kmirror's commands need, once, and fork for each command that it is asked to run.

A process of kmirror takes a third of a second of CPU time to start, nearly all of it imports; a fork takes a hundredth.
What runs in it is a normal process: its own streams, environment, folder, session and exit code.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import kmirror
import kmirror_compat
import kmirror_sandbox
from tests.support.fork_client import socket_name

#: Modules that are programs, or need what is not installed.
_LEFT_OUT = ("__main__", "kmirror.engine.spark.daemon")


class _Command(NamedTuple):
    words: list[str]
    environ: dict[str, str]
    cwd: str


def _import_everything() -> None:
    for package in (kmirror, kmirror_compat, kmirror_sandbox):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(_LEFT_OUT):
                importlib.import_module(module.name)
    for name in ("confluent_kafka.admin", "tests.support.local_engine"):
        importlib.import_module(name)
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads must not fork"
    gc.collect()
    gc.freeze()


def _serve(address: str) -> _Command | None:
    """Fork for each command until standard input ends; return the command in the forked process, nothing at the end.

    What was forked is killed when its client is gone.
    """
    heard, hears = socket.socketpair()
    for end in (heard, hears):
        end.setblocking(False)
    signal.set_wakeup_fd(heard.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(socket_name(address))
        listener.listen(64)
        for place in (listener, hears, sys.stdin):
            selector.register(place, selectors.EVENT_READ)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            found = [key for key, _ in selector.select()]
            ready = [key.fileobj for key in found]
            if sys.stdin in ready:
                return None
            for key in found:
                if key.data is not None:  # a client says nothing more: it is gone
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)
            if hears in ready:
                hears.recv(4096)
                _tell_who_has_ended(running, selector)
            if listener in ready:
                connection, _ = listener.accept()
                _, streams, *_ = socket.recv_fds(connection, 1, 3)
                with connection.makefile("rb") as lines:
                    command = _Command(*json.loads(lines.readline()))
                pid = os.fork()
                if pid == 0:
                    for other in (connection, heard, hears, *running.values()):
                        other.close()
                    _take(streams)
                    return command
                for stream in streams:
                    os.close(stream)
                running[pid] = connection
                selector.register(connection, selectors.EVENT_READ, pid)
                with suppress(OSError):  # the client may be gone
                    connection.sendall(b"%d\n" % pid)


def _tell_who_has_ended(running: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as connection:
            with suppress(KeyError):  # its client is gone
                selector.unregister(connection)
            with suppress(OSError):
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _take(streams: list[int]) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    for place, stream in enumerate(streams):
        os.dup2(stream, place)
        os.close(stream)


def _run(command: _Command) -> None:
    """Be a new interpreter that runs a module."""
    os.environ.clear()
    os.environ.update(command.environ)
    os.chdir(command.cwd)
    # as an interpreter opens them
    sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    if command.environ.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), encoding="utf-8", write_through=True)
    else:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    module, *sys.argv[1:] = command.words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _import_everything()
    asked = _serve(sys.argv[1])
    if asked is not None:
        _run(asked)
