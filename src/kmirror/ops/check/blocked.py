"""Checks of source topics on which a promote or a switchover denied everyone WRITE. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.commands import Arguments, on_mirror
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.rights.producer_block import unblocking_lines
from kmirror.ops.rights.protection import is_mirrored
from kmirror.state.rights_records import RightsRecord
from kmirror.state.snapshot import State
from kmirror.state.workflow_records import PROMOTE
from kmirror.words import at_time, listed


@dataclass(frozen=True, slots=True)
class BlockedView:
    """Stored denials, in a sentence; `is_wanted` is False if they block producers for no reason any more."""

    message: str
    hint: str
    is_wanted: bool


def blocked_views(
    state: State, mirror: str, cluster: Arguments, source_acls: Callable[[], Collection[AclBinding]], now_ms: int
) -> list[BlockedView]:
    """Report the denials that a mirror's records have and the source has, or may have.

    `cluster` as from `admin_options`; `source_acls` is called only if there are any on record; `now_ms` is the time.
    """
    records = [one for topic in state.topics(mirror) if (one := state.rights(mirror, topic.topic)).blocked]
    if not records:
        return []
    unconfirmed = ""
    try:
        present = source_acls()
        records = [one for one in records if set(one.blocked) & set(present)]
    except (KmirrorError, OutcomeUnknown) as error:
        unconfirmed = f"; whether it still does is unknown: {error}"
    cut = [one for one in records if not is_mirrored(state.topic(mirror, one.topic))]
    waiting = [one for one in records if one not in cut]
    promote = state.workflow(mirror, PROMOTE)
    is_alive = promote is not None and promote.is_alive(now_ms)
    found = []
    if cut:
        hint = "`kmirror failback` or `kmirror switchover` takes it over; to let producers write there again, run:"
        message = f"denies everyone WRITE on {_named(cut)}, which moved away from it{unconfirmed}"
        found.append(BlockedView(message, f"{hint}\n{_lines(cut, cluster)}", is_wanted=True))
    if waiting and is_alive:
        message = f"denies everyone WRITE on {_named(waiting)} while a promote waits{unconfirmed}"
        found.append(BlockedView(message, "it is lifted if the promote gives up", is_wanted=True))
    elif waiting:
        message = f"denies everyone WRITE on {_named(waiting)}, left behind by a promote that was killed{unconfirmed}"
        hint = f"`{on_mirror('promote', mirror)}` resumes it or lifts the denial; or have an administrator run:"
        found.append(BlockedView(message, f"{hint}\n{_lines(waiting, cluster)}", is_wanted=False))
    return found


def _lines(records: Collection[RightsRecord], cluster: Arguments) -> str:
    return unblocking_lines([binding for one in records for binding in one.blocked], cluster)


def _named(records: Collection[RightsRecord]) -> str:
    """Return the source topics, and the earliest time since when they are denied."""
    names = sorted({binding.resource_name for one in records for binding in one.blocked})
    since = min((one.blocked_ms for one in records if one.blocked_ms is not None), default=None)
    return listed(names) + ("" if since is None else f" (since {at_time(since)})")
