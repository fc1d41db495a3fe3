"""`read.only=enforce`: no one but kmirror can write to a mirror topic, and where that is not possible it says so."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import AclBinding, AclPermission, ResourceType
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights import principal_probe
from kmirror.cluster.rights.acl_commands import admin_options, login_principal
from kmirror.cluster.rights.acls import await_acls, broker_acls, delete_acls, describe_acls, kafka_acls_line
from kmirror.cluster.rights.principal_probe import PROBE_PREFIX, probe_principal, process_mark
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic, delete_topics
from kmirror.cluster.writing.fence import replicated_ends
from kmirror.cluster.writing.writable import probe_writable
from kmirror.errors import ExitCode, KmirrorError, Reason, RefusedError, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.create import create
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.rights.acl_sync import protect_claimed
from kmirror.ops.rights.lift import lift_rights
from kmirror.ops.rights.producer_block import ProducerBlock
from kmirror.ops.rights.protection import protect, settle, unprotect
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover
from kmirror.settings.parsing import parse_settings
from kmirror.settings.table import Settings
from kmirror.state.records import PENDING_ADD, DesiredState, PartitionState
from kmirror.state.rights_records import SHARED
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, claim, denial, give, kmirror_rights, written
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import make_topic, properties_of, selector
from tests.support.waiting import wait_until


@pytest.fixture
def admin(guarded_cluster: SandboxCluster) -> Iterator[ClusterClient]:
    with ClusterClient(client_config(guarded_cluster.client_properties())) as client:
        yield client


@pytest.fixture
def make_mirror(cluster_pair: ClusterPair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a cluster as a user and makes a mirror with a claimed topic there."""
    opened: list[Destination] = []

    def make(cluster: SandboxCluster, user: str, *topics: str) -> tuple[Destination, str]:
        properties = cluster.client_properties(user)
        destination = Destination.open(properties)
        opened.append(destination)
        name = unique_topic("m")
        create(destination, name, properties_of(cluster_pair.source))
        claim(destination, name, *topics)
        return destination, name

    yield make
    for destination in opened:
        destination.close()


def test_a_broker_that_has_left_the_cluster_shows_no_acls(admin: ClusterClient) -> None:
    (here,) = admin.metadata([]).brokers
    assert isinstance(broker_acls(admin, here), frozenset)
    with pytest.raises(UnreachableError, match="has left the cluster"):
        broker_acls(admin, here + 1000)


