"""An engine between two real clusters whose lanes do not run: what they would report is written by the test.

What is looked at is what the engine makes of it: what lanes are told to do, what is remembered, what is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.control.mirror import MirrorEngine
from kmirror.engine.spec import LaneResult, LaneSpec
from kmirror.errors import Reason, RefusedError
from kmirror.ops.add.add import add
from kmirror.ops.context import PENDING_ADD, Destination, change, now_ms
from kmirror.ops.mirrors.pause import pause, resume
from kmirror.ops.results import Outcome, VerbResult
from kmirror.ops.show.describe import describe
from kmirror.ops.show.tables import TopicState
from kmirror.ops.stop.failover import remove
from kmirror.settings.table import StartFrom
from kmirror.state.client import client
from kmirror.state.lease import EngineIdentity, Lease
from kmirror.state.records import (
    DesiredState,
    Guard,
    Incarnation,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    TopicOrigin,
    TopicRecord,
    decode,
)
from kmirror.state.snapshot import Changes
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, properties_of, selector

ALIGNING, MIRRORING, PAUSED = PartitionState.LOG_ALIGNMENT, PartitionState.MIRRORING, PartitionState.PAUSED
FIVE = ["a", "bb", "ccc", "dddd", "eeeee"]


class NoRebuilder:
    """Rebuild nothing."""

    def begin(self, topic: str, reason: Reason, *, consented: bool) -> None:
        raise RefusedError(f"{topic} is not rebuilt here")

    def carry_out(self, topic: str) -> None:
        raise RefusedError(f"{topic} is not rebuilt here")


class IdleLanes:
    """Take lanes, and run none of them."""

    def __init__(self) -> None:
        self.specs: list[LaneSpec] = []
        self._running: list[tuple[LaneSpec, Future[LaneResult]]] = []

    def submit(
        self, name: str, function: Callable[[LaneSpec, int], LaneResult], argument: LaneSpec
    ) -> Future[LaneResult]:
        future: Future[LaneResult] = Future()
        self.specs.append(argument)
        self._running.append((argument, future))
        return future

    def cancel(self, name: str) -> None:
        raise AssertionError(f"{name} was cancelled")

    def is_waiting(self, name: str) -> bool:
        return False

    def end(self) -> None:
        """Let those that run end clean."""
        for spec, future in self._running:
            future.set_result(LaneResult(spec.lane, spec.generation, 0, "STOPPED", "asked to", clean=True))
        self._running.clear()


class Run:
    """One engine in charge, from its start to its end."""

    def __init__(self, destination: Destination, mirror: str) -> None:
        self._destination, self._mirror = destination, mirror
        self.lanes = IdleLanes()
        identity = EngineIdentity.of_this_process("app", "local[1]")
        self._lease = Lease.acquire(destination.store, mirror, identity, 5_000)
        state = destination.state()
        self.engine = MirrorEngine(
            mirror, state, self._lease, destination.properties, self.lanes, "eve@ops", NoRebuilder()
        )

    def __enter__(self) -> Run:
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()
        self.lanes.end()
        deadline = time.monotonic() + 20
        while not self.engine.finished:
            assert time.monotonic() < deadline
            self.engine.tick()
        self.engine.close()

    def until(self, condition: Callable[[], bool], *, lanes_end: bool = False) -> None:
        """Let the engine work until something holds."""
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, (self.engine.journal.notes, self.engine.partitions.rows)
            if lanes_end:
                self.lanes.end()
            self.engine.tick()
            time.sleep(0.02)

    def report(self, *rows: ProgressRow, fills_by_transactions: bool = False) -> None:
        """Say it as the lane does that was started last, and wait until the engine has heard it."""
        self.say(*rows, fills_by_transactions=fills_by_transactions)
        heard = {TopicPartition(row.topic, row.partition): row for row in rows}
        self.until(lambda: all(self.engine.partitions.rows.get(place) == row for place, row in heard.items()))

    def say(self, *rows: ProgressRow, fills_by_transactions: bool) -> None:
        """Say it as the lane does that was started last."""
        spec = self.lanes.specs[-1]
        record = ProgressRecord(
            self._mirror, spec.lane, spec.lease_id, spec.generation, 0, "h", 1, now_ms(), rows, fills_by_transactions
        )
        change(self._destination, self._mirror, lambda _: Changes((record,)))

    def remembered(self, topic: str, partition: int = 0) -> PartitionRecord:
        """Return what is stored of a partition once the engine's next heartbeat is through."""
        self.beat()
        found = self._destination.state().partition(self._mirror, topic, partition)
        assert found is not None
        return found

    def begins(self) -> dict[tuple[str, int], tuple[int, bool]]:
        """Return what the lane that was started last is told of beginnings: first offset and `begun`."""
        told = self.lanes.specs[-1].assignments if self.lanes.specs else ()
        return {(a.topic, a.partition): (a.first_offset, a.begun) for a in told}

    def incarnations(self) -> dict[int, Incarnation]:
        """Return which lanes may write, as the next heartbeat says."""
        self.beat()
        return dict(self._lease.record.lanes)

    def is_caught_up(self) -> bool:
        """Return what `run --until-caught-up` looks at."""
        return self.engine.caught_up

    def forget_the_source(self) -> None:
        """Let it be as if the source had not answered yet; it will soon."""
        self.engine.partitions.targets = None

    def beat(self) -> None:
        """Let the engine work until its next heartbeat is through."""
        before = self._lease.record.last_seen_ms
        self.until(lambda: self._lease.record.last_seen_ms > before)


