"""Stored logs are split and appended again: consumers see the same records, at the same offsets."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.filler import FILLER_RECORDS, filler_batch
from kmirror.cluster.protocol.isolation import BatchKind, Isolation
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.pieces import Hole, Run, pieces
from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.topics.trim import delete_records
from kmirror.engine.clock import now_ms
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.leader import OWN_ID, Leader, create_topic
from tests.support.logs import QUICK_SEEDS, BuiltLog
from tests.support.oracle import dump_log
from tests.support.real_logs import CODECS, CompactedTopic, producer_of
from tests.support.shared_clusters import forgetful_cluster
from tests.support.visible import COMMITTED, Bounds, assert_shows, assert_sound, bounds_of, shown

#: Above this many offsets a log's beginning is made of filler, as a mirror's is.
FEW = 300


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.2", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest) -> SandboxCluster:
    """Return a cluster whose cleaner is never idle."""
    return forgetful_cluster(request, request.param)


def offset_of(client: ClusterClient, partition: TopicPartition, which: int, *, read_committed: bool = False) -> int:
    found = client.list_offsets({partition: which}, read_committed=read_committed)[partition]
    assert found.offset is not None
    return found.offset


def copied(cluster: SandboxCluster, client: ClusterClient, topic: str) -> tuple[str, Counter[str]]:
    """Copy a log up to its last stable offset; return the copy's name and how many pieces of each kind there were."""
    copy = create_topic(cluster, settings={"max.message.bytes": "2000000"})
    source, destination = TopicPartition(topic, 0), TopicPartition(copy, 0)
    start = offset_of(client, source, EARLIEST)
    end = offset_of(client, source, LATEST, read_committed=True)
    filler = start if start > FEW else 0
    with Leader(cluster, copy) as leader:
        for offset in range(0, filler, FILLER_RECORDS):
            assert leader.append(filler_batch(min(FILLER_RECORDS, filler - offset), now_ms()), offset)[0] == 0
    found: Counter[str] = Counter()
    reader = PartitionReader(client, source, read_committed=True)
    position = start
    with OffsetAppender(client, destination, producer_id=OWN_ID) as out:
        while position < end:
            read = reader.read_known(position, max_bytes=100_000)
            if not isinstance(read, Batches):
                position = read.until  # offsets at the end that compaction has left nothing of
                continue
            isolation = Isolation(read.aborted_transactions)
            for header in read.headers:
                stored = read.data[header.position : header.position + header.size_in_bytes]
                kind = isolation.kind(stored)
                for piece in pieces(stored, start=position, visible=kind is BatchKind.DATA, max_bytes=1_000_000):
                    assert piece.base_offset == position
                    position = piece.next_offset
                    found[type(piece).__name__] += 1
                    if isinstance(piece, Run):
                        assert out.append(piece.data) == position
        if out.log_end_offset < end:
            out.fill(end)
    if start:
        assert delete_records(client, {destination: start})[destination].log_start_offset == start
    return copy, found


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_built_logs(cluster: SandboxCluster, client: ClusterClient, logs: dict[str, BuiltLog], seed: int) -> None:
    topic, log = next((topic, log) for topic, log in logs.items() if log.seed == seed)
    copy, _ = copied(cluster, client, topic)
    assert_shows(cluster, copy, 0, log.expected)
    assert bounds_of(cluster, copy) == Bounds(log.log_start_offset, log.last_stable_offset)


def codecs_of_records(cluster: SandboxCluster, topic: str) -> set[str]:
    """Return the codecs of the batches that have records of applications, according to Kafka's log dump."""
    batches = dump_log(cluster, topic)
    return {batch.compression.lower() for batch in batches if batch.count and not batch.is_control}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outcomes", "codecs"),
    [
        pytest.param([None] * 6, {"none", "gzip", "snappy", "lz4", "zstd"}, id="plain", marks=pytest.mark.long),
        # the third round is snappy's; of what was aborted the cleaner leaves nothing
        pytest.param([None, True, False, None, True, None], {"none", "gzip", "lz4", "zstd"}, id="transactions"),
    ],
)
def test_a_log_that_the_brokers_cleaner_has_compacted(
    cluster: SandboxCluster, client: ClusterClient, outcomes: list[bool | None], codecs: set[str]
) -> None:
    topic = unique_topic("compacted")
    log = CompactedTopic(cluster, topic, {})
    for commit in outcomes:
        log.write_round(commit=commit)
    log.wait_until_cleaned(log.write_round())
    log.freeze()
    wanted = shown(cluster, topic)
    assert any(record.value is None for record in wanted)
    assert codecs_of_records(cluster, topic) == codecs
    copy, found = copied(cluster, client, topic)
    assert found[Hole.__name__] > 20
    assert_shows(cluster, copy, 0, wanted, with_console=True)
    assert_sound(cluster, copy)
    assert codecs_of_records(cluster, copy) == codecs
    assert bounds_of(cluster, copy) == bounds_of(cluster, topic, 0, COMMITTED)
    with ClusterClient(client.config) as another:  # and the copy's copy is the same again
        again, _ = copied(cluster, another, copy)
        assert_shows(cluster, again, 0, wanted)


def test_a_log_that_its_broker_has_stamped(cluster: SandboxCluster, client: ClusterClient) -> None:
    topic = create_topic(cluster, settings={"message.timestamp.type": "LogAppendTime"})
    for codec in CODECS:
        producer = producer_of(cluster, topic, compression_type=codec)
        for number in range(30):
            producer.produce(topic, b"v" * number, b"k", timestamp=1_000_000 + number)
        assert producer.flush(30) == 0
        time.sleep(0.01)
    wanted = shown(cluster, topic)
    assert len({record.timestamp for record in wanted}) >= 5
    assert min(record.timestamp for record in wanted) > 1_600_000_000_000
    copy, _ = copied(cluster, client, topic)
    assert_shows(cluster, copy, 0, wanted, with_console=True)
    assert codecs_of_records(cluster, copy) == set(CODECS)
