"""With the rights that `check` prints, and no others, a mirror works; without any one of them the message names it."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.acl_binding import AclBinding, Operation
from kmirror.cluster.protocol.metadata import TopicPartition as ClusterTopicPartition
from kmirror.cluster.rights.acls import await_acls, create_acls, delete_acls, describe_acls
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.errors import KmirrorError
from kmirror.java_properties import properties_text
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.results import VerbResult
from kmirror.ops.check.check import check
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import FailbackRequest, Strategy
from kmirror.ops.mirrors.create import create
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror_sandbox.cluster import SandboxCluster, start_together
from tests.support.acls import USERS
from tests.support.clusters import made_clusters
from tests.support.engine import Engine, kmirror, typed
from tests.support.kafka_tools import kafka_tool
from tests.support.key_stores import keytool
from tests.support.leaks import file_texts, folder_texts, places_of, process_texts, topic_texts, verb_texts
from tests.support.librdkafka import librdkafka
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import selector
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

RENEWED = "accepts the current login"
TOPICS, GROUP, RECORDS = ("orders", "payments"), "readers", 200
SETTINGS = {
    "topics.include": "orders,payments",
    "sync.topic.acls.enabled": "true",
    "sync.quotas.enabled": "true",
    "compare.scram.users.enabled": "true",
    "retry.timeout.ms": "1000",
}
#: Passwords of kmirror, at the source one after the other, and of the trust stores.
SECRETS = ("mistyped-secret", "kmirror-secret", "rotated-secret", "store-secret")
SIDES = ("source", "destination")


@dataclass(slots=True)
class Place:
    """Two clusters with logins and ACLs; on both the user kmirror has exactly the rights that `check` printed."""

    clusters: dict[str, SandboxCluster]
    admins: dict[str, ClusterClient]
    mirror_file: dict[str, str]
    command_config: Path
    login: Path
    admin_config: dict[str, Path]

    @property
    def properties(self) -> dict[str, str]:
        """Return kmirror's own properties for the destination."""
        return self.clusters["destination"].client_properties("kmirror")

    def is_told(self, state: str, reason: str | None, *topics: str) -> bool:
        """Tell whether this is what an administrator of the destination reads of these topics."""
        config = ("--command-config", str(self.admin_config["destination"]))
        reported = typed(self.clusters["destination"], "describe", "--mirror", "m", "--json", *config)
        rows = {row["topic"]: (row["topicState"], row["reason"]) for row in json.loads(reported.stdout)}
        return [rows.get(topic) for topic in topics] == [(state, reason)] * len(topics)

    def write(self, records: int) -> None:
        """Produce records to the source."""
        producer = Producer(librdkafka(client_config(self.clusters["source"].client_properties())))
        for number in range(records):
            producer.produce("orders", f"value-{number}")
        assert producer.flush(30) == 0

    def is_copied(self) -> bool:
        """Tell whether the destination holds what the source does."""
        place = ClusterTopicPartition("orders", 0)
        ends = [self.admins[side].list_offsets({place: LATEST}).get(place) for side in SIDES]
        return ends[0] is not None and ends[1] is not None and ends[0].offset == ends[1].offset

    def set_password(self, password: str, side: str = "source") -> None:
        """Change the password of kmirror at a cluster."""
        admin = AdminClient(librdkafka(client_config(self.clusters[side].client_properties())))
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = [UserScramCredentialUpsertion("kmirror", credential, password.encode())]
        for done in admin.alter_user_scram_credentials(wanted).values():
            done.result(30)

    def store_password(self, password: str) -> None:
        """Write the file that the mirror's login refers to."""
        properties = self.clusters["source"].client_properties("kmirror")["sasl.jaas.config"]
        line = f"sasl.jaas.config={properties.replace('kmirror-secret', password)}"
        replace_text(self.login, f"{line}\nstore.password=store-secret\n")

    def rights(self, side: str) -> list[AclBinding]:
        """Return what kmirror has there on what exists: on archives nothing is said before there is one."""
        found = (one for one in describe_acls(self.admins[side]) if one.principal == "User:kmirror")
        return sorted(one for one in found if ".kmirror-archive." not in one.resource_name)


