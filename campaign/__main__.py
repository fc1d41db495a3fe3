"""Run worlds: `make campaign`, or `python -m campaign --worlds 10`, `--hours 1`, `--replay SEED`.

Each world has its topics on clusters that several worlds share, a mirror, an engine, load, and faults. When all is
undone and the load has ended, everything must be copied: the oracle compares. Then the world ends as its seed has it,
by a promote or a failover, and the oracle looks again. Of a world with a violation everything is kept: its folder is
named. `--replay SEED --shrink` finds out which of its faults it takes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from campaign.acts import Nemesis
from campaign.engine import Engine
from campaign.world import DESERVED, NEW, OLD, Ending, Kind, World, world_of
from kmirror.sandbox.cluster import SandboxCluster, start_together

_WORLDS_A_PAIR = 8
_CAUGHT_UP_S = 180.0
_OFTEN = ("refresh.interval.seconds=1", "sync.group.offsets.interval.seconds=1")
_CLUSTER = {
    "log.retention.check.interval.ms": "2000",
    "log.cleaner.backoff.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "transaction.state.log.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}


#: By topic and partition: where a copy was told to end, and how many records are known to be lost, None if unknown.
_Ends = dict[str, dict[str, tuple[int, int | None]]]


def run_world(
    world: World, base: Path, source: SandboxCluster, destination: SandboxCluster, most_faults: int
) -> dict[str, Any]:
    """Run a world; return what was done and found. Its folder is kept where something was found."""
    folder = base / f"world-{world.seed}"
    folder.mkdir()
    stored = {"seed": world.seed, "seconds": world.seconds, "most_faults": most_faults}
    (folder / "world.json").write_text(json.dumps({**stored, **asdict(world)}, indent=1), encoding="utf-8")
    run = _WorldRun(world, folder, source, destination)
    began = time.monotonic()
    try:
        found = run.violations()
    except Exception as error:
        found = [{"what": "the world could not be run", "error": repr(error)}]
    finally:
        run.close()
    result = {
        "seed": world.seed,
        "ending": world.ending,
        "topics": [topic.kind for topic in world.topics],
        "faults": run.nemesis.done,
        "seconds": round(time.monotonic() - began, 1),
        "violations": found,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    if not found:
        shutil.rmtree(folder)
    return result


class _WorldRun:
    def __init__(self, world: World, folder: Path, source: SandboxCluster, destination: SandboxCluster) -> None:
        self._world, self._folder = world, folder
        self._source, self._destination = source, destination
        self._engine = Engine(f"m{world.seed}", destination.bootstrap_servers, folder)
        self.nemesis = Nemesis(world, source, destination, self._engine)
        self._load: subprocess.Popen[bytes] | None = None
        self._acks = folder / "acks"

    def close(self) -> None:
        self._end_load()
        self._engine.end()
        for cluster in (self._source, self._destination):
            for broker in cluster.brokers:
                if broker.pid is None:
                    cluster.start_broker(broker.node_id)
        self._engine.verb("remove", "--topics", ".*", "--yes")

    def violations(self) -> list[dict[str, Any]]:
        """Run it; return what is wrong."""
        self._create()
        self._begin_load()
        self._engine.start()
        self.nemesis.run(threading.Event())
        time.sleep(1)
        self._end_load()
        self._engine.ensure()
        found = self._wait_caught_up()
        if found:
            return found
        found = self._judge(self._whole(), {})
        return found or self._end()

    def _create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._source.bootstrap_servers, "log_level": 0})
        new = []
        for topic in self._world.topics:
            config = {"segment.bytes": "1048576", "max.message.bytes": "2000000"}
            if topic.kind is Kind.COMPACTED:
                config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.ms": "3000"}
            if topic.kind is Kind.TRIMMED:
                config |= {"retention.bytes": "1048576"}
            new.append(NewTopic(topic.name, topic.partitions, len(self._source.brokers), config=config))
        for made in admin.create_topics(new).values():
            made.result(30)
        properties = self._folder / "source.properties"
        properties.write_text(f"bootstrap.servers={self._source.bootstrap_servers}\n", encoding="utf-8")
        words = [word for one in (*_OFTEN, f"copy.lanes={self._world.lanes}") for word in ("--config", one)]
        self._expect(self._engine.verb("create", "--mirror-config", str(properties), *words))
        self._expect(self._engine.verb("add", "--topics", f"w{self._world.seed}-.*"))
        self._acks.touch()

    @staticmethod
    def _expect(done: tuple[int, str]) -> str:
        if done[0]:
            raise RuntimeError(f"a verb ended with {done[0]}: {done[1]}")
        return done[1]

    def _begin_load(self) -> None:
        with (self._folder / "load.log").open("ab") as log:
            self._load = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "campaign.load",
                    str(self._folder / "world.json"),
                    self._source.bootstrap_servers,
                    str(self._acks),
                ],
                stdout=log,
                stderr=log,
            )

    def _end_load(self) -> None:
        if self._load is not None:
            self._load.send_signal(signal.SIGTERM)
            try:
                self._load.wait(90)
            except subprocess.TimeoutExpired:
                self._load.kill()
                self._load.wait()
            self._load = None

    def _describe(self) -> list[dict[str, Any]]:
        code, said = self._engine.verb("describe", "--json")
        return json.loads(said) if code in {0, 4} and said.strip() else []

    def _whole(self) -> list[str]:
        """Return the topics to which nothing was done that ends their copies."""
        return [topic.name for topic in self._world.topics if not self.nemesis.marks.get(topic.name)]

    def _wait_caught_up(self) -> list[dict[str, Any]]:
        """Wait until all is copied; return what is wrong with what `describe` says."""
        deadline = time.monotonic() + _CAUGHT_UP_S
        while True:
            rows = self._describe()
            undeserved = [row for row in rows if row["state"] == "FAILED" and not self._is_deserved(row)]
            if undeserved:
                return [{"what": "FAILED without a cause", "rows": undeserved}]
            whole = set(self._whole())
            waiting = [
                row for row in rows if row["topic"] in whole and (row["state"] != "MIRRORING" or row["lag"] != 0)
            ]
            known = Counter(row["topic"] for row in rows)
            lacking = [name for name in whole if known[name] < self.nemesis.partitions[name]]
            if rows and not waiting and not lacking:
                return []
            if time.monotonic() > deadline:
                return [{"what": "not caught up", "rows": waiting, "partitions lacking": lacking}]
            time.sleep(1)

    def _is_deserved(self, row: dict[str, Any]) -> bool:
        marks = self.nemesis.marks.get(row["topic"], set())
        return any(row["reason"] in DESERVED.get(mark, ()) for mark in marks)

    def _judge(self, names: Sequence[str], ends: _Ends) -> list[dict[str, Any]]:
        kinds = {topic.name: topic.kind for topic in self._world.topics}
        question = {
            "source": self._source.bootstrap_servers,
            "destination": self._destination.bootstrap_servers,
            "acks": str(self._acks),
            "topics": [
                {
                    "topic": name,
                    "partitions": self.nemesis.partitions[name],
                    "compacted": kinds[name] is Kind.COMPACTED,
                    "ends": {partition: end for partition, (end, _) in ends.get(name, {}).items()},
                    "lost": {partition: lost for partition, (_, lost) in ends.get(name, {}).items()},
                }
                for name in names
            ],
        }
        path = self._folder / "question.json"
        path.write_text(json.dumps(question), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "campaign.oracle", str(path)], capture_output=True, text=True, check=False
        )
        if not done.stdout.strip():
            return [{"what": "the oracle could not judge", "error": done.stderr[-2000:]}]
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def _end(self) -> list[dict[str, Any]]:
        whole, ending = self._whole(), self._world.ending
        names = ",".join(whole)
        if not whole:
            return []
        if ending is Ending.PROMOTE:
            code, said = self._engine.verb("promote", "--topics", names, "--yes", "--json")
            if code:
                return [{"what": f"promote ended with {code}", "said": json.loads(said) if said else None}]
            return self._judge(whole, self._ends(said))
        if ending is not Ending.FAILOVER:
            self._begin_load()
            time.sleep(4)
        if ending is Ending.FAILOVER_SOURCE_DEAD:
            for broker in self._source.brokers:
                self._source.kill(broker.node_id)
            time.sleep(1)
        code, said = self._engine.verb("failover", "--topics", names, "--yes", "--json")
        self._end_load()
        for broker in self._source.brokers:
            if broker.pid is None:
                self._source.start_broker(broker.node_id)
        if code:
            return [{"what": f"failover ended with {code}", "said": json.loads(said) if said else None}]
        found = self._judge(whole, self._ends(said))
        totals = json.loads(said)["totals"]
        if ending is Ending.FAILOVER and totals["knownLostRecords"]:
            found.append({"what": "told a loss where nothing is lost", "totals": totals})
        return found

    @staticmethod
    def _ends(said: str) -> _Ends:
        ends: _Ends = {}
        for row in json.loads(said)["results"]:
            if row["partition"] is not None and row["lastMirroredOffset"] is not None:
                ends.setdefault(row["topic"], {})[str(row["partition"])] = row["lastMirroredOffset"], row["lag"]
        return ends


class _Pairs:
    """The clusters that worlds share, some at a time: of which versions and sizes the first world's seed decides."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = 0
        self.clusters: list[SandboxCluster] = []
        self.description: dict[str, Any] = {}

    def start(self, number: int) -> None:
        """Start those of the worlds with this number, in place of the ones before."""
        self.close()
        chance = random.Random(number)
        versions = chance.choice((OLD, NEW)), chance.choice((OLD, NEW))
        brokers = chance.choice((1, 1, 2)), chance.choice((1, 1, 2))
        self.description = {"versions": versions, "brokers": brokers}
        self._started += 1
        self.clusters = [
            SandboxCluster(
                side,
                self._folder / f"{side}-{self._started}",
                brokers=count,
                kafka_version=version,
                properties=_CLUSTER,
                java_options=("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            )
            for side, count, version in zip(("source", "destination"), brokers, versions, strict=True)
        ]
        start_together(self.clusters)

    def close(self) -> None:
        for cluster in self.clusters:
            cluster.destroy()
        self.clusters = []


def run_worlds(worlds: Iterable[World], folder: Path, most_faults: int) -> Iterator[dict[str, Any]]:
    """Run worlds one after another; yield what was done and found."""
    pairs, current = _Pairs(folder), None
    try:
        for world in worlds:
            number = world.seed // _WORLDS_A_PAIR
            if number != current:
                pairs.start(number)
                current = number
            source, destination = pairs.clusters
            yield {**run_world(world, folder, source, destination, most_faults), **pairs.description}
    finally:
        pairs.close()


def shrink(world: World, folder: Path, most_faults: int) -> World:
    """Leave faults out one by one as long as a violation is found; return what is left."""
    for fault in world.faults:
        tried = replace(world, faults=tuple(one for one in world.faults if one != fault))
        (result,) = run_worlds([tried], Path(tempfile.mkdtemp(dir=folder)), most_faults)
        print(f"without {fault.act} at {fault.at} s: {result['violations'][:1] or 'ok'}", flush=True)
        world = tried if result["violations"] else world
    return world


def main() -> int:
    """Run worlds until told to stop; return 1 when there was a violation."""
    given = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the brokers end too
    first = given.replay if given.replay is not None else given.seed or random.SystemRandom().randrange(1, 1 << 30)
    seeds = range(first, first + (1 if given.replay is not None else given.worlds))
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kmirror-campaign-"))
    folder.mkdir(parents=True, exist_ok=True)
    ends_at = math.inf if given.hours is None else time.monotonic() + given.hours * 3600
    worlds = (world_of(seed, given.seconds, given.faults) for seed in seeds if time.monotonic() < ends_at)
    results: list[dict[str, Any]] = []
    for result in run_worlds(worlds, folder, given.faults):
        results.append(result)
        acts = ", ".join(str(one["act"]) for one in result["faults"])
        told = f"VIOLATION: {result['violations'][0]['what']}, see {folder}" if result["violations"] else "ok"
        print(f"{result['seed']} {result['seconds']:.0f} s {result['ending']} [{acts}]: {told}", flush=True)
    bad = [one for one in results if one["violations"]]
    faults = Counter(str(fault["act"]) for one in results for fault in one["faults"])
    print(f"{len(results)} worlds, {faults.total()} faults, {len(bad)} with violations")
    if given.output is not None:
        found = {"worlds": len(results), "faults": faults.total(), "byAct": faults, "violations": len(bad)}
        text = json.dumps({**found, "firstSeed": first, "results": results}, indent=1)
        given.output.write_text(text + "\n", encoding="utf-8")
    if bad and given.shrink:
        left = shrink(world_of(first, given.seconds, given.faults), folder, given.faults)
        print("it takes: " + (", ".join(f"{one.act} at {one.at} s" for one in left.faults) or "no fault at all"))
    if not bad and given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=8, help="how many (%(default)s)")
    parser.add_argument("--hours", type=float, help="begin no world after so long")
    parser.add_argument("--seed", type=int, help="of the first world; the others follow; without it, by chance")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this world alone")
    parser.add_argument("--shrink", action="store_true", help="of --replay: find out which faults it takes")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long faults are done to a world (%(default)g)")
    parser.add_argument("--faults", type=int, default=8, help="the most of a world (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where worlds with violations are kept")
    parser.add_argument("--output", type=Path, help="write what was done and found here")
    given = parser.parse_args()
    if given.shrink and given.replay is None:
        parser.error("--shrink is for --replay")
    return given


if __name__ == "__main__":
    sys.exit(main())
