"""One real cluster on this machine: created in a directory, started, stopped, killed broker by broker, removed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from kmirror.errors import RefusedError, UnreachableError, UsageError
from kmirror.java import find_java
from kmirror.java_properties import write_properties
from kmirror.words import counted
from kmirror.work import Add, Meter, Watch, unwatched
from kmirror_sandbox.certificates import make_certificates
from kmirror_sandbox.client_files import create_scram_users, login_properties
from kmirror_sandbox.cluster_spec import (
    ADMIN_USER,
    ClusterSpec,
    SecuritySpec,
    TokenSpec,
    has_spec,
    load_spec,
    needs_zookeeper,
    nodes_on,
    ports_needed,
    save_spec,
)
from kmirror_sandbox.jars import KafkaJars, cache_directory, kafka_jars, token_server_jars
from kmirror_sandbox.java_server import JavaServer, TokenServer, ZooKeeper
from kmirror_sandbox.node import Node
from kmirror_sandbox.ports import LOOPBACK, free_ports
from kmirror_sandbox.process import ProcessIdentity, send_signal, terminate, wait_gone
from kmirror_sandbox.readiness import wait_until_answering, wait_until_listening, wait_until_logged_in
from kmirror_sandbox.tiered_store import Store, check_tiered, compiled_store, install_store

MAX_BROKERS = 9
DEFAULT_HEAP = "512m"
DEFAULT_JAVA_OPTIONS = ("-XX:+UseSerialGC",)
DEFAULT_USERS = {ADMIN_USER: "admin-secret", "kmirror": "kmirror-secret"}

_START_TIMEOUT_S = 180.0
_STOP_GRACE_S = 10.0
_PORT_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class SandboxBroker:
    """A broker as users see it; `pid` is None if it is not running."""

    node_id: int
    host: str
    port: int
    pid: int | None
    log_dir: Path
    log_file: Path


class SandboxCluster:
    """A cluster of real brokers, which outlive this process until they are stopped.

    A `with` block starts it at its beginning and destroys it at its end.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        brokers: int = 1,
        kafka_version: str | None = None,
        ports: Sequence[int] | None = None,
        properties: Mapping[str, str] | None = None,
        node_properties: Mapping[int, Mapping[str, str]] | None = None,
        secured: bool = False,
        authorizer: bool = False,
        users: Mapping[str, str] | None = None,
        token_seconds: int | None = None,
        mechanism: str = "SCRAM-SHA-512",
        tiered: bool = False,
        heap: str = DEFAULT_HEAP,
        java_options: Sequence[str] = DEFAULT_JAVA_OPTIONS,
        environ: Mapping[str, str] | None = None,
        report: Callable[[str], None] = lambda line: None,
        watch: Watch = unwatched,
    ) -> None:
        """Describe a cluster, created in `directory` by the first `start`; an existing one is opened unchanged.

        Without `ports`, free ones are chosen; `ports_needed` says how many it takes. `secured` enables TLS and logins
        of `users` (name to password; `admin` always exists) on the clients' listener, `authorizer` adds ACLs, with
        `admin` as super user. With `token_seconds` users of a secured cluster can also log in with tokens of that
        lifetime; `mechanism` is their default. With `tiered` topics can have tiered storage, in `store`. `report` gets
        a line when something slow begins, `watch` the progress of downloads.
        """
        if not 1 <= brokers <= MAX_BROKERS:
            raise UsageError(f"invalid number of brokers: {brokers}", f"a sandbox cluster has 1 to {MAX_BROKERS}")
        self.name = name
        self.directory = directory.absolute()
        self._environ = dict(os.environ if environ is None else environ)
        self._report = report
        self._watch = watch
        self._kafka_version = kafka_version
        self._ports = list(ports) if ports is not None else None
        tokens = None if token_seconds is None else TokenSpec(0, token_seconds)
        security = SecuritySpec(
            {**DEFAULT_USERS, **(users or {})}, secrets.token_hex(16), authorizer, tokens, mechanism
        )
        self._wanted = ClusterSpec(
            name=name,
            cluster_id=_new_cluster_id(),
            kafka_version="",
            nodes=nodes_on([0] * ports_needed(brokers, secured), brokers, secured),
            properties=dict(properties or {}),
            heap=heap,
            java_options=tuple(java_options),
            security=security if secured else None,
            node_properties={str(node): dict(own) for node, own in (node_properties or {}).items()},
            tiered=tiered,
        )
        stored = load_spec(self.directory) if has_spec(self.directory) else None
        self._spec = stored if stored and stored.complete else None

    def __repr__(self) -> str:
        return f"SandboxCluster({self.name}, {self.directory}, {[broker.pid for broker in self.brokers]})"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.destroy()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @property
    def spec(self) -> ClusterSpec:
        """Return the cluster's spec. Raises RefusedError before the first start."""
        if self._spec is None:
            raise RefusedError(f"cluster {self.name} does not exist in {self.directory}", "start it first")
        return self._spec

    @property
    def exists(self) -> bool:
        """Return whether the cluster was created; it may be stopped."""
        return self._spec is not None

    @property
    def size(self) -> int:
        """Return how many brokers it has, or will have."""
        return len((self._spec or self._wanted).nodes)

    @property
    def cluster_id(self) -> str:
        """Return Kafka's cluster id."""
        return self.spec.cluster_id

    @property
    def kafka_version(self) -> str:
        """Return the version its brokers run."""
        return self.spec.kafka_version

    @property
    def store(self) -> Store:
        """Return the store of its tiered topics."""
        return Store(self.directory / "store")

    @property
    def bootstrap_servers(self) -> str:
        """Return the addresses for clients, comma-separated; restarts do not change them."""
        return ",".join(node.address for node in self.spec.nodes)

    @property
    def brokers(self) -> tuple[SandboxBroker, ...]:
        """Return the current state of every broker."""
        found = []
        for node in self._nodes() if self._spec else ():
            process = node.process()
            pid = process.pid if process else None
            found.append(SandboxBroker(node.spec.node_id, LOOPBACK, node.spec.port, pid, node.data, node.log_file))
        return tuple(found)

    def fetch(self) -> None:
        """Find Java and fetch the jars, so that `start` does nothing slow."""
        self._java_and_jars()

    def start(self, timeout_s: float = _START_TIMEOUT_S, progress: Add = unwatched) -> None:
        """Create the cluster if needed, start the brokers that are not running, and wait until all answer.

        `progress` counts the brokers that answer.

        Raises:
            UnreachableError: a broker died, with the cause; the end of its log is in the error's notes.
            TimedOutError: a broker does not answer in time; notes as above.
        """
        java, jars = self._java_and_jars()
        deadline = time.monotonic() + timeout_s
        if self._spec is None:
            self._create(java, jars, deadline, progress)
            return
        self._start_helpers(self.spec, java, jars, deadline)
        for node in self._nodes():
            if node.process() is None:
                node.start(java, jars, self._environ)
        wait_until_answering(self._nodes(), len(self.spec.nodes), deadline, progress)

    def start_broker(self, node_id: int) -> None:
        """Start one broker and wait until it answers."""
        node = self._node(node_id)
        java, jars = self._java_and_jars()
        deadline = time.monotonic() + _START_TIMEOUT_S
        self._start_helpers(self.spec, java, jars, deadline)
        if node.process() is None:
            node.start(java, jars, self._environ)
        wait_until_answering([node], 1, deadline)

    def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """Stop every broker cleanly, and kill those still running after the grace time. Data and ports stay."""
        if self._spec is None:
            return
        self._terminate(self._nodes(), grace_s)
        self._terminate(self._helpers(self._spec), grace_s)

    def stop_broker(self, node_id: int, grace_s: float = _STOP_GRACE_S) -> None:
        """Stop one broker cleanly, or kill it after the grace time."""
        self._terminate([self._node(node_id)], grace_s)

    def kill(self, node_id: int) -> None:
        """Kill one broker with SIGKILL and wait until it is gone."""
        process = self.signal(node_id, signal.SIGKILL)
        wait_gone([process], 10.0)

    def signal(self, node_id: int, signum: int) -> ProcessIdentity:
        """Send one broker a signal (SIGSTOP, SIGCONT, …). Raises RefusedError if it is not running."""
        node = self._node(node_id)
        process = node.process()
        if process is None or not send_signal(process, signum):
            raise RefusedError(f"{node.title} is not running", "start it first")
        return process

    def destroy(self) -> None:
        """Kill every broker with SIGKILL and remove the directory, unless it is not a sandbox cluster's."""
        if has_spec(self.directory):
            spec = load_spec(self.directory)
            _kill([*(Node(spec, node, self.directory) for node in spec.nodes), *self._helpers(spec)])
            shutil.rmtree(self.directory)
        self._spec = None

    def client_properties(self, user: str = ADMIN_USER, mechanism: str | None = None) -> dict[str, str]:
        """Return the Java client properties for a user: only the address if the cluster is not secured.

        `mechanism` defaults to the cluster's own.
        """
        address = {"bootstrap.servers": self.bootstrap_servers}
        security = self.spec.security
        if security is None:
            return address
        return {
            **address,
            **login_properties(self._nodes()[0], user, security.users[user], mechanism or security.mechanism),
        }

    def write_client_properties(self, path: Path, user: str = ADMIN_USER, mechanism: str | None = None) -> Path:
        """Write the client properties to a file that only its owner can read; return the path."""
        return write_properties(path, self.client_properties(user, mechanism))

    def _java_and_jars(self) -> tuple[Path, KafkaJars]:
        version = self._spec.kafka_version if self._spec else self._kafka_version
        jars = kafka_jars(version, self._environ, self._report, watch=self._watch)
        if self._wanted.security is not None and needs_zookeeper(jars.version):
            raise UsageError(f"the sandbox cannot secure a cluster of Kafka {jars.version}", "use Kafka 3.3 or later")
        if self._wanted.security is not None and self._wanted.security.tokens is not None:
            token_server_jars(self._environ, self._report, self._watch)
        java = find_java(self._environ)
        if self._spec is None and self._wanted.tiered:
            check_tiered(jars.version)
            compiled_store(java, jars, self._environ, self._report)
        return java, jars

    def _create(self, java: Path, jars: KafkaJars, deadline: float, progress: Add) -> None:
        """Create and start; if ports are chosen here and one was taken meanwhile, choose again."""
        for attempt in range(_PORT_ATTEMPTS):
            spec = self._new_spec(jars)
            nodes = [Node(spec, node, self.directory) for node in spec.nodes]
            try:
                self._prepare(spec, nodes, java, jars)
                self._start_helpers(spec, java, jars, deadline)
                for node in nodes:
                    node.start(java, jars, self._environ)
                wait_until_answering(nodes, len(nodes), deadline, progress)
                if spec.security and not spec.security.wants_certificates:
                    users = spec.security.users
                    create_scram_users(nodes[0], users)
                    wait_until_logged_in(nodes, ADMIN_USER, users[ADMIN_USER], deadline)  # the others came with it
            except BaseException as error:  # leave no broker behind, after an interrupt either
                servers = [*nodes, *self._helpers(spec)]
                _kill(servers)
                taken = any(server.found_port_in_use() for server in servers)
                if not (taken and isinstance(error, UnreachableError) and self._ports is None):
                    raise
                if attempt == _PORT_ATTEMPTS - 1:
                    raise
            else:
                cluster_id = spec.cluster_id or nodes[0].stored_cluster_id() or ""
                self._spec = replace(spec, cluster_id=cluster_id, complete=True)
                save_spec(self._spec, self.directory)
                return

    def _new_spec(self, jars: KafkaJars) -> ClusterSpec:
        brokers, security = len(self._wanted.nodes), self._wanted.security
        secured, tokens = security is not None, security.tokens if security else None
        ports = self._ports or free_ports(ports_needed(brokers, secured, tokens is not None))
        if security is not None and tokens is not None:
            security = replace(security, tokens=replace(tokens, port=ports[-1]))
        nodes = nodes_on(ports, brokers, secured)
        spec = replace(self._wanted, kafka_version=jars.version, nodes=nodes, security=security)
        return replace(spec, cluster_id="") if spec.needs_zookeeper else spec

    def _prepare(self, spec: ClusterSpec, nodes: list[Node], java: Path, jars: KafkaJars) -> None:
        self.destroy()  # the remains of an interrupted start
        if self.directory.exists() and any(self.directory.iterdir()):
            raise RefusedError(
                f"{self.directory} contains files of something else", "name another directory, or empty it"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        save_spec(spec, self.directory)
        if spec.security:
            own_stores = spec.security.users if spec.security.wants_certificates else {}
            make_certificates(self.directory / "tls", spec.security.store_password, own_stores)
        if spec.tiered:
            install_store(self.directory / "store", compiled_store(java, jars, self._environ))
        for node in nodes:
            node.write_configuration()
        for node in nodes if not spec.needs_zookeeper else ():
            node.format(java, jars, cache_directory(self._environ))

    def _start_helpers(self, spec: ClusterSpec, java: Path, jars: KafkaJars, deadline: float) -> None:
        for server in self._helpers(spec):
            if server.process() is None:
                if isinstance(server, ZooKeeper):
                    server.start(java, jars, self._environ)
                else:
                    server.start(java, self._environ)
            wait_until_listening(server, server.port, deadline)

    def _helpers(self, spec: ClusterSpec) -> list[ZooKeeper | TokenServer]:
        """Return the servers that must run before the brokers."""
        tokens = spec.security.tokens if spec.security else None
        return [
            *([ZooKeeper(spec, self.directory)] if spec.needs_zookeeper else ()),
            *([TokenServer(spec, tokens, self.directory)] if tokens else ()),
        ]

    def _terminate(self, servers: Sequence[JavaServer], grace_s: float) -> None:
        terminate([process for server in servers if (process := server.process())], grace_s)
        for server in servers:
            server.forget_process()

    def _nodes(self) -> list[Node]:
        return [Node(self.spec, node, self.directory) for node in self.spec.nodes]

    def _node(self, node_id: int) -> Node:
        for node in self._nodes():
            if node.spec.node_id == node_id:
                return node
        raise UsageError(f"cluster {self.name} has no broker {node_id}", f"it has 1 to {len(self.spec.nodes)}")


def start_together(clusters: Sequence[SandboxCluster], watch: Watch = unwatched) -> None:
    """Start several clusters concurrently and wait until all answer; raise the first error once all have tried.

    `watch` is called with the number of brokers that answer.
    """
    brokers = sum(cluster.size for cluster in clusters)
    with (
        Meter(watch, f"starting {counted(len(clusters), 'cluster')}", "broker", brokers) as meter,
        ThreadPoolExecutor(max_workers=len(clusters)) as pool,
    ):
        for started in [pool.submit(cluster.start, progress=meter.add) for cluster in clusters]:
            started.result()


def _kill(servers: Sequence[JavaServer]) -> None:
    processes = [process for server in servers if (process := server.process())]
    for process in processes:
        send_signal(process, signal.SIGKILL)
    wait_gone(processes, 10.0)


def _new_cluster_id() -> str:
    """Return a random cluster id as Kafka makes them: base64url of 16 bytes, not starting with a dash."""
    while (text := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
