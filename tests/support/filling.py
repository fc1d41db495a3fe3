"""Transactions as a lane that died left them: with partitions, and not committed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import transactions
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.writing.empty_transaction import EmptyTransactions


def begin_transactions(client: ClusterClient, settled: EmptyTransactions, partitions: Sequence[TopicPartition]) -> None:
    """Add partitions to a transaction of each id, and leave them open."""
    deadline = time.monotonic() + 30
    for one in settled._ids:
        assert one.coordinator is not None
        assert one.producer is not None
        connection = client.connect(*one.coordinator)
        number = connection.next_correlation_id()
        request = transactions.add_partitions(one.name, one.producer, partitions)
        connection.send_frame([request.encode(number, transactions.VERSION, "test")], 10)
        codes, _ = transactions.added(connection.receive_frame(number, deadline))
        assert set(codes.values()) == {0}
