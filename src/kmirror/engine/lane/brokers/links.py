"""A lane's connections, each with its requests in flight.

To a source broker: one with a fetch session, another for quiet partitions if there are many, and one for partitions of
which the broker does not return what it has, fetched one by one without a session; over a long path also many that read
ahead. To a destination broker: one for batches, over a long path several, each several requests deep; and if offsets
have to be filled, another one for markers and log end offsets. Brokers handle the requests of a connection in order and
delay all of them when one is throttled, which must not happen to markers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

from kmirror.cluster.protocol import list_offsets, markers, produce
from kmirror.cluster.protocol.fetch import FetchAnswer, FetchKey, FetchSession
from kmirror.cluster.protocol.fill_plan import ReadLeader, WriteMarkers
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_ahead import LONG_ROUND_TRIP, Range, ReadAhead
from kmirror.cluster.protocol.wire import NO_TOPIC_ID, Exchange, FrameError
from kmirror.cluster.stream import Stream
from kmirror.engine.lane.brokers.topic_proof import TopicProof
from kmirror.engine.lane.pace.window import Window
from kmirror.engine.lane.partition.intake import GuardedBatch
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.partition.states import SourceRole

LinkKind = Literal["source", "ahead", "destination", "fill"]
#: The most Produce requests in flight on a connection: over a short path, and over a long one, where the window limits.
REQUESTS_IN_FLIGHT = 5
FAR_REQUESTS_IN_FLIGHT = 64


class FetchLink:
    """A connection for fetches to one source broker, whose answers are used only once their topics are proven."""

    def __init__(self, node_id: int, stream: Stream, client_id: str, version: int, *, incremental: bool) -> None:
        self.node_id = node_id
        self.stream = stream
        self.session = FetchSession(client_id, version, incremental=incremental)
        self.proof = TopicProof(client_id, stream.connection.next_correlation_id) if self.session.by_name else None
        #: The correlation ids of the fetches in flight.
        self.awaited: deque[int] = deque()

    def next_request(self, *, max_wait_ms: int, max_bytes: int, rack: str = "") -> list[bytes]:
        """Encode the session's next request, and note that it is in flight."""
        correlation_id = self.stream.connection.next_correlation_id()
        self.awaited.append(correlation_id)
        request = self.session.request(correlation_id, max_wait_ms=max_wait_ms, max_bytes=max_bytes, rack=rack)
        return [request, *(self.proof.begin() if self.proof else ())]

    def answered(self, view: memoryview) -> tuple[FetchAnswer, memoryview] | None:
        """Decode a response; return the fetch response and its frame once its topics are proven.

        Raises:
            FrameError: not the response to the oldest request in flight.
            OutcomeUnknown: the connection is lost.
        """
        if self.proof is not None and self.proof.expects(view):
            return self.proof.learn(view)
        self.stream.require_answer(view, self.awaited[0] if self.awaited else None)
        self.awaited.popleft()
        answer = self.session.answer(view)
        if self.proof is None:
            return answer, view
        proven, questions = self.proof.hold(answer, view)
        self.stream.send(questions)
        return proven


#: How long a fetch of quiet partitions may wait: well below the time after which a report is no longer fresh.
QUIET_WAIT_MS = 750
#: A broker goes through all quiet partitions before and after a fetch of them waits. With thousands it may wait this
#: many times as long as that takes, but at most so long: twice that is well below the time for which a report may speak
#: of all its rows.
_WAIT_PER_WORK, LONGEST_QUIET_MS = 10, 1500
#: Enough to see how large batches usually are.
FIRST_BYTES = 64 << 10


def next_quiet_wait_ms(asked_ms: int, seconds: float) -> int:
    """Return how long the next fetch of quiet partitions may wait, after one that brought nothing.

    That one was asked to wait for `asked_ms`, and was at the broker for `seconds`.
    """
    work_ms = 1000 * seconds - asked_ms
    return min(max(QUIET_WAIT_MS, int(_WAIT_PER_WORK * work_ms)), LONGEST_QUIET_MS)


