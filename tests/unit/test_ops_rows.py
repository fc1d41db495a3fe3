"""The rows of `describe` and `list`, from stored state and snapshots of both clusters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import PartitionMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.errors import ExitCode, KmirrorError, Reason, RefusedError, UnreachableError, UsageError
from kmirror.ops.base.results import exit_code_of
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.wait import Condition, judge
from kmirror.state.record_kinds import Record
from kmirror.state.records import (
    PENDING_ADD,
    PENDING_PROMOTE,
    AtStop,
    DesiredState,
    EngineRecord,
    EngineState,
    Incarnation,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
    Rebuild,
    RebuildStep,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import State
from kmirror.state.workflow_records import PROMOTE, WorkflowRecord
from kmirror.status.mirror_status import MIRRORS
from kmirror.status.objective_state import ObjectiveState
from kmirror.status.observed import ClusterSnapshot
from kmirror.status.partition_row import PARTITIONS, PartitionRow
from kmirror.status.topic_state import TopicState
from tests.support.statuses import status_of

NOW = 1_000_000
IDS = {"a.orders": bytes(15) + b"\1", "orders": bytes(15) + b"\2"}
MIRROR = MirrorRecord("m", {"bootstrap.servers": "a:1"}, {}, "A", "eve@ops", 0)
TOPIC = TopicRecord(
    "m",
    "a.orders",
    "orders",
    format_topic_id(IDS["orders"]),
    format_topic_id(IDS["a.orders"]),
    DesiredState.ACTIVE,
    1,
    TopicOrigin.CREATED,
)
ENGINE = EngineRecord(
    "m",
    "l",
    EngineState.RUNNING,
    "h1",
    "b",
    7,
    8,
    "app-1",
    "local[2]",
    0,
    NOW - 500,
    5_000,
    lanes={0: Incarnation(1, 0)},
)
P0 = TopicPartition("a.orders", 0)


def topic(name: str, error: int = 0, topic_id: bytes | None = None) -> TopicMetadata:
    found = {} if error else {0: PartitionMetadata(0, 0, 1, 0, (1,), (1,))}
    return TopicMetadata(name, error, topic_id or IDS.get(name, bytes(16)), False, found)


HERE = ClusterSnapshot(NOW, {"a.orders": topic("a.orders")}, log_start_offset={P0: 3}, high_watermark={P0: 90})
THERE = ClusterSnapshot(
    NOW,
    {"orders": topic("orders")},
    log_start_offset={TopicPartition("orders", 0): 2},
    last_stable_offset={TopicPartition("orders", 0): 100},
    high_watermark={TopicPartition("orders", 0): 105},
)


def down(error: KmirrorError) -> ClusterSnapshot:
    return ClusterSnapshot(NOW, trouble=error)


SILENT = down(UnreachableError("the source: no answer", None, Reason.SOURCE_UNREACHABLE))


def partition(state: PartitionState, at: int = NOW - 5000, **more: Any) -> PartitionRecord:
    return PartitionRecord("m", "a.orders", 0, state, at, **more)


def progress(state: PartitionState = PartitionState.MIRRORING, at: int = NOW - 1000, **more: Any) -> ProgressRecord:
    row = ProgressRow("a.orders", 0, 80, 85, 1, 70, NOW - 4000, state, **more)
    return ProgressRecord("m", 0, "l", 1, 0, "h1", 9, at, (row,))


def row(
    *records: Record, here: ClusterSnapshot = HERE, there: ClusterSnapshot | None = THERE, topic: TopicRecord = TOPIC
) -> PartitionRow:
    (found,) = status_of(State.of([MIRROR, topic, *records]), MIRROR, [topic], here, there, NOW).partitions
    return found


def test_json_has_exactly_these_keys_and_values() -> None:
    copying = progress(bytes_per_second=5_000.0, offsets_per_second=4.0, records_per_second=1.5)
    assert PARTITIONS.document(row(ENGINE, copying)) == {
        "mirror": "m",
        "topic": "a.orders",
        "partition": 0,
        "sourceOffset": 100,
        "destinationOffset": 90,
        "lag": 10,
        "state": "MIRRORING",
        "retryAttempt": 0,
        "errorMessage": None,
        "sourceTopic": "orders",
        "topicState": "ACTIVE",
        "reason": None,
        "stateTimeMs": None,
        "timeLagMs": 4000,
        "lastKnownLag": 10,
        "sourceLogStart": 2,
        "destinationLogStart": 3,
        "keptBeyondSourceLogStart": 0,
        "throttleBytesPerSecond": None,
        "sourceHighWatermark": 105,
        "lastMirroredOffset": None,
        "lastMirroredEpoch": None,
        "initialCopyComplete": False,
        "initialCopyAt": None,
        "rebuiltAt": None,
        "archive": None,
        "offsetsToArchive": None,
        "archiveLogEnd": None,
        "asOf": NOW,
        "engine": "h1/app-1",
        "engineLastSeenMs": NOW - 500,
        "engineAgeMs": 500,
        "bytesPerSecond": 5_000,
        "recordsPerSecond": 4.0,
        "etaMs": 2_500,
        "offsetsToFill": None,
        "lane": 0,
        "worker": "h1",
        "limitedBy": None,
        "objectiveMs": None,
        "objectiveState": None,
    }


def test_a_path_that_is_the_limit_is_named_with_its_connections() -> None:
    copying = replace(progress(), path_connections=32, path_bytes_per_second=64_000_000)
    found = row(ENGINE, copying)
    assert found.limited_by == "source path, 32 connections of 2.0 MB/s each"
    assert PARTITIONS.notes is not None
    assert "m: limited by: source path, 32 connections of 2.0 MB/s each" in list(PARTITIONS.notes([found]))
    assert row(ENGINE, progress()).limited_by is None


def test_a_long_gap_is_shown_with_what_is_left_and_for_how_long() -> None:
    found = row(ENGINE, progress(offsets_to_fill=1_200_000, offsets_per_second=16_000.0))
    assert PARTITIONS.document(found)["offsetsToFill"] == 1_200_000
    assert PARTITIONS.notes is not None
    note = "partition fills offsets at which the source has no records: 1,200,000 left"
    assert f"m: 1 {note}, 16,000 a second, about 1m15s" in list(PARTITIONS.notes([found]))
    slow = replace(found, partition=1, records_per_second=None)
    several = "m: 2 partitions fill offsets at which the source has no records: 2,400,000 left"
    assert several in list(PARTITIONS.notes([found, slow]))
    # a lane that is gone fills nothing
    assert row(progress(offsets_to_fill=1_200_000)).offsets_to_fill is None


def test_a_source_that_is_silent_leaves_the_last_known_values_with_their_age() -> None:
    found = row(ENGINE, progress(), there=SILENT)
    assert (found.source_offset, found.source_high_watermark, found.source_log_start) == (80, 85, 1)
    assert (found.lag, found.last_known_lag, found.as_of_ms) == (None, 10, NOW - 3000)
    assert (found.topic_state, found.reason) == (TopicState.SOURCE_UNAVAILABLE, Reason.SOURCE_UNREACHABLE)
    assert found.error_message == "the source: no answer"


def test_what_was_never_known_is_null() -> None:
    found = row(there=SILENT)
    assert found.source_offset is None
    assert found.last_known_lag is None
    assert found.as_of_ms is None
    assert found.destination_offset == 90


@pytest.mark.parametrize(
    ("trouble", "state", "reason"),
    [
        (UnreachableError("x", None, Reason.AUTHENTICATION_FAILED), TopicState.LINK_FAILED, "AUTHENTICATION_FAILED"),
        (RefusedError("x", None, Reason.SOURCE_CLUSTER_CHANGED), TopicState.LINK_FAILED, "SOURCE_CLUSTER_CHANGED"),
        (UnreachableError("x", None, Reason.SECRET_UNRESOLVED), TopicState.ACTIVE, None),
        (UsageError("x", None), TopicState.ACTIVE, None),
    ],
)
def test_a_refused_link_and_secrets_that_are_elsewhere(
    trouble: KmirrorError, state: TopicState, reason: str | None
) -> None:
    found = row(ENGINE, progress(), there=down(trouble))
    assert (found.topic_state, found.reason) == (state, reason)
    assert found.lag is None


NEXT_STEP = (
    "`kmirror check --mirror m` shows the cause; copying resumes automatically once the source accepts the "
    "connection; to change its credentials: kmirror config --mirror m --set KEY=VALUE, or change where its secrets "
    "are stored; a running engine picks that up within seconds, except for environment variables"
)
TOLD = "the source: a:1 refuses user eve; LINK_FAILED since 2026-11-21T22:00:00Z"
ELSEWHERE = down(UnreachableError("x", None, Reason.SECRET_UNRESOLVED))


@pytest.mark.parametrize("there", [THERE, SILENT, ELSEWHERE], ids=["answers here", "silent here", "not asked here"])
def test_a_link_that_refuses_the_engine_is_failed_whatever_a_look_from_here_finds(there: ClusterSnapshot) -> None:
    refused = progress(reason=Reason.AUTHENTICATION_FAILED, message=TOLD)
    found = row(ENGINE, refused, there=there)
    assert (found.state, found.topic_state) == (PartitionState.MIRRORING, TopicState.LINK_FAILED)
    assert (found.reason, found.error_message) == (Reason.AUTHENTICATION_FAILED, f"{TOLD}; {NEXT_STEP}")
    state = State.of([MIRROR, TOPIC, ENGINE, refused])
    assert status_of(state, MIRROR, [TOPIC], HERE, there, NOW).row.state is TopicState.LINK_FAILED


def test_a_source_that_is_silent_to_the_engine_is_unavailable_although_it_answers_here() -> None:
    silent = progress(reason=Reason.SOURCE_UNREACHABLE, message="the source: no one there")
    found = row(ENGINE, silent)
    assert (found.topic_state, found.error_message) == (TopicState.SOURCE_UNAVAILABLE, "the source: no one there")
    assert row(ENGINE, silent, there=SILENT).error_message == "the source: no one there"
    refused = row(ENGINE, silent, there=down(UnreachableError("no", None, Reason.AUTHENTICATION_FAILED)))
    assert (refused.topic_state, refused.error_message) == (TopicState.LINK_FAILED, f"no; {NEXT_STEP}")


def test_what_an_engine_said_that_is_gone_does_not_count() -> None:
    found = row(progress(reason=Reason.AUTHENTICATION_FAILED, message=TOLD))
    assert (found.topic_state, found.reason) == (TopicState.LINK_FAILED, Reason.NO_ENGINE)


def test_one_partition_without_a_leader_leaves_its_topic_active() -> None:
    two = replace(TOPIC, partitions=2)
    said = progress(reason=Reason.SOURCE_UNREACHABLE, message="no leader")
    other = replace(said, rows=(*said.rows, said.rows[0]._replace(partition=1, reason=None, message=None)))
    found = status_of(State.of([MIRROR, two, ENGINE, other]), MIRROR, [two], HERE, THERE, NOW).partitions
    assert [(one.topic_state, one.reason) for one in found] == [
        (TopicState.ACTIVE, Reason.SOURCE_UNREACHABLE),
        (TopicState.ACTIVE, None),
    ]


NO_LANE_YET = replace(ENGINE, lanes={})
SILENT_LANE = replace(ENGINE, silent_lanes={0: NOW - 34_000}, master="spark://h:1")
OTHER_LANE = replace(ENGINE, lanes={1: Incarnation(1, 0)}, silent_lanes={1: NOW - 34_000})


@pytest.mark.parametrize(
    ("engine", "reason", "message"),
    [
        pytest.param(
            None, Reason.NO_ENGINE, "no engine copies mirror m; `kmirror run --mirror m` starts one", id="none"
        ),
        pytest.param(
            replace(ENGINE, state=EngineState.RELEASED), Reason.NO_ENGINE, "`kmirror run --mirror m`", id="released"
        ),
        pytest.param(
            replace(ENGINE, last_seen_ms=NOW - 90_000),
            Reason.NO_ENGINE,
            "(h1/app-1 last reported 1m30s ago by this host's clock)",
            id="gone",
        ),
        pytest.param(
            replace(ENGINE, last_seen_ms=NOW - 10_000),
            Reason.ENGINE_SILENT,
            "h1/app-1 last reported 10s ago by this host's clock; check process 7 on h1, or `kmirror run --mirror m",
            id="silent",
        ),
        pytest.param(
            replace(ENGINE, last_seen_ms=NOW + 11_000),
            Reason.ENGINE_SILENT,
            "from a clock that is ahead of this host's: whether it still runs is unknown; set the clocks",
            id="from the future",
        ),
        pytest.param(NO_LANE_YET, Reason.NO_WORKERS, "h1/app-1 has not started a worker for it yet", id="no lane yet"),
        pytest.param(
            SILENT_LANE,
            Reason.NO_WORKERS,
            "no worker has reported on lane 0 for 34s; check the workers of Spark master spark://h:1",
            id="its lane is silent",
        ),
        pytest.param(
            OTHER_LANE, Reason.NO_WORKERS, "no worker has reported on lane 1 for 34s", id="in no lane's report"
        ),
        pytest.param(
            replace(SILENT_LANE, lease_id="another"), Reason.NO_WORKERS, "no worker has reported", id="another engine's"
        ),
    ],
)
def test_nothing_is_active_on_paper_only(engine: EngineRecord | None, reason: Reason, message: str) -> None:
    found = row(progress(), *([] if engine is None else [engine]))
    assert (found.state, found.topic_state, found.reason) == (
        PartitionState.MIRRORING,
        TopicState.LINK_FAILED,
        reason,
    )
    assert message in (found.error_message or "")
    # the snapshot from here is current, whatever copies
    assert (found.lag, found.is_reported) == (10, False)
    assert judge(Condition.HEALTHY, [found], {})[0].reason is reason


def test_an_engine_whose_process_is_gone_from_this_machine_is_none_at_once() -> None:
    state = State.of([MIRROR, TOPIC, ENGINE, progress()])
    (found,) = status_of(state, MIRROR, [TOPIC], HERE, THERE, NOW, engine_has_ended=True).partitions
    assert (found.reason, found.engine, found.engine_age_ms) == (Reason.NO_ENGINE, None, 500)
    old = State.of([MIRROR, TOPIC, replace(ENGINE, last_seen_ms=NOW - 90_000), progress()])
    (frozen,) = status_of(old, MIRROR, [TOPIC], HERE, THERE, NOW, engine_has_ended=False).partitions
    assert (frozen.reason, frozen.engine) == (Reason.ENGINE_SILENT, "h1/app-1")
    listed = status_of(state, MIRROR, [TOPIC], HERE, THERE, NOW, engine_has_ended=True).row
    assert (listed.state, listed.reason, listed.engine) == (TopicState.LINK_FAILED, Reason.NO_ENGINE, None)


def test_a_partition_that_no_lane_has_reported_on_yet_is_not_healthy() -> None:
    found = row(ENGINE, replace(progress(), lease_id="the one before"))
    assert (found.topic_state, found.reason, found.is_reported) == (TopicState.ACTIVE, None, False)
    assert judge(Condition.HEALTHY, [found], {})[0].result is Outcome.TIMED_OUT
    assert judge(Condition.HEALTHY, [row(ENGINE, progress())], {})[0].result is Outcome.DONE


def test_a_source_that_does_not_answer_the_engine_counts_where_its_lane_does_not_hear_of_it_either() -> None:
    engine = replace(ENGINE, source_reason=Reason.SOURCE_UNREACHABLE, source_message="no answer in time")
    late = row(engine, progress(source_seen_ms=NOW - 20_000))
    assert (late.topic_state, late.reason) == (TopicState.SOURCE_UNAVAILABLE, Reason.SOURCE_UNREACHABLE)
    assert late.error_message == "the source does not answer the engine: no answer in time"
    assert row(engine, progress()).reason is None


def test_before_the_first_alignment_the_topic_is_pending() -> None:
    assert row(ENGINE).topic_state is TopicState.PENDING_MIRROR
    assert row(ENGINE, partition(PartitionState.LOG_ALIGNMENT, first_offset=7)).topic_state is TopicState.PENDING_MIRROR
    assert row(ENGINE, progress(PartitionState.LOG_ALIGNMENT)).topic_state is TopicState.PENDING_MIRROR
    assert row(ENGINE, progress()).topic_state is TopicState.ACTIVE


@pytest.mark.parametrize("known", ["initial_copy_complete", "begun", "aligned"])
def test_a_topic_that_was_aligned_once_is_active_while_a_new_engine_inspects_it(known: str) -> None:
    stored = partition(PartitionState.LOG_ALIGNMENT, **{known: True})
    assert row(ENGINE, stored).topic_state is TopicState.ACTIVE
    assert row(ENGINE, stored, progress(PartitionState.LOG_ALIGNMENT)).topic_state is TopicState.ACTIVE


def test_the_lag_of_a_log_that_begins_further_on_is_counted_in_offsets() -> None:
    before = replace(HERE, log_start_offset={P0: 0}, high_watermark={P0: 0})
    late = replace(THERE, log_start_offset={TopicPartition("orders", 0): 60})
    assert row(ENGINE, here=before, there=late).lag == 100
    assert row(ENGINE, here=replace(HERE, high_watermark={P0: 60}), there=late).lag == 40


def test_the_newer_of_record_and_report_gives_the_state() -> None:
    failed = partition(PartitionState.FAILED, NOW - 500, reason=Reason.CORRUPT_BATCH, message="at 7", retry_attempt=2)
    found = row(ENGINE, progress(), failed)
    assert (found.state, found.reason) == (PartitionState.FAILED, Reason.CORRUPT_BATCH)
    assert found.error_message == (
        "at 7; FAILED since 1970-01-01T00:16:39Z; fix the cause; a running engine resumes within 5 minutes, or "
        "immediately with: kmirror recover --mirror m --topics a.orders"
    )
    assert (found.retry_attempt, found.state_time_ms) == (2, NOW - 500)
    assert found.topic_state is TopicState.FAILED
    recovered = row(ENGINE, progress(at=NOW - 100), failed)
    assert (recovered.state, recovered.reason) == (PartitionState.MIRRORING, None)


def test_the_latest_of_several_lanes_reports_counts() -> None:
    old = replace(progress(PartitionState.FAILED, NOW - 9000, reason=Reason.CORRUPT_BATCH), lane=5)
    assert row(ENGINE, old, progress()).state is PartitionState.MIRRORING


def test_a_stopped_partition_keeps_its_last_mirrored_offset_whatever_a_late_report_says() -> None:
    stopped = partition(
        PartitionState.STOPPED,
        NOW - 5000,
        reason=Reason.FAILED_OVER,
        message="failed over",
        last_mirrored_offset=90,
        last_mirrored_epoch=4,
    )
    found = row(progress(), stopped, topic=replace(TOPIC, desired=DesiredState.STOPPED), there=None)
    assert (found.state, found.topic_state, found.reason) == ("STOPPED", "STOPPED", "FAILED_OVER")
    assert (found.last_mirrored_offset, found.last_mirrored_epoch, found.state_time_ms) == (90, 4, NOW - 5000)
    assert (found.lag, found.destination_offset, found.ends_below_mirrored) == (None, 90, False)


def test_a_stopped_partition_shows_what_its_stop_knew_of_the_source_rather_than_an_earlier_report() -> None:
    at_stop = AtStop(NOW - 5000, 91, source_offset=97, source_high_watermark=99, source_as_of_ms=NOW - 5001)
    stopped = partition(PartitionState.STOPPED, reason=Reason.FAILED_OVER, last_mirrored_offset=90, at_stop=at_stop)
    for reports in ((), (progress(),)):
        found = row(*reports, stopped, topic=replace(TOPIC, desired=DesiredState.STOPPED), there=None)
        assert (found.source_offset, found.source_high_watermark, found.as_of_ms) == (97, 99, NOW - 5001)
        assert (found.lag, found.last_known_lag) == (None, 7)


def test_a_stopped_partition_that_lost_records_differs_from_a_new_topic_of_that_name() -> None:
    stopped = partition(PartitionState.STOPPED, reason=Reason.FAILED_OVER, last_mirrored_offset=90)
    ended = replace(TOPIC, desired=DesiredState.STOPPED)
    shorter = replace(HERE, high_watermark={P0: 80})
    found = row(stopped, topic=ended, here=shorter)
    assert (found.destination_offset, found.ends_below_mirrored) == (80, True)
    found = row(stopped, topic=ended, here=replace(shorter, topics={"a.orders": topic("a.orders", topic_id=b"n" * 16)}))
    assert (found.destination_offset, found.ends_below_mirrored) == (None, False)


def test_an_end_that_is_not_known_is_no_lag_of_zero() -> None:
    found = row(ENGINE, here=replace(HERE, high_watermark={}))
    assert (found.source_offset, found.destination_offset, found.lag, found.last_known_lag) == (100, None, None, None)


def test_a_pause_is_under_way_until_the_engine_has_ended_it() -> None:
    paused = replace(TOPIC, desired=DesiredState.PAUSED)
    assert row(ENGINE, progress(), topic=paused).state is PartitionState.PAUSING
    done = row(ENGINE, progress(PartitionState.PAUSED), topic=paused)
    assert (done.state, done.topic_state, done.reason) == ("PAUSED", "PAUSED", "PAUSED_BY_OPERATOR")
    # without an engine nothing is left to be paused
    assert row(progress(), topic=paused).state is PartitionState.PAUSED
    # and what it said to the pause before the last resume is no word on this one
    again, former = replace(paused, pause_id="p2"), partition(PartitionState.PAUSED, pause_id="p1")
    assert row(ENGINE, former, topic=again).state is PartitionState.PAUSING
    assert row(ENGINE, replace(former, pause_id="p2"), topic=again).state is PartitionState.PAUSED
    assert row(former, topic=again).state is PartitionState.PAUSED


def test_a_waiting_promote_shows_before_pause_and_source() -> None:
    waiting = replace(TOPIC, desired=DesiredState.PAUSED, pending_operation=PENDING_PROMOTE)
    promote = WorkflowRecord("m", PROMOTE, "WAITING", "op@h1", 0, last_seen_ms=999_000)
    assert row(ENGINE, progress(), promote, topic=waiting, there=SILENT).topic_state is TopicState.PENDING_STOPPED
    # a promote that is gone is not shown: nothing stops the topic any more
    gone = replace(promote, last_seen_ms=900_000)
    assert row(ENGINE, progress(), gone, topic=waiting, there=SILENT).topic_state is TopicState.PAUSED


def test_an_add_that_was_interrupted_says_how_to_finish_it() -> None:
    claim = replace(TOPIC, pending_operation=PENDING_ADD, destination_topic_id=None)
    found = row(ENGINE, topic=claim, here=ClusterSnapshot(NOW, {"a.orders": topic("a.orders", 3)}))
    assert found.destination_offset is None
    assert found.topic_state is TopicState.PENDING_MIRROR
    assert "run the same command again to finish" in (found.error_message or "")


@pytest.mark.parametrize(
    "now_there", [topic("a.orders", Code.UNKNOWN_TOPIC_OR_PARTITION), topic("a.orders", topic_id=bytes(15) + b"\7")]
)
def test_a_mirror_topic_that_was_deleted_is_failed_whatever_bears_its_name(now_there: TopicMetadata) -> None:
    found = row(ENGINE, progress(), here=replace(HERE, topics={"a.orders": now_there}))
    assert (found.state, found.reason) == (PartitionState.FAILED, Reason.DESTINATION_TOPIC_DELETED)
    assert found.destination_offset is None
    assert found.lag == (found.source_offset or 0) - (found.source_log_start or 0) > 0, "its whole log"
    assert f"{TOPIC.destination_topic_id}" in (found.error_message or "")
    # add takes source names
    assert f"mirror it again: kmirror add --mirror {TOPIC.mirror} --topics orders, if" in (found.error_message or "")
    assert found.state_time_ms is None, "when is unknown"
    assert "FAILED since" not in (found.error_message or "")


def test_a_mirror_topic_we_may_not_see_is_not_called_deleted() -> None:
    hidden = ClusterSnapshot(NOW, {"a.orders": topic("a.orders", Code.TOPIC_AUTHORIZATION_FAILED)})
    assert row(ENGINE, progress(), here=hidden).state is PartitionState.MIRRORING


@pytest.mark.parametrize(
    ("now_there", "reason"),
    [
        (topic("orders", Code.UNKNOWN_TOPIC_OR_PARTITION), Reason.SOURCE_TOPIC_DELETED),
        (topic("orders", Code.TOPIC_AUTHORIZATION_FAILED), Reason.NOT_AUTHORIZED),
        (topic("orders", topic_id=bytes(15) + b"\7"), Reason.SOURCE_TOPIC_RECREATED),
    ],
)
def test_trouble_with_one_source_topic_is_a_reason_before_it_is_a_failure(
    now_there: TopicMetadata, reason: Reason
) -> None:
    found = row(ENGINE, progress(), there=ClusterSnapshot(NOW, {"orders": now_there}))
    assert (found.state, found.reason) == (PartitionState.MIRRORING, reason)
    assert found.error_message


def test_a_copy_that_has_passed_what_was_seen_of_the_source_lags_by_nothing() -> None:
    assert row(ENGINE, progress(), here=replace(HERE, high_watermark={P0: 101})).lag == 0


@pytest.mark.parametrize("reason", [Reason.SOURCE_DIVERGED, Reason.SOURCE_TOPIC_RECREATED, Reason.PARTITIONS_DECREASED])
def test_a_copy_with_another_history_lags_by_an_unknown_number_and_misses_its_objective(reason: Reason) -> None:
    """Such a copy lagged by 0, and so was within its objective, while new records of the source were not copied."""
    failed = progress(PartitionState.FAILED, reason=reason, retry_attempt=1)
    (reported,) = failed.rows
    level = replace(failed, rows=(reported._replace(source_offset=90, destination_offset=100),))
    longer = replace(HERE, high_watermark={P0: 101})
    mirror = replace(MIRROR, settings={"objective.rpo": ".*=10m"})

    def found(there: ClusterSnapshot, here: ClusterSnapshot = longer) -> PartitionRow:
        (one,) = status_of(State.of([mirror, TOPIC, ENGINE, level]), mirror, [TOPIC], here, there, NOW).partitions
        return one

    for there in (THERE, SILENT):
        assert (found(there).lag, found(there).last_known_lag, found(there).time_lag_ms) == (None, None, None)
        assert found(there).objective_state is ObjectiveState.UNKNOWN
        (judged,) = judge(Condition.OBJECTIVE, [found(there)], {})
        assert (judged.result, exit_code_of([judged])) == (Outcome.FAILED, ExitCode.HISTORIES_DIFFER)
    # once the source is longer, so much is missing at least, since the last record that was copied
    behind = found(THERE, HERE)
    assert (behind.lag, behind.time_lag_ms) == (10, NOW - (reported.last_timestamp_ms or 0))


def test_partitions_above_the_recorded_count_are_shown_if_anything_is_known_of_them() -> None:
    extra = replace(partition(PartitionState.MIRRORING), partition=2)
    state = State.of([MIRROR, TOPIC, extra])
    assert [r.partition for r in status_of(state, MIRROR, [TOPIC], HERE, THERE, NOW).partitions] == [0, 1, 2]


def test_a_topic_that_is_being_rebuilt_lacks_the_whole_log_of_its_source() -> None:
    rebuild = Rebuild(Reason.SOURCE_TOPIC_RECREATED, RebuildStep.ARCHIVE, "archive.1", NOW, {0: ((0, 700), (800, 900))})
    found = row(ENGINE, progress(), topic=replace(TOPIC, rebuild=rebuild))
    assert (found.state, found.lag) == (PartitionState.LOG_ALIGNMENT, 98), "from the source's start, 2"
    assert "its records (800 offsets) are being archived in archive.1" in (found.error_message or "")
    assert (found.offsets_to_archive, found.archive_log_end) == (800, None)


def test_a_rebuild_that_does_not_succeed_is_a_failure() -> None:
    rebuild = Rebuild(Reason.SOURCE_TOPIC_RECREATED, RebuildStep.REPLACE, "archive.1", NOW, trouble="it is refused")
    found = row(ENGINE, progress(), topic=replace(TOPIC, rebuild=rebuild))
    assert (found.state, found.reason) == (PartitionState.FAILED, Reason.SOURCE_TOPIC_RECREATED)
    assert str(found.error_message).endswith("; the last attempt failed: it is refused")


def test_list_sums_up_a_mirror() -> None:
    copying = progress(bytes_per_second=5_000.0, offsets_per_second=4.0, records_per_second=1.5)
    state = State.of([MIRROR, TOPIC, ENGINE, copying])
    assert MIRRORS.document(status_of(state, MIRROR, [TOPIC], HERE, THERE, NOW).row) == {
        "mirror": "m",
        "topics": 1,
        "stoppedTopics": 0,
        "partitions": 1,
        "sourceClusterId": "A",
        "sourceBootstrapServer": "a:1",
        "state": "ACTIVE",
        "engine": "h1/app-1",
        "maxLag": 10,
        "reason": None,
        "engineLastSeenMs": NOW - 500,
        "engineAgeMs": 500,
        "throttleBytesPerSecond": None,
        "bytesPerSecond": 5_000,
        "maxTimeLagMs": 4_000,
        "etaMs": 2_500,
        "lagUnknown": 0,
        "objectivesWithin": 0,
        "objectivesBreached": 0,
        "objectivesUnknown": 0,
        "notAdded": 0,
        "failingJobs": 0,
    }


def test_list_shows_the_worst_topic_and_a_mirror_without_topics() -> None:
    failed = replace(TOPIC, topic="a.pay")
    broken = replace(partition(PartitionState.FAILED), topic="a.pay")
    state = State.of([MIRROR, TOPIC, failed, broken, ENGINE, progress()])
    assert status_of(state, MIRROR, [TOPIC, failed], HERE, THERE, NOW).row.state is TopicState.FAILED
    empty = State.of([MIRROR])
    assert status_of(empty, MIRROR, [], HERE, THERE, NOW).row.state is None
    assert status_of(empty, MIRROR, [], HERE, SILENT, NOW).row.state is TopicState.SOURCE_UNAVAILABLE


def test_a_throttle_is_noted_as_long_as_something_is_copied() -> None:
    limited = replace(MIRROR, settings={"throttle.bytes.per.second": "20000000"})
    state = State.of([limited, TOPIC, ENGINE, progress()])
    status = status_of(state, limited, [TOPIC], HERE, THERE, NOW)
    rows = status.partitions
    assert status.row.throttle_bytes_per_second == 20_000_000
    assert PARTITIONS.notes is not None
    note = "m: copying is limited to 20,000,000 bytes/s (throttle.bytes.per.second)"
    assert list(PARTITIONS.notes(rows)) == [note]
    assert note not in list(PARTITIONS.notes([replace(row, state=PartitionState.STOPPED) for row in rows]))


def test_priority_topics_are_noted_while_an_engine_runs() -> None:
    state = State.of([MIRROR, TOPIC, replace(ENGINE, first_topics=("a", "b", "c", "d")), progress()])
    note = "m: other topics wait until these have caught up: a, b, c and 1 more (priority.topics)"
    assert PARTITIONS.notes is not None
    assert list(PARTITIONS.notes(status_of(state, MIRROR, [TOPIC], HERE, THERE, NOW).partitions)) == [note]
    later = status_of(state, MIRROR, [TOPIC], HERE, THERE, NOW + 100_000).partitions
    assert note not in list(PARTITIONS.notes(later))
