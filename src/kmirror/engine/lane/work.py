"""What all parts of a lane share: what it copies, whether it may send, and its connections."""

from __future__ import annotations

from collections.abc import Sequence

from kmirror.cluster.security.client_config import ClientConfig
from kmirror.engine.lane.background_requests import BackgroundRequests
from kmirror.engine.lane.control import LaneControl
from kmirror.engine.lane.intake import Frame
from kmirror.engine.lane.links import DestinationLink, FillLink, SourceLink
from kmirror.engine.lane.loop import Loop
from kmirror.engine.lane.partition_copy import PartitionCopy
from kmirror.engine.spec import LaneSpec
from kmirror.state.assignment import Assignment

_CLOCK_MARGIN_SECONDS = 0.5


class Work:
    """Hold a lane's partitions and connections; for its sending thread. Any thread may read the lists of partitions."""

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
        #: Connections by broker; None while one is being opened.
        self.sources: dict[int, SourceLink | None] = {}
        self.destinations: dict[int, DestinationLink | None] = {}
        self.fills: dict[int, FillLink | None] = {}
        #: Frames whose last batch is done with.
        self.released: list[Frame] = []
        self.counts = control.counts
        #: Until then predecessors may write.
        self.quiet_until = 0.0
        #: True once partitions of several topics were copied: requests may be under way.
        self.many_topics = False
        #: The last change of its work that this lane goes by.
        self.revision = 0
        #: What is copied, and what is being released: replaced, never changed, because other threads read them.
        self.partitions: list[PartitionCopy] = []
        self.leaving: list[PartitionCopy] = []
        #: Those of `partitions` that have to be looked at now and then; changed by the sending thread alone.
        self.restless: dict[PartitionCopy, None] = {}
        #: Those that came to rest since `take_moved` was last called.
        self._rested: dict[PartitionCopy, None] = {}

    @property
    def all(self) -> list[PartitionCopy]:
        """The partitions that are being released, and then those that are copied."""
        return [*self.leaving, *self.partitions]

    def let_rest(self) -> None:
        """Look no more at the partitions that have come to rest."""
        for partition in [p for p in self.restless if p.is_at_rest]:
            self._rested[partition] = None
            del self.restless[partition]

    def take_moved(self) -> list[PartitionCopy]:
        """Return all with which anything may have happened since this was last called; for one other thread."""
        # what comes to rest meanwhile is in both, never in neither
        moved = [*self.leaving, *self.restless]
        while self._rested:
            moved.append(self._rested.popitem()[0])
        return moved

    def may_send(self, at: float) -> bool:
        """Tell whether anything may be sent to the destination: this lane's time is not over, and it knows its work."""
        return at < self.control.deadline and self.control.revision == self.revision

    def copies_of(self, assignments: Sequence[Assignment], at: float, *, in_doubt: bool) -> list[PartitionCopy]:
        """Make the copies of partitions that come to this lane; `in_doubt`: a predecessor may still write to them."""
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
                released=self.released,
                counts=self.counts,
                restless=self.restless,
            )
            for assignment in assignments
        ]

    def be_quiet_until(self, at: float) -> None:
        """Note until when an earlier run may write."""
        self.quiet_until = at
        for partition in self.all:
            partition.predecessor_ends(at)

    def predecessors_time_ends(self, claimed_at: float) -> float:
        """Return when all that may still write under a claim older than that of `claimed_at` cannot any more."""
        return claimed_at + self.spec.ttl_ms / 1000 + _CLOCK_MARGIN_SECONDS

    def make_ready(self, partition: PartitionCopy) -> None:
        """Let a partition with something in its queue have its turn."""
        node_id = partition.destination_node
        link = self.destinations.get(node_id) if node_id is not None else None
        if link:
            link.ready[partition] = None

    def hang_up(self) -> None:
        """Close every connection at once."""
        for links in (self.sources, self.destinations, self.fills):
            for link in links.values():
                if link:
                    self.loop.hang_up(link)
            links.clear()
