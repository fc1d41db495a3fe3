"""Append at the offsets that records carry: in peace, with others about, and over a network that loses requests."""

from __future__ import annotations

import pickle
import random
import re
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kmirror.cluster.append import InvalidProduceOffsetError, OffsetAppender
from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.batch import CorruptBatchError, crc_of
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import API_KEY as PRODUCE
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import BrokerError, HistoriesDifferError, OutcomeUnknown, Reason, RefusedError, UsageError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.kafka_versions import EVERY_VERSION
from tests.support.late_wire import Fate, LateWire
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic, young
from tests.support.oracle import console_consumer, librdkafka_records
from tests.support.shared_clusters import forgetful_cluster
from tests.support.waiting import wait_until

DAY_MS = 86_400_000


@pytest.fixture(scope="module", params=EVERY_VERSION)
def cluster(request: pytest.FixtureRequest) -> SandboxCluster:
    """Return a cluster that looks for expired producer ids all the time."""
    return forgetful_cluster(request, request.param)


def records(start: int, end: int, *, timestamp: int | None = None) -> list[Record]:
    """Return records at these offsets."""
    now = young() if timestamp is None else timestamp
    return [Record(o, now - o, b"k%d" % o, b"v" * (o % 50), (("h", b"%d" % o),)) for o in range(start, end)]


def appender(client: ClusterClient, topic: str, partition: int = 0) -> OffsetAppender:
    return OffsetAppender(client, TopicPartition(topic, partition), producer_id=OWN_ID)


def end_of(client: ClusterClient, topic: str) -> int:
    partition = TopicPartition(topic, 0)
    return client.list_offsets({partition: LATEST}, log_end=True)[partition].offset or 0


def assert_shows(cluster: SandboxCluster, topic: str, wanted: list[Record], *, with_console: bool = False) -> None:
    """Compare what consumers are shown, in both isolation levels."""
    for isolation in ("read_committed", "read_uncommitted"):
        seen = librdkafka_records(cluster.bootstrap_servers, topic, 0, isolation)
        assert [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in seen] == wanted
        if with_console:
            assert console_consumer(cluster, topic, 0, isolation) == seen


# -- in peace ---------------------------------------------------------------------------------------------------------


def test_records_land_at_their_offsets_and_nothing_is_shown_between(
    cluster: SandboxCluster, client: ClusterClient
) -> None:
    topic = create_topic(cluster)
    one, two, three, four = records(5, 8), records(8, 9), records(10, 12), records(5000, 5001)
    with appender(client, topic) as out:
        assert out.log_end_offset == 0
        assert out.append(one) == 8
        assert out.append(two) == 9
        assert out.append(make_batch(three, compression_type="zstd")) == 12
        assert out.append(memoryview(bytes(make_batch(four)))) == 5001
    assert_shows(cluster, topic, [*one, *two, *three, *four], with_console=True)
    assert end_of(client, topic) == 5001
    with appender(client, topic) as out:
        assert out.log_end_offset == 5001
        assert out.append(records(5003, 5004)) == 5004


def test_timestamps_that_the_broker_replaces_are_reported(cluster: SandboxCluster, client: ClusterClient) -> None:
    topic = create_topic(cluster, settings={"message.timestamp.type": "LogAppendTime"})
    with (
        appender(client, topic) as out,
        pytest.raises(HistoriesDifferError, match="replaced the timestamps of the records at offset 0") as caught,
    ):
        out.append(records(0, 3))
    assert caught.value.reason is Reason.OFFSET_MISMATCH
    assert "message.timestamp.type=CreateTime" in str(caught.value.hint)
    assert end_of(client, topic) == 3


def test_an_offset_that_the_log_has_is_refused_and_the_log_end_returned(
    cluster: SandboxCluster, client: ClusterClient
) -> None:
    with appender(client, create_topic(cluster)) as out:
        out.append(records(0, 10))
        with pytest.raises(InvalidProduceOffsetError, match="ends at offset 10") as caught:
            out.append(records(9, 12))
        assert caught.value.log_end_offset == 10
        assert pickle.loads(pickle.dumps(caught.value)).log_end_offset == 10
        assert out.append(records(10, 12)) == 12


@pytest.mark.parametrize(
    "broken",
    [
        [Record(0, 5, b"k", None), Record(2, 5, b"k", None)],
        [Record(1, 5, b"k", None), Record(0, 5, b"k", None)],
        [],
        b"",
        b"no batch at all, but some bytes that say nothing",
        make_batch([Record(0, 5, b"k", b"v")])[:-1],
        make_batch([Record(0, 5, b"k", b"v")]) + make_batch([Record(1, 5, b"k", b"v")]),
    ],
    ids=["a gap", "backwards", "no records", "no bytes", "garbage", "cut off", "two batches"],
)
def test_what_is_not_one_batch_of_consecutive_offsets_is_refused(
    cluster: SandboxCluster, client: ClusterClient, broken: list[Record] | bytes
) -> None:
    topic = create_topic(cluster)
    with appender(client, topic) as out:
        with pytest.raises(CorruptBatchError):
            out.append(broken)
        assert end_of(client, topic) == 0
        assert out.append(records(0, 1)) == 1


