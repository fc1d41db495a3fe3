"""Which ACLs the destination gets: copies of the source's ACLs, and denials that protect mirror topics. Pure.

ACLs on mirrored topics and groups are copied, by name or by prefix. One on `*` is narrowed to each mirrored topic or
group, because the destination has topics of its own. While a topic is mirrored, its readers' rights are created; rights
to change it are deferred until mirroring stops, and of an ALL only what a reader needs is created. Denials are copied
too, but those that would lock out kmirror itself are deferred. Grants to kmirror itself at the source are not copied.

ACLs on transactional ids and on the cluster: `sync.client_acls`.

Write protection: a DENY beats every ALLOW, so each principal that an ALLOW lets write is denied WRITE on the mirror
topic. There is no DENY for "all but kmirror": if everyone (`User:*`) may write, `User:*` is denied only if kmirror is a
super user, to whom no ACL applies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

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
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS, SHARED
from kmirror.sync.acl_index import AclIndex, Resource

#: Operations that do not change a topic: allowed while it is mirrored.
READING = frozenset({Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS})


@dataclass(frozen=True, slots=True)
class OwnPrincipals:
    """kmirror's own principals, and whether it is a super user, to whom no ACL applies."""

    principals: frozenset[str]
    is_super_user: bool = False

    def are_denied_by(self, binding: AclBinding) -> bool:
        """Return whether a denial would lock kmirror out."""
        return not self.is_super_user and binding.principal in (EVERYONE, *self.principals)


@dataclass(frozen=True, slots=True)
class Enforcement:
    """The denials that a mirror topic needs, and the ALLOWs for everyone that defeat them."""

    denied: frozenset[AclBinding]
    open_by: tuple[AclBinding, ...] = ()


def enforcement(acls: AclIndex, topic: str, own: OwnPrincipals, ours: Collection[AclBinding]) -> Enforcement:
    """Return the denials that make every other principal's produce to a topic fail.

    `ours` are denials that kmirror created, copies of the source's too, which may be deleted there: these do not count.
    """
    found = acls.on(Resource(ResourceType.TOPIC, topic), Operation.WRITE)
    allows = [one for one in found if one.permission is AclPermission.ALLOW]
    others = [one for one in found if one.permission is AclPermission.DENY and one not in ours]
    denied = {one.principal for one in others if one.host == ANY_HOST}
    if EVERYONE in denied:
        return Enforcement(frozenset())
    open_by = tuple(sorted(one for one in allows if one.principal == EVERYONE))
    if open_by and own.is_super_user:
        return Enforcement(frozenset({denial(topic, EVERYONE)}))
    writers = {one.principal for one in allows} - {EVERYONE} - own.principals - denied
    return Enforcement(frozenset(denial(topic, principal) for principal in writers), open_by)


