"""Independent readers of a topic's contents: Kafka's console consumer and log dump, the segment files, librdkafka.

None of them shares code with kmirror. All consumers return records of the same type, so they can be compared.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.kafka_tools import kafka_tool

_BYTES_DESERIALIZER = "org.apache.kafka.common.serialization.BytesDeserializer"

#: What the console consumer prints for null: nothing that a test would ever write.
_NULL = "kmirror-oracle-null-6b1f0c"
#: Kafka's `Bytes` prints every byte except printable ASCII characters, and the backslash, as \\xNN. So these can
#: separate fields.
_FIELD_END = "\t"
_HEADER_END = "\x01"
_PATIENCE_S = 120.0
#: All but the last of these fetches have certainly been answered.
_VAIN_FETCHES = 5
#: By librdkafka's number.
_TIMESTAMP_TYPES = ("NO_TIMESTAMP", "CreateTime", "LogAppendTime")
_ESCAPED = re.compile(rb"\\x([0-9A-F]{2})")


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as a consumer saw it. `timestamp` in epoch milliseconds, `timestamp_type` CreateTime or LogAppendTime.

    Records of message format 0 have no timestamp: -1, NO_TIMESTAMP.
    """

    offset: int
    timestamp_type: str
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch as DumpLogSegments describes it; `size` in bytes, `position` within its segment file."""

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    producer_epoch: int
    partition_leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    position: int
    timestamp_type: str
    max_timestamp: int
    size: int
    magic: int
    compression: str
    crc: int
    is_valid: bool
    segment: Path


def console_consumer(
    cluster: SandboxCluster,
    topic: str,
    partition: int = 0,
    isolation: str = "read_uncommitted",
    *,
    max_messages: int | None = None,
) -> list[ReadRecord]:
    """Read a partition from its start with Kafka's own console consumer.

    The tool cannot stop at the end of a log, so it gets a number of records to read: by default as many as librdkafka
    finds up to the end (on a secured cluster the number must be given). It prints header keys unescaped, so it cannot
    distinguish a header key with a colon in it from a shorter key with more value, nor the header key NO_HEADERS from
    no header at all.
    """
    formatter = {
        "print.timestamp": "true",
        "print.offset": "true",
        "print.headers": "true",
        "print.key": "true",
        "print.value": "true",
        "key.deserializer": _BYTES_DESERIALIZER,
        "value.deserializer": _BYTES_DESERIALIZER,
        "headers.deserializer": _BYTES_DESERIALIZER,
        "key.separator": _FIELD_END,
        "headers.separator": _HEADER_END,
        "null.literal": _NULL,
    }
    arguments = ["--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, "--partition", str(partition)]
    arguments += ["--offset", "earliest", "--isolation-level", isolation]
    for key, value in cluster.client_properties().items():
        arguments += ["--command-property", f"{key}={value}"]
    for key, value in formatter.items():
        arguments += ["--formatter-property", f"{key}={value}"]
    if max_messages is None:
        max_messages = len(librdkafka_records(cluster.bootstrap_servers, topic, partition, isolation))
    if max_messages == 0:
        return []
    arguments += ["--max-messages", str(max_messages), "--timeout-ms", str(int(_PATIENCE_S * 1000))]
    return [_read_record(line) for line in kafka_tool("kafka-console-consumer.sh", *arguments).split(b"\n")[:-1]]


def librdkafka_records(
    bootstrap_servers: str,
    topic: str,
    partition: int = 0,
    isolation: str = "read_uncommitted",
    config: Mapping[str, Any] | None = None,
) -> list[ReadRecord]:
    """Read a partition from its start to its current end with librdkafka, checksums verified.

    The end is the high watermark, or the last stable offset with isolation read_committed. A consumer never learns of
    it if no batch is left in the offsets before it; then it counts as reached when several fetches have returned
    nothing.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    fetches = _Fetches()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
            "check.crcs": True,
            "fetch.message.max.bytes": 8 << 20,
            "fetch.wait.max.ms": 20,
            "statistics.interval.ms": 50,
            "stats_cb": fetches.note,
            **(config or {}),
        }
    )
    records: list[ReadRecord] = []
    try:
        # without a known leader for an assigned partition, librdkafka waits half a second before it asks again
        consumer.list_topics(topic, timeout=_PATIENCE_S)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        patience = time.monotonic() + _PATIENCE_S
        while True:
            # statistics overtake records that have come: where this process had to wait, they are still to be taken
            is_over = fetches.in_vain >= _VAIN_FETCHES
            messages = consumer.consume(1000, timeout=1.0 if is_over else 0.02)
            if any(not message.error() for message in messages):
                patience = time.monotonic() + _PATIENCE_S
                fetches.restart()
            elif is_over:
                return records
            assert time.monotonic() < patience, f"{topic}-{partition} has no end; {len(records)} records came"
            for message in messages:
                if message.error():
                    if message.error().code() == KafkaError._AUTO_OFFSET_RESET and not records:
                        # a topic that was just recreated: not every answer knows it yet
                        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
                        continue
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return records
                kind, timestamp = message.timestamp()
                records.append(
                    ReadRecord(
                        offset=message.offset(),
                        timestamp_type=_TIMESTAMP_TYPES[kind],
                        timestamp=timestamp if kind else -1,
                        key=message.key(),
                        value=message.value(),
                        headers=tuple(message.headers() or ()),
                    )
                )
    finally:
        consumer.close()


