"""Logs whose copy takes a while in one way or another, and what their copies are doing: filling, raising, copying.

They come in helpings, so that a long test has something new to start with after each interruption.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.installed_logs import create_topics, install
from tests.support.log_batches import LogBatch, VisibleRecord, encode
from tests.support.logs import BEGINNING, BuiltLog, build_log
from tests.support.mirrored import Place
from tests.support.real_logs import producer_of, write
from tests.support.visible import Bounds, bounds, bounds_of

#: How many offsets a hole takes at least and at most: a second or a few. Nearer to its end it is called finished.
_HOLES = (80_000, 200_000)
_NEARLY_ALL = 500
#: Where late logs start: 100,000 offsets are one batch of filler.
_LATE_STARTS = (300_000, 1_500_000, 3_000_000)
_ABORTED_RECORDS = (20_000, 50_000)
_RECORDS = 200
_WRITERS = 4
_NEVER_CLEANED = {"retention.ms": "-1", "min.compaction.lag.ms": str(9 * 10**15)}
_PATIENT = {"retention.ms": "-1"}


class Doing(Enum):
    """What the copy of a partition is doing."""

    FILLING = "filling a hole"
    RAISING = "raising a log start"
    COPYING = "copying records"


@dataclass(frozen=True, slots=True)
class Helping:
    """Topics of one partition each, to be mirrored together."""

    #: Random logs that hold everything.
    built: tuple[str, ...]
    #: Topics with a large hole: its first offset and the one after it.
    holes: Mapping[str, tuple[int, int]]
    #: Topics whose log starts late: where.
    late: Mapping[str, int]

    def __or__(self, other: Helping) -> Helping:
        """Return both together."""
        return Helping(self.built + other.built, {**self.holes, **other.holes}, {**self.late, **other.late})

    @property
    def topics(self) -> list[str]:
        """All of them."""
        return [*self.built, *self.holes, *self.late]

    @property
    def watched(self) -> list[str]:
        """Those that take a while."""
        return [*self.holes, *self.late]

    def doing(self, topic: str, found: Bounds) -> Doing | None:
        """Return what a copy is doing at this point; None if nothing that takes a while."""
        if topic in self.late:
            return Doing.RAISING if found.end > 0 and found.start < self.late[topic] else None
        first, after = self.holes[topic]
        return Doing.FILLING if first < found.end < after - _NEARLY_ALL else None


def make_helpings(source: SandboxCluster, chance: random.Random, helpings: int, built: int) -> list[Helping]:
    """Give a source of one broker, which is restarted, this many helpings with this many random logs each."""
    logs: dict[str, BuiltLog] = {}
    made = []
    for _ in range(helpings):
        random_logs = {unique_topic("built"): log for log in _random_logs(chance, built)}
        compacted, aborted, late = (unique_topic(kind) for kind in ("compacted", "aborted", "late"))
        logs |= random_logs
        logs[compacted], hole = _with_hole(chance.randint(*_HOLES))
        logs[late] = _starting_at(chance.choice(_LATE_STARTS) + chance.randrange(1000))
        holes = {compacted: hole, aborted: (_RECORDS, _RECORDS + chance.randint(*_ABORTED_RECORDS))}
        made.append(Helping(tuple(random_logs), holes, {late: logs[late].log_start_offset}))
    install(source, logs)
    aborted_holes = {topic: hole for one in made for topic, hole in one.holes.items() if topic not in logs}
    create_topics(source, dict.fromkeys(aborted_holes, _PATIENT))
    with ThreadPoolExecutor(_WRITERS) as pool:
        for written in [pool.submit(_abort, source, topic, *hole) for topic, hole in aborted_holes.items()]:
            written.result()
    return made


def _random_logs(chance: random.Random, count: int) -> Iterator[BuiltLog]:
    """Build logs that no one may refuse."""
    while count:
        log = build_log(chance.randrange(1 << 32))
        if not log.has_old_format:
            count -= 1
            yield log


def _abort(source: SandboxCluster, topic: str, first: int, after: int) -> None:
    """Write some records, a large transaction that is aborted, and some more records."""
    write(source, topic, first)
    producer = producer_of(source, topic, transactional_id=topic, compression_type="lz4")
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(after - first - 1):  # its marker takes an offset, too
        producer.produce(topic, b"aborted", b"%d" % (number % 100))
    assert producer.flush(60) == 0
    producer.abort_transaction(60)
    write(source, topic, _RECORDS)
    assert bounds_of(source, topic).end == after + _RECORDS


def _with_hole(size: int) -> tuple[BuiltLog, tuple[int, int]]:
    """Build what a cleaner leaves of a log: some records, a hole, some records."""
    hole = (_RECORDS, _RECORDS + size)
    return _log([_batch(0), _batch(hole[1])], {"cleanup.policy": "compact", **_NEVER_CLEANED}), hole


def _starting_at(offset: int) -> BuiltLog:
    return _log([_batch(offset), _batch(offset + _RECORDS)], _PATIENT)


def _batch(base_offset: int) -> LogBatch:
    records = tuple(
        VisibleRecord(base_offset + n, BEGINNING + n, b"key-%d" % n, b"value of %d" % (base_offset + n))
        for n in range(_RECORDS)
    )
    return LogBatch(base_offset, base_offset + _RECORDS - 1, records, BEGINNING + _RECORDS - 1, codec="lz4")


def _log(batches: Sequence[LogBatch], settings: Mapping[str, str]) -> BuiltLog:
    start, end = batches[0].base_offset, batches[-1].next_offset
    return BuiltLog(
        seed=-1,
        batches=tuple(batches),
        segments={start: b"".join(encode(batch) for batch in batches)},
        settings=settings,
        log_start_offset=start,
        log_end_offset=end,
        last_stable_offset=end,
        expected=tuple(record for batch in batches for record in batch.records),
    )


@dataclass(frozen=True, slots=True)
class Scene:
    """The watched copies, at one moment."""

    copies: Mapping[Place, Bounds]
    #: What each copy is doing that takes a while.
    doing: Mapping[Place, Doing]

    def under_way(self, later: Scene) -> dict[Place, Doing]:
        """Return what was done between now and a later moment, and is unfinished then."""
        return {
            partition: doing
            for partition, doing in later.doing.items()
            if self.doing.get(partition) is doing and self.copies[partition] != later.copies[partition]
        }


def look(destination: SandboxCluster, helping: Helping, large: str, ends: Sequence[int]) -> Scene:
    """Read the copies of a helping and of a large topic, whose partitions' ends at the source are given."""
    copies: dict[Place, Bounds] = {}
    doing: dict[Place, Doing] = {}
    for topic_partition, found in bounds(destination, helping.watched).items():
        copies[topic_partition.topic, 0] = found
        if what := helping.doing(topic_partition.topic, found):
            doing[topic_partition.topic, 0] = what
    for topic_partition, found in bounds(destination, [large], len(ends)).items():
        copies[large, topic_partition.partition] = found
        if 0 < found.end < ends[topic_partition.partition]:
            doing[large, topic_partition.partition] = Doing.COPYING
    return Scene(copies, doing)
