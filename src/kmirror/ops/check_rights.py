"""What `check` says of rights: how mirror topics are protected, and the least that kmirror needs on either cluster.

The least rights are those without which `create`, `add`, `run` and `verify` do not work with these settings. What Kafka
grants along with another right is not named: READ and WRITE bring DESCRIBE, ALTER_CONFIGS brings DESCRIBE_CONFIGS.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from kmirror.cluster.acls import EVERYONE, AclBinding, NoAuthorizerError, describe_acls, operation_flag
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.codes import Code
from kmirror.cluster.standing import login_principal
from kmirror.errors import KmirrorError, Reason
from kmirror.ops.admin import lacks, missing_rights
from kmirror.ops.protection import Known, judge, survey
from kmirror.settings import Settings
from kmirror.state.store import EVENTS_TOPIC, STATE_TOPIC
from kmirror.sync.acls import writers_of

#: What kmirror's own topics, and its transactional ids, begin with.
OWN_TOPICS = "__kmirror_"
OWN_TRANSACTIONAL_IDS = "kmirror-"

_ON_OWN_TOPICS = ("CREATE", "READ", "WRITE", "DESCRIBE_CONFIGS")
_ON_MIRROR_TOPICS = ("CREATE", "READ", "WRITE", "ALTER", "ALTER_CONFIGS", "DELETE")
_ON_SOURCE_TOPICS = ("READ", "DESCRIBE_CONFIGS")
_TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
_MOST_TOPICS = 20
_MOST_WRITERS = 10


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on one resource, as `kafka-acls` takes it: `--topic orders`; `what_for` in a few words."""

    resource: str
    operations: tuple[str, ...]
    what_for: str
    prefixed: bool = False

    def line(self, principal: str, bootstrap_servers: str) -> str:
        """Return the command for an administrator."""
        operations = " ".join(f"--operation {operation_flag(one)}" for one in self.operations)
        pattern = " --resource-pattern-type prefixed" if self.prefixed else ""
        start = f"kafka-acls --bootstrap-server {bootstrap_servers} --add --allow-principal {shlex.quote(principal)}"
        return f"{start} {operations} {self.resource}{pattern}"


@dataclass(frozen=True, slots=True)
class ProtectionView:
    """How mirror topics are protected, in a sentence; `hint` where more would be possible, and is wanted."""

    message: str
    hint: str | None


def destination_grants(settings: Settings, topics: Collection[str]) -> tuple[Grant, ...]:
    """Return the least rights at the destination; `topics` are its mirror topics, as far as they are known."""
    cluster = ("ALTER",) if _changes_acls(settings) else ("CLUSTER_ACTION", "DESCRIBE")
    what_for = "protection by ACLs, filling by markers" if _changes_acls(settings) else "filling by markers"
    groups = [Grant("--group '*'", ("READ",), "group offsets")] if settings.sync_group_offsets_enabled else []
    return (
        Grant(f"--topic {OWN_TOPICS}", _ON_OWN_TOPICS, "kmirror's memory", prefixed=True),
        Grant(f"--transactional-id {OWN_TRANSACTIONAL_IDS}", ("WRITE",), "its locks", prefixed=True),
        *(Grant(f"--topic {name}", _ON_MIRROR_TOPICS, "mirror topics") for name in _named(topics)),
        Grant("--cluster", cluster, what_for),
        *groups,
    )


def source_grants(settings: Settings, topics: Collection[str]) -> tuple[Grant, ...]:
    """Return the least rights at the source; `topics` are the mirrored ones, as far as they are known."""
    groups = [Grant("--group '*'", ("DESCRIBE",), "group offsets")] if settings.sync_group_offsets_enabled else []
    acls = [Grant("--cluster", ("DESCRIBE",), "taking ACLs over")] if settings.sync_topic_acls_enabled else []
    return (*(Grant(f"--topic {name}", _ON_SOURCE_TOPICS, "copying") for name in _named(topics)), *groups, *acls)


def grant_lines(client: ClusterClient, grants: Iterable[Grant], bootstrap_servers: str) -> list[str]:
    """Return the commands that grant them to whoever we are; none where the cluster has no authorizer."""
    if not has_authorizer(client):
        return []
    principal = login_principal(client.config) or "User:NAME"
    return [one.line(principal, bootstrap_servers) for one in grants]


