"""Who can stop or damage which mirrors, by the destination's ACLs, and how `check` reports it. Pure.

The state of all mirrors is in one topic: a principal that may write to it has power over all of them, and so has one
that may change ACLs or write transaction markers, which are rights on the cluster. Rights on a mirror's own topics, or
on the transactional ids that are its locks, are power over that mirror only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from kmirror.cluster.protocol.acl_binding import AclBinding, Operation, ResourceType
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS
from kmirror.sync.acl_index import AclIndex, Resource
from kmirror.words import counted, listed, visible

_CLUSTER = Resource(ResourceType.CLUSTER, "kafka-cluster")
_OVER_CLUSTER = (Operation.ALTER, Operation.CLUSTER_ACTION)
#: Operations that change a topic's records, or allow others to change them.
_OVER_TOPIC = (Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS)
_ROLES = ("operator", "engine")
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Power:
    """Which principals have power over something, and by which rights: `WRITE on topic orders`."""

    rights: Mapping[str, Collection[str]]

    @property
    def principals(self) -> frozenset[str]:
        """All principals with any of these rights."""
        return frozenset(self.rights)

    def __str__(self) -> str:
        principals = [f"{name} ({listed(sorted(rights), 3)})" for name, rights in sorted(self.rights.items())]
        return listed(principals, _MOST_NAMED)


def power_over_all(acls: Iterable[AclBinding]) -> Power:
    """Return who can stop or damage every mirror of the destination."""
    stored = [Resource(ResourceType.TOPIC, name) for name in (STATE_TOPIC, EVENTS_TOPIC)]
    index = AclIndex(acls)
    return _power(index, [*((one, _OVER_TOPIC) for one in stored), (_CLUSTER, _OVER_CLUSTER)])


def power_over_mirror(acls: Iterable[AclBinding], mirror: str, topics: Iterable[str]) -> Power:
    """Return who can damage the mirror topics of one mirror, or take its locks."""
    locks = [f"{OWN_TRANSACTIONAL_IDS}{role}-{quote(mirror, safe='')}" for role in _ROLES]
    ids = [(Resource(ResourceType.TRANSACTIONAL_ID, one), (Operation.WRITE,)) for one in locks]
    return _power(AclIndex(acls), [*((Resource(ResourceType.TOPIC, one), _OVER_TOPIC) for one in topics), *ids])


@dataclass(frozen=True, slots=True)
class PowerLine:
    """The line of `check` on power over `what`; with a `hint` if a principal may have it that should not."""

    what: str
    message: str
    hint: str = ""


def power_lines(
    acls: Collection[AclBinding], own: Collection[str], mirrors: Mapping[str, Collection[str]], asked: Collection[str]
) -> list[PowerLine]:
    """Return a line on all mirrors, one for each mirror in `asked`, and one for each that others can damage.

    `mirrors` are those stored at the destination with their mirror topics, `own` our principals.
    """
    over_all = power_over_all(acls)
    others = over_all.principals - frozenset(own)
    who = f"{over_all}; super users can, too" if over_all.principals else "only super users can, by the ACLs"
    if not any(one.covers(ResourceType.TOPIC, STATE_TOPIC) for one in acls):
        who += f"; no ACL applies to {STATE_TOPIC}: with allow.everyone.if.no.acl.found=true everyone can"
    named = ", ".join(map(visible, sorted(mirrors)[:_MOST_NAMED])) + (" …" if len(mirrors) > _MOST_NAMED else "")
    hint = "grant these rights only to principals that may stop all of these mirrors: they cannot be granted for one"
    message = f"who can stop or damage all {counted(len(mirrors), 'mirror')} here ({named}): {who}"
    lines = [PowerLine("power over all mirrors", message, hint if others and len(mirrors) > 1 else "")]
    for mirror in sorted({*mirrors, *asked}):
        over_one = power_over_mirror(acls, mirror, mirrors.get(mirror, ()))
        more = Power({name: what for name, what in over_one.rights.items() if name not in {*over_all.rights, *own}})
        if more.rights:
            hint = "revoke what is not intended: write protection denies writing to mirror topics, not changing them"
            lines.append(PowerLine(f"power over mirror {mirror}", f"these can damage it, too: {more}", hint))
        elif mirror in asked:
            lines.append(PowerLine(f"power over mirror {mirror}", "no one else can damage it, by the ACLs"))
    return lines


def _power(index: AclIndex, asked: Iterable[tuple[Resource, Iterable[Operation]]]) -> Power:
    rights: dict[str, set[str]] = {}
    for resource, operations in asked:
        for operation in operations:
            for principal, _ in index.allowed(resource, operation):
                what = resource.resource_type.lower().replace("_", " ")
                where = "the cluster" if resource is _CLUSTER else f"{what} {resource.name}"
                rights.setdefault(principal, set()).add(f"{operation} on {where}")
    return Power(rights)
