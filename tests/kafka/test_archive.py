"""Archives on real brokers, which forget producers in no time: every kind of log, interrupted, and two at once.

What an archive holds is read by librdkafka, what it should hold too; leader epochs and codecs come from Kafka's own
log dump.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier
from typing import cast

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

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import COMPRESSION_TYPES
from kmirror.cluster.protocol.filler import FILLER_KEY, filler_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import API_KEY as PRODUCE
from kmirror.cluster.protocol.records import Record, make_batch
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.archive import copy as archive_copy
from kmirror.engine.archive.archive_topic import archive_producer_id
from kmirror.engine.archive.archiving import ArchiveSpec, PartitionRanges, archive_topic
from kmirror.errors import HistoriesDifferError, KmirrorError, Reason, RefusedError
from kmirror.sandbox.cluster import SandboxCluster
from kmirror.sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.acls import create_in_force
from tests.support.archiving import ArchiveProcess, assert_holds, check, make_archive, save
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.installed_logs import create_topics
from tests.support.late_wire import Fate
from tests.support.leader import Leader, create_topic
from tests.support.log_batches import VisibleRecord
from tests.support.logs import BuiltLog
from tests.support.oracle import dump_log, dump_logs, librdkafka_records
from tests.support.producers import whole_batches
from tests.support.real_logs import delete_records, start_at, write
from tests.support.shared_clusters import FORGETFUL, ForgetfulCluster, forgetful_cluster, set_brokers
from tests.support.transactions import OpenTransaction
from tests.support.visible import bounds_of, shown
from tests.support.waiting import wait_until

DAY_MS = 86_400_000
#: How long brokers remember a producer.
SHORT_MEMORY = {"producer.id.expiration.ms": "3000"}
KEEPS_ALL = {
    "retention.ms": "-1",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "max.message.bytes": "100000000",
}


@pytest.fixture(scope="module", params=["4.3.1", pytest.param("3.9.2", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest) -> SandboxCluster:
    """Return a cluster that forgets producers whose last record is three seconds old."""
    if request.param == DEFAULT_KAFKA_VERSION:
        request.getfixturevalue("short_memory")
    return forgetful_cluster(request, request.param, SHORT_MEMORY)


@pytest.fixture(scope="module")
def short_memory(forgetful: ForgetfulCluster) -> Iterator[None]:
    """Let the shared cluster forget so quickly while this module uses it."""
    set_brokers(forgetful.cluster, SHORT_MEMORY)
    yield
    set_brokers(forgetful.cluster, dict.fromkeys(SHORT_MEMORY))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have archives written in batches of some five of the records that `make_topic` writes."""
    monkeypatch.setattr(archive_copy, "_BATCH_BYTES", 1000)


