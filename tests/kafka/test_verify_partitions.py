"""Two partitions on two real clusters are compared; what is stored in them was made to be equal, or not quite."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import BATCH_OVERHEAD, CorruptBatchError
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.filler import filler_batch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.security.client_config import ClusterAccess, client_config
from kmirror.cluster.topics.log_dirs import partition_sizes
from kmirror.engine.clock import now_ms
from kmirror.engine.compare.difference import DifferenceKind
from kmirror.engine.compare.logs import compare_partition, filler_at_start
from kmirror.engine.compare.verification import CompareWorkUnit, Piece, PieceFinding, compare_work_unit
from kmirror.engine.compare.visible_log import VisibleLog
from kmirror.engine.lane.reports.state_log import append_to
from kmirror.errors import BrokerError, Reason, UnreachableError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.new_topics import create_and_wait
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.twins import BASE_TIME, CODECS, RECORDS, Side, Twins, compare_whole, record
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def make_twins(cluster_pair: ClusterPair) -> Iterator[Callable[..., Twins]]:
    made: list[Side] = []

    def make(
        config: Mapping[str, str] | None = None,
        source: SandboxCluster | None = None,
        destination: SandboxCluster | None = None,
    ) -> Twins:
        topic = unique_topic("compare")
        clusters = source or cluster_pair.source, destination or cluster_pair.destination
        # the records are years old: by default retention would remove them
        common = {"compression.type": "producer", "retention.ms": "-1"}
        made.extend(Side(cluster, topic, {**common, **(config or {})}) for cluster in clusters)
        return Twins(*made[-2:])

    yield make
    for side in made:
        if side.cluster in (cluster_pair.source, cluster_pair.destination):
            side.admin.delete_topics([side.partition.topic])[side.partition.topic].result(30)
        side.client.close()


@pytest.fixture
def twins(make_twins: Callable[..., Twins], monkeypatch: pytest.MonkeyPatch) -> Twins:
    """Return twins on brokers without followers: where a log seems to end, it does."""
    monkeypatch.setattr("kmirror.engine.compare.visible_log._PATIENCE_S", 0.5)
    return make_twins()


@pytest.mark.parametrize("codec", CODECS)
def test_equal_copies(twins: Twins, codec: str) -> None:
    twins.both(lambda side: side.append(RECORDS, codec=codec))
    found = twins.compare()
    assert found.equal
    assert (found.start, found.end, found.records, found.notes) == (0, 100, 100, ())
    assert found.size_in_bytes == sum(path.stat().st_size for path in twins.source.log_files())


@pytest.mark.parametrize("codec", CODECS[1:])
def test_the_same_records_in_other_batches_and_codecs(twins: Twins, codec: str) -> None:
    twins.source.append(RECORDS, size=10)
    twins.destination.append(RECORDS, size=7, codec=codec)
    assert twins.compare().equal
    twins.source.append(RECORDS, size=25, codec="none")
    twins.destination.append(RECORDS, size=25, codec=codec)
    found = twins.compare()
    assert found.equal
    assert found.records == 200


def test_what_another_library_wrote(twins: Twins) -> None:
    """librdkafka decides about batches: with other settings it makes others of the same records."""

    def write(side: Side, **config: Any) -> None:
        producer = side.producer(**config)
        for one in RECORDS:
            producer.produce(
                side.partition.topic, one.value, one.key, 0, timestamp=one.timestamp, headers=list(one.headers)
            )
        assert producer.flush(30) == 0

    write(twins.source, **{"linger.ms": 50, "compression.type": "zstd"})
    write(twins.destination, **{"linger.ms": 0, "batch.num.messages": 3, "compression.type": "snappy"})
    found = twins.compare()
    assert found.equal
    assert found.records == 100


@pytest.mark.parametrize("size", [10, 7], ids=["same batches", "other batches"])
@pytest.mark.parametrize(
    "changes",
    [
        {"value": b"x"},
        {"value": None},
        {"key": b"x"},
        {"key": None},
        {"headers": (("h", b"58"), ("empty", b""), ("null", b""))},
        {"headers": ()},
        {"timestamp": BASE_TIME},
    ],
    ids=str,
)
def test_one_changed_record(twins: Twins, changes: dict[str, object], size: int) -> None:
    twins.source.append(RECORDS, codec="lz4")
    changed = [record(58, **changes) if one.offset == 58 else one for one in RECORDS]
    twins.destination.append(changed, size=size, codec="lz4")
    found = twins.difference()
    assert (found.offset, found.kind) == (58, DifferenceKind.CONTENT)
    assert next(iter(changes)) in found.what
    assert found.source
    assert found.source.timestamp == BASE_TIME + 58
    assert twins.compare(59).equal
    assert twins.compare(0, 58).equal


def test_a_record_less_shifts_all_that_follow(twins: Twins) -> None:
    twins.source.append(RECORDS)
    twins.destination.append([one for one in RECORDS if one.offset != 31])
    found = twins.difference()
    assert (found.offset, found.kind) == (31, DifferenceKind.CONTENT)


def test_offsets_without_a_record(twins: Twins) -> None:
    """An aborted transaction takes an offset for each of its records and one for its marker; none is to be seen."""
    twins.source.append(RECORDS)
    twins.destination.append(RECORDS[:40])
    twins.destination.transaction([b"never seen"], commit=False)
    twins.destination.append(RECORDS[42:])
    found = twins.difference()
    assert (found.offset, found.kind, found.destination) == (40, DifferenceKind.MISSING, None)
    back = compare_whole(twins.destination, twins.source).first_difference
    assert back
    assert (back.offset, back.kind, back.source) == (40, DifferenceKind.EXTRA, None)
    assert twins.compare(42).equal


def test_a_destination_behind_its_source_is_a_prefix(twins: Twins) -> None:
    twins.source.append(RECORDS)
    twins.destination.append(RECORDS[:60])
    found = twins.compare()
    assert found.equal
    assert (found.end, found.records) == (60, 60)
    found_difference = twins.difference(end=80)
    assert (found_difference.offset, found_difference.kind) == (60, DifferenceKind.MISSING_TAIL)
    assert found_difference.what == "the destination ends at offset 60"


def test_a_destination_that_continues_after_its_source(twins: Twins) -> None:
    twins.source.append(RECORDS[:60])
    twins.destination.append(RECORDS)
    found = twins.difference()
    assert (found.offset, found.kind) == (60, DifferenceKind.EXTRA_TAIL)
    assert found.what == "the source ends at offset 60"
    assert found.destination
    assert found.destination.timestamp == BASE_TIME + 60
    assert twins.compare(end=60).equal


def test_an_empty_destination_and_an_empty_source(twins: Twins) -> None:
    assert twins.compare().equal
    twins.source.append(RECORDS)
    found = twins.compare()
    assert found.equal
    assert (found.start, found.end, found.records) == (0, 0, 0)


def test_committed_and_aborted_transactions(twins: Twins) -> None:
    """The destination holds plainly what consumers of the source see, markers and aborted records are holes in both."""
    source, destination = twins.source, twins.destination
    source.append(RECORDS[:5])
    source.transaction([b"a", b"b"], commit=True)
    source.transaction([b"c", b"d", b"e"], commit=False)
    source.append(RECORDS[12:20])
    destination.append(RECORDS[:5])
    destination.append([Record(0, BASE_TIME, None, b"a"), Record(1, BASE_TIME + 1, None, b"b")])
    destination.transaction([b"other", b"records", b"and", b"markers"], commit=False)
    assert destination.log_end_offset == 12
    destination.append(RECORDS[12:20])
    assert source.log_end_offset == destination.log_end_offset == 20
    found = twins.compare()
    assert found.equal
    assert found.records == 15


def test_what_the_source_has_not_committed(twins: Twins) -> None:
    twins.source.append(RECORDS[:10])
    producer = twins.source.transaction([b"v"], commit=None)
    twins.destination.append(RECORDS[:11])
    found = twins.difference()
    assert (found.offset, found.kind) == (10, DifferenceKind.EXTRA_TAIL)
    assert found.what == "the source is not committed after offset 10: a transaction is open there"
    producer.abort_transaction(30)


def test_what_the_destination_has_not_committed_cannot_be_compared(twins: Twins) -> None:
    twins.source.append(RECORDS[:20])
    twins.destination.append(RECORDS[:10])
    producer = twins.destination.transaction([b"v"], commit=None)
    found = twins.compare()
    assert not found.equal
    assert found.first_difference is None
    assert found.obstacle
    assert "from offset 10 to its end 11" in found.obstacle
    producer.abort_transaction(30)


@pytest.mark.parametrize("purged", ["source", "destination"])
def test_a_log_that_starts_later_is_compared_from_there(twins: Twins, purged: str) -> None:
    twins.both(lambda side: side.append(RECORDS))
    getattr(twins, purged).delete_records(33)
    found = twins.compare()
    assert found.equal
    assert (found.start, found.records) == (33, 67)
    assert found.notes == (f"offsets 0 to 32 were not compared: the {purged}'s log starts at 33",)
    # a range planned before the records were purged
    later = twins.compare(start=10, end=50)
    assert later.equal
    assert later.records == 17
    assert later.notes == (f"23 records below offset 33 were not compared: the {purged}'s log now starts there",)
    gone = twins.compare(start=10, end=20)
    assert gone.equal
    assert gone.records == 0


def test_a_source_that_starts_behind_the_destinations_end(twins: Twins) -> None:
    twins.source.append(RECORDS)
    twins.destination.append(RECORDS[:20])
    twins.source.delete_records(50)
    found = twins.compare()
    assert found.equal
    assert found.records == 0
    assert found.notes == ("offsets 0 to 49 were not compared: the source's log starts at 50",)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_byte_that_rotted_on_disk(twins: Twins, side: str) -> None:
    twins.both(lambda one: one.append(RECORDS, size=20))
    (path,) = getattr(twins, side).log_files()
    stored = bytearray(path.read_bytes())
    # walk to the third batch, offsets 40 to 59, and flip a bit of its records
    position = 0
    for _ in range(2):
        position += 12 + struct.unpack_from(">i", stored, position + 8)[0]
    with path.open("r+b") as file:
        file.seek(position + BATCH_OVERHEAD + 30)
        file.write(bytes([stored[position + BATCH_OVERHEAD + 30] ^ 1]))
    found = twins.difference()
    assert (found.offset, found.kind) == (40, DifferenceKind.CORRUPT)
    assert found.what.startswith(f"the batch that the {side} stores at offset 40 is corrupt: its checksum is")
    assert twins.compare(end=40).equal
    # a search that ends before it does not meet it
    rotten = getattr(twins, side)
    with ThreadPoolExecutor(1) as executor:
        log = VisibleLog(rotten.client, rotten.partition, 0, 100, executor)
        assert [one.offset for one in log.scan(3, 40)] == list(range(3, 40))
        with pytest.raises(CorruptBatchError):
            list(log.scan(3, 41))


def test_filler_that_was_left_at_the_start(twins: Twins) -> None:
    destination = twins.destination
    append_to(destination.client, destination.partition, memoryview(filler_batch(30, now_ms())))
    destination.append(RECORDS[30:])

    def left(start: int, end: int = 30) -> int | None:
        found = filler_at_start(destination.client, destination.partition, start, end)
        assert found is None or (found.kind, found.source) == (DifferenceKind.FILLER, None)
        return found.offset if found else None

    assert left(0) == 0
    destination.delete_records(12)
    assert left(12) == 12
    assert left(0) == 12
    assert left(0, 12) is None
    destination.delete_records(30)
    assert left(0, 100) is None
    twins.source.append(RECORDS)
    assert twins.compare(30).equal


def test_log_append_time_at_the_source(twins: Twins) -> None:
    """Consumers of the source see one timestamp for each batch; a copy has to keep it record by record."""
    source, destination = twins.source, twins.destination
    source.set("message.timestamp.type", "LogAppendTime")
    source.append(RECORDS[:50], size=50)
    (read,) = PartitionReader(source.client, source.partition).batches(0, 50)
    (header,) = read.headers
    assert header.is_log_append_time
    seen = [replace(one, timestamp=header.max_timestamp) for one in RECORDS[:50]]
    destination.append(seen, size=20)
    assert twins.compare().equal
    source.append(RECORDS[50:51])
    destination.append(RECORDS[50:51])
    found = twins.difference()
    assert (found.offset, found.kind) == (50, DifferenceKind.CONTENT)
    assert f"{BASE_TIME + 50} at the destination" in found.what


def test_records_of_every_size_over_many_fetches(twins: Twins) -> None:
    """Batches larger than what a fetch asks for, and more than one fetch of small ones."""
    large = [Record(i, BASE_TIME + i, b"k", bytes([i]) * 900_000) for i in range(6)]
    small = [Record(i, BASE_TIME + i, b"k%d" % i, b"v" * 2000) for i in range(1500)]
    twins.both(lambda side: side.append(large, size=1))
    twins.both(lambda side: side.append(small, size=50, codec="lz4"))
    twins.both(lambda side: side.append(large, size=1, codec="gzip"))
    twins.both(lambda side: side.append(small, size=300))
    found = twins.compare()
    assert found.equal
    assert found.records == 2 * (6 + 1500)
    twins.both(lambda side: side.append(small[:10]))
    twins.source.append([Record(0, BASE_TIME, None, b"x")])
    twins.destination.append([Record(0, BASE_TIME, None, b"y")])
    assert twins.difference().offset == 2 * (6 + 1500) + 10


def test_a_topic_that_does_not_exist(twins: Twins) -> None:
    elsewhere = TopicPartition(unique_topic(), 0)
    config = client_config({**twins.destination.properties, "request.timeout.ms": "1000"})
    with ClusterClient(config) as hasty, pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        compare_partition(twins.source.client, hasty, elsewhere, elsewhere, 0, 1)


def clean(twins: Twins) -> None:
    """Have the destination's cleaner remove what later records supersede."""
    whole = sum(path.stat().st_size for path in twins.destination.log_files())
    twins.destination.set("min.compaction.lag.ms", "0", "min.cleanable.dirty.ratio", "0.01", "segment.ms", "100")
    # by its timestamp, the next record closes the segment that contains all of it
    twins.both(lambda side: side.append([record(1, key=b"k1", timestamp=BASE_TIME + 3_600_000)]))
    deadline = time.monotonic() + PATIENCE_S
    while sum(path.stat().st_size for path in twins.destination.log_files()) > whole / 2:
        assert time.monotonic() < deadline, "the cleaner has not come by"
        time.sleep(0.2)


