"""Real engines between clusters with logins: workers on machines without their files, and files that change."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.engine.spark.shipping import UNPACKED
from kmirror.errors import ExitCode
from kmirror.java_properties import properties_text
from kmirror.ops.base.context import Destination
from kmirror.state.records import EngineRecord
from kmirror_sandbox.certificates import make_certificates
from kmirror_sandbox.cluster import SandboxCluster, start_together
from tests.kafka import test_kerberos
from tests.kafka.test_kerberos import Guarded
from tests.support.clusters import made_clusters, unique_topic
from tests.support.elsewhere import without_folder
from tests.support.engine import Engine, kmirror, typed
from tests.support.key_stores import keytool
from tests.support.leaks import file_texts, folder_texts, places_of, process_texts, texts_of_processes, topic_texts
from tests.support.librdkafka import librdkafka
from tests.support.shared_clusters import SMALL_HEAP, GuardedPair
from tests.support.spark_standalone import StandaloneSpark, running_standalone_spark
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

TRUST_PASSWORD = "trust-store-secret"
RECORDS = 200


@dataclass(frozen=True, slots=True)
class Clusters:
    """Two clusters."""

    source: SandboxCluster
    destination: SandboxCluster


@pytest.fixture(scope="module")
def certified(clusters_directory: Path) -> Iterator[Clusters]:
    """Two clusters that want a certificate of their clients."""
    settings: dict[str, Any] = {"start": False, "heap": SMALL_HEAP, "secured": True, "mechanism": "CERTIFICATE"}
    users = {"kmirror": "kmirror-store-secret"}
    with made_clusters(clusters_directory) as make:
        made = Clusters(*(make(f"certified-{side}", users=users, **settings) for side in ("source", "destination")))
        start_together([made.source, made.destination])
        yield made


#: A source that wants tickets, beside a listener without logins.
guarded = test_kerberos.guarded


@pytest.fixture
def tickets(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> Guarded:
    """Return that source; what is started from now on knows its realm."""
    monkeypatch.setenv("KRB5_CONFIG", str(guarded.realm.krb5_conf))
    return guarded


@dataclass(slots=True)
class Mirrored:
    """A mirror of one topic between clusters with logins; the destination's login is in a file."""

    clusters: Clusters | GuardedPair
    name: str
    topic: str
    command_config: Path

    @classmethod
    def create(
        cls, clusters: Clusters | GuardedPair, folder: Path, source: Mapping[str, str], destination: Mapping[str, str]
    ) -> Mirrored:
        """Create the mirror from client properties, which are written to files in a folder."""
        name, topic = unique_topic("m"), unique_topic()
        command_config, mirror_config = folder / "destination.properties", folder / f"{name}.properties"
        for file, properties in ((command_config, destination), (mirror_config, source)):
            file.touch(0o600)
            file.write_text(properties_text(properties))
        made = cls(clusters, name, topic, command_config)
        with made.admin("source") as admin:
            create_topic(admin, topic, 2, 1, {})
        made.typed("create", "--mirror-config", str(mirror_config), "--config", "copy.lanes=1")
        made.typed("add", "--topics", topic)
        return made

    @property
    def options(self) -> tuple[str, str]:
        return "--command-config", str(self.command_config)

    def admin(self, side: str) -> ClusterClient:
        """Return a client with the login of an administrator."""
        cluster: SandboxCluster = getattr(self.clusters, side)
        return ClusterClient(client_config(cluster.client_properties()))

    def typed(self, verb: str, *words: str) -> str:
        done = typed(self.clusters.destination, verb, "--mirror", self.name, *words, *self.options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, records: int = RECORDS) -> None:
        producer = Producer(librdkafka(client_config(self.clusters.source.client_properties())))
        for number in range(records):
            producer.produce(self.topic, f"value-{number}", partition=number % 2)
        assert producer.flush(60) == 0

    def ends(self, side: str) -> list[int | None]:
        partitions = [TopicPartition(self.topic, number) for number in range(2)]
        with self.admin(side) as admin:
            found = admin.list_offsets(dict.fromkeys(partitions, LATEST))
        return [found[partition].offset for partition in partitions]

    def is_copied(self) -> bool:
        return self.ends("source") == self.ends("destination")

    def lease(self) -> EngineRecord | None:
        """Return what the engine has stored with its last heartbeat."""
        with Destination.open(self.clusters.destination.client_properties()) as destination:
            return destination.state().engine(self.name)

    def is_healthy(self) -> bool:
        """Tell whether both clusters answer the engine and nothing has failed."""
        rows = json.loads(self.typed("describe", "--json"))
        return {(row["topicState"], row["reason"], row["lag"]) for row in rows} == {("ACTIVE", None, 0)}


