"""Every kind of log that real software makes, mirrored at the same offsets; librdkafka and Kafka's tools compare.

All cases share two brokers whose cleaners are never idle. What does not change is copied by one engine; what does is
written while another one runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.engine import Engine
from tests.support.installed_logs import create_topics, read_checkpoint
from tests.support.log_batches import VisibleRecord
from tests.support.mirrored import Mirrored
from tests.support.oracle import dump_log, librdkafka_records
from tests.support.real_logs import BUSY, DAY_MS, CompactedTopic, delete_records, start_at, write
from tests.support.shared_clusters import ForgetfulCluster, TieredPair
from tests.support.still_logs import FOREVER, LARGE_BYTES, STILL, TOO_LARGE_TO_PRINT
from tests.support.stored import log_dir_of
from tests.support.streams import INPUT, OUTPUT, WordCount
from tests.support.tiered_logs import TIERED_LOGS
from tests.support.tiers import IN_SEGMENT, local_start, make_tiered
from tests.support.topics import set_topic
from tests.support.transactions import KEPT, OpenTransaction, TransactionWriters
from tests.support.visible import (
    COMMITTED,
    Bounds,
    assert_all_sound,
    assert_sound,
    bounds_of,
    latest_values,
    replica_difference,
    shown,
    unsuperseded,
)
from tests.support.waiting import PATIENCE_S, wait_until

THREE = {"default.replication.factor": "3", "min.insync.replicas": "2", **BUSY}


@pytest.fixture(scope="module")
def source(busy_cluster: SandboxCluster) -> SandboxCluster:
    return busy_cluster


@pytest.fixture(scope="module")
def destination(forgetful: ForgetfulCluster) -> SandboxCluster:
    return forgetful.cluster


# -- logs that do not change -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def still(
    source: SandboxCluster, destination: SandboxCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mirrored]:
    """Return a mirror whose source does not change, when it is copied."""
    with ThreadPoolExecutor(4) as pool:  # it is mostly waiting
        for made in [pool.submit(make, source, name) for name, make in STILL.items()]:
            made.result()
    with Mirrored(source, destination, tmp_path_factory.mktemp("still"), dict.fromkeys(STILL, 1)) as mirror:
        mirror.create()
        assert {row["topicState"] for row in mirror.rows().values()} == {"PENDING_MIRROR"}
        # a partition that fails is the matter of its own test
        mirror.copy(exit_codes=(0, 4, 7))
        yield mirror


@pytest.mark.parametrize("name", STILL)
def test_a_log_that_does_not_change(still: Mirrored, name: str) -> None:
    row = still.rows()[name, 0]
    assert row["state"] != "FAILED", row
    # fit for readers; no engine runs any more
    assert (row["topicState"], row["reason"]) == ("LINK_FAILED", "NO_ENGINE"), row
    still.compare([(name, 0)], with_console=name not in TOO_LARGE_TO_PRINT)


def test_the_batches_of_all_copies_are_sound(still: Mirrored) -> None:
    assert_all_sound(still.destination, STILL)


def test_kmirror_finds_all_of_them_equal(still: Mirrored) -> None:
    still.verify()


def test_the_sources_were_what_they_are_called(still: Mirrored) -> None:
    source = still.source
    assert any(0 < batch.count <= batch.last_offset - batch.base_offset for batch in dump_log(source, "compacted"))
    assert any(batch.count == 0 for batch in dump_log(source, "compacted_with_transactions"))
    assert bounds_of(source, "compacted_and_deleted").start > 0
    assert bounds_of(source, "emptied") == Bounds(1000, 1000)
    stamped = librdkafka_records(source.bootstrap_servers, "stamped_for_a_while")
    kinds = [kind for kind, _ in groupby(record.timestamp_type for record in stamped)]
    assert kinds == ["CreateTime", "LogAppendTime", "CreateTime"]
    assert max(len(record.value or b"") for record in shown(source, "large_records")) == LARGE_BYTES


# -- logs in a store ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiered(started_tiered_pair: TieredPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    """Return a mirror of tiered topics that do not change, when it is copied; its own topics are tiered too."""
    source, destination = started_tiered_pair.source, started_tiered_pair.destination
    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(make, source, name) for name, make in TIERED_LOGS.items()]:
            made.result()
    folder = tmp_path_factory.mktemp("tiered")
    with Mirrored(source, destination, folder, dict.fromkeys(TIERED_LOGS, 1)) as mirror:
        mirror.create()
        for name in TIERED_LOGS:
            make_tiered(destination, name)
        mirror.copy()
        yield mirror


@pytest.mark.slow
@pytest.mark.parametrize("name", TIERED_LOGS)
def test_a_log_in_the_store(tiered: Mirrored, name: str) -> None:
    tiered.compare([(name, 0)])


@pytest.mark.slow
def test_kmirror_finds_all_logs_in_the_store_equal(tiered: Mirrored) -> None:
    """Those of the mirror are in a store as well."""
    ends = {name: bounds_of(tiered.destination, name) for name in TIERED_LOGS}
    long = [name for name, (start, end) in ends.items() if end - start > 2 * IN_SEGMENT]
    assert len(long) >= 5
    for name in long:
        wait_until(lambda name=name: local_start(tiered.destination, name) > ends[name].start)  # type: ignore[misc]
    tiered.verify()


@pytest.mark.slow
def test_the_logs_in_the_store_were_what_they_are_called(tiered: Mirrored) -> None:
    source = tiered.source
    for name in TIERED_LOGS:
        start, end = bounds_of(source, name)
        assert start == end or local_start(source, name) > start, name
    assert bounds_of(source, "emptied_in_the_store") == Bounds(400, 400)
    assert bounds_of(source, "in_the_store_until_retention").start > 0
    seen = shown(source, "in_the_store_with_transactions")
    assert len(seen) < bounds_of(source, "in_the_store_with_transactions").end - 100, "no record was aborted"


# -- logs that are written meanwhile -----------------------------------------------------------------------------------

PARTITIONS = 6
OPEN = ("commit", "abort", "kill")


@dataclass
class Live:
    """A running mirror of everything that changes while it runs."""

    transactions: str
    open: dict[str, str]
    compacting: CompactedTopic
    cleaned_there: CompactedTopic
    mirror: Mirrored
    engine: Engine


def write_words(source: SandboxCluster) -> None:
    """Write sentences for the word count."""
    sentence = b"the quick brown fox jumps over the lazy dog"
    write(source, INPUT, [VisibleRecord(0, int(time.time() * 1000), None, sentence)] * 100)


@pytest.fixture(scope="module")
def live(
    source: SandboxCluster, destination: SandboxCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    with ExitStack() as stack:
        transactions, open_topics = unique_topic("transactions"), {end: unique_topic(f"open-{end}") for end in OPEN}
        create_topics(source, {transactions: FOREVER}, PARTITIONS)
        create_topics(source, dict.fromkeys(open_topics.values(), FOREVER))
        compacting = CompactedTopic(source, unique_topic("compacting"), {})
        # the source leaves this one alone, and so does the destination until it is changed
        cleaned_there = CompactedTopic(source, unique_topic("cleaned-there"), {"min.compaction.lag.ms": str(DAY_MS)})
        single = (*open_topics.values(), compacting.topic, cleaned_there.topic)
        topics = {transactions: PARTITIONS, **dict.fromkeys(single, 1)}
        mirror = stack.enter_context(Mirrored(source, destination, folder, topics))
        mirror.create()
        engine = mirror.engine()
        yield Live(transactions, open_topics, compacting, cleaned_there, mirror, engine)
        assert engine.stop() == 0, engine.output


def mirror_transactions(live: Live, transactions: int, seconds: float) -> None:
    """Mirror transactions of five producers while they are written; 30 % are aborted."""
    mirror, topic = live.mirror, live.transactions
    before = {partition: len(shown(mirror.source, *partition)) for partition in mirror.places if partition[0] == topic}
    with TransactionWriters(mirror.source, topic, PARTITIONS, transactions, in_halves=True) as writers:
        start = bounds_of(mirror.destination, topic).end
        mirror.wait(live.engine, lambda: bounds_of(mirror.destination, topic).end > start, topics=[topic])
        written = writers.wait(seconds)
    mirror.wait_until_equal(live.engine, [topic], stable=True)
    seen = mirror.compare(list(before), with_console=True)
    assert {partition[1]: len(records) - before[partition] for partition, records in seen.items()} == written.kept
    assert all((record.value or b"").startswith(KEPT) for records in seen.values() for record in records)
    assert written.dropped > transactions // 2
    assert_sound(mirror.destination, topic)


@pytest.mark.long
def test_transactions_mirrored_while_they_run(live: Live) -> None:
    mirror_transactions(live, 1000, 120)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_thousand_transactions(live: Live) -> None:
    mirror_transactions(live, 10_000, 600)


def hold_open(live: Live, end: str, held_s: float) -> None:
    """Hold a transaction open, with other records behind it, and end it in this way."""
    mirror, topic = live.mirror, live.open[end]
    start = bounds_of(mirror.source, topic).end
    write(mirror.source, topic, 100)
    with OpenTransaction(mirror.source, topic, timeout_ms=10_000 if end == "kill" else 900_000) as transaction:
        write(mirror.source, topic, 100)
        mirror.wait(live.engine, lambda: bounds_of(mirror.destination, topic).end == start + 100, topics=[topic])
        if end == "kill":
            transaction.kill()
        held_until = time.monotonic() + held_s
        while time.monotonic() < held_until:
            copied = bounds_of(mirror.destination, topic).end
            # what is undecided is not copied
            assert copied == start + 100 or bounds_of(mirror.source, topic, isolation=COMMITTED).end > start + 100
            time.sleep(0.2)
        if held_s > 60:
            row = mirror.rows()[topic, 0]
            assert row["reason"] == "OPEN_TRANSACTION", row
            assert str(start + 100) in row["errorMessage"], row
        if end != "kill":  # else its coordinator aborts it
            (transaction.commit if end == "commit" else transaction.abort)()
        mirror.wait_until_equal(live.engine, [topic], stable=True)
    (seen,) = mirror.compare([(topic, 0)], with_console=True).values()
    assert len([record for record in seen if record.offset >= start]) == (210 if end == "commit" else 200)
    assert bounds_of(mirror.destination, topic).end == start + 211


@pytest.mark.long
@pytest.mark.parametrize("end", OPEN)
def test_a_transaction_that_stays_open_for_a_while(live: Live, end: str) -> None:
    hold_open(live, end, 1.5)


@pytest.mark.long
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_transaction_that_stays_open_for_minutes(live: Live, end: str) -> None:
    hold_open(live, end, 150)


@pytest.mark.long
def test_kafka_streams_exactly_once_output(live: Live, tmp_path: Path) -> None:
    mirror = live.mirror
    with WordCount(mirror.source, tmp_path) as words:
        words.start()
        write_words(mirror.source)
        wait_until(lambda: bounds_of(mirror.source, OUTPUT, isolation=COMMITTED).end > 100, 60)
        topics = (INPUT, *words.topics())
        for topic in topics:
            mirror.add(topic)
        mirror.wait_until_equal(live.engine, topics)
        write_words(mirror.source)
        words.kill()
        words.start()
        write_words(mirror.source)
        written = bounds_of(mirror.source, INPUT).end
        wait_until(lambda: latest_values(shown(mirror.source, OUTPUT)).get(b"fox") == written.to_bytes(8), 60)
        words.stop()
        mirror.wait_until_equal(live.engine, topics, stable=True)
        seen = mirror.compare([(topic, 0) for topic in topics], with_console=True)
        is_transactional = any(batch.is_transactional for batch in dump_log(mirror.source, OUTPUT))
    assert latest_values(seen[OUTPUT, 0])[b"dog"] == written.to_bytes(8)
    assert is_transactional


def assert_compacted_alike(mirror: Mirrored, topic: str) -> None:
    """Compare a topic that both clusters' cleaners work on."""
    at_source, at_destination = shown(mirror.source, topic), shown(mirror.destination, topic)
    assert unsuperseded(at_source, at_destination) is None, unsuperseded(at_source, at_destination)
    assert latest_values(at_destination) == latest_values(at_source)
    assert bounds_of(mirror.destination, topic).end == bounds_of(mirror.source, topic).end


