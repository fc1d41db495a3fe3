"""Retry transient errors until a `run` is asked to end; a permanent error ends it at once.

An engine is a daemon: a slow broker, a restarting cluster, a missing leader or a name that does not resolve yet must
not end it. Waiting does not help with wrong passwords, missing rights, an unknown mirror, or another engine in charge.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import TypeVar

from kmirror.cluster.protocol.codes import LEADER_MOVED, Code
from kmirror.engine.clock import now, now_ms
from kmirror.engine.status.journal import Level
from kmirror.engine.threads import call_in_thread
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason, TimedOutError, UnreachableError
from kmirror.ops.base.results import UNREACHABLE_REASONS
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.words import at_time

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
#: How often the clock and the signals are checked.
_STEP_S = 0.05
#: An attempt that takes longer than this is shown.
_SHOW_S = 1.0

#: Error codes that pass by themselves: no leader, coordinator or controller, too few replicas, a busy broker.
_PASSING_CODES = LEADER_MOVED | {
    Code.REQUEST_TIMED_OUT,
    Code.NETWORK_EXCEPTION,
    Code.COORDINATOR_LOAD_IN_PROGRESS,
    Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
    Code.NOT_ENOUGH_REPLICAS,
    Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    Code.NOT_CONTROLLER,
    Code.CONCURRENT_TRANSACTIONS,
    Code.THROTTLING_QUOTA_EXCEEDED,
}
_PASSING_REASONS = (None, Reason.SOURCE_UNREACHABLE, Reason.DESTINATION_UNREACHABLE)


class Interrupted(Exception):  # noqa: N818 - not an error: the operator ended it
    """The operator ended the wait."""


def is_transient(error: Exception) -> bool:
    """Return True if retrying may help."""
    if isinstance(error, OutcomeUnknown | TimedOutError):
        return True
    if isinstance(error, BrokerError):
        return error.code in _PASSING_CODES
    return isinstance(error, UnreachableError) and error.reason in _PASSING_REASONS


def _is_missing_file(error: BaseException | None) -> bool:
    """Return True if the error is that a file is not there: after a boot, what writes secrets may come later."""
    while error is not None and not isinstance(error, FileNotFoundError):
        error = error.__cause__ or error.__context__
    return error is not None


def interrupted_row(
    topic: str | None, message: str, error: KmirrorError, hint: str | None, partition: int | None = None
) -> TopicResult:
    """Return the row of a topic in the middle of a verb: TIMED_OUT if the error may pass, else FAILED."""
    outcome = Outcome.TIMED_OUT if is_transient(error) else Outcome.FAILED
    # that a cluster does not answer must not mean that nothing was changed
    reason = None if error.reason in UNREACHABLE_REASONS else error.reason
    return TopicResult(topic, partition, outcome, message, reason, hint=hint)


class Retries:
    """Retry with growing pauses until success, until `stop` is set, or for `seconds` (None: no limit).

    `show` is called about once a second with what the run waits for and since when, a note or None, and its level.
    """

    def __init__(
        self, stop: threading.Event, seconds: float | None, show: Callable[[str, str | None, Level], None]
    ) -> None:
        self._stop = stop
        self._seconds = seconds
        self._end = None if seconds is None else now() + seconds
        self._show = show
        #: True if an attempt still runs in its thread, and may use what it was given.
        self.has_running_attempt = False

    def attempt(
        self,
        what: str,
        action: Callable[[], T],
        *,
        phase: str | None = None,
        at_once: bool = False,
        awaits_files: bool = False,
        idle: Callable[[], None] | None = None,
    ) -> T:
        """Return what `action` returns; it runs in a thread of its own, again after each transient error.

        `what` completes "waiting for"; `phase` is shown before the first failure; `idle` is called about once a second.
        With `at_once` the first error is raised; with `awaits_files`, a missing file is a transient error, too.

        Raises:
            Interrupted: the operator ended the wait.
            TimedOutError: the time is over.
            KmirrorError, OutcomeUnknown: the error is permanent.
        """
        waiting = f"waiting since {at_time(now_ms())} for {what}"
        pause, last, shown = FIRST_PAUSE_S, None, now()
        error: Exception | None = None

        def turn(seconds: float) -> None:
            nonlocal shown
            if self._stop.wait(seconds):
                raise Interrupted
            if self._end is not None and now() >= self._end:
                detail = f": {error}" if error is not None else ""
                raise TimedOutError(
                    f"waited {self._seconds:g} s for {what}{detail}", getattr(error, "hint", None) or "run it again"
                )
            if now() - shown >= _SHOW_S:
                shown = now()
                if error is not None or phase is None:
                    self._show(waiting, None, Level.WARNING)
                else:
                    self._show(phase, None, Level.INFO)
                if idle is not None:
                    idle()

        while True:
            future = call_in_thread(action)
            try:
                while not wait([future], _STEP_S).done:
                    turn(0)
            except BaseException:
                self.has_running_attempt = True
                raise
            try:
                return future.result()
            except (KmirrorError, OutcomeUnknown) as failed:
                if at_once or not (is_transient(failed) or (awaits_files and _is_missing_file(failed))):
                    raise
                error = failed
            if str(error) != last:
                last = str(error)
                self._show(waiting, f"waiting for {what}, retrying: {error}", Level.WARNING)
            until, pause = now() + pause, min(LONGEST_PAUSE_S, 2 * pause)
            while now() < until:
                turn(_STEP_S)