def has_authorizer(client: ClusterClient) -> bool:
    """Tell whether the cluster has an authorizer; one that does not let us see ACLs has. Raises UnreachableError."""
    try:
        describe_acls(client)
    except NoAuthorizerError:
        return False
    except KmirrorError as error:
        if error.reason is not Reason.NOT_AUTHORIZED:
            raise
    return True


def lacking_on_own(client: ClusterClient) -> dict[str, list[str]]:
    """Return which rights we lack on kmirror's own topics and transactional ids, as far as brokers tell.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    lacking = dict(missing_rights(client, [STATE_TOPIC, EVENTS_TOPIC], ("READ", "WRITE", "DESCRIBE_CONFIGS")))
    if not may_write_transactions(client, f"{OWN_TRANSACTIONAL_IDS}check-{uuid.uuid4().hex}"):
        lacking[OWN_TRANSACTIONAL_IDS] = ["WRITE"]
    return lacking


def may_write_transactions(client: ClusterClient, transactional_id: str) -> bool:
    """Tell whether WRITE on a transactional id is granted that nobody uses; nothing comes of asking.

    The end of a transaction is asked for that never began: who lacks the right is told so before brokers look at it.
    """
    from kafka.protocol.producer import EndTxnRequest

    request = EndTxnRequest(transactional_id=transactional_id, producer_id=0, producer_epoch=0, committed=False)
    answer = client.ask_any(request, highest=4)
    return bool(answer.error_code != _TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def protection_view(
    client: ClusterClient, settings: Settings, topics: Mapping[str, Collection[AclBinding]], bootstrap_servers: str
) -> ProtectionView:
    """Return how mirror topics are protected; `topics` with the denials that kmirror made for each.

    It is found out as the engine does it: by ACLs for names that no topic has, which are deleted at once.
    """
    if settings.read_only == "detect":
        return ProtectionView("detected only, as read.only=detect says: what others write is found afterwards", None)
    ground = survey(client, topics, Known())
    if ground.detected_only is not None:
        said = f"detected only: {ground.detected_only}"
        writers = sorted(writers_of(ground.acls, topics) - ground.own.principals)
        everyone = any(one.principal == EVERYONE for one in ground.acls)
        if ground.acls and topics and not everyone:
            named = ", ".join(writers[:_MOST_WRITERS]) + (" …" if len(writers) > _MOST_WRITERS else "")
            said += f"; as ACLs are now, {named or 'nobody else but super users'} may write"
        return ProtectionView(said, ground.hint if ground.acls or ground.own.principals else None)
    found = [judge(ground, topic, tuple(ours), bootstrap_servers) for topic, ours in topics.items()]
    weak = [one for one in found if one.detected_only is not None]
    if weak:
        names = ", ".join(one.topic for one in weak[:_MOST_TOPICS])
        return ProtectionView(f"detected only on {names}: {weak[0].detected_only}", weak[0].hint)
    many = f" ({len(found)} topics)" if found else ""
    return ProtectionView(f"enforced: ACLs keep everybody but kmirror and super users from writing{many}", None)


def _changes_acls(settings: Settings) -> bool:
    return settings.read_only == "enforce" or settings.sync_topic_acls_enabled


def _named(topics: Collection[str]) -> list[str]:
    return sorted(topics) if 0 < len(topics) <= _MOST_TOPICS else ["TOPIC"]


def lacking_on_groups(client: ClusterClient, groups: Collection[str], needed: str) -> list[str]:
    """Return the groups, which need not exist, on which we lack a right. Raises UnreachableError."""
    from kafka.protocol.admin import DescribeGroupsRequest

    if not groups:
        return []
    request = DescribeGroupsRequest(groups=sorted(groups), include_authorized_operations=True)
    # later versions tell nothing of groups that do not exist
    answer = client.ask_any(request, highest=5)
    return [
        one.group_id
        for one in answer.groups
        if one.error_code == Code.GROUP_AUTHORIZATION_FAILED
        or (not one.error_code and lacks(operations_of(one.authorized_operations), (needed,)))
    ]


def operations_of(told: Iterable[int] | int | None) -> frozenset[int]:
    """Return authorized operations as codes; empty where they are not told."""
    return frozenset(told) if isinstance(told, Iterable) else frozenset()
