"""Which cluster is in charge, where the leader of the stored state is cut off inside its own cluster.

It still answers as the leader that it was, with what was committed before another one was elected.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest
from confluent_kafka import ElectionType
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import TimedOutError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.ops.show.ends_in_charge import in_charge
from kmirror.ops.stop.failover import failover
from kmirror.state.internal_topics import STATE_TOPIC, STATE_TOPIC_SETTINGS
from kmirror.state.records import DesiredState
from kmirror.state.snapshot import State
from kmirror.state.store import StateStore
from kmirror.state.waiting import Deadline
from kmirror.status.in_charge import SETTLED_S
from kmirror.web.watched_cluster import WatchedCluster
from kmirror_sandbox import cluster_spec
from kmirror_sandbox.cluster import SandboxBroker, SandboxCluster
from tests.support.clusters import QUICK_FAILOVER, MakeCluster, freeze, unique_topic
from tests.support.mirrors import make_topic, new_mirror, properties_of, selector
from tests.support.stores import state_store
from tests.support.waiting import wait_until

_PARTITION = TopicPartition(STATE_TOPIC, 0)


@pytest.fixture(scope="module")
def split(make_module_cluster: MakeCluster) -> SandboxCluster:
    """Return a cluster whose first broker is its only controller, and one of the others leads the stored state."""
    with pytest.MonkeyPatch.context() as patched:
        # those that are cut off from it keep what they know for as long as it is frozen
        patched.setattr(cluster_spec, "controller_count", lambda brokers: 1)
        properties = {**QUICK_FAILOVER, "default.replication.factor": "3"}
        cluster = make_module_cluster("split", brokers=3, properties=properties)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    settings = {**STATE_TOPIC_SETTINGS, "min.insync.replicas": "2"}
    new = NewTopic(STATE_TOPIC, 1, replica_assignment=[[2, 3, 1]], config=settings)
    admin.create_topics([new], request_timeout=60)[STATE_TOPIC].result(70)
    return cluster


def at(*brokers: SandboxBroker) -> dict[str, str]:
    return {"bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers)}


def leader_of_state(broker: SandboxBroker) -> int | None:
    """Return which broker leads the stored state, as a broker knows it."""
    with ClusterClient(client_config(at(broker))) as client:
        found = client.metadata([STATE_TOPIC]).leader(_PARTITION)
        return None if found is None else found.leader_id


@contextmanager
def moved_behind_the_back(
    cluster: SandboxCluster, mirror: str, then: Callable[[Destination], object] = lambda at: None
) -> Iterator[tuple[SandboxBroker, SandboxBroker]]:
    """Fail a mirror over through a new leader, and `then` look; yield the former one, which does not know, and the new.

    Until the end there is no controller.
    """
    leader_id = leader_of_state(cluster.brokers[0])
    former, newer = sorted(cluster.brokers[1:], key=lambda broker: broker.node_id != leader_id)
    freeze(cluster, former.node_id)
    try:
        wait_until(lambda: leader_of_state(cluster.brokers[0]) == newer.node_id)
        with Destination.open(at(newer)) as destination:
            wait_until(lambda: failover(destination, mirror).result.exit_code == 0)
            then(destination)
        freeze(cluster, cluster.brokers[0].node_id)
        cluster.signal(former.node_id, signal.SIGCONT)
        yield former, newer
    finally:
        for broker in cluster.brokers:
            cluster.signal(broker.node_id, signal.SIGCONT)
    wait_until(lambda: leader_of_state(former) == leader_of_state(newer))


def certain(store: StateStore) -> State:
    """Return the stored state as soon as it is certain: a busy broker may not answer in time."""
    found = list[State]()

    def is_read() -> bool:
        with suppress(TimedOutError):
            found.append(store.read_certain(Deadline(30)))
        return bool(found)

    wait_until(is_read)
    return found[0]


def is_stopped(state: State, mirror: str) -> bool:
    return {topic.desired for topic in state.topics(mirror)} == {DesiredState.STOPPED}


def copied(source: SandboxCluster, cluster: SandboxCluster) -> str:
    """Return a mirror with a topic that is to be copied to a cluster."""
    topic = unique_topic()
    make_topic(source, topic)
    with Destination.open(properties_of(cluster)) as destination:
        mirror = new_mirror(destination, source)
        # who was frozen a moment ago is not asked yet
        wait_until(lambda: add(destination, mirror, selector(topic)).exit_code == 0)
    wait_until(lambda: leader_of_state(cluster.brokers[0]) is not None)
    return mirror


def all_in_sync(cluster: SandboxCluster) -> bool:
    """Return whether all replicas are in sync, and not the controller's broker leads."""
    with ClusterClient(client_config(at(cluster.brokers[0]))) as client:
        found = client.metadata([STATE_TOPIC]).leader(_PARTITION)
    if found is None or len(found.in_sync_replicas) < 3:
        return False
    if found.leader_id == cluster.brokers[0].node_id:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.elect_leaders(ElectionType.PREFERRED, [Partition(STATE_TOPIC, 0)]).result(30)
        return False
    return True


