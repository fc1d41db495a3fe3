"""Measure what `serve` costs: `python -m bench.fleet`. A real cluster has the state of many mirrors, made up here.

50 mirrors of 40 topics with 10 partitions each, copied by two lanes each that report every second: nothing new (idle),
or that each partition has moved on (busy). CPU time of `serve` is measured while no one asks, while a browser has the
page open, and while Prometheus scrapes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Producer

from bench.measure import CopyFailedError, ProcessTree
from bench.processes import last_output, start
from kmirror.engine.clock import now_ms
from kmirror.ops.base.context import Destination
from kmirror.state.history_records import HOUR_MS, HistoryPoint, HistoryRecord
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.record_kinds import Record, encode
from kmirror.state.records import (
    EngineRecord,
    EngineState,
    Incarnation,
    LaneRowsRecord,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    ProgressRow,
)
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.live_engine import mirror_record, row, topic_record

LANES, PAGE = 2, 100
_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_PORT = 18_099
TOPICS, PARTITIONS = 40, 10


class Fleet:
    """The made-up mirrors of a cluster."""

    def __init__(self, bootstrap_servers: str, mirrors: int) -> None:
        settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "queue.buffering.max.messages": 500_000}
        self._producer = Producer(settings)
        self.names = [f"mirror-{index:02}" for index in range(mirrors)]
        self._since_ms, self._count = now_ms() - 60_000, 0

    def write(self, *records: Record) -> None:
        """Write records to the state."""
        for record in records:
            key, value = encode(record)
            while True:
                try:
                    self._producer.produce(STATE_TOPIC, value, key)
                    break
                except BufferError:
                    self._producer.poll(0.1)

    def store(self) -> None:
        """Write what is stored once."""
        at = now_ms()
        for name in self.names:
            self.write(replace(mirror_record(name), source={"bootstrap.servers": "127.0.0.1:1"}))
            for topic in topics_of(name):
                made = topic_record(topic, PARTITIONS, name)
                self.write(replace(made, source_topic_id=_ID, destination_topic_id=None))
                for index in range(PARTITIONS):
                    self.write(PartitionRecord(name, topic, index, PartitionState.MIRRORING, at, begun=True))
            for hour in range(at // HOUR_MS - 47, at // HOUR_MS + 1):
                points = tuple(HistoryPoint(s * 60, s, 0, s, 1.5e6, 1e3, 0, 0) for s in range(60))
                self.write(HistoryRecord(name, hour, points))
            for lane in range(LANES):
                rows = rows_of(name, lane, 0)
                for page, begin in enumerate(range(0, len(rows), PAGE)):
                    self.write(LaneRowsRecord(name, lane, page, "l", 1, 0, tuple(rows[begin : begin + PAGE])))
        self._producer.flush()

    def report(self, *, busy: bool) -> None:
        """Report as engines do each second."""
        at = now_ms()
        self._count += 1
        for name in self.names:
            engine = EngineRecord(
                name,
                "l",
                EngineState.RUNNING,
                "elsewhere",
                "b",
                7,
                8,
                "app-1",
                "local[2]",
                self._since_ms,
                at,
                5_000,
                lanes={lane: Incarnation(1, 0) for lane in range(LANES)},
            )
            self.write(engine)
            for lane in range(LANES):
                rows = rows_of(name, lane, self._count) if busy else []
                pages = -(-TOPICS * PARTITIONS // LANES // PAGE)
                self.write(ProgressRecord(name, lane, "l", 1, 0, "h", 9, at, tuple(rows), pages=pages))
        self._producer.flush()


def topics_of(mirror: str) -> list[str]:
    """Return the topics of a mirror."""
    return [f"{mirror}.some.topic.{index:03}" for index in range(TOPICS)]


def rows_of(mirror: str, lane: int, moved: int) -> list[ProgressRow]:
    """Return what a lane reports of its partitions when they have moved on by so many records."""
    every = [(topic, index) for topic in topics_of(mirror) for index in range(PARTITIONS)]
    end, at = 100 + moved, now_ms()
    return [row(topic, index, end, end, last_timestamp_ms=at) for topic, index in every[lane::LANES]]


@contextmanager
def reporting(fleet: Fleet, *, busy: bool) -> Iterator[None]:
    """Have the lanes of all mirrors report each second."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(max(0.0, 1 - time.time() % 1)):
            fleet.report(busy=busy)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def get(path: str) -> tuple[float, int]:
    """Return how many seconds an answer takes, and how many bytes it has."""
    began = time.monotonic()
    with urllib.request.urlopen(f"http://127.0.0.1:{_PORT}{path}", timeout=60) as found:
        size = len(found.read())
    return time.monotonic() - began, size


