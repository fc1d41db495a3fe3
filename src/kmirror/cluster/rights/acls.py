"""Describe, create and delete ACLs (DescribeAcls, CreateAcls, DeleteAcls).

librdkafka's describe hides why it found nothing, so these go through `ClusterClient`. What an error code means:

* 54 (SECURITY_DISABLED): the cluster has no authorizer; any client may do everything;
* 31: not granted: DESCRIBE on the cluster to see ACLs, or ALTER on it to change them.

Creating a binding that exists and deleting one that does not have no effect, so either may be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from typing import Any

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import (
    ANY_HOST,
    OPERATION_CODES,
    AclBinding,
    AclPermission,
    PatternType,
    ResourceType,
)
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import Broker
from kmirror.cluster.questions import Question
from kmirror.cluster.rights.acl_commands import PREFIXED, cluster_refusal, operation_flag
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.cluster.threaded_calls import call_each
from kmirror.commands import Arguments, command_line, option
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, UnreachableError

_SECURITY_DISABLED = 54
_ANY = 1
_AT_ONCE = 500
_PAUSE_S = 0.05
#: How long to wait for the answer of a broker that is asked when the time is nearly up.
_LAST_ASK_S = 1.0
_AGAIN = frozenset({Code.NOT_CONTROLLER, Code.REQUEST_TIMED_OUT})


def _codes(words: type[StrEnum], first: int) -> dict[Any, int]:
    return {word: code for code, word in enumerate(words, first)}


_RESOURCE_CODES: dict[ResourceType, int] = _codes(ResourceType, 2)
_PATTERN_CODES: dict[PatternType, int] = _codes(PatternType, 3)
_PERMISSION_CODES: dict[AclPermission, int] = _codes(AclPermission, 2)
_RESOURCES = {code: word for word, code in _RESOURCE_CODES.items()}
_PATTERNS = {code: word for word, code in _PATTERN_CODES.items()}
_OPERATIONS = {code: word for word, code in OPERATION_CODES.items()}
_PERMISSIONS = {code: word for word, code in _PERMISSION_CODES.items()}

_FLAGS = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
    ResourceType.USER: "--user-principal",
}


class NoAuthorizerError(RefusedError):
    """The cluster has no authorizer: there are no ACLs."""


def describe_acls(client: ClusterClient, timeout: float | None = None) -> frozenset[AclBinding]:
    """Return all ACLs, within `timeout` seconds. Needs DESCRIBE on the cluster.

    Raises:
        NoAuthorizerError: the cluster has none.
        UnreachableError: it does not answer, or does not let us see them (NOT_AUTHORIZED).
    """
    return ACLS.ask(client, timeout)


def create_acls(client: ClusterClient, bindings: Collection[AclBinding]) -> dict[AclBinding, KmirrorError | None]:
    """Create ACLs; return the error of each, None for success. Needs ALTER on the cluster.

    Raises:
        UnreachableError: the cluster does not answer.
    """

    def request(some: Sequence[AclBinding]) -> Any:
        return kafka.CreateAclsRequest(creations=[kafka.CreateAclsRequest.AclCreation(*_encoded(one)) for one in some])

    return _change(client, bindings, request, lambda answer: answer.results, "creating the ACL")


def delete_acls(client: ClusterClient, bindings: Collection[AclBinding]) -> dict[AclBinding, KmirrorError | None]:
    """Delete exactly these ACLs; return the error of each, None for success. Needs ALTER on the cluster.

    Raises:
        UnreachableError: the cluster does not answer.
    """

    def request(some: Sequence[AclBinding]) -> Any:
        return kafka.DeleteAclsRequest(
            filters=[kafka.DeleteAclsRequest.DeleteAclsFilter(*_encoded(one)) for one in some]
        )

    def results(answer: Any) -> list[Any]:
        # brokers with ZooKeeper report a failed deletion with the ACL alone
        return [
            next((found for found in (one, *one.matching_acls) if found.error_code), one)
            for one in answer.filter_results
        ]

    return _change(client, bindings, request, results, "deleting the ACL")


def await_acls(
    client: ClusterClient,
    present: Collection[AclBinding],
    absent: Collection[AclBinding] = (),
    timeout: float = 10.0,
) -> bool:
    """Wait until every broker sees the ACLs `present` and none of those `absent`; False on a time-out."""
    return not lagging_brokers(client, present, absent, timeout)


def lagging_brokers(
    client: ClusterClient,
    present: Collection[AclBinding],
    absent: Collection[AclBinding] = (),
    timeout: float = 10.0,
) -> frozenset[int]:
    """Wait as `await_acls` does; return the ids of the brokers that by then show other ACLs, or do not answer.

    A changed ACL is in force on a broker as soon as that broker returns it; they see it one after the other.
    """
    types = {one.resource_type for one in (*present, *absent)}
    wanted, unwanted = frozenset(present), frozenset(absent)
    deadline = time.monotonic() + timeout

    def shows(broker: Broker) -> bool | KmirrorError:
        while True:
            with suppress(OutcomeUnknown):
                try:
                    left = max(_LAST_ASK_S, deadline - time.monotonic())
                    seen = _acls_on(client, broker, next(iter(types)) if len(types) == 1 else None, left)
                    if wanted <= seen and not unwanted & seen:
                        return True
                except KmirrorError as error:
                    if isinstance(error, NoAuthorizerError) or error.reason is Reason.NOT_AUTHORIZED:
                        return error
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)

    brokers = list(client.metadata([]).brokers.values()) if types else []
    # all at once: one that does not answer takes all the time
    found = dict(zip(brokers, call_each(shows, brokers, "kmirror-acls"), strict=True))
    for one in found.values():
        if isinstance(one, KmirrorError):
            raise one
    return frozenset(broker.node_id for broker, is_shown in found.items() if not is_shown)


def broker_acls(
    client: ClusterClient, node_id: int, resource_type: ResourceType | None = None, timeout: float | None = None
) -> frozenset[AclBinding]:
    """Return the ACLs as one broker sees them now, within `timeout` seconds.

    Raises:
        NoAuthorizerError: that broker has no authorizer.
        UnreachableError: it has left the cluster, does not answer, or does not let us see them.
        OutcomeUnknown: its answer was lost.
    """
    broker = client.metadata([]).brokers.get(node_id)
    if broker is None:
        raise UnreachableError(f"broker {node_id} has left the cluster")
    return _acls_on(client, broker, resource_type, timeout)


def _acls_on(
    client: ClusterClient, broker: Broker, resource_type: ResourceType | None, timeout: float | None
) -> frozenset[AclBinding]:
    connection = client.connect(broker.node_id, broker.host, broker.port, timeout=timeout)
    return _bindings(client.config, connection.request(_described(resource_type), timeout=timeout))


def kafka_acls_line(binding: AclBinding, cluster: Arguments, *, remove: bool = False) -> str:
    """Return the command that adds, or removes, an ACL; `cluster` as from `admin_options`."""
    permission = binding.permission.lower()
    where: Arguments = ("--cluster",)
    if binding.resource_type is not ResourceType.CLUSTER:
        where = option(_FLAGS[binding.resource_type], binding.resource_name)
    return command_line(
        "kafka-acls",
        *cluster,
        *(("--remove", "--force") if remove else ("--add",)),
        *option(f"--{permission}-principal", binding.principal),
        *(() if binding.host == ANY_HOST else option(f"--{permission}-host", binding.host)),
        *option("--operation", operation_flag(binding.operation)),
        *where,
        *(PREFIXED if binding.pattern_type is PatternType.PREFIXED else ()),
    )


def _described(resource_type: ResourceType | None) -> Any:
    return kafka.DescribeAclsRequest(
        resource_type_filter=_ANY if resource_type is None else _RESOURCE_CODES[resource_type],
        resource_name_filter=None,
        pattern_type_filter=_ANY,
        principal_filter=None,
        host_filter=None,
        operation=_ANY,
        permission_type=_ANY,
    )


def _bindings(config: ClientConfig, answer: Any) -> frozenset[AclBinding]:
    if answer.error_code:
        raise _refusal(config, answer, "describing ACLs", "DESCRIBE")
    return frozenset(_decoded(answer))


#: All ACLs; raises as `describe_acls`.
ACLS = Question(lambda: _described(None), _bindings)


def _encoded(one: AclBinding) -> tuple[int | str, ...]:
    """Return an ACL's fields in the order that they have in the requests to create and to delete it."""
    return (
        _RESOURCE_CODES[one.resource_type],
        one.resource_name,
        _PATTERN_CODES[one.pattern_type],
        one.principal,
        one.host,
        OPERATION_CODES[one.operation],
        _PERMISSION_CODES[one.permission],
    )


