"""Cut logs into ranges of offsets, and put ranges together to what one task does. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

#: A task should run for about a second at least: each costs Spark some 60 ms, and two connections.
_LARGEST_TASK_BYTES = 256 << 20
_SMALLEST_TASK_BYTES = 8 << 20
_TASKS_PER_SLOT = 4
_MOST_RANGES_PER_TASK = 100
#: What a record is thought to take where the broker does not tell how large a partition is.
USUAL_RECORD_BYTES = 1000


def bytes_per_offset(size_in_bytes: int | None, offsets: int) -> float:
    """Return what an offset of a log takes on average, at least one byte; a guess where the size is None."""
    return USUAL_RECORD_BYTES if size_in_bytes is None else max(1.0, size_in_bytes / max(1, offsets))


def task_bytes(total_bytes: float, slots: int) -> float:
    """Return how much one task should do, so that there is enough for all slots."""
    return min(_LARGEST_TASK_BYTES, max(_SMALLEST_TASK_BYTES, total_bytes / (max(1, slots) * _TASKS_PER_SLOT)))


def cut_offsets(start: int, end: int, count: int) -> list[tuple[int, int]]:
    """Cut offsets into at most so many ranges of about the same length; there is always one."""
    offsets = end - start
    count = min(max(1, count), max(1, offsets))
    return list(pairwise(start + offsets * number // count for number in range(count + 1)))


def put_together(
    sized: Iterable[tuple[T, float]], most: float, most_ranges: int = _MOST_RANGES_PER_TASK
) -> Iterator[tuple[T, ...]]:
    """Yield what one task does each, in order: ranges of `most` together, or a single one that is larger."""
    ranges: list[T] = []
    filled = 0.0
    for one, size in sized:
        if ranges and (filled + size > most or len(ranges) == most_ranges):
            yield tuple(ranges)
            ranges, filled = [], 0.0
        ranges.append(one)
        filled += size
    if ranges:
        yield tuple(ranges)
