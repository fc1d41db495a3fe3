"""`kafka-acls` commands for an administrator to copy, with the cluster's address and our principal filled in."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from kmirror.cluster.security.client_config import ClientConfig

#: A placeholder for an unknown principal.
UNKNOWN_PRINCIPAL = "User:NAME"
#: Mechanisms whose user name is the principal's name.
_NAMED_BY_LOGIN = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})


def login_principal(config: ClientConfig) -> str | None:
    """Return our principal where the login's user name says so, else None."""
    if config.sasl_mechanism in _NAMED_BY_LOGIN and config.username is not None:
        return f"User:{config.username}"
    return None


def admin_options(config: ClientConfig) -> str:
    """Return the options for Kafka's tools to reach a cluster; `admin.properties` has an administrator's login."""
    servers = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in config.bootstrap_servers
    )
    login = "" if config.security_protocol == "PLAINTEXT" else " --command-config admin.properties"
    return f"--bootstrap-server {servers}{login}"


def grant_line(config: ClientConfig, operations: Iterable[str], resource: str) -> str:
    """Return the command that grants us operations on a resource, given like `--topic orders`."""
    flags = " ".join(f"--operation {operation_flag(one)}" for one in operations)
    principal = shlex.quote(_principal(config))
    return f"kafka-acls {admin_options(config)} --add --allow-principal {principal} {flags} {resource}"


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on one resource, given like `--topic orders`."""

    resource: str
    operations: tuple[str, ...]
    prefixed: bool = False

    def line(self, config: ClientConfig) -> str:
        """Return the command that grants them to the principal of `config`."""
        pattern = " --resource-pattern-type prefixed" if self.prefixed else ""
        return grant_line(config, self.operations, f"{self.resource}{pattern}")


def operation_flag(operation: str) -> str:
    """Return an operation as `kafka-acls` spells it: `DescribeConfigs`."""
    return operation.title().replace("_", "")


def _principal(config: ClientConfig) -> str:
    is_anonymous = config.sasl_mechanism is None and config.certificate_pem is None
    return login_principal(config) or ("User:ANONYMOUS" if is_anonymous else UNKNOWN_PRINCIPAL)
