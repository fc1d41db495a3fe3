"""When a copy is blocked by an open transaction, and what is reported about it."""

from __future__ import annotations

from typing import Any

import pytest

from kmirror.errors import Reason
from kmirror.ops.show.open_transactions import (
    SHOWN_AFTER_MS,
    OpenTransaction,
    is_blocked_by_transaction,
    with_transaction,
)
from kmirror.state.records import PartitionState
from kmirror.status.partition_row import PartitionRow
from kmirror.status.topic_state import TopicState

NOW = 10_000_000
SOURCE = {"bootstrap.servers": "a:9092"}


def row(**more: Any) -> PartitionRow:
    fields: dict[str, Any] = {
        "mirror": "m",
        "topic": "eu.orders",
        "partition": 2,
        "source_offset": 1234,
        "destination_offset": 1234,
        "lag": 0,
        "state": PartitionState.MIRRORING,
        "retry_attempt": 0,
        "error_message": None,
        "source_topic": "orders",
        "topic_state": TopicState.ACTIVE,
        "reason": None,
        "state_time_ms": None,
        "time_lag_ms": None,
        "last_known_lag": None,
        "source_log_start": 0,
        "destination_log_start": 0,
        "source_high_watermark": 1240,
        "last_mirrored_offset": None,
        "last_mirrored_epoch": None,
        "initial_copy_complete": True,
        "rebuilt_at_ms": None,
        "archive": None,
        "as_of_ms": NOW,
    }
    return PartitionRow(**{**fields, **more})


def test_a_copy_with_all_committed_records_is_blocked_if_the_source_has_more() -> None:
    assert is_blocked_by_transaction(row())
    assert is_blocked_by_transaction(row(reason=Reason.NO_ENGINE))


@pytest.mark.parametrize(
    "more",
    [
        {"source_high_watermark": 1234},
        {"lag": 3},
        {"lag": None},
        {"source_high_watermark": None},
        {"state": PartitionState.LOG_ALIGNMENT},
        {"state": PartitionState.FAILED},
        {"state": PartitionState.PAUSED, "reason": Reason.PAUSED_BY_OPERATOR},
        {"reason": Reason.SOURCE_TOPIC_RECREATED},
    ],
)
def test_other_partitions_are_not_blocked(more: dict[str, Any]) -> None:
    assert not is_blocked_by_transaction(row(**more))


def test_the_transaction_is_named_with_the_command_that_aborts_it() -> None:
    opened = OpenTransaction(77, 1234, NOW - 192_000)
    found = with_transaction(row(), opened, SOURCE, NOW, SHOWN_AFTER_MS)
    assert (found.reason, found.failed, found.state) == (Reason.OPEN_TRANSACTION, False, PartitionState.MIRRORING)
    assert found.error_message == (
        "blocked at offset 1234 by an open transaction of producer id 77, begun 3m12s ago at offset 1234; "
        "let its application end it, or run: kafka-transactions.sh --bootstrap-server a:9092 abort "
        "--topic orders --partition 2 --start-offset 1234"
    )


def test_a_young_transaction_is_not_reported() -> None:
    assert SHOWN_AFTER_MS == 60_000
    assert with_transaction(row(), OpenTransaction(77, 1234, NOW - 59_999), SOURCE, NOW, SHOWN_AFTER_MS) == row()
    shown = with_transaction(row(), OpenTransaction(77, 1234, NOW - 60_000), SOURCE, NOW, SHOWN_AFTER_MS)
    assert shown.reason is Reason.OPEN_TRANSACTION


def test_that_no_engine_runs_is_reported_as_well() -> None:
    idle = row(reason=Reason.NO_ENGINE, error_message="no engine copies mirror m")
    found = with_transaction(idle, OpenTransaction(77, 1234, 0), SOURCE, NOW, SHOWN_AFTER_MS)
    assert found.reason is Reason.NO_ENGINE
    assert (found.error_message or "").startswith("no engine copies mirror m; it is also blocked at offset 1234")
