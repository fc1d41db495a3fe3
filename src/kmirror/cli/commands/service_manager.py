"""Notify systemd as sd_notify(3) does: with datagrams to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Self


class ServiceManager:
    """Notify the service manager that started this process; without one, do nothing."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._is_ready_sent = False

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the one named by the environment."""
        address = environ.get("NOTIFY_SOCKET")
        return cls("\0" + address[1:] if address and address.startswith("@") else address)

    def report_alive(self, status: str) -> None:
        """Report that the process is alive and what it does; the first time also that it is ready.

        An engine that waits for its clusters, or is on standby, counts as ready: it needs no help to start copying.
        """
        first = "" if self._is_ready_sent else "READY=1\n"
        self._is_ready_sent = True
        self._send(f"{first}WATCHDOG=1\nSTATUS={status}")

    def report_stopping(self) -> None:
        """Report that the process is about to end."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            notifier.setblocking(False)
            notifier.sendto(message.encode(), self._address)
