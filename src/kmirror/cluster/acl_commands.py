"""`kafka-acls` commands for an administrator, ready to be copied: the cluster's address, and who we are, filled in."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from kmirror.cluster.security.client_config import ClientConfig

#: What is written where nothing here tells who we are.
UNKNOWN_PRINCIPAL = "User:NAME"
#: Of these a SASL login's name is the principal's.
_NAMED_BY_LOGIN = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})


def login_principal(config: ClientConfig) -> str | None:
    """Return the principal that a login's name makes us, None where that is unknown here."""
    if config.sasl_mechanism in _NAMED_BY_LOGIN and config.username is not None:
        return f"User:{config.username}"
    return None


def admin_options(config: ClientConfig) -> str:
    """Return the options with which Kafka's tools reach a cluster; `admin.properties` has an administrator's login."""
    servers = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in config.bootstrap_servers
    )
    login = "" if config.security_protocol == "PLAINTEXT" else " --command-config admin.properties"
    return f"--bootstrap-server {servers}{login}"


def grant_line(config: ClientConfig, operations: Iterable[str], resource: str) -> str:
    """Return the command that grants us operations on a resource, given as `--topic orders`."""
    flags = " ".join(f"--operation {operation_flag(one)}" for one in operations)
    principal = shlex.quote(_principal(config))
    return f"kafka-acls {admin_options(config)} --add --allow-principal {principal} {flags} {resource}"


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on one resource, as `kafka-acls` takes it: `--topic orders`."""

    resource: str
    operations: tuple[str, ...]
    prefixed: bool = False

    def line(self, config: ClientConfig) -> str:
        """Return the command for an administrator that grants them to the principal that `config` makes us."""
        pattern = " --resource-pattern-type prefixed" if self.prefixed else ""
        return grant_line(config, self.operations, f"{self.resource}{pattern}")


def operation_flag(operation: str) -> str:
    """Return an operation as `kafka-acls` takes it: `DescribeConfigs`."""
    return operation.title().replace("_", "")


def _principal(config: ClientConfig) -> str:
    is_nobody = config.sasl_mechanism is None and config.certificate_pem is None
    return login_principal(config) or ("User:ANONYMOUS" if is_nobody else UNKNOWN_PRINCIPAL)
