"""Over a long path a log is read ahead over many connections, and what is read is what a consumer is shown.

A wire to a real broker passes on answers later, loses some and changes others. librdkafka's consumer is the judge.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from kmirror.cluster import log_ahead, reader
from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.log_ahead import LogAhead
from kmirror.cluster.protocol.batch_records import read_records
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.compare.logs import compare_partition, offset_of
from kmirror.engine.compare.visible_log import VisibleBatch, VisibleLog
from tests.support.far_logs import write
from tests.support.leader import create_topic
from tests.support.oracle import ReadRecord, librdkafka_records
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.waiting import PATIENCE_S
from tests.support.wire import FETCH, Fault, Wire, cut_to, hang_up, swallow

MEGABYTES = 6
#: Where the answer to a fetch of one partition has its throttle time, and its partition's error code.
_THROTTLE_TIME, _ERROR_CODE = slice(9, 13), slice(41, 43)
Shown = list[tuple[int, int, bytes | None, bytes | None]]


def failing(code: Code) -> Fault:
    """Return the fault of an answer whose partition has an error."""
    return lambda frame: frame[: _ERROR_CODE.start] + int(code).to_bytes(2) + frame[_ERROR_CODE.stop :]


def throttled(frame: bytes) -> bytes:
    """Say that the client is throttled for a moment."""
    return frame[: _THROTTLE_TIME.start] + (50).to_bytes(4) + frame[_THROTTLE_TIME.stop :]


@pytest.fixture
def wire(forgetful: ForgetfulCluster) -> Iterator[Wire]:
    """Return a wire whose answers take 40 ms."""
    forgetful.wire.delay = 0.04
    yield forgetful.wire
    forgetful.wire.delay = 0.0


@pytest.fixture
def far_client(forgetful: ForgetfulCluster, wire: Wire) -> Iterator[ClusterClient]:
    """Return a client that is behind the wire, and does not wait long for an answer."""
    config = replace(client_config(forgetful.behind_wire.client_properties()), request_timeout_ms=3000)
    with ClusterClient(config) as made:
        yield made


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the offsets of what is read ahead and taken."""
    offsets: list[int] = []
    take = LogAhead.take

    def noted(self: LogAhead, offset: int) -> object:
        found = take(self, offset)
        if found is not None:
            offsets.append(offset)
        return found

    monkeypatch.setattr(LogAhead, "take", noted)
    return offsets


def reading_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "kmirror-ahead"]


def shown(records: list[ReadRecord]) -> Shown:
    return [(one.offset, one.timestamp, one.key, one.value) for one in records]


def visible_batches(client: ClusterClient, topic: str, start: int, end: int) -> Iterator[VisibleBatch]:
    with ThreadPoolExecutor(1) as executor:
        yield from VisibleLog(client, TopicPartition(topic, 0), start, end, executor).batches()


def visible(client: ClusterClient, topic: str, start: int, end: int) -> Shown:
    return [
        (one.offset, one.timestamp, one.key, one.value)
        for batch in visible_batches(client, topic, start, end)
        for one in batch.records()
        if start <= one.offset < end
    ]


def stored(client: ClusterClient, topic: str, end: int) -> Shown:
    found: Shown = []
    for section in PartitionReader(client, TopicPartition(topic, 0)).batches(0, end):
        for header in section.headers:
            records = () if header.is_control else read_records(section.data, header)
            found += [(one.offset, one.timestamp, one.key, one.value) for one in records]
    return found


def test_a_log_is_read_ahead_as_it_is(far_client: ClusterClient, forgetful: ForgetfulCluster, taken: list[int]) -> None:
    topic = create_topic(forgetful.cluster)
    write(forgetful.cluster, topic, MEGABYTES)
    expected = shown(librdkafka_records(forgetful.cluster.bootstrap_servers, topic))
    assert stored(far_client, topic, expected[-1][0] + 1) == expected
    assert len(taken) > MEGABYTES
    for thread in reading_threads():
        thread.join(PATIENCE_S)
    assert 2 < len(far_client.spare_connections) <= 16


