"""Append batches of several producers to one partition, outside of transactions and at once: one round trip for all.

A request has one batch of a partition, so each is a request of its own. They follow each other on one connection, and
the leader carries them out in this order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from kmirror.cluster.client import ClusterClient, seconds_left
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import LeaderAddress, TopicPartition
from kmirror.cluster.protocol.wire import Exchange, FrameError
from kmirror.cluster.writing.transactional_writer import HIGHEST_PRODUCE_VERSION
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, UnreachableError

_API = produce.API._replace(highest=HIGHEST_PRODUCE_VERSION)

Trouble = KmirrorError | OutcomeUnknown


class LoneBatches:
    """Append to one partition; nobody else uses its client meanwhile."""

    def __init__(self, client: ClusterClient, partition: TopicPartition) -> None:
        self.client = client
        self._partition = partition
        self._leader: LeaderAddress | None = None

    def append(self, batches: Sequence[memoryview], timeout: float) -> list[Trouble | None]:
        """Append batches (`TransactionalWriter.batch_alone`); return of each what went wrong, None if it is stored.

        One of which something went wrong may be stored, now or later. `timeout` in seconds, for all.
        """
        try:
            return self._append(batches, timeout)
        except (KmirrorError, FrameError, OutcomeUnknown) as error:
            self._leader = None
            self.client.close()
            return [OutcomeUnknown(str(error))] * len(batches)

    def _append(self, batches: Sequence[memoryview], timeout: float) -> list[Trouble | None]:
        deadline = time.monotonic() + timeout
        leader, self._leader = self._leader, None
        if leader is None:
            found = self.client.metadata([self._partition.topic], timeout=seconds_left(deadline))
            leader = found.leader_address(self._partition)
        if leader is None:
            raise UnreachableError(f"{self._partition} has no leader")
        connection = self.client.connect(leader.node_id, leader.host, leader.port, timeout=seconds_left(deadline))
        left = seconds_left(deadline)
        answers = connection.request_all([self._request(batch, left) for batch in batches], timeout=left)
        codes = [one[self._partition].error_code if self._partition in one else None for one in answers]
        if not any(code is None or code for code in codes):
            self._leader = leader
        return [self._trouble(code) for code in codes]

    def _request(self, batch: memoryview, timeout: float) -> Exchange:
        append = produce.Append(self._partition.topic, b"", self._partition.partition, batch)
        return replace(produce.exchange([append], int(1000 * timeout)), api=_API)

    def _trouble(self, code: int | None) -> Trouble | None:
        if code is None:
            return OutcomeUnknown(f"an answer says nothing of {self._partition}")
        return BrokerError(code, code_name(code), f"appending to {self._partition}") if code else None
