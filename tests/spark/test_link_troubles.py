"""What becomes of a mirror whose source is away, refuses it, or is another cluster: it waits, and tells the reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import NewTopic as Topic

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import Reason, UnreachableError
from kmirror_sandbox.cluster import SandboxCluster, start_together
from tests.support.acls import create_in_force, delete_in_force
from tests.support.clusters import MakeCluster
from tests.support.engine import Engine, kmirror, typed
from tests.support.installed_logs import create_topics
from tests.support.librdkafka import librdkafka
from tests.support.mirrored import Mirrored
from tests.support.real_logs import write
from tests.support.visible import bounds_of
from tests.support.waiting import wait_until
from tests.support.wire import closed_port

Row = dict[str, Any]
SINCE = r"since (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"
RIGHTS = ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")
LOGIN = "KM_TEST_LINK_LOGIN"


def login(password: str) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="kmirror" password="{password}";'


def row_when(mirror: Mirrored, topic: str, condition: Callable[[Row], object]) -> Row:
    """Wait until what `describe` says of a topic's only partition meets a condition, and return it."""
    found: Row = {}

    def is_met() -> bool:
        found.update(mirror.rows()[topic, 0])
        return bool(condition(found))

    wait_until(is_met, 60)
    return found


def without_time(message: str) -> str:
    assert len(re.findall(SINCE, message)) == 1, message
    return re.sub(SINCE, "since WHEN", message)


def mirror_state(mirror: Mirrored) -> str:
    (row,) = json.loads(typed(mirror.destination, "list", "--json").stdout)
    return str(row["state"])


def assert_in_order(text: str, *parts: str) -> None:
    at = 0
    for part in parts:
        assert part in text[at:], (part, text[-4000:])
        at = text.index(part, at) + len(part)


# -- down, and another cluster -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_source_that_goes_away_comes_back_and_is_replaced_meanwhile(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """No partition fails of it, however short the retry time is."""
    source, destination = make_cluster("source", start=False), make_cluster("destination", start=False)
    start_together([source, destination])
    node = source.spec.nodes[0]
    create_topics(source, {"t": {}})
    write(source, "t", 10)
    with Mirrored(source, destination, tmp_path, {"t": 1}, with_spark=True) as mirror:
        mirror.create("retry.timeout.ms=1000", "refresh.interval.seconds=1")
        engine = mirror.engine()
        mirror.wait_until_equal(engine)
        source.stop()
        row = row_when(
            mirror, "t", lambda row: row["reason"] == "SOURCE_UNREACHABLE" and "since" in row["errorMessage"]
        )
        assert (row["state"], row["topicState"], row["lag"]) == ("MIRRORING", "SOURCE_UNAVAILABLE", None)
        assert row["reason"] == "SOURCE_UNREACHABLE"
        assert without_time(row["errorMessage"]) == (
            f"the source: cannot connect to 127.0.0.1:{node.port}: connection refused; SOURCE_UNAVAILABLE since WHEN"
        )
        assert mirror_state(mirror) == "SOURCE_UNAVAILABLE"

        other = make_cluster("other", ports=[node.port, node.controller_port])
        create_topics(other, {"t": {}}, partitions=3)
        write(other, "t", 30)
        row = row_when(mirror, "t", lambda row: "LINK_FAILED since" in row["errorMessage"])
        assert (row["state"], row["topicState"]) == ("MIRRORING", "LINK_FAILED")
        assert row["reason"] == "SOURCE_CLUSTER_CHANGED"
        assert without_time(row["errorMessage"]) == (
            f"the source: another cluster answers at 127.0.0.1:{node.port}: its id is {other.cluster_id}, not "
            f"{source.cluster_id}; LINK_FAILED since WHEN; nothing is copied from it, and copying resumes "
            f"automatically once the right cluster is back; if its address has changed: kmirror config "
            f"--mirror {mirror.name} --set bootstrap.servers=HOST:PORT"
        )
        assert mirror_state(mirror) == "LINK_FAILED"
        mirror.wait(engine, lambda: "another cluster answers" in engine.output)
        with ClusterClient(client_config(destination.client_properties())) as client:
            assert list(client.metadata(["t"]).topics["t"].partitions) == [0]
        assert bounds_of(destination, "t").end == 10
        refused = kmirror(destination, "run", "--mirror", mirror.name, "--take-over", "--until-caught-up")
        assert (refused.returncode, "another cluster answers" in refused.stderr) == (3, True), refused

        other.stop()
        source.start()
        write(source, "t", 5)
        mirror.wait_until_equal(engine)
        row = row_when(mirror, "t", lambda row: row["topicState"] == "ACTIVE")
        assert (row["reason"], row["errorMessage"], row["lag"]) == (None, None, 0)
        assert engine.stop() == 0
        assert_in_order(
            engine.output, "does not answer: cannot connect", "cannot be mirrored: another", "answers again"
        )


