"""Which cluster is in charge, where the leader of the stored state is cut off inside its own cluster.

It still answers as the leader that it was, with what was committed before another one was elected. So does the leader
of a source topic.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import ElectionType, Producer
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.histories.inspection import Inspector
from kmirror.engine.histories.judge import Copy, Verdict, Wait, judge
from kmirror.engine.lane import leader_checks
from kmirror.engine.lane.reports.control import LaneControl
from kmirror.engine.lane.reports.row_reports import RowChanges
from kmirror.engine.lane.reports.state_log import StateLog
from kmirror.engine.spec import LaneSpec
from kmirror.errors import ExitCode, KmirrorError, OutcomeUnknown, RefusedError, TimedOutError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.facts import bounds_of, require_unused
from kmirror.ops.failback.progress import TopicStep, TopicWork
from kmirror.ops.failback.recheck import require_untouched
from kmirror.ops.jobs.rebuild_topics import certain_bounds
from kmirror.ops.mirrors.create import create
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.ops.show.ends_in_charge import in_charge
from kmirror.ops.stop.failover import failover
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.internal_topics import STATE_TOPIC, STATE_TOPIC_SETTINGS
from kmirror.state.lease import Lease
from kmirror.state.lock import transact
from kmirror.state.records import DesiredState, Incarnation
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import StateStore
from kmirror.state.waiting import Deadline
from kmirror.state.writer import StateWriter, decide_and_write
from kmirror.status.in_charge import SETTLED_S
from kmirror.web.watched_cluster import WatchedCluster
from kmirror_sandbox import cluster_spec
from kmirror_sandbox.cluster import SandboxBroker, SandboxCluster
from tests.support.clusters import QUICK_FAILOVER, MakeCluster, freeze, unique_topic
from tests.support.lane import Mirror, fill
from tests.support.leader import create_topic
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.real_logs import delete_records
from tests.support.stores import state_store
from tests.support.waiting import PATIENCE_S, wait_until

_PARTITION = TopicPartition(STATE_TOPIC, 0)
#: What is written through a new leader, as `produce` writes it.
_LATE = "after the election"
_LATE_MS = 1_700_000_000_000 + len(_LATE)


@pytest.fixture(scope="module")
def split(make_module_cluster: MakeCluster) -> SandboxCluster:
    """Return a cluster whose first broker is its only controller, and one of the others leads the stored state."""
    with pytest.MonkeyPatch.context() as patched:
        # those that are cut off from it keep what they know for as long as it is frozen
        patched.setattr(cluster_spec, "controller_count", lambda brokers: 1)
        # a broker alone may lead transactions: what is committed is up to the topics' own settings
        alone = {"transaction.state.log.min.isr": "1"}
        properties = {**QUICK_FAILOVER, "default.replication.factor": "3", **alone}
        cluster = make_module_cluster("split", brokers=3, properties=properties)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = NewTopic(STATE_TOPIC, 1, replica_assignment=[[2, 3, 1]], config=dict(STATE_TOPIC_SETTINGS))
    admin.create_topics([new], request_timeout=60)[STATE_TOPIC].result(70)
    return cluster


def at(*brokers: SandboxBroker) -> dict[str, str]:
    return {"bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers)}


def leader_of(partition: TopicPartition, broker: SandboxBroker) -> int | None:
    """Return which broker leads a partition, as a broker knows it."""
    with ClusterClient(client_config(at(broker))) as client:
        found = client.metadata([partition.topic]).leader(partition)
        return None if found is None else found.leader_id


def leader_of_state(broker: SandboxBroker) -> int | None:
    """Return which broker leads the stored state, as a broker knows it."""
    return leader_of(_PARTITION, broker)


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
        # then the new leader is asked; only the controller's broker may know whether that still is one
        with pytest.raises(TimedOutError, match=r"__kmirror_state-0 is not certain: its replicas? on 1"):
            store.read_certain(Deadline(30))
        assert is_stopped(store.read_complete(Deadline(30)), mirror)
        # and where it does not answer, nothing is certain
        freeze(split, newer.node_id)
        another = state_store(at(former))
        with pytest.raises(TimedOutError, match="still leads __kmirror_state-0 is not certain") as doubt:
            another.read_certain(Deadline(10))
        assert f"its replicas on 1, {newer.node_id} did not answer" in str(doubt.value)
    assert is_stopped(certain(store), mirror)


@pytest.mark.slow
def test_nothing_is_stored_that_was_decided_by_what_a_former_leader_says(
    source_cluster: SandboxCluster, split: SandboxCluster
) -> None:
    """A writer that was opened through the new leader, as the store of a long command still reads from the former."""
    mirror = copied(source_cluster, split)
    wait_until(lambda: all_in_sync(split))
    opened, seen = list[StateWriter](), list[bool]()
    with ExitStack() as left:

        def open_writer(destination: Destination) -> None:
            writer = StateWriter(destination.store, "operator", mirror)
            left.callback(writer.close)
            wait_until(lambda: is_open(writer))
            opened.append(writer)

        former, newer = left.enter_context(moved_behind_the_back(split, mirror, open_writer))
        (writer,) = opened
        store = writer._store = state_store(at(former))

        def pause(state: State) -> Changes:
            (topic,) = state.topics(mirror)
            seen.append(topic.desired is DesiredState.STOPPED)
            if not seen[-1]:
                # as it is read, what was read is out of date; then all is well again
                split.signal(split.brokers[0].node_id, signal.SIGCONT)
                wait_until(lambda: leader_of_state(former) == newer.node_id)
            return Changes((replace(topic, desired=DesiredState.PAUSED),)) if not seen[-1] else Changes()

        assert decide_and_write(store, writer, pause, Deadline(PATIENCE_S)) == Changes()
        assert seen == [False, True]
        assert is_stopped(certain(store), mirror)


def is_open(writer: StateWriter) -> bool:
    """Try to open a writer, which a broker that was frozen a moment ago may prevent; return whether it is open."""
    with suppress(KmirrorError):
        writer.open(Deadline(30))
    return writer.is_open


@pytest.mark.slow
def test_elections_do_not_keep_commands_and_engines_from_writing(
    source_cluster: SandboxCluster, split: SandboxCluster
) -> None:
    mirror = copied(source_cluster, split)
    store = state_store(properties_of(split))
    lease = Lease.acquire(state_store(properties_of(split)), mirror, EngineIdentity.of_this_process())
    for number in range(4):
        wait_until(lambda: all_in_sync(split))
        leader_id = leader_of_state(split.brokers[0])
        assert leader_id is not None
        freeze(split, leader_id)
        try:
            wait_until(lambda before=leader_id: leader_of_state(split.brokers[0]) not in (None, before))  # type: ignore[misc]
            transact(store, mirror, lambda state, at=number: renamed(state, mirror, at), PATIENCE_S)  # type: ignore[misc]
            lease.heartbeat({0: Incarnation(number, 0)}, timeout=PATIENCE_S)
        finally:
            split.signal(leader_id, signal.SIGCONT)
        state = certain(state_store(properties_of(split)))
        assert renamed(state, mirror, number).records == (state.mirror(mirror),)
        assert state.engine(mirror) == lease.record
    lease.close()


def renamed(state: State, mirror: str, number: int) -> Changes:
    found = state.mirror(mirror)
    assert found is not None
    return Changes((replace(found, created_by=f"eve{number}@ops"),))


@pytest.mark.slow
def test_a_lane_does_not_write_on_by_what_a_former_leader_says(
    source_cluster: SandboxCluster, split: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = copied(source_cluster, split)
    wait_until(lambda: all_in_sync(split))
    lease = Lease.acquire(state_store(properties_of(split)), mirror, EngineIdentity.of_this_process())
    lease.heartbeat({0: Incarnation(1, 0)}, timeout=PATIENCE_S)
    with moved_behind_the_back(split, mirror) as (former, _):
        lane = LaneControl(
            LaneSpec(mirror, 0, 1, lease.lease_id, {}, {}, (), 5_000, False, 1_000),
            0,
            StateLog(client_config(at(former))),
            lambda: RowChanges({}, frozenset()),
            lambda _: None,
        )
        lane.start()
        try:
            wait_until(lambda: lane.deadline)
            wait_until(lambda: lane.ended)
        finally:
            lane.stop(final_report=False)
        assert lane.ended is not None
        assert lane.ended[0] == "FENCED"
    lease.close()


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


@pytest.mark.slow
def test_a_replica_that_was_elected_alone_is_not_missed(source_cluster: SandboxCluster, split: SandboxCluster) -> None:
    mirror = copied(source_cluster, split)
    wait_until(lambda: all_in_sync(split))
    alone, *others = split.brokers
    try:
        for broker in others:
            freeze(split, broker.node_id)
        wait_until(lambda: leader_of_state(alone) == alone.node_id)

        def is_failed_over() -> bool:
            with suppress(KmirrorError, OutcomeUnknown), Destination.open(at(alone)) as destination:
                return failover(destination, mirror).result.exit_code == 0
            return False

        wait_until(is_failed_over)
        freeze(split, alone.node_id)
        for broker in others:
            split.signal(broker.node_id, signal.SIGCONT)
        # they are most of the replicas, know of no election, and the one that does not answer was in sync
        with pytest.raises(TimedOutError, match="its replica on 1 did not answer"):
            state_store(at(*others)).read_certain(Deadline(30))
    finally:
        for broker in split.brokers:
            split.signal(broker.node_id, signal.SIGCONT)
    wait_until(lambda: is_stopped(certain(state_store(at(*split.brokers))), mirror))
    wait_until(lambda: all_in_sync(split))


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

    with ExitStack() as watching:
        with moved_behind_the_back(split, mirror, answers) as (former, newer):
            keeper = watching.enter_context(watched(source_cluster, at(former)))
            until = time.monotonic() + SETTLED_S + 2
            while time.monotonic() < until:
                assert not keeper.answer(mirror, "a").in_charge
                time.sleep(0.2)
            freeze(split, newer.node_id)
            with watched(source_cluster, at(former)) as another:
                wait_until(lambda: "did not answer" in another.answer(mirror, "b").reason)
                time.sleep(SETTLED_S + 1)
                assert [another.answer(mirror, name).in_charge for name in ("a", "b")] == [None, None]
            with Destination.open(at(former)) as destination:
                found = in_charge(destination, mirror)
                assert [one.in_charge for one in found] == [None, None]
                assert "did not answer" in found[1].reason
        wait_until(lambda: keeper.answer(mirror, "b").in_charge)
        assert keeper.answer(mirror, "a").in_charge is False


@contextmanager
def led_behind_the_back(
    cluster: SandboxCluster, partition: TopicPartition, *others: TopicPartition
) -> Iterator[tuple[SandboxBroker, SandboxBroker]]:
    """Have a record written through a new leader; yield the former one, which does not know, and the new one.

    The same brokers lead `others`, to which it is written as well. Until the end there is no controller.
    """
    leader_id = leader_of(partition, cluster.brokers[0])
    former, newer = sorted(cluster.brokers[1:], key=lambda broker: broker.node_id != leader_id)
    freeze(cluster, former.node_id)
    try:
        producer = Producer({**at(newer), "acks": "all"})
        for one in (partition, *others):
            wait_until(lambda led=one: leader_of(led, cluster.brokers[0]) == newer.node_id)  # type: ignore[misc]
            producer.produce(one.topic, _LATE, key=_LATE, partition=one.partition, timestamp=_LATE_MS)
        assert producer.flush(PATIENCE_S) == 0
        freeze(cluster, cluster.brokers[0].node_id)
        cluster.signal(former.node_id, signal.SIGCONT)
        yield former, newer
    finally:
        for broker in cluster.brokers:
            cluster.signal(broker.node_id, signal.SIGCONT)
    wait_until(lambda: leader_of(partition, former) == leader_of(partition, newer))


@pytest.mark.slow
def test_a_source_leader_that_is_cut_off_is_left_and_nothing_is_judged_by_it(
    split: SandboxCluster, destination_cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane stood still there with a lag of 0; and what its successor had was missing there, and so diverged."""
    monkeypatch.setattr(leader_checks, "CHECK_SECONDS", 0.5)
    wait_until(lambda: all_in_sync(split))
    topic = create_topic(split, replicas=[[2, 3, 1]])
    create_topic(destination_cluster, name=topic)
    with closing(Mirror(split, destination_cluster)) as mirror, ExitStack() as clients:
        (assignment,) = mirror.add(topic, topic)
        fill(mirror, topic, 3)

        def inspecting(former: SandboxBroker) -> Callable[[], Verdict]:
            """Return what judges the partition as a new lane does which reaches the former leader first."""
            here, there = mirror.at_destination, ClusterClient(client_config(at(former)))
            inspector = Inspector(clients.enter_context(there), here)
            return lambda: judge(assignment, None, inspector.inspect([assignment])[0])

        with led_behind_the_back(split, assignment.source) as (former, newer):
            lane = mirror.start(source_properties={**at(former), "request.timeout.ms": "3000"})
            mirror.wait(lane, lambda: mirror.destination_ends() == {str(assignment.destination): 4})
            mirror.stop(lane)
            verdict = inspecting(former)
            seen = list[Verdict]()

            def is_copied() -> bool:
                seen.append(verdict())
                assert isinstance(seen[-1], Wait | Copy)
                return isinstance(seen[-1], Copy)

            wait_until(is_copied)
            assert isinstance(seen[0], Wait)
            # what is known is not forgotten, and without it nothing is certain
            freeze(split, newer.node_id)
            assert isinstance(verdict(), Wait)
            unsure = inspecting(former)()
            assert isinstance(unsure, Wait)
            assert f"whether broker {former.node_id} still leads {assignment.source} is not certain" in str(unsure)
    wait_until(lambda: all_in_sync(split))


