"""Mirroring is stopped on real brokers: failover, remove, pause; with an engine at work, without, one that is gone."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import LATEST
from kmirror.cluster.protocol.batch import set_producer
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.filler import filler_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.writing.fence import FenceResult, Writer, fence
from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.reports.state_log import append_to
from kmirror.engine.spec import own_producer_id
from kmirror.errors import BrokerError, ExitCode, Reason, RefusedError, UnreachableError, settled
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change, require_mirror
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.groups.sync import GroupSyncJob
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.mirrors.pause import pause, resume
from kmirror.ops.show.describe import describe
from kmirror.ops.show.wait import Condition, wait
from kmirror.ops.stop.failover import failover, remove
from kmirror.ops.stop.source_ends import SourceEndsRequest
from kmirror.ops.stop.steps import Step
from kmirror.ops.stop.stop import STOP
from kmirror.ops.stop.work import StopWork
from kmirror.state.lease import Lease
from kmirror.state.records import EngineRecord, EngineState, PartitionState
from kmirror.state.snapshot import Changes, State
from kmirror.status.topic_state import TopicState
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, selector, settings_of
from tests.support.real_logs import delete_records
from tests.support.scraped import asking, assert_all_say, describing
from tests.support.side_jobs import run_once
from tests.support.visible import shown
from tests.support.waiting import PATIENCE_S, wait_until

#: A time in a message.
AT = r"\d{4}-\d\d-\d\dT[0-9:.]+Z|, [0-9.]+ m?s before the stop"


def mirrored(pair: ClusterPair, destination: Destination, *topics: str, partitions: int = 1, **settings: str) -> str:
    """Return a new mirror of new topics of these names, with three records each."""
    mirror = new_mirror(destination, pair.source, refresh_interval_seconds="1")
    for topic in topics:
        # the records are old: brokers would delete them
        make_topic(pair.source, topic, partitions, **{"retention_ms": "-1", **settings})
        produce(pair.source, topic, ["one", "two", "three"])
    assert add(destination, mirror, selector(*topics)).exit_code == 0
    return mirror


def end_of(destination: Destination, topic: str, partition: int = 0) -> int | None:
    topic_partition = TopicPartition(topic, partition)
    return destination.client.list_offsets({topic_partition: LATEST}, log_end=True)[topic_partition].offset


def test_a_failover_with_a_living_engine_and_a_live_source(cluster_pair: ClusterPair, destination: Destination) -> None:
    topics = [unique_topic() for _ in range(3)]
    mirror = mirrored(cluster_pair, destination, *topics, partitions=2, max_message_bytes="2000000")
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        drill = failover(destination, mirror, dry_run=True)
        assert drill.result.exit_code == 0
        assert {row.lag for row in drill.result.results} == {0}
        done = failover(destination, mirror)
        assert done.result.exit_code == 0, done.result
        for clients in (drill.result.clients, done.result.clients):
            assert clients is not None
            assert (clients.rights, clients.quotas, clients.unknown) == ((), (), ())  # everyone may do everything
        assert engine.engine.mirror == mirror
    assert {(r.topic, r.partition, r.result, r.last_mirrored_offset, r.lag) for r in done.result.results} == {
        (topic, partition, Outcome.DONE, 0 if partition else 3, 0) for topic in topics for partition in range(2)
    }
    for topic in topics:
        # one invisible marker each, which fences who wrote before
        assert end_of(destination, topic) == 4
        assert [record.value for record in shown(cluster_pair.destination, topic)] == [b"one", b"two", b"three"]
        assert settings_of(cluster_pair.destination, topic)["max.message.bytes"] == "2000000"
        produce(cluster_pair.destination, topic, ["local"])
    rows = describe(destination, mirror)
    assert {(row.state, row.topic_state, row.reason) for row in rows} == {
        (PartitionState.STOPPED, TopicState.STOPPED, Reason.FAILED_OVER)
    }
    again = failover(destination, mirror)
    assert again.result.exit_code == 0
    assert {row.result for row in again.result.results} == {Outcome.NOOP}
    assert end_of(destination, topics[0]) == 5


def test_a_failover_says_since_when_group_offsets_are_old(cluster_pair: ClusterPair, destination: Destination) -> None:
    mirror = mirrored(cluster_pair, destination, unique_topic())
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()

    def on_groups(*, dry_run: bool = True) -> list[str]:
        result = failover(destination, mirror, dry_run=dry_run).result
        return [text for text in result.warnings if text.startswith("group offsets")]

    assert on_groups() == ["group offsets were never read from the source: groups start where auto.offset.reset says"]
    with closing(GroupSyncJob(mirror, destination.properties)) as job:
        run_once(job, destination, mirror)
    assert on_groups() == []

    def an_hour_ago(state: State) -> Changes:
        checked = settled(state.groups_checked(mirror), "when groups were read")
        return Changes((replace(checked, time_ms=checked.time_ms - 3_600_000),))

    change(destination, mirror, an_hour_ago)
    for dry_run in (True, False):
        (text,) = on_groups(dry_run=dry_run)
        assert re.fullmatch(
            "group offsets were last read from the source at 20[0-9TZ:-]+, (59|60|1h)[0-9ms]* before its ends "
            "were seen: what groups have read since, they read again",
            text,
        )


def test_a_silent_engine_is_fenced_at_the_brokers(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    # as if it had been frozen while it was in charge
    change(destination, mirror, lambda state: Changes((replace(engine_of(state, mirror), state=EngineState.RUNNING),)))
    done = failover(destination, mirror)
    assert done.result.exit_code == 0
    late = make_batch([Record(4, 1_600_000_000_000, b"late", b"late")])
    set_producer(memoryview(late), own_producer_id(mirror, topic, 0), 0, 4)
    with pytest.raises(BrokerError, match="INVALID_PRODUCER_EPOCH"):
        append_to(destination.client, TopicPartition(topic, 0), memoryview(late))
    assert [record.value for record in shown(cluster_pair.destination, topic)] == [b"one", b"two", b"three"]
    # its lease is gone as well
    assert engine_of(destination.state(), mirror).state is EngineState.RELEASED


def test_a_fence_is_found_again_after_later_writes_of_other_clients(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.destination, topic)
    partition, me = TopicPartition(topic, 0), 1 << 62 | 12345
    with OffsetAppender(destination.client, partition, producer_id=me) as out:
        out.append([Record(0, 1, b"k", b"v")])
        out.append([Record(5, 1, b"k", b"v")])
    assert fence(destination.client, {partition: Writer(me, 0)}) == {partition: FenceResult(0, 6, is_fenced=True)}
    produce(cluster_pair.destination, topic, ["local"] * 10)
    assert fence(destination.client, {partition: Writer(me, 0, known_end=3)}) == {
        partition: FenceResult(0, 6, is_fenced=True)
    }
    assert end_of(destination, topic) == 17
    # one who wrote nothing yet is shut out as well
    other = {partition: Writer(me + 1, 0)}
    assert fence(destination.client, other, with_record=True) == {partition: FenceResult(0, 17, is_fenced=True)}
    # also again, whether or not markers may be written by then, and after others
    produce(cluster_pair.destination, topic, ["local"])
    for with_record in (True, False):
        assert fence(destination.client, other, with_record=with_record) == {
            partition: FenceResult(0, 17, is_fenced=True)
        }
    assert end_of(destination, topic) == 19
    late = make_batch([Record(19, 1, b"k", b"v")])
    set_producer(memoryview(late), me + 1, 0, 0)
    with pytest.raises(BrokerError, match="INVALID_PRODUCER_EPOCH"):
        append_to(destination.client, partition, memoryview(late))
    # it was deleted: all that is left came after it; unless it must be in what is left
    delete_records(cluster_pair.destination, topic, 9)
    deleted = {partition: FenceResult(0, 9, is_fenced=True)}
    assert fence(destination.client, {partition: Writer(me, 0, known_end=3)}) == deleted
    (lost,) = fence(destination.client, {partition: Writer(me, 0, known_end=12)}).values()
    assert (lost.end_offset, lost.is_fenced) == (None, False)
    assert "has changed since" in destination.client.unanswered[partition]


def test_remove_leaves_other_topics_alone_and_can_be_reverted(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    kept, removed = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, kept, removed)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(destination, mirror)))
        # an expression is for later topics too: one that matches none yet is not refused
        later = f"{removed}-later.*"
        drill = remove(destination, mirror, selector(removed, later), dry_run=True)
        done = remove(destination, mirror, selector(removed, later))
        assert done.result.exit_code == 0, done.result
        assert (
            f"{later} matches no mirror topic of mirror {mirror}: no topic was stopped for it" in done.result.warnings
        )
        assert said(drill.result) == said(done.result)
        assert [(r.result, r.last_mirrored_offset) for r in done.result.results] == [(Outcome.DONE, 3)]
        # the engine released it and said so: no marker was needed, so the copy can resume where it ended
        assert end_of(destination, removed) == 3
        produce(cluster_pair.source, removed, ["four"])
        produce(cluster_pair.source, kept, ["four"])
        engine.catch_up()
        assert (end_of(destination, kept), end_of(destination, removed)) == (4, 3)
        # what the engine answers over HTTP knows of the stop, and that nothing is wrong with it
        get = asking(engine.service)
        both = {"MIRRORING": 1, "STOPPED": 1}
        assert_all_say(get, describing(destination, mirror), lambda reported: reported["states"] == both)
        assert get("/readyz") == (200, "records flow\n")
        record = destination.state().mirror(mirror)
        assert record is not None
        assert record.settings["topics.exclude"] == f"{removed},{later}"
        adopted = add(destination, mirror, selector(removed), adopt=True)
        assert adopted.exit_code == 0, adopted
        engine.catch_up()
        assert end_of(destination, removed) == 4
    assert [record.value for record in shown(cluster_pair.destination, removed)] == [b"one", b"two", b"three", b"four"]
    record = destination.state().mirror(mirror)
    assert record is not None
    assert record.settings["topics.exclude"] == later


def test_a_removed_topic_that_was_written_to_is_not_adopted(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    assert remove(destination, mirror, selector(topic)).result.exit_code == 0
    produce(cluster_pair.destination, topic, ["local"])
    refused = add(destination, mirror, selector(topic), adopt=True)
    assert refused.exit_code == ExitCode.REFUSED
    assert "failback" in str(refused.results[0].hint)


def test_pause_stops_the_copy_and_resume_continues_it(cluster_pair: ClusterPair, destination: Destination) -> None:
    paused, other = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, paused, other)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        assert pause(destination, mirror, selector(paused)).exit_code == 0
        rows = {row.topic: row for row in describe(destination, mirror)}
        assert (rows[paused].state, rows[paused].topic_state) == (PartitionState.PAUSED, TopicState.PAUSED)
        assert rows[other].state is PartitionState.MIRRORING
        produce(cluster_pair.source, paused, ["four"])
        produce(cluster_pair.source, other, ["four"])
        engine.catch_up()
        assert (end_of(destination, paused), end_of(destination, other)) == (3, 4)
        assert {row.result for row in pause(destination, mirror, selector(paused)).results} == {Outcome.NOOP}
        assert resume(destination, mirror, selector(paused)).exit_code == 0
        engine.catch_up()
        assert end_of(destination, paused) == 4
        assert {row.state for row in describe(destination, mirror)} == {PartitionState.MIRRORING}
        assert pause(destination, mirror).exit_code == 0
        assert {row.topic_state for row in describe(destination, mirror)} == {TopicState.PAUSED}
    record = destination.state().mirror(mirror)
    assert record is not None
    assert record.paused
    assert resume(destination, mirror).exit_code == 0


def test_a_pause_with_a_silent_engine_returns_when_its_lanes_cannot_write_any_more(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They copy for half a minute after the last heartbeat."""
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)

    def no_answer(*_: object) -> None:
        raise UnreachableError("no answer")

    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        monkeypatch.setattr(Lease, "renewal", lambda *_: None)
        monkeypatch.setattr(Lease, "store", no_answer)
        done = pause(destination, mirror, selector(topic))
        assert done.exit_code == 0
        assert all(lane.control.deadline < now() for lane in engine.lanes)
        assert "was fenced" in done.warnings[0]
        monkeypatch.undo()
    produce(cluster_pair.source, topic, ["four"])
    with LocalEngine(destination, mirror):
        assert pause(destination, mirror).warnings == ()
    assert end_of(destination, topic) == 3


