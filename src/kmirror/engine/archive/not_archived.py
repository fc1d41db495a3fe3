"""Tell what of a log is not worth saving: filler of ours, which stands for offsets below a log's start. Pure.

Whatever an application wrote is worth it, also if it looks the same: filler has a producer id that no broker hands out.
"""

from __future__ import annotations

from kmirror.cluster.protocol.filler import FILLER_KEY, is_filler
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.protocol.records import Record
from kmirror.engine.compare.visible_log import Batch


def is_only_filler(batch: Batch) -> bool:
    """Tell whether a batch is filler as it was written: quickly, for there may be millions of records of it."""
    header = batch.header
    if header.producer_id < FIRST_OWN_PRODUCER_ID:
        return False
    return is_filler(batch.data[header.position : header.position + header.size_in_bytes])


def is_left_over_filler(batch: Batch, record: Record) -> bool:
    """Tell whether a record of a batch is filler; the cleaner of a compacted topic leaves single ones."""
    ours = batch.header.producer_id >= FIRST_OWN_PRODUCER_ID
    return ours and record.key == FILLER_KEY and record.value is None and not record.headers
