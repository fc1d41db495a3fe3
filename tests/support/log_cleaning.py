"""What a broker's log cleaner makes of the beginning of a log: an independent implementation of KIP-98 and KIP-534.

A cleaned log is in one of many states, depending on how often the cleaner ran; it is drawn at random.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from enum import Enum, auto

from tests.support.log_batches import LogBatch

#: When the cleaner may delete what it has marked, by its own clock.
DELETE_HORIZON_MS = 1_700_000_000_000


class Tombstones(Enum):
    """How far the cleaner has come with records that delete their key."""

    #: Seen for the first time: they stay, and the batch says until when.
    MARKED = auto()
    #: The time is over.
    GONE = auto()


def cleaned(
    batches: Sequence[LogBatch], end: int, aborted: Collection[int], tombstones: Tombstones, chance: random.Random
) -> list[LogBatch]:
    """Clean a log up to an offset between two batches; all transactions that begin below it have ended."""
    clean = [batch for batch in batches if batch.base_offset < end]
    dirty = [batch for batch in batches if batch.base_offset >= end]
    last_of_producers = {batch.producer_id: batch.base_offset for batch in clean if batch.producer_id >= 0}
    latest = _latest_offsets(clean, aborted)
    left: list[LogBatch] = []
    #: Transactions of which something is left, if only an empty batch: these keep their markers.
    remaining: set[int | None] = set()
    for batch in clean:
        is_last = last_of_producers.get(batch.producer_id) == batch.base_offset and chance.random() < 0.8
        kept: LogBatch | None
        if batch.marker is not None:
            kept = batch if batch.transaction in remaining else _marker(batch, is_last, chance)
        else:
            kept = _data(batch, latest, aborted, tombstones, is_last)
            if kept is not None:
                remaining.add(batch.transaction)
        if kept is not None:
            left.append(kept)
    return left + dirty


def _latest_offsets(batches: Iterable[LogBatch], aborted: Collection[int]) -> dict[bytes | None, int]:
    return {
        record.key: record.offset
        for batch in batches
        if batch.marker is None and batch.transaction not in aborted
        for record in batch.records
    }


def _marker(batch: LogBatch, is_last: bool, chance: random.Random) -> LogBatch | None:
    """Treat the marker of a transaction of which nothing is left: not noticed yet, to be deleted, or deleted."""
    match chance.randrange(4):
        case 0:
            return batch
        case 1:
            return replace(batch, delete_horizon_ms=DELETE_HORIZON_MS)
        case _:
            return _emptied(batch) if is_last else None


def _data(
    batch: LogBatch,
    latest: dict[bytes | None, int],
    aborted: Collection[int],
    tombstones: Tombstones,
    is_last: bool,
) -> LogBatch | None:
    survivors = tuple(
        record
        for record in batch.records
        if batch.transaction not in aborted
        and record.key is not None
        and latest[record.key] == record.offset
        and (record.value is not None or tombstones is Tombstones.MARKED)
    )
    if not survivors:
        # a producer's last batch stays as a header, so that its sequence number is not forgotten
        return _emptied(batch) if is_last else None
    if batch.magic < 2:
        return replace(batch, records=survivors, last_offset=survivors[-1].offset)
    is_marked = any(record.value is None for record in survivors)
    if len(survivors) == len(batch.records) and not is_marked:
        return batch
    last_timestamp = max(record.timestamp for record in survivors)
    horizon = DELETE_HORIZON_MS if is_marked else None
    return replace(batch, records=survivors, max_timestamp=last_timestamp, delete_horizon_ms=horizon)


def _emptied(batch: LogBatch) -> LogBatch:
    return replace(batch, records=(), delete_horizon_ms=None)