class SourceLink(FetchLink):
    """One of at most three connections to a source broker with the partitions fetched over it; see `fetching`."""

    def __init__(self, node_id: int, stream: Stream, client_id: str, version: int, role: SourceRole) -> None:
        super().__init__(node_id, stream, client_id, version, incremental=role != "silent")
        self.role = role
        self.partitions: dict[FetchKey, PartitionCopy] = {}
        self.paused: set[FetchKey] = set()
        #: Partitions that got records by another fetch since the request in flight was sent.
        self.overtaken: set[FetchKey] = set()
        self.asked_at: float | None = None
        #: When the last answered request was sent: partitions that the response did not name had not changed by then.
        self.seen_at = 0.0
        #: The same of the last response that had room for another partition: those it did not name brought nothing.
        self.had_room_at = 0.0
        self.max_bytes = 0
        #: When a response last had records, or a partition was added.
        self.busy_at = 0.0
        #: How long a fetch of quiet partitions may wait at the broker.
        self.quiet_wait_ms = QUIET_WAIT_MS
        #: How much is asked for first of a partition whose batches are of unknown size, over a long path; and when that
        #: was last changed.
        self.first_bytes = FIRST_BYTES
        self.first_bytes_at = 0.0
        self.serial = 0
        #: The usual batch size on this connection, if known.
        self.batch_bytes: int | None = None

    @property
    def waits_since(self) -> float | None:
        """When the request in flight was sent."""
        return self.asked_at

    def next_silent(self, at: float) -> PartitionCopy | None:
        """Return the partition whose turn it is to be fetched by itself, if any is due."""
        for key, partition in self.partitions.items():
            source = partition.source
            if partition.wants_records and not source.is_deferred and at >= source.fetch_again_at:
                del self.partitions[key]
                self.partitions[key] = partition
                return partition
        return None


class Poll(NamedTuple):
    """A fetch in flight of what may be new: by partition the copy, the offset, and the leader epoch before it."""

    wanted: dict[FetchKey, tuple[PartitionCopy, int, int | None]]
    asked_at: float


class AheadRequest(NamedTuple):
    """A request in flight for one range of one partition, which is the partition's own while `reading` is."""

    partition: PartitionCopy
    reading: ReadAhead
    range: Range
    asked_at: float
    allowed_bytes: int


class AheadLink(FetchLink):
    """One of many connections to a source broker over a long path, without a session; see `ahead` and `polls`."""

    def __init__(self, node_id: int, number: int, stream: Stream, client_id: str, version: int) -> None:
        super().__init__(node_id, stream, client_id, version, incremental=False)
        self.number = number
        self.requests: deque[AheadRequest | Poll] = deque()
        #: The next request waits at the broker already while one is answered; a proof is for one at a time.
        self.most_requests = 2 if self.proof is None else 1
        self.used_at = 0.0

    @property
    def waits_since(self) -> float | None:
        """When the oldest request in flight was sent."""
        return self.requests[0].asked_at if self.requests else None


@dataclass(slots=True)
class ProduceRequest:
    """A Produce request in flight."""

    correlation_id: int
    sent_at: float
    batches: list[tuple[PartitionCopy, GuardedBatch]]
    size: int
    #: Bytes delivered on the connection before this was sent.
    delivered: int
    #: True if the broker's memory does not guard a batch in it: nothing may follow before the response.
    alone: bool


class DestinationLink:
    """A connection for batches to one destination broker; there may be several, with numbers from 0."""

    def __init__(self, node_id: int, number: int, stream: Stream, version: int) -> None:
        self.node_id = node_id
        self.number = number
        self.stream = stream
        self.version = version
        self.in_flight: deque[ProduceRequest] = deque()
        self.window = Window()
        self.is_far = False
        self.ready: dict[PartitionCopy, None] = {}
        #: Partitions that are held back until nothing of them is in flight, and the connection they go to then.
        self.leaving: dict[PartitionCopy, int] = {}
        #: Since when a partition waits here until nothing is in flight; None if none does.
        self.alone_since: float | None = None

    @property
    def key(self) -> tuple[int, int]:
        """What the lane calls this connection."""
        return self.node_id, self.number

    @property
    def waits_since(self) -> float | None:
        """When the oldest request in flight was sent."""
        return self.in_flight[0].sent_at if self.in_flight else None

    @property
    def most_requests(self) -> int:
        """How many requests may be in flight."""
        return FAR_REQUESTS_IN_FLIGHT if self.is_far else REQUESTS_IN_FLIGHT

    @property
    def has_room(self) -> bool:
        """True while another request may be sent."""
        return len(self.in_flight) < self.most_requests and self.window.is_open and not self.stream.sending

    def know_round_trip(self, seconds: float) -> None:
        """Note how long the path to the broker is."""
        self.is_far = seconds >= LONG_ROUND_TRIP
        self.window.know_round_trip(seconds, is_long=self.is_far)

    def await_answers(self, count: int) -> None:
        """Have the selector report this connection when `count` of the requests in flight are answered."""
        if count > 1:
            sizes = (produce.least_answer_bytes(len(request.batches)) for request in islice(self.in_flight, count))
            self.stream.await_frames(sum(sizes))
        else:
            self.stream.await_frames(1)

    def in_order(self, answers: list[produce.AppendAnswer], *, many_topics: bool) -> list[produce.AppendAnswer]:
        """Return the answers to the oldest request in the order of its batches; brokers may use any order.

        Raises:
            FrameError: an answer is missing.
        """
        batches = self.in_flight[0].batches
        found: dict[object, produce.AppendAnswer]
        if many_topics:
            found = {(answer.topic, answer.partition): answer for answer in answers}
            keys: list[object] = [self._answer_key(partition) for partition, _ in batches]
        else:
            found = {answer.partition: answer for answer in answers}
            keys = [partition.assignment.partition for partition, _ in batches]
        try:
            return [found[key] for key in keys]
        except KeyError:
            raise FrameError(f"{self.stream.connection.address} responded for different partitions") from None

    def _answer_key(self, partition: PartitionCopy) -> tuple[str | bytes, int]:
        """Return the key of a partition in the responses on this connection."""
        assignment, facts = partition.assignment, partition.facts
        if self.version < produce.FIRST_VERSION_WITH_TOPIC_IDS:
            return assignment.topic, assignment.partition
        return (facts.destination_topic_id if facts else None) or NO_TOPIC_ID, assignment.partition


