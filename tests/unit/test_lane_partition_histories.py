"""Whatever happens on the way, the destination is a prefix of the source: random histories against a model of brokers.

The model knows what a broker does with sequence numbers and markers (KIP-98), and plays against the copy everything
that was seen to go wrong: it forgets producer ids whose last record is old, loses connections before or after an
append, lets requests of a lost connection arrive seconds later, and lets a predecessor write on until its time is over.
It replaces no broker in any other test; what real ones do is tested against real ones.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import accumulate

import pytest

from kmirror.cluster.protocol.batch import SEQUENCE_MASK, batch_headers
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchKey
from kmirror.cluster.protocol.fill_plan import ReadLeader, WriteMarkers
from kmirror.cluster.protocol.produce import AppendLimits, ProducerState
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.engine.histories.judge import Facts, TailMatch, Trouble, judge
from kmirror.engine.lane.partition.intake import Frame, GuardedBatch
from kmirror.engine.lane.partition.partition_copy import MAX_IN_FLIGHT, PartitionCopy
from kmirror.engine.lane.partition.partition_fills import (
    fill_answered,
    log_end_seen,
    next_fill_step,
)
from kmirror.engine.lane.partition.states import Status
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment
from tests.support.partition_shell import sequence_of

ID = b"\x01" * 16
ASSIGNMENT = Assignment(
    topic="mirrored",
    partition=0,
    source_topic="orders",
    source_topic_id=format_topic_id(ID),
    destination_topic_id=format_topic_id(ID),
    producer_id=(1 << 62) + 5,
)
EPOCH_MS = 1_700_000_000_000
EXPIRATION_MS = 600_000
OLD_MS = 86_400_000
SETTLE = 10.0
#: A predecessor stops sending at its deadline; what it sent by then is through, or gone, this much later.
THROUGH = 1.0
BATCHES = 60
#: What may happen next, and how likely it is.
_CHANCES = {
    "send": 4,
    "fill": 6,
    "fetch": 4,
    "arrive": 6,
    "answer": 6,
    "look": 4,
    "lose": 0.2,
    "lose_source": 0.2,
    "drift": 1,
}
_DEEDS, _CUMULATED = list(_CHANCES), list(accumulate(_CHANCES.values()))


def counted(batch: bytes) -> int:
    """Read how many offsets a batch takes."""
    header = next(batch_headers(memoryview(batch)))
    return header.next_offset - header.base_offset


@dataclass
class Source:
    """A log of small batches; with `holes`, offsets are missing between them."""

    batches: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    end: int = 0
    missing: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, rng: random.Random, ages: str, *, holes: bool) -> Source:
        made = cls()
        for _ in range(BATCHES):
            if holes and rng.random() < 0.4:
                hole = rng.choice([1, 1, 2, 3, 7])
                made.missing.update(range(made.end, made.end + hole))
                made.end += hole
            old = {"young": False, "old": True, "mixed": rng.random() < 0.3}[ages]
            timestamp = EPOCH_MS + 2_000_000 - (OLD_MS if old else 0)
            count = rng.randrange(1, 4)
            records = [Record(made.end + i, timestamp, None, b"v") for i in range(count)]
            made.batches.append(bytes(make_batch(records, leader_epoch=1)))
            made.starts.append(made.end)
            made.end += count
        return made

    def compact(self, offset: int) -> None:
        """Take the batch away that begins there, if one does and it is not the last, as a cleaner does."""
        if offset not in self.starts[:-1]:
            return
        index = self.starts.index(offset)
        self.missing.update(range(self.starts[index], self.starts[index] + counted(self.batches[index])))
        del self.batches[index], self.starts[index]

    def read(self, offset: int, batches: int) -> bytes:
        if offset == self.end:
            return b""
        first = max(0, bisect_right(self.starts, offset) - 1)
        if self.starts[first] + counted(self.batches[first]) <= offset:
            first += 1
        return b"".join(self.batches[first : first + batches])


@dataclass
class Destination:
    """A partition's leader: its log, and the state of our producer id."""

    missing: set[int]
    end: int = 0
    wrong: str | None = None
    #: −1 if it knows only markers of ours, None if it knows nothing.
    last_sequence: int | None = None
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))

    def forget(self, wall: int) -> None:
        if self.last_sequence is not None and self.last_timestamp + EXPIRATION_MS <= wall:
            self.last_sequence, self.coordinator_epoch = None, -1
            self.recent.clear()

    def append(self, batch: GuardedBatch, sequence: int, who: str) -> tuple[int, int]:
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

    def mark(self, coordinator_epoch: int, wall: int, who: str) -> int:
        """Write one marker; return an error code."""
        if coordinator_epoch < self.coordinator_epoch:
            return Code.TRANSACTION_COORDINATOR_FENCED
        if self.end not in self.missing:
            self.wrong = f"{who} filled offset {self.end}, at which the source has a record"
        self.end += 1
        self.coordinator_epoch, self.last_timestamp = coordinator_epoch, wall
        self.last_sequence = -1 if self.last_sequence is None else self.last_sequence
        return 0

    @property
    def producer(self) -> ProducerState | None:
        if self.last_sequence is None:
            return None
        epoch = self.coordinator_epoch
        return ProducerState(ASSIGNMENT.producer_id, 0, self.last_sequence, self.last_timestamp, epoch, None)


