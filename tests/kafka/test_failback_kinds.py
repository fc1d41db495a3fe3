"""Failover and failback of what is not plain: compacted topics whose cleaners have been at work, secured clusters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.rights.acls import delete_acls, describe_acls
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.errors import ExitCode, RefusedError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import FailbackRequest, Strategy
from kmirror.ops.failback.truncate_logs import truncate_logs
from kmirror.ops.failback.truncation_plan import read_plan
from kmirror.ops.mirrors.create import create
from kmirror.ops.rights.acl_sync import RightsJob
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.state.records import PartitionState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, give, kmirror_rights, written
from tests.support.archiving import assert_holds
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.librdkafka import librdkafka
from tests.support.local_engine import LocalEngine
from tests.support.log_batches import VisibleRecord
from tests.support.mirrors import selector, settings_of
from tests.support.oracle import librdkafka_records
from tests.support.real_logs import BUSY, CompactedTopic, write
from tests.support.round_trip import Trip, archives_of, under_way
from tests.support.shared_clusters import GuardedPair
from tests.support.visible import assert_sound, bounds_of, latest_values, shown, unsuperseded, visible
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long


# -- compacted topics --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def busy(busy_cluster: SandboxCluster, make_module_cluster: MakeCluster) -> tuple[SandboxCluster, SandboxCluster]:
    """Return two clusters whose cleaners are at work all the time."""
    return busy_cluster, make_module_cluster("busy-b", properties=BUSY)


@pytest.fixture
def trip(busy: tuple[SandboxCluster, SandboxCluster]) -> Iterator[Trip]:
    with Trip(*busy) as trip:
        yield trip


class Compacted(CompactedTopic):
    """The same topic on A and on B, one after the other."""

    def at(self, cluster: SandboxCluster) -> Compacted:
        """Write to another cluster from now on."""
        self.cluster = cluster
        return self

    def overwrite(self) -> None:
        """Write values of keys that are there already, and wait until the cleaner has removed what they replace."""
        for _ in range(2):
            self.write_round()
        self.wait_until_cleaned(self.write_round())

    def overwrite_all(self) -> None:
        """Write a value of each key twice, and wait until the cleaner has removed all that was there before."""
        before = bounds_of(self.cluster, self.topic).end
        keys = sorted({record.key or b"" for record in shown(self.cluster, self.topic)})
        for _ in range(2):
            self.clock += 10_000
            values = [VisibleRecord(0, self.clock + number, key, b"later") for number, key in enumerate(keys)]
            write(self.cluster, self.topic, values)
        self.clock += 10_000
        self.wait_until_cleaned(self.write_round())
        assert all(record.offset >= before for record in shown(self.cluster, self.topic))


def failed_over(trip: Trip) -> tuple[Compacted, int]:
    """Mirror a compacted topic from A to B, and fail over; return it with the last mirrored offset."""
    topic = Compacted(trip.a, unique_topic("compacted"), {})
    topic.write_and_clean()
    assert add(trip.at_b, trip.mirror, selector(topic.topic)).exit_code == 0
    trip.copy_to_b()
    assert failover(trip.at_b, trip.mirror, selector(topic.topic)).result.exit_code == 0
    assert settings_of(trip.b, topic.topic)["cleanup.policy"] == "compact"
    (row,) = describe(trip.at_b, trip.mirror, selector(topic.topic))
    assert row.last_mirrored_offset is not None
    return topic, row.last_mirrored_offset


def assert_same_compacted(trip: Trip, compacted: Compacted) -> None:
    """A and B hold the same but for what cleaners have removed, and end at the same offset."""
    topic = compacted.topic
    # its files are read, which a cleaner at work takes away
    compacted.at(trip.a).freeze()
    there, here = shown(trip.b, topic), shown(trip.a, topic)
    assert unsuperseded(there, here) is None
    assert latest_values(here) == latest_values(there)
    assert bounds_of(trip.a, topic).end == bounds_of(trip.b, topic).end
    assert_sound(trip.a, topic)


def test_the_new_primarys_cleaner_has_removed_what_the_old_source_still_has(trip: Trip) -> None:
    topic, end = failed_over(trip)
    topic.at(trip.b).overwrite()
    here, there = shown(trip.a, topic.topic), shown(trip.b, topic.topic)
    assert {record.offset for record in here} - {record.offset for record in there}
    done = trip.back(topic.topic)
    assert done.result.exit_code == 0, done.result
    (fork,) = done.evidence["forks"]
    assert (fork["sharedEnd"], fork["recordsBeyond"]) == (end, 0)
    assert archives_of(done) == {}
    trip.copy_to_a()
    assert_same_compacted(trip, topic)


def test_nothing_is_left_to_compare_with_when_the_engine_starts_after_a_failback(trip: Trip) -> None:
    """The failback has compared the logs; until an engine starts, the new primary's cleaner may remove all of that."""
    topic, end = failed_over(trip)
    assert trip.back(topic.topic).result.exit_code == 0
    topic.at(trip.b).overwrite_all()
    assert bounds_of(trip.a, topic.topic).end == end
    trip.copy_to_a()
    assert_same_compacted(trip, topic)


