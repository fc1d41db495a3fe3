"""Send heartbeats that only renew leases, many at once: one request each, and one round trip for all.

What cannot be sent so, or was not stored, is left to the pool that sends the others (`heartbeats`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.writing.lone_batches import LoneBatches, Trouble
from kmirror.engine.threads import ReusedThreads
from kmirror.errors import OutcomeUnknown
from kmirror.state.writer import STATE_PARTITION

_logger = logging.getLogger(__name__)

#: The leader stores them one after another: more take longer than they save.
_TOGETHER = 10
#: How many of these may wait for their answers at the same time.
_MOST = 16
#: After this, time is left for a transaction.
_TIMEOUT = 2.0


class RenewingHeartbeat(Protocol):
    """One mirror's heartbeat that only renews its lease; `begin` and `end` are called in a thread of the sender."""

    @property
    def login(self) -> ClientConfig:
        """How to connect to the destination, which is that of all."""

    def begin_renewal(self) -> memoryview | None:
        """Return the batch to append now; None if this heartbeat is not sent so."""

    def end_renewal(self, trouble: Trouble | None) -> None:
        """Take what went wrong, None if it is stored; follows each `begin` that has returned a batch."""


class LeaseRenewals:
    """Send what is added; for one thread, which calls `tick` many times a second."""

    def __init__(self) -> None:
        self._waiting: list[RenewingHeartbeat] = []
        self._running: list[Future[None]] = []
        self._threads = ReusedThreads()
        #: Connections that no thread uses.
        self._free: list[LoneBatches] = []
        self._is_closed = False

    def add(self, heartbeat: RenewingHeartbeat) -> None:
        """Have a heartbeat sent with the next `tick`."""
        self._waiting.append(heartbeat)

    def tick(self) -> None:
        """Start to send what waits, as far as there are threads for it."""
        if not self._waiting:
            return
        for one in self._running:
            if one.done() and (error := one.exception()) is not None:
                _logger.warning("leases were not renewed together", exc_info=error)
        self._running = [one for one in self._running if not one.done()]
        while self._waiting and len(self._running) < _MOST:
            some, self._waiting = self._waiting[:_TOGETHER], self._waiting[_TOGETHER:]
            self._running.append(self._threads.call(lambda some=some: self._send(some), "kmirror-renewals"))  # type: ignore[misc]

    def close(self) -> None:
        """End the threads that send nothing, and close connections, each once nothing is sent on it."""
        self._is_closed = True
        self._threads.close()
        self._close_free()

    def _close_free(self) -> None:
        while self._free:
            with suppress(IndexError):  # another thread may close them, too
                self._free.pop().client.close()

    def _send(self, heartbeats: Sequence[RenewingHeartbeat]) -> None:
        begun: list[RenewingHeartbeat] = []
        batches: list[memoryview] = []
        troubles: Sequence[Trouble | None] = ()
        try:
            for heartbeat in heartbeats:
                if (batch := heartbeat.begin_renewal()) is not None:
                    begun.append(heartbeat)
                    batches.append(batch)
            if begun:
                troubles = self._append(begun[0].login, batches)
        finally:
            unknown = [OutcomeUnknown("it was not sent")] * len(begun)
            for heartbeat, trouble in zip(begun, troubles or unknown, strict=True):
                heartbeat.end_renewal(trouble)

    def _append(self, login: ClientConfig, batches: Sequence[memoryview]) -> Sequence[Trouble | None]:
        try:
            sender = self._free.pop()
        except IndexError:
            sender = LoneBatches(ClusterClient(login), STATE_PARTITION)
        troubles = sender.append(batches, _TIMEOUT)
        if any(troubles):
            sender.client.close()  # the next ones log in with what holds then
        else:
            self._free.append(sender)
        if self._is_closed:
            self._close_free()
        return troubles
