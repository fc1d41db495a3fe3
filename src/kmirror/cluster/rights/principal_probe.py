"""Find out how a cluster's authorizer treats us: as a super user, as which principal, and what it allows without ACLs.

Brokers do not say which principal a client is, whether it is a super user, or whether everyone may do what no ACL
covers (`allow.everyone.if.no.acl.found`: they hide the values of settings whose type they do not know). But they act on
it. So we try it out with names of topics that do not exist and never will: create an ACL for such a name, ask for the
topic, delete the ACL. No one else is affected. Needs DESCRIBE and ALTER on the cluster.

A process that is killed leaves its ACLs behind. Their names say when they were made, and by which process of which
machine, so that the next one deletes them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import metadata
from kmirror.cluster.protocol.acl_binding import (
    ANY_HOST,
    EVERYONE,
    AclBinding,
    AclPermission,
    Operation,
    PatternType,
    ResourceType,
)
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.rights.acl_commands import admin_options
from kmirror.cluster.rights.acls import broker_acls, create_acls, delete_acls, kafka_acls_line
from kmirror.errors import KmirrorError, UnreachableError

_logger = logging.getLogger(__name__)

#: Only this module creates ACLs for names with this prefix.
PROBE_PREFIX = "kmirror-probe-"
#: Older ACLs of processes elsewhere were left by one that died: no probe takes this long, however the clocks differ.
_STALE_S = 300
_VISIBLE_WITHIN_S = 10.0
_PAUSE_S = 0.02
_BROKER = 4
_DEFAULT = "allow.everyone.if.no.acl.found"


@dataclass(frozen=True, slots=True)
class PrincipalProbe:
    """The result. `principals` are the candidates whose ACLs apply to us, besides `User:*`."""

    is_super_user: bool
    #: Everyone may do what no ACL covers (`allow.everyone.if.no.acl.found`); true if that cannot be ruled out.
    everyone_may: bool
    principals: frozenset[str]


def probe_principal(
    client: ClusterClient, acls: Collection[AclBinding], candidates: Collection[str] = ()
) -> PrincipalProbe:
    """Find out how the authorizer treats us; `acls` are all ACLs, `candidates` the principals that we might be.

    Raises:
        UnreachableError: no answer, or we lack ALTER or DESCRIBE on the cluster (NOT_AUTHORIZED).
        KmirrorError: another client deleted the ACLs of the probe.
    """
    name = f"{PROBE_PREFIX}{process_mark()}"
    asked = [EVERYONE, *sorted(set(candidates) - {EVERYONE})]
    names = {f"{name}-{index}": principal for index, principal in enumerate(asked)}
    covered = any(one.covers(ResourceType.TOPIC, name) for one in acls)
    before = _seen(client, names)[f"{name}-0"]
    # a DENY shows on a principal that is allowed by default or by name, an ALLOW on one that is not
    permission = AclPermission.DENY if before else AclPermission.ALLOW
    tried = [_binding(topic, principal, permission) for topic, principal in names.items()]
    try:
        for error in create_acls(client, tried).values():
            if error is not None:
                raise error
        after = _with(client, tried, names)
    finally:
        _delete(client, tried)
    is_super_user = before and after[f"{name}-0"]
    affected = {principal for topic, principal in names.items() if after[topic] is not before}
    if is_super_user:  # allowed in any case
        everyone_may = _may_be_set(client)
    elif before and covered:  # an ACL on all topics hides the default
        everyone_may = _may_use_group(client, acls, name)
    else:
        everyone_may = before
    return PrincipalProbe(is_super_user, everyone_may, frozenset(affected - {EVERYONE}))


def _may_use_group(client: ClusterClient, acls: Collection[AclBinding], name: str) -> bool:
    """Return whether we may use a group that no ACL covers; if ACLs cover all, whether the default may be set."""
    if any(one.covers(ResourceType.GROUP, name) for one in acls):
        return _may_be_set(client)
    (answer,) = client.ask_any(kafka.DescribeGroupsRequest(groups=[name])).groups
    return bool(answer.error_code != Code.GROUP_AUTHORIZATION_FAILED)


def _may_be_set(client: ClusterClient) -> bool:
    """Return whether `allow.everyone.if.no.acl.found` may be true on a broker, as far as we can see."""
    resource_type = kafka.DescribeConfigsRequest.DescribeConfigsResource
    for node_id, broker in client.metadata([]).brokers.items():
        resource = resource_type(resource_type=_BROKER, resource_name=str(node_id), configuration_keys=[_DEFAULT])
        connection = client.connect(node_id, broker.host, broker.port)
        (result,) = connection.request(kafka.DescribeConfigsRequest(resources=[resource]), highest=4).results
        # a setting that is set is returned, but its value may be hidden
        if result.error_code or any(one.name == _DEFAULT and one.value != "false" for one in result.configs):
            return True
    return False


def _with(client: ClusterClient, tried: list[AclBinding], names: Mapping[str, str]) -> dict[str, bool]:
    """Read what is visible once a broker sees the ACLs, and make sure that it still sees them afterwards."""
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
    """Return of topics that do not exist whether we may see them: if not, brokers answer that we are not authorized."""
    brokers = client.metadata([]).brokers
    broker = brokers.get(min(brokers) if node_id is None else node_id)
    if broker is None:
        raise UnreachableError(f"broker {node_id} has left the cluster")
    answer = client.connect(broker.node_id, broker.host, broker.port).request(metadata.exchange(names))
    return {name: one.error_code != Code.TOPIC_AUTHORIZATION_FAILED for name, one in answer.topics.items()}


def _binding(name: str, principal: str, permission: AclPermission) -> AclBinding:
    describe = Operation.DESCRIBE
    return AclBinding(ResourceType.TOPIC, name, PatternType.LITERAL, principal, ANY_HOST, describe, permission)


def remove_abandoned(client: ClusterClient, acls: Collection[AclBinding]) -> None:
    """Delete the ACLs that probes left whose process was killed; `acls` are all ACLs.

    Raises UnreachableError: no answer, or we lack ALTER on the cluster.
    """
    abandoned = [one for one in acls if one.resource_type is ResourceType.TOPIC and _is_abandoned(one.resource_name)]
    _delete(client, abandoned)


def _delete(client: ClusterClient, bindings: Collection[AclBinding]) -> None:
    """Delete ACLs of probes, again where that is refused; log what is left, and how to delete it."""
    left: dict[AclBinding, KmirrorError] = {}
    for _ in range(2):
        outcomes = delete_acls(client, left or bindings)
        left = {one: error for one, error in outcomes.items() if error is not None}
        if not left:
            return
    for one, error in left.items():
        line = kafka_acls_line(one, admin_options(client.config), remove=True)
        _logger.warning("an ACL of kmirror is left: %s\n%s", error, line)


def _is_abandoned(name: str) -> bool:
    return name.startswith(PROBE_PREFIX) and is_abandoned(name.removeprefix(PROBE_PREFIX), _STALE_S)


_MARK = re.compile(r"(?P<made>[0-9]{1,12})-(?P<machine>[0-9a-f]{8})-(?P<process>[0-9]{1,9})-.*")


def process_mark() -> str:
    """Return a name that nothing else has, for something that this process will remove."""
    return f"{int(time.time())}-{_machine()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def is_abandoned(mark: str, stale_s: float) -> bool:
    """Return whether the process that made something has ended; one elsewhere has, if the mark is `stale_s` old.

    `mark` may have more after it. Anything else is not abandoned.
    """
    found = _MARK.fullmatch(mark)
    if found is None:
        return False
    if found["machine"] == _machine() and not Path("/proc", found["process"]).exists():
        return True
    return time.time() - int(found["made"]) > stale_s


@cache
def _machine() -> str:
    """Return what processes that see each other in /proc have in common."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return hashlib.sha256(f"{boot}{os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:8]