def test_compacted_while_it_is_copied(live: Live) -> None:
    made = live.compacting
    for number in range(10):
        made.write_round(commit=[None, True, False][number % 3])
    made.wait_until_cleaned(made.write_round())
    live.mirror.wait_until_equal(live.engine, [made.topic], stable=True)
    assert_compacted_alike(live.mirror, made.topic)


def test_the_destination_s_cleaner_works_on_a_mirrored_topic(live: Live) -> None:
    made, mirror = live.cleaned_there, live.mirror
    for number in range(6):
        made.write_round(commit=[None, True, False][number % 3])
    mirror.wait_until_equal(live.engine, [made.topic], stable=True)
    before = shown(mirror.destination, made.topic)
    set_topic(mirror.destination, made.topic, {"min.compaction.lag.ms": "0"})
    last_round = made.write_round()  # closes the segments before it
    checkpoint = log_dir_of(mirror.destination) / "cleaner-offset-checkpoint"
    wait_until(lambda: read_checkpoint(checkpoint).get((made.topic, 0), 0) >= last_round, 60)
    assert len(shown(mirror.destination, made.topic)) < len(before)
    for commit in (False, True, None):
        made.write_round(commit=commit)
    mirror.wait_until_equal(live.engine, [made.topic], stable=True)
    assert_compacted_alike(mirror, made.topic)


