"""Read what comparing the ends of logs asks for (`tails`), for many partitions side by side. Blocking; decides nothing.

All partitions with one leader share a request: usually one per side and leader for dozens of partitions, each with the
one batch that holds the last offset. A broker returns a batch that is larger than its partition's share only as the
first of an answer, and else nothing; so nothing is believed only of a partition that was asked for alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kmirror.cluster.batch import LOG_OVERHEAD, PREFIX
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.codes import code_name
from kmirror.cluster.fetch import API_KEY, VERSION, FetchedPartition, FetchKey, FetchPosition, FetchSession
from kmirror.cluster.metadata import Broker, ClusterMetadata, TopicPartition
from kmirror.engine.spec import Assignment
from kmirror.engine.tails import Comparing, Ends, Finding, Read, Section, Sections, Side, compare_tails
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, UnreachableError

#: Partitions whose ends are compared side by side: their batches are in memory together.
_PARTITIONS_AT_ONCE = 32
_ANSWER_BYTES = 8 << 20
#: What may come of one partition: the destination's last batch, behind which nothing comes; or a stretch further back.
_LAST_BATCH_BYTES = 1 << 20
_STRETCH_BYTES = 256 << 10
#: What partitions whose batch did not come are given, four times more each time.
_SMALLEST_SHARE = 64 << 10
_LARGEST_SHARE = 1 << 20
#: The source's last batch is as large as the destination's, or not much larger.
_ROOM_BYTES = 4 << 10
#: A quota puts a request off as often as this at most.
_TRIES = 20


class Obstacle(NamedTuple):
    """Say why two logs could not be compared, and on which side."""

    side: Side
    error: KmirrorError | OutcomeUnknown


class _Wanted(NamedTuple):
    offset: int
    max_bytes: int
    #: The log has to show its batches up to here; if it does not, what it says is not to be trusted.
    shown_end: int


class _Walk:
    """One partition's comparison, and what it has to be given next."""

    def __init__(self, assignment: Assignment, ends: Ends) -> None:
        self.assignment = assignment
        self.ends = ends
        self.result: Finding | Obstacle | None = None
        self.read = Read(None, None)
        self.is_first = True
        self._comparing: Comparing = compare_tails(ends, assignment.producer_id)
        self._advance(None)

    def take(self, destination: FetchedPartition | Obstacle | None, source: FetchedPartition | Obstacle | None) -> None:
        """Take what was read, or why it was not."""
        for answer in (destination, source):
            if isinstance(answer, Obstacle):
                self.result = answer
                self._comparing.close()
                return
        assert not isinstance(destination, Obstacle)
        assert not isinstance(source, Obstacle)
        self.is_first = False
        self._advance(Sections(_section(self.read.destination, destination), _section(self.read.source, source)))

    def _advance(self, sections: Sections | None) -> None:
        try:
            self.read = next(self._comparing) if sections is None else self._comparing.send(sections)
        except StopIteration as done:
            self.result = done.value
        except KmirrorError as error:
            self.result = Obstacle(getattr(error, "side", "source"), error)


def _section(offset: int | None, part: FetchedPartition | None) -> Section | None:
    if offset is None or part is None:
        return None
    return Section(offset, part.records, part.aborted_transactions)


class TailReader:
    """Compare the ends of logs on two clusters."""

    def __init__(self, source: ClusterClient, destination: ClusterClient) -> None:
        self._source = source
        self._destination = destination

    def compare(
        self, wanted: Mapping[Assignment, Ends], source: ClusterMetadata, destination: ClusterMetadata
    ) -> dict[Assignment, Finding | Obstacle]:
        """Return how the ends of each partition's logs compare, or what is in the way.

        The metadata says who leads; a leader that has changed since then is an obstacle like any other.
        """
        found: dict[Assignment, Finding | Obstacle] = {}
        assignments = list(wanted)
        for first in range(0, len(assignments), _PARTITIONS_AT_ONCE):
            walks = [_Walk(a, wanted[a]) for a in assignments[first : first + _PARTITIONS_AT_ONCE]]
            while going := [walk for walk in walks if walk.result is None]:
                self._step(going, source, destination)
            found |= {walk.assignment: walk.result for walk in walks if walk.result is not None}
        return found

    def _step(self, walks: Iterable[_Walk], source: ClusterMetadata, destination: ClusterMetadata) -> None:
        here, there = {}, {}
        for walk in walks:
            if walk.read.destination is not None:
                size = _LAST_BATCH_BYTES if walk.is_first else _STRETCH_BYTES
                wanted = _Wanted(walk.read.destination, size, walk.ends.destination_end)
                here[walk.assignment.destination] = wanted
        ours = _fetch("destination", self._destination, destination, here)
        for walk in walks:
            if walk.read.source is not None:
                answer = ours.get(walk.assignment.destination)
                size = _STRETCH_BYTES
                if walk.is_first and isinstance(answer, FetchedPartition):
                    size = _first_size(answer.records) + _ROOM_BYTES
                there[walk.assignment.source] = _Wanted(walk.read.source, size, walk.ends.shared_end)
        theirs = _fetch("source", self._source, source, there)
        for walk in walks:
            walk.take(ours.get(walk.assignment.destination), theirs.get(walk.assignment.source))


