"""Put logs into a real broker: it is stopped, finds their segments in its data folder, recovers them and serves them.

This takes one restart, however many logs there are. What a broker stores of a log beside its segments (indexes,
producer snapshots, leader epochs) is removed, so that it reads them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.logs import BuiltLog
from tests.support.stored import log_dir_of
from tests.support.visible import bounds
from tests.support.waiting import wait_until

_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_KEPT = "partition.metadata"
_FIRST_SEGMENT = "00000000000000000000.log"
_OFFSETS_CHECKPOINT_VERSION = "0"

#: Offsets by topic and partition, as in the broker's checkpoint files.
Offsets = dict[tuple[str, int], int]


def install(cluster: SandboxCluster, logs: Mapping[str, BuiltLog]) -> None:
    """Give a cluster of one broker one-partition topics that hold these logs; restarts it."""
    create_topics(cluster, {topic: log.settings for topic, log in logs.items()})
    (broker,) = cluster.brokers
    cluster.stop()
    for topic, log in logs.items():
        put_segments(broker.log_dir / f"{topic}-0", log.segments)
    starts = {(topic, 0): log.log_start_offset for topic, log in logs.items()}
    ends = {(topic, 0): log.log_end_offset for topic, log in logs.items()}
    change_checkpoint(broker.log_dir / "log-start-offset-checkpoint", starts)
    change_checkpoint(broker.log_dir / "recovery-point-offset-checkpoint", dict.fromkeys(starts, 0))
    change_checkpoint(broker.log_dir / "replication-offset-checkpoint", ends)
    (broker.log_dir / _CLEAN_SHUTDOWN).unlink(missing_ok=True)
    cluster.start()
    expected = {topic: (log.log_start_offset, log.log_end_offset) for topic, log in logs.items()}
    wait_until(lambda: {partition.topic: found for partition, found in bounds(cluster, logs).items()} == expected)


def create_topics(cluster: SandboxCluster, settings: Mapping[str, Mapping[str, str]], partitions: int = 1) -> None:
    """Create topics with these settings and the brokers' replication, and wait until the first broker has folders."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    new = [NewTopic(topic, partitions, config=dict(config)) for topic, config in settings.items()]
    for created in admin.create_topics(new).values():
        created.result(60)
    log_dir = log_dir_of(cluster)
    logs = [log_dir / f"{topic}-{index}" / _FIRST_SEGMENT for topic in settings for index in range(partitions)]
    wait_until(lambda: all(file.exists() for file in logs))


def put_segments(folder: Path, segments: Mapping[int, bytes]) -> None:
    """Replace what a stopped broker has of a partition by these segments."""
    for file in folder.iterdir():
        if file.name != _KEPT:
            file.unlink()
    for base_offset, data in segments.items():
        (folder / f"{base_offset:020d}.log").write_bytes(data)


def read_checkpoint(file: Path) -> Offsets:
    """Read one of a broker's offset checkpoint files; a missing or new one is empty."""
    if not file.exists() or not (text := file.read_text()):
        return {}
    version, _, *lines = text.splitlines()
    assert version == _OFFSETS_CHECKPOINT_VERSION, f"{file} has version {version}"
    entries = [line.split(" ") for line in lines]
    return {(topic, int(partition)): int(offset) for topic, partition, offset in entries}


def change_checkpoint(file: Path, changes: Offsets) -> None:
    """Set entries of a stopped broker's checkpoint file."""
    offsets = read_checkpoint(file) | changes
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    file.write_text("\n".join([_OFFSETS_CHECKPOINT_VERSION, str(len(lines)), *lines, ""]))
