"""A schema registry over `_schemas` moves with its topic: ids stay, and none is assigned twice.

A twin stays in place and registers the same: its ids and records are the expected result.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.journeys import Journey, send, values_lost
from tests.support.visible import shown


class Registry:
    """A schema registry as Kafka sees it: it reads its topic, and writes new schemas to it.

    Ids count up from the highest one in the topic.
    """

    def __init__(self, cluster: SandboxCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self.ids: dict[str, int] = {}
        for record in shown(cluster, topic):
            reported = json.loads(record.value or b"{}")
            self.ids[reported["schema"]] = reported["id"]

    def register(self, schema: str) -> int:
        """Return the id of a schema; a new one is written."""
        if schema not in self.ids:
            self.ids[schema] = max(self.ids.values(), default=0) + 1
            key = json.dumps({"keytype": "SCHEMA", "subject": schema, "version": 1, "magic": 1})
            producer = Producer({"bootstrap.servers": self._cluster.bootstrap_servers, "acks": "all"})
            producer.produce(self._topic, json.dumps({"schema": schema, "id": self.ids[schema]}), key=key)
            assert producer.flush(30) == 0
        return self.ids[schema]


class Application:
    """A producer of records with the id of their schema; names mean schemas."""

    def __init__(self, cluster: SandboxCluster) -> None:
        self.schemas, self.records = unique_topic("_schemas"), unique_topic("records")
        create_topics(cluster, {self.schemas: {"cleanup.policy": "compact"}, self.records: {}})

    def journey(self, a: SandboxCluster, b: SandboxCluster, folder: Path) -> Journey:
        """Mirror both topics."""
        return Journey(a, b, folder, [self.schemas, self.records], f"priority.topics={self.schemas}")

    def ids(self, cluster: SandboxCluster) -> dict[str, int]:
        """Return what a registry on a cluster knows."""
        return Registry(cluster, self.schemas).ids

    def write(self, cluster: SandboxCluster, *schemas: str) -> None:
        """Write a record of each schema."""
        registry = Registry(cluster, self.schemas)
        send(cluster, self.records, [f"{registry.register(schema)} {schema}" for schema in schemas])

    def values(self, cluster: SandboxCluster) -> list[str]:
        """Return the records, each with the id and the name of its schema."""
        return [(record.value or b"").decode() for record in shown(cluster, self.records)]

    def assert_all_can_be_read(self, cluster: SandboxCluster) -> None:
        """Each record's id is that of its schema."""
        schemas = {number: schema for schema, number in self.ids(cluster).items()}
        for value in self.values(cluster):
            number, _, schema = value.partition(" ")
            assert schemas[int(number)] == schema


@pytest.mark.slow
def test_schema_ids_stay(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    a, b = cluster_pair.source, cluster_pair.destination
    moved, unmoved = Application(a), Application(a)
    for application in (moved, unmoved):
        application.write(a, "order", "invoice", "order")
    with moved.journey(a, b, tmp_path) as journey:
        journey.promote()
    moved.write(b, "refund", "order")
    unmoved.write(a, "refund", "order")
    assert moved.ids(b) == unmoved.ids(a) == {"order": 1, "invoice": 2, "refund": 3}
    assert moved.values(b) == unmoved.values(a)
    moved.assert_all_can_be_read(b)


@pytest.mark.long
def test_an_id_that_was_lost_is_given_out_again(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    a, b = cluster_pair.source, cluster_pair.destination
    moved, unmoved = Application(a), Application(a)
    for application in (moved, unmoved):
        application.write(a, "order", "invoice")
    with moved.journey(a, b, tmp_path) as journey:
        journey.wait()
        journey.kill_engine()
        moved.write(a, "payment")
        unmoved.write(a, "payment")
        lost = journey.failover()
        assert [json.loads(value)["id"] for value in values_lost(a, moved.schemas, lost)] == [3]
        moved.write(b, "shipment")
        unmoved.write(a, "shipment")
        assert moved.ids(b) == {"order": 1, "invoice": 2, "shipment": 3}
        assert unmoved.ids(a) == {"order": 1, "invoice": 2, "payment": 3, "shipment": 4}
        moved.assert_all_can_be_read(b)
        journey.failback("--recreate")
        journey.wait()
    assert moved.ids(a) == moved.ids(b)
    moved.assert_all_can_be_read(a)
    assert moved.values(a) == ["1 order", "2 invoice", "3 shipment"]
