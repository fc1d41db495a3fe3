"""Real copies on a real YARN: nodes that are lost and join, application masters that die, secrets, and a packed Python.

A node is a NodeManager with an address of its own; Spark's driver is `kmirror run`, as on a gateway machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from kmirror.engine.spark.gateway import module_options, spark_home
from kmirror.errors import ExitCode
from kmirror.ops.base.bulk import SparkChoice
from kmirror.ops.failback.plan import Strategy
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.ports import LOOPBACK
from tests.spark.conftest import MakePair
from tests.spark.test_logins import Mirrored, event_log, with_password
from tests.support.archiving import assert_holds
from tests.support.class_archive import java
from tests.support.clusters import unique_topic
from tests.support.engine import Engine, Pair, finish, typed
from tests.support.leaks import file_texts, folder_texts, places_of, process_texts, texts_of_processes
from tests.support.mirrors import produce
from tests.support.oracle import console_consumer
from tests.support.round_trip import Trip, archives_of
from tests.support.shared_clusters import GuardedPair
from tests.support.visible import shown
from tests.support.waiting import wait_until
from tests.support.yarn import Yarn, running_yarn, spark_jars

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

#: On a busy machine containers take minutes to start.
PATIENT_S = 400.0
#: What the scripts that start containers need.
PROGRAMS = ("bash", "chmod", "cp", "find", "gzip", "ln", "ls", "mkdir", "mv", "nice", "readlink", "rm", "setsid", "tar")
#: The password of the clusters' administrator, which the file of --command-config has in plaintext.
SECRET = "admin-secret"
ON_YARN = ("--master", "yarn", "--spark-conf", spark_jars())


@pytest.fixture(scope="module")
def whole_yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """Run a cluster for the tests of this module."""
    with running_yarn(tmp_path_factory.mktemp("yarn") / "cluster") as yarn:
        yield yarn


@pytest.fixture
def yarn(whole_yarn: Yarn, monkeypatch: pytest.MonkeyPatch) -> Yarn:
    """Return that cluster with at least two nodes, for programs that are started from now on."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(whole_yarn.conf))
    while len(whole_yarn.nodes) < 2:
        whole_yarn.start_node()
    return whole_yarn


def hosts_of(pair: Pair) -> set[str]:
    """Return the hosts on which lanes run that report on a partition."""
    described = typed(pair.destination, "describe", "--mirror", pair.mirror, "--json")
    return {row["worker"].partition("/")[0] for row in json.loads(described.stdout) if row["worker"]}


def test_lanes_outlive_a_node_and_an_application_master_and_use_a_node_that_joins(
    yarn: Yarn, source_cluster: SandboxCluster, destination_cluster: SandboxCluster, make_pair: MakePair
) -> None:
    pair = make_pair(source_cluster, destination_cluster)
    pair.fill(2_000)
    pair.create("copy.lanes=2")
    engine = pair.engine(*ON_YARN)
    pair.wait_until_copying(engine, PATIENT_S)
    pair.wait_until_equal(engine, PATIENT_S)

    # three executors of which each node has at least one, and two lanes
    _, master = yarn.master()
    (other,) = (node for node in yarn.nodes if node is not master)
    yarn.kill_node(other)
    pair.fill(2_000)
    pair.wait_until_equal(engine, PATIENT_S)
    wait_until(lambda: hosts_of(pair) == {master.host}, PATIENT_S)
    assert "room for 1 lane" in engine.output

    joined = yarn.start_node()
    wait_until(lambda: joined.host in hosts_of(pair), PATIENT_S)
    pair.fill(2_000)
    pair.wait_until_equal(engine, PATIENT_S)

    # the machine of the application master: YARN starts another one, and executors again
    yarn.kill_node(master)
    pair.fill(2_000)
    pair.wait_until_equal(engine, PATIENT_S)
    # executors copy before there is another application master, and until then YARN shows the state of the first
    yarn.master()
    wait_until(lambda: yarn.application(pair.mirror)["state"] == "RUNNING", PATIENT_S)
    assert engine.stop() == 0, engine.output
    wait_until(lambda: yarn.application(pair.mirror)["finalStatus"] == "SUCCEEDED")
    pair.assert_equal()
    for partition in (0, 7):
        read = [console_consumer(cluster, pair.topic, partition) for cluster in (source_cluster, destination_cluster)]
        assert read[0] == read[1]
        assert len(read[0]) == 1_000