def test_every_other_principal_fails_to_write_until_the_rights_are_lifted(
    guarded_cluster: SandboxCluster, admin: ClusterClient, make_mirror: Callable[..., Any]
) -> None:
    topic = unique_topic("orders")
    give(
        admin,
        kmirror_rights(),
        acls("topic", topic, "app", "WRITE", "READ"),
        acls("topic", "orders", "other", "ALL", prefixed=True),
    )
    destination, mirror = make_mirror(guarded_cluster, "kmirror", topic)
    found, _, _ = protect(destination, mirror, [topic])  # before the topic exists
    assert found[topic].detected_only is None
    assert set(found[topic].denied) == {denial(topic, "app"), denial(topic, "other")}
    assert set(destination.state().rights(mirror, topic).denied) == set(found[topic].denied)
    create_topic(destination.client, topic, 1, 1, {})
    for user in ("app", "other"):
        assert written(guarded_cluster, user, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert written(guarded_cluster, "kmirror", topic) is None
    assert written(guarded_cluster, "admin", topic) is None  # super users are excepted
    again, _, _ = protect(destination, mirror, [topic])
    assert (again[topic].denied, again[topic].changed) == (found[topic].denied, False)
    partition = TopicPartition(topic, 0)
    assert settle(destination, [partition], 0) == {}
    nowhere = TopicPartition(unique_topic(), 0)
    assert settle(destination, [nowhere], 0.2) == {nowhere: None}
    assert replicated_ends(destination.client, [partition])[partition].end_offset == 2

    with Destination.open(guarded_cluster.client_properties("app")) as as_app:
        (refused,) = probe_writable(as_app.client, [partition]).values()
        assert refused is not None
        assert refused.reason is Reason.NOT_AUTHORIZED
        claim(destination, mirror, topic, desired=DesiredState.STOPPED)
        lifted = lift_rights(destination, mirror, [topic])[topic]
        assert (set(lifted.removed), lifted.given, lifted.error) == (set(found[topic].denied), (), None)
        assert probe_writable(as_app.client, [partition]) == {partition: None}
        assert replicated_ends(destination.client, [partition])[partition].end_offset == 2  # a probe writes nothing
    assert destination.state().rights(mirror, topic).denied == ()
    assert written(guarded_cluster, "app", topic) is None
    assert lift_rights(destination, mirror, [topic])[topic].removed == ()
    assert not any(one.permission is AclPermission.DENY for one in describe_acls(admin))


def test_a_topic_that_the_probe_cannot_write_is_not_called_stopped(
    cluster_pair: ClusterPair,
    guarded_cluster: SandboxCluster,
    admin: ClusterClient,
    make_mirror: Callable[..., Any],
) -> None:
    """Once, that was a warning: the topic was STOPPED, with exit code 0."""
    shut, sound = unique_topic(), unique_topic()
    give(admin, kmirror_rights())
    destination, mirror = make_mirror(guarded_cluster, "kmirror")
    for topic in (shut, sound):
        make_topic(cluster_pair.source, topic)
    assert add(destination, mirror, selector(shut, sound)).exit_code == ExitCode.OK
    give(admin, [denial(shut, "kmirror")])
    for _ in range(2):
        done = failover(destination, mirror).result
        assert done.exit_code == ExitCode.PARTLY_DONE
        (row,) = [row for row in done.results if row.topic == shut]
        assert (row.result, row.reason) == ("FAILED", Reason.NOT_AUTHORIZED)
        assert "--remove --force --deny-principal User:kmirror" in (row.hint or "")
    assert {row.topic: row.state for row in describe(destination, mirror)} == {
        shut: PartitionState.STOPPING,
        sound: PartitionState.STOPPED,
    }
    delete_acls(admin, [denial(shut, "kmirror")])
    assert await_acls(admin, (), [denial(shut, "kmirror")])
    assert failover(destination, mirror).result.exit_code == ExitCode.OK
    assert {row.state for row in describe(destination, mirror)} == {PartitionState.STOPPED}


def test_denials_follow_the_acls_and_those_of_others_stay(
    guarded_cluster: SandboxCluster, admin: ClusterClient, make_mirror: Callable[..., Any]
) -> None:
    topic = unique_topic()
    theirs = denial(topic, "other")
    give(admin, kmirror_rights(), [theirs], acls("topic", topic, "other", "WRITE"))
    destination, mirror = make_mirror(guarded_cluster, "kmirror", topic)
    assert protect(destination, mirror, [topic])[0][topic].denied == ()
    late = acls("topic", topic, "app", "WRITE")
    give(admin, late)
    assert protect(destination, mirror, [topic])[0][topic].denied == (denial(topic, "app"),)
    delete_acls(admin, late)
    await_acls(admin, (), late)
    assert protect(destination, mirror, [topic])[0][topic].denied == ()
    assert denial(topic, "app") not in describe_acls(admin)
    give(admin, late)
    protect(destination, mirror, [topic])
    assert unprotect(destination, mirror, [topic]) == {topic: (denial(topic, "app"),)}
    left = describe_acls(admin)
    assert theirs in left
    assert denial(topic, "app") not in left
    assert not destination.state().rights(mirror, topic)


def test_delete_leaves_no_denials_on_topics_that_are_gone_or_were_never_created(
    cluster_pair: ClusterPair,
    guarded_cluster: SandboxCluster,
    admin: ClusterClient,
    make_mirror: Callable[..., Any],
) -> None:
    """Once, a topic that was made later under such a name refused its producers, and no record said why."""
    gone, claimed = unique_topic(), unique_topic()
    denials = {denial(topic, "app") for topic in (gone, claimed)}
    give(admin, kmirror_rights(), *(acls("topic", topic, "app", "WRITE") for topic in (gone, claimed)))
    destination, mirror = make_mirror(guarded_cluster, "kmirror")
    make_topic(cluster_pair.source, gone)
    assert add(destination, mirror, selector(gone)).exit_code == ExitCode.OK
    delete_topics(admin, [gone])
    wait_until(lambda: admin.metadata([gone]).topics[gone].error_code)
    claim(destination, mirror, claimed, pending=PENDING_ADD)
    protect(destination, mirror, [claimed])
    assert denials <= describe_acls(admin)
    done = delete(destination, mirror)
    assert (done.exit_code, done.warnings) == (ExitCode.OK, ())
    assert await_acls(admin, (), denials)


def test_delete_names_the_denials_that_it_may_not_remove(
    guarded_cluster: SandboxCluster, admin: ClusterClient, make_mirror: Callable[..., Any]
) -> None:
    topic, to_alter = unique_topic(), acls("cluster", "kafka-cluster", "kmirror", "ALTER")
    give(admin, kmirror_rights(), acls("topic", topic, "app", "WRITE"))
    destination, mirror = make_mirror(guarded_cluster, "kmirror")
    claim(destination, mirror, topic, pending=PENDING_ADD)
    protect(destination, mirror, [topic])
    delete_acls(admin, to_alter)
    assert await_acls(admin, (), to_alter)
    done = delete(destination, mirror)
    assert done.exit_code == ExitCode.OK
    (warning,) = done.warnings
    assert kafka_acls_line(denial(topic, "app"), admin_options(destination.config), remove=True) in warning
    assert denial(topic, "app") in describe_acls(admin)
    delete_acls(admin, [denial(topic, "app")])


def test_where_everybody_may_write_only_a_super_user_can_forbid_it(
    guarded_cluster: SandboxCluster, admin: ClusterClient, make_mirror: Callable[..., Any]
) -> None:
    topic = unique_topic()
    give(admin, kmirror_rights(), acls("topic", topic, "*", "WRITE"))
    destination, mirror = make_mirror(guarded_cluster, "kmirror", topic)
    found = protect(destination, mirror, [topic])[0][topic]
    assert found.denied == ()
    assert "all principals may write (ALLOW WRITE on topic" in (found.detected_only or "")
    assert "--remove --force --allow-principal 'User:*' --operation Write" in (found.hint or "")
    assert destination.state().rights(mirror, topic).detected_only == found.detected_only

    destination, mirror = make_mirror(guarded_cluster, "admin", topic)
    found = protect(destination, mirror, [topic])[0][topic]
    assert (found.denied, found.detected_only) == ((denial(topic, "*"),), None)
    create_topic(destination.client, topic, 1, 1, {})
    assert written(guarded_cluster, "app", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert written(guarded_cluster, "admin", topic) is None
    lift_rights(destination, mirror, [topic])
    assert written(guarded_cluster, "app", topic) is None


def test_readers_are_never_locked_out_by_a_denial(
    lenient_cluster: SandboxCluster, make_mirror: Callable[..., Any]
) -> None:
    topic = unique_topic()
    for user in ("kmirror", "admin"):  # an ordinary principal and a super user find it out in different ways
        destination, mirror = make_mirror(lenient_cluster, user, topic)
        found = protect(destination, mirror, [topic])[0][topic]
        assert "allow.everyone.if.no.acl.found is (or may be) true" in (found.detected_only or "")
        with pytest.raises(RefusedError, match=r"allow\.everyone\.if\.no\.acl\.found"):
            ProducerBlock(destination, mirror, destination.client, destination.state(), []).require_possible()
        # a broker learns a moment later that the probe's are deleted
        wait_until(lambda client=destination.client: not describe_acls(client))  # type: ignore[misc]
        assert "allow.everyone" in (destination.state().rights(mirror, SHARED).detected_only or "")


def test_without_an_authorizer_or_the_right_to_change_acls_it_says_so(
    cluster_pair: ClusterPair, guarded_cluster: SandboxCluster, admin: ClusterClient, make_mirror: Callable[..., Any]
) -> None:
    topic = unique_topic()
    destination, mirror = make_mirror(cluster_pair.destination, "admin", topic)
    assert protect(destination, mirror, [topic])[0][topic].detected_only == "the destination has no authorizer"
    with pytest.raises(RefusedError, match="the source has no authorizer"):
        ProducerBlock(destination, mirror, destination.client, destination.state(), []).require_possible()
    assert protect_claimed(destination, mirror, Settings(), [topic]) == []

    rights = [one for one in kmirror_rights() if one.resource_type is not ResourceType.CLUSTER]
    give(admin, rights, acls("topic", topic, "app", "WRITE"))
    destination, mirror = make_mirror(guarded_cluster, "kmirror", topic)
    found = protect(destination, mirror, [topic])[0][topic]
    assert "kmirror may not read or change ACLs: describing ACLs: we lack DESCRIBE" in (found.detected_only or "")
    give(admin, acls("cluster", "kafka-cluster", "kmirror", "DESCRIBE"))
    found = protect(destination, mirror, [topic])[0][topic]
    assert found.detected_only == "kmirror may not change ACLs: it lacks ALTER on the cluster"
    assert "--operation Alter" in (found.hint or "")
    (warning,) = protect_claimed(destination, mirror, Settings(), [topic])
    assert warning == f"foreign writes to {topic} are only detected: {found.detected_only}"
    assert protect_claimed(destination, mirror, parse_settings({"read.only": "detect"}), [topic]) == []
    assert not any(one.permission is AclPermission.DENY for one in describe_acls(admin))


def test_a_killed_probe_s_acls_are_deleted_by_the_next_command(
    guarded_cluster: SandboxCluster,
    admin: ClusterClient,
    make_mirror: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(admin, kmirror_rights(), acls("cluster", "kafka-cluster", "kmirror", "ALTER", "DESCRIBE"))
    wait_until(lambda: describe_acls(admin))
    with subprocess.Popen(["true"]) as ended:
        pass
    with monkeypatch.context() as as_killed:
        as_killed.setattr(os, "getpid", lambda: ended.pid)
        as_killed.setattr(principal_probe, "delete_acls", lambda *_: {})
        as_killed.setattr(principal_probe, "_seen", _Killed())
        with pytest.raises(KeyboardInterrupt):
            probe_principal(admin, describe_acls(admin), ["User:app"])

    def left() -> list[str]:
        return [one.resource_name for one in describe_acls(admin) if one.resource_name.startswith(PROBE_PREFIX)]

    wait_until(left)
    topic = unique_topic()
    destination, mirror = make_mirror(guarded_cluster, "kmirror", topic)
    protect(destination, mirror, [topic])
    wait_until(lambda: not left())


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_probe_s_acls_that_cannot_be_deleted_are_named(
    admin: ClusterClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusals: int
) -> None:
    before, asked = describe_acls(admin), list[Collection[AclBinding]]()

    def refused(client: ClusterClient, bindings: Collection[AclBinding]) -> dict[AclBinding, KmirrorError | None]:
        asked.append(list(bindings))
        if len(asked) > refusals:
            return delete_acls(client, bindings)
        return dict.fromkeys(bindings, KmirrorError("the controller has moved"))

    monkeypatch.setattr(principal_probe, "delete_acls", refused)
    probe_principal(admin, before)
    assert len(asked) == 2
    assert asked[0] == asked[1]
    lines = [record.getMessage() for record in caplog.records if record.name == principal_probe.__name__]
    if refusals == 1:
        assert lines == []
        wait_until(lambda: describe_acls(admin) == before)
        return
    (binding,) = asked[0]
    (line,) = lines
    assert line.startswith("an ACL of kmirror is left: the controller has moved\nkafka-acls")
    assert f"--remove --force --deny-principal 'User:*' --operation Describe --topic {binding.resource_name}" in line
    delete_acls(admin, asked[0])
    assert await_acls(admin, (), asked[0])


class _Killed:
    """Ends the process when the ACLs are there."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, client: ClusterClient, names: Collection[str], node_id: int | None = None) -> dict[str, bool]:
        self._calls += 1
        if self._calls > 1:
            raise KeyboardInterrupt
        return dict.fromkeys(names, False)


def test_probes_that_run_are_left_alone() -> None:
    now = int(time.time())
    machine = process_mark().split("-")[1]
    is_abandoned = principal_probe._is_abandoned
    assert not is_abandoned(f"{PROBE_PREFIX}{now}-{machine}-{os.getpid()}-x-0")
    assert not is_abandoned(f"{PROBE_PREFIX}{now}-00000000-1-x-0")
    assert not is_abandoned("orders")
    assert is_abandoned(f"{PROBE_PREFIX}{now - 3600}-00000000-1-x-0")
    assert is_abandoned(f"{PROBE_PREFIX}{now}-{machine}-999999999-x-0")


def test_one_finds_out_who_one_is(guarded_cluster: SandboxCluster, admin: ClusterClient) -> None:
    def standing(user: str) -> tuple[bool, bool, set[str]]:
        with ClusterClient(client_config(guarded_cluster.client_properties(user))) as client:
            assert login_principal(client.config) == f"User:{user}"
            before = describe_acls(client)
            found = probe_principal(client, before, ["User:app", "User:kmirror", "User:x"])
            # nothing is left behind; a broker shows a deletion a moment after the controller has confirmed it
            wait_until(lambda: describe_acls(client) == before)
            return found.is_super_user, found.everyone_may, set(found.principals)

    assert standing("admin") == (True, False, set())
    give(admin, acls("cluster", "kafka-cluster", "kmirror", "ALTER", "DESCRIBE"))
    assert standing("kmirror") == (False, False, {"User:kmirror"})
    give(admin, acls("topic", "*", "kmirror", "READ"))
    assert standing("kmirror") == (False, False, {"User:kmirror"})
