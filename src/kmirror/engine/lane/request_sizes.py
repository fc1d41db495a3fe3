"""How large a Produce request to each destination broker may be.

A broker closes the connection over which a request above its `socket.request.max.bytes` arrives, and says nothing. So a
batch that is too large by itself is never sent, and several are not sent together where that would be too much. If the
setting may not be read, or something in between has a lower limit, a large batch that was sent when the connection was
closed is sent again with nothing else; if that ends the same way some times, the batch is taken for too large.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from kmirror.cluster.producers import REQUEST_LIMIT
from kmirror.cluster.protocol import produce
from kmirror.cluster.protocol.codes import Code
from kmirror.engine.lane.brokers.links import DestinationLink
from kmirror.engine.lane.lane_state import LaneState
from kmirror.engine.lane.partition.intake import GuardedBatch
from kmirror.engine.lane.partition.partition_copy import PartitionCopy

#: A request of this size takes no further batch; if more is in flight over a long-distance connection, it may be
#: larger, and it is smaller where less is.
PRODUCE_BYTES = 1 << 20
PRODUCE_PARTITIONS = 200
#: More than what a request has besides its batches, and for each of them.
_REQUEST_OVERHEAD, _BATCH_OVERHEAD = 1024, 300
#: A connection that is closed while a smaller request is in flight is not closed for its size.
_LARGE_BYTES = 512 << 10
#: So often a batch is cut off before it is blamed: where the limit is unknown, and where it is known to be higher (then
#: it is more likely that brokers restart).
_CUT_OFFS, _CUT_OFFS_UNLIKELY = 3, 10


class RequestSizes:
    """Know what the brokers of one lane take; for its sending thread."""

    def __init__(self, lane: LaneState) -> None:
        self._lane = lane
        #: By broker, the most bytes of batches that may be sent together.
        self._together: dict[int, int] = {}
        #: Brokers that closed a connection when several batches were sent together.
        self._wary: set[int] = set()
        #: The offset of a batch that was sent by itself when the connection was closed, and how often.
        self._suspects: WeakKeyDictionary[PartitionCopy, tuple[int, int]] = WeakKeyDictionary()

    def learn(self, partition: PartitionCopy) -> None:
        """Take what an inspection found of the broker that leads a partition."""
        facts, node_id = partition.facts, partition.destination_node
        if facts and node_id is not None:
            limit = facts.destination_limits.request_bytes
            margin = _REQUEST_OVERHEAD + PRODUCE_PARTITIONS * _BATCH_OVERHEAD
            self._together[node_id] = 1 << 31 if limit is None else limit - margin

    def together(self, node_id: int) -> int:
        """Return the most bytes of batches that may be sent to a broker together."""
        known = self._together.get(node_id, PRODUCE_BYTES)
        return min(known, PRODUCE_BYTES) if node_id in self._wary else known

    def is_suspect(self, partition: PartitionCopy, batch: GuardedBatch) -> bool:
        """Return True if a batch must be sent with nothing else."""
        return bool(self._suspects) and self._cut_offs(partition, batch) > 0

    def obstacle(self, link: DestinationLink, partition: PartitionCopy, batch: GuardedBatch) -> str | None:
        """Return why the broker will not take a batch by itself; None if it may."""
        limit = partition.facts.destination_limits.request_bytes if partition.facts else None
        if limit is None or len(batch.data) + _REQUEST_OVERHEAD + _BATCH_OVERHEAD <= limit:
            return None
        client_id, appends = self._lane.destination_config.client_id, [partition.append_of(batch)]
        if produce.request_bytes(link.version, client_id, appends) <= limit:
            return None
        return (
            f"broker {link.node_id} takes no request above its {REQUEST_LIMIT}={limit}:"
            f" raise {REQUEST_LIMIT} in its server.properties and restart it"
        )

    def closed(self, link: DestinationLink) -> None:
        """Note what was in flight on a connection that the broker has closed; it has answered all before that."""
        request = link.in_flight[0] if link.in_flight and link.stream.is_cut_off else None
        if request is None or request.size < _LARGE_BYTES:
            return
        if len(request.batches) > 1:
            self._wary.add(link.node_id)
            return
        ((partition, batch),) = request.batches
        self._suspects[partition] = batch.base_offset, self._cut_offs(partition, batch) + 1

    def give_up(self, link: DestinationLink, partition: PartitionCopy, batch: GuardedBatch, at: float) -> None:
        """Fail a partition whose batch was cut off too often."""
        known = partition.facts and partition.facts.destination_limits.request_bytes
        if self._cut_offs(partition, batch) < (_CUT_OFFS_UNLIKELY if known else _CUT_OFFS):
            return
        why = f"broker {link.node_id} closes the connection when it is sent this batch alone, most likely because "
        if known:
            why += f"something in between has a lower limit than the broker's {REQUEST_LIMIT}={known}: raise that limit"
        else:
            why += (
                f"it is larger than the broker's {REQUEST_LIMIT}: raise that in its server.properties and restart it;"
                " with DESCRIBE_CONFIGS on the cluster kmirror can read it"
            )
        partition.refused(Code.MESSAGE_TOO_LARGE, why, batch, at)

    def _cut_offs(self, partition: PartitionCopy, batch: GuardedBatch) -> int:
        offset, count = self._suspects.get(partition, (None, 0))
        return count if offset == batch.base_offset else 0
