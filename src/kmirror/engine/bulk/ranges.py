"""Cut logs into offset ranges, and group ranges into tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

#: A task should run for at least a second: each costs Spark some 60 ms, and two connections.
_LARGEST_TASK_BYTES = 256 << 20
_SMALLEST_TASK_BYTES = 8 << 20
_TASKS_PER_SLOT = 4
_MOST_RANGES_PER_TASK = 100
#: Assumed record size where the broker does not report the size of a partition.
USUAL_RECORD_BYTES = 1000


def bytes_per_offset(size_in_bytes: int | None, offsets: int) -> float:
    """Return the average bytes per offset of a log, at least 1; a guess if the size is None."""
    return USUAL_RECORD_BYTES if size_in_bytes is None else max(1.0, size_in_bytes / max(1, offsets))


def task_bytes(total_bytes: float, slots: int) -> float:
    """Return how many bytes one task should process, so that all slots are busy."""
    return min(_LARGEST_TASK_BYTES, max(_SMALLEST_TASK_BYTES, total_bytes / (max(1, slots) * _TASKS_PER_SLOT)))


def cut_offsets(start: int, end: int, count: int) -> list[tuple[int, int]]:
    """Cut offsets into 1 to `count` ranges of about the same length."""
    offsets = end - start
    count = min(max(1, count), max(1, offsets))
    return list(pairwise(start + offsets * number // count for number in range(count + 1)))


def group_by_size(sized: Iterable[tuple[T, float]], most: float) -> Iterator[tuple[T, ...]]:
    """Yield the ranges of each task, in order: up to `most` bytes together, or one larger range alone."""
    ranges: list[T] = []
    filled = 0.0
    for one, size in sized:
        if ranges and (filled + size > most or len(ranges) == _MOST_RANGES_PER_TASK):
            yield tuple(ranges)
            ranges, filled = [], 0.0
        ranges.append(one)
        filled += size
    if ranges:
        yield tuple(ranges)