def test_a_cleaner_at_work(forgetful: ForgetfulCluster, make_twins: Callable[..., Twins]) -> None:
    """The destination's cleaner has removed what later records of the same keys supersede; the source's has not."""
    lazy = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    twins = make_twins(lazy, destination=forgetful.cluster)
    log = [Record(i, BASE_TIME + i, b"k%d" % (i % 9), b"v%d" % i) for i in range(300)]
    twins.both(lambda side: side.append(log))
    assert twins.compare().equal
    clean(twins)
    found = twins.compare()
    assert found.equal
    assert found.records < 50
    (note,) = found.notes
    assert "missing in the destination, removed by compaction" in note
    # what no cleaner does
    twins.source.append([Record(0, BASE_TIME, b"new", b"v")])
    twins.destination.append([Record(0, BASE_TIME, b"other", b"v")])
    missing = twins.difference()
    assert (missing.offset, missing.kind) == (301, DifferenceKind.CONTENT)


def test_a_cleaner_removes_records_without_a_key(forgetful: ForgetfulCluster, make_twins: Callable[..., Twins]) -> None:
    """They are from before the topic was compacted; the source's cleaner has not come to them."""
    twins = make_twins({"min.compaction.lag.ms": "3600000"}, destination=forgetful.cluster)
    log = [Record(i, BASE_TIME + i, b"k%d" % i if i % 10 == 0 else None, b"v%d" % i) for i in range(300)]
    twins.both(lambda side: side.append(log))
    twins.both(lambda side: side.set("cleanup.policy", "compact"))
    clean(twins)
    found = twins.compare()
    assert found.equal, found
    assert found.records == 31
    assert any("270 records of the source are missing in the destination" in note for note in found.notes)