@dataclass(frozen=True, slots=True)
class RefusedConnection:
    """That a connection could not be opened, and which others to the broker were open then: it may have been down."""

    message: str
    at: float
    links: Sequence[FetchLink | DestinationLink]

    @property
    def has_open(self) -> bool:
        """True while one of them is open."""
        return any(link.stream.fileno() >= 0 for link in self.links)


@dataclass(slots=True)
class FillRequest:
    """A request for markers or log end offsets in flight, with its version."""

    correlation_id: int
    sent_at: float
    partitions: dict[TopicPartition, PartitionCopy]
    asked: Exchange
    version: int

    @property
    def is_log_end(self) -> bool:
        """True if it is for log end offsets."""
        return self.asked.api.key == list_offsets.API_KEY


class FillLink:
    """The connection for markers to one destination broker: at most one request for them and one for log ends."""

    def __init__(self, node_id: int, stream: Stream, marker_version: int, log_end_version: int) -> None:
        self.node_id = node_id
        self.stream = stream
        self.in_flight: deque[FillRequest] = deque()
        self._marker_version = marker_version
        self._log_end_version = log_end_version

    @property
    def waits_since(self) -> float | None:
        """When the oldest request in flight was sent."""
        return self.in_flight[0].sent_at if self.in_flight else None

    def ask(self, steps: list[tuple[PartitionCopy, WriteMarkers]], client_id: str, at: float) -> bytes:
        """Encode one request for markers of several partitions, and note that it is in flight."""
        fills = [
            markers.Fill(
                *copy.assignment.destination,
                copy.assignment.producer_id,
                ask.producer_epoch,
                ask.count,
                ask.coordinator_epoch,
            )
            for copy, ask in steps
        ]
        return self._note(markers.exchange(fills), self._marker_version, [copy for copy, _ in steps], client_id, at)

    def look(self, steps: list[tuple[PartitionCopy, ReadLeader]], client_id: str, at: float) -> bytes:
        """Encode one request for the log ends of several partitions, and note that it is in flight."""
        copies, latest = [copy for copy, _ in steps], list_offsets.LATEST
        ends = {c.assignment.destination: (c.facts.destination_leader[1] if c.facts else None, latest) for c in copies}
        asked = list_offsets.exchange(ends, list_offsets.DEBUGGING_REPLICA, 0, 0)
        return self._note(asked, self._log_end_version, copies, client_id, at)

    def _note(self, asked: Exchange, version: int, copies: list[PartitionCopy], client_id: str, at: float) -> bytes:
        correlation_id = self.stream.connection.next_correlation_id()
        by_partition = {copy.assignment.destination: copy for copy in copies}
        self.in_flight.append(FillRequest(correlation_id, at, by_partition, asked, version))
        for copy in copies:
            copy.fill.sent()
        return asked.encode(correlation_id, version, client_id)

    def answered(self, view: memoryview) -> tuple[FillRequest, dict[TopicPartition, tuple[int, int | None]]]:
        """Decode the response to the oldest request into error codes and, if requested, log ends.

        Raises:
            FrameError: not the response to that request, or an answer is missing.
        """
        self.stream.require_answer(view, self.in_flight[0].correlation_id if self.in_flight else None)
        request = self.in_flight[0]
        answers, throttle_time_ms = request.asked.decode(view, request.version)
        self.stream.connection.note_throttle(throttle_time_ms)
        if not request.partitions.keys() <= answers.keys():
            raise FrameError(f"{self.stream.connection.address} responded for different partitions")
        self.in_flight.popleft()
        found = answers.items()
        return request, {p: (one, None) if isinstance(one, int) else (one.error_code, one.offset) for p, one in found}
