"""Wait until brokers answer, and fail immediately if one of them exits."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from functools import partial

from kmirror.errors import TimedOutError, UnreachableError
from kmirror.words import counted
from kmirror.work import Add, unwatched
from kmirror_sandbox.client_files import Probe, login_probe, metadata_probe
from kmirror_sandbox.java_server import JavaServer
from kmirror_sandbox.node import Node
from kmirror_sandbox.ports import LOOPBACK

_POLL_S = 0.03


def wait_until_answering(nodes: Sequence[Node], brokers: int, deadline: float, progress: Add = unwatched) -> None:
    """Wait until each of these nodes answers as a member of its cluster and knows `brokers` brokers of it.

    `progress` counts them; `deadline` is of `time.monotonic`.

    Raises:
        UnreachableError: a broker exited, with the cause.
        TimedOutError: a broker does not answer in time.
    """
    for node in nodes:
        wait_until_listening(node, node.spec.port, deadline)
    for node in nodes:
        probe = metadata_probe(node, brokers)
        _wait(node, probe, deadline, f"does not know {counted(brokers, 'broker')} of its cluster")
        progress(1)


def wait_until_listening(server: JavaServer, port: int, deadline: float) -> None:
    """Wait until a server has opened a port. Raises as `wait_until_answering`."""
    _wait(server, partial(listens, port), deadline, "has not opened its port")


def wait_until_logged_in(nodes: Sequence[Node], user: str, password: str, deadline: float) -> None:
    """Wait until each of these nodes accepts the user's SCRAM password. Raises as `wait_until_answering`."""
    for node in nodes:
        _wait(node, login_probe(node, user, password), deadline, f"does not accept the login of user {user}")


def listens(port: int) -> bool:
    """Return whether something on this machine accepts connections on a port."""
    try:
        socket.create_connection((LOOPBACK, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _wait(node: JavaServer, probe: Probe, deadline: float, otherwise: str) -> None:
    while not probe():
        if node.process() is None:
            died = UnreachableError(
                f"{node.title} exited instead of starting: {node.exit_cause()}",
                f"see {node.log_file} and {node.console_file}",
            )
            died.add_note(node.tail())
            raise died
        if time.monotonic() > deadline:
            late = TimedOutError(f"{node.title} {otherwise} in time", f"see its log, {node.log_file}")
            late.add_note(node.tail())
            raise late
        time.sleep(_POLL_S)