def jks_trust(ca: str, store: Path) -> dict[str, str]:
    """Make a trust store in the format of Java 8 and return the properties that name it."""
    kind = ("-storetype", "JKS", "-storepass", TRUST_PASSWORD)
    keytool("-importcert", "-noprompt", "-file", ca, "-keystore", str(store), *kind)
    return {"ssl.truststore.type": "JKS", "ssl.truststore.location": str(store)}


def with_certificate(cluster: SandboxCluster, folder: Path) -> dict[str, str]:
    """Return a login by a PKCS #12 store that trusts a JKS store; all of its files are in a new folder."""
    folder.mkdir()
    given, store, passwords = cluster.client_properties("kmirror"), folder / "client.p12", folder / "passwords"
    shutil.copyfile(given["ssl.keystore.location"], store)
    passwords.write_text(f"key={given['ssl.keystore.password']}\ntrust={TRUST_PASSWORD}\n")
    return {
        **given,
        **jks_trust(given["ssl.truststore.location"], folder / "trust.jks"),
        "ssl.truststore.password": f"${{file:{passwords}:trust}}",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": f"${{file:{passwords}:key}}",
    }


def with_password(cluster: SandboxCluster, folder: Path, mechanism: str) -> dict[str, str]:
    """Return a login with a password or a client secret that trusts a PEM file; both are in a new folder."""
    folder.mkdir()
    given, ca, secret = cluster.client_properties("admin", mechanism), folder / "ca.pem", folder / "login"
    shutil.copyfile(given["ssl.truststore.location"], ca)
    secret.write_text(given["sasl.jaas.config"])
    return {**given, "ssl.truststore.location": str(ca), "sasl.jaas.config": f"${{dir:{folder}:login}}"}


def event_log(folder: Path) -> list[str]:
    """Return the options with which Spark logs its events in a new folder."""
    folder.mkdir()
    conf = {"enabled": "true", "compress": "false", "dir": f"file:{folder}"}
    return [part for key, value in conf.items() for part in ("--spark-conf", f"spark.eventLog.{key}={value}")]


@dataclass(frozen=True, slots=True)
class Machines:
    """A standalone cluster with one worker, for which a folder of this machine does not exist."""

    spark: StandaloneSpark
    folder: Path

    def replace_worker(self) -> None:
        """Replace the worker by one that has the folder."""
        self.spark.kill_worker(self.spark.workers.pop())
        wait_until(lambda: self.spark.alive_workers() == 0, 120)
        self.spark.start_worker()
        wait_until(lambda: self.spark.alive_workers() == 1, 60)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    (folder := tmp_path / "secrets").mkdir()
    with running_standalone_spark(tmp_path / "cluster", workers=0) as spark:
        elsewhere = without_folder(folder, tmp_path / "elsewhere")
        spark.start_worker(elsewhere.programs, elsewhere.command)
        wait_until(lambda: spark.alive_workers() == 1, 60)
        yield Machines(spark, folder)


