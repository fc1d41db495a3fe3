"""What applications see on both sides of a mirror, and how it is compared.

Records come from librdkafka and Kafka's console consumer, log ends and starts from librdkafka, the logs of replicas
from the folders of stopped brokers. None of that is kmirror's.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition
from crc32c import crc32c

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.log_batches import VisibleRecord
from tests.support.oracle import (
    DumpedBatch,
    ReadRecord,
    console_consumer,
    dump_log,
    dump_logs,
    librdkafka_records,
    segment_files,
)
from tests.support.waiting import PATIENCE_S

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

_LONGEST_SHOWN = 60
#: In a batch (KIP-98): its CRC, which covers all that follows it, the attributes first; two of their bits.
_CRC_POSITION, _TRANSACTIONAL, _CONTROL = 17, 0x10, 0x20


class Bounds(NamedTuple):
    """Where a partition starts and ends for consumers; with read_committed the end is the last stable offset."""

    start: int
    end: int


def bounds(
    cluster: SandboxCluster, topics: Iterable[str], partitions: int = 1, isolation: str = UNCOMMITTED
) -> dict[TopicPartition, Bounds]:
    """Ask for the start and end of partitions; ask again while their leaders change."""
    topic_partitions = [TopicPartition(topic, index) for topic in topics for index in range(partitions)]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        consumer = _consumer(cluster.bootstrap_servers, isolation)
        try:
            found = {partition: consumer.get_watermark_offsets(partition, timeout=10) for partition in topic_partitions}
            reported = {partition: Bounds(*ends) for partition, ends in found.items() if ends is not None}
            if len(reported) == len(topic_partitions):
                return reported
        except KafkaException:
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline, f"no answer about the ends of {topic_partitions}"
        _consumer.cache_clear()  # finding another leader may take a while
        time.sleep(0.1)


@lru_cache(8)
def _consumer(bootstrap_servers: str, isolation: str) -> Consumer:
    """Return a cached client for repeated requests; it does not log brokers that are gone."""
    return Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "bounds", "isolation.level": isolation, "log_level": 0}
    )


def bounds_of(cluster: SandboxCluster, topic: str, partition: int = 0, isolation: str = UNCOMMITTED) -> Bounds:
    """Ask for the start and end of one partition."""
    return bounds(cluster, [topic], partition + 1, isolation)[TopicPartition(topic, partition)]


def visible(records: Iterable[ReadRecord]) -> list[VisibleRecord]:
    """Return what matters to an application."""
    return [VisibleRecord(one.offset, one.timestamp, one.key, one.value, one.headers) for one in records]


def shown(cluster: SandboxCluster, topic: str, partition: int = 0, isolation: str = COMMITTED) -> list[VisibleRecord]:
    """Read a partition with librdkafka, to its end."""
    return visible(librdkafka_records(cluster.bootstrap_servers, topic, partition, isolation))


def shown_by_console(
    cluster: SandboxCluster, topic: str, partition: int = 0, isolation: str = COMMITTED, *, records: int
) -> list[VisibleRecord]:
    """Read this many records of a partition with Kafka's own console consumer."""
    return visible(console_consumer(cluster, topic, partition, isolation, max_messages=records))


def difference(wanted: Sequence[VisibleRecord], found: Sequence[VisibleRecord], what: str = "the log") -> str | None:
    """Return where two views differ, in a readable line; None if they are equal."""
    for one, other in zip_longest(wanted, found):
        if one != other:
            return f"{what}: wanted {_text(one)}, found {_text(other)} ({len(wanted)} and {len(found)} records)"
    return None


def _text(record: VisibleRecord | None) -> str:
    if record is None:
        return "no more record"
    key, value = (_short(content) for content in (record.key, record.value))
    return f"offset {record.offset} timestamp {record.timestamp} key {key} value {value} headers {record.headers}"


def _short(content: bytes | None) -> str:
    if content is None or len(content) <= _LONGEST_SHOWN:
        return repr(content)
    return f"{content[:20]!r}… ({len(content)} bytes, CRC {zlib.crc32(content):08x})"


def assert_mirrored(
    source: SandboxCluster, destination: SandboxCluster, topic: str, partition: int = 0, *, with_console: bool = False
) -> list[VisibleRecord]:
    """Compare a partition on both sides, and return what is visible of it.

    The source is read with read_committed; the destination must show the same in both isolation levels, start and end
    at the same offsets, and hold only sound batches.
    """
    name = f"{topic}-{partition}"
    wanted = shown(source, topic, partition)
    assert_shows(destination, topic, partition, wanted, with_console=with_console)
    assert bounds_of(destination, topic, partition) == bounds_of(source, topic, partition, COMMITTED), name
    return wanted