def test_a_pause_of_a_mirror_is_not_held_against_what_was_stopped_before(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    stopped, mirrored_on = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, stopped, mirrored_on)
    assert failover(destination, mirror, selector(stopped)).result.exit_code == 0
    for verb in (pause, resume):
        done = verb(destination, mirror)
        assert done.exit_code == 0, done
        assert {row.topic for row in done.results} == {mirrored_on, None}
        # but it is refused where it is named, or alone
        assert verb(destination, mirror, selector(stopped)).exit_code == ExitCode.REFUSED
    assert failover(destination, mirror).result.exit_code == 0
    assert resume(destination, mirror).exit_code == ExitCode.REFUSED


ACTING = [step for step in STOP if step.act is not None]


def said(result: VerbResult) -> tuple[object, ...]:
    """Return everything that a rehearsal and the stop itself must say alike; times and tenses aside."""
    rows = [
        (r.topic, r.partition, r.result, r.reason, r.last_mirrored_offset, r.lag, re.sub(AT, "AT", str(r.message)))
        for r in result.results
    ]
    now = [str(row).replace("would be", "is") for row in rows]
    return result.exit_code, result.steps, now, result.groups, result.warnings


@pytest.mark.parametrize(
    "cut",
    [pytest.param(step, id=step.does[:50], marks=() if step.recorded else pytest.mark.long) for step in ACTING],
)
def test_cut_off_after_each_step_rehearsed_and_run_again(
    cluster_pair: ClusterPair, destination: Destination, cut: Step[StopWork]
) -> None:
    topic, gone = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, topic, gone, cleanup_policy="compact", retention_bytes="1000000000")
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    delete_topic(cluster_pair.destination, gone)
    drill = failover(destination, mirror, dry_run=True).result
    walked: list[str] = []

    def checkpoint(does: str) -> None:
        walked.append(does)
        if does == cut.does:
            raise CutOffError(does)

    assert cut.does in (drill.steps or ()), "this step has nothing to do here"
    with pytest.raises(CutOffError):
        failover(destination, mirror, checkpoint=checkpoint)
    assert tuple(walked) == (drill.steps or ())[: len(walked)]
    with Destination.open(destination.properties) as another:
        again = failover(another, mirror, dry_run=True).result
        done = failover(another, mirror).result
    assert said(again) == said(done)
    durable = {step.does for step in STOP if step.recorded is not None}
    assert not durable.intersection(walked).intersection(done.steps or ()), "recorded, and done again"
    assert done.exit_code == 0, done
    assert {row.last_mirrored_offset for row in done.results if row.topic == topic} == {3}
    assert end_of(destination, topic) == 4
    assert settings_of(cluster_pair.destination, topic)["compression.type"] == "producer"
    (row,) = describe(destination, mirror, selector(topic))
    assert (row.state, row.last_mirrored_offset, row.reason) == (PartitionState.STOPPED, 3, Reason.FAILED_OVER)


