"""What the source's ACLs let its clients do that those of the destination do not. Pure.

Reading and writing topics, reading groups, and using transactional ids; by ACLs alone: whether a principal is a super
user cannot be known. Who may do it from one host there has to be let in from that host here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from kmirror.cluster.protocol.acl_binding import (
    ANY_HOST,
    ANY_NAME,
    EVERYONE,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS
from kmirror.sync.client_acls import producers_of

_KINDS = frozenset({ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID})


class LackingRight(NamedTuple):
    """What one principal may not do here: `names` are the destination's, or prefixes, as `pattern_type` says."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    pattern_type: PatternType
    names: tuple[str, ...]


class Scope(NamedTuple):
    """Whose rights count: source topics and groups with their names here, and which other groups are mirrored."""

    topics: Mapping[str, str]
    groups: Mapping[str, str]
    takes_group: Callable[[str], bool]
    group_here: Callable[[str], str]
    #: kmirror's own principals.
    own: Collection[str]


def is_of_clients(binding: AclBinding, topics: Iterable[str]) -> bool:
    """Tell whether an ACL of the source says what clients of these topics may do; to be kept for later."""
    if binding.resource_type is ResourceType.TOPIC:
        return any(binding.covers(ResourceType.TOPIC, topic) for topic in topics)
    return binding.resource_type in _KINDS


def lacking_rights(
    source: Collection[AclBinding], here: Iterable[AclBinding], scope: Scope
) -> tuple[LackingRight, ...]:
    """Return what clients could do at the source by `source` and cannot do here by `here`."""
    there, present = _Index(source), _Index(here)
    found: defaultdict[tuple[str, str, Operation, ResourceType, PatternType], set[str]] = defaultdict(set)
    for theirs, ours, operation in _asked(source, scope):
        for principal, host in there.allowed(theirs, operation):
            if principal not in scope.own and not present.allows(ours, operation, principal, host):
                found[principal, host, operation, ours.resource_type, ours.pattern_type].add(ours.name)
    return tuple(LackingRight(*key, tuple(sorted(names))) for key, names in sorted(found.items()))


class _Resource(NamedTuple):
    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL


def _asked(source: Collection[AclBinding], scope: Scope) -> Iterator[tuple[_Resource, _Resource, Operation]]:
    """Yield what is looked at: a resource of the source, as it is here, and what is done with it."""
    topic, group, ids = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
    for name, here in scope.topics.items():
        for operation in (Operation.READ, Operation.WRITE):
            yield _Resource(topic, name), _Resource(topic, here), operation
    producers = producers_of(source, scope.topics)
    patterns = {(one.resource_type, one.resource_name, one.pattern_type) for one in source if _concerns(one, producers)}
    names: set[_Resource] = set()
    for kind, name, pattern in patterns:
        if kind is ids:
            if not name.startswith(OWN_TRANSACTIONAL_IDS):
                yield _Resource(ids, name, pattern), _Resource(ids, name, pattern), Operation.WRITE
        elif pattern is PatternType.PREFIXED:
            if scope.takes_group(name) or any(known.startswith(name) for known in scope.groups):
                names.add(_Resource(group, name, pattern))
        elif name == ANY_NAME and scope.groups:
            names |= {_Resource(group, known) for known in scope.groups}
        elif name == ANY_NAME or scope.takes_group(name):
            names.add(_Resource(group, name))
    for one in names:
        here = one.name if one.name == ANY_NAME else scope.groups.get(one.name, scope.group_here(one.name))
        yield one, one._replace(name=here), Operation.READ


def _concerns(one: AclBinding, producers: Collection[str]) -> bool:
    if one.permission is not Permission.ALLOW or one.resource_type not in _KINDS:
        return False
    if one.resource_type is ResourceType.GROUP:
        return one.operation in (Operation.READ, Operation.ALL)
    is_producer = EVERYONE in producers or one.principal in producers or (one.principal == EVERYONE and producers)
    return one.resource_type is ResourceType.TRANSACTIONAL_ID and bool(is_producer)


class _Index:
    """Find the ACLs that concern a resource, among many, for many resources."""

    def __init__(self, acls: Iterable[AclBinding]) -> None:
        self._named: defaultdict[tuple[ResourceType, str], list[AclBinding]] = defaultdict(list)
        self._wide: defaultdict[ResourceType, list[AclBinding]] = defaultdict(list)
        for one in acls:
            if one.pattern_type is PatternType.PREFIXED or one.resource_name == ANY_NAME:
                self._wide[one.resource_type].append(one)
            else:
                self._named[one.resource_type, one.resource_name].append(one)

    def allowed(self, resource: _Resource, operation: Operation) -> set[tuple[str, str]]:
        """Return the principals and hosts that may do it."""
        some = self._on(resource, operation)
        allowed = {(one.principal, one.host) for one in some if one.permission is Permission.ALLOW}
        return {(principal, host) for principal, host in allowed if not _is_denied(some, principal, host)}

    def allows(self, resource: _Resource, operation: Operation, principal: str, host: str) -> bool:
        """Tell whether a principal may do it from a host, or from any."""
        some = self._on(resource, operation)
        is_allowed = any(_meets(one, principal, host) for one in some if one.permission is Permission.ALLOW)
        return is_allowed and not _is_denied(some, principal, host)

    def _on(self, resource: _Resource, operation: Operation) -> list[AclBinding]:
        literal = resource.pattern_type is PatternType.LITERAL
        named = self._named[resource.resource_type, resource.name] if literal else []
        wide = [one for one in self._wide[resource.resource_type] if _covers(one, resource)]
        return [one for one in (*named, *wide) if one.operation in (operation, Operation.ALL)]


def _covers(wide: AclBinding, resource: _Resource) -> bool:
    """Tell whether an ACL on a prefix or on `*` is about all of a resource, which may be a prefix or `*`, too."""
    if wide.pattern_type is not PatternType.PREFIXED:
        return True
    return resource.name != ANY_NAME and resource.name.startswith(wide.resource_name)


def _meets(one: AclBinding, principal: str, host: str) -> bool:
    return one.principal in (EVERYONE, principal) and one.host in (ANY_HOST, host)


def _is_denied(acls: Iterable[AclBinding], principal: str, host: str) -> bool:
    return any(one.permission is Permission.DENY and _meets(one, principal, host) for one in acls)