@pytest.mark.slow
def test_what_a_leader_that_is_cut_off_does_not_have_is_no_difference(
    split: SandboxCluster, destination_cluster: SandboxCluster
) -> None:
    """`verify` exited with 7, and `add --adopt` advised a failback, which archives and deletes."""
    wait_until(lambda: all_in_sync(split))
    made = [TopicPartition(create_topic(split, replicas=[[2, 3, 1]]), 0) for _ in range(3)]
    topics = added, other, emptied = tuple(partition.topic for partition in made)
    for topic in topics:
        create_topic(destination_cluster, name=topic)
        for cluster in (split, destination_cluster):
            produce(cluster, topic, ["a", "b"])
    with Destination.open(properties_of(destination_cluster)) as destination:
        mirror = f"m-{uuid.uuid4().hex[:8]}"
        # the broker that leads both, for as long as nothing happens
        source = next(broker for broker in split.brokers if broker.node_id == leader_of(made[0], split.brokers[0]))
        assert create(destination, mirror, at(source)).exit_code == 0
        assert add(destination, mirror, selector(added), adopt=True).exit_code == 0

        def found() -> list[ExitCode]:
            adopted = [
                add(destination, mirror, selector(topic), adopt=True, dry_run=True) for topic in (other, emptied)
            ]
            return [verify(destination, VerifyRequest(mirror)).exit_code, *(one.exit_code for one in adopted)]

        for topic in topics:
            produce(destination_cluster, topic, [_LATE])
        delete_records(destination_cluster, emptied, 3)
        with led_behind_the_back(split, *made) as (former, _):
            assert former.node_id == source.node_id
            # of the one without records, the newest leader says where its source ends
            assert found() == [ExitCode.TIMED_OUT, ExitCode.TIMED_OUT, ExitCode.OK]
        wait_until(lambda: all_in_sync(split))
        assert found() == [ExitCode.OK] * 3
        # a destination that does end later than its source still differs
        for topic in topics:
            produce(destination_cluster, topic, ["c"])
        delete_records(destination_cluster, emptied, 4)
        assert found() == [ExitCode.HISTORIES_DIFFER, ExitCode.REFUSED, ExitCode.REFUSED]


