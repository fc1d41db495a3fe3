"""Random one-partition logs as brokers may hold them, by a seed: everything that can happen to a log, mixed.

A log is first written as producers write it, then its beginning is compacted as the cleaner does (KIP-98, KIP-534),
then its start is moved, then it is cut into segments. What a read_committed consumer must see is known throughout. Uses
nothing of kmirror, because it judges kmirror.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tests.support.log_batches import ABORT, COMMIT, NO_TIMESTAMP, LogBatch, VisibleRecord, control_record, encode
from tests.support.log_cleaning import cleaned
from tests.support.log_features import features_of
from tests.support.log_plan import LogPlan

#: The earliest record's time, unless it is from far away.
BEGINNING = 1_600_000_000_000
FAR_PAST = (0, 1, 86_400_000)
FAR_FUTURE = (4_102_444_800_000, 253_402_300_799_999, 1 << 53)
#: Ten logs that hold every feature between them, for `make test`; and those of long runs.
QUICK_SEEDS = range(24, 34)
LONG_SEEDS = range(200)
_SEQUENCES = 1 << 31
#: Longer than any log is old: the broker's cleaner must not change built logs.
_NEVER_CLEAN = str(9 * 10**15)
_PLAIN_CODECS = ("none", "gzip", "snappy", "snappy-raw", "lz4", "zstd")
_OLD_CODECS = ("none", "gzip", "snappy", "lz4")


@dataclass(frozen=True)
class BuiltLog:
    """A log: its segments by base offset, where it starts and ends, and what applications must see of it.

    `settings` are the topic's; `features` name what the log holds from its start on.
    """

    seed: int
    batches: tuple[LogBatch, ...]
    segments: Mapping[int, bytes]
    settings: Mapping[str, str]
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    expected: tuple[VisibleRecord, ...]

    @cached_property
    def features(self) -> frozenset[str]:
        """What the log holds, by the names of `log_features.FEATURES`."""
        return features_of(
            self.batches,
            self.log_start_offset,
            self.log_end_offset,
            self.last_stable_offset,
            len(self.segments),
            int(self.settings["max.message.bytes"]),
        )

    @property
    def has_old_format(self) -> bool:
        """True when some of it is in message format 0 or 1."""
        return not self.features.isdisjoint({"format 0", "format 1"})


def build_log(seed: int) -> BuiltLog:
    """Build the log of this seed; the same seed makes the same bytes."""
    return _Builder(seed).build()


@dataclass
class _Producer:
    """An idempotent producer; a transactional one raises its epoch with every marker when `bumps` (KIP-890)."""

    producer_id: int
    epoch: int
    sequence: int
    bumps: bool
    coordinator_epoch: int
    #: The transaction it has open.
    transaction: int | None = None

    def take(self, count: int) -> int:
        """Take this many sequence numbers and return the first."""
        first = self.sequence
        self.sequence = (first + count) % _SEQUENCES
        return first

    def bump(self) -> None:
        """Begin a new epoch."""
        self.epoch, self.sequence = self.epoch + 1, 0


@dataclass
class _Builder:
    seed: int
    batches: list[LogBatch] = field(default_factory=list)
    aborted: set[int] = field(default_factory=set)
    transactions: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(f"log {self.seed}")
        self.plan = LogPlan.of(self.chance)
        self.clock = BEGINNING + self.chance.randrange(10**9)
        self.offset = self.plan.base_offset
        self.large_left = self.plan.large_records

    def build(self) -> BuiltLog:
        """Write, compact, trim, cut."""
        self._write()
        log_end_offset = self.offset
        last_stable_offset = self._last_stable_offset()
        bases = self._segment_bases()
        batches, is_ended_empty = self.batches, False
        if self.plan.is_compacted:
            clean_end = self._clean_end(bases, last_stable_offset)
            batches = cleaned(batches, clean_end, self.aborted, self.plan.tombstones, self.chance)
            is_ended_empty = clean_end == log_end_offset
        log_start_offset = self._log_start(batches, log_end_offset, last_stable_offset)
        segments = self._segments(batches, bases, log_start_offset, log_end_offset, is_ended_empty)
        log_start_offset = max(log_start_offset, min(segments))
        kept = tuple(batch for batch in batches if batch.next_offset > min(segments))
        return BuiltLog(
            seed=self.seed,
            batches=kept,
            segments=segments,
            settings=self._settings(kept, log_start_offset),
            log_start_offset=log_start_offset,
            log_end_offset=log_end_offset,
            last_stable_offset=last_stable_offset,
            expected=tuple(
                record
                for batch in kept
                if batch.marker is None and batch.transaction not in self.aborted
                for record in batch.visible
                if log_start_offset <= record.offset < last_stable_offset
            ),
        )

    # -- as producers write it -----------------------------------------------------------------------------------------

    def _write(self) -> None:
        steps, chance = self.plan.steps, self.chance
        stamped_from = {"all": 0, "begins": steps // 2, "ends": 0, "never": steps}[self.plan.append_time]
        stamped_to = steps // 2 if self.plan.append_time == "ends" else steps
        formats = [magic for magic in self.plan.old_formats for _ in range(chance.randrange(3, 12))]
        plain = _Producer(-1, -1, -1, False, 0)
        idempotent = [self._producer()] if self.plan.has_idempotent else []
        transactional = [self._producer() for _ in range(self.plan.transactional_producers)]
        for step in range(steps):
            is_stamped = stamped_from <= step < stamped_to
            if step < len(formats):
                self._append(plain, formats[step], is_stamped and formats[step] == 1)
                continue
            kind = chance.choice(["plain", *["idempotent"] * len(idempotent), *["transactional"] * len(transactional)])
            if kind == "plain":
                self._append(plain, 2, is_stamped)
            elif kind == "idempotent":
                if chance.random() < 0.1:
                    idempotent[0].bump()
                self._append(idempotent[0], 2, is_stamped)
            else:
                self._step_transaction(chance.choice(transactional), is_stamped)
        open_ones = [producer for producer in transactional if producer.transaction is not None]
        chance.shuffle(open_ones)
        for producer in open_ones[1:] if self.plan.stays_open and not self.plan.is_emptied else open_ones:
            self._end_transaction(producer, stamped_to == steps and stamped_from < steps)
        if self.plan.ends_in_a_hole:
            self._append_tombstones()

    def _producer(self) -> _Producer:
        chance = self.chance
        sequence = chance.choice([0, 0, chance.randrange(_SEQUENCES), _SEQUENCES - chance.randrange(1, 60)])
        return _Producer(
            chance.randrange(1 << 20), chance.randrange(5), sequence, chance.random() < 0.5, chance.randrange(3)
        )

    def _step_transaction(self, producer: _Producer, is_stamped: bool) -> None:
        if producer.transaction is None:
            producer.transaction = self.transactions
            self.transactions += 1
        if self.chance.random() < 0.6:
            self._append(producer, 2, is_stamped)
        else:  # now and then without having written to this partition
            self._end_transaction(producer, is_stamped)

    def _end_transaction(self, producer: _Producer, is_stamped: bool) -> None:
        assert producer.transaction is not None
        marker = ABORT if self.chance.random() < 0.4 else COMMIT
        if marker == ABORT:
            self.aborted.add(producer.transaction)
        if self.chance.random() < 0.05:
            producer.coordinator_epoch += 1
        if producer.bumps:
            producer.bump()
        timestamp = self._tick()
        self.batches.append(
            LogBatch(
                self.offset,
                self.offset,
                (control_record(self.offset, timestamp, marker, producer.coordinator_epoch),),
                timestamp,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                transaction=producer.transaction,
                marker=marker,
                append_time=timestamp if is_stamped else None,
            )
        )
        self.offset += 1
        producer.transaction = None

    def _append(self, producer: _Producer, magic: int, is_stamped: bool) -> None:
        count = self.chance.choice([1, 1, 2, 3, self.chance.randrange(4, 40)])
        records = tuple(self._record(self.offset + index, magic) for index in range(count))
        self._append_records(producer, records, magic, is_stamped)

    def _append_tombstones(self) -> None:
        """Append what will be cleaned away to the last record."""
        count = self.chance.randrange(1, 30)
        records = tuple(
            VisibleRecord(self.offset + index, self._tick(), self._key() or b"key", None) for index in range(count)
        )
        self._append_records(_Producer(-1, -1, -1, False, 0), records, 2, False)

    def _append_records(
        self, producer: _Producer, records: tuple[VisibleRecord, ...], magic: int, is_stamped: bool
    ) -> None:
        has_id = producer.producer_id >= 0
        self.batches.append(
            LogBatch(
                self.offset,
                self.offset + len(records) - 1,
                records,
                max(record.timestamp for record in records),
                magic=magic,
                codec=self.chance.choice(_OLD_CODECS if magic < 2 else _PLAIN_CODECS),
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                base_sequence=producer.take(len(records)) if has_id else -1,
                transaction=producer.transaction,
                append_time=self._tick() if is_stamped else None,
            )
        )
        self.offset += len(records)

    def _tick(self) -> int:
        self.clock += self.chance.choice([0, 1, self.chance.randrange(50), self.chance.randrange(60_000)])
        return self.clock

    def _record(self, offset: int, magic: int) -> VisibleRecord:
        chance = self.chance
        timestamp = self._tick() - chance.choice([0, 0, 0, chance.randrange(100_000)])
        if self.plan.has_far_times and chance.random() < 0.05:
            timestamp = chance.choice([*FAR_PAST, *FAR_FUTURE])
            if magic == 1:  # librdkafka takes 0 for no timestamp there
                timestamp = max(timestamp, 1)
        headers: list[tuple[str, bytes | None]] = []
        if self.plan.has_headers and magic == 2:
            headers = chance.choice([[], [("h", b"1"), ("h", None)], [("ключ", chance.randbytes(9)), ("", b"")]])
        return VisibleRecord(
            offset, NO_TIMESTAMP if magic == 0 else timestamp, self._key(), self._value(), tuple(headers)
        )

    def _key(self) -> bytes | None:
        # the cleaner drops records without keys, and brokers accept none for a compacted topic
        if self.plan.has_null_keys and not self.plan.is_compacted and self.chance.random() < 0.2:
            return None
        number = self.chance.randrange(self.plan.keys)
        return b"" if number == 0 else b"key-%d" % number

    def _value(self) -> bytes | None:
        chance = self.chance
        if self.large_left and chance.random() < 0.05:
            self.large_left -= 1
            return chance.choice([chance.randbytes(300_000), b"large " * 150_000])
        return chance.choice(
            [b"text of %d " % self.offset * chance.randrange(1, 20), chance.randbytes(chance.randrange(300)), b"", None]
        )

    # -- where it is compacted, starts and is cut ----------------------------------------------------------------------

    def _last_stable_offset(self) -> int:
        ended = {batch.transaction for batch in self.batches if batch.marker}
        firsts = (batch.base_offset for batch in self.batches if batch.transaction not in ended | {None})
        return min(firsts, default=self.offset)

    def _segment_bases(self) -> list[int]:
        """Return the base offsets of the segments as they were rolled."""
        inner = [batch.base_offset for batch in self.batches[1:]]
        wanted = max(self.plan.segments, 2 if self.plan.is_compacted else 1)
        return [self.plan.base_offset, *sorted(self.chance.sample(inner, min(wanted - 1, len(inner))))]

    def _clean_end(self, bases: Sequence[int], last_stable_offset: int) -> int:
        """Return how far the cleaner has come: whole segments, nothing undecided, never the active segment."""
        if self.plan.ends_in_a_hole and last_stable_offset == self.offset:
            return self.offset  # an empty segment was rolled behind
        return self.chance.choice([base for base in bases[1:] if base <= last_stable_offset][-3:] or [bases[0]])

    def _log_start(self, batches: Sequence[LogBatch], log_end_offset: int, last_stable_offset: int) -> int:
        if self.plan.is_emptied:
            return log_end_offset
        starts = [batch for batch in batches if batch.next_offset <= last_stable_offset]
        if not self.plan.is_trimmed or not starts:
            return self.plan.base_offset
        batch = self.chance.choice(starts)
        return self.chance.randint(batch.base_offset, batch.last_offset)

    def _segments(
        self,
        batches: Sequence[LogBatch],
        bases: Sequence[int],
        log_start_offset: int,
        log_end_offset: int,
        is_ended_empty: bool,
    ) -> dict[int, bytes]:
        """Cut the log; a segment of which the cleaner left nothing is merged with the next. Old ones may be deleted."""
        segments: dict[int, bytes] = {}
        base: int | None = None
        for index, first in enumerate(bases):
            end = bases[index + 1] if index + 1 < len(bases) else log_end_offset
            base = first if base is None else base
            data = b"".join(encode(batch) for batch in batches if first <= batch.base_offset < end)
            if data:
                segments[base] = data
                base = None
        if is_ended_empty or not segments:
            segments[log_end_offset] = b""
        if self.chance.random() < 0.6:  # otherwise the broker has not deleted them yet
            starts = sorted(segments)
            first_kept = starts[max(0, bisect.bisect_right(starts, log_start_offset) - 1)]
            segments = {start: data for start, data in segments.items() if start >= first_kept}
            if log_start_offset == log_end_offset and self.chance.random() < 0.7:
                segments = {log_end_offset: b""}
        return segments

    def _settings(self, batches: Sequence[LogBatch], log_start_offset: int) -> dict[str, str]:
        largest = max((len(encode(batch)) for batch in batches if batch.next_offset > log_start_offset), default=0)
        policies = ["compact", "compact,delete", "delete"] if self.plan.is_compacted else ["delete"]
        return {
            "cleanup.policy": self.chance.choice(policies),
            "retention.ms": "-1",
            "min.compaction.lag.ms": _NEVER_CLEAN,
            "message.timestamp.type": "LogAppendTime" if self.plan.append_time in {"all", "begins"} else "CreateTime",
            "max.message.bytes": str(max(1000, largest // 2) if self.plan.is_narrowed else max(1 << 20, 2 * largest)),
        }
