"""Planned migrations on real brokers: topics are stopped when nothing is missing, and what is not is given back."""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from confluent_kafka import Producer

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import ExitCode, Reason, RefusedError, UnreachableError
from kmirror.offline.survey import PlannedCut
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.ops.base.handover import Handover
from kmirror.ops.base.own_engine import OwnEngine
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.failback.switchover import SwitchoverRequest, switchover
from kmirror.ops.failback.truncation_plan import TruncationPlan, write_plan
from kmirror.ops.run.engine_start import LEASE_TTL_MS
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.batches import promote_in_batches
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_checks import settings_trouble
from kmirror.ops.stop.promote_request import PromoteRequest, PromoteView
from kmirror.ops.stop.report import VerbReport
from kmirror.ops.stop.steps import StepRunner
from kmirror.ops.stop.stop import stop
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.settings.value_types import parse_start_from
from kmirror.state.records import DesiredState, EngineRecord, EngineState, PartitionState
from kmirror.state.snapshot import Changes
from kmirror.state.workflow_records import PROMOTE, WorkflowRecord
from kmirror.status.topic_state import TopicState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.ending import killed_at_last, printed
from tests.support.engine import command
from tests.support.groups import commit, committed
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, properties_of, selector, settings_of
from tests.support.promoting import until_stopped
from tests.support.real_logs import delete_records
from tests.support.round_trip import CutOffError, Trip, cut, make_old_topic
from tests.support.topics import alter_topic
from tests.support.visible import shown
from tests.support.waiting import PATIENCE_S, wait_until

#: After this long the claim of a promote that is busy counts as dead.
BUSY_DEAD_AFTER_S = 12.0
#: Longer than what is stored is waited for.
AWAY_S = 34.0
CLAIMED = "record which topics are stopped, and why: engines release them"


def mirrored(pair: ClusterPair, destination: Destination, *topics: str, **settings: str) -> str:
    mirror = new_mirror(destination, pair.source, refresh_interval_seconds="1")
    for topic in topics:
        # the records are old: brokers would delete them
        make_topic(pair.source, topic, 2, retention_ms="-1", **settings)
        produce(pair.source, topic, ["one", "two", "three"])
    assert add(destination, mirror, selector(*topics)).exit_code == 0
    return mirror


def states_of(destination: Destination, mirror: str) -> set[TopicState]:
    return {row.topic_state for row in describe(destination, mirror)}


def copied_once(engine: LocalEngine, destination: Destination, mirror: str) -> None:
    """Wait until all is copied and the engine has recorded that it is."""
    engine.catch_up()
    wait_until(lambda: all(row.initial_copy_complete for row in describe(destination, mirror)))


def test_topics_are_stopped_when_nothing_is_missing(cluster_pair: ClusterPair, destination: Destination) -> None:
    first, second = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, first, second, message_timestamp_type="LogAppendTime")
    views: list[PromoteView] = []
    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        # it takes no longer than it may, however long the source must be idle
        late = promote(destination, PromoteRequest(mirror, timeout_ms=500, idle_ms=3_600_000), dry_run=True)
        assert late.result.exit_code == ExitCode.TIMED_OUT
        drill = promote(destination, PromoteRequest(mirror, idle_ms=500), dry_run=True)
        assert drill.result.exit_code == 0, drill.result
        # what has changed since the last sync, some of it for the stop alone, is looked at by the promote itself
        alter_topic(cluster_pair.source, first, compression_type="gzip")
        alter_topic(cluster_pair.source, second, max_compaction_lag_ms="123456789")
        done = promote(destination, PromoteRequest(mirror, idle_ms=500, timeout_ms=120_000), views.append)
    assert done.result.exit_code == 0, done.result
    assert drill.result.steps == done.result.steps
    assert settings_of(cluster_pair.destination, first)["compression.type"] == "gzip"
    assert settings_of(cluster_pair.destination, second)["max.compaction.lag.ms"] == "123456789"
    assert {(r.topic, r.partition, r.result, r.last_mirrored_offset) for r in done.result.results} == {
        (topic, partition, Outcome.DONE, 0 if partition else 3) for topic in (first, second) for partition in range(2)
    }
    assert {(r.state, r.topic_state, r.reason) for r in describe(destination, mirror)} == {
        (PartitionState.STOPPED, TopicState.STOPPED, Reason.PROMOTED)
    }
    assert settings_of(cluster_pair.destination, first)["message.timestamp.type"] == "LogAppendTime"
    produce(cluster_pair.destination, first, ["local"])
    assert [record.value for record in shown(cluster_pair.destination, first)][-1] == b"local"
    assert any(one.what and "producers" in one.what for view in views for one in view.missing)
    again = promote(destination, PromoteRequest(mirror))
    assert {row.result for row in again.result.results} == {Outcome.NOOP}


