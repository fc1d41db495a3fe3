"""`run --all` of a dozen mirrors with real lanes, of which half are broken in different ways: the others are copied."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.state.records import DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import Changes
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.ports import free_ports
from tests.spark.conftest import MakePair
from tests.support.clusters import MakeCluster
from tests.support.engine import Engine, Pair, typed
from tests.support.mirrors import properties_of
from tests.support.waiting import wait_until

GOOD = 6


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield an address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def black_hole() -> Iterator[str]:
    """Yield an address where nothing answers, not even to a connection: its queue of connections is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


def store(destination: SandboxCluster, name: str, source: Mapping[str, str]) -> None:
    """Store a mirror with a topic as `create` and `add` do, without looking at its source."""
    mirror = MirrorRecord(name, dict(source), {}, "a-cluster", "eve@ops", now_ms())
    topic = TopicRecord(name, name, name, None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)
    with Destination.open(properties_of(destination)) as opened:
        change(opened, name, lambda _: Changes((mirror, topic)))


def login(cluster: SandboxCluster, password: str) -> dict[str, str]:
    """Return the properties to log in to a secured cluster with a password, which may be wrong."""
    found = cluster.client_properties()
    return {key: re.sub(r'password="[^"]*"', f'password="{password}"', text) for key, text in found.items()}


def knows_its_ends(pair: Pair) -> bool:
    """Return whether a source that was frozen answers as before: for a moment it may report no brokers."""
    try:
        return pair.source_end() > 0
    except (KmirrorError, OutcomeUnknown):
        return False


def healthy(port: int) -> dict[str, float]:
    """Return by mirror what the metrics of `run --http` say about its health."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return {mirror: float(value) for mirror, value in re.findall(r'kmirror_healthy\{.*mirror="(.+?)"\} (\S+)', text)}


@pytest.mark.slow
def test_half_of_the_mirrors_are_broken_and_the_others_are_copied(
    source_cluster: SandboxCluster,
    make_cluster: MakeCluster,
    make_pair: MakePair,
    tmp_path: Path,
    engines: list[Engine],
    silent: str,
    black_hole: str,
) -> None:
    destination, frozen, guarded = make_cluster("many"), make_cluster("frozen"), make_cluster("guarded", secured=True)
    good = [make_pair(source_cluster, destination, partitions=2) for _ in range(GOOD)]
    froze, port = make_pair(frozen, destination, partitions=2), free_ports(1)[0]
    for pair in (*good, froze):
        pair.create()
    for name, source in {
        "down": {"bootstrap.servers": "127.0.0.1:1"},
        "silent": {"bootstrap.servers": silent},
        "black-hole": {"bootstrap.servers": black_hole},
        "locked": login(guarded, "wrong"),
        "forbidden": {**login(guarded, "wrong"), "sasl.jaas.config": "${env:NOT_FOR_MIRRORS}"},
    }.items():
        store(destination, name, source)
    engine = Engine(destination, None, tmp_path / "all.out", "--http", str(port))
    engines.append(engine)
    for pair in (*good, froze):
        pair.fill(10)
        pair.wait_until_equal(engine)
    for broker in frozen.brokers:
        frozen.signal(broker.node_id, signal.SIGSTOP)

    def reported() -> dict[str, tuple[str, str | None]]:
        rows = json.loads(typed(destination, "list", "--json").stdout)
        return {row["mirror"]: (row["state"], row["reason"]) for row in rows}

    def leases() -> dict[str, str]:
        with Destination.open(properties_of(destination)) as opened:
            found = {pair.mirror: opened.state().engine(pair.mirror) for pair in good}
        return {mirror: engine.lease_id for mirror, engine in found.items() if engine is not None}

    held, unavailable = leases(), ("SOURCE_UNAVAILABLE", "SOURCE_UNREACHABLE")
    expected = {
        **dict.fromkeys((pair.mirror for pair in good), ("ACTIVE", None)),
        **dict.fromkeys((froze.mirror, "down", "silent", "black-hole"), unavailable),
        "locked": ("LINK_FAILED", "AUTHENTICATION_FAILED"),
        "forbidden": ("PENDING_MIRROR", "NO_ENGINE"),
    }
    wait_until(lambda: reported() == expected)
    for pair in good:
        pair.fill(10)
        pair.wait_until_equal(engine)
    # a new one is copied, too
    new = make_pair(source_cluster, destination, partitions=2)
    new.create()
    new.fill(10)
    new.wait_until_equal(engine)
    expected[new.mirror] = ("ACTIVE", None)
    wait_until(lambda: reported() == expected)
    wait_until(lambda: healthy(port) == {mirror: float(one == ("ACTIVE", None)) for mirror, one in expected.items()})
    rows = json.loads(typed(destination, "describe", "--mirror", "silent", "--json").stdout)
    assert [(row["topicState"], row["reason"]) for row in rows] == [unavailable]
    # no engine has lost its mirror for a moment
    assert leases() == held
    assert set(held) == {pair.mirror for pair in good}

    for broker in frozen.brokers:
        frozen.signal(broker.node_id, signal.SIGCONT)
    froze.fill(10)
    wait_until(lambda: knows_its_ends(froze))
    froze.wait_until_equal(engine)
    assert engine.stop() == 4, engine.output  # one was not copied
