"""Reading ahead takes in exactly what a plain reader would, whatever the log holds and however answers come in."""

from __future__ import annotations

import random

import pytest

from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.batch_records import read_records
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_ahead import Range, ReadAhead, covered
from kmirror.engine.lane.partition.counts import Counts
from kmirror.engine.lane.partition.intake import Frame, Gap, Intake
from tests.support.histories import OWN_ID, Log, _Writer, clean

PARTITION = TopicPartition("orders", 0)
REQUEST_BYTES = 600


def intake_at(offset: int = 0) -> Intake:
    made = Intake(PARTITION, OWN_ID, 0, Counts(), merges=False)
    made.restart(offset, None, 0, producer_is_known=True)
    return made


def taken_in(intake: Intake) -> tuple[dict[int, tuple[object, ...]], int]:
    """Return the records in the queue by offset, and where it ends; batches and gaps follow each other."""
    found: dict[int, tuple[object, ...]] = {}
    end = intake.queue[0].base_offset if intake.queue else 0
    for one in intake.queue:
        assert one.base_offset == end, "offsets are missing"
        end = one.next_offset
        if not isinstance(one, Gap):
            (header,) = batch_headers(one.data)
            for record in read_records(one.data, header):
                found[one.base_offset + record.offset] = record.timestamp, record.key, record.value
    return found, end


def shown(log: Log) -> dict[int, tuple[object, ...]]:
    return {offset: (record.timestamp, record.key, record.value) for offset, record in log.shown().items()}


class Broker:
    """Answer fetches from a log, as a leader does, with the bytes it likes."""

    def __init__(self, log: Log, chance: random.Random) -> None:
        self.log, self.chance = log, chance
        self.asked = 0

    def fetch(
        self, offset: int, max_bytes: int, epoch: int | None
    ) -> tuple[memoryview, list[AbortedTransaction]] | None:
        """Return records and aborted transactions; None for an error, or a diverging epoch."""
        self.asked += 1
        if not self.log.start <= offset <= self.log.end:
            return None
        if epoch is not None and self.epoch_end(epoch) < offset:
            return None
        section = self.log.read(offset, max_bytes, self.log.shown_end)
        return memoryview(bytearray(section.data)), list(section.aborted_transactions)

    def epoch_end(self, epoch: int) -> int:
        return min((first for first, later in self.log.epochs if later > epoch), default=self.log.end)


def read_ahead(broker: Broker, intake: Intake, chance: random.Random, *, fork: bool = False) -> bool:
    """Read the whole log ahead; return False if the log was replaced below what was taken in."""
    log = broker.log
    reading, asked = ReadAhead(REQUEST_BYTES), list[tuple[Range, int | None]]()
    first = broker.fetch(intake.next_offset, 300, None)
    assert first is not None
    seen = covered(first[0])
    assert seen is not None
    reading.learn(seen)
    most = chance.choice([1, 3, 8])
    while intake.next_offset < log.shown_end:
        assert broker.asked < 2000, "it does not get on"
        while len(asked) < most and (one := reading.ask(intake.next_offset, log.shown_end)):
            asked.append((one, None if one.is_guess else intake.leader_epoch))
        if not asked:
            # what the usual fetch is for: the rest of an old format, or of a log that ends with a hole
            return plainly(broker, intake)
        one, epoch = asked.pop(chance.randrange(len(asked)))
        if fork and chance.random() < 0.1:
            fork = False
            writer = _Writer(chance, log, "again")
            writer.ended = [(first, last) for _, first, last in log.aborted]
            writer.fork(chance)
            writer.write(40)
            for producer in list(writer.open):
                writer.finish(producer)
            log.visible = None
        if chance.random() < 0.1:
            reading.give_up(one)
            continue
        answer = broker.fetch(one.offset, int(one.size * chance.choice([0.3, 1, 1, 1, 2])), epoch)
        if answer is None or not reading.arrived(one, answer[0], (answer[1], log.shown_end)):
            reading.give_up(one)
            if not one.is_guess:
                reading.clear()
                asked.clear()
                return plainly(broker, intake)
            continue
        while taken := reading.take(intake.next_offset, intake.leader_epoch):
            assert taken.records is not None
            assert isinstance(taken.response, tuple)
            aborted, high_watermark = taken.response
            frame = Frame(memoryview(b""))
            assert (
                intake.take_in(taken.records, aborted, frame, high_watermark=high_watermark, may_overlap=True) is None
            )
            assert intake.next_offset >= taken.until
    assert reading.held_bytes == sum(one.size for one in reading.ranges)
    return broker.fetch(intake.next_offset, 1, intake.leader_epoch) is not None


def plainly(broker: Broker, intake: Intake) -> bool:
    """Fetch the rest one answer after the other; return False at a diverging epoch."""
    while intake.next_offset < broker.log.shown_end:
        answer = broker.fetch(intake.next_offset, 500, intake.leader_epoch)
        if answer is None:
            return False
        begun = intake.next_offset
        frame = Frame(memoryview(b""))
        assert intake.take_in(answer[0], answer[1], frame, high_watermark=broker.log.shown_end) is None
        if intake.next_offset == begun:
            intake.take_in_end_gap(broker.log.shown_end)
    return broker.fetch(intake.next_offset, 1, intake.leader_epoch) is not None


def random_log(chance: random.Random) -> Log:
    log = Log(end=0)
    writer = _Writer(chance, log, "s")
    writer.write(chance.randrange(30, 200))
    for producer in list(writer.open):
        writer.finish(producer)
    if chance.random() < 0.4:
        clean(log, chance)
    if chance.random() < 0.3:
        third = log.end // 3
        log.epochs = [(third, 3), (2 * third, 4)]
        boundaries = [b.base_offset for b in log.batches]
        log.epochs = [(min((b for b in boundaries if b >= first), default=first), epoch) for first, epoch in log.epochs]
    return log


SEEDS = pytest.mark.parametrize(
    "seed", [*range(60), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(60, 300))]
)


@SEEDS
def test_it_takes_in_what_the_log_holds(seed: int) -> None:
    chance = random.Random(seed)
    log = random_log(chance)
    intake = intake_at()
    assert read_ahead(Broker(log, chance), intake, chance)
    found, end = taken_in(intake)
    assert (found, end) == (shown(log), log.shown_end)


@SEEDS
def test_a_log_that_is_replaced_meanwhile_is_never_mixed_with_the_one_before(seed: int) -> None:
    chance = random.Random(seed)
    log = random_log(chance)
    log.epochs = []
    intake = intake_at()
    if read_ahead(Broker(log, chance), intake, chance, fork=True):
        found, end = taken_in(intake)
        assert (found, end) == (shown(log), log.shown_end)
