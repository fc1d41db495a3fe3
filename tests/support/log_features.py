"""The features of a log, found in its batches: so that a run of random logs can say what it has covered.

Features of records, such as codecs and LogAppendTime, count only where consumers are shown some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.support.log_batches import ABORT, LogBatch, encode

FAR_PAST_MS, FAR_FUTURE_MS = 1_000_000_000_000, 4_000_000_000_000
LARGE_BYTES = 250_000
MANY_SEGMENTS = 5

FEATURES = (
    *(f"codec {name}" for name in ("none", "gzip", "snappy", "lz4", "zstd")),
    *("headers", "null key", "null value"),
    *("far past", "far future", "large record", "batch over max.message.bytes"),
    *("idempotent producer", "committed transaction", "aborted transaction"),
    *("interleaved transactions", "open transaction"),
    *("empty batch", "hole in a batch", "hole between batches", "hole at the end"),
    *("delete horizon", "LogAppendTime", "format 0", "format 1", "compressed old format"),
    *("start above 0", "start in a batch", "emptied log", "many segments"),
)


def features_of(
    batches: Sequence[LogBatch],
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    segments: int,
    max_message_bytes: int,
) -> frozenset[str]:
    """Return the features, by the names in FEATURES, of these batches from the log's start on."""
    live = [batch for batch in batches if batch.next_offset > log_start_offset]
    aborted = {batch.transaction for batch in live if batch.marker == ABORT}
    shown = (
        batch
        for batch in live
        if batch.marker is None and batch.transaction not in aborted and batch.next_offset <= last_stable_offset
    )
    found = {name for batch in live for name in _of_batch(batch, max_message_bytes)}
    found |= {name for batch in shown if batch.records for name in _of_shown(batch)}
    found |= set(_of_transactions(live))
    found |= set(_of_ends(live, log_start_offset, log_end_offset))
    if any(later.base_offset > earlier.next_offset for earlier, later in pairwise(live)):
        found.add("hole between batches")
    if last_stable_offset < log_end_offset:
        found.add("open transaction")
    if segments >= MANY_SEGMENTS:
        found.add("many segments")
    assert found <= set(FEATURES), found
    return frozenset(found)


def _of_batch(batch: LogBatch, max_message_bytes: int) -> Iterator[str]:
    if not batch.records:
        yield "empty batch"
    if batch.magic == 2 and len(encode(batch)) > max_message_bytes:
        yield "batch over max.message.bytes"


def _of_shown(batch: LogBatch) -> Iterator[str]:
    yield f"codec {batch.codec.removesuffix('-raw')}"
    if batch.magic < 2:
        yield f"format {batch.magic}"
        if batch.codec != "none":
            yield "compressed old format"
    if batch.append_time is not None:
        yield "LogAppendTime"
    if batch.delete_horizon_ms is not None:
        yield "delete horizon"
    if len(batch.records) < batch.next_offset - batch.base_offset:
        yield "hole in a batch"
    if batch.producer_id >= 0 and batch.transaction is None:
        yield "idempotent producer"
    for record in batch.visible:
        if record.headers:
            yield "headers"
        if record.key is None:
            yield "null key"
        if record.value is None:
            yield "null value"
        elif len(record.value) >= LARGE_BYTES:
            yield "large record"
        if 0 <= record.timestamp < FAR_PAST_MS:
            yield "far past"
        if record.timestamp > FAR_FUTURE_MS:
            yield "far future"


def _of_transactions(live: Sequence[LogBatch]) -> Iterator[str]:
    begun: dict[int | None, int] = {}
    for batch in live:
        if batch.marker is None:
            if batch.transaction is not None and batch.records:
                begun.setdefault(batch.transaction, batch.base_offset)
        elif (first := begun.pop(batch.transaction, None)) is not None:
            yield "aborted transaction" if batch.marker == ABORT else "committed transaction"
            if any(other > first for other in begun.values()):
                yield "interleaved transactions"


def _of_ends(live: Sequence[LogBatch], log_start_offset: int, log_end_offset: int) -> Iterator[str]:
    if log_start_offset:
        yield "start above 0"
    if log_start_offset == log_end_offset:
        yield "emptied log"
        return
    if live and live[0].base_offset < log_start_offset:
        yield "start in a batch"
    last_taken = max((record.offset for batch in live[-1:] for record in batch.records), default=-1)
    if last_taken + 1 < log_end_offset:
        yield "hole at the end"
