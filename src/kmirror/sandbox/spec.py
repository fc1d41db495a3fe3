"""What a sandbox cluster is: its nodes, ports, version and settings, kept in `cluster.json` in its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kmirror.errors import RefusedError
from kmirror.sandbox.ports import LOOPBACK

#: The name on the brokers' certificate: the principal of their connections to each other, and a super user.
BROKER_PRINCIPAL = "sandbox-broker"
#: A user of every secured cluster, and a super user where rights are checked.
ADMIN_USER = "admin"

#: The first release whose brokers can do without ZooKeeper in earnest (KIP-833).
_FIRST_WITH_KRAFT = (3, 3)
_FILE = "cluster.json"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node: always a broker, and a controller too where it has a controller port.

    In a cluster with ZooKeeper the first node's controller port is ZooKeeper's.

    `internal_port` is the listener of the brokers among themselves, which only a secured cluster has apart.
    """

    node_id: int
    port: int
    controller_port: int | None
    internal_port: int | None

    @property
    def address(self) -> str:
        """Return host:port of the listener for clients."""
        return f"{LOOPBACK}:{self.port}"


#: In place of a SASL mechanism, where clients log in with a certificate.
CERTIFICATE = "CERTIFICATE"


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """The endpoint that gives clients tokens: its port on this machine, and how long a token lives."""

    port: int
    seconds: int


@dataclass(frozen=True, slots=True)
class SecuritySpec:
    """TLS with logins (SCRAM-SHA-512, SCRAM-SHA-256, PLAIN), and rights by ACL where `authorizer` is set.

    With `tokens` clients may log in with OAUTHBEARER too. `mechanism` is how users log in unless they are told
    otherwise; if it is CERTIFICATE, there is no other way, and passwords are those of their key stores.
    """

    users: Mapping[str, str]
    store_password: str
    authorizer: bool
    tokens: TokenSpec | None = None
    mechanism: str = "SCRAM-SHA-512"

    @property
    def wants_certificates(self) -> bool:
        """Tell whether clients log in with certificates."""
        return self.mechanism == CERTIFICATE

    def __repr__(self) -> str:
        return f"SecuritySpec(users={sorted(self.users)}, authorizer={self.authorizer})"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One cluster, as it was created.

    `complete` tells whether it has been up once; one that has not is the remains of an interrupted start. A cluster
    with ZooKeeper gives itself its `cluster_id`: it is empty until then.
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
    #: By node id (text, as JSON's keys are), settings of that node alone.
    node_properties: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def kafka_major(self) -> int:
        """Return the first number of the version."""
        return int(self.kafka_version.split(".", 1)[0])

    @property
    def needs_zookeeper(self) -> bool:
        """Tell whether the brokers keep their metadata in ZooKeeper: before Kafka 3.3, KRaft was a preview."""
        return needs_zookeeper(self.kafka_version)

    @property
    def zookeeper_port(self) -> int:
        """Return the port of ZooKeeper, where the cluster has it."""
        return self.nodes[0].controller_port or 0

    @property
    def voters(self) -> str:
        """Return the value of `controller.quorum.voters`."""
        return ",".join(
            f"{node.node_id}@{LOOPBACK}:{node.controller_port}" for node in self.nodes if node.controller_port
        )


def needs_zookeeper(kafka_version: str) -> bool:
    """Tell whether brokers of a version keep their metadata in ZooKeeper."""
    major, minor, *_ = kafka_version.split(".")
    return (int(major), int(minor)) < _FIRST_WITH_KRAFT


def controller_count(brokers: int) -> int:
    """Return how many of the nodes are controllers too: three from three on, so that any one may be lost."""
    return 3 if brokers >= 3 else 1


def ports_needed(brokers: int, secured: bool, tokens: bool = False) -> int:
    """Return how many ports a cluster of that many brokers listens on; the last is that of the token endpoint."""
    return brokers * (2 if secured else 1) + controller_count(brokers) + tokens


def nodes_on(ports: list[int], brokers: int, secured: bool) -> tuple[NodeSpec, ...]:
    """Give ports to nodes: the first ones to the clients' listeners, then the controllers', then the internal ones."""
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
    """Write `cluster.json`, whole or not at all, readable by its owner only: it holds the sandbox's passwords."""
    temporary = directory / f"{_FILE}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(spec), file, indent=2)
    temporary.replace(directory / _FILE)


def has_spec(directory: Path) -> bool:
    """Tell whether a sandbox cluster was created in this folder."""
    return (directory / _FILE).is_file()


def load_spec(directory: Path) -> ClusterSpec:
    """Read `cluster.json`. Raises RefusedError when it cannot be read as what `save_spec` writes."""
    try:
        stored: dict[str, Any] = json.loads((directory / _FILE).read_text(encoding="utf-8"))
        stored["nodes"] = tuple(NodeSpec(**node) for node in stored["nodes"])
        stored["java_options"] = tuple(stored["java_options"])
        stored["security"] = _security(stored["security"]) if stored["security"] else None
        return ClusterSpec(**stored)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RefusedError(
            f"{directory / _FILE} does not describe a sandbox cluster: {error}",
            "Stop brokers that may still run from there, remove the folder, and run `kmirror sandbox up` again.",
        ) from error


def _security(stored: dict[str, Any]) -> SecuritySpec:
    tokens = stored.pop("tokens", None)
    return SecuritySpec(**stored, tokens=TokenSpec(**tokens) if tokens else None)
