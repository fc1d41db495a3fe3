"""Wait until brokers answer, and notice at once when one of them ends instead."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial

from kmirror.errors import TimedOutError, UnreachableError
from kmirror.sandbox.clients import Probe, in_metadata, may_log_in
from kmirror.sandbox.node import Node
from kmirror.sandbox.ports import LOOPBACK
from kmirror.sandbox.server import JavaServer
from kmirror.words import counted
from kmirror.work import Add, unwatched

_POLL_S = 0.03


def wait_until_answering(nodes: Sequence[Node], brokers: int, deadline: float, progress: Add = unwatched) -> None:
    """Wait until each of these nodes answers as a member of its cluster and knows so many brokers of it.

    `progress` is given how many more do.

    `deadline` is of `time.monotonic`. Raises UnreachableError with the cause of its death when a broker ends,
    TimedOutError when it does not answer in time.
    """
    for node in nodes:
        wait_until_listening(node, node.spec.port, deadline)
    for node in nodes:
        _wait(node, in_metadata(node, brokers), deadline, f"does not know {counted(brokers, 'broker')} of its cluster")
        progress(1)


def wait_until_listening(server: JavaServer, port: int, deadline: float) -> None:
    """Wait until a server has opened a port. Raises as `wait_until_answering`."""
    _wait(server, partial(listens, port), deadline, "has not opened its port")


def wait_until_logged_in(nodes: Sequence[Node], user: str, password: str, deadline: float) -> None:
    """Wait until each of these nodes lets the user in with the SCRAM password. Raises as `wait_until_answering`."""
    for node in nodes:
        _wait(node, may_log_in(node, user, password), deadline, f"does not let user {user} in")


def listens(port: int) -> bool:
    """Tell whether something on this machine accepts connections on a port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _wait(node: JavaServer, probe: Probe, deadline: float, otherwise: str) -> None:
    while not probe():
        if node.process() is None:
            died = UnreachableError(
                f"{node.title} ended instead of starting: {node.last_words()}",
                f"The whole story is in {node.log_file} and {node.console_file}.",
            )
            died.add_note(node.tail())
            raise died
        if time.monotonic() > deadline:
            late = TimedOutError(f"{node.title} {otherwise} in time", f"Look at its log, {node.log_file}.")
            late.add_note(node.tail())
            raise late
        time.sleep(_POLL_S)
