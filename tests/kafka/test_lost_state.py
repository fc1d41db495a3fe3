"""A state topic that has lost records, or whose leader returns none: never taken for a cluster without mirrors."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_topic, delete_topics
from kmirror.cluster.topics.trim import trim_compacted
from kmirror.errors import Reason, RefusedError, UnreachableError
from kmirror.ops.base.context import Destination, change
from kmirror.ops.base.upstream import stored_state_on
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.event_records import Event
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror.state.lease import Lease
from kmirror.state.lock import transact
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import StateStore
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import typed
from tests.support.quotas import slowed
from tests.support.stores import mirror, state_store
from tests.support.waiting import wait_until

STATE = TopicPartition(STATE_TOPIC, 0)


@pytest.fixture
def cluster(mortal_cluster: SandboxCluster) -> SandboxCluster:
    return mortal_cluster


@pytest.fixture
def client(cluster: SandboxCluster) -> Iterator[ClusterClient]:
    with ClusterClient(client_config(cluster.client_properties())) as made:
        yield made
        forget(made, STATE_TOPIC, EVENTS_TOPIC)


@pytest.fixture
def store(cluster: SandboxCluster) -> StateStore:
    return state_store(cluster.client_properties())


def forget(client: ClusterClient, *topics: str) -> None:
    delete_topics(client, topics)
    unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    wait_until(lambda: {one.error_code for one in client.metadata(topics).topics.values()} == {unknown})


def write(cluster: SandboxCluster, *names: str) -> None:
    other = state_store(cluster.client_properties())
    for name in names:
        written = Changes((mirror(name),), (), (Event(1, name, "create", "eve@ops", "OK"),))
        transact(other, name, lambda _, written=written: written)  # type: ignore[misc]


def test_a_state_topic_whose_first_records_were_deleted_is_refused(
    cluster: SandboxCluster, client: ClusterClient, store: StateStore
) -> None:
    write(cluster, "first")
    taker = state_store(cluster.client_properties())
    lease = Lease.acquire(taker, "first", EngineIdentity.of_this_process())
    assert [one.name for one in store.read().mirrors] == ["first"]
    write(cluster, "second")
    start = client.list_offsets({STATE: LATEST})[STATE].offset or 0
    assert trim_compacted(client, {STATE: start})[STATE].log_start_offset == start
    for reader in (store, state_store(cluster.client_properties())):
        with pytest.raises(RefusedError, match=f"before offset {start} were deleted"):
            reader.read()
    lease.close()  # as after any trouble: the next heartbeat reads again
    with pytest.raises(RefusedError, match=f"no longer in charge of mirror 'first': .* before offset {start}") as lost:
        lease.heartbeat({})
    assert lost.value.reason is Reason.FENCED
    done = typed(cluster, "list")
    assert done.returncode == 3
    assert f"before offset {start} were deleted" in done.stderr
    assert "break-glass" in done.stderr


def test_a_reader_forgets_what_a_recreated_topic_does_not_hold(
    cluster: SandboxCluster, client: ClusterClient, store: StateStore
) -> None:
    write(cluster, "old")
    assert [one.name for one in store.read().mirrors] == ["old"]
    before = client.list_offsets({STATE: LATEST})[STATE].offset or 0
    forget(client, STATE_TOPIC, EVENTS_TOPIC)
    write(cluster, "new", "newer")
    assert (client.list_offsets({STATE: LATEST})[STATE].offset or 0) > before
    assert [one.name for one in store.read().mirrors] == ["new", "newer"]


def test_an_empty_state_topic_is_refused_while_there_are_events(cluster: SandboxCluster, client: ClusterClient) -> None:
    write(cluster, "m")
    forget(client, STATE_TOPIC)
    done = typed(cluster, "list")
    assert done.returncode == 3
    assert "is missing, but __kmirror_events has records" in done.stderr
    # the same of a source, whose mirrors a failback or an add would ask for
    with pytest.raises(RefusedError, match="is missing, but __kmirror_events has records"):
        stored_state_on(cluster.client_properties())
    create_topic(client, STATE_TOPIC, 1, 1, {"cleanup.policy": "compact"})
    wait_until(lambda: not client.metadata([STATE_TOPIC]).topics[STATE_TOPIC].error_code)
    with pytest.raises(RefusedError, match="is empty, but __kmirror_events has records"):
        state_store(cluster.client_properties()).read()
    forget(client, STATE_TOPIC, EVENTS_TOPIC)
    assert stored_state_on(cluster.client_properties()) == State()


def test_a_leader_that_returns_no_records_has_not_returned_an_empty_state(
    cluster: SandboxCluster, client: ClusterClient
) -> None:
    write(cluster, "m")
    client_id = unique_topic("slow")
    named = {**cluster.client_properties(), "client.id": client_id}

    def is_refused() -> bool:
        """Tell whether a read says that it is throttled; one that succeeds must bring the mirror."""
        try:
            read = state_store(named).read(timeout=1)
        except UnreachableError as error:
            return re.search("not at its end|throttles this client", str(error)) is not None
        assert [one.name for one in read.mirrors] == ["m"]
        return False

    with slowed(cluster, client_id, 1):
        wait_until(is_refused)  # a quota lets responses pass, whatever their size, until the broker has counted one
    assert [one.name for one in state_store(cluster.client_properties()).read().mirrors] == ["m"]


def test_a_topic_that_is_deleted_after_a_command_has_found_it_is_missing(
    cluster: SandboxCluster, client: ClusterClient
) -> None:

    def written(_: State) -> Changes:
        return Changes((mirror("m"),))

    properties = cluster.client_properties()
    write(cluster, "m")
    with (
        Destination.open(properties) as reads,
        Destination.open(properties) as writes,
        Destination.open(properties) as late,
    ):
        forget(client, STATE_TOPIC)
        with pytest.raises(RefusedError, match="is missing, but __kmirror_events has records"):
            reads.state()
        with pytest.raises(RefusedError, match="__kmirror_state was deleted a moment ago"):
            change(writes, "m", written)
        forget(client, EVENTS_TOPIC)
        assert late.state() == State()
    with Destination.open(properties) as again:
        change(again, "m", written)
        assert again.state().mirror("m") == mirror("m")