def assert_shows(
    cluster: SandboxCluster,
    topic: str,
    partition: int,
    wanted: Sequence[VisibleRecord],
    *,
    with_console: bool = False,
) -> None:
    """Compare what a mirror's consumers see, in both isolation levels, with what they should.

    The console consumer, which takes a JVM's start, uses the isolation level of applications.
    """
    for isolation in (COMMITTED, UNCOMMITTED):
        what = f"{topic}-{partition} of {cluster.name}, {isolation}"
        records = librdkafka_records(cluster.bootstrap_servers, topic, partition, isolation)
        found = difference(wanted, visible(records), what)
        if found is not None:
            # an open transaction hides records from those who read only what is committed
            there = len(librdkafka_records(cluster.bootstrap_servers, topic, partition, UNCOMMITTED))
            raise AssertionError(f"{found}; uncommitted ones included, {there} records are there")
        assert {record.timestamp_type for record in records} <= {"CreateTime"}, what
        if with_console and isolation == COMMITTED:
            seen = shown_by_console(cluster, topic, partition, isolation, records=len(wanted))
            assert difference(wanted, seen, what) is None, difference(wanted, seen, what)


def assert_sound(cluster: SandboxCluster, topic: str, partition: int = 0) -> None:
    """Check a mirror's batches with Kafka's log dump: intact, without holes inside, no transactions."""
    _assert_sound(dump_log(cluster, topic, partition))


def assert_all_sound(cluster: SandboxCluster, topics: Iterable[str]) -> None:
    """Check partition 0 of several topics, with one start of the tool."""
    for batches in dump_logs(cluster, topics).values():
        _assert_sound(batches)


def _assert_sound(batches: Iterable[DumpedBatch]) -> None:
    for batch in batches:
        assert batch.is_valid, batch
        assert batch.is_control or not batch.is_transactional, batch


def assert_intact(cluster: SandboxCluster, topic: str, partition: int = 0) -> None:
    """Check a mirror's batches as `assert_sound` does, with the tests' own reader, which takes no JVM."""
    stored = list(_raw_batches(segment_files(cluster, topic, partition)))
    assert stored or not any(file.stat().st_size for file in segment_files(cluster, topic, partition))
    for offset, batch in stored:
        crc, attributes = struct.unpack_from(">IH", batch, _CRC_POSITION)
        assert crc32c(batch[_CRC_POSITION + 4 :]) == crc, f"the batch at offset {offset} is torn"
        assert attributes & _CONTROL or not attributes & _TRANSACTIONAL, (
            f"the batch at offset {offset} has a transaction"
        )


def unsuperseded(source: Sequence[VisibleRecord], destination: Sequence[VisibleRecord]) -> str | None:
    """Compare two views of a log whose cleaners have each removed what they may; None if nothing is wrong.

    A record that one side lacks must have a later one of its key there, or be a tombstone, or have no key.
    """
    at_source, at_destination = ({record.offset: record for record in view} for view in (source, destination))
    for offset in sorted(at_source.keys() & at_destination.keys()):
        if at_source[offset] != at_destination[offset]:
            return f"wanted {_text(at_source[offset])}, found {_text(at_destination[offset])}"
    for having, lacking, side in ((at_source, at_destination, "destination"), (at_destination, at_source, "source")):
        last = {record.key: offset for offset, record in lacking.items()}
        for offset in sorted(having.keys() - lacking.keys()):
            record = having[offset]
            if None not in (record.key, record.value) and last.get(record.key, -1) < offset:
                return f"the {side} lacks {_text(record)}, and nothing later of that key"
    return None


def latest_values(records: Iterable[VisibleRecord]) -> dict[bytes | None, bytes]:
    """Return what a reader of a compacted topic knows: the latest value of each key."""
    latest: dict[bytes | None, bytes] = {}
    for record in records:
        if record.value is None:
            latest.pop(record.key, None)
        else:
            latest[record.key] = record.value
    return latest


def replica_difference(cluster: SandboxCluster, topic: str, partition: int = 0) -> str | None:
    """Compare the files that stopped brokers have of a partition, byte by byte; None when they are equal."""
    running = [broker.node_id for broker in cluster.brokers if broker.pid is not None]
    assert not running, f"brokers {running} run; their files may change"
    nodes = [broker.node_id for broker in cluster.brokers]
    return files_difference({node: segment_files(cluster, topic, partition, node) for node in nodes})


def files_difference(replicas: Mapping[int, Iterable[Path]]) -> str | None:
    """Compare the segment files of several brokers, up to the log end; None if they are equal.

    Brokers roll segments and delete old ones at different times: the bytes are compared batch by batch, from the latest
    first one on.
    """
    logs = {node: dict(_raw_batches(files)) for node, files in replicas.items()}
    assert all(logs.values()), f"nothing is stored by {[node for node, log in logs.items() if not log]}"
    first = max(min(log) for log in logs.values())
    wanted_of, *others = logs
    for other in others:
        for offset in sorted(offset for offset in logs[wanted_of].keys() | logs[other].keys() if offset >= first):
            if logs[wanted_of].get(offset) != logs[other].get(offset):
                return f"brokers {wanted_of} and {other} differ in the batch at offset {offset}"
    return None


def _raw_batches(files: Iterable[Path]) -> Iterator[tuple[int, bytes]]:
    for file in files:
        data = file.read_bytes()
        position = 0
        while position + 12 <= len(data):
            base_offset, length = struct.unpack_from(">qi", data, position)
            end = position + 12 + length
            if length <= 0 or end > len(data):
                break  # the half-written end of the active segment
            yield base_offset, data[position:end]
            position = end
