"""Put old messages into a real broker: it is stopped, finds their segments in its folder, recovers and serves them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from campaign.reading import Place
from kmirror_sandbox.cluster import SandboxCluster

_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_KEPT = "partition.metadata"


def install(cluster: SandboxCluster, segments: Mapping[Place, bytes], ends: Mapping[Place, int]) -> None:
    """Restart a cluster of one broker; these partitions, empty before, then begin with these segments."""
    (broker,) = cluster.brokers
    cluster.stop()
    for (topic, index), segment in segments.items():
        folder = broker.log_dir / f"{topic}-{index}"
        for file in folder.iterdir():
            if file.name != _KEPT:
                file.unlink()
        (folder / f"{0:020d}.log").write_bytes(segment)
    if segments:
        _change(broker.log_dir / "recovery-point-offset-checkpoint", dict.fromkeys(segments, 0))
        _change(broker.log_dir / "replication-offset-checkpoint", ends)
        (broker.log_dir / _CLEAN_SHUTDOWN).unlink(missing_ok=True)
    cluster.start()


def _change(file: Path, changes: Mapping[Place, int]) -> None:
    version, _, *lines = file.read_text().splitlines()
    entries = [line.split(" ") for line in lines]
    offsets = {(topic, int(index)): int(offset) for topic, index, offset in entries} | dict(changes)
    lines = [f"{topic} {index} {offset}" for (topic, index), offset in offsets.items()]
    file.write_text("\n".join([version, str(len(lines)), *lines, ""]))
