"""How much a mirror keeps of what its source has deleted, and where that is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import Reason
from kmirror.state.record_kinds import Record
from kmirror.state.records import DesiredState, PartitionState, TopicRecord
from kmirror.status.observed import ClusterSnapshot
from kmirror.status.partition_row import kept_offsets
from tests.unit.test_ops_rows import ENGINE, NOW, SILENT, THERE, TOPIC, partition, progress, row


@pytest.mark.parametrize(
    ("source_start", "start", "end", "kept"),
    [(40, 10, 90, 30), (10, 40, 90, 0), (120, 10, 90, 80), (None, 10, 90, None), (40, None, 90, None)],
)
def test_only_what_the_mirror_holds_counts(
    source_start: int | None, start: int | None, end: int | None, kept: int | None
) -> None:
    assert kept_offsets(source_start, start, end) == kept


TEXT = "the mirror keeps 30 offsets that the source has deleted, until an engine copies it again"


def message(*records: Record, there: ClusterSnapshot = THERE, topic: TopicRecord = TOPIC) -> str:
    """Return what is said of a partition whose mirror begins 30 offsets before its source."""
    begins = {TopicPartition("orders", 0): 33}
    return row(*records, there=replace(there, log_start_offset=begins), topic=topic).error_message or ""


def test_what_is_kept_is_reported_where_nothing_is_copied() -> None:
    assert message().endswith(f"; {TEXT}")
    paused = replace(TOPIC, desired=DesiredState.PAUSED)
    assert message(ENGINE, progress(), topic=paused).endswith(f"; {TEXT}")
    failed = partition(PartitionState.FAILED, NOW, reason=Reason.RECORD_REJECTED)
    assert message(ENGINE, failed).endswith(f"; {TEXT}")
    # the source may have deleted more since it last answered
    before = progress(at=NOW - 9_000)
    known = replace(before, rows=(before.rows[0]._replace(source_log_start=33),))
    assert row(known, there=SILENT).error_message is not None
    assert f"; {TEXT.replace('keeps', 'keeps at least')}" in (row(known, there=SILENT).error_message or "")


def test_what_is_kept_is_not_reported_where_it_is_copied_or_unknown() -> None:
    assert "keeps" not in message(ENGINE, progress())
    assert "keeps" not in message(there=replace(THERE, last_stable_offset={}))
    stopped = partition(PartitionState.STOPPED, NOW, reason=Reason.PROMOTED)
    assert "keeps" not in message(stopped, topic=replace(TOPIC, desired=DesiredState.STOPPED))
