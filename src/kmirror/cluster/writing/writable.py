"""Probe whether we may write to partitions, without writing anything.

We send a batch with a wrong checksum. Without WRITE on the topic the broker answers 29 before it reads the batch; with
WRITE it answers 2 (corrupt).
"""

from __future__ import annotations

from collections.abc import Collection

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import CRC, CRC_POSITION, crc_of
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.commands import option
from kmirror.errors import BrokerError, KmirrorError, Reason, UnreachableError


def probe_writable(
    client: ClusterClient,
    partitions: Collection[TopicPartition],
    *,
    metadata: ClusterMetadata | None = None,
    timeout: float | None = None,
) -> dict[TopicPartition, KmirrorError | None]:
    """Return for each partition None if we may write to it, or why not. Writes nothing.

    Give `metadata` of the topics if it was just read.

    Raises:
        UnreachableError: no broker of the cluster answers.
    """
    if not partitions:
        return {}
    corrupt = _corrupt_batch()
    found = client.send_batches(partitions, lambda _: corrupt, metadata=metadata, timeout=timeout)
    return {partition: _verdict(client.config, partition, code) for partition, code in found.items()}


def _corrupt_batch() -> bytes:
    batch = bytearray(make_batch([Record(0, 0, None, None, ())]))
    CRC.pack_into(batch, CRC_POSITION, crc_of(memoryview(batch)) ^ 1)
    return bytes(batch)


def _verdict(config: ClientConfig, partition: TopicPartition, code: int) -> KmirrorError | None:
    if code == Code.CORRUPT_MESSAGE:
        return None
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return UnreachableError(
            f"{partition}: we lack WRITE on the topic",
            grant_line(config, ("WRITE",), *option("--topic", partition.topic)),
            Reason.NOT_AUTHORIZED,
        )
    return BrokerError(code, code_name(code), f"probing the right to write to {partition}")
