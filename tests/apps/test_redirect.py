"""Doors to the cluster in charge: HAProxy and DNS as in deploy/, kmirror serve, Kafka's clients, all of them real."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kmirror_sandbox.cluster import SandboxCluster, start_together
from kmirror_sandbox.jars import kafka_jars
from kmirror_sandbox.ports import LOOPBACK
from tests.support.clusters import MakeCluster, unique_topic
from tests.support.engine import typed
from tests.support.haproxy import Door, Site, haproxy
from tests.support.installed_logs import create_topics
from tests.support.java_programs import JavaProgram
from tests.support.journeys import Journey, values
from tests.support.name_server import RECORD, NameServer, name_server
from tests.support.serving import Serving, kmirror_toml
from tests.support.waiting import wait_until


class Visitor:
    """A Java producer and a Java consumer that have only the door's address; they are never given another one."""

    def __init__(self, program: JavaProgram, door: Door, topic: str) -> None:
        self._program = program
        self._settings = {"bootstrap.servers": door.address, "group.id": unique_topic("visitor"), "topic": topic}
        #: The values that were acknowledged, with their offsets, and those that were read.
        self.wrote: dict[int, int] = {}
        self.read: list[int] = []

    def start(self) -> None:
        """Continue to write, with the value after the last one, and to read."""
        self._program.start({**self._settings, "first": str(len(self.wrote))})

    def use(self, records: int = 20) -> tuple[dict[int, int], list[int]]:
        """Return what it writes, with the offsets, and what it reads, once it has done both so often from now on."""
        wrote, read = self._seen()
        old, begin = dict(wrote), len(read)
        found: list[tuple[dict[int, int], list[int]]] = []

        def is_enough() -> bool:
            now_wrote, now_read = self._seen()
            new = {value: offset for value, offset in now_wrote.items() if value not in old}
            found[:] = [(new, now_read[begin:])]
            # one may have been read before it was acknowledged, and that before `begin`
            return len(new) >= records and set(new) <= set(now_read)

        wait_until(is_enough)
        return found[0]

    def stop(self) -> None:
        """End both, once all is acknowledged and committed."""
        self._program.stop()
        wrote, read = self._seen()
        self.wrote |= wrote
        self.read += read

    def _seen(self) -> tuple[dict[int, int], list[int]]:
        lines = [line.split(" ") for line in self._program.lines]
        assert not [line for line in lines if line[0] == "failed"]
        wrote = {int(line[1]): int(line[2]) for line in lines if line[0] == "wrote"}
        return wrote, [int(line[1]) for line in lines if line[0] == "read"]


def write(door: Door, topic: str, value: str) -> None:
    """Write a record through a door, as a new client."""
    producer = Producer({"bootstrap.servers": door.address})
    producer.produce(topic, value)
    assert producer.flush(60) == 0


@contextmanager
def opened(door: Door, site: str) -> Iterator[None]:
    """Begin when the door leads to a site."""
    wait_until(lambda: door.open_to() == {site})
    yield


