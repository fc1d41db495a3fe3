"""Whatever happens on the way, the destination is a prefix of the source: random histories against a model of brokers.

The model knows what a broker does with sequence numbers (KIP-98), and plays against the copy everything that was seen
to go wrong: it forgets producer ids whose last record is old, loses connections before or after an append, lets
requests of a lost connection arrive seconds later, and lets a predecessor write on until its time is over. It stands
for no broker in any other test; what real ones do is tested against real ones.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from kmirror.cluster.batch import SEQUENCE_MASK, batch_headers
from kmirror.cluster.client import ProducerState
from kmirror.cluster.codes import Code
from kmirror.cluster.fetch import FetchedPartition, FetchKey
from kmirror.cluster.records import Record, make_batch
from kmirror.engine.judge import Facts, Tail, judge
from kmirror.engine.lane_partition import MAX_IN_FLIGHT, Batch, Frame, PartitionCopy, Status
from kmirror.engine.spec import Assignment

ID = b"\x01" * 16
ASSIGNMENT = Assignment("mirrored", 0, "orders", ID, ID, (1 << 62) + 5)
EPOCH_MS = 1_700_000_000_000
EXPIRATION_MS = 600_000
OLD_MS = 86_400_000
SETTLE = 10.0
#: A predecessor stops sending at its deadline; what it sent by then is through, or gone, this much later.
THROUGH = 1.0
BATCHES = 60


def sequence_of(batch: Batch) -> int:
    """Read the sequence number that a batch is sent with."""
    return next(batch_headers(batch.data)).base_sequence


@dataclass
class Source:
    """A log of small batches."""

    batches: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    end: int = 0

    @classmethod
    def of(cls, rng: random.Random, ages: str) -> Source:
        made = cls()
        for _ in range(BATCHES):
            old = {"young": False, "old": True, "mixed": rng.random() < 0.3}[ages]
            timestamp = EPOCH_MS + 2_000_000 - (OLD_MS if old else 0)
            count = rng.randrange(1, 4)
            records = [Record(made.end + i, timestamp, None, b"v") for i in range(count)]
            made.batches.append(bytes(make_batch(records, leader_epoch=1)))
            made.starts.append(made.end)
            made.end += count
        return made

    def read(self, offset: int, batches: int) -> bytes:
        if offset == self.end:
            return b""
        first = self.starts.index(offset)
        return b"".join(self.batches[first : first + batches])


@dataclass
class Destination:
    """A partition's leader: its log, and what it remembers of our producer id."""

    end: int = 0
    wrong: str | None = None
    last_sequence: int | None = None
    last_timestamp: int = -1
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))

    def forget(self, wall: int) -> None:
        if self.last_sequence is not None and self.last_timestamp + EXPIRATION_MS <= wall:
            self.last_sequence = None
            self.recent.clear()

    def append(self, batch: Batch, sequence: int, who: str) -> tuple[int, int]:
        """Return error code and base offset."""
        count = batch.next_offset - batch.base_offset
        last = (sequence + count - 1) & SEQUENCE_MASK
        if self.last_sequence is not None:
            for first_sequence, last_sequence, offset in self.recent:
                if (first_sequence, last_sequence) == (sequence, last):
                    return 0, offset
            if sequence != (self.last_sequence + 1) & SEQUENCE_MASK:
                return Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        offset = self.end
        if offset != batch.base_offset:
            self.wrong = f"{who} appended the batch of offset {batch.base_offset} at {offset}"
        self.end += count
        self.last_sequence, self.last_timestamp = last, batch.max_timestamp
        self.recent.append((sequence, last, offset))
        return 0, offset

    @property
    def producer(self) -> ProducerState | None:
        if self.last_sequence is None:
            return None
        return ProducerState(ASSIGNMENT.producer_id, 0, self.last_sequence, self.last_timestamp, -1, None)


@dataclass
class Sent:
    """A request on its way; `dies_at` is when a request of a lost connection can arrive no more."""

    batch: Batch
    sequence: int
    dies_at: float | None = None


