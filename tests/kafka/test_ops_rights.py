"""On clusters with ACLs the missing rights are named, and `check` finds them beforehand."""

from __future__ import annotations

import shlex
from collections.abc import Callable
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
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kmirror.cluster.security.client_config import client_config
from kmirror.errors import ExitCode, KmirrorError, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change
from kmirror.ops.check.check import check
from kmirror.ops.declare.apply import ApplyRequest, apply
from kmirror.ops.declare.mirrors_file import read_mirrors_file
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.ops.mirrors.pause import pause
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover, remove
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.state.records import PartitionRecord, PartitionState
from kmirror.state.snapshot import Changes
from kmirror.status.topic_state import TopicState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import create_in_force, delete_in_force
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.kafka_tools import kafka_tool
from tests.support.librdkafka import librdkafka
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, outcomes, produce, properties_of, selector
from tests.support.new_topics import create_and_wait

Grant = Callable[..., None]
ANY_RULE = AclPermissionType.ANY


@pytest.fixture
def admin(guarded_cluster: SandboxCluster) -> AdminClient:
    return AdminClient(librdkafka(client_config(guarded_cluster.client_properties())))


@pytest.fixture
def grant(admin: AdminClient) -> Grant:
    def allow(
        name: str, *operations: str, kind: Any = ResourceType.TOPIC, prefixed: bool = False, to: str = "kmirror"
    ) -> None:
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        rules = [
            AclBinding(kind, name, pattern, f"User:{to}", "*", AclOperation[one], AclPermissionType.ALLOW)
            for one in operations
        ]
        create_in_force(admin, rules)

    return allow


