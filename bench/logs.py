"""Logs that are more than a sequence of batches: large holes, a start far above 0, many small transactions.

A hole is an aborted transaction; a start above 0 comes from deleted records; the small transactions are those of
`transactions`. kmirror copies them as a user starts it; the measurement is what its destination's leaders report about
the logs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.clusters import Cluster, Pair
from bench.contenders import Kmirror, Load, start_senders
from bench.data import DATA_SETS, PARTITIONS, Amount
from bench.measure import CopyFailedError
from bench.processes import Running, last_output
from bench.transactions import RECORDS_IN_TRANSACTION, VALUE_BYTES, Written, prepare_writer, written
from kmirror.cluster.protocol.filler import FILLER_RECORDS, filler_batch
from kmirror.engine.clock import now_ms

LOG_PARTS = ("holes", "log-start", "transactions")

_HOLE = 200_000
_LOG_START = 10**8
_RECORDS_BEHIND = 1000
_TRANSACTIONS_PER_SECOND = 1000
_TRANSACTIONS_S = 20.0
#: Written before the measurement, until cold brokers keep up; at most this often.
_WARM_UP_S = 5.0
_WARM_UPS = 6
_POLL_S = 0.02
#: A copy that makes no progress for this long has stalled.
_STALLED_S = 60.0


@dataclass(frozen=True, slots=True)
class Filling:
    """How fast holes of `hole` offsets were filled, one in each partition, all at the same time.

    Rates in offsets a second, from the first progress of a log to its end; `by_partition` each by its own clock,
    `offsets_per_second` all of them from the first progress of any to the last one's end.
    """

    partitions: int
    hole: int
    seconds: float
    offsets_per_second: float
    by_partition: list[float]
    first_progress_seconds: float


@dataclass(frozen=True, slots=True)
class LogStart:
    """How long it took until a mirror log started at `offset` and held everything after it.

    `seconds` from the first progress of its log end, `since_command_seconds` from the start of `kmirror run`.
    """

    offset: int
    seconds: float
    since_command_seconds: float


@dataclass(frozen=True, slots=True)
class Transactions:
    """Small transactions, each in one partition, mirrored while they are written.

    `per_second` is the rate written of `wanted_per_second`. `peak_lag_offsets` is the largest distance of the
    destination's log ends from the source's last stable offsets; `behind_seconds` after the last marker everything was
    copied.
    """

    wanted_per_second: int
    per_second: float
    seconds: float
    transactions: int
    records_in_transaction: int
    value_bytes: int
    peak_lag_offsets: int
    behind_seconds: float


@dataclass(slots=True)
class Logs:
    """The results."""

    holes: list[Filling] = field(default_factory=list)
    starts: list[LogStart] = field(default_factory=list)
    transactions: list[Transactions] = field(default_factory=list)


def measure_logs(part: str, pair: Pair, folder: Path, scale: float, logs: Logs) -> None:
    """Measure one of LOG_PARTS, and add the result to `logs`; with a `scale` below 1 everything is smaller.

    Raises:
        CopyFailedError: kmirror does not copy everything.
    """
    match part:
        case "holes":
            hole = round(_HOLE * scale)
            _fill(pair, folder, 1, hole // 4)  # brokers and lanes that have filled none are slower
            for partitions in (1, PARTITIONS):
                logs.holes.append(_fill(pair, folder, partitions, hole))
        case "log-start":
            logs.starts.append(_measure_log_start(pair, folder, scale))
        case _:
            logs.transactions.append(_measure_transactions(pair, folder, scale))


# -- holes -------------------------------------------------------------------------------------------------------------


def _fill(pair: Pair, folder: Path, partitions: int, hole: int) -> Filling:
    topic = f"bench-holes-{partitions}"
    pair.source.create_topic(topic, partitions)
    _write_holes(pair.source, topic, partitions, hole)
    goals = pair.source.log_ends(topic, partitions)
    assert goals == [hole + 3] * partitions
    first: dict[int, tuple[float, int]] = {}
    last: dict[int, float] = {}

    with _copying(pair, folder, topic) as (running, started_at):

        def poll() -> int:
            ends = pair.destination.log_ends(topic, partitions)
            at = time.monotonic()
            for partition, (end, goal) in enumerate(zip(ends, goals, strict=True)):
                if end > goal:
                    raise CopyFailedError(f"{topic}-{partition} ends at {end:,}, and at {goal:,} at the source")
                if end:
                    first.setdefault(partition, (at, end))
                if end == goal:
                    last.setdefault(partition, at)
            return sum(ends)

        _watch(poll, lambda: len(last) == partitions, running)
        running.end()
    began, ended = min(at for at, _ in first.values()), max(last.values())
    if any(last[partition] == first[partition][0] for partition in range(partitions)):
        raise CopyFailedError("a whole hole was filled at once: too small to measure")
    return Filling(
        partitions,
        hole,
        ended - began,
        (sum(goals) - sum(end for _, end in first.values())) / (ended - began),
        [(goals[one] - first[one][1]) / (last[one] - first[one][0]) for one in range(partitions)],
        began - started_at,
    )


def _write_holes(source: Cluster, topic: str, partitions: int, hole: int) -> None:
    """Write a record, an aborted transaction of `hole` records, and another record to every partition."""
    from confluent_kafka import Producer

    config = {"bootstrap.servers": source.bootstrap_servers, "log_level": 0}
    alone: Any = Producer(config)
    large_batches = {
        "compression.type": "zstd",
        "linger.ms": 100,
        "batch.num.messages": 100_000,
        "batch.size": 4 << 20,
        "message.max.bytes": 4 << 20,
        "queue.buffering.max.messages": 2 * hole,
    }
    aborted: Any = Producer({**config, **large_batches, "transactional.id": topic})
    aborted.init_transactions(60)
    _write_one(alone, topic, partitions)
    aborted.begin_transaction()
    for partition in range(partitions):
        for _ in range(hole):
            aborted.produce(topic, b"", partition=partition)
        assert aborted.flush(60) == 0  # an abort would not write what is still queued
    aborted.abort_transaction(60)
    deadline = time.monotonic() + _STALLED_S
    while source.log_ends(topic, partitions) != [hole + 2] * partitions:  # markers come after the answer
        if time.monotonic() > deadline:
            raise CopyFailedError(f"{topic} lacks markers of its aborted transaction")
        time.sleep(_POLL_S)
    _write_one(alone, topic, partitions)


def _write_one(producer: Any, topic: str, partitions: int) -> None:
    for partition in range(partitions):
        producer.produce(topic, b"beside the hole", partition=partition)
    assert producer.flush(60) == 0


# -- starts above 0 ----------------------------------------------------------------------------------------------------


def _measure_log_start(pair: Pair, folder: Path, scale: float) -> LogStart:
    from confluent_kafka import Producer

    topic = "bench-log-start"
    offset = round(_LOG_START * scale / FILLER_RECORDS) * FILLER_RECORDS
    pair.source.create_topic(topic, 1)
    batch = memoryview(filler_batch(FILLER_RECORDS, now_ms()))
    for _ in range(offset // FILLER_RECORDS):
        pair.source.append(topic, batch)
    producer: Any = Producer({"bootstrap.servers": pair.source.bootstrap_servers, "log_level": 0})
    for _ in range(_RECORDS_BEHIND):
        producer.produce(topic, b"behind the start", partition=0)
    assert producer.flush(60) == 0
    pair.source.delete_records(topic, offset)
    began: list[float] = []
    reached: list[float] = []

    with _copying(pair, folder, topic) as (running, started_at):

        def poll() -> int:
            (end,) = pair.destination.log_ends(topic, 1)
            start = pair.destination.log_start(topic) if end else 0
            at = time.monotonic()
            if end > offset + _RECORDS_BEHIND or start > offset:
                raise CopyFailedError(f"{topic}-0 starts at {start:,} and ends at {end:,}")
            if end and not began:
                began.append(at)
            if start == offset and end == offset + _RECORDS_BEHIND:
                reached.append(at)
            return end + start

        _watch(poll, lambda: bool(reached), running)
        running.end()
    return LogStart(offset, reached[0] - began[0], reached[0] - started_at)


# -- transactions ------------------------------------------------------------------------------------------------------


def _measure_transactions(pair: Pair, folder: Path, scale: float) -> Transactions:
    from confluent_kafka import Producer

    topic = "bench-transactions"
    pair.source.create_topic(topic)
    #: When, the source's last stable offsets, and the destination's log ends.
    seen: list[tuple[float, int, int]] = []

    def poll() -> int:
        stable = pair.source.last_stable(topic)
        end = pair.destination.log_end(topic)
        seen.append((time.monotonic(), stable, end))
        return stable + end

    with _copying(pair, folder, topic, ends_itself=False) as (running, _):
        first: Any = Producer({"bootstrap.servers": pair.source.bootstrap_servers, "log_level": 0})
        _write_one(first, topic, PARTITIONS)
        _watch(poll, lambda: seen[-1][2] >= PARTITIONS, running)  # the engine is under way

        def write(seconds: float, before: int) -> tuple[Written, int]:
            writer = prepare_writer(pair.source, topic, _TRANSACTIONS_PER_SECOND, seconds, folder)
            seen.clear()
            try:
                start_senders(writer)
                _watch(poll, lambda: writer.processes[0].poll() is not None, running)
                done = written(writer)
            finally:
                writer.kill()
            total = before + done.transactions * (RECORDS_IN_TRANSACTION + 1)  # each ends with one marker
            _watch(poll, lambda: seen[-1][2] >= total, running)
            return done, total

        total = PARTITIONS
        for _ in range(_WARM_UPS):
            done, total = write(_WARM_UP_S, total)
            if done.per_second > 0.99 * _TRANSACTIONS_PER_SECOND:
                break
        done, total = write(max(_WARM_UP_S, _TRANSACTIONS_S * scale), total)
        running.end()
    if seen[-1][1:] != (total, total):
        raise CopyFailedError(f"{total:,} offsets were written, {seen[-1][1]:,} are stable, and {seen[-1][2]:,} copied")
    return Transactions(
        _TRANSACTIONS_PER_SECOND,
        done.per_second,
        done.seconds,
        done.transactions,
        RECORDS_IN_TRANSACTION,
        VALUE_BYTES,
        max(stable - end for _, stable, end in seen),
        max(0.0, seen[-1][0] - done.ended_at),
    )


# -- copying -----------------------------------------------------------------------------------------------------------


@contextmanager
def _copying(pair: Pair, folder: Path, topic: str, *, ends_itself: bool = True) -> Iterator[tuple[Running, float]]:
    """Run kmirror over a topic; yield its processes and start time. Deletes the topic on both sides at the end."""
    contender = Kmirror(pair, folder)
    contender.prepare(Load(topic, DATA_SETS["256k"], Amount(0, 0, 0), 0), for_latency=not ends_itself)
    started_at = time.monotonic()
    running = contender.start()
    try:
        yield running, started_at
    finally:
        running.kill()
    contender.clean_up()
    pair.source.delete_topics({topic})


def _watch(poll: Callable[[], int], arrived: Callable[[], bool], running: Running) -> None:
    """Poll until it has arrived. Raises CopyFailedError if the process has died, or makes no progress any more."""
    moved_at, before = time.monotonic(), 0
    while True:
        now = poll()
        if arrived():
            return
        if now != before:
            moved_at, before = time.monotonic(), now
        running.check()
        if time.monotonic() - moved_at > _STALLED_S:
            raise CopyFailedError(
                f"nothing has moved for {_STALLED_S:.0f} s; its last output:\n{last_output(running.log)}"
            )
        time.sleep(_POLL_S)
