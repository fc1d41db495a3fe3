"""A sandbox with tiered storage: old segments are only in the store, which can be slow, fail, or be away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from kmirror.errors import UsageError
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.clusters import MakeCluster
from tests.support.kafka_versions import of_long
from tests.support.leader import delete_topic
from tests.support.oracle import segment_files
from tests.support.shared_clusters import TieredPair
from tests.support.tiers import IN_SEGMENT, local_start, payload, store_that, tiered_topic, write_tiered
from tests.support.waiting import wait_until

RECORDS = 600


@pytest.fixture(scope="module", params=[DEFAULT_KAFKA_VERSION, *of_long(["3.6.2", "3.9.2"])])
def tiered(make_module_cluster: MakeCluster, request: pytest.FixtureRequest) -> SandboxCluster:
    if request.param == DEFAULT_KAFKA_VERSION:
        shared: TieredPair = request.getfixturevalue("started_tiered_pair")
        return shared.source
    return make_module_cluster("tiered", kafka_version=request.param, tiered=True)


@pytest.fixture
def consumer(tiered: SandboxCluster) -> Iterator[Consumer]:
    made = Consumer({"bootstrap.servers": tiered.bootstrap_servers, "group.id": "g", "enable.auto.commit": False})
    yield made
    made.close()


def polled(consumer: Consumer, topic: str, seconds: float) -> bytes | str | None:
    """Return the first record's value, or the error that comes instead of it, or None if nothing comes in time."""
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(seconds)
    consumer.unassign()
    if message is None:
        return None
    return str(message.error()) if message.error() else message.value()


def test_old_segments_are_only_in_the_store_which_behaves_as_it_is_set(
    tiered: SandboxCluster, consumer: Consumer
) -> None:
    store = tiered.store
    store.record_operations()
    others = set(store.segments())
    topic = tiered_topic(tiered, RECORDS)
    start = local_start(tiered, topic)
    assert start >= RECORDS - IN_SEGMENT
    # the broker removes files a moment after its log starts later
    wait_until(lambda: [int(file.stem) for file in segment_files(tiered, topic)] == [start])
    kept = [file for file in store.segments() if file not in others]
    assert [int(file.stem.partition("-")[0]) for file in kept] == list(range(0, start, 80))

    # the index takes three reads, so none of the first fetches gets a record
    with store_that(lambda: store.slow(1500), tiered):
        assert polled(consumer, topic, 2.0) is None
        assert f"{topic}-0 0" in store.operations("INDEX")
    with store_that(store.fail, tiered):
        assert "Unknown broker error" in str(polled(consumer, topic, 10.0))
        write_tiered(tiered, topic, range(RECORDS, RECORDS + 100))
        wait_until(lambda: local_start(tiered, topic) > start)
    copied = len(store.segments())
    with store_that(store.away, tiered):
        tried = len(store.operations("COPY"))
        write_tiered(tiered, topic, range(RECORDS + 100, RECORDS + 200))
        wait_until(lambda: len(store.operations("COPY")) > tried)
        assert len(store.segments()) == copied
    assert polled(consumer, topic, 30.0) == payload(0)
    wait_until(lambda: len(store.segments()) > copied)

    delete_topic(tiered, topic)
    wait_until(lambda: set(store.segments()) == others)


@pytest.mark.slow
def test_a_stopped_cluster_comes_back_with_its_store(tiered: SandboxCluster, consumer: Consumer) -> None:
    topic = tiered_topic(tiered, RECORDS)
    tiered.stop()
    SandboxCluster("again", tiered.directory).start()
    # at first the broker does not know yet what is in the store, and answers with an error
    wait_until(lambda: polled(consumer, topic, 10.0) == payload(0))


@pytest.mark.slow
def test_a_secured_cluster_of_three_brokers_can_have_tiered_storage(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("tiered", tiered=True, brokers=3, secured=True, authorizer=True, heap="256m")
    topic = tiered_topic(cluster, RECORDS)
    assert len(cluster.store.segments()) >= 6
    assert local_start(cluster, topic) >= RECORDS - IN_SEGMENT


@pytest.mark.slow
def test_a_version_without_tiered_storage_is_refused_before_anything_is_made(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("old", start=False, kafka_version="3.3.2", tiered=True)
    with pytest.raises(UsageError, match=r"Kafka 3\.3\.2 has no tiered storage"):
        cluster.start()
    assert not cluster.directory.exists()
