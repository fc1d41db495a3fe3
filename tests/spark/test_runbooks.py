"""The runbooks are true: every command of docs/runbooks is typed here, in order, and ends as they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security import client_config
from kmirror.ops.add import add
from kmirror.ops.admin import topic_settings
from kmirror.ops.context import Destination
from kmirror.ops.create import create
from kmirror.sandbox.cluster import SandboxCluster, start_together
from kmirror.sandbox.ports import free_ports, is_free
from kmirror.sandbox.registry import down
from tests.support.acls import USERS, acls, give, kmirror_rights, written
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.engine import Engine, kmirror
from tests.support.groups import commit
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.runbooks import DOCS, Operator, blocks_of, tools_in
from tests.support.waiting import wait_until

MIRROR = "orders-dr"
TOPICS = ("orders", "payments")
RECORDS = 200


def values(label: str, count: int = RECORDS) -> list[str]:
    return [f"{label}-{number}" for number in range(count)]


def two_clusters(make_cluster: MakeCluster, names: tuple[str, ...] = TOPICS) -> tuple[SandboxCluster, SandboxCluster]:
    """Return A with topics in it, and B, which mirrors them when somebody starts an engine."""
    a, b = make_cluster("a", start=False), make_cluster("b", start=False)
    start_together([a, b])
    for topic in names:
        make_topic(a, topic, 1, retention_ms="-1")
        produce(a, topic, values("first"))
    with Destination.open(properties_of(b)) as destination:
        assert create(destination, MIRROR, properties_of(a)).exit_code == 0
        assert add(destination, MIRROR, selector(*names)).exit_code == 0
    return a, b


def read_all(cluster: SandboxCluster, topic: str, count: int, group: str = "reader") -> list[str]:
    """Read so many records as a member of a group, from where it has committed, and commit."""
    config = {**properties_of(cluster), "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(config)
    consumer.subscribe([topic])
    read: list[str] = []

    def has_read() -> bool:
        read.extend(message.value().decode() for message in consumer.consume(500, timeout=0.5))
        return len(read) >= count

    wait_until(has_read, 60)
    consumer.commit(asynchronous=False)
    consumer.close()
    return read


@contextmanager
def writing(cluster: SandboxCluster, topic: str) -> Iterator[list[str]]:
    """Write a record now and then for the time of a block; the list holds what was written."""
    sent: list[str] = []
    end = threading.Event()

    def write() -> None:
        while not end.wait(0.2):
            produce(cluster, topic, [f"live-{len(sent)}"])
            sent.append(f"live-{len(sent)}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield sent
    finally:
        end.set()
        thread.join()


def free_base_port() -> int:
    """Return a base port whose whole block is free."""
    while True:
        base = free_ports(1)[0]
        if all(is_free(port) for port in range(base, base + 60)):
            return base


@pytest.mark.parametrize("page", ["migration", "disaster", "failback", "drill", "break-glass"])
def test_every_variable_is_set_first(page: str) -> None:
    blocks = blocks_of((DOCS / "runbooks" / f"{page}.md").read_text(encoding="utf-8"))
    assert blocks[0].kind == "settings"
    known = {line.split("=")[0].removeprefix("export ") for line in blocks[0].text.splitlines()}
    for block in blocks:
        assert set(re.findall(r"\$\{?([A-Z_]+)", block.text)) <= known, block.text


@pytest.mark.long
@pytest.mark.timeout(200)
def test_disaster(make_cluster: MakeCluster, tmp_path: Path) -> None:
    a, b = two_clusters(make_cluster)
    engine = Engine(b, MIRROR, tmp_path / "engine.out")
    try:
        assert len(read_all(b, "orders", RECORDS)) == RECORDS
        assert len(read_all(b, "payments", RECORDS)) == RECORDS
        a.kill(1)
        given = {"B": b.bootstrap_servers, "MIRROR": MIRROR}
        with Operator("disaster", tmp_path, given) as operator:
            assert "orders-0 would be stopped at 200; the source ended at 200" in operator.follow("1.")
            assert "orders-0 is stopped at 200" in operator.follow("2.")
            assert json.loads((tmp_path / "failover.json").read_text())["exitCode"] == 0
            operator.follow("3.")
            operator.follow("4.")
            produce(b, "orders", values("local"))
            assert engine.wait(60) == 3
            assert "failed over as a whole" in operator.follow("5.")
            assert "failover" in operator.follow("6.")
    finally:
        engine.destroy()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_migration(make_cluster: MakeCluster, tmp_path: Path) -> None:
    a, b = two_clusters(make_cluster)
    engine = Engine(b, MIRROR, tmp_path / "engine.out")
    try:
        with Operator("migration", tmp_path, {"B": b.bootstrap_servers, "MIRROR": MIRROR}) as operator:
            operator.follow("1.")
            with writing(a, "orders") as written:
                assert "orders" in operator.follow("2.")
            read_before = read_all(a, "orders", RECORDS + len(written))
            operator.follow("4.")
            assert json.loads((tmp_path / "batch-1.json").read_text())["exitCode"] == 0
            assert "STOPPED" in operator.follow("5.")
            operator.follow("6.")
            produce(a, "orders", values("more"))
            operator.follow("7.")
            produce(b, "orders", values("local"))
            assert read_before == [*values("first"), *written]
            assert read_all(b, "orders", 2 * RECORDS) == [*values("more"), *values("local")]
            assert engine.stop() in (0, 3)
            operator.follow("8.")
    finally:
        engine.destroy()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", ["4a", "4b", "4c"])
def test_failback(make_cluster: MakeCluster, tmp_path: Path, case: str) -> None:
    a, b = two_clusters(make_cluster)
    assert kmirror(b, "run", "--mirror", MIRROR, "--until-caught-up").returncode == 0
    if case != "4a":
        produce(a, "orders", values("beyond", 7))
    assert kmirror(b, "failover", "--mirror", MIRROR, "--yes").returncode == 0
    produce(b, "orders", values("local"))
    given = {
        "A": a.bootstrap_servers,
        "B": b.bootstrap_servers,
        "MIRROR": MIRROR,
        "LOG_DIR": str(a.brokers[0].log_dir),
    }
    with Operator("failback", tmp_path, given) as operator:
        operator.follow("2.")
        looked = operator.follow("3.")
        assert ("7 records" in looked) == (case != "4a"), looked
        for other in {"4a", "4b", "4c"} - {case}:
            operator.skip(other)
        operator.follow(f"{case}.")
        if case == "4c":
            a.stop_broker(1)
            operator.follow("4c, on each")
            a.start_broker(1)
            operator.follow("4c, the same")
        operator.follow("5.")
        assert read_all(a, "orders", 2 * RECORDS) == [*values("first"), *values("local")]
        if case != "4a":
            assert read_all(a, "orders.kmirror-archive.1", 7, "saver") == values("beyond", 7)
        operator.follow("6.")
        assert operator.interrupt() == [0]
        produce(a, "payments", values("home"))
        operator.follow("7.")
        assert read_all(b, "payments", 2 * RECORDS) == [*values("first"), *values("home")]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_drill(cluster_pair: ClusterPair, clusters_directory: Path, tmp_path: Path) -> None:
    source, destination, topic = cluster_pair.source, cluster_pair.destination, unique_topic("drill")
    make_topic(source, topic)
    with Destination.open(properties_of(destination)) as opened:
        mirror = new_mirror(opened, source)
        assert add(opened, mirror, selector(topic)).exit_code == 0
    sandbox, port = clusters_directory / unique_topic("drill"), free_base_port()
    given = {
        "B": destination.bootstrap_servers,
        "MIRROR": mirror,
        "SANDBOX": str(sandbox),
        "SANDBOX_A": f"127.0.0.1:{port}",
        "SANDBOX_B": f"127.0.0.1:{port + 10}",
        "SANDBOX_PORT": str(port),
    }
    try:
        with Operator("drill", tmp_path, given) as operator:
            for section in ("1.", "2.", "3.", "4."):
                operator.follow(section)
            assert "orders-0 is stopped at 1000" in operator.follow("5.")
            assert operator.follow("6.").splitlines()[-2:] == ["1001", "1100"]
            operator.follow("7.")
        assert not sandbox.exists()
    finally:
        down(sandbox)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_break_glass(make_cluster: MakeCluster, tmp_path: Path) -> None:
    a = make_cluster("a", start=False)
    b = make_cluster("b", start=False, secured=True, authorizer=True, users=USERS)
    start_together([a, b])
    make_topic(a, "orders", 1, retention_ms="604800000", message_timestamp_type="LogAppendTime")
    produce(a, "orders", values("first"))
    commit(a, "billing", "orders", {0: 50})
    login = b.write_client_properties(tmp_path / "kmirror.properties", "kmirror")
    b.write_client_properties(tmp_path / "admin.properties")
    with ClusterClient(client_config(b.client_properties())) as admin:
        give(
            admin,
            kmirror_rights(),
            acls("group", "billing", "kmirror", "READ"),
            acls("topic", "orders", "app", "WRITE"),
        )
    with Destination.open(b.client_properties("kmirror")) as destination:
        often = {"sync.group.offsets.interval.seconds": "1"}
        assert create(destination, MIRROR, properties_of(a) | often).exit_code == 0
        assert add(destination, MIRROR, selector("orders")).exit_code == 0
    engine = Engine(b, MIRROR, tmp_path / "engine.out", "--command-config", str(login))
    try:
        look = ("describe", "--mirror", MIRROR, "--groups", "--command-config", str(login))
        # at the source, and here
        wait_until(lambda: len(re.findall(r"\s50(?=\s)", kmirror(b, *look).stdout)) == 2, 150)
    finally:
        engine.destroy()
    a.kill(1)
    assert written(b, "app", "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    given = {
        "B": b.bootstrap_servers,
        "MIRROR": MIRROR,
        "TOPIC": "orders",
        "GROUP": "billing",
        "KMIRROR_USER": "User:kmirror",
        "APP_USER": "User:app",
        "ADMIN": "admin.properties",
    }
    with Operator("break-glass", tmp_path, given) as operator:
        operator.follow("1.")
        remembered = operator.follow("2.")
        assert '"deferred"' in remembered
        assert "User:app" in remembered
        assert "orders:0:200" in operator.follow("3.")
        operator.follow("4.")
        operator.follow("5.")
        assert "50" in operator.follow("6.")
        operator.follow("7.")
        operator.follow("8.")
        assert written(b, "app", "orders") is None
        with ClusterClient(client_config(b.client_properties())) as admin:
            now = topic_settings(admin, ["orders"])["orders"]
        assert not isinstance(now, int)
        assert (now["retention.ms"].value, now["message.timestamp.type"].value) == ("604800000", "LogAppendTime")
        assert "orders-0 is stopped" in operator.follow("9.")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_script_for_ci(make_cluster: MakeCluster, tmp_path: Path) -> None:
    a, b = make_cluster("a", start=False), make_cluster("b", start=False)
    start_together([a, b])
    make_topic(a, "orders")
    produce(a, "orders", values("first"))
    (tmp_path / "source.properties").write_text(f"bootstrap.servers={a.bootstrap_servers}\n")
    environ = {
        **os.environ,
        "PATH": f"{tools_in(tmp_path / 'bin')}:{os.environ['PATH']}",
        "KMIRROR_BOOTSTRAP_SERVER": b.bootstrap_servers,
        "KMIRROR_EXPECT_CLUSTER_ID": b.cluster_id,
        "MIRROR": MIRROR,
        "SOURCE_CONFIG": "source.properties",
        "TOPICS": "orders",
    }

    def job(**more: str) -> subprocess.CompletedProcess[str]:
        script = DOCS / "examples" / "promote.sh"
        return subprocess.run(
            [script], cwd=tmp_path, env=environ | more, capture_output=True, text=True, check=False, timeout=240
        )

    elsewhere = job(KMIRROR_EXPECT_CLUSTER_ID="another")
    assert (elsewhere.returncode, "refused: create" in elsewhere.stderr) == (3, True), elsewhere.stderr
    with writing(a, "orders"):
        too_early = job(PROMOTE_TIMEOUT="5s")
        assert (too_early.returncode, "not yet: promote" in too_early.stderr) == (5, True), too_early
    promoted = job()
    assert promoted.returncode == 0, promoted
    assert json.loads((tmp_path / "promote.json").read_text())["exitCode"] == 0
    assert "promoted already" in job().stdout
