"""A lane fills the offsets at which its source shows nothing: over networks that lose requests, and without rights."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import API_KEY as PRODUCE
from kmirror.cluster.protocol.records import Record
from kmirror.cluster.reader import read_batches
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane.control import STATE_PARTITION
from kmirror.engine.spec import filling_transactional_id
from kmirror.errors import Reason
from kmirror.sandbox.cluster import SandboxCluster
from tests.support.acls import create_in_force
from tests.support.lane import Mirror
from tests.support.late_wire import MARKERS, Fate, LateWire
from tests.support.leader import OWN_ID
from tests.support.log_batches import VisibleRecord
from tests.support.oracle import librdkafka_records
from tests.support.visible import COMMITTED, UNCOMMITTED, visible
from tests.support.waiting import wait_until

ADD_PARTITIONS, END_TRANSACTION = 24, 26
#: How long the lanes of these tests take for it that a request without an answer may still arrive.
SETTLE_MS = 3000
OLD_MS = 1_400_000_000_000
#: First offsets of records, and how many stand there in a row: with holes of 5, 1, 2, 2,000 and 1 offsets.
STRETCHES = ((5, 10), (16, 1), (19, 30), (2049, 3), (2053, 4))
#: The same with less to fill, for those who are slow at it.
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
    """Return what applications are shown, on clusters with logins too."""
    config = client_config(cluster.client_properties()).librdkafka()
    return visible(librdkafka_records(cluster.bootstrap_servers, topic, partition, isolation, config))


def assert_alike(mirror: Mirror, topic: str, partitions: int = 1) -> None:
    """Compare what applications are shown on both sides."""
    for partition in range(partitions):
        wanted = read(mirror.source, topic, partition)
        assert len(wanted) >= sum(count for _, count in STRETCHES)
        assert read(mirror.destination, mirror.mirror_of(topic), partition) == wanted
        assert read(mirror.destination, mirror.mirror_of(topic), partition, isolation=UNCOMMITTED) == wanted


# -- a bad network -----------------------------------------------------------------------------------------------------


@pytest.fixture
def mirror(wired: tuple[SandboxCluster, LateWire]) -> Iterator[Mirror]:
    """Return a mirror from topics to topics of the same cluster."""
    with closing(Mirror(wired[0], wired[0], ttl_ms=SETTLE_MS)) as made:
        yield made


def test_holes_are_filled(mirror: Mirror, wire: LateWire) -> None:
    topic = mirror.topic(3)
    for partition in range(3):
        write_holes(mirror.source, topic, partition)
    lane = mirror.start()
    mirror.wait_copied(lane)
    write_holes(mirror.source, topic)
    mirror.wait_copied(lane)
    assert_alike(mirror, topic, 3)
    assert mirror.stop(lane).clean


def marker_times(mirror: Mirror, topic: str, partition: int) -> list[int]:
    """Return when the destination's broker wrote each of the partition's markers, in milliseconds."""
    place = TopicPartition(mirror.mirror_of(topic), partition)
    sections = read_batches(mirror.at_destination, place, 0, mirror.destination_ends()[str(place)])
    headers = (header for section, _ in sections for header in batch_headers(section))
    return [header.max_timestamp for header in headers if header.is_control]


def test_large_holes_do_not_keep_a_small_one_waiting(mirror: Mirror, wire: LateWire) -> None:
    topic = mirror.topic(3)
    for partition, hole in enumerate((10_000, 1, 10_000)):
        write_holes(mirror.source, topic, partition, stretches=((hole, 1),))
    lane = mirror.start()
    mirror.wait_copied(lane)
    first, (small,), second = (marker_times(mirror, topic, partition) for partition in range(3))
    assert small < first[5_000]
    assert small < second[5_000]


@pytest.mark.parametrize(
    ("fate", "timestamp"),
    [
        pytest.param(Fate.LOST, None, marks=pytest.mark.long),
        (Fate.LOST, OLD_MS),
        pytest.param(Fate.UNANSWERED, None, marks=pytest.mark.long),
        pytest.param(Fate.UNANSWERED, OLD_MS, marks=pytest.mark.long),
        (Fate.LATE, None),  # of old records see the next test: the broker does not remember them for ever
    ],
)
def test_a_request_for_markers_of_unknown_outcome_never_shifts_the_log(
    mirror: Mirror, wire: LateWire, fate: Fate, timestamp: int | None
) -> None:
    """The connection is cut between request and answer: of the first hole's body, its last offset, and later ones."""
    topic = mirror.topic()
    write_holes(mirror.source, topic, timestamp=timestamp)
    wire.plan(fate, Fate.ANSWERED, fate, Fate.ANSWERED, Fate.ANSWERED, fate, api_key=MARKERS)
    lane = mirror.start()
    mirror.wait_copied(lane)
    mirror.stop(lane)
    wire.deliver()  # by now it is refused: it would come behind the markers that followed it
    assert mirror.destination_ends() == mirror.source_ends()
    assert_alike(mirror, topic)


