"""The applications of a world: a separate process, `python -m campaign.load WORLD.json SERVERS ACKS [TOPIC...]`.

Each record identifies itself: its topic, a unique number, and a checksum of the whole. What the source acknowledged is
written to the file ACKS, one line per record: topic, partition, offset, checksum; records of a transaction once it is
committed. A group reads the topics, and commits now and then, always forward. SIGTERM ends it after what is in flight
is settled.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import signal
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from campaign.contents import content_of
from campaign.world import Kind, Topic, World, world_of

_STEP_S = 0.05
#: How long an application writes to a topic that rests then.
_WRITES_S = 5.0
#: How long the group may take for its first commit after the load has ended.
_FIRST_COMMIT_S = 30.0
#: A group without partitions after so long joins again.
_ASSIGNED_S = 5.0


def body(topic: str, number: int, filler: bytes) -> bytes:
    """Make a unique value that can be checked for damage."""
    head = b"%s|%d|" % (topic.encode(), number) + filler
    return head + b"|%08x" % zlib.crc32(head)


class Application:
    """Write to one topic according to its kind, in a thread."""

    def __init__(self, servers: str, topic: Topic, seed: int, acks: TextIO, lock: threading.Lock) -> None:
        self._topic = topic
        self._chance = random.Random(f"{seed}/{topic.name}")
        self._acks, self._lock = acks, lock
        self._number = 0
        self._pending: list[str] = []
        self._transactional = topic.kind is Kind.TRANSACTIONS
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "log_level": 0,
            "compression.type": topic.codec,
            "linger.ms": self._chance.choice((0, 5, 50)),
            "enable.idempotence": self._transactional or self._chance.random() < 0.7,
            "acks": "all",
            "message.timeout.ms": 20_000,
        }
        if self._transactional:
            settings |= {"transactional.id": f"{topic.name}-writer", "transaction.timeout.ms": 20_000}
        self._settings = settings

    def run(self, stop: threading.Event) -> None:
        """Write until asked to stop, or until it is time to rest; a broken producer is replaced."""
        ends_at = time.monotonic() + _WRITES_S if self._topic.rests else math.inf
        while not stop.is_set() and time.monotonic() < ends_at:
            producer = Producer(self._settings)
            try:
                if self._transactional:
                    producer.init_transactions(30)
                self._write(producer, stop, ends_at)
                producer.flush(20)
            except (KafkaException, BufferError):
                time.sleep(0.5)
            finally:
                self._write_down(self._pending if not self._transactional else [])
                self._pending = []

    def _write(self, producer: Producer, stop: threading.Event, ends_at: float) -> None:
        while not stop.is_set() and time.monotonic() < ends_at:
            if self._transactional:
                self._transaction(producer)
            else:
                for _ in range(self._amount()):
                    self._send(producer)
                producer.poll(0)
                self._write_down(self._pending)
                self._pending = []
            time.sleep(_STEP_S * self._chance.uniform(0.2, 2))

    def _amount(self) -> int:
        match self._topic.kind:
            case Kind.BURSTS:
                return self._chance.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 2000))
            case Kind.LARGE:
                return self._chance.choice((0, 0, 1))
            case Kind.TINY:
                return self._chance.choice((1, 30))
            case _:
                return self._chance.choice((1, 5, 20))

    def _send(self, producer: Producer) -> None:
        self._number += 1
        size = {Kind.LARGE: 400_000, Kind.TINY: 2}.get(self._topic.kind, self._chance.choice((10, 300, 1500)))
        key = b"k%d" % self._chance.randrange(20) if self._topic.kind is Kind.COMPACTED else None
        value = body(self._topic.name, self._number, self._chance.randbytes(size // 2) * 2)
        headers = [("n", b"%d" % self._number)] if self._chance.random() < 0.3 else None
        producer.produce(
            self._topic.name,
            value,
            key,
            self._chance.randrange(self._topic.partitions),
            headers=headers,
            on_delivery=partial(self._delivered, content_of(key, value, headers)),
        )

    def _delivered(self, content: int, error: KafkaError | None, message: Message) -> None:
        # a broker that had the record already when it was sent again does not say where
        if error is None and message.offset() is not None:
            self._pending.append(f"{message.topic()} {message.partition()} {message.offset()} {content:08x}\n")

    def _transaction(self, producer: Producer) -> None:
        producer.begin_transaction()
        for _ in range(self._chance.choice((0, 1, 5, 40))):
            self._send(producer)
        try:
            if self._chance.random() < 0.3:
                producer.abort_transaction(30)
                self._pending = []
            else:
                producer.commit_transaction(30)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                producer.abort_transaction(30)
                self._pending = []
                return
            raise
        self._write_down(self._pending)
        self._pending = []

    def _write_down(self, lines: list[str]) -> None:
        with self._lock:
            self._acks.writelines(lines)
            self._acks.flush()


class Reader:
    """Read topics of a world as a group, in a thread."""

    def __init__(self, servers: str, world: World, topics: Sequence[Topic]) -> None:
        self._topics = [topic.name for topic in topics]
        self._chance = random.Random(f"{world.seed}/reader")
        self._settings = {
            "bootstrap.servers": servers,
            "group.id": group_of(world),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "topic.metadata.refresh.interval.ms": 3000,
            "log_level": 0,
        }

    def run(self, stop: threading.Event) -> None:
        """Read until asked to stop, and until something is committed: else there is no group to judge."""
        consumer = Consumer(self._settings)
        consumer.subscribe(self._topics)
        has_committed, ends_at, subscribed_at = False, math.inf, time.monotonic()
        while not stop.is_set() or (not has_committed and time.monotonic() < ends_at):
            if time.monotonic() - subscribed_at > _ASSIGNED_S and not consumer.assignment():
                # a broker that had not heard of the topics yet had it join for none, and it stays with that
                consumer.unsubscribe()
                consumer.subscribe(self._topics)
                subscribed_at = time.monotonic()
            if stop.is_set() and ends_at == math.inf:
                ends_at = time.monotonic() + _FIRST_COMMIT_S
            consumer.consume(500, 0.2)
            if stop.is_set() or self._chance.random() < 0.3:
                with contextlib.suppress(KafkaException):  # nothing read yet, or a broker is away
                    consumer.commit(asynchronous=False)
                    has_committed = True
        consumer.close()


def group_of(world: World) -> str:
    """Return the name of the group that reads a world's topics."""
    return f"w{world.seed}-readers"


def main() -> int:
    """Write and read until SIGTERM."""
    world_file, servers, acks_file, *names = sys.argv[1:]
    stored = json.loads(Path(world_file).read_text(encoding="utf-8"))
    world: World = world_of(stored["seed"], stored["seconds"], stored["most_faults"])
    topics = [topic for topic in world.topics if not names or topic.name in names]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    lock = threading.Lock()
    with open(acks_file, "a", encoding="utf-8") as acks:
        applications: list[Application | Reader] = [
            Application(servers, topic, world.seed, acks, lock) for topic in topics
        ]
        applications.append(Reader(servers, world, topics))
        threads = [threading.Thread(target=one.run, args=(stop,), daemon=True) for one in applications]
        for thread in threads:
            thread.start()
        while not stop.wait(0.5):
            pass
        for thread in threads:
            thread.join(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
