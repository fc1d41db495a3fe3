"""What tests of rights share: ACLs by name, clusters with logins and ACLs, mirrors that exist only as stored state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka import admin as admin_api
from confluent_kafka.admin import AdminClient

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.acl_binding import AclBinding, AclPermission, Operation, PatternType, ResourceType
from kmirror.cluster.rights.acls import await_acls, create_acls
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.driver.side_jobs import JobView
from kmirror.ops.base.context import Destination, change
from kmirror.settings.parsing import parse_settings
from kmirror.state.records import DesiredState, TopicOrigin, TopicRecord
from kmirror.state.snapshot import Changes
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.librdkafka import librdkafka
from tests.support.waiting import wait_until

_ANY = (
    *(admin_api.ResourceType.ANY, None, admin_api.ResourcePatternType.ANY),
    *(None, None, admin_api.AclOperation.ANY, admin_api.AclPermissionType.ANY),
)
_EVERY_ACL = admin_api.AclBindingFilter(*_ANY)
USERS = {"kmirror": "kmirror-secret", "app": "app-secret", "other": "other-secret"}


def acls(
    kind: str, name: str, who: str, *operations: str, prefixed: bool = False, deny: bool = False
) -> list[AclBinding]:
    """Return ACLs on one resource for one principal, from any host: `acls("topic", "t", "app", "READ")`."""
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    rule = AclPermission.DENY if deny else AclPermission.ALLOW
    return [
        AclBinding(ResourceType[kind.upper()], name, pattern, f"User:{who}", "*", Operation[one], rule)
        for one in operations
    ]


def denial(topic: str, who: str) -> AclBinding:
    """Return the ACL that denies a principal WRITE on a topic."""
    (one,) = acls("topic", topic, who, "WRITE", deny=True)
    return one


def give(admin: ClusterClient, *groups: Iterable[AclBinding]) -> None:
    """Create ACLs, and return when they are in force."""
    bindings = [one for group in groups for one in group]
    assert set(create_acls(admin, bindings).values()) <= {None}
    assert await_acls(admin, bindings)


def create_in_force(admin: AdminClient, rules: Sequence[admin_api.AclBinding]) -> None:
    """Create ACLs of the client library, and return when they are in force: brokers apply them a moment later."""
    for done in admin.create_acls(list(rules)).values():
        done.result(30)
    wait_until(lambda: set(rules) <= set(admin.describe_acls(_EVERY_ACL).result(30)))


def delete_in_force(admin: AdminClient, rule: admin_api.AclBindingFilter) -> int:
    """Delete the ACLs that a filter matches, and return how many, once none is in force any more."""
    (done,) = admin.delete_acls([rule]).values()
    count = len(done.result(30))
    wait_until(lambda: not admin.describe_acls(rule).result(30))
    return count


def kmirror_rights() -> list[AclBinding]:
    """Return what kmirror needs and more."""
    return [
        *acls("topic", "*", "kmirror", "ALL"),
        *acls("transactional_id", "kmirror-", "kmirror", "ALL", prefixed=True),
        *acls("cluster", "kafka-cluster", "kmirror", "ALTER", "DESCRIBE"),
    ]


def written(cluster: SandboxCluster, user: str, topic: str) -> int | None:
    """Try to write a record as a user; return the error code, None on success."""
    heard: list[KafkaError | None] = []
    producer = Producer({**librdkafka(client_config(cluster.client_properties(user))), "log_level": 0})
    producer.produce(topic, b"v", partition=0, on_delivery=lambda error, _: heard.append(error))
    assert producer.flush(30) == 0
    return heard[0].code() if heard[0] is not None else None


def claim(
    destination: Destination,
    mirror: str,
    *topics: str,
    desired: DesiredState = DesiredState.ACTIVE,
    pending: str | None = None,
) -> None:
    """Store topics of a mirror with this desired state, and this pending operation."""
    records = tuple(
        TopicRecord(mirror, topic, topic, None, None, desired, 1, TopicOrigin.CREATED, pending_operation=pending)
        for topic in topics
    )
    change(destination, mirror, lambda _: Changes(records))


def view_of(destination: Destination, mirror: str, **settings: Any) -> JobView:
    """Return what the engine would show a job of this mirror now; settings with `_` for `.`."""
    state = destination.state()
    record = state.mirror(mirror)
    assert record is not None
    changed = {key.replace("_", "."): value for key, value in settings.items()}
    return JobView(record, parse_settings({**record.settings, **changed}), state.topics(mirror), {}, {})
