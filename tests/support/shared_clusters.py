"""Clusters with special settings that the tests of many modules share, each started when it is first asked for.

Any test may use its own topics, groups, mirrors and transactional ids on them. A broker that a test stops, kills or
freezes runs again when the next one begins. No ACL outlives the test that made it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.rights.acls import await_acls, delete_acls, describe_acls
from kmirror.cluster.security.client_config import client_config
from kmirror_sandbox.cluster import SandboxCluster, start_together
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.clusters import NO_RETENTION, QUICK_FAILOVER, UNHARMED, MakeCluster, emptied, made_clusters
from tests.support.installed_logs import install
from tests.support.late_wire import LateWire
from tests.support.logs import QUICK_SEEDS, BuiltLog, build_log
from tests.support.real_logs import BUSY
from tests.support.tiers import REMOTE_QUOTA
from tests.support.wire import Wire

#: The users of secured clusters beside `admin`, who is a super user; they have no rights except those granted.
GUARDED_USERS = {
    "kmirror": "kmirror-secret",
    "app": "app-secret",
    "other": "other-secret",
    "reader": "reader-secret",
    "writer": "writer-secret",
    "nobody": "nobody-secret",
    #: Every character with a meaning in the files that hold passwords.
    "odd": 'p=a,s"s\\w ;',
}
#: Many of them run at once.
SMALL_HEAP = "256m"
#: Clients must log in again every few seconds (KIP-368).
SHORT_SESSIONS = {"connections.max.reauth.ms": "5000"}
#: The lifetime of the tokens with which one may also log in to guarded clusters. When a fifth of it is left they are
#: replaced, and librdkafka then logs in again soon: brokers accept that from one second after the last login on.
TOKEN_SECONDS = 8
GUARDED: dict[str, Any] = {
    "heap": SMALL_HEAP,
    "secured": True,
    "authorizer": True,
    "users": GUARDED_USERS,
    "token_seconds": TOKEN_SECONDS,
}
#: Fetches may be answered by the replica in the client's rack (KIP-392).
_NEAREST_REPLICA = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
#: What kmirror creates there, in any test, still has a leader when a later test kills one of the brokers.
_ANY_BROKER_MAY_DIE = {"default.replication.factor": "3"}
#: Measure the quota for reads of the store over six seconds instead of eleven.
_REMOTE_QUOTA_WINDOW = {"remote.log.manager.fetch.quota.window.num": "6"}


#: A deleted partition costs time until its files are deleted, too. Retention is checked once, when there is no topic.
_SOON_DELETED = {"log.segment.delete.delay.ms": "1000", "log.initial.task.delay.ms": "1000"}
#: An expired producer id is forgotten soon; the cleaner is never idle; old records stay.
FORGETFUL = {
    "producer.id.expiration.check.interval.ms": "500",  # it goes through all partitions
    "log.cleaner.backoff.ms": "100",
    **NO_RETENTION,
}


class BehindWire(SandboxCluster):
    """A cluster of one broker seen through its own listener, whose clients are led through a wire."""

    def __init__(self, cluster: SandboxCluster, port: int) -> None:
        super().__init__(cluster.name, cluster.directory)
        self._port = port

    @property
    def bootstrap_servers(self) -> str:
        """Return the listener's address."""
        return f"{LOOPBACK}:{self._port}"


@dataclass(frozen=True, slots=True)
class ForgetfulCluster:
    """The forgetful cluster, and its addresses through either kind of wire."""

    cluster: SandboxCluster
    behind_wire: SandboxCluster
    wire: Wire
    behind_late_wire: SandboxCluster
    late_wire: LateWire


@dataclass(frozen=True, slots=True)
class GuardedPair:
    """Two clusters with TLS, logins and ACLs."""

    source: SandboxCluster
    destination: SandboxCluster


@dataclass(frozen=True, slots=True)
class TieredPair:
    """Two clusters with tiered storage."""

    source: SandboxCluster
    destination: SandboxCluster


@pytest.fixture(scope="session")
def forgetful(clusters_directory: Path) -> Iterator[ForgetfulCluster]:
    """Start a cluster that forgets expired producers at once; topics may hold records of any age."""
    with (
        made_clusters(clusters_directory) as make,
        cluster_behind_wires(make, "forgetful") as made,
        emptied(made.cluster),
    ):
        yield made


