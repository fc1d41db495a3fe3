"""What a mirror may fetch, and in which order: `throttle.bytes.per.second`, `priority.topics`; and clients' quotas."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from kmirror.errors import NOT_COPYING, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.show.describe import describe
from kmirror.ops.show.listing import list_mirrors
from kmirror.state.records import ProgressRecord
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, properties_of, selector
from tests.support.quotas import slowed
from tests.support.scraped import asking, assert_all_say, describing, scraped, value
from tests.support.waiting import wait_until

KEY = "throttle.bytes.per.second"
LIMIT = 400_000
PARTITIONS, RECORDS, SIZE = 4, 3000, 1000
#: What may come above the limit: what a busy machine has delayed for two seconds, and an answer that was under way.
BURST = 2.2 * LIMIT
#: What is said of a quota that is used up.
QUOTAS = "(producer_byte_rate or request_percentage)"


def reports(destination: Destination, mirror: str) -> dict[int, ProgressRecord]:
    return {record.lane: record for record in destination.state().progress(mirror)}


def fetched(found: dict[int, ProgressRecord]) -> int:
    return sum(record.fetched_bytes for record in found.values())


def write(source: SandboxCluster, topic: str, records: int) -> None:
    make_topic(source, topic, PARTITIONS)
    append(source, topic, records)


def append(source: SandboxCluster, topic: str, records: int) -> None:
    producer = Producer({**properties_of(source), "linger.ms": 5, "batch.size": 20_000})
    for number in range(records):
        producer.produce(topic, bytes(SIZE), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def test_lanes_share_the_limit_and_follow_a_change(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic("throttled")
    write(cluster_pair.source, topic, RECORDS)
    mirror = new_mirror(destination, cluster_pair.source, throttle_bytes_per_second=str(LIMIT))
    assert add(destination, mirror, selector(topic)).exit_code == 0
    (listed,) = (row for row in list_mirrors(destination) if row.mirror == mirror)
    assert listed.throttle_bytes_per_second == LIMIT
    assert {row.throttle_bytes_per_second for row in describe(destination, mirror)} == {LIMIT}

    with LocalEngine(destination, mirror) as engine:
        wait_until(lambda: all(one.throttled_ms for one in reports(destination, mirror).values()) and engine.lanes)
        wait_until(lambda: len(reports(destination, mirror)) == 2)
        first = reports(destination, mirror)
        wait_until(lambda: min(one.throttled_ms for one in reports(destination, mirror).values()) > 1500)
        second = reports(destination, mirror)
        seconds = (max(r.time_ms for r in second.values()) - min(r.time_ms for r in first.values())) / 1000
        assert 0 < fetched(second) - fetched(first) <= seconds * LIMIT + BURST
        assert fetched(second) < RECORDS * SIZE, "it was copied before anybody looked"
        record = destination.state().engine(mirror)
        assert record is not None
        assert record.throttle is not None
        assert LIMIT * 0.99 <= sum(record.throttle.values()) <= LIMIT

        def throttled_seconds() -> float:
            return value(scraped(asking(engine.service)), "kmirror_throttled_seconds_total", mirror=mirror) or 0

        # the engine reads what lanes report a moment later
        wait_until(lambda: throttled_seconds() > 3)
        found = scraped(asking(engine.service))
        assert value(found, "kmirror_throttle_limit_bytes_per_second", mirror=mirror) == LIMIT
        assert 0 < (value(found, "kmirror_fetched_bytes_total", mirror=mirror) or 0) < RECORDS * SIZE
        assert (value(found, "kmirror_topic_lag_offsets", mirror=mirror, topic=topic) or 0) > 0

        assert change_config(destination, mirror, {KEY: "100000000"}, ()).exit_code == 0
        engine.catch_up()
        assert change_config(destination, mirror, {}, (KEY,)).exit_code == 0
        wait_until(lambda: (one := destination.state().engine(mirror)) is not None and one.throttle is None)
        found = assert_all_say(
            asking(engine.service),
            describing(destination, mirror),
            lambda reported: reported["lag"] == {topic: 0} and reported["throttle"] is None,
        )
        assert value(found, "kmirror_topic_records_copied_total", mirror=mirror, topic=topic) == RECORDS
        assert (value(found, "kmirror_topic_bytes_copied_total", mirror=mirror, topic=topic) or 0) >= RECORDS * SIZE
        batches = value(found, "kmirror_batches_copied_total", mirror=mirror) or 0
        # put together, but never above a megabyte
        assert batches >= RECORDS * SIZE / (1 << 20)
        # one request carries batches of several partitions
        assert 0 < (value(found, "kmirror_produce_duration_seconds_count", mirror=mirror) or 0) <= batches
    assert {row.throttle_bytes_per_second for row in describe(destination, mirror)} == {None}
    assert fetched(reports(destination, mirror)) >= RECORDS * SIZE


@pytest.mark.slow
def test_a_topic_with_priority_is_copied_before_the_others(cluster_pair: ClusterPair, destination: Destination) -> None:
    urgent, other = unique_topic("urgent"), unique_topic("other")
    for topic in (urgent, other):
        write(cluster_pair.source, topic, RECORDS // 2)
    mirror = new_mirror(
        destination, cluster_pair.source, throttle_bytes_per_second=str(LIMIT), priority_topics="urgent.*"
    )
    assert add(destination, mirror, selector(f"{urgent},{other}")).exit_code == 0

    def first_topics() -> tuple[str, ...] | None:
        record = destination.state().engine(mirror)
        return record.first_topics if record is not None else None

    def copied(topic: str) -> int:
        rows = (row for one in destination.state().progress(mirror) for row in one.rows)
        return sum(row.records_copied for row in rows if row.topic == topic)

    with LocalEngine(destination, mirror) as engine:
        wait_until(lambda: first_topics() == (urgent,))
        # what was on its way, and what lanes fetch until they have heard of it
        wait_until(lambda: copied(urgent) > 300)
        early = copied(other)
        wait_until(lambda: copied(urgent) == RECORDS // 2, 60)
        assert copied(other) < early + 150
        wait_until(lambda: first_topics() is None and copied(other) > early + 200, 60)
        assert change_config(destination, mirror, {}, (KEY,)).exit_code == 0
        engine.catch_up()
    assert copied(other) == RECORDS // 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quota", "limit"),
    [pytest.param("producer_byte_rate", 1000.0, marks=pytest.mark.slow), ("request_percentage", 0.01)],
)
def test_where_a_quota_of_the_destination_makes_reports_late_it_is_named(
    cluster_pair: ClusterPair, destination: Destination, quota: str, limit: float
) -> None:
    client_id = unique_topic("held-up")
    topic = unique_topic("held-up")
    write(cluster_pair.source, topic, 200)
    mirror = new_mirror(destination, cluster_pair.source)
    assert add(destination, mirror, selector(topic)).exit_code == 0
    messages: set[tuple[Reason | None, str]] = set()

    def is_named() -> bool:
        """Return whether what describe says of a silent engine or lane names the quota."""
        rows = describe(destination, mirror)
        messages.update((row.reason, row.error_message or "") for row in rows)
        return any(reason in NOT_COPYING and QUOTAS in text for reason, text in messages)

    held_up = Destination.open({**destination.properties, "client.id": client_id})
    with held_up, LocalEngine(held_up, mirror) as engine:
        engine.catch_up()
        with slowed(cluster_pair.destination, client_id, limit, quota):
            append(cluster_pair.source, topic, 200)
            wait_until(is_named, 120)
        address = cluster_pair.destination.bootstrap_servers
        said = f"the destination's broker {address} throttles kmirror, so heartbeats and reports are late"
        assert any(said in note for note in engine.notes), engine.notes