# -- logins and rights -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guarded:
    """A source with logins and rights, and a mirror of its topics `topics` that are copied."""

    mirror: Mirrored
    admin: AdminClient

    def grant(self, topic: str, *operations: str) -> None:
        rules = [
            AclBinding(*_rule(topic), AclOperation[operation], AclPermissionType.ALLOW) for operation in operations
        ]
        create_in_force(self.admin, rules)

    def take_back(self, topic: str, *operations: str) -> None:
        for operation in operations:
            rule = AclBindingFilter(*_rule(topic), AclOperation[operation], AclPermissionType.ANY)
            assert delete_in_force(self.admin, rule) == 1

    def create(self, topics: list[str]) -> None:
        for done in self.admin.create_topics([Topic(topic, 1, 1) for topic in topics]).values():
            done.result(30)
        for topic in topics:
            self.grant(topic, *RIGHTS)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic], operation_timeout=30)[topic].result(30)

    def write(self, *topics: str) -> None:
        """Write ten records to each."""
        producer = Producer({**librdkafka(client_config(self.mirror.source.client_properties())), "log_level": 0})
        for topic in topics:
            for number in range(10):
                producer.produce(topic, b"%d" % number)
        assert producer.flush(30) == 0

    def set_password(self, password: str) -> None:
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = [UserScramCredentialUpsertion("kmirror", credential, password.encode())]
        for done in self.admin.alter_user_scram_credentials(wanted).values():
            done.result(30)

    def wait_for_end(self, engine: Engine, topic: str, end: int) -> None:
        self.mirror.wait(engine, lambda: bounds_of(self.mirror.destination, topic).end == end, topics=[topic])

    def refused_message(self) -> str:
        name, place = self.mirror.name, self.mirror.source.bootstrap_servers
        return (
            f"the source: {place} refuses user kmirror: Authentication failed during authentication due to invalid "
            "credentials with SASL mechanism SCRAM-SHA-512; LINK_FAILED since WHEN; "
            f"`kmirror check --mirror {name}` shows the cause; copying resumes automatically once the source "
            f"accepts the connection; to change its credentials: kmirror config --mirror {name} --set KEY=VALUE, or "
            "change where its secrets are stored; a running engine picks that up within seconds, except for "
            "environment variables"
        )


def _rule(topic: str) -> tuple[Any, ...]:
    return ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:kmirror", "*"


MakeGuarded = Callable[[list[str]], Guarded]


@pytest.fixture
def guarded(make_cluster: MakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeGuarded]:
    """Make topics on a secured source, ten records in each, and a mirror of them that no engine copies yet."""
    with ExitStack() as stack:

        def make(topics: list[str]) -> Guarded:
            source = make_cluster("guarded", start=False, secured=True, authorizer=True)
            destination = make_cluster("destination", start=False)
            start_together([source, destination])
            admin = AdminClient({**librdkafka(client_config(source.client_properties())), "log_level": 0})
            mirror = stack.enter_context(
                Mirrored(source, destination, tmp_path, dict.fromkeys(topics, 1), with_spark=True)
            )
            made = Guarded(mirror, admin)
            made.create(topics)
            made.write(*topics)
            monkeypatch.setenv(LOGIN, login("kmirror-secret"))
            properties = {**source.client_properties("kmirror"), "sasl.jaas.config": f"${{env:{LOGIN}}}"}
            file = tmp_path / "source.properties"
            file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
            settings = ("--config", "retry.timeout.ms=2000", "--config", "refresh.interval.seconds=1")
            mirror.run("create", "--mirror-config", str(file), *settings)
            mirror.run("add", "--topics", ",".join(topics))
            return made

        yield make


def topic_ids(source: SandboxCluster, topics: list[str]) -> dict[str, str]:
    with ClusterClient(client_config(source.client_properties())) as client:
        return {name: str(found.printed_topic_id) for name, found in client.metadata(topics).topics.items()}


