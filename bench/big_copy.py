"""The first copy of one large partition, whose engine is started and ended at will, and its judge; for `bench.big`."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.data import PARTITIONS, DataSet
from bench.measure import LANES, CopyFailedError, ProcessTree
from bench.processes import Running, last_output, start

_POLL_S, _SAMPLE_S, _STALLED_S = 0.1, 0.5, 300.0


@dataclass(frozen=True, slots=True)
class Tenth:
    """One tenth of the log while it was copied: the rate without pauses, CPU time of lanes, peak memory of the tree."""

    megabytes_per_second: float
    cpu_seconds: float
    memory_megabytes: int


class WatchedCopy:
    """An engine that copies `records` records, and how far it is; `log_end` is the destination's."""

    def __init__(self, command: list[str], log: Path, log_end: Callable[[], int], records: int, size: int) -> None:
        self.tenths: list[Tenth] = []
        self.end = 0
        self.begun_at = self.moved_at = time.monotonic()
        self._command = command
        self._log = log
        self._log_end = log_end
        self._records = records
        self._size = size
        self._tenth_at = self._sampled_at = 0.0
        #: Time without progress, and CPU time of lanes that have ended, in this tenth.
        self._paused = self._used = 0.0
        self._used_before = 0.0
        self.start()

    def start(self) -> None:
        """Start the engine."""
        self._running = Running([start(self._command, self._log)], self._log, False)
        self._tree = ProcessTree([self._running.processes[0].pid])
        self._used_before = 0.0

    def stop(self, how: signal.Signals) -> int:
        """End the engine by a signal to its driver, and return how far the copy is then."""
        self._sample()
        self._used += self._lanes() - self._used_before
        self._running.processes[0].send_signal(how)
        self._running.processes[0].wait()
        return self._log_end()

    def until(self, offset: int) -> float:
        """Wait until the copy has reached an offset; return the longest time without progress."""
        longest = 0.0
        try:
            while self.end < offset:
                time.sleep(_POLL_S)
                now = time.monotonic()
                if (reached := self._log_end()) > self.end:
                    gap = now - self.moved_at
                    if not self.end:
                        self.begun_at = self._tenth_at = now
                    else:
                        longest = max(longest, gap)
                        self._paused += gap if gap > 1 else 0.0
                    self.moved_at, self.end = now, reached
                    self._note_tenths(now)
                if now - self._sampled_at > _SAMPLE_S:
                    self._sample()
                    self._sampled_at = now
                    self._running.check()
                if now - self.moved_at > _STALLED_S:
                    raise CopyFailedError(f"nothing was copied for {_STALLED_S:g} s:\n{last_output(self._log)}")
        except BaseException:
            self._running.kill()
            raise
        return longest

    def _note_tenths(self, now: float) -> None:
        if count := self.end * 10 // self._records - len(self.tenths):
            self._sample()
            used = self._lanes()
            seconds = max(now - self._tenth_at - self._paused, _POLL_S)
            cpu = (self._used + used - self._used_before) / count
            memory = round(self._tree.peak_memory / 2**20)
            self.tenths += [Tenth(round(self._size / 1e7 * count / seconds, 1), round(cpu, 2), memory)] * count
            self._tenth_at, self._used_before = now, used
            self._paused = self._used = 0.0
            self._tree.peak_memory = 0

    def _sample(self) -> None:
        self._tree.cpu_seconds()
        self._tree.sample_memory()

    def _lanes(self) -> float:
        return self._tree.cpu_by_process().get(LANES, 0.0)


def judge(bootstrap_servers: str, topic: str, data_set: DataSet, start: int, count: int) -> None:
    """Compare what an independent consumer reads of partition 0 with the records that were written from `start` on.

    Raises:
        CopyFailedError: it reads something else.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    # as `DataSet.pool` makes them, and `batch_of` orders them
    chance, each, batches = random.Random(data_set.key), data_set.records_per_batch, len(data_set.pool(0))
    values = [chance.randbytes(data_set.value_bytes) for _ in range(batches * each)]
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "judge", "enable.auto.commit": False}
    consumer = Consumer({**settings, "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, start or OFFSET_BEGINNING)])
    number, shift = 0, 0
    while number < count:
        messages = consumer.consume(min(10_000, count - number), _STALLED_S)
        if not messages:
            raise CopyFailedError(f"a consumer is shown only {number:,} of {count:,} records")
        if not number and start:
            # a stop may have left a marker before the first
            shift = messages[0].offset() - start
        for message in messages:
            batch, record = divmod(number, each)
            wanted = start + shift + number, values[batch * PARTITIONS % batches * each + record]
            if (message.offset(), message.value()) != wanted:
                raise CopyFailedError(f"at offset {wanted[0]:,} is another record: {message.error()}")
            number += 1
    consumer.close()