def core_percent(tree: ProcessTree, seconds: float, path: str | None, every: float) -> float:
    """Return how much of a core is used while a path is asked for again and again."""
    began, used = time.monotonic(), tree.cpu_seconds()
    while time.monotonic() < began + seconds:
        asked = time.monotonic()
        if path is not None:
            get(path)
        time.sleep(max(0.0, every - (time.monotonic() - asked)))
    return 100 * (tree.cpu_seconds() - used) / (time.monotonic() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mirrors", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, SandboxCluster("b", Path(folder) / "b") as cluster:
        fleet = Fleet(cluster.bootstrap_servers, given.mirrors)
        with Destination.open({"bootstrap.servers": cluster.bootstrap_servers}) as destination:
            destination.store.ensure_topics()
        fleet.store()
        for busy in (False, True):
            print("busy" if busy else "idle")
            with reporting(fleet, busy=busy):
                measure(cluster.bootstrap_servers, fleet, Path(folder) / "log", given.seconds)


def measure(bootstrap_servers: str, fleet: Fleet, log: Path, seconds: float) -> None:
    """Start `serve`, and print what it costs."""
    words = ["serve", "--http", str(_PORT), "--bootstrap-server", bootstrap_servers]
    serve = start([sys.executable, "-m", "kmirror", *words], log)
    try:
        tree, began = ProcessTree([serve.pid]), time.monotonic()
        while not is_ready():
            if serve.poll() is not None:
                raise CopyFailedError(last_output(log))
            time.sleep(0.2)
        print(f"  first read after {time.monotonic() - began:.1f} s, {tree.cpu_seconds():.2f} s of CPU time")
        get("/fleet.json")
        since_ms, of_one = now_ms() - 48 * HOUR_MS, f"mirror={fleet.names[0]}"
        for path in (
            "/fleet.json",
            f"/status.json?{of_one}",
            f"/status.json?{of_one}&partitions=false",
            "/status.json?partitions=false",
            "/status.json",
            "/metrics",
            f"/history.json?{of_one}&from={since_ms}",
        ):
            time.sleep(2)
            used = tree.cpu_seconds()
            taken, size = get(path)
            print(f"  {path}: {taken:.3f} s, {size:,} bytes, {tree.cpu_seconds() - used:.2f} s of CPU time")
        asked: tuple[tuple[str, str | None, float], ...] = (
            ("a browser shows the mirrors", "/fleet.json", 2.0),
            ("a browser shows one mirror", f"/status.json?{of_one}&partitions=false", 2.0),
            ("Prometheus scrapes", "/metrics", 15.0),
            ("nobody asks", None, 61.0),
        )
        core_percent(tree, 61.0, "/fleet.json", 2.0)  # what the first looks find is derived once
        for what, asked_for, every in asked:
            if asked_for is None:
                time.sleep(every)  # it is no longer prepared for questions
            print(f"  {what}: {core_percent(tree, seconds, asked_for, every):.1f} % of a core")
    finally:
        serve.terminate()
        serve.wait()


def is_ready() -> bool:
    """Return whether the cluster was read."""
    try:
        get("/readyz")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
