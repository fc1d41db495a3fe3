"""One tiered topic of each kind of log whose older segments are only in the store, and that does not change.

Each function makes a topic of one partition.
"""

from __future__ import annotations

import random

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.leader import create_topic
from tests.support.real_logs import CODECS, delete_records, producer_of
from tests.support.tiers import (
    IN_SEGMENT,
    TIERED,
    local_start,
    log_end,
    payload,
    small_segments,
    wait_until_only_in_store,
    write_tiered,
)
from tests.support.topics import set_topic
from tests.support.visible import bounds_of
from tests.support.waiting import wait_until

RECORDS = 400


def _create(source: SandboxCluster, topic: str, **settings: str) -> None:
    own = {key.replace("_", "."): value for key, value in settings.items()}
    create_topic(source, name=topic, settings={**TIERED, **small_segments(source), **own})


def _plain(source: SandboxCluster, topic: str) -> None:
    _create(source, topic)
    write_tiered(source, topic, range(RECORDS))
    wait_until_only_in_store(source, topic, RECORDS - IN_SEGMENT)


def in_the_store(source: SandboxCluster, topic: str) -> None:
    _plain(source, topic)


def in_the_store_with_transactions(source: SandboxCluster, topic: str) -> None:
    _create(source, topic)
    producer = producer_of(source, topic, transactional_id=topic)
    producer.init_transactions(30)
    for number in range(20):
        producer.begin_transaction()
        for record in range(20):
            producer.produce(topic, payload(20 * number + record), b"%d" % record, 0)
        assert producer.flush(30) == 0
        (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)(30)
    # the markers take offsets too
    wait_until_only_in_store(source, topic, RECORDS - IN_SEGMENT)


def in_the_store_compressed(source: SandboxCluster, topic: str) -> None:
    _create(source, topic)
    chance = random.Random(topic)
    for codec in CODECS:
        producer = producer_of(source, topic, compression_type=codec)
        for number in range(2000):
            producer.produce(topic, chance.randbytes(50).hex(), b"%d" % number, 0)
            if number % 40 == 39:
                assert producer.flush(30) == 0
    end = log_end(source, topic)
    wait_until_only_in_store(source, topic, end // 2)


def in_the_store_and_deleted_up_to_a_record_there(source: SandboxCluster, topic: str) -> None:
    _plain(source, topic)
    delete_records(source, topic, IN_SEGMENT + 7)


def in_the_store_until_retention(source: SandboxCluster, topic: str) -> None:
    """The first segments were in the store, and are nowhere any more."""
    _plain(source, topic)
    set_topic(source, topic, {"retention.bytes": "250000"})
    wait_until(lambda: bounds_of(source, topic).start > 0)
    set_topic(source, topic, {"retention.bytes": "-1"})


def emptied_in_the_store(source: SandboxCluster, topic: str) -> None:
    _plain(source, topic)
    delete_records(source, topic, RECORDS)


def in_the_store_that_takes_no_more(source: SandboxCluster, topic: str) -> None:
    """Later segments stay where they were written (KIP-950), so those in the store end in the middle of the log."""
    _plain(source, topic)
    set_topic(source, topic, {"remote.log.copy.disable": "true", "local.retention.bytes": "-2"})
    write_tiered(source, topic, range(RECORDS, 2 * RECORDS))
    assert local_start(source, topic) < RECORDS


#: By the topic's name.
TIERED_LOGS = {
    make.__name__: make
    for make in (
        in_the_store,
        in_the_store_with_transactions,
        in_the_store_compressed,
        in_the_store_and_deleted_up_to_a_record_there,
        in_the_store_until_retention,
        emptied_in_the_store,
        in_the_store_that_takes_no_more,
    )
}
