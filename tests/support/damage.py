"""Copies of logs with one error, as a faulty mirror would leave them: every other record is right.

A damage says what a copy shows instead of its original, and the first offset at which they differ. Both cleaners of a
compacted topic work independently: there only a missing last record of a key, with a value, is sure to be noticed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.fetch import AbortedTransaction
from kmirror.engine.compare.difference import DifferenceKind
from tests.support.log_batches import ABORT, LogBatch, VisibleRecord
from tests.support.logs import BuiltLog


class Damaged(NamedTuple):
    """What the copy shows, and the first difference; `tail` is how many more offsets it has than the source."""

    records: list[Record]
    offset: int
    kind: DifferenceKind
    tail: int = 0


@dataclass(frozen=True)
class Original:
    """What is known of a built log: its records, and what consumers are not shown of it."""

    log: BuiltLog

    @cached_property
    def records(self) -> list[Record]:
        """What it shows."""
        return plain(self.log.expected)

    @cached_property
    def end(self) -> int:
        """Up to where it is copied."""
        return self.log.last_stable_offset

    @property
    def is_compacted(self) -> bool:
        """True when cleaners work on it."""
        return "compact" in self.log.settings["cleanup.policy"]

    @cached_property
    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions, as brokers list them."""
        ends = {batch.transaction: batch.producer_id for batch in self.log.batches if batch.marker == ABORT}
        firsts: dict[int | None, int] = {}
        for batch in self.log.batches:
            firsts.setdefault(batch.transaction, batch.base_offset)
        return tuple(AbortedTransaction(ends[name], firsts[name]) for name in ends)

    @cached_property
    def hidden(self) -> list[Record]:
        """The records of aborted transactions."""
        aborted = {batch.transaction for batch in self.log.batches if batch.marker == ABORT}

        def is_hidden(batch: LogBatch) -> bool:
            return batch.marker is None and batch.transaction in aborted

        found = plain(record for batch in self.log.batches if is_hidden(batch) for record in batch.visible)
        return [one for one in found if self.log.log_start_offset <= one.offset < self.end]

    @cached_property
    def last_of_keys(self) -> dict[bytes | None, int]:
        """The offset of each key's last record."""
        return {one.key: one.offset for one in self.records}

    def is_needed(self, one: Record) -> bool:
        """Return whether the record must not be missing."""
        return not self.is_compacted or (one.value is not None and self.last_of_keys.get(one.key, -1) <= one.offset)

    @cached_property
    def needed(self) -> list[Record]:
        """The records that must not be missing."""
        return [one for one in self.records if self.is_needed(one)]


def plain(records: Iterable[VisibleRecord]) -> list[Record]:
    """Return records as kmirror reads them."""
    return [Record(*one) for one in records]


def _kinds_of(batch: LogBatch, one: Original) -> Iterator[str]:
    """Yield the batches of a log with their kinds."""
    yield "any batch"
    if batch.magic < 2:
        yield f"format {batch.magic}"
        if batch.codec != "none":
            yield "a wrapper"
    if batch.append_time is not None:
        yield "LogAppendTime"
    if batch.delete_horizon_ms is not None:
        yield "a delete horizon"
    if len(batch.records) < batch.next_offset - batch.base_offset:
        yield "a batch with holes"
    if batch.transaction is not None:
        aborted = {other.transaction for other in one.log.batches if other.marker == ABORT}
        yield "an aborted transaction" if batch.transaction in aborted else "a committed transaction"
    if one.log.log_start_offset > 0 and batch.base_offset <= one.log.log_start_offset:
        yield "a late start"


def by_kind(one: Original, candidates: Iterable[Record]) -> dict[str, list[Record]]:
    """Sort records by the kinds of batches that they are in."""
    found: dict[str, list[Record]] = defaultdict(list)
    for record in candidates:
        for batch in one.log.batches:
            if batch.base_offset <= record.offset < batch.next_offset:
                for kind in _kinds_of(batch, one):
                    found[kind].append(record)
    return found


class Damage(NamedTuple):
    """A way to be wrong: the records it can happen to, and what it makes of all records."""

    candidates: Callable[[Original], list[Record]]
    do: Callable[[Original, Record], Damaged]


def with_change(original: Original, one: Record, **changes: object) -> list[Record]:
    """Return all records, with this one changed."""
    other = replace(one, **changes)  # type: ignore[arg-type]
    return sorted((other if each is one else each for each in original.records), key=_offset)


def longer(original: Original) -> Damaged:
    """Fill one offset too many at the end."""
    return Damaged(original.records, original.end, DifferenceKind.EXTRA_TAIL, 1)


def _lose(original: Original, one: Record) -> Damaged:
    return Damaged([each for each in original.records if each is not one], one.offset, DifferenceKind.MISSING)


def _inside_runs(original: Original) -> list[Record]:
    triples = zip(original.records, original.records[1:], original.records[2:], strict=False)
    return [
        one
        for before, one, after in triples
        if before.offset + 1 == one.offset == after.offset - 1 and original.is_needed(one)
    ]


def _mistime(original: Original, one: Record) -> Damaged:
    return Damaged(with_change(original, one, timestamp=one.timestamp + 1), one.offset, DifferenceKind.CONTENT)


def _lose_header(original: Original, one: Record) -> Damaged:
    return Damaged(with_change(original, one, headers=one.headers[:-1]), one.offset, DifferenceKind.CONTENT)


def _take_empty_for_null(original: Original, one: Record) -> Damaged:
    return Damaged(with_change(original, one, value=None), one.offset, DifferenceKind.CONTENT)


def _before_holes(original: Original) -> list[Record]:
    taken = {one.offset for one in original.records}
    return [one for one in original.needed if one.offset + 1 not in taken and one.offset + 1 < original.end]


def _move_on(original: Original, one: Record) -> Damaged:
    return Damaged(with_change(original, one, offset=one.offset + 1), one.offset, DifferenceKind.MISSING)


def _behind_holes(original: Original) -> list[Record]:
    taken = {one.offset for one in original.records}
    return [
        one for one in original.needed if one.offset - 1 not in taken and one.offset > original.log.log_start_offset
    ]


def _move_back(original: Original, one: Record) -> Damaged:
    return Damaged(with_change(original, one, offset=one.offset - 1), one.offset - 1, DifferenceKind.EXTRA)


def _move_all_on(original: Original, first: Record) -> Damaged:
    records = [replace(one, offset=one.offset + (one.offset >= first.offset)) for one in original.records]
    return Damaged(records, first.offset, DifferenceKind.MISSING, 1)


def _show(original: Original, one: Record) -> Damaged:
    return Damaged(sorted([*original.records, one], key=_offset), one.offset, DifferenceKind.EXTRA)


def _offset(one: Record) -> int:
    return one.offset


DAMAGES = {
    "a record is lost": Damage(lambda original: original.needed, _lose),
    "a record is lost inside a run": Damage(_inside_runs, _lose),
    "a timestamp is a millisecond off": Damage(lambda original: original.records, _mistime),
    "a header is lost": Damage(lambda original: [one for one in original.records if one.headers], _lose_header),
    "an empty value has become null": Damage(
        lambda original: [one for one in original.records if one.value == b""], _take_empty_for_null
    ),
    "a record is in the hole behind it": Damage(_before_holes, _move_on),
    "a record is in the hole before it": Damage(_behind_holes, _move_back),
    "all that follows is one offset further on": Damage(lambda original: original.needed, _move_all_on),
    "a record of an aborted transaction is shown": Damage(
        lambda original: [one for one in original.hidden if original.is_needed(one)], _show
    ),
}
