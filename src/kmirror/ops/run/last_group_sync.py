"""The last sync of consumer groups by a `run` that has caught up: after it no engine syncs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kmirror.commands import on_mirror
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason
from kmirror.ops.base.context import Destination, as_kmirror_error
from kmirror.ops.base.topic_results import GroupResult, Outcome, TopicResult
from kmirror.ops.groups.commit import reason_text, refused_sentences
from kmirror.ops.groups.sync import final_sync
from kmirror.state.group_records import GroupReason
from kmirror.state.records import DesiredState
from kmirror.words import listed, visible

#: How long to follow groups whose offsets still move when everything is copied.
_GROUPS_S = 3.0
_NAMED = 3


@dataclass(frozen=True, slots=True)
class SyncedGroups:
    """How the last sync of one mirror's groups ended; `trouble` is a row for what could not be synced."""

    rows: tuple[GroupResult, ...] = ()
    warnings: tuple[str, ...] = ()
    trouble: TopicResult | None = None


def last_group_sync(destination: Destination, mirror: str) -> SyncedGroups:
    """Sync a mirror's groups with the source, as far as that is possible at once."""
    try:
        topics = [topic.topic for topic in destination.state().topics(mirror) if topic.desired is DesiredState.ACTIVE]
        rows = final_sync(destination, mirror, topics, timeout_s=_GROUPS_S)
    except (KmirrorError, OutcomeUnknown) as error:
        known = as_kmirror_error(error)
        return SyncedGroups(trouble=_trouble(mirror, f"not synced at the end: {known}", known.reason))
    return judged(mirror, rows)


def judged(mirror: str, rows: Sequence[GroupResult]) -> SyncedGroups:
    """Tell failures from warnings: a group that is skipped on purpose, or still moves at the source, is a warning."""
    failed = [row for row in rows if _is_failure(row)]
    behind = {row.group: row for row in rows if row.result in (Outcome.REFUSED, Outcome.TIMED_OUT)}
    warnings = [
        f"group {visible(group)} of {mirror} is not in sync with the source: {_why(row)}"
        for group, row in sorted(behind.items())
        if row not in failed
    ]
    bare = [row for row in rows if row.result is not Outcome.REFUSED and row.reason is GroupReason.METADATA_REFUSED]
    warnings += refused_sentences(bare)
    if not failed:
        return SyncedGroups(tuple(rows), tuple(warnings))
    names = sorted({row.group for row in failed})
    message = f"{listed(names, _NAMED)} could not be synced: {_why(failed[0])}"
    return SyncedGroups(tuple(rows), tuple(warnings), _trouble(mirror, message, None))


def _is_failure(row: GroupResult) -> bool:
    if row.result is Outcome.REFUSED:
        return row.reason in (GroupReason.NOT_AUTHORIZED, GroupReason.REFUSED)
    return row.result is Outcome.FAILED or (row.result is Outcome.TIMED_OUT and row.reason is not None)


def _why(row: GroupResult) -> str:
    if row.reason is None:
        return "its offsets there are still changing"
    return row.message or (reason_text(row.reason) if isinstance(row.reason, GroupReason) else str(row.reason))


def _trouble(mirror: str, message: str, reason: Reason | None) -> TopicResult:
    hint = f"`{on_mirror('describe', mirror)} --groups` shows each group; run it again to sync them"
    return TopicResult(None, None, Outcome.FAILED, f"group offsets of {mirror}: {message}", reason, hint=hint)