def row(
    topic: str,
    state: PartitionState,
    destination_offset: int,
    *,
    source_log_start: int = 0,
    begun: bool = False,
    aligned_to: int | None = None,
) -> ProgressRow:
    return ProgressRow(
        topic, 0, 5, 5, source_log_start, destination_offset, None, state, begun=begun, aligned_to=aligned_to
    )


@pytest.fixture
def mirror(cluster_pair: ClusterPair, destination: Destination) -> str:
    return new_mirror(destination, cluster_pair.source, copy_lanes="1", refresh_interval_seconds="1")


@pytest.fixture
def topic(cluster_pair: ClusterPair) -> str:
    """Return a source topic of one partition with five records."""
    name = unique_topic()
    make_topic(cluster_pair.source, name)
    produce(cluster_pair.source, name, FIVE)
    return name


def test_a_running_engine_begins_topics_that_are_added_where_the_add_has_decided(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    other = unique_topic()
    make_topic(cluster_pair.source, other)
    with Run(destination, mirror) as run:
        add(destination, mirror, selector(topic), start_from=StartFrom("latest"))
        run.until(lambda: bool(run.lanes.specs))
        assert run.begins() == {(topic, 0): (5, False)}
        add(destination, mirror, selector(other))
        run.until(lambda: len(run.begins()) == 2, lanes_end=True)
        assert run.begins() == {(topic, 0): (5, False), (other, 0): (0, False)}


def test_what_was_decided_and_seen_outlives_the_engine(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic), start_from=StartFrom("latest"))
    (added,) = destination.state().partitions(mirror, topic)
    kept = replace(added, last_mirrored_offset=3, last_mirrored_epoch=1, extra={"newer": [1]})
    change(destination, mirror, lambda _: Changes((kept,)))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, ALIGNING, 0))
        assert describe(destination, mirror)[0].topic_state is TopicState.PENDING_MIRROR
        run.report(row(topic, MIRRORING, 5, aligned_to=5))
        run.report(row(topic, MIRRORING, 7, aligned_to=5, begun=True))
        found = run.remembered(topic)
        assert found == replace(
            kept,
            state=MIRRORING,
            state_time_ms=found.state_time_ms,
            initial_copy_complete=True,
            begun=True,
            aligned=True,
        )
        notes = [note for note in run.engine.journal.notes if "begins" in note]
        assert notes == [f"{topic}-0 begins at offset 5, as it was decided when the topic was added"]
    events = [(e.what, e.result, e.details) for e in destination.store.read_events(mirror)]
    told = ("partition", "ALIGNED", {"topic": topic, "partition": 0, "offset": 5})
    assert events.count(told) == 1
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        assert run.begins() == {(topic, 0): (5, True)}
        run.report(row(topic, ALIGNING, 7))
        assert run.remembered(topic).state is ALIGNING
        assert describe(destination, mirror)[0].topic_state is TopicState.ACTIVE