def test_offsets_inside_a_batch_are_checked_too(cluster: SandboxCluster, client: ClusterClient) -> None:
    """The broker does not look at them where it has nothing to decompress."""
    batch = batch_of(2)
    second_record = 61 + 1 + batch[61] // 2
    batch[second_record + 3] = 10
    struct.pack_into(">I", batch, 17, crc_of(memoryview(batch)))
    with appender(client, create_topic(cluster)) as out, pytest.raises(CorruptBatchError):
        out.append(batch)


def test_a_large_hole_is_filled(cluster: SandboxCluster, client: ClusterClient) -> None:
    topic, wanted = create_topic(cluster), records(20_001, 20_003)
    with appender(client, topic) as out:
        assert out.append(wanted) == 20_003
    assert_shows(cluster, topic, wanted)


def test_records_older_than_the_brokers_memory(quick_to_forget: SandboxCluster) -> None:
    """The broker forgets our producer id behind each of them; the sequence begins again where it must."""
    cluster = quick_to_forget
    topic, old = create_topic(cluster), young() - 40 * DAY_MS
    wanted = []
    with Leader(cluster, topic) as leader, appender(leader.client, topic) as out:
        for offset in (3, 4, 7, 8, 20):
            one = records(offset, offset + 1, timestamp=old)
            assert out.append(one) == offset + 1
            wanted += one
            wait_until(lambda: leader.producer() is None)
    assert_shows(cluster, topic, wanted)


def test_a_producer_id_that_brokers_may_hand_out_is_refused(client: ClusterClient) -> None:
    with pytest.raises(UsageError, match="in the range that brokers assign"):
        OffsetAppender(client, TopicPartition("t", 0), producer_id=FIRST_OWN_PRODUCER_ID - 1)


def test_a_topic_that_is_not_there(client: ClusterClient) -> None:
    quick = ClusterClient(replace(client.config, request_timeout_ms=300))
    with closing(quick), pytest.raises(BrokerError) as caught, appender(quick, unique_topic()):
        pass
    assert caught.value.code == Code.UNKNOWN_TOPIC_OR_PARTITION


# -- with others about ------------------------------------------------------------------------------------------------