@pytest.mark.long
def test_topics_that_are_forbidden_or_gone_are_distinguished_and_fail_alone(
    guarded: MakeGuarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = ["good", "unread", "unseen", "gone", "gone-unseen"]
    made = guarded(topics)
    mirror = made.mirror
    ids = topic_ids(mirror.source, topics)
    engine = mirror.engine()
    for topic in topics:
        made.wait_for_end(engine, topic, 10)
    made.take_back("unread", "READ", "DESCRIBE_CONFIGS")
    made.take_back("unseen", *RIGHTS)
    made.take_back("gone-unseen", *RIGHTS)
    made.write("good", "unread", "unseen")
    for topic in ("gone", "gone-unseen"):
        made.delete(topic)
    made.wait_for_end(engine, "good", 20)

    rows: dict[str, Row] = {}

    def have_failed() -> bool:
        rows.update({topic: row for (topic, _), row in mirror.rows().items()})
        return all("FAILED since" in (rows[topic]["errorMessage"] or "") for topic in topics[1:])

    wait_until(have_failed, 60)
    reported = {
        topic: (rows[topic]["reason"], rows[topic]["errorMessage"].split("; FAILED since ")[0]) for topic in topics[1:]
    }
    deleted = "SOURCE_TOPIC_DELETED"
    assert reported == {
        "gone": (deleted, f"source topic gone ({ids['gone']}) no longer exists"),
        "gone-unseen": (deleted, f"source topic gone-unseen ({ids['gone-unseen']}) no longer exists"),
        "unseen": ("NOT_AUTHORIZED", "no right to DESCRIBE source topic unseen"),
        "unread": ("NOT_AUTHORIZED", "no right to READ source topic unread"),
    }
    good = rows["good"]
    assert (good["topicState"], good["reason"], good["lag"]) == ("ACTIVE", None, 0)

    made.grant("unread", "READ")
    made.grant("unseen", "READ", "DESCRIBE")
    done = typed(mirror.destination, "recover", "--mirror", mirror.name, "--json")
    results = {row["topic"]: row["result"] for row in json.loads(done.stdout)["results"]}
    # the engine may have tried those two again by itself a moment before, and is copying them
    assert {results.get("unread", "DONE"), results.get("unseen", "DONE")} == {"DONE"}
    assert (results["gone"], results["gone-unseen"]) == ("FAILED", "FAILED")
    assert done.returncode == 4
    for topic in ("unread", "unseen"):
        made.wait_for_end(engine, topic, 20)
    assert engine.stop() == 4
    assert all(bounds_of(mirror.destination, topic).end == 10 for topic in ("gone", "gone-unseen"))

    # an engine that finds them gone at its start ends by itself, and not as if all were well
    made.write("good")
    engine = mirror.copy(exit_codes=(4,))
    assert f"source topic gone ({ids['gone']}) no longer exists" in engine.output
    assert bounds_of(mirror.destination, "good").end == 30

    # an engine whose login is refused at its start ends at once: waiting does not help
    monkeypatch.setenv(LOGIN, login("wrong"))
    for options in ([], ["--until-caught-up"]):
        refused = kmirror(mirror.destination, "run", "--mirror", mirror.name, *options)
        assert (refused.returncode, "refuses user kmirror" in refused.stderr) == (6, True), refused

    # a broker that is down does not hide that another one refuses us
    properties = {**mirror.source.client_properties("kmirror"), "sasl.jaas.config": login("wrong")}
    places = f"127.0.0.1:{closed_port()},{mirror.source.bootstrap_servers}"
    with (
        ClusterClient(client_config({**properties, "bootstrap.servers": places})) as client,
        pytest.raises(UnreachableError) as refusal,
    ):
        client.metadata([])
    assert refusal.value.reason is Reason.AUTHENTICATION_FAILED


@pytest.mark.long
def test_a_password_that_is_changed_at_the_source_and_changed_back(guarded: MakeGuarded) -> None:
    made = guarded(["t"])
    mirror = made.mirror
    engine = mirror.engine()
    made.wait_for_end(engine, "t", 10)
    made.set_password("another one")
    made.write("t")
    made.wait_for_end(engine, "t", 20)  # connections that are there stay
    mirror.source.stop()
    mirror.source.start()
    row = row_when(mirror, "t", lambda row: row["topicState"] == "LINK_FAILED" and "since" in row["errorMessage"])
    assert (row["state"], row["reason"], row["lag"]) == ("MIRRORING", "AUTHENTICATION_FAILED", None)
    assert without_time(row["errorMessage"]) == made.refused_message()
    assert mirror_state(mirror) == "LINK_FAILED"
    mirror.wait(engine, lambda: "refuses user kmirror" in engine.output)
    made.set_password("kmirror-secret")
    made.write("t")
    made.wait_for_end(engine, "t", 30)
    assert row_when(mirror, "t", lambda row: row["topicState"] == "ACTIVE")["reason"] is None
    assert engine.stop() == 0


@pytest.mark.long
def test_an_engine_that_starts_before_its_source(make_cluster: MakeCluster, tmp_path: Path) -> None:
    source, destination = make_cluster("source"), make_cluster("destination")
    create_topics(source, {"t": {}})
    write(source, "t", 10)
    with Mirrored(source, destination, tmp_path, {"t": 1}, with_spark=True) as mirror:
        mirror.create("retry.timeout.ms=1000")
        source.stop()
        refused = kmirror(destination, "run", "--mirror", mirror.name, "--until-caught-up")
        assert refused.returncode == 6, refused
        engine = mirror.engine()
        row = row_when(mirror, "t", lambda row: "SOURCE_UNAVAILABLE since" in (row["errorMessage"] or ""))
        assert (row["topicState"], row["reason"]) == ("SOURCE_UNAVAILABLE", "SOURCE_UNREACHABLE")
        source.start()
        mirror.wait_until_equal(engine)
        row_when(mirror, "t", lambda row: row["topicState"] == "ACTIVE" and row["initialCopyComplete"])
        assert engine.stop() == 0