def test_that_records_have_come_is_no_reason_to_stop_a_lane_and_its_successor_is_told(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    other = unique_topic()
    make_topic(cluster_pair.source, other)
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 4, begun=True))
        record = destination.state().topic(mirror, topic)
        assert record is not None
        planned_again = replace(record, extra={"newer": 1})
        change(destination, mirror, lambda _: Changes((planned_again,)))
        run.report(row(topic, MIRRORING, 5, begun=True))
        assert run.incarnations() == {0: Incarnation(1, 0)}
        add(destination, mirror, selector(other))
        run.until(lambda: len(run.begins()) == 2, lanes_end=True)
        assert run.begins() == {(topic, 0): (0, True), (other, 0): (0, False)}


def test_a_topic_that_was_deleted_and_added_again_has_no_past(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic), start_from=StartFrom("latest"))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 7, begun=True))
        assert run.remembered(topic).begun
        former = run.lanes.specs[-1].assignments
        delete_topic(cluster_pair.destination, topic)
        add(destination, mirror, selector(topic))
        # the lane of its former life has a last word
        run.say(row(topic, MIRRORING, 8, begun=True), fills_by_transactions=True)
        run.until(lambda: any("empty transactions" in note for note in run.engine.journal.notes))
        assert run.engine.partitions.rows == {}
        run.until(lambda: run.lanes.specs[-1].assignments[:1] != former, lanes_end=True)
        assert run.begins() == {(topic, 0): (0, False)}
        run.report(row(topic, ALIGNING, 0))
        found = run.remembered(topic)
        fresh = PartitionRecord(mirror, topic, 0, ALIGNING, found.state_time_ms)
        assert found == fresh


def test_an_emptied_log_is_reached_where_it_begins_and_not_while_filler_leads_there(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    admin = AdminClient(properties_of(cluster_pair.source))
    for done in admin.delete_records([Place(topic, 0, 5)]).values():
        assert done.result(30).low_watermark == 5
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs) and run.engine.partitions.targets == {TopicPartition(topic, 0): 5})
        run.report(row(topic, ALIGNING, 5, source_log_start=5))
        assert not run.is_caught_up()
        assert not run.remembered(topic).initial_copy_complete
        run.report(row(topic, MIRRORING, 5, source_log_start=5, aligned_to=5))
        assert run.is_caught_up()
        assert run.remembered(topic).initial_copy_complete
        assert f"{topic}-0 begins at offset 5, where its source's log begins" in run.engine.journal.notes


def test_a_partition_that_stands_still_is_complete_though_it_spoke_before_the_source_did(
    destination: Destination, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs) and run.engine.partitions.targets is not None)
        run.forget_the_source()
        run.report(row(topic, MIRRORING, 5))
        run.until(lambda: run.engine.partitions.targets is not None)
        assert run.remembered(topic).initial_copy_complete


def test_filling_by_transactions_is_told_once(destination: Destination, mirror: str, topic: str) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 4), fills_by_transactions=True)
        run.report(row(topic, MIRRORING, 5), fills_by_transactions=True)
        notes = [note for note in run.engine.journal.notes if "empty transactions" in note]
    assert notes == [
        "markers may not be written (ALTER on the destination cluster is not granted): "
        "offsets are filled by empty transactions, which is slower"
    ]
    events = [(event.what, event.result) for event in destination.store.read_events(mirror)]
    assert events.count(("offsets", "FILLED_BY_TRANSACTIONS")) == 1


