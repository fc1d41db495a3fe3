"""The copy of one partition driven by a test that plays its lane, and made batches to feed it with."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

from kmirror.cluster.protocol.batch import batch_headers, crc_of
from kmirror.cluster.protocol.batch_records import Record, make_batch
from kmirror.cluster.protocol.fetch import FetchedPartition, FetchKey
from kmirror.cluster.protocol.produce import AppendLimits, ProducerState
from kmirror.cluster.protocol.wire import format_topic_id
from kmirror.engine.histories.judge import Copy, Facts, Trouble, Verdict
from kmirror.engine.lane.partition.counts import Counts
from kmirror.engine.lane.partition.intake import Frame, GuardedBatch
from kmirror.engine.lane.partition.partition_copy import MAX_IN_FLIGHT, PartitionCopy
from kmirror.engine.lane.partition.states import Status
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment

ID = b"\x01" * 16
KEY = FetchKey(ID, 3, "")
ASSIGNMENT = Assignment(
    topic="mirrored",
    partition=3,
    source_topic="orders",
    source_topic_id=format_topic_id(ID),
    destination_topic_id=format_topic_id(ID),
    producer_id=(1 << 62) + 5,
)
#: The wall clock when the machine's clock shows 0.
EPOCH_MS = 1_700_000_000_000
DAY_MS = 86_400_000
SOON = 1000.0
SETTLE = 10.0


def stored(base: int, count: int = 1, *, timestamp: int = EPOCH_MS, epoch: int = 2, value: bytes = b"v") -> bytearray:
    """Make a batch as the source's log holds it."""
    records = [Record(base + i, timestamp, b"k", value) for i in range(count)]
    return make_batch(records, leader_epoch=epoch)


def changed(batch: bytearray, layout: str, position: int, value: int, *, sound: bool = True) -> bytearray:
    """Set one field of a batch; a sound batch has the checksum that belongs to it."""
    struct.pack_into(layout, batch, position, value)
    if sound:
        struct.pack_into(">I", batch, 17, crc_of(memoryview(batch)))
    return batch


def sequence_of(batch: GuardedBatch) -> int:
    """Read the sequence number that a batch is sent with."""
    return next(batch_headers(batch.data)).base_sequence


def facts(end: int = 0, **others: object) -> Facts:
    usual = Facts(
        source_topic_id=ID,
        destination_topic_id=ID,
        source_leader=(1, 7),
        destination_leader=(2, 4),
        source_log_end=1 << 40,
        last_stable_offset=1 << 40,
        high_watermark=1 << 40,
        destination_log_end=end,
        destination_limits=AppendLimits(DAY_MS),
    )
    return replace(usual, **others)  # type: ignore[arg-type]


def producer_state(end: int, timestamp: int) -> ProducerState:
    return ProducerState(ASSIGNMENT.producer_id, 0, end - 1, timestamp, -1, None)


class Shell:
    """Do with one partition what the lane does, and check the invariants after each event."""

    def __init__(self, assignment: Assignment = ASSIGNMENT, **options: float) -> None:
        self.released: list[Frame] = []
        self.frames: list[Frame] = []
        self.counts = Counts()
        self.active: dict[PartitionCopy, None] = {}
        self.copy = PartitionCopy(
            assignment,
            settle=SETTLE,
            released=self.released.append,
            counts=self.counts,
            activated=lambda copy: self.active.update({copy: None}),
            **options,
        )
        self.now = SOON

    @property
    def wall(self) -> int:
        return EPOCH_MS + int(self.now * 1000)

    @property
    def status(self) -> str:
        return self.copy.status.value

    @property
    def flying(self) -> list[int]:
        """The base offsets in flight."""
        return [batch.base_offset for batch in self.copy.in_flight]

    def inspect(self, seen: Facts, verdict: Verdict | None = None) -> None:
        """Do an inspection; without a verdict, the copy continues where the destination ends."""
        self.copy.begin_inspection(self.now)
        self.check()
        usual = Copy(seen.destination_log_end, 0, seen.filled_offsets(0))
        self.copy.inspected(seen, verdict or usual, self.now, self.wall)
        self.check()

    def fetch(self, *batches: bytes | bytearray, **fields: object) -> None:
        """Hand over one Fetch answer."""
        frame = Frame(memoryview(bytearray(b"".join(batches))), self)
        self.frames.append(frame)
        usual = FetchedPartition(KEY, 0, 1 << 40, 1 << 40, 0, (), frame.view, None)
        self.copy.fetched(replace(usual, **fields), frame, self.now)  # type: ignore[arg-type]
        if self.status == "copying" and self.copy.blocked_by:
            self.copy.advance(self.now)
        if frame.release():
            self.released.append(frame)
        self.check()

    def send(self) -> list[GuardedBatch]:
        """Send all that may be sent now."""
        sent = []
        while self.copy.may_send(self.wall):
            assert self.status == "copying"
            sent.append(self.copy.take())
            self.check()
        self.check()
        return sent

    def answer(self, code: int = 0, base_offset: int | None = None, detail: str | None = None) -> None:
        """Answer the oldest request in flight; without an offset, with the one that was meant."""
        meant = self.copy.in_flight[0].base_offset
        self.copy.answered(code, meant if base_offset is None and not code else base_offset or -1, detail, self.now)
        self.check()

    def lose_destination(self) -> None:
        self.copy.outcome_unknown("the connection is gone", self.now)
        self.check()

    def check(self) -> None:
        copy = self.copy
        if copy.is_at_rest:
            self.active.clear()  # as the lane does; it must return by itself
        is_checked = copy.is_at_rest or copy in self.active or any("revoked" in line for line in copy.history)
        assert is_checked, "it is no longer checked"
        queue, flying = list(copy.queue), list(copy.in_flight)
        assert len(flying) <= MAX_IN_FLIGHT, "too many in flight"
        queued = [item for item in queue if isinstance(item, GuardedBatch)]
        assert copy.intake.queued_bytes == sum(len(batch.data) for batch in queued), "the queue's bytes are miscounted"
        line = flying + queue if copy.status is Status.COPYING else flying
        for one, other in itertools.pairwise(line):
            assert one.next_offset == other.base_offset, "batches do not follow each other"
        if copy.status is Status.COPYING:
            assert not line or line[0].base_offset == copy.progress.acknowledged, (
                "the next batch is not the next one to append"
            )
            assert copy.intake.next_offset == (line[-1].next_offset if line else copy.progress.acknowledged), (
                "fetches skip or repeat"
            )
        else:
            assert not queue, "batches are kept that will not be sent"
            assert not copy.may_send(self.wall)
            assert not copy.wants_records
        if copy.status in {Status.WAITING, Status.INSPECTING}:
            assert not flying, "batches are in flight while nothing waits for them"
        held = {id(batch.frame) for batch in (*queued, *flying)}
        for frame in self.frames:
            assert frame.pending >= 0
            assert self.released.count(frame) == (1 if id(frame) not in held else 0), (
                "a frame is lost or returned twice"
            )

    def end(self) -> None:
        """Release everything; whatever happened, every frame is returned once."""
        self.copy.outcome_unknown("the end", self.now)
        if self.status == "copying":
            self.copy.interrupted(Trouble(Reason.SOURCE_UNREACHABLE, "the end"), self.now)
        assert [frame.pending for frame in self.frames] == [0] * len(self.frames)
        assert len([frame for frame in self.released if frame.owner is self]) == len(self.frames)
