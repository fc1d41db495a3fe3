"""Which of the source's ACLs on transactional ids and on the cluster the destination gets. Pure.

On transactional ids: those of principals that may write to a topic of the mirror, at once, because the ids alone do not
let them write to a mirror topic. A client that may use kmirror's own ids could fence its locks. So an ACL on these ids
alone is not copied; if one on `*` or on a prefix covers them, its principal is denied them. That does not work for
`User:*`, whose denial would also deny kmirror: such an ACL is not copied.

On the cluster, only with explicit consent: these rights reach every topic, of other mirrors too. With ALTER a client
could delete the denials that protect mirror topics. Rights that change nothing are created at once, all others when
this cluster has no mirror topic left. CLUSTER_ACTION is the brokers' right and is not copied, nor is a denial for
`User:*` or kmirror.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

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
from kmirror.state.rights_records import OWN_TRANSACTIONAL_IDS
from kmirror.sync.acl_changes import OwnPrincipals, Wanted

#: Operations that do not change a cluster: allowed while topics are mirrored.
_HARMLESS = frozenset({Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.IDEMPOTENT_WRITE})


def on_transactional_ids(
    source: Iterable[AclBinding], producers: Collection[str], others: Collection[AclBinding], own: OwnPrincipals
) -> Wanted:
    """Return which of the source's ACLs (those that the filter takes) on transactional ids are wanted.

    `others` are the destination's ACLs that kmirror did not create: principals granted kmirror's ids there keep them.
    """
    now: set[AclBinding] = set()
    for one in source:
        is_concerned = EVERYONE in producers or one.principal in producers or (one.principal == EVERYONE and producers)
        if one.resource_type is not ResourceType.TRANSACTIONAL_ID or not is_concerned:
            continue
        if not _reaches_own_ids(one):
            if not (_allows(one) and one.principal in own.principals):
                now.add(one)
        elif _is_on_own_ids_only(one) or one.principal == EVERYONE or one.principal in own.principals:
            continue
        elif _allows(one) and one.operation is not Operation.DESCRIBE:
            now.add(one)
            if not any(
                _allows(theirs) and theirs.principal == one.principal and _reaches_own_ids(theirs) for theirs in others
            ):
                now.add(_denial_of_own_ids(one.principal))
        else:
            now.add(one)
    return Wanted(frozenset(now))


def on_cluster(source: Iterable[AclBinding], own: OwnPrincipals) -> Wanted:
    """Return which of the source's ACLs (those that the filter takes) on the cluster are wanted."""
    now: set[AclBinding] = set()
    deferred: set[AclBinding] = set()
    for one in source:
        if one.resource_type is not ResourceType.CLUSTER or one.operation is Operation.CLUSTER_ACTION:
            continue
        if one.principal in own.principals:
            continue
        if not _allows(one):
            if one.principal != EVERYONE:
                now.add(one)
        elif one.operation in _HARMLESS:
            now.add(one)
        else:
            deferred.add(one)
            if one.operation is Operation.ALL:
                now.update(one._replace(operation=operation) for operation in _HARMLESS)
    return Wanted(frozenset(now), frozenset(deferred))


def _allows(one: AclBinding) -> bool:
    return one.permission is AclPermission.ALLOW


def _reaches_own_ids(one: AclBinding) -> bool:
    if one.resource_type is not ResourceType.TRANSACTIONAL_ID:
        return False
    if one.pattern_type is PatternType.PREFIXED and OWN_TRANSACTIONAL_IDS.startswith(one.resource_name):
        return True
    return one.resource_name == ANY_NAME or _is_on_own_ids_only(one)


def _is_on_own_ids_only(one: AclBinding) -> bool:
    return one.resource_name.startswith(OWN_TRANSACTIONAL_IDS)


def _denial_of_own_ids(principal: str) -> AclBinding:
    return AclBinding(
        ResourceType.TRANSACTIONAL_ID,
        OWN_TRANSACTIONAL_IDS,
        PatternType.PREFIXED,
        principal,
        ANY_HOST,
        Operation.WRITE,
        AclPermission.DENY,
    )
