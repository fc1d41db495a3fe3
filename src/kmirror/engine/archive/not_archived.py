"""What is not archived: our filler, which represents offsets below a log's start. Pure.

Records of applications are always archived, even if they look the same: filler has a producer id that no broker
assigns.
"""

from __future__ import annotations

from kmirror.cluster.protocol.filler import FILLER_KEY, is_filler
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.protocol.record_codec import Record
from kmirror.engine.compare.visible_log import VisibleBatch


def is_only_filler(batch: VisibleBatch) -> bool:
    """Return True if a batch is unchanged filler; quickly, because there may be millions of such records."""
    header = batch.header
    if header.producer_id < FIRST_OWN_PRODUCER_ID:
        return False
    return is_filler(batch.data[header.position : header.position + header.size_in_bytes])


def is_left_over_filler(batch: VisibleBatch, record: Record) -> bool:
    """Return True if a record of a batch is filler; compaction leaves single filler records."""
    ours = batch.header.producer_id >= FIRST_OWN_PRODUCER_ID
    return ours and record.key == FILLER_KEY and record.value is None and not record.headers
