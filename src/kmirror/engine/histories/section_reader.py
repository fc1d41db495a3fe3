"""Read what searches ask for (`stretches`), for many pairs of logs at once. Blocking; decides nothing.

All partitions with one leader share a request. A broker returns a batch larger than the partition's fetch limit only as
the first of a response, and otherwise nothing; so an empty answer counts only if the partition was fetched alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.batch import LOG_OVERHEAD, PREFIX
from kmirror.cluster.protocol.codes import code_name
from kmirror.cluster.protocol.fetch import (
    API_KEY,
    HIGHEST_VERSION,
    LOWEST_VERSION,
    FetchedPartition,
    FetchKey,
    FetchPosition,
    FetchSession,
)
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, TopicPartition
from kmirror.engine.histories.stretches import Ends, Read, Section, Sections, Side
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, UnreachableError
from kmirror.work import Add, unwatched

T = TypeVar("T")

_ANSWER_BYTES = 8 << 20
#: The fetch limits of partitions whose batch was not returned, four times larger each time.
_SMALLEST_LIMIT = 64 << 10
_LARGEST_LIMIT = 1 << 20
#: The source's last batch is expected to be at most this much larger than the destination's.
_ROOM_BYTES = 4 << 10
#: How many times a quota may delay a request.
_TRIES = 20


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How the reads of one kind of search are limited.

    `at_once` pairs of logs are read together, with their batches in memory. `first_bytes` is the limit of the first
    read of the destination, `stretch_bytes` of later ones and of the source; it doubles every `reads_until_more` reads,
    up to `most_bytes`. With `is_source_alike` the source's first batch is expected to be about as large as the
    destination's. The source is read up to its last stable offset; the destination too if `is_destination_committed`,
    else up to its high watermark: while a transaction is open there, which no mirror leaves behind, aborted ones are
    not reported.
    """

    at_once: int
    first_bytes: int
    stretch_bytes: int
    most_bytes: int
    reads_until_more: int
    is_source_alike: bool
    is_destination_committed: bool


class Obstacle(NamedTuple):
    """Why two logs could not be compared, and on which side."""

    side: Side
    error: KmirrorError | OutcomeUnknown


class _Wanted(NamedTuple):
    offset: int
    max_bytes: int
    #: The log must expose its batches up to here; otherwise its response is not reliable.
    shown_end: int


class Reading(Generic[T]):
    """One search in two logs, its next read, and its result."""

    def __init__(
        self,
        source: TopicPartition,
        destination: TopicPartition,
        ends: Ends,
        search: Generator[Read, Sections, T],
    ) -> None:
        self.source = source
        self.destination = destination
        self.ends = ends
        self.result: T | Obstacle | None = None
        self.read = Read(None, None)
        #: How many reads it has been given.
        self.reads = 0
        #: The size of the largest first batch of a response so far.
        self.largest_batch = 0
        self._search = search
        self._advance(None)

    def take(self, destination: FetchedPartition | Obstacle | None, source: FetchedPartition | Obstacle | None) -> None:
        """Pass what was read, or an obstacle, to the search."""
        self.reads += 1
        for answer in (destination, source):
            if isinstance(answer, Obstacle):
                self.result = answer
                self._search.close()
                return
            if answer is not None:
                self.largest_batch = max(self.largest_batch, _first_size(answer.records))
        assert not isinstance(destination, Obstacle)
        assert not isinstance(source, Obstacle)
        self._advance(Sections(_section(self.read.destination, destination), _section(self.read.source, source)))

    def _advance(self, sections: Sections | None) -> None:
        try:
            self.read = next(self._search) if sections is None else self._search.send(sections)
        except StopIteration as done:
            self.result = done.value
        except KmirrorError as error:
            self.result = Obstacle(getattr(error, "side", "source"), error)


def _section(offset: int | None, part: FetchedPartition | None) -> Section | None:
    if offset is None or part is None:
        return None
    return Section(offset, part.records, part.aborted_transactions)


