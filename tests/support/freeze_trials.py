"""Freeze a sending process, continue it, and count the bytes it still sends: many times, each time another process.

    python -m tests.support.freeze_trials SENDER TRIALS

SENDER says which thread of the child sends: `main` alone, `main-of-two` beside a busy one, `second` beside a busy main
thread. In every other trial the child is caught in a send that waits for buffer space. Prints how often each outcome
came: exit status, and whether a byte arrived after the child was continued.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress

from kmirror.engine import lifeline


def busy() -> None:
    """Take the interpreter from the other thread again and again."""
    while True:
        sum(range(10_000))
        time.sleep(0.0005)


def send_for_ever(connection: socket.socket) -> None:
    """Send in a loop with nothing else in it."""
    lifeline.die_on_continue()
    send, data = connection.send, b"x" * 100
    while True:
        send(data)


def child(sender: str, connection: socket.socket) -> None:
    """Send as a worker would."""
    lifeline.tie_to_driver(1)
    if sender == "second":
        threading.Thread(target=send_for_ever, args=(connection,), daemon=True).start()
        busy()
    if sender == "main-of-two":
        threading.Thread(target=busy, daemon=True).start()
    send_for_ever(connection)


def drain(connection: socket.socket) -> None:
    """Read everything that is available."""
    connection.setblocking(False)
    with suppress(BlockingIOError):
        while connection.recv(1 << 20):
            pass
    connection.setblocking(True)


def trial(sender: str, wait_for_room: bool) -> str:
    """Run one child; return how it ended."""
    ours, its = socket.socketpair()
    process = os.fork()
    if process == 0:
        ours.close()
        child(sender, its)
    its.close()
    ours.recv(1)
    end = time.monotonic() + random.uniform(0.001, 0.006)
    while time.monotonic() < end:
        if not wait_for_room:
            ours.recv(1 << 20)
    os.kill(process, signal.SIGSTOP)
    os.waitpid(process, os.WUNTRACED)
    drain(ours)
    os.kill(process, signal.SIGCONT)
    late = bool(ours.recv(1))
    ours.close()
    _, status = os.waitpid(process, 0)
    return f"exit {os.waitstatus_to_exitcode(status)}" + (", sent more" if late else "")


if __name__ == "__main__":
    outcomes = Counter(trial(sys.argv[1], bool(number % 2)) for number in range(int(sys.argv[2])))
    sys.stdout.write(json.dumps(outcomes))