def producers_of(acls: Iterable[AclBinding], topics: Iterable[str]) -> frozenset[str]:
    """Return the principals, including `User:*`, that an ALLOW lets write to any of the topics."""
    index = AclIndex(acls)
    found = (one for topic in topics for one in index.on(Resource(ResourceType.TOPIC, topic), Operation.WRITE))
    return frozenset(one.principal for one in found if one.permission is AclPermission.ALLOW)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The ACLs of one record: those to create now, and those deferred."""

    now: frozenset[AclBinding] = frozenset()
    deferred: frozenset[AclBinding] = frozenset()


def joined(*parts: Wanted) -> Wanted:
    """Return the union of several parts of one record."""
    now = frozenset(one for part in parts for one in part.now)
    return Wanted(now, frozenset(one for part in parts for one in part.deferred))


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """The wanted ACLs by topic, and under SHARED; what to create and delete for them; and `made`, ours afterwards.

    Record `made` before creating anything, together with `obsolete`, what is ours until `delete` is done. `released` is
    left to the write protection, which deletes what it does not need.
    """

    wanted: Mapping[str, Wanted]
    create: frozenset[AclBinding]
    delete: frozenset[AclBinding]
    made: Mapping[str, frozenset[AclBinding]] = field(default_factory=dict)
    obsolete: Mapping[str, frozenset[AclBinding]] = field(default_factory=dict)
    released: Mapping[str, frozenset[AclBinding]] = field(default_factory=dict)


def wanted_acls(
    source: Iterable[AclBinding],
    topics: Collection[str],
    groups: Collection[str],
    takes_group: Callable[[str], bool],
    own: OwnPrincipals,
) -> dict[str, Wanted]:
    """Return which of the source's ACLs (those that the filter takes) are wanted, by topic and under SHARED.

    `topics` are the mirrored topics, by source name; `groups` are the mirrored groups of the source, and `takes_group`
    returns whether a group of another name would be mirrored.
    """
    now: dict[str, set[AclBinding]] = {SHARED: set(), **{topic: set() for topic in topics}}
    deferred: dict[str, set[AclBinding]] = {SHARED: set(), **{topic: set() for topic in topics}}
    topics = frozenset(topics)
    for binding in source:
        if binding.permission is AclPermission.ALLOW and binding.principal in own.principals:
            continue
        if binding.resource_type is ResourceType.TOPIC:
            covered = [topic for topic in _candidates(binding, topics) if binding.covers(ResourceType.TOPIC, topic)]
            for topic in covered:
                narrow = _literal(binding, topic)
                created = [] if binding.pattern_type is PatternType.PREFIXED else _now(narrow, own)
                now[topic].update(created)
                if narrow not in created:
                    deferred[topic].add(narrow)
            if covered and binding.pattern_type is PatternType.PREFIXED:
                created = _now(binding, own)
                now[SHARED].update(created)
                if binding not in created:
                    deferred[SHARED].add(binding)
        elif binding.resource_type is ResourceType.GROUP:
            for one in _on_groups(binding, groups, takes_group):
                locks_us_out = one.permission is AclPermission.DENY and own.are_denied_by(one)
                (deferred if locks_us_out else now)[SHARED].add(one)
    for topic in topics:  # a prefixed ACL that is created whole needs no literal one besides
        deferred[topic] = {one for one in deferred[topic] if not _is_covered(one, now[SHARED])}
    return {name: Wanted(frozenset(now[name]), frozenset(deferred[name])) for name in now}


def sync_plan(
    wanted: Mapping[str, Wanted],
    here: Collection[AclBinding],
    ours: Mapping[str, Collection[AclBinding]],
    left_alone: Collection[str],
) -> SyncPlan:
    """Compare the wanted ACLs with those here; `ours` are, by name, the ACLs that kmirror created by its records.

    ACLs of others are neither created again nor deleted. What clients of the topics in `left_alone` may rely on, those
    that are stopped or are about to be, stays, and is not denied.
    """
    present = set(here)
    kept: dict[str, frozenset[AclBinding]] = {}
    create: set[AclBinding] = set()
    obsolete: dict[str, frozenset[AclBinding]] = {}
    released: dict[str, frozenset[AclBinding]] = {}
    for name, one in wanted.items():
        mine = frozenset(ours.get(name, ()))
        gone = frozenset(binding for binding in mine - one.now if not _is_relied_on(binding, left_alone))
        released[name] = frozenset(binding for binding in gone if binding == denial(name, binding.principal))
        obsolete[name] = gone - released[name]
        missing = {binding for binding in one.now - present if not locks_out(binding, left_alone)}
        create |= missing
        kept[name] = (mine - gone) | missing
    delete = {binding for bindings in obsolete.values() for binding in bindings}
    delete -= {binding for bindings in kept.values() for binding in bindings}
    return SyncPlan(wanted, frozenset(create), frozenset(delete), kept, obsolete, released)


def grantable(
    deferred: Iterable[AclBinding], mirrored: Collection[str], *, mirror_has_topics: bool
) -> frozenset[AclBinding]:
    """Return which of a mirror's deferred shared ACLs may be created now.

    None that covers a topic in `mirrored`, the mirror topics of this destination; those on groups when the mirror has
    no topic left; those on the cluster when no mirror has.
    """

    def is_grantable(one: AclBinding) -> bool:
        if one.resource_type is ResourceType.TOPIC:
            return not any(one.covers(ResourceType.TOPIC, topic) for topic in mirrored)
        if one.resource_type is ResourceType.CLUSTER:
            return not mirror_has_topics and not mirrored
        return not mirror_has_topics

    return frozenset(one for one in deferred if is_grantable(one))


def _is_relied_on(binding: AclBinding, topics: Collection[str]) -> bool:
    """Return whether clients of these topics may rely on an ACL: who uses one that is not on topics is unknown."""
    if binding.resource_type in (ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER):
        return bool(topics)
    return any(binding.covers(ResourceType.TOPIC, topic) for topic in topics)


def locks_out(binding: AclBinding, topics: Collection[str]) -> bool:
    """Return whether an ACL denies what clients of these topics may rely on; kmirror's own ids are its own."""
    is_denial_of_own_ids = binding[:2] == (ResourceType.TRANSACTIONAL_ID, OWN_TRANSACTIONAL_IDS)
    is_denial = binding.permission is AclPermission.DENY and not is_denial_of_own_ids
    return is_denial and _is_relied_on(binding, topics)


def denial(topic: str, principal: str) -> AclBinding:
    """Return the ACL that denies a principal WRITE on a topic."""
    literal, write = PatternType.LITERAL, Operation.WRITE
    return AclBinding(ResourceType.TOPIC, topic, literal, principal, ANY_HOST, write, AclPermission.DENY)


def _literal(binding: AclBinding, name: str) -> AclBinding:
    return binding._replace(resource_name=name, pattern_type=PatternType.LITERAL)


def _now(binding: AclBinding, own: OwnPrincipals) -> list[AclBinding]:
    """Return the part of a topic's ACL to create while it is mirrored; if that is the ACL itself, none is deferred."""
    if binding.permission is AclPermission.DENY:
        return [] if own.are_denied_by(binding) else [binding]
    if binding.operation is Operation.ALL:
        return [binding._replace(operation=operation) for operation in sorted(READING)]
    return [binding] if binding.operation in READING else []


def _candidates(binding: AclBinding, names: Collection[str]) -> Collection[str]:
    """Return the names that an ACL may cover, without a search for a literal one."""
    if binding.pattern_type is PatternType.LITERAL and binding.resource_name != ANY_NAME:
        return [binding.resource_name] if binding.resource_name in names else []
    return names


def _is_covered(narrow: AclBinding, shared: Collection[AclBinding]) -> bool:
    return any(
        one.covers(ResourceType.TOPIC, narrow.resource_name) and _literal(one, narrow.resource_name) == narrow
        for one in shared
    )


def _on_groups(
    binding: AclBinding, groups: Collection[str], takes_group: Callable[[str], bool]
) -> Iterable[AclBinding]:
    if binding.pattern_type is PatternType.PREFIXED:
        if takes_group(binding.resource_name) or any(binding.covers(ResourceType.GROUP, group) for group in groups):
            yield binding
    elif binding.resource_name == ANY_NAME:
        yield from (_literal(binding, group) for group in groups)
    elif takes_group(binding.resource_name):
        yield binding
