"""Two clusters change places, there and back, on real brokers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NoReturn

import pytest

from kmirror.errors import ExitCode, Reason, RefusedError, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.failback.plan import Strategy
from kmirror.ops.failback.switchover import BEGIN, SWITCHOVER, VERB, SwitchoverRequest, switchover
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.ops.show.describe import describe
from kmirror.ops.show.events import events
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.ops.stop.report import VerbReport
from kmirror.ops.stop.stop import stop
from kmirror.state.records import PartitionState
from kmirror.state.snapshot import Changes
from kmirror.state.workflow_records import WorkflowRecord
from kmirror.status.topic_state import TopicState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.groups import commit, committed, member
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import new_mirror, produce, properties_of, selector
from tests.support.round_trip import CutOffError, Trip, make_old_topic, under_way
from tests.support.visible import assert_mirrored, shown
from tests.support.waiting import wait_until


def test_switchover_there_and_back(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    make_old_topic(trip.a, topic)
    produce(trip.a, topic, ["one", "two", "three"])
    commit(trip.a, group, topic, {0: 2})
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0

    lines: list[str] = []

    def switch(here: Destination, cluster: SandboxCluster) -> VerbReport:
        with LocalEngine(here, trip.mirror, [GroupSyncJob(trip.mirror, here.properties)]) as engine:
            engine.catch_up()
            wait_until(lambda: all(row.initial_copy_complete for row in describe(here, trip.mirror)))
            request = SwitchoverRequest(trip.mirror, properties_of(cluster), timeout_ms=120_000, idle_ms=0, watch_s=0.1)
            return switchover(here, request, lambda view: lines.extend(view.lines), checkpoint=checkpoint)

    steps = (*BEGIN, *SWITCHOVER)
    to_cut = [step.does for step in steps]
    walked: list[str] = []

    def checkpoint(does: str) -> None:
        walked.append(does)
        if to_cut and to_cut[0] == does:
            del to_cut[0]
            raise CutOffError(does)

    for step in steps:
        walked.clear()
        with pytest.raises(CutOffError):
            switch(trip.at_b, trip.b)
        assert walked[-1] == step.does
        recorded = {one.does for one in steps[: steps.index(step)] if one.recorded is not None}
        assert not recorded.intersection(walked), "recorded, and done again"
    done = switch(trip.at_b, trip.b)
    assert done.result.exit_code == 0, done.result
    assert under_way(trip.at_b, trip.mirror) == []
    # it is said before the way back is prepared, also by events
    said_now = rf"^{trip.b.bootstrap_servers} takes writes now, since [0-9TZ:-]+: start clients of 1 topic here"
    assert re.search(said_now, lines[-1])
    said = [one for one in events(trip.at_b, trip.mirror).events if "writableSinceMs" in one.details]
    assert {one.result for one in said} == {"RETURN"}
    assert committed(trip.b, group, topic) == {0: 2}
    # the mirror of that name that copies is on A now: who asks B learns that
    for stopped in (promote(trip.at_b, PromoteRequest(trip.mirror)), failover(trip.at_b, trip.mirror)):
        assert stopped.result.exit_code == 0
        told = [warning for warning in stopped.result.warnings if "the live one is" in warning]
        assert len(told) == 1
        assert f"--mirror {trip.mirror} --bootstrap-server {trip.a.bootstrap_servers}" in told[0]
    produce(trip.b, topic, ["four"])
    commit(trip.b, group, topic, {0: 4})
    # what an earlier round has left behind says nothing of this one
    left = WorkflowRecord(trip.mirror, VERB, "RETURN", "me", 0, 0, {"topics": [topic], "count": 1})
    change(trip.at_a, trip.mirror, lambda _: Changes((left,)))
    back = switch(trip.at_a, trip.a)
    assert [one.result for one in events(trip.at_a, trip.mirror).events if "writableSinceMs" in one.details] == [
        "RETURN"
    ]
    assert back.result.exit_code == 0, back.result
    assert committed(trip.a, group, topic) == {0: 4}
    assert [record.value for record in shown(trip.a, topic)] == [b"one", b"two", b"three", b"four"]
    produce(trip.a, topic, ["five"])
    trip.copy_to_b()
    assert_mirrored(trip.a, trip.b, topic)
    assert {row.state for row in describe(trip.at_a, trip.mirror)} == {PartitionState.STOPPED}
    assert {row.state for row in describe(trip.at_b, trip.mirror)} == {PartitionState.MIRRORING}


def test_a_switchover_whose_source_is_still_read_says_so_and_resumes(trip: Trip) -> None:
    topic, group = unique_topic(), unique_topic("g")
    make_old_topic(trip.a, topic)
    produce(trip.a, topic, ["one"])
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    request = SwitchoverRequest(trip.mirror, properties_of(trip.b), timeout_ms=120_000, idle_ms=0, watch_s=0.1)
    with pytest.raises(RefusedError) as wrong:
        switchover(trip.at_b, SwitchoverRequest(trip.mirror, properties_of(trip.a)))
    assert wrong.value.reason is Reason.SOURCE_CLUSTER_CHANGED
    with LocalEngine(trip.at_b, trip.mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_b, trip.mirror)))
        with member(trip.a, group, topic):
            done = switchover(trip.at_b, request)
        assert done.result.exit_code == ExitCode.TIMED_OUT
        assert group in str(done.result.error)

        def lose(does: str) -> None:
            if does.startswith("promote the topics"):
                raise UnreachableError("no answer", None, Reason.DESTINATION_UNREACHABLE)

        # once, that ended as if nothing had been changed
        lost = switchover(trip.at_b, request, checkpoint=lose).result
        assert lost.exit_code == ExitCode.TIMED_OUT
        assert [row.result for row in lost.results] == [Outcome.NOOP, Outcome.TIMED_OUT]
        done = switchover(trip.at_b, request)
    assert done.result.exit_code == 0, done.result


def test_a_repeated_switchover_continues_although_its_source_was_written_to(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, each repeat ended with what the first had found, although it was to continue."""
    quiet, moving = unique_topic(), unique_topic()
    for name in (quiet, moving):
        make_old_topic(trip.a, name)
        produce(trip.a, name, ["one"])
    assert add(trip.at_b, trip.mirror, selector(quiet, moving)).exit_code == 0

    def stop_and_write(*arguments: object) -> object:
        done = stop(*arguments)  # type: ignore[arg-type]
        if any(partition.topic == moving for partition in done.ends):
            produce(trip.a, moving, ["late"])
        return done

    request = SwitchoverRequest(trip.mirror, properties_of(trip.b), timeout_ms=120_000, idle_ms=0, watch_s=0.1)
    with LocalEngine(trip.at_b, trip.mirror) as engine, monkeypatch.context() as late:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_b, trip.mirror)))
        late.setattr("kmirror.ops.stop.promote.stop", stop_and_write)
        first = switchover(trip.at_b, request).result
    assert first.exit_code == ExitCode.PARTLY_DONE
    assert [row.topic for row in first.results if row.reason is Reason.SOURCE_WRITTEN_AFTER_STOP] == [moving]
    assert "nothing was reversed yet" in str(first.error and first.error.hint)
    # the failback shows the record, and nothing is reversed before someone has decided about it
    shows = switchover(trip.at_b, request).result
    assert shows.exit_code == ExitCode.PARTLY_DONE
    assert [row.topic for row in shows.results if row.result is Outcome.REFUSED] == [moving]
    assert "kmirror failback" in str(shows.error and shows.error.hint)
    assert not trip.at_a.state().topics(trip.mirror)
    # a topic that was failed back by hand does not hold up the others
    assert trip.back(moving, strategy=Strategy.RECREATE).result.exit_code == 0
    done = switchover(trip.at_b, request).result
    assert done.exit_code == 0, done
    assert {row.result for row in done.results} <= {Outcome.DONE, Outcome.NOOP}
    assert under_way(trip.at_b, trip.mirror) == []
    assert {topic.topic for topic in trip.at_a.state().topics(trip.mirror)} == {quiet, moving}
    assert promote(trip.at_b, PromoteRequest(trip.mirror)).result.exit_code == 0