def test_both_have_written_and_compacted_and_the_topic_is_recreated(trip: Trip) -> None:
    topic, end = failed_over(trip)
    # the old source's cleaner removes records that both had
    topic.at(trip.a).overwrite()
    topic.freeze()
    lost = [record for record in shown(trip.a, topic.topic) if record.offset >= end]
    topic.at(trip.b).overwrite()
    refused = trip.back(topic.topic)
    assert refused.result.exit_code == ExitCode.REFUSED
    assert f"{len(lost)} records of 1 topic that the new primary lacks" in str(refused.result.error)
    done = trip.back(topic.topic, strategy=Strategy.RECREATE)
    assert done.result.exit_code == 0, done.result
    assert archives_of(done)[topic.topic]["records"] == len(lost)
    assert_holds(trip.a, archives_of(done)[topic.topic]["archive"], lost)
    trip.copy_to_a()
    assert_same_compacted(trip, topic)


def test_a_cut_cannot_restore_what_the_cleaner_removed_because_of_removed_records(
    make_cluster: MakeCluster, busy: tuple[SandboxCluster, SandboxCluster], tmp_path: Path
) -> None:
    """Records that both had were replaced at A by such as B never got. A that is cut lacks them: that is seen."""
    plan = tmp_path / "plan.json"
    with Trip(make_cluster("a", properties=BUSY), busy[1]) as trip:
        topic, end = failed_over(trip)
        topic.overwrite()
        topic.freeze()
        everything = shown(trip.a, topic.topic)
        lost = [record for record in everything if record.offset >= end]
        assert unsuperseded(shown(trip.b, topic.topic), [r for r in everything if r.offset < end]) is not None
        planned = trip.back(topic.topic, strategy=Strategy.OFFLINE, plan=str(plan))
        assert planned.result.exit_code == 0, planned.result
        assert any("cleanup.policy is compact" in warning for warning in planned.result.warnings)
        trip.a.stop()
        (broker,) = trip.a.brokers
        assert truncate_logs(read_plan(plan), [broker.log_dir], lambda _: True).exit_code == 0
        trip.a.start()
        trip.opened_again()
        seen = trip.back(topic.topic, strategy=Strategy.OFFLINE, plan=str(plan))
        assert seen.result.exit_code == ExitCode.HISTORIES_DIFFER, seen.result
        again = trip.back(topic.topic, strategy=Strategy.OFFLINE, plan=str(plan))
        assert again.result.exit_code == ExitCode.REFUSED
        assert "a truncation is not enough" in str(again.result.results[0].message)
        done = trip.back(topic.topic, strategy=Strategy.RECREATE)
        assert done.result.exit_code == 0, done.result
        assert under_way(trip.at_a, trip.mirror) == []
        trip.copy_to_a()
        assert_same_compacted(trip, topic)
        assert_holds(trip.a, f"{topic.topic}.kmirror-archive.1", lost)


# -- secured clusters --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Secured:
    """Two clusters with logins and ACLs; kmirror is an ordinary user of both, `app` reads and writes at A."""

    a: SandboxCluster
    b: SandboxCluster
    topic: str

    def rows(self, cluster: SandboxCluster) -> list[VisibleRecord]:
        """Return what the administrator is shown of the topic."""
        config = librdkafka(client_config(cluster.client_properties()))
        isolation = "read_committed"
        return visible(librdkafka_records(cluster.bootstrap_servers, self.topic, 0, isolation, config))

    def app_writes(self, cluster: SandboxCluster) -> bool:
        """Tell whether the application may write; it does then."""
        return written(cluster, "app", self.topic) is None