@pytest.mark.slow
def test_what_a_former_leader_says_is_not_believed(source_cluster: SandboxCluster, split: SandboxCluster) -> None:
    mirror = copied(source_cluster, split)
    wait_until(lambda: all_in_sync(split))
    with moved_behind_the_back(split, mirror) as (former, newer):
        store = state_store(at(former))
        # so it is believed where nothing is said of who takes the writes
        assert not is_stopped(store.read_complete(Deadline(30)), mirror)
        # the new leader is asked instead
        assert is_stopped(certain(store), mirror)
        # and where it does not answer, nothing is certain
        freeze(split, newer.node_id)
        another = state_store(at(former))
        with pytest.raises(TimedOutError, match="still leads __kmirror_state-0 is not certain") as doubt:
            another.read_certain(Deadline(10))
        assert f"its replicas on 1, {newer.node_id} did not answer" in str(doubt.value)


@pytest.mark.slow
def test_a_replica_that_is_down_hides_nothing(source_cluster: SandboxCluster, split: SandboxCluster) -> None:
    mirror = copied(source_cluster, split)
    wait_until(lambda: all_in_sync(split))
    leader_id = leader_of_state(split.brokers[0])
    other = next(broker for broker in split.brokers[1:] if broker.node_id != leader_id)
    freeze(split, other.node_id)
    try:
        store = state_store(at(split.brokers[0]))
        assert certain(store).mirror(mirror) is not None
    finally:
        split.signal(other.node_id, signal.SIGCONT)


@contextmanager
def watched(a: SandboxCluster, b: Mapping[str, str]) -> Iterator[ChargeKeeper]:
    """Watch two clusters, one of them with these properties, as `serve` does."""
    keeper = ChargeKeeper(("a", "b"))
    with ExitStack() as left:
        for name, properties in (("a", properties_of(a)), ("b", dict(b))):
            one = WatchedCluster(name, partial(dict, properties), None, keeper.take, keeper.doubt)
            left.callback(one.close)
            one.start()
        yield keeper


@pytest.mark.slow
def test_serve_and_the_command_never_say_yes_for_both(source_cluster: SandboxCluster, split: SandboxCluster) -> None:
    mirror = copied(source_cluster, split)
    wait_until(lambda: all_in_sync(split))

    def answers(destination: Destination) -> None:
        """Wait until the answer is certain: a busy broker may not answer in time."""
        found = list[list[bool | None]]()

        def is_certain() -> bool:
            found.append([one.in_charge for one in in_charge(destination, mirror)])
            return None not in found[-1]

        wait_until(is_certain)
        assert found[-1] == [False, True]
        assert all(one[0] is not True for one in found)

    with moved_behind_the_back(split, mirror, answers) as (former, newer):
        with watched(source_cluster, at(former)) as keeper:
            until = time.monotonic() + SETTLED_S + 2
            while time.monotonic() < until:
                assert not keeper.answer(mirror, "a").in_charge
                time.sleep(0.2)
            wait_until(lambda: keeper.answer(mirror, "b").in_charge)
            assert keeper.answer(mirror, "a").in_charge is False
        freeze(split, newer.node_id)
        with watched(source_cluster, at(former)) as keeper:
            wait_until(lambda: "did not answer" in keeper.answer(mirror, "b").reason)
            time.sleep(SETTLED_S + 1)
            assert [keeper.answer(mirror, name).in_charge for name in ("a", "b")] == [None, None]
        with Destination.open(at(former)) as destination:
            found = in_charge(destination, mirror)
            assert [one.in_charge for one in found] == [None, None]
            assert "did not answer" in found[1].reason
