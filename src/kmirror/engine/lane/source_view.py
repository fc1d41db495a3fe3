"""What a lane has seen of one partition's source: where it is fetched from, and where its log begins and ends."""

from __future__ import annotations

from kmirror.cluster.protocol.batch import LOG_OVERHEAD, PREFIX
from kmirror.cluster.protocol.fetch import FetchedPartition
from kmirror.engine.histories.judge import Facts

#: A batch larger than this comes alone, whatever is asked for.
_LARGE = 2 << 20


class SourceView:
    """Remember what the source last said."""

    def __init__(self) -> None:
        #: The broker it is fetched from: the leader, or a follower that the leader prefers for us, and until when.
        self.node_id: int | None = None
        self.follows_until: float | None = None
        #: Answers to fetches sent before this serial number belong to an earlier position.
        self.valid_from_serial = 0
        self.log_start: int | None = None
        self.last_stable_offset: int | None = None
        self.high_watermark: int | None = None
        #: True while other topics come first: it is not asked for anything.
        self.is_put_off = False
        #: How large its batches are: the first of the last answer.
        self.batch_bytes: int | None = None
        #: When the source was asked for what these say, None before it was.
        self.seen_at: float | None = None
        #: Since when fetches bring nothing although the source says that there is more.
        self.nothing_since: float | None = None

    def inspected(self, facts: Facts, now: float) -> None:
        """Take what an inspection saw."""
        self.last_stable_offset = facts.last_stable_offset
        self.high_watermark = facts.high_watermark
        self.log_start = facts.source_log_start
        self.seen_at = now

    def batches_seen(self, records: memoryview) -> None:
        """Take the batches of an answer, the last of which may be cut off."""
        size = LOG_OVERHEAD + PREFIX.unpack_from(records)[1] if len(records) >= PREFIX.size else 0
        self.batch_bytes = size if LOG_OVERHEAD < size <= _LARGE else None

    def ends_seen(self, answer: FetchedPartition) -> None:
        """Take where the source ends; what a follower knows of that is never newer than what its leader has said."""
        if self.follows_until is None or self.high_watermark is None or self.last_stable_offset is None:
            self.high_watermark, self.last_stable_offset = answer.high_watermark, answer.last_stable_offset
        else:
            self.high_watermark = max(self.high_watermark, answer.high_watermark or 0)
            self.last_stable_offset = max(self.last_stable_offset, answer.last_stable_offset or 0)