@pytest.fixture
def quick_to_believe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log that shows nothing more be believed at once: there is one broker, and no leader changes."""
    monkeypatch.setattr("kmirror.engine.compare.visible_log._PATIENCE_S", 0.1)
    monkeypatch.setattr("kmirror.engine.compare.visible_log._WAIT_MS", 50)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def make_topic(cluster: SandboxCluster, records: int = 0, *, old: int = 0) -> str:
    """Create a topic that holds so many records, of which the first `old` are thirty days old; return its name."""
    topic = unique_topic("saved")
    create_topics(cluster, {topic: KEEPS_ALL})
    now = now_ms()
    stamps = [now + n - (30 * DAY_MS if n < old else 0) for n in range(records)]
    written = [
        VisibleRecord(0, at, b"key-%d" % n, b"value %d " % n * 9, (("n", b"%d" % n),)) for n, at in enumerate(stamps)
    ]
    write(cluster, topic, written)
    return topic


def assert_saved(cluster: SandboxCluster, topic: str, archive: str, ranges: list[tuple[int, int]]) -> None:
    """Have the archive read by librdkafka, and compared by kmirror."""
    wanted = [one for one in shown(cluster, topic) if any(low <= one.offset < high for low, high in ranges)]
    assert_holds(cluster, archive, wanted)
    found = check(cluster, topic, archive, ranges)
    assert found.equal, found
    assert found.records == len(wanted)
    assert (found.first_offset, found.last_offset) == ((wanted[0][0], wanted[-1][0]) if wanted else (None, None))


# -- every kind of log -------------------------------------------------------------------------------------------------


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


def test_filler_of_ours_is_left_out(cluster: SandboxCluster) -> None:
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


def test_a_log_that_shows_nothing_has_an_empty_archive(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster)
    archive = make_archive(cluster, topic)
    assert save(cluster, topic, archive, []).records == 0
    assert_saved(cluster, topic, archive, [])


# -- old records -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
def test_old_records_that_make_brokers_forget(cluster: SandboxCluster) -> None:
    """The leader remembers us behind each batch all the same, so that nobody else can write."""
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


class StoppedError(Exception):
    """The copying is stopped here."""


def stop_after(batches: int) -> Callable[[int], None]:
    """Return a `progress` that stops the copying after so many batches."""
    left = iter(range(batches))

    def count(_: int) -> None:
        if next(left) == batches - 1:
            raise StoppedError

    return count


@pytest.mark.usefixtures("small_batches")
def test_stopped_and_started_again_it_goes_on_exactly(cluster: SandboxCluster) -> None:
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
    assert done.behind is not None
    assert done.records == 87 - saved
    assert_saved(cluster, topic, archive, ranges)
    again = save(cluster, topic, archive, ranges)
    assert (again.records, again.behind) == (0, 99)
    assert_saved(cluster, topic, archive, ranges)


def test_killed_at_random_it_goes_on_exactly(cluster: SandboxCluster) -> None:
    count = 4000
    topic = make_topic(cluster, count, old=300)
    archive = make_archive(cluster, topic)
    chance = random.Random()
    for kills in range(3):
        one = ArchiveProcess(cluster, topic, archive, 0, count, 1000)
        assert one.wait_for_batches(chance.randrange(1, 60)), f"it ended before it could be killed the {kills}. time"
        time.sleep(chance.random() * 0.02)
        one.kill()
    before = len(librdkafka_records(cluster.bootstrap_servers, archive))
    done = save(cluster, topic, archive, [(0, count)])
    assert 0 < done.records == count - before
    assert_saved(cluster, topic, archive, [(0, count)])


def test_hundreds_of_interruptions_are_no_obstacle(cluster: SandboxCluster) -> None:
    """Each leaves a marker behind the last record, and the next one has to find that."""
    topic = make_topic(cluster, 10)
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, 5)])
    for _ in range(40):
        assert save(cluster, topic, archive, [(0, 5)]).behind == 4
    assert save(cluster, topic, archive, [(0, 10)]).records == 5
    assert_saved(cluster, topic, archive, [(0, 10)])


# -- two at once -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("old", [0, 60], ids=["young", "old"])
@pytest.mark.parametrize("finished", [True, False], ids=["after the other", "between the other's batches"])
def test_who_comes_later_shuts_out_the_earlier_one(cluster: SandboxCluster, old: int, finished: bool) -> None:
    topic = make_topic(cluster, 60, old=old)
    archive = make_archive(cluster, topic)

    def overtake(_: int) -> None:
        if finished:
            save(cluster, topic, archive, [(0, 60)])
        else:
            with pytest.raises(StoppedError):
                save(cluster, topic, archive, [(0, 60)], stop_after(2))
        time.sleep(0.3)  # the broker looks for what it may forget

    with pytest.raises(RefusedError) as caught:
        save(cluster, topic, archive, [(0, 60)], overtake)
    assert caught.value.reason is Reason.FENCED
    save(cluster, topic, archive, [(0, 60)])
    assert_saved(cluster, topic, archive, [(0, 60)])


@pytest.mark.usefixtures("small_batches")
def test_who_was_forgotten_is_shut_out_all_the_same(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive's last batch says which epoch was used, when the leader does not know it any more."""
    topic = make_topic(cluster, 60, old=60)
    archive = make_archive(cluster, topic)

    def overtake(_: int) -> None:
        with Leader(cluster, archive) as leader:
            wait_until(lambda: leader.producer(archive_producer_id(leader.partition)) is None)
        patched.undo()
        with pytest.raises(StoppedError):
            save(cluster, topic, archive, [(0, 60)], stop_after(1))

    with monkeypatch.context() as patched:
        patched.setattr(OffsetAppender, "renew", lambda appender: None)
        with pytest.raises(RefusedError) as caught:
            save(cluster, topic, archive, [(0, 60)], overtake)
    assert caught.value.reason is Reason.FENCED
    save(cluster, topic, archive, [(0, 60)])
    assert_saved(cluster, topic, archive, [(0, 60)])


