"""Destination logs as an engine leaves them, made without one: any records, at any offsets, holes filled by markers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.protocol import markers
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.filler import FILLER_RECORDS, filler_batch
from kmirror.engine.clock import now_ms
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.leader import OWN_ID, Leader, create_topic
from tests.support.real_logs import delete_records

_RUN_RECORDS = 50
_RUN_BYTES = 1 << 20
_LARGEST_BATCH = str(20 << 20)


def make_copy(
    cluster: SandboxCluster,
    topic: str,
    records: Iterable[Record],
    start: int,
    end: int,
    *,
    trimmed_to: int | None = None,
) -> None:
    """Create a topic whose log starts at `start`, shows these records and ends at `end`.

    With `trimmed_to`, filler was left from there on.
    """
    create_topic(cluster, name=topic, settings={"max.message.bytes": _LARGEST_BATCH})
    with Leader(cluster, topic) as leader:
        with OffsetAppender(leader.client, leader.partition, producer_id=OWN_ID) as out:
            while (left := start - out.log_end_offset) > 0:
                out.append(filler_batch(min(left, FILLER_RECORDS), now_ms(), base_offset=out.log_end_offset))
            for run in _runs(records):
                out.append(run)
            lacking = end - out.log_end_offset
        if lacking:
            _fill(leader, lacking)
        assert leader.log_end == end
    first = start if trimmed_to is None else trimmed_to
    if first:
        delete_records(cluster, topic, first)


def _runs(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Cut records into batches of consecutive offsets."""
    run: list[Record] = []
    size = 0
    for one in records:
        if run and (one.offset != run[-1].offset + 1 or len(run) == _RUN_RECORDS or size > _RUN_BYTES):
            yield run
            run, size = [], 0
        run.append(one)
        size += len(one.value or b"")
    if run:
        yield run


def _fill(leader: Leader, count: int) -> None:
    version = leader.connection.version_for(markers.API)
    correlation_id = leader.connection.next_correlation_id()
    fill = markers.Fill(*leader.partition, OWN_ID + 1, 0, count)
    request = markers.request(correlation_id, version, "kmirror", [fill])
    frame = leader.connection.exchange_frame([request], correlation_id, 30)
    assert markers.answer(frame, version) == {tuple(leader.partition): 0}