@contextmanager
def cluster_behind_wires(make: MakeCluster, name: str) -> Iterator[ForgetfulCluster]:
    """Start such a cluster and its wires."""
    port, controller, wired, late = free_ports(4)
    with closing(Wire(LOOPBACK, wired)) as wire, closing(LateWire(LOOPBACK, late)) as late_wire:
        listeners = {"PLAINTEXT": port, "WIRE": wired, "LATE": late}
        advertised = {"PLAINTEXT": port, "WIRE": wire.port, "LATE": late_wire.port}
        properties = {
            **FORGETFUL,
            **_SOON_DELETED,
            **UNHARMED,
            "listeners": _listeners({**listeners, "CONTROLLER": controller}),
            "advertised.listeners": _listeners(advertised),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in (*listeners, "CONTROLLER")),
        }
        made = make(name, ports=[port, controller], properties=properties)
        yield ForgetfulCluster(made, BehindWire(made, wired), wire, BehindWire(made, late), late_wire)


@pytest.fixture(scope="session")
def installed_logs(forgetful: ForgetfulCluster) -> dict[str, BuiltLog]:
    """Put random logs into the forgetful cluster, at least one of every feature; return them by topic."""
    logs = quick_logs()
    install(forgetful.cluster, logs)
    return logs


@pytest.fixture(scope="session")
def busy_cluster(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Start a cluster whose cleaner and retention are never idle."""
    with made_clusters(clusters_directory) as make:
        yield make("busy", heap=SMALL_HEAP, properties={**BUSY, **UNHARMED})


@pytest.fixture(scope="session")
def started_guarded_cluster(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Start the secured cluster; tests ask for `guarded_cluster` or `guarded_pair`."""
    with made_clusters(clusters_directory) as make:
        yield make("guarded", **GUARDED, properties={**SHORT_SESSIONS, **UNHARMED})


@pytest.fixture(scope="session")
def started_guarded_source(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Start a second secured cluster; tests ask for `guarded_pair`."""
    with made_clusters(clusters_directory) as make:
        yield make("guarded-source", **GUARDED, properties=UNHARMED)


@pytest.fixture(scope="session")
def started_lenient_cluster(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Start a secured cluster that allows everything without an ACL; tests ask for `lenient_cluster`."""
    properties = {"allow.everyone.if.no.acl.found": "true", **UNHARMED}
    with made_clusters(clusters_directory) as make:
        yield make(
            "lenient", heap=SMALL_HEAP, secured=True, authorizer=True, users=GUARDED_USERS, properties=properties
        )


@pytest.fixture(scope="session")
def started_mortal_cluster(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Start a broker that tests may harm; they ask for `mortal_cluster`."""
    with made_clusters(clusters_directory) as make:
        yield make("mortal", heap=SMALL_HEAP, properties=NO_RETENTION)


@pytest.fixture(scope="session")
def started_passing_destination(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Start a broker that mirrors may lose; tests ask for `passing_destination`."""
    with made_clusters(clusters_directory) as make:
        yield make("passing", heap=SMALL_HEAP, properties=NO_RETENTION)


@pytest.fixture(scope="session")
def started_three_brokers(clusters_directory: Path) -> Iterator[SandboxCluster]:
    """Start three brokers; tests ask for `three_brokers`."""
    with made_clusters(clusters_directory) as make:
        settings = {**QUICK_FAILOVER, **_NEAREST_REPLICA, **_ANY_BROKER_MAY_DIE}
        yield make("three", heap=SMALL_HEAP, brokers=3, properties=settings)


@pytest.fixture(scope="session")
def started_tiered_pair(clusters_directory: Path) -> Iterator[TieredPair]:
    """Start two clusters with tiered storage; tests ask for `tiered_pair`."""
    with made_clusters(clusters_directory) as make:
        settings: dict[str, Any] = {"heap": SMALL_HEAP, "tiered": True, "start": False}
        source = make("tiered-source", **settings, properties=_REMOTE_QUOTA_WINDOW)
        destination = make("tiered-destination", **settings, properties={**_REMOTE_QUOTA_WINDOW, **UNHARMED})
        start_together([source, destination])
        yield TieredPair(source, destination)


@pytest.fixture
def guarded_cluster(started_guarded_cluster: SandboxCluster) -> Iterator[SandboxCluster]:
    """Return the shared cluster with TLS, logins and ACLs; at first only `admin` may do anything."""
    with _without_acls_afterwards(started_guarded_cluster):
        yield started_guarded_cluster


@pytest.fixture
def guarded_pair(started_guarded_source: SandboxCluster, guarded_cluster: SandboxCluster) -> Iterator[GuardedPair]:
    """Return two shared clusters with TLS, logins and ACLs."""
    with _without_acls_afterwards(started_guarded_source):
        yield GuardedPair(started_guarded_source, guarded_cluster)


@pytest.fixture
def lenient_cluster(started_lenient_cluster: SandboxCluster) -> Iterator[SandboxCluster]:
    """Return the shared cluster that allows everyone everything without an ACL."""
    with _without_acls_afterwards(started_lenient_cluster):
        yield started_lenient_cluster


@pytest.fixture
def tiered_pair(started_tiered_pair: TieredPair) -> Iterator[TieredPair]:
    """Return the two shared clusters with tiered storage; the source's broker may be killed, and left so.

    Afterwards the stores are well, and may be read without limit.
    """
    clusters = revived(started_tiered_pair.source), started_tiered_pair.destination
    yield started_tiered_pair
    for cluster in clusters:
        cluster.store.well()
        set_brokers(revived(cluster), {REMOTE_QUOTA: None})


@pytest.fixture
def mortal_cluster(started_mortal_cluster: SandboxCluster) -> SandboxCluster:
    """Return the shared broker that may be stopped, killed and frozen, and left so; no mirror has it as destination."""
    return revived(started_mortal_cluster)


@pytest.fixture
def passing_destination(started_passing_destination: SandboxCluster) -> SandboxCluster:
    """Return the shared broker that goes away while mirrors have it as destination."""
    return revived(started_passing_destination)


@pytest.fixture
def three_brokers(started_three_brokers: SandboxCluster) -> SandboxCluster:
    """Return the shared cluster of three brokers, which may be stopped, killed and frozen, and left so."""
    return revived(started_three_brokers)


def revived(cluster: SandboxCluster) -> SandboxCluster:
    """Return a cluster whose brokers all run, whatever the last test has left of them."""
    for broker in cluster.brokers:
        if broker.pid is not None:
            cluster.signal(broker.node_id, signal.SIGCONT)
    cluster.start()
    return cluster


def forgetful_cluster(
    request: pytest.FixtureRequest, kafka_version: str, properties: Mapping[str, str] | None = None
) -> SandboxCluster:
    """Return the forgetful cluster; for another version of Kafka one of the module's own, with these properties too."""
    if kafka_version == DEFAULT_KAFKA_VERSION:
        shared: ForgetfulCluster = request.getfixturevalue("forgetful")
        return shared.cluster
    make: MakeCluster = request.getfixturevalue("make_module_cluster")
    return make("forgetful", kafka_version=kafka_version, properties={**FORGETFUL, **(properties or {})})


def late_wired_cluster(request: pytest.FixtureRequest, kafka_version: str) -> tuple[SandboxCluster, LateWire]:
    """Return the forgetful cluster behind its late wire; for another version of Kafka one of the module's own."""
    if kafka_version == DEFAULT_KAFKA_VERSION:
        shared: ForgetfulCluster = request.getfixturevalue("forgetful")
        return shared.behind_late_wire, shared.late_wire
    make: MakeCluster = request.getfixturevalue("make_module_cluster")
    ports = free_ports(2)
    wire = LateWire(LOOPBACK, ports[0])
    request.addfinalizer(wire.close)
    properties = {**FORGETFUL, "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{wire.port}"}
    return make("wired", ports=ports, kafka_version=kafka_version, properties=properties), wire


def installed_in(request: pytest.FixtureRequest, cluster: SandboxCluster) -> dict[str, BuiltLog]:
    """Return the random logs that a cluster holds; one that is not shared gets them."""
    if cluster.kafka_version == DEFAULT_KAFKA_VERSION:
        shared: dict[str, BuiltLog] = request.getfixturevalue("installed_logs")
        return shared
    logs = quick_logs()
    install(cluster, logs)
    return logs


def quick_logs() -> dict[str, BuiltLog]:
    """Build random logs, at least one of every feature, by the names of their topics."""
    return {f"seed-{seed}": build_log(seed) for seed in QUICK_SEEDS}


def set_brokers(cluster: SandboxCluster, settings: Mapping[str, str | None], *node_ids: int) -> None:
    """Change settings of these brokers, or of each, while they run, or remove them (None)."""
    entries = [
        ConfigEntry(
            key,
            value or "",
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for key, value in settings.items()
    ]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for node_id in node_ids or [broker.node_id for broker in cluster.brokers]:
        resource = ConfigResource(ResourceType.BROKER, str(node_id), incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(30)


def _listeners(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())


@contextmanager
def _without_acls_afterwards(cluster: SandboxCluster) -> Iterator[None]:
    yield
    with ClusterClient(client_config(cluster.client_properties())) as admin:
        left = describe_acls(admin)
        delete_acls(admin, left)
        await_acls(admin, (), left)
