"""A real engine in its own process: `kmirror run`, started, watched, harmed; and other commands."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kmirror.cli.main import main
from kmirror.cli.terminal.screen import Screen
from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import create_partitions
from kmirror_sandbox.cluster import SandboxCluster
from tests.support import forked
from tests.support.json_documents import check_printed
from tests.support.new_topics import create_and_wait
from tests.support.processes import EngineTree, engine_tree
from tests.support.stored import first_difference, log_dir_of
from tests.support.waiting import PATIENCE_S, polls, wait_until

ROOT = Path(__file__).parent.parent.parent


def kmirror(
    destination: SandboxCluster | str, verb: str, *arguments: str, with_spark: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one kmirror command to its end."""
    done = run_to_its_end(command(destination, verb, *arguments, with_spark=with_spark))
    check_printed([verb, *arguments], done.stdout)
    return done


def run_to_its_end(line: Sequence[str], seconds: float = 180) -> subprocess.CompletedProcess[str]:
    """Run a command line made by `command`."""
    if may_start_spark(line):
        return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=False, timeout=seconds)
    return forked.run(line, timeout=seconds)


def may_start_spark(line: Sequence[str]) -> bool:
    """Return whether a command line may start Spark: those are started as users start them, not forked."""
    _, _, module, verb, *_ = line
    return module == "kmirror" and verb in {"run", "verify", "promote", "switchover"}


def command(destination: SandboxCluster | str, verb: str, *arguments: str, with_spark: bool = True) -> list[str]:
    """Return the words of a kmirror command; without Spark, threads do the work of its workers."""
    program = "kmirror" if with_spark else "tests.support.without_spark"
    return [sys.executable, "-m", program, *_line(destination, verb, *arguments)]


