"""Sandbox clusters do what tests and people rely on: real brokers are started, harmed, stopped and removed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import kmirror_sandbox.cluster
from kmirror.errors import RefusedError, UnreachableError, UsageError
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.clusters import QUICK_FAILOVER, QUICK_JAVA_OPTIONS, MakeCluster, archive_options, broker_processes
from tests.support.oracle import librdkafka_records
from tests.support.waiting import wait_until


def admin_of(cluster: SandboxCluster) -> Any:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})


def make_topic(cluster: SandboxCluster, replicas: int = 1) -> None:
    topic = NewTopic("t", 1, replicas, config={"min.insync.replicas": str(min(2, replicas))})
    admin = admin_of(cluster)
    admin.create_topics([topic])["t"].result()


def write(cluster: SandboxCluster, value: bytes) -> None:
    """Write one record, and return when all replicas in sync have it."""
    outcome: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    producer.produce("t", value, on_delivery=lambda error, message: outcome.append(error))
    assert producer.flush(60) == 0
    assert outcome == [None]


def values(cluster: SandboxCluster) -> list[bytes | None]:
    return [record.value for record in librdkafka_records(cluster.bootstrap_servers, "t", config={"log_level": 0})]


def test_shared_clusters_are_two_different_clusters(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster
) -> None:
    for cluster in (source_cluster, destination_cluster):
        metadata = admin_of(cluster).list_topics(timeout=30)
        assert metadata.cluster_id == cluster.cluster_id
        assert set(metadata.brokers) == {1}
    assert source_cluster.cluster_id != destination_cluster.cluster_id


def test_brokers_of_tests_start_from_a_class_archive(source_cluster: SandboxCluster) -> None:
    """Without one everything passes too, only minutes later."""
    (archive,) = (word.partition("=")[2] for word in archive_options(None) if word.startswith("-XX:SharedArchiveFile="))
    (broker,) = source_cluster.brokers
    assert archive in Path(f"/proc/{broker.pid}/maps").read_text()


@pytest.mark.parametrize(
    "kafka_version", [pytest.param("4.3.1", marks=pytest.mark.slow), pytest.param("3.9.2", marks=pytest.mark.long)]
)
def test_a_cluster_comes_back_as_it_was_after_a_stop_and_after_a_kill(
    make_cluster: MakeCluster, kafka_version: str
) -> None:
    cluster = make_cluster(kafka_version=kafka_version, properties=QUICK_FAILOVER)
    identity = (cluster.cluster_id, cluster.bootstrap_servers)
    log = cluster.brokers[0].log_file.read_text()
    assert re.findall(r"Kafka version: (\S+)", log)[0] == kafka_version
    make_topic(cluster)
    write(cluster, b"before the stop")

    cluster.stop()
    assert [broker.pid for broker in cluster.brokers] == [None]
    assert broker_processes(cluster.directory) == []
    assert (cluster.brokers[0].log_dir / ".kafka_cleanshutdown").exists()
    cluster.start()
    write(cluster, b"before the kill")
    cluster.kill(1)
    assert broker_processes(cluster.directory) == []
    SandboxCluster("own", cluster.directory).start()  # opened again from its folder

    assert (cluster.cluster_id, cluster.bootstrap_servers) == identity
    assert values(cluster) == [b"before the stop", b"before the kill"]
    directory = cluster.directory
    cluster.destroy()
    assert not directory.exists()
    assert broker_processes(directory) == []


@pytest.mark.long
def test_three_brokers_survive_the_loss_of_each_in_turn(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, properties=QUICK_FAILOVER)
    make_topic(cluster, replicas=3)

    def all_in_sync() -> bool:
        return len(admin_of(cluster).list_topics(timeout=30).topics["t"].partitions[0].isrs) == 3

    for node_id in (1, 2, 3):
        cluster.kill(node_id)
        assert [broker.pid is None for broker in cluster.brokers] == [node_id == other for other in (1, 2, 3)]
        write(cluster, b"without %d" % node_id)
        cluster.start_broker(node_id)
        wait_until(all_in_sync)
    assert values(cluster) == [b"without 1", b"without 2", b"without 3"]

    cluster.stop_broker(2)
    assert [broker.node_id for broker in cluster.brokers if broker.pid is None] == [2]
    with pytest.raises(RefusedError, match="broker 2 of cluster own is not running"):
        cluster.signal(2, signal.SIGCONT)
    with pytest.raises(UsageError, match="has no broker 4"):
        cluster.kill(4)


@pytest.mark.slow
def test_brokers_outlive_the_command_that_started_them_and_a_frozen_one_is_ended_by_force(
    clusters_directory: Path,
) -> None:
    directory, java_options = clusters_directory / "outlive", (*QUICK_JAVA_OPTIONS, *archive_options(None))
    command = (
        "import sys; from pathlib import Path; from kmirror_sandbox.cluster import SandboxCluster; "
        "SandboxCluster('outlive', Path(sys.argv[1]), java_options=sys.argv[2:]).start()"
    )
    subprocess.run([sys.executable, "-c", command, directory, *java_options], check=True, start_new_session=True)

    cluster = SandboxCluster("outlive", directory)
    pid = cluster.brokers[0].pid
    assert broker_processes(directory) == [pid]
    make_topic(cluster)
    write(cluster, b"still there")
    assert pid is not None
    assert os.getsid(pid) == pid

    cluster.signal(1, signal.SIGSTOP)
    cluster.stop(grace_s=0.5)
    assert broker_processes(directory) == []
    cluster.destroy()


@pytest.mark.slow
def test_a_broker_that_dies_while_starting_is_reported_with_its_last_exception(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(start=False, properties={"metric.reporters": "no.such.Reporter"})
    with pytest.raises(UnreachableError, match=r"broker 1 of cluster own exited.*no\.such\.Reporter") as died:
        cluster.start()
    assert "server.log" in (died.value.hint or "")
    assert broker_processes(cluster.directory) == []
    assert not cluster.exists


@pytest.mark.long
def test_a_port_taken_meanwhile_is_chosen_again(make_cluster: MakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        choices = [[other.getsockname()[1], *free_ports(1)], free_ports(2)]
        taken = make_cluster("taken", start=False, ports=choices[0])
        # Something answers on that port: that it is not ours is seen by the broker's end.
        with pytest.raises(UnreachableError, match="Address already in use"):
            taken.start()

        second_choice = choices[1][0]
        monkeypatch.setattr(kmirror_sandbox.cluster, "free_ports", lambda count: choices.pop(0))
        assert make_cluster().bootstrap_servers == f"{LOOPBACK}:{second_choice}"


#: Starts a cluster, and is killed when its first broker runs and no file says so yet.
KILLED_START = """
import os, signal, sys
from pathlib import Path
from kmirror_sandbox import java_server
from kmirror_sandbox.cluster import SandboxCluster

