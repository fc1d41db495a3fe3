"""A broker that clients cannot reach while its cluster can: it stays in the metadata, and waiting for it is in vain."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster import reaching
from kmirror.cluster.client import LEAST_S, ClusterClient
from kmirror.cluster.connection import Connection
from kmirror.cluster.coordinators import KeyType, find_coordinators
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reaching import SILENT_ADDRESSES
from kmirror.cluster.security.client_config import ClientConfig, client_config
from kmirror.errors import UnreachableError
from kmirror.ops.base.context import Destination
from kmirror.ops.groups.group_facts import group_views
from kmirror.ops.stop.promote_claim import Claim
from kmirror.ops.stop.promote_readiness import ReadinessChecker
from kmirror.state.group_records import GroupReason
from kmirror.state.records import DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import State
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.ports import LOOPBACK, free_ports
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.mirrors import properties_of
from tests.support.new_topics import create_and_wait
from tests.support.stores import state_store
from tests.support.wire import Wire

#: Topics of one partition, by the broker that has it.
LEADERS = {"near": 1, "silent": 2}


@pytest.fixture(scope="module")
def cluster(make_module_cluster: MakeCluster) -> Iterator[SandboxCluster]:
    """Start two brokers, the second one behind a wire that passes on nothing; return them as clients see them."""
    *ports, near, wired = free_ports(5)
    with closing(Wire(LOOPBACK, wired)) as wire:
        clients = {1: (near, near), 2: (wired, wire.port)}
        own = {
            node: {
                "listeners": _listeners(ports[node - 1], port, ports[2] if node == 1 else None),
                "advertised.listeners": _listeners(ports[node - 1], advertised),
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
            }
            for node, (port, advertised) in clients.items()
        }
        half = make_module_cluster("half", brokers=2, ports=ports, node_properties=own)
        for topic, leader in LEADERS.items():
            new = NewTopic(topic, 1, replica_assignment=[[leader]])
            create_and_wait(AdminClient(properties_of(half)), new)
        wire.freeze(("", 0))  # all new connections
        yield Seen(half, f"{LOOPBACK}:{wire.port},{LOOPBACK}:{near}")


@pytest.fixture
def config(cluster: SandboxCluster) -> ClientConfig:
    return client_config(cluster.client_properties())


class Seen(SandboxCluster):
    """A cluster at the addresses of another listener."""

    def __init__(self, cluster: SandboxCluster, addresses: str) -> None:
        super().__init__(cluster.name, cluster.directory)
        self._addresses = addresses

    @property
    def bootstrap_servers(self) -> str:
        return self._addresses


def _listeners(plain: int, clients: int, controller: int | None = None) -> str:
    named = {"PLAINTEXT": plain, "CLIENTS": clients, **({"CONTROLLER": controller} if controller else {})}
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in named.items())


@pytest.fixture
def attempts(config: ClientConfig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the time, in milliseconds, that each attempt to connect to the silent broker was given.

    It is not known to be silent at first, and then for the rest of the test.
    """
    made: list[int] = []
    open_it = Connection.open
    SILENT_ADDRESSES.note(config.bootstrap_servers[0], None)
    monkeypatch.setattr(reaching, "_SILENT_S", 3600.0)

    def opens(host: str, port: int, given: ClientConfig) -> Any:
        if (host, port) == config.bootstrap_servers[0]:
            made.append(given.connect_timeout_ms)
        return open_it(host, port, given)

    monkeypatch.setattr(Connection, "open", opens)
    return made


def test_a_silent_broker_is_waited_for_once(config: ClientConfig, attempts: list[int]) -> None:
    for _ in range(2):
        with ClusterClient(config) as client:
            topic = unique_topic()
            found = client.metadata([topic])
            assert len(found.brokers) == 2
            # the broker that does not answer may know it
            assert found.topics[topic].error_code == Code.BROKER_NOT_AVAILABLE
            assert client.foreign_brokers() == {}
    assert attempts == [2000]  # a fifth of what a broker has that is the only one left


@pytest.mark.slow
def test_whether_there_is_state_is_not_waited_for_longer_than_a_cluster_keeps_dead_brokers(
    config: ClientConfig, attempts: list[int]
) -> None:
    with pytest.raises(UnreachableError, match="not all brokers answer, and those that do have no topic"):
        state_store(config).read(timeout=3600)
    assert attempts


def record(topic: str, source_topic: str) -> TopicRecord:
    return TopicRecord("m", topic, source_topic, None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)


@pytest.mark.slow
def test_groups_are_known_of_the_brokers_that_answer(cluster: SandboxCluster, config: ClientConfig) -> None:
    at, found = TopicPartition("near", 0), dict[int, str]()
    every = SandboxCluster(cluster.name, cluster.directory)  # at addresses that all answer
    with ClusterClient(client_config(every.client_properties())) as client:
        for group in (unique_topic("g") for _ in range(100)):
            codes = ClusterGroups(client).commit(group, GroupKind.CONSUMER, {at: Committed(0)})
            assert set(codes.values()) == {0}
            (coordinator,) = find_coordinators(client, KeyType.GROUP, [group], 30.0).values()
            assert not isinstance(coordinator, int)
            found[coordinator[0]] = group
            if len(found) == 2:
                break
    near, silent = found[1], found[2]
    with ClusterClient(config) as client:
        groups = ClusterGroups(client, timeout=4.0)
        with pytest.raises(UnreachableError):
            groups.listed()
        listed = groups.listed(whole=False, passes_silent=True)
        assert (near in listed, silent in listed) == (True, False)
        views = group_views(groups, dict.fromkeys([silent, near], GroupKind.CONSUMER))
    assert views[near].committed == {at: Committed(0)}
    assert views[silent].trouble is GroupReason.UNKNOWN_NOW


def test_a_promote_waits_for_no_end_that_would_not_count(cluster: SandboxCluster, attempts: list[int]) -> None:
    mirror = MirrorRecord("m", cluster.client_properties(), {}, None, "x", 0)
    with Destination.open(cluster.client_properties()) as destination:
        checker = ReadinessChecker(destination, mirror, None)
        checker.read_source_ends(destination.client, [record("here", "silent")])
        (missing,) = checker.check(destination.client, State(), {"near": record("near", "silent")}).missing.values()
    assert str(missing.what).endswith("broker 2 of the source does not answer, and may lead by now")
    assert attempts == [2000]


def test_a_promote_waits_for_brokers_until_its_time_is_up(cluster: SandboxCluster, attempts: list[int]) -> None:
    mirror = MirrorRecord("m", cluster.client_properties(), {}, None, "x", 0)
    with Destination.open(cluster.client_properties()) as destination:
        checker, now = ReadinessChecker(destination, mirror, None), time.monotonic()
        attempts.clear()
        found = checker.check(destination.client, State(), {"silent": record("silent", "near")}, until=now)
        claim = Claim(destination, "m", lambda _: None)
        with pytest.raises(UnreachableError) as unreachable:
            claim.begin(["silent"], now)
    assert found.missing["silent"].what is not None
    assert "the source" not in unreachable.value.message
    assert max(attempts) <= 1000 * LEAST_S
