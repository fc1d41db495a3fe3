"""Open transactions at the source, which block a copy that has reached the last stable offset.

Read-committed consumers see nothing after the first open transaction of a partition, so that is not copied either. If
it stays open, `describe` names the transaction and the command that aborts it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.producers import describe_producers, transactions_of
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.rights.acl_commands import AS_ADMIN
from kmirror.commands import command_line, option
from kmirror.errors import NOT_COPYING, KmirrorError, OutcomeUnknown, Reason
from kmirror.settings.durations import format_duration
from kmirror.state.records import PartitionState
from kmirror.status.partition_row import PartitionRow

#: Younger transactions are not reported: their applications are most likely running.
SHOWN_AFTER_MS = 60_000

#: A broker sends the first batch whole, however little is asked for.
_ONE_BATCH = 1
_SHORTEST_S = 0.1


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The first open transaction of a partition, as its leader reports it; `begun_ms` is its first record's timestamp.

    `transactional_id` and `state` come from its coordinator; None if no coordinator knows it, or we may not ask.
    """

    producer_id: int
    start_offset: int
    begun_ms: int
    transactional_id: str | None = None
    state: str | None = None

    def __str__(self) -> str:
        """Describe it by its producer."""
        if self.transactional_id is None:
            return f"transaction of producer id {self.producer_id}"
        return f"transaction of producer id {self.producer_id} (transactional id {self.transactional_id}, {self.state})"


def is_blocked_by_transaction(row: PartitionRow) -> bool:
    """Return whether a partition has all committed records of its source, and the source has more after them."""
    return (
        row.state is PartitionState.MIRRORING
        and (row.reason is None or row.reason in NOT_COPYING)
        and row.lag == 0
        and row.source_offset is not None
        and row.source_high_watermark is not None
        and row.source_offset < row.source_high_watermark
    )


def open_transactions(
    partitions: Iterable[TopicPartition], client: ClusterClient, patience_s: float
) -> dict[TopicPartition, OpenTransaction]:
    """Ask the leaders for the first open transaction of each partition (DescribeProducers, KIP-664; needs READ).

    Omits partitions that have none, that we may not read, or for which `patience_s` (seconds) is too short.

    Raises UnreachableError: no broker of the cluster answers.
    """
    until = time.monotonic() + patience_s
    found = {}
    for partition, answer in describe_producers(client, partitions, timeout=patience_s).items():
        starts = ((p.current_txn_start_offset, p.producer_id) for p in answer.producers)
        opened = [(start, producer_id) for start, producer_id in starts if start is not None]
        if not opened or time.monotonic() > until:
            continue
        start_offset, producer_id = min(opened)
        try:
            begun_ms = _time_of(client, partition, start_offset)
        except (KmirrorError, OutcomeUnknown):
            continue
        if begun_ms is not None:
            found[partition] = OpenTransaction(producer_id, start_offset, begun_ms)
    if found and time.monotonic() < until:
        found = _with_names(client, found, max(until - time.monotonic(), _SHORTEST_S))
    return found


def _with_names(
    client: ClusterClient, found: Mapping[TopicPartition, OpenTransaction], patience_s: float
) -> dict[TopicPartition, OpenTransaction]:
    """Return the transactions with their transactional ids and states, as far as coordinators return them."""
    try:
        known = transactions_of(client, {one.producer_id for one in found.values()}, patience_s)
    except (KmirrorError, OutcomeUnknown):
        return dict(found)
    named = {}
    for partition, one in found.items():
        listed = known.get(one.producer_id)
        named[partition] = one if listed is None else replace(one, transactional_id=listed[0], state=listed[1])
    return named


def abort_command(source: Mapping[str, str], partition: TopicPartition, start_offset: int) -> str:
    """Return the command that ends an open transaction by its first offset there; `source`: client properties."""
    return command_line(
        "kafka-transactions.sh",
        *option("--bootstrap-server", source.get("bootstrap.servers", "SOURCE")),
        *(() if source.get("security.protocol", "PLAINTEXT") == "PLAINTEXT" else AS_ADMIN),
        "abort",
        *option("--topic", partition.topic),
        *("--partition", str(partition.partition)),
        *("--start-offset", str(start_offset)),
    )


def _time_of(client: ClusterClient, partition: TopicPartition, offset: int) -> int | None:
    """Return the timestamp of the batch at an offset, None if there is none."""
    found = PartitionReader(client, partition, patience_s=0).read_on(offset, max_bytes=_ONE_BATCH)
    if not isinstance(found, Batches) or found.headers[0].base_offset > offset:
        return None
    header = found.headers[0]
    begun_ms = header.max_timestamp if header.is_log_append_time else header.base_timestamp
    return begun_ms if begun_ms >= 0 else None


def with_transaction(
    row: PartitionRow, found: OpenTransaction, source: Mapping[str, str], now_ms: int, shown_after_ms: int
) -> PartitionRow:
    """Return the row with the transaction as its reason, unless it is too young; `source`: client properties."""
    age_ms = now_ms - found.begun_ms
    if age_ms < shown_after_ms:
        return row
    message = (
        f"blocked at offset {row.source_offset} by an open {found}, begun {format_duration(age_ms)} ago at offset "
        f"{found.start_offset}; let its application end it, or run: "
        + abort_command(source, TopicPartition(row.source_topic, row.partition), found.start_offset)
    )
    if row.reason is not None:
        return replace(row, error_message=f"{row.error_message}; it is also {message}")
    return replace(row, reason=Reason.OPEN_TRANSACTION, error_message=message)