def test_two_operators_at_once(cluster_pair: ClusterPair, destination: Destination) -> None:
    topics = [unique_topic() for _ in range(3)]
    mirror = mirrored(cluster_pair, destination, *topics)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    results = []

    def fail_over() -> None:
        with Destination.open(destination.properties) as own:
            results.append(failover(own, mirror).result)

    operators = [threading.Thread(target=fail_over) for _ in range(2)]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join(60)
    assert [result.exit_code for result in results] == [0, 0], results
    rows = describe(destination, mirror)
    assert {(row.state, row.last_mirrored_offset) for row in rows} == {(PartitionState.STOPPED, 3)}
    for topic in topics:
        produce(cluster_pair.destination, topic, ["local"])
        assert [record.value for record in shown(cluster_pair.destination, topic)][-1] == b"local"


def test_a_mirror_of_which_everything_has_failed(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        produce(cluster_pair.destination, topic, ["foreign"])
        produce(cluster_pair.source, topic, ["four", "five"])
        until = time.monotonic() + PATIENCE_S
        while describe(destination, mirror)[0].state is not PartitionState.FAILED:
            assert time.monotonic() < until
            time.sleep(0.2)
    done = failover(destination, mirror).result
    assert done.exit_code == 0, done
    (row,) = describe(destination, mirror)
    assert (row.state, row.reason, row.error_message) == (PartitionState.STOPPED, Reason.FAILED_OVER, None)


def test_topics_that_are_gone_or_were_never_there(cluster_pair: ClusterPair, destination: Destination) -> None:
    gone, kept = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, gone, kept)
    delete_topic(cluster_pair.destination, gone)
    make_topic(cluster_pair.destination, gone)
    done = failover(destination, mirror)
    assert done.result.exit_code == 0, done.result
    assert end_of(destination, gone) == 0, "another topic of its name was written to"
    assert any("first copy was not complete" in warning for warning in done.result.warnings)
    with pytest.raises(RefusedError):
        failover(destination, mirror, selector("nobody-knows-it"))