@pytest.mark.usefixtures("small_batches")
def test_without_markers_the_sequence_is_guard_enough(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for who may not write them: of young records none is written twice."""

    def refuse(out: OffsetAppender, *, above: int) -> None:
        raise RefusedError("no right", None, Reason.NOT_AUTHORIZED)

    monkeypatch.setattr(OffsetAppender, "take_over", refuse)
    topic = make_topic(cluster, 60)
    archive = make_archive(cluster, topic)

    def overtake(_: int) -> None:
        with pytest.raises(StoppedError):
            save(cluster, topic, archive, [(0, 60)], stop_after(2))

    with pytest.raises(HistoriesDifferError):
        save(cluster, topic, archive, [(0, 60)], overtake)
    assert not save(cluster, topic, archive, [(0, 60)]).guarded
    assert_saved(cluster, topic, archive, [(0, 60)])
    assert [batch for batch in dump_log(cluster, archive) if batch.is_control] == []


@pytest.mark.usefixtures("small_batches")
def test_two_that_begin_at_once_never_share_an_epoch(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes in while the other one looks, and is forgotten before that one goes on.

    They had the same epoch; the first batch of each was welcome.
    """
    topic = make_topic(cluster, 60, old=60)
    archive = make_archive(cluster, topic)
    look = archive_copy._end_of

    def look_slowly(client: ClusterClient, place: TopicPartition) -> object:
        seen = look(client, place)
        monkeypatch.setattr(archive_copy, "_end_of", look)
        with monkeypatch.context() as patched:
            patched.setattr(OffsetAppender, "renew", lambda appender: None)
            with pytest.raises(StoppedError):
                save(cluster, topic, archive, [(0, 60)], stop_after(1))
        with Leader(cluster, archive) as leader:
            wait_until(lambda: leader.producer(archive_producer_id(leader.partition)) is None)
        return seen

    monkeypatch.setattr(archive_copy, "_end_of", look_slowly)
    save(cluster, topic, archive, [(0, 60)])
    assert_saved(cluster, topic, archive, [(0, 60)])
    first, *_, last = (batch.producer_epoch for batch in dump_log(cluster, archive) if not batch.is_control)
    assert first < last


def assert_three_at_once_save(cluster: SandboxCluster, *, old: int) -> None:
    """Have three copy the same until each has done it; again, if none of them was refused on the way."""

    def go_on_until_done(topic: str, archive: str, start: Barrier) -> int:
        refusals = 0
        start.wait()
        while True:
            try:
                save(cluster, topic, archive, [(0, 1000)], lambda _: time.sleep(0.005))
            except KmirrorError:
                refusals += 1
                time.sleep(random.random() / 5)
            else:
                return refusals

    refusals = 0
    while not refusals:
        topic = make_topic(cluster, 1000, old=old)
        archive = make_archive(cluster, topic)
        with ThreadPoolExecutor(3) as pool:
            refusals = sum(pool.map(go_on_until_done, [topic] * 3, [archive] * 3, [Barrier(3)] * 3))
        assert_saved(cluster, topic, archive, [(0, 1000)])


def test_several_at_the_same_time(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_copy, "_BATCH_BYTES", 5000)
    assert_three_at_once_save(cluster, old=0)


@pytest.mark.long
@pytest.mark.parametrize("_", range(10))
def test_several_at_the_same_time_many_times(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch, _: int) -> None:
    """With old records there is a moment behind each batch in which the broker may forget; it looks all the time."""
    monkeypatch.setattr(archive_copy, "_BATCH_BYTES", 5000)
    assert_three_at_once_save(cluster, old=500)


def test_a_producer_of_somebody_else_is_noticed(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 10)
    archive = make_archive(cluster, topic)

    def interfere(_: int) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce(archive, b"foreign", partition=0)
        assert producer.flush(30) == 0

    save(cluster, topic, archive, [(0, 10)], interfere)
    found = check(cluster, topic, archive, [(0, 10)])
    assert found.first_difference is not None
    assert "an extra record" in found.first_difference.what
    with pytest.raises(RefusedError, match="not an archive's"):
        save(cluster, topic, archive, [(0, 10)])


# -- what cannot be saved ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick_to_believe")
def test_an_open_transaction_hides_what_is_to_be_saved(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 5)
    archive = make_archive(cluster, topic)
    with OpenTransaction(cluster, topic) as transaction:
        write(cluster, topic, 5)
        with pytest.raises(RefusedError, match="shows consumers nothing from offset 5 on: a transaction is open"):
            save(cluster, topic, archive, [(0, 20)])
        transaction.abort()
    wait_until(lambda: bounds_of(cluster, topic, isolation="read_committed").end == 21)
    assert save(cluster, topic, archive, [(0, 21)]).records == 10
    assert_saved(cluster, topic, archive, [(0, 21)])


@pytest.mark.usefixtures("quick_to_believe")
def test_a_log_that_ends_too_early(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 5)
    with pytest.raises(RefusedError, match="ends at offset 5, before 6"):
        save(cluster, topic, make_archive(cluster, topic), [(0, 6)])


def test_another_topics_records_are_never_built_upon(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 10)
    foreign = make_topic(cluster, 3)
    with pytest.raises(RefusedError, match="not an archive's"):
        save(cluster, topic, foreign, [(0, 10)])
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(5, 9)])
    with pytest.raises(RefusedError, match="ends with the record of offset 8"):
        save(cluster, topic, archive, [(0, 5)])


