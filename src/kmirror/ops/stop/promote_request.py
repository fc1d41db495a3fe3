"""What `promote` is asked to do, what it shows while it waits, and what it says of topics that are not stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kmirror.commands import on_topics
from kmirror.engine.spark.conf import SparkOptions
from kmirror.engine.spark.conf import check as check_spark
from kmirror.errors import KmirrorError, Reason, UnreachableError, UsageError
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.stop.promote_claim import has_unfinished_promote
from kmirror.ops.stop.promote_readiness import Missing, Readiness
from kmirror.ops.stop.work import RUN_AGAIN
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import TopicRecord
from kmirror.words import listed
from kmirror.work import WorkView

IDLE_MS = 10_000
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class PromoteRequest:
    """What to promote; `timeout_ms` None: wait forever, `idle_ms` None: producers may continue (--allow-producers)."""

    mirror: str
    topics: TopicSelector | None = None
    exclude: TopicSelector | None = None
    timeout_ms: int | None = None
    idle_ms: int | None = IDLE_MS
    verify: bool = False
    master: str = "local[*]"
    #: Stop all of the topics at once, or none.
    together: bool = False
    #: Deny everyone WRITE on the source's topics, instead of waiting until their ends have not moved for a while.
    block_producers: bool = False

    def checked(self) -> PromoteRequest:
        """Return it with what its options imply. Raises UsageError: it is contradictory, or its master is none."""
        if self.timeout_ms is not None and self.timeout_ms <= 0:
            raise UsageError("--timeout is not positive", "give a duration such as 30m")
        # our own engine may need it much later
        check_spark(SparkOptions(1, Path(os.devnull), "promote", self.master), os.environ)
        if not self.block_producers:
            return self
        if self.idle_ms is None:
            raise UsageError("--block-producers and --allow-producers exclude each other", "give one of them")
        return replace(self, idle_ms=0)


@dataclass(frozen=True, slots=True)
class PromoteView:
    """What a watcher is shown: what each topic lacks, the smallest lag first, and new `lines` of text.

    `work` is the progress of a comparison of contents.
    """

    elapsed_seconds: float
    missing: tuple[Missing, ...] = ()
    lines: tuple[str, ...] = ()
    work: WorkView | None = None


Watcher = Callable[[PromoteView], None]


class Show:
    """Report progress to a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.began = time.monotonic()

    def say(self, line: str) -> None:
        self._watcher(PromoteView(time.monotonic() - self.began, lines=(line,)))

    def work(self, view: WorkView) -> None:
        """Show the progress of comparing contents."""
        self._watcher(PromoteView(view.at - self.began, work=view))

    def progress(self, readiness: Readiness, blockers: Mapping[str, str]) -> None:
        """Show what each topic lacks; `blockers` says why those that lack no records were not stopped."""
        found = (replace(one, what=one.what or blockers.get(one.topic)) for one in readiness.missing.values())
        missing = sorted(found, key=lambda one: (one.lag is None, one.lag or 0, one.topic))
        self._watcher(PromoteView(time.monotonic() - self.began, tuple(missing)))


def waits_for_text(others: Sequence[str]) -> str:
    """Return what a ready topic waits for if it must be stopped together with others."""
    return f"it is ready and waits for {listed(others, 1)}"


def not_stopped(
    topic: str, why: str, what: str, missing: Missing | None, unknown: str | None, *, begun: bool
) -> TopicResult:
    """Return the row of a topic that was not stopped in time; `begun`: its stop has begun and may be complete.

    `unknown` is why it is unknown what it lacks now.
    """
    message = f"{topic} was not stopped, {why}: {f'what it lacks is unknown now: {unknown}' if unknown else what}"
    if begun:
        message = f"it is unknown whether {topic} was stopped: {unknown or why}"
    hint = RUN_AGAIN if begun else "it stays mirrored; run the same command again"
    return TopicResult(topic, None, Outcome.TIMED_OUT, message, lag=missing.lag if missing else None, hint=hint)


def not_stopped_together(topic: str, failed: str, *, dry_run: bool = False) -> TopicResult:
    """Return the row of a topic that is released because the topic `failed` cannot be stopped together with it."""
    what = "would not be stopped" if dry_run else "was not stopped"
    message = f"{topic} {what}: --together stops all topics or none, and {failed} cannot be stopped"
    hint = f"it stays mirrored; fix {failed} first, or exclude it with --exclude"
    return TopicResult(topic, None, Outcome.REFUSED, message, hint=hint)


def lost_rows(topics: Iterable[str], begun: Collection[str], error: KmirrorError) -> list[TopicResult]:
    """Return the rows of topics that are left because of an error, such as another promote having taken them over."""
    rows = []
    for one in topics:
        message, reason = f"{one} was not stopped: {error.message}", error.reason
        if one in begun:
            message = f"it is unknown whether {one} was stopped: {error.message}"
            # that a cluster does not answer must not mean that nothing was changed
            reason = None if isinstance(error, UnreachableError) else reason
        rows.append(TopicResult(one, None, Outcome.FAILED, message, reason, hint=error.hint or RUN_AGAIN))
    return rows or [TopicResult(None, None, Outcome.FAILED, error.message, error.reason, hint=error.hint)]


def taken_row(name: str, topic: TopicRecord | None) -> TopicResult:
    """Return the row of a waiting topic that another command has stopped or taken over."""
    why = f"stopped by another command ({topic.stop_reason})" if topic and topic.stop_reason else "taken over"
    hint = "check with `kmirror describe` and `kmirror events`"
    return TopicResult(name, None, Outcome.FAILED, f"{name} was {why} meanwhile", Reason.FENCED, hint=hint)


def dry_run_rows(readiness: Readiness, blockers: dict[str, str], *, together: bool) -> list[TopicResult]:
    """Return the rows of a dry run; `blockers` names what else blocks topics."""
    rows = [row for rows in readiness.failed.values() for row in rows]
    lacking = [name for name, missing in readiness.missing.items() if missing.what or name in blockers]
    for name, missing in readiness.missing.items():
        causes = [one for one in (missing.what, *missing.others, blockers.get(name)) if one is not None]
        what = "; ".join(causes)
        if together and readiness.failed:
            rows.append(not_stopped_together(name, next(iter(readiness.failed)), dry_run=True))
        elif what or (together and lacking):
            message = f"{name} would wait: {what or waits_for_text(lacking)}"
            rows.append(TopicResult(name, None, Outcome.TIMED_OUT, message, lag=missing.lag))
        else:
            message = f"{name} would be stopped now"
            rows.append(TopicResult(name, None, Outcome.DONE, message, Reason.PROMOTED, lag=missing.lag))
    return rows


def blocking_text(topics: Iterable[TopicRecord]) -> str:
    """Return what --block-producers does at the source for the sources of these topics."""
    names = sorted(topic.source_topic for topic in topics)
    return (
        f"the source would deny WRITE to everyone but its super users on {listed(names, _MOST_NAMED)}, and "
        "refuse their records from then on"
    )


def half_stopped_warnings(topics: Iterable[TopicRecord], mirror: str, chosen: Collection[str]) -> list[str]:
    """Return a warning that names topics outside `chosen` whose promote was killed while it was stopping them."""
    names = [topic.topic for topic in topics if has_unfinished_promote(topic) and topic.topic not in chosen]
    if not names:
        return []
    return [
        f"a promote was interrupted while it was stopping {listed(names, _MOST_NAMED)}: neither mirrored "
        f"nor writable until `{on_topics('promote', mirror, names[:_MOST_NAMED])}` finishes it"
    ]
