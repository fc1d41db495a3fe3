"""Commands of Kafka's tools for an administrator to copy, with the cluster's address and our principal filled in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.commands import Arguments, command_line, option, options
from kmirror.errors import BrokerError, KmirrorError, Reason, UnreachableError
from kmirror.words import address_of, visible

#: A placeholder for an unknown principal.
UNKNOWN_PRINCIPAL = "User:NAME"
#: How Kafka's tools log in as an administrator.
AS_ADMIN = ("--command-config", "admin.properties")
#: Says that the name of a resource is a prefix.
PREFIXED = ("--resource-pattern-type", "prefixed")
#: Mechanisms whose user name is the principal's name.
_NAMED_BY_LOGIN = frozenset({"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})


def login_principal(config: ClientConfig) -> str | None:
    """Return our principal where the login's user name says so, else None."""
    if config.sasl_mechanism in _NAMED_BY_LOGIN and config.username is not None:
        return f"User:{config.username}"
    return None


def admin_options(config: ClientConfig) -> Arguments:
    """Return the options for Kafka's tools to reach a cluster; `admin.properties` has an administrator's login."""
    servers = ",".join(address_of(host, port) for host, port in config.bootstrap_servers)
    login = () if config.security_protocol == "PLAINTEXT" else AS_ADMIN
    return (*option("--bootstrap-server", servers), *login)


def grant_line(config: ClientConfig, operations: Iterable[str], *resource: str) -> str:
    """Return the command that grants us operations on a resource, given like `--topic`, `orders`."""
    return command_line(
        "kafka-acls",
        *admin_options(config),
        "--add",
        *option("--allow-principal", _principal(config)),
        *options("--operation", map(operation_flag, operations)),
        *resource,
    )


def cluster_refusal(config: ClientConfig, answer: Any, what: str, right: str) -> KmirrorError:
    """Return the error for the code and message of an answer of `kafka.protocol`; `right` on the cluster is needed."""
    code: int = answer.error_code
    if code == Code.CLUSTER_AUTHORIZATION_FAILED:
        lacking = f"{what}: we lack {right} on the cluster"
        return UnreachableError(lacking, grant_line(config, (right,), "--cluster"), Reason.NOT_AUTHORIZED)
    return BrokerError(code, code_name(code), what, visible(answer.error_message or ""))


def alter_topic(config: ClientConfig, topic: str, settings: str) -> str:
    """Return the command that changes settings of a topic, given like `retention.ms=MS`."""
    return command_line(
        "kafka-configs",
        *admin_options(config),
        *("--alter", "--entity-type", "topics"),
        *option("--entity-name", topic),
        *option("--add-config", settings),
    )


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on one resource, given like `("--topic", "orders")`."""

    resource: Arguments
    operations: tuple[str, ...]
    prefixed: bool = False

    def line(self, config: ClientConfig) -> str:
        """Return the command that grants them to the principal of `config`."""
        return grant_line(config, self.operations, *self.resource, *(PREFIXED if self.prefixed else ()))


def operation_flag(operation: str) -> str:
    """Return an operation as `kafka-acls` spells it: `DescribeConfigs`."""
    return operation.title().replace("_", "")


def _principal(config: ClientConfig) -> str:
    has_certificate = config.tls is not None and config.tls.certificate_pem is not None
    is_anonymous = config.sasl_mechanism is None and not has_certificate
    return login_principal(config) or ("User:ANONYMOUS" if is_anonymous else UNKNOWN_PRINCIPAL)
