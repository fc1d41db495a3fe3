"""What to type about a FAILED partition, and about a link that is refused as a whole. Pure."""

from __future__ import annotations

from kmirror.commands import on_mirror, on_topics
from kmirror.errors import Reason
from kmirror.state.records import TopicRecord
from kmirror.words import at_time

_RESET = "to archive the mirror topic's records and copy the new topic: {recover} --accept-reset"
_DIVERGED = "to archive records that the source does not have and copy the topic again: {recover} --accept-divergence"
_FAILED_STEPS = {
    Reason.SOURCE_TRUNCATED: "to continue without them: {recover} --accept-loss",
    Reason.DESTINATION_TRUNCATED: ("to continue without the lost records: {recover} --accept-loss; or, " + _DIVERGED),
    Reason.SOURCE_TOPIC_RECREATED: _RESET,
    Reason.PARTITIONS_DECREASED: _RESET,
    Reason.SOURCE_DIVERGED: _DIVERGED,
    Reason.DESTINATION_WRITTEN: f"stop the client that writes to it; then, {_DIVERGED}",
    Reason.OFFSET_MISMATCH: f"stop the client that writes to it or changes its settings; then, {_DIVERGED}",
    Reason.SOURCE_TOPIC_DELETED: (
        "the mirror topic is kept as it is; a running engine resumes within 5 minutes after it is back, or"
        " immediately with: {recover}"
    ),
    Reason.DESTINATION_TOPIC_DELETED: (
        "discovery mirrors it anew, with all of its history, only if a filter of the mirror matches it; otherwise, to"
        " mirror it again: {add}, if no other topic has its name"
    ),
    Reason.NOT_AUTHORIZED: (
        "{check} prints the command that grants it; a running engine resumes within 5 minutes "
        "after that, or immediately with: {recover}"
    ),
    Reason.FENCED: "kmirror events and kmirror list show which engine is in charge now",
}
_FAILED = "fix the cause; a running engine resumes within 5 minutes, or immediately with: {recover}"


def next_step(reason: Reason | None, mirror: str, topic: str, source_topic: str) -> str:
    """Return what an operator can do about a FAILED partition of a mirror topic, with the command to type."""
    step = _FAILED if reason is None else _FAILED_STEPS.get(reason, _FAILED)
    return step.format(
        recover=on_topics("recover", mirror, [topic]),
        add=on_topics("add", mirror, [source_topic]),
        check=on_mirror("check", mirror),
    )


def failure_text(message: str | None, since_ms: int | None, reason: Reason | None, topic: TopicRecord) -> str:
    """Return the text for a FAILED partition: what happened, since when (epoch ms), what to type."""
    since = [] if since_ms is None else [f"FAILED since {at_time(since_ms)}"]
    return "; ".join([message or "FAILED", *since, next_step(reason, topic.mirror, topic.topic, topic.source_topic)])


_REFUSED = (
    "`{check}` shows the cause; copying resumes automatically once the source accepts the"
    " connection; to change its credentials: {config} --set KEY=VALUE, or change where its"
    " secrets are stored; a running engine picks that up within seconds, except for environment variables"
)
_REFUSED_STEPS = {
    Reason.SOURCE_CLUSTER_CHANGED: (
        "nothing is copied from it, and copying resumes automatically once the right cluster is back; if its address"
        " has changed: {config} --set bootstrap.servers=HOST:PORT"
    )
}


def refused_text(message: str | None, reason: Reason | None, mirror: str) -> str:
    """Return the text on a refused link: what happened, since when if known, what to type."""
    step = _REFUSED if reason is None else _REFUSED_STEPS.get(reason, _REFUSED)
    what = step.format(check=on_mirror("check", mirror), config=on_mirror("config", mirror))
    return f"{message or 'the source refuses the connection'}; {what}"