class SectionReader:
    """Serve searches in logs on two clusters; counts its requests."""

    def __init__(self, source: ClusterClient, destination: ClusterClient, read_limits: ReadLimits) -> None:
        self.requests = 0
        self._source = source
        self._destination = destination
        self._read_limits = read_limits

    def serve(
        self,
        readings: Sequence[Reading[Any]],
        source: ClusterMetadata,
        destination: ClusterMetadata,
        progress: Add = unwatched,
    ) -> None:
        """Serve all of these until each has a result or an obstacle; no two may read the same log.

        The metadata names the leaders; a leader that has changed since then is an obstacle too. `progress` is called
        with the number of new results.
        """
        for first in range(0, len(readings), self._read_limits.at_once):
            pending: Sequence[Reading[Any]] = readings[first : first + self._read_limits.at_once]
            while remaining := [reading for reading in pending if reading.result is None]:
                progress(len(pending) - len(remaining))
                self._step(remaining, source, destination)
                pending = remaining
            progress(len(pending))

    def _step(self, readings: Iterable[Reading[Any]], source: ClusterMetadata, destination: ClusterMetadata) -> None:
        read_limits = self._read_limits
        here, there = {}, {}
        for reading in readings:
            if reading.read.destination is not None:
                size = self._stretch_bytes(reading) if reading.reads else read_limits.first_bytes
                shown_end = (
                    reading.ends.shared_end if read_limits.is_destination_committed else reading.ends.destination_end
                )
                here[reading.destination] = _Wanted(reading.read.destination, size, shown_end)
        ours = self._fetch("destination", self._destination, destination, here)
        for reading in readings:
            if reading.read.source is not None:
                answer = ours.get(reading.destination)
                size = self._stretch_bytes(reading)
                if read_limits.is_source_alike and not reading.reads and isinstance(answer, FetchedPartition):
                    size = _first_size(answer.records) + _ROOM_BYTES
                there[reading.source] = _Wanted(reading.read.source, size, reading.ends.shared_end)
        theirs = self._fetch("source", self._source, source, there)
        for reading in readings:
            reading.take(ours.get(reading.destination), theirs.get(reading.source))

    def _stretch_bytes(self, reading: Reading[Any]) -> int:
        """Return the limit of a read, large enough that usually a whole batch is returned."""
        read_limits = self._read_limits
        size = min(read_limits.stretch_bytes << reading.reads // read_limits.reads_until_more, read_limits.most_bytes)
        return max(size, min(reading.largest_batch + _ROOM_BYTES, _LARGEST_LIMIT))

    def _fetch(
        self, side: Side, client: ClusterClient, metadata: ClusterMetadata, wanted: Mapping[TopicPartition, _Wanted]
    ) -> dict[TopicPartition, FetchedPartition | Obstacle]:
        """Read each partition from its leader."""
        found: dict[TopicPartition, FetchedPartition | Obstacle] = {}
        led: dict[int, dict[FetchKey, TopicPartition]] = defaultdict(dict)
        positions: dict[FetchKey, FetchPosition] = {}
        for partition, (offset, max_bytes, _) in wanted.items():
            leader = metadata.leader(partition)
            if leader is None or leader.leader_id is None:
                found[partition] = Obstacle(side, UnreachableError(f"{partition} has no leader"))
                continue
            key = FetchKey(metadata.topics[partition.topic].topic_id, partition.partition, partition.topic)
            led[leader.leader_id][key] = partition
            positions[key] = FetchPosition(offset, None, leader.leader_epoch, max_bytes)
        is_committed = side == "source" or self._read_limits.is_destination_committed
        for node_id, partitions in led.items():
            broker = metadata.brokers[node_id]
            try:
                # an adopted former source still has aborted transactions, which only read_committed reports
                answers = self._ask(client, broker, {key: positions[key] for key in partitions}, True)
                if not is_committed and (hidden := _hidden(answers, partitions, wanted)):
                    answers |= self._ask(client, broker, {key: positions[key] for key in hidden}, False)
            except (KmirrorError, OutcomeUnknown) as error:
                found |= dict.fromkeys(partitions.values(), Obstacle(side, error))
            else:
                found |= {
                    p: _checked(side, p, wanted[p], answers.get(key), is_committed) for key, p in partitions.items()
                }
        return found

    def _ask(
        self, client: ClusterClient, broker: Broker, positions: Mapping[FetchKey, FetchPosition], is_committed: bool
    ) -> dict[FetchKey, FetchedPartition]:
        """Fetch from one broker until each partition has returned a batch, an error, or nothing when fetched alone."""
        answers: dict[FetchKey, FetchedPartition] = {}
        pending = dict(positions)
        limit = 0
        while len(pending) > 1:
            answered = {
                key: part
                for key, part in self._exchange(client, broker, pending, is_committed).items()
                if part.error_code or 0 < _first_size(part.records) <= len(part.records)
            }
            if not answered and limit == _LARGEST_LIMIT:
                break
            answers |= answered
            limit = min(max(4 * limit, _SMALLEST_LIMIT), _LARGEST_LIMIT)
            pending = {
                key: position._replace(partition_max_bytes=max(position.partition_max_bytes, limit))
                for key, position in pending.items()
                if key not in answered
            }
        for key, position in pending.items():
            answers |= self._exchange(client, broker, {key: position}, is_committed)
        return answers

    def _exchange(
        self, client: ClusterClient, broker: Broker, positions: Mapping[FetchKey, FetchPosition], is_committed: bool
    ) -> dict[FetchKey, FetchedPartition]:
        """Send one request.

        Raises:
            UnreachableError: the broker cannot be reached, or throttles every request.
            BrokerError: it refuses the request as a whole.
            OutcomeUnknown: it does not respond.
        """
        for _ in range(_TRIES):
            self.requests += 1
            connection = client.connect(broker.node_id, broker.host, broker.port)
            version = connection.version_for(API_KEY, LOWEST_VERSION, HIGHEST_VERSION, "Fetch")
            connection.wait_for_throttle()
            session = FetchSession(client.config.client_id, version, incremental=False)
            for key, position in positions.items():
                session.want(key, position)
            correlation_id = connection.next_correlation_id()
            request = session.request(
                correlation_id, max_wait_ms=0, max_bytes=_ANSWER_BYTES, read_committed=is_committed
            )
            frame = connection.exchange_frame([request], correlation_id, client.config.request_timeout_ms / 1000)
            answer = session.answer(frame)
            connection.note_throttle(answer.throttle_time_ms)
            if answer.error_code:
                raise BrokerError(answer.error_code, code_name(answer.error_code), f"reading from {connection.address}")
            if answer.partitions or not answer.throttle_time_ms:
                return {part.key: part for part in answer.partitions if part.key in positions}
        raise UnreachableError(f"broker {broker.node_id} throttles every read", "raise the quota of this client")


def _first_size(records: memoryview) -> int:
    """Return the size of the first batch, which may be cut off; 0 without one."""
    return LOG_OVERHEAD + int(PREFIX.unpack_from(records)[1]) if len(records) >= LOG_OVERHEAD else 0


def _hidden(
    answers: Mapping[FetchKey, FetchedPartition],
    partitions: Mapping[FetchKey, TopicPartition],
    wanted: Mapping[TopicPartition, _Wanted],
) -> list[FetchKey]:
    """Return the partitions in which an open transaction hides wanted batches."""
    return [
        key
        for key, part in answers.items()
        if not part.error_code and (part.last_stable_offset or 0) < wanted[partitions[key]].shown_end
    ]


def _checked(
    side: Side, partition: TopicPartition, wanted: _Wanted, part: FetchedPartition | None, is_committed: bool
) -> FetchedPartition | Obstacle:
    if part is None:
        return Obstacle(side, UnreachableError(f"{partition} is missing from a response"))
    if part.error_code:
        what = f"reading {partition} at offset {wanted.offset}"
        return Obstacle(side, BrokerError(part.error_code, code_name(part.error_code), what))
    shown_end = part.last_stable_offset if is_committed else part.high_watermark
    if shown_end is None or shown_end < wanted.shown_end:
        return Obstacle(side, UnreachableError(f"{partition} does not show its records below {wanted.shown_end} yet"))
    return part
