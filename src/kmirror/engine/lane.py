"""The copy loop: the blocking shell round the partitions' state machines (`lane_partition`).

One thread moves bytes: it waits for sockets, hands whole frames to the machines, and sends what they allow. It never
waits for anything else: what does is done by the threads of `lane_errands`, and following the engine's claims and
writing progress by `lane_control`. What they find comes back as events through a queue, so every decision is taken
here, one after another.

Per source broker one connection carries a fetch session, with one request under way; per destination broker one
connection carries up to five requests, each with at most one batch of every partition that broker leads, and another
one (`lane_fills`) the markers that fill gaps.

Before anything is sent to the destination the lane's deadline is looked at. A lane that is past it hangs up at once.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import struct
from collections.abc import Callable, Sequence

from kmirror.cluster import produce
from kmirror.cluster.codes import Code, code_name
from kmirror.cluster.connection import Stream
from kmirror.cluster.fetch import FetchKey
from kmirror.cluster.security import client_config
from kmirror.cluster.wire import INT32, NO_TOPIC_ID, FrameError
from kmirror.engine import lifeline
from kmirror.engine.clock import now, now_ms
from kmirror.engine.judge import Facts, judge
from kmirror.engine.lane_changes import Changes
from kmirror.engine.lane_control import LaneControl
from kmirror.engine.lane_errands import Errands
from kmirror.engine.lane_fills import Fills
from kmirror.engine.lane_intake import Batch, Frame
from kmirror.engine.lane_links import DestinationLink, Link, ProduceRequest, Side, SourceLink
from kmirror.engine.lane_partition import PartitionCopy, Permission, Status
from kmirror.engine.lane_report import Reports
from kmirror.engine.lane_rounds import Rounds
from kmirror.engine.spec import Assignment, LaneResult, LaneSpec
from kmirror.errors import OutcomeUnknown, Reason
from kmirror.state.records import LaneChangeRecord, ProgressRow

#: What one fetch may bring, in all and of one partition. Little enough to stay in the processor's cache on its way
#: through: larger answers are slower, here and at both brokers.
FETCH_BYTES = 2 << 20
PARTITION_BYTES = 1 << 20
FETCH_WAIT_MS = 200
#: How long a fetch may wait while a partition is left out of it because its batches are not sent yet.
FETCH_WAIT_HELD_BACK_MS = 5
#: Received bytes a lane may hold; beyond that it does not fetch.
LANE_BYTES = 16 << 20
REQUESTS_IN_FLIGHT = 5
#: A request takes no further batch when it has so many bytes; over a long line it may take more.
PRODUCE_BYTES = 1 << 20
PRODUCE_PARTITIONS = 200
_TICK = 0.1
_LOOK_AROUND_SECONDS = 0.1
_STOP_SECONDS = 2.0
_CLOCK_MARGIN_SECONDS = 0.5


class Lane:
    """Copy a set of partitions until told to stop."""

    def __init__(self, spec: LaneSpec, attempt: int) -> None:
        self.spec = spec
        self.attempt = attempt
        self._source_config = client_config(spec.source_properties)
        self.destination_config = client_config(spec.destination_properties)
        self._events: queue.SimpleQueue[Callable[[float], None]] = queue.SimpleQueue()
        self._errands = Errands(
            spec, self._source_config, self.destination_config, self._broken, stream_bytes=FETCH_BYTES + (64 << 10)
        )
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._sources: dict[int, SourceLink | None] = {}
        self._destinations: dict[int, DestinationLink | None] = {}
        self._held_bytes = 0
        self._released: list[Frame] = []
        self._looked_at = 0.0
        #: Whoever may still write under an older claim can do so for a lane's time, counted from when ours was written.
        self._awaiting_claim = spec.predecessor_may_write or attempt > 0
        self._quiet_until = float("inf") if self._awaiting_claim else 0.0
        #: Replaced, never changed: other threads read it.
        self.partitions: list[PartitionCopy] = []
        self._many_topics = False
        self.partitions = self.copies_of(spec.assignments, now(), in_doubt=False)
        self._by_key: dict[PartitionCopy, FetchKey] = {}
        self._was_caught_up = False
        self._reports = Reports(self._source_seen_at)
        self.control = LaneControl(spec, attempt, self.destination_config, self._rows, self._broken)
        self.control.on_change = lambda: self._post(lambda _: None)
        self._changes = Changes(self, self.control.report_soon)
        self.control.standing = lambda: (self._changes.taken, self._changes.given_up)
        self.control.on_lane_change = self._on_lane_change
        self.control.on_told = lambda given_up: self._post(lambda _: self._changes.told(given_up))
        self._fills = Fills(self, self._errands, self._post)
        self._rounds = Rounds(self._errands, self._post)

    # -- life -----------------------------------------------------------------------------------------------------

    def run(self, before_sending: Callable[[], None] = lambda: None) -> LaneResult:
        """Copy until the control says that this lane ends; return how it stands then.

        `before_sending` is called once in the thread that sends, when all other threads have been started.
        """
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._errands.start()
        self.control.start()
        before_sending()
        self.begin(self.partitions, self.spec.unsettled_lanes)
        try:
            while self.control.ended is None:
                self._turn(_TICK)
            self._drain(now() + _STOP_SECONDS)
            at = now()
            clean = all(partition.nothing_can_arrive(at) for partition in self._all())
        finally:
            self._errands.stop()
            self._hang_up()
            self._errands.join(timeout=5)
            self.control.stop(final_report=self._ended_how() == "STOPPED")
            self._selector.close()
            self._waker.close()
            self._woken.close()
        how, message = self.control.ended
        reports = tuple(p.report() for p in self.partitions)
        return LaneResult(self.spec.lane, self.spec.generation, self.attempt, how, message, reports, clean)

    def _ended_how(self) -> str | None:
        return self.control.ended[0] if self.control.ended else None

    def _drain(self, until: float) -> None:
        """Take the answers to what is in flight; send nothing more."""
        if self._ended_how() != "STOPPED":
            return
        while now() < until and any(p.in_flight or p.fill_is_under_way for p in self._all()):
            self._turn(0.05, sending=False)

    def _all(self) -> list[PartitionCopy]:
        """Return the partitions that are being given up, and then those that are copied."""
        return [*self._changes.leaving, *self.partitions]

    def _hang_up(self) -> None:
        """Close every connection; what the kernel has not sent yet is thrown away."""
        for links in (self._sources, self._destinations, self._fills.links):
            for link in links.values():
                if link:
                    self._reset(link.stream)
            links.clear()

    @staticmethod
    def _reset(stream: Stream) -> None:
        """Close a connection so that nothing more gets through it."""
        with contextlib.suppress(OSError):
            stream.connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()

    def _turn(self, timeout: float, *, sending: bool = True) -> None:
        """Wait for something to happen, take it, and send what may be sent."""
        for selected, mask in self._selector.select(timeout):
            link = selected.data
            if link is None:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            elif isinstance(link, SourceLink):
                self._source_ready(link, mask)
            elif isinstance(link, DestinationLink):
                self._destination_ready(link, mask)
            else:
                self._fills.link_ready(link, mask)
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                break
            event(now())
        if sending:
            self._look_around(now())
            for source in list(self._sources.values()):
                if source:
                    self._pump_source(source)
            for destination in list(self._destinations.values()):
                if destination:
                    self._pump_destination(destination)
            self._fills.pump()

    def _post(self, event: Callable[[float], None]) -> None:
        self._events.put(event)
        with contextlib.suppress(BlockingIOError, OSError):
            self._waker.send(b"x")

    def _broken(self, error: Exception) -> None:
        """End the lane with an error that one of its other threads met, instead of waiting for that thread for ever."""

        def end(_: float) -> None:
            raise error

        self._post(end)

    # -- the work -------------------------------------------------------------------------------------------------

    def copies_of(self, assignments: Sequence[Assignment], at: float, *, in_doubt: bool) -> list[PartitionCopy]:
        """Make the copies of partitions that come to this lane; `in_doubt`: somebody may still write to them."""
        ttl = self.spec.ttl_ms / 1000
        quiet_until = max(self._quiet_until, at + ttl + _CLOCK_MARGIN_SECONDS if in_doubt else 0.0)
        topics = {*(p.assignment.topic for p in self.partitions), *(a.topic for a in assignments)}
        # never less than it was: requests may be under way
        self._many_topics = self._many_topics or len(topics) > 1
        return [
            PartitionCopy(
                assignment,
                quiet_until=quiet_until,
                settle=ttl,
                retry_timeout=self.spec.retry_timeout_ms / 1000,
                released=self._released,
            )
            for assignment in assignments
        ]

    def begin(self, partitions: Sequence[PartitionCopy], unsettled_lanes: Sequence[int]) -> None:
        """Begin to copy, once it is ended what these lanes may have left open."""

        def settled() -> None:
            current = set(self.partitions)
            if left := [partition for partition in partitions if partition in current]:
                self._inspect(left)

        if partitions:
            self._fills.settle(partitions, unsettled_lanes, settled)

    def _on_lane_change(self, change: LaneChangeRecord) -> None:
        self._post(lambda at: self._changes.take(change, at))

    def may_send(self, at: float) -> bool:
        """Tell whether anything may be sent to the destination: this lane's time is not over, and it knows its work."""
        return at < self.control.deadline and self.control.revision == self._changes.taken

    def hang_up_on(self, partition: PartitionCopy) -> None:
        """Give up the connections on which something is on its way to a partition."""
        node_id, message = partition.destination_node, "no answer while a partition is to be given up"
        link = self._destinations.get(node_id) if node_id is not None else None
        if partition.in_flight and link:
            self._lose_destination(link, message)
        elif partition.fill_is_under_way and node_id is not None:
            self._fills.lose(node_id, message)

    # -- errands --------------------------------------------------------------------------------------------------

    def _inspect(self, partitions: list[PartitionCopy]) -> None:
        for partition in partitions:
            partition.begin_inspection(now())

        def done(facts: list[Facts]) -> None:
            self._post(lambda at: self._inspected(partitions, facts, at))

        self._errands.inspect([p.assignment for p in partitions], done)

    def _inspected(self, partitions: list[PartitionCopy], all_facts: list[Facts], at: float) -> None:
        told = list(zip(partitions, all_facts, strict=True))
        # those that were given up meanwhile are not inspected any more
        for partition, facts in [(p, facts) for p, facts in told if p.status is Status.INSPECTING]:
            verdict = judge(
                partition.assignment,
                partition.acknowledged,
                facts,
                first_offset=partition.assignment.first_offset,
                begun=partition.begun,
            )
            partition.inspected(facts, verdict, at, now_ms())
            if partition.status is Status.COPYING:
                self._attach(partition, facts)
                self.make_ready(partition)

    def _attach(self, partition: PartitionCopy, facts: Facts) -> None:
        """Give a partition its place in the fetch session of its source leader."""
        self.detach(partition)
        destination = facts.destination_leader[0]
        if destination not in self._destinations:
            self._destinations[destination] = None
            self._connect("destination", destination)
        if partition.is_to_be_trimmed:
            return
        self._by_key[partition] = FetchKey(facts.source_topic_id or b"", partition.assignment.partition)
        leader = facts.source_leader[0]
        link = self._sources.get(leader)
        if leader not in self._sources:
            self._sources[leader] = None
            self._connect("source", leader)
        elif link:
            self._join(link, partition)

    def _join(self, link: SourceLink, partition: PartitionCopy) -> None:
        key = self._by_key[partition]
        link.partitions[key] = partition
        link.held_back.discard(key)
        partition.valid_from_serial = link.serial + 1
        link.session.want(key, partition.fetch_position(PARTITION_BYTES))

    def fetch_on(self, partition: PartitionCopy) -> None:
        """Fetch from where the partition's queue ends now, which was moved."""
        key = self._by_key.get(partition)
        for link in self._sources.values():
            if key and link and link.partitions.get(key) is partition:
                self._join(link, partition)
        self.make_ready(partition)

    def detach(self, partition: PartitionCopy) -> None:
        """Take a partition out of its fetch session."""
        key = self._by_key.pop(partition, None)
        if key is None:
            return
        for link in self._sources.values():
            if link and link.partitions.get(key) is partition:
                del link.partitions[key]
                link.held_back.discard(key)
                link.session.forget(key)

    def _connect(self, side: Side, node_id: int) -> None:
        def done(stream: Stream, versions: tuple[int, ...]) -> None:
            self._post(lambda at: self._connected(side, node_id, stream, versions))

        def failed(message: str, reason: Reason | None) -> None:
            self._post(lambda at: self._not_connected(side, node_id, message, reason, at))

        self._errands.connect(side, node_id, done, failed)

    def _connected(self, side: Side, node_id: int, stream: Stream, versions: tuple[int, ...]) -> None:
        link: SourceLink | DestinationLink
        if side == "source":
            link = self._sources[node_id] = SourceLink(node_id, stream, self._source_config.client_id)
            for partition in self.partitions:
                if partition in self._by_key and self._source_of(partition) == node_id:
                    self._join(link, partition)
        else:
            link = self._destinations[node_id] = DestinationLink(node_id, stream, *versions)
            for partition in self.partitions:
                if partition.queue and partition.destination_node == node_id:
                    link.ready[partition] = None
        self.watch_first(link)

    def watch_first(self, link: Link) -> None:
        """Begin to wait for what a connection brings."""
        self._selector.register(link.stream.fileno(), selectors.EVENT_READ, link)

    def _not_connected(self, side: Side, node_id: int, message: str, reason: Reason | None, at: float) -> None:
        self._links(side).pop(node_id, None)
        for partition in self._all():
            if side == "source" and self._source_of(partition) == node_id:
                partition.source_lost(message, at, reason)
            elif side == "destination" and partition.destination_node == node_id:
                partition.outcome_unknown(message, at)

    def _links(self, side: Side) -> dict[int, SourceLink | None] | dict[int, DestinationLink | None]:
        return self._sources if side == "source" else self._destinations

    @staticmethod
    def _source_of(partition: PartitionCopy) -> int | None:
        return partition.facts.source_leader[0] if partition.facts else None

    def _look_around(self, at: float) -> None:
        """Begin what is due: inspections, time-outs, the news that everything is copied."""
        if at - self._looked_at < _LOOK_AROUND_SECONDS:
            return
        self._looked_at = at
        due = [p for p in self.partitions if p.due_for_inspection(at)]
        if due:
            for partition in due:
                self.detach(partition)
            self._inspect(due)
        for source in list(self._sources.values()):
            timeout = self._source_config.request_timeout_ms / 1000
            if source and source.asked_at is not None and at - source.asked_at > timeout:
                self._lose_source(source, "no answer in time")
        for destination in list(self._destinations.values()):
            timeout = self.destination_config.request_timeout_ms / 1000
            if destination and destination.in_flight and at - destination.in_flight[0].sent_at > timeout:
                self._lose_destination(destination, "no answer in time")
        if self._awaiting_claim and self.control.claimed_at is not None:
            self._awaiting_claim = False
            self._quiet_until = self.control.claimed_at + self.spec.ttl_ms / 1000 + _CLOCK_MARGIN_SECONDS
            for partition in self._all():
                partition.predecessor_ends(self._quiet_until)
        for destination in list(self._destinations.values()):
            if destination and destination.in_flight and at >= self.control.deadline:
                self._lose_destination(destination, "this lane's time is over")
        self._fills.look_around(at)
        self._changes.look_around(at)
        self._rounds.look_around(self.partitions, at)
        caught_up = all(p.caught_up or p.status is Status.FAILED for p in self.partitions)
        if caught_up and not self._was_caught_up:
            self.control.report_soon()
        self._was_caught_up = caught_up

    # -- source ---------------------------------------------------------------------------------------------------

    def _pump_source(self, link: SourceLink) -> None:
        for key in list(link.held_back):
            partition = link.partitions[key]
            if partition.wants_records:
                link.held_back.discard(key)
                link.session.want(key, partition.fetch_position(PARTITION_BYTES))
        if link.asked_at is not None or self._held_bytes > LANE_BYTES or not len(link.session):
            return
        connection = link.stream.connection
        if connection.is_throttled:
            return
        if connection.must_be_replaced:
            self._lose_source(link, "the session's time is over")
            return
        wait = FETCH_WAIT_HELD_BACK_MS if link.held_back else FETCH_WAIT_MS
        link.correlation_id = connection.next_correlation_id()
        link.serial += 1
        link.asked_at = now()
        request = link.session.request(link.correlation_id, max_wait_ms=wait, max_bytes=FETCH_BYTES)
        try:
            link.stream.send([request])
        except OutcomeUnknown as error:
            self._lose_source(link, str(error))
            return
        self.watch(link)

    def _source_ready(self, link: SourceLink, mask: int) -> None:
        if self._sources.get(link.node_id) is not link:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                link.stream.flush()
                self.watch(link)
            while self._sources.get(link.node_id) is link and (view := link.stream.receive()) is not None:
                self._fetched(link, view)
        except (OutcomeUnknown, FrameError) as error:
            self._lose_source(link, str(error))

    def _fetched(self, link: SourceLink, view: memoryview) -> None:
        if INT32.unpack_from(view)[0] != link.correlation_id:
            raise FrameError(f"{link.stream.connection!r} answered another request than the one asked")
        asked_at, link.asked_at = link.asked_at, None
        answer = link.session.answer(view)
        link.stream.connection.note_throttle(answer.throttle_time_ms)
        if answer.error_code:
            if answer.error_code not in {Code.FETCH_SESSION_ID_NOT_FOUND, Code.INVALID_FETCH_SESSION_EPOCH}:
                self._lose_source(link, code_name(answer.error_code))
            return
        frame = Frame(view, link)
        self._held_bytes += len(view)
        at = now()
        link.seen_at = asked_at or link.seen_at
        for part in answer.partitions:
            partition = link.partitions.get(part.key)
            if partition is None or partition.valid_from_serial > link.serial:
                continue
            partition.fetched(part, frame, at)
            partition.source_seen_at = link.seen_at
            if partition.status is not Status.COPYING:
                self.detach(partition)
            elif partition.failure:
                link.session.forget(part.key)
                partition.settle_failure()
            elif len(part.records):
                if partition.wants_records:
                    link.session.want(part.key, partition.fetch_position(PARTITION_BYTES))
                else:
                    link.session.forget(part.key)
                    link.held_back.add(part.key)
            if partition.queue:
                self.make_ready(partition)
        if frame.release():
            self._released.append(frame)
        self.collect()

    def _lose_source(self, link: SourceLink, message: str) -> None:
        if self._sources.get(link.node_id) is not link:
            return
        self._selector.unregister(link.stream.fileno())
        link.stream.close()
        self._sources.pop(link.node_id, None)
        at = now()
        for partition in list(link.partitions.values()):
            partition.source_lost(f"{link.stream.connection!r}: {message}", at)
            self._by_key.pop(partition, None)
        self.collect()

    # -- destination ----------------------------------------------------------------------------------------------

    def make_ready(self, partition: PartitionCopy) -> None:
        """Let a partition with something in its queue have its turn."""
        node_id = partition.destination_node
        link = self._destinations.get(node_id) if node_id is not None else None
        if link:
            link.ready[partition] = None

    def _pump_destination(self, link: DestinationLink) -> None:
        connection = link.stream.connection
        while (
            link.ready and len(link.in_flight) < REQUESTS_IN_FLIGHT and link.window.is_open and not link.stream.sending
        ):
            at, wall = now(), now_ms()
            if connection.is_throttled or not self.may_send(at):
                return
            if connection.must_be_replaced:
                if not link.in_flight:
                    self._lose_destination(link, "the session's time is over")
                return
            if link.in_flight and link.in_flight[-1].alone:
                return
            batches, alone = self._choose(link, wall)
            if not batches:
                return
            self._append(link, batches, at, alone)

    def _choose(self, link: DestinationLink, wall: int) -> tuple[list[tuple[PartitionCopy, Batch]], bool]:
        """Take what may be sent now, one batch a partition; say whether its answer has to come before anything else."""
        batches: list[tuple[PartitionCopy, Batch]] = []
        size, alone = 0, False
        largest = max(PRODUCE_BYTES, link.window.limit // REQUESTS_IN_FLIGHT)
        ready = link.ready
        for partition in list(ready):
            if size >= largest or len(batches) >= PRODUCE_PARTITIONS:
                break
            permission = partition.may_send(wall) if partition.destination_node == link.node_id else None
            if permission is None:
                del ready[partition]
                self._fills.note(partition)
                continue
            if permission is Permission.ALONE:
                if link.in_flight:
                    continue
                alone = True
            batch = partition.take()
            batches.append((partition, batch))
            size += len(batch.data)
            del ready[partition]
            if partition.queue:
                ready[partition] = None
        return batches, alone

    def _append(
        self, link: DestinationLink, batches: list[tuple[PartitionCopy, Batch]], at: float, alone: bool
    ) -> None:
        appends = []
        for partition, batch in batches:
            assignment, facts = partition.assignment, partition.facts
            topic_id = (facts.destination_topic_id if facts else None) or NO_TOPIC_ID
            appends.append(produce.Append(assignment.topic, topic_id, assignment.partition, batch.data))
        if self._many_topics:
            appends.sort(key=lambda append: append.topic)
        config = self.destination_config
        correlation_id = link.stream.connection.next_correlation_id()
        request = produce.request(
            correlation_id,
            link.version,
            config.client_id,
            appends,
            acks=produce.ACKS_ALL,
            timeout_ms=config.request_timeout_ms,
        )
        size = sum(len(batch.data) for _, batch in batches)
        link.in_flight.append(ProduceRequest(correlation_id, at, batches, size, link.window.sent(size), alone))
        try:
            if now() < self.control.deadline:
                link.stream.send(request)
            else:
                self._lose_destination(link, "this lane's time is over")
                return
        except OutcomeUnknown as error:
            self._lose_destination(link, str(error))
            return
        if link.stream.sending:
            self.watch(link)

    def _destination_ready(self, link: DestinationLink, mask: int) -> None:
        if self._destinations.get(link.node_id) is not link:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                if now() >= self.control.deadline:
                    self._lose_destination(link, "this lane's time is over")
                    return
                link.stream.flush()
                self.watch(link)
            while self._destinations.get(link.node_id) is link and (view := link.stream.receive()) is not None:
                self._appended(link, view)
        except (OutcomeUnknown, FrameError) as error:
            self._lose_destination(link, str(error))

    def _appended(self, link: DestinationLink, view: memoryview) -> None:
        if not link.in_flight or INT32.unpack_from(view)[0] != link.in_flight[0].correlation_id:
            raise FrameError(f"{link.stream.connection!r} answered another request than the one asked")
        answers, throttle_time_ms = produce.answer(view, link.version)
        link.stream.connection.note_throttle(throttle_time_ms)
        told = link.in_order(answers, many_topics=self._many_topics)
        request = link.in_flight.popleft()
        at = now()
        link.window.answered(request.size, request.delivered, request.sent_at, at)
        ready = link.ready
        for (partition, _), (_, _, code, base_offset, detail) in zip(request.batches, told, strict=True):
            partition.answered(code, base_offset, detail, at)
            if partition.queue:
                ready[partition] = None
            else:
                self.settled(partition)
        self.collect()

    def settled(self, partition: PartitionCopy) -> None:
        """Follow up on a partition with nothing to send: its trim, or its end in this lane."""
        if partition.status is not Status.COPYING:
            self.detach(partition)
        elif partition.trim_due is not None:
            self._fills.trim(partition)

    def _lose_destination(self, link: DestinationLink, message: str) -> None:
        if self._destinations.get(link.node_id) is not link:
            return
        self.close(link)
        self._destinations.pop(link.node_id, None)
        at = now()
        self._fills.lose(link.node_id, message)
        for partition in self._all():
            if partition.destination_node == link.node_id:
                partition.outcome_unknown(f"{link.stream.connection!r}: {message}", at)
        self.collect()

    def close(self, link: Link) -> None:
        """End a connection to the destination; what the kernel has not sent yet is thrown away."""
        self._selector.unregister(link.stream.fileno())
        self._reset(link.stream)

    # -- buffers and reports --------------------------------------------------------------------------------------

    def watch(self, link: Link) -> None:
        """Wait for what a connection brings, and for room to send while something is left to be sent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.stream.sending else 0)
        if self._selector.get_key(link.stream.fileno()).events != events:
            self._selector.modify(link.stream.fileno(), events, link)

    def collect(self) -> None:
        """Take back the frames whose last batch is done with."""
        while self._released:
            frame = self._released.pop()
            self._held_bytes -= len(frame.view)
            link = frame.owner
            if isinstance(link, SourceLink) and self._sources.get(link.node_id) is link:
                link.stream.recycle(frame.view)

    def _rows(self) -> list[ProgressRow]:
        return self._reports.rows(self._all())

    def _source_seen_at(self, partition: PartitionCopy) -> float | None:
        """Return when the source was last asked about a partition, None if never."""
        seen, key = partition.source_seen_at, self._by_key.get(partition)
        link = self._sources.get(self._source_of(partition) or 0) if key is not None else None
        if link is not None and key in link.partitions and key not in link.held_back and seen is not None:
            seen = max(seen, link.seen_at)
        return seen


def run_lane(spec: LaneSpec, attempt: int) -> LaneResult:
    """Run one lane to its end, in a Spark worker; one that was frozen and is continued ends before it sends a byte."""
    return Lane(spec, attempt).run(lifeline.die_on_continue)
