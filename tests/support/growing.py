"""Topics whose source gets more partitions while they are mirrored."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum, auto

from confluent_kafka.admin import AdminClient, NewPartitions

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_partitions
from kmirror.errors import BrokerError
from kmirror.ops.add.add import add
from kmirror.ops.show.describe import describe
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.round_trip import Trip
from tests.support.waiting import wait_until

VALUES = [f"value {number}" for number in range(100)]
#: How many partitions the topic has in the end.
PARTITIONS = 3
_NEVER = "3600"


class Moment(Enum):
    """How far a mirror has followed a topic that got more partitions."""

    #: The engine has not looked at the source since.
    UNSEEN = auto()
    #: The destination refuses to add them.
    REFUSED = auto()
    #: They exist at the destination; no engine copies them.
    CREATED = auto()
    #: A throttled engine copies them.
    PARTLY = auto()
    COPIED = auto()


@contextmanager
def grown(trip: Trip, moment: Moment) -> Iterator[str]:
    """Mirror a topic that has got partitions with records in them, up to this moment; yield its name."""
    topic = unique_topic()
    settings = {"refresh_interval_seconds": _NEVER if moment in (Moment.UNSEEN, Moment.CREATED) else "1"}
    if moment is Moment.PARTLY:
        settings["throttle_bytes_per_second"] = "65536"
    trip.mirror = new_mirror(trip.at_b, trip.a, **settings)
    make_topic(trip.a, topic, retention_ms="-1")
    produce(trip.a, topic, VALUES)
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    with ExitStack() as stack:
        if moment is Moment.REFUSED:
            # until the engine has ended
            stack.enter_context(partitions_refused(trip.b))
        engine = stack.enter_context(LocalEngine(trip.at_b, trip.mirror))
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_b, trip.mirror)))
        values = [value * 500 for value in VALUES] if moment is Moment.PARTLY else VALUES
        grow_and_fill(trip.a, topic, PARTITIONS, values)
        if moment is Moment.CREATED:
            grow(trip.b, topic, PARTITIONS)
        elif moment is Moment.REFUSED:
            wait_until(lambda: (known := trip.at_b.state().engine(trip.mirror)) is not None and known.lacking)
        elif moment is Moment.PARTLY:
            wait_until(lambda: 0 < sum(ends_of(trip.b, topic).values()) - 100 < 200)
        elif moment is Moment.COPIED:
            wait_until(lambda: ends_of(trip.b, topic) == ends_of(trip.a, topic))
            wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_b, trip.mirror)))
        yield topic


@contextmanager
def writing(cluster: SandboxCluster, topic: str, partition: int) -> Iterator[None]:
    """Write to a partition, ten times a second."""
    end = threading.Event()

    def write() -> None:
        while not end.wait(0.1):
            produce(cluster, topic, ["more"], partition)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        end.set()
        writer.join()


def grow(cluster: SandboxCluster, topic: str, count: int) -> None:
    """Raise a topic to this many partitions, and wait until they have leaders."""
    admin = AdminClient(properties_of(cluster))
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
    wait_until(lambda: len(ends_of(cluster, topic)) == count)


def ends_of(cluster: SandboxCluster, topic: str) -> dict[int, int]:
    """Return the log end of each partition of a topic that has a leader."""
    with ClusterClient(client_config(properties_of(cluster))) as client:
        partitions = [TopicPartition(topic, p) for p in client.metadata([topic]).topics[topic].partitions]
        found = client.list_offsets(dict.fromkeys(partitions, LATEST), log_end=True)
    return {p.partition: answer.offset for p, answer in found.items() if answer.offset is not None}


def grow_and_fill(cluster: SandboxCluster, topic: str, count: int, values: Sequence[str]) -> None:
    """Raise a topic of one partition to this many, and write to each that was added, in batches of ten."""
    grow(cluster, topic, count)
    for first in range(0, len(values), 10):
        for partition in range(1, count):
            produce(cluster, topic, values[first : first + 10], partition)


@contextmanager
def partitions_refused(cluster: SandboxCluster) -> Iterator[None]:
    """Have a cluster refuse kmirror to add partitions: the quota of changes is used up."""
    used = unique_topic()
    make_topic(cluster, used)
    limit_changes(cluster, 0.01)
    try:
        # a quota lets the first change pass that exceeds it, and is not in force as soon as it is accepted
        assert any(_is_refused(cluster, used, count) for count in range(20, 220))
        yield
    finally:
        limit_changes(cluster, None)


def _is_refused(cluster: SandboxCluster, topic: str, count: int) -> bool:
    with ClusterClient(client_config(properties_of(cluster))) as client:
        try:
            create_partitions(client, {topic: count}, quota_wait_s=0)
        except BrokerError as error:
            if error.code != Code.THROTTLING_QUOTA_EXCEEDED:
                raise
            return True
    return False


def limit_changes(cluster: SandboxCluster, per_second: float | None) -> None:
    """Give kmirror a quota of changes of topics, in partitions a second; None removes it."""
    from kafka.protocol.admin import AlterClientQuotasRequest

    entry = AlterClientQuotasRequest.EntryData
    quota = entry.OpData(key="controller_mutation_rate", value=per_second or 0.0, remove=per_second is None)
    entity = entry.EntityData(entity_type="client-id", entity_name="kmirror")
    request = AlterClientQuotasRequest(entries=[entry(entity=[entity], ops=[quota])], validate_only=False)
    with ClusterClient(client_config(properties_of(cluster))) as client:
        answer = client.ask_any(request)
    assert all(one.error_code == 0 for one in answer.entries), answer