def foreign_record(cluster: SandboxCluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    producer.produce(topic, b"foreign", partition=0)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("hole", [0, 1, 5])
def test_another_writers_record_is_noticed(cluster: SandboxCluster, client: ClusterClient, hole: int) -> None:
    topic = create_topic(cluster)
    with appender(client, topic) as out:
        out.append(records(0, 3))
        foreign_record(cluster, topic)
        with pytest.raises(HistoriesDifferError) as caught:
            out.append(records(3 + hole, 5 + hole))
        assert caught.value.reason is Reason.OFFSET_MISMATCH


@pytest.mark.parametrize("hole", [0, 1, 5])
def test_who_was_shut_out_writes_nothing(cluster: SandboxCluster, client: ClusterClient, hole: int) -> None:
    topic = create_topic(cluster)
    with appender(client, topic) as out, Leader(cluster, topic) as leader:
        out.append(records(0, 3))
        assert leader.append(batch_of(timestamp=young()), 0, epoch=9) == (0, 3)
        with pytest.raises(RefusedError) as caught:
            out.append(records(3 + hole, 5 + hole))
        assert caught.value.reason is Reason.FENCED
        assert leader.log_end == 4


# -- over a network that loses requests -------------------------------------------------------------------------------


@pytest.fixture
def wire(wired: tuple[SandboxCluster, LateWire], monkeypatch: pytest.MonkeyPatch) -> Iterator[LateWire]:
    """Return the wire; what is on its way on it takes less than half a second, so nothing waits longer."""
    monkeypatch.setattr("kmirror.cluster.append.SETTLE_S", 0.5)
    monkeypatch.setattr("kmirror.cluster.client._RETRY_PAUSE", 0.01)
    yield wired[1]
    wired[1].calm()
    assert wired[1].all_met


@pytest.fixture
def behind(wired: tuple[SandboxCluster, LateWire]) -> SandboxCluster:
    return wired[0]


@pytest.fixture
def wired_client(behind: SandboxCluster, wire: LateWire) -> Iterator[ClusterClient]:
    with ClusterClient(client_config(behind.client_properties())) as made:
        yield made


def test_the_connection_is_cut_between_request_and_answer(
    behind: SandboxCluster, wire: LateWire, wired_client: ClusterClient
) -> None:
    topic = create_topic(behind)
    wanted = []
    with appender(wired_client, topic) as out:
        for number, hole in enumerate([1, 2, 3, 50, 1, 2000, 1]):
            wire.plan(Fate.UNANSWERED)
            start = out.log_end_offset + hole
            one = records(start, start + 1 + number)
            assert out.append(one) == one[-1].offset + 1
            wanted += one
        with Leader(behind, topic) as leader:
            state = leader.producer()
            assert state is not None
            assert state.producer_epoch == 0
    assert_shows(behind, topic, wanted)


@pytest.mark.parametrize("hole", [1, 60])
@pytest.mark.parametrize("fates", [[Fate.LOST], [Fate.LATE], [Fate.ANSWERED, Fate.LATE], [Fate.LATE, Fate.LATE]])
def test_a_request_that_comes_late_writes_nothing_any_more(
    behind: SandboxCluster, wire: LateWire, wired_client: ClusterClient, hole: int, fates: list[Fate]
) -> None:
    topic = create_topic(behind)
    one, two = records(3 + hole, 5 + hole), records(5 + hole + hole, 6 + hole + hole)
    if hole == 1 and fates == [Fate.ANSWERED, Fate.LATE]:
        fates = [Fate.LATE]  # there is one request only
    with appender(wired_client, topic) as out:
        out.append(records(0, 3))
        wire.plan(*fates)
        assert out.append(one) == 5 + hole
        late = wire.deliver()
        assert len(late) == fates.count(Fate.LATE)
        for answer in late:
            (code,) = struct.unpack_from(">h", answer, len(answer) - 6)
            assert code in {47, 52}
        assert end_of(wired_client, topic) == 5 + hole
        assert out.append(two) == two[-1].offset + 1
    assert_shows(behind, topic, [*_shown(behind, topic)[:3], *one, *two])


def _shown(cluster: SandboxCluster, topic: str) -> list[Record]:
    seen = librdkafka_records(cluster.bootstrap_servers, topic, 0, "read_committed")
    return [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in seen]


@pytest.mark.parametrize("fate", [Fate.LOST, Fate.LATE, Fate.UNANSWERED])
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_records_without_an_answer_are_written_once(
    behind: SandboxCluster, wire: LateWire, wired_client: ClusterClient, fate: Fate, first: bool
) -> None:
    topic = create_topic(behind)
    with appender(wired_client, topic) as out:
        start = 0 if first else out.append(records(0, 4))
        wire.plan(fate, api_key=PRODUCE)
        one = records(start, start + 3)
        assert out.append(one) == start + 3
        assert len(wire.deliver()) == (fate is Fate.LATE)
        assert end_of(wired_client, topic) == start + 3
        two = records(start + 4, start + 5)
        assert out.append(two) == start + 5
    assert _shown(behind, topic)[start:] == [*one, *two]


def fill_at_random(
    behind: SandboxCluster, wire: LateWire, client: ClusterClient, seed: int, holes: int
) -> list[Record]:
    """Append records with holes between while requests for markers are lost, late or unanswered; return the records."""
    topic = create_topic(behind)
    rng = random.Random(seed)
    fates = [*[Fate.ANSWERED] * 4, *[Fate.UNANSWERED] * 2, Fate.LOST, *[Fate.LATE] * 2]
    wanted: list[Record] = []
    end = 0
    wire.roll(rng, fates, 0.3)
    while len(wanted) < holes:
        hole = rng.choice([1, 1, 1, 2, 3, 30, 1500])
        one = records(end + hole, end + hole + 1)
        while True:
            try:
                with appender(client, topic) as out:
                    assert end <= out.log_end_offset <= end + hole
                    end = out.append(one)
                break
            except OutcomeUnknown:
                time.sleep(0.5)
        wanted += one
    wire.calm()
    assert end_of(client, topic) == end
    assert_shows(behind, topic, wanted)
    return wanted


@pytest.mark.slow
def test_no_marker_of_unknown_outcome_ever_shifts_the_log(
    behind: SandboxCluster, wire: LateWire, wired_client: ClusterClient
) -> None:
    fill_at_random(behind, wire, wired_client, seed=1, holes=25)
    assert min(wire.met[fate] for fate in Fate) > 2


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_marker_of_unknown_outcome_ever_shifts_the_log_many_times(
    behind: SandboxCluster, wire: LateWire, wired_client: ClusterClient, seed: int
) -> None:
    fill_at_random(behind, wire, wired_client, seed, holes=100)


# -- as the docs say --------------------------------------------------------------------------------------------------


def test_the_example_in_the_docs_does_what_it_says(cluster: SandboxCluster, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parent.parent.parent / "docs" / "append-at-offset.md").read_text()
    example = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    topic = create_topic(cluster)
    exec(example.replace("localhost:9092", cluster.bootstrap_servers).replace('"orders"', repr(topic)), {})
    reported = re.findall(r"print\(.*# (\d+)$", example, re.MULTILINE)
    assert capsys.readouterr().out.split() == reported == ["0", "101", "101", "10101"]
