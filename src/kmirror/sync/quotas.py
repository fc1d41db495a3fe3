"""Which of the source's client quotas the destination gets. Pure.

Quotas of users and client ids by name. A default limits every client of the destination that has no quota of its own,
kmirror among them, and addresses mean other machines there: neither is taken over, nor is what limits kmirror itself.
A quota that another client has set at the destination stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from kmirror.cluster.protocol.quota import Quota

_KINDS = frozenset({"user", "client-id"})


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """What to set and to remove at the destination.

    `ours` is what may be kmirror's while that is done, to be recorded before; `kept` is what is, once it is done.
    `differing` are quotas of the source that others have set otherwise at the destination.
    """

    wanted: frozenset[Quota]
    unwanted: frozenset[Quota]
    ours: frozenset[Quota]
    kept: frozenset[Quota]
    differing: frozenset[Quota] = frozenset()


def taken_over(source: Iterable[Quota], is_own: Callable[[str, str], bool]) -> frozenset[Quota]:
    """Return the quotas that may be taken over; `is_own` tells of a type and a name whether that is kmirror itself."""
    return frozenset(
        one for one in source if all(kind in _KINDS and name and not is_own(kind, name) for kind, name in one.entity)
    )


def quota_plan(
    source: Collection[Quota], here: Collection[Quota], ours: Collection[Quota], *, deletes: bool
) -> QuotaPlan:
    """Compare what is to be taken over with what is here; `ours` is what is on record as set by kmirror.

    With `deletes`, what is gone at the source is removed; not so once clients may live by it.
    """
    present = {one.place: one for one in here}
    mine = frozenset(ours)
    wanted: set[Quota] = set()
    kept: set[Quota] = set()
    differing: set[Quota] = set()
    for one in source:
        found = present.get(one.place)
        if found == one:
            kept |= {one} & mine
        elif found is None or found in mine:
            wanted.add(one)
            kept.add(one)
        else:
            differing.add(one)
    places = {one.place for one in source}
    obsolete = {one for one in mine if one.place not in places and present.get(one.place) == one}
    if not deletes:
        kept |= obsolete
        obsolete = set()
    return QuotaPlan(frozenset(wanted), frozenset(obsolete), mine | wanted, frozenset(kept), frozenset(differing))