def typed(destination: SandboxCluster | str, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one kmirror command that needs no Spark in this process, which saves starting another one."""
    line = _line(destination, verb, *arguments)
    out, err = io.StringIO(), io.StringIO()
    code = main(line, Screen(out, err, io.StringIO()))
    done = subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())
    check_printed(line, done.stdout)
    return done


def _line(destination: SandboxCluster | str, verb: str, *arguments: str) -> list[str]:
    server = destination if isinstance(destination, str) else destination.bootstrap_servers
    return [verb, "--bootstrap-server", server, *arguments]


class Engine:
    """One `kmirror run` process, for all mirrors if none is named; without Spark its lanes are threads in it."""

    def __init__(
        self, destination: SandboxCluster, mirror: str | None, output: Path, *arguments: str, with_spark: bool = True
    ) -> None:
        self._output = output
        #: On a cluster, workers are not below the driver's process; without Spark there are none.
        self.is_local = with_spark and "--master" not in arguments
        which = ("--all",) if mirror is None else ("--mirror", mirror)
        with output.open("ab") as file:
            line = command(destination, "run", *which, *arguments, with_spark=with_spark)
            environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
            self.process: subprocess.Popen[bytes] | forked.Forked
            if with_spark:
                self.process = subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environ)
            else:
                self.process = forked.Forked(line, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environ)

    def tree(self) -> EngineTree:
        """Return its processes."""
        return engine_tree(self.process.pid)

    def wait(self, seconds: float) -> int:
        """Wait for its end and return the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the engine has not ended within {seconds} s:\n{self.output[-4000:]}") from None

    def interrupt(self, seconds: float = PATIENCE_S) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait(seconds)

    def stop(self, seconds: float = PATIENCE_S) -> int:
        """End it with SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(seconds)

    def destroy(self) -> None:
        """Kill whatever is left of it."""
        if self.process.poll() is None:
            for process in self.tree().all:
                process.kill()
            self.process.wait(PATIENCE_S)

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(errors="replace")


class Pair:
    """A topic on a source, its mirror on a destination, and what both hold."""

    def __init__(
        self,
        source: SandboxCluster,
        destination: SandboxCluster,
        folder: Path,
        topic: str,
        *,
        partitions: int = 8,
        replication: int = 1,
        source_config: Mapping[str, str] | None = None,
    ) -> None:
        self.source, self.destination, self.folder, self.topic = source, destination, folder, topic
        self.mirror = f"m-{topic}"
        self._engines: list[Engine] = []
        self.partitions = [TopicPartition(topic, index) for index in range(partitions)]
        admin = AdminClient({"bootstrap.servers": source.bootstrap_servers})
        new = NewTopic(topic, partitions, replication, config=dict(source_config or {}))
        create_and_wait(admin, new)
        self._at_source = ClusterClient(client_config({"bootstrap.servers": source.bootstrap_servers}))
        self._at_destination = ClusterClient(client_config({"bootstrap.servers": destination.bootstrap_servers}))

    def create(self, *settings: str) -> None:
        """Create the mirror and add the topic."""
        file = self.folder / f"{self.mirror}.properties"
        file.write_text(f"bootstrap.servers={self.source.bootstrap_servers}\n")
        options = [word for setting in settings for word in ("--config", setting)]
        made = typed(self.destination, "create", "--mirror", self.mirror, "--mirror-config", str(file), *options)
        assert made.returncode == 0, made.stderr
        added = typed(self.destination, "add", "--mirror", self.mirror, "--topics", self.topic)
        assert added.returncode == 0, added.stderr

    def engine(self, *arguments: str, with_spark: bool = True) -> Engine:
        """Start an engine for it."""
        output = self.folder / f"{self.mirror}.out"
        engine = Engine(self.destination, self.mirror, output, *arguments, with_spark=with_spark)
        self._engines.append(engine)
        return engine

    def fill(
        self, records: int, *, size: int = 1000, timestamp_ms: int | None = None, batch_bytes: int = 65536
    ) -> None:
        """Produce records to all partitions; `timestamp_ms` is the first one's, each next is a ms later."""
        producer = Producer(
            {
                "bootstrap.servers": self.source.bootstrap_servers,
                "acks": "all",
                "linger.ms": 20,
                "batch.size": batch_bytes,
                "queue.buffering.max.messages": 500_000,
            }
        )
        randomness = random.Random(records)
        value = randomness.randbytes(size)
        for number in range(records):
            stamp = {} if timestamp_ms is None else {"timestamp": timestamp_ms + number}
            while True:
                try:
                    producer.produce(
                        self.topic,
                        key=b"%d" % number,
                        value=value,
                        partition=number % len(self.partitions),
                        **stamp,
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0

    def source_end(self) -> int:
        """Sum of the source's log ends."""
        return self._end(self._at_source)

    def destination_end(self) -> int:
        """Sum of the destination's log ends."""
        return self._end(self._at_destination)

    def _end(self, client: ClusterClient) -> int:
        return sum(self._ends(client).values())

    def _ends(self, client: ClusterClient) -> dict[TopicPartition, int]:
        found = client.list_offsets(dict.fromkeys(self.partitions, LATEST), log_end=True)
        return {partition: answer.offset or 0 for partition, answer in found.items()}

    def wait_until_copying(self, engine: Engine, seconds: float = PATIENCE_S) -> int:
        """Wait until the engine has workers and bytes move; return how many records the destination holds then."""
        deadline = time.monotonic() + seconds
        if engine.is_local:
            wait_until(lambda: engine.process.poll() is not None or engine.tree().workers, seconds)
        first = end = self.destination_end()
        for _ in polls():
            if (end := self.destination_end()) != first:
                break
            assert engine.process.poll() is None, f"the engine ended by itself:\n{engine.output[-4000:]}"
            assert time.monotonic() < deadline, f"nothing was copied within {seconds} s:\n{engine.output[-4000:]}"
        return end

    def wait_until_equal(self, engine: Engine, seconds: float = PATIENCE_S) -> None:
        """Wait until both sides end at the same offsets."""
        deadline = time.monotonic() + seconds
        while self.destination_end() < self.source_end():
            assert engine.process.poll() is None, f"the engine ended by itself:\n{engine.output[-4000:]}"
            assert time.monotonic() < deadline, f"not caught up within {seconds} s:\n{engine.output[-4000:]}"
            time.sleep(0.1)

    def wait_until_all_partitions_move(self, engine: Engine, seconds: float) -> None:
        """Wait until every partition's copy has grown since the call."""
        before = self._ends(self._at_destination)
        deadline = time.monotonic() + seconds
        while any(end <= before[p] for p, end in self._ends(self._at_destination).items()):
            assert engine.process.poll() is None, f"the engine ended by itself:\n{engine.output[-4000:]}"
            assert time.monotonic() < deadline, f"some partitions do not move:\n{engine.output[-4000:]}"
            time.sleep(0.1)

    def add_partitions(self, count: int) -> None:
        """Raise the source topic to this many partitions."""
        create_partitions(self._at_source, {self.topic: count})
        self.partitions = [TopicPartition(self.topic, index) for index in range(count)]
        deadline = time.monotonic() + PATIENCE_S
        while len(self._at_source.metadata([self.topic]).topics[self.topic].partitions) < count:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def leader(self, cluster: SandboxCluster) -> int:
        """Return the leader of the first partition on a cluster."""
        client = self._at_source if cluster is self.source else self._at_destination
        found = client.metadata([self.topic]).leader(self.partitions[0])
        assert found is not None
        assert found.leader_id is not None
        return found.leader_id

    def wait_until_in_sync(self, cluster: SandboxCluster, replicas: int, seconds: float = PATIENCE_S) -> None:
        """Wait until every partition has this many replicas in sync."""
        client = self._at_source if cluster is self.source else self._at_destination
        deadline = time.monotonic() + seconds
        while True:
            topic = client.metadata([self.topic]).topics[self.topic]
            if all(len(p.in_sync_replicas) >= replicas for p in topic.partitions.values()):
                return
            assert time.monotonic() < deadline, "replicas do not come back in sync"
            time.sleep(0.2)

    @staticmethod
    def days_ago(days: int) -> int:
        """Return a time in epoch milliseconds."""
        return int(time.time() * 1000) - days * 24 * 3600 * 1000

    def assert_equal(self, source_node: int | None = None, destination_node: int | None = None) -> None:
        """Compare what both clusters have on disk."""
        theirs, ours = log_dir_of(self.source, source_node), log_dir_of(self.destination, destination_node)
        differences = [first_difference(theirs, ours, p.topic, p.partition) for p in self.partitions]
        assert not any(differences), [d for d in differences if d]
        assert self.source_end() == self.destination_end()

    def close(self) -> None:
        """End every engine that is left, and close connections."""
        for engine in self._engines:
            engine.destroy()
        self._at_source.close()
        self._at_destination.close()


def limit_writes(cluster: SandboxCluster, bytes_per_second: int | None) -> None:
    """Set or remove a produce quota for every client of a cluster, so that a copy is slow enough to be interrupted."""
    from kafka.protocol.admin import AlterClientQuotasRequest

    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type="client-id", entity_name="kmirror")],
                ops=[
                    entry.OpData(
                        key="producer_byte_rate",
                        value=float(bytes_per_second or 0),
                        remove=bytes_per_second is None,
                    )
                ],
            )
        ],
        validate_only=False,
    )
    with ClusterClient(client_config({"bootstrap.servers": cluster.bootstrap_servers})) as client:
        answer = client.ask_any(request)
    assert all(one.error_code == 0 for one in answer.entries), answer


