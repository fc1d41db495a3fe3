"""The source's ACLs as the engine read them last, stored on the destination for when the source is gone."""

from __future__ import annotations

from collections.abc import Collection

from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.ops.rights.client_sync import RECORDED_EVERY_MS
from kmirror.state.client_records import SourceAclsRecord
from kmirror.state.snapshot import Changes, State

#: ACLs in a record: one takes about 100 bytes, a record at most a megabyte.
_IN_A_PAGE = 2000


def store_source_acls(destination: Destination, mirror: str, acls: Collection[AclBinding]) -> None:
    """Store the source's ACLs if they have changed; otherwise now and then that they are unchanged."""
    found, at = sorted(acls), now_ms()
    cuts = range(0, len(found), _IN_A_PAGE)
    pages = [SourceAclsRecord(mirror, n, tuple(found[cut : cut + _IN_A_PAGE])) for n, cut in enumerate(cuts, 1)]

    def decide(state: State) -> Changes:
        head = _page(state, mirror, 0)
        changed = [one for one in pages if _page(state, mirror, one.page) != one]
        gone = range(len(pages) + 1, (head.pages if head else 0) + 1)
        is_old = head is None or at - head.time_ms > RECORDED_EVERY_MS
        if not (changed or gone or is_old):
            return Changes()
        first = SourceAclsRecord(mirror, 0, (), at, len(pages))
        return Changes((first, *changed), tuple(SourceAclsRecord(mirror, page).key for page in gone))

    if decide(destination.state()) != Changes():
        change(destination, mirror, decide)


def stored_source_acls(state: State, mirror: str) -> tuple[frozenset[AclBinding], int] | None:
    """Return the source's ACLs when they were last read, and that time; None unless all pages are stored."""
    head = _page(state, mirror, 0)
    if head is None:
        return None
    pages = [_page(state, mirror, number) for number in range(1, head.pages + 1)]
    if any(page is None for page in pages):
        return None
    return frozenset(one for page in pages if page is not None for one in page.acls), head.time_ms


def _page(state: State, mirror: str, page: int) -> SourceAclsRecord | None:
    found = state.records.get(("acls", mirror, page))
    return found if isinstance(found, SourceAclsRecord) else None