@pytest.mark.parametrize("kind", [DifferenceKind.MISSING, DifferenceKind.EXTRA])
def test_a_lost_record_without_a_key_is_no_work_of_a_cleaner(twins: Twins, kind: DifferenceKind) -> None:
    """The topics are compacted since, but no cleaner has come: an aborted transaction takes the offsets in one log."""
    sides = (twins.source, twins.destination)
    having, lacking = sides if kind is DifferenceKind.MISSING else reversed(sides)
    log = [Record(i, BASE_TIME + i, None, b"v%d" % i) for i in range(10)]
    twins.both(lambda side: side.append(log))
    having.append(log[:4])
    lacking.transaction([b"never seen"] * 3, commit=False)
    twins.both(lambda side: side.append(log))
    twins.both(lambda side: side.set("cleanup.policy", "compact"))
    found = twins.difference()
    assert (found.offset, found.kind) == (10, kind)
    assert twins.difference(10).offset == 10, "a sample looks at what is before it"
    assert twins.compare(14).equal


def test_however_many_keys_wait_a_log_is_read_again_once(
    forgetful: ForgetfulCluster, make_twins: Callable[..., Twins], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 600 keys the cleaner has left the third record: with room for 50, the others wait for it on disk."""
    scans: list[int | None] = []
    scan = VisibleLog.scan

    def noted(log: VisibleLog, start: int | None = None, end: int | None = None) -> Generator[Record, None, None]:
        scans.append(start)
        return scan(log, start, end)

    monkeypatch.setattr(VisibleLog, "scan", noted)
    monkeypatch.setattr("kmirror.engine.compare.logs._MOST_WAITING", 50)
    lazy = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    twins = make_twins(lazy, destination=forgetful.cluster)
    log = [Record(i, BASE_TIME + i, b"k%d" % (i % 600), b"v%d" % i) for i in range(1800)]
    twins.both(lambda side: side.append(log, size=100))
    clean(twins)
    found = twins.compare()
    assert found.equal
    assert found.records < 700
    assert scans == [0]


def test_a_source_that_dies_meanwhile(
    mortal_cluster: SandboxCluster, make_twins: Callable[..., Twins], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmirror.cluster.reader._TRIES", 2)
    twins = make_twins(source=mortal_cluster)
    twins.both(lambda side: side.append(RECORDS))
    topic = twins.source.partition.topic
    pieces = tuple(Piece(topic, 0, topic, start, start + 50) for start in (0, 50))
    share = CompareWorkUnit(twins.source.access, twins.destination.access, pieces)
    assert [finding.comparison and finding.comparison.equal for finding in compare_work_unit(share)] == [True, True]
    mortal_cluster.kill(1)
    for finding in compare_work_unit(share):
        assert finding.comparison is None
        assert isinstance(finding.trouble, UnreachableError)
        assert finding.trouble.reason is Reason.SOURCE_UNREACHABLE


@pytest.mark.slow
@pytest.mark.parametrize("moved", ["source", "destination"])
def test_an_address_that_leads_to_the_other_cluster_is_passed_over(twins: Twins, moved: str) -> None:
    """No log is compared with itself, which would always be equal."""
    twins.source.append(RECORDS)
    twins.destination.append([*RECORDS[:-1], record(99, value=b"other")])
    piece = Piece(*twins.destination.partition, twins.source.partition.topic, 0, 100)
    is_source = moved == "source"
    ours, theirs = (twins.source, twins.destination) if is_source else (twins.destination, twins.source)

    def compared(*addresses: str) -> PieceFinding:
        access = replace(ours.access, properties={"bootstrap.servers": ",".join(addresses)})
        both = (access, theirs.access) if is_source else (theirs.access, access)
        (finding,) = compare_work_unit(CompareWorkUnit(*both, (piece,)))
        return finding

    wrong = theirs.cluster.bootstrap_servers
    found = compared(wrong, ours.cluster.bootstrap_servers).comparison
    assert found is not None
    assert found.first_difference is not None
    assert found.first_difference.offset == 99
    nowhere = compared(wrong)
    assert nowhere.comparison is None
    assert nowhere.trouble is not None
    assert nowhere.trouble.reason is (Reason.SOURCE_UNREACHABLE if is_source else Reason.DESTINATION_UNREACHABLE)


def test_a_secret_that_is_not_known_where_the_worker_runs(twins: Twins) -> None:
    secretive = {
        **twins.source.properties,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="${env:KMIRROR_NO_SUCH_SECRET}";',
    }
    share = CompareWorkUnit(ClusterAccess(secretive, None), twins.destination.access, (Piece("t", 0, "t", 0, 1),))
    (finding,) = compare_work_unit(share)
    assert finding.trouble
    assert finding.trouble.reason is Reason.SECRET_UNRESOLVED


def test_sizes_are_asked_of_the_leaders(twins: Twins) -> None:
    twins.destination.append(RECORDS)
    empty = unique_topic()
    create_and_wait(twins.destination.admin, NewTopic(empty, 1, 1))
    partitions = [twins.destination.partition, TopicPartition(empty, 0)]
    # a leader reports a new partition once it has created its log
    wait_until(lambda: len(partition_sizes(twins.destination.client, partitions)) == 2)
    stored = sum(path.stat().st_size for path in twins.destination.log_files())
    assert partition_sizes(twins.destination.client, partitions) == dict(zip(partitions, (stored, 0), strict=True))
    twins.destination.admin.delete_topics([empty])[empty].result(30)
