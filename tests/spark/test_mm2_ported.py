"""MirrorMaker 2's integration tests about topics, as kmirror's promises have them.

Of `MirrorConnectorsIntegrationBaseTest` (Apache Kafka): testReplication, testReplicationWithEmptyPartition,
testSyncTopicConfigs, testStartFromLatest, testReplicateSourceDefault / TargetDefault, and those of
`IdentityReplicationIntegrationTest`. Where MirrorMaker counts records, here each is compared with its offset. One
engine copies two mirrors, and finds their topics by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import Engine, typed
from tests.support.log_batches import VisibleRecord
from tests.support.mirrors import make_topic, produce, properties_of, settings_of
from tests.support.shared_clusters import set_brokers
from tests.support.topics import alter_topic
from tests.support.visible import assert_mirrored, bounds, difference, shown

#: As MirrorMaker's tests have it.
PARTITIONS, RECORDS = 10, 10
#: The source's brokers have other defaults than the destination's.
SOURCE_DEFAULTS = {
    "log.cleaner.delete.retention.ms": "777000",
    "log.roll.ms": "7200000",
    "log.retention.ms": "864000000",
}


@pytest.fixture
def source(mortal_cluster: SandboxCluster) -> Iterator[SandboxCluster]:
    set_brokers(mortal_cluster, SOURCE_DEFAULTS)
    yield mortal_cluster
    set_brokers(mortal_cluster, dict.fromkeys(SOURCE_DEFAULTS))


@pytest.fixture
def destination(destination_cluster: SandboxCluster) -> SandboxCluster:
    return destination_cluster


def create(source: SandboxCluster, destination: SandboxCluster, folder: Path, **settings: str) -> str:
    """Create a mirror; settings with `_` for `.`."""
    mirror = unique_topic("mm2")
    lines = {**properties_of(source), **{key.replace("_", "."): value for key, value in settings.items()}}
    file = folder / f"{mirror}.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    done = typed(destination, "create", "--mirror", mirror, "--mirror-config", str(file))
    assert done.returncode == 0, done.stderr
    return mirror


def fill(cluster: SandboxCluster, topic: str, what: str, *, without: int | None = None) -> None:
    """Write to every partition but one."""
    for partition in range(PARTITIONS):
        if partition != without:
            produce(cluster, topic, [f"{what}-{partition}-{number}" for number in range(RECORDS)], partition)


def wait_for(engine: Engine, condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert engine.process.poll() is None, f"the engine ended by itself:\n{engine.output[-4000:]}"
        assert time.monotonic() < deadline, engine.output[-4000:]
        time.sleep(0.1)


def topics_of(cluster: SandboxCluster) -> set[str]:
    admin = AdminClient(properties_of(cluster))
    return set(admin.list_topics(timeout=30).topics)


def same(source: SandboxCluster, destination: SandboxCluster, topic: str, partition: int) -> list[VisibleRecord]:
    """Compare what consumers are shown of a partition, offsets included, and return it."""
    wanted = shown(source, topic, partition)
    assert difference(wanted, shown(destination, topic, partition), f"{topic}-{partition}") is None
    return wanted


def ends(cluster: SandboxCluster, topic: str, partitions: int = PARTITIONS) -> list[int]:
    return [found.end for found in bounds(cluster, [topic], partitions).values()]


@pytest.mark.slow
def test_topics_of_all_names_and_settings_are_found_and_mirrored_as_they_are(
    source: SandboxCluster, destination: SandboxCluster, tmp_path: Path, engines: list[Engine]
) -> None:
    mark = unique_topic("mm2")
    mirror = create(
        source,
        destination,
        tmp_path,
        topics_include=f"{mark}.*",
        topics_exclude=f"{mark}[.]late",
        topic_properties_exclude="retention[.]bytes,max.compaction.lag.ms",
        refresh_interval_seconds="1",
    )
    latest = create(source, destination, tmp_path, start_from="latest", topic_prefix="latest.")

    # what is there before
    one_way, empty, late = f"{mark}-one-way", f"{mark}-empty-partition", f"{mark}.late"
    odd = [
        f"{mark}.with.dots",
        f"{mark}_under_scores_",
        f"{mark}-hyphens--.",
        f"{mark}.MiXed_-.Case",
        mark + "x" * (249 - len(mark)),
    ]
    for topic in (one_way, empty, late):
        make_topic(source, topic, PARTITIONS, retention_ms="-1")
    fill(source, one_way, "first")
    fill(source, empty, "first", without=0)
    fill(source, late, "before")
    added = typed(destination, "add", "--mirror", latest, "--topics", late)
    assert added.returncode == 0, added.stderr

    engine = Engine(destination, mirror, tmp_path / "engine.out", "--mirror", latest, with_spark=False)
    engines.append(engine)
    # … is found, and what comes while the engine runs
    for topic in odd:
        make_topic(source, topic, retention_ms="-1")
        produce(source, topic, [topic[:20], "second"])
    configured = f"{mark}-configured"
    make_topic(source, configured, retention_bytes="1000", flush_ms="9000", max_compaction_lag_ms="90000000")
    wanted = {one_way, empty, configured, *odd}
    wait_for(engine, lambda: wanted <= topics_of(destination))
    fill(source, one_way, "second")
    fill(source, late, "after")
    admin = AdminClient(properties_of(source))
    admin.create_partitions([NewPartitions(odd[0], 3)])[odd[0]].result(30)
    produce(source, odd[0], ["grown"], 2)

    # one way, an empty partition, identity names, odd names
    for topic in (one_way, empty):
        wait_for(engine, lambda topic=topic: ends(destination, topic) == ends(source, topic))  # type: ignore[misc]
    assert ends(destination, one_way) == [2 * RECORDS] * PARTITIONS
    assert ends(destination, empty) == [0] + [RECORDS] * (PARTITIONS - 1)
    assert len(assert_mirrored(source, destination, one_way, 1)) == 2 * RECORDS
    for partition in range(PARTITIONS):
        assert len(same(source, destination, one_way, partition)) == 2 * RECORDS
        assert len(same(source, destination, empty, partition)) == (RECORDS if partition else 0)
    wait_for(engine, lambda: "grown" in topics_text(destination, odd[0]))
    for topic in odd:
        assert [record.offset for record in same(source, destination, topic, 0)] == [0, 1]

    # from latest: nothing of before, the rest at the offsets it has
    copy = f"latest.{late}"
    wait_for(engine, lambda: ends(destination, copy) == ends(source, late))
    for partition in range(PARTITIONS):
        found = shown(destination, copy, partition)
        assert found == shown(source, late, partition)[RECORDS:]
        assert [record.offset for record in found] == list(range(RECORDS, 2 * RECORDS))
    assert late not in topics_of(destination)

    # settings: what the source sets, what it leaves to its brokers, what is excluded
    found_settings = settings_of(destination, configured)
    at_source = settings_of(source, configured)
    assert found_settings["flush.ms"] == at_source["flush.ms"] == "9000"
    assert found_settings["delete.retention.ms"] == at_source["delete.retention.ms"] == "777000"
    assert at_source["segment.ms"] == "7200000" != found_settings["segment.ms"]
    assert found_settings["max.compaction.lag.ms"] != at_source["max.compaction.lag.ms"]
    # and as they change
    alter_topic(source, configured, flush_ms="8000", segment_ms="3600000", max_compaction_lag_ms="80000000")
    wait_for(engine, lambda: settings_of(destination, configured)["segment.ms"] == "3600000")
    alter_topic(source, configured, flush_ms=None)
    default = settings_of(destination, one_way)["flush.ms"]
    wait_for(engine, lambda: settings_of(destination, configured)["flush.ms"] == default)
    found_settings = settings_of(destination, configured)
    assert found_settings["max.compaction.lag.ms"] not in ("80000000", "90000000")
    # records outlive what the source would delete, until the mirror is stopped
    assert (found_settings["retention.ms"], found_settings["retention.bytes"]) == ("-1", "-1")
    rows = json.loads(typed(destination, "describe", "--mirror", mirror, "--settings", "--json").stdout)
    states = {row["key"]: (row["state"], row["sourceValue"]) for row in rows if row["topic"] == configured}
    assert states["retention.ms"] == ("HELD_BACK", "864000000")
    assert states["retention.bytes"] == ("HELD_BACK", "1000")
    assert states["max.compaction.lag.ms"] == ("EXCLUDED", "80000000")
    assert states["segment.ms"] == ("SYNCED", "3600000")
    assert engine.stop() == 0, engine.output[-4000:]
    assert f"now mirroring new source topics: {min(wanted)}" in engine.output.replace("\n", " ")


def topics_text(cluster: SandboxCluster, topic: str) -> str:
    """Return the values of a topic's third partition, where there is one now."""
    admin = AdminClient(properties_of(cluster))
    if len(admin.list_topics(timeout=30).topics[topic].partitions) < 3:
        return ""
    return " ".join((record.value or b"").decode() for record in shown(cluster, topic, 2))


@pytest.mark.long
def test_a_run_until_all_is_caught_up_begins_with_what_the_filters_take(
    source: SandboxCluster, destination: SandboxCluster, tmp_path: Path, engines: list[Engine]
) -> None:
    topic = unique_topic("mm2-identity")
    make_topic(source, topic, PARTITIONS, retention_ms="-1")
    fill(source, topic, "all")
    mirror = create(source, destination, tmp_path, topics_include=topic)
    engine = Engine(destination, mirror, tmp_path / "engine.out", "--until-caught-up", "--timeout", "90s")
    engines.append(engine)
    assert engine.wait(120) == 0, engine.output[-4000:]
    for partition in range(PARTITIONS):
        assert len(same(source, destination, topic, partition)) == RECORDS
