"""Why one partition is not copied, and when it is inspected again. No I/O, no clock.

A trouble pauses it, longer each time. A FAILED partition is inspected again with growing pauses too, and stays FAILED
until it is copied again. If the two histories differed, that takes a proof that they are the same.
"""

from __future__ import annotations

from kmirror.engine.histories.judge import Fail, TailMatch, Trouble
from kmirror.errors import HISTORY_REASONS, Reason

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
#: The pause before the first inspection of a FAILED partition; it doubles each time, up to the limit.
FIRST_RETRY_SECONDS = 5.0
LONGEST_RETRY_SECONDS = 300.0
#: After these, a partition resumes by itself only with a proof. What the source has lost may come back unchanged.
_NEEDS_PROOF = HISTORY_REASONS - {Reason.SOURCE_TRUNCATED}


class Retry:
    """Track the troubles of one partition; a `permanent_after_retries` one fails it after `timeout` seconds.

    One that is proved fails it at once.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.attempt = 0
        self.wake_at = 0.0
        self.trouble: Trouble | None = None
        #: Why the partition is FAILED; kept while it is inspected again.
        self.failure: Fail | None = None
        self._needs_proof = False
        self._troubled_since: float | None = None

    def pause(self, trouble: Trouble, log_end: int, now: float) -> Fail | None:
        """Schedule the next inspection; return a failure if the partition must become or stay FAILED instead.

        A FAILED partition keeps its reason: only a permanent trouble replaces it, and never a reason that needs proof.
        """
        if self.failure:
            replaces = trouble.permanent_after_retries and not self._needs_proof
            return Fail(trouble.reason, trouble.message, self.failure.offset) if replaces else self.failure
        self.trouble = trouble
        if not trouble.permanent_after_retries:
            self._troubled_since = None  # no response proves nothing; the timeout starts again with the next one
        elif self._troubled_since is None:
            self._troubled_since = now
        self.attempt += 1
        lasts = self._troubled_since is not None and now - self._troubled_since >= self._timeout
        if trouble.is_proved or lasts:
            return Fail(trouble.reason, trouble.message, log_end)
        self.wake_at = now + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self.attempt - 1, 10))
        return None

    def fail(self, failure: Fail, now: float) -> None:
        """Schedule the next inspection after the first failure or after a failed attempt to resume."""
        if self.failure is None:
            self.attempt = 0
        self.failure, self.trouble = failure, None
        self._needs_proof = self._needs_proof or failure.reason in _NEEDS_PROOF
        pause = min(LONGEST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(self.attempt, 10))
        # brokers forget in time what fenced a producer, but the fence must stay
        self.wake_at = float("inf") if failure.reason is Reason.FENCED else now + pause

    def unproven(self, tail: TailMatch) -> Fail | None:
        """Return the failure of a partition that stays FAILED because nothing proves that its logs are the same."""
        return self.failure if self._needs_proof and tail is not TailMatch.SAME else None

    def made_progress(self, *, is_copying: bool) -> None:
        """Note that something was appended, or that nothing is left to copy."""
        self.failure, self._needs_proof = None, False
        self.attempt = 0
        if self.trouble is None or is_copying:
            self._troubled_since = None
