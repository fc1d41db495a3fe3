"""kmirror's login and rights at brokers that require them, and settings, by a client that connects directly."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

USER = "kmirror"
MECHANISM = "SCRAM-SHA-512"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
#: What kmirror may do everything to.
RESOURCES = (
    (ResourceType.TOPIC, "*"),
    (ResourceType.GROUP, "*"),
    (ResourceType.TRANSACTIONAL_ID, "*"),
    (ResourceType.BROKER, "kafka-cluster"),
)
_EVERYTHING = (f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
_CHANGE_S = 20.0


def admin(servers: str) -> Any:
    """Return a client that does not log what it cannot reach. Keep it until everything it was asked is answered."""
    return AdminClient({"bootstrap.servers": servers, "log_level": 0, "error_cb": lambda error: None})


def change_settings(servers: str, kind: ResourceType, name: str, settings: Mapping[str, str | None]) -> None:
    """Change settings of a topic or a broker; None removes one."""
    entries = [
        ConfigEntry(
            key,
            value or "",
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in settings.items()
    ]
    client = admin(servers)
    for done in client.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=entries)]).values():
        done.result(_CHANGE_S)


def settings_of(servers: str, topics: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics that are not their brokers' defaults, by topic."""
    client = admin(servers)
    answers = client.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in topics]) if topics else {}
    return {
        found.name: {key: one.value for key, one in answer.result(_CHANGE_S).items() if not one.is_default}
        for found, answer in answers.items()
    }


def allow_all(servers: str) -> None:
    """Grant kmirror everything."""
    wanted = [AclBinding(*one, ResourcePatternType.LITERAL, *_EVERYTHING) for one in RESOURCES]
    client = admin(servers)
    for made in client.create_acls(wanted).values():
        made.result(_CHANGE_S)


def revoke(servers: str, resource: ResourceType, name: str) -> int:
    """Revoke one of its rights; return how many ACLs that were."""
    unwanted = AclBindingFilter(resource, name, ResourcePatternType.LITERAL, *_EVERYTHING)
    client = admin(servers)
    return sum(len(deleted.result(_CHANGE_S)) for deleted in client.delete_acls([unwanted]).values())


def set_password(servers: str, password: str) -> None:
    """Set kmirror's password at the brokers."""
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion(USER, credential, password.encode())
    client = admin(servers)
    for altered in client.alter_user_scram_credentials([wanted]).values():
        altered.result(_CHANGE_S)