@pytest.fixture(scope="module")
def place(clusters_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("least")
    with made_clusters(clusters_directory) as make, ExitStack() as stack:
        clusters = {
            side: make(f"least-{side}", start=False, secured=True, authorizer=True, users=USERS) for side in SIDES
        }
        start_together(list(clusters.values()))
        login = clusters["source"].write_client_properties(folder / "login.properties", "kmirror")
        with login.open("a") as file:
            file.write("store.password=store-secret\n")
        stores = {side: trust_store(cluster, folder / f"{side}.store") for side, cluster in clusters.items()}
        command_config = folder / "kmirror.properties"
        literal = {**clusters["destination"].client_properties("kmirror"), **stores["destination"]}
        (folder / "command-login").write_text(literal["sasl.jaas.config"])
        literal |= {"sasl.jaas.config": f"${{dir:{folder}:command-login}}", "ssl.truststore.password": "store-secret"}
        command_config.write_text(properties_text(literal))
        secret = {
            **stores["source"],
            "sasl.jaas.config": f"${{file:{login}:sasl.jaas.config}}",
            "ssl.truststore.password": f"${{file:{login}:store.password}}",
        }
        made = Place(
            clusters,
            {side: stack.enter_context(admin_of(cluster)) for side, cluster in clusters.items()},
            {**clusters["source"].client_properties("kmirror"), **secret, **SETTINGS},
            command_config,
            login,
            {
                side: cluster.write_client_properties(folder / f"{side}.properties")
                for side, cluster in clusters.items()
            },
        )
        fill(made)
        given_what_check_prints(made, "source", "destination", made.mirror_file)
        yield made


def given_what_check_prints(place: Place, source: str, destination: str, mirror_file: dict[str, str]) -> list[str]:
    """Give kmirror what `check` prints of a mirror in this direction; return the lines."""
    report = check(place.clusters[destination].client_properties("kmirror"), properties=mirror_file)
    to_run = [
        (line, place.admin_config[{"source": source, "destination": destination}[found.cluster]])
        for found in report.lines
        if found.what == "least rights"
        for line in found.message.splitlines()
        if line.startswith("kafka-acls ")
    ]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda one: run_line(*one), to_run))
    return [line for line, _ in to_run]


def trust_store(cluster: SandboxCluster, store: Path) -> dict[str, str]:
    """Make a store of what is trusted, in Java's default format, and return the properties that name it."""
    ca = cluster.client_properties()["ssl.truststore.location"]
    keytool("-importcert", "-noprompt", "-file", ca, "-keystore", str(store), "-storepass", "store-secret")
    return {"ssl.truststore.type": "JKS", "ssl.truststore.location": str(store)}


def admin_of(cluster: SandboxCluster) -> ClusterClient:
    return ClusterClient(client_config(cluster.client_properties()))


def fill(place: Place) -> None:
    """Let the source have records, and a group that has read some of them."""
    config = librdkafka(client_config(place.clusters["source"].client_properties()))
    for topic in TOPICS:
        create_topic(place.admins["source"], topic, 1, 1, {})
    place.write(RECORDS)
    consumer = Consumer({**config, "group.id": GROUP})
    consumer.commit(offsets=[TopicPartition("orders", 0, 50)], asynchronous=False)
    consumer.close()


def run_line(line: str, properties: Path) -> None:
    """Run one of the commands, as an administrator, by Kafka's own tool."""
    _, *arguments = shlex.split(line.replace("--command-config admin.properties", f"--command-config {properties}"))
    kafka_tool("kafka-acls.sh", *arguments)


def complaints(place: Place, mirror: str) -> str:
    """Return all that is said of what does not work: by `check`, by `create` and by `add`."""
    said: list[str] = []

    def ask(verb: Callable[[], Iterable[str]]) -> None:
        try:
            said.extend(verb())
        except KmirrorError as error:
            said.append(f"{error.message} {error.hint}")

    def checked() -> list[str]:
        report = check(place.properties, mirror=mirror)
        return [f"{line.what} {line.message} {line.hint}" for line in report.lines if line.hint]

    def tried(verb: Callable[[Destination], VerbResult]) -> list[str]:
        with Destination.open(place.properties) as destination:
            return [failed(verb(destination))]

    ask(checked)
    ask(lambda: tried(lambda there: create(there, "another", place.mirror_file, dry_run=True)))
    ask(lambda: tried(lambda there: add(there, mirror, selector("payments"), dry_run=True)))
    return "\n".join(said)


def failed(result: VerbResult) -> str:
    return "\n".join(f"{row.message} {row.hint}" for row in result.results if row.reason is not None)


@contextmanager
def without(place: Place, side: str, *rights: AclBinding) -> Iterator[None]:
    """Take rights away for the block."""
    delete_acls(place.admins[side], rights)
    assert await_acls(place.admins[side], (), rights)
    try:
        yield
    finally:
        create_acls(place.admins[side], rights)
        assert await_acls(place.admins[side], rights)


