"""Topics whose producers are blocked at the source while they move: nothing slips in, and no one stays blocked."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn, Self

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import AclBinding, AclPermission
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.acls import describe_acls
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic
from kmirror.errors import ExitCode, Reason, RefusedError, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base.blocked_producers import Denial
from kmirror.ops.base.context import Destination, change
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.check.check import check
from kmirror.ops.failback.switchover import SwitchoverRequest, switchover
from kmirror.ops.mirrors.create import create
from kmirror.ops.rights.producer_block import ProducerBlock
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest, PromoteView
from kmirror.ops.stop.steps import StepRunner
from kmirror.state.records import PENDING_PROMOTE
from kmirror.state.snapshot import Changes
from kmirror.state.workflow_records import PROMOTE, WorkflowRecord
from kmirror.status.topic_state import TopicState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import acls, denial, give, kmirror_rights, written
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.engine import ROOT, command
from tests.support.json_documents import check as check_document
from tests.support.killed import Moment, run_killed
from tests.support.librdkafka import librdkafka
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import produce, selector
from tests.support.round_trip import CutOffError
from tests.support.shared_clusters import GUARDED_USERS
from tests.support.visible import shown
from tests.support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Move:
    """A mirror of topics from the guarded cluster, where `app` produces, to one without an authorizer."""

    source: SandboxCluster
    admin: ClusterClient
    destination: Destination
    mirror: str
    topics: tuple[str, str]
    moved_to: SandboxCluster

    @property
    def denials(self) -> set[AclBinding]:
        """Return what is denied at the source."""
        return {one for one in describe_acls(self.admin) if one.permission is AclPermission.DENY}

    def check_lines(self) -> list[tuple[bool, str]]:
        """Return what `check` says of blocked producers."""
        report = check(self.destination.properties, mirror=self.mirror)
        return [(line.ok, line.message) for line in report.lines if line.what == "blocked producers"]


@pytest.fixture
def move(
    guarded_cluster: SandboxCluster,
    cluster_pair: ClusterPair,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Move]:
    with _move(guarded_cluster, cluster_pair, destination, monkeypatch) as found:
        yield found


@contextmanager
def _move(
    guarded_cluster: SandboxCluster,
    cluster_pair: ClusterPair,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
    partitions: int = 1,
) -> Iterator[Move]:
    properties = guarded_cluster.client_properties("kmirror")
    monkeypatch.setenv("KM_TEST_LOGIN", properties["sasl.jaas.config"])
    with ClusterClient(client_config(guarded_cluster.client_properties())) as admin:
        topics = (unique_topic(), unique_topic())
        for topic in topics:
            create_topic(admin, topic, partitions, 1, {"retention.ms": "-1"})
            give(admin, acls("topic", topic, "kmirror", "READ", "DESCRIBE_CONFIGS"))
            give(admin, acls("topic", topic, "app", "WRITE", "READ"))
        give(admin, acls("group", "*", "kmirror", "DESCRIBE"), acls("transactional_id", "*", "app", "ALL"))
        mirror = unique_topic("m")
        create(destination, mirror, {**properties, "sasl.jaas.config": "${env:KM_TEST_LOGIN}"})
        for topic in topics:
            assert written(guarded_cluster, "app", topic) is None
        assert add(destination, mirror, selector(*topics)).exit_code == 0
        yield Move(guarded_cluster, admin, destination, mirror, topics, cluster_pair.destination)


class App:
    """A producer that writes to a topic's partitions until each of them has refused a write."""

    def __init__(self, move: Move, topic: str, partitions: int = 1) -> None:
        self.acknowledged: dict[int, list[bytes | None]] = {partition: [] for partition in range(partitions)}
        self.refused: dict[int, int] = {}
        self._topic = topic
        self._end = threading.Event()
        # its library forgets a whole topic once one partition is refused
        properties = librdkafka(client_config(move.source.client_properties("app")))
        self._producers = [Producer({**properties, "linger.ms": 0}) for _ in range(partitions)]
        self._writer = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        """Start, and return when some of its records are at each partition."""
        self._writer.start()
        wait_until(lambda: all(len(values) > 10 for values in self.acknowledged.values()) or self.refused)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._writer.join()

    def _write(self) -> None:
        for number in itertools.count():
            left = [partition for partition in self.acknowledged if partition not in self.refused]
            if not left or self._end.wait(0.005):
                break
            for partition in left:
                producer = self._producers[partition]
                try:
                    producer.produce(self._topic, b"%d" % number, partition=partition, on_delivery=self._delivered)
                except KafkaException as error:
                    self.refused[partition] = error.args[0].code()
                producer.poll(0)
        for producer in self._producers:
            producer.flush(30)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition = message.partition() or 0
        if error is None:
            self.acknowledged[partition].append(message.value())
        else:
            self.refused[partition] = error.code()


