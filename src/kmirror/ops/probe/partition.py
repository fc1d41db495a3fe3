"""One partition of a probe's topic, written as lanes write: one request at a time, each compared with the log end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from kmirror.cluster.append import OffsetAppender, StampedAppender, as_run
from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, require
from kmirror.cluster.protocol.batch import BatchHeader, set_producer
from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.pieces import Run
from kmirror.cluster.reader import PartitionReader
from kmirror.engine.spec import own_producer_id
from kmirror.errors import OutcomeUnknown
from kmirror.ops.base.context import now_ms


class Answered(NamedTuple):
    """The leader's answer to one batch, and whether the log end moved."""

    code: int
    base_offset: int
    is_appended: bool

    def __str__(self) -> str:
        if self.code:
            return f"{code_name(self.code)} ({self.code})"
        return f"answered with offset {self.base_offset}, {'' if self.is_appended else 'not '}appended"


class ProbedBatch(NamedTuple):
    """One batch as the broker returns it."""

    header: BatchHeader
    data: memoryview


@dataclass(slots=True)
class ProbePartition:
    """An appender to one partition, with the producer id that kmirror would use there."""

    client: ClusterClient
    partition: TopicPartition
    out: OffsetAppender
    producer_id: int

    def try_batch(self, run: Run, sequence: int, *, producer_id: int | None = None) -> Answered:
        """Send a batch with this sequence number in producer epoch 0, whatever belongs at the log end.

        Raises:
            OutcomeUnknown: no answer.
        """
        before = self.log_end()
        set_producer(run.data, self.producer_id if producer_id is None else producer_id, 0, sequence)
        answer = self.out.send(run)
        if answer is None:
            raise OutcomeUnknown(f"{self.partition} does not answer a batch")
        return Answered(answer.error_code, answer.base_offset, self.log_end() != before)

    def log_end(self) -> int:
        """Return the true log end."""
        return self._offset(LATEST)

    def log_start(self) -> int:
        """Return the log start."""
        return self._offset(EARLIEST)

    def _offset(self, timestamp: int) -> int:
        found = self.client.list_offsets({self.partition: timestamp}, log_end=timestamp == LATEST)[self.partition]
        require(found.error_code, f"looking up the ends of {self.partition}")
        return found.offset or 0

    def stored(self, start: int, end: int) -> Iterator[ProbedBatch]:
        """Yield the batches from offset `start` to `end` as they are stored."""
        for found in PartitionReader(self.client, self.partition).batches(start, end):
            for header in found.headers:
                yield ProbedBatch(header, found.data[header.position : header.position + header.size_in_bytes])


@contextmanager
def probe_partition(client: ClusterClient, partition: TopicPartition) -> Iterator[ProbePartition]:
    """Begin to write to a partition. Raises as `OffsetAppender`."""
    producer_id = own_producer_id("", *partition)
    with StampedAppender(client, partition, producer_id=producer_id) as out:
        yield ProbePartition(client, partition, out, producer_id)


def run_of(offset: int, count: int) -> Run:
    """Make a batch of records of now."""
    at_ms = now_ms()
    return as_run([Record(offset + index, at_ms, b"k%d" % index, b"v") for index in range(count)])