@dataclass
class Sent:
    """A request in flight; `dies_at` is when a request of a lost connection can no longer arrive."""

    batch: GuardedBatch
    sequence: int
    dies_at: float | None = None


@dataclass
class Asked:
    """A request for markers or the log end in flight, and the markers still to be written."""

    step: WriteMarkers | ReadLeader
    left: int
    dies_at: float | None = None


class Writer:
    """One incarnation of a lane's partition, with its connection and its inspections."""

    def __init__(self, name: str, world: World, *, quiet_until: float, deadline: float) -> None:
        self.name = name
        self.world = world
        self.deadline = deadline
        # what one puts together another may send piece by piece
        assignment = replace(ASSIGNMENT, merges_batches=world.rng.random() < 0.5)
        self.copy = PartitionCopy(assignment, quiet_until=quiet_until, settle=SETTLE)
        self.requests: deque[Sent] = deque()
        self.answers: deque[tuple[int, int]] = deque()
        self.adrift: list[Sent] = []
        self.asked: Asked | None = None
        self.reported: tuple[int, int] | None = None
        self.markers_adrift: list[Asked] = []
        self.facts: Facts | None = None
        self.copy.begin_inspection(world.now)

    def send(self) -> None:
        world, copy = self.world, self.copy
        while world.now < self.deadline and copy.may_send(world.wall):
            assert copy.status is Status.COPYING
            batch = copy.take()
            assert len(copy.in_flight) <= MAX_IN_FLIGHT
            self.requests.append(Sent(batch, sequence_of(batch)))

    def fill(self) -> None:
        """WriteMarkers for markers or look, have the request arrive, or take its answer: one of these at a time."""
        world, copy = self.world, self.copy
        if self.reported is not None and self.asked is not None:
            step, (code, end), self.asked, self.reported = self.asked.step, self.reported, None, None
            if isinstance(step, WriteMarkers):
                fill_answered(copy, code, world.now, world.wall)
            else:
                log_end_seen(copy, 0, end, world.now)
        elif self.asked is not None:
            code = self.mark(self.asked, self.asked.left)
            self.reported = code, world.destination.end
        elif world.now < self.deadline and (wanted := next_fill_step(copy)):
            copy.fill.sent()
            self.asked = Asked(wanted, wanted.count if isinstance(wanted, WriteMarkers) else 0)

    def mark(self, asked: Asked, count: int) -> int:
        """Write some of the markers asked for; a success hides the refusals before it."""
        world, code = self.world, 0
        for _ in range(count):
            asked.left -= 1
            refused = world.rng.random() < 0.01
            assert isinstance(asked.step, WriteMarkers)
            epoch = asked.step.coordinator_epoch
            code = Code.NOT_ENOUGH_REPLICAS if refused else world.destination.mark(epoch, world.wall, self.name)
        return code

    def fetch(self) -> None:
        copy = self.copy
        if not copy.wants_records:
            return
        frame = Frame(
            memoryview(bytearray(self.world.source.read(copy.intake.next_offset, self.world.rng.randrange(1, 9))))
        )
        end = self.world.source.end
        key = FetchKey(ID, 0, "")
        copy.fetched(FetchedPartition(key, 0, end, end, 0, (), frame.view, None), frame, self.world.now)
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

    def lose_source(self) -> None:
        self.copy.interrupted(Trouble(Reason.SOURCE_UNREACHABLE, "lost"), self.world.now)

    def drift(self) -> None:
        """Let a request of a lost connection arrive after all."""
        self.adrift = [sent for sent in self.adrift if (sent.dies_at or 0) > self.world.now]
        if self.adrift:
            sent = self.adrift.pop(0)
            self.world.destination.append(sent.batch, sent.sequence, f"{self.name}, adrift,")
        self.markers_adrift = [a for a in self.markers_adrift if a.left and (a.dies_at or 0) > self.world.now]
        if self.markers_adrift:
            self.mark(self.markers_adrift[0], 1)

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
        if self.asked and self.reported is None and world.rng.random() < 0.7:
            self.mark(self.asked, world.rng.randrange(self.asked.left + 1))
            self.asked.dies_at = last
            self.markers_adrift.append(self.asked)
        self.asked = self.reported = None
        self.copy.outcome_unknown("lost", world.now)

    def look(self) -> None:
        """Begin an inspection, read the facts, or receive them: one of these at a time."""
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
                tail=TailMatch.SAME if world.destination.end else TailMatch.NOTHING,
                destination_limits=AppendLimits(EXPIRATION_MS),
            )
        elif copy.status is Status.INSPECTING and self.facts is not None:
            copy.inspected(self.facts, judge(ASSIGNMENT, None, self.facts), world.now, world.wall)
            self.facts = None