def test_what_was_copied_back_before_the_source_was_read_is_not_called_lost(
    trip: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, a promote that was killed before it read the source took B's own records, copied to A, for lost ones."""
    topic = unique_topic()
    make_old_topic(trip.a, topic)
    produce(trip.a, topic, ["one"])
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0

    def kill(*_: object) -> None:
        raise CutOffError

    with LocalEngine(trip.at_b, trip.mirror) as engine, monkeypatch.context() as killed:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_b, trip.mirror)))
        killed.setattr("kmirror.ops.stop.promote.check_source_after_stop", kill)
        with pytest.raises(CutOffError):
            promote(trip.at_b, PromoteRequest(trip.mirror, idle_ms=0, timeout_ms=120_000))
    assert trip.back().result.exit_code == 0
    produce(trip.b, topic, ["of B"])
    trip.copy_to_a()
    # while it is unknown what A mirrors, nothing is judged; and a copy that has ended counts as well
    assert failover(trip.at_a, trip.mirror).result.exit_code == 0

    def unreadable(*_: object) -> NoReturn:
        raise UnreachableError("no READ")

    request = PromoteRequest(trip.mirror)
    with monkeypatch.context() as hidden:
        hidden.setattr("kmirror.ops.stop.copied_back.stored_state_on", unreadable)
        unknown = promote(trip.at_b, request).result
    assert (unknown.exit_code, {row.result for row in unknown.results}) == (ExitCode.TIMED_OUT, {Outcome.TIMED_OUT})
    for _ in range(2):
        done = promote(trip.at_b, request).result
        assert (done.exit_code, [row.result for row in done.results]) == (0, [Outcome.NOOP])
        assert "its source topic is a mirror topic of this one" in str(done.results[0].message)


