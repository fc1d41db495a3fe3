"""Move applications' topics between two clusters and back, all with kmirror's own commands."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from confluent_kafka import Producer

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import Engine, typed
from tests.support.visible import COMMITTED, bounds, shown
from tests.support.waiting import PATIENCE_S, wait_until


class Lost(NamedTuple):
    """A partition after a failover: its copy ends at `begin`, and the old primary reportedly ends at `end`."""

    begin: int
    end: int


def send(cluster: SandboxCluster, topic: str, values: Iterable[str], partition: int = 0) -> None:
    """Write records to a partition."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(60) == 0


def values(cluster: SandboxCluster, topic: str, partitions: int = 1) -> Counter[str]:
    """Return what consumers of a topic are shown, and how often."""
    records = [record for partition in range(partitions) for record in shown(cluster, topic, partition)]
    return Counter((record.value or b"").decode() for record in records)


def values_in_order(cluster: SandboxCluster, topic: str, partitions: int = 1) -> list[list[str]]:
    """Return what consumers of a topic are shown, by partition: what an application and its unmoved twin share."""
    parts = (shown(cluster, topic, partition) for partition in range(partitions))
    return [[(record.value or b"").decode() for record in records] for records in parts]


def values_lost(cluster: SandboxCluster, topic: str, lost: Mapping[tuple[str, int], Lost]) -> Counter[str]:
    """Return the records of a topic that an old primary has and the copy lacks, by the failover's report."""
    return Counter(
        (record.value or b"").decode()
        for (name, partition), loss in lost.items()
        if name == topic
        for record in shown(cluster, topic, partition)
        if record.offset >= loss.begin
    )


class Journey:
    """Topics of applications on one cluster, the primary, and their mirror on the other one.

    In the `with` block an engine copies. `promote` and `failover` make the mirror the primary, without a mirror of its
    own; `failback` makes the old primary its mirror.
    """

    def __init__(
        self, primary: SandboxCluster, secondary: SandboxCluster, folder: Path, topics: Sequence[str], *settings: str
    ) -> None:
        """Mirror topics that the primary has; each setting is `key=value`."""
        self.primary, self.secondary = primary, secondary
        self._folder = folder
        self.mirror = unique_topic("journey")
        self._settings = ("refresh.interval.seconds=1", "sync.group.offsets.interval.seconds=1", *settings)
        self._typed("create", "--mirror-config", self._config())
        self._typed("add", "--topics", ",".join(topics), "--allow-missing")
        self._engine: Engine | None = None

    def __enter__(self) -> Self:
        self.start_engine()
        return self

    def __exit__(self, *_: object) -> None:
        if self._engine is not None:
            self._engine.destroy()

    def start_engine(self) -> None:
        """Copy, until the engine is killed or the direction changes."""
        output = self._folder / f"{self.mirror}.out"
        self._engine = Engine(self.secondary, self.mirror, output, with_spark=False)

    def kill_engine(self) -> None:
        """Kill it: what the primary accepts from now on is not copied."""
        assert self._engine is not None
        self._engine.process.send_signal(signal.SIGKILL)
        self._engine.process.wait(PATIENCE_S)
        self._engine = None

    def wait(self, condition: str = "caught-up") -> None:
        """Wait as operators do."""
        self._typed("wait", "--for", condition, "--timeout", "90s")

    def wait_for_topics(self, *topics: str) -> None:
        """Wait until topics that the applications have created are mirrored too."""
        wait_until(lambda: {row["topic"] for row in self.describe()} >= set(topics), 60)
        self.wait("healthy")

    def describe(self, *flags: str) -> list[dict[str, Any]]:
        """Return the rows of `describe`."""
        found: list[dict[str, Any]] = json.loads(self._typed("describe", "--json", *flags).stdout)
        return found

    def promote(self) -> dict[str, Any]:
        """Move to the mirror once everything is copied and no one writes any more; return what promote printed."""
        arguments = ("--together", "--idle", "1s", "--timeout", "90s", "--json")
        done: dict[str, Any] = json.loads(self._typed("promote", *arguments).stdout)
        self._stop_engine()
        self.primary, self.secondary = self.secondary, self.primary
        return done

    def failover(self) -> dict[tuple[str, int], Lost]:
        """Move to the mirror as it is; return the reported loss of each partition, also if it is none."""
        report = self._folder / "failover.json"
        report.unlink(missing_ok=True)
        self._typed("failover", "--yes", "--report", str(report))
        self._stop_engine()
        self.primary, self.secondary = self.secondary, self.primary
        rows = json.loads(report.read_text(encoding="utf-8"))["partitions"]
        for row in rows:
            assert row["lag"] == max(0, row["sourceOffset"] - row["lastMirroredOffset"]), row
        return {(row["topic"], row["partition"]): Lost(row["lastMirroredOffset"], row["sourceOffset"]) for row in rows}

    def failback(self, *how: str) -> None:
        """Make the old primary the mirror, once members that are gone have left their groups, and copy to it."""
        line = ("failback", "--mirror", self.mirror, "--mirror-config", self._config(), "--yes", *how)
        done: list[subprocess.CompletedProcess[str]] = []

        def is_decided() -> bool:
            done[:] = [typed(self.secondary, *line)]
            return not (done[0].returncode == 3 and " members at " in done[0].stderr)

        wait_until(is_decided)
        assert done[0].returncode == 0, f"{done[0].returncode} {done[0].stdout[-3000:]}{done[0].stderr[-3000:]}"
        self.start_engine()

    def ends(self, topics: Sequence[str], partitions: int) -> dict[tuple[str, int], int]:
        """Return where the primary's topics end for consumers of what is committed."""
        found = bounds(self.primary, topics, partitions, COMMITTED)
        return {(topic_partition.topic, topic_partition.partition): at.end for topic_partition, at in found.items()}

    def _config(self) -> str:
        file = self._folder / "primary.properties"
        lines = (f"bootstrap.servers={self.primary.bootstrap_servers}", *self._settings)
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(file)

    def _stop_engine(self) -> None:
        if self._engine is not None:
            self._engine.stop()
        self._engine = None

    def _typed(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = typed(self.secondary, verb, "--mirror", self.mirror, *arguments)
        assert done.returncode == 0, f"{verb}: {done.returncode} {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done
