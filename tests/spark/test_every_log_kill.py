"""Engine and brokers are killed while logs of every kind are copied: holes filled, log starts raised, transactions met.

Each kill waits for a random moment at which one of these is seen to be under way, and each finds new logs to copy. A
produce quota slows what is appended. Markers do not come under it: that fills are hit, too, is due to large holes.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kmirror_sandbox.cluster import SandboxCluster
from tests.spark.test_engine_kill import WAYS
from tests.support.clusters import QUICK_FAILOVER, MakeCluster, unique_topic
from tests.support.engine import Engine, limit_writes, typed
from tests.support.installed_logs import create_topics
from tests.support.mirrored import Mirrored, Place
from tests.support.mixed_logs import Doing, Helping, Scene, look, make_helpings
from tests.support.processes import wait_gone
from tests.support.real_logs import BUSY, start_at
from tests.support.transactions import TransactionWriters
from tests.support.visible import COMMITTED, assert_sound, bounds
from tests.support.waiting import wait_until

LONG_KILLS = 24
BYTES_PER_SECOND = 700_000
SOURCE, DESTINATION = "source broker", "destination broker"
WRITTEN = "transactions being written"
PARTITIONS = 3
#: How much of the large topic there is to be at each kill.
LARGE_BYTES, LARGE_RECORD = 8 << 20, 1000
TRANSACTIONS = 150
AIM_S = 8.0
#: A broker that is killed between a commit and its marker may leave `__kmirror_state` with an open transaction.
PATIENCE_S = 150.0
THREE = {"default.replication.factor": "3", "min.insync.replicas": "2", **QUICK_FAILOVER}


@dataclass
class Campaign:
    """A mirror of logs of every kind, and what was killed while it was doing what."""

    mirror: Mirrored
    helpings: Sequence[Helping]
    chance: random.Random
    large: str = field(default_factory=lambda: unique_topic("large"))
    written: str = field(default_factory=lambda: unique_topic("written"))
    engine: Engine | None = None
    #: What was served last.
    served: Helping = field(default_factory=lambda: Helping((), {}, {}))
    watched: Helping = field(default_factory=lambda: Helping((), {}, {}))
    large_ends: Sequence[int] = ()
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)

    def begin(self) -> None:
        """Create the mirror with what is there for all the time."""
        create_topics(self.mirror.source, {self.large: {"retention.ms": "-1"}, self.written: {}}, PARTITIONS)
        self.mirror.topics |= {self.large: PARTITIONS, self.written: PARTITIONS}
        limit_writes(self.mirror.destination, BYTES_PER_SECOND)
        self.mirror.create()

    def run(self, ways: Sequence[str]) -> None:
        """Kill in these ways; each way meets one kind of work after the other."""
        times: Counter[str] = Counter()
        for number, (way, helping) in enumerate(zip(ways, self.helpings, strict=True)):
            self.kill(way, list(Doing)[(number + times[way]) % len(Doing)], helping)
            times[way] += 1

    def kill(self, way: str, aim: Doing, helping: Helping) -> None:
        """Serve a helping, and kill at a random moment while something of this kind is under way."""
        mirror, chance = self.mirror, self.chance
        engine = self.engine = self.engine or mirror.engine()
        self.write_large()
        added = typed(mirror.destination, "add", "--mirror", mirror.name, "--topics", ",".join(helping.topics))
        assert added.returncode == 0, added.stderr
        mirror.topics |= dict.fromkeys(helping.topics, 1)
        self.watched, self.served = self.served | helping, helping
        before = self.seen()
        mirror.wait(engine, lambda: before.copies != self.seen().copies)
        with TransactionWriters(mirror.source, self.written, PARTITIONS, TRANSACTIONS) as writers:
            time.sleep(chance.uniform(0, 0.5))
            written = self.written_ends()
            moving = self.moment(engine, aim)
            under_way = set(moving.values())
            if way in WAYS:
                self.kill_engine(way, engine)
                # what was over before the processes were dead was not hit
                under_way &= set(self.seen().doing.values())
                is_written = self.written_ends() != written
            else:
                is_written = self.written_ends() != written
                partition = next((partition for partition, doing in moving.items() if doing is aim), (self.large, 0))
                self.kill_broker(way, partition, engine)
            if way != SOURCE:  # those that lose their broker may not come to an end
                writers.wait(240)
        self.hits.update((way, doing.value) for doing in under_way)
        self.hits[way, WRITTEN] += is_written
        hit = [*(doing.value for doing in under_way), *[WRITTEN] * is_written]
        print(f"killed {way}, to hit {aim.value}: hit {', '.join(hit)}")  # noqa: T201 - with -s

    def seen(self) -> Scene:
        """Look at what was served last, and before."""
        return look(self.mirror.destination, self.watched, self.large, self.large_ends)

    def write_large(self) -> None:
        """Have enough left to be copied of the large topic."""
        source, destination = (
            [found.end for found in bounds(cluster, [self.large], PARTITIONS).values()]
            for cluster in (self.mirror.source, self.mirror.destination)
        )
        lacking = LARGE_BYTES // LARGE_RECORD - (sum(source) - sum(destination))
        producer = Producer({"bootstrap.servers": self.mirror.source.bootstrap_servers, "batch.size": 65536})
        for number in range(lacking):
            value = self.chance.randbytes(LARGE_RECORD)
            producer.produce(self.large, value, b"%d" % number, number % PARTITIONS)
        assert producer.flush(60) == 0
        self.large_ends = [found.end for found in bounds(self.mirror.source, [self.large], PARTITIONS).values()]

    def written_ends(self) -> list[int]:
        """Return where the topic that transactions are written to ends at the source."""
        return [found.end for found in bounds(self.mirror.source, [self.written], PARTITIONS).values()]

    def moment(self, engine: Engine, aim: Doing) -> Mapping[Place, Doing]:
        """Wait until something of this kind is under way, or at last anything; return all that is, and where."""
        begun = time.monotonic()
        before = self.seen()
        while True:
            now = self.seen()
            moving = before.under_way(now)
            waited = time.monotonic() - begun
            if aim in moving.values() or (moving and waited > AIM_S):
                return moving
            if not now.doing:
                self.write_large()
            assert engine.process.poll() is None, f"the engine ended by itself:\n{engine.output[-4000:]}"
            assert waited < PATIENCE_S, f"nothing is copied:\n{engine.output[-4000:]}"
            before = now

    def kill_engine(self, way: str, engine: Engine) -> None:
        """Kill processes of the engine, and start it again at once where its driver does not live on."""
        tree = engine.tree()
        assert tree.workers, f"no workers found:\n{engine.output[-2000:]}"
        WAYS[way](tree)
        if way == "workers":
            assert not wait_gone(tree.workers, PATIENCE_S)
        else:
            engine.process.wait(PATIENCE_S)
            assert not wait_gone(tree.all, PATIENCE_S), "workers outlive their driver"
            self.engine = self.mirror.engine()

    def kill_broker(self, way: str, partition: Place, engine: Engine) -> None:
        """Kill a partition's leader, start it again at once, and wait until the same engine resumes."""
        mirror = self.mirror
        if way == SOURCE:
            cluster, leader = mirror.source, mirror.source.brokers[0].node_id
        else:
            cluster, leader = mirror.destination, mirror.leader(*partition)
        cluster.kill(leader)
        killed_at = time.monotonic()
        cluster.start_broker(leader)
        self.moment(engine, Doing.COPYING)
        print(f"copied again {time.monotonic() - killed_at:.0f} s after the kill of a {way}")  # noqa: T201 - with -s
        if way == DESTINATION:
            replicas = len(mirror.destination.brokers)
            mirror.wait(engine, lambda: mirror.is_in_sync(replicas), PATIENCE_S)

    def end(self) -> None:
        """Let an engine copy the rest, and compare."""
        mirror = self.mirror
        limit_writes(mirror.destination, None)
        if self.engine:
            self.engine.destroy()  # it may have been started just now, and not know yet how to be stopped
        # transactions of a writer that died with its broker are aborted when their time is over
        wait_until(lambda: self.written_ends() == self.decided_ends(), PATIENCE_S)
        mirror.copy(int(PATIENCE_S) + 120)
        for topics in ([self.large, self.written], *(helping.topics for helping in self.helpings)):
            mirror.compare([partition for partition in mirror.places if partition[0] in topics])
        mirror.verify()
        for topic in (self.written, self.large, *self.helpings[0].built, *self.helpings[-1].late):
            assert_sound(mirror.destination, topic)

    def decided_ends(self) -> list[int]:
        """Return up to where the transactions of that topic are decided."""
        found = bounds(self.mirror.source, [self.written], PARTITIONS, COMMITTED)
        return [one.end for one in found.values()]

    def report(self) -> str:
        """Say how often what was hit."""
        reported = [WRITTEN, *(doing.value for doing in Doing)]
        ways = dict.fromkeys(way for way, _ in self.hits)
        lines = [f"{way}: {', '.join(f'{self.hits[way, what]} {what}' for what in reported)}" for way in ways]
        return "\n".join(["kills that met", *lines])

    def met(self, what: str) -> int:
        """Return how many kills met this."""
        return sum(count for (_, met), count in self.hits.items() if met == what)


