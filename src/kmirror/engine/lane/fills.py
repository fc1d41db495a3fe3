"""Fill gaps, trim logs, and probe source logs that return nothing more.

Gaps are filled by markers, those of many partitions in one request, over a separate connection. If the leader refuses
them for lack of rights, the whole lane switches to empty transactions, and announces this before the first: its
successor must end those it may leave open.
"""

from __future__ import annotations

import selectors
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from kmirror.cluster.protocol.fill_plan import ReadLeader, WriteMarkers
from kmirror.cluster.protocol.markers import MAX_MARKERS
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import ReadUpTo
from kmirror.cluster.protocol.wire import FrameError
from kmirror.cluster.stream import Stream
from kmirror.engine.clock import now, now_ms
from kmirror.engine.histories.judge import Trouble
from kmirror.engine.lane.fetching import Fetching
from kmirror.engine.lane.intake import Gap
from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.links import FillLink
from kmirror.engine.lane.partition_copy import PartitionCopy
from kmirror.engine.lane.states import Status
from kmirror.errors import OutcomeUnknown

#: The most partitions to fill in one request by transactions.
_TRANSACTION_PARTITIONS = 200


class Fills:
    """Fill, trim and probe for one lane; for its sending thread."""

    def __init__(self, lane: LaneState, fetching: Fetching) -> None:
        self._lane = lane
        self._fetching = fetching
        self._loop = lane.loop
        self._post = lane.loop.post
        self._background_requests = lane.background_requests
        self._client_id = lane.destination_config.client_id
        self._timeout = lane.destination_config.request_timeout_ms / 1000
        #: Partitions with a gap at the head of their queue, in turn.
        self._waiting: dict[PartitionCopy, None] = {}
        self._to_trim: dict[PartitionCopy, int] = {}
        self._probing: set[PartitionCopy] = set()
        spec = lane.spec
        self._by_transactions = False
        self._transaction_is_under_way = False
        #: How many requests to end open transactions of earlier lanes are in progress.
        self._settling = 0
        # until the transactions that its predecessor may have left open are ended, this lane announces them too
        lane.control.fills_by_transactions = spec.lane in spec.unsettled_lanes

    def settle(self, partitions: Sequence[PartitionCopy], lanes: Sequence[int], done: Callable[[], None]) -> None:
        """End the transactions that these lanes may have left open in these partitions, then call `done`.

        Earlier calls are completed first.
        """
        control = self._lane.control
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
            lanes,
            lambda: self._post(lambda _: settled()),
            lambda trouble: self._post(lambda _: troubled(trouble)),
        )

    def note(self, partition: PartitionCopy) -> None:
        """Queue a partition for filling if there is a gap at the head of its queue."""
        if partition.queue and isinstance(partition.queue[0], Gap):
            self._waiting[partition] = None

    def pump(self) -> None:
        """Send the next requests for gaps."""
        if not self._waiting:
            return
        if self._by_transactions:
            self._begin_transactions()
            return
        at = now()
        steps: dict[int, tuple[list[tuple[PartitionCopy, WriteMarkers]], list[tuple[PartitionCopy, ReadLeader]]]] = {}
        room: dict[int, int] = defaultdict(lambda: MAX_MARKERS)
        for partition in list(self._waiting):
            node_id = partition.destination_node
            if not self._has_gap(partition) or node_id is None:
                del self._waiting[partition]
                continue
            if self._is_busy(node_id) or room[node_id] <= 0:
                continue
            step = partition.next_fill_step()
            if step is None:
                continue
            asks, looks = steps.setdefault(node_id, ([], []))
            if isinstance(step, WriteMarkers):
                asks.append((partition, step))
                room[node_id] -= step.count
                # it comes last in the next request, so that a large gap does not delay other partitions for long
                del self._waiting[partition]
                self._waiting[partition] = None
            else:
                looks.append((partition, step))
        for node_id, (asks, looks) in steps.items():
            self._send(node_id, asks, looks, at)

    @staticmethod
    def _has_gap(partition: PartitionCopy) -> bool:
        return partition.status is Status.COPYING and bool(partition.queue) and isinstance(partition.queue[0], Gap)

    def _is_busy(self, node_id: int) -> bool:
        """Return True while nothing can be sent to this broker; connect if there is no connection yet."""
        if node_id not in self._lane.fills:
            self._lane.fills[node_id] = None
            self._background_requests.connect(
                "fill",
                node_id,
                lambda stream, versions: self._post(lambda _: self._connected(node_id, stream, versions)),
                lambda message, _: self._post(lambda _: self._not_connected(node_id, message)),
            )
        link = self._lane.fills[node_id]
        if link is None or link.in_flight or link.stream.sending:
            return True
        if link.stream.connection.must_be_replaced:
            self.lose(node_id, "the session has expired")
            return True
        return link.stream.connection.is_throttled or not self._lane.may_send(now())

    def _connected(self, node_id: int, stream: Stream, versions: tuple[int, ...]) -> None:
        link = self._lane.fills[node_id] = FillLink(node_id, stream, *versions)
        self._loop.add(link)

    def _not_connected(self, node_id: int, message: str) -> None:
        self._lane.fills.pop(node_id, None)
        at = now()
        for partition in self._waiting:
            if partition.destination_node == node_id:
                partition.outcome_unknown(message, at)
                self.settled(partition)

    def _send(
        self,
        node_id: int,
        asks: list[tuple[PartitionCopy, WriteMarkers]],
        looks: list[tuple[PartitionCopy, ReadLeader]],
        at: float,
    ) -> None:
        link = self._lane.fills[node_id]
        assert link is not None, "no request is built for a broker without a connection"
        if not self._lane.may_send(now()):
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
        """Receive from a connection, and send what is left to send."""
        if self._lane.fills.get(link.node_id) is not link:
            return
        try:
            if mask & selectors.EVENT_WRITE:
                if now() >= self._lane.control.deadline:
                    self.lose(link.node_id, "this lane's deadline has passed")
                    return
                link.stream.flush()
                self._loop.watch(link)
            while self._lane.fills.get(link.node_id) is link and (view := link.stream.receive()) is not None:
                self._answered(link, view)
        except (OutcomeUnknown, FrameError) as error:
            self.lose(link.node_id, str(error))

    def _answered(self, link: FillLink, view: memoryview) -> None:
        request, answers = link.answered(view)
        at, wall = now(), now_ms()
        for topic_partition, partition in request.partitions.items():
            code, log_end = answers[topic_partition]
            if request.is_log_end:
                partition.log_end_seen(code, log_end, at)
            else:
                partition.fill_answered(code, at, wall)
            self._continue(partition)

    def _continue(self, partition: PartitionCopy) -> None:
        """Continue with a partition without requests in flight."""
        if partition.fill.is_forbidden and not self._by_transactions:
            control = self._lane.control
            control.transactions_announced = False
            self._by_transactions = control.fills_by_transactions = True
            control.report_soon()
        if not self._has_gap(partition):
            self._waiting.pop(partition, None)
            self._lane.make_ready(partition)
        self.settled(partition)

    def settled(self, partition: PartitionCopy) -> None:
        """Continue with a partition that has nothing to send: trim it, or stop fetching it."""
        if partition.status is not Status.COPYING:
            self._fetching.detach(partition)
        elif partition.trim_due is not None:
            self.trim(partition)

    def lose(self, node_id: int, message: str) -> None:
        """Drop the connection to a broker: requests in flight on it may have been carried out."""
        link = self._lane.fills.pop(node_id, None)
        if link is None:
            return
        self._loop.hang_up(link)
        at = now()
        for request in link.in_flight:
            for partition in request.partitions.values():
                partition.outcome_unknown(message, at)
                self.settled(partition)

    def on_tick(self, at: float) -> None:
        """Do what is due: time-outs, trims, probes of log ends."""
        for node_id, link in list(self._lane.fills.items()):
            if link and link.in_flight:
                if at - link.in_flight[0].sent_at > self._timeout:
                    self.lose(node_id, "no response in time")
                elif at >= self._lane.control.deadline:
                    self.lose(node_id, "this lane's deadline has passed")
        for partition in list(self._lane.active):
            if partition.trim_due is not None:
                self.trim(partition)
            elif partition not in self._probing and partition.seems_to_end(at):
                self._probe_log_end(partition)

    def _probe_log_end(self, partition: PartitionCopy) -> None:
        offset = partition.intake.next_offset
        self._probing.add(partition)

        def seen(found: ReadUpTo | None, at: float) -> None:
            self._probing.discard(partition)
            partition.log_end_probed(offset, found, at, now_ms())
            self._fetching.continue_fetching(partition)

        self._background_requests.probe_log_end(
            partition.assignment.source, offset, lambda found: self._post(lambda at: seen(found, at))
        )

    def trim(self, partition: PartitionCopy) -> None:
        """Trim a log to its new start; trims that are due at once share a request."""
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
            for topic_partition, partition in partitions.items():
                partition.trimmed(troubles.get(topic_partition), at)

        self._background_requests.trim(offsets, lambda troubles: self._post(lambda at: trimmed(troubles, at)))

    def _begin_transactions(self) -> None:
        if (
            self._transaction_is_under_way
            or not self._lane.control.transactions_announced
            or not self._lane.may_send(now())
        ):
            return
        gaps: dict[PartitionCopy, int] = {}
        for partition in list(self._waiting):
            if not self._has_gap(partition):
                del self._waiting[partition]
            elif len(gaps) < _TRANSACTION_PARTITIONS and (gap := partition.gap_to_fill()):
                gaps[partition] = gap.next_offset - gap.base_offset
        if not gaps:
            return
        self._transaction_is_under_way = True
        for partition in gaps:
            partition.fill.sent()

        def filled(counts: Mapping[TopicPartition, int], at: float) -> None:
            self._transaction_is_under_way = False
            for partition in gaps:
                partition.filled_by_transactions(counts[partition.assignment.destination], at)
                self._continue(partition)

        def troubled(trouble: Trouble, at: float) -> None:
            for partition in gaps:
                partition.interrupted(trouble, at)

        def uncertain(trouble: Trouble, at: float) -> None:
            self._transaction_is_under_way = False
            for partition in gaps:
                partition.fill_uncertain(trouble, at)
                self.settled(partition)

        control = self._lane.control
        self._background_requests.fill(
            {p.assignment.destination: count for p, count in gaps.items()},
            lambda: now() < control.deadline,
            lambda counts: self._post(lambda at: filled(counts, at)),
            lambda trouble: self._post(lambda at: troubled(trouble, at)),
            lambda trouble: self._post(lambda at: uncertain(trouble, at)),
        )
