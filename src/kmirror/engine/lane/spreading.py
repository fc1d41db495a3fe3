"""Spread a lane's partitions over its connections to each destination broker: one, or over a long path several.

How many there are is decided by `breadth`. A partition's batches need their order, so each is pinned to one
connection. It goes to another only while nothing of it is in flight: it is held back until all its answers are here.

Partitions begin on the first connection. One that has room takes a partition that waits on another: which partitions
bring much is found out by itself, and with little to send everything stays where it is, in few large requests.
"""

from __future__ import annotations

import logging

from kmirror.cluster.stream import Stream
from kmirror.engine.lane.brokers.links import DestinationLink, RefusedConnection
from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.pace.breadth import Breadth
from kmirror.engine.lane.partition.partition_copy import MAX_IN_FLIGHT, PartitionCopy
from kmirror.words import counted

_log = logging.getLogger(__name__)


class BrokerPath:
    """What is known of the path to one broker."""

    def __init__(self, breadth: Breadth) -> None:
        self.breadth = breadth
        self.carried_bytes = 0
        self.says_refused = True
        #: The last connection that could not be opened.
        self.refusal: RefusedConnection | None = None


class Spreading:
    """Open and close the connections to destination brokers, and pin partitions to them; for the sending thread."""

    def __init__(self, lane: LaneState) -> None:
        self._lane = lane
        self._links = lane.destinations
        self._paths: dict[int, BrokerPath] = {}

    def attach(self, partition: PartitionCopy) -> None:
        """Pin a partition with nothing in flight to a connection to its leader; open the first if there is none."""
        node_id = partition.destination_node
        if node_id is None:
            return
        link = self._links.get((node_id, partition.destination_number))
        if link:
            link.leaving.pop(partition, None)
        else:
            partition.pin(0)
        self._links.open((node_id, 0))

    def moved(self, link: DestinationLink, partition: PartitionCopy) -> None:
        """Pin a partition that was held back on a connection to the one it waits for: nothing of it is in flight."""
        self._pin(partition, link.leaving.pop(partition))

    def answered(self, link: DestinationLink, size: int, took: float, at: float, *, is_throttled: bool) -> None:
        """Note what a connection has carried, and how long that took."""
        path = self._paths.get(link.node_id)
        if path is None:
            return
        path.breadth.round_trip = min(path.breadth.round_trip, took)
        path.carried_bytes += size
        refusal = path.refusal
        if path.says_refused and refusal is not None and link in refusal.links and at - took > refusal.at:
            path.says_refused = False
            few = counted(len(refusal.links), "connection")
            _log.warning("no more than %s to append at broker %d: %s", few, link.node_id, refusal.message)
        if is_throttled:
            path.breadth.throttled(at)

    def on_tick(self, at: float) -> None:
        """Open the connections that are of use, close others, and move partitions to those with room."""
        for node_id, path in list(self._paths.items()):
            links = [link for (node, _), link in self._links.items() if node == node_id]
            if not links:
                del self._paths[node_id]
                continue
            opened = [link for link in links if link]
            for link in opened:
                link.know_round_trip(path.breadth.round_trip)
            if len(links) > 1 or path.breadth.is_long:
                self._spread(node_id, path, opened, at)

    def _spread(self, node_id: int, path: BrokerPath, opened: list[DestinationLink], at: float) -> None:
        breadth = path.breadth
        used = [link for link in opened if link.number < breadth.wanted]
        awaited = {number for link in opened for number in link.leaving.values()}
        carried = {link: _carried(link) for link in used}
        free = [link for link in used if _is_free(link) and link.number not in awaited]
        crowded = [link for link in used if _is_full(link) and len(carried[link]) > 1]
        active = sum(partition.destination_node == node_id for partition in self._lane.active)
        # more than one a partition are of no use, but those that are open may be again
        breadth.limit = max(1, min(self._lane.control.connections, max(active, len(opened))))
        moves = 0
        crowded.sort(key=lambda one: -len(carried[one]))
        free.sort(key=lambda one: len(carried[one]))
        for link, target in zip(crowded, free, strict=False):
            if len(carried[link]) > len(carried[target]) + 1:
                self._move(link, min(carried[link], key=lambda one: len(one.in_flight)), target.number)
                moves += 1
        breadth.on_tick(at, path.carried_bytes, len(opened), is_limit=bool(crowded) and not moves)
        for link in opened:
            if link.number >= breadth.wanted:
                self._retire(link)
        if self._links.get((node_id, 0)):
            for number in range(1, breadth.wanted):
                self._links.open((node_id, number))

    def opened(self, key: tuple[int, int], stream: Stream, versions: tuple[int, ...]) -> DestinationLink | None:
        """Take a new connection into use; None if so many are no longer wanted."""
        node_id, number = key
        path = self._paths.get(node_id)
        if number and (path is None or number >= path.breadth.wanted):
            return None
        if path is None:
            path = self._paths[node_id] = BrokerPath(Breadth(1, stream.connection.round_trip))
        path.breadth.round_trip = min(path.breadth.round_trip, stream.connection.round_trip)
        link = DestinationLink(node_id, number, stream, *versions)
        link.know_round_trip(path.breadth.round_trip)
        for partition in self._lane.partitions:
            if partition.queue and (partition.destination_node, partition.destination_number) == link.key:
                link.ready[partition] = None
        return link

    def refused(self, key: tuple[int, int], message: str, at: float) -> None:
        """Note that a connection could not be opened."""
        node_id, number = key
        for partition in self._lane.all:
            if (partition.destination_node, partition.destination_number) == key:
                partition.outcome_unknown(message, at)
        path = self._paths.get(node_id)
        if not number or path is None:
            return
        opened = [link for link in self._links.opened if link.node_id == node_id]
        path.breadth.refused(len(opened), at)
        if path.refusal is None or not path.refusal.has_open:
            path.refusal = RefusedConnection(message, at, opened)

    def _move(self, link: DestinationLink, partition: PartitionCopy, number: int) -> None:
        """Pin a partition to another connection, as soon as nothing of it is in flight."""
        link.ready.pop(partition, None)
        if partition.in_flight:
            link.leaving[partition] = number
        else:
            self._pin(partition, number)

    def _pin(self, partition: PartitionCopy, number: int) -> None:
        node_id = partition.destination_node
        link = self._links.get((node_id, number)) if node_id is not None else None
        partition.pin(number if link else 0)
        if partition.queue:
            self._lane.make_ready(partition)

    def _retire(self, link: DestinationLink) -> None:
        """Send nothing more over a connection, and close it once everything on it is answered."""
        for partition in self._lane.all:
            if (partition.destination_node, partition.destination_number) == link.key:
                self._move(link, partition, 0)
        if not link.in_flight and not link.stream.sending:
            self._links.close(link)


def _is_free(link: DestinationLink) -> bool:
    """Return True if a connection can carry more at once."""
    return link.has_room and not _is_queueing(link)


def _is_full(link: DestinationLink) -> bool:
    """Return True if batches wait for a connection, before they are sent or on the way."""
    return _is_queueing(link) or (not link.has_room and any(len(p.in_flight) < MAX_IN_FLIGHT for p in link.ready))


def _is_queueing(link: DestinationLink) -> bool:
    return bool(link.in_flight) and link.window.is_queueing


def _carried(link: DestinationLink) -> set[PartitionCopy]:
    """Return the partitions that a connection carries now, without those that leave it."""
    in_flight = (partition for request in link.in_flight for partition, _ in request.batches)
    return {
        partition
        for partition in (*link.ready, *in_flight)
        if (partition.destination_node, partition.destination_number) == link.key and partition not in link.leaving
    }
