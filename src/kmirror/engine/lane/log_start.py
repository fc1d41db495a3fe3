"""Where a destination's log is to begin, and how it gets there.

A log that is to begin above 0 is filled up to there and trimmed; one whose source lost records is trimmed behind the
loss when all before it is appended.
"""

from __future__ import annotations

from kmirror.engine.lane.intake import Intake


class LogStart:
    """Follow the start of one partition's log."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        #: Up to there filler comes first, with the timestamp beside it; None: none is needed.
        self.fill_to: int | None = None
        self.filler_timestamp_ms = 0
        self._trim_to: int | None = None
        self.trim_is_under_way = False
        #: Where this made the log begin.
        self.aligned_to: int | None = None

    @property
    def target(self) -> int | None:
        """Where the log is to begin, while it does not."""
        return self._trim_to if self.fill_to is None else self.fill_to

    def fill_then_trim(self, to: int, now_ms: int) -> None:
        """Have the log filled up to an offset; brokers forget producers by the time of their records."""
        self.fill_to, self.filler_timestamp_ms, self._trim_to = to, now_ms, None

    def take_in_filler(self) -> None:
        """Queue some of the filler that is still missing."""
        if self.fill_to is not None:
            self._intake.take_in_filler(self.fill_to, self.filler_timestamp_ms)

    def trim(self, to: int | None) -> None:
        """Have the log trimmed up to an offset, filler left out; None: it begins where it is to."""
        self.fill_to, self._trim_to = None, to

    def trimmed(self) -> None:
        """Note that it begins there now."""
        self.aligned_to = self.target
