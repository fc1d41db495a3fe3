"""The fork of two logs on real brokers: found at its very offset, by contents, for many partitions side by side."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol import markers
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess, client_config
from kmirror.engine.histories.fork import Fork
from kmirror.engine.histories.fork_search import (
    ForkAnswer,
    ForkQuestion,
    fork_work_units,
    search_forks,
    search_work_unit,
)
from kmirror.engine.histories.stretches import LogEnds
from kmirror.engine.lane.reports.state_log import append_to
from kmirror.errors import BrokerError, UnreachableError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair
from tests.support.leader import OWN_ID, Leader, create_topic
from tests.support.librdkafka import librdkafka
from tests.support.logs import BuiltLog
from tests.support.mirrors import create_again
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Twins:
    """The same topic on two clusters, and searches in it."""

    def __init__(self, pair: ClusterPair) -> None:
        self.pair = pair
        self.source = ClusterClient(client_config(pair.source.client_properties()))
        self.destination = ClusterClient(client_config(pair.destination.client_properties()))

    def close(self) -> None:
        self.source.close()
        self.destination.close()

    def topic(self, partitions: int = 1) -> str:
        topic = create_topic(self.pair.source, partitions=partitions)
        return create_topic(self.pair.destination, name=topic, partitions=partitions)

    def questions(self, partitions: Sequence[TopicPartition], hint: int | None = None) -> list[ForkQuestion]:
        looks = [
            client.list_offsets(dict.fromkeys(partitions, what), read_committed=True)
            for client in (self.source, self.destination)
            for what in (EARLIEST, LATEST)
        ]
        return [
            ForkQuestion(partition, partition, LogEnds(*(look[partition].offset or 0 for look in looks)), hint)
            for partition in partitions
        ]

    def find(self, topic: str, partition: int = 0, hint: int | None = None) -> ForkAnswer:
        topic_partition = TopicPartition(topic, partition)
        (found,) = search_forks(self.source, self.destination, self.questions([topic_partition], hint)).found
        return found


@pytest.fixture
def twins(cluster_pair: ClusterPair) -> Iterator[Twins]:
    twins = Twins(cluster_pair)
    yield twins
    twins.close()


def record(offset: int, name: str = "s", size: int = 10) -> Record:
    return Record(offset, 1_700_000_000_000 + offset, b"k%d" % (offset % 7), f"{name}{offset}".encode().ljust(size))


def append(
    client: ClusterClient, partition: TopicPartition, records: Sequence[Record], batch_records: int, codec: str = "none"
) -> None:
    """Append these records, at the offsets they have."""
    for first in range(0, len(records), batch_records):
        some = records[first : first + batch_records]
        batch = make_batch([replace(one, offset=index) for index, one in enumerate(some)], compression_type=codec)
        assert append_to(client, partition, memoryview(batch)) == some[0].offset


def mark(cluster: SandboxCluster, partition: TopicPartition, number: int) -> None:
    """Append this many markers of ours."""
    if not number:
        return
    with Leader(cluster, *partition) as leader:
        known = leader.producer()
        fill = markers.Fill(*partition, OWN_ID, 0, number, known.coordinator_epoch + 1 if known else 0)
        connection = leader.connection
        version = connection.version_for(markers.API)
        correlation_id = connection.next_correlation_id()
        request = markers.request(correlation_id, version, "kmirror", [fill])
        answer = markers.answer(connection.exchange_frame([request], correlation_id, 30), version)
        assert answer == {tuple(partition): 0}


def trim(cluster: SandboxCluster, partition: TopicPartition, offset: int) -> None:
    """Delete the records below."""
    where = Place(*partition, offset)
    admin = AdminClient(librdkafka(client_config(cluster.client_properties())))
    admin.delete_records([where])[where].result(30)


@pytest.mark.parametrize("codec", CODECS)
def test_the_very_offset_is_found_however_the_logs_are_packed(twins: Twins, codec: str) -> None:
    """At the destination the fork is in the middle of a batch."""
    topic = twins.topic()
    partition = TopicPartition(topic, 0)
    append(twins.source, partition, [record(offset) for offset in range(5_000)], 100)
    ours = [record(offset, "s" if offset < 3_456 else "d") for offset in range(4_000)]
    append(twins.destination, partition, ours, 333, codec)
    found = twins.find(topic)
    assert found.fork == Fork(3_456, True, 3_455)
    assert found.reads <= 8


@pytest.mark.slow
def test_a_hint_is_probed_first(twins: Twins) -> None:
    topic = twins.topic()
    partition = TopicPartition(topic, 0)
    append(twins.source, partition, [record(offset, size=1000) for offset in range(3_000)], 10)
    append(twins.destination, partition, [record(o, "s" if o < 1_000 else "d", 1000) for o in range(3_000)], 10)
    assert (twins.find(topic, hint=1_000).fork, twins.find(topic, hint=1_000).reads) == (Fork(1_000, True, 999), 1)
    for hint in (None, 500, 2_000, 3_000):
        found = twins.find(topic, hint=hint)
        assert found.fork == Fork(1_000, True, 999)
        assert 1 < found.reads <= 12


def test_logs_that_agree_part_where_the_shorter_one_ends(twins: Twins) -> None:
    topic = twins.topic()
    partition = TopicPartition(topic, 0)
    append(twins.source, partition, [record(offset) for offset in range(1_000)], 30)
    assert twins.find(topic).fork == Fork(0, False, None)
    append(twins.destination, partition, [record(offset) for offset in range(900)], 70)
    found = twins.find(topic)
    assert (found.fork, found.reads) == (Fork(900, False, 899), 1)


def test_below_a_log_start_nothing_is_known(twins: Twins) -> None:
    topic = twins.topic()
    partition = TopicPartition(topic, 0)
    append(twins.source, partition, [record(offset) for offset in range(500)], 50)
    append(twins.destination, partition, [record(o, "s" if o < 200 else "d") for o in range(500)], 40)
    trim(twins.pair.source, partition, 120)
    trim(twins.pair.destination, partition, 70)
    assert twins.find(topic).fork == Fork(200, True, 199)
    trim(twins.pair.destination, partition, 310)
    assert twins.find(topic).fork == Fork(310, True, None)


def test_transactions_and_the_markers_in_their_place(twins: Twins) -> None:
    """Aborted records and markers here, markers there, and a fork behind them, or among them."""
    topic = twins.topic(2)
    settings = {"bootstrap.servers": twins.pair.source.bootstrap_servers, "transactional.id": topic}
    for partition, copied_markers in enumerate((301, 150)):
        topic_partition = TopicPartition(topic, partition)
        append(twins.source, topic_partition, [record(offset) for offset in range(100)], 10)
        producer = Producer({**settings, "linger.ms": 1000})
        producer.init_transactions(30)
        producer.begin_transaction()
        for index in range(300):
            producer.produce(topic, b"aborted-%d" % index, partition=partition)
        assert producer.flush(30) == 0
        producer.abort_transaction(30)
        with Leader(twins.pair.source, *topic_partition) as leader:
            wait_until(lambda leader=leader: leader.log_end == 401)  # type: ignore[misc]
        append(twins.source, topic_partition, [record(offset) for offset in range(401, 600)], 10)
        append(twins.destination, topic_partition, [record(offset) for offset in range(100)], 100)
        mark(twins.pair.destination, topic_partition, copied_markers)
        first = 100 + copied_markers
        ours = [record(offset, "s" if offset < 500 else "d") for offset in range(first, 550)]
        append(twins.destination, topic_partition, ours, 17)
    assert twins.find(topic, 0).fork == Fork(500, True, 499)
    assert twins.find(topic, 1).fork == Fork(250, True, 99)


@pytest.mark.slow
def test_logs_of_all_kinds(
    forgetful: ForgetfulCluster, installed_logs: dict[str, BuiltLog], destination_cluster: SandboxCluster
) -> None:
    """Logs with everything a broker may have in them, and what a mirror would have copied of them, up to somewhere."""
    twins = Twins(ClusterPair(forgetful.cluster, destination_cluster))
    try:
        partitions, expected = [], []
        for number, (topic, log) in enumerate(installed_logs.items()):
            shown = [Record(*one) for one in log.expected]
            if not shown:
                continue
            partition = TopicPartition(topic, 0)
            create_again(destination_cluster, topic)
            first, fork = shown[0].offset, random.Random(number).choice(shown).offset
            # what is below the source's first record is not compared
            append(twins.destination, partition, [record(offset, "filler") for offset in range(first)], 50_000, "zstd")
            trim(destination_cluster, partition, first)
            end = first
            for _, run in groupby(
                enumerate(one for one in shown if one.offset < fork), lambda at: at[1].offset - at[0]
            ):
                copied = [one for _, one in run]
                mark(destination_cluster, partition, copied[0].offset - end)
                append(twins.destination, partition, copied, 7)
                end = copied[-1].offset + 1
            mark(destination_cluster, partition, fork - end)
            append(twins.destination, partition, [record(offset, "fork") for offset in range(fork, fork + 20)], 6)
            partitions.append(partition)
            expected.append(Fork(fork, True, max((one.offset for one in shown if one.offset < fork), default=None)))
        found = search_forks(twins.source, twins.destination, twins.questions(partitions)).found
        assert [one.fork for one in found] == expected
        assert len(found) > 5
    finally:
        twins.close()


@pytest.mark.slow
def test_many_partitions_share_their_requests(twins: Twins) -> None:
    partitions, length = 40, 500
    topic = twins.topic(partitions)
    rng = random.Random(1)
    forks = [rng.randint(0, length) for _ in range(partitions)]
    theirs = [record(offset) for offset in range(length)]
    for partition, fork in enumerate(forks):
        topic_partition = TopicPartition(topic, partition)
        append(twins.source, topic_partition, theirs, 200)
        append(twins.destination, topic_partition, theirs[:fork] + [record(o, "d") for o in range(fork, length)], 200)
    topic_partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
    questions = twins.questions(topic_partitions)
    pair = twins.pair.source, twins.pair.destination
    source, destination = (ClusterAccess(one.client_properties(), one.cluster_id) for one in pair)
    (share,) = fork_work_units(questions, 1, source, destination)
    searched = search_work_unit(share)
    expected = [Fork(fork, fork < length, fork - 1 if fork else None) for fork in forks]
    assert [found.fork for found in searched.found] == expected
    assert searched.requests <= 2 * max(found.reads for found in searched.found) + 4
    assert len(fork_work_units(questions, 2, source, destination)) == 2


def test_obstacles_are_reported_for_each_partition(twins: Twins) -> None:
    topic = twins.topic(2)
    for partition in range(2):
        for client in (twins.source, twins.destination):
            append(client, TopicPartition(topic, partition), [record(offset) for offset in range(50)], 10)
    partitions = [TopicPartition(topic, partition) for partition in range(2)]
    questions = twins.questions(partitions)
    trim(twins.pair.source, partitions[0], 50)
    first, second = search_forks(twins.source, twins.destination, questions).found
    assert isinstance(first.trouble, BrokerError)
    assert (first.fork, first.troubled_side, first.trouble.name) == (None, "source", "OFFSET_OUT_OF_RANGE")
    assert second.fork == Fork(50, False, 49)


def test_an_open_transaction_hides_what_may_yet_be_aborted(twins: Twins) -> None:
    """On both sides: nothing is concluded from records that consumers are not shown yet."""
    topic = twins.topic()
    partition = TopicPartition(topic, 0)
    append(twins.source, partition, [record(offset) for offset in range(100)], 10)
    append(twins.destination, partition, [record(offset) for offset in range(50)], 10)
    settings = {"bootstrap.servers": twins.pair.destination.bootstrap_servers, "transactional.id": topic}
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"perhaps", partition=0)
    assert producer.flush(30) == 0
    assert twins.find(topic).fork == Fork(50, False, 49)
    (hidden,) = search_forks(
        twins.source, twins.destination, [ForkQuestion(partition, partition, LogEnds(0, 100, 0, 51))]
    ).found
    assert isinstance(hidden.trouble, UnreachableError)
    assert (hidden.fork, hidden.troubled_side, hidden.may_pass) == (None, "destination", True)
    producer.commit_transaction(30)
    wait_until(lambda: twins.questions([partition])[0].ends.destination_end == 52)
    assert twins.find(topic).fork == Fork(50, True, 49)
