"""Who copies what in one mirror, beside the plan: how much lanes have to do, and which work moves between them.

`balance` judges the lanes of this mirror, `spread` the executors of the whole application.
"""

from __future__ import annotations

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.executors import Executor, Placement, lanes_of
from kmirror.engine.lanes.balance import SAMPLE_SECONDS, Balance, Position
from kmirror.engine.lanes.lanes import Lanes
from kmirror.engine.lanes.spread import RunningLane, limit_text
from kmirror.engine.status.journal import Level, MirrorJournal
from kmirror.engine.status.mirror_topics import MirrorTopics
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.state.lease import Lease
from kmirror.state.records import PartitionState
from kmirror.words import counted

#: Records that will arrive within this time count as work of a partition.
_ARRIVING_SECONDS = 30.0
#: Bytes that weigh as much as a partition without any: a smaller difference is chance, and lanes get an even number.
_PARTITION = 1e6


class LaneBalancer:
    """Balance the lanes of one mirror; for one thread."""

    def __init__(
        self,
        topics: MirrorTopics,
        partitions: MirrorPartitions,
        lanes: Lanes,
        lease: Lease,
        journal: MirrorJournal,
    ) -> None:
        self.mirror = topics.record.name
        self._topics = topics
        self._partitions = partitions
        self._lanes = lanes
        self._lease = lease
        self._journal = journal
        self._balance = Balance()
        self._mirrors = 1
        #: Since when there is room for another lane, while others have work to share.
        self._short_since: float | None = None

    @property
    def lanes_wanted(self) -> int:
        """How many lanes it would have if there were room."""
        return lanes_of(self._topics.settings.copy_lanes, self._lease.record.master, self._mirrors)

    def share_machine(self, mirrors: int) -> None:
        """Take how many mirrors there are in the application."""
        before, self._mirrors = self.lanes_wanted, mirrors
        self._lanes.plan_now |= self.lanes_wanted != before

    @property
    def is_settled(self) -> bool:
        """True when all its lanes run, on known executors."""
        return self._lanes.is_settled

    @property
    def is_rebuilding(self) -> bool:
        """True while a topic is being rebuilt, which takes a worker beside the lanes, unless that has failed."""
        rebuilds = (self._topics.by_name[topic].rebuild for topic in self._topics.claimed())
        return any(rebuild is None or rebuild.trouble is None for rebuild in rebuilds)

    def take_placement(self, placement: Placement, limit: int | None) -> None:
        """Take where lanes run, and how many it may have; None for as many as it wants."""
        lanes = self._lanes
        names = lanes.job_names()
        lanes.places = {lane: placement.places[name] for lane, name in names.items() if name in placement.places}
        if limit != lanes.limit:
            lanes.limit, lanes.plan_now = limit, True
            level = Level.INFO if limit is None else Level.WARNING
            self._journal.note(limit_text(self.mirror, limit, self.lanes_wanted), level, about_spark=True)

    def running_lanes(self) -> list[RunningLane]:
        """Return its lanes whose executors are known."""
        paces, steady, may_move = self._balance.paces, self._lanes.at_work, not self._lanes.is_moving
        return [
            RunningLane(
                self.mirror,
                lane,
                executor,
                pace.rate if (pace := paces.get(lane)) is not None else 0.0,
                self._balance.best.get(lane, 0.0),
                pace is not None and pace.is_behind,
                may_move and not self._lanes.stopping and lane in steady,
            )
            for lane, executor in self._lanes.places.items()
        ]

    def move_lane(self, lane: int, place: Executor) -> None:
        """Move a lane's work to another executor."""
        before = self._lanes.places.get(lane)
        self._journal.note(f"lane {lane} of {self.mirror} moves from {before} to {place}")
        self._journal.record("lane", "MOVED", {"lane": lane, "from": str(before), "to": str(place)})
        self._lanes.move_lane(lane, place)

    def is_due(self, at: float) -> bool:
        """Return whether it is time for the next `tick`."""
        return self._balance.is_due(at, len(self._partitions.rows))

    def tick(self, at: float, *, is_quiet: bool) -> None:
        """Move partitions from lanes that are behind to those that are ahead, and start lanes that there is room for.

        While it `is_quiet`, nothing is left to copy and nothing arrives: there is no position to compare.
        """
        lanes = self._lanes
        self._balance.take(lanes.at_work, {} if is_quiet else self._positions(), at)
        if lanes.is_moving:
            return
        if lanes.has_room:
            self._short_since = self._short_since or at
            if at - self._short_since >= SAMPLE_SECONDS:
                self._short_since = None
                lanes.fill_slots()
            return
        self._short_since = None
        # lanes that wait for their share of a throttle are not slow
        if self._topics.settings.throttle_bytes_per_second == 0 and (moves := self._balance.moves(at)):
            (to,) = set(moves.values())
            moved = f"{counted(len(moves), 'partition')} of {self.mirror}"
            self._journal.note(f"lane {to}, which is ahead, gets {moved}")
            self._journal.record("lane", "GIVEN_MORE", {"lane": to, "partitions": len(moves)})
            lanes.move_partitions(moves)

    def _positions(self) -> dict[TopicPartition, Position]:
        """Return the positions of partitions that lanes may copy now and whose two ends are known."""
        rows, first = self._partitions.rows, self._lease.record.first_topics
        records = sum(row.records_copied for row in rows.values())
        mean = sum(row.bytes_copied for row in rows.values()) / records if records else 1.0
        return {
            partition: Position(
                row.destination_offset, lag, row.bytes_copied / row.records_copied if row.records_copied else mean
            )
            for partition, row in rows.items()
            if row.state is PartitionState.MIRRORING
            and row.reason is None
            and row.destination_offset is not None
            and (not first or row.topic in first)
            and (lag := self._partitions.lag(partition)) is not None
        }

    def weights(self) -> dict[TopicPartition, float]:
        """Return what there is to copy by partition, as `lane_plan` counts it: what is left or will arrive soon."""
        known = self._positions()
        mean = sum(p.bytes_per_offset for p in known.values()) / len(known) if known else 1.0
        found = {partition: offsets * mean for partition, offsets in self._partitions.left_to_copy().items()}
        for partition, position in known.items():
            arriving = _ARRIVING_SECONDS * self._balance.rate(partition)
            found[partition] = position.lag * position.bytes_per_offset + arriving
        return {partition: size / _PARTITION for partition, size in found.items()}