def refused_by(machines: Machines, mirror: Mirrored) -> str:
    """Run the mirror where its files are missing, and return the message with which that is refused."""
    words = ("--mirror", mirror.name, "--master", machines.spark.master_url, *mirror.options, "--json")
    done = kmirror(mirror.clusters.destination, "run", *words)
    assert done.returncode == ExitCode.REFUSED, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["reason"] == "SECRET_UNRESOLVED"
    assert error["hint"].startswith("provide it on every worker, under the same name")
    assert mirror.ends("destination") == [0, 0]
    return str(error["message"])


def lacking(mirror: Mirrored, side: str, message: str) -> set[Path]:
    """Return the files that this machine lacks to log in to one side, as the message has it."""
    begin = f"Spark worker {socket.gethostname()} cannot log in to the {side} of {mirror.name}: "
    assert message.startswith(begin)
    found = message.removeprefix(begin).split("; ")
    assert all(one.endswith(": No such file or directory") for one in found)
    return {Path(one.rpartition(": ")[0]) for one in found}


@contextmanager
def running(machines: Machines, mirrors: Sequence[Mirrored], folder: Path, *, everything: bool) -> Iterator[Engine]:
    """Run an engine for mirrors of one destination on the cluster, with Spark's event log in a folder of its own."""
    first, *others = mirrors
    named = [word for mirror in others if not everything for word in ("--mirror", mirror.name)]
    spark = ("--master", machines.spark.master_url, *event_log(folder / "events"))
    where, name = first.clusters.destination, None if everything else first.name
    engine = Engine(where, name, folder / "run.out", *named, *first.options, "-vv", *spark)
    try:
        yield engine
    finally:
        engine.destroy()


