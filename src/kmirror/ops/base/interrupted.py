"""The row of a topic that an error has kept a verb from finishing."""

from __future__ import annotations

from kmirror.errors import KmirrorError
from kmirror.ops.base.results import UNREACHABLE_REASONS
from kmirror.ops.base.retrying import is_transient
from kmirror.ops.base.topic_results import Outcome, TopicResult


def interrupted_row(
    topic: str | None, message: str, error: KmirrorError, hint: str | None, partition: int | None = None
) -> TopicResult:
    """Return the row of a topic in the middle of a verb: TIMED_OUT if the error may pass, else FAILED."""
    outcome = Outcome.TIMED_OUT if is_transient(error) else Outcome.FAILED
    # that a cluster does not answer must not mean that nothing was changed
    reason = None if error.reason in UNREACHABLE_REASONS else error.reason
    return TopicResult(topic, partition, outcome, message, reason, hint=hint)
