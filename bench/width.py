"""Measure what many partitions cost: `python -m bench.width`, or `python -m bench.width 100 1000 --out FILE`.

For each size: a fresh pair of clusters, topics of five partitions with a record in each, and an engine that has copied
them. First, idle costs are measured: CPU time of the engine with all its processes, memory, and writes to the state
topic. Then a hundredth of the partitions gets records; the engine is stopped and started again; and everything is
failed over. Commands run in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.clusters import Pair
from bench.latency import Percentiles, added_latency
from bench.machine import describe_machine
from bench.measure import CopyFailedError, ProcessTree
from bench.processes import REPOSITORY, Running, carry_out, kmirror, start
from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.follower import PartitionFollower
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config

RESULTS = REPOSITORY / "docs" / "results" / "width.json"
PAGE = REPOSITORY / "docs" / "spark.md"
BEGIN, END = "<!-- written by: python -m bench.width --page -->\n", "<!-- end -->"
SIZES = (100, 1_000, 5_000, 20_000)
PARTITIONS_OF_A_TOPIC = 5
_STATE = TopicPartition("__kmirror_state", 0)
_TOPICS_AT_ONCE = 200
_SETTLED_S, _IDLE_S = 60.0, 60.0
#: New brokers compile the paths of busy partitions first.
_WARM_S, _BUSY_S = 60.0, 30.0
_RATE = 200
_TIMEOUT_S = 900.0
#: More partitions than one broker may open files for.
_MOST_OF_A_BROKER = 10_000


@dataclass(frozen=True, slots=True)
class Width:
    """The results for this many partitions. Times are in seconds, a core is 100 percent."""

    partitions: int
    brokers: int
    add_seconds: float
    first_copy_seconds: float
    idle_core_percent: float
    memory_megabytes: float
    state_records_per_minute: float
    state_bytes_per_minute: float
    describe_seconds: float
    describe_processor_seconds: float
    added_latency_ms: Percentiles
    restart_seconds: float
    failover_seconds: float


def measure_width(pair: Pair, folder: Path, partitions: int, brokers: int) -> Width:
    """Measure one size on a fresh pair of clusters.

    Raises:
        CopyFailedError: a command failed, or the copy did not complete.
    """
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    names = [f"width-{number:05}" for number in range(partitions // PARTITIONS_OF_A_TOPIC)]
    _fill(source, names)
    config = folder / "source.properties"
    config.write_text(f"bootstrap.servers={source}\n")
    here = ("--bootstrap-server", destination)
    carry_out(kmirror("create", "--mirror", "wide", "--mirror-config", str(config), *here))
    add_seconds = _timed(lambda: carry_out(kmirror("add", "--mirror", "wide", "--topics", "width-.*", *here)))
    wait = kmirror("wait", "--mirror", "wide", "--for", "caught-up", "--timeout", f"{_TIMEOUT_S:g}s", *here)
    running = _run(destination, folder / "run.log")
    try:
        first_copy_seconds = _timed(lambda: _wait_patiently(wait))
        time.sleep(_SETTLED_S)
        idle = _idle(running, destination)
        describe_seconds, processor_seconds = _describe(here)
        busy = _busy_partitions(names, max(1, partitions // 100))
        latency = added_latency(pair, busy, running, _RATE, _WARM_S, _BUSY_S)
        # if killed, its lanes would keep copying for a moment
        running.end()
        running = _run(destination, folder / "run.log")
        restart_seconds = _timed(lambda: _copy_one(pair, names[-1]))
        running.end()
    finally:
        running.kill()
    failover = _timed(lambda: carry_out(kmirror("failover", "--mirror", "wide", "--yes", *here)))
    return Width(
        partitions,
        brokers,
        add_seconds,
        first_copy_seconds,
        *idle,
        describe_seconds,
        processor_seconds,
        latency,
        restart_seconds,
        failover,
    )


def _fill(source: str, names: list[str]) -> None:
    """Create the topics, with a record in each partition."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": source, "log_level": 0})
    for first in range(0, len(names), _TOPICS_AT_ONCE):
        new = [NewTopic(name, PARTITIONS_OF_A_TOPIC, 1) for name in names[first : first + _TOPICS_AT_ONCE]]
        for created in admin.create_topics(new, operation_timeout=120, request_timeout=120).values():
            created.result(_TIMEOUT_S)
    _await_topics(source, names)
    # thousands of topics: their metadata comes late
    patient = {"topic.metadata.propagation.max.ms": 600_000, "message.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": source, "log_level": 0, **patient})
    refused: list[object] = []
    for name in names:
        for partition in range(PARTITIONS_OF_A_TOPIC):
            producer.produce(name, bytes(100), partition=partition, on_delivery=lambda error, _: refused.append(error))
        producer.poll(0)
    if producer.flush(_TIMEOUT_S) or any(refused):
        raise CopyFailedError(f"the source did not acknowledge the records: {next(filter(None, refused), 'no answer')}")


