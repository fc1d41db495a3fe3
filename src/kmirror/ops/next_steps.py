"""What to type when a partition is FAILED. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from kmirror.errors import Reason

_RESET = (
    "to archive what the mirror topic holds, and copy the new one: "
    "kmirror recover --mirror {mirror} --topics {topic} --accept-reset"
)
_DIVERGED = (
    "to archive what the source does not have, and copy the topic again: "
    "kmirror recover --mirror {mirror} --topics {topic} --accept-divergence"
)
_STEPS = {
    Reason.SOURCE_TRUNCATED: "to go on without them: kmirror recover --mirror {mirror} --topics {topic} --accept-loss",
    Reason.DESTINATION_TRUNCATED: (
        "to go on without what was lost: kmirror recover --mirror {mirror} --topics {topic} --accept-loss; or, "
        + _DIVERGED
    ),
    Reason.SOURCE_TOPIC_RECREATED: _RESET,
    Reason.PARTITIONS_DECREASED: _RESET,
    Reason.SOURCE_DIVERGED: _DIVERGED,
    Reason.DESTINATION_WRITTEN: f"stop whoever writes to it; then, {_DIVERGED}",
    Reason.OFFSET_MISMATCH: f"stop whoever writes to it; then, {_DIVERGED}",
    Reason.SOURCE_TOPIC_DELETED: (
        "when it is there again: kmirror recover --mirror {mirror} --topics {topic}; the mirror topic is kept as it is"
    ),
    Reason.DESTINATION_TOPIC_DELETED: (
        "it is not created unasked; to mirror it anew: kmirror add --mirror {mirror} --topics {topic}, where no other "
        "topic bears its name"
    ),
    Reason.NOT_AUTHORIZED: (
        "kmirror check --mirror {mirror} prints what is missing; then: kmirror recover --mirror {mirror} "
        "--topics {topic}"
    ),
    Reason.FENCED: "kmirror events and kmirror list say who is in charge now",
}
_DEFAULT = "when that is mended: kmirror recover --mirror {mirror} --topics {topic}"


def next_step(reason: Reason | None, mirror: str, topic: str) -> str:
    """Return what an operator can do about a FAILED partition, with the command to type."""
    step = _DEFAULT if reason is None else _STEPS.get(reason, _DEFAULT)
    return step.format(mirror=mirror, topic=topic)


def failure_text(message: str | None, since_ms: int | None, reason: Reason | None, mirror: str, topic: str) -> str:
    """Return what is told of a FAILED partition: what happened, since when, what to type. The time is epoch ms."""
    told = [message or "FAILED"]
    if since_ms is not None:
        told.append(f"FAILED since {datetime.fromtimestamp(since_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}")
    return "; ".join([*told, next_step(reason, mirror, topic)])
