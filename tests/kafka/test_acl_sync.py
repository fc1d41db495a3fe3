"""`sync.topic.acls.enabled`: the source's ACLs come along, but no one may write before mirroring stops."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kmirror.cli.terminal.output import TableOutput
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.acls import await_acls, create_acls, delete_acls, describe_acls
from kmirror.cluster.rights.authorized import may_write_transactions
from kmirror.cluster.rights.client_quotas import alter_quotas, describe_quotas, scram_users
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.engine.driver.side_jobs import JobEvent
from kmirror.errors import ExitCode, Reason, RefusedError, UnreachableError, UsageError
from kmirror.ops.add.add import add
from kmirror.ops.base.client_gaps import ClientGaps
from kmirror.ops.base.context import Destination, change, now_ms, require_mirror
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.check.check import check
from kmirror.ops.check.findings import Grade
from kmirror.ops.failback.switchover import SwitchoverRequest, switchover
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.ops.rights import acl_sync, lift
from kmirror.ops.rights.acl_sync import RightsJob
from kmirror.ops.rights.client_sync import ClientsJob, clients_record
from kmirror.ops.rights.lift import deferred_acls, lift_rights
from kmirror.ops.rights.producer_block import hand_over_denials
from kmirror.ops.rights.protection import write_rights
from kmirror.ops.rights.source_acls import stored_source_acls
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.report import VerbReport
from kmirror.ops.stop.steps import Checkpoint
from kmirror.ops.stop.stop import stop
from kmirror.state.records import (
    PENDING_ADD,
    PENDING_PROMOTE,
    PENDING_REBUILD,
    PENDING_STOP,
    DesiredState,
    PartitionState,
)
from kmirror.state.rights_records import SHARED, RightsRecord
from kmirror.state.snapshot import Changes, State
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, claim, denial, give, kmirror_rights, view_of, written
from tests.support.clusters import unique_topic
from tests.support.librdkafka import librdkafka
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import selector
from tests.support.screens import piped
from tests.support.screens import written as written_on
from tests.support.shared_clusters import GuardedPair
from tests.support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Pair:
    """Two clusters with logins and ACLs, each seen by its administrator; kmirror is an ordinary user of both."""

    source: SandboxCluster
    destination: SandboxCluster
    at_source: ClusterClient
    at_destination: ClusterClient


@pytest.fixture
def pair(guarded_pair: GuardedPair) -> Iterator[Pair]:
    source, destination = guarded_pair.source, guarded_pair.destination
    with (
        ClusterClient(client_config(source.client_properties())) as at_source,
        ClusterClient(client_config(destination.client_properties())) as at_destination,
    ):
        give(at_source, kmirror_rights())
        give(at_destination, kmirror_rights())
        yield Pair(source, destination, at_source, at_destination)


@pytest.fixture
def mirror(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Destination, str, RightsJob]]:
    """Create a mirror that takes ACLs over, with no topics yet; its job is done by hand."""
    login = pair.source.client_properties("kmirror")
    monkeypatch.setenv("KM_TEST_LOGIN", login["sasl.jaas.config"])
    properties = pair.destination.client_properties("kmirror")
    with Destination.open(properties) as destination:
        name = unique_topic("m")
        stored = {**login, "sasl.jaas.config": "${env:KM_TEST_LOGIN}", "sync.topic.acls.enabled": "true"}
        create(destination, name, stored)
        job = RightsJob(name, properties)
        yield destination, name, job
        job.close()


def here(pair: Pair) -> set[AclBinding]:
    """Return the ACLs at the destination that are not kmirror's own rights."""
    return set(describe_acls(pair.at_destination)) - set(kmirror_rights())


def secret() -> dict[str, str]:
    """Return a login as it may be stored; the value is in the environment while there is a mirror."""
    return {"sasl.jaas.config": "${env:KM_TEST_LOGIN}"}


def sync(mirror: tuple[Destination, str, RightsJob], **settings: str) -> list[JobEvent]:
    destination, name, job = mirror
    return list(job.run(view_of(destination, name, **settings)))