def _await_topics(source: str, names: list[str]) -> None:
    """Wait until all brokers know the topics and their leaders; with thousands that takes a while."""
    deadline = time.monotonic() + _TIMEOUT_S
    with ClusterClient(client_config({"bootstrap.servers": source})) as client:
        brokers = client.metadata([]).brokers.values()
    for broker in brokers:
        with ClusterClient(client_config({"bootstrap.servers": f"{broker.host}:{broker.port}"})) as client:
            partitions = [TopicPartition(name, index) for name in names for index in range(PARTITIONS_OF_A_TOPIC)]
            while not all(map(client.metadata(names).leader, partitions)):
                if time.monotonic() > deadline:
                    raise CopyFailedError("the source's brokers do not know all topics")
                time.sleep(1)


def _run(destination: str, log: Path) -> Running:
    return Running([start(kmirror("run", "--mirror", "wide", "--bootstrap-server", destination), log)], log, False)


def _wait_patiently(wait: list[str]) -> None:
    """Wait as the command does, also while a broker that opens thousands of files does not answer it."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            carry_out(wait)
            return
        except CopyFailedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def _timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return round(time.monotonic() - began, 2)


def _idle(running: Running, destination: str) -> tuple[float, float, float, float]:
    """Return percent of a core, megabytes, and records and bytes a minute of the state topic while idle."""
    tree = ProcessTree([process.pid for process in running.processes])
    with ClusterClient(client_config({"bootstrap.servers": destination})) as client:
        tail = PartitionFollower(client, _STATE, look_back=0)
        tail.poll(0)
        first, before, began = _state_end(client), tree.cpu_seconds(), time.monotonic()
        size = 0
        while (seconds := time.monotonic() - began) < _IDLE_S:
            size += sum(len(record.key or b"") + len(record.value or b"") for record in tail.poll(500).records)
        used, written = tree.cpu_seconds() - before, _state_end(client) - first
        tail.close()
    tree.sample_memory()
    running.check()
    minutes = seconds / 60
    return (
        round(100 * used / seconds, 2),
        round(tree.peak_memory / 2**20),
        round(written / minutes),
        round(size / minutes),
    )


def _state_end(client: ClusterClient) -> int:
    return client.list_offsets({_STATE: LATEST})[_STATE].offset or 0


def _describe(here: tuple[str, str]) -> tuple[float, float]:
    """Return how long `describe` takes, and its CPU time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = _timed(lambda: carry_out(kmirror("describe", "--mirror", "wide", *here)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, round(used, 2)


def _busy_partitions(names: list[str], busy: int) -> list[TopicPartition]:
    """Return so many partitions, from as many topics as there are."""
    step = max(1, len(names) // busy)
    return [TopicPartition(name, 0) for name in names[::step][:busy]]


def _copy_one(pair: Pair, topic: str) -> None:
    """Give a partition another record, and wait until it is copied."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": pair.source.bootstrap_servers, "log_level": 0})
    producer.produce(topic, b"v", partition=0)
    producer.flush(_TIMEOUT_S)
    wanted = pair.source.log_ends(topic, PARTITIONS_OF_A_TOPIC)
    deadline = time.monotonic() + _TIMEOUT_S
    while pair.destination.log_ends(topic, PARTITIONS_OF_A_TOPIC) != wanted:
        if time.monotonic() > deadline:
            raise CopyFailedError(f"{topic} is not copied")
        time.sleep(0.1)


def page_table(results: Mapping[str, Any]) -> str:
    """Return the page's table of the results."""
    machine = results["machine"]
    lines = [
        f"Measured {machine['measured_at'][:10]} with `python -m bench.width`: {machine['cores']} cores for engine and"
        f" clusters (of one broker unless said otherwise), Kafka {machine['kafka']}, topics of five partitions. The"
        f" latency that the copy adds is that of {_RATE} records a second in a hundredth of the partitions.",
        "",
        "| partitions | idle | memory | latency, median | 99 % | `add` | restart | `failover` | `describe` |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(results["widths"], key=lambda one: (one["partitions"], one["brokers"])):
        brokers = f", {row['brokers']} brokers each" if row["brokers"] > 1 else ""
        latency = row["added_latency_ms"]
        seconds = [row[f"{what}_seconds"] for what in ("add", "restart", "failover", "describe")]
        lines.append(
            f"| {row['partitions']:,}{brokers} | {row['idle_core_percent'] / 100:.3f} of a core"
            f" | {row['memory_megabytes']:,} MB | {latency['p50']:.1f} ms | {latency['p99']:.0f} ms | "
            + " | ".join(f"{one:.1f} s" for one in seconds)
            + " |"
        )
    return "".join(f"{line}\n" for line in lines)


def write_page() -> None:
    """Replace the table of docs/spark.md by the stored results."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = page_table(json.loads(RESULTS.read_text(encoding="utf-8")))
    PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2], encoding="utf-8")


def main() -> int:
    """Measure each size, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--brokers", type=int, default=1, help="brokers of each cluster, more where they are needed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="only write the table of docs/spark.md from stored results")
    given = parser.parse_args()
    if given.page:
        write_page()
        return 0
    found: list[Width] = []
    for size in given.sizes:
        brokers = max(given.brokers, -(-size // _MOST_OF_A_BROKER))
        with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name), brokers=brokers) as pair:
            found.append(measure_width(pair, Path(name), size, brokers))
            version = pair.source.sandbox.spec.kafka_version
        print(json.dumps(asdict(found[-1])), flush=True)
        document = {"machine": asdict(describe_machine(version)), "widths": [asdict(one) for one in found]}
        given.out.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
