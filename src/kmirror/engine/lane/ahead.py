"""Read over a long path: partitions that are far behind are read ahead over many connections to their broker.

A partition whose backlog is large leaves its fetch session (`fetching`). Its log is then asked for in ranges
(`read_ahead`), each over whichever connection is free, and taken in strictly in order. How many connections that takes
is found out by trying (`breadth`). Whatever is not a plain success, an error, a diverging epoch, an answer without
records, sends the partition back to its session, where everything is judged as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from operator import attrgetter, itemgetter

from kmirror.cluster.protocol.fetch import FetchAnswer, FetchedPartition, FetchKey
from kmirror.cluster.protocol.read_ahead import LONG_ROUND_TRIP, Covered, ReadAhead
from kmirror.cluster.stream import Stream
from kmirror.engine.clock import now
from kmirror.engine.lane.brokers.connections import Connections
from kmirror.engine.lane.brokers.links import AheadLink, AheadRequest, Poll, RefusedConnection, SourceLink
from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.pace.breadth import Breadth
from kmirror.engine.lane.pace.throttle import Throttle
from kmirror.engine.lane.partition.intake import Frame
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.partition.states import Status
from kmirror.engine.lane.polls import Polls
from kmirror.errors import Reason
from kmirror.words import counted

#: How much one request asks for; many small ones wait less for each other than a few large ones.
REQUEST_BYTES = 512 << 10
#: A partition reads ahead if it is this far behind: less is no more than the next fetch of its session brings.
_FAR_BEHIND_BYTES = 2 << 20
_LEAST_BEHIND_BYTES = 128 << 10
_WAIT_MS = 200
#: After trouble a partition is fetched in its session for this long.
_USUAL_SECONDS = 5.0
#: Connections that were not used for this long are closed.
_UNUSED_SECONDS = 60.0
#: How many connections to begin with, by the round trip in seconds.
_FIRST_A_SECOND = 100
_MOST_AT_FIRST = 8
_number_of = attrgetter("number")


class Reach:
    """What is read ahead from one broker."""

    def __init__(self, links: Connections[tuple[int, int], AheadLink], breadth: Breadth, polls: Polls) -> None:
        #: Connections by node and number.
        self.links = links
        self.breadth = breadth
        self.polls = polls
        self.readings: dict[PartitionCopy, ReadAhead] = {}
        #: Those that may have something to ask for, whose turn it is next first; and those with something to take in.
        self.askable: dict[PartitionCopy, None] = {}
        self.waiting: dict[PartitionCopy, None] = {}
        #: Those of `askable` that lack what comes next: asking for that is no guess, which brings some batches twice.
        self.lacking: dict[PartitionCopy, None] = {}
        #: When the last answered request was sent.
        self.seen_at = 0.0
        #: The last connection that could not be opened.
        self.refusal: RefusedConnection | None = None
        #: What has arrived over connections that are closed.
        self.received_before = 0
        #: True if the connections limited what is asked for up to the last tick.
        self.is_limited = False
        #: True if something else than the connections limited what is asked for since the last tick.
        self.is_held_up = False

    def may_ask(self, partition: PartitionCopy) -> None:
        """Note that a partition may have something to ask for, and whether that is what comes next."""
        self.askable[partition] = None
        if self.readings[partition].lacks(partition.intake.next_offset):
            self.lacking[partition] = None

    @property
    def open_links(self) -> list[AheadLink]:
        """The connections that are open, in the order of their numbers."""
        return sorted(self.links.opened, key=_number_of)

    @property
    def received_bytes(self) -> int:
        """What has arrived so far."""
        return self.received_before + sum(link.stream.received_bytes for link in self.links.opened)


class Ahead:
    """Read ahead for one lane; for its sending thread."""

    def __init__(
        self,
        lane: LaneState,
        throttle: Throttle,
        key_of: Callable[[PartitionCopy], FetchKey],
        return_to_session: Callable[[PartitionCopy], None],
        moved: Callable[[PartitionCopy], None],
    ) -> None:
        self._lane = lane
        self._throttle = throttle
        self._key_of = key_of
        self._return_to_session = return_to_session
        self._moved = moved
        self._timeout = lane.source_config.request_timeout_ms / 1000
        self._reaches: dict[int, Reach] = {}
        #: The bytes of frames that have arrived and are not recycled, and those asked for.
        self._frame_bytes = 0
        self._asked_bytes = 0
        #: True if there was no room to ask for what a partition lacks that wants it.
        self.lacks_room = False

    # -- partitions -------------------------------------------------------------------------------------------------

    def path_opened(self, node_id: int, round_trip: float) -> None:
        """Note a connection to a broker, and how long its shortest answer took."""
        if round_trip >= LONG_ROUND_TRIP and node_id not in self._reaches:
            first = max(1, min(int(_FIRST_A_SECOND * round_trip), _MOST_AT_FIRST))
            lane = self._lane
            links: Connections[tuple[int, int], AheadLink] = Connections(
                "ahead", itemgetter(0), lane.loop, lane.background_requests, self._timeout
            )
            links.owner = self
            breadth = Breadth(max(1, self._most_connections), round_trip, first=first)
            self._reaches[node_id] = Reach(links, breadth, Polls(round_trip, self._key_of, self._moved))

    @property
    def _most_connections(self) -> int:
        """How many connections to a broker there may be besides that of its session."""
        return self._lane.control.connections - 1

    def brought(self, partition: PartitionCopy, size: int, at: float) -> None:
        """Note that the session of a partition brought records."""
        reach = self._reaches.get(partition.source.node_id or 0)
        if reach is not None:
            reach.polls.note(partition, size, at)

    def path_limit(self) -> tuple[int, int]:
        """Return over how many connections how much arrives a second while that is what limits; for any thread."""
        limited = [reach for reach in list(self._reaches.values()) if reach.is_limited and reach.breadth.rate]
        return sum(reach.breadth.wanted for reach in limited), int(sum(reach.breadth.rate for reach in limited))

    def seconds_left(self, at: float) -> float:
        """Return the time until something is due."""
        return min(
            (left for r in self._reaches.values() if (left := r.polls.seconds_left(at)) is not None), default=inf
        )

    def is_possible(self, node_id: int) -> bool:
        """Return True if partitions can be read ahead from a broker."""
        return node_id in self._reaches

    def begins(self, partition: PartitionCopy, found: Covered, fetched_with: int, at: float) -> bool:
        """Begin to read a partition ahead if its last response shows that it is far behind; return True if so.

        `found` is what the response covers, `fetched_with` is how many partitions its session has.
        """
        source = partition.source
        reach = self._reaches.get(source.node_id or 0)
        if (
            reach is None
            or self._most_connections < 1
            or not partition.wants_records
            or source.is_deferred
            or at < source.session_until
            or (at < reach.breadth.refused_until and not reach.links.items())
        ):
            return False
        reading = ReadAhead(REQUEST_BYTES)
        reading.learn(found)
        behind = (source.last_stable_offset or 0) - partition.intake.next_offset
        far = max(_LEAST_BEHIND_BYTES, _FAR_BEHIND_BYTES // max(fetched_with, 1))
        if behind * reading.bytes_per_offset < far:
            return False
        source.reads_ahead()
        reach.readings[partition] = reading
        reach.may_ask(partition)
        return True

    def forget(self, partition: PartitionCopy) -> None:
        """Read a partition ahead no longer."""
        for reach in self._reaches.values():
            reading = reach.readings.pop(partition, None)
            if reading is not None:
                for some in (reach.askable, reach.lacking, reach.waiting):
                    some.pop(partition, None)
                reading.clear()
                self._release_dropped(reading)

    def leave(self, is_meant: Callable[[PartitionCopy], bool]) -> None:
        """Fetch those partitions that are meant in their sessions again."""
        for reach in self._reaches.values():
            for partition in [one for one in reach.readings if is_meant(one)]:
                self._leave(reach, partition)

    def _leave(self, reach: Reach, partition: PartitionCopy, *, until: float = 0.0) -> None:
        """Fetch a partition in its session again."""
        self.forget(partition)
        partition.source.not_ahead_until(until)
        self._return_to_session(partition)

    def recycle(self, frame: Frame) -> None:
        """Take back a frame of ours whose last batch is answered."""
        self._frame_bytes -= len(frame.view)
        link = frame.owner
        if isinstance(link, AheadLink) and link.stream.fileno() >= 0:
            link.stream.recycle(frame.view)

    def _release(self, frame: Frame) -> None:
        if frame.release():
            self._lane.released.append(frame)

    def _release_dropped(self, reading: ReadAhead) -> None:
        for one in reading.dropped:
            self._release(one.response[1])
        reading.dropped.clear()

    def answered_at(self) -> float | None:
        """Return the earliest time at which what a broker last answered was asked for; None if nothing is read."""
        return min((reach.seen_at for reach in self._reaches.values() if reach.readings), default=None)

    # -- requests ---------------------------------------------------------------------------------------------------

    def pump(self, at: float) -> None:
        """Take in what partitions want by now, open connections and ask for more."""
        self.lacks_room = False
        if self._most_connections < 1:
            self.leave(lambda _: True)
        for node_id, reach in self._reaches.items():
            for partition in [p for p in reach.waiting if p.wants_records]:
                self._take(reach, partition, at)
            reach.breadth.limit = max(1, self._most_connections)
            wanted = min(reach.polls.connections, self._most_connections)
            if reach.readings:
                wanted = max(wanted, reach.breadth.wanted)
            if at < reach.breadth.refused_until:
                # those that are open have to do; if there is none, what is read ahead needs one
                wanted = 1 if reach.readings and not reach.links.items() else 0
            for number in range(wanted):
                reach.links.open((node_id, number))
            self._poll(reach, at)
            if reach.readings:
                self._ask(reach, at)

    def opened(self, key: tuple[int, int], stream: Stream, versions: tuple[int, ...]) -> AheadLink:
        """Take a new connection into use."""
        link = AheadLink(*key, stream, self._lane.source_config.client_id, *versions)
        link.used_at = now()
        return link

    def refused(self, key: tuple[int, int], message: str, _: Reason | None, at: float) -> None:
        """Note that a connection could not be opened."""
        node_id = key[0]
        reach = self._reaches[node_id]
        reach.breadth.refused(len(reach.links.opened), at)
        if reach.refusal is None or not reach.refusal.has_open:
            reach.refusal = RefusedConnection(message, at, (*reach.links.opened, *self._sessions_with(node_id)))
        if not reach.links.items():
            for partition in list(reach.readings):
                self._leave(reach, partition, until=at + _UNUSED_SECONDS)

    def _sessions_with(self, node_id: int) -> list[SourceLink]:
        return [link for link in self._lane.sources.opened if link.node_id == node_id]

    def _report_limit(self, node_id: int, refusal: RefusedConnection, seen_at: float) -> None:
        """Report that a broker accepts no more connections, if it has refused one and still answers over others."""
        seen_at = max(seen_at, *(link.seen_at for link in self._sessions_with(node_id)), 0.0)
        if self._lane.control.connections_refused is None and refusal.has_open and seen_at > refusal.at:
            few = counted(len(refusal.links), "connection")
            what = f"broker {node_id} of the source accepts no more than {few}: {refusal.message}"
            self._lane.control.connections_refused = what

    def _poll(self, reach: Reach, at: float) -> None:
        partitions = reach.polls.due(at)
        link = (
            next((x for x in reach.open_links if not x.requests and self._is_free(reach, x)), None)
            if partitions
            else None
        )
        if link is None or self._throttle.allowance(at) == 0:
            return
        reach.links.send(link, reach.polls.request(link, partitions, at))

    def _ask(self, reach: Reach, at: float) -> None:
        links = [link for link in reach.open_links[: reach.breadth.wanted] if self._is_free(reach, link)]
        if not links:
            return
        limit = self._lane.control.buffer_bytes or 2 * REQUEST_BYTES
        share = max(limit // len(reach.readings), 2 * REQUEST_BYTES)
        while True:
            link = min(links, key=lambda one: len(one.requests))
            if len(link.requests) >= link.most_requests:
                return
            # what comes next is asked for even if all else that has arrived waits for it: nothing else makes room
            room = limit - self._frame_bytes - self._asked_bytes + (share if reach.lacking else 0)
            if room < REQUEST_BYTES or not reach.askable:
                self.lacks_room = self.lacks_room or any(partition.wants_records for partition in reach.lacking)
                break
            if self._throttle.allowance(at) == 0:
                break
            partition = next(iter(reach.lacking or reach.askable))
            del reach.askable[partition]
            reach.lacking.pop(partition, None)
            reading, position = reach.readings[partition], partition.intake.next_offset
            may_hold = reading.held_bytes < share or reading.lacks(position)
            one = reading.ask(position, partition.source.last_stable_offset or 0) if may_hold else None
            if one is None:
                continue
            reach.may_ask(partition)
            where = partition.fetch_position(one.size)
            if one.is_guess:
                where = where._replace(fetch_offset=one.offset, last_fetched_epoch=None)
            key = self._key_of(partition)
            link.session.want(key, where)
            link.requests.append(AheadRequest(partition, reading, one, at, one.size))
            link.used_at = at
            self._asked_bytes += one.size
            self._throttle.spend(one.size)
            request = link.next_request(max_wait_ms=_WAIT_MS, max_bytes=one.size)
            link.session.forget(key)
            if not reach.links.send(link, request):
                return
        reach.is_held_up = True

    def _is_free(self, reach: Reach, link: AheadLink) -> bool:
        is_usable = not reach.links.must_end(link)
        return is_usable and not link.stream.connection.is_throttled and not link.stream.sending

    # -- answers ----------------------------------------------------------------------------------------------------

    def answered(self, link: AheadLink, view: memoryview) -> None:
        """Take the next frame of a connection. Raises OutcomeUnknown, FrameError."""
        reach, answered = self._reaches[link.node_id], link.answered(view)
        if answered is None:
            return
        answer, view = answered
        at = now()
        request = link.requests.popleft()
        if isinstance(request, Poll):
            self._polled(reach, link, request, answer, view, at)
            return
        partition, reading, one = request.partition, request.reading, request.range
        link.stream.connection.note_throttle(answer.throttle_time_ms)
        self._asked_bytes -= request.allowed_bytes
        self._throttle.received(len(view), paid=request.allowed_bytes)
        self._frame_bytes += len(view)
        frame = Frame(view, link)
        reach.seen_at = max(reach.seen_at, request.asked_at)
        if answer.throttle_time_ms:
            reach.breadth.throttled(at)
        key = self._key_of(partition) if reach.readings.get(partition) is reading else None
        if key is None:
            self._release(frame)
            return
        part = next((part for part in answer.partitions if part.key == key), None)
        if part is not None and not part.error_code:
            partition.ends_seen(part, request.asked_at)
        if part is not None and _is_plain(part) and reading.arrived(one, part.records, (part, frame)):
            self._lane.counts.fetches.took(at - request.asked_at)
            self._take(reach, partition, at)
            return
        reading.give_up(one)
        reach.may_ask(partition)
        self._release(frame)
        if not answer.throttle_time_ms:
            self._leave(reach, partition, until=at + _USUAL_SECONDS)

    def _polled(
        self, reach: Reach, link: AheadLink, poll: Poll, answer: FetchAnswer, view: memoryview, at: float
    ) -> None:
        link.stream.connection.note_throttle(answer.throttle_time_ms)
        self._throttle.received(len(view))
        self._frame_bytes += len(view)
        frame = Frame(view, link)
        reach.polls.answered(poll, answer.partitions, frame, at)
        self._release(frame)

    def _take(self, reach: Reach, partition: PartitionCopy, at: float) -> None:
        """Take in what has arrived of a partition, as far as it goes and as much as the partition wants."""
        reading, intake = reach.readings[partition], partition.intake
        reach.waiting[partition] = None
        while partition.wants_records:
            one = reading.take(intake.next_offset, intake.leader_epoch)
            if one is None:
                reach.waiting.pop(partition)
                break
            part, frame = one.response
            partition.fetched_ahead(one.batches, part, frame)
            partition.source.got_records(at)
            self._release(frame)
            if partition.blocked_by or intake.next_offset < one.until:
                # what is left decides itself in the session
                self._leave(reach, partition, until=at + _USUAL_SECONDS)
                partition.advance(at)
                break
        else:
            if partition.status is not Status.COPYING:
                self.forget(partition)
        self._release_dropped(reading)
        if partition in reach.readings:
            reach.may_ask(partition)
        if partition in reach.readings and not reading.ranges:
            behind = (partition.source.last_stable_offset or 0) - intake.next_offset
            if behind * reading.bytes_per_offset < _LEAST_BEHIND_BYTES:
                self._leave(reach, partition)
        if partition.queue:
            self._lane.make_ready(partition)

    def on_tick(self, at: float) -> None:
        """Do what is due: time-outs, the number of connections, closing those that are not used."""
        for node_id, reach in self._reaches.items():
            if reach.refusal is not None:
                self._report_limit(node_id, reach.refusal, reach.seen_at)
            reach.links.on_tick(at)
            links = reach.open_links
            is_limit = bool(reach.readings) and not reach.is_held_up
            reach.breadth.on_tick(at, reach.received_bytes, len(links), is_limit=is_limit)
            reach.is_limited, reach.is_held_up = is_limit, False
            wanted = max(reach.breadth.wanted, reach.polls.connections)
            for place, link in enumerate(links):
                if not link.requests and at - link.used_at > (_UNUSED_SECONDS if place < wanted else 1.0):
                    reach.links.lose(link, "it is no longer used")

    def lost(self, link: AheadLink, _: str, __: float) -> None:
        """Have what a closed connection was asked for asked for again, over another."""
        reach = self._reaches[link.node_id]
        reach.received_before += link.stream.received_bytes
        for request in link.requests:
            if isinstance(request, Poll):
                continue
            self._asked_bytes -= request.allowed_bytes
            self._throttle.spend(-request.allowed_bytes)
            request.reading.give_up(request.range)
            if reach.readings.get(request.partition) is request.reading:
                reach.may_ask(request.partition)
        link.requests.clear()

    def hang_up(self) -> None:
        """Close all connections at once."""
        for reach in self._reaches.values():
            reach.received_before = reach.received_bytes
            reach.links.hang_up()


def _is_plain(part: FetchedPartition) -> bool:
    return not part.error_code and not part.diverging_epoch and part.preferred_read_replica is None
