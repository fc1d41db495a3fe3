"""What a lane does beside copying batches: filling gaps, trimming logs, looking twice at a source that gives nothing.

Gaps are filled by markers, many partitions' in one request, over a connection of their own. Where the leader refuses
that for lack of rights, the whole lane goes over to empty transactions, and says so before the first: its successor
has to end what it may leave open.
"""

from __future__ import annotations

import selectors
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from kmirror.cluster.connection import Stream
from kmirror.cluster.protocol.fill_plan import Ask, Look
from kmirror.cluster.protocol.markers import MAX_MARKERS
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import FrameError
from kmirror.engine.clock import now, now_ms
from kmirror.engine.histories.judge import Trouble
from kmirror.engine.lane.fetching import Fetching
from kmirror.engine.lane.intake import Gap
from kmirror.engine.lane.links import FillLink
from kmirror.engine.lane.partition_copy import PartitionCopy
from kmirror.engine.lane.states import Status
from kmirror.engine.lane.work import Work
from kmirror.engine.spec import filling_transactional_id
from kmirror.errors import OutcomeUnknown

#: The most partitions to fill in one transaction.
_TRANSACTION_PARTITIONS = 200


class Fills:
    """Fill, trim and doubt for one lane; used by its sending thread alone."""

    def __init__(self, work: Work, fetching: Fetching) -> None:
        self._work = work
        self._fetching = fetching
        self._loop = work.loop
        self._post = work.loop.post
        self._background_requests = work.background_requests
        self._client_id = work.destination_config.client_id
        self._timeout = work.destination_config.request_timeout_ms / 1000
        #: Partitions with a gap at the head of their queue, in the order of their turns.
        self._waiting: dict[PartitionCopy, None] = {}
        self._to_trim: dict[PartitionCopy, int] = {}
        self._looking_beyond: set[PartitionCopy] = set()
        spec = work.spec
        self._transactional_id = filling_transactional_id(spec.mirror, spec.lane)
        self._by_transactions = False
        self._transaction_is_under_way = False
        #: How often open transactions of others are being ended.
        self._settling = 0
        # until what the one before it may have left open is ended, this lane says so as that one did
        work.control.fills_by_transactions = spec.lane in spec.unsettled_lanes

    def settle(self, partitions: Sequence[PartitionCopy], lanes: Sequence[int], done: Callable[[], None]) -> None:
        """End what these lanes may have left open in these partitions, then call `done`.

        What is being ended already comes first, whatever it is for.
        """
        spec, control = self._work.spec, self._work.control
        if not lanes and not self._settling:
            done()
            return
        self._settling += 1

        def settled() -> None:
            self._settling -= 1
            control.fills_by_transactions = self._by_transactions
            done()

        def troubled(trouble: Trouble) -> None:
            for partition in partitions:
                partition.retry.trouble = trouble

        self._background_requests.settle(
            [filling_transactional_id(spec.mirror, lane) for lane in lanes],
            lambda: self._post(lambda _: settled()),
            lambda trouble: self._post(lambda _: troubled(trouble)),
        )

    def note(self, partition: PartitionCopy) -> None:
        """Take note of a partition that cannot send: there may be a gap at the head of its queue."""
        if partition.queue and isinstance(partition.queue[0], Gap):
            self._waiting[partition] = None

    def pump(self) -> None:
        """Send what is to be sent for gaps."""
        if not self._waiting:
            return
        if self._by_transactions:
            self._begin_transactions()
            return
        at = now()
        steps: dict[int, tuple[list[tuple[PartitionCopy, Ask]], list[tuple[PartitionCopy, Look]]]] = {}
        room: dict[int, int] = defaultdict(lambda: MAX_MARKERS)
        for partition in list(self._waiting):
            node_id = partition.destination_node
            if not self._still_waits(partition) or node_id is None:
                del self._waiting[partition]
                continue
            if self._is_busy(node_id) or room[node_id] <= 0:
                continue
            step = partition.next_fill_step()
            if step is None:
                continue
            asks, looks = steps.setdefault(node_id, ([], []))
            if isinstance(step, Ask):
                asks.append((partition, step))
                room[node_id] -= step.count
                # it comes last in the next request, so that a large hole delays no other partition for long
                del self._waiting[partition]
                self._waiting[partition] = None
            else:
                looks.append((partition, step))
        for node_id, (asks, looks) in steps.items():
            self._send(node_id, asks, looks, at)

    @staticmethod
    def _still_waits(partition: PartitionCopy) -> bool:
        return partition.status is Status.COPYING and bool(partition.queue) and isinstance(partition.queue[0], Gap)

    def _is_busy(self, node_id: int) -> bool:
        """True while nothing can be sent to this broker; begins to connect where there is no connection yet."""
        if node_id not in self._work.fills:
            self._work.fills[node_id] = None
            self._background_requests.connect(
                "fill",
                node_id,
                lambda stream, versions: self._post(lambda _: self._connected(node_id, stream, versions)),
                lambda message, _: self._post(lambda _: self._not_connected(node_id, message)),
            )
        link = self._work.fills[node_id]
        if link is None or link.in_flight or link.stream.sending:
            return True
        if link.stream.connection.must_be_replaced:
            self.lose(node_id, "the session's time is over")
            return True
        return link.stream.connection.is_throttled or not self._work.may_send(now())

    def _connected(self, node_id: int, stream: Stream, versions: tuple[int, ...]) -> None:
        link = self._work.fills[node_id] = FillLink(node_id, stream, *versions)
        self._loop.add(link)

    def _not_connected(self, node_id: int, message: str) -> None:
        self._work.fills.pop(node_id, None)
        at = now()
        for partition in self._waiting:
            if partition.destination_node == node_id:
                partition.outcome_unknown(message, at)
                self.settled(partition)

    def _send(
        self,
        node_id: int,
        asks: list[tuple[PartitionCopy, Ask]],
        looks: list[tuple[PartitionCopy, Look]],
        at: float,
    ) -> None:
        link = self._work.fills[node_id]
        assert link is not None, "nothing is chosen for a broker without a connection"
        if not self._work.may_send(now()):
            return
        requests = []
        if asks:
            requests.append(link.ask(asks, self._client_id, at))
        if looks:
            requests.append(link.look(looks, self._client_id, at))
        try:
            link.stream.send(requests)
        except OutcomeUnknown as error:
            self.lose(node_id, str(error))
            return
        self._loop.watch(link)

    def link_ready(self, link: FillLink, mask: int) -> None:
        """Take what a connection brings."""
        if self._work.fills.get(link.node_id) is not link:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                if now() >= self._work.control.deadline:
                    self.lose(link.node_id, "this lane's time is over")
                    return
                link.stream.flush()
                self._loop.watch(link)
            while self._work.fills.get(link.node_id) is link and (view := link.stream.receive()) is not None:
                self._answered(link, view)
        except (OutcomeUnknown, FrameError) as error:
            self.lose(link.node_id, str(error))

    def _answered(self, link: FillLink, view: memoryview) -> None:
        request, answers = link.answered(view)
        at, wall = now(), now_ms()
        for place, partition in request.partitions.items():
            code, log_end = answers[place]
            if request.is_look:
                partition.log_end_seen(code, log_end, at)
            else:
                partition.fill_answered(code, at, wall)
            self._go_on(partition)

    def _go_on(self, partition: PartitionCopy) -> None:
        """Follow up on a partition of which nothing is on its way."""
        if partition.fill.is_forbidden and not self._by_transactions:
            control = self._work.control
            control.said_so = False
            self._by_transactions = control.fills_by_transactions = True
            control.report_soon()
        if not self._still_waits(partition):
            self._waiting.pop(partition, None)
            self._work.make_ready(partition)
        self.settled(partition)

    def settled(self, partition: PartitionCopy) -> None:
        """Follow up on a partition with nothing to send: its trim, or its release by this lane."""
        if partition.status is not Status.COPYING:
            self._fetching.detach(partition)
        elif partition.trim_due is not None:
            self.trim(partition)

    def lose(self, node_id: int, message: str) -> None:
        """Drop the connection to a broker: what was on its way on it may have been carried out."""
        link = self._work.fills.pop(node_id, None)
        if link is None:
            return
        self._loop.hang_up(link)
        at = now()
        for request in link.in_flight:
            for partition in request.partitions.values():
                partition.outcome_unknown(message, at)
                self.settled(partition)

    def look_around(self, at: float) -> None:
        """Begin what is due: time-outs, closer looks."""
        for node_id, link in list(self._work.fills.items()):
            if link and link.in_flight:
                if at - link.in_flight[0].sent_at > self._timeout:
                    self.lose(node_id, "no answer in time")
                elif at >= self._work.control.deadline:
                    self.lose(node_id, "this lane's time is over")
        for partition in list(self._work.restless):
            if partition.trim_due is not None:
                self.trim(partition)
            elif partition not in self._looking_beyond and partition.seems_to_end(at):
                self._look_beyond(partition)

    def _look_beyond(self, partition: PartitionCopy) -> None:
        offset = partition.intake.next_offset
        self._looking_beyond.add(partition)

        def seen(until: int | None, problem: str | None, at: float) -> None:
            self._looking_beyond.discard(partition)
            partition.nothing_found(offset, until, problem, at)
            self._fetching.fetch_on(partition)

        self._background_requests.look_beyond(
            partition.assignment.source,
            offset,
            lambda until, problem: self._post(lambda at: seen(until, problem, at)),
        )

    # -- trims ----------------------------------------------------------------------------------------------------

    def trim(self, partition: PartitionCopy) -> None:
        """Let a log begin where it is to; several partitions' at once where they come at once."""
        to = partition.trim_due
        assert to is not None, f"{partition!r} is not due"
        partition.log_start.trim_is_under_way = True
        if not self._to_trim:
            self._post(lambda _: self._begin_trim())
        self._to_trim[partition] = to

    def _begin_trim(self) -> None:
        partitions = {p.assignment.destination: p for p in self._to_trim}
        offsets = {p.assignment.destination: to for p, to in self._to_trim.items()}
        self._to_trim.clear()

        def trimmed(troubles: Mapping[TopicPartition, Trouble | None], at: float) -> None:
            for place, partition in partitions.items():
                partition.trimmed(troubles.get(place), at)

        self._background_requests.trim(offsets, lambda troubles: self._post(lambda at: trimmed(troubles, at)))

    # -- transactions ---------------------------------------------------------------------------------------------

    def _begin_transactions(self) -> None:
        if self._transaction_is_under_way or not self._work.control.said_so or not self._work.may_send(now()):
            return
        gaps: dict[PartitionCopy, int] = {}
        for partition in list(self._waiting):
            if not self._still_waits(partition):
                del self._waiting[partition]
            elif len(gaps) < _TRANSACTION_PARTITIONS and (gap := partition.gap_to_fill()):
                gaps[partition] = gap.next_offset - gap.base_offset
        if not gaps:
            return
        self._transaction_is_under_way = True
        for partition in gaps:
            partition.fill.sent()

        def filled(count: int, at: float) -> None:
            self._transaction_is_under_way = False
            for partition in gaps:
                partition.filled_otherwise(count, at)
                self._go_on(partition)

        def troubled(trouble: Trouble, at: float) -> None:
            for partition in gaps:
                partition.interrupted(trouble, at)

        def doubtful(trouble: Trouble, at: float) -> None:
            self._transaction_is_under_way = False
            for partition in gaps:
                partition.fill_in_doubt(trouble, at)
                self.settled(partition)

        control = self._work.control
        self._background_requests.fill(
            self._transactional_id,
            {p.assignment.destination: count for p, count in gaps.items()},
            lambda: now() < control.deadline,
            lambda count: self._post(lambda at: filled(count, at)),
            lambda trouble: self._post(lambda at: troubled(trouble, at)),
            lambda trouble: self._post(lambda at: doubtful(trouble, at)),
        )
