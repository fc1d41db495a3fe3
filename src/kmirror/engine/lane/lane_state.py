"""What all parts of a lane share: its partitions, its connections, and whether it may send."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from kmirror.cluster.loop import Loop
from kmirror.cluster.security.client_config import ClientConfig
from kmirror.engine.lane.brokers.background_requests import BackgroundRequests
from kmirror.engine.lane.brokers.connections import Connections
from kmirror.engine.lane.brokers.links import DestinationLink, FillLink, SourceLink
from kmirror.engine.lane.partition.intake import Frame
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.partition.states import SourceRole
from kmirror.engine.lane.reports.control import LaneControl
from kmirror.engine.spec import LaneSpec
from kmirror.state.assignment import Assignment

_CLOCK_MARGIN_SECONDS = 0.5


class LaneState:
    """A lane's partitions and connections; for its sending thread. Any thread may read the lists of partitions."""

    def __init__(
        self,
        spec: LaneSpec,
        source_config: ClientConfig,
        destination_config: ClientConfig,
        control: LaneControl,
        requests: BackgroundRequests,
        loop: Loop,
    ) -> None:
        self.spec = spec
        self.source_config = source_config
        self.destination_config = destination_config
        self.control = control
        self.background_requests = requests
        self.loop = loop
        #: Connections by broker and role, by broker and number, and by broker.
        self.sources: Connections[tuple[int, SourceRole], SourceLink] = Connections(
            "source", itemgetter(0), loop, requests, source_config.request_timeout_ms / 1000
        )
        patience = destination_config.request_timeout_ms / 1000
        self.destinations: Connections[tuple[int, int], DestinationLink] = Connections(
            "destination", itemgetter(0), loop, requests, patience, lambda: control.deadline
        )
        self.fills: Connections[int, FillLink] = Connections(
            "fill", int, loop, requests, patience, lambda: control.deadline
        )
        #: Frames whose last batch is answered.
        self.released: list[Frame] = []
        self.counts = control.counts
        #: Until then predecessors may write.
        self.quiet_until = 0.0
        #: True once partitions of several topics were copied; never False again, since requests may be in flight.
        self.many_topics = False
        #: The last change of its work that this lane has applied.
        self.revision = 0
        #: The partitions that are copied, and those being released: replaced, never changed, because other threads read
        #: them.
        self.partitions: list[PartitionCopy] = []
        self.revoked: list[PartitionCopy] = []
        #: Those of `partitions` that need periodic checks; changed by the sending thread only.
        self.active: dict[PartitionCopy, None] = {}
        #: Those that came to rest since `take_touched` was last called.
        self._came_to_rest: dict[PartitionCopy, None] = {}

    @property
    def all(self) -> list[PartitionCopy]:
        """The partitions that are being released, then those that are copied."""
        return [*self.revoked, *self.partitions]

    def activate(self, partition: PartitionCopy) -> None:
        """Have a partition checked periodically until it comes to rest."""
        self.active[partition] = None

    def set_aside_resting(self) -> None:
        """Stop checking the partitions that have come to rest."""
        for partition in [p for p in self.active if p.is_at_rest]:
            self._came_to_rest[partition] = None
            del self.active[partition]

    def take_touched(self) -> list[PartitionCopy]:
        """Return all partitions that may have changed since the last call; for one other thread."""
        # a partition that comes to rest meanwhile is in both, never in neither
        touched = [*self.revoked, *self.active]
        while self._came_to_rest:
            touched.append(self._came_to_rest.popitem()[0])
        return touched

    def may_send(self, at: float) -> bool:
        """Return True if the lane may send to the destination: before its deadline, with all changes applied."""
        return at < self.control.deadline and self.control.revision == self.revision

    def copies_of(self, assignments: Sequence[Assignment], at: float, *, in_doubt: bool) -> list[PartitionCopy]:
        """Create the copies of newly assigned partitions; `in_doubt`: a predecessor may still write to them."""
        lease = self.spec.ttl_ms / 1000
        quiet_until = max(self.quiet_until, at + lease + _CLOCK_MARGIN_SECONDS if in_doubt else 0.0)
        topics = {*(p.assignment.topic for p in self.partitions), *(a.topic for a in assignments)}
        self.many_topics = self.many_topics or len(topics) > 1
        return [
            PartitionCopy(
                assignment,
                quiet_until=quiet_until,
                settle=lease,
                retry_timeout=self.spec.retry_timeout_ms / 1000,
                released=self.released.append,
                counts=self.counts,
                activated=self.activate,
            )
            for assignment in assignments
        ]

    def be_quiet_until(self, at: float) -> None:
        """Set until when an earlier run may write."""
        self.quiet_until = at
        for partition in self.all:
            partition.predecessor_ends(at)

    def predecessors_end(self, claimed_at: float) -> float:
        """Return when no holder of a claim older than that of `claimed_at` can write any more."""
        return claimed_at + self.spec.ttl_ms / 1000 + _CLOCK_MARGIN_SECONDS

    def make_ready(self, partition: PartitionCopy) -> None:
        """Have a partition with a queue sent from."""
        if link := self.destination_of(partition):
            link.ready[partition] = None

    def destination_of(self, partition: PartitionCopy) -> DestinationLink | None:
        """Return the connection that a partition's batches are sent over; None if there is none."""
        node_id = partition.destination_node
        return self.destinations.get((node_id, partition.destination_number)) if node_id is not None else None

    def hang_up(self) -> None:
        """Close every connection at once."""
        self.sources.hang_up()
        self.destinations.hang_up()
        self.fills.hang_up()
