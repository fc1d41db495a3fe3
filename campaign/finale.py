"""The end of a world: its mirrors are promoted, failed over, failed back or switched over, and judged at each step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from campaign.acts.brokers import limit_changes
from campaign.acts.scene import Scene, ends_of
from campaign.engine import Engine, Load
from campaign.overseer import Overseer
from campaign.world import Act, Ending

#: How long applications write to the new primary before anything is done there.
_WRITES_S = 2.0
_RETURNS_S = 90.0
#: A group is not forgotten so soon after its last commit.
_NOT_FORGOTTEN_S = 40.0
#: What a failback may change a second until it has been typed twice, if the world has faults of this kind.
_CHANGES_PER_SECOND = 1.0
#: Longer than brokers wait for a read of the store.
TOO_SLOW_MS = 1500

Violations = list[dict[str, Any]]


class Finale:
    """Ends mirrors of a scene as its seed says, and continues from there."""

    def __init__(
        self,
        scene: Scene,
        overseer: Overseer,
        load: Load,
        folder: Path,
        judge: Callable[..., Violations],
        wait_caught_up: Callable[[Engine, Sequence[str]], Violations],
    ) -> None:
        self._scene, self._overseer, self._load, self._folder = scene, overseer, load, folder
        self._judge, self._wait_caught_up = judge, wait_caught_up
        self._world = scene.world
        #: What the source acknowledged, and what the destination did as the new primary.
        self._acks, self._back_acks = folder / "acks", folder / "back-acks"
        self._stopped_at = 0.0

    def play(self, mirror: str, names: Sequence[str]) -> Violations:
        """End the mirror of these topics; return the violations."""
        match self._world.ending:
            case Ending.PROMOTE:
                return self._promote(self._scene.engine, mirror, names)
            case Ending.SWITCHOVER:
                return self._switch_over(mirror, names)
            case Ending.FAILBACK:
                return self._fail_over(mirror, names) or self._fail_back(mirror, names)
            case _:
                return self._fail_over(mirror, names)

    def _promote(self, engine: Engine, mirror: str, names: Sequence[str], *, is_back: bool = False) -> Violations:
        words = ("--topics", ",".join(names), "--idle", "1s", "--timeout", "60s", "--yes", "--json")
        self._stopped_at = time.monotonic()
        code, output = engine.verb("promote", *words, mirror=mirror)
        return self._of_stop("promote", code, output, names, is_back=is_back)

    def _of_stop(self, verb: str, code: int, output: str, names: Sequence[str], *, is_back: bool = False) -> Violations:
        """Judge copies by the ends that a verb reported."""
        if code:
            return [{"what": f"{verb} ended with {code}", "said": json.loads(output) if output else None}]
        scene = self._scene
        if is_back:
            return self._judge(names, ends_of(output), self._back_acks, (scene.destination, scene.source))
        # since a topic is stopped its groups are no longer committed again
        is_soon = time.monotonic() - self._stopped_at < _NOT_FORGOTTEN_S
        found = self._overseer.judge_sleepers(names) if is_soon else []
        return found + self._judge(names, ends_of(output))

    def _fail_over(self, mirror: str, names: Sequence[str]) -> Violations:
        ending, source = self._world.ending, self._scene.source
        if ending is not Ending.FAILOVER:
            self._load.begin(source.direct, self._acks)
            time.sleep(_WRITES_S)
        known, size = self._overseer.source_ends(names), self._acks.stat().st_size
        if ending is Ending.FAILOVER_SOURCE_DEAD:
            known = None
            for broker in source.cluster.brokers:
                source.cluster.kill(broker.node_id)
        words = ("--topics", ",".join(names), "--yes", "--json")
        self._stopped_at = time.monotonic()
        code, output = self._scene.engine.verb("failover", *words, mirror=mirror)
        source.heal()  # first, so that the load can finish what it has begun
        self._load.end()
        found = self._of_stop("failover", code, output, names)
        if code:
            return found
        found += self._overseer.judge_groups(names, quiet=False)
        found += self._overseer.judge_stop(output, known, self._acks, size)
        totals = json.loads(output)["totals"]
        if ending is Ending.FAILOVER and totals["knownLostRecords"]:
            found.append({"what": "reported a loss where nothing is lost", "totals": totals})
        return found

    def _fail_back(self, mirror: str, names: Sequence[str]) -> Violations:
        """Make the source a mirror of the destination under load, with a verb that is killed once half-way.

        Until then, and until the verb was typed once more, the stores of tiered topics are too slow to be read. If
        there were faults of this kind, it may make few changes until then.
        """
        words = ("--mirror-config", self._destination, "--topics", ",".join(names), "--recreate", "--yes", "--json")
        self._load.begin(self._scene.destination.direct, self._back_acks, names)
        back = self._to_source(mirror)
        slow = [side for side in self._scene.sides() if side.is_tiered]
        for side in slow:
            side.cluster.store.slow(TOO_SLOW_MS)
        undo = None
        if any(fault.act is Act.MUTATION_QUOTA for fault in self._world.faults):
            undo = limit_changes(self._scene, self._scene.source, _CHANGES_PER_SECOND)
        first = back.type("failback", *words)
        time.sleep(self._world.faults[0].draw % 50 / 10)
        first.kill()
        back.verb("failback", *words)
        for side in slow:
            side.cluster.store.well()
        if undo is not None:
            undo()
        deadline = time.monotonic() + _RETURNS_S
        while (done := back.verb("failback", *words))[0]:
            if time.monotonic() > deadline:
                return [{"what": f"failback ended with {done[0]}", "said": done[1][-2000:]}]
        return self._return(back, mirror, names)

    def _switch_over(self, mirror: str, names: Sequence[str]) -> Violations:
        words = ("--mirror-config", self._destination, "--topics", ",".join(names), "--timeout", "60s", "--yes")
        self._stopped_at = time.monotonic()
        code, output = self._scene.engine.verb("switchover", *words, "--json", mirror=mirror)
        found = self._of_stop("switchover", code, output, names)
        if found:
            return found
        self._load.begin(self._scene.destination.direct, self._back_acks, names)
        return self._return(self._to_source(mirror), mirror, names)

    @property
    def _destination(self) -> str:
        return str(self._folder / "destination.properties")

    def _to_source(self, mirror: str) -> Engine:
        path = self._folder / "back.properties"
        login = self._scene.source.write_client_properties(path, self._world.client)
        return Engine([mirror], login, self._folder, self._world)

    def _return(self, back: Engine, mirror: str, names: Sequence[str]) -> Violations:
        """Copy to the source what applications write to the destination, and promote it there."""
        back.start()
        try:
            time.sleep(_WRITES_S)
            self._load.end()
            found = self._wait_caught_up(back, names)
            between = self._scene.destination, self._scene.source
            found = found or self._judge(names, {}, self._back_acks, between)
            found = found or self._promote(back, mirror, names, is_back=True)
        finally:
            back.kill()
        back.verb("remove", "--topics", ".*", "--yes")
        return found