def test_filler_of_a_copy_that_was_never_finished_is_not_left_to_readers(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    with OffsetAppender(
        destination.client, TopicPartition(topic, 0), producer_id=own_producer_id(mirror, topic, 0)
    ) as out:
        filler = filler_batch(1000, now_ms())
        set_producer(memoryview(filler), own_producer_id(mirror, topic, 0), 0, 0)
        append_to(destination.client, TopicPartition(topic, 0), memoryview(filler))
        assert out is not None
    drill = failover(destination, mirror, dry_run=True).result
    assert [one for one in drill.warnings if "would be empty at 1000" in one]
    done = failover(destination, mirror)
    assert done.result.exit_code == 0
    assert [one for one in done.result.warnings if "is empty at 1000" in one]
    assert shown(cluster_pair.destination, topic) == []
    assert done.result.results[0].last_mirrored_offset == 1000


def engine_of(state: State, mirror: str) -> EngineRecord:
    found = state.engine(mirror)
    assert found is not None
    return found


class CutOffError(Exception):
    """The process is gone here."""


@pytest.mark.parametrize("copied", [3, 4])
def test_a_source_that_ends_before_what_was_copied_earlier_has_lost_records(
    cluster_pair: ClusterPair, destination: Destination, copied: int
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    produce(cluster_pair.source, topic, ["1", "2", "3"])
    mirror = new_mirror(destination, cluster_pair.source)
    assert add(destination, mirror, selector(topic)).exit_code == 0
    state, partition = destination.state(), TopicPartition(topic, 0)
    request = SourceEndsRequest(require_mirror(state, mirror), state.topics(mirror), {partition: copied})
    with closing(request):
        end = request.answer().ends[partition]
    assert (end.offset, end.went_back) == (3, copied == 4)


def test_a_mirror_is_not_deleted_in_the_middle_of_a_stop(cluster_pair: ClusterPair, destination: Destination) -> None:
    """Once, it was if nothing was stored of its partitions yet: what the stop had not lifted was forgotten."""
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)

    def cut(does: str) -> None:
        raise CutOffError(does)

    with pytest.raises(CutOffError, match="record which topics are stopped"):
        failover(destination, mirror, checkpoint=cut)
    assert not destination.state().partitions(mirror, topic)
    with pytest.raises(RefusedError, match=f"a failover of {topic} has started and is not finished") as refused:
        delete(destination, mirror)
    assert f"`kmirror failover --mirror {mirror} --topics {topic}` finishes it" in str(refused.value.hint)
    assert failover(destination, mirror).result.exit_code == 0
    assert delete(destination, mirror).exit_code == 0


def test_a_failover_ends_a_wait_for_what_it_has_not_copied(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair, destination, topic)
    checks: list[str] = []

    def check(progress: str) -> None:
        if not checks:
            assert failover(destination, mirror).result.exit_code == 0
        checks.append(progress)

    done = wait(destination, mirror, Condition.CAUGHT_UP, 60_000, on_check=check)
    assert done.exit_code == ExitCode.PARTLY_DONE
    assert done.results[0].message == f"{topic}-0 is not caught-up: it was stopped 3 offsets short"
    # what was stopped before is not waited for
    assert wait(destination, mirror, Condition.CAUGHT_UP, 60_000).exit_code == 0