def test_a_lane_is_told_how_far_the_one_before_was(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    def known_end(run: Run) -> int | None:
        (assignment,) = run.lanes.specs[-1].assignments
        return assignment.known_end

    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        assert known_end(run) is None
        run.report(row(topic, MIRRORING, 5, begun=True))
        run.report(row(topic, MIRRORING, 7, begun=True))
        run.remembered(topic)
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        assert known_end(run) == 7
        run.report(row(topic, MIRRORING, 4, begun=True)._replace(again_from=4, again_until=7))
        note = f"{topic}-0 had lost the offsets 4 to 6 at the destination"
        assert [line for line in run.engine.journal.notes if line.startswith(note)], run.engine.journal.notes


def test_a_lane_is_told_of_a_batch_that_landed_elsewhere_under_an_engine_before(
    destination: Destination, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    told = row(topic, PartitionState.FAILED, 4, begun=True)._replace(reason=Reason.OFFSET_MISMATCH, message="4 is at 5")
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        (assignment,) = run.lanes.specs[-1].assignments
        assert assignment.mismatch is None
        run.report(told)
        run.remembered(topic)
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        (assignment,) = run.lanes.specs[-1].assignments
        assert (assignment.mismatch, assignment.mismatch_offset) == ("4 is at 5", 4)
        run.report(told._replace(reason=Reason.DESTINATION_WRITTEN))
        run.remembered(topic)
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        (assignment,) = run.lanes.specs[-1].assignments
        assert assignment.mismatch is None


# -- pauses -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def operator(destination: Destination) -> Iterator[Operator]:
    with Destination.open(destination.properties) as opened, ThreadPoolExecutor(1) as pool:
        yield Operator(opened, pool)


class Operator:
    """Somebody who pauses and resumes while the test has the engine work."""

    def __init__(self, destination: Destination, pool: ThreadPoolExecutor) -> None:
        self._destination, self._pool = destination, pool

    def pause(self, mirror: str) -> Future[VerbResult]:
        """Begin to pause a mirror."""
        return self._pool.submit(pause, self._destination, mirror)

    def resume(self, mirror: str) -> None:
        """Resume a mirror."""
        assert resume(self._destination, mirror).exit_code == 0


def results_of(done: Future[VerbResult], topic: str) -> list[Outcome]:
    return [row.result for row in done.result(20).results if row.topic == topic]


def test_a_pause_right_after_a_resume_waits_until_the_engine_has_given_up_what_it_copies_again(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 5, begun=True))
        first = operator.pause(mirror)
        run.until(first.done, lanes_end=True)
        assert results_of(first, topic) == [Outcome.DONE]
        started = len(run.lanes.specs)
        operator.resume(mirror)
        # a lane has it again, and has said nothing yet: what is remembered is still that it is paused
        run.until(lambda: len(run.lanes.specs) > started)
        former = run.remembered(topic)
        assert former.state is PAUSED
        second = operator.pause(mirror)
        for _ in range(4):
            run.beat()
            assert wait([second], 0.5).not_done, "a lane copies it"
        run.until(second.done, lanes_end=True)
        assert results_of(second, topic) == [Outcome.DONE]
        found = run.remembered(topic)
        assert found == replace(former, state_time_ms=found.state_time_ms, pause_id=found.pause_id)
        assert found.pause_id not in (None, former.pause_id)


def test_a_pause_is_answered_also_where_the_resume_before_it_was_not_acted_on(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        first = operator.pause(mirror)
        run.until(first.done, lanes_end=True)
        paused = destination.state().topic(mirror, topic)
        assert paused is not None
        # both at once
        resumed = replace(paused, desired=DesiredState.ACTIVE)
        change(destination, mirror, lambda _: Changes((resumed, replace(paused, pause_id="again"))))
        second = operator.pause(mirror)
        run.until(second.done, lanes_end=True)
        assert results_of(second, topic) == [Outcome.NOOP]
        run.until(lambda: run.remembered(topic).pause_id == "again", lanes_end=True)


def test_an_engine_answers_what_was_paused_before_it_came(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    alone = operator.pause(mirror)
    # nobody is there who could answer
    assert results_of(alone, topic) == [Outcome.DONE]
    with Run(destination, mirror) as run:
        again = operator.pause(mirror)
        run.until(again.done)
        assert results_of(again, topic) == [Outcome.NOOP]
        run.until(lambda: run.remembered(topic).state is PAUSED)
        assert run.lanes.specs == []


def test_what_is_added_to_a_paused_mirror_begins_where_the_add_has_decided(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    with Run(destination, mirror) as run:
        run.until(operator.pause(mirror).done)
        add(destination, mirror, selector(topic), start_from=StartFrom("latest"))
        again = operator.pause(mirror)
        run.until(again.done)
        assert results_of(again, topic) == [Outcome.NOOP]
        run.until(lambda: run.remembered(topic).state is PAUSED)
        assert run.remembered(topic).first_offset == 5
        operator.resume(mirror)
        run.until(lambda: bool(run.lanes.specs))
        assert run.begins() == {(topic, 0): (5, False)}


def test_an_add_under_way_is_not_interfered_with(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    with Run(destination, mirror) as run:
        claim = TopicRecord(mirror, topic, topic, None, None, DesiredState.PAUSED, 1, TopicOrigin.CREATED, PENDING_ADD)
        change(destination, mirror, lambda _: Changes((claim,)))
        # nobody copies to it yet, and what the `add` writes of its partitions must not be overwritten
        done = operator.pause(mirror)
        run.until(done.done)
        assert results_of(done, topic) == [Outcome.NOOP]
        run.beat()
        run.beat()
        assert destination.state().partitions(mirror, topic) == ()


def test_what_is_rebuilt_while_it_is_paused_is_written_under_its_new_guard(
    destination: Destination, operator: Operator, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    assert results_of(operator.pause(mirror), topic) == [Outcome.DONE]
    with Run(destination, mirror) as run:
        run.until(operator.pause(mirror).done)
        paused = destination.state().topic(mirror, topic)
        assert paused is not None
        rebuilt = replace(paused, destination_topic_id="AAAAAAAAAAAAAAAAAAAAAQ")
        fresh = PartitionRecord(mirror, topic, 0, ALIGNING, now_ms(), guard=Guard((1 << 62) + 7, 0, -1, 0))
        change(destination, mirror, lambda _: Changes((fresh, rebuilt)))
        again = operator.pause(mirror)
        run.until(again.done)
        run.until(lambda: run.remembered(topic).state is PAUSED)
        found = run.remembered(topic)
        assert (found.guard, found.pause_id) == (fresh.guard, paused.pause_id)
        operator.resume(mirror)
        run.until(lambda: bool(run.lanes.specs))
        assert [a.producer_id for a in run.lanes.specs[-1].assignments] == [(1 << 62) + 7]


# -- answers that are lost --------------------------------------------------------------------------------------------


class LostAnswers:
    """The engine's producers: what says that a partition is given up is written, and then nobody answers any more."""

    def __init__(self) -> None:
        self.is_cut_off = False

    def client(self, factory: Any, settings: dict[str, Any], watch: Any) -> Any:
        """Stand in for what the state's writers make their clients with."""
        if not settings.get("transactional.id", "").startswith("kmirror-engine-"):
            return client(factory, settings, watch)
        if self.is_cut_off:
            settings = {**settings, "bootstrap.servers": "127.0.0.1:1"}
        return _LosingProducer(client(factory, settings, watch), self)


class _LosingProducer:
    def __init__(self, real: Any, answers: LostAnswers) -> None:
        self._real, self._answers, self._gives_up = real, answers, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def produce(self, topic: str, *, key: bytes, value: bytes | None, **more: Any) -> None:
        record = decode(key, value)
        if isinstance(record, PartitionRecord) and record.state is PartitionState.STOPPING:
            self._gives_up = True
        self._real.produce(topic, key=key, value=value, **more)

    def commit_transaction(self, timeout: float) -> None:
        self._real.commit_transaction(30)
        if self._gives_up:
            self._answers.is_cut_off = True
            raise KafkaException(KafkaError(KafkaError._FENCED, "the answer was lost", fatal=True))


def test_a_word_whose_answer_was_lost_is_not_said_again_over_what_a_stop_recorded_since(
    monkeypatch: pytest.MonkeyPatch, destination: Destination, mirror: str, topic: str
) -> None:
    answers = LostAnswers()
    monkeypatch.setattr("kmirror.state.writer.client", answers.client)
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run, ThreadPoolExecutor(1) as pool:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 5, begun=True))
        removed = pool.submit(_removed, destination.properties, mirror, topic)
        run.until(removed.done, lanes_end=True)
        assert removed.result().exit_code == 0
        assert answers.is_cut_off
        stopped = destination.state().partition(mirror, topic, 0)
        assert stopped is not None
        assert stopped.last_mirrored_offset is not None
        answers.is_cut_off = False
        assert run.remembered(topic) == stopped
        run.beat()
        assert destination.state().partition(mirror, topic, 0) == stopped
        assert run.engine.lost is None


def test_a_stop_of_a_topic_that_was_deleted_waits_until_the_engine_has_given_it_up(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run, ThreadPoolExecutor(1) as pool:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 5, begun=True))
        delete_topic(cluster_pair.destination, topic)
        removed = pool.submit(_removed, destination.properties, mirror, topic)
        for _ in range(2):
            run.beat()
            assert not removed.done(), "a lane has it"
        run.until(removed.done, lanes_end=True)
        assert removed.result().exit_code == 0
        run.beat()
        assert run.remembered(topic).state is PartitionState.STOPPED


def _removed(properties: Mapping[str, str], mirror: str, topic: str) -> VerbResult:
    with Destination.open(properties) as opened:
        return remove(opened, mirror, selector(topic)).result