def under_way(pair: Pair, engine: Engine, chance: random.Random) -> None:
    """Wait for a random moment at which the copy is certainly running."""
    pair.wait_until_copying(engine)
    time.sleep(chance.uniform(0, 1.5))
    before = pair.destination_end()
    deadline = time.monotonic() + PATIENCE_S
    while (now := pair.destination_end()) == before:
        assert time.monotonic() < deadline, f"bytes do not move:\n{engine.output[-4000:]}"
        time.sleep(0.01)
    assert before < now < pair.source_end(), "the copy was over before the kill: make the topic larger"


def finish(pair: Pair, *arguments: str, seconds: float = 240) -> None:
    """Let an engine copy the rest without the quota, and compare."""
    limit_writes(pair.destination, None)
    engine = pair.engine("--until-caught-up", "--timeout", f"{int(seconds)}s", *arguments)
    assert engine.wait(seconds + 30) == 0, engine.output[-4000:]
    pair.assert_equal()


def catch_up(pair: Pair, engine: Engine, seconds: float = PATIENCE_S) -> None:
    """Let this engine copy the rest without the quota, stop it, and compare."""
    limit_writes(pair.destination, None)
    pair.wait_until_equal(engine, seconds)
    assert engine.stop() == 0
    pair.assert_equal()