class Writer:
    """One incarnation of a lane's partition, with its connection and its inspections."""

    def __init__(self, name: str, world: World, *, quiet_until: float, deadline: float) -> None:
        self.name = name
        self.world = world
        self.deadline = deadline
        self.copy = PartitionCopy(ASSIGNMENT, quiet_until=quiet_until, settle=SETTLE)
        self.requests: deque[Sent] = deque()
        self.answers: deque[tuple[int, int]] = deque()
        self.adrift: list[Sent] = []
        self.facts: Facts | None = None
        self.copy.begin_inspection(world.now)

    def send(self) -> None:
        world, copy = self.world, self.copy
        while world.now < self.deadline and copy.may_send(world.now, world.wall):
            assert copy.status is Status.COPYING
            batch = copy.take()
            assert len(copy.in_flight) <= MAX_IN_FLIGHT
            self.requests.append(Sent(batch, sequence_of(batch)))

    def fetch(self) -> None:
        copy = self.copy
        if not copy.wants_records:
            return
        frame = Frame(memoryview(bytearray(self.world.source.read(copy.fetch_offset, self.world.rng.randrange(1, 9)))))
        end = self.world.source.end
        key = FetchKey(ID, 0)
        copy.fetched(FetchedPartition(key, 0, end, end, 0, (), frame.view, None, None), frame, self.world.now)
        frame.release()

    def arrive(self) -> None:
        """Let the oldest request arrive."""
        world = self.world
        if not self.requests:
            return
        sent = self.requests.popleft()
        luck = world.rng.random()
        if luck < 0.03:
            self.answers.append((Code.NOT_ENOUGH_REPLICAS, -1))
            return
        code, offset = world.destination.append(sent.batch, sent.sequence, self.name)
        self.answers.append((Code.REQUEST_TIMED_OUT, -1) if not code and luck < 0.06 else (code, offset))

    def drift(self) -> None:
        """Let a request of a lost connection arrive after all."""
        self.adrift = [sent for sent in self.adrift if (sent.dies_at or 0) > self.world.now]
        if self.adrift:
            sent = self.adrift.pop(0)
            self.world.destination.append(sent.batch, sent.sequence, f"{self.name}, adrift,")

    def answer(self) -> None:
        if self.answers:
            code, offset = self.answers.popleft()
            self.copy.answered(code, offset, None, self.world.now)

    def lose(self) -> None:
        """Lose the connection: some of what is under way is gone, the rest may arrive within the settling time."""
        world = self.world
        last = min(world.now + SETTLE, self.deadline + THROUGH)
        kept = world.rng.randrange(len(self.requests) + 1)
        for sent in list(self.requests)[:kept]:
            sent.dies_at = last
            self.adrift.append(sent)
        self.requests.clear()
        self.answers.clear()
        self.copy.outcome_unknown("lost", world.now)

    def look(self) -> None:
        """Begin an inspection, see the facts, or be told of them: one of these at a time."""
        world, copy = self.world, self.copy
        if copy.due_for_inspection(world.now):
            copy.begin_inspection(world.now)
            self.facts = None
        elif copy.status is Status.INSPECTING and self.facts is None:
            self.facts = Facts(
                source_topic_id=ID,
                destination_topic_id=ID,
                source_log_end=world.source.end,
                last_stable_offset=world.source.end,
                high_watermark=world.source.end,
                destination_log_end=world.destination.end,
                producer=world.destination.producer,
                tail=Tail.SAME if world.destination.end else Tail.NOTHING,
                producer_id_expiration_ms=EXPIRATION_MS,
            )
        elif copy.status is Status.INSPECTING and self.facts is not None:
            copy.inspected(self.facts, judge(ASSIGNMENT, None, self.facts), world.now, world.wall)
            self.facts = None


class World:
    """Source, destination, a clock, and the incarnations that write, the last one for good."""

    def __init__(self, rng: random.Random, ages: str) -> None:
        self.rng = rng
        self.now = 1000.0
        self.source = Source.of(rng, ages)
        self.destination = Destination()
        self.writers: list[Writer] = []

    @property
    def wall(self) -> int:
        return EPOCH_MS + int(self.now * 1000)

    def succeed(self, name: str) -> None:
        """Put a new incarnation in charge; those before it have ten seconds left at most."""
        for writer in self.writers:
            writer.deadline = min(writer.deadline, self.now + SETTLE)
        quiet_until = self.now + SETTLE + THROUGH if self.writers else 0.0
        self.writers.append(Writer(name, self, quiet_until=quiet_until, deadline=float("inf")))

    def step(self) -> None:
        rng = self.rng
        writer = rng.choice(self.writers)
        if self.now >= writer.deadline + THROUGH:
            self.writers.remove(writer)
            return
        if self.now >= writer.deadline:
            writer.requests.clear()  # it hangs up at its deadline
        chances = {"send": 4, "fetch": 4, "arrive": 6, "answer": 6, "look": 4, "lose": 0.2, "drift": 1}
        getattr(writer, rng.choices(list(chances), list(chances.values()))[0])()
        if rng.random() < 0.2:
            self.destination.forget(self.wall)
        self.now += rng.choice([0, 0, 0.01, 0.1, 0.5])

    def story(self) -> str:
        return "\n".join(line for writer in self.writers for line in (f"-- {writer.name}", *writer.copy.story))


def run(seed: int, ages: str, successions: int) -> World:
    rng = random.Random(f"{seed} {ages} {successions}")
    world = World(rng, ages)
    world.succeed("first")
    left = successions
    for _ in range(30_000):
        world.step()
        assert world.destination.wrong is None, f"{world.destination.wrong}\n{world.story()}"
        if left and rng.random() < 0.004:
            left -= 1
            world.succeed(f"successor {successions - left}")
        if world.destination.end == world.source.end and not left:
            break
    return world


@pytest.mark.parametrize("ages", ["young", "old", "mixed"])
def test_one_engine_alone_copies_everything_whatever_is_lost(ages: str) -> None:
    for seed in range(60):
        world = run(seed, ages, successions=0)
        assert world.destination.end == world.source.end, world.story()
        assert world.writers[-1].copy.failure is None


@pytest.mark.parametrize("ages", ["young", "old", "mixed"])
def test_a_predecessor_that_writes_on_shifts_nothing(ages: str) -> None:
    for seed in range(60):
        world = run(seed, ages, successions=3)
        assert world.destination.end == world.source.end, world.story()
        assert world.writers[-1].copy.failure is None
