"""Archives on real brokers, which forget producers in no time: every kind of log, whatever interrupts the archiving.

What an archive holds is read by librdkafka, what it should hold too; leader epochs and codecs come from Kafka's own
log dump.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import COMPRESSION_TYPES
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.filler import FILLER_KEY, filler_batch
from kmirror.cluster.protocol.metadata import ClusterMetadata
from kmirror.cluster.protocol.produce import API_KEY as PRODUCE
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.archive.archive_topic import archive_producer_id
from kmirror.engine.archive.archiving import ArchiveSpec, PartitionRanges, archive_topic
from kmirror.engine.bulk.runner import Threads
from kmirror.engine.clock import now_ms
from kmirror.errors import BrokerError, RefusedError
from kmirror.state.archive_proofs import Proof
from kmirror.work import WorkView
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.acls import create_in_force
from tests.support.archiving import ArchiveProcess, assert_holds, check, is_saved, make_archive, save
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.late_wire import Fate
from tests.support.leader import Leader, create_topic
from tests.support.librdkafka import librdkafka
from tests.support.log_batches import VisibleRecord
from tests.support.logs import BuiltLog
from tests.support.oracle import dump_log, dump_logs, librdkafka_records
from tests.support.real_logs import start_at, write
from tests.support.saved_topics import (
    DAY_MS,
    KEEPS_ALL,
    SHORT_MEMORY,
    StoppedError,
    assert_saved,
    cluster,
    make_topic,
    quick_to_believe,
    short_memory,
    small_batches,
    stop_after,
)
from tests.support.shared_clusters import FORGETFUL, ForgetfulCluster
from tests.support.topics import set_topic
from tests.support.visible import bounds_of, shown

__all__ = ["cluster", "quick_to_believe", "short_memory", "small_batches"]


# -- every kind of log -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_logs_of_every_kind(cluster: SandboxCluster, logs: dict[str, BuiltLog]) -> None:
    def save_log(topic: str, log: BuiltLog) -> str:
        archive = make_archive(cluster, topic)
        ranges = [(log.log_start_offset, log.last_stable_offset)]
        done = save(cluster, topic, archive, ranges)
        assert done.guarded
        assert done.records == len(log.expected), log.seed
        assert_holds(cluster, archive, log.expected)
        found = check(cluster, topic, archive, ranges)
        assert found.equal, (log.seed, found)
        assert found.records == len(log.expected)
        return archive

    with ThreadPoolExecutor(4) as pool:
        archives = dict(zip(pool.map(save_log, logs, logs.values()), logs.values(), strict=True))
    for archive, batches in dump_logs(cluster, archives).items():
        assert all(batch.is_valid for batch in batches)
        copied = Counter[str]()
        for batch in batches:
            copied[batch.compression.lower()] += 0 if batch.is_control else batch.count
        assert +copied == records_by_codec(archives[archive])


def records_by_codec(log: BuiltLog) -> Counter[str]:
    """Count the records that consumers are shown of a log, by the codecs of their batches."""
    expected = {record.offset for record in log.expected}
    counted = Counter[str]()
    for batch in log.batches:
        if batch.marker is None:
            counted[batch.codec.removesuffix("-raw")] += sum(record.offset in expected for record in batch.records)
    return +counted


def test_codecs_and_leader_epochs_are_kept(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster)
    for codec in COMPRESSION_TYPES:
        write(cluster, topic, 40, compression_type=codec)
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, 200)])
    (epoch,) = {batch.partition_leader_epoch for batch in dump_log(cluster, topic)}
    assert_holds(cluster, archive, shown(cluster, topic), epoch)
    batches = [batch for batch in dump_log(cluster, archive) if not batch.is_control]
    assert all(batch.is_valid for batch in batches)
    assert [(batch.compression.lower(), batch.count) for batch in batches] == [(one, 40) for one in COMPRESSION_TYPES]


def test_some_ranges_only(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 40)
    archive = make_archive(cluster, topic)
    ranges = [(3, 7), (7, 8), (12, 12), (20, 39)]
    assert save(cluster, topic, archive, ranges).records == 5 + 19
    assert_saved(cluster, topic, archive, ranges)


def test_null_keys_values_and_headers_of_an_archive(cluster: SandboxCluster) -> None:
    """An archive of what was restored from an archive with its headers: the last three count."""
    headers: tuple[tuple[str, bytes | None], ...]
    headers = (("kmirror.offset", b"7"), ("kmirror.leader.epoch", b"1"), ("kmirror.timestamp", b"5"), ("h", None))
    records = [
        VisibleRecord(0, now_ms(), None, None),
        VisibleRecord(1, now_ms(), b"", b"", headers),
        VisibleRecord(2, now_ms(), b"k", None, headers[:3]),
    ]
    topic = make_topic(cluster)
    write(cluster, topic, records)
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, 3)])
    assert_holds(cluster, archive, records)
    assert_saved(cluster, topic, archive, [(0, 3)])


def test_a_log_that_starts_above_0(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster)
    start_at(cluster, topic, 1000, 30)
    archive = make_archive(cluster, topic)
    assert save(cluster, topic, archive, [(0, 1030)]).records == 30
    assert_saved(cluster, topic, archive, [(0, 1030)])


@pytest.mark.slow
def test_filler_of_ours_is_omitted(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster)
    left_over = Record(0, now_ms(), FILLER_KEY, None)
    with Leader(cluster, topic) as leader:
        assert leader.append(filler_batch(100_000, now_ms()), 0) == (0, 0)
        assert leader.append(filler_batch(77, now_ms()), 100_000) == (0, 100_000)
        assert leader.append(make_batch([left_over]), 100_077) == (0, 100_077)
    # what an application writes is saved, whatever it is
    write(cluster, topic, [VisibleRecord(0, now_ms(), FILLER_KEY, None), VisibleRecord(0, now_ms(), b"k", b"v")])
    archive = make_archive(cluster, topic)
    assert save(cluster, topic, archive, [(0, 100_080)]).records == 2
    assert_holds(cluster, archive, shown(cluster, topic)[-2:])
    assert check(cluster, topic, archive, [(0, 100_080)]).records == 2


def test_a_record_of_ten_megabytes(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster)
    old = now_ms() - 30 * DAY_MS
    content = random.Random(1).randbytes(10_000_000)
    records = [VisibleRecord(0, old, b"k", b"v"), VisibleRecord(1, old, b"k", content, (("h", b"1"),))]
    write(cluster, topic, records, message_max_bytes=20_000_000)
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, 2)])
    assert_saved(cluster, topic, archive, [(0, 2)])


def test_an_archive_that_takes_small_batches_only(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 60, old=10)
    archive = make_archive(cluster, topic)
    set_topic(cluster, archive, {"max.message.bytes": "2000"})
    assert save(cluster, topic, archive, [(0, 60)]).records == 60
    assert_saved(cluster, topic, archive, [(0, 60)])
    write(cluster, topic, [VisibleRecord(60, now_ms(), b"k", b"v"), VisibleRecord(61, now_ms(), b"k", b"v" * 1950)])
    too_large = r"at most 2,000 bytes, .* the record at offset 61 alone takes 2,"
    with pytest.raises(RefusedError, match=too_large) as refused:
        save(cluster, topic, archive, [(0, 62)])
    size = re.search(r"max\.message\.bytes=(\d+) or more", refused.value.hint or "")
    assert size is not None
    set_topic(cluster, archive, {"max.message.bytes": size[1]})
    save(cluster, topic, archive, [(0, 62)])
    assert_saved(cluster, topic, archive, [(0, 62)])


def test_a_log_that_shows_nothing_has_an_empty_archive(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster)
    archive = make_archive(cluster, topic)
    assert save(cluster, topic, archive, []).records == 0
    assert_saved(cluster, topic, archive, [])


# -- old records -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
def test_old_records_that_make_brokers_forget(cluster: SandboxCluster) -> None:
    """The leader still knows our producer after each batch, so that no one else can write."""
    now = now_ms()
    topic = make_topic(cluster)
    ages = [30 * DAY_MS, 3650 * DAY_MS, -3650 * DAY_MS, now, 40 * DAY_MS]
    stamps = [now - ages[n // 12] + n for n in range(60)]
    write(cluster, topic, [VisibleRecord(0, at, b"k", b"value %d " % n * 9) for n, at in enumerate(stamps)])
    archive = make_archive(cluster, topic)
    batches = 0

    def pass_time(_: int) -> None:
        nonlocal batches
        batches += 1
        time.sleep(0.15)  # longer than the broker waits between its looks at what it may forget
        with Leader(cluster, archive) as leader:
            remembered = leader.producer(archive_producer_id(leader.partition))
            assert remembered is not None
            assert remembered.last_timestamp >= now

    save(cluster, topic, archive, [(0, 60)], pass_time)
    assert batches > 10
    assert_saved(cluster, topic, archive, [(0, 60)])
    assert [record.timestamp for record in librdkafka_records(cluster.bootstrap_servers, archive)] == stamps


# -- interrupted -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
def test_stopped_and_started_again_it_resumes_exactly(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 100, old=30)
    archive = make_archive(cluster, topic)
    ranges = [(0, 41), (50, 51), (55, 100)]
    saved = 0
    for batches in (1, 1, 2, 5, 3):
        before = len(librdkafka_records(cluster.bootstrap_servers, archive))
        with pytest.raises(StoppedError):
            save(cluster, topic, archive, ranges, stop_after(batches))
        saved = len(librdkafka_records(cluster.bootstrap_servers, archive))
        assert saved > before
    done = save(cluster, topic, archive, ranges)
    assert done.resumed_after is not None
    assert done.records == 87 - saved
    assert_saved(cluster, topic, archive, ranges)
    again = save(cluster, topic, archive, ranges)
    assert (again.records, again.resumed_after) == (0, 99)
    assert_saved(cluster, topic, archive, ranges)


@pytest.mark.slow
def test_killed_at_random_it_resumes_exactly(cluster: SandboxCluster) -> None:
    count = 4000
    topic = make_topic(cluster, count, old=300)
    archive = make_archive(cluster, topic)
    chance = random.Random()
    for kills in range(3):
        one = ArchiveProcess(cluster, topic, archive, 0, count, 1000)
        try:
            is_running = one.wait_for_batches(chance.randrange(1, 60))
            time.sleep(chance.random() * 0.02)
        finally:
            one.kill()
        assert is_running, f"it ended before it could be killed the {kills}. time"
    before = len(librdkafka_records(cluster.bootstrap_servers, archive))
    done = save(cluster, topic, archive, [(0, count)])
    assert 0 < done.records == count - before
    assert_saved(cluster, topic, archive, [(0, count)])


@pytest.mark.slow
def test_hundreds_of_interruptions_are_no_obstacle(cluster: SandboxCluster) -> None:
    """Each leaves a marker behind the last record, and the next one has to find that."""
    topic = make_topic(cluster, 10)
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, 5)])
    for _ in range(40):
        assert save(cluster, topic, archive, [(0, 5)]).resumed_after == 4
    assert save(cluster, topic, archive, [(0, 10)]).records == 5
    assert_saved(cluster, topic, archive, [(0, 10)])


# -- as Spark tasks do it ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_to_believe")
def test_one_bad_partition_does_not_stop_the_others(cluster: SandboxCluster) -> None:
    topic = unique_topic("saved")
    create_topics(cluster, {topic: KEEPS_ALL}, partitions=3)
    for partition in range(3):
        write(cluster, topic, 10 + partition, partition)
    archive = make_archive(cluster, topic, 3)
    with ClusterClient(client_config(cluster.client_properties())) as client:
        topic_id = client.metadata([topic]).topics[topic].printed_topic_id
    ranges = [(0, 10), (0, 1000), (2, 12)]
    wanted = tuple(PartitionRanges(index, (one,)) for index, one in enumerate(ranges))
    spec = ArchiveSpec(cluster.client_properties(), topic, archive, topic_id, wanted)
    proofs: dict[int, Proof] = {}
    result = archive_topic(spec, Threads(), on_proved=proofs.update)
    assert [one.saved for one in result.outcomes] == [True, False, True]
    assert "ends at offset 11" in str(result.outcomes[1].trouble)
    # what was proved is not done again
    assert {p: proof.records for p, proof in proofs.items()} == {0: 10, 2: 10}
    spec = replace(spec, partitions=(wanted[0], PartitionRanges(1, ((0, 11),)), wanted[2]))
    views: list[WorkView] = []
    assert is_saved(archive_topic(spec, Threads(), views.append, proved=proofs))
    assert {view.total for view in views} == {11}
    # unless the archive is another one, or has been written to since
    views.clear()
    other = {0: proofs[0]._replace(archive_id="AAAAAAAAAAAAAAAAAAAAAQ"), 2: proofs[2]._replace(end=1)}
    assert is_saved(archive_topic(spec, Threads(), views.append, proved=other))
    assert {view.total for view in views} >= {31}
    assert_holds(cluster, archive, shown(cluster, topic, 2)[2:], partition=2)


def test_a_topic_that_was_created_again_is_not_archived(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 5)
    archive = make_archive(cluster, topic)
    properties = cluster.client_properties()
    spec = ArchiveSpec(properties, topic, archive, "AAAAAAAAAAAAAAAAAAAAAQ", (PartitionRanges(0, ((0, 5),)),))
    (outcome,) = archive_topic(spec, Threads()).outcomes
    assert not outcome.saved
    assert "no longer exists; one with id" in str(outcome.trouble)
    assert librdkafka_records(cluster.bootstrap_servers, archive) == []


def test_a_topic_that_cannot_be_looked_up_is_not_gone(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make_topic(cluster, 5)
    archive = make_archive(cluster, topic)
    with ClusterClient(client_config(cluster.client_properties())) as client:
        topic_id = client.metadata([topic]).topics[topic].printed_topic_id
    spec = ArchiveSpec(cluster.client_properties(), topic, archive, topic_id, (PartitionRanges(0, ((0, 5),)),))
    metadata, unknown = ClusterClient.metadata, {topic}

    def looked_up(self: ClusterClient, topics: Iterable[str] | None = None, **how: Any) -> ClusterMetadata:
        """Answer as while a broker is down that may know them."""
        found = metadata(self, topics, **how)
        if isinstance(topics, list) and unknown & set(topics):
            code = int(Code.BROKER_NOT_AVAILABLE)
            return replace(found, topics={n: replace(one, error_code=code) for n, one in found.topics.items()})
        return found

    monkeypatch.setattr(ClusterClient, "metadata", looked_up)
    (outcome,) = archive_topic(spec, Threads()).outcomes
    assert str(outcome.trouble).startswith(f"looking up {topic}: BROKER_NOT_AVAILABLE")
    unknown = {archive}
    with pytest.raises(BrokerError, match=f"looking up {archive}: BROKER_NOT_AVAILABLE"):
        archive_topic(spec, Threads())
    assert bounds_of(cluster, archive).end == 0
    unknown = set()
    assert archive_topic(spec, Threads()).proofs.keys() == {0}


# -- over a network that loses requests --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fate", [Fate.LATE, *(pytest.param(fate, marks=pytest.mark.long) for fate in (Fate.LOST, Fate.UNANSWERED))]
)
@pytest.mark.usefixtures("small_batches", "short_memory")
def test_lost_requests(forgetful: ForgetfulCluster, monkeypatch: pytest.MonkeyPatch, fate: Fate) -> None:
    monkeypatch.setattr("kmirror.cluster.append.SETTLE_S", 0.3)
    cluster, wire = forgetful.behind_late_wire, forgetful.late_wire
    topic = make_topic(cluster, 30, old=15)
    archive = make_archive(cluster, topic)
    wire.plan(fate, fate)  # for markers: each copy begins with one
    wire.plan(fate, Fate.ANSWERED, fate, api_key=PRODUCE)
    save(cluster, topic, archive, [(0, 30)])
    assert wire.all_met
    end = bounds_of(cluster, archive).end
    assert len(wire.deliver()) == (4 if fate is Fate.LATE else 0)
    assert bounds_of(cluster, archive).end == end
    assert_saved(cluster, topic, archive, [(0, 30)])


# -- rights ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_without_the_right_to_write_markers(make_cluster: MakeCluster) -> None:
    secured = make_cluster("rights", secured=True, authorizer=True, properties={**FORGETFUL, **SHORT_MEMORY})
    config = librdkafka(client_config(secured.client_properties()))
    topic = create_topic(secured)
    producer = Producer(config)
    for number in range(20):
        producer.produce(topic, b"v%d" % number, timestamp=now_ms() - 30 * DAY_MS)
    assert producer.flush(30) == 0
    archive = make_archive(secured, topic)
    rules = [
        AclBinding(
            ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:kmirror", "*", one, AclPermissionType.ALLOW
        )
        for name in (topic, archive)
        for one in (AclOperation.READ, AclOperation.WRITE)
    ]
    admin = AdminClient(config)
    create_in_force(admin, rules)
    wanted = (PartitionRanges(0, ((0, 20),)),)
    result = archive_topic(ArchiveSpec(secured.client_properties("kmirror"), topic, archive, None, wanted), Threads())
    assert is_saved(result), result
    archived = result.outcomes[0].archived
    assert archived is not None
    assert not archived.guarded
    saved = librdkafka_records(secured.bootstrap_servers, archive, config=config)
    assert [record.value for record in saved] == [b"v%d" % number for number in range(20)]