def _first_size(records: memoryview) -> int:
    """Return the size of the first batch, 0 when there is none; it may be cut off."""
    return LOG_OVERHEAD + int(PREFIX.unpack_from(records)[1]) if len(records) >= LOG_OVERHEAD else 0


def _fetch(
    side: Side, client: ClusterClient, metadata: ClusterMetadata, wanted: Mapping[TopicPartition, _Wanted]
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
        key = FetchKey(metadata.topics[partition.topic].topic_id, partition.partition)
        led[leader.leader_id][key] = partition
        positions[key] = FetchPosition(offset, -1, leader.leader_epoch, max_bytes)
    for node_id, partitions in led.items():
        broker = metadata.brokers[node_id]
        try:
            answers = _ask(client, broker, {key: positions[key] for key in partitions}, side == "source")
        except (KmirrorError, OutcomeUnknown) as error:
            found |= dict.fromkeys(partitions.values(), Obstacle(side, error))
        else:
            found |= {p: _checked(side, p, wanted[p], answers.get(key)) for key, p in partitions.items()}
    return found


def _checked(
    side: Side, partition: TopicPartition, wanted: _Wanted, part: FetchedPartition | None
) -> FetchedPartition | Obstacle:
    if part is None:
        return Obstacle(side, UnreachableError(f"{partition} was left out of an answer"))
    if part.error_code:
        what = f"reading {partition} at offset {wanted.offset}"
        return Obstacle(side, BrokerError(part.error_code, code_name(part.error_code), what))
    shown_end = part.last_stable_offset if side == "source" else part.high_watermark
    if shown_end is None or shown_end < wanted.shown_end:
        return Obstacle(side, UnreachableError(f"{partition} does not show its records below {wanted.shown_end} yet"))
    return part


def _ask(
    client: ClusterClient, broker: Broker, positions: Mapping[FetchKey, FetchPosition], read_committed: bool
) -> dict[FetchKey, FetchedPartition]:
    """Ask one broker until each partition has answered with a batch, an error, or nothing when asked for alone."""
    answers: dict[FetchKey, FetchedPartition] = {}
    pending = dict(positions)
    share = 0
    while len(pending) > 1:
        said = {
            key: part
            for key, part in _exchange(client, broker, pending, read_committed).items()
            if part.error_code or 0 < _first_size(part.records) <= len(part.records)
        }
        if not said and share == _LARGEST_SHARE:
            break
        answers |= said
        share = min(max(4 * share, _SMALLEST_SHARE), _LARGEST_SHARE)
        pending = {
            key: position._replace(partition_max_bytes=max(position.partition_max_bytes, share))
            for key, position in pending.items()
            if key not in said
        }
    for key, position in pending.items():
        answers |= _exchange(client, broker, {key: position}, read_committed)
    return answers


def _exchange(
    client: ClusterClient, broker: Broker, positions: Mapping[FetchKey, FetchPosition], read_committed: bool
) -> dict[FetchKey, FetchedPartition]:
    """Send one request.

    Raises:
        UnreachableError: the broker cannot be reached, or only ever says that it is to be asked later.
        BrokerError: it refuses the request as a whole.
        OutcomeUnknown: it does not answer.
    """
    for _ in range(_TRIES):
        connection = client.connect(broker.node_id, broker.host, broker.port)
        connection.version_for(API_KEY, VERSION, VERSION, "Fetch")
        connection.wait_for_throttle()
        session = FetchSession(client.config.client_id, incremental=False)
        for key, position in positions.items():
            session.want(key, position)
        correlation_id = connection.next_correlation_id()
        request = session.request(correlation_id, max_wait_ms=0, max_bytes=_ANSWER_BYTES, read_committed=read_committed)
        frame = connection.exchange_frame([request], correlation_id, client.config.request_timeout_ms / 1000)
        answer = session.answer(frame)
        connection.note_throttle(answer.throttle_time_ms)
        if answer.error_code:
            raise BrokerError(answer.error_code, code_name(answer.error_code), f"reading from {connection!r}")
        if answer.partitions or not answer.throttle_time_ms:
            return {part.key: part for part in answer.partitions}
    raise UnreachableError(f"broker {broker.node_id} throttles every read", "raise the quota of this client")