def replace_text(file: Path, text: str) -> None:
    """Give a file that others read another content at one moment."""
    (new := file.with_name(f"{file.name}.new")).write_text(text)
    new.chmod(file.stat().st_mode if file.exists() else 0o600)
    new.rename(file)


def to_create(place: Place, resource_name: str) -> AclBinding:
    """Return the right to create topics of this name, or that begin with it."""
    wanted = Operation.CREATE, resource_name
    (right,) = [one for one in place.rights("destination") if (one.operation, one.resource_name) == wanted]
    return right


def test_without_the_right_to_create_topics_it_is_refused(place: Place) -> None:
    with Destination.open(place.properties) as destination:
        with (
            without(place, "destination", to_create(place, "__kmirror_")),
            pytest.raises(KmirrorError, match="creating topic __kmirror_state: Authorization failed"),
        ):
            create(destination, "m", place.mirror_file)
        assert create(destination, "m", place.mirror_file).exit_code == 0
        with without(place, "destination", to_create(place, "orders")):
            assert "does not grant us CREATE on topic orders" in failed(add(destination, "m", selector("orders")))


def test_with_what_check_prints_a_mirror_works(place: Place) -> None:
    with Destination.open(place.properties) as destination:
        result = add(destination, "m", selector("orders"))
        assert result.exit_code == 0, result
    config = ("--command-config", str(place.command_config))
    where = place.clusters["destination"]
    copied_while_its_login_changes(place, config)
    verified = kmirror(where, "verify", "--mirror", "m", *config, with_spark=False)
    assert verified.returncode == 0, verified.stderr + verified.stdout
    report = check(place.properties, mirror="m")
    assert [line for line in report.lines if not line.ok] == []
    (protection,) = [line for line in report.lines if line.what == "protection"]
    assert protection.message.startswith("enforced: ")


def copied_while_its_login_changes(place: Place, config: tuple[str, str]) -> None:
    """Copy with an engine that begins with a wrong password, gets the right one, and then another one."""
    place.store_password("mistyped-secret")
    folder = place.login.parent
    (log := folder / "spark-events").mkdir(exist_ok=True)
    conf = {"enabled": "true", "compress": "false", "dir": f"file:{log}"}
    spark = [part for key, value in conf.items() for part in ("--spark-conf", f"spark.eventLog.{key}={value}")]
    where = place.clusters["destination"]
    engine = Engine(where, None, folder / "all.out", *config, "-vv", *spark)
    try:
        wait_until(lambda: "refuses user kmirror" in engine.output, 120)
        refused = kmirror(where, "check", "--mirror", "m", *config, with_spark=False)
        assert "refuses user kmirror" in refused.stdout + refused.stderr
        place.store_password("kmirror-secret")
        wait_until(place.is_copied)
        place.set_password("rotated-secret")
        place.store_password("rotated-secret")
        renewed = engine.output.count(RENEWED)
        engine.process.send_signal(signal.SIGHUP)
        wait_until(lambda: engine.output.count(RENEWED) > renewed)
        # from here on every connection of the lanes is a new one
        wait_until(lambda: engine.output.rpartition(RENEWED)[2].count("lane 0 of m runs") == 1)
        place.write(RECORDS)
        wait_until(place.is_copied)
        survives_rights_that_are_taken_away(place)
        survives_another_password_at_the_destination(place)
        processes, remembered = [*process_texts(engine)], [*topic_texts(place.admins["destination"])]
        run_folder = [*folder_texts(engine)]
        assert engine.stop() == 0, engine.output
        assert "died" not in engine.output
        assert "not copied by this engine" not in engine.output.partition("this engine is in charge")[2]
        printed = [*verb_texts(where, *config), ("check", (refused.stdout + refused.stderr).encode())]
        for texts, known in (
            (processes, "kmirror.engine.spark.daemon"),
            (run_folder, ""),
            (remembered, "sasl.jaas.config"),
            (printed, "sasl.jaas.config"),
            ([*file_texts(log)], "SparkListenerJobStart"),
            ([("log", engine.output.encode())], "refuses user kmirror"),
        ):
            assert places_of(texts, [known]), "it was looked at"
            assert places_of(texts, SECRETS) == []
    finally:
        engine.destroy()


def survives_another_password_at_the_destination(place: Place) -> None:
    """Change it there and in the file; when the broker has restarted, no one is let in with the old one."""
    where, file = place.clusters["destination"], place.command_config.with_name("command-login")
    line = file.read_text()
    place.set_password("rotated-secret", "destination")
    replace_text(file, line.replace("kmirror-secret", "rotated-secret"))
    place.admins["destination"].close()
    where.stop_broker(1)
    where.start_broker(1)
    place.write(RECORDS)
    wait_until(place.is_copied)
    wait_until(partial(place.is_told, "ACTIVE", None, *TOPICS))
    place.set_password("kmirror-secret", "destination")
    replace_text(file, line)