def may_alter(move: Move) -> None:
    give(move.admin, acls("cluster", "kafka-cluster", "kmirror", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS"))


@pytest.mark.slow
def test_producers_are_blocked_until_the_destination_takes_their_writes(move: Move) -> None:
    topic, other = move.topics
    request = PromoteRequest(move.mirror, selector(topic), timeout_ms=120_000, block_producers=True)
    with LocalEngine(move.destination, move.mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(move.destination, move.mirror)))
        for dry_run in (True, False):
            with pytest.raises(RefusedError, match="may not read or change ACLs"):
                promote(move.destination, request, dry_run=dry_run)
        assert move.denials == set()
        may_alter(move)
        drill = promote(move.destination, request, dry_run=True)
        assert any("would deny WRITE to everyone" in one for one in drill.result.warnings), drill.result.warnings
        assert move.denials == set()

        with App(move, topic) as app:
            done = promote(move.destination, request)
    assert done.result.exit_code == 0, done.result
    assert app.refused, "the producer wrote until it was blocked"
    assert len(app.acknowledged[0]) > 10
    assert [record.value for record in shown(move.moved_to, topic)] == [b"v", *app.acknowledged[0]]
    assert move.denials == {denial(topic, "*")}
    assert written(move.source, "app", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert written(move.source, "app", other) is None
    (blocked,) = done.result.blocked
    assert (blocked.topic, blocked.denial) == (topic, Denial.KEPT)
    assert blocked.duration_ms is not None
    assert 0 < blocked.duration_ms < 60_000
    check_document("report", done.evidence)
    assert [row["durationMs"] for row in done.evidence["blockedProducers"]] == [blocked.duration_ms]
    (reported,) = [one for one in done.result.warnings if "producers were blocked" in one]
    assert f"--remove --force --deny-principal 'User:*' --operation Write --topic {topic}" in reported
    ((ok, said),) = move.check_lines()
    assert ok
    assert f"denies everyone WRITE on {topic}" in said
    # to undo the promote: the source is in charge again
    assert add(move.destination, move.mirror, selector(topic), adopt=True).exit_code == 0
    assert (move.denials, move.check_lines()) == (set(), [])


@pytest.mark.slow
def test_each_broker_of_the_source_refuses_writes_before_the_last_records_are_copied(
    make_cluster: MakeCluster,
    cluster_pair: ClusterPair,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = make_cluster("wide", brokers=2, secured=True, authorizer=True, users=GUARDED_USERS)
    with _move(wide, cluster_pair, destination, monkeypatch, partitions=2) as move:
        may_alter(move)
        topic, _ = move.topics
        metadata = move.admin.metadata([topic])
        assert len({metadata.leader_address(TopicPartition(topic, partition)) for partition in range(2)}) == 2
        request = PromoteRequest(move.mirror, selector(topic), timeout_ms=120_000, block_producers=True)
        with LocalEngine(move.destination, move.mirror) as engine:
            engine.catch_up()
            wait_until(lambda: all(row.initial_copy_complete for row in describe(move.destination, move.mirror)))
            with App(move, topic, partitions=2) as app:
                done = promote(move.destination, request)
        assert done.result.exit_code == 0, done.result
        assert app.refused == dict.fromkeys(range(2), KafkaError.TOPIC_AUTHORIZATION_FAILED)
        for partition, acknowledged in app.acknowledged.items():
            assert len(acknowledged) > 10
            copied = [record.value for record in shown(move.moved_to, topic, partition)]
            assert [value for value in copied if value != b"v"] == acknowledged


@pytest.mark.slow
def test_a_promote_that_gives_up_or_is_killed_leaves_no_producer_blocked(move: Move) -> None:
    topic, _ = move.topics
    may_alter(move)
    chosen, views = selector(topic), list[PromoteView]()
    login = librdkafka(client_config(move.source.client_properties("app")))
    producer = Producer({**login, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "undecided", partition=0)
    producer.flush(30)

    def watch(view: PromoteView) -> None:
        views.append(view)
        if view.lines and "producers are blocked" in view.lines[0]:
            assert written(move.source, "app", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
            ((ok, said),) = move.check_lines()
            assert ok
            assert "while a promote waits" in said

    with LocalEngine(move.destination, move.mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(move.destination, move.mirror)))
        done = promote(move.destination, PromoteRequest(move.mirror, chosen, None, 5_000, block_producers=True), watch)
        assert done.result.exit_code == ExitCode.TIMED_OUT
        assert any("producers are blocked at the source" in line for view in views for line in view.lines)
        assert "a transaction of producer id" in str(done.result.results[0].message)
        assert [row.denial for row in done.result.blocked] == [Denial.LIFTED]
        assert move.denials == set()

        # what a killed promote leaves
        state = move.destination.state()
        record = state.topic(move.mirror, topic)
        assert record is not None
        cut = ProducerBlock(move.destination, move.mirror, move.admin, state, [topic])
        cut.block([record])
        assert cut.unsettled([record], lambda _: [2]) == {topic: f"a transaction is open in {topic}-0"}
        assert move.denials == {denial(topic, "*")}
        ((ok, said),) = move.check_lines()
        assert not ok
        assert "left behind by a promote that was killed" in said
        done = promote(move.destination, PromoteRequest(move.mirror, chosen, None, 1, idle_ms=0))
        assert done.result.exit_code == ExitCode.TIMED_OUT
        assert [row.denial for row in done.result.blocked] == [Denial.LIFTED]
        assert (move.denials, move.check_lines()) == (set(), [])

        producer.commit_transaction(30)
        # the marker is written a moment after the commit was confirmed
        wait_until(lambda: "were added a moment ago" in cut.unsettled([record], lambda _: [2]).get(topic, ""))
        assert cut.unsettled([record], lambda _: [3]) == {}
        done = promote(move.destination, PromoteRequest(move.mirror, chosen, None, 60_000, block_producers=True))
    assert done.result.exit_code == 0, done.result
    assert move.denials == {denial(topic, "*")}
    assert [record.value for record in shown(move.moved_to, topic)][-1] == b"undecided"


@pytest.mark.slow
def test_a_promote_frees_the_topics_of_a_dead_one_that_it_does_not_promote(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, their producers stayed blocked, and each later change of them was refused."""
    monkeypatch.setattr("kmirror.ops.stop.promote_claim._DEAD_AFTER_S", 1.0)
    topic, other = move.topics
    may_alter(move)
    state = move.destination.state()
    record = state.topic(move.mirror, topic)
    assert record is not None
    dead = WorkflowRecord(move.mirror, PROMOTE, "WAITING", "someone@elsewhere", 0, 0)
    waits = replace(record, pending_operation=PENDING_PROMOTE)
    change(move.destination, move.mirror, lambda _: Changes((dead, waits)))
    ProducerBlock(move.destination, move.mirror, move.admin, state, [topic]).block([record])
    assert move.denials == {denial(topic, "*")}
    stopping, seen = threading.Event(), list[tuple[set[AclBinding], bool]]()

    def watch(view: PromoteView) -> None:
        if view.missing and not stopping.is_set():
            with Destination.open(move.destination.properties) as another:
                found = another.state().topic(move.mirror, topic)
                seen.append((move.denials, found is not None and found.pending_operation is None))
            stopping.set()

    with LocalEngine(move.destination, move.mirror) as engine:
        engine.catch_up()
        request = PromoteRequest(move.mirror, selector(other), timeout_ms=120_000, idle_ms=600_000)
        done = promote(move.destination, request, watch, stopping)
    assert done.result.exit_code == ExitCode.TIMED_OUT
    assert seen == [(set(), True)]
    assert not move.destination.state().rights(move.mirror, topic)


def test_a_stop_that_had_begun_is_finished_while_it_is_unknown_whether_producers_are_still_blocked(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, _ = move.topics
    may_alter(move)
    request = PromoteRequest(move.mirror, selector(topic), timeout_ms=120_000, block_producers=True)

    def cut(does: str) -> None:
        if does.startswith("record which topics are stopped"):
            raise CutOffError

    with LocalEngine(move.destination, move.mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(move.destination, move.mirror)))
        with pytest.raises(CutOffError):
            promote(move.destination, request, runner=StepRunner(cut))
    assert move.denials == {denial(topic, "*")}

    def unanswered(*_: object) -> NoReturn:
        raise UnreachableError("no answer")

    with monkeypatch.context() as silent:
        silent.setattr("kmirror.ops.rights.producer_block.describe_acls", unanswered)
        done = promote(move.destination, request).result
    assert done.exit_code == 0, done
    assert [row.topic for row in done.blocked] == [topic]


@pytest.mark.slow
def test_a_switchover_hands_the_denial_over_and_the_way_back_lifts_it(move: Move) -> None:
    topic, _ = move.topics
    may_alter(move)
    chosen, b = selector(topic), move.destination.properties
    with pytest.raises(RefusedError, match=r"the old source does not grant us .* on topic __kmirror_state") as refused:
        switchover(move.destination, SwitchoverRequest(move.mirror, b, chosen))
    assert "kafka-acls" in str(refused.value.hint)
    give(move.admin, kmirror_rights())
    with LocalEngine(move.destination, move.mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(move.destination, move.mirror)))
        request = SwitchoverRequest(move.mirror, b, chosen, 60_000, watch_s=0.1, block_producers=True)
        done = switchover(move.destination, request)
    assert done.result.exit_code == 0, done.result
    assert [row.denial for row in done.result.blocked] == [Denial.KEPT]
    assert written(move.source, "app", topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert move.check_lines() == []
    assert not move.destination.state().rights(move.mirror, topic).blocked
    state = move.destination.state()
    record = state.mirror(move.mirror)
    assert record is not None
    produce(move.moved_to, topic, ["from b"])
    with Destination.open(record.source) as at_a:
        assert at_a.state().rights(move.mirror, topic).denied == (denial(topic, "app"),)
        with LocalEngine(at_a, move.mirror) as engine:
            engine.catch_up()
            wait_until(lambda: all(row.initial_copy_complete for row in describe(at_a, move.mirror)))
            back = promote(at_a, PromoteRequest(move.mirror, chosen, None, 60_000, idle_ms=0))
        assert back.result.exit_code == 0, back.result
    assert move.denials == set()
    assert written(move.source, "app", topic) is None


@pytest.mark.slow
def test_with_rights_on_its_topics_alone_promote_reports_what_the_source_received_after_the_stop(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, a promote that was killed before it read the source never said so: each repeat ended with 5."""
    topic, _ = move.topics
    request = PromoteRequest(move.mirror, selector(topic), None, 120_000, idle_ms=0)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with LocalEngine(move.destination, move.mirror) as engine, monkeypatch.context() as killed:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(move.destination, move.mirror)))
        killed.setattr("kmirror.ops.stop.promote.check_source_after_stop", kill)
        with pytest.raises(KeyboardInterrupt):
            promote(move.destination, request)
    assert written(move.source, "app", topic) is None
    for _ in range(2):
        done = promote(move.destination, request).result
        (row,) = done.results
        assert done.exit_code == ExitCode.PARTLY_DONE
        assert (row.result, row.reason, row.lag) == (Outcome.FAILED, Reason.SOURCE_WRITTEN_AFTER_STOP, 1)
        assert "unless the topic was copied back from here" in str(row.message)
        assert "--operation Read --topic __kmirror_state" in str(row.hint)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("moment", [*(Moment("after", number) for number in range(1, 8)), Moment("before", 3)], ids=str)
def test_killed_at_a_record_a_denial_is_on_record_and_the_same_command_finishes(move: Move, moment: Moment) -> None:
    topic, _ = move.topics
    may_alter(move)
    words = ("--mirror", move.mirror, "--topics", topic, "--block-producers", "--timeout", "90s")
    line = command(move.moved_to, "promote", *words)
    with LocalEngine(move.destination, move.mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(move.destination, move.mirror)))
        was_killed, killed = run_killed(moment, line)
        print(f"{moment}:\n{killed.stderr}")  # noqa: T201 - shown with a failure
        assert move.denials <= set(move.destination.state().rights(move.mirror, topic).blocked)
        assert was_killed
        assert (len(move.denials) == 1) is (moment not in (Moment("after", 1), Moment("after", 2)))
        again = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False, timeout=180)
        assert again.returncode == 0, again.stderr
    assert move.denials == {denial(topic, "*")}
    states = {row.topic: row.topic_state for row in describe(move.destination, move.mirror)}
    assert states[topic] is TopicState.STOPPED
