"""One topic of each kind of log that never changes once made: compacted, starting late, emptied, stamped, large.

Each function makes a topic of one partition on a cluster of a BUSY broker.
"""

from __future__ import annotations

import time

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.installed_logs import create_topics
from tests.support.log_batches import VisibleRecord
from tests.support.oracle import librdkafka_records
from tests.support.real_logs import CODECS, DAY_MS, CompactedTopic, delete_records, start_at, write
from tests.support.topics import set_topic
from tests.support.visible import bounds_of
from tests.support.waiting import wait_until

FOREVER = {"retention.ms": "-1"}
LARGE_BYTES = 10_000_000


def compacted(source: SandboxCluster, topic: str) -> None:
    made = CompactedTopic(source, topic, {})
    made.write_and_clean()
    made.freeze()


def compacted_without_tombstones(source: SandboxCluster, topic: str) -> None:
    made = CompactedTopic(source, topic, {"delete.retention.ms": "100"})
    made.write_and_clean()
    for _ in range(2):
        made.wait_until_cleaned(made.write_round())
    made.freeze()


def compacted_with_transactions(source: SandboxCluster, topic: str) -> None:
    made = CompactedTopic(source, topic, {})
    made.write_and_clean(transactions=True)
    made.freeze()


def compacted_and_deleted(source: SandboxCluster, topic: str) -> None:
    settings = {"cleanup.policy": "compact,delete", "retention.ms": str(5 * DAY_MS)}
    made = CompactedTopic(source, topic, settings)
    for _ in range(3):
        made.write_round(days_old=10)
    made.write_and_clean()
    wait_until(lambda: bounds_of(source, topic).start > 0)
    made.freeze()


def starting_at_10(source: SandboxCluster, topic: str) -> None:
    create_topics(source, {topic: FOREVER})
    start_at(source, topic, 10, 1000)


def starting_at_1_000_000(source: SandboxCluster, topic: str) -> None:
    create_topics(source, {topic: FOREVER})
    start_at(source, topic, 1_000_000, 1000)


def starting_late_and_compacted(source: SandboxCluster, topic: str) -> None:
    """Brokers refuse DeleteRecords where only compaction is allowed: such a log was cut before."""
    create_topics(
        source, {topic: {"cleanup.policy": "compact,delete", "min.compaction.lag.ms": str(DAY_MS), **FOREVER}}
    )
    start_at(source, topic, 54_321, 1000)
    set_topic(source, topic, {"cleanup.policy": "compact"})


def starting_in_a_batch(source: SandboxCluster, topic: str) -> None:
    create_topics(source, {topic: FOREVER})
    write(source, topic, 1000, compression_type="zstd")
    delete_records(source, topic, 777)


def emptied(source: SandboxCluster, topic: str) -> None:
    create_topics(source, {topic: FOREVER})
    write(source, topic, 1000)
    delete_records(source, topic, 1000)


def stamped_by_the_broker(source: SandboxCluster, topic: str) -> None:
    create_topics(source, {topic: {"message.timestamp.type": "LogAppendTime", **FOREVER}})
    for codec in CODECS:
        write(source, topic, 200, compression_type=codec)


def stamped_for_a_while(source: SandboxCluster, topic: str) -> None:
    create_topics(source, {topic: FOREVER})
    for kind in ("CreateTime", "LogAppendTime", "CreateTime"):
        set_topic(source, topic, {"message.timestamp.type": kind})
        found = ""
        while found != kind:  # the setting reaches the log some time later
            write(source, topic, 20, compression_type="lz4")
            found = librdkafka_records(source.bootstrap_servers, topic)[-1].timestamp_type


def times_far_away(source: SandboxCluster, topic: str) -> None:
    years = {"message.timestamp.before.max.ms": str(2**63 - 1), "message.timestamp.after.max.ms": str(2**63 - 1)}
    create_topics(source, {topic: {**FOREVER, **years}})
    times = (0, 1, int(time.time() * 1000), 4_102_444_800_000, 253_402_300_799_999)
    write(source, topic, [VisibleRecord(0, times[n % 5], b"k", b"%d" % n) for n in range(500)], batch_num_messages=7)


def large_records(source: SandboxCluster, topic: str) -> None:
    create_topics(source, {topic: {"max.message.bytes": str(LARGE_BYTES + 10_000), **FOREVER}})
    value = b"%07d\n" * (LARGE_BYTES // 8) % tuple(range(LARGE_BYTES // 8))
    records = [VisibleRecord(0, 1_700_000_000_000 + n, b"large", value) for n in range(3)]
    small = [VisibleRecord(0, 1_700_000_000_000, None, b"small")]
    write(source, topic, [*records, *small, *records], message_max_bytes=LARGE_BYTES + 10_000)


def larger_than_is_allowed_today(source: SandboxCluster, topic: str) -> None:
    create_topics(source, {topic: {"max.message.bytes": "2000000", **FOREVER}})
    large = [VisibleRecord(0, 1_700_000_000_000, None, b"x" * 1_500_000)]
    write(source, topic, large * 3, message_max_bytes=2_000_000)
    set_topic(source, topic, {"max.message.bytes": "10000"})
    write(source, topic, 10)


#: By the topic's name.
STILL = {
    make.__name__: make
    for make in (
        compacted,
        compacted_without_tombstones,
        compacted_with_transactions,
        compacted_and_deleted,
        starting_at_10,
        starting_at_1_000_000,
        starting_late_and_compacted,
        starting_in_a_batch,
        emptied,
        stamped_by_the_broker,
        stamped_for_a_while,
        times_far_away,
        large_records,
        larger_than_is_allowed_today,
    )
}
#: The console consumer would print every byte of these as four.
TOO_LARGE_TO_PRINT = {"large_records", "larger_than_is_allowed_today"}
