"""Logs that start above 0: filler, DeleteRecords, also where the cleanup policy forbids it, and after a crash."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewTopic, ResourceType

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.filler import FILLER_RECORDS, filler_batch, is_filler
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import read_batch_at
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics import trim
from kmirror.cluster.topics.trim import (
    Trimmed,
    delete_records,
    restore_settings,
    trim_compacted,
    unfinished_trims,
)
from kmirror.engine.clock import now_ms
from kmirror.errors import RefusedError
from kmirror_sandbox.cluster import SandboxCluster
from kmirror_sandbox.jars import DEFAULT_KAFKA_VERSION
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.kafka_versions import EVERY_VERSION, is_older
from tests.support.leader import OWN_ID, Leader, create_topic
from tests.support.oracle import console_consumer, librdkafka_records
from tests.support.real_logs import BUSY
from tests.support.spawned import exit_code_of
from tests.support.waiting import wait_until

TRIMMED_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes")
MILLION = 1_000_000


@pytest.fixture(scope="module", params=EVERY_VERSION)
def cluster(request: pytest.FixtureRequest) -> SandboxCluster:
    """Return a cluster that looks for segments to delete all the time."""
    if request.param == DEFAULT_KAFKA_VERSION:
        return request.getfixturevalue("busy_cluster")  # type: ignore[no-any-return]
    make: MakeCluster = request.getfixturevalue("make_module_cluster")
    return make(f"trim-{request.param}", kafka_version=request.param, properties=BUSY)


def own_settings(cluster: SandboxCluster, topic: str) -> dict[str, str]:
    """Return what a topic has of its own of the settings that a trim touches, as librdkafka sees it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, Any] = admin.describe_configs([resource])[resource].result(30)
    own = (found[name] for name in TRIMMED_SETTINGS)
    return {one.name: one.value for one in own if one.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value}


def filled(cluster: SandboxCluster, topic: str, partition: int = 0, *, end: int, last: Sequence[Record] = ()) -> None:
    """Bring an empty partition to this offset with filler, and append records there."""
    with Leader(cluster, topic, partition) as leader:
        for offset in range(0, end, FILLER_RECORDS):
            count = min(FILLER_RECORDS, end - offset)
            assert leader.append(filler_batch(count, now_ms(), base_offset=offset), offset) == (0, offset)
        if last:
            assert leader.append(make_batch(last), end) == (0, end)


def bounds(client: ClusterClient, partition: TopicPartition) -> tuple[int | None, int | None]:
    start = client.list_offsets({partition: EARLIEST})[partition].offset
    return start, client.list_offsets({partition: LATEST})[partition].offset


# -- a plain topic ----------------------------------------------------------------------------------------------------


def test_a_log_that_starts_at_a_million(cluster: SandboxCluster, client: ClusterClient) -> None:
    topic = create_topic(cluster)
    partition = TopicPartition(topic, 0)
    wanted = [Record(MILLION + i, 5 + i, b"k", b"v%d" % i) for i in range(3)]
    filled(cluster, topic, end=MILLION, last=wanted)
    stored = read_batch_at(client, partition, MILLION - 1)
    assert stored is not None
    assert is_filler(stored)
    assert delete_records(client, {partition: MILLION}) == {partition: Trimmed(0, MILLION)}
    assert bounds(client, partition) == (MILLION, MILLION + 3)
    for isolation in ("read_committed", "read_uncommitted"):
        seen = librdkafka_records(cluster.bootstrap_servers, topic, 0, isolation)
        assert [Record(r.offset, r.timestamp, r.key, r.value, r.headers) for r in seen] == wanted
        assert console_consumer(cluster, topic, 0, isolation) == seen
    with Leader(cluster, topic) as leader:
        (header,) = batch_headers(leader.fetch(MILLION).records)
        assert not is_filler(leader.fetch(MILLION).records[header.position : header.position + header.size_in_bytes])


def test_a_log_that_is_empty_at_a_million(cluster: SandboxCluster, client: ClusterClient) -> None:
    topic = create_topic(cluster)
    partition = TopicPartition(topic, 0)
    filled(cluster, topic, end=MILLION)
    delete_records(client, {partition: MILLION})
    assert bounds(client, partition) == (MILLION, MILLION)
    assert librdkafka_records(cluster.bootstrap_servers, topic) == []
    with OffsetAppender(client, partition, producer_id=OWN_ID) as out:
        assert out.append([Record(MILLION + 2, 5, b"k", b"v")]) == MILLION + 3


