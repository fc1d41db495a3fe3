"""An index of ACLs: who may do what on which resource. Pure. Super users are unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from kmirror.cluster.protocol.acl_binding import (
    ANY_HOST,
    ANY_NAME,
    EVERYONE,
    AclBinding,
    AclPermission,
    Operation,
    PatternType,
    ResourceType,
)


class Resource(NamedTuple):
    """One resource, or all with a prefix, or `*` for all, as in an ACL."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


class AclIndex:
    """Find the ACLs that apply to a resource, for many resources."""

    def __init__(self, acls: Iterable[AclBinding]) -> None:
        self._named: defaultdict[tuple[ResourceType, str], list[AclBinding]] = defaultdict(list)
        self._wide: defaultdict[ResourceType, list[AclBinding]] = defaultdict(list)
        #: Cached, because a resource is looked up for many principals.
        self._known: dict[tuple[Resource, Operation], list[AclBinding]] = {}
        for one in acls:
            if one.pattern_type is PatternType.PREFIXED or one.resource_name == ANY_NAME:
                self._wide[one.resource_type].append(one)
            else:
                self._named[one.resource_type, one.resource_name].append(one)

    def allowed(self, resource: Resource, operation: Operation) -> set[tuple[str, str]]:
        """Return the principals, with hosts, that may do the operation."""
        some = self.on(resource, operation)
        allowed = {(one.principal, one.host) for one in some if one.permission is AclPermission.ALLOW}
        return {(principal, host) for principal, host in allowed if not _is_denied(some, principal, host)}

    def allows(self, resource: Resource, operation: Operation, principal: str, host: str) -> bool:
        """Return whether a principal may do the operation from a host (`*`: from any host)."""
        some = self.on(resource, operation)
        is_allowed = any(_meets(one, principal, host) for one in some if one.permission is AclPermission.ALLOW)
        return is_allowed and not _is_denied(some, principal, host)

    def on(self, resource: Resource, operation: Operation) -> list[AclBinding]:
        """Return the ACLs that allow or deny an operation on a resource, by its name, a prefix or `*`."""
        known = self._known.get((resource, operation))
        if known is None:
            literal = resource.pattern_type is PatternType.LITERAL
            named = self._named.get((resource.resource_type, resource.name), ()) if literal else ()
            wide = (one for one in self._wide[resource.resource_type] if _covers(one, resource))
            known = [one for one in (*named, *wide) if one.operation in (operation, Operation.ALL)]
            self._known[resource, operation] = known
        return known


def _covers(wide: AclBinding, resource: Resource) -> bool:
    """Return whether an ACL on a prefix or on `*` covers all of a resource, which may be a prefix or `*`, too."""
    if wide.pattern_type is not PatternType.PREFIXED:
        return True
    return resource.name != ANY_NAME and resource.name.startswith(wide.resource_name)


def _meets(one: AclBinding, principal: str, host: str) -> bool:
    return one.principal in (EVERYONE, principal) and one.host in (ANY_HOST, host)


def _is_denied(acls: Iterable[AclBinding], principal: str, host: str) -> bool:
    return any(one.permission is AclPermission.DENY and _meets(one, principal, host) for one in acls)