def killed(*arguments):
    spawn(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

spawn, java_server.spawn = java_server.spawn, killed
SandboxCluster("interrupted", Path(sys.argv[1]), java_options=sys.argv[2:]).start()
"""


@pytest.mark.slow
def test_an_interrupted_first_start_is_started_again(clusters_directory: Path) -> None:
    directory, java_options = clusters_directory / "interrupted", (*QUICK_JAVA_OPTIONS, *archive_options(None))
    command = [sys.executable, "-c", KILLED_START, str(directory), *java_options]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(broker_processes(directory)) == 1

    cluster = SandboxCluster("interrupted", directory, java_options=java_options)
    assert not cluster.exists
    cluster.start()
    assert broker_processes(directory) == [cluster.brokers[0].pid]
    cluster.destroy()
    assert broker_processes(directory) == []


@pytest.mark.slow
def test_a_broker_whose_restart_was_interrupted_is_found_and_ended(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    cluster.stop()
    command = [sys.executable, "-c", KILLED_START, str(cluster.directory)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert broker_processes(cluster.directory) == [cluster.brokers[0].pid]
    cluster.stop()
    assert cluster.brokers[0].pid is None
    assert broker_processes(cluster.directory) == []


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    cluster = SandboxCluster("x", tmp_path)
    with pytest.raises(RefusedError, match="contains files of something else"):
        cluster.start()
    cluster.destroy()
    assert (tmp_path / "precious").read_text() == "mine"
