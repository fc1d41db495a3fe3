"""Tell systemd how an engine is, by the protocol of sd_notify(3): a datagram to the socket that NOTIFY_SOCKET names."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Self


class ServiceManager:
    """Send what is told to the service manager that started this process; where there is none, nothing happens."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._told_ready = False

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the one that the environment names."""
        address = environ.get("NOTIFY_SOCKET")
        return cls("\0" + address[1:] if address and address.startswith("@") else address)

    def turns(self, status: str) -> None:
        """Tell that the process is alive and what it does; the first time, that it has started.

        An engine that waits for its clusters, or stands by, has started: it will copy without anybody's help.
        """
        first = "" if self._told_ready else "READY=1\n"
        self._told_ready = True
        self._send(f"{first}WATCHDOG=1\nSTATUS={status}")

    def stops(self) -> None:
        """Tell that the process is about to end."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            notifier.setblocking(False)
            notifier.sendto(message.encode(), self._address)
