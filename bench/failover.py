"""Time the failover of a thousand partitions: `python -m bench.failover`.

The command is what an operator types, in its own process: ten topics of a hundred partitions with one record each,
copied by an engine that has ended; then the source got a second record in each. It is measured with the source alive,
frozen (accepting connections without answering) and dead. Each time it must take at most 10 s, start no Java, and
report the right numbers: a thousand offsets known lost if the source answers, and otherwise what was last seen of it,
and when.
"""

from __future__ import annotations

import json
import signal
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
    """How long the whole command took, and how long its steps took by its own report, in seconds."""

    source: str
    partitions: int
    known_lost_records: int
    seconds: float
    stopping_seconds: float
    steps: dict[str, float]
    started_java: bool


def measure_failovers(pair: Pair, folder: Path) -> list[Failover]:
    """Mirror a thousand partitions three times, and fail over with the source in three states.

    Raises:
        CopyFailedError: a command failed, or reported wrong numbers.
    """
    source, destination = pair.source.bootstrap_servers, pair.destination.bootstrap_servers
    names = [f"bench-failover-{number}" for number in range(TOPICS)]
    admin = AdminClient({"bootstrap.servers": source})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(_WAIT_S)
    _produce(source, names)
    config = folder / "source.properties"
    config.write_text(f"bootstrap.servers={source}\n")
    states = ("alive", "frozen", "dead")
    for state in states:
        settings = ("--config", f"topic.prefix={state}-")
        _kmirror(destination, "create", "--mirror", state, "--mirror-config", str(config), *settings)
        _kmirror(destination, "add", "--mirror", state, "--topics", ",".join(names))
        _kmirror(destination, "run", "--mirror", state, "--until-caught-up", "--timeout", f"{_WAIT_S:g}s")
    _produce(source, names)
    found = []
    for state in states:
        if state != "alive":
            for broker in pair.source.sandbox.brokers:
                how = signal.SIGSTOP if state == "frozen" else signal.SIGKILL
                pair.source.sandbox.signal(broker.node_id, how)
        found.append(_fail_over(destination, state, folder / f"{state}.json"))
    return found


def _produce(source: str, names: list[str]) -> None:
    producer = Producer({"bootstrap.servers": source})
    for name in names:
        for partition in range(PARTITIONS):
            producer.produce(name, b"v", partition=partition)
    if producer.flush(_WAIT_S):
        raise CopyFailedError("the source did not acknowledge the records")


def _fail_over(destination: str, state: str, report: Path) -> Failover:
    began = time.monotonic()
    command = subprocess.Popen(
        _words(destination, "failover", "--mirror", state, "--yes", "--json", "--report", str(report)),
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
    document = json.loads(out)
    totals, count = document["totals"], TOPICS * PARTITIONS
    lost = 1 if state == "alive" else 0
    right = [
        row
        for row in document["results"]
        if (row["result"], row["lastMirroredOffset"], row["lag"], row["sourceOffset"]) == ("DONE", 1, lost, 1 + lost)
        and row["asOf"]
    ]
    if len(right) != count or totals["knownLostRecords"] != lost * count or totals["sourceAnswers"] != bool(lost):
        raise CopyFailedError(f"{len(right)} of {count} rows are right; totals: {totals}; with the source {state}")
    evidence = json.loads(report.read_text())
    return Failover(
        state,
        len(right),
        totals["knownLostRecords"],
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
    """Measure once, and print the result as JSON; return 1 if one of them is over budget."""
    with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
        found = measure_failovers(pair, Path(name))
    print(json.dumps({"failovers": [asdict(one) for one in found], "budget_seconds": BUDGET_SECONDS}, indent=2))
    return int(any(one.seconds > BUDGET_SECONDS or one.started_java for one in found))


if __name__ == "__main__":
    sys.exit(main())
