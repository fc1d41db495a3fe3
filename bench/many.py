"""Measure what many mirrors in one engine cost: `python -m bench.many [MIRRORS] [PARTITIONS]`, each with a topic.

All mirrors copy from one cluster to another, but the last, whose source is a third cluster. Measured are the time
until everything is copied, threads, memory, CPU time while idle, and the latency of one mirror's records: before the
broker of the last mirror's source is stopped (SIGSTOP), and after that.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.clusters import Cluster, Pair
from bench.latency import Percentiles, added_latency
from bench.machine import describe_machine
from bench.measure import CopyFailedError, ProcessTree
from bench.processes import REPOSITORY, Running, kmirror, last_output, start
from kmirror import Client
from kmirror.cluster.protocol.metadata import TopicPartition

RESULTS = REPOSITORY / "docs" / "results" / "many.json"
_SETTLED_S, _IDLE_S, _WARM_S, _BUSY_S = 30.0, 60.0, 20.0, 30.0
#: A frozen source is noticed by then.
_FROZEN_S = 20.0
_RATE = 50
_TIMEOUT_S = 600.0
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Many:
    """The results for this many mirrors. Processes are by kind; a core is 100 percent, memory in megabytes (PSS)."""

    mirrors: int
    partitions: int
    copied_seconds: float
    processes: Mapping[str, int]
    threads: Mapping[str, int]
    memory_megabytes: Mapping[str, float]
    resident_megabytes: Mapping[str, float]
    idle_core_percent: Mapping[str, float]
    latency_ms: Percentiles
    latency_beside_frozen_ms: Percentiles


def measure_many(pair: Pair, other: Cluster, folder: Path, mirrors: int, partitions: int) -> Many:
    """Measure so many mirrors. Raises CopyFailedError: the copy did not complete."""
    names = [f"many-{number:03}" for number in range(mirrors)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for cluster, topics in ((pair.source, names[:-1]), (other, names[-1:])):
            list(pool.map(lambda name, cluster=cluster: _fill(cluster, name, partitions), topics))
            list(pool.map(lambda name, cluster=cluster: _mirror(pair, cluster, name), topics))
    log = folder / "run.log"
    began = time.monotonic()
    process = start(kmirror("run", "--all", "--bootstrap-server", pair.destination.bootstrap_servers), log)
    running, tree = Running([process], log, False), ProcessTree([process.pid])
    try:
        _await_copies(pair.destination, names, partitions, running)
        copied_seconds = round(time.monotonic() - began, 1)
        time.sleep(_SETTLED_S)
        before, at = tree.cpu_by_process(), time.monotonic()
        time.sleep(_IDLE_S)
        seconds = time.monotonic() - at
        idle = {kind: round(100 * (used - before[kind]) / seconds, 1) for kind, used in tree.cpu_by_process().items()}
        memory = _Memory.of(tree)
        latency = added_latency(pair, [TopicPartition(names[0], 0)], running, _RATE, _WARM_S, _BUSY_S)
        for broker in other.sandbox.brokers:
            other.sandbox.signal(broker.node_id, signal.SIGSTOP)
        time.sleep(_FROZEN_S)
        beside = added_latency(pair, [TopicPartition(names[0], 0)], running, _RATE, _WARM_S, _BUSY_S)
        running.end()
    except CopyFailedError:
        print(last_output(log), file=sys.stderr)
        raise
    finally:
        running.kill()
    return Many(mirrors, partitions, copied_seconds, *memory, idle, latency, beside)


def _fill(cluster: Cluster, topic: str, partitions: int) -> None:
    """Create a topic with a record in each partition."""
    from confluent_kafka import Producer

    cluster.create_topic(topic, partitions)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for partition in range(partitions):
        producer.produce(topic, bytes(100), partition=partition)
    if producer.flush(_TIMEOUT_S):
        raise CopyFailedError(f"{topic} was not filled")


def _mirror(pair: Pair, source: Cluster, topic: str) -> None:
    client = Client(pair.destination.bootstrap_servers)
    client.create(topic, {"bootstrap.servers": source.bootstrap_servers})
    client.add(topic, topic)


def _await_copies(destination: Cluster, topics: list[str], partitions: int, running: Running) -> None:
    deadline, left = time.monotonic() + _TIMEOUT_S, list(topics)
    while left := [topic for topic in left if sum(destination.log_ends(topic, partitions)) < partitions]:
        running.check()
        if time.monotonic() > deadline:
            raise CopyFailedError(f"{len(left)} topics are not copied, {left[0]} for one")
        time.sleep(0.2)


class _Memory:
    """Count processes and their threads, and sum up their memory, by kind."""

    @staticmethod
    def of(tree: ProcessTree) -> tuple[Mapping[str, int], Mapping[str, int], Mapping[str, float], Mapping[str, float]]:
        processes, threads, shared, resident = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        for pid, kind in tree.kinds().items():
            rollup = dict(_fields(Path(f"/proc/{pid}/smaps_rollup")))
            processes[kind] += 1
            threads[kind] += int(dict(_fields(Path(f"/proc/{pid}/status")))["Threads"])
            shared[kind] += int(rollup["Pss"])
            resident[kind] += int(rollup["Rss"])
        return (
            dict(processes),
            dict(threads),
            {kind: round(size / 1024, 1) for kind, size in shared.items()},
            {kind: round(size / 1024, 1) for kind, size in resident.items()},
        )


def _fields(path: Path) -> list[tuple[str, str]]:
    lines = [line.split(":", 1) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [(key, words[0]) for key, text in lines if (words := text.split())]


def main() -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mirrors", type=int, nargs="?", default=100)
    parser.add_argument("partitions", type=int, nargs="?", default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
        other = Cluster("other", Path(name) / "other")
        try:
            other.sandbox.start()
            other.open()
            found = measure_many(pair, other, Path(name), given.mirrors, given.partitions)
        finally:
            other.close()
            other.sandbox.destroy()
        version = pair.source.sandbox.spec.kafka_version
    document = {"machine": asdict(describe_machine(version)), **asdict(found)}
    given.out.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
