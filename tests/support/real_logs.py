"""Logs that only real software makes: cleaned by a broker's own cleaner, cut by retention or DeleteRecords, stamped.

The brokers need BUSY: otherwise cleaner, retention and the end of abandoned transactions take many seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.installed_logs import create_topics, read_checkpoint
from tests.support.leader import Leader
from tests.support.log_batches import LogBatch, VisibleRecord, encode
from tests.support.oracle import segment_files
from tests.support.producers import whole_batches
from tests.support.stored import log_dir_of
from tests.support.topics import set_topic
from tests.support.visible import bounds_of
from tests.support.waiting import wait_until

#: Properties of a broker that does its periodic work soon.
BUSY = {
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "100",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
}
#: Settings of a topic whose segments are short, by their records' times, and cleaned whenever there is something new.
EAGERLY_CLEANED = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "retention.ms": "-1"}
NEVER_COMPACTED = {"min.compaction.lag.ms": str(9 * 10**15)}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DAY_MS = 86_400_000

_KEYS = 300
_RECORDS = 200
_RECORDS_A_BATCH = 40
_ROUND_MS = 1000
_FROZEN = {**NEVER_COMPACTED, "retention.ms": "-1"}
_FILLER_RECORDS = 100_000


def producer_of(cluster: SandboxCluster, topic: str, **config: object) -> Producer:
    """Return a librdkafka producer for a topic, to be flushed; settings with `_` for `.`."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    return whole_batches(topic, {"bootstrap.servers": cluster.bootstrap_servers, **settings})


def delete_records(cluster: SandboxCluster, topic: str, offset: int, partition: int = 0) -> None:
    """Move a log's start to an offset."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topic_partition = TopicPartition(topic, partition, offset)
    admin.delete_records([topic_partition])[topic_partition].result(30)
    assert bounds_of(cluster, topic, partition).start == offset


@dataclass
class CompactedTopic:
    """A topic of one partition that the source's cleaner works on; every round of records fills a segment."""

    cluster: SandboxCluster
    topic: str
    settings: Mapping[str, str]
    clock: int = 0
    rounds: int = 0

    def __post_init__(self) -> None:
        policy = {"cleanup.policy": "compact", **EAGERLY_CLEANED, **self.settings}
        create_topics(self.cluster, {self.topic: policy})
        self._chance = random.Random(self.topic)

    def write_round(self, *, commit: bool | None = None, days_old: int = 0) -> int:
        """Write a segment of values and tombstones; in a transaction unless `commit` is None. Return its first offset.

        Its batches have the round's codec: CODECS one after the other. Its records are younger than those of the round
        before, and than that round's marker.
        """
        first = bounds_of(self.cluster, self.topic).end
        self.clock = max(self.clock + _ROUND_MS, int(time.time() * 1000) + _ROUND_MS // 2 - days_old * DAY_MS)
        in_transaction = {} if commit is None else {"transactional.id": f"{self.topic}-{self.rounds}"}
        codec = CODECS[self.rounds % len(CODECS)]
        size = {"batch_num_messages": _RECORDS_A_BATCH}
        producer = producer_of(self.cluster, self.topic, compression_type=codec, **size, **in_transaction)
        if commit is not None:
            producer.init_transactions(30)
            producer.begin_transaction()
        for number in range(_RECORDS):
            value = b"round %d record %d " % (self.rounds, number) * self._chance.randrange(1, 9)
            is_tombstone = self._chance.random() < 0.1
            producer.produce(
                self.topic,
                None if is_tombstone else value,
                b"key-%d" % self._chance.randrange(_KEYS),
                timestamp=self.clock + number * _ROUND_MS // 2 // _RECORDS,
                headers=[("round", b"%d" % self.rounds)] if number % 3 else [],
            )
        assert producer.flush(30) == 0
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(30)
        self.rounds += 1
        return first

    def wait_until_cleaned(self, offset: int) -> None:
        """Wait until the broker has cleaned the log up to an offset."""
        checkpoint = log_dir_of(self.cluster) / "cleaner-offset-checkpoint"
        wait_until(lambda: read_checkpoint(checkpoint).get((self.topic, 0), 0) >= offset, 60)

    def write_and_clean(self, *, transactions: bool = False) -> None:
        """Write some rounds, wait until all but the last are cleaned, write one more that stays uncleaned."""
        outcomes = [None, True, None, None, True, False] if transactions else [None] * 6
        for commit in outcomes:
            self.write_round(commit=commit)
        self.wait_until_cleaned(self.write_round())

    def freeze(self) -> None:
        """Stop all cleaning of it, here and in its mirrors, and wait until no cleaner is left running."""
        set_topic(self.cluster, self.topic, _FROZEN)
        quiet_since, before = time.monotonic(), self._files()
        while time.monotonic() - quiet_since < 1.5:
            time.sleep(0.1)
            if (now := self._files()) != before:
                quiet_since, before = time.monotonic(), now

    def _files(self) -> dict[str, int]:
        return {file.name: file.stat().st_size for file in segment_files(self.cluster, self.topic)}


def start_at(cluster: SandboxCluster, topic: str, offset: int, records: Sequence[VisibleRecord] | int) -> None:
    """Give an empty topic this many offsets, and records after them; then delete everything before those."""
    with Leader(cluster, topic) as leader:
        while (end := leader.log_end) < offset:
            assert leader.append_as_is(filler(min(_FILLER_RECORDS, offset - end))).error_code == 0
    write(cluster, topic, records)
    delete_records(cluster, topic, offset)


@cache
def filler(records: int, key: bytes | None = b"filler") -> bytes:
    """Return a batch of this many empty records, ready to produce."""
    made = tuple(VisibleRecord(index, 1_600_000_000_000, key, None) for index in range(records))
    return encode(LogBatch(0, records - 1, made, 1_600_000_000_000, codec="zstd"), leader_epoch=-1)


def write(
    cluster: SandboxCluster, topic: str, records: Iterable[VisibleRecord] | int, partition: int = 0, **config: object
) -> None:
    """Produce records (their offsets are ignored), or this many of any content; settings with `_` for `.`."""
    producer = producer_of(cluster, topic, **config)
    if isinstance(records, int):
        records = [VisibleRecord(0, int(time.time() * 1000), b"key-%d" % n, b"value-%d" % n) for n in range(records)]
    for one in records:
        producer.produce(
            topic, one.value, one.key, partition=partition, timestamp=one.timestamp, headers=list(one.headers)
        )
    assert producer.flush(60) == 0