@pytest.fixture
def as_kmirror(guarded_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return properties for the user `kmirror` that may be stored: the login is a reference."""
    properties = guarded_cluster.client_properties("kmirror")
    monkeypatch.setenv("KM_TEST_LOGIN", properties["sasl.jaas.config"])
    return {**properties, "sasl.jaas.config": "${env:KM_TEST_LOGIN}"}


def granting(properties: dict[str, str]) -> str:
    """Return how a command begins that an administrator copies."""
    servers = f"--bootstrap-server {properties['bootstrap.servers']} --command-config admin.properties"
    return f"kafka-acls {servers} --add --allow-principal User:kmirror"


def test_missing_rights_on_the_source_are_named(
    cluster_pair: ClusterPair, admin: AdminClient, grant: Grant, as_kmirror: dict[str, str]
) -> None:
    topic = unique_topic()
    create_and_wait(admin, NewTopic(topic, 1, 1))
    with Destination.open(properties_of(cluster_pair.destination)) as destination:
        name = f"m-{topic}"
        create(destination, name, as_kmirror)

        acls = granting(as_kmirror)

        def attempt() -> tuple[ExitCode, Reason | None, str]:
            result = add(destination, name, selector(topic))
            (row,) = result.results
            if row.reason is not None:
                assert (row.hint or "").startswith(f"{acls} --operation ")
                assert (row.hint or "").endswith(f" --topic {topic}")
            return result.exit_code, row.reason, row.message or ""

        refused = ExitCode.REFUSED, Reason.NOT_AUTHORIZED
        *code, message = attempt()
        assert (tuple(code), "DESCRIBE and READ and DESCRIBE_CONFIGS" in message) == (refused, True)
        grant(topic, "DESCRIBE")
        *code, message = attempt()
        assert (tuple(code), "READ and DESCRIBE_CONFIGS on topic" in message) == (refused, True)
        lines = check(properties_of(cluster_pair.destination), mirror=name).lines
        assert all(line.ok for line in lines)  # no topic is mirrored yet
        # whether the source has mirrors cannot be seen
        of_source = {line.what: line for line in lines if line.cluster == "source"}
        to_see = f"{acls} --operation Read --topic __kmirror_state"
        assert to_see in of_source["least rights"].message
        assert to_see == of_source["kmirror's memory"].hint
        grant(topic, "READ")
        *code, message = attempt()
        assert (tuple(code), "grant us DESCRIBE_CONFIGS on topic" in message) == (refused, True)
        assert destination.state().topics(name) == ()
        grant(topic, "DESCRIBE_CONFIGS")
        assert attempt()[0] == ExitCode.OK


@pytest.mark.slow
def test_missing_rights_on_the_destination_are_named(
    cluster_pair: ClusterPair, guarded_cluster: SandboxCluster, grant: Grant, as_kmirror: dict[str, str]
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    hints = [said for line in check(as_kmirror, mirror="m").lines for said in (line.hint or "").splitlines()]
    assert [said for said in hints if "kafka-acls" not in said and not said.endswith(":")] == []
    assert [said for said in hints if "User:NAME" in said or "kmirror check" in said] == []
    grant("__kmirror_", "CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS", prefixed=True)
    grant("kmirror-", "WRITE", "DESCRIBE", kind=ResourceType.TRANSACTIONAL_ID, prefixed=True)
    grant(topic, "DESCRIBE")
    with Destination.open(as_kmirror) as destination:
        name = f"m-{topic}"
        create(destination, name, properties_of(cluster_pair.source))
        for dry_run in (True, False):
            result = add(destination, name, selector(topic), dry_run=dry_run)
            (row,) = result.results
            assert (result.exit_code, row.reason) == (ExitCode.REFUSED, Reason.NOT_AUTHORIZED)
            assert f"does not grant us CREATE on topic {topic}" in (row.message or "")
            assert row.hint == f"{granting(as_kmirror)} --operation Create --topic {topic}"
        assert destination.state().topics(name) == ()

        grant(topic, "CREATE")
        result = add(destination, name, selector(topic))
        (row,) = result.results
        assert (row.result, row.reason) == ("FAILED", Reason.NOT_AUTHORIZED)
        assert "does not grant us READ and WRITE on topic" in (row.message or "")
        hint = f"{granting(as_kmirror)} --operation Read --operation Write --topic {topic}"
        assert (row.hint or "").splitlines()[1:] == [hint]

        def problems() -> dict[str, str]:
            return {line.what: line.message for line in check(as_kmirror, mirror=name).lines if not line.ok}

        grant("*", "READ", kind=ResourceType.GROUP)
        on_topic = {f"rights on topic {topic}": "we lack READ, WRITE, ALTER, DESCRIBE_CONFIGS, ALTER_CONFIGS"}
        assert problems() == on_topic
        assert check(as_kmirror, mirror=name).exit_code == ExitCode.REFUSED
        grant("kafka-cluster", "DESCRIBE", kind=ResourceType.BROKER)
        assert problems() == on_topic
        (line,) = [line for line in check(as_kmirror, mirror=name).lines if line.what in on_topic]
        needed = ("Read", "Write", "Alter", "DescribeConfigs", "AlterConfigs")
        flags = " ".join(f"--operation {operation}" for operation in needed)
        assert line.hint == f"{granting(as_kmirror)} {flags} --topic {topic}"
        (line,) = [line for line in check(as_kmirror, mirror=name).lines if line.what == "rights on cluster"]
        assert line.message == "we lack CREATE; having it on the topics to be created is enough"
        assert "--operation Create --cluster" in (line.hint or "")
        grant("kafka-cluster", "CREATE", kind=ResourceType.BROKER)
        grant(topic, "READ", "WRITE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
        assert problems() == {}
        assert outcomes(add(destination, name, selector(topic))) == {topic: "NOOP"}


def test_what_verify_may_not_see_is_named_with_the_commands(
    cluster_pair: ClusterPair, admin: AdminClient, grant: Grant, as_kmirror: dict[str, str]
) -> None:
    topic = unique_topic()
    create_and_wait(admin, NewTopic(topic, 1, 1))
    grant(topic, "READ", "DESCRIBE_CONFIGS")
    with Destination.open(properties_of(cluster_pair.destination)) as destination:
        name = f"m-{topic}"
        create(destination, name, as_kmirror)
        assert outcomes(add(destination, name, selector(topic))) == {topic: "DONE"}
        mine = AclBindingFilter(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:kmirror", "*", AclOperation.ANY, ANY_RULE
        )
        delete_in_force(admin, mine)
        (row,) = verify(destination, VerifyRequest(name), lambda view: None).rows
        assert (row.reason, row.message) == (
            Reason.NOT_AUTHORIZED,
            f"could not be compared: no right to DESCRIBE topic {topic} of the source",
        )
        assert row.hint == f"{granting(as_kmirror)} --operation Read --operation DescribeConfigs --topic {topic}"


@pytest.mark.slow
def test_how_offsets_will_be_filled_is_shown(
    cluster_pair: ClusterPair, admin: AdminClient, grant: Grant, as_kmirror: dict[str, str]
) -> None:
    topic = unique_topic()
    name, cluster_rule = f"m-{topic}", ("kafka-cluster", ResourcePatternType.LITERAL, "User:kmirror", "*")
    make_topic(cluster_pair.source, topic)
    grant("__kmirror_", "CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS", prefixed=True)
    grant("kmirror-", "WRITE", "DESCRIBE", kind=ResourceType.TRANSACTIONAL_ID, prefixed=True)
    grant(topic, "CREATE", "READ", "WRITE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
    grant("*", "READ", kind=ResourceType.GROUP)

    def only(*operations: str) -> None:
        everything = AclBindingFilter(ResourceType.BROKER, *cluster_rule, AclOperation.ANY, ANY_RULE)
        delete_in_force(admin, everything)
        if operations:
            grant("kafka-cluster", *operations, kind=ResourceType.BROKER)

    def reported(what: str, mirror: str | None = name) -> tuple[str, list[str]]:
        report = check(as_kmirror, mirror=mirror)
        (line,) = [line for line in report.lines if line.what == what]
        assert (line.cluster, line.ok, line.reason) == ("destination", True, None)
        assert report.exit_code == ExitCode.OK
        return line.message, (line.hint or "").splitlines()

    with Destination.open(as_kmirror) as destination:
        create(destination, name, properties_of(cluster_pair.source))
        assert outcomes(add(destination, name, selector(topic))) == {topic: "DONE"}

    acls = granting(as_kmirror)
    slow = "by empty transactions (slower: about 3,000 offsets a second per partition)"
    only("DESCRIBE", "CREATE")
    message, hint = reported("filling offsets")
    assert message.startswith(f"{slow} (ALTER and CLUSTER_ACTION on the cluster are not granted)")
    assert f"the transactional ids kmirror-{name}-fill-* is granted cannot be known from here" in message
    assert hint == [
        "to fill by markers:",
        f"{acls} --operation Alter --cluster",
        "to fill by empty transactions:",
        f"{acls} --operation Write --operation Describe --transactional-id kmirror-{name}-fill- "
        "--resource-pattern-type prefixed",
        f"{acls} --operation Write --topic {topic}",
    ]
    message, _ = reported("power over all mirrors")
    assert "User:kmirror (WRITE on topic __kmirror_events, WRITE on topic __kmirror_state)" in message
    grant(topic, "DELETE", to="app")
    damage = f"these can damage it, too: User:app (DELETE on topic {topic})"
    assert reported(f"power over mirror {name}")[0] == damage
    _, hint = reported("filling offsets", mirror=None)
    assert [line.split(" --operation ")[-1] for line in hint[3:]] == [
        "Describe --transactional-id kmirror-MIRROR-fill- --resource-pattern-type prefixed",
        "Write --topic TOPIC",
    ]
    only()
    message, hint = reported("power over all mirrors")
    assert message.startswith("who can stop mirrors is unknown: describing ACLs: we lack DESCRIBE on the cluster")
    assert hint == [f"{acls} --operation Describe --cluster"]
    message, hint = reported("filling offsets")
    unseen = "unless ALTER or CLUSTER_ACTION on the cluster is granted, which is unknown without"
    assert message.startswith(f"{slow} ({unseen}")
    assert f"{acls} --operation Alter --cluster" in hint
    for either in ("ALTER", "CLUSTER_ACTION"):
        only(either, "DESCRIBE", "CREATE")
        assert reported("filling offsets") == ("by markers", [])

    message, hint = reported("trimming logs")
    assert message.startswith("we lack DELETE on 1 of 1 topic: it is needed where the log is to begin above 0")
    assert "for compact-only topics ALTER_CONFIGS too" in message
    assert hint == [f"{acls} --operation Delete --topic {topic}"]
    grant(topic, "DELETE")
    assert reported("trimming logs") == ("we have DELETE on 1 topic", [])
    only()


def test_without_read_on_the_source_no_open_transaction_is_blamed(
    cluster_pair: ClusterPair,
    guarded_cluster: SandboxCluster,
    admin: AdminClient,
    grant: Grant,
    as_kmirror: dict[str, str],
) -> None:
    topic = unique_topic()
    create_and_wait(admin, NewTopic(topic, 1, 1))
    grant(topic, "READ", "DESCRIBE_CONFIGS")
    login = librdkafka(client_config(guarded_cluster.client_properties()))
    producer = Producer({**login, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "undecided")
    assert producer.flush(30) == 0
    with Destination.open(properties_of(cluster_pair.destination)) as destination:
        name = f"m-{topic}"
        create(destination, name, as_kmirror)
        add(destination, name, selector(topic))
        aligned = PartitionRecord(name, topic, 0, PartitionState.MIRRORING, 0)
        change(destination, name, lambda _: Changes((aligned,)))
        (row,) = describe(destination, name, transactions_after_ms=0)
        assert "blocked at offset 0 by an open transaction" in (row.error_message or "")
        take_back = AclBindingFilter(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:kmirror", "*", AclOperation.READ, ANY_RULE
        )
        assert delete_in_force(admin, take_back) == 1
        grant(topic, "DESCRIBE")
        (row,) = describe(destination, name, transactions_after_ms=0)
        assert (row.reason, row.lag, row.source_high_watermark) == (Reason.NO_ENGINE, 0, 1)
        assert "open transaction" not in (row.error_message or "")
    producer.abort_transaction(30)


def test_a_source_that_refuses_the_password_is_a_failed_link(
    cluster_pair: ClusterPair,
    admin: AdminClient,
    grant: Grant,
    as_kmirror: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = unique_topic()
    create_and_wait(admin, NewTopic(topic, 1, 1))
    grant(topic, "READ", "DESCRIBE_CONFIGS")
    with Destination.open(properties_of(cluster_pair.destination)) as destination:
        name = f"m-{topic}"
        create(destination, name, as_kmirror)
        add(destination, name, selector(topic))
        monkeypatch.setenv(
            "KM_TEST_LOGIN",
            'org.apache.kafka.common.security.scram.ScramLoginModule required username="kmirror" password="wrong";',
        )
        (row,) = describe(destination, name)
        assert (row.topic_state, row.lag, row.destination_offset) == (TopicState.LINK_FAILED, None, 0)
        report = check(properties_of(cluster_pair.destination), mirror=name)
        (problem,) = [line for line in report.lines if not line.ok]
        assert (problem.cluster, problem.reason) == ("source", Reason.AUTHENTICATION_FAILED)
        assert report.exit_code == ExitCode.UNREACHABLE
        assert "wrong" not in f"{problem.message} {problem.hint}"


@pytest.mark.slow
def test_with_what_check_prints_a_mirror_works(
    cluster_pair: ClusterPair, guarded_cluster: SandboxCluster, as_kmirror: dict[str, str], tmp_path: Path
) -> None:
    """At both sides, with Spark, and with any one right less: tests/spark/test_least_rights.py."""
    topic = unique_topic()
    name, source = f"m-{topic}", {**properties_of(cluster_pair.source), "topics.include": topic}
    make_topic(cluster_pair.source, topic)
    produce(cluster_pair.source, topic, ["one", "two"])
    login = guarded_cluster.write_client_properties(tmp_path / "admin.properties")
    lines = check(as_kmirror, properties=source).lines
    (least,) = (line for line in lines if (line.cluster, line.what) == ("destination", "least rights"))
    commands = [shlex.split(line)[1:] for line in least.message.splitlines() if line.startswith("kafka-acls ")]
    # also what deletes offsets that the source no longer has, and reads how long offsets are kept
    granted = [(words[words.index("--operation") :], words) for words in commands]
    assert any("--group" in words and "Delete" in rights for rights, words in granted), least.message
    assert any("--cluster" in words and "DescribeConfigs" in rights for rights, words in granted), least.message
    for words in commands:
        kafka_tool("kafka-acls.sh", *(str(login) if word == "admin.properties" else word for word in words))
    with Destination.open(as_kmirror) as destination:
        create(destination, name, source)
        assert outcomes(add(destination, name, selector(topic))) == {topic: "DONE"}
        with LocalEngine(destination, name) as engine:
            engine.catch_up()
        (row,) = describe(destination, name)
        assert (row.destination_offset, row.lag) == (2, 0)
    assert [line for line in check(as_kmirror, mirror=name).lines if not line.ok] == []


@pytest.mark.slow
def test_a_dry_run_is_refused_where_the_command_would_be(
    cluster_pair: ClusterPair,
    guarded_cluster: SandboxCluster,
    grant: Grant,
    as_kmirror: dict[str, str],
    tmp_path: Path,
) -> None:
    """The dry run of a failover succeeded, and the failover was refused: what a stop does could not be recorded."""
    topic, another = unique_topic(), unique_topic()
    name = f"m-{topic}"
    make_topic(cluster_pair.source, topic)
    make_topic(cluster_pair.source, another)
    file = tmp_path / "mirrors.toml"
    servers = cluster_pair.source.bootstrap_servers
    file.write_text(
        f'[mirrors.{name}]\ntopics = ["{topic}"]\npaused-topics = ["{topic}"]\n'
        f'[mirrors.{name}.source]\n"bootstrap.servers" = "{servers}"\n'
    )
    with Destination.open(guarded_cluster.client_properties()) as destination:
        create(destination, name, properties_of(cluster_pair.source))
        assert outcomes(add(destination, name, selector(topic))) == {topic: "DONE"}
    grant(topic, "READ", "WRITE", "ALTER", "DELETE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
    grant(another, "CREATE", "READ", "WRITE", "ALTER", "DELETE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
    grant("kafka-cluster", "ALTER", "DESCRIBE", kind=ResourceType.BROKER)
    grant("__kmirror_", "READ", "WRITE", prefixed=True)

    def is_refused(*, dry_run: bool) -> tuple[Reason | None, str]:
        with Destination.open(as_kmirror) as destination, pytest.raises(KmirrorError) as refused:
            failover(destination, name, dry_run=dry_run)
        assert refused.value.exit_code == ExitCode.REFUSED
        return refused.value.reason, refused.value.hint or ""

    for right in ("--operation DescribeConfigs", "--transactional-id kmirror-"):
        drilled, stopped = is_refused(dry_run=True), is_refused(dry_run=False)
        assert drilled == stopped
        assert right in drilled[1]
        with Destination.open(as_kmirror) as destination:
            with pytest.raises(KmirrorError):
                remove(destination, name, selector(topic), dry_run=True)
            with pytest.raises(KmirrorError):
                promote(destination, PromoteRequest(name), dry_run=True)
            with pytest.raises(KmirrorError):
                pause(destination, name, dry_run=True)
            with pytest.raises(KmirrorError):
                change_config(destination, name, {"retry.timeout.ms": "60000"}, dry_run=True)
            with pytest.raises(KmirrorError):
                add(destination, name, selector(another), dry_run=True)
            with pytest.raises(KmirrorError):
                create(destination, unique_topic("m"), properties_of(cluster_pair.source), dry_run=True)
            # who plans for others may have fewer rights than who carries it out
            plan = apply(destination, ApplyRequest(read_mirrors_file(file)), dry_run=True)
            assert plan.exit_code == ExitCode.OK
            (warning,) = (one for one in plan.warnings if one.startswith("the real run would be refused"))
            assert right in warning
        grant("__kmirror_", "DESCRIBE_CONFIGS", prefixed=True)
    grant("kmirror-", "WRITE", "DESCRIBE", kind=ResourceType.TRANSACTIONAL_ID, prefixed=True)
    with Destination.open(as_kmirror) as destination:
        for dry_run in (True, False):
            assert failover(destination, name, dry_run=dry_run).result.exit_code == ExitCode.OK