def test_what_the_way_back_would_refuse_is_refused_before_anything_is_stopped(trip: Trip) -> None:
    topic, prefixed = unique_topic(), unique_topic()
    for name in (topic, prefixed):
        make_old_topic(trip.a, name)
        produce(trip.a, name, ["one"])
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    renames = new_mirror(trip.at_b, trip.a, topic_prefix="from-a.")
    assert add(trip.at_b, renames, selector(prefixed)).exit_code == 0

    def refusal(mirror: str) -> RefusedError:
        request = SwitchoverRequest(mirror, properties_of(trip.b), timeout_ms=120_000, idle_ms=0, watch_s=0.1)
        for dry_run in (True, False):
            with pytest.raises(RefusedError) as refused:
                switchover(trip.at_b, request, dry_run=dry_run)
        assert {row.topic_state for row in describe(trip.at_b, mirror)} == {TopicState.PENDING_MIRROR}
        return refused.value

    assert "different names on the old source" in str(refusal(renames))
    other = new_mirror(trip.at_a, trip.b)
    make_old_topic(trip.b, foreign := unique_topic())
    assert add(trip.at_a, other, selector(foreign)).exit_code == 0
    # the way back keeps the mirror's name, which the old source has for a mirror of a third cluster
    known = trip.at_a.state().mirror(other)
    assert known is not None
    third = replace(known, name=trip.mirror, source_cluster_id="another")
    change(trip.at_a, trip.mirror, lambda _: Changes((third,)))
    held = replace(trip.at_a.state().topics(other)[0], mirror=trip.mirror)
    change(trip.at_a, trip.mirror, lambda _: Changes((held,)))
    assert f"mirror {trip.mirror} on the old source mirrors cluster another" in str(refusal(trip.mirror))
