"""Read what searches ask for (`stretches`), for many pairs of logs at once. Blocking; decides nothing.

All partitions with one leader share a request. A partition of which it returned no whole batch is read again by itself:
only then a broker returns a batch larger than the fetch limit, and only then an empty answer can prove something
(`cluster/protocol/read_up_to.py`). A log that stays silent is an obstacle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import fetch
from kmirror.cluster.protocol.batch import LOG_OVERHEAD, PREFIX
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fetch import FetchAnswer, FetchedPartition, FetchKey, FetchPosition
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, TopicPartition
from kmirror.cluster.protocol.read_up_to import Batches, NoBatches, batches_of
from kmirror.cluster.reader import PartitionReader, fetched
from kmirror.engine.histories.judge import SourceMark
from kmirror.engine.histories.stretches import LogEnds, Read, Section, Sections, Side
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, TimedOutError, UnreachableError
from kmirror.work import Add, unwatched

T = TypeVar("T")

_ANSWER_BYTES = 8 << 20
#: The fetch limits of partitions whose batch was not returned, four times larger each time.
_SMALLEST_LIMIT = 64 << 10
_LARGEST_LIMIT = 1 << 20
#: An offset that no log has.
_NO_LOG_END = (1 << 63) - 1
#: The source's last batch is expected to be at most this much larger than the destination's.
_ROOM_BYTES = 4 << 10
#: How many times a quota may delay a request.
_TRIES = 20
#: How long a silent log is asked again; after the first one of a step, others are not.
_PATIENCE_S = 1.0


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


class Unreadable(NamedTuple):
    """Why two logs could not be compared, and on which side."""

    side: Side
    error: KmirrorError | OutcomeUnknown


class _Wanted(NamedTuple):
    offset: int
    max_bytes: int
    #: The log must expose its batches up to here; otherwise its response is not reliable.
    shown_end: int


class _Answer(NamedTuple):
    """What a log answered: a section, None at the end of what it shows; and that end."""

    section: Section | None
    shown_end: int | None


class Reading(Generic[T]):
    """One search in two logs, its next read, and its result."""

    def __init__(
        self,
        source: TopicPartition,
        destination: TopicPartition,
        ends: LogEnds,
        search: Generator[Read, Sections, T],
    ) -> None:
        self.source = source
        self.destination = destination
        self.ends = ends
        self.result: T | Unreadable | None = None
        self.read = Read(None, None)
        #: How many reads it has been given.
        self.reads = 0
        #: The size of the largest first batch of a response so far.
        self.largest_batch = 0
        self._search = search
        self._advance(None)

    def take(self, destination: Section | Unreadable | None, source: Section | Unreadable | None) -> None:
        """Pass what was read, or an obstacle, to the search."""
        self.reads += 1
        if isinstance(destination, Unreadable):
            self._stop_at(destination)
        elif isinstance(source, Unreadable):
            self._stop_at(source)
        else:
            sizes = (_first_size(section.data) for section in (destination, source) if section is not None)
            self.largest_batch = max([self.largest_batch, *sizes])
            self._advance(Sections(destination, source))

    def _stop_at(self, obstacle: Unreadable) -> None:
        self.result = obstacle
        self._search.close()

    def _advance(self, sections: Sections | None) -> None:
        try:
            self.read = next(self._search) if sections is None else self._search.send(sections)
        except StopIteration as done:
            self.result = done.value
        except KmirrorError as error:
            self.result = Unreadable(getattr(error, "side", "source"), error)


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

    def is_still(self, mark: SourceMark, partition: TopicPartition, source: ClusterMetadata) -> bool:
        """Return whether the log of a source partition's leader begins with what it had at an earlier mark.

        It does if the leader epoch of then goes up to the high watermark of then, or further: logs that both have an
        epoch are the same up to where the first of them ends it (KIP-101). A fetch asks for that (KIP-595). A leader
        that also says so of an epoch that is yet to come does not look at epochs, and proves nothing.

        Raises:
            BrokerError, UnreachableError, OutcomeUnknown: the leader does not say.
        """
        leader = source.leader_address(partition)
        if leader is None:
            raise UnreachableError(f"{partition} has no leader")
        key = FetchKey(leader.topic_id, partition.partition, partition.topic)
        broker = Broker(leader.node_id, leader.host, leader.port)

        def has_epoch(epoch: int) -> bool:
            position = FetchPosition(mark.high_watermark, epoch, leader.known_epoch, 1)
            part = self._exchange(self._source, broker, {key: position}, False).get(key)
            code = Code.UNKNOWN_SERVER_ERROR if part is None else part.error_code
            if code not in (Code.NONE, Code.OFFSET_OUT_OF_RANGE):
                raise BrokerError(code, code_name(code), f"reading {partition} at offset {mark.high_watermark}")
            return part is not None and not code and part.diverging_epoch is None

        return has_epoch(mark.last_epoch) and not has_epoch(leader.leader_epoch + 1)

    def epochs_before(
        self, partitions: Iterable[TopicPartition], source: ClusterMetadata
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the last leader epoch with records before that of a source partition's leader, and where it ends.

        Those of which the leader does not say it are left out.
        """
        asked: dict[Broker, dict[FetchKey, FetchPosition]] = defaultdict(dict)
        for partition in partitions:
            leader = source.leader_address(partition)
            if leader is not None and leader.leader_epoch > 0:
                broker = Broker(leader.node_id, leader.host, leader.port)
                key = FetchKey(leader.topic_id, partition.partition, partition.topic)
                # no epoch goes so far: the answer is where this one, or the last before it, ends
                asked[broker][key] = FetchPosition(_NO_LOG_END, leader.leader_epoch - 1, leader.leader_epoch, 1)
        found: dict[TopicPartition, tuple[int, int]] = {}
        for broker, positions in asked.items():
            with suppress(KmirrorError, OutcomeUnknown):
                for key, part in self._exchange(self._source, broker, positions, False).items():
                    if not part.error_code and part.diverging_epoch is not None:
                        found[TopicPartition(key.topic, key.partition)] = part.diverging_epoch
        return found

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
                if read_limits.is_source_alike and not reading.reads and isinstance(answer, Section):
                    size = _first_size(answer.data) + _ROOM_BYTES
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
    ) -> dict[TopicPartition, Section | Unreadable]:
        """Read each partition from its leader."""
        found: dict[TopicPartition, Section | Unreadable] = {}
        led: dict[int, dict[TopicPartition, _Wanted]] = defaultdict(dict)
        for partition, one in wanted.items():
            leader = metadata.leader(partition)
            if leader is None or leader.leader_id is None:
                found[partition] = Unreadable(side, UnreachableError(f"{partition} has no leader"))
            else:
                led[leader.leader_id][partition] = one
        for node_id, partitions in led.items():
            leader_of = side, client, metadata, metadata.brokers[node_id]
            # an adopted former source still has aborted transactions, which only read_committed reports
            answers = self._read(*leader_of, partitions, True)
            if side == "destination" and not self._read_limits.is_destination_committed:
                hidden = {p: one for p, one in partitions.items() if _is_hidden(answers[p], one)}
                answers |= self._read(*leader_of, hidden, False)
            found |= {p: _checked(side, p, one, answers[p]) for p, one in partitions.items()}
        return found

    def _read(
        self,
        side: Side,
        client: ClusterClient,
        metadata: ClusterMetadata,
        broker: Broker,
        wanted: Mapping[TopicPartition, _Wanted],
        read_committed: bool,
    ) -> dict[TopicPartition, _Answer | Unreadable]:
        """Read partitions with one leader: together, and by themselves those of which that brought no batch."""
        found: dict[TopicPartition, _Answer | Unreadable] = {}
        try:
            together = self._ask_together(client, metadata, broker, wanted, read_committed)
        except (KmirrorError, OutcomeUnknown) as error:
            return dict.fromkeys(wanted, Unreadable(side, error))
        patience_s = _PATIENCE_S
        for partition, one in wanted.items():
            part = together.get(partition)
            try:
                if part is None:
                    self.requests += 1
                    found[partition] = _read_alone(client, metadata, partition, one, read_committed, patience_s)
                elif part.error_code:
                    what = f"reading {partition} at offset {one.offset}"
                    raise BrokerError(part.error_code, code_name(part.error_code), what)
                else:
                    shown_end = part.last_stable_offset if read_committed else part.high_watermark
                    section = Section(one.offset, part.records, part.aborted_transactions)
                    found[partition] = _Answer(section, shown_end)
            except (KmirrorError, OutcomeUnknown) as error:
                found[partition] = Unreadable(side, error)
                patience_s = 0.0 if isinstance(error, TimedOutError) else patience_s
        return found

    def _ask_together(
        self,
        client: ClusterClient,
        metadata: ClusterMetadata,
        broker: Broker,
        wanted: Mapping[TopicPartition, _Wanted],
        read_committed: bool,
    ) -> dict[TopicPartition, FetchedPartition]:
        """Fetch partitions with one leader; return those with a batch past their offsets, or an error for good."""
        answers: dict[TopicPartition, FetchedPartition] = {}
        pending: dict[FetchKey, FetchPosition] = {}
        names: dict[FetchKey, TopicPartition] = {}
        for partition, one in wanted.items():
            key = FetchKey(metadata.topics[partition.topic].topic_id, partition.partition, partition.topic)
            epoch = metadata.topics[partition.topic].partitions[partition.partition].leader_epoch
            names[key], pending[key] = partition, FetchPosition(one.offset, None, epoch, one.max_bytes)
        limit = 0
        while len(pending) > 1:
            answered = {
                key: part
                for key, part in self._exchange(client, broker, pending, read_committed).items()
                if part.error_code not in {Code.NONE, Code.UNKNOWN_SERVER_ERROR}
                or batches_of(part, pending[key].fetch_offset) is not None
            }
            answers |= {names[key]: part for key, part in answered.items()}
            if not answered and limit == _LARGEST_LIMIT:
                break
            limit = min(max(4 * limit, _SMALLEST_LIMIT), _LARGEST_LIMIT)
            pending = {
                key: position._replace(partition_max_bytes=max(position.partition_max_bytes, limit))
                for key, position in pending.items()
                if key not in answered
            }
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
            asked = fetch.exchange(positions, max_wait_ms=0, max_bytes=_ANSWER_BYTES, read_committed=is_committed)
            answer: FetchAnswer = fetched(connection, asked)
            if answer.error_code:
                raise BrokerError(answer.error_code, code_name(answer.error_code), f"reading from {connection.address}")
            if answer.partitions or not answer.throttle_time_ms:
                return {part.key: part for part in answer.partitions if part.key in positions}
        raise UnreachableError(f"broker {broker.node_id} throttles every read", "raise the quota of this client")


