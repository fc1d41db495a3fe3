"""An engine between two real clusters whose lanes do not run: what they would report is written by the test.

What is looked at is what the engine makes of it: what lanes are sent, what is stored, what is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change
from kmirror.ops.base.results import VerbResult
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import remove
from kmirror.settings.value_types import StartFrom
from kmirror.state.history_records import points_of
from kmirror.state.record_kinds import decode
from kmirror.state.records import Incarnation, PartitionRecord, PartitionState
from kmirror.state.snapshot import Changes
from kmirror.status.topic_state import TopicState
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.idle_engine import ALIGNING, MIRRORING, Run, mirror, row, topic
from tests.support.mirrors import delete_topic, make_topic, properties_of, selector
from tests.support.stores import LostAnswers, Written

__all__ = ["mirror", "topic"]


def noted(run: Run) -> list[str]:
    """Return what the engine has noted for watchers."""
    return [note.text for note in run.engine.journal.notes]


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
        found = run.stored(topic)
        assert found == replace(
            kept,
            state=MIRRORING,
            state_time_ms=found.state_time_ms,
            initial_copy_complete=True,
            initial_copy_ms=found.initial_copy_ms,
            begun=True,
            aligned=True,
        )
        assert found.initial_copy_ms is not None
        notes = [note for note in noted(run) if "starts at" in note]
        assert notes == [f"{topic}-0 starts at offset 5, as decided when the topic was added"]
    events = [(e.what, e.result, e.details) for e in destination.store.read_events(mirror)]
    reported = ("partition", "ALIGNED", {"topic": topic, "partition": 0, "offset": 5})
    assert events.count(reported) == 1
    (went,) = [point for _, point in points_of(destination.state().history(mirror))]
    assert (went.lag, went.lag_unknown, went.time_lag_ms, went.failed, went.phase) == (0, 0, 0, 0, None)
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        assert run.begins() == {(topic, 0): (5, True)}
        run.report(row(topic, ALIGNING, 7))
        assert run.stored(topic).state is ALIGNING
        assert describe(destination, mirror)[0].topic_state is TopicState.ACTIVE
    # the next engine adds to what the one before has remembered
    assert [point for _, point in points_of(destination.state().history(mirror))][:1] == [went]
    assert len(points_of(destination.state().history(mirror))) == 2


def test_new_records_are_no_reason_to_stop_a_lane_and_its_successor_is_sent_them(
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
        assert all(assignment.merges_batches for assignment in run.lanes.specs[-1].assignments)
        assert change_config(destination, mirror, {"copy.merge.batches": "never"}, ()).exit_code == 0
        run.until(lambda: not any(assignment.merges_batches for assignment in run.engine.orders.assignments()))


def test_a_topic_that_was_deleted_and_added_again_has_no_past(
    cluster_pair: ClusterPair, destination: Destination, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic), start_from=StartFrom("latest"))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 7, begun=True))
        assert run.stored(topic).begun
        former = run.lanes.specs[-1].assignments
        delete_topic(cluster_pair.destination, topic)
        add(destination, mirror, selector(topic))
        # the lane of its former life has a last word
        run.say(row(topic, MIRRORING, 8, begun=True), fills_by_transactions=True)
        run.until(lambda: any("empty transactions" in note for note in noted(run)))
        assert run.engine.partitions.rows == {}
        run.until(lambda: run.lanes.specs[-1].assignments[:1] != former, lanes_end=True)
        assert run.begins() == {(topic, 0): (0, False)}
        run.report(row(topic, ALIGNING, 0))
        found = run.stored(topic)
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
        assert not run.stored(topic).initial_copy_complete
        run.report(row(topic, MIRRORING, 5, source_log_start=5, aligned_to=5))
        assert run.is_caught_up()
        assert run.stored(topic).initial_copy_complete
        assert f"{topic}-0 starts at offset 5, where its source's log starts" in noted(run)


def test_an_idle_partition_is_complete_though_it_reported_before_the_source(
    destination: Destination, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs) and run.engine.partitions.targets is not None)
        run.forget_the_source()
        run.report(row(topic, MIRRORING, 5))
        run.until(lambda: run.engine.partitions.targets is not None)
        assert run.stored(topic).initial_copy_complete


def test_filling_by_transactions_is_reported_once(destination: Destination, mirror: str, topic: str) -> None:
    add(destination, mirror, selector(topic))
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        run.report(row(topic, MIRRORING, 4), fills_by_transactions=True)
        run.report(row(topic, MIRRORING, 5), fills_by_transactions=True)
        notes = [note for note in noted(run) if "empty transactions" in note]
    assert notes == [
        "markers may not be written (ALTER on the destination cluster is not granted): "
        "offsets are filled by empty transactions, which is slower"
    ]
    events = [(event.what, event.result) for event in destination.store.read_events(mirror)]
    assert events.count(("offsets", "FILLED_BY_TRANSACTIONS")) == 1


def test_a_lane_is_sent_how_far_its_predecessor_was(
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
        run.stored(topic)
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        assert known_end(run) == 7
        run.report(row(topic, MIRRORING, 4, begun=True)._replace(again_from=4, again_until=7))
        note = f"{topic}-0 lost the offsets 4 to 6 at the destination"
        assert [line for line in noted(run) if line.startswith(note)], noted(run)


def test_a_lane_is_sent_a_misplaced_batch_of_an_earlier_engine(
    destination: Destination, mirror: str, topic: str
) -> None:
    add(destination, mirror, selector(topic))
    reported = row(topic, PartitionState.FAILED, 4, begun=True)._replace(
        reason=Reason.OFFSET_MISMATCH, message="4 is at 5"
    )
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        (assignment,) = run.lanes.specs[-1].assignments
        assert assignment.mismatch is None
        run.report(reported)
        run.stored(topic)
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        (assignment,) = run.lanes.specs[-1].assignments
        assert (assignment.mismatch, assignment.mismatch_offset) == ("4 is at 5", 4)
        run.report(reported._replace(reason=Reason.DESTINATION_WRITTEN))
        run.stored(topic)
    with Run(destination, mirror) as run:
        run.until(lambda: bool(run.lanes.specs))
        (assignment,) = run.lanes.specs[-1].assignments
        assert assignment.mismatch is None


# -- answers that are lost --------------------------------------------------------------------------------------------


def test_a_word_whose_answer_was_lost_is_not_said_again_over_what_a_stop_recorded_since(
    monkeypatch: pytest.MonkeyPatch, destination: Destination, mirror: str, topic: str
) -> None:
    # that a partition is released is written, and then no broker answers the engine any more
    answers = LostAnswers(monkeypatch, _gives_up, ids="kmirror-engine-", cuts_off=True)
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
        assert run.stored(topic) == stopped
        run.heartbeat()
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
            run.heartbeat()
            assert not removed.done(), "a lane has it"
        run.until(removed.done, lanes_end=True)
        assert removed.result().exit_code == 0
        run.heartbeat()
        assert run.stored(topic).state is PartitionState.STOPPED


def _gives_up(written: Written) -> bool:
    records = [decode(key, value) for key, value in written.get(TopicPartition("__kmirror_state", 0), ()) if value]
    return any(isinstance(one, PartitionRecord) and one.state is PartitionState.STOPPING for one in records)


def _removed(properties: Mapping[str, str], mirror: str, topic: str) -> VerbResult:
    with Destination.open(properties) as opened:
        return remove(opened, mirror, selector(topic)).result
