"""Fill gaps, trim logs, and probe source logs that return nothing more.

Gaps are filled by markers, those of many partitions in one request, over a separate connection. If the leader refuses
them for lack of rights, the whole lane switches to empty transactions, and announces this before the first: its
successor must end those it may leave open.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from kmirror.cluster.protocol.fill_plan import ReadLeader, WriteMarkers
from kmirror.cluster.protocol.markers import MAX_MARKERS
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.read_up_to import ReadUpTo
from kmirror.cluster.stream import Stream
from kmirror.engine.clock import now, now_ms
from kmirror.engine.histories.judge import Trouble
from kmirror.engine.lane.brokers.links import FillLink
from kmirror.engine.lane.fetching import Fetching
from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.partition import partition_fills
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.partition.states import Status
from kmirror.errors import Reason

#: The most partitions to fill in one request by transactions.
_TRANSACTION_PARTITIONS = 200

_Asks = list[tuple[PartitionCopy, WriteMarkers]]
_Looks = list[tuple[PartitionCopy, ReadLeader]]


class Fills:
    """Fill, trim and probe for one lane; for its sending thread."""

    def __init__(self, lane: LaneState, fetching: Fetching) -> None:
        self._lane = lane
        self._fetching = fetching
        self._links = lane.fills
        self._links.owner = self
        self._background_requests = lane.background_requests
        self._client_id = lane.destination_config.client_id
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

        def settled(_: float) -> None:
            self._settling -= 1
            control.fills_by_transactions = self._by_transactions
            done()

        def troubled(trouble: Trouble, _: float) -> None:
            for partition in partitions:
                partition.waits_for(trouble)

        self._background_requests.settle(lanes, settled, troubled)

    def note(self, partition: PartitionCopy) -> None:
        """Queue a partition for filling if there is a gap at the head of its queue."""
        if partition_fills.has_gap(partition):
            self._waiting[partition] = None

    def pump(self) -> None:
        """Send the next requests for gaps."""
        if not self._waiting:
            return
        self._fetching.make_room(self._waiting)
        if self._by_transactions:
            self._begin_transactions()
            return
        at = now()
        steps: dict[FillLink, tuple[_Asks, _Looks]] = {}
        room: dict[int, int] = defaultdict(lambda: MAX_MARKERS)
        for partition in list(self._waiting):
            node_id = partition.destination_node
            if not partition_fills.has_gap(partition) or node_id is None:
                del self._waiting[partition]
                continue
            link = self._free_link(node_id)
            if link is None or room[node_id] <= 0:
                continue
            step = partition_fills.next_fill_step(partition)
            if step is None:
                continue
            asks, looks = steps.setdefault(link, ([], []))
            if isinstance(step, WriteMarkers):
                asks.append((partition, step))
                room[node_id] -= step.count
                # it comes last in the next request, so that a large gap does not delay other partitions for long
                del self._waiting[partition]
                self._waiting[partition] = None
            else:
                looks.append((partition, step))
        for link, (asks, looks) in steps.items():
            self._send(link, asks, looks, at)

    def _free_link(self, node_id: int) -> FillLink | None:
        """Return the connection to a broker if a request can be sent now; open one if there is none yet."""
        link = self._links.get(node_id)
        if link is None:
            self._links.open(node_id)
            return None
        if link.in_flight or link.stream.sending or self._links.must_end(link):
            return None
        return None if link.stream.connection.is_throttled or not self._lane.may_send(now()) else link

    def opened(self, node_id: int, stream: Stream, versions: tuple[int, ...]) -> FillLink:
        """Take a new connection into use."""
        return FillLink(node_id, stream, *versions)

    def refused(self, node_id: int, message: str, _: Reason | None, at: float) -> None:
        """Note that a connection could not be opened."""
        for partition in self._waiting:
            if partition.destination_node == node_id:
                partition.outcome_unknown(message, at)
                self.settled(partition)

    def _send(self, link: FillLink, asks: _Asks, looks: _Looks, at: float) -> None:
        if self._links.get(link.node_id) is not link or not self._lane.may_send(now()):
            return
        requests = []
        if asks:
            requests.append(link.ask(asks, self._client_id, at))
        if looks:
            requests.append(link.look(looks, self._client_id, at))
        self._links.send(link, requests)

    def answered(self, link: FillLink, view: memoryview) -> None:
        """Take the response to the oldest request on a connection. Raises FrameError."""
        request, answers = link.answered(view)
        at, wall = now(), now_ms()
        for topic_partition, partition in request.partitions.items():
            code, log_end = answers[topic_partition]
            if request.is_log_end:
                partition_fills.log_end_seen(partition, code, log_end, at)
            else:
                partition_fills.fill_answered(partition, code, at, wall)
            self._continue(partition)

    def _continue(self, partition: PartitionCopy) -> None:
        """Continue with a partition without requests in flight."""
        if partition.fill.is_forbidden and not self._by_transactions:
            control = self._lane.control
            control.transactions_announced = False
            self._by_transactions = control.fills_by_transactions = True
            control.report_soon()
        if not partition_fills.has_gap(partition):
            self._waiting.pop(partition, None)
            self._lane.make_ready(partition)
        self.settled(partition)

    def settled(self, partition: PartitionCopy) -> None:
        """Continue with a partition that has nothing to send: trim it, or stop fetching it."""
        if partition.status is not Status.COPYING:
            self._fetching.detach(partition)
        else:
            self._trim_if_due(partition)

    def lose(self, node_id: int, message: str) -> None:
        """Drop the connection to a broker, if there is one."""
        if link := self._links.get(node_id):
            self._links.lose(link, message)

    def lost(self, link: FillLink, message: str, at: float) -> None:
        """Note that requests in flight on a connection may have been carried out."""
        for request in link.in_flight:
            for partition in request.partitions.values():
                partition.outcome_unknown(message, at)
                self.settled(partition)

    def on_tick(self, at: float) -> None:
        """Do what is due: time-outs, trims, probes of log ends."""
        self._links.on_tick(at)
        for partition in list(self._lane.active):
            is_trimmed = self._trim_if_due(partition)
            if is_trimmed or partition in self._probing or not partition_fills.seems_to_end(partition, at):
                continue
            # a partition that only waits for its turn is not read twice
            if self._fetching.is_passed_over(partition):
                self._probe_log_end(partition)

    def _probe_log_end(self, partition: PartitionCopy) -> None:
        offset = partition.intake.next_offset
        self._probing.add(partition)

        def seen(found: ReadUpTo | None, at: float) -> None:
            self._probing.discard(partition)
            partition_fills.log_end_probed(partition, offset, found, at, now_ms())
            self._fetching.continue_fetching(partition)

        self._background_requests.probe_log_end(partition.assignment.source, offset, seen)

    def _trim_if_due(self, partition: PartitionCopy) -> bool:
        """Trim a log to its new start if that is due; trims that are due at once share a request."""
        to = partition_fills.trim_due(partition)
        if to is None:
            return False
        partition.log_start.begin_trim()
        if not self._to_trim:
            self._lane.loop.post(lambda _: self._begin_trim())
        self._to_trim[partition] = to
        return True

    def _begin_trim(self) -> None:
        partitions = {p.assignment.destination: p for p in self._to_trim}
        offsets = {p.assignment.destination: to for p, to in self._to_trim.items()}
        self._to_trim.clear()

        def done(troubles: Mapping[TopicPartition, Trouble | None], at: float) -> None:
            for topic_partition, partition in partitions.items():
                partition_fills.trimmed(partition, troubles.get(topic_partition), at)

        self._background_requests.trim(offsets, done)

    def _begin_transactions(self) -> None:
        if (
            self._transaction_is_under_way
            or not self._lane.control.transactions_announced
            or not self._lane.may_send(now())
        ):
            return
        gaps: dict[PartitionCopy, int] = {}
        for partition in list(self._waiting):
            if not partition_fills.has_gap(partition):
                del self._waiting[partition]
            elif len(gaps) < _TRANSACTION_PARTITIONS and (gap := partition_fills.gap_to_fill(partition)):
                gaps[partition] = gap.next_offset - gap.base_offset
        if not gaps:
            return
        self._transaction_is_under_way = True
        for partition in gaps:
            partition.fill.sent(by_transactions=True)

        def filled(found: Mapping[TopicPartition, tuple[int, int | None]], at: float) -> None:
            self._transaction_is_under_way = False
            for partition in gaps:
                partition_fills.filled_by_transactions(partition, *found[partition.assignment.destination], at)
                self._continue(partition)

        def troubled(trouble: Trouble, at: float) -> None:
            for partition in gaps:
                partition.interrupted(trouble, at)

        def uncertain(trouble: Trouble, at: float) -> None:
            self._transaction_is_under_way = False
            for partition in gaps:
                partition_fills.fill_uncertain(partition, trouble, at)
                self.settled(partition)

        control = self._lane.control
        self._background_requests.fill(
            {p.assignment.destination: count for p, count in gaps.items()},
            lambda: now() < control.deadline,
            filled,
            troubled,
            uncertain,
        )