def test_many_partitions_at_once_and_each_its_answer(cluster: SandboxCluster, client: ClusterClient) -> None:
    topic = create_topic(cluster, partitions=4)
    for index in range(3):
        filled(cluster, topic, index, end=100)
    partitions = [TopicPartition(topic, index) for index in range(4)]
    wanted = dict(zip(partitions, [10, 100, 101, 0], strict=True))
    assert delete_records(client, wanted) == {
        partitions[0]: Trimmed(0, 10),
        partitions[1]: Trimmed(0, 100),
        partitions[2]: Trimmed(Code.OFFSET_OUT_OF_RANGE, None),
        partitions[3]: Trimmed(0, 0),
    }
    assert delete_records(client, {partitions[0]: 5}) == {partitions[0]: Trimmed(0, 10)}
    missing = TopicPartition(unique_topic(), 0)
    found = delete_records(client, {missing: 5}, timeout_s=0.3)
    assert found == {missing: Trimmed(Code.UNKNOWN_TOPIC_OR_PARTITION, None)}


# -- a compacted topic ------------------------------------------------------------------------------------------------

OWN = [
    {"cleanup.policy": "compact"},
    {"cleanup.policy": "compact", "retention.ms": "1", "retention.bytes": "1"},
]
MORE = [
    {"cleanup.policy": "compact", "retention.ms": "-1", "retention.bytes": str(2**63 - 1)},
    {"cleanup.policy": "compact", "retention.ms": str(2**63 - 1), "retention.bytes": "0"},
]
OWN_SETTINGS = [*OWN, *(pytest.param(own, marks=pytest.mark.slow) for own in MORE)]


def compacted(cluster: SandboxCluster, own: dict[str, str], partitions: int = 1) -> str:
    """Create a topic that has no other of these settings of its own."""
    topic = unique_topic()
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    wide = {"segment.ms": "50"}
    if not is_older(cluster.kafka_version, "3.6"):
        wide["message.timestamp.before.max.ms"] = str(2**63 - 1)
    for created in admin.create_topics([NewTopic(topic, partitions, 1, config={**own, **wide})]).values():
        created.result(30)
    with ClusterClient(client_config(cluster.client_properties())) as client:
        client.list_offsets({TopicPartition(topic, p): LATEST for p in range(partitions)})
    return topic


@pytest.mark.parametrize("own", OWN_SETTINGS)
def test_a_compacted_topic_is_trimmed_and_its_settings_are_the_same_again(
    cluster: SandboxCluster, client: ClusterClient, own: dict[str, str]
) -> None:
    topic = compacted(cluster, own, partitions=2)
    partitions = [TopicPartition(topic, index) for index in range(2)]
    kept = [Record(1000 + i, 1_000_000 + i, b"k%d" % i, b"v") for i in range(5)]
    for index in range(2):
        filled(cluster, topic, index, end=1000, last=kept)
    refused = delete_records(client, dict.fromkeys(partitions, 1000))
    assert {trimmed.error_code for trimmed in refused.values()} == {Code.POLICY_VIOLATION}
    assert trim_compacted(client, dict.fromkeys(partitions, 1000)) == dict.fromkeys(partitions, Trimmed(0, 1000))
    wait_until(lambda: own_settings(cluster, topic) == own)
    assert unfinished_trims(client, [topic]) == []
    for partition in partitions:
        assert bounds(client, partition) == (1000, 1005)
        # with retention.ms=1 in force for a moment nothing would be left of these old records
        seen = librdkafka_records(cluster.bootstrap_servers, topic, partition.partition)
        assert [(r.offset, r.key) for r in seen] == [(one.offset, one.key) for one in kept]


def test_a_topic_that_needs_no_change_gets_none(cluster: SandboxCluster, client: ClusterClient) -> None:
    topic = create_topic(cluster, settings={"cleanup.policy": "compact,delete"})
    before = own_settings(cluster, topic)
    filled(cluster, topic, end=100)
    partition = TopicPartition(topic, 0)
    assert trim_compacted(client, {partition: 60}) == {partition: Trimmed(0, 60)}
    assert own_settings(cluster, topic) == before


