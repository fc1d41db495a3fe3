"""Check what kmirror reports about a world: `describe` while it runs, groups' offsets, the loss of a failover."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from campaign.acts.scene import Note, Scene
from campaign.claims import Ends, Place, judge_loss, judge_samples
from campaign.load import group_of
from campaign.oracle import acknowledged_in
from campaign.sleepers import Sleepers
from campaign.watching import Watcher, ends, wait_group
from campaign.world import Condition

#: Groups are synced every second, and reading all of them takes a while.
_GROUPS_S = 30.0

Violations = list[dict[str, Any]]


class Overseer:
    """Watches the mirrors of a scene, and judges what is reported of their topics."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._source, self._destination = scene.source.direct, scene.destination.direct
        names = [topic.name for topic in scene.world.topics]
        #: If the destination forgets groups.
        self.sleepers = (
            Sleepers(scene.world, self._source, self._destination) if scene.destination.forgets_groups else None
        )
        self._watcher = Watcher(scene.engine.verb, self._source, self._destination, lambda: self._places(names))

    def start(self) -> None:
        """Start watching."""
        self._watcher.start()

    def stop(self) -> None:
        """Stop watching."""
        self._watcher.stop()

    def judge_reports(self) -> Violations:
        """Return false statements of `describe` about topics that no fault has hit."""
        harmed = {*self._scene.marks, *self._scene.ends, *self._scene.halted}
        return judge_samples(self._watcher.samples, {topic.name for topic in self._scene.world.topics} - harmed)

    def judge_groups(self, names: Sequence[str], *, quiet: bool) -> Violations:
        """Compare what the group has committed for these topics; once all is quiet both sides must become equal."""
        seconds = _GROUPS_S if quiet else 0.0
        group = group_of(self._scene.world)
        wrong = wait_group(self._source, self._destination, group, self._places(names), seconds)
        return [{"what": "a group is elsewhere", "offsets": wrong}] if wrong else []

    def put_to_sleep(self) -> None:
        """Have groups commit once, if the destination forgets groups."""
        if self.sleepers is not None:
            self.sleepers.commit(self._places(list(self._scene.partitions)))

    def judge_forgotten(self, names: Sequence[str]) -> tuple[Note | None, Violations]:
        """Wait until the destination forgets groups, if it does; return that, and offsets of an idle group it lost.

        `names` are mirrored, and quiet.
        """
        if self.sleepers is None:
            return None, []
        note: Note = {"act": Condition.GROUP_EXPIRY}
        is_forgotten, wrong = self.sleepers.wait_forgotten(self._places(names), _GROUPS_S)
        if not is_forgotten:
            note["nothing"] = "no group was forgotten"
        return note, [{"what": "an idle group is forgotten", "offsets": wrong}] if wrong else []

    def judge_sleepers(self, names: Sequence[str]) -> Violations:
        """Return the offsets of an idle group that the destination has lost for these topics, just stopped."""
        names = [name for name in names if name not in self._scene.halted]
        wrong = self.sleepers.judge(self._places(names)) if self.sleepers is not None else []
        return [{"what": "an idle group is forgotten", "offsets": wrong}] if wrong else []

    def source_ends(self, names: Sequence[str]) -> Ends | None:
        """Return the current ends of these topics at the source."""
        return ends(self._source, self._places(names), committed=True)

    @staticmethod
    def judge_stop(output: str, known: Ends | None, acks: Path, before: int) -> Violations:
        """Judge the loss that a failover reported; `known` and the start of `acks` are from before it was typed."""
        acknowledged = {place: set(offsets) for place, offsets in acknowledged_in(acks, before).items()}
        return judge_loss(json.loads(output)["results"], known, acknowledged)

    def _places(self, names: Sequence[str]) -> list[Place]:
        partitions = self._scene.partitions
        return [(name, index) for name in names for index in range(partitions[name])]