def test_readers_come_along_at_once_and_writers_when_mirroring_stops(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    topic, later, elsewhere = unique_topic("eu-orders"), unique_topic("eu-pay"), unique_topic("us-orders")
    group = unique_topic("g")
    reads = [
        *acls("topic", topic, "app", "READ", "DESCRIBE_CONFIGS"),
        *acls("topic", "eu-", "other", "READ", prefixed=True),
        *acls("group", group, "app", "READ"),
        *acls("group", "team-", "app", "READ", prefixed=True),
        *acls("topic", topic, "other", "ALTER", deny=True),
        *acls("transactional_id", "app-1", "app", "WRITE"),
        *acls("transactional_id", "*", "other", "WRITE"),
    ]
    writes = [
        *acls("topic", topic, "app", "WRITE", "DELETE"),
        *acls("topic", "eu-", "other", "WRITE", prefixed=True),
    ]
    everything = acls("topic", topic, "all", "ALL")
    not_ours = [
        *acls("topic", elsewhere, "app", "READ"),
        *acls("group", "__secret", "app", "READ"),
        *acls("transactional_id", "app-1", "reader", "WRITE"),
        *acls("cluster", "kafka-cluster", "app", "DESCRIBE"),
    ]
    give(pair.at_source, reads, writes, everything, not_ours)
    create_topic(pair.at_destination, topic, 1, 1, {})
    create_topic(pair.at_destination, later, 1, 1, {})
    claim(destination, name, topic, later)

    said = sync(mirror)
    assert [(one.what, one.result) for one in said] == [("rights", "OK")]
    stand_ins = [
        *acls("topic", topic, "all", "READ", "DESCRIBE", "DESCRIBE_CONFIGS"),
        *acls("transactional_id", "kmirror-", "other", "WRITE", prefixed=True, deny=True),
    ]
    assert here(pair) == {*reads, *stand_ins}
    assert sync(mirror) == []
    with ClusterClient(client_config(pair.destination.client_properties("other"))) as as_other:
        assert may_write_transactions(as_other, unique_topic("theirs"))
        assert not may_write_transactions(as_other, f"kmirror-{name}")
    for user in ("app", "other"):
        assert written(pair.destination, user, topic) is not None
    consumer = Consumer({**librdkafka(client_config(pair.destination.client_properties("app"))), "group.id": group})
    consumer.subscribe([topic])
    assert consumer.poll(0.1) is None
    assert topic in consumer.list_topics(timeout=30).topics
    consumer.close()

    claim(destination, name, topic, desired=DesiredState.STOPPED)  # the source may be dead from here on
    lifted = lift_rights(destination, name, [topic])[topic]
    narrow = acls("topic", topic, "other", "WRITE")  # the prefix covers a topic that is still mirrored
    assert (lifted.error, lifted.removed) == (None, ())
    assert set(lifted.given) == {*writes[:2], *narrow, *everything}
    assert here(pair) == {*reads, *stand_ins, *lifted.given}
    assert written(pair.destination, "app", topic) is None
    assert written(pair.destination, "other", topic) is None
    assert written(pair.destination, "other", later) is not None
    assert lift_rights(destination, name, [topic])[topic].given == ()

    claim(destination, name, later, desired=DesiredState.STOPPED)
    assert set(lift_rights(destination, name, [later])[later].given) == {
        writes[2], *acls("topic", later, "other", "WRITE"),
    }  # fmt: skip
    assert written(pair.destination, "other", later) is None
    assert sync(mirror) == []  # and what was given stays
    assert here(pair) == {*reads, *stand_ins, *writes, *everything, *narrow, *acls("topic", later, "other", "WRITE")}


def test_only_what_kmirror_made_is_ever_removed(pair: Pair, mirror: tuple[Destination, str, RightsJob]) -> None:
    destination, name, _ = mirror
    topic = unique_topic()
    ours, theirs = acls("topic", topic, "app", "READ"), acls("topic", topic, "other", "READ")
    shared = acls("topic", topic[:3], "app", "DESCRIBE_CONFIGS", prefixed=True)
    local = acls("topic", topic, "local", "READ")
    give(pair.at_source, ours, theirs, shared)
    give(pair.at_destination, theirs, local)  # another client made this one here too, before
    claim(destination, name, topic)
    sync(mirror)
    assert here(pair) == {*ours, *theirs, *shared, *local}
    assert set(destination.state().rights(name, topic).made) == set(ours)
    assert set(destination.state().rights(name, SHARED).made) == set(shared)
    delete_acls(pair.at_source, [*ours, *theirs, *shared])
    await_acls(pair.at_source, (), [*ours, *theirs, *shared])
    (reported,) = sync(mirror)
    assert reported.note == "0 ACLs created, 2 deleted"
    assert here(pair) == {*theirs, *local}
    assert not destination.state().rights(name, topic)


def test_a_reader_keeps_its_right_until_the_acl_that_replaces_it_is_created(
    pair: Pair, mirror: tuple[Destination, str, RightsJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the old ACL was deleted first: a consumer that was refused in between ended."""
    destination, name, _ = mirror
    topic = unique_topic("orders")
    old, new = acls("topic", topic, "app", "READ"), acls("topic", topic[:-1], "app", "READ", prefixed=True)
    second = unique_topic("bills")
    revoked = [*acls("topic", topic, "other", "READ"), *acls("topic", second, "app", "READ")]
    give(pair.at_source, old, revoked)
    claim(destination, name, topic, second)
    sync(mirror)
    delete_acls(pair.at_source, [*old, *revoked])
    give(pair.at_source, new)
    await_acls(pair.at_source, new, [*old, *revoked])
    with monkeypatch.context() as broken:
        broken.setattr(acl_sync, "create_acls", lambda _, some: dict.fromkeys(some, RefusedError("too many ACLs")))
        with pytest.raises(RefusedError, match="too many ACLs"):
            sync(mirror)
    assert here(pair) == set(old)  # what is revoked is deleted all the same

    def created(*arguments: Any) -> Any:
        outcomes = create_acls(*arguments)
        assert await_acls(pair.at_destination, [*old, *new])
        return outcomes

    monkeypatch.setattr(acl_sync, "create_acls", created)
    (reported,) = sync(mirror)
    assert reported.note == "1 ACL created, 1 deleted"
    assert here(pair) == set(new)


def test_a_denial_of_the_source_is_kept_apart_from_the_same_one_that_protects_the_topic(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    """Once, a stop deleted the source's denial, and a denial that the source dropped left the mirror topic open."""
    destination, name, _ = mirror
    stays, goes = unique_topic(), unique_topic()
    create_topic(pair.at_destination, goes, 1, 1, {})
    users = ("app", "other")
    allowed = [one for topic in (stays, goes) for who in users for one in acls("topic", topic, who, "WRITE")]
    protects = {denial(topic, who) for topic in (stays, goes) for who in users}
    give(pair.at_destination, allowed)
    claim(destination, name, stays, goes)
    sync(mirror)
    assert here(pair) == {*allowed, *protects}
    dropped = [denial(goes, "app"), *acls("topic", goes, "other", "ALL", deny=True)]
    give(pair.at_source, [denial(stays, "app")], dropped)
    sync(mirror)
    assert sync(mirror) == []
    assert here(pair) == {*allowed, *protects, *dropped}
    delete_acls(pair.at_source, dropped)
    await_acls(pair.at_source, (), dropped)
    sync(mirror)
    assert here(pair) == {*allowed, *protects}
    for user in users:
        assert written(pair.destination, user, goes) is not None
    assert sync(mirror) == []
    claim(destination, name, stays, goes, desired=DesiredState.STOPPED)
    lifted = lift_rights(destination, name, [stays, goes])
    assert {one for topic in lifted.values() for one in topic.removed} == protects - {denial(stays, "app")}
    assert here(pair) == {*allowed, denial(stays, "app")}


@pytest.mark.parametrize("operation", ["ALL", "WRITE"])
def test_a_denial_that_the_sync_has_made_protects_a_topic_only_as_long_as_the_source_has_it(
    pair: Pair, mirror: tuple[Destination, str, RightsJob], operation: str
) -> None:
    destination, name, _ = mirror
    topic = unique_topic()
    theirs, allowed = acls("topic", topic, "app", operation, deny=True), acls("topic", topic, "app", "WRITE")
    give(pair.at_source, theirs)
    claim(destination, name, topic)
    sync(mirror)
    give(pair.at_destination, allowed)
    sync(mirror)
    delete_acls(pair.at_source, theirs)
    await_acls(pair.at_source, (), theirs)
    sync(mirror)
    assert here(pair) == {*allowed, denial(topic, "app")}
    delete_acls(pair.at_destination, allowed)
    await_acls(pair.at_destination, (), allowed)
    sync(mirror)
    assert here(pair) == set()
    assert not destination.state().rights(name, topic)


@pytest.mark.slow
def test_a_group_that_no_broker_lists_keeps_its_rights(pair: Pair, mirror: tuple[Destination, str, RightsJob]) -> None:
    destination, name, _ = mirror
    topic, group = unique_topic(), unique_topic("g")
    everywhere, narrow = acls("group", "*", "app", "READ"), acls("group", group, "app", "READ")
    give(pair.at_source, everywhere)
    create_topic(pair.at_source, topic, 1, 1, {})
    claim(destination, name, topic)
    source = ClusterGroups(pair.at_source)
    committed = source.commit(group, GroupKind.CONSUMER, {TopicPartition(topic, 0): Committed(0)})
    assert set(committed.values()) == {0}
    only = {"groups_include": group}
    sync(mirror, **only)
    assert set(narrow) <= here(pair)
    # to kmirror this looks like a group whose coordinator is away
    admin = AdminClient(librdkafka(client_config(pair.source.client_properties())))
    admin.delete_consumer_groups([group])[group].result(30)
    wait_until(lambda: group not in source.listed())
    assert sync(mirror, **only) == []
    assert set(narrow) <= here(pair)
    delete_acls(pair.at_source, everywhere)
    await_acls(pair.at_source, (), everywhere)
    sync(mirror, **only)
    assert not here(pair) & set(narrow)


def test_a_source_that_suddenly_returns_no_acls_takes_none_away(
    pair: Pair, mirror: tuple[Destination, str, RightsJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    destination, name, _ = mirror
    topic = unique_topic()
    reads = acls("topic", topic, "app", "READ")
    give(pair.at_source, reads)
    claim(destination, name, topic)
    sync(mirror)
    assert set(reads) <= here(pair)
    # a super user may see that there are none
    monkeypatch.setenv("KM_TEST_LOGIN", pair.source.client_properties()["sasl.jaas.config"])
    left = describe_acls(pair.at_source)
    delete_acls(pair.at_source, left)
    await_acls(pair.at_source, (), left)
    with pytest.raises(RefusedError, match="the source returns no ACLs at all"):
        sync(mirror)
    assert set(reads) <= here(pair)


@pytest.mark.parametrize("pending", [PENDING_PROMOTE, PENDING_REBUILD])
def test_a_topic_with_a_pending_operation_loses_no_rights_and_gets_none(
    pair: Pair, mirror: tuple[Destination, str, RightsJob], pending: str
) -> None:
    """A promote may wait for hours, and the ACLs by prefix are not on the record of the topic."""
    destination, name, _ = mirror
    prefix = unique_topic("orders") + "-"
    topic = f"{prefix}eu"
    reads = acls("topic", prefix, "app", "READ", prefixed=True)
    denied = acls("topic", prefix, "batch", "READ", prefixed=True, deny=True)
    everywhere, narrow = acls("topic", "*", "batch", "READ"), acls("topic", topic, "batch", "READ")
    writes, write = acls("topic", prefix, "app", "WRITE", prefixed=True), acls("topic", topic, "app", "WRITE")
    give(pair.at_source, reads, denied, everywhere, writes)
    claim(destination, name, topic)
    sync(mirror)
    copied = {*reads, *denied, *narrow}
    assert here(pair) == copied
    # by hand, to end writing there
    cut_off = acls("topic", prefix, "*", "WRITE", prefixed=True, deny=True)
    give(pair.at_source, cut_off)
    delete_acls(pair.at_source, writes)
    await_acls(pair.at_source, (), writes)
    for operation in (pending, PENDING_STOP):
        claim(destination, name, topic, pending=operation)
        assert sync(mirror) == []
        assert here(pair) == copied
    claim(destination, name, topic, desired=DesiredState.STOPPED, pending=PENDING_STOP)
    assert set(lift_rights(destination, name, [topic])[topic].given) == {*writes, *write}
    for left in (PENDING_STOP, None):
        claim(destination, name, topic, desired=DesiredState.STOPPED, pending=left)
        assert sync(mirror) == []
        assert here(pair) == {*copied, *writes, *write}
    claim(destination, name, topic, pending=PENDING_ADD)  # mirrored again
    sync(mirror)
    assert here(pair) >= {*copied, *writes, *write}
    claim(destination, name, topic)
    sync(mirror)
    assert here(pair) & {*copied, *writes, *write} == copied


def test_consumers_keep_their_rights_when_they_are_ended_on_the_source(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    topic, later, group = unique_topic("eu-orders"), unique_topic("eu-pay"), unique_topic("g")
    on_group = acls("group", group, "app", "READ")
    reads = [*acls("topic", "eu-", "app", "READ", prefixed=True), *on_group]
    give(pair.at_source, reads)
    claim(destination, name, topic, later)
    sync(mirror)
    assert here(pair) == set(reads)
    claim(destination, name, topic, pending=PENDING_PROMOTE)
    ended = [
        *acls("group", group, "app", "READ", deny=True),
        *acls("group", group, "*", "READ", deny=True),
        *acls("topic", "eu-", "app", "READ", prefixed=True, deny=True),
    ]
    give(pair.at_source, ended)
    delete_acls(pair.at_source, on_group)
    await_acls(pair.at_source, (), on_group)
    assert sync(mirror) == []
    for one in (topic, later):
        claim(destination, name, one, desired=DesiredState.STOPPED)
        assert sync(mirror) == []
        assert lift_rights(destination, name, [one])[one].given == ()
        assert here(pair) == set(reads)


def test_only_the_denial_of_the_move_is_taken_over_from_the_new_primary_s_state(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    """Recorded ACLs are deleted here, and any client that may write to the state there could name them."""
    destination, name, _ = mirror
    topic, other = unique_topic(), unique_topic()
    blocked = acls("topic", topic, "*", "WRITE", deny=True)
    planted = [
        *acls("topic", "payroll", "app", "READ", deny=True),
        *acls("topic", topic, "app", "READ"),
        *acls("topic", other, "other", "WRITE", deny=True),
    ]
    give(pair.at_destination, blocked, planted)
    there = State.of(
        [
            RightsRecord(name, topic, blocked=(*blocked, *planted)),
            RightsRecord(name, other, blocked=(*blocked, *planted)),
        ]
    )
    claim(destination, name, topic, other)
    assert hand_over_denials(destination, there, name, [topic, other]) == [topic]
    assert destination.state().rights(name, topic).denied == tuple(blocked)
    sync(mirror)
    assert here(pair) == set(planted)


def test_a_block_that_is_recorded_while_rights_change_stays_on_record(
    pair: Pair, mirror: tuple[Destination, str, RightsJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    destination, name, _ = mirror
    topic = unique_topic()
    blocked, made = acls("topic", topic, "*", "WRITE", deny=True), acls("topic", "x", "app", "READ", prefixed=True)
    give(pair.at_source, acls("topic", topic, "app", "READ", "WRITE"))
    claim(destination, name, topic)

    def meanwhile(*_: object) -> bool:
        write_rights(destination, name, [topic], lambda one: replace(one, blocked=tuple(blocked)))
        write_rights(destination, name, [SHARED], lambda one: replace(one, made=tuple(made)))
        return True

    def recorded() -> tuple[AclBinding, ...]:
        state = destination.state()
        found = state.rights(name, topic).blocked + state.rights(name, SHARED).made
        write_rights(destination, name, [topic], RightsRecord.unblocked)
        write_rights(destination, name, [SHARED], lambda one: replace(one, made=()))
        return found

    monkeypatch.setattr(acl_sync, "await_acls", meanwhile)
    sync(mirror)
    assert recorded() == (*blocked, *made)
    monkeypatch.setattr(lift, "lagging_brokers", lambda *_: frozenset() if meanwhile() else None)
    claim(destination, name, topic, desired=DesiredState.STOPPED)
    lifted = lift_rights(destination, name, [topic])[topic]
    assert lifted.given == tuple(acls("topic", topic, "app", "WRITE"))
    assert recorded() == (*blocked, *made)


def test_a_filter_chooses_and_what_applies_to_everything_is_narrowed(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    topic = unique_topic()
    wide = acls("topic", "*", "app", "READ", "WRITE")
    give(pair.at_source, wide, acls("topic", topic, "other", "READ"))
    claim(destination, name, topic)
    only_app = '{"aclFilters":[{"accessFilter":{"principal":"User:app"}}]}'
    sync(mirror, acls_include=only_app)
    assert here(pair) == set(acls("topic", topic, "app", "READ"))
    claim(destination, name, topic, desired=DesiredState.STOPPED)
    assert lift_rights(destination, name, [topic])[topic].given == tuple(acls("topic", topic, "app", "WRITE"))


def test_a_denial_that_would_shut_kmirror_out_is_held_back(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    topic = unique_topic()
    frozen = [*acls("topic", topic, "*", "WRITE", deny=True), *acls("topic", topic, "kmirror", "ALTER", deny=True)]
    give(pair.at_source, frozen)
    create_topic(pair.at_destination, topic, 1, 1, {})
    claim(destination, name, topic)
    sync(mirror)
    assert here(pair) == set()
    assert written(pair.destination, "kmirror", topic) is None
    claim(destination, name, topic, desired=DesiredState.STOPPED)
    assert set(lift_rights(destination, name, [topic])[topic].given) == set(frozen)


@pytest.mark.parametrize("denied", ["*", "kmirror"])
def test_a_topic_that_the_source_had_frozen_is_stopped_and_stays_denied(
    pair: Pair, mirror: tuple[Destination, str, RightsJob], denied: str
) -> None:
    """Once, the stop created the denial and failed because of it, each time it was repeated."""
    destination, name, _ = mirror
    topic = unique_topic()
    frozen, writes = acls("topic", topic, denied, "WRITE", deny=True), acls("topic", topic, "app", "WRITE")
    create_topic(pair.at_source, topic, 1, 1, {})
    give(pair.at_source, frozen, writes)
    assert add(destination, name, selector(topic)).exit_code == 0
    sync(mirror)
    assert not here(pair) & {*frozen, *writes}

    def denial_of(report: VerbReport) -> tuple[str | None, str]:
        assert report.result.exit_code == ExitCode.PARTLY_DONE, report.result
        (row,) = [one for one in report.result.results if one.result is Outcome.FAILED]
        assert (row.topic, row.partition, row.reason) == (topic, None, Reason.NOT_AUTHORIZED)
        assert not [one for one in report.result.warnings if "WRITE" in one]
        error = report.result.error
        assert error is not None
        return row.message, str(error.hint)

    who = "everyone" if denied == "*" else "kmirror"
    would = denial_of(failover(destination, name, dry_run=True))
    assert str(would[0]).startswith(f"{topic} would be stopped, but {who} would be denied WRITE on it")
    # killed after that, the command finds the denial that it has created
    with pytest.raises(KeyboardInterrupt):
        failover(destination, name, checkpoint=interrupt_after("lift the write protection"))
    assert here(pair) >= {*frozen, *writes}
    assert denial_of(failover(destination, name, dry_run=True)) == would
    message, hint = denial_of(failover(destination, name))
    assert str(message).startswith(f"{topic} is stopped, but {who} is denied WRITE on it")
    user = "'User:*'" if denied == "*" else "User:kmirror"
    for text in (str(message), hint):
        assert text.endswith(f"--remove --force --deny-principal {user} --operation Write --topic {topic}")
    assert {row.state for row in describe(destination, name)} == {PartitionState.STOPPED}
    assert (written(pair.destination, "app", topic) is None) is (denied == "kmirror")
    again = failover(destination, name).result
    assert (again.exit_code, {row.result for row in again.results}) == (0, {Outcome.NOOP})


def test_a_stop_grants_nothing_of_the_source_once_its_acls_are_not_synced_any_more(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    """Once, it granted what was deferred by the last sync, although it may have been revoked long ago."""
    destination, name, _ = mirror
    topic = unique_topic("orders")
    create_topic(pair.at_source, topic, 1, 1, {})
    writes = [*acls("topic", topic, "app", "WRITE"), *acls("topic", topic[:-1], "app", "ALL", prefixed=True)]
    local = acls("topic", topic, "other", "WRITE")
    give(pair.at_source, writes, acls("topic", topic, "*", "WRITE", deny=True))
    give(pair.at_destination, local)
    assert add(destination, name, selector(topic)).exit_code == 0
    sync(mirror)
    before = here(pair)
    delete_acls(pair.at_source, [denial(topic, "*")])
    await_acls(pair.at_source, (), [denial(topic, "*")])
    change_config(destination, name, {"sync.topic.acls.enabled": "false"})
    for dry_run in (True, False):
        done = failover(destination, name, dry_run=dry_run).result
        assert (done.exit_code, done.clients and done.clients.deferred) == (0, ())
        rights = done.clients and done.clients.rights
        assert [(str(one.operation), one.names) for one in rights or ()] == [("WRITE", (topic,))]
    assert before - here(pair) == {denial(topic, "other")}
    assert here(pair) < before


@pytest.mark.slow
def test_a_switchover_waits_for_the_operator_where_the_source_had_frozen_a_topic(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    """Once, it said that the destination took writes to a topic that was denied them there, too, and reversed it."""
    destination, name, _ = mirror
    frozen, free = unique_topic(), unique_topic()
    for topic in (frozen, free):
        create_topic(pair.at_source, topic, 1, 1, {})
    give(pair.at_source, acls("topic", frozen, "*", "WRITE", deny=True))
    assert add(destination, name, selector(frozen, free)).exit_code == 0
    sync(mirror)
    back = {**pair.destination.client_properties("kmirror"), **secret()}
    request = SwitchoverRequest(name, back, timeout_ms=120_000, idle_ms=0, watch_s=0.1)
    lines: list[str] = []
    with LocalEngine(destination, name) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(destination, name)))
        rehearsed = switchover(destination, request, dry_run=True).result
        first = switchover(destination, request, lambda view: lines.extend(view.lines)).result
        for done in (rehearsed, first):
            assert done.exit_code == ExitCode.PARTLY_DONE
            bad = [row for row in done.results if row.result is not Outcome.DONE]
            assert [(row.topic, row.partition, row.reason) for row in bad] == [(frozen, None, Reason.NOT_AUTHORIZED)]
            assert f"--operation Write --topic {frozen}" in str(done.error and done.error.hint)
        assert "nothing was reversed yet" in str(first.error and first.error.hint)
        assert not [line for line in lines if "takes writes now" in line]
        assert {row.state for row in describe(destination, name)} == {PartitionState.STOPPED}
        switchover(destination, request, lambda view: lines.extend(view.lines))
    assert [line for line in lines if line.startswith(f"kmirror is denied WRITE on {frozen} here")]
    (writable,) = [line for line in lines if "takes writes now" in line]
    assert "start clients of 1 topic here" in writable


def test_a_topic_on_which_kmirror_is_granted_no_write_is_not_stopped(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    topic = unique_topic()
    create_topic(pair.at_source, topic, 1, 1, {})
    assert add(destination, name, selector(topic)).exit_code == 0
    everything = acls("topic", "*", "kmirror", "ALL")
    rest = [
        *acls("topic", "__kmirror", "kmirror", "ALL", prefixed=True),
        *acls("topic", topic, "kmirror", "READ", "DELETE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS"),
    ]
    give(pair.at_destination, rest)
    delete_acls(pair.at_destination, everything)
    await_acls(pair.at_destination, rest, everything)
    for dry_run in (True, False):
        done = failover(destination, name, dry_run=dry_run).result
        assert done.exit_code == ExitCode.PARTLY_DONE
        (row,) = [row for row in done.results if row.result is Outcome.FAILED]
        assert (row.reason, "--operation Write" in (row.hint or "")) == (Reason.NOT_AUTHORIZED, True)


def interrupt_after(step: str) -> Checkpoint:
    """Return a checkpoint that ends the command once the step that begins so is done."""

    def checkpoint(does: str) -> None:
        if does.startswith(step):
            raise KeyboardInterrupt

    return checkpoint


def test_without_the_right_to_change_acls_the_lift_says_what_an_administrator_has_to_do(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    topic = unique_topic()
    give(pair.at_source, acls("topic", topic, "app", "WRITE"))
    give(pair.at_destination, acls("topic", topic, "other", "WRITE"))
    claim(destination, name, topic)
    (protected,) = [one for one in sync(mirror) if one.result == "ENFORCED"]
    assert protected.details["topics"] == [topic]
    alter = acls("cluster", "kafka-cluster", "kmirror", "ALTER", "DESCRIBE")
    delete_acls(pair.at_destination, alter)
    await_acls(pair.at_destination, (), alter)
    claim(destination, name, topic, desired=DesiredState.STOPPED)
    command = f"kafka-acls --bootstrap-server {pair.destination.bootstrap_servers} --command-config admin.properties"
    for _ in range(2):  # nothing is forgotten
        lifted = lift_rights(destination, name, [topic])[topic]
        assert lifted.error is not None
        assert "we lack ALTER on the cluster" in lifted.error.message
        assert (lifted.error.hint or "").splitlines()[1:] == [
            f"{command} --add --allow-principal User:app --operation Write --topic {topic}",
            f"{command} --remove --force --deny-principal User:other --operation Write --topic {topic}",
            f"{command} --add --allow-principal User:kmirror --operation Describe --cluster",
        ]
    give(pair.at_destination, acls("cluster", "kafka-cluster", "kmirror", "DESCRIBE"))
    (given,) = acls("topic", topic, "app", "WRITE")
    give(pair.at_destination, [given])
    halfway = lift_rights(destination, name, [topic])[topic]
    assert (halfway.given, ((halfway.error and halfway.error.hint) or "").count("kafka-acls")) == ((given,), 1)
    create_acls(pair.at_destination, alter)
    await_acls(pair.at_destination, alter)
    lifted = lift_rights(destination, name, [topic])[topic]
    assert (lifted.error, len(lifted.removed), len(lifted.given)) == (None, 1, 0)


def test_a_stop_names_the_brokers_that_have_not_applied_the_lift(
    pair: Pair, mirror: tuple[Destination, str, RightsJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, it reported the topic as writable, although producers were still refused."""
    destination, name, _ = mirror
    topic = unique_topic()
    create_topic(pair.at_source, topic, 1, 1, {})
    give(pair.at_destination, acls("topic", topic, "other", "WRITE"))
    assert add(destination, name, selector(topic)).exit_code == 0
    monkeypatch.setattr(lift, "_IN_FORCE_S", 0.5)
    # the deletion reaches no broker
    monkeypatch.setattr(lift, "delete_acls", lambda _, some: dict.fromkeys(some))
    writable_ms: list[dict[str, int]] = []

    def noted(*arguments: Any) -> Any:
        stopped = stop(*arguments)
        writable_ms.append(stopped.writable_ms)
        return stopped

    monkeypatch.setattr("kmirror.ops.stop.failover.stop", noted)
    done = failover(destination, name).result
    assert (done.exit_code, writable_ms) == (0, [{}]), done
    (node_id,) = pair.at_destination.metadata([]).brokers
    (warning,) = [one for one in done.warnings if "have not applied the changed ACLs" in one]
    assert f"to {topic} yet is unknown on brokers {node_id}:" in warning
    delete_acls(pair.at_destination, [denial(topic, "other")])


@pytest.mark.slow
@pytest.mark.parametrize("sees_acls", [True, False])
def test_without_the_right_to_change_acls_a_stop_is_finished_once_an_administrator_ran_the_commands(
    pair: Pair, mirror: tuple[Destination, str, RightsJob], *, sees_acls: bool
) -> None:
    """Once, each repeat asked brokers for changes that they refuse without ALTER, even if none was needed any more."""
    destination, name, _ = mirror
    topic = unique_topic()
    create_topic(pair.at_source, topic, 1, 1, {})
    give(pair.at_source, acls("topic", topic, "app", "WRITE"))
    give(pair.at_destination, acls("topic", topic, "other", "WRITE"))
    assert add(destination, name, selector(topic)).exit_code == 0
    sync(mirror)
    describes = acls("cluster", "kafka-cluster", "kmirror", "DESCRIBE")
    alter = acls("cluster", "kafka-cluster", "kmirror", "ALTER")
    delete_acls(pair.at_destination, alter if sees_acls else [*alter, *describes])
    await_acls(pair.at_destination, (), alter)
    first = failover(destination, name).result
    assert first.exit_code == ExitCode.PARTLY_DONE
    hint = str(next(row.hint for row in first.results if row.result is Outcome.FAILED))
    assert ("--operation Describe --cluster" in hint) is not sees_acls
    give(pair.at_destination, acls("topic", topic, "app", "WRITE"), [] if sees_acls else describes)
    denials = [denial(topic, "other")]
    delete_acls(pair.at_destination, denials)
    await_acls(pair.at_destination, (), denials)
    assert len(hint.splitlines()) == (3 if sees_acls else 4), hint
    done = failover(destination, name).result
    assert done.exit_code == 0, done
    assert {row.state for row in describe(destination, name)} == {PartitionState.STOPPED}
    assert not destination.state().rights(name, topic).denied


def test_power_over_the_cluster_comes_along_only_on_request_and_after_the_last_mirror_topic(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    topic, of_another = unique_topic(), unique_topic()
    create(destination, another := unique_topic("m"), pair.source.client_properties("kmirror") | secret())
    claim(destination, another, of_another)
    sees = acls("cluster", "kafka-cluster", "app", "DESCRIBE_CONFIGS")
    power = acls("cluster", "kafka-cluster", "app", "CREATE", "ALTER_CONFIGS")
    give(pair.at_source, sees, power)
    claim(destination, name, topic)
    assert sync(mirror) == []
    with pytest.raises(UsageError, match=r"requires sync.topic.acls.enabled=true"):
        change_config(destination, name, {"sync.cluster.acls.enabled": "true", "sync.topic.acls.enabled": "false"})
    change_config(destination, name, {"sync.cluster.acls.enabled": "true"})
    sync(mirror)
    assert here(pair) == set(sees)
    change_config(destination, name, {"sync.cluster.acls.enabled": "false"})
    assert deferred_acls(destination.state(), name) == set()  # although it is stored
    change_config(destination, name, {"sync.cluster.acls.enabled": "true"})
    assert deferred_acls(destination.state(), name) == set(power)
    claim(destination, name, topic, desired=DesiredState.STOPPED)
    assert lift_rights(destination, name, [topic])[topic].given == ()
    state = destination.state()
    for known in state.mirrors:  # of other tests, too
        claim(destination, known.name, *(t.topic for t in state.topics(known.name)), desired=DesiredState.STOPPED)
    assert set(lift_rights(destination, name, [topic])[topic].given) == set(power)
    assert here(pair) == {*sees, *power}


def test_quotas_come_along_and_what_others_have_set_stays(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    user, topic, job = unique_topic("u"), unique_topic(), ClientsJob(name, destination.properties)

    def quota(value: float, whose: str = user) -> Quota:
        return Quota((("user", whose),), "producer_byte_rate", value)

    def run(**settings: str) -> list[str]:
        return [one.note or "" for one in job.run(view_of(destination, name, **settings))]

    def ours(cluster: ClusterClient) -> set[Quota]:
        return {one for one in describe_quotas(cluster) if one.entity[-1][1].startswith(user)}

    theirs = quota(5000, f"{user}-theirs")
    on_client = Quota((("client-id", f"{user}-client"), ("user", user)), "request_percentage", 12.5)
    assert alter_quotas(pair.at_source, [quota(1000), on_client, theirs._replace(value=1.0)], ()) == {}
    assert alter_quotas(pair.at_destination, [theirs], ()) == {}
    claim(destination, name, topic)
    assert run() == []  # neither is asked for
    with pytest.raises(UnreachableError, match="describing quotas: we lack DESCRIBE_CONFIGS on the cluster"):
        run(sync_quotas_enabled="true")
    give(pair.at_source, acls("cluster", "kafka-cluster", "kmirror", "DESCRIBE_CONFIGS"))
    give(pair.at_destination, acls("cluster", "kafka-cluster", "kmirror", "DESCRIBE_CONFIGS"))
    with pytest.raises(UnreachableError, match="we lack ALTER_CONFIGS on the cluster"):
        run(sync_quotas_enabled="true")
    assert ours(pair.at_destination) == {theirs}
    change_config(destination, name, {"sync.quotas.enabled": "true"})
    (line,) = [one for one in check(destination.properties, mirror=name).lines if one.what == "quotas" and not one.ok]
    assert (line.cluster, line.reason) == ("destination", Reason.NOT_AUTHORIZED)
    assert (line.hint or "").endswith("--add --allow-principal User:kmirror --operation AlterConfigs --cluster")
    give(pair.at_destination, acls("cluster", "kafka-cluster", "kmirror", "ALTER_CONFIGS"))
    reported = run(sync_quotas_enabled="true")
    assert reported[0] == "2 quotas set, 0 removed"
    wait_until(lambda: ours(pair.at_destination) == {quota(1000), on_client, theirs})
    assert run(sync_quotas_enabled="true") == []
    assert alter_quotas(pair.at_source, [quota(2000)], [on_client]) == {}
    wait_until(lambda: ours(pair.at_source) == {quota(2000), theirs._replace(value=1.0)})
    assert run(sync_quotas_enabled="true") == ["1 quota set, 1 removed"]
    wait_until(lambda: ours(pair.at_destination) == {quota(2000), theirs})
    record = clients_record(destination.state(), name)
    assert record.made == (quota(2000),)
    claim(destination, name, topic, desired=DesiredState.STOPPED)
    alter_quotas(pair.at_source, (), [quota(2000), theirs])
    assert run(sync_quotas_enabled="true") == []
    assert ours(pair.at_destination) == {quota(2000), theirs}
    alter_quotas(pair.at_destination, (), [quota(2000), theirs])
    job.close()


def test_users_that_are_missing_are_reported_as_they_cannot_be_copied(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    user, job = unique_topic("u"), ClientsJob(name, destination.properties)
    admin = AdminClient(librdkafka(client_config(pair.source.client_properties())))
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    insertion = UserScramCredentialUpsertion(user, credential, b"secret")
    admin.alter_user_scram_credentials([insertion])[user].result(30)
    try:
        wait_until(lambda: user in scram_users(pair.at_source))
        claim(destination, name, unique_topic())
        assert "kmirror" in scram_users(pair.at_source)
        (reported,) = job.run(view_of(destination, name, compare_scram_users_enabled="true"))
        assert reported.details["users"] == [user]
        assert "1 SCRAM user of the source cannot log in here" in (reported.note or "")
        assert list(job.run(view_of(destination, name, compare_scram_users_enabled="true"))) == []
        seen = clients_record(destination.state(), name).scram_users
        assert seen == tuple(sorted(scram_users(pair.at_source) - {"kmirror"}))
        change_config(destination, name, {"compare.scram.users.enabled": "true"})
        lines = {(one.cluster, one.what): one for one in check(destination.properties, mirror=name).lines}
        here = lines["destination", "SCRAM users"]
        assert (here.grade, here.message) == (Grade.WARN, f"1 user of the source cannot log in here: {user}")
    finally:
        deletion = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256)
        admin.alter_user_scram_credentials([deletion])[user].result(30)
        job.close()


def test_commands_to_copy_carry_no_poison(pair: Pair, mirror: tuple[Destination, str, RightsJob]) -> None:
    """A client that may change ACLs at the source chooses their hosts and principals, and the names of groups."""
    destination, name, _ = mirror
    topic, group = unique_topic(), unique_topic("g; touch owned #")
    (writes,) = acls("topic", topic, "$(touch owned)", "WRITE")
    (reads,) = acls("group", group, "app`touch owned`", "READ")
    poisoned = [one._replace(host="1.2.3.4; touch owned #") for one in (writes, reads)]
    give(pair.at_source, poisoned)
    claim(destination, name, topic)
    done = failover(destination, name, dry_run=True)
    assert done.result.clients is not None
    for line, binding in zip(done.result.clients.commands, (writes, reads), strict=True):
        arguments = shlex.split(line)
        assert arguments[arguments.index("--allow-host") + 1] == "1.2.3.4; touch owned #"
        assert arguments[arguments.index("--allow-principal") + 1] == binding.principal
        assert binding.resource_name in arguments
    screen = piped()
    TableOutput(screen).result(done.result)
    assert all(line.isprintable() for text in written_on(screen) for line in text.split("\n"))


def test_a_failover_says_what_clients_of_the_source_lack_here(
    pair: Pair, mirror: tuple[Destination, str, RightsJob]
) -> None:
    destination, name, _ = mirror
    topic, group = unique_topic(), unique_topic("g")
    writes = acls("topic", topic, "app", "WRITE")
    elsewhere = acls("topic", unique_topic(), "app", "READ")
    give(pair.at_source, writes, elsewhere, acls("group", group, "app", "READ"))
    claim(destination, name, topic)

    def lacking(*, dry_run: bool) -> ClientGaps:
        done = failover(destination, name, dry_run=dry_run)
        assert done.evidence["clients"] == done.result.to_json()["clients"]
        assert done.result.clients is not None
        return done.result.clients

    def names(gaps: ClientGaps) -> list[tuple[str, tuple[str, ...]]] | None:
        return None if gaps.rights is None else [(str(one.operation), one.names) for one in gaps.rights]

    began = now_ms()
    live = lacking(dry_run=True)
    assert names(live) == [("READ", (group,)), ("WRITE", (topic,))]
    assert began <= (live.rights_as_of_ms or 0) <= now_ms()
    command = f"kafka-acls --bootstrap-server {pair.destination.bootstrap_servers} --command-config admin.properties"
    assert live.commands[1] == f"{command} --add --allow-principal User:app --operation Write --topic {topic}"
    assert live.quotas is None
    assert any("DESCRIBE_CONFIGS on the cluster" in why for why in live.unknown)
    assert live.scram_users == ()

    blocked = acls("topic", topic, "*", "WRITE", deny=True)  # by --block-producers: for the move only
    write_rights(destination, name, [topic], lambda one: replace(one, blocked=tuple(blocked)))
    give(pair.at_source, blocked)
    assert names(lacking(dry_run=True)) == names(live)
    sync(mirror, acls_include="TOPIC")
    assert destination.state().rights(name, topic).held_back == tuple(writes)
    assert names(lacking(dry_run=True)) == [("READ", (group,))]  # WRITE is deferred until the stop

    def lose_source(state: State) -> Changes:
        record = require_mirror(state, name)
        return Changes((replace(record, source={**record.source, "bootstrap.servers": "127.0.0.1:1"}),))

    change(destination, name, lose_source)
    _, seen_ms = stored_source_acls(destination.state(), name) or (None, None)
    assert seen_ms is not None
    claim(destination, name, topic, desired=DesiredState.STOPPED)
    half_way = lacking(dry_run=False)  # nothing was given yet
    assert names(half_way) == [("READ", (group,)), ("WRITE", (topic,))]
    lift_rights(destination, name, [topic])
    last = lacking(dry_run=False)
    assert (names(last), last.rights_as_of_ms, last.scram_users) == ([("READ", (group,))], seen_ms, None)
    assert set(writes) <= here(pair)

    create(destination, another := unique_topic("m"), pair.source.client_properties("kmirror") | secret())
    claim(destination, name := another, unique_topic(), desired=DesiredState.STOPPED)
    change(destination, another, lose_source)
    never = lacking(dry_run=False)
    assert (never.rights, never.rights_as_of_ms) == (None, None)
    assert any("its ACLs were never seen" in why for why in never.warned)


def test_nothing_is_taken_over_to_where_it_would_shut_others_out(
    pair: Pair, lenient_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = pair.source.client_properties("kmirror")
    monkeypatch.setenv("KM_TEST_LOGIN", login["sasl.jaas.config"])
    topic = unique_topic()
    give(pair.at_source, acls("topic", topic, "app", "READ"))
    name, properties = unique_topic("m"), lenient_cluster.client_properties("kmirror")
    with Destination.open(properties) as destination:
        stored = {**login, "sasl.jaas.config": "${env:KM_TEST_LOGIN}"}
        enabled = {"sync.topic.acls.enabled": "true"}
        with pytest.raises(RefusedError, match="would lock out its readers"):
            create(destination, name, stored, enabled)
        create(destination, name, stored)
        with pytest.raises(RefusedError, match="would lock out its readers"):
            change_config(destination, name, enabled)
        claim(destination, name, topic)
        job = RightsJob(name, properties)
        run = iter(job.run(view_of(destination, name, sync_topic_acls_enabled="true")))
        reported = [next(run), next(run)]
        assert [one.result for one in reported] == ["DETECTED", "REFUSED"]
        assert all("allow.everyone.if.no.acl.found is (or may be) true" in (one.note or "") for one in reported)
        for again in (run, iter(job.run(view_of(destination, name, sync_topic_acls_enabled="true")))):
            with pytest.raises(RefusedError, match="would lock out its readers"):
                next(again)
        wait_until(lambda: not describe_acls(destination.client))  # the probe's rules are deleted a moment later
        job.close()
