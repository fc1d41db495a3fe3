"""Faults of brokers and controllers. Acknowledged records are on the in-sync replicas; the rest is found by reading."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType, TopicPartition
from kafka.structs import TopicPartition as Place

from campaign.acts.scene import Note, Scene, Undo
from campaign.acts.topics import grow_topic
from campaign.clusters import Side
from campaign.logins import admin
from campaign.world import NEW, OLD, Act, Fault

_MOVE_S = 20.0
_QUOTA_BYTES = (20_000, 100_000, 1_000_000)
_CHANGES_PER_SECOND = (0.05, 0.2, 1.0)
#: What kmirror's clients are named by default.
_CLIENT_ID = "kmirror"


def _node(side: Side, fault: Fault, note: Note) -> int:
    brokers = side.cluster.brokers
    node = note["node"] = brokers[fault.draw % len(brokers)].node_id
    return node


def _controller(side: Side, note: Note) -> int:
    """Return the node of the active controller: every node has written down whom it votes for."""
    for broker in side.cluster.brokers:
        stored = Path(broker.log_dir, "__cluster_metadata-0", "quorum-state")
        with contextlib.suppress(OSError, ValueError):
            leader = int(json.loads(stored.read_text(encoding="utf-8"))["leaderId"])
            if leader > 0:
                note["controller"] = leader
                return leader
    return side.cluster.brokers[0].node_id


def _down(side: Side, node: int, end: Callable[[int], object]) -> Undo:
    end(node)
    return lambda: side.start_broker(node)


def _freeze(side: Side, node: int) -> Undo:
    side.cluster.signal(node, signal.SIGSTOP)

    def undo() -> None:
        with contextlib.suppress(Exception):
            side.cluster.signal(node, signal.SIGCONT)

    return undo


def kill_broker(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: what a killed process has written is in the page cache."""
    side = scene.side(fault, note)
    return _down(side, _node(side, fault, note), side.cluster.kill)


