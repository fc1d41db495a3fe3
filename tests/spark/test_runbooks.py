"""The runbooks are true: every command of docs/runbooks is typed here, in order, and ends as they say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.acls import describe_acls
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.java_properties import properties_text
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.create import create
from kmirror_compat.mirrormaker_records import checkpoint
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import kafka_jars
from kmirror_sandbox.registry import down
from tests.support.acls import USERS, acls, give, kmirror_rights, written
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.engine import Engine, typed
from tests.support.groups import commit, committed
from tests.support.leader import create_topic
from tests.support.librdkafka import librdkafka
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.ports import free_base_port
from tests.support.runbooks import DOCS, Operator, blocks_of, tools_in
from tests.support.waiting import PATIENCE_S, wait_until

RECORDS = 200


def values(label: str, count: int = RECORDS) -> list[str]:
    return [f"{label}-{number}" for number in range(count)]


@pytest.fixture
def pair(passing_destination: SandboxCluster, destination_cluster: SandboxCluster) -> ClusterPair:
    """Return A, which may be lost and mirrored to, and B; each runbook has a mirror and topics of its own there."""
    return ClusterPair(passing_destination, destination_cluster)


def mirrored(pair: ClusterPair, *topics: str, **settings: str) -> str:
    """Make topics with records in them at A, and a mirror of them at B; return its name."""
    for topic in topics:
        make_topic(pair.source, topic, 1, retention_ms="-1")
        produce(pair.source, topic, values("first"))
    with Destination.open(properties_of(pair.destination)) as destination:
        mirror = new_mirror(destination, pair.source, **settings)
        assert add(destination, mirror, selector(*topics)).exit_code == 0
    return mirror


def read_all(cluster: SandboxCluster, topic: str, count: int, group: str = "reader") -> list[str]:
    """Read so many records as a member of a group, from where it has committed, and commit."""
    consumer = Consumer(
        {
            **librdkafka(client_config(cluster.client_properties())),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    read: list[str] = []

    def has_read() -> bool:
        read.extend(message.value().decode() for message in consumer.consume(500, timeout=0.5))
        return len(read) >= count

    wait_until(has_read)
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


@contextmanager
def another_engine(source: SandboxCluster, destination: SandboxCluster) -> Iterator[None]:
    """Have an engine of another mirror, with another login, write its heartbeats for the time of a block."""
    topic = unique_topic("other")
    make_topic(source, topic)
    with Destination.open(destination.client_properties()) as opened:
        mirror = new_mirror(opened, source)
        assert add(opened, mirror, selector(topic)).exit_code == 0
        with LocalEngine(opened, mirror):
            yield


@pytest.mark.parametrize("page", ["migration", "disaster", "failback", "drill", "break-glass", "from-mirrormaker"])
def test_every_variable_is_set_first(page: str) -> None:
    blocks = blocks_of((DOCS / "runbooks" / f"{page}.md").read_text(encoding="utf-8"))
    assert blocks[0].kind == "settings"
    known = {line.split("=")[0].removeprefix("export ") for line in blocks[0].text.splitlines()}
    for block in blocks:
        assert set(re.findall(r"\$\{?([A-Z_]+)", block.text)) <= known, block.text


def test_migration(pair: ClusterPair, tmp_path: Path) -> None:
    a, b = pair.source, pair.destination
    mirror = mirrored(pair, "orders", "payments")
    engine = Engine(b, mirror, tmp_path / "engine.out", with_spark=False)
    try:
        given = {"A": a.bootstrap_servers, "B": b.bootstrap_servers, "MIRROR": mirror}
        with Operator("migration", tmp_path, given) as operator:
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
            assert "the two logs are the same" in operator.follow("8.")
            assert read_all(a, "orders", 3 * RECORDS + len(written), "dr")[-RECORDS:] == values("local")
            assert operator.interrupt() == [0]
            operator.follow("9.")
    finally:
        engine.destroy()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["Default", "Identity"])
def test_from_mirrormaker(pair: ClusterPair, tmp_path: Path, policy: str) -> None:
    a, b, topic, alias = pair.source, pair.destination, unique_topic("orders"), unique_topic("A")
    copies, prefix = ("", "new.") if policy == "Identity" else (f"{alias}.", "")
    moved, stays = unique_topic("billing"), unique_topic("stays")
    make_topic(a, topic, 1, retention_ms="-1")
    produce(a, topic, values("first"))
    commit(a, stays, topic, {0: 30})
    # as MirrorMaker 2 left it: a copy that begins ten records later, and two checkpoints, of which the last counts
    make_topic(b, f"{copies}{topic}", 1)
    produce(b, f"{copies}{topic}", values("first")[10:])
    partition = TopicPartition(f"{copies}{topic}", 0)
    make_topic(b, f"{alias}.checkpoints.internal", 1, cleanup_policy="compact")
    marks = Producer(properties_of(b))
    for entry in (
        checkpoint(moved, partition, 20, 10),
        checkpoint(stays, partition, 30, 20),
        checkpoint(moved, partition, 150, 140),
    ):
        marks.produce(f"{alias}.checkpoints.internal", key=entry.key, value=entry.value)
    assert marks.flush(30) == 0
    (tmp_path / "mm2.properties").write_text(
        f"clusters = {alias}, B\n{alias}.bootstrap.servers = {a.bootstrap_servers}\n"
        f"B.bootstrap.servers = {b.bootstrap_servers}\n{alias}->B.enabled = true\n{alias}->B.topics = {topic}\n"
        f"replication.policy.class = org.apache.kafka.connect.mirror.{policy}ReplicationPolicy\n"
    )
    given = {
        "B": b.bootstrap_servers,
        "MM_FILE": "mm2.properties",
        "ALIAS": alias,
        "COPIES": copies,
        "PREFIX": prefix,
        "MIRROR": unique_topic("m"),
        "TOPIC": topic,
        "GROUP": moved,
    }
    with Operator("from-mirrormaker", tmp_path, given) as operator:
        # the formatter is in a jar that no other tool needs
        consumer = tmp_path / "bin" / "kafka-console-consumer.sh"
        jars = kafka_jars(None, os.environ, lambda line: None, ["connect-mirror", "kafka-tools"])
        consumer.write_text(re.sub("-cp '[^']*'", f"-cp '{jars.classpath}'", consumer.read_text()))
        assert "topics.include" in operator.follow("1.")
        operator.follow("2.")
        wait_until(lambda: committed(b, stays, prefix + topic) == {0: 30}, 60)
        assert stays in operator.follow("3.")
        assert f"\n{prefix}{topic},0,150\n" in "\n" + operator.follow("4.")
        assert read_all(b, prefix + topic, RECORDS - 150, moved) == values("first")[150:]
        assert operator.interrupt() == [0]
        operator.follow("5.")


OTHER_FAILBACKS = [pytest.param(case, False, id=case, marks=pytest.mark.slow) for case in ("4b", "4c")]
FULL_FAILBACKS = [pytest.param(case, True, id=f"{case}-to-the-end", marks=pytest.mark.long) for case in ("4b", "4c")]


@pytest.mark.parametrize(("case", "to_the_end"), [("4a", True), *OTHER_FAILBACKS, *FULL_FAILBACKS])
def test_failback(pair: ClusterPair, tmp_path: Path, case: str, to_the_end: bool) -> None:
    a, b = pair.source, pair.destination
    orders, payments = unique_topic("orders"), unique_topic("payments")
    mirror = mirrored(pair, orders, payments)
    with Destination.open(properties_of(b)) as destination, LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    if case != "4a":
        produce(a, orders, values("beyond", 7))
    assert typed(b, "failover", "--mirror", mirror, "--yes").returncode == 0
    produce(b, orders, values("local"))
    given = {
        "A": a.bootstrap_servers,
        "B": b.bootstrap_servers,
        "MIRROR": mirror,
        "LOG_DIR": str(a.brokers[0].log_dir),
    }
    # the long cases, and they alone, go through with Spark
    with_spark = to_the_end and case != "4a"
    with Operator("failback", tmp_path, given, with_spark=with_spark) as operator:
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
        assert read_all(a, orders, 2 * RECORDS) == [*values("first"), *values("local")]
        if case != "4a":
            assert read_all(a, f"{orders}.kmirror-archive.1", 7, "saver") == values("beyond", 7)
        if to_the_end:
            operator.follow("6.")
            assert operator.interrupt() == [0]
            produce(a, payments, values("home"))
            operator.follow("7.")
            assert read_all(b, payments, 2 * RECORDS) == [*values("first"), *values("home")]
        else:
            assert operator.interrupt() == [0]
            operator.skip("6.")
            operator.skip("7.")


@pytest.mark.slow
def test_drill(pair: ClusterPair, clusters_directory: Path, tmp_path: Path) -> None:
    mirror = mirrored(pair, unique_topic("drill"))
    sandbox, port = clusters_directory / unique_topic("drill"), free_base_port()
    given = {
        "B": pair.destination.bootstrap_servers,
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
            assert "1 partition: 0 offsets known lost as of" in operator.follow("5.")
            (row,) = json.loads((tmp_path / "sandbox-failover.json").read_text())["partitions"]
            assert (row["result"], row["lastMirroredOffset"]) == ("DONE", 1000)
            assert operator.follow("6.").splitlines()[-2:] == ["1001", "1100"]
            operator.follow("7.")
        assert not sandbox.exists()
    finally:
        down(sandbox)


@pytest.mark.slow
def test_break_glass(pair: ClusterPair, guarded_cluster: SandboxCluster, tmp_path: Path) -> None:
    """The engine stays alive, its source is written to, and an engine of another mirror writes to the same memory."""
    a, topic, group = pair.source, unique_topic("orders"), unique_topic("billing")
    b, mirror = guarded_cluster, unique_topic("orders-dr")
    make_topic(a, topic, 1, retention_ms="604800000", message_timestamp_type="LogAppendTime")
    produce(a, topic, values("first"))
    commit(a, group, topic, {0: 50})
    login = b.write_client_properties(tmp_path / "kmirror.properties", "kmirror")
    b.write_client_properties(tmp_path / "admin.properties")
    with ClusterClient(client_config(b.client_properties())) as admin:
        give(
            admin,
            kmirror_rights(),
            acls("group", group, "kmirror", "READ"),
            acls("topic", topic, "app", "WRITE"),
        )
    with Destination.open(b.client_properties("kmirror")) as destination:
        often = {"sync.group.offsets.interval.seconds": "1"}
        assert create(destination, mirror, properties_of(a) | often).exit_code == 0
        assert add(destination, mirror, selector(topic)).exit_code == 0
    given = {
        "B": b.bootstrap_servers,
        "MIRROR": mirror,
        "TOPIC": topic,
        "GROUP": group,
        "SINCE": "2026-01-01T00:00:00.000",
        "KMIRROR_USER": "User:kmirror",
        "APP_USER": "User:app",
        "ADMIN": "admin.properties",
    }
    engine = Engine(b, mirror, tmp_path / "engine.out", "--command-config", str(login), with_spark=False)
    try:
        wait_until(lambda: committed(b, group, topic) == {0: 50}, 150)
        assert written(b, "app", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        with Operator("break-glass", tmp_path, given) as operator, another_engine(a, b):
            operator.follow("1.")
            produce(a, topic, values("too-late"))
            remembered = operator.follow("2.")
            assert '"deferred"' in remembered
            assert "User:app" in remembered
            assert f'"pid":{engine.process.pid}' in remembered
            assert f"{topic}:0:200" in operator.follow("3.")
            operator.follow("4.")
            operator.follow("5.")
            assert "50" in operator.follow("6.")
            operator.follow("7.")
            assert written(b, "app", topic) is None
            ends = operator.follow("8.")
            assert f"{topic}:0:200" in ends
            assert f"{topic}:0:201" in ends
            with ClusterClient(client_config(b.client_properties())) as admin:
                now = topic_settings(admin, [topic])[topic]
            assert not isinstance(now, int)
            assert (now["retention.ms"].value, now["message.timestamp.type"].value) == ("604800000", "LogAppendTime")
            assert engine.process.poll() is None
            assert f"{topic}-0 is stopped" in operator.follow("9.")
            assert engine.wait(60) == 3
        assert read_all(b, topic, RECORDS + 1) == [*values("first"), "v"]
    finally:
        engine.destroy()


@pytest.mark.slow
def test_uninstalling(pair: ClusterPair, make_cluster: MakeCluster, tmp_path: Path) -> None:
    """After it nothing of kmirror is left, and what belongs to others is."""
    a, topic = pair.source, unique_topic("orders")
    b = make_cluster("left", secured=True, authorizer=True, users=USERS)
    mirror, archive, place = unique_topic("orders-dr"), f"{topic}.kmirror-archive.1", TopicPartition(topic, 0)
    make_topic(a, topic, 1, retention_ms="604800000")
    produce(a, topic, values("first"))
    login = b.write_client_properties(tmp_path / "kmirror.properties", "kmirror")
    b.write_client_properties(tmp_path / "admin.properties")
    with ClusterClient(client_config(b.client_properties())) as admin:
        give(admin, acls("topic", topic, "app", "READ"))
        others = describe_acls(admin)
        source = properties_of(a) | {"topics.include": topic}
        (tmp_path / "source.properties").write_text(properties_text(source))
        given = {"B": b.bootstrap_servers, "MIRROR": mirror, "ADMIN": "admin.properties"}
        given["KMIRROR_COMMAND_CONFIG"] = login.name
        with Operator("../uninstalling", tmp_path, given) as operator:
            operator.environ["XDG_CACHE_HOME"] = str(tmp_path / "cache")

            def type_in(*words: str) -> subprocess.CompletedProcess[str]:
                return subprocess.run(
                    words, cwd=tmp_path, env=operator.environ, capture_output=True, text=True, check=False
                )

            # as an administrator installs it: by the lines that are printed
            printed = type_in("kmirror", "check", "--mirror-config", "source.properties").stdout
            printed = printed[printed.index("least rights") :]
            for line in re.findall(r"^ +kafka-acls (--.*--add .*)", printed.partition("\nFAIL")[0], re.MULTILINE):
                assert type_in("sh", "-c", f"kafka-acls.sh {line}").returncode == 0, line
            assert describe_acls(admin) > others
            for words in (("create", "--mirror-config", "source.properties"), ("add", "--topics", topic)):
                assert (done := type_in("kmirror", words[0], "--mirror", mirror, *words[1:])).returncode == 0, done
            create_topic(b, name=archive)
            with Destination.open(b.client_properties("kmirror")) as here, LocalEngine(here, mirror) as engine:
                engine.catch_up()
                rows = engine.engine.partitions.rows
                assert rows[place].destination_offset == RECORDS, rows
            done = type_in("kmirror", "failover", "--mirror", mirror, "--yes")
            assert done.returncode == 0, done
            for committed in (False, True):
                end = admin.list_offsets({place: LATEST}, read_committed=committed)[place].offset
                assert end == RECORDS + 1, done  # a marker follows
            operator.follow("1.")
            assert f"mirror {mirror}" in operator.follow("2.")
            kept = set(operator.follow("3.").split())
            assert {topic, archive} <= kept
            assert not any(name.startswith("__kmirror") for name in kept)
            assert (
                type_in(
                    *(
                        "kafka-topics.sh",
                        "--bootstrap-server",
                        b.bootstrap_servers,
                        "--command-config",
                        "admin.properties",
                    ),
                    *("--delete", "--topic", r".*\.kmirror-archive\.[0-9]+"),
                ).returncode
                == 0
            )
            typed = operator.follow("4.")
            deadline = time.monotonic() + PATIENCE_S
            while (found := describe_acls(admin)) != others:
                assert time.monotonic() < deadline, f"{sorted(map(str, found ^ others))}\n{typed}"
                time.sleep(0.1)
            assert set(admin.metadata().topics) - {"__consumer_offsets"} == {topic, "__transaction_state"}
            operator.follow("5.")
            assert not list((tmp_path / "cache").iterdir())
    assert read_all(b, topic, RECORDS) == values("first")


@pytest.mark.long
def test_the_script_for_ci(pair: ClusterPair, tmp_path: Path) -> None:
    a, b, topic = pair.source, pair.destination, unique_topic("orders")
    make_topic(a, topic)
    produce(a, topic, values("first"))
    (tmp_path / "source.properties").write_text(f"bootstrap.servers={a.bootstrap_servers}\n")
    environ = {
        **os.environ,
        "PATH": f"{tools_in(tmp_path / 'bin')}:{os.environ['PATH']}",
        "KMIRROR_BOOTSTRAP_SERVER": b.bootstrap_servers,
        "KMIRROR_EXPECT_CLUSTER_ID": b.cluster_id,
        "MIRROR": unique_topic("m"),
        "SOURCE_CONFIG": "source.properties",
        "TOPICS": topic,
    }

    def job(**more: str) -> subprocess.CompletedProcess[str]:
        script = DOCS / "examples" / "promote.sh"
        return subprocess.run(
            [script], cwd=tmp_path, env=environ | more, capture_output=True, text=True, check=False, timeout=240
        )

    elsewhere = job(KMIRROR_EXPECT_CLUSTER_ID="another")
    assert (elsewhere.returncode, "refused: create" in elsewhere.stderr) == (3, True), elsewhere.stderr
    with writing(a, topic):
        too_early = job(PROMOTE_TIMEOUT="5s")
        assert (too_early.returncode, "not yet: promote" in too_early.stderr) == (5, True), too_early
    promoted = job()
    assert promoted.returncode == 0, promoted
    evidence = json.loads((tmp_path / "promote.json").read_text())
    assert (evidence["exitCode"], [run["exitCode"] for run in evidence["earlier"]]) == (0, [5])
    assert "promoted already" in job().stdout


def test_disaster(pair: ClusterPair, tmp_path: Path) -> None:
    a, b = pair.source, pair.destination
    orders, payments = unique_topic("orders"), unique_topic("payments")
    mirror = mirrored(pair, orders, payments)
    engine = Engine(b, mirror, tmp_path / "engine.out", with_spark=False)
    try:
        assert len(read_all(b, orders, RECORDS)) == RECORDS
        assert len(read_all(b, payments, RECORDS)) == RECORDS
        a.kill(1)
        given = {"B": b.bootstrap_servers, "MIRROR": mirror}
        with Operator("disaster", tmp_path, given) as operator:
            assert "2 partitions: 0 offsets known lost as of" in operator.follow("1.")
            assert "2 partitions: 0 offsets known lost as of" in operator.follow("2.")
            evidence = json.loads((tmp_path / "failover.json").read_text())
            assert evidence["exitCode"] == 0
            assert {row["lastMirroredOffset"] for row in evidence["partitions"]} == {200}
            operator.follow("3.")
            operator.follow("4.")
            produce(b, orders, values("local"))
            assert engine.wait(60) == 3
            assert "failed over as a whole" in operator.follow("5.")
            assert "failover" in operator.follow("6.")
    finally:
        engine.destroy()
