"""Topics with holes, offsets at which nothing is shown, and what applications see of them and of their copies."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.lane import Mirror
from tests.support.leader import OWN_ID
from tests.support.librdkafka import librdkafka
from tests.support.log_batches import VisibleRecord
from tests.support.oracle import librdkafka_records
from tests.support.visible import COMMITTED, UNCOMMITTED, visible

#: First offsets of runs of records, and their lengths: with holes of 5, 1, 2, 2,000 and 1 offsets.
STRETCHES = ((5, 10), (16, 1), (19, 30), (2049, 3), (2053, 4))
RECORDS = sum(count for _, count in STRETCHES)
#: The same with less to fill, for slow ways to fill.
FEW = ((5, 10), (16, 1), (19, 30), (149, 3), (153, 4))


def write_holes(
    cluster: SandboxCluster,
    topic: str,
    partition: int = 0,
    *,
    timestamp: int | None = None,
    stretches: Sequence[tuple[int, int]] = STRETCHES,
) -> None:
    """Write records with holes between them, and before the first."""
    at = time.time_ns() // 1_000_000 if timestamp is None else timestamp
    with (
        ClusterClient(client_config(cluster.client_properties())) as client,
        OffsetAppender(client, TopicPartition(topic, partition), producer_id=OWN_ID) as out,
    ):
        start = out.log_end_offset
        for first, count in stretches:
            offsets = range(start + first, start + first + count)
            out.append([Record(offset, at, b"k%d" % offset, b"v%d" % offset) for offset in offsets])


def read(cluster: SandboxCluster, topic: str, partition: int, isolation: str = COMMITTED) -> list[VisibleRecord]:
    """Return what applications see, also on clusters with logins."""
    config = librdkafka(client_config(cluster.client_properties()))
    return visible(librdkafka_records(cluster.bootstrap_servers, topic, partition, isolation, config))


def assert_alike(mirror: Mirror, topic: str, partitions: int = 1, *, least: int = RECORDS) -> None:
    """Compare what applications see on both sides: at least so many records."""
    for partition in range(partitions):
        wanted = read(mirror.source, topic, partition)
        assert len(wanted) >= least
        assert read(mirror.destination, mirror.mirror_of(topic), partition) == wanted
        assert read(mirror.destination, mirror.mirror_of(topic), partition, isolation=UNCOMMITTED) == wanted