# -- comparing ---------------------------------------------------------------------------------------------------------


Copy = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
Copies = list[Copy]


def left_out(copies: Copies) -> None:
    del copies[4]


def doubled(copies: Copies) -> None:
    copies.insert(4, copies[4])


def swapped(copies: Copies) -> None:
    copies[4], copies[5] = copies[5], copies[4]


def cut_off(copies: Copies) -> None:
    del copies[4:]


def replaced(index: int, content: object) -> Callable[[Copies], None]:
    def change(copies: Copies) -> None:
        copies[4] = cast("Copy", (*copies[4][:index], content, *copies[4][index + 1 :]))

    return change


def copies_of(cluster: SandboxCluster, topic: str) -> Copies:
    """Save eight records, and return what is in the archive."""
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, 8)])
    saved = librdkafka_records(cluster.bootstrap_servers, archive)
    return [(one.timestamp, one.key, one.value, list(one.headers)) for one in saved]


def archive_with(cluster: SandboxCluster, topic: str, copies: Copies) -> str:
    """Make an archive that holds this."""
    archive = make_archive(cluster, topic)
    producer = whole_batches(archive, {"bootstrap.servers": cluster.bootstrap_servers})
    for timestamp, key, value, headers in copies:
        producer.produce(archive, value, key, 0, timestamp=timestamp, headers=headers)
    assert producer.flush(30) == 0
    return archive


@pytest.fixture(scope="module")
def eight(cluster: SandboxCluster) -> tuple[str, Copies]:
    """Return a topic of eight records, and what its archive holds."""
    topic = make_topic(cluster, 8)
    return topic, copies_of(cluster, topic)