def stop_broker(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: leaders move, or answer again when the broker is back."""
    side = scene.side(fault, note)
    return _down(side, _node(side, fault, note), side.cluster.stop_broker)


def freeze_broker(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: it answers what it has received when it wakes up, or has been replaced."""
    side = scene.side(fault, note)
    return _freeze(side, _node(side, fault, note))


def kill_controller(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: another controller is elected, or nothing changes until it is back."""
    side = scene.side(fault, note)
    return _down(side, _controller(side, note), side.cluster.kill)


def freeze_controller(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: the same, and the old one notices late."""
    side = scene.side(fault, note)
    return _freeze(side, _controller(side, note))


def full_disk(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: a half-written append is cut off when the broker restarts.

    The broker's process may make no file larger than a limit: a write fails half-way, as on a full disk, and the broker
    takes its log directory offline.
    """
    side = scene.side(fault, note)
    node = _node(side, fault, note)
    pid = next(broker.pid for broker in side.cluster.brokers if broker.node_id == node)
    if pid is None:
        note["nothing"] = "it does not run"
        return lambda: side.start_broker(node)
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    note["bytes"] = (1_000, 50_000, 400_000)[fault.draw % 3]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (note["bytes"], before[1]))

    def undo() -> None:
        note["ended"] = all(broker.pid != pid for broker in side.cluster.brokers)
        if not note["ended"]:
            side.cluster.kill(node)
        side.start_broker(node)

    return undo


def move_leaders(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: kmirror looks up the new leader, and the records are at the same offsets."""
    from kafka.admin import KafkaAdminClient

    side = scene.side(fault, note)
    nodes = [broker.node_id for broker in side.cluster.brokers]
    if len(nodes) == 1:
        note["nothing"] = "there is one broker"
        return
    topics = admin(side.direct).list_topics(timeout=10).topics
    names = [topic.name for topic in scene.world.topics] + ["__kmirror_state", "__transaction_state"]
    shift = 1 + fault.draw % (len(nodes) - 1)
    moved = {}
    for name in names:
        for number, partition in topics[name].partitions.items() if name in topics else ():
            first = (nodes.index(partition.leader) if partition.leader in nodes else 0) + shift
            moved[Place(name, number)] = [
                nodes[(first + next_) % len(nodes)] for next_ in range(len(partition.replicas))
            ]
    client = KafkaAdminClient(bootstrap_servers=side.direct, request_timeout_ms=15_000)
    try:
        answers = client.alter_partition_reassignments(moved)
        note["moved"], note["refused"] = len(moved), sum(error is not None for error in answers.values())
        deadline = time.monotonic() + _MOVE_S
        while client.list_partition_reassignments() and time.monotonic() < deadline:
            time.sleep(0.2)
    finally:
        client.close()
    # each partition prefers its first replica
    elector = admin(side.direct)
    elector.elect_leaders(ElectionType.PREFERRED, None).result(_MOVE_S)


def quota(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: a throttling broker answers late, and says so."""

    side = scene.side(fault, note)
    value = note["value"] = _QUOTA_BYTES[fault.draw % len(_QUOTA_BYTES)]
    # on the source, consumers are kmirror, on the destination, producers: no one else is slowed down
    keys = (
        {"consumer_byte_rate": value}
        if side is scene.source
        else {"producer_byte_rate": value, "request_percentage": 20}
    )
    return _limited(scene, side, "", keys)


def mutation_quota(scene: Scene, fault: Fault, note: Note) -> Undo:
    """Survived: what a quota of changes refuses is asked again later, and nothing else waits for it.

    It is used up at once, by kmirror's own client id. At the destination a topic may have to get more partitions then.
    """
    side = scene.side(fault, note)
    note["value"] = _CHANGES_PER_SECOND[fault.draw % len(_CHANGES_PER_SECOND)]
    undo = limit_changes(scene, side, note["value"])
    if side is scene.destination and fault.draw >> 12 & 1:
        with contextlib.suppress(Exception):  # its source may be down
            grow_topic(scene, fault, note)
    return undo


def limit_changes(scene: Scene, side: Side, per_second: float) -> Undo:
    """Let kmirror make so few changes of topics and partitions, and use that up; return what undoes it.

    Raises:
        TimeoutError: the quota is not in force.
    """
    undo = _limited(scene, side, _CLIENT_ID, {"controller_mutation_rate": per_second})
    with _client(side) as client:
        _wait(lambda: _refuses_changes(client))
    return undo


def _refuses_changes(client: Any) -> bool:
    from kmirror.cluster.protocol.codes import Code
    from kmirror.cluster.topics.topic_requests import create_topic
    from kmirror.errors import BrokerError

    try:
        # what is only validated counts too, by partitions
        create_topic(client, "used-up", 10, 1, {}, validate_only=True, quota_wait_s=0)
    except BrokerError as error:
        if error.code != Code.THROTTLING_QUOTA_EXCEEDED:
            raise
        return True
    return False


def _limited(scene: Scene, side: Side, client_id: str, limits: Mapping[str, float]) -> Undo:
    """Set quotas of a client id; return what removes them."""
    from kmirror.cluster.protocol.quota import Quota
    from kmirror.cluster.rights.client_quotas import alter_quotas

    quotas = [Quota((("client-id", client_id),), key, float(limit)) for key, limit in limits.items()]

    def change(*changes: Any) -> None:
        with _client(side) as client:
            for error in alter_quotas(client, *changes).values():
                raise error

    change(quotas, [])
    scene.afterwards.append(lambda: change([], quotas))  # in case no broker answers when it is to be undone
    return lambda: change([], quotas)


def _client(side: Side) -> Any:
    from kmirror.cluster.client import ClusterClient
    from kmirror.cluster.security.client_config import client_config

    return ClusterClient(client_config({"bootstrap.servers": side.direct, "client.id": _CLIENT_ID}))


def upgrade(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: kmirror asks a broker that comes back with another version again which requests it understands."""
    sides = [side for side in (scene.source, scene.destination) if side.cluster.kafka_version == OLD]
    if not sides:
        note["nothing"] = "all brokers are new"
        return
    side = sides[fault.draw % len(sides)]
    note["side"] = side.name
    side.use_version(NEW)
    for broker in side.cluster.brokers:
        side.cluster.stop_broker(broker.node_id)
        side.start_broker(broker.node_id)


def unclean_election(scene: Scene, fault: Fault, note: Note) -> None:
    """Survived: the copy has what its source no longer has, which is reported, and reconciled after consent.

    One of two replicas is down while the other continues; then it is elected while the other is down.
    """
    client, cluster = admin(scene.source.direct), scene.source.cluster
    if scene.topic(fault, note).tiered:
        note["nothing"] = "what is in the store does not follow an unclean election"
        return
    topic = scene.topic(fault, note, Act.UNCLEAN_ELECTION).name
    partition = client.list_topics(topic, timeout=10).topics[topic].partitions[0]
    if len(partition.isrs) != 2 or any(broker.pid is None for broker in cluster.brokers):
        note["nothing"] = "it takes two replicas in sync, and all brokers"
        return
    leader, (follower,) = partition.leader, [node for node in partition.isrs if node != partition.leader]
    note["leader"], note["follower"] = leader, follower
    cluster.kill(follower)
    try:
        _wait(lambda: client.list_topics(topic, timeout=10).topics[topic].partitions[0].isrs == [leader])
        time.sleep(1 + fault.draw % 3)  # records that the follower will not have
        cluster.kill(leader)
        scene.source.start_broker(follower)
        _wait(lambda: follower in admin(scene.source.direct).list_topics(timeout=10).brokers)
        elected = client.elect_leaders(ElectionType.UNCLEAN, [TopicPartition(topic, 0)]).result(_MOVE_S)
        note["elected"] = str(next(iter(elected.values()), None)) if elected else None
    finally:
        scene.source.start_broker(follower)
        scene.source.start_broker(leader)


def _wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _MOVE_S
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError("what was waited for has not happened")
        time.sleep(0.2)


ACTS = {
    Act.KILL_BROKER: kill_broker,
    Act.FREEZE_BROKER: freeze_broker,
    Act.STOP_BROKER: stop_broker,
    Act.KILL_CONTROLLER: kill_controller,
    Act.FREEZE_CONTROLLER: freeze_controller,
    Act.FULL_DISK: full_disk,
    Act.MOVE_LEADERS: move_leaders,
    Act.QUOTA: quota,
    Act.MUTATION_QUOTA: mutation_quota,
    Act.UPGRADE: upgrade,
    Act.UNCLEAN_ELECTION: unclean_election,
}