# -- readers of a topic whose log starts late --------------------------------------------------------------------------


def read_all(cluster: SandboxCluster, pattern: str, until: threading.Event, seen: list[VisibleRecord]) -> None:
    """Read whatever topics of this pattern there are, from before they exist on."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": unique_topic("reader"),
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 100,
            "metadata.max.age.ms": 300,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([pattern])
    try:
        while not until.is_set():
            for message in consumer.consume(1000, timeout=0.1):
                error = message.error()
                # until it exists, and when its start moves on
                assert not error or error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._AUTO_OFFSET_RESET}
                if not error:
                    key, value = message.key(), message.value()
                    seen.append(VisibleRecord(message.offset(), message.timestamp()[1], key, value))
    finally:
        consumer.close()


@pytest.mark.long
def test_what_readers_of_a_pattern_are_shown_while_a_late_start_is_made(
    source: SandboxCluster, destination: SandboxCluster, tmp_path: Path
) -> None:
    topic, start = unique_topic("watched"), 200_000
    create_topics(source, {topic: FOREVER})
    start_at(source, topic, start, 500)
    seen: list[VisibleRecord] = []
    until = threading.Event()
    reader = threading.Thread(target=read_all, args=(destination, f"^{topic}", until, seen))
    reader.start()
    try:
        with Mirrored(source, destination, tmp_path, {topic: 1}) as mirror:
            mirror.create()
            mirror.copy()
            (wanted,) = mirror.compare().values()
        wait_until(lambda: any(record.offset == start + 499 for record in seen), 60)
    finally:
        until.set()
        reader.join(PATIENCE_S)
    assert [record for record in seen if record.offset >= start] == wanted
    too_early = [record for record in seen if record.offset < start]
    assert all(record.value is None for record in too_early)
    print(f"a reader of the pattern was shown {len(too_early)} fillers of {start}")  # noqa: T201 - with -s, for the docs


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_log_that_starts_at_a_hundred_million(
    source: SandboxCluster, destination: SandboxCluster, tmp_path: Path
) -> None:
    topic, start = unique_topic("far"), 100_000_000
    create_topics(source, {topic: FOREVER})
    start_at(source, topic, start, 1000)
    with Mirrored(source, destination, tmp_path, {topic: 1}) as mirror:
        mirror.create()
        mirror.copy(600)
        mirror.compare(with_console=True)
        mirror.verify()
    assert bounds_of(destination, topic) == Bounds(start, start + 1000)


# -- records that the source deletes later -----------------------------------------------------------------------------


@pytest.mark.long
def test_the_mirror_s_log_start_follows_its_source_s(
    source: SandboxCluster, destination: SandboxCluster, tmp_path: Path
) -> None:
    followed, lost = unique_topic("followed"), unique_topic("lost")
    create_topics(source, {followed: FOREVER | {"cleanup.policy": "compact,delete"}, lost: FOREVER})
    for topic in (followed, lost):
        write(source, topic, 100)
    with Mirrored(source, destination, tmp_path, {followed: 1, lost: 1}) as mirror:
        mirror.create("refresh.interval.seconds=1", "follow.log.start.delay.ms=1500")
        mirror.copy()
        # what is deleted before it was copied is not deleted in the mirror, which has what the source has lost
        write(source, lost, 100)
        delete_records(source, lost, 150)
        engine = mirror.engine()
        mirror.wait(engine, lambda: mirror.rows()[lost, 0]["state"] == "FAILED", topics=[followed])
        delete_records(source, followed, 60)
        mirror.wait(engine, lambda: bounds_of(destination, followed).start == 60, topics=[followed])
        write(source, followed, 10)
        mirror.wait_until_equal(engine, [followed], stable=True)
        time.sleep(3)
        assert engine.stop() == 7
        mirror.compare([(followed, 0)], with_console=False)
        assert bounds_of(destination, lost) == Bounds(0, 100)
        assert mirror.rows()[lost, 0]["reason"] == "SOURCE_TRUNCATED"


# -- leaders and replicas ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_replicas_are_identical_after_leader_changes(
    source: SandboxCluster, make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """Holes are filled and transactions copied by three brokers whose leaders are killed."""
    destination = make_cluster("three", brokers=3, properties=THREE)
    transactions = unique_topic("transactions")
    create_topics(source, {transactions: FOREVER}, 3)
    holes = CompactedTopic(source, unique_topic("holes"), {})
    holes.write_and_clean(transactions=True)
    holes.freeze()
    late = unique_topic("late")
    create_topics(source, {late: FOREVER})
    start_at(source, late, 250_000, 1000)
    with Mirrored(source, destination, tmp_path, {transactions: 3, holes.topic: 1, late: 1}) as mirror:
        mirror.create()
        engine = mirror.engine()
        with TransactionWriters(source, transactions, 3, 1500) as writers:
            for _ in range(2):
                node = mirror.leader(transactions)
                start = bounds_of(destination, transactions).end
                mirror.wait(engine, lambda start=start: bounds_of(destination, transactions).end > start)  # type: ignore[misc]
                destination.kill(node)
                time.sleep(1)
                destination.start_broker(node)
                mirror.wait(engine, lambda: mirror.is_in_sync(3), 90)
            writers.wait(240)
        mirror.wait_until_equal(engine, seconds=120, stable=True)
        assert engine.stop() == 0
        mirror.compare()
        wait_until(lambda: mirror.is_in_sync(3), 60)
        destination.stop()
        for partition in mirror.places:
            assert replica_difference(destination, *partition) is None, replica_difference(destination, *partition)
