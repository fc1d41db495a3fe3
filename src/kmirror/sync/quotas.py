"""Which of the source's client quotas the destination gets. Pure.

Quotas of users and client ids by name. A default quota would limit every client of the destination without its own
quota, including kmirror, and addresses are of other machines there: neither is copied, nor is a quota of kmirror
itself. A quota that someone else set at the destination stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from kmirror.cluster.protocol.quota import Quota

_KINDS = frozenset({"user", "client-id"})


@dataclass(frozen=True, slots=True)
class QuotaPlan:
    """What to set and to remove at the destination.

    `ours` are the quotas that may be kmirror's meanwhile, to be recorded before; `kept` those that are afterwards.
    `differing` are quotas of the source that others have set to another value at the destination.
    """

    wanted: frozenset[Quota]
    unwanted: frozenset[Quota]
    ours: frozenset[Quota]
    kept: frozenset[Quota]
    differing: frozenset[Quota] = frozenset()


def copied_quotas(source: Iterable[Quota], is_own: Callable[[str, str], bool]) -> frozenset[Quota]:
    """Return the quotas that may be copied; `is_own` returns whether a type and name are kmirror's own."""
    return frozenset(
        one for one in source if all(kind in _KINDS and name and not is_own(kind, name) for kind, name in one.entity)
    )


def quota_plan(
    source: Collection[Quota], here: Collection[Quota], ours: Collection[Quota], *, deletes: bool
) -> QuotaPlan:
    """Compare the quotas to copy with those here; `ours` are recorded as set by kmirror.

    With `deletes`, quotas that are gone at the source are removed; without, they stay, because clients may rely on
    them.
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
