"""How a cluster's authorizer sees us: as a super user, as which principal, and its answer where no ACL is.

Brokers do not say which principal a client is, whether it is a super user, or that all may do what no ACL covers
(`allow.everyone.if.no.acl.found`: of settings they do not know the type of, they hide the value). But they act on it.
So it is tried out on the names of topics that do not exist, and never will: an ACL is made for such a name, the name is
asked for, the ACL is deleted. No one else is affected. Needs DESCRIBE and ALTER on the cluster.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from kmirror.cluster.acls import broker_acls, create_acls, delete_acls
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import (
    ANY_HOST,
    EVERYONE,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kmirror.cluster.protocol.codes import Code
from kmirror.errors import KmirrorError

#: Names that only this module makes ACLs for.
PROBE_PREFIX = "kmirror-probe-"
#: What is older was left by a process that died; no check takes so long.
_STALE_S = 3600
_VISIBLE_WITHIN_S = 10.0
_PAUSE_S = 0.02
_BROKER = 4
_DEFAULT = "allow.everyone.if.no.acl.found"


@dataclass(frozen=True, slots=True)
class Standing:
    """What was found out. `principals`: those of the ones asked about whose ACLs apply to us, besides `User:*`."""

    is_super_user: bool
    #: Everyone may do what no ACL covers (`allow.everyone.if.no.acl.found`); true where that cannot be ruled out.
    everyone_may: bool
    principals: frozenset[str]


def find_standing(client: ClusterClient, acls: Collection[AclBinding], candidates: Collection[str] = ()) -> Standing:
    """Find out how the authorizer treats us; `acls` are all ACLs, `candidates` the principals that we might be.

    Raises:
        UnreachableError: no answer, or we lack ALTER or DESCRIBE on the cluster (NOT_AUTHORIZED).
        KmirrorError: the ACLs made for it were gone before it was over.
    """
    _remove_stale(client, acls)
    name = f"{PROBE_PREFIX}{int(time.time())}-{uuid.uuid4().hex[:12]}"
    asked = [EVERYONE, *sorted(set(candidates) - {EVERYONE})]
    names = {f"{name}-{index}": principal for index, principal in enumerate(asked)}
    covered = any(one.covers(ResourceType.TOPIC, name) for one in acls)
    before = _seen(client, names)[f"{name}-0"]
    # a DENY locks out a principal that is let in by default or by name; an ALLOW lets in one that is not
    permission = Permission.DENY if before else Permission.ALLOW
    tried = [_binding(place, principal, permission) for place, principal in names.items()]
    try:
        for error in create_acls(client, tried).values():
            if error is not None:
                raise error
        after = _with(client, tried, names)
    finally:
        delete_acls(client, tried)
    is_super_user = before and after[f"{name}-0"]
    struck = {principal for place, principal in names.items() if after[place] is not before}
    if is_super_user:  # who is let in anyway
        everyone_may = _may_be_set(client)
    elif before and covered:  # an ACL on all topics hides the default
        everyone_may = _may_use_group(client, acls, name)
    else:
        everyone_may = before
    return Standing(is_super_user, everyone_may, frozenset(struck - {EVERYONE}))


def _may_use_group(client: ClusterClient, acls: Collection[AclBinding], name: str) -> bool:
    """Tell whether we may use a group of which no ACL speaks, or the default may be set where ACLs speak of all."""
    from kafka.protocol.admin import DescribeGroupsRequest

    if any(one.covers(ResourceType.GROUP, name) for one in acls):
        return _may_be_set(client)
    (answer,) = client.ask_any(DescribeGroupsRequest(groups=[name])).groups
    return bool(answer.error_code != Code.GROUP_AUTHORIZATION_FAILED)


def _may_be_set(client: ClusterClient) -> bool:
    """Tell whether `allow.everyone.if.no.acl.found` may be true on a broker, as far as brokers let us see it."""
    from kafka.protocol.admin import DescribeConfigsRequest

    resource_type = DescribeConfigsRequest.DescribeConfigsResource
    for node_id, broker in client.metadata([]).brokers.items():
        resource = resource_type(resource_type=_BROKER, resource_name=str(node_id), configuration_keys=[_DEFAULT])
        connection = client.connect(node_id, broker.host, broker.port)
        (result,) = connection.request(DescribeConfigsRequest(resources=[resource]), highest=4).results
        # one that is set is shown, its value may be hidden
        if result.error_code or any(one.name == _DEFAULT and one.value != "false" for one in result.configs):
            return True
    return False


def _with(client: ClusterClient, tried: list[AclBinding], names: Mapping[str, str]) -> dict[str, bool]:
    """Ask once a broker sees the ACLs, and make sure that it still does afterwards."""
    deadline = time.monotonic() + _VISIBLE_WITHIN_S
    node_id = min(client.metadata([]).brokers)
    while not broker_acls(client, node_id, ResourceType.TOPIC).issuperset(tried):
        if time.monotonic() > deadline:
            raise KmirrorError("an ACL that was just created does not show on the brokers", "try again")
        time.sleep(_PAUSE_S)
    seen = _seen(client, names, node_id)
    if not broker_acls(client, node_id, ResourceType.TOPIC).issuperset(tried):
        raise KmirrorError("another client deleted an ACL of kmirror while it was needed", "try again")
    return seen


def _seen(client: ClusterClient, names: Collection[str], node_id: int | None = None) -> dict[str, bool]:
    """Tell of topics that do not exist whether we might see them: else brokers say that they are forbidden."""
    from kafka.protocol.metadata import MetadataRequest

    topic_type = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(
        topics=[topic_type(topic_id=UUID(int=0), name=name) for name in names], allow_auto_topic_creation=False
    )
    brokers = client.metadata([]).brokers
    broker = brokers[min(brokers) if node_id is None else node_id]
    answer = client.connect(broker.node_id, broker.host, broker.port).request(request, highest=12)
    return {topic.name: topic.error_code != Code.TOPIC_AUTHORIZATION_FAILED for topic in answer.topics}


def _binding(name: str, principal: str, permission: Permission) -> AclBinding:
    describe = Operation.DESCRIBE
    return AclBinding(ResourceType.TOPIC, name, PatternType.LITERAL, principal, ANY_HOST, describe, permission)


def _remove_stale(client: ClusterClient, acls: Collection[AclBinding]) -> None:
    stale = [one for one in acls if one.resource_name.startswith(PROBE_PREFIX) and _age_s(one) > _STALE_S]
    if stale:
        delete_acls(client, stale)


def _age_s(binding: AclBinding) -> float:
    made = binding.resource_name.removeprefix(PROBE_PREFIX).partition("-")[0]
    return time.time() - int(made) if made.isdigit() else 0.0
