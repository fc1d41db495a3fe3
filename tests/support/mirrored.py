"""A mirror of many topics between two clusters, operated by the command line, and judged by what consumers see."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, TopicMetadata

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import Engine, kmirror, typed
from tests.support.log_batches import VisibleRecord
from tests.support.visible import COMMITTED, UNCOMMITTED, assert_mirrored, bounds
from tests.support.waiting import PATIENCE_S

#: Reading a partition is mostly waiting; what starts a JVM is not.
_READERS, _JVMS = 8, 2
#: How often to check whether waiting has become pointless.
_LOOK_S = 5.0

Place = tuple[str, int]


class Mirrored:
    """One mirror; `topics` are its topics with their partition counts.

    Without Spark its engines' lanes, and the workers of `verify`, are threads.
    """

    def __init__(
        self,
        source: SandboxCluster,
        destination: SandboxCluster,
        folder: Path,
        topics: Mapping[str, int],
        *,
        with_spark: bool = False,
    ) -> None:
        self.source, self.destination, self.topics = source, destination, dict(topics)
        self.name = unique_topic("m")
        self._folder, self._with_spark = folder, with_spark
        self._engines: list[Engine] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for engine in self._engines:
            engine.destroy()

    @property
    def places(self) -> list[Place]:
        """Every partition of every topic."""
        return [(topic, partition) for topic, count in self.topics.items() for partition in range(count)]

    def create(self, *settings: str) -> None:
        """Create the mirror and add the topics."""
        file = self._folder / f"{self.name}.properties"
        file.write_text(f"bootstrap.servers={self.source.bootstrap_servers}\n")
        options = [word for setting in settings for word in ("--config", setting)]
        self.run("create", "--mirror-config", str(file), *options)
        names = self._folder / f"{self.name}.topics"
        names.write_text("".join(f"{topic}\n" for topic in self.topics))
        self.run("add", "--topics", f"@{names}")

    def add(self, topic: str, partitions: int = 1) -> None:
        """Add another topic."""
        self.run("add", "--topics", topic)
        self.topics[topic] = partitions

    def engine(self, *arguments: str, with_spark: bool | None = None) -> Engine:
        """Start an engine; `with_spark` for this one only."""
        output = self._folder / f"{self.name}.out"
        engine = Engine(
            self.destination,
            self.name,
            output,
            *arguments,
            with_spark=self._with_spark if with_spark is None else with_spark,
        )
        self._engines.append(engine)
        return engine

    def copy(self, seconds: int = 120, *, exit_codes: Collection[int] = (0,), with_spark: bool | None = None) -> Engine:
        """Copy everything, and return the engine, which has ended."""
        engine = self.engine("--until-caught-up", "--timeout", f"{seconds}s", with_spark=with_spark)
        code = engine.wait(seconds + 30)
        assert code in exit_codes, f"the engine ended with {code}:\n{self._failures()}\n{engine.output[-4000:]}"
        return engine

    def verify(self) -> None:
        """Compare both sides with `kmirror verify`."""
        done = kmirror(self.destination, "verify", "--mirror", self.name, "--full", with_spark=self._with_spark)
        assert done.returncode == 0, f"verify ended with {done.returncode}: {done.stderr}{done.stdout[-4000:]}"

    def rows(self) -> dict[Place, dict[str, Any]]:
        """Return what `describe` says, by partition."""
        rows = json.loads(self.run("describe", "--json"))
        return {(row["topic"], row["partition"]): row for row in rows}

    def run(self, verb: str, *arguments: str) -> str:
        """Run a verb on this mirror, and return its output; it must succeed."""
        done = typed(self.destination, verb, "--mirror", self.name, *arguments)
        assert done.returncode == 0, f"{verb} ended with {done.returncode}: {done.stderr}{done.stdout[-4000:]}"
        return done.stdout

    def _failures(self) -> str:
        return typed(self.destination, "describe", "--mirror", self.name, "--failed").stdout

    def wait_until_equal(
        self, engine: Engine, topics: Iterable[str] | None = None, *, seconds: float = PATIENCE_S, stable: bool = False
    ) -> None:
        """Wait until topics end where consumers' view of the source ends.

        With `stable` the source has no open transaction any more, and ends where its log does.
        """
        chosen = list(self.topics if topics is None else topics)

        def is_equal() -> bool:
            return all(
                self._ends(self.destination, topic) == self._ends(self.source, topic, COMMITTED)
                and (not stable or self._ends(self.source, topic) == self._ends(self.source, topic, COMMITTED))
                for topic in chosen
            )

        self.wait(engine, is_equal, seconds, topics=chosen)

    def wait(
        self,
        engine: Engine,
        condition: Callable[[], object],
        seconds: float = PATIENCE_S,
        *,
        topics: Collection[str] | None = None,
    ) -> None:
        """Wait until a condition holds while the engine runs; fail as soon as a partition (of these topics) fails."""
        deadline = time.monotonic() + seconds
        next_look = time.monotonic() + _LOOK_S
        while not condition():
            assert engine.process.poll() is None, f"the engine ended by itself:\n{engine.output[-4000:]}"
            if time.monotonic() > min(deadline, next_look):
                rows = [row for row in self.rows().values() if topics is None or row["topic"] in topics]
                failed = [row for row in rows if row["state"] == "FAILED"]
                assert not failed, [(row["topic"], row["partition"], row["errorMessage"]) for row in failed]
                assert time.monotonic() < deadline, f"not within {seconds} s:\n{rows}\n{engine.output[-2000:]}"
                next_look = time.monotonic() + _LOOK_S
            time.sleep(0.1)

    def _ends(self, cluster: SandboxCluster, topic: str, isolation: str = UNCOMMITTED) -> dict[TopicPartition, int]:
        found = bounds(cluster, [topic], self.topics[topic], isolation)
        return {partition: bound.end for partition, bound in found.items()}

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the leader of a partition at the destination."""
        return int(self._metadata()[topic].partitions[partition].leader)

    def is_in_sync(self, replicas: int) -> bool:
        """Return whether all partitions have this many in-sync replicas at the destination."""
        topics = self._metadata()
        return all(
            len(partition.isrs) >= replicas for topic in self.topics for partition in topics[topic].partitions.values()
        )

    def _metadata(self) -> dict[str, TopicMetadata]:
        admin = AdminClient({"bootstrap.servers": self.destination.bootstrap_servers, "log_level": 0})
        return dict(admin.list_topics(timeout=30).topics)

    def compare(
        self, partitions: Sequence[Place] | None = None, *, with_console: bool = False
    ) -> dict[Place, list[VisibleRecord]]:
        """Compare partitions (default: all) as consumers see them, and return what they see."""
        chosen = self.places if partitions is None else list(partitions)

        def one(partition: Place) -> list[VisibleRecord]:
            return assert_mirrored(self.source, self.destination, *partition, with_console=with_console)

        with ThreadPoolExecutor(_JVMS if with_console else _READERS) as pool:
            return dict(zip(chosen, pool.map(one, chosen), strict=True))


def only_topic(mirror: Mirrored) -> str:
    """Return the topic of a mirror of one."""
    (topic,) = mirror.topics
    return topic


def recover(mirror: Mirrored, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run `kmirror recover` and return its document."""
    done = typed(mirror.destination, "recover", "--mirror", mirror.name, "--json", *arguments)
    assert done.returncode == code, (done.stdout, done.stderr)
    return dict(json.loads(done.stdout))
