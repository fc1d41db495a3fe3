"""The same topic on two real clusters, and ways to write to either."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess, client_config
from kmirror.engine.compare.difference import Difference, PartitionComparison, retention_note
from kmirror.engine.compare.logs import compare_partition, offset_of
from kmirror.engine.lane.reports.state_log import append_to
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.new_topics import create_and_wait
from tests.support.topics import set_topic
from tests.support.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIME = 1_700_000_000_000


class Side:
    """One cluster's partition 0 of a topic, and ways to write to it."""

    def __init__(self, cluster: SandboxCluster, topic: str, config: Mapping[str, str]) -> None:
        self.cluster = cluster
        self.partition = TopicPartition(topic, 0)
        self.properties = {"bootstrap.servers": cluster.bootstrap_servers}
        self.client = ClusterClient(client_config(self.properties))
        self.admin = AdminClient(self.properties)
        create_and_wait(self.admin, NewTopic(topic, 1, 1, config=dict(config)))
        # asked again until the leader has taken office
        assert self.client.list_offsets({self.partition: LATEST})[self.partition].offset == 0

    @property
    def access(self) -> ClusterAccess:
        """How workers connect to the cluster."""
        return ClusterAccess(self.properties, self.client.metadata([]).cluster_id)

    def append(self, records: list[Record], *, size: int = 10, codec: str = "none") -> None:
        """Append records in batches of up to `size`, as they are."""
        for first in range(0, len(records), size):
            # the broker assigns offsets; within a batch they count from 0
            batch = [replace(record, offset=i) for i, record in enumerate(records[first : first + size])]
            append_to(self.client, self.partition, memoryview(make_batch(batch, compression_type=codec)))

    def producer(self, **config: Any) -> Producer:
        """Return a librdkafka producer."""
        return Producer({**self.properties, "acks": "all", **config})

    def transaction(self, values: list[bytes], *, commit: bool | None) -> Producer:
        """Write records in a transaction, and wait for its marker; with `commit` None it stays open."""
        before = self.log_end_offset
        producer = self.producer(**{"transactional.id": uuid.uuid4().hex, "linger.ms": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        for number, value in enumerate(values):
            producer.produce(*self.partition[:1], value, partition=0, timestamp=BASE_TIME + number)
        producer.flush(30)
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(30)
        wait_until(lambda: self.log_end_offset >= before + len(values) + (commit is not None))
        return producer

    def set(self, *settings: str) -> None:
        """Change topic settings: name, value, name, value …"""
        set_topic(self.cluster, self.partition.topic, dict(zip(settings[::2], settings[1::2], strict=True)))

    def delete_records(self, before: int) -> None:
        """Move the log start."""
        partition = ClientPartition(*self.partition, before)
        self.admin.delete_records([partition])[partition].result(30)

    def log_files(self) -> list[Path]:
        """Return the partition's segment files."""
        (broker,) = self.cluster.brokers
        return sorted((broker.log_dir / f"{self.partition}").glob("*.log"))

    @property
    def log_end_offset(self) -> int:
        """Where the log ends."""
        return self.client.list_offsets({self.partition: LATEST}, log_end=True)[self.partition].offset or 0


def compare_whole(
    source: Side, destination: Side, start: int | None = None, end: int | None = None
) -> PartitionComparison:
    """Compare two sides from an offset, by default where both logs have begun, to one, by default the second's end."""
    ours, theirs = (offset_of(side.client, side.partition, EARLIEST) for side in (destination, source))
    notes = (retention_note(theirs, ours),) if start is None and ours != theirs else ()
    start = max(ours, theirs) if start is None else start
    end = destination.log_end_offset if end is None else end
    found = compare_partition(source.client, destination.client, source.partition, destination.partition, start, end)
    return replace(found, notes=notes + found.notes)


@dataclass
class Twins:
    """The same topic on both clusters."""

    source: Side
    destination: Side

    def both(self, write: Callable[[Side], object]) -> None:
        """Do the same to both."""
        write(self.source)
        write(self.destination)

    def compare(self, start: int | None = None, end: int | None = None) -> PartitionComparison:
        """Compare them."""
        return compare_whole(self.source, self.destination, start, end)

    def difference(self, start: int | None = None, end: int | None = None) -> Difference:
        """Compare them and return the first difference, which must be there."""
        found = self.compare(start, end)
        assert not found.equal
        assert found.first_difference is not None
        return found.first_difference


def record(number: int, **changes: object) -> Record:
    headers = (("h", b"%d" % number), ("empty", b""), ("null", None)) if number % 3 else ()
    key = None if number % 5 == 0 else b"k%d" % number
    value = None if number % 7 == 0 else b"v%d" % number * (number % 4)
    return replace(Record(number, BASE_TIME + number, key, value, headers), **changes)  # type: ignore[arg-type]


RECORDS = [record(number) for number in range(100)]