@pytest.mark.parametrize(
    ("damage", "offset", "what"),
    [
        (left_out, 4, "is that of offset 5"),
        (doubled, 5, "is that of offset 4"),
        (swapped, 4, "is that of offset 5"),
        (cut_off, 4, "which ends before it"),
        (lambda copies: copies.append(copies[0]), 0, "an extra record"),
        (lambda copies: copies.append((5, b"k", b"v", [])), None, "an extra record"),
        (replaced(0, 1234), 4, "timestamp of the record"),
        (replaced(1, b"another"), 4, "key of the record"),
        (replaced(2, None), 4, "value of the record"),
        (replaced(3, [("n", b"4")]), 4, "has no header with its original offset"),
        (lambda copies: copies[4][3].insert(1, ("more", b"")), 4, "headers of the record"),
        (
            lambda copies: copies[4][3].__setitem__(-2, ("kmirror.leader.epoch", b"99")),
            4,
            "added headers of the record",
        ),
    ],
)
def test_whatever_is_wrong_is_found(
    cluster: SandboxCluster,
    eight: tuple[str, Copies],
    damage: Callable[[Copies], None],
    offset: int | None,
    what: str,
) -> None:
    topic, copies = deepcopy(eight)
    damage(copies)
    bad = archive_with(cluster, topic, copies)
    found = check(cluster, topic, bad, [(0, 8)])
    assert found.first_difference is not None
    assert found.first_difference.offset == offset
    assert what in found.first_difference.what


def test_a_log_that_loses_records_after_they_were_saved(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 20)
    archive = make_archive(cluster, topic)
    save(cluster, topic, archive, [(0, 3), (4, 9)])
    delete_records(cluster, topic, 6)
    found = check(cluster, topic, archive, [(0, 3), (4, 9)])
    assert found.equal
    assert (found.records, found.only_archived, found.first_offset, found.last_offset) == (3, 5, 0, 8)
    # and goes on
    save(cluster, topic, archive, [(0, 3), (4, 20)])
    found = check(cluster, topic, archive, [(0, 3), (4, 20)])
    assert (found.equal, found.records, found.only_archived) == (True, 14, 5)


@pytest.mark.parametrize("damage", [doubled, swapped])
def test_what_the_log_has_lost_is_to_be_in_order_all_the_same(
    cluster: SandboxCluster, damage: Callable[[Copies], None]
) -> None:
    topic = make_topic(cluster, 8)
    copies = copies_of(cluster, topic)
    damage(copies)
    bad = archive_with(cluster, topic, copies)
    delete_records(cluster, topic, 6)
    found = check(cluster, topic, bad, [(0, 8)])
    assert found.first_difference is not None
    assert "is that of offset 4" in found.first_difference.what


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
    result = archive_topic(spec, 0)
    assert not result.saved
    assert [one.saved for one in result.outcomes] == [True, False, True]
    assert "ends at offset 11" in str(result.outcomes[1].trouble)
    assert_holds(cluster, archive, shown(cluster, topic, 2)[2:], partition=2)


def test_a_topic_that_was_created_again_is_not_archived(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 5)
    archive = make_archive(cluster, topic)
    properties = cluster.client_properties()
    spec = ArchiveSpec(properties, topic, archive, "AAAAAAAAAAAAAAAAAAAAAQ", (PartitionRanges(0, ((0, 5),)),))
    (outcome,) = archive_topic(spec, 0).outcomes
    assert not outcome.saved
    assert "no longer exists; one with id" in str(outcome.trouble)
    assert librdkafka_records(cluster.bootstrap_servers, archive) == []


# -- over a network that loses requests --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fate", [Fate.LATE, *(pytest.param(fate, marks=pytest.mark.long) for fate in (Fate.LOST, Fate.UNANSWERED))]
)
@pytest.mark.usefixtures("small_batches", "short_memory")
def test_lost_requests(forgetful: ForgetfulCluster, monkeypatch: pytest.MonkeyPatch, fate: Fate) -> None:
    monkeypatch.setattr("kmirror.cluster.append._SETTLE_S", 0.3)
    cluster, wire = forgetful.behind_late_wire, forgetful.late_wire
    topic = make_topic(cluster, 30, old=15)
    archive = make_archive(cluster, topic)
    wire.plan(fate, fate)  # for markers: whoever begins writes one
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
    config = client_config(secured.client_properties()).librdkafka()
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
    result = archive_topic(ArchiveSpec(secured.client_properties("kmirror"), topic, archive, None, wanted), 0)
    assert result.saved, result
    archived = result.outcomes[0].archived
    assert archived is not None
    assert not archived.guarded
    saved = librdkafka_records(secured.bootstrap_servers, archive, config=config)
    assert [record.value for record in saved] == [b"v%d" % number for number in range(20)]
