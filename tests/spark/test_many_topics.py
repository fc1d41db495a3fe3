"""Two thousand topics found by one filter and mirrored; one more does not disturb the others."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.ops.add.topic_admin import await_topics
from kmirror.ops.base.context import Destination
from kmirror.state.records import Incarnation, PartitionState
from kmirror.state.waiting import Deadline
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster
from tests.support.engine import Engine, typed
from tests.support.mirrors import properties_of

TOPICS = 2000
_AT_ONCE = 200


def fill(cluster: SandboxCluster, topics: list[str]) -> None:
    """Create topics, and write a record to each."""
    admin = AdminClient(properties_of(cluster))
    for start in range(0, len(topics), _AT_ONCE):
        some = [NewTopic(topic, 1, 1) for topic in topics[start : start + _AT_ONCE]]
        for future in admin.create_topics(some, operation_timeout=60, request_timeout=60).values():
            future.result(90)
    write(cluster, topics)


def write(cluster: SandboxCluster, topics: list[str]) -> None:
    """Write a record to each topic, once the brokers know it."""
    with ClusterClient(client_config(properties_of(cluster))) as client:
        await_topics(client, topics, Deadline(60))
    missing = set(topics)

    def delivered(error: object, message: Message) -> None:
        if error is None:
            missing.discard(message.topic() or "")

    producer = Producer({**properties_of(cluster), "linger.ms": 100})
    for topic in topics:
        producer.produce(topic, topic, partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(120) == 0
    assert not missing


def held(client: ClusterClient, topics: list[str], end: int = 1) -> int:
    """Return how many of these topics hold so many records."""
    there = client.metadata().topics
    wanted = {TopicPartition(topic, 0): LATEST for topic in topics if topic in there}
    return sum(answer.offset == end for answer in client.list_offsets(wanted, log_end=True).values())


def wait_for(engine: Engine, condition: Callable[[], bool], seconds: float) -> float:
    """Wait, and return how many seconds it took."""
    began = time.monotonic()
    while not condition():
        assert engine.process.poll() is None, f"the engine ended by itself:\n{engine.output[-4000:]}"
        assert time.monotonic() - began < seconds, engine.output[-4000:]
        time.sleep(0.5)
    return time.monotonic() - began


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_thousand_topics_and_one_more(
    make_cluster: MakeCluster, tmp_path: Path, engines: list[Engine], record_property: Callable[[str, object], None]
) -> None:
    source, destination = make_cluster("many-source"), make_cluster("many-destination")
    topics = [f"many-{number:04}" for number in range(TOPICS)]
    fill(source, topics)
    file = tmp_path / "mirror.properties"
    file.write_text(
        f"bootstrap.servers={source.bootstrap_servers}\ntopics.include=many-.*\nrefresh.interval.seconds=2\n"
    )
    made = typed(destination, "create", "--mirror", "m", "--mirror-config", str(file))
    assert made.returncode == 0, made.stderr
    engine = Engine(destination, "m", tmp_path / "engine.out")
    engines.append(engine)
    with (
        ClusterClient(client_config(properties_of(destination))) as client,
        Destination.open(properties_of(destination)) as opened,
    ):
        took = wait_for(engine, lambda: held(client, topics) == TOPICS, 500)
        record_property("seconds until all are found and copied", round(took, 1))

        def lanes() -> dict[int, Incarnation]:
            found = opened.state().engine("m")
            assert found is not None
            return dict(found.lanes)

        def revisions() -> dict[int, int]:
            found = opened.state().engine("m")
            assert found is not None
            return dict(found.revisions or {})

        time.sleep(5)
        before, reported = lanes(), revisions()
        fill(source, ["many-one-more"])
        took = wait_for(engine, lambda: sum(revisions().values()) > sum(reported.values()), 120)
        record_property("seconds until one more is given to a lane", round(took, 1))
        # what comes in that moment waits for nothing
        write(source, topics)
        took = wait_for(engine, lambda: held(client, topics, 2) == TOPICS, 120)
        record_property("seconds until all of the others have a new record", round(took, 1))
        wait_for(engine, lambda: held(client, ["many-one-more"]) == 1, 60)
        # one lane took it; none was restarted, this one as little as the other
        assert lanes() == before
        assert sum(revisions().get(lane, 0) != reported.get(lane, 0) for lane in before) == 1
        failed = [p for t in topics for p in opened.state().partitions("m", t) if p.state is PartitionState.FAILED]
        assert failed == []
        events = [event for event in opened.store.read_events("m") if event.what == "discovery"]
        assert sum(event.details["count"] for event in events) == TOPICS + 1
    rows = json.loads(typed(destination, "describe", "--mirror", "m", "--json").stdout)
    assert {row["state"] for row in rows} == {"MIRRORING"}
    assert len(rows) == TOPICS + 1
    assert engine.stop(60) == 0, engine.output[-4000:]
    print(engine.output[-1500:])  # noqa: T201 - shown by pytest with a failure
