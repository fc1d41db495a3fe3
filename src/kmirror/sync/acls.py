"""Which ACLs the destination gets: those of the source that belong here, and those that keep others from writing. Pure.

Taken over is what is about a mirrored topic or group, by name or by a prefix. What is about `*` is narrowed to the
mirrored ones, one by one: the destination has topics of its own. While a topic is mirrored its readers' rights are
given; whatever would let a client change it is deferred until mirroring stops, and an ALL is given as what a reader
needs of it. Denials are copied too, but those that would lock out kmirror itself are deferred. What kmirror itself
was granted at the source is not taken over.

ACLs on transactional ids and on the cluster: `sync.client_acls`.

Keeping others from writing: a DENY beats every ALLOW, so each principal that an ALLOW lets write is denied WRITE on the
mirror topic. No DENY means "all but kmirror": where everyone (`User:*`) may write, `User:*` is denied only when
kmirror is a super user, whom no ACL concerns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

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
from kmirror.state.rights_records import SHARED

#: What does not change a topic: given while it is mirrored.
READING = frozenset({Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS})
WRITING = frozenset({Operation.WRITE, Operation.ALL})


@dataclass(frozen=True, slots=True)
class Selves:
    """Say which principals we are, and whether ACLs concern us at all."""

    principals: frozenset[str]
    is_super_user: bool = False

    def are_struck_by(self, binding: AclBinding) -> bool:
        """Tell whether a denial would lock us out."""
        return not self.is_super_user and binding.principal in (EVERYONE, *self.principals)


@dataclass(frozen=True, slots=True)
class Enforcement:
    """Say which denials a mirror topic needs, and which ALLOWs for everyone are in the way."""

    denied: frozenset[AclBinding]
    open_by: tuple[AclBinding, ...] = ()


class WritingAcls:
    """Find the ACLs that permit or forbid writing to a topic, among many, for many topics."""

    def __init__(self, acls: Iterable[AclBinding]) -> None:
        self._by_name: defaultdict[str, list[AclBinding]] = defaultdict(list)
        self._wide: list[AclBinding] = []
        for one in acls:
            if one.resource_type is ResourceType.TOPIC and one.operation in WRITING:
                is_wide = one.pattern_type is PatternType.PREFIXED or one.resource_name == ANY_NAME
                (self._wide if is_wide else self._by_name[one.resource_name]).append(one)

    def on(self, topic: str) -> list[AclBinding]:
        """Return those that are about a topic, by its name, a prefix or `*`."""
        wide = (one for one in self._wide if one.covers(ResourceType.TOPIC, topic))
        return [*self._by_name.get(topic, ()), *wide]


def enforcement(acls: WritingAcls, topic: str, own: Selves, ours: Collection[AclBinding]) -> Enforcement:
    """Return what makes every other principal's produce to a topic fail.

    `ours` are denials that kmirror made for it, which are judged again: they do not count as others'.
    """
    others = [one for one in acls.on(topic) if one not in ours]
    allows = [one for one in others if one.permission is Permission.ALLOW]
    shut_out = {one.principal for one in others if one.permission is Permission.DENY and one.host == ANY_HOST}
    if EVERYONE in shut_out:
        return Enforcement(frozenset())
    open_by = tuple(sorted(one for one in allows if one.principal == EVERYONE))
    if open_by and own.is_super_user:
        return Enforcement(frozenset({denial(topic, EVERYONE)}))
    writers = {one.principal for one in allows} - {EVERYONE} - own.principals - shut_out
    return Enforcement(frozenset(denial(topic, principal) for principal in writers), open_by)


def writers_of(acls: Iterable[AclBinding], topics: Iterable[str]) -> frozenset[str]:
    """Return the principals, `User:*` left out, that an ALLOW lets write to any of the topics."""
    names = list(topics)
    return frozenset(
        one.principal
        for one in acls
        if one.permission is Permission.ALLOW
        and one.operation in WRITING
        and one.principal != EVERYONE
        and any(one.covers(ResourceType.TOPIC, name) for name in names)
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one record is to hold: ACLs to be given now, and those deferred."""

    now: frozenset[AclBinding] = frozenset()
    held_back: frozenset[AclBinding] = frozenset()


def joined(*parts: Wanted) -> Wanted:
    """Return all that several parts want of one record."""
    now = frozenset(one for part in parts for one in part.now)
    return Wanted(now, frozenset(one for part in parts for one in part.held_back))


@dataclass(frozen=True, slots=True)
class SyncPlan:
    """What is wanted by topic, and under SHARED; what to create and to delete for it; what a record then says is ours.

    Ours are to be recorded before anything is created, and with what is to be deleted until that is done.
    """

    wanted: Mapping[str, Wanted]
    create: frozenset[AclBinding]
    delete: frozenset[AclBinding]
    made: Mapping[str, frozenset[AclBinding]] = field(default_factory=dict)