def _first_size(records: memoryview) -> int:
    """Return the size of the first batch, which may be cut off; 0 without one."""
    return LOG_OVERHEAD + int(PREFIX.unpack_from(records)[1]) if len(records) >= LOG_OVERHEAD else 0


def _read_alone(
    client: ClusterClient,
    metadata: ClusterMetadata,
    partition: TopicPartition,
    wanted: _Wanted,
    read_committed: bool,
    patience_s: float,
) -> _Answer:
    leader = metadata.leader_address(partition)
    reader = PartitionReader(client, partition, read_committed=read_committed, patience_s=patience_s, leader=leader)
    match reader.read_on(wanted.offset, max_bytes=wanted.max_bytes):
        case Batches() as found:
            shown_end = found.last_stable_offset if read_committed else found.high_watermark
            return _Answer(Section(wanted.offset, found.data, found.aborted_transactions), shown_end)
        case NoBatches() as nothing:
            return _Answer(Section(wanted.offset, memoryview(b""), (), nothing.until), nothing.until)
        case at_end:
            return _Answer(None, at_end.end)


def _is_hidden(answer: _Answer | Unreadable, wanted: _Wanted) -> bool:
    """Return True if an open transaction hides wanted batches."""
    return isinstance(answer, _Answer) and (answer.shown_end or 0) < wanted.shown_end


def _checked(
    side: Side, partition: TopicPartition, wanted: _Wanted, answer: _Answer | Unreadable
) -> Section | Unreadable:
    if isinstance(answer, Unreadable):
        return answer
    if answer.section is None or answer.shown_end is None or answer.shown_end < wanted.shown_end:
        return Unreadable(side, UnreachableError(f"{partition} does not show its records below {wanted.shown_end} yet"))
    return answer.section
