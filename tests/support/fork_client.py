"""A program: have the fork server run a command, and stand in for it: streams, signals, exit code.

It is run by a Python without site packages, as `fork_client.py ADDRESS MODULE ARGUMENT…`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence


def ask(
    address: str, words: Sequence[str], environ: Mapping[str, str], cwd: str, streams: Sequence[int]
) -> tuple[socket.socket, int]:
    """Have a module run with arguments and these three streams; return a socket for its exit code, and its pid."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(socket_name(address))
    socket.send_fds(connection, [b"\n"], list(streams))
    connection.sendall(json.dumps([list(words), dict(environ), cwd]).encode() + b"\n")
    return connection, exit_code(connection)


def socket_name(address: str) -> str:
    """Return a name that no file has: it is gone with its server (unix(7), abstract sockets)."""
    return f"\0{address}"


def exit_code(connection: socket.socket) -> int:
    """Return the next number from the server: finally the exit code, negative for a signal."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError("the fork server is gone")
        line += byte
    return int(line)


def _be(address: str, words: Sequence[str]) -> int:
    connection, pid = ask(address, words, os.environ, os.getcwd(), (0, 1, 2))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = exit_code(connection)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(_be(sys.argv[1], sys.argv[2:]))
