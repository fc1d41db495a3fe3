"""A broker closes a connection without an answer when a request exceeds its socket.request.max.bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.pipeline import AppendPipeline
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.lane.lane import Lane
from kmirror.engine.lane.partition.states import Status
from kmirror.errors import BrokerError, OutcomeUnknown, Reason
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster
from tests.support.lane import Mirror, assert_same
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic
from tests.support.shared_clusters import SMALL_HEAP

LIMIT = 2_500_000
ROOMY = {"max.message.bytes": "10000000"}
TOO_LARGE = bytes(LIMIT)
#: Fits into a request by itself, but not together with another one.
LARGE = bytes(1_600_000)


@pytest.fixture(scope="module")
def small_requests(make_module_cluster: MakeCluster) -> SandboxCluster:
    """Start a broker that takes small requests only."""
    limit = {"socket.request.max.bytes": str(LIMIT), "message.max.bytes": "10000000"}
    return make_module_cluster("small-requests", heap=SMALL_HEAP, properties=limit)


@pytest.fixture
def mirror(source_cluster: SandboxCluster, small_requests: SandboxCluster) -> Iterator[Mirror]:
    """Return a mirror whose destination takes small requests only."""
    with closing(Mirror(source_cluster, small_requests)) as made:
        yield made


@pytest.fixture
def limit_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have brokers not say what is set, as to those without DESCRIBE_CONFIGS on the cluster."""
    monkeypatch.setattr(ClusterClient, "broker_configs", lambda *_: {})


def write(mirror: Mirror, topic: str, *values: bytes, partition: int = 0) -> None:
    with Leader(mirror.source, topic, partition) as leader:
        for value in values:
            assert leader.append_as_is(batch_of(value=value)).error_code == 0


def wait_failed(mirror: Mirror, lane: Lane, topic: str) -> str:
    """Wait until the first partition of a topic has FAILED because of a rejected record; return the message."""
    copy = next(p for p in lane.partitions if p.assignment.source_topic == topic)
    mirror.wait(lane, lambda: copy.status is Status.FAILED)
    assert copy.retry.failure is not None
    assert copy.retry.failure.reason is Reason.RECORD_REJECTED
    assert copy.retry.failure.offset == 1
    return copy.retry.failure.message


def test_a_batch_above_the_limit_fails_its_partition_and_disturbs_no_other(mirror: Mirror) -> None:
    large, other = mirror.topic(settings=ROOMY), mirror.topic()
    write(mirror, large, b"before", TOO_LARGE, b"after")
    write(mirror, other, b"1")
    lane = mirror.start()
    message = wait_failed(mirror, lane, large)
    assert f"socket.request.max.bytes={LIMIT}" in message
    write(mirror, other, b"2")
    mirror.wait(lane, lambda: mirror.destination_ends()[f"{other}-0"] == 2)
    mirror.stop(lane)
    assert mirror.destination_ends()[f"{large}-0"] == 1
    assert not any("without a response" in line or "interrupted" in line for p in lane.partitions for line in p.history)


@pytest.mark.slow
@pytest.mark.usefixtures("limit_is_secret")
def test_a_batch_above_a_limit_that_may_not_be_read_fails_too(mirror: Mirror) -> None:
    large, other = mirror.topic(settings=ROOMY), mirror.topic()
    write(mirror, large, b"before", TOO_LARGE, b"after")
    write(mirror, other, b"1")
    lane = mirror.start()
    message = wait_failed(mirror, lane, large)
    assert "socket.request.max.bytes" in message
    assert "DESCRIBE_CONFIGS" in message
    write(mirror, other, b"2")
    mirror.wait(lane, lambda: mirror.destination_ends()[f"{other}-0"] == 2)
    mirror.stop(lane)
    assert mirror.destination_ends()[f"{large}-0"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_secret", [False, True])
def test_batches_that_are_above_the_limit_together_are_sent_apart(
    mirror: Mirror, is_secret: bool, request: pytest.FixtureRequest
) -> None:
    if is_secret:
        request.getfixturevalue("limit_is_secret")
    topic = mirror.topic(4, settings=ROOMY)
    for partition in range(4):
        values = [bytes(900_000), LARGE] if partition % 2 else [LARGE, bytes(900_000)]
        write(mirror, topic, b"before", *values, *values, b"after", partition=partition)
    lane = mirror.start()
    mirror.wait_copied(lane)
    mirror.stop(lane)
    assert_same(mirror, topic, 4)
    was_cut_off = any("without a response" in line for p in lane.partitions for line in p.history)
    assert not was_cut_off or is_secret


@pytest.mark.parametrize("is_secret", [False, True])
def test_a_record_above_the_limit_is_refused_to_appenders(
    small_requests: SandboxCluster, is_secret: bool, request: pytest.FixtureRequest
) -> None:
    if is_secret:
        request.getfixturevalue("limit_is_secret")
    topic = create_topic(small_requests, partitions=3, settings=ROOMY)
    config = client_config(small_requests.client_properties())
    one, *others = (TopicPartition(topic, index) for index in range(3))
    records = [Record(offset, 1_700_000_000_000, None, value) for offset, value in enumerate([b"1", TOO_LARGE, b"3"])]
    error = OutcomeUnknown if is_secret else BrokerError
    with ClusterClient(config) as client, OffsetAppender(client, one, producer_id=OWN_ID) as out:
        assert out.append(records[:1]) == 1
        with pytest.raises(error, match=r"socket\.request\.max\.bytes"):
            out.append(records[1:2])
    with ClusterClient(config) as client, OffsetAppender(client, one, producer_id=OWN_ID) as out:
        assert out.log_end_offset == 1
    with AppendPipeline(config, producer_id=OWN_ID) as out_many:
        large = [out_many.append(where, [Record(0, 1_700_000_000_000, None, LARGE)]) for where in others]
        assert [one.result() for one in large] == [1, 1]


@pytest.mark.slow
def test_a_raised_limit_is_noticed(mirror: Mirror, small_requests: SandboxCluster) -> None:
    """The last test here: the broker's limit stays raised."""
    topic = mirror.topic(settings=ROOMY)
    write(mirror, topic, b"before", TOO_LARGE, b"after")
    lane = mirror.start()
    wait_failed(mirror, lane, topic)
    small_requests.stop()
    description = small_requests.directory / "cluster.json"
    description.write_text(description.read_text().replace(str(LIMIT), str(4 * LIMIT)))
    SandboxCluster(small_requests.name, small_requests.directory).start()

    def is_copied() -> bool:
        with suppress(BrokerError):  # the state has no leader again yet
            mirror.claim()
        return mirror.destination_ends() == mirror.source_ends()

    mirror.wait(lane, is_copied)
    mirror.stop(lane)
