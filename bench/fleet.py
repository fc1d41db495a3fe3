"""Measure what `serve` costs: `python -m bench.fleet`. A real cluster has the state of many mirrors, made up here.

50 mirrors of 40 topics with 10 partitions each, copied by two lanes each that report every second: nothing new (idle),
or that each partition has moved on (busy). CPU time of `serve` is measured while no one asks, while a browser has the
page open, and while Prometheus scrapes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Producer

from bench.measure import ProcessTree
from bench.processes import start
from kmirror.engine.clock import now_ms
from kmirror.ops.base.context import Destination
from kmirror.state.history_records import HOUR_MS, HistoryPoint, HistoryRecord
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
from kmirror.state.store import STATE_TOPIC
from tests.support.live_engine import mirror_record, row, topic_record

LANES, PAGE = 2, 100
_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class Fleet:
    """The made-up mirrors of a cluster."""

    def __init__(self, address: str, mirrors: int, topics: int, partitions: int) -> None:
        self.producer = Producer(
            {"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 500_000}
        )
        self.names = [f"mirror-{index:02}" for index in range(mirrors)]
        self.topics = [f"some.topic.{index:03}" for index in range(topics)]
        self.partitions = partitions
        self.count = 0
        self.since_ms = now_ms() - 60_000

    def write(self, *records: Record) -> None:
        """Write records to the state."""
        for record in records:
            key, value = encode(record)
            while True:
                try:
                    self.producer.produce(STATE_TOPIC, value, key)
                    break
                except BufferError:
                    self.producer.poll(0.1)

    def topic(self, mirror: str, topic: str) -> str:
        return f"{mirror}.{topic}"

    def store(self) -> None:
        """Write what is stored once."""
        at = now_ms()
        for name in self.names:
            self.write(replace(mirror_record(name), source={"bootstrap.servers": "127.0.0.1:1"}))
            for topic in self.topics:
                full = self.topic(name, topic)
                self.write(
                    replace(topic_record(full, self.partitions, name), source_topic_id=_ID, destination_topic_id=_ID)
                )
                self.write(
                    *(
                        PartitionRecord(name, full, p, PartitionState.MIRRORING, at, aligned=True, begun=True)
                        for p in range(self.partitions)
                    )
                )
            for hour in range(at // HOUR_MS - 47, at // HOUR_MS + 1):
                points = tuple(HistoryPoint(s * 60, s, 0, s, 1.5e6, 1e3, 0, 0) for s in range(60))
                self.write(HistoryRecord(name, hour, points))
            for lane in range(LANES):
                rows = self.rows(name, lane, 0)
                for page, begin in enumerate(range(0, len(rows), PAGE)):
                    self.write(LaneRowsRecord(name, lane, page, "l", 1, 0, tuple(rows[begin : begin + PAGE])))
        self.producer.flush()

    def rows(self, name: str, lane: int, moved: int) -> list[ProgressRow]:
        every = [(self.topic(name, t), p) for t in self.topics for p in range(self.partitions)]
        return [row(t, p, 100 + moved, 100 + moved, last_timestamp_ms=now_ms()) for t, p in every[lane::LANES]]

    def report(self, *, busy: bool) -> None:
        """Report as engines do each second."""
        at = now_ms()
        self.count += 1
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
                self.since_ms,
                at,
                5_000,
                lanes={lane: Incarnation(1, 0) for lane in range(LANES)},
            )
            self.write(engine)
            for lane in range(LANES):
                rows = self.rows(name, lane, self.count) if busy else []
                pages = -(-len(self.topics) * self.partitions // LANES // PAGE)
                self.write(ProgressRecord(name, lane, "l", 1, 0, "h", 9, at, tuple(rows), pages=pages))
        self.producer.flush()


@contextmanager
def reporting(fleet: Fleet, *, busy: bool) -> Iterator[None]:
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


def get(address: str, path: str) -> tuple[float, int]:
    began = time.monotonic()
    with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as found:
        size = len(found.read())
    return time.monotonic() - began, size


def core_percent(tree: ProcessTree, seconds: float, ask: Callable[[], object] | None, every: float) -> float:
    began, used = time.monotonic(), tree.cpu_seconds()
    until = began + seconds
    while time.monotonic() < until:
        if ask is not None:
            ask()
        time.sleep(every)
    return 100 * (tree.cpu_seconds() - used) / (time.monotonic() - began)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--mirrors", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--no-store", action="store_true")
    given = parser.parse_args()
    address = given.bootstrap_server
    fleet = Fleet(address, given.mirrors, 40, 10)
    if not given.no_store:
        with Destination.open({"bootstrap.servers": address}) as destination:
            destination.store.ensure_topics()
        fleet.store()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        for busy in (False, True):
            with reporting(fleet, busy=busy):
                time.sleep(3)
                serve = start(
                    [sys.executable, "-m", "kmirror", "serve", "--http", "18099", "--bootstrap-server", address], log
                )
                try:
                    tree, http = ProcessTree([serve.pid]), "127.0.0.1:18099"
                    began = time.monotonic()
                    while True:
                        try:
                            if json.loads(urllib.request.urlopen(f"http://{http}/fleet.json").read())["ready"]:
                                break
                        except OSError:
                            pass
                        time.sleep(0.2)
                    print(
                        f"busy={busy}: read after {time.monotonic() - began:.1f} s, {tree.cpu_seconds():.2f} s of CPU"
                    )
                    time.sleep(5)
                    name = fleet.names[0]
                    for path in (
                        "/fleet.json",
                        "/fleet.json",
                        "/status.json?partitions=false",
                        f"/status.json?mirror={name}",
                        f"/status.json?mirror={name}&partitions=false",
                        "/status.json",
                        "/metrics",
                        f"/history.json?mirror={name}&from={now_ms() - 48 * HOUR_MS}",
                        "/history.json",
                    ):
                        time.sleep(1.5)
                        used = tree.cpu_seconds()
                        taken, size = get(http, path)
                        print(f"  {path}: {taken:.3f} s, {size:,} bytes, {tree.cpu_seconds() - used:.2f} CPU s")
                    print(f"  nobody asks: {core_percent(tree, given.seconds, None, 1):.1f} %")
                    print(
                        f"  fleet page: {core_percent(tree, given.seconds, lambda: get(http, '/fleet.json'), 2):.1f} %"
                    )
                    print(f"  scraped each 15 s: {core_percent(tree, 31, lambda: get(http, '/metrics'), 15):.1f} %")
                    tree.cpu_seconds()
                    print(f"  memory {tree.peak_memory / 1e6:.0f} MB")
                finally:
                    serve.terminate()
                    serve.wait()
        print(log.read_text())


if __name__ == "__main__":
    main()