def _decoded(answer: Any) -> Iterator[AclBinding]:
    for resource in answer.resources:
        for acl in resource.acls:
            try:
                yield AclBinding(
                    _RESOURCES[resource.resource_type],
                    resource.resource_name,
                    _PATTERNS[resource.pattern_type],
                    acl.principal,
                    acl.host,
                    _OPERATIONS[acl.operation],
                    _PERMISSIONS[acl.permission_type],
                )
            except KeyError:  # a type that only newer brokers know: we can neither judge nor create it
                continue


def _change(
    client: ClusterClient, bindings: Collection[AclBinding], request: Any, results_of: Any, what: str
) -> dict[AclBinding, KmirrorError | None]:
    outcomes: dict[AclBinding, KmirrorError | None] = {}
    left = iter(sorted(bindings))
    while some := list(islice(left, _AT_ONCE)):
        deadline = time.monotonic() + client.config.request_timeout_ms / 1000
        while True:
            results = list(results_of(client.ask_any(request(some))))
            if not any(one.error_code in _AGAIN for one in results) or time.monotonic() > deadline:
                break
            time.sleep(_PAUSE_S)
        for binding, result in zip(some, results, strict=True):
            is_refused = bool(result.error_code)
            outcomes[binding] = _refusal(client.config, result, f"{what} {binding}", "ALTER") if is_refused else None
    return outcomes


def _refusal(config: ClientConfig, answer: Any, what: str, right: str) -> KmirrorError:
    if answer.error_code == _SECURITY_DISABLED:
        return NoAuthorizerError(f"{what}: the cluster has no authorizer", "set authorizer.class.name on its brokers")
    return cluster_refusal(config, answer, what, right)
