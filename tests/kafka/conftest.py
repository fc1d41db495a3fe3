"""What the tests of several modules begin with: a destination, a client, a store, a mirror.

A module that needs another one defines it under the same name.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane.reports import control
from kmirror.ops.base.context import Destination
from kmirror.state.store import StateStore
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.clusters import ClusterPair, forgotten_mirrors
from tests.support.inspected import Pair
from tests.support.kafka_versions import FORGETFUL_VERSIONS, of_long
from tests.support.lane import Mirror
from tests.support.late_wire import LateWire
from tests.support.logs import BuiltLog
from tests.support.mirrors import properties_of
from tests.support.round_trip import Trip
from tests.support.shared_clusters import forgetful_cluster, installed_in, late_wired_cluster
from tests.support.stores import state_store
from tests.support.waiting import PATIENCE_S

__all__ = ["forgotten_mirrors"]


@pytest.fixture
def destination(cluster_pair: ClusterPair) -> Iterator[Destination]:
    """Return what verbs are given: the destination, and what is remembered there."""
    with Destination.open(properties_of(cluster_pair.destination)) as opened:
        yield opened


@pytest.fixture
def mirror(source_cluster: SandboxCluster, destination_cluster: SandboxCluster) -> Iterator[Mirror]:
    """Return a mirror that a lane is given, between the clusters that all tests share."""
    with closing(Mirror(source_cluster, destination_cluster)) as made:
        yield made


@pytest.fixture(autouse=True)
def lanes_of_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lanes that a test starts itself live for as long as the machine needs: no engine sends them heartbeats."""
    monkeypatch.setattr(control, "_ENGINE_SILENCE_SECONDS", 10 * PATIENCE_S)


@pytest.fixture
def client(cluster: SandboxCluster) -> Iterator[ClusterClient]:
    """Return a client of the cluster that the module is about."""
    with ClusterClient(client_config(cluster.client_properties())) as made:
        yield made


@pytest.fixture(scope="module")
def logs(cluster: SandboxCluster, request: pytest.FixtureRequest) -> dict[str, BuiltLog]:
    """Return random logs that the cluster holds."""
    return installed_in(request, cluster)


@pytest.fixture
def mortal(cluster: SandboxCluster, request: pytest.FixtureRequest) -> SandboxCluster:
    """Return a broker of the same version that may be killed; it holds little, and so is soon back."""
    shared = cluster.kafka_version == DEFAULT_KAFKA_VERSION
    return request.getfixturevalue("mortal_cluster") if shared else cluster


@pytest.fixture(scope="module", params=[DEFAULT_KAFKA_VERSION, *of_long(FORGETFUL_VERSIONS)])
def quick_to_forget(request: pytest.FixtureRequest) -> SandboxCluster:
    """Return a cluster that looks for expired producer ids all the time, of a version that can be set to."""
    return forgetful_cluster(request, request.param)


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.2", marks=pytest.mark.long)])
def wired(request: pytest.FixtureRequest) -> tuple[SandboxCluster, LateWire]:
    """Return a cluster whose broker is reached through a wire only, and forgets producers quickly."""
    return late_wired_cluster(request, request.param)


@pytest.fixture
def wire(wired: tuple[SandboxCluster, LateWire]) -> Iterator[LateWire]:
    """Return the wire; all that was asked of it must have happened."""
    yield wired[1]
    assert wired[1].all_met


@pytest.fixture
def config(destination_cluster: SandboxCluster) -> dict[str, Any]:
    """Return how the cluster is reached on which things are remembered."""
    return {"bootstrap.servers": destination_cluster.bootstrap_servers}


@pytest.fixture
def store(config: dict[str, Any]) -> Iterator[StateStore]:
    """Return what is remembered there."""
    made = state_store(config)
    yield made
    made.close()


@pytest.fixture
def name() -> str:
    """Return the name of a mirror that is not there yet."""
    return f"m-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def trip(cluster_pair: ClusterPair) -> Iterator[Trip]:
    """Return a mirror between the clusters that all tests share, that can be failed over and back."""
    with Trip(cluster_pair.source, cluster_pair.destination) as trip:
        yield trip


@pytest.fixture
def pair(source_cluster: SandboxCluster, destination_cluster: SandboxCluster) -> Iterator[Pair]:
    """Return topics and their copies, to be inspected."""
    with closing(Pair(source_cluster, destination_cluster)) as made:
        yield made
