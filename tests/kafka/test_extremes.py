"""What Kafka allows at its limits: names, records, groups. Copied and shown like anything else."""

from __future__ import annotations

import json
import string
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.engine import typed
from tests.support.groups import GroupScene, commit, committed
from tests.support.lane import Mirror, assert_same
from tests.support.leader import Leader, batch_of
from tests.support.mirrors import delete_topic, make_topic, new_mirror, outcomes, produce, selector
from tests.support.strict_html import StrictHtml
from tests.support.visible import shown

LEGAL = string.ascii_letters + string.digits + "._-"
LONGEST = 249
HEADERS = 10_000


def longest_name() -> str:
    """Return a name of its own with every legal character, as long as a name may be."""
    return (unique_topic("-") + LEGAL * 4)[:LONGEST]


def test_records_at_the_limits_are_copied_to_the_byte(mirror: Mirror) -> None:
    topics = [mirror.topic(), mirror.topic(settings={"cleanup.policy": "compact"})]
    for topic in topics:
        producer = Producer({"bootstrap.servers": mirror.source.bootstrap_servers, "acks": "all"})
        headers = [(f"h{number}", b"%d" % number if number % 3 else None) for number in range(HEADERS)]
        producer.produce(topic, b"many headers", b"k1", headers=headers)
        producer.produce(topic, b"", b"")
        producer.produce(topic, b"a large key", b"k" * 500_000)
        producer.produce(topic, None, b"\0")
        assert producer.flush(30) == 0
    lane = mirror.start()
    mirror.wait_copied(lane)
    mirror.stop(lane)
    for topic in topics:
        assert_same(mirror, topic)
        copied = shown(mirror.destination, topic)
        assert copied == shown(mirror.source, topic)
        assert len(copied[0].headers) == HEADERS


def test_the_longest_names_go_through_every_verb(
    cluster_pair: ClusterPair, destination: Destination, tmp_path: Path
) -> None:
    names = [longest_name(), "..." + unique_topic("_")]
    mirror = new_mirror(destination, cluster_pair.source)
    of_mirror = ("--mirror", mirror)
    cluster = cluster_pair.destination
    for name in names:
        make_topic(cluster_pair.source, name)
        produce(cluster_pair.source, name, ["1", "2"])
    assert outcomes(add(destination, mirror, selector(*names))) == dict.fromkeys(names, "DONE")
    rows = json.loads(typed(cluster, "describe", *of_mirror, "--json").stdout)
    assert sorted(row["topic"] for row in rows) == sorted(names)
    for name in names:
        chosen = (*of_mirror, f"--topics={name}")
        for line in (("pause", *chosen), ("resume", *chosen), ("failover", *chosen, "--dry-run")):
            done = typed(cluster, *line)
            assert done.returncode == 0, (line, done.stdout, done.stderr)
        assert name in typed(cluster, "events", *of_mirror).stdout
    page = tmp_path / "report.html"
    assert typed(cluster, "report", *of_mirror, "--html", str(page)).returncode == 0
    StrictHtml(page.read_text())
    assert all(name in page.read_text() for name in names)
    for name in names:
        assert typed(cluster, "remove", *of_mirror, f"--topics={name}", "--yes").returncode == 0


def test_names_that_collide_on_brokers_are_reported_as_such(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    name = unique_topic()
    dotted, underscored = f"{name}.x", f"{name}_x"
    make_topic(cluster_pair.source, dotted)
    make_topic(cluster_pair.destination, underscored)
    mirror = new_mirror(destination, cluster_pair.source)
    refused = typed(cluster_pair.destination, "add", "--mirror", mirror, "--topics", dotted)
    assert refused.returncode in {3, 4}
    assert f"collides with existing topic: {underscored}" in refused.stdout + refused.stderr
    delete_topic(cluster_pair.destination, underscored)


@pytest.mark.parametrize(
    "group", ["группа \N{PILE OF POO}\t" + "g" * 10_000, "\x7f\u202e\ufeff<b>&\"'"], ids=["long", "odd"]
)
def test_a_group_of_any_name_keeps_its_offsets(cluster_pair: ClusterPair, destination: Destination, group: str) -> None:
    with closing(GroupScene(cluster_pair, destination)) as scene:
        commit(cluster_pair.source, group, scene.source_topic, {0: 42})
        scene.sync()
        assert committed(cluster_pair.destination, group, scene.topic) == {0: 42}
        reported = typed(cluster_pair.destination, "describe", "--mirror", scene.mirror, "--groups", "--json")
        assert reported.returncode == 0, reported.stderr
        assert group in [row["group"] for row in json.loads(reported.stdout)]
        assert typed(cluster_pair.destination, "describe", "--mirror", scene.mirror, "--groups").returncode == 0


def memory(what: str) -> int:
    """Return how many bytes this process holds (VmRSS), or has held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) << 10


@pytest.mark.long
def test_a_record_of_100_mb_is_copied_with_bounded_memory(make_cluster: MakeCluster) -> None:
    limits = {"message.max.bytes": "120000000", "socket.request.max.bytes": "150000000"}
    cluster = make_cluster("large", heap="1g", properties=limits)
    with closing(Mirror(cluster, cluster)) as mirror:
        topics = [mirror.topic(settings={"max.message.bytes": "120000000"}) for _ in range(2)]
        for topic in topics:
            with Leader(mirror.source, topic) as leader:
                for value in (b"small", bytes(100_000_000), b"small"):
                    assert leader.append_as_is(batch_of(value=value)).error_code == 0
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
        before = memory("VmRSS")
        patient = {**cluster.client_properties(), "request.timeout.ms": "30000"}
        lane = mirror.start(source_properties=patient, destination_properties=patient)

        def is_copied() -> bool:
            mirror.claim()  # an engine says now and then that it is there
            return mirror.destination_ends() == mirror.source_ends()

        mirror.wait(lane, is_copied, 120)
        mirror.stop(lane)
        # one is received, and each partition's is held until it is appended
        grown = memory("VmHWM") - before
        assert grown < 400 << 20, grown
        for topic in topics:
            assert_same(mirror, topic)
