"""Client quotas, and the names of SCRAM users, of a cluster.

DescribeClientQuotas needs DESCRIBE_CONFIGS on the cluster, AlterClientQuotas ALTER_CONFIGS,
DescribeUserScramCredentials DESCRIBE; error 31 without. Of a SCRAM credential brokers reveal mechanism and iterations,
neither salt nor key: it cannot be copied. Setting a quota to its value, or removing one that does not exist, does
nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from typing import Any

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.questions import Question
from kmirror.cluster.rights.acl_commands import cluster_refusal
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.errors import KmirrorError


def describe_quotas(client: ClusterClient, timeout: float | None = None) -> frozenset[Quota]:
    """Return all quotas, defaults included. Needs DESCRIBE_CONFIGS on the cluster.

    Raises:
        UnreachableError: the cluster does not answer, or does not let us see them (NOT_AUTHORIZED).
        UnsupportedVersionError: its brokers are older than Kafka 2.6.
    """
    return QUOTAS.ask(client, timeout)


def alter_quotas(
    client: ClusterClient, wanted: Collection[Quota], unwanted: Collection[Quota]
) -> dict[Quota, KmirrorError]:
    """Set quotas, remove others, and return the errors of those refused. Needs ALTER_CONFIGS on the cluster.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    entry_type = kafka.AlterClientQuotasRequest.EntryData
    changes = sorted([*((one, False) for one in wanted), *((one, True) for one in unwanted)])
    by_entity = {entity: list(some) for entity, some in groupby(changes, key=lambda change: change[0].entity)}
    if not by_entity:
        return {}
    request = kafka.AlterClientQuotasRequest(
        entries=[
            entry_type(
                entity=[entry_type.EntityData(entity_type=kind, entity_name=name or None) for kind, name in entity],
                ops=[
                    entry_type.OpData(key=one.key, value=0.0 if is_removed else one.value, remove=is_removed)
                    for one, is_removed in some
                ],
            )
            for entity, some in by_entity.items()
        ],
        validate_only=False,
    )
    failed: dict[Quota, KmirrorError] = {}
    for some, result in zip(by_entity.values(), client.ask_any(request).entries, strict=True):
        if result.error_code:
            error = cluster_refusal(client.config, result, f"changing {some[0][0]}", "ALTER_CONFIGS")
            failed |= dict.fromkeys((one for one, _ in some), error)
    return failed


def scram_users(client: ClusterClient, timeout: float | None = None) -> frozenset[str]:
    """Return the names of users that have a SCRAM credential. Needs DESCRIBE on the cluster.

    Raises:
        UnreachableError: the cluster does not answer, or does not let us see them (NOT_AUTHORIZED).
        UnsupportedVersionError: its brokers are older than Kafka 2.7.
    """
    return SCRAM_USERS.ask(client, timeout)


def _quotas_in(config: ClientConfig, answer: Any) -> frozenset[Quota]:
    if answer.error_code:
        raise cluster_refusal(config, answer, "describing quotas", "DESCRIBE_CONFIGS")
    return frozenset(
        Quota(tuple(sorted((part.entity_type, part.entity_name or "") for part in entry.entity)), one.key, one.value)
        for entry in answer.entries or ()
        for one in entry.values
    )


def _users_in(config: ClientConfig, answer: Any) -> frozenset[str]:
    if answer.error_code:
        raise cluster_refusal(config, answer, "describing SCRAM users", "DESCRIBE")
    return frozenset(one.user for one in answer.results if not one.error_code)


#: All quotas, and the users with a SCRAM credential; raise as `describe_quotas` and `scram_users`.
QUOTAS = Question(lambda: kafka.DescribeClientQuotasRequest(components=[], strict=False), _quotas_in)
SCRAM_USERS = Question(lambda: kafka.DescribeUserScramCredentialsRequest(users=None), _users_in)
