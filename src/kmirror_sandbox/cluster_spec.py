"""The description of a sandbox cluster (nodes, ports, version, settings), stored in `cluster.json` in its directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kmirror.errors import RefusedError
from kmirror_sandbox.ports import LOOPBACK

#: The name on the brokers' certificate: the principal of their connections to each other, and a super user.
BROKER_PRINCIPAL = "sandbox-broker"
#: A user of every secured cluster, and its super user.
ADMIN_USER = "admin"

#: The first release with KRaft for production (KIP-833).
_FIRST_WITH_KRAFT = (3, 3)
_FILE = "cluster.json"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node: always a broker, and also a controller if it has a controller port.

    In a cluster with ZooKeeper the first node's controller port is ZooKeeper's. `internal_port` is the inter-broker
    listener, which only a secured cluster has.
    """

    node_id: int
    port: int
    controller_port: int | None
    internal_port: int | None

    @property
    def address(self) -> str:
        """Return host:port of the listener for clients."""
        return f"{LOOPBACK}:{self.port}"


#: Used instead of a SASL mechanism if clients log in with a certificate.
CERTIFICATE = "CERTIFICATE"


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """The token endpoint: its port, and the lifetime of a token."""

    port: int
    seconds: int


@dataclass(frozen=True, slots=True)
class SecuritySpec:
    """TLS with logins (SCRAM-SHA-512, SCRAM-SHA-256, PLAIN), and ACLs if `authorizer` is set.

    With `tokens` clients can also log in with OAUTHBEARER. `mechanism` is the users' default; if it is CERTIFICATE, it
    is the only one, and the passwords are those of the users' key stores.
    """

    users: Mapping[str, str]
    store_password: str
    authorizer: bool
    tokens: TokenSpec | None = None
    mechanism: str = "SCRAM-SHA-512"

    @property
    def wants_certificates(self) -> bool:
        """Return whether clients log in with certificates."""
        return self.mechanism == CERTIFICATE

    def __repr__(self) -> str:
        return f"SecuritySpec(users={sorted(self.users)}, authorizer={self.authorizer})"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One cluster as it was created.

    `complete` is set once it has been up; otherwise this is left from an interrupted start. A cluster with ZooKeeper
    chooses its own `cluster_id`, which is empty until then.
    """

    name: str
    cluster_id: str
    kafka_version: str
    nodes: tuple[NodeSpec, ...]
    properties: Mapping[str, str]
    heap: str
    java_options: tuple[str, ...]
    security: SecuritySpec | None = None
    complete: bool = False
    #: Settings of single nodes, by node id (a string, like all JSON keys).
    node_properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    #: Whether topics can be tiered, into the cluster's own store.
    tiered: bool = False

    @property
    def kafka_major(self) -> int:
        """Return the major version."""
        return int(self.kafka_version.split(".", 1)[0])

    @property
    def needs_zookeeper(self) -> bool:
        """Return whether the brokers need ZooKeeper: before Kafka 3.3, KRaft was a preview."""
        return needs_zookeeper(self.kafka_version)

    @property
    def zookeeper_port(self) -> int:
        """Return the port of ZooKeeper, 0 if the cluster has none."""
        return self.nodes[0].controller_port or 0

    @property
    def voters(self) -> str:
        """Return the value of `controller.quorum.voters`."""
        return ",".join(
            f"{node.node_id}@{LOOPBACK}:{node.controller_port}" for node in self.nodes if node.controller_port
        )


def needs_zookeeper(kafka_version: str) -> bool:
    """Return whether brokers of a version need ZooKeeper."""
    return release_of(kafka_version) < _FIRST_WITH_KRAFT


def release_of(kafka_version: str) -> tuple[int, int]:
    """Return the major and the minor number of a version."""
    major, minor, *_ = kafka_version.split(".")
    return int(major), int(minor)


def controller_count(brokers: int) -> int:
    """Return how many nodes are also controllers: three of three or more, so that any one can be lost."""
    return 3 if brokers >= 3 else 1


def ports_needed(brokers: int, secured: bool, tokens: bool = False) -> int:
    """Return how many ports a cluster needs; the last is that of the token endpoint."""
    return brokers * (2 if secured else 1) + controller_count(brokers) + tokens


def nodes_on(ports: list[int], brokers: int, secured: bool) -> tuple[NodeSpec, ...]:
    """Assign ports to nodes: first the clients' listeners, then the controllers', then the internal ones."""
    controllers = controller_count(brokers)
    return tuple(
        NodeSpec(
            node_id=index + 1,
            port=ports[index],
            controller_port=ports[brokers + index] if index < controllers else None,
            internal_port=ports[brokers + controllers + index] if secured else None,
        )
        for index in range(brokers)
    )


def save_spec(spec: ClusterSpec, directory: Path) -> None:
    """Write `cluster.json` atomically, readable by its owner only: it has the sandbox's passwords."""
    temporary = directory / f"{_FILE}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(spec), file, indent=2)
    temporary.replace(directory / _FILE)


def has_spec(directory: Path) -> bool:
    """Return whether a sandbox cluster was created in this directory."""
    return (directory / _FILE).is_file()


def load_spec(directory: Path) -> ClusterSpec:
    """Read `cluster.json`. Raises RefusedError if it is not what `save_spec` writes."""
    try:
        stored: dict[str, Any] = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        stored["nodes"] = tuple(NodeSpec(**node) for node in stored["nodes"])
        stored["java_options"] = tuple(stored["java_options"])
        stored["security"] = _security(stored["security"]) if stored["security"] else None
        return ClusterSpec(**stored)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RefusedError(
            f"{directory / _FILE} does not describe a sandbox cluster: {error}",
            "stop any brokers that still run from there, remove the directory, and run `kmirror sandbox up` again",
        ) from error


def _security(stored: dict[str, Any]) -> SecuritySpec:
    tokens = stored.pop("tokens", None)
    return SecuritySpec(**stored, tokens=TokenSpec(**tokens) if tokens else None)