def own(texts: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Leave out the code that is shipped, which has the sandbox's passwords in it."""
    return [(where, text) for where, text in texts if f"/{UNPACKED}/" not in where]


def copies_without_leaks(
    engine: Engine, machines: Machines, mirrors: Sequence[Mirrored], secrets: Sequence[str], folder: Path
) -> None:
    """Wait until everything is copied, stop the engine, and look for secrets wherever they must not be."""
    for mirror in mirrors:
        wait_until(mirror.is_copied, 180)
        wait_until(mirror.is_healthy, 60)
    processes = [*process_texts(engine), *texts_of_processes(machines.spark.processes())]
    run_folder = own(folder_texts(engine))
    with mirrors[0].admin("destination") as admin:
        stored = [*topic_texts(admin)]
    assert engine.stop() == 0, engine.output
    assert "died" not in engine.output
    for texts, known in (
        (processes, "CoarseGrainedExecutorBackend"),
        (run_folder, ""),
        (stored, str(machines.folder)),
        ([*file_texts(folder / "events")], "SparkListenerJobStart"),
        (own(file_texts(machines.spark.directory)), "ExecutorRunner"),
        ([("log", engine.output.encode())], mirrors[0].name),
    ):
        assert places_of(texts, [known]), f"{known} was looked at"
        assert places_of(texts, secrets) == []


def test_workers_without_the_stores_are_refused_by_name_and_with_them_they_copy(
    certified: Clusters, machines: Machines, tmp_path: Path
) -> None:
    source, destination = (machines.folder / side for side in ("source", "destination"))
    logins = with_certificate(certified.source, source), with_certificate(certified.destination, destination)
    mirror = Mirrored.create(certified, machines.folder, *logins)
    mirror.write()
    message = refused_by(machines, mirror)
    assert lacking(mirror, "source", message) == {source / name for name in ("trust.jks", "passwords", "client.p12")}
    with running(machines, [mirror], tmp_path, everything=True) as engine:
        wait_until(lambda: f"not copied by this engine: {message}" in engine.output, 120)
        machines.replace_worker()
        copies_without_leaks(engine, machines, [mirror], ["kmirror-store-secret", TRUST_PASSWORD], tmp_path)


@pytest.mark.long
def test_passwords_and_client_secrets_are_read_where_lanes_run(
    guarded_pair: GuardedPair, machines: Machines, tmp_path: Path
) -> None:
    """A password in a file and a client secret at the sources, a password at the destination."""
    there = with_password(guarded_pair.destination, machines.folder / "there", "SCRAM-SHA-512")
    mirrors = []
    for mechanism in ("SCRAM-SHA-512", "OAUTHBEARER"):
        folder = machines.folder / mechanism
        login = with_password(guarded_pair.source, folder, mechanism)
        mirror = Mirrored.create(guarded_pair, machines.folder, login, there)
        mirror.write()
        assert lacking(mirror, "source", refused_by(machines, mirror)) == {folder / "ca.pem", folder / "login"}
        mirrors.append(mirror)
    machines.replace_worker()
    with running(machines, mirrors, tmp_path, everything=False) as engine:
        copies_without_leaks(engine, machines, mirrors, ["admin-secret"], tmp_path)


@pytest.mark.long
def test_a_keytab_is_read_where_lanes_run(
    tickets: Guarded, destination_cluster: SandboxCluster, machines: Machines
) -> None:
    clusters, keytab = Clusters(tickets.cluster, destination_cluster), machines.folder / "kmirror.keytab"
    shutil.copyfile(tickets.realm.keytab, keytab)
    login = tickets.properties()
    login["sasl.jaas.config"] = login["sasl.jaas.config"].replace(str(tickets.realm.keytab), str(keytab))
    mirror = Mirrored.create(clusters, machines.folder, login, destination_cluster.client_properties())
    mirror.write()
    assert lacking(mirror, "source", refused_by(machines, mirror)) == {keytab}
    machines.replace_worker()
    words = ("--mirror", mirror.name, "--master", machines.spark.master_url, *mirror.options, "--until-caught-up")
    ran = kmirror(destination_cluster, "run", *words, "--timeout", "2m")
    assert ran.returncode == 0, ran.stderr
    assert mirror.is_copied()


def certify_again(cluster: SandboxCluster, folder: Path) -> None:
    """Give a cluster another authority, and broker and clients certificates of it; its broker is restarted."""
    security, tls = cluster.spec.security, cluster.directory / "tls"
    assert security is not None
    make_certificates(folder, security.store_password, security.users)
    cluster.stop_broker(1)
    for file in folder.iterdir():
        file.replace(tls / file.name)
    cluster.start_broker(1)


def test_an_engine_copies_on_when_the_certificates_of_a_cluster_and_its_own_are_replaced(
    certified: Clusters, tmp_path: Path
) -> None:
    """The files keep their names: a PEM trust store and a PKCS #12 key store, as the clusters hand them out."""
    logins = [cluster.client_properties("kmirror") for cluster in (certified.source, certified.destination)]
    password = {"ssl.keystore.password": f"${{dir:{tmp_path}:password}}"}
    (tmp_path / "password").write_text("kmirror-store-secret")
    mirror = Mirrored.create(certified, tmp_path, {**logins[0], **password}, logins[1])
    mirror.write()
    engine = Engine(certified.destination, mirror.name, tmp_path / "run.out", *mirror.options, "-vv")
    try:
        wait_until(mirror.is_copied, 120)
        wait_until(mirror.is_healthy, 60)
        certify_again(certified.source, tmp_path / "source")
        mirror.write()
        wait_until(mirror.is_copied, 120)
        wait_until(mirror.is_healthy, 60)
        assert engine.output.count(runs := f"lane 0 of {mirror.name} runs") == 1, "the lane itself connects again"
        assert "accepts the current login" not in engine.output, "the source never refused the engine"
        certify_again(certified.destination, tmp_path / "destination")
        # the lease is renewed by another library than lanes use
        last_renewed = mirror.lease()
        wait_until(lambda: mirror.lease() != last_renewed, 120)
        # a lane that cannot report for ten seconds is replaced, and its successor reads the files anyway
        assert engine.output.count(runs) == 1 or "is replaced" in engine.output
        mirror.write()
        wait_until(mirror.is_copied, 120)
        wait_until(mirror.is_healthy, 60)
        assert engine.process.poll() is None, engine.output
        assert "died" not in engine.output
        assert engine.stop() == 0, engine.output
    finally:
        engine.destroy()