def test_a_dry_run_reports_of_groups_what_the_promote_does(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, it said that all would be stopped where the promote waited for ever for a group it may not read."""
    topic, group, unreadable, local = unique_topic(), unique_topic("g"), unique_topic("g"), unique_topic("g")
    mirror = mirrored(cluster_pair, destination, topic)
    committed_by = ClusterGroups.committed

    def refused(groups: ClusterGroups, wanted: Mapping[str, GroupKind], topics: Collection[str] | None = None) -> Any:
        found = committed_by(groups, wanted, topics)
        return {
            name: int(Code.GROUP_AUTHORIZATION_FAILED) if name == unreadable else one for name, one in found.items()
        }

    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        for name in (group, unreadable, local):
            commit(cluster_pair.source, name, topic, {0: 2})
        commit(cluster_pair.destination, local, topic, {0: 1})
        request = PromoteRequest(mirror, idle_ms=500, timeout_ms=120_000)
        with monkeypatch.context() as patch:
            patch.setattr(ClusterGroups, "committed", refused)
            drill = promote(destination, request, dry_run=True).result
        assert drill.exit_code == ExitCode.TIMED_OUT
        assert f"offsets of group {unreadable} on the source are unknown" in str(drill.results[0].message)
        drill = promote(destination, request, dry_run=True).result
        assert committed(cluster_pair.destination, group, topic) == {}
        done = promote(destination, request).result
    assert (drill.exit_code, done.exit_code) == (0, 0)
    assert {(row.group, row.from_offset, row.to_offset, row.result) for row in drill.groups} == {
        (group, None, 2, Outcome.DONE),
        (unreadable, None, 2, Outcome.DONE),
        (local, 1, 2, Outcome.REFUSED),
    }
    assert (drill.groups, [one for one in drill.warnings if local in one]) == (
        done.groups,
        [one for one in done.warnings if local in one],
    )
    assert committed(cluster_pair.destination, group, topic) == {0: 2}


@pytest.mark.slow
def test_a_producer_that_continues_keeps_only_its_topic(cluster_pair: ClusterPair, destination: Destination) -> None:
    quiet, busy = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, quiet, busy)
    end = threading.Event()

    def write() -> None:
        while not end.wait(0.1):
            produce(cluster_pair.source, busy, ["more"])

    writer = threading.Thread(target=write)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        writer.start()
        try:
            request = PromoteRequest(mirror, idle_ms=5_000, timeout_ms=120_000)
            done = promote(destination, request, *until_stopped(destination, mirror, quiet))
        finally:
            end.set()
            writer.join()
        states = {row.topic: row.topic_state for row in describe(destination, mirror)}
        assert states == {quiet: TopicState.STOPPED, busy: TopicState.ACTIVE}
        assert done.result.exit_code == ExitCode.TIMED_OUT
        (missing,) = [row for row in done.result.results if row.topic == busy]
        assert missing.result is Outcome.TIMED_OUT
        assert "producers" in str(missing.message) or "offset" in str(missing.message)
        # run again, it continues
        again = promote(destination, PromoteRequest(mirror, idle_ms=500, timeout_ms=120_000))
        assert again.result.exit_code == 0, again.result


@pytest.mark.slow
def test_a_dry_run_beside_a_running_producer_names_no_transaction_and_knows_the_engine(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    end = threading.Event()
    # the default of Java clients: idempotent, without transactions
    producer = Producer({**properties_of(cluster_pair.source), "enable.idempotence": True, "linger.ms": 1})

    def write() -> None:
        while not end.wait(1 / 200):
            for partition in range(2):
                producer.produce(topic, "more", partition=partition)
            producer.poll(0)
        producer.flush(30)

    writer = threading.Thread(target=write)
    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        writer.start()
        try:
            drills = [promote(destination, PromoteRequest(mirror, idle_ms=0), dry_run=True) for _ in range(5)]
        finally:
            end.set()
            writer.join()
        # waits for longer than the engine's lease lasts, while the engine renews it
        drills.append(promote(destination, PromoteRequest(mirror, idle_ms=LEASE_TTL_MS + 1_000), dry_run=True))
    for drill in drills:
        (row,) = drill.result.results
        assert "transaction" not in str(row.message)
        assert drill.result.warnings == ()
    assert drills[-1].result.exit_code == 0


def test_an_open_transaction_is_waited_for_and_named(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    producer = Producer({**properties_of(cluster_pair.source), "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "undecided", partition=0)
    producer.flush(30)
    views: list[PromoteView] = []
    stopping = threading.Event()

    def watch(view: PromoteView) -> None:
        views.append(view)
        if any(one.what and "a transaction of producer id" in one.what for one in view.missing):
            stopping.set()

    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        done = promote(destination, PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000), watch, stopping)
        assert done.result.exit_code == ExitCode.TIMED_OUT
        assert "interrupted" in str(done.result.results[0].message)
        said = str(done.result.results[0].message)
        assert f"(transactional id {topic}, Ongoing) is open since offset 3 of {topic}-0" in said
        servers = cluster_pair.source.bootstrap_servers
        abort = f"abort --topic {topic} --partition 0 --start-offset 3"
        assert said.endswith(f"to end it: kafka-transactions.sh --bootstrap-server {servers} {abort}")
        assert {row.topic_state for row in describe(destination, mirror)} == {TopicState.ACTIVE}
        producer.commit_transaction(30)
        done = promote(destination, PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000))
    assert done.result.exit_code == 0, done.result
    assert [record.value for record in shown(cluster_pair.destination, topic)][-1] == b"undecided"


def test_records_that_arrive_after_all_are_reported(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)

    def stop_and_write(*arguments: object) -> object:
        done = stop(*arguments)  # type: ignore[arg-type]
        produce(cluster_pair.source, topic, ["late", "later"])
        return done

    monkeypatch.setattr("kmirror.ops.stop.promote.stop", stop_and_write)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        done = promote(destination, PromoteRequest(mirror, idle_ms=None, timeout_ms=120_000))
    monkeypatch.undo()
    # the same command says the same again: once, it called the copy complete
    request = PromoteRequest(mirror)
    batches = promote_in_batches(destination, request, 1)
    for one in (done, promote(destination, request), batches, promote(destination, request, dry_run=True)):
        assert one.result.exit_code == ExitCode.PARTLY_DONE
        (late,) = [row for row in one.result.results if row.result is Outcome.FAILED]
        assert (late.partition, late.reason, late.lag) == (0, Reason.SOURCE_WRITTEN_AFTER_STOP, 2)


def unanswered(*_: object, **__: object) -> NoReturn:
    raise UnreachableError("no answer")


def test_a_promote_that_is_killed_before_it_reads_the_source_again_is_finished_by_the_next(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the next one said NOOP, and that nothing was lost."""
    topic, quiet = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, topic, quiet)

    def kill(*_: object) -> None:
        produce(cluster_pair.source, topic, ["late", "later"])
        raise KeyboardInterrupt

    monkeypatch.setattr("kmirror.ops.stop.promote.check_source_after_stop", kill)
    request = PromoteRequest(mirror, idle_ms=None, timeout_ms=120_000, together=True)
    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        with pytest.raises(KeyboardInterrupt):
            promote(destination, request)
    monkeypatch.undo()
    assert {row.state for row in describe(destination, mirror)} == {PartitionState.STOPPED}
    # it is not recorded by a dry run, and by none while the source does not answer
    rehearsed = promote(destination, request, dry_run=True)
    with monkeypatch.context() as silent:
        silent.setattr(ClusterClient, "newest_metadata", unanswered)
        unread = promote(destination, request).result
    assert (unread.exit_code, {row.result for row in unread.results}) == (ExitCode.TIMED_OUT, {Outcome.TIMED_OUT})
    assert [warning for warning in unread.warnings if "could not be read again after the stop" in warning]
    given_up = failover(destination, mirror, dry_run=True).result
    assert "nothing is lost" not in str([row.message for row in given_up.results])
    for one in (rehearsed, promote(destination, request), promote(destination, request)):
        assert one.result.exit_code == ExitCode.PARTLY_DONE
        assert {(row.topic, row.partition, row.result, row.lag) for row in one.result.results} == {
            (topic, 0, Outcome.FAILED, 2),
            (topic, 1, Outcome.NOOP, 0),
            (quiet, 0, Outcome.NOOP, 0),
            (quiet, 1, Outcome.NOOP, 0),
        }
    # what is written at the source later is no concern of it
    produce(cluster_pair.source, quiet, ["much later"])
    (row,) = [row for row in promote(destination, request).result.results if (row.topic, row.partition) == (quiet, 0)]
    assert (row.result, row.lag) == (Outcome.NOOP, 0)