def wanted_acls(
    source: Iterable[AclBinding],
    topics: Collection[str],
    groups: Collection[str],
    takes_group: Callable[[str], bool],
    own: Selves,
) -> dict[str, Wanted]:
    """Return what is wanted of the source's ACLs (those the filter takes), by topic and under SHARED.

    `topics` are mirrored at the moment, under the source's names; `groups` are the source's that are mirrored, and
    `takes_group` tells of any other name whether it would be.
    """
    now: dict[str, set[AclBinding]] = {SHARED: set(), **{topic: set() for topic in topics}}
    held: dict[str, set[AclBinding]] = {SHARED: set(), **{topic: set() for topic in topics}}
    topics = frozenset(topics)
    for binding in source:
        if binding.permission is Permission.ALLOW and binding.principal in own.principals:
            continue
        if binding.resource_type is ResourceType.TOPIC:
            concerned = [topic for topic in _candidates(binding, topics) if binding.covers(ResourceType.TOPIC, topic)]
            for topic in concerned:
                narrow = _literal(binding, topic)
                given = [] if binding.pattern_type is PatternType.PREFIXED else _readable(narrow, own)
                now[topic].update(given)
                if narrow not in given:
                    held[topic].add(narrow)
            if concerned and binding.pattern_type is PatternType.PREFIXED:
                given = _readable(binding, own)
                now[SHARED].update(given)
                if binding not in given:
                    held[SHARED].add(binding)
        elif binding.resource_type is ResourceType.GROUP:
            for one in _on_groups(binding, groups, takes_group):
                withheld = one.permission is Permission.DENY and own.are_struck_by(one)
                (held if withheld else now)[SHARED].add(one)
    for topic in topics:  # a prefixed ACL that is given whole needs no literal one beside it
        held[topic] = {one for one in held[topic] if not _is_given(one, now[SHARED])}
    return {name: Wanted(frozenset(now[name]), frozenset(held[name])) for name in now}


def sync_plan(
    wanted: Mapping[str, Wanted],
    here: Collection[AclBinding],
    ours: Mapping[str, Collection[AclBinding]],
    stopped: Collection[str],
) -> SyncPlan:
    """Compare what is wanted with what is here; `ours`: what the records of these names say kmirror made.

    What others made is neither made again nor deleted. What covers a topic that is stopped stays: its users
    live by it now.
    """
    present = set(here)
    kept: dict[str, frozenset[AclBinding]] = {}
    create: set[AclBinding] = set()
    gone: set[AclBinding] = set()
    for name, one in wanted.items():
        mine = set(ours.get(name, ()))
        obsolete = {binding for binding in mine - one.now if not _is_lived_by(binding, stopped)}
        missing = {binding for binding in one.now if binding not in present}
        create |= missing
        gone |= obsolete
        kept[name] = frozenset((mine - obsolete) | missing)
    still = {binding for bindings in kept.values() for binding in bindings}
    return SyncPlan(wanted, frozenset(create), frozenset(gone - still), kept)


def to_give(
    held_back: Iterable[AclBinding], mirrored: Collection[str], *, mirror_goes_on: bool
) -> frozenset[AclBinding]:
    """Return which of a mirror's deferred shared ACLs may be given now.

    None that covers a topic in `mirrored`, the mirror topics of this destination; those on groups when the mirror has
    no topic left; those on the cluster when no mirror has.
    """

    def may_be_given(one: AclBinding) -> bool:
        if one.resource_type is ResourceType.TOPIC:
            return not any(one.covers(ResourceType.TOPIC, topic) for topic in mirrored)
        if one.resource_type is ResourceType.CLUSTER:
            return not mirror_goes_on and not mirrored
        return not mirror_goes_on

    return frozenset(one for one in held_back if may_be_given(one))


def _is_lived_by(binding: AclBinding, stopped: Collection[str]) -> bool:
    """Tell whether clients of topics that are stopped may live by an ACL: who uses the cluster's is not known."""
    if binding.resource_type in (ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER):
        return bool(stopped)
    return any(binding.covers(ResourceType.TOPIC, topic) for topic in stopped)


def denial(topic: str, principal: str) -> AclBinding:
    """Return the ACL that keeps a principal from writing to a topic."""
    literal, write = PatternType.LITERAL, Operation.WRITE
    return AclBinding(ResourceType.TOPIC, topic, literal, principal, ANY_HOST, write, Permission.DENY)


def _literal(binding: AclBinding, name: str) -> AclBinding:
    return binding._replace(resource_name=name, pattern_type=PatternType.LITERAL)


def _readable(binding: AclBinding, own: Selves) -> list[AclBinding]:
    """Return what of an ACL on a topic is given while it is mirrored; the ACL itself among it: nothing is deferred."""
    if binding.permission is Permission.DENY:
        return [] if own.are_struck_by(binding) else [binding]
    if binding.operation is Operation.ALL:
        return [binding._replace(operation=operation) for operation in sorted(READING)]
    return [binding] if binding.operation in READING else []


def _candidates(binding: AclBinding, names: Collection[str]) -> Collection[str]:
    """Return the names that it may be about: one has not to look at all of them for an ACL on one."""
    if binding.pattern_type is PatternType.LITERAL and binding.resource_name != ANY_NAME:
        return [binding.resource_name] if binding.resource_name in names else []
    return names


def _is_given(narrow: AclBinding, shared: Collection[AclBinding]) -> bool:
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
