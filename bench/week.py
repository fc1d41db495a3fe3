"""Measure what grows while an engine runs for long: `python -m bench.week --minutes 60`, which represents a week.

Every periodic job runs as often as its settings allow, verbs come and go, metrics are scraped every second, and records
flow at a steady rate. Everything that could grow is sampled: the memory of its processes, its log, the cache folder,
and what it stores at the destination. The second quarter is compared with the last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Producer

from bench.clusters import Pair
from bench.measure import ProcessTree
from bench.processes import Running, carry_out, kmirror, start
from kmirror.engine.spark.shipping import cache_folder

_OFTEN = ("refresh.interval.seconds=1", "sync.group.offsets.interval.seconds=1", "sync.topic.acls.enabled=false")
_LOOK_S = 10.0
_TOPICS = 5
_STATE = ("__kmirror_state", "__kmirror_events")


class Week:
    """One mirror between two clusters, its engine, and its clients."""

    def __init__(self, pair: Pair, folder: Path) -> None:
        self._pair = pair
        self._folder = folder
        self._stop = threading.Event()
        self.verbs = self.scrapes = self.records = 0

    def run(self, minutes: float) -> list[dict[str, float]]:
        """Return the samples."""
        source = self._pair.source
        config = self._folder / "source.properties"
        config.write_text(f"bootstrap.servers={source.bootstrap_servers}\n", encoding="utf-8")
        for number in range(_TOPICS):
            source.create_topic(f"orders-{number}")
        words = [word for one in _OFTEN for word in ("--config", one)]
        self._do("create", "--mirror-config", str(config), *words)
        self._do("add", "--topics", "orders-.*")
        log, own_log = self._folder / "stdout.log", self._folder / "week.log"
        argv = self._command("run", "--http", "0", "--log-file", str(own_log))
        engine = Running([start(argv, log)], log, ends_itself=False)
        threads = [threading.Thread(target=one) for one in (self._produce, self._use)]
        try:
            address = self._address(log)
            threads.append(threading.Thread(target=self._scrape, args=(address,)))
            for thread in threads:
                thread.start()
            return self._look(engine, own_log, minutes)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            engine.end()
            engine.kill()

    def _look(self, engine: Running, log: Path, minutes: float) -> list[dict[str, float]]:
        pid, began, found = engine.processes[0].pid, time.monotonic(), []
        tree = ProcessTree([pid])
        while time.monotonic() - began < minutes * 60:
            self._stop.wait(_LOOK_S)
            engine.check()
            cpu = tree.cpu_seconds()
            kinds = _memory_by_kind(pid)
            logs = self._pair.destination.sandbox.brokers[0].log_dir
            found.append(
                {
                    "minute": round((time.monotonic() - began) / 60, 2),
                    "cpuSeconds": round(cpu, 1),
                    **{f"{kind}Megabytes": round(size / 1e6, 1) for kind, size in sorted(kinds.items())},
                    "files": float(len(os.listdir(f"/proc/{pid}/fd"))),
                    "threads": float(len(os.listdir(f"/proc/{pid}/task"))),
                    "logLines": float(sum(1 for _ in log.open(encoding="utf-8"))),
                    "cacheMegabytes": round(_size(cache_folder(os.environ)) / 1e6, 1),
                    "stateRecords": float(sum(self._pair.destination.log_ends(one, 1)[0] for one in _STATE)),
                    "stateMegabytes": round(sum(_size(logs / f"{one}-0") for one in _STATE) / 1e6, 2),
                }
            )
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
        return found

    def _command(self, verb: str, *arguments: str) -> list[str]:
        return kmirror(
            verb, "--mirror", "week", "--bootstrap-server", self._pair.destination.bootstrap_servers, *arguments
        )

    def _do(self, verb: str, *arguments: str) -> None:
        carry_out(self._command(verb, *arguments))
        self.verbs += 1

    def _address(self, log: Path) -> str:
        """Return the engine's HTTP address, from its log."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for word in log.read_text(encoding="utf-8", errors="replace").split():
                if word.startswith("http://"):
                    return word.rstrip("/.,;")
            time.sleep(0.2)
        raise TimeoutError(log.read_text(encoding="utf-8", errors="replace"))

    def _scrape(self, address: str) -> None:
        while not self._stop.wait(1.0):
            for path in ("metrics", "status.json", "history.json", "readyz"):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/{path}", timeout=10) as answer:
                    answer.read()
                    self.scrapes += 1

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._pair.source.bootstrap_servers, "linger.ms": 5})
        while not self._stop.wait(0.05):
            for _ in range(10):
                producer.produce(f"orders-{random.randrange(_TOPICS)}", random.randbytes(500))
                self.records += 1
            producer.poll(0)
        producer.flush(30)

    def _use(self) -> None:
        """Do what operators do, every few seconds."""
        number = 0
        while not self._stop.wait(5.0):
            number += 1
            topic = f"orders-{number % _TOPICS}"
            self._do("pause", "--topics", topic)
            self._do("describe", "--json")
            self._do("resume", "--topics", topic)
            if number % 10 == 0:
                self._pair.source.create_topic(f"orders-new-{number}", 1)


def _memory_by_kind(root: int) -> dict[str, int]:
    """Sum up the memory of a process and all its descendants: the driver, Java, and the lanes.

    Counts only what they wrote themselves, shared pages in proportion: pages of files are shared with whatever else
    runs here, and each process that comes or goes would change the numbers of all others.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                children.setdefault(int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1]), []).append(
                    int(entry.name)
                )
    found: dict[str, int] = {}
    left = [root]
    while left:
        pid = left.pop()
        left += children.get(pid, [])
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            kind = "driver" if pid == root else "java" if name == "java" else "lanes"
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            size = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss_Anon:")) * 1024
            found[kind] = found.get(kind, 0) + size
    return found


def _size(folder: Path) -> int:
    """Return the size of the files below a folder."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total


def growth(looks: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return by how much each number is larger in the last quarter than in the second."""
    quarter = len(looks) // 4
    earlier, later = looks[quarter : 2 * quarter], looks[3 * quarter :]
    return {
        key: round(statistics.median(one[key] for one in later) - statistics.median(one[key] for one in earlier), 2)
        for key in looks[-1]
    }


def main() -> int:
    """Run it, and print the samples as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.week", description="What grows while an engine runs.")
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
        week = Week(pair, Path(name))
        looks = week.run(options.minutes)
    counts = {"verbs": week.verbs, "scrapes": week.scrapes, "records": week.records}
    print(json.dumps({"minutes": options.minutes, **counts, "growth": growth(looks), "looks": looks[::6]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
