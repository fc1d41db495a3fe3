"""Fence a producer at the leaders of partitions, for good: whatever it sends later is refused there.

A COMMIT marker with the producer's own id and a higher producer epoch makes a leader refuse every later batch and
marker of a lower epoch (INVALID_PRODUCER_EPOCH), even if it did not know the producer before (KIP-360). It takes one
offset, which consumers are never shown. Its coordinator epoch is the highest possible one: one lower than the leader
remembers would be refused, and a fence is recognised by it later. No one writes with that id afterwards.

Without the right to write markers (ALTER or CLUSTER_ACTION on the cluster) a record has the same effect: a batch of the
higher epoch, which consumers are shown.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup
from kmirror.cluster.producers import producers_in, producers_question
from kmirror.cluster.protocol import markers
from kmirror.cluster.protocol.batch import BatchHeader, set_producer
from kmirror.cluster.protocol.batch_records import Record, make_batch, read_records
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fill_plan import MAX_COORDINATOR_EPOCH, MAX_PRODUCER_EPOCH
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.protocol.produce import ProducerState
from kmirror.cluster.protocol.wire import Exchange
from kmirror.cluster.reader import PartitionReader
from kmirror.errors import KmirrorError, OutcomeUnknown, TimedOutError

#: How long to look for leaders that are away.
_PATIENCE_S = 5.0
#: Partitions of a request, and the time it may take: the first markers of a partition are slow on a busy broker.
_AT_ONCE = 200
_ANSWER_S = 10.0
_ROUNDS = 3
#: How long to wait for replicas in sync, of all logs together: longer than a leader waits for them.
_REPLICATED_S = 35.0
_END_AND_MARK = (Lookup(LATEST, log_end=True), Lookup(LATEST))
#: Factor by which the steps back grow while searching for a fence.
_FARTHER = 4
#: A writer that fills offsets may have moved to a higher epoch since its epoch was read.
_EPOCHS_AHEAD = 10
#: A marker's value: version, coordinator epoch.
_MARKER = struct.Struct(">hi")
_KEY = b"kmirror"
_VALUE = b"mirroring stopped here"
#: The sequence number of a record that fences.
_SEQUENCE = 0


@dataclass(frozen=True, slots=True)
class Writer:
    """A producer to fence, and its last known epoch. `known_end` is an earlier log end, to search the fence from."""

    producer_id: int
    producer_epoch: int
    known_end: int = 0


@dataclass(frozen=True, slots=True)
class FenceResult:
    """The result for one partition: the log end before the fence, None with an error code."""

    error_code: int
    end_offset: int | None
    #: True when the writer is fenced at the leader.
    is_fenced: bool = False
    #: The writer's last sequence number before the fence; None if the leader did not know it, or was not asked.
    last_sequence: int | None = field(default=None, compare=False)


def replicated_ends(client: ClusterClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, FenceResult]:
    """Return where logs end once the replicas in sync have all of it, without fencing.

    Until then, the next leader may lack the last records. A log of which they still lack some after the time in which
    a leader gives them up (replica.lag.time.max.ms, 30 s by default) has the error code NOT_ENOUGH_REPLICAS.

    Raises:
        UnreachableError: no broker answers.
    """
    found: dict[TopicPartition, FenceResult] = {}
    left, attempt, deadline = set(partitions), 0, time.monotonic() + _REPLICATED_S
    while left and (not attempt or time.monotonic() < deadline):
        ends, marks = client.look_up_offsets(left, _END_AND_MARK, timeout=_PATIENCE_S)
        for partition in left:
            end, mark = ends[partition], marks[partition].offset
            code = end.error_code or marks[partition].error_code
            if end.offset is None or mark is None:
                code = code or Code.LEADER_NOT_AVAILABLE
            elif mark < end.offset:
                code = code or Code.NOT_ENOUGH_REPLICAS
            found[partition] = FenceResult(code, None if code else end.offset)
        left = {partition for partition in left if found[partition].error_code == Code.NOT_ENOUGH_REPLICAS}
        if left:
            client.pause(attempt)
            attempt += 1
    return found


def _log_ends(
    client: ClusterClient, partitions: Iterable[TopicPartition], metadata: ClusterMetadata | None = None
) -> dict[TopicPartition, FenceResult]:
    """Return where logs end at their leaders; give `metadata` if it was just read."""
    wanted = dict.fromkeys(partitions, LATEST)
    answers = client.list_offsets(wanted, log_end=True, metadata=metadata, timeout=_PATIENCE_S)
    return {
        p: FenceResult(a.error_code or (Code.LEADER_NOT_AVAILABLE if a.offset is None else 0), a.offset)
        for p, a in answers.items()
    }


def fence(
    client: ClusterClient,
    writers: Mapping[TopicPartition, Writer],
    *,
    with_record: bool = False,
    dry_run: bool = False,
    metadata: ClusterMetadata | None = None,
) -> dict[TopicPartition, FenceResult]:
    """Fence these writers; for one that is fenced already, return where its log ended then.

    With `dry_run` it is only read where the logs would end. Give `metadata` of the topics if it was just read.

    Partitions whose leader does not answer, or refuses, have an error code: CLUSTER_AUTHORIZATION_FAILED if markers may
    not be written. It may be called again.

    Raises:
        UnreachableError: no broker of the cluster answers.
    """
    found: dict[TopicPartition, FenceResult] = {}
    left = dict(writers)
    for _ in range(_ROUNDS):
        found |= _fence_once(client, left, metadata, with_record=with_record, dry_run=dry_run)
        metadata = None
        # a fence without an answer may have been written, and one that is lost must be again: the next round finds out
        left = {one: left[one] for one in left if found[one].error_code == Code.BROKER_NOT_AVAILABLE}
        if not left:
            break
    return found


def _fence_once(
    client: ClusterClient,
    writers: Mapping[TopicPartition, Writer],
    metadata: ClusterMetadata | None,
    *,
    with_record: bool,
    dry_run: bool,
) -> dict[TopicPartition, FenceResult]:
    if metadata is None and writers:
        # read once: a leader that has moved since refuses, and is looked up again
        metadata = client.metadata({one.topic for one in writers}, timeout=_PATIENCE_S)
    found: dict[TopicPartition, FenceResult] = {}
    before: dict[TopicPartition, int] = {}
    to_fence: dict[TopicPartition, Writer] = {}
    sequences: dict[TopicPartition, int] = {}
    until = time.monotonic() + _REPLICATED_S
    for partition, (code, known) in _ends_and_producers(client, writers, metadata).items():
        if code or known is None:
            found[partition] = FenceResult(code, None)
            continue
        writer, (before[partition], producers) = writers[partition], known
        mine = next((p for p in producers if p.producer_id == writer.producer_id), None)
        if mine is not None and mine.coordinator_epoch == MAX_COORDINATOR_EPOCH:
            found[partition] = _fence_there(client, partition, writer, writer.known_end, until)
        elif mine is not None and (there := _record_there(client, partition, writer, mine, before[partition], until)):
            found[partition] = there
        else:
            epoch = max(writer.producer_epoch, mine.producer_epoch if mine else 0)
            if mine is not None and mine.last_sequence >= 0:
                sequences[partition] = mine.last_sequence
            to_fence[partition] = replace(writer, producer_epoch=min(MAX_PRODUCER_EPOCH, epoch + _EPOCHS_AHEAD))
    if dry_run:
        ends = {p: FenceResult(0, before[p], last_sequence=sequences.get(p)) for p in to_fence}
        return found | ends
    codes = (_send_records if with_record else _send_markers)(client, to_fence, metadata)
    after = _log_ends(client, [partition for partition, code in codes.items() if not code], metadata)
    until = time.monotonic() + _REPLICATED_S
    for partition, code in codes.items():
        start = before[partition]
        end = after[partition].end_offset if partition in after else None
        if end is None:
            found[partition] = FenceResult(code or after[partition].error_code, None)
        elif end == start + 1:
            found[partition] = FenceResult(0, start, is_fenced=True, last_sequence=sequences.get(partition))
        else:
            # the writer was faster, or the request was executed twice
            found[partition] = _fence_there(client, partition, writers[partition], min(start, end), until)
    return found


def _ends_and_producers(
    client: ClusterClient, partitions: Iterable[TopicPartition], metadata: ClusterMetadata | None
) -> dict[TopicPartition, tuple[int, tuple[int, Sequence[ProducerState]] | None]]:
    """Return an error code of each partition, or where its log ends, and the producers that its leader knows."""

    def build(led: list[TopicPartition], known: ClusterMetadata) -> list[Exchange]:
        # answered in this order: if a writer was fenced before the ends were read, the leader knows it then
        return [client.offsets_question(led, Lookup(LATEST, log_end=True), known), producers_question(led)]

    def read(
        answers: Sequence[Any], led: list[TopicPartition]
    ) -> Iterable[tuple[TopicPartition, int, tuple[int, Sequence[ProducerState]] | None]]:
        ends, producers = answers[0], producers_in(answers[1])
        for partition in led:
            if partition in ends and partition in producers:
                end, known = ends[partition], producers[partition]
                code = end.error_code or known.error_code or (Code.LEADER_NOT_AVAILABLE if end.offset is None else 0)
                yield partition, code, None if code else (end.offset, known.producers)

    return client.per_leader(partitions, build, read, metadata=metadata, timeout=_PATIENCE_S)


def _fence_there(
    client: ClusterClient, partition: TopicPartition, writer: Writer, start: int, until: float
) -> FenceResult:
    """Find the first fence in the log: at or after `start`, or before it if the log has lost its last records since.

    The search begins before `start`, and goes back until it finds what is before the fence. A log that does not show
    its records is asked again until the time `until`, and at least once.
    """
    starts, ends = client.look_up_offsets([partition], (Lookup(EARLIEST), _END_AND_MARK[0]), timeout=_PATIENCE_S)
    first, end = starts[partition].offset, ends[partition].offset
    if first is None or end is None:
        return FenceResult(starts[partition].error_code or Code.LEADER_NOT_AVAILABLE, None)
    reader, fence_offset = _reader(client, partition, until), None
    low, high, step, is_known = min(start, end), end, 1, False
    try:
        while first < high and not is_known:
            low, step = max(first, low - step), step * _FARTHER
            before: set[int] = set()
            for data, header in ((found.data, one) for found in reader.batches(low, high) for one in found.headers):
                if header.producer_id == writer.producer_id and _is_fence(data, header):
                    fence_offset = header.base_offset
                    break
                before.add(header.producer_id)
            high, is_known = low, writer.producer_id in before or (fence_offset is not None and bool(before))
    except (KmirrorError, OutcomeUnknown) as error:
        return _not_read(client, partition, error)
    if fence_offset is None and first > start and not is_known:
        # it has been deleted by now: everything left came after it
        fence_offset = first
    if fence_offset is None:
        client.unanswered[partition] = "its leader had fenced the mirror's producer, and has changed since"
        return FenceResult(Code.BROKER_NOT_AVAILABLE, None)
    return FenceResult(0, fence_offset, is_fenced=True)


def _record_there(
    client: ClusterClient, partition: TopicPartition, writer: Writer, known: ProducerState, end: int, until: float
) -> FenceResult | None:
    """Find a record that fenced the writer before; the leader remembers nothing of it but epoch and sequence."""
    if known.producer_epoch <= writer.producer_epoch or known.last_sequence != _SEQUENCE:
        return None
    log_start = client.list_offsets({partition: EARLIEST}, timeout=_PATIENCE_S)[partition].offset
    try:
        for found in _reader(client, partition, until).batches(max(writer.known_end, log_start or 0), end):
            for header in found.headers:
                wrote = header.producer_id, header.producer_epoch
                if wrote == (known.producer_id, known.producer_epoch) and _is_fence(found.data, header):
                    return FenceResult(0, header.base_offset, is_fenced=True)
    except (KmirrorError, OutcomeUnknown) as error:
        return _not_read(client, partition, error)
    return None


def _reader(client: ClusterClient, partition: TopicPartition, until: float) -> PartitionReader:
    return PartitionReader(client, partition, patience_s=max(0.0, until - time.monotonic()))


def _not_read(client: ClusterClient, partition: TopicPartition, error: KmirrorError | OutcomeUnknown) -> FenceResult:
    client.unanswered[partition] = str(error)
    # a log that stays silent has been asked again already
    return FenceResult(Code.REQUEST_TIMED_OUT if isinstance(error, TimedOutError) else Code.BROKER_NOT_AVAILABLE, None)


def _is_fence(records: memoryview, header: BatchHeader) -> bool:
    if header.record_count != 1:
        return False
    (record,) = read_records(records, header)
    if not header.is_control:
        return record.key == _KEY and record.value == _VALUE
    return record.value is not None and _MARKER.unpack_from(record.value)[1] == MAX_COORDINATOR_EPOCH


def _send_markers(
    client: ClusterClient, writers: Mapping[TopicPartition, Writer], metadata: ClusterMetadata | None
) -> dict[TopicPartition, int]:
    def build(led: list[TopicPartition], _: ClusterMetadata) -> list[Exchange]:
        epochs = {one: (writers[one].producer_id, writers[one].producer_epoch) for one in led}
        fills = [markers.Fill(*one, *epochs[one], 1, MAX_COORDINATOR_EPOCH) for one in led]
        # sent together: over a distance each turn costs a round trip
        return [markers.exchange(fills[start : start + _AT_ONCE]) for start in range(0, len(fills), _AT_ONCE)]

    def read(answers: list[Mapping[TopicPartition, int]], _: object) -> Iterable[tuple[TopicPartition, int, None]]:
        return ((partition, code, None) for codes in answers for partition, code in codes.items())

    patience = _ANSWER_S * (1 + len(writers) // _AT_ONCE)
    answers = client.per_leader(sorted(writers), build, read, metadata=metadata, timeout=patience)
    return {partition: code for partition, (code, _) in answers.items()}


def _send_records(
    client: ClusterClient, writers: Mapping[TopicPartition, Writer], metadata: ClusterMetadata | None
) -> dict[TopicPartition, int]:
    return client.send_batches(sorted(writers), lambda one: _record(writers[one]), metadata=metadata, timeout=_ANSWER_S)


def _record(writer: Writer) -> bytes:
    batch = make_batch([Record(0, time.time_ns() // 1_000_000, _KEY, _VALUE)])
    set_producer(memoryview(batch), writer.producer_id, writer.producer_epoch, _SEQUENCE)
    return bytes(batch)