def test_an_application_master_comes_back_once_and_the_run_ends_when_yarn_ends_its_application(
    yarn: Yarn, source_cluster: SandboxCluster, destination_cluster: SandboxCluster, make_pair: MakePair
) -> None:
    pair = make_pair(source_cluster, destination_cluster)
    pair.fill(2_000)
    pair.create("copy.lanes=1")
    engine = pair.engine(*ON_YARN)
    pair.wait_until_copying(engine, PATIENT_S)
    first, _ = yarn.master()
    os.kill(first, signal.SIGKILL)
    pair.fill(2_000)
    pair.wait_until_equal(engine, PATIENT_S)

    second, _ = yarn.master(but=first)
    os.kill(second, signal.SIGKILL)
    assert engine.wait(PATIENT_S) == ExitCode.UNEXPECTED
    application = yarn.application(pair.mirror)
    assert application["state"] == "FAILED"
    assert f"Spark's application {application['id']} on yarn has ended: copying has stopped" in engine.output
    # as a supervisor would
    pair.fill(2_000)
    finish(pair, *ON_YARN, seconds=PATIENT_S)


def texts_of_zips(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what the configuration archives of a folder hold, by name."""
    for file in folder.rglob("__spark_conf__.zip"):
        with zipfile.ZipFile(file) as archive:
            yield from ((f"{file}/{name}", archive.read(name)) for name in archive.namelist())


def web_texts(yarn: Yarn, application: str) -> Iterator[tuple[str, bytes]]:
    """Yield what YARN's servers answer to everyone about an application, its containers and their own settings."""
    for path in ("apps", f"apps/{application}", f"apps/{application}/appattempts", "nodes", "info"):
        yield path, yarn.text(path)
    for server, paths in (
        (yarn.site["yarn.resourcemanager.webapp.address"], ("conf", "jmx", f"cluster/app/{application}")),
        *((address, ("conf", "jmx", "ws/v1/node/apps", "ws/v1/node/containers")) for address in yarn.node_addresses()),
    ):
        for path in paths:
            with urllib.request.urlopen(f"http://{server}/{path}", timeout=60) as answer:
                yield f"{server}/{path}", answer.read()


def not_shipped(texts: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Leave out libraries, which are many and public."""
    return [(where, text) for where, text in texts if not re.search(r"/(workers-\w+|pyspark|py4j-[^/]*)\.zip", where)]


def driver_url_of(yarn: Yarn) -> list[str]:
    """Return the options with which YARN started an executor: where the driver is, and the application."""
    lines = (Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") for pid in yarn.pids())
    words = next(line for line in lines if "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend" in line)
    return [word for flag in ("--driver-url", "--app-id") for word in (flag, words[words.index(flag) + 1])]


def intruder(options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Start an executor that knows where the driver is, as every user of the network may, and no secret."""
    jars = spark_jars().partition(":")[2]
    quick = [f"-Dspark.{name}=5s" for name in ("network.timeout", "rpc.askTimeout", "rpc.lookupTimeout")]
    more = ("--executor-id", "77", "--hostname", LOOPBACK, "--cores", "1", "--resourceProfileId", "0")
    command = [str(java()), *module_options(spark_home({})), *quick, "-cp", jars]
    command += ["org.apache.spark.executor.CoarseGrainedExecutorBackend", *options, *more]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENT_S)


def test_secrets_are_nowhere_on_the_cluster_and_only_its_executors_reach_the_driver(
    yarn: Yarn, guarded_pair: GuardedPair, tmp_path: Path
) -> None:
    there = guarded_pair.destination.client_properties("admin", "SCRAM-SHA-512")
    here = with_password(guarded_pair.source, tmp_path / "login", "SCRAM-SHA-512")
    mirror = Mirrored.create(guarded_pair, tmp_path, here, there)
    mirror.write()
    assert SECRET in mirror.command_config.read_text()
    staging = f"spark.yarn.stagingDir=file://{tmp_path / 'staging'}"
    # containers get neither the driver's environment nor its user's home
    trust = f"spark.executorEnv.KMIRROR_TRUST_PATHS={tmp_path}"
    conf = ("--spark-conf", staging, "--spark-conf", trust, *event_log(tmp_path / "events"))
    words = (*mirror.options, "-vv", *ON_YARN, *conf)
    engine = Engine(guarded_pair.destination, mirror.name, tmp_path / "run.out", *words)
    try:
        wait_until(lambda: mirror.is_copied() or engine.process.poll() is not None, PATIENT_S)
        assert engine.process.poll() is None, engine.output
        wait_until(mirror.is_healthy, PATIENT_S)
        application = yarn.application(mirror.name)["id"]
        (staged,) = (tmp_path / "staging").rglob(application)
        assert staged.stat().st_mode & 0o077 == 0
        scripts = [file for node in yarn.nodes for file in node.folder.rglob("launch_container.sh")]
        assert any(application in str(script) for script in scripts)
        looked_at: list[tuple[Iterable[tuple[str, bytes]], str]] = [
            (texts_of_processes(yarn.pids()), "YarnCoarseGrainedExecutorBackend"),
            (process_texts(engine), "pyspark-shell"),
            (not_shipped(file_texts(yarn.folder)), "YarnCoarseGrainedExecutorBackend"),
            (not_shipped(file_texts(staged)), ""),
            (texts_of_zips(tmp_path / "staging"), "spark.authenticate=true"),
            (web_texts(yarn, application), application),
            (folder_texts(engine), ""),
            (file_texts(tmp_path / "events"), "SparkListenerJobStart"),
            ([("log", engine.output.encode())], mirror.name),
        ]
        for texts, known in looked_at:
            found = [*texts]
            assert places_of(found, [known]), f"{known} was looked at"
            assert places_of(found, [SECRET]) == []
        refused = intruder(driver_url_of(yarn))
        assert refused.returncode != 0
        assert "Expected SaslMessage, received something else" in refused.stderr
        assert engine.stop() == 0, engine.output
    finally:
        engine.destroy()
    assert not staged.exists()


@pytest.fixture
def without_python(yarn: Yarn, tmp_path: Path) -> Iterator[Yarn]:
    """Return the cluster with nodes that have no Python."""
    (programs := tmp_path / "programs").mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(str(shutil.which(name)))
    for node in [*yarn.nodes]:
        yarn.kill_node(node)
    for _ in range(2):
        yarn.start_node(programs)
    yield yarn
    for node in [*yarn.nodes]:
        yarn.kill_node(node)


def test_a_packed_python_copies_and_verifies_on_nodes_that_have_none(
    without_python: Yarn,
    source_cluster: SandboxCluster,
    destination_cluster: SandboxCluster,
    make_pair: MakePair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = make_pair(source_cluster, destination_cluster)
    pair.fill(800)
    pair.create("copy.lanes=1")
    engine = pair.engine(*ON_YARN, "--until-caught-up")
    assert engine.wait(PATIENT_S) == ExitCode.REFUSED
    assert "the Spark workers have no python" in engine.output

    pack = [sys.executable, "-m", "kmirror", "pack", "--output", str(tmp_path / "python.tar.gz")]
    said = subprocess.run(pack, capture_output=True, text=True, check=True).stdout.splitlines()
    words = shlex.split(said[said.index("add to `kmirror run` on YARN:") + 1])
    finish(pair, *ON_YARN, *words, seconds=PATIENT_S)

    monkeypatch.setattr("kmirror.ops.base.bulk.SPARK_FROM_BYTES", 0)
    verified = typed(pair.destination, "verify", "--mirror", pair.mirror, *ON_YARN, *words)
    assert verified.returncode == 0, verified.stderr
    assert "on yarn" in verified.stdout + verified.stderr
    assert without_python.application("verify")["finalStatus"] == "SUCCEEDED"


def test_a_failback_archives_on_yarn(
    yarn: Yarn,
    source_cluster: SandboxCluster,
    destination_cluster: SandboxCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kmirror.ops.base.bulk.SPARK_FROM_BYTES", 0)
    key, _, jars = spark_jars().partition("=")
    spark = SparkChoice("yarn", {key: jars}, tmp_path / "spark.log")
    topic = unique_topic()
    with Trip(source_cluster, destination_cluster) as trip:
        trip.go(topic)
        produce(source_cluster, topic, [f"lost-{number}" for number in range(20)])
        lost = shown(source_cluster, topic)[3:]
        done = trip.back(topic, strategy=Strategy.RECREATE, spark=spark)
        archived = archives_of(done)[topic]
        assert archived["records"] == len(lost) == 20
        assert_holds(source_cluster, archived["archive"], lost)
        assert yarn.application("failback")["finalStatus"] == "SUCCEEDED"
        trip.copy_to_a()
        trip.assert_same(topic)
