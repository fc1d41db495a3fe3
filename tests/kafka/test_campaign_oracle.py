"""The campaign's oracle reads whole topics at a time, and finds what is harmed by hand; so does its decoy."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ResourceType

from campaign.decoy import Decoy
from campaign.logins import change_settings
from campaign.oracle import compare
from campaign.reading import COMMITTED, UNCOMMITTED, Record, Seen, read
from campaign.sleepers import commit_alone
from campaign.world import world_of
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster
from tests.support.leader import create_topic
from tests.support.mirrors import produce
from tests.support.shared_clusters import TieredPair
from tests.support.tiers import store_that, tiered_topic


def harmed(seen: Seen, offset: int, record: Record | None) -> Seen:
    records = {known: one for known, one in seen.records.items() if known != offset}
    return Seen(seen.start, seen.end, records if record is None else {**records, offset: record})


def test_what_is_read_of_a_copy_shows_every_harm(source_cluster: SandboxCluster) -> None:
    servers = source_cluster.bootstrap_servers
    topic = create_topic(source_cluster, partitions=3)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(60):
        producer.produce(topic, b"v%d" % number, b"k", number % 2, timestamp=1000 + number, headers=[("h", b"1")])
    assert producer.flush(30) == 0
    partitions = [(topic, index) for index in range(3)]
    seen = read(servers, partitions, COMMITTED)
    assert seen == read(servers, partitions, UNCOMMITTED)
    assert [len(seen[partition].records) for partition in partitions] == [30, 30, 0]
    one = seen[partitions[0]]
    acks = {offset: {record.content} for offset, record in one.records.items()}
    assert compare(one, one, acks, all_acknowledged=True) == {}
    first = one.records[0]
    for harm, found in (
        (harmed(one, 7, None), "lacks"),
        (harmed(one, 7, one.records[7]._replace(content=1)), "differs"),
        (harmed(one, 7, one.records[7]._replace(timestamp=1)), "differs"),
        (harmed(one, 7, one.records[8]), "was acknowledged and is another one"),
        (Seen(0, 31, {**one.records, 30: first}), "is not at the source"),
        (Seen(0, 29, {**one.records}), "ends elsewhere"),
    ):
        assert found in compare(one, harm, acks, all_acknowledged=True)


@pytest.mark.slow
def test_a_tiered_log_is_read_to_its_end_although_fetches_bring_nothing_for_a_while(tiered_pair: TieredPair) -> None:
    cluster, records = tiered_pair.source, 200
    place = (tiered_topic(cluster, records), 0)
    with store_that(lambda: cluster.store.slow(1500), cluster):
        assert len(read(cluster.bootstrap_servers, [place], COMMITTED)[place].records) < records
        healed = threading.Timer(5, cluster.store.well)
        healed.start()
        seen = read(cluster.bootstrap_servers, [place], COMMITTED, silent={place})[place]
        healed.join()
    assert sorted(seen.records) == list(range(records))


@pytest.mark.slow
def test_every_change_of_a_decoy_is_found(make_cluster: MakeCluster) -> None:
    cluster, world = make_cluster("decoy"), world_of(1, 15, 3)
    servers, topic = cluster.bootstrap_servers, world.topics[0].name
    decoy = Decoy(world, servers)
    decoy.fill()
    assert decoy.differences() == {}
    produce(cluster, topic, ["one"])
    assert set(decoy.differences()) == {"logs"}
    change_settings(servers, ResourceType.TOPIC, topic, {"retention.ms": "1000000"})
    assert set(decoy.differences()) == {"logs", "settings"}
    create_topic(cluster)
    assert set(decoy.differences()) == {"logs", "settings", "topics"}
    commit_alone(servers, "someone", {(topic, 0): 1})
    assert set(decoy.differences()) == {"logs", "settings", "topics", "groups"}
