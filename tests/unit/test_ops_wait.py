"""When `wait` is over, and with what result: decided from rows, without a clock."""

from __future__ import annotations

from typing import Any

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import ExitCode, Reason
from kmirror.ops.base.results import exit_code_of
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.wait import Condition, is_over, judge, progress
from kmirror.state.records import PartitionState
from kmirror.status.partition_row import PartitionRow
from kmirror.status.topic_state import TopicState


def row(partition: int = 0, destination: int | None = 100, topic: str = "t", **more: Any) -> PartitionRow:
    fields: dict[str, Any] = {
        "mirror": "m",
        "topic": topic,
        "partition": partition,
        "source_offset": 120,
        "destination_offset": destination,
        "lag": 20,
        "state": PartitionState.MIRRORING,
        "retry_attempt": 0,
        "error_message": None,
        "source_topic": topic,
        "topic_state": TopicState.ACTIVE,
        "reason": None,
        "state_time_ms": None,
        "time_lag_ms": None,
        "last_known_lag": None,
        "source_log_start": 0,
        "destination_log_start": 0,
        "source_high_watermark": 120,
        "last_mirrored_offset": None,
        "last_mirrored_epoch": None,
        "initial_copy_complete": False,
        "rebuilt_at_ms": None,
        "archive": None,
        "as_of_ms": 0,
    }
    return PartitionRow(**{**fields, **more})


def test_an_objective_is_waited_for_with_the_cause() -> None:
    limits: dict[str, Any] = {"objective_ms": 30_000, "throttle_bytes_per_second": 70_000}
    rows = [row(0, time_lag_ms=30_000, **limits), row(1, time_lag_ms=65_432, **limits), row(0, topic="u", **limits)]
    late, unknown = judge(Condition.OBJECTIVE, rows, {})
    assert (late.result, unknown.result) == (Outcome.TIMED_OUT, Outcome.TIMED_OUT)
    limit = "copying is limited to 70,000 bytes/s (throttle.bytes.per.second)"
    assert late.message == f"t-1 is not within its objective: it is 1m5s behind, and the objective is 30s; {limit}"
    assert (
        unknown.message
        == f"u-0 is not within its objective: its time lag is unknown, and the objective is 30s; {limit}"
    )
    (within,) = judge(Condition.OBJECTIVE, rows[:1], {})
    assert within.result is Outcome.DONE
    (failed,) = judge(Condition.OBJECTIVE, [row(time_lag_ms=1, objective_ms=0, **FAILED)], {})
    assert failed.result is Outcome.FAILED


TARGETS = {TopicPartition("t", 0): 100, TopicPartition("t", 1): 100, TopicPartition("u", 0): 100}
FAILED: dict[str, Any] = {"state": PartitionState.FAILED, "topic_state": TopicState.FAILED, "error_message": "it broke"}
STOPPED: dict[str, Any] = {"state": PartitionState.STOPPED, "topic_state": TopicState.STOPPED}


def test_caught_up_means_the_source_end_seen_first_though_the_source_grows() -> None:
    (result,) = judge(Condition.CAUGHT_UP, [row(0), row(1)], TARGETS)
    assert (result.result, result.lag) == (Outcome.DONE, 20)


def test_one_partition_behind_is_missing_and_named() -> None:
    results = judge(Condition.CAUGHT_UP, [row(0), row(1, 97), row(0, topic="u")], TARGETS)
    assert [result.result for result in results] == [Outcome.TIMED_OUT, Outcome.DONE]
    assert results[0].message == "t-1 is not caught-up: 3 offsets behind"
    assert not is_over(results)
    assert exit_code_of(results) == ExitCode.TIMED_OUT


def test_nothing_is_caught_up_whose_offsets_are_unknown() -> None:
    (result,) = judge(Condition.CAUGHT_UP, [row(2)], TARGETS)
    assert result.result is Outcome.TIMED_OUT
    (result,) = judge(Condition.CAUGHT_UP, [row(0, None)], TARGETS)
    assert result.result is Outcome.TIMED_OUT


def test_a_stopped_topic_is_not_called_caught_up() -> None:
    for condition in (Condition.CAUGHT_UP, Condition.HEALTHY):
        (result,) = judge(condition, [row(0, 7, **STOPPED)], {})
        assert (result.result, result.message) == (Outcome.DONE, "t is stopped, and no longer copied")
    (result,) = judge(Condition.CAUGHT_UP, [row(2, 7, **STOPPED), row(1)], TARGETS)
    assert result.message == "t is caught-up"


@pytest.mark.parametrize(
    ("copied", "said"),
    [
        (100, None),
        (93, "it was stopped 7 offsets short, and 1 other partition"),
        (None, "it was stopped, and how far it was copied is unknown, and 1 other partition"),
    ],
)
def test_a_topic_that_is_stopped_meanwhile_must_have_reached_its_target(copied: int | None, said: str | None) -> None:
    """Once, it was done although a failover had stopped it before. Local records do not count."""
    stopped = row(0, 500, last_mirrored_offset=copied, reason=Reason.FAILED_OVER, **STOPPED)
    results = judge(Condition.CAUGHT_UP, [stopped, row(1, 100 if said is None else 50)], TARGETS)
    assert is_over(results)
    if said is None:
        assert results[0].result is Outcome.DONE
    else:
        assert exit_code_of(results) == ExitCode.PARTLY_DONE
        assert results[0].message == f"t-0 is not caught-up: {said}"