@contextmanager
def watched(door: Door) -> Iterator[list[set[str]]]:
    """Yield the sites to which the door leads, one after the other, as they follow."""
    seen: list[set[str]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            seen.append(door.open_to())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


@contextmanager
def nobody() -> Iterator[str]:
    """Yield an address that is taken, and refuses connections."""
    with closing(socket.socket()) as taken:
        taken.bind((LOOPBACK, 0))
        yield f"{LOOPBACK}:{taken.getsockname()[1]}"


def record(server: NameServer) -> str:
    """Return the name to which the record leads; the answer may be kept for 5 seconds."""
    answer = server.answer()
    if not answer:
        return ""
    name, seconds, *_, target = answer.split(" ")
    assert (name, seconds) == (RECORD, "5")
    return target


@pytest.mark.slow
def test_clients_find_the_cluster_in_charge_through_a_door(make_cluster: MakeCluster, tmp_path: Path) -> None:
    """A planned move to B, and back to A when B is lost; of A's brokers one is always dead."""
    a, b = (make_cluster(name, start=False) for name in ("a", "b"))
    start_together([a, b])
    topic = unique_topic("orders")
    create_topics(a, {topic: {}}, 1)
    config = kmirror_toml(tmp_path, {"a": a, "b": b})
    jars = kafka_jars(None, os.environ, lambda line: None)
    with (
        Journey(a, b, tmp_path, [topic]) as journey,
        Serving(config, "one") as one,
        Serving(config, "two") as two,
        nobody() as dead,
        haproxy(
            journey.mirror,
            Site("a", f"{dead},{a.bootstrap_servers}"),
            Site("b", b.bootstrap_servers),
            [one.address, two.address],
        ) as door,
        name_server() as dns,
        dns.followed(two.address, journey.mirror, {"a": "kafka-a.example.com.", "b": "kafka-b.example.com."}),
        JavaProgram(tmp_path / "visitor", jars, "Visitor") as program,
        opened(door, "a"),
        watched(door) as seen,
    ):
        visitor = Visitor(program, door, topic)
        wait_until(lambda: record(dns) == "kafka-a.example.com.")
        visitor.start()
        visitor.use()
        visitor.stop()
        assert list(visitor.wrote.values()) == list(range(len(visitor.wrote)))

        # planned: the clients are started again, with the address that they have
        journey.promote()
        wait_until(lambda: door.open_to() == {"b"})
        wait_until(lambda: record(dns) == "kafka-b.example.com.")
        one.kill()
        number = len(visitor.wrote)
        visitor.start()
        wrote, read = visitor.use()
        assert (min(wrote), wrote[min(wrote)]) == (number, number)
        assert [*visitor.read, *read] == list(range(len(visitor.read) + len(read)))

        # unplanned: they are not touched
        journey.failback()
        journey.wait()
        visitor.use()
        for broker in b.brokers:
            b.kill(broker.node_id)
        (lost,) = journey.failover().values()
        wait_until(lambda: door.open_to() == {"a"})
        wait_until(lambda: record(dns) == "kafka-a.example.com.")
        wait_until(lambda: typed(a, "in-charge", "--mirror", journey.mirror).returncode == 0)
        wrote, _ = visitor.use()
        assert min(wrote.values()) > lost.begin, "a marker is at the copy's end"
        visitor.stop()
        at_a = {int(value) for value in values(a, topic)}
        assert at_a <= visitor.wrote.keys()
        # it stops to read first
        assert {value for value in at_a if value <= max(wrote)} <= set(visitor.read)
        assert [value for value, offset in visitor.wrote.items() if value not in at_a and offset < lost.begin] == []
    assert [sites for sites, _ in groupby(filter(None, seen))] == [{"a"}, {"b"}, {"a"}]


@pytest.mark.slow
def test_a_door_may_stay_open_while_the_standby_cluster_is_down(
    source_cluster: SandboxCluster, passing_destination: SandboxCluster, tmp_path: Path
) -> None:
    a, b = source_cluster, passing_destination
    topic = unique_topic("orders")
    create_topics(a, {topic: {}}, 1)
    mirror = Journey(a, b, tmp_path, [topic]).mirror
    sites = Site("a", a.bootstrap_servers), Site("b", b.bootstrap_servers)
    with (
        Serving(kmirror_toml(tmp_path, {"a": a, "b": b}), "serve") as serving,
        haproxy(mirror, *sites, [serving.address]) as strict,
        haproxy(mirror, *sites, [serving.address], unsure_last=True) as lasting,
        opened(strict, "a"),
        opened(lasting, "a"),
    ):
        b.stop()
        wait_until(lambda: strict.open_to() == set())
        wait_until(lambda: lasting.open_to() == {"a"})
        write(lasting, topic, "while B is down")
        b.start()
        wait_until(lambda: strict.open_to() == {"a"})
        write(strict, topic, "after that")
    assert values(a, topic).keys() == {"while B is down", "after that"}