def test_a_setting_that_could_not_be_put_back_is_refused_before_anything_changes(
    cluster: SandboxCluster, client: ClusterClient
) -> None:
    own = {"cleanup.policy": "compact", "retention.ms": str(2**50)}
    topic = compacted(cluster, own)
    filled(cluster, topic, end=100)
    with pytest.raises(RefusedError, match=r"retention\.ms is 1125899906842624"):
        trim_compacted(client, {TopicPartition(topic, 0): 60})
    wait_until(lambda: own_settings(cluster, topic) == own)
    assert bounds(client, TopicPartition(topic, 0)) == (0, 100)


def test_when_deleting_fails_everything_is_put_back(
    cluster: SandboxCluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"cleanup.policy": "compact", "retention.ms": "77"}
    topic = compacted(cluster, own)
    filled(cluster, topic, end=100)
    partition = TopicPartition(topic, 0)
    asked: list[dict[str, str]] = []
    really = client.per_leader

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        asked.append(own_settings(cluster, topic))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return really(*args, **kwargs)

    monkeypatch.setattr(client, "per_leader", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trim_compacted(client, {partition: 60})
    assert asked[0] == own
    assert asked[1]["cleanup.policy"] == "compact,delete"
    assert int(asked[1]["retention.ms"]) > 2**60
    wait_until(lambda: own_settings(cluster, topic) == own)
    assert bounds(client, partition) == (0, 100)


def trim_and_die(servers: str, topic: str, offset: int) -> None:
    """Begin a trim, and die once settings are changed."""
    really = trim._alter

    def alter(*arguments: Any) -> None:
        really(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    trim._alter = alter  # type: ignore[assignment]
    with ClusterClient(client_config({"bootstrap.servers": servers})) as client:
        trim_compacted(client, {TopicPartition(topic, 0): offset})


def assert_dies(cluster: SandboxCluster, topic: str, offset: int) -> None:
    assert exit_code_of(trim_and_die, cluster.bootstrap_servers, topic, offset) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("own", OWN_SETTINGS)
def test_what_a_crash_in_the_middle_leaves_is_known_and_repaired(
    cluster: SandboxCluster, client: ClusterClient, own: dict[str, str]
) -> None:
    """Killed while the settings for the moment are in force; nothing else remembers what they were."""
    topic = compacted(cluster, own)
    old = [Record(100 + i, 1_000_000 + i, b"k%d" % i, b"v") for i in range(5)]
    filled(cluster, topic, end=100, last=old)
    partition = TopicPartition(topic, 0)
    for repair in ("restore", "trim"):  # in one go: a repaired topic is like any other
        assert_dies(cluster, topic, 60)
        wait_until(lambda: unfinished_trims(client, [topic]) == [topic])
        assert own_settings(cluster, topic)["cleanup.policy"] == "compact,delete"
        assert bounds(client, partition) == (0, 105)
        if repair == "restore":
            time.sleep(0.5)  # the broker looks for segments to delete five times meanwhile
            assert bounds(client, partition) == (0, 105)
            assert restore_settings(client, [topic]) == [topic]
            wait_until(lambda: restore_settings(client, [topic]) == [])
            # offset 0: a broker that does not know of the policy yet deletes nothing
            wait_until(lambda: delete_records(client, {partition: 0})[partition].error_code == Code.POLICY_VIOLATION)
        else:
            assert trim_compacted(client, {partition: 60}) == {partition: Trimmed(0, 60)}
        wait_until(lambda: own_settings(cluster, topic) == own)
    assert len(librdkafka_records(cluster.bootstrap_servers, topic)) >= len(old)


@pytest.mark.slow
def test_a_policy_that_is_the_brokers_default_stays_that(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("compacting", properties={"log.cleanup.policy": "compact"})
    topic = compacted(cluster, {})
    partition = TopicPartition(topic, 0)
    with ClusterClient(client_config(cluster.client_properties())) as client:
        filled(cluster, topic, end=100)
        assert trim_compacted(client, {partition: 60}) == {partition: Trimmed(0, 60)}
        wait_until(lambda: own_settings(cluster, topic) == {})
        assert_dies(cluster, topic, 70)
        wait_until(lambda: restore_settings(client, [topic]) == [topic])
        wait_until(lambda: own_settings(cluster, topic) == {})
