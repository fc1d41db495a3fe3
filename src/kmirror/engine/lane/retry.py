"""Why one partition is not copied, and when it is looked at again. No I/O, no clock.

A trouble pauses it, longer each time. A partition that FAILED is looked at again with growing pauses too, and is FAILED
until it is copied again. Where the two histories were found to differ, that takes a proof that they are the same.
"""

from __future__ import annotations

from kmirror.engine.histories.judge import Fail, Tail, Trouble
from kmirror.errors import HISTORY_REASONS, Reason

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
#: A FAILED partition is looked at again so many seconds after it failed; then twice as many each time, up to the limit.
FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 300.0
#: After these, a partition resumes by itself only with a proof. What was lost at the source may come back as it was.
_NEEDS_PROOF = HISTORY_REASONS - {Reason.SOURCE_TRUNCATED}


class Retry:
    """Follow one partition's troubles; one that is an answer rather than silence fails it after `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.attempt = 0
        self.wake_at = 0.0
        self.trouble: Trouble | None = None
        #: Why the partition is FAILED; kept while it is looked at again.
        self.failure: Fail | None = None
        self._needs_proof = False
        self._troubled_since: float | None = None

    def pause(self, trouble: Trouble, log_end: int, now: float) -> Fail | None:
        """Set the next inspection; return why the partition is to be FAILED instead, or is still.

        A partition that FAILED before stays so. Silence says nothing about why, and about a history only facts do.
        """
        if self.failure:
            is_news = trouble.permanent_after_retries and not self._needs_proof
            return Fail(trouble.reason, trouble.message, self.failure.offset) if is_news else self.failure
        self.trouble = trouble
        if not trouble.permanent_after_retries:
            self._troubled_since = None  # silence proves nothing, and an answer after it is news
        elif self._troubled_since is None:
            self._troubled_since = now
        self.attempt += 1
        if self._troubled_since is not None and now - self._troubled_since >= self._timeout:
            return Fail(trouble.reason, trouble.message, log_end)
        self.wake_at = now + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self.attempt - 1, 10))
        return None

    def fail(self, failure: Fail, now: float) -> None:
        """Set the next look after a failure: the first, or as the last attempt to resume ended."""
        if self.failure is None:
            self.attempt = 0
        self.failure, self.trouble = failure, None
        self._needs_proof = self._needs_proof or failure.reason in _NEEDS_PROOF
        pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(self.attempt, 10))
        # what fences a producer is forgotten by brokers in time, and means to stay
        self.wake_at = float("inf") if failure.reason is Reason.FENCED else now + pause

    def unproven(self, tail: Tail) -> Fail | None:
        """Return why a partition stays FAILED although it could be copied: nothing proves that its logs are alike."""
        return self.failure if self._needs_proof and tail is not Tail.SAME else None

    def got_on(self, *, is_copying: bool) -> None:
        """Note that something was appended, or that nothing is left to copy."""
        self.failure, self._needs_proof = None, False
        self.attempt = 0
        if self.trouble is None or is_copying:
            self._troubled_since = None
