"""Tiered topics whose older records are only in the store, and the store's cluster in a given state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.kafka_versions import is_older
from tests.support.leader import create_topic
from tests.support.librdkafka import librdkafka
from tests.support.producers import whole_batches
from tests.support.topics import alter_topic
from tests.support.waiting import wait_until

#: Settings with which a topic's closed segments move to the store, and only there, within two seconds.
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1", "file.delete.delay.ms": "100"}
SEGMENT_BYTES = 100_000
#: The broker setting that limits reads of the store, in bytes a second; it can change while the broker runs.
REMOTE_QUOTA = "remote.log.manager.fetch.max.bytes.per.second"
#: Records in a batch and in a segment, each of about a kilobyte.
_BATCH, IN_SEGMENT = 20, 80
_EARLIEST_LOCAL = -4


def tiered_topic(
    cluster: SandboxCluster, records: int, *, partitions: int = 1, name: str | None = None, only_in_store: bool = True
) -> str:
    """Create a tiered topic with this many records in each partition, of `payload`; return its name.

    Unless `only_in_store` is false, all closed segments are only in the store then.
    """
    topic = create_topic(cluster, partitions=partitions, name=name, settings={**TIERED, **small_segments(cluster)})
    write_tiered(cluster, topic, range(records), partitions=partitions)
    if only_in_store:
        for partition in range(partitions):
            wait_until_only_in_store(cluster, topic, records - IN_SEGMENT, partition)
    return topic


def make_tiered(cluster: SandboxCluster, topic: str) -> None:
    """Let an existing topic move its segments to the store."""
    settings = {**TIERED, **small_segments(cluster)}
    alter_topic(cluster, topic, **{key.replace(".", "_"): value for key, value in settings.items()})


def small_segments(cluster: SandboxCluster) -> Mapping[str, str]:
    """Return the setting that keeps segments small; from Kafka 4 on, only tests may go below a megabyte with it."""
    key = "segment.bytes" if is_older(cluster.kafka_version, "4.0") else "internal.segment.bytes"
    return {key: str(SEGMENT_BYTES)}


def payload(number: int) -> bytes:
    """Return the value of a record of `write_tiered`, a kilobyte that differs from all others."""
    return b"%08d" % number * 125


def write_tiered(cluster: SandboxCluster, topic: str, numbers: range, *, partitions: int = 1) -> None:
    """Write records with these numbers to each partition, in batches of twenty."""
    producer = whole_batches(topic, librdkafka(client_config(cluster.client_properties())))
    for at in range(numbers.start, numbers.stop, _BATCH):
        for partition in range(partitions):
            for number in range(at, min(at + _BATCH, numbers.stop)):
                producer.produce(topic, payload(number), b"%d" % number, partition)
        assert producer.flush(60) == 0


def local_start(cluster: SandboxCluster, topic: str, partition: int = 0) -> int:
    """Return the first offset that the leader has on its own disk."""
    return _offset(cluster, topic, partition, _EARLIEST_LOCAL)


def log_end(cluster: SandboxCluster, topic: str, partition: int = 0) -> int:
    """Return where the log ends."""
    return _offset(cluster, topic, partition, LATEST)


def wait_until_only_in_store(cluster: SandboxCluster, topic: str, offset: int, partition: int = 0) -> None:
    """Wait until the leader has no record before this offset on its own disk."""
    wait_until(lambda: local_start(cluster, topic, partition) >= offset)


@contextmanager
def store_that(behave: Callable[[], None], *clusters: SandboxCluster) -> Iterator[None]:
    """Have a store behave in a way during a block; afterwards the stores of these clusters are well."""
    behave()
    try:
        yield
    finally:
        for cluster in clusters:
            cluster.store.well()


def _offset(cluster: SandboxCluster, topic: str, partition: int, which: int) -> int:
    asked = TopicPartition(topic, partition)
    with ClusterClient(client_config(cluster.client_properties())) as client:
        answer = client.list_offsets({asked: which}, log_end=which == LATEST)[asked]
    assert answer.offset is not None, answer
    return answer.offset