def test_aborted_records_are_not_shown(
    far_client: ClusterClient, forgetful: ForgetfulCluster, taken: list[int]
) -> None:
    topic = create_topic(forgetful.cluster)
    write(forgetful.cluster, topic, MEGABYTES, transactions=True)
    servers = forgetful.cluster.bootstrap_servers
    expected = shown(librdkafka_records(servers, topic, isolation="read_committed"))
    end = expected[-1][0] + 1
    assert visible(far_client, topic, 0, end) == expected
    assert len(taken) > MEGABYTES
    assert len(librdkafka_records(servers, topic)) > len(expected)
    start = end // 3
    assert visible(far_client, topic, start, end) == [one for one in expected if one[0] >= start]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_trouble_costs_time_only(
    far_client: ClusterClient,
    forgetful: ForgetfulCluster,
    wire: Wire,
    taken: list[int],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Lost connections, half answers, silence, leaders that have moved, quotas: read ahead again soon after each."""
    monkeypatch.setattr(log_ahead, "_USUAL_SECONDS", 0.1)
    monkeypatch.setattr(log_ahead, "_THROTTLED_SECONDS", 0.1)
    monkeypatch.setattr(log_ahead, "_HELD_BYTES", 2 << 20)
    chance = random.Random(seed)
    topic = create_topic(forgetful.cluster)
    write(forgetful.cluster, topic, 2 * MEGABYTES, transactions=True)
    expected = shown(librdkafka_records(forgetful.cluster.bootstrap_servers, topic, isolation="read_committed"))
    # the last ones end reading ahead, and a read that is not ahead does not get over broken answers
    faults: list[Fault] = chance.sample([hang_up, cut_to(100_000), cut_to(60), swallow], 4)
    faults += chance.sample([throttled, failing(Code.NOT_LEADER_OR_FOLLOWER), failing(Code.FENCED_LEADER_EPOCH)], 3)
    begun_again = 0
    while faults or not wire.all_fired:
        found: Shown = []
        for batch in visible_batches(far_client, topic, 0, expected[-1][0] + 1):
            found += [(one.offset, one.timestamp, one.key, one.value) for one in batch.records()]
            if len(taken) > begun_again and wire.all_fired and faults:
                begun_again = len(taken)
                wire.spoil(faults.pop(0), api_key=FETCH)
        assert found == expected


def test_what_is_not_read_to_its_end_leaves_nothing_behind(
    far_client: ClusterClient, forgetful: ForgetfulCluster, taken: list[int]
) -> None:
    topic = create_topic(forgetful.cluster)
    write(forgetful.cluster, topic, 3 * MEGABYTES)
    reading = PartitionReader(far_client, TopicPartition(topic, 0)).batches(0, 1 << 40)
    for _ in range(4):
        next(reading)
    assert taken
    assert reading_threads()
    del reading
    for thread in reading_threads():
        thread.join(PATIENCE_S)
    assert not reading_threads()


def test_a_client_that_is_closed_reads_no_further(
    far_client: ClusterClient, forgetful: ForgetfulCluster, taken: list[int]
) -> None:
    topic = create_topic(forgetful.cluster)
    write(forgetful.cluster, topic, 3 * MEGABYTES)
    reading = PartitionReader(far_client, TopicPartition(topic, 0)).batches(0, 1 << 40)
    for _ in range(4):
        next(reading)
    assert taken
    far_client.close()
    for thread in reading_threads():
        thread.join(PATIENCE_S)
    assert not reading_threads()
    assert next(reading).offset > taken[-1]


def test_two_logs_are_compared_over_the_distance(
    far_client: ClusterClient, forgetful: ForgetfulCluster, taken: list[int]
) -> None:
    topic = create_topic(forgetful.cluster)
    write(forgetful.cluster, topic, MEGABYTES, transactions=True)
    partition = TopicPartition(topic, 0)
    with ClusterClient(client_config(forgetful.cluster.client_properties())) as near:
        end = offset_of(near, partition, LATEST)
        found = compare_partition(far_client, near, partition, partition, 0, end)
    assert found.equal
    assert found.records == len(
        librdkafka_records(forgetful.cluster.bootstrap_servers, topic, isolation="read_committed")
    )
    assert len(taken) > MEGABYTES


def test_nearby_nothing_is_read_ahead(
    forgetful: ForgetfulCluster, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # answers are slow on a busy machine, too
    monkeypatch.setattr(reader, "LONG_ROUND_TRIP", 10.0)
    topic = create_topic(forgetful.cluster)
    write(forgetful.cluster, topic, 4)
    with ClusterClient(client_config(forgetful.cluster.client_properties())) as near:
        expected = shown(librdkafka_records(forgetful.cluster.bootstrap_servers, topic))
        assert visible(near, topic, 0, expected[-1][0] + 1) == expected
        assert not taken
