"""Where a destination's log must start, and how to move its start there.

A log that must start above 0 is filled up to there and trimmed; one whose source lost records is trimmed past the loss
once everything before it is appended.
"""

from __future__ import annotations

from kmirror.engine.lane.partition.intake import Intake


class LogStart:
    """Track the log start of one partition."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        #: Fill up to this offset first, with records of the timestamp below; None: no filler is needed.
        self.fill_to: int | None = None
        self.filler_timestamp_ms = 0
        self._trim_to: int | None = None
        self.trim_is_under_way = False
        #: The log start that was set last.
        self.aligned_to: int | None = None

    @property
    def target(self) -> int | None:
        """Where the log must start, while it does not."""
        return self._trim_to if self.fill_to is None else self.fill_to

    def fill_then_trim(self, to: int, now_ms: int) -> None:
        """Fill the log up to an offset, then trim it; recent timestamps keep brokers from forgetting the producer."""
        self.fill_to, self.filler_timestamp_ms, self._trim_to = to, now_ms, None

    def take_in_filler(self) -> None:
        """Queue some of the missing filler."""
        if self.fill_to is not None:
            self._intake.take_in_filler(self.fill_to, self.filler_timestamp_ms)

    def trim(self, to: int | None) -> None:
        """Trim the log up to an offset without filling; None: it starts where it must."""
        self.fill_to, self._trim_to = None, to

    def begin_trim(self) -> None:
        """Note that the log is being trimmed."""
        self.trim_is_under_way = True

    def trim_ended(self) -> None:
        """Note that nothing is in flight any more."""
        self.trim_is_under_way = False

    def trimmed(self) -> None:
        """Note that the log now starts at `target`."""
        self.aligned_to = self.target
