"""What `check` says of source topics to which a promote or a switchover denied everybody WRITE. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.context import now_ms
from kmirror.ops.rights.protection import is_mirrored
from kmirror.ops.rights.source_cut import unblocking_lines
from kmirror.state.rights_records import RightsRecord
from kmirror.state.snapshot import State
from kmirror.state.workflow_records import PROMOTE
from kmirror.words import at_time

_MOST_TOPICS = 20


@dataclass(frozen=True, slots=True)
class BlockedView:
    """Denials on record, in a sentence; not `is_wanted` where producers are kept waiting for nothing."""

    message: str
    hint: str
    is_wanted: bool


def blocked_views(
    state: State, mirror: str, cluster: str, source_acls: Callable[[], Collection[AclBinding]]
) -> list[BlockedView]:
    """Return what is to say of the denials that a mirror's record holds and the source has, or may have.

    `cluster` as of `admin_options`; `source_acls` is asked where something is on record.
    """
    records = [one for topic in state.topics(mirror) if (one := state.rights(mirror, topic.topic)).blocked]
    if not records:
        return []
    unseen = ""
    try:
        present = source_acls()
        records = [one for one in records if set(one.blocked) & set(present)]
    except (KmirrorError, OutcomeUnknown) as error:
        unseen = f"; whether it still does is unknown: {error}"
    cut = [one for one in records if not is_mirrored(state.topic(mirror, one.topic))]
    waiting = [one for one in records if one not in cut]
    promote = state.workflow(mirror, PROMOTE)
    is_alive = promote is not None and promote.is_alive(now_ms())
    found = []
    if cut:
        hint = "`kmirror failback` or `kmirror switchover` takes it over; to let producers write there again, run:"
        told = f"denies everyone WRITE on {_named(cut)}, which moved away from it{unseen}"
        found.append(BlockedView(told, f"{hint}\n{_lines(cut, cluster)}", is_wanted=True))
    if waiting and is_alive:
        told = f"denies everyone WRITE on {_named(waiting)} while a promote waits{unseen}"
        found.append(BlockedView(told, "it is lifted if the promote gives up", is_wanted=True))
    elif waiting:
        told = f"denies everyone WRITE on {_named(waiting)}, left behind by a promote that is gone{unseen}"
        hint = f"`kmirror promote --mirror {mirror}` goes on or takes it back; or have an administrator run:"
        found.append(BlockedView(told, f"{hint}\n{_lines(waiting, cluster)}", is_wanted=False))
    return found


def _lines(records: Collection[RightsRecord], cluster: str) -> str:
    return unblocking_lines([binding for one in records for binding in one.blocked], cluster)


def _named(records: Collection[RightsRecord]) -> str:
    """Name the source topics, and since when it has been so at the longest."""
    names = sorted({binding.resource_name for one in records for binding in one.blocked})
    more = f" and {len(names) - _MOST_TOPICS} more" if len(names) > _MOST_TOPICS else ""
    since = min((one.blocked_ms for one in records if one.blocked_ms is not None), default=None)
    return ", ".join(names[:_MOST_TOPICS]) + more + ("" if since is None else f" (since {at_time(since)})")