def survives_rights_that_are_taken_away(place: Place) -> None:
    """Take all rights away, at one side and then at the other, and write; give them back, and wait."""
    for side, reported in (
        ("source", ("FAILED", "NOT_AUTHORIZED")),
        ("destination", ("LINK_FAILED", "ENGINE_SILENT")),  # it has no right to say anything
    ):
        with without(place, side, *place.rights(side)):
            wait_until(partial(place.is_told, *reported, "orders"))
            place.write(RECORDS)
            assert not place.is_copied()
        wait_until(place.is_copied)
        wait_until(partial(place.is_told, "ACTIVE", None, *TOPICS))


@pytest.mark.long
def test_any_one_right_that_is_taken_away_is_named(place: Place) -> None:
    with Destination.open(place.properties) as destination:
        runs_alone = destination.state().mirror("m") is None
        if runs_alone:
            assert create(destination, "m", place.mirror_file).exit_code == 0
    if runs_alone:
        test_with_what_check_prints_a_mirror_works(place)
    assert unnamed(place, [[(side, right)] for side in SIDES for right in place.rights(side)]) == []


def test_rights_that_are_taken_away_are_named(place: Place) -> None:
    together: dict[tuple[str, int], list[tuple[str, AclBinding]]] = {}
    alone = []
    for side in SIDES:
        by_resource: dict[str, list[AclBinding]] = {}
        for right in place.rights(side):
            by_resource.setdefault(right.resource_name, []).append(right)
        for name, rights in by_resource.items():
            for number, right in enumerate(rights):
                if name == "__kmirror_":  # without its memory it knows of nothing else
                    alone.append([(side, right)])
                else:
                    together.setdefault((side, number), []).append((side, right))
    assert unnamed(place, [*together.values(), *alone]) == []


def unnamed(place: Place, rounds: list[list[tuple[str, AclBinding]]]) -> list[str]:
    """Take rights away, round by round, and return those of which nothing is said; what exists need not be created."""
    usual = complaints(place, "m").splitlines()
    silent = []
    for taken in rounds:
        with ExitStack() as stack:
            for side in SIDES:
                stack.enter_context(without(place, side, *(right for where, right in taken if where == side)))
            new = [line.upper().replace("_", "") for line in complaints(place, "m").splitlines() if line not in usual]
        for _, right in taken:
            name = {"kafka-cluster": "cluster", "*": "group"}.get(right.resource_name, right.resource_name)
            words = right.operation.replace("_", ""), name.upper().replace("_", "")
            if right.operation is not Operation.CREATE and not any(all(word in line for word in words) for line in new):
                silent.append(str(right))
    return silent


def test_there_and_back_with_what_check_prints_for_both_ways(place: Place) -> None:
    """After a failover the old source takes over again, under what `check` prints of the other direction."""
    login = place.login.parent / "back.properties"
    place.clusters["destination"].write_client_properties(login, "kmirror")
    secret = {"sasl.jaas.config": f"${{file:{login}:sasl.jaas.config}}"}
    back = {**place.clusters["destination"].client_properties("kmirror"), **secret, **SETTINGS}
    place.set_password("kmirror-secret")
    with (
        Destination.open(place.properties) as there,
        Destination.open(place.clusters["source"].client_properties("kmirror")) as here,
    ):
        if there.state().mirror("m") is None:  # it runs alone
            assert create(there, "m", place.mirror_file).exit_code == 0
            assert add(there, "m", selector("orders")).exit_code == 0
            with LocalEngine(there, "m") as engine:
                engine.catch_up()
        place.write(1)
        stopped = failover(there, "m")
        assert stopped.result.exit_code == 0, stopped.result
        assert given_what_check_prints(place, "destination", "source", back)
        done = failback(here, FailbackRequest("m", back, strategy=Strategy.RECREATE, watch_s=0.1))
        assert done.result.exit_code == 0, [*done.result.results, done.result.error]
        with LocalEngine(here, "m") as engine:
            engine.catch_up()
            wait_until(lambda: all(row.initial_copy_complete for row in describe(here, "m")))
            home = promote(here, PromoteRequest("m", idle_ms=0, timeout_ms=120_000))
        assert home.result.exit_code == 0, home.result
    assert place.is_copied()