@pytest.mark.slow
def test_markers_and_batches_lost_at_random(mirror: Mirror, wire: LateWire) -> None:
    topic = mirror.topic(4)
    for partition in range(4):
        for timestamp in (None, OLD_MS, None):
            write_holes(mirror.source, topic, partition, timestamp=timestamp)
    dice = random.Random(7)
    wire.roll(dice, [Fate.ANSWERED] * 12 + [Fate.LOST, Fate.UNANSWERED, Fate.LATE], SETTLE_MS / 1000 * 0.8)
    lane = mirror.start()
    wire.plan(*[Fate.UNANSWERED] * 3, api_key=PRODUCE)
    try:
        mirror.wait_copied(lane, 120)
    finally:
        wire.calm()
    mirror.stop(lane)
    assert mirror.destination_ends() == mirror.source_ends()
    assert_alike(mirror, topic, 4)


# -- without the right to write markers --------------------------------------------------------------------------------


def allow(cluster: SandboxCluster, kind: ResourceType, name: str, *operations: str) -> None:
    """Give rights to the user `kmirror`."""
    admin = AdminClient(client_config(cluster.client_properties()).librdkafka())
    rules = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            "User:kmirror",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    create_in_force(admin, rules)


@pytest.fixture
def restricted(guarded_cluster: SandboxCluster) -> Iterator[Mirror]:
    """Return a mirror written by the user `kmirror`, who may not write markers."""
    guarded = guarded_cluster
    properties: dict[str, Any] = {"destination_properties": {**guarded.client_properties("kmirror")}}
    with closing(Mirror(guarded, guarded, **properties, retry_timeout_ms=1500)) as made:
        allow(guarded, ResourceType.TOPIC, STATE_PARTITION.topic, "READ", "WRITE")
        yield made


def topic_of(mirror: Mirror, partitions: int) -> str:
    topic = mirror.topic(partitions)
    allow(mirror.destination, ResourceType.TOPIC, mirror.mirror_of(topic), "READ", "WRITE")
    for partition in range(partitions):
        write_holes(mirror.source, topic, partition, stretches=FEW)
    return topic


def test_without_the_right_to_write_markers_holes_are_filled_by_transactions(restricted: Mirror) -> None:
    topic = topic_of(restricted, 2)
    allow(
        restricted.destination,
        ResourceType.TRANSACTIONAL_ID,
        filling_transactional_id(restricted.name, 0),
        "WRITE",
        "DESCRIBE",
    )
    lane = restricted.start()
    restricted.wait(lane, lambda: any(record.fills_by_transactions for record in restricted.progress()))
    restricted.wait_copied(lane, 120)
    assert restricted.stop(lane).clean
    assert_alike(restricted, topic, 2)
    # whoever comes next ends first what this one may have left open
    write_holes(restricted.source, topic, stretches=FEW)
    lane = restricted.start(unsettled_lanes=(0,))
    restricted.wait_copied(lane, 120)
    restricted.stop(lane)
    assert_alike(restricted, topic, 2)


def test_a_lane_that_dies_within_a_transaction_leaves_nothing_that_shifts_the_log(restricted: Mirror) -> None:
    """Its successor ends the transaction before it looks at any log."""
    topic = topic_of(restricted, 1)
    name = filling_transactional_id(restricted.name, 0)
    allow(restricted.destination, ResourceType.TRANSACTIONAL_ID, name, "WRITE", "DESCRIBE")
    with ClusterClient(client_config(restricted.destination.client_properties("kmirror"))) as client:
        from kmirror.cluster.empty_transaction import EmptyTransactions

        died = EmptyTransactions(client, name)
        died.settle()
        assert died._producer is not None
        died._add(died._producer, [TopicPartition(restricted.mirror_of(topic), 0)], time.monotonic() + 30)
    lane = restricted.start(unsettled_lanes=(0,))
    restricted.wait_copied(lane, 120)
    restricted.stop(lane)
    assert_alike(restricted, topic)


def test_with_neither_right_the_partition_fails_and_says_what_is_missing(restricted: Mirror) -> None:
    topic_of(restricted, 1)
    lane = restricted.start()
    wait_until(lambda: lane.partitions[0].retry.failure, 30)
    failure = lane.partitions[0].retry.failure
    assert failure is not None
    assert failure.reason is Reason.NOT_AUTHORIZED
    for words in (
        "ALTER on the cluster",
        "WRITE on the transactional id",
        filling_transactional_id(restricted.name, 0),
    ):
        assert words in failure.message
    assert restricted.rows_at_stop(lane)[0].state == "FAILED"
