"""Groups without members, in a world whose destination forgets such groups after a minute.

One has committed once, at the source, before the first fault: the destination must have its offsets as long as its
topics are mirrored, and when a verb has stopped that. Another has committed once at the destination, and no mirror has
to do with it: when its offsets are gone, so are all that no one commits again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from campaign.claims import Place, judge_idle_group
from campaign.reading import COMMITTED, bounds
from campaign.watching import committed_offsets, wait_group
from campaign.world import World

_COMMIT_S = 30.0
#: A minute, and the time until a broker looks, has restarted or has elected a coordinator.
_FORGOTTEN_S = 100.0


class Sleepers:
    """The two groups of a world."""

    def __init__(self, world: World, source: str, destination: str) -> None:
        self._source, self._destination = source, destination
        self._idle, self._unknown = f"w{world.seed}-idle", f"w{world.seed}-unknown"
        #: What the idle group has committed.
        self._offsets: dict[Place, int] = {}
        self._began = 0.0

    def commit(self, places: Sequence[Place]) -> None:
        """Commit for both groups, of these partitions; those without records are omitted."""
        ends = bounds(self._source, places, COMMITTED)[1]
        self._offsets = {place: end - end // 3 for place, end in ends.items() if end}
        commit_alone(self._source, self._idle, self._offsets)
        commit_alone(self._destination, self._unknown, {places[0]: 0})
        self._began = time.monotonic()

    def wait_forgotten(self, places: Sequence[Place], seconds: float) -> tuple[bool, list[str]]:
        """Wait until the destination has forgotten a group; return whether it has, and what is wrong with the idle one.

        `places` are mirrored, and quiet: within `seconds` their offsets must be those of the source, and remain.
        """
        mine = [place for place in places if place in self._offsets]
        wrong = wait_group(self._source, self._destination, self._idle, mine, seconds)
        while not wrong and committed_offsets(self._destination, self._unknown):
            if time.monotonic() - self._began > _FORGOTTEN_S:
                return False, []
            time.sleep(1)
            wrong = self.judge(mine)
        return bool(mine) and not wrong, wrong

    def judge(self, places: Sequence[Place]) -> list[str]:
        """Return the partitions of these of which the destination has lost the idle group's offsets, in sentences."""
        owed = {place: offset for place, offset in self._offsets.items() if place in set(places)}
        return judge_idle_group(owed, committed_offsets(self._destination, self._idle))


def commit_alone(servers: str, group: str, offsets: Mapping[Place, int]) -> None:
    """Commit without joining the group, repeatedly while its coordinator is not there yet.

    Raises:
        KafkaException: refused for half a minute.
    """
    settings = {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    consumer, deadline = Consumer(settings), time.monotonic() + _COMMIT_S
    try:
        while offsets:
            try:
                consumer.commit(
                    offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False
                )
                return
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
    finally:
        consumer.close()
