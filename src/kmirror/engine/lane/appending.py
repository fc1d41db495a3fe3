"""Append at the destination: up to five requests in flight on a connection, over a distance as many as fill it.

There is one connection per broker, over a distance several (`spreading`). Each request has at most one batch of every
partition that is pinned to its connection. The lane's deadline is checked before each send.
"""

from __future__ import annotations

from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.codes import Code
from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.brokers.links import REQUESTS_IN_FLIGHT, DestinationLink, ProduceRequest
from kmirror.engine.lane.fetching import Fetching
from kmirror.engine.lane.fills import Fills
from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.partition.intake import Gap, GuardedBatch
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.partition.states import ALONE
from kmirror.engine.lane.request_sizes import PRODUCE_BYTES, PRODUCE_PARTITIONS, RequestSizes
from kmirror.engine.lane.spreading import Spreading
from kmirror.errors import Reason

#: While the maximum is in flight, wake up only for this many responses at once.
_ANSWERS_AWAITED = 2
_FAR_PRODUCE_BYTES = 64 << 10
#: For so long others may use a connection on which a partition waits until nothing is in flight.
_ALONE_SECONDS = 0.5
#: A connection that is closed so soon after an inspection was not closed for being idle.
_SOON_SECONDS = 1.0


class Appending:
    """Append for one lane; for its sending thread."""

    def __init__(self, lane: LaneState, fetching: Fetching, fills: Fills) -> None:
        self._lane = lane
        self._links = lane.destinations
        self._links.owner = self
        self._fetching = fetching
        self._fills = fills
        self._spreading = Spreading(lane)
        self._sizes = RequestSizes(lane)
        self.opened = self._spreading.opened

    def on_tick(self, at: float) -> None:
        """Hang up on brokers that do not respond in time, and on all when this lane's deadline has passed."""
        self._links.on_tick(at)
        self._spreading.on_tick(at)

    def attach(self, partition: PartitionCopy) -> None:
        """Connect a partition that was inspected to its leader."""
        self._sizes.learn(partition)
        self._spreading.attach(partition)

    def refused(self, key: tuple[int, int], message: str, _: Reason | None, at: float) -> None:
        """Note that a connection could not be opened."""
        self._spreading.refused(key, message, at)

    def hang_up_on(self, partition: PartitionCopy) -> None:
        """Close the connections on which requests for a partition are in flight."""
        node_id, message = partition.destination_node, "no response while a partition is released"
        if partition.in_flight and (link := self._lane.destination_of(partition)):
            self._links.lose(link, link.stream.connection.message(message))
        elif partition.fill.is_under_way and node_id is not None:
            self._fills.lose(node_id, message)

    def pump(self, link: DestinationLink) -> None:
        """Send what may be sent to a broker now."""
        self._send(link)
        self._await_answers(link)

    def _await_answers(self, link: DestinationLink) -> None:
        """Wake up when the next response has arrived, or the next two where nothing more can be sent."""
        if self._links.get(link.key) is link:
            is_full = len(link.in_flight) == REQUESTS_IN_FLIGHT and not link.is_far
            link.await_answers(_ANSWERS_AWAITED if is_full else 1)

    def _send(self, link: DestinationLink) -> None:
        connection = link.stream.connection
        while link.ready and link.has_room:
            at, wall = now(), now_ms()
            if connection.is_throttled or not self._lane.may_send(at):
                return
            if self._links.must_end(link):
                return
            if link.in_flight and (link.in_flight[-1].alone or _must_drain(link, at)):
                return
            batches, size, alone = self._choose(link, at, wall)
            if not batches:
                return
            self._append(link, batches, size, at, alone)

    def _choose(
        self, link: DestinationLink, at: float, wall: int
    ) -> tuple[list[tuple[PartitionCopy, GuardedBatch]], int, bool]:
        """Take what may be sent now, one batch per partition; return it, its size, and if nothing may follow it."""
        batches: list[tuple[PartitionCopy, GuardedBatch]] = []
        size, alone = 0, False
        largest = max(_FAR_PRODUCE_BYTES if link.is_far else PRODUCE_BYTES, link.window.limit // REQUESTS_IN_FLIGHT)
        ready, key, together = link.ready, link.key, self._sizes.together(link.node_id)
        if not link.in_flight:
            link.alone_since = None
        for partition in list(ready):
            if size >= (PRODUCE_BYTES if alone else largest) or len(batches) >= PRODUCE_PARTITIONS:
                break
            is_here = (partition.destination_node, partition.destination_number) == key
            if not is_here or partition in link.leaving:
                del ready[partition]
                continue
            permission = partition.may_send(wall)
            if permission is None or isinstance(batch := partition.queue[0], Gap):
                del ready[partition]
                self._fills.note(partition)
                continue
            if why := self._sizes.obstacle(link, partition, batch):
                del ready[partition]
                partition.refused(Code.MESSAGE_TOO_LARGE, why, batch, at)
                continue
            is_suspect = self._sizes.is_suspect(partition, batch)
            if batches and (is_suspect or size + len(batch.data) > together):
                continue
            if permission is ALONE or is_suspect:
                if link.in_flight:
                    link.alone_since = link.alone_since or at
                    continue
                alone = True
            batch = partition.take()
            batches.append((partition, batch))
            size += len(batch.data)
            del ready[partition]
            if partition.queue:
                ready[partition] = None
            if is_suspect:
                break
        return batches, size, alone

    def _append(
        self,
        link: DestinationLink,
        batches: list[tuple[PartitionCopy, GuardedBatch]],
        size: int,
        at: float,
        alone: bool,
    ) -> None:
        appends = [partition.append_of(batch) for partition, batch in batches]
        if self._lane.many_topics:
            appends.sort(key=lambda append: append.topic)
        config = self._lane.destination_config
        correlation_id = link.stream.connection.next_correlation_id()
        request = produce.request(
            correlation_id,
            link.version,
            config.client_id,
            appends,
            acks=produce.ACKS_ALL,
            timeout_ms=config.request_timeout_ms,
        )
        link.in_flight.append(ProduceRequest(correlation_id, at, batches, size, link.window.sent(size), alone))
        self._links.send(link, request)

    def answered(self, link: DestinationLink, view: memoryview) -> None:
        """Take the response to the oldest request on a connection. Raises FrameError."""
        link.stream.require_answer(view, link.in_flight[0].correlation_id if link.in_flight else None)
        answers, throttle_time_ms = produce.answer(view, link.version)
        link.stream.connection.note_throttle(throttle_time_ms)
        in_order = link.in_order(answers, many_topics=self._lane.many_topics)
        request = link.in_flight.popleft()
        at = now()
        self._lane.counts.appends.took(at - request.sent_at)
        link.window.answered(request.size, request.delivered, request.sent_at, at)
        self._spreading.answered(link, request.size, at - request.sent_at, at, is_throttled=throttle_time_ms > 0)
        for (partition, _), (_, _, code, base_offset, detail, time) in zip(request.batches, in_order, strict=True):
            partition.answered(code, base_offset, detail, at, time)
            if partition in link.leaving and not partition.in_flight:
                self._spreading.moved(link, partition)
            if partition.queue:
                self._lane.make_ready(partition)
            else:
                self._fills.settled(partition)
        self._fetching.collect()
        self._await_answers(link)

    def lost(self, link: DestinationLink, message: str, at: float) -> None:
        """Note that the outcome of all requests in flight on a connection is unknown."""
        self._fills.lose(link.node_id, message)
        self._lane.background_requests.forget_limits(link.node_id)
        self._sizes.closed(link)
        for partition in self._lane.all:
            if (partition.destination_node, partition.destination_number) != link.key:
                continue
            was_inspected_before = at - partition.memory.inspected_at > _SOON_SECONDS
            if not link.in_flight and partition.is_idle and was_inspected_before:
                # brokers close idle connections, and sessions expire: no trouble, unless the inspection finds one
                partition.reinspect(at)
            else:
                partition.outcome_unknown(message, at)
        for partition, batch in link.in_flight[0].batches if link.in_flight else ():
            self._sizes.give_up(link, partition, batch, at)
        self._fetching.collect()


def _must_drain(link: DestinationLink, at: float) -> bool:
    """Return True if a partition has waited long enough until nothing is in flight on a connection."""
    return link.alone_since is not None and at - link.alone_since > _ALONE_SECONDS
