"""How long the failover of a thousand partitions takes: `python -m bench.failover`.

The command is what an operator types, in a process of its own, from nothing: ten topics of a hundred partitions, a
record in each, copied by an engine that has ended. It must take 10 s at most, and start no Java.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.clusters import Pair
from bench.measure import CopyFailedError

TOPICS = 10
PARTITIONS = 100
BUDGET_SECONDS = 10.0
_WAIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Failover:
    """How long the whole command took, and what it says of its own steps, in seconds."""

    partitions: int
    seconds: float
    stopping_seconds: float
    steps: dict[str, float]
    started_java: bool


def measure_failover(pair: Pair, folder: Path) -> Failover:
    """Mirror a thousand partitions, fail over, and look at the result.

    Raises:
        CopyFailedError: a command failed, or a partition was not stopped where it has to be.
    """
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    names = [f"bench-failover-{number}" for number in range(TOPICS)]
    admin = AdminClient({"bootstrap.servers": source})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(_WAIT_S)
    producer = Producer({"bootstrap.servers": source})
    for name in names:
        for partition in range(PARTITIONS):
            producer.produce(name, b"v", partition=partition)
    if producer.flush(_WAIT_S):
        raise CopyFailedError("the source did not take the records")
    config = folder / "source.properties"
    config.write_text(f"bootstrap.servers={source}\n")
    _kmirror(destination, "create", "--mirror", "bench", "--mirror-config", str(config))
    _kmirror(destination, "add", "--mirror", "bench", "--topics", ",".join(names))
    _kmirror(destination, "run", "--mirror", "bench", "--until-caught-up", "--timeout", f"{_WAIT_S:g}s")
    report = folder / "report.json"
    began = time.monotonic()
    command = subprocess.Popen(
        _words(destination, "failover", "--mirror", "bench", "--yes", "--json", "--report", str(report)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    children: set[str] = set()
    while True:
        children |= set(_children(command.pid))
        try:
            out, err = command.communicate(timeout=0.05)
            break
        except subprocess.TimeoutExpired:
            continue
    seconds = time.monotonic() - began
    if command.returncode:
        raise CopyFailedError(f"failover ended with {command.returncode}: {err.decode()[-500:]}")
    rows = json.loads(out)["results"]
    stopped = [row for row in rows if row["result"] == "DONE" and row["lastMirroredOffset"] == 1]
    if len(stopped) != TOPICS * PARTITIONS:
        raise CopyFailedError(f"{len(stopped)} of {TOPICS * PARTITIONS} partitions were stopped at offset 1")
    evidence = json.loads(report.read_text())
    return Failover(
        len(stopped),
        round(seconds, 2),
        round((evidence["endedMs"] - evidence["beganMs"]) / 1000, 2),
        {step["step"]: step["seconds"] for step in evidence["steps"]},
        any("java" in child for child in children),
    )


def _children(process: int) -> Iterator[str]:
    for entry in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            for child in entry.read_text().split():
                yield Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0].decode()
        except OSError:
            continue


def _words(destination: str, verb: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "kmirror", verb, "--bootstrap-server", destination, *arguments]


def _kmirror(destination: str, verb: str, *arguments: str) -> None:
    done = subprocess.run(_words(destination, verb, *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise CopyFailedError(f"{verb} ended with {done.returncode}: {done.stderr[-500:]}")


def main() -> int:
    """Measure once, and print the result as JSON; 1 when it is over the budget."""
    with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
        found = measure_failover(pair, Path(name))
    print(json.dumps({**asdict(found), "budget_seconds": BUDGET_SECONDS}, indent=2))
    return int(found.seconds > BUDGET_SECONDS or found.started_java)


if __name__ == "__main__":
    sys.exit(main())
