"""The random logs that judge mirrors are what they say: brokers recover them, consumers see what is expected.

Kafka's own log dump, its console consumer and librdkafka are asked, on a broker of each supported major version.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import NoBatches
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.compare.visible_log import VisibleLog
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster
from tests.support.installed_logs import install
from tests.support.log_batches import VisibleRecord
from tests.support.log_features import FEATURES
from tests.support.logs import LONG_SEEDS, BuiltLog, build_log
from tests.support.oracle import dump_logs
from tests.support.shared_clusters import forgetful_cluster, installed_in
from tests.support.visible import COMMITTED, Bounds, bounds_of, difference, shown, shown_by_console

#: Brokers before 3.4 do not tell where a local log starts.
OLDER = ("3.9.2", "3.3.2")


@pytest.fixture(scope="module", params=["4.3.1", *(pytest.param(version, marks=pytest.mark.long) for version in OLDER)])
def holder(request: pytest.FixtureRequest) -> SandboxCluster:
    return forgetful_cluster(request, request.param)


@pytest.fixture(scope="module")
def logs(holder: SandboxCluster, request: pytest.FixtureRequest) -> dict[str, BuiltLog]:
    """Return random logs that the cluster holds, one at least of every feature."""
    return installed_in(request, holder)


def test_consumers_see_what_is_expected(holder: SandboxCluster, logs: dict[str, BuiltLog]) -> None:
    def check(topic: str, log: BuiltLog) -> None:
        seen = shown(holder, topic)
        assert difference(log.expected, seen) is None, difference(log.expected, seen, f"seed {log.seed}")
        assert bounds_of(holder, topic) == Bounds(log.log_start_offset, log.log_end_offset)
        assert bounds_of(holder, topic, isolation=COMMITTED) == Bounds(log.log_start_offset, log.last_stable_offset)

    with ThreadPoolExecutor(8) as pool:  # it is mostly waiting
        list(pool.map(check, logs, logs.values()))


@pytest.mark.slow
def test_the_console_consumer_agrees(holder: SandboxCluster, logs: dict[str, BuiltLog]) -> None:
    def seen(topic: str, log: BuiltLog) -> str | None:
        records = shown_by_console(holder, topic, records=len(log.expected))
        return difference(log.expected, records, f"seed {log.seed}")

    chosen = dict(list(logs.items())[:: 1 if holder.kafka_version.startswith("4") else 9])
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(seen, chosen, chosen.values())) == {None}


def read_by_verify(holder: SandboxCluster, topic: str, log: BuiltLog) -> list[VisibleRecord]:
    """Read a log as `kmirror verify` does."""
    start, end = log.log_start_offset, log.last_stable_offset
    with ClusterClient(client_config(holder.client_properties())) as client, ThreadPoolExecutor(1) as executor:
        batches = VisibleLog(client, TopicPartition(topic, 0), start, end, executor).batches()
        records = [record for batch in batches for record in batch.records() if start <= record.offset < end]
    return [VisibleRecord(one.offset, one.timestamp, one.key, one.value, one.headers) for one in records]


def test_verify_reads_what_consumers_see(holder: SandboxCluster, logs: dict[str, BuiltLog]) -> None:
    for topic, log in logs.items():
        seen = read_by_verify(holder, topic, log)
        assert difference(log.expected, seen, f"seed {log.seed}") is None, difference(log.expected, seen)


def test_a_hole_at_the_end_is_proved(holder: SandboxCluster, logs: dict[str, BuiltLog]) -> None:
    """An empty answer is proof there: the leader has these offsets on its own disk, and no batch."""
    ends = {topic: log for topic, log in logs.items() if "hole at the end" in log.features}
    assert ends
    with ClusterClient(client_config(holder.client_properties())) as client:
        for topic, log in ends.items():
            reader, end = PartitionReader(client, TopicPartition(topic, 0), read_committed=True), log.last_stable_offset
            reached = max([read.next_offset for read in reader.batches(log.log_start_offset, end)], default=0)
            assert reached < end
            assert reader.read(reached) == NoBatches(reached, end)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_hundred_logs(make_cluster: MakeCluster) -> None:
    holder = make_cluster("holder")
    logs = {f"seed-{seed}": build_log(seed) for seed in LONG_SEEDS}
    install(holder, logs)

    def check(topic: str, log: BuiltLog) -> None:
        seen = shown(holder, topic)
        assert difference(log.expected, seen, topic) is None, difference(log.expected, seen, topic)
        seen = read_by_verify(holder, topic, log)
        assert difference(log.expected, seen, topic) is None, difference(log.expected, seen, topic)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(check, logs, logs.values()))


def test_the_log_dump_finds_the_features(holder: SandboxCluster, logs: dict[str, BuiltLog]) -> None:
    # it tells other things of old formats, and nothing of an empty log
    chosen = {topic: log for topic, log in logs.items() if not log.has_old_format and any(log.segments.values())}
    assert len(chosen) >= len(logs) // 2
    for topic, dumped in dump_logs(holder, chosen).items():
        log = chosen[topic]
        batches = [batch for batch in dumped if batch.last_offset >= log.log_start_offset]
        assert all(batch.is_valid for batch in batches)
        found = {f"codec {batch.compression.lower()}" for batch in batches if batch.count and not batch.is_control}
        found |= {"empty batch" for batch in batches if batch.count == 0}
        found |= {"delete horizon" for batch in batches if batch.delete_horizon_ms is not None}
        found |= {"LogAppendTime" for batch in batches if batch.timestamp_type == "LogAppendTime"}
        found |= {"start in a batch" for batch in batches[:1] if batch.base_offset < log.log_start_offset}
        checked = {name for name in FEATURES if name.startswith("codec ")}
        checked |= {"empty batch", "delete horizon", "LogAppendTime", "start in a batch"}
        assert log.features & checked <= found, log.seed