class _Fetches:
    """Counts the fetches of a consumer since its last record, from librdkafka's statistics."""

    def __init__(self) -> None:
        self.in_vain = 0
        self._before: int | None = None

    def restart(self) -> None:
        """Start counting again."""
        self.in_vain, self._before = 0, None

    def note(self, statistics: str) -> None:
        """Process new statistics."""
        sent = sum(broker["req"].get("Fetch", 0) for broker in json.loads(statistics)["brokers"].values())
        self._before = sent if self._before is None else self._before
        self.in_vain = sent - self._before


def dump_log(cluster: SandboxCluster, topic: str, partition: int = 0, node_id: int | None = None) -> list[DumpedBatch]:
    """Return the batches stored for a partition on one broker (the first that has it), in order of their offsets."""
    return _dump({topic: segment_files(cluster, topic, partition, node_id)})[topic]


def dump_logs(cluster: SandboxCluster, topics: Iterable[str]) -> dict[str, list[DumpedBatch]]:
    """Return the batches stored for partition 0 of several topics, by topic; runs the tool once for all."""
    return _dump({topic: segment_files(cluster, topic) for topic in topics})


def _dump(segments: Mapping[str, Sequence[Path]]) -> dict[str, list[DumpedBatch]]:
    files = ",".join(str(segment) for some in segments.values() for segment in some)
    output = kafka_tool("kafka-dump-log.sh", "--max-message-size", str(64 << 20), "--files", files).decode()
    folders = {some[0].parent: topic for topic, some in segments.items()}
    found: dict[str, list[DumpedBatch]] = {topic: [] for topic in segments}
    for batch in _dumped_batches(output):
        found[folders[batch.segment.parent]].append(batch)
    return found


def raw_log_bytes(cluster: SandboxCluster, topic: str, partition: int = 0, node_id: int | None = None) -> bytes:
    """Return the stored bytes of a partition on one broker: its segment files one after the other."""
    return b"".join(segment.read_bytes() for segment in segment_files(cluster, topic, partition, node_id))


def segment_files(cluster: SandboxCluster, topic: str, partition: int = 0, node_id: int | None = None) -> list[Path]:
    """Return the segment files of a partition on one broker (the first that has it), oldest first."""
    for broker in cluster.brokers:
        folder = broker.log_dir / f"{topic}-{partition}"
        if node_id in {None, broker.node_id} and folder.is_dir():
            return sorted(folder.glob("*.log"))
    raise AssertionError(f"no broker of {cluster.name} stores {topic}-{partition}")


def _read_record(line: bytes) -> ReadRecord:
    """Read `CreateTime:1\\tOffset:2\\tkey:value\\x01key:value\\tkey\\tvalue`; NO_TIMESTAMP is without a number."""
    timestamp, offset, headers, key, value = line.split(_FIELD_END.encode())
    timestamp_type, _, milliseconds = timestamp.decode().partition(":")
    return ReadRecord(
        offset=int(offset.decode().removeprefix("Offset:")),
        timestamp_type=timestamp_type,
        timestamp=int(milliseconds or -1),
        key=_unescaped(key),
        value=_unescaped(value),
        headers=tuple(_headers(headers)),
    )


def _headers(text: bytes) -> Iterator[tuple[str, bytes | None]]:
    if text == b"NO_HEADERS":
        return
    for header in text.split(_HEADER_END.encode()):
        key, _, value = header.partition(b":")
        yield key.decode(), _unescaped(value)


def _unescaped(text: bytes) -> bytes | None:
    if text == _NULL.encode():
        return None
    return _ESCAPED.sub(lambda found: bytes([int(found.group(1), 16)]), text)


def _dumped_batches(output: str) -> Iterator[DumpedBatch]:
    segment = Path()
    for line in output.splitlines():
        if line.startswith("Dumping "):
            segment = Path(line.removeprefix("Dumping "))
        elif line.startswith("baseOffset: "):
            yield _dumped_batch(line, segment)
        else:
            assert line.startswith(("Log starting offset: ", "Starting offset: ")) or not line, f"a dump says {line!r}"


def _dumped_batch(line: str, segment: Path) -> DumpedBatch:
    fields = dict(re.findall(r"(\w+): (\S+)", line))
    timestamp_type = "LogAppendTime" if "LogAppendTime" in fields else "CreateTime"
    horizon = re.fullmatch(r"OptionalLong\[(\d+)]", fields["deleteHorizonMs"])
    return DumpedBatch(
        base_offset=int(fields["baseOffset"]),
        last_offset=int(fields["lastOffset"]),
        count=int(fields["count"]),
        base_sequence=int(fields["baseSequence"]),
        last_sequence=int(fields["lastSequence"]),
        producer_id=int(fields["producerId"]),
        producer_epoch=int(fields["producerEpoch"]),
        partition_leader_epoch=int(fields["partitionLeaderEpoch"]),
        is_transactional=fields["isTransactional"] == "true",
        is_control=fields["isControl"] == "true",
        delete_horizon_ms=int(horizon.group(1)) if horizon else None,
        position=int(fields["position"]),
        timestamp_type=timestamp_type,
        max_timestamp=int(fields[timestamp_type]),
        size=int(fields["size"]),
        magic=int(fields["magic"]),
        compression=fields["compresscodec"],
        crc=int(fields["crc"]),
        is_valid=fields["isvalid"] == "true",
        segment=segment,
    )
