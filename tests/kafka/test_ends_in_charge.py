"""`in-charge` on real clusters: during a stop and after it, with the source cut off, and after the way back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from kmirror.cli.main import main
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.errors import ExitCode, Reason, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base import standby
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.create import create
from kmirror.ops.show.ends_in_charge import in_charge
from kmirror.ops.stop.failover import failover
from kmirror.state.records import TopicRecord
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, give
from tests.support.clusters import freeze, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.json_documents import check_printed
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import selector
from tests.support.round_trip import CutOffError, Trip
from tests.support.shared_clusters import GuardedPair
from tests.support.waiting import wait_until


def ends(at: Destination, mirror: str, topic: str | None = None) -> tuple[bool | None, bool | None]:
    """Return whether the source is in charge, and whether the destination is."""
    source, destination = in_charge(at, mirror, topic)
    return source.in_charge, destination.in_charge


def record(at: Destination, mirror: str, topic: str) -> TopicRecord:
    found = at.state().topic(mirror, topic)
    assert found is not None
    return found


def reached(condition: Callable[[], bool]) -> Callable[[], bool]:
    """Return a condition that does not hold yet while a broker that was frozen reports no brokers."""

    def holds() -> bool:
        with suppress(UnreachableError):
            return condition()
        return False

    return holds


@pytest.mark.slow
def test_one_end_at_a_time_is_in_charge_on_the_way_there_and_back(trip: Trip) -> None:
    topic = unique_topic()
    trip.go(topic)
    assert ends(trip.at_b, trip.mirror) == (False, True)
    assert trip.back().result.exit_code == 0
    # B has it on record that A may take over, and A that B has
    assert record(trip.at_b, trip.mirror, topic).standbys == {trip.at_a.cluster_id: 2}
    assert record(trip.at_a, trip.mirror, topic).announced is True
    assert ends(trip.at_a, trip.mirror) == (True, False)
    trip.copy_to_a()
    assert failover(trip.at_a, trip.mirror).result.exit_code == 0
    assert ends(trip.at_a, trip.mirror) == (False, True)
    assert ends(trip.at_b, trip.mirror) == (True, False), "the same from the other side"


@pytest.mark.slow
def test_topics_that_have_moved_ahead_of_the_others_are_asked_about_by_name(
    trip: Trip, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = unique_topic(), unique_topic()
    trip.go(first)
    create_topics(trip.a, {second: {}})
    assert add(trip.at_b, trip.mirror, selector(second)).exit_code == 0
    assert ends(trip.at_b, trip.mirror, first) == (False, True)
    assert ends(trip.at_b, trip.mirror, second) == (True, False)
    command = ["in-charge", "--mirror", trip.mirror, "--bootstrap-server", trip.b.bootstrap_servers, "--json"]
    assert main(command) == ExitCode.TIMED_OUT
    out = capsys.readouterr().out
    check_printed(command, out)
    assert [end["inCharge"] for end in json.loads(out)] == [None, None]
    assert "1 of 2 topics" in json.loads(out)[0]["reason"]
    assert main([*command[:-1], "--topic", "missing"]) == ExitCode.REFUSED


@pytest.mark.slow
def test_neither_is_in_charge_during_a_stop_and_the_destination_after_a_disaster(
    passing_destination: SandboxCluster, destination_cluster: SandboxCluster
) -> None:
    with Trip(passing_destination, destination_cluster) as trip:
        topic = unique_topic()
        create_topics(trip.a, {topic: {}})
        assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
        assert ends(trip.at_b, trip.mirror) == (True, False)

        def cut_off(step: str) -> None:
            raise CutOffError(step)

        with pytest.raises(CutOffError):
            failover(trip.at_b, trip.mirror, checkpoint=cut_off)
        assert ends(trip.at_b, trip.mirror) == (False, False)
        freeze(trip.a, 1)
        assert failover(trip.at_b, trip.mirror).result.exit_code == 0
        assert ends(trip.at_b, trip.mirror) == (None, True)
        # the way back is prepared, and then the old source is lost again
        trip.a.signal(1, signal.SIGCONT)
        wait_until(reached(lambda: trip.back().result.exit_code == 0))
        freeze(trip.a, 1)
        with pytest.raises(UnreachableError, match="in charge, and the source does not say: ") as unknown:
            in_charge(trip.at_b, trip.mirror)
        assert unknown.value.reason is Reason.SOURCE_UNREACHABLE
        assert "--bootstrap-server" not in str(unknown.value.hint)
        trip.a.signal(1, signal.SIGCONT)
        wait_until(reached(lambda: ends(trip.at_b, trip.mirror) == (False, True)))


def test_what_could_not_be_recorded_at_the_source_is_said_and_made_up_for(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_topic()
    trip.go(topic)

    def refuse(*_: object) -> None:
        raise UnreachableError("we lack WRITE")

    with monkeypatch.context() as patched:
        patched.setattr(standby, "change", refuse)
        done = trip.back()
    assert done.result.exit_code == 0
    assert any("we lack WRITE" in warning for warning in done.result.warnings)
    assert record(trip.at_a, trip.mirror, topic).announced is None
    again = add(trip.at_a, trip.mirror, selector(topic))
    assert not again.warnings
    assert record(trip.at_a, trip.mirror, topic).announced is True
    assert record(trip.at_b, trip.mirror, topic).standbys == {trip.at_a.cluster_id: 2}


@pytest.mark.slow
def test_a_login_that_does_not_see_the_state_of_its_source_leaves_it_open_until_it_may(
    guarded_pair: GuardedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, for a first mirror, and on the way back, which `create` and `add --adopt` begin."""
    mirror, topic = unique_topic("m"), unique_topic()
    a, b = guarded_pair.source, guarded_pair.destination
    narrow = acls("topic", topic, "kmirror", "READ", "DESCRIBE_CONFIGS")
    to_see = acls("topic", "__kmirror_state", "kmirror", "READ")
    monkeypatch.setenv("KM_LOGIN", a.client_properties("kmirror")["sasl.jaas.config"])
    with (
        ClusterClient(client_config(a.client_properties())) as admin_a,
        ClusterClient(client_config(b.client_properties())) as admin_b,
        Destination.open(a.client_properties()) as at_a,
        Destination.open(b.client_properties()) as at_b,
    ):
        create_topic(admin_a, topic, 1, 1, {})

        def begin(at: Destination, source: SandboxCluster, admin: ClusterClient) -> None:
            give(admin, narrow)
            login = {"sasl.jaas.config": "${env:KM_LOGIN}", "sync.group.offsets.enabled": "false"}
            assert create(at, mirror, {**source.client_properties("kmirror"), **login}).exit_code == 0
            done = add(at, mirror, selector(topic), adopt=True)
            assert done.exit_code == 0, done
            assert "run `kmirror add` with the same topics" in done.warnings[-1]
            assert record(at, mirror, topic).term == 2

        begin(at_b, a, admin_a)
        give(admin_a, to_see)
        assert add(at_b, mirror, selector(topic)).warnings == ()
        with LocalEngine(at_b, mirror) as engine:
            engine.catch_up()
        stopped = failover(at_b, mirror)
        assert stopped.result.exit_code == 0
        assert not any("in charge" in warning for warning in stopped.result.warnings)
        assert ends(at_b, mirror)[1] is True
        begin(at_a, b, admin_b)
        stopped = failover(at_a, mirror)
        assert f"in charge: {topic}; for" in stopped.result.warnings[0]
        # B counts itself in charge as long as it does not see A
        with pytest.raises(UnreachableError, match="neither cluster is certain to be in charge"):
            in_charge(at_a, mirror)