def campaign(
    source: SandboxCluster, destination: SandboxCluster, folder: Path, ways: Sequence[str], chance: random.Random
) -> Campaign:
    """Kill in each of these ways, one after the other, while all is copied; compare."""
    helpings = make_helpings(source, chance, len(ways), built=2)
    with Mirrored(source, destination, folder, {}, with_spark=True) as mirror:
        done = Campaign(mirror, helpings, chance)
        done.begin()
        done.run(ways)
        done.end()
    return done


@pytest.mark.long
def test_each_way_of_killing_an_engine_and_a_killed_source(
    make_cluster: MakeCluster, tmp_path: Path, chance: random.Random
) -> None:
    source, destination = make_cluster("source", properties=BUSY), make_cluster("destination", properties=BUSY)
    done = campaign(source, destination, tmp_path, [SOURCE, *WAYS], chance)
    print(done.report())  # noqa: T201 - with -s
    assert done.met(WRITTEN)


@pytest.mark.long
def test_a_log_start_made_just_before_its_broker_dies(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """Brokers note log starts once a minute: one that is killed before comes back with what was deleted."""
    source, destination = make_cluster("source"), make_cluster("destination")
    topic = unique_topic("late")
    create_topics(source, {topic: {"retention.ms": "-1"}})
    start_at(source, topic, 300_000, 400)
    with Mirrored(source, destination, tmp_path, {topic: 1}, with_spark=True) as mirror:
        mirror.create()
        mirror.copy()
        mirror.compare()
        destination.kill(1)
        destination.start_broker(1)
        mirror.copy()
        mirror.compare()
        mirror.verify()


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("brokers", [1, 3])
def test_long_campaign_on_logs_of_every_kind(
    make_cluster: MakeCluster,
    tmp_path: Path,
    chance: random.Random,
    brokers: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = make_cluster("source", properties=BUSY)
    destination = make_cluster("destination", brokers=brokers, properties=BUSY if brokers == 1 else BUSY | THREE)
    ways = [*WAYS, SOURCE, DESTINATION]
    with capsys.disabled():
        done = campaign(source, destination, tmp_path, [ways[n % len(ways)] for n in range(LONG_KILLS)], chance)
        print(f"\n{done.report()}")  # noqa: T201 - the campaign's result
    assert {what: done.met(what) for what in (WRITTEN, *(doing.value for doing in Doing)) if not done.met(what)} == {}
