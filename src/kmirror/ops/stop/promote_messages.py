"""What promote says of topics that are not stopped, or would not be. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kmirror.errors import Reason
from kmirror.ops.results import Outcome, TopicResult
from kmirror.ops.stop.promote_claim import was_promoted
from kmirror.ops.stop.promote_readiness import Look, Missing
from kmirror.state.records import TopicRecord

_MOST_NAMED = 20


def others_told(others: Sequence[str]) -> str:
    """Say what a topic that is ready waits for when it is to be stopped together with others."""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return f"it is ready and waits for {others[0]}{more}"


def not_stopped(topic: str, why: str, what: str, missing: Missing | None) -> TopicResult:
    """Return the row of a topic that was not stopped in time."""
    message = f"{topic} was not stopped, {why}: {what}"
    hint = "it stays mirrored; run the same command again"
    return TopicResult(topic, None, Outcome.TIMED_OUT, message, lag=missing.lag if missing else None, hint=hint)


def not_without(topic: str, missed: str, *, dry_run: bool = False) -> TopicResult:
    """Return the row of a topic that is given back, since the topic `missed` cannot be stopped together with it."""
    word = "would not be stopped" if dry_run else "was not stopped"
    message = f"{topic} {word}: --together stops all topics or none, and {missed} cannot be stopped"
    hint = f"it stays mirrored; fix {missed} first, or exclude it with --exclude"
    return TopicResult(topic, None, Outcome.REFUSED, message, hint=hint)


def rehearsed(look: Look, held: dict[str, str], *, together: bool) -> list[TopicResult]:
    """Return the rows of a dry run; `held` names what else keeps topics that lack no records."""
    rows = [row for rows in look.failed.values() for row in rows]
    lacking = [name for name, missing in look.missing.items() if missing.what or name in held]
    for name, missing in look.missing.items():
        what = missing.what or held.get(name)
        if together and look.failed:
            rows.append(not_without(name, next(iter(look.failed)), dry_run=True))
        elif what or (together and lacking):
            message = f"{name} would wait: {what or others_told(lacking)}"
            rows.append(TopicResult(name, None, Outcome.TIMED_OUT, message, lag=missing.lag))
        else:
            message = f"{name} would be stopped now"
            rows.append(TopicResult(name, None, Outcome.DONE, message, Reason.PROMOTED, lag=missing.lag))
    return rows


def blocking_told(topics: Sequence[str]) -> str:
    """Say what --block-producers does at the source with these topics there."""
    more = f" and {len(topics) - _MOST_NAMED} more" if len(topics) > _MOST_NAMED else ""
    return (
        f"the source would deny WRITE to everybody but its super users on {', '.join(topics[:_MOST_NAMED])}{more}, and "
        "refuse their records from then on"
    )


def half_stopped_told(topics: Iterable[TopicRecord], mirror: str, chosen: Collection[str]) -> list[str]:
    """Return a sentence that names topics, not `chosen` now, whose promote was killed while it stopped them."""
    names = [topic.topic for topic in topics if was_promoted(topic) and topic.topic not in chosen]
    if not names:
        return []
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return [
        f"a promote was interrupted while it was stopping {', '.join(names[:_MOST_NAMED])}{more}: neither mirrored "
        f"nor writable until `kmirror promote --mirror {mirror} --topics {','.join(names[:_MOST_NAMED])}` finishes it"
    ]
