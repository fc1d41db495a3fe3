"""Which rights clients have by the source's ACLs and lack by those of the destination. Pure.

Reading and writing topics, reading groups, and using transactional ids, by ACLs alone: super users are unknown. A right
from one host at the source needs the same host here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from kmirror.cluster.protocol.acl_binding import (
    ANY_NAME,
    EVERYONE,
    AclBinding,
    AclPermission,
    Operation,
    PatternType,
    ResourceType,
)
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS
from kmirror.sync.acl_changes import producers_of
from kmirror.sync.acl_index import AclIndex, Resource

_KINDS = frozenset({ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID})


class LackingRight(NamedTuple):
    """A right that a principal lacks here: `names` are the destination's names, or prefixes, by `pattern_type`."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    pattern_type: PatternType
    names: tuple[str, ...]


class Scope(NamedTuple):
    """What to compare: source topics and groups with their names here, and which other groups are mirrored."""

    topics: Mapping[str, str]
    groups: Mapping[str, str]
    takes_group: Callable[[str], bool]
    group_here: Callable[[str], str]
    #: kmirror's own principals.
    own: Collection[str]


def is_of_clients(binding: AclBinding, topics: frozenset[str]) -> bool:
    """Return whether an ACL of the source is about clients of these topics, and so is to be kept for later."""
    if binding.resource_type is not ResourceType.TOPIC:
        return binding.resource_type in _KINDS
    if binding.pattern_type is PatternType.PREFIXED:
        return any(topic.startswith(binding.resource_name) for topic in topics)
    return binding.resource_name in topics or (binding.resource_name == ANY_NAME and bool(topics))


def lacking_rights(
    source: Collection[AclBinding], here: Iterable[AclBinding], scope: Scope
) -> tuple[LackingRight, ...]:
    """Return the rights that clients have by the ACLs `source` and lack by the ACLs `here`."""
    there, present = AclIndex(source), AclIndex(here)
    found: defaultdict[tuple[str, str, Operation, ResourceType, PatternType], set[str]] = defaultdict(set)
    for theirs, ours, operation in _rights(source, scope):
        for principal, host in there.allowed(theirs, operation):
            if principal not in scope.own and not present.allows(ours, operation, principal, host):
                found[principal, host, operation, ours.resource_type, ours.pattern_type].add(ours.name)
    return tuple(LackingRight(*key, tuple(sorted(names))) for key, names in sorted(found.items()))


def _rights(source: Collection[AclBinding], scope: Scope) -> Iterator[tuple[Resource, Resource, Operation]]:
    """Yield what to compare: a resource of the source, the same resource here, and an operation."""
    topic, group, ids = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
    for name, here in scope.topics.items():
        for operation in (Operation.READ, Operation.WRITE):
            yield Resource(topic, name), Resource(topic, here), operation
    producers = producers_of(source, scope.topics)
    patterns = {(one.resource_type, one.resource_name, one.pattern_type) for one in source if _concerns(one, producers)}
    names: set[Resource] = set()
    for kind, name, pattern in patterns:
        if kind is ids:
            if not name.startswith(OWN_TRANSACTIONAL_IDS):
                yield Resource(ids, name, pattern), Resource(ids, name, pattern), Operation.WRITE
        elif pattern is PatternType.PREFIXED:
            if scope.takes_group(name) or any(known.startswith(name) for known in scope.groups):
                names.add(Resource(group, name, pattern))
        elif name == ANY_NAME and scope.groups:
            names |= {Resource(group, known) for known in scope.groups}
        elif name == ANY_NAME or scope.takes_group(name):
            names.add(Resource(group, name))
    for one in names:
        here = one.name if one.name == ANY_NAME else scope.groups.get(one.name, scope.group_here(one.name))
        yield one, one._replace(name=here), Operation.READ


def _concerns(one: AclBinding, producers: Collection[str]) -> bool:
    if one.permission is not AclPermission.ALLOW or one.resource_type not in _KINDS:
        return False
    if one.resource_type is ResourceType.GROUP:
        return one.operation in (Operation.READ, Operation.ALL)
    is_producer = EVERYONE in producers or one.principal in producers or (one.principal == EVERYONE and producers)
    return one.resource_type is ResourceType.TRANSACTIONAL_ID and bool(is_producer)
