"""One ACL as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from kmirror.words import visible

#: How ACLs write any principal, any host, any name.
EVERYONE = "User:*"
ANY_HOST = "*"
ANY_NAME = "*"


class ResourceType(StrEnum):
    """The type of resource of an ACL."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    DELEGATION_TOKEN = "DELEGATION_TOKEN"
    USER = "USER"


class PatternType(StrEnum):
    """Whether an ACL's resource name is a whole name or a prefix."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Operation(StrEnum):
    """What an ACL permits or forbids."""

    ALL = "ALL"
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"
    CREATE_TOKENS = "CREATE_TOKENS"
    DESCRIBE_TOKENS = "DESCRIBE_TOKENS"
    TWO_PHASE_COMMIT = "TWO_PHASE_COMMIT"


#: Kafka's AclOperation codes; 0 is UNKNOWN, 1 ANY.
OPERATION_CODES: Mapping[Operation, int] = {operation: code for code, operation in enumerate(Operation, 2)}


class AclPermission(StrEnum):
    """Whether an ACL permits or forbids."""

    DENY = "DENY"
    ALLOW = "ALLOW"


class AclBinding(NamedTuple):
    """One ACL: who, from where, may or may not do what, with which resource."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: AclPermission

    def covers(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether it applies to a resource, by its name, a prefix or `*` (KIP-290)."""
        if self.resource_type is not resource_type:
            return False
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in (name, ANY_NAME)

    def __str__(self) -> str:
        prefix = "*" if self.pattern_type is PatternType.PREFIXED else ""
        host = "" if self.host == ANY_HOST else f" from {self.host}"
        what = f"{self.permission} {self.operation} on {self.resource_type.lower()} {self.resource_name}{prefix}"
        return visible(f"{what} for {self.principal}{host}")