@pytest.fixture
def secured(guarded_pair: GuardedPair, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secured]:
    with ExitStack() as stack:
        made = Secured(guarded_pair.source, guarded_pair.destination, unique_topic())
        for name, cluster in (("A", made.a), ("B", made.b)):
            monkeypatch.setenv(f"KM_LOGIN_{name}", cluster.client_properties("kmirror")["sasl.jaas.config"])
            admin = stack.enter_context(ClusterClient(client_config(cluster.client_properties())))
            give(admin, kmirror_rights())
            if cluster is made.a:
                create_topic(admin, made.topic, 1, 1, {})
                give(admin, acls("topic", made.topic, "app", "READ", "WRITE", "DESCRIBE"))
        yield made


def file_for(cluster: SandboxCluster, name: str) -> dict[str, str]:
    """Return the properties of a mirror's file: no secret is in it."""
    login = {"sasl.jaas.config": f"${{env:KM_LOGIN_{name}}}"}
    syncs = {"sync.topic.acls.enabled": "true", "sync.group.offsets.enabled": "false"}
    return {**cluster.client_properties("kmirror"), **login, **syncs}


def test_there_and_back_between_secured_clusters(secured: Secured) -> None:
    a, b, topic, mirror = secured.a, secured.b, secured.topic, unique_topic("m")
    with (
        Destination.open(a.client_properties("kmirror")) as at_a,
        Destination.open(b.client_properties("kmirror")) as at_b,
    ):
        assert secured.app_writes(a)
        assert create(at_b, mirror, file_for(a, "A")).exit_code == 0
        assert add(at_b, mirror, selector(topic)).exit_code == 0
        with LocalEngine(at_b, mirror, [RightsJob(mirror, at_b.properties)]) as engine:
            engine.catch_up()
            wait_until(lambda: any(one.resource_name == topic for one in describe_acls(at_b.client)))
            assert not secured.app_writes(b)
            wait_until(lambda: all(row.initial_copy_complete for row in describe(at_b, mirror)))
            done = failover(at_b, mirror)
        assert done.result.exit_code == 0, done.result
        assert done.result.warnings == ()
        assert secured.app_writes(b)
        assert secured.app_writes(a), "A does not let it write"
        lost = secured.rows(a)[1:]
        request = FailbackRequest(mirror, file_for(b, "B"), strategy=Strategy.RECREATE, watch_s=0.1)
        with ClusterClient(client_config(a.client_properties())) as admin:
            rule = acls("topic", topic, "kmirror", "CREATE", deny=True)
            give(admin, rule)
            with pytest.raises(RefusedError, match=f"{topic} is not deleted, .* does not grant us CREATE on topic"):
                failback(at_a, request)
            assert set(delete_acls(admin, rule).values()) == {None}
            wait_until(lambda: not is_denied(at_a, topic))
        back = failback(at_a, request)
        assert back.result.exit_code == 0, back.result
        assert archives_of(back)[topic]["records"] == len(lost) == 1
        stored = at_a.state().mirror(mirror)
        assert stored is not None
        assert stored.source["sasl.jaas.config"] == "${env:KM_LOGIN_B}"
        with LocalEngine(at_a, mirror, [RightsJob(mirror, at_a.properties)]) as engine:
            engine.catch_up()
            assert secured.rows(a) == secured.rows(b)
            wait_until(lambda: not secured.app_writes(a) if is_denied(at_a, topic) else False)
            assert secured.rows(a) == secured.rows(b)
            wait_until(lambda: all(row.initial_copy_complete for row in describe(at_a, mirror)))
            home = promote(at_a, PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000))
        assert home.result.exit_code == 0, home.result
        assert {row.state for row in describe(at_a, mirror)} == {PartitionState.STOPPED}
        assert secured.app_writes(a)
        assert len(secured.rows(a)) == len(secured.rows(b)) + 1


def is_denied(destination: Destination, topic: str) -> bool:
    """Tell whether kmirror has denied something on the topic."""
    return any(
        one.resource_name == topic and one.permission.name == "DENY" for one in describe_acls(destination.client)
    )