def test_a_log_that_is_being_made_ready_is_not_caught_up_though_filler_reaches_the_end() -> None:
    aligning: dict[str, Any] = {"state": PartitionState.LOG_ALIGNMENT, "topic_state": TopicState.PENDING_MIRROR}
    (result,) = judge(Condition.CAUGHT_UP, [row(0), row(1, **aligning)], TARGETS)
    assert result.result is Outcome.TIMED_OUT
    assert result.message == "t-1 is not caught-up: its log is still being aligned with the source's"
    # a restarted engine inspects logs that were complete before
    again = row(1, state=PartitionState.LOG_ALIGNMENT, initial_copy_complete=True)
    (result,) = judge(Condition.CAUGHT_UP, [row(0), again], TARGETS)
    assert result.result is Outcome.DONE


def test_a_log_with_records_of_others_is_not_caught_up_though_it_is_long_enough() -> None:
    differs = row(0, reason=Reason.OFFSET_MISMATCH, error_message="its log end moved")
    for condition in (Condition.CAUGHT_UP, Condition.DRAINED):
        (result,) = judge(condition, [differs], TARGETS)
        assert (result.result, result.reason) == (Outcome.TIMED_OUT, Reason.OFFSET_MISMATCH)
        assert str(result.message).endswith(": its log end moved")


@pytest.mark.parametrize(
    ("reason", "code"),
    [(Reason.CORRUPT_BATCH, ExitCode.PARTLY_DONE), (Reason.SOURCE_DIVERGED, ExitCode.HISTORIES_DIFFER)],
)
def test_waiting_ends_when_only_failed_topics_are_left(reason: Reason, code: ExitCode) -> None:
    results = judge(Condition.CAUGHT_UP, [row(0, reason=reason, **FAILED), row(0, topic="u")], TARGETS)
    assert is_over(results)
    assert exit_code_of(results) == code
    assert results[0].message == "t-0 is not caught-up: it broke"


def test_a_failed_topic_does_not_end_the_wait_for_others() -> None:
    results = judge(Condition.CAUGHT_UP, [row(0, **FAILED), row(0, 50, topic="u")], TARGETS)
    assert not is_over(results)


def test_a_failed_topic_can_still_be_stopped() -> None:
    results = judge(Condition.STOPPED, [row(0, **FAILED)], {})
    assert not is_over(results)
    assert exit_code_of(results) == ExitCode.TIMED_OUT
    done = judge(Condition.STOPPED, [row(0, **STOPPED)], {})
    assert is_over(done)
    assert exit_code_of(done) == ExitCode.OK


def test_a_stop_that_is_waited_for_names_and_counts_what_is_not_stopped() -> None:
    waiting = row(2, topic_state=TopicState.PENDING_STOPPED)
    rows = [row(0, **STOPPED), row(1, topic_state=TopicState.PENDING_STOPPED), waiting, row(3, **FAILED)]
    (result,) = judge(Condition.STOPPED, rows, {})
    assert result.message == "t-1 is not stopped: it is PENDING_STOPPED, and 2 other partitions"
    assert result.hint == "a promote waits for it: `kmirror promote --mirror m --dry-run` shows what is missing"
    assert progress(Condition.STOPPED, rows, {}) == "3 of 4 partitions not stopped"
    (result,) = judge(Condition.STOPPED, [row(0, **STOPPED), row(1), row(2, **STOPPED)], {})
    assert result.message == "t-1 is not stopped: it is MIRRORING"
    assert "`kmirror failover`" in (result.hint or "")


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        (Reason.NO_ENGINE, "`kmirror run --mirror m` starts an engine"),
        (Reason.ENGINE_SILENT, "`kmirror run --mirror m --take-over` replaces an engine that is stuck"),
        (Reason.NO_WORKERS, "start Spark workers that the engine's master can use, or check the engine's log"),
        (
            Reason.SOURCE_UNREACHABLE,
            "`kmirror check --mirror m` shows which brokers do not answer, and why; or wait longer",
        ),
    ],
)
def test_what_to_do_depends_on_what_is_missing(reason: Reason, hint: str) -> None:
    (result,) = judge(Condition.HEALTHY, [row(reason=reason)], {})
    assert (result.result, result.reason, result.hint) == (Outcome.TIMED_OUT, reason, hint)


def test_healthy_wants_an_engine_a_source_and_every_partition_aligned() -> None:
    def is_healthy(**more: Any) -> bool:
        (result,) = judge(Condition.HEALTHY, [row(0), row(1, **more)], {})
        return result.result is Outcome.DONE

    assert is_healthy()
    assert is_healthy(**STOPPED)
    assert is_healthy(topic_state=TopicState.PAUSED, reason=Reason.PAUSED_BY_OPERATOR)
    assert is_healthy(reason=Reason.OPEN_TRANSACTION)
    assert not is_healthy(reason=Reason.NO_ENGINE)
    assert not is_healthy(topic_state=TopicState.PENDING_MIRROR)
    assert not is_healthy(topic_state=TopicState.SOURCE_UNAVAILABLE, reason=Reason.SOURCE_UNREACHABLE)
    assert not is_healthy(**FAILED)