class World:
    """Source, destination, a clock, and the incarnations that write, the last one for good."""

    def __init__(self, rng: random.Random, ages: str, *, holes: bool) -> None:
        self.rng = rng
        self.now = 1000.0
        self.source = Source.of(rng, ages, holes=holes)
        self.destination = Destination(self.source.missing)
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
            writer.asked = writer.reported = None
        getattr(writer, rng.choices(_DEEDS, cum_weights=_CUMULATED)[0])()
        if rng.random() < 0.2:
            self.destination.forget(self.wall)
        if self.source.missing and rng.random() < 0.02 and len(self.source.batches) > BATCHES // 2:
            self.source.compact(rng.choice([self.destination.end, rng.choice(self.source.starts)]))
        self.now += rng.choice([0, 0, 0.01, 0.1, 0.5])

    def story(self) -> str:
        return "\n".join(line for writer in self.writers for line in (f"-- {writer.name}", *writer.copy.history))


def run(seed: int, ages: str, successions: int, *, holes: bool) -> World:
    rng = random.Random(f"{seed} {ages} {successions}")
    world = World(rng, ages, holes=holes)
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


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
@pytest.mark.parametrize("ages", ["young", "old", "mixed"])
def test_one_engine_alone_copies_everything_whatever_is_lost(ages: str, holes: bool, seeds: range) -> None:
    for seed in seeds:
        world = run(seed, ages, successions=0, holes=holes)
        assert world.destination.end == world.source.end, world.story()
        assert world.writers[-1].copy.retry.failure is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 60), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("holes", [False, True], ids=["dense", "holes"])
@pytest.mark.parametrize("ages", ["young", "old", "mixed"])
def test_a_predecessor_that_writes_on_shifts_nothing(ages: str, holes: bool, seeds: range) -> None:
    for seed in seeds:
        world = run(seed, ages, successions=3, holes=holes)
        assert world.destination.end == world.source.end, world.story()
        assert world.writers[-1].copy.retry.failure is None