@pytest.mark.slow
def test_a_source_that_loses_its_tail_before_it_is_read_again_is_no_success(
    make_cluster: MakeCluster, cluster_pair: ClusterPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It has fewer records than the copy, but another one: once, the row said that it had no further records."""
    topic = unique_topic()
    with Trip(make_cluster("a"), cluster_pair.destination) as trip:
        make_old_topic(trip.a, topic)
        for value in ("one", "two", "three"):
            produce(trip.a, topic, [value])
        assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0

        def kill(*_: object) -> None:
            raise CutOffError

        request = PromoteRequest(trip.mirror, idle_ms=0, timeout_ms=120_000)
        with LocalEngine(trip.at_b, trip.mirror) as engine, monkeypatch.context() as killed:
            copied_once(engine, trip.at_b, trip.mirror)
            killed.setattr("kmirror.ops.stop.promote.check_source_after_stop", kill)
            with pytest.raises(CutOffError):
                promote(trip.at_b, request)
        found = trip.at_a.client.metadata([topic]).topics[topic]
        cuts = (PlannedCut(topic, str(found.printed_topic_id), 0, 1),)
        write_plan(TruncationPlan(trip.at_a.cluster_id, trip.mirror, 1, cuts), tmp_path / "plan.json")
        cut(trip.a, tmp_path / "plan.json")
        produce(trip.a, topic, ["after the election"])
        for _ in range(2):
            done = promote(trip.at_b, request).result
            assert done.exit_code == ExitCode.HISTORIES_DIFFER
            assert [(row.result, row.reason) for row in done.results] == [(Outcome.FAILED, Reason.SOURCE_DIVERGED)]
            assert "the source ended at 2: it has lost records" in str(done.results[0].message)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_topic_that_is_recreated_during_the_stop_is_no_success(
    cluster_pair: ClusterPair, destination: Destination, side: str
) -> None:
    """Its new records are fewer than the old ones, so that no end tells."""
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)

    def recreate(does: str) -> None:
        if does == CLAIMED:
            cluster = getattr(cluster_pair, side)
            delete_topic(cluster, topic)
            make_topic(cluster, topic, 2)
            produce(cluster, topic, ["another's"])

    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        request = PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000)
        done = promote(destination, request, runner=StepRunner(recreate))
    reason = Reason.SOURCE_TOPIC_RECREATED if side == "source" else Reason.DESTINATION_TOPIC_DELETED
    assert {(row.result, row.reason) for row in done.result.results} == {(Outcome.FAILED, reason)}, done.result
    assert done.result.exit_code == (ExitCode.HISTORIES_DIFFER if side == "source" else ExitCode.PARTLY_DONE)


class Spare(OwnEngine):
    """An engine of a promote's own that is only counted."""

    starts = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_started = threading.Event()

    def start(self) -> None:
        self.starts += 1
        self.is_started.set()


@pytest.mark.slow
@pytest.mark.parametrize("hours", [-3, 3], ids=["behind", "ahead"])
def test_a_promote_starts_no_engine_beside_one_whose_clock_is_off(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    mirror = mirrored(cluster_pair, destination, unique_topic())
    monkeypatch.setattr("kmirror.state.lease.now_ms", lambda: now_ms() + hours * 3_600_000)
    spare = Spare(mirror, destination.properties)
    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        done = promote(destination, PromoteRequest(mirror, idle_ms=5_000, timeout_ms=120_000), own=spare)
    assert done.result.exit_code == 0, done.result
    assert spare.starts == 0


@pytest.mark.slow
def test_a_promote_starts_an_engine_although_the_last_ones_clock_was_ahead(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    """For three hours its last heartbeat looks fresh."""
    mirror = mirrored(cluster_pair, destination, unique_topic())
    later = now_ms() + 3 * 3_600_000
    who = "far-away", "another-boot", 7, 7, None, None
    died = EngineRecord(mirror, "its-lease", EngineState.RUNNING, *who, later, later, 3_000)
    change(destination, mirror, lambda _: Changes((died,)))
    spare = Spare(mirror, destination.properties)
    request = PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000)
    done = promote(destination, request, stopping=spare.is_started, own=spare)
    assert done.result.exit_code == ExitCode.TIMED_OUT
    assert spare.starts > 0
    # its other topics are copied no longer than promote waits
    assert [one for one in done.result.warnings if "process 7 on far-away, sends no heartbeat" in one]


def test_a_failover_cuts_a_waiting_promote_short(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    ended = threading.Event()
    with LocalEngine(destination, mirror) as engine, ThreadPoolExecutor(1) as pool:
        engine.catch_up()
        with Destination.open(destination.properties) as another:
            waiting = pool.submit(promote, another, PromoteRequest(mirror, idle_ms=600_000), stopping=ended)
            try:
                wait_until(lambda: states_of(destination, mirror) == {TopicState.PENDING_STOPPED})
                with pytest.raises(RefusedError, match="another promote"):
                    promote(destination, PromoteRequest(mirror))
                assert failover(destination, mirror).result.exit_code == 0
                done = waiting.result(PATIENCE_S)
            finally:
                ended.set()
    assert done.result.exit_code == ExitCode.PARTLY_DONE
    assert done.result.results[0].reason is Reason.FENCED


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let the first promote look at settings until the event is set; what is not renewed counts as dead soon."""
    monkeypatch.setattr("kmirror.ops.stop.promote_claim._DEAD_AFTER_S", 4.0)
    monkeypatch.setattr("kmirror.ops.stop.promote_claim._BUSY_S", 1.0)
    over, looks = threading.Event(), iter([True])

    def look_long(*arguments: Any, **options: Any) -> dict[str, str]:
        if next(looks, False):
            assert over.wait(PATIENCE_S)
        return settings_trouble(*arguments, **options)

    monkeypatch.setattr("kmirror.ops.stop.promote_checks.settings_trouble", look_long)
    yield over
    over.set()


def claim_of(destination: Destination, mirror: str) -> int | None:
    """Return when the promote that holds the claim began."""
    found = destination.state().workflow(mirror, PROMOTE)
    return None if found is None else found.began_ms


def renewed_for_ms(destination: Destination, mirror: str) -> int:
    """Return for how long the claim has been renewed."""
    found = destination.state().workflow(mirror, PROMOTE)
    return 0 if found is None else found.last_seen_ms - found.began_ms


@pytest.mark.slow
def test_a_second_promote_is_refused_while_the_first_is_busy(
    cluster_pair: ClusterPair, destination: Destination, busy: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, one that compared contents for longer than 15 s counted as dead."""
    # a renewal takes its time where brokers are busy
    monkeypatch.setattr("kmirror.ops.stop.promote_claim._DEAD_AFTER_S", BUSY_DEAD_AFTER_S)
    mirror = mirrored(cluster_pair, destination, unique_topic())
    request = PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000)
    with LocalEngine(destination, mirror) as engine, ThreadPoolExecutor(1) as pool:
        copied_once(engine, destination, mirror)
        with Destination.open(destination.properties) as another:
            first = pool.submit(promote, another, request)
            try:
                # it is renewed for longer than one that is not renewed counts as alive
                wait_until(lambda: renewed_for_ms(destination, mirror) > 1000 * BUSY_DEAD_AFTER_S)
                with pytest.raises(RefusedError, match="another promote"):
                    promote(destination, request)
            finally:
                busy.set()
            assert first.result().result.exit_code == 0


@pytest.mark.slow
def test_a_promote_that_was_frozen_leaves_everything_to_the_one_that_has_taken_over(
    cluster_pair: ClusterPair, destination: Destination, busy: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, it stopped the topics nevertheless, or gave those of the other one back."""
    mirror = mirrored(cluster_pair, destination, unique_topic())
    monkeypatch.setattr("kmirror.ops.stop.promote_claim.Claim._keep", lambda _: None)
    ended = threading.Event()
    with LocalEngine(destination, mirror) as engine, ThreadPoolExecutor(2) as pool:
        copied_once(engine, destination, mirror)
        properties = destination.properties
        with Destination.open(properties) as one, Destination.open(properties) as other:
            frozen = pool.submit(promote, one, PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000))
            try:
                wait_until(lambda: claim_of(destination, mirror))
                began = claim_of(destination, mirror)
                second = pool.submit(promote, other, PromoteRequest(mirror, idle_ms=600_000), stopping=ended)
                wait_until(lambda: claim_of(destination, mirror) != began)
                busy.set()
                done = frozen.result().result
                assert done.exit_code == ExitCode.PARTLY_DONE
                assert {(row.result, row.reason) for row in done.results} == {(Outcome.FAILED, Reason.FENCED)}
                assert claim_of(destination, mirror) not in (None, began)
                assert states_of(destination, mirror) == {TopicState.PENDING_STOPPED}
            finally:
                busy.set()
                ended.set()
            assert second.result().result.exit_code == ExitCode.TIMED_OUT
    assert not any(topic.pending_operation for topic in destination.state().topics(mirror))


@pytest.mark.slow
def test_a_promote_that_renews_its_claim_is_alive_whatever_the_clocks_say(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, a host whose clock was 15 s ahead took over from it at once."""
    monkeypatch.setattr("kmirror.ops.stop.promote_claim._DEAD_AFTER_S", PATIENCE_S)
    mirror = mirrored(cluster_pair, destination, unique_topic())
    long_ago = now_ms() - 3_600_000
    end, renewed = threading.Event(), itertools.count(long_ago)

    def renew(at: Destination) -> None:
        claim = WorkflowRecord(mirror, PROMOTE, "WAITING", "someone@elsewhere", long_ago, next(renewed))
        change(at, mirror, lambda _: Changes((claim,)))

    def keep() -> None:
        with Destination.open(destination.properties) as another:
            while not end.wait(1):
                renew(another)

    renew(destination)
    with ThreadPoolExecutor(1) as pool:
        keeping = pool.submit(keep)
        try:
            with pytest.raises(RefusedError, match="another promote"):
                promote(destination, PromoteRequest(mirror, timeout_ms=240_000))
        finally:
            end.set()
        keeping.result()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["released", "ends recorded"])
def test_a_promote_that_loses_its_claim_in_the_middle_of_a_stop_touches_nothing_more(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Once, it wrote a fence into the mirror topic that was adopted meanwhile, or made it writable."""
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic, compression_type="gzip")

    def lose_claim() -> None:
        """As if another promote had stopped the topic, and an operator had made it a mirror topic again."""
        with Destination.open(destination.properties) as another:
            change(another, mirror, lambda _: Changes((before,), (("workflow", mirror, PROMOTE),)))

    def released_too_late(*_: object) -> Handover:
        lose_claim()
        return Handover.LATE

    def checkpoint(does: str) -> None:
        if moment == "ends recorded" and does.startswith("record where the source's records end"):
            lose_claim()

    if moment == "released":
        monkeypatch.setattr("kmirror.ops.stop.fencing.await_handover", released_too_late)
    (before,) = destination.state().topics(mirror)
    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        request = PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000)
        done = promote(destination, request, runner=StepRunner(checkpoint)).result
        running = destination.state().engine(mirror)
    assert {(row.result, row.reason) for row in done.results} == {(Outcome.FAILED, Reason.FENCED)}, done
    assert running is not None
    assert running.state is EngineState.RUNNING
    place = TopicPartition(topic, 0)
    assert destination.client.list_offsets({place: LATEST}, log_end=True)[place].offset == 3
    assert settings_of(cluster_pair.destination, topic)["compression.type"] == "producer"
    (after,) = destination.state().topics(mirror)
    assert (after.desired, after.pending_operation) == (DesiredState.ACTIVE, None)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_promote_that_is_ended_gives_its_topics_back(
    cluster_pair: ClusterPair, destination: Destination, number: signal.Signals
) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    line = command(cluster_pair.destination, "promote", "--mirror", mirror, "--yes", "--idle", "1h")
    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        started = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with killed_at_last(started) as promoting:
            waits = {TopicState.PENDING_STOPPED}
            wait_until(lambda: states_of(destination, mirror) == waits or promoting.poll() is not None)
            assert promoting.poll() is None, promoting.communicate()
            promoting.send_signal(number)
            _, said = printed(promoting)
        assert promoting.returncode == ExitCode.TIMED_OUT, said
        assert "it stays mirrored" in said
        assert {row.topic_state for row in describe(destination, mirror)} == {TopicState.ACTIVE}


@pytest.mark.slow
def test_what_was_deleted_from_the_copy_alone_is_named(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic, late = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    make_topic(cluster_pair.source, late, 1, retention_ms="-1")
    produce(cluster_pair.source, late, ["one", "two", "three"])
    assert add(destination, mirror, selector(late), start_from=parse_start_from("x", "latest")).exit_code == 0
    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        delete_records(cluster_pair.destination, topic, 2)
        named = f"{topic}-0: offsets 0 to 1 are on the source only: the log here starts at 2"
        assert named in promote(destination, PromoteRequest(mirror, idle_ms=0), dry_run=True).result.warnings
        done = promote(destination, PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000))
    assert done.result.exit_code == 0, done.result
    assert named in done.result.warnings
    # a copy that was to begin later lacks nothing
    assert not [warning for warning in done.result.warnings if late in warning]


@pytest.mark.slow
def test_a_source_topic_that_the_filters_select_and_no_one_mirrors_is_named_by_what_stops_the_mirror(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    first = unique_topic()
    mirror = mirrored(cluster_pair, destination, f"{first}-a")
    assert add(destination, mirror, selector(f"{first}-.*")).exit_code == 0
    late = f"{first}-b"
    # an ordinary topic has the name: discovery does not adopt it
    make_topic(cluster_pair.destination, late)
    make_topic(cluster_pair.source, late)
    produce(cluster_pair.source, late, ["only there"])
    said = f"1 source topic matches the mirror's filters and is not mirrored, so left behind: {late}; "

    def named(report: VerbReport) -> int:
        assert report.result.exit_code == 0, report.result
        return sum(warning.startswith(said) for warning in report.result.warnings)

    whole = PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000)
    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        for topics, count in ((None, 1), (selector(f"{first}-a"), 0)):
            verified = verify(destination, VerifyRequest(mirror, topics))
            assert verified.exit_code == 0
            uncompared = said.replace("left behind", "not compared")
            assert sum(warning.startswith(uncompared) for warning in verified.warnings) == count
        assert named(failover(destination, mirror, dry_run=True)) == 1
        assert named(failover(destination, mirror, selector(f"{first}-a"), dry_run=True)) == 0
        assert named(promote(destination, whole, dry_run=True)) == 1
        assert named(promote(destination, replace(whole, topics=selector(f"{first}-a")), dry_run=True)) == 0
        request = SwitchoverRequest(mirror, properties_of(cluster_pair.destination), timeout_ms=120_000, idle_ms=0)
        assert named(switchover(destination, request, dry_run=True)) == 1
        assert named(promote_in_batches(destination, whole, 1)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_back_in_time", [True, False])
def test_a_destination_that_does_not_answer_for_a_while_costs_no_result(
    cluster_pair: ClusterPair, mortal_cluster: SandboxCluster, is_back_in_time: bool
) -> None:
    """Once, it ended promote as if nothing had been changed, although topics had been stopped."""
    ready, held = unique_topic(), unique_topic()
    producer = Producer({**properties_of(cluster_pair.source), "transactional.id": held})
    with Destination.open(properties_of(mortal_cluster)) as destination:
        mirror = mirrored(ClusterPair(cluster_pair.source, mortal_cluster), destination, ready, held)
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(held, "undecided", partition=0)
        producer.flush(30)
        thaw = threading.Timer(AWAY_S, mortal_cluster.signal, (1, signal.SIGCONT))

        def freeze(view: PromoteView) -> None:
            if f"{ready} is stopped" in view.lines:
                mortal_cluster.signal(1, signal.SIGSTOP)
                thaw.start()
                producer.commit_transaction(30)

        with LocalEngine(destination, mirror) as engine:
            copied_once(engine, destination, mirror)
            request = PromoteRequest(mirror, idle_ms=0, timeout_ms=150_000 if is_back_in_time else 15_000)
            with Destination.open(destination.properties) as another:
                done = promote(another, request, freeze, own=Spare(mirror, destination.properties)).result
            thaw.join()
    rows = {row.topic: row for row in done.results if row.partition in (0, None)}
    assert rows[ready].result is Outcome.DONE
    if is_back_in_time:
        assert (rows[held].result, done.exit_code) == (Outcome.DONE, 0), done
    else:
        assert (rows[held].result, done.exit_code) == (Outcome.TIMED_OUT, ExitCode.TIMED_OUT), done
        assert "what it lacks is unknown now" in (rows[held].message or "")


LOST = UnreachableError("no answer", None, Reason.DESTINATION_UNREACHABLE)
REFUSED = UnreachableError("wrong password", None, Reason.AUTHENTICATION_FAILED)


@pytest.mark.parametrize(
    ("after", "error", "outcomes"),
    [
        (CLAIMED, LOST, {Outcome.DONE}),
        ("record that the topics are STOPPED, and what the source was known to have", LOST, {Outcome.NOOP}),
        (CLAIMED, REFUSED, {Outcome.FAILED}),
    ],
    ids=["begun", "complete", "for good"],
)
def test_an_error_in_the_middle_of_a_stop_is_followed_by_its_end_or_its_rows(
    cluster_pair: ClusterPair, destination: Destination, after: str, error: UnreachableError, outcomes: set[Outcome]
) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    left = [error]

    def checkpoint(does: str) -> None:
        if does == after and left:
            raise left.pop()

    with LocalEngine(destination, mirror) as engine:
        copied_once(engine, destination, mirror)
        request = PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000)
        done = promote(destination, request, runner=StepRunner(checkpoint)).result
    assert {row.result for row in done.results} == outcomes, done
    if Outcome.FAILED in outcomes:
        assert done.exit_code == ExitCode.PARTLY_DONE
        assert done.results[0].message == f"it is unknown whether {topic} was stopped: the destination: {error.message}"
        done = promote(destination, PromoteRequest(mirror)).result
    assert done.exit_code == 0
    assert states_of(destination, mirror) == {TopicState.STOPPED}
    assert not [one for one in destination.state().partitions(mirror, topic) if one.at_stop and one.at_stop.unchecked]