@pytest.mark.slow
def test_what_is_deleted_is_not_measured_by_a_leader_that_is_cut_off(split: SandboxCluster) -> None:
    """What its successor had got was in no archive."""
    wait_until(lambda: all_in_sync(split))
    partition = TopicPartition(create_topic(split, replicas=[[2, 3, 1]]), 0)
    produce(split, partition.topic, ["a", "b"])
    with led_behind_the_back(split, partition) as (former, _), ClusterClient(client_config(at(former))) as client:
        found = client.metadata([partition.topic]).topics[partition.topic]
        here = cast(Destination, SimpleNamespace(client=client))
        work = TopicWork(partition.topic, TopicStep.SAVED, found.printed_topic_id, ends={0: 2})
        looks: list[Callable[[], object]] = [
            lambda: bounds_of(client, [partition], "here"),
            lambda: require_unused(here, {partition.topic: found}, 0.1),
            lambda: require_untouched(here, work),
            lambda: certain_bounds(client, partition.topic, 1),
        ]
        for look in looks:
            with pytest.raises(TimedOutError, match=f"who leads {partition}( here)? is not certain: broker"):
                look()
    wait_until(lambda: all_in_sync(split))
    with ClusterClient(client_config(at(former))) as client:
        assert bounds_of(client, [partition], "here")[1] == {partition: 3}
        with pytest.raises(RefusedError, match="it ended at 2, and ends at 3 now"):
            require_untouched(cast(Destination, SimpleNamespace(client=client)), work)
