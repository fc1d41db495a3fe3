"""Run worlds: `make campaign`, or `python -m campaign --worlds 10`, `--hours 1`, `--replay SEED`.

Each world has topics on clusters that several worlds share, mirrors, an engine, load, and faults. Once all faults are
undone and the load has ended, everything must be copied: the oracle compares. Then the world ends as its seed says, by
a promote, a failover or a failback, and the oracle compares again. After a violation everything is kept, and its folder
is printed. `--replay SEED --shrink` finds the faults that it takes.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from campaign.clusters import Clusters
from campaign.results import Results, was_done
from campaign.running import NOT_RUN, run_world
from campaign.world import WORLDS_A_GROUND, Act, World, with_acts, world_of


def run_worlds(worlds: Iterable[World], folder: Path, most_faults: int) -> Iterator[dict[str, Any]]:
    """Run worlds one after another; yield what was done and found."""
    clusters, before = Clusters(folder), None
    try:
        for world in worlds:
            # a world that runs again finds its own topics on the clusters it had
            if before is None or before == world.seed or before // WORLDS_A_GROUND != world.seed // WORLDS_A_GROUND:
                clusters.start(world.ground)
            ground = {**asdict(world.ground), "versions": clusters.versions()}
            result = run_world(world, folder, clusters.sides, most_faults)
            # what one world broke is not to blame on the next
            before = None if any(one["what"] == NOT_RUN for one in result["violations"]) else world.seed
            yield {**result, "ground": ground}
    finally:
        clusters.close()


def shrink(world: World, folder: Path, most_faults: int) -> World:
    """Remove faults one by one while a violation remains; return the smallest world."""
    for fault in world.faults:
        tried = replace(world, faults=tuple(one for one in world.faults if one != fault))
        (result,) = run_worlds([tried], Path(tempfile.mkdtemp(dir=folder)), most_faults)
        print(f"without {fault.act} at {fault.at} s: {result['violations'][:1] or 'ok'}", flush=True)
        world = tried if result["violations"] else world
    return world


def again(worlds: Iterable[World], results: list[dict[str, Any]]) -> Iterator[World]:
    """Yield worlds, and each one whose result has a violation a second time."""
    for world in worlds:
        yield world
        if results[-1]["violations"]:
            yield world


def main() -> int:
    """Run worlds until asked to stop; return 1 if there was a violation, with --again only if one was found twice."""
    given = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the brokers end too
    first = given.replay if given.replay is not None else given.seed or random.SystemRandom().randrange(1, 1 << 30)
    seeds = range(first, first + (1 if given.replay is not None else given.worlds))
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kmirror-campaign-"))
    folder.mkdir(parents=True, exist_ok=True)
    ends_at = math.inf if given.hours is None else time.monotonic() + given.hours * 3600
    made = (world_of(seed, given.seconds, given.faults) for seed in seeds if time.monotonic() < ends_at)
    worlds = (with_acts(world, given.only) if given.only else world for world in made)
    results: list[dict[str, Any]] = []
    stored = Results(given.output)
    for result in run_worlds(again(worlds, results) if given.again else worlds, folder, given.faults):
        results.append(result)
        stored.add_world({**result, "options": {"seconds": given.seconds, "faults": given.faults}})
        acts = ", ".join(str(one["act"]) if was_done(one) else f"({one['act']})" for one in result["faults"])
        bad = [" ".join(str(one[key]) for key in ("what", "error") if key in one) for one in result["violations"]]
        verdict = f"VIOLATION: {'; '.join(bad)}, see {folder}" if bad else "ok"
        print(f"{result['seed']} {result['seconds']:.0f} s {result['ending']} [{acts}]: {verdict}", flush=True)
    violations = Counter(one["seed"] for one in results if one["violations"])
    certain = [seed for seed, count in violations.items() if count > given.again]
    faults = Counter(str(fault["act"]) for one in results for fault in one["faults"] if was_done(fault))
    print(f"{len(results)} worlds, {faults.total()} faults, {len(violations)} with violations")
    if given.again and violations:
        print(f"found again: {', '.join(map(str, certain)) or 'none'}; everything is kept in {folder}")
    if certain and given.shrink:
        world = world_of(first, given.seconds, given.faults)
        left = shrink(with_acts(world, given.only) if given.only else world, folder, given.faults)
        print("it takes: " + (", ".join(f"{one.act} at {one.at} s" for one in left.faults) or "no fault at all"))
    if not violations and given.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if certain else 0


def _acts(words: str) -> list[Act]:
    return [Act(word) for word in words.split(",")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=8, help="how many (%(default)s)")
    parser.add_argument("--hours", type=float, help="start no world after this many hours")
    parser.add_argument("--seed", type=int, help="of the first world; the others count up from it (default: random)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run only this world")
    parser.add_argument(
        "--again",
        action="store_true",
        help="run a world with a violation a second time; exit with 1 if it is found again",
    )
    parser.add_argument("--shrink", action="store_true", help="with --replay: find the faults that the violation takes")
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="how long faults are injected into a world (%(default)g)"
    )
    parser.add_argument("--faults", type=int, default=10, help="most faults per world (%(default)s)")
    acts = ", ".join(Act)
    parser.add_argument("--only", type=_acts, metavar="ACT,...", default=(), help=f"inject only these faults: {acts}")
    parser.add_argument("--folder", type=Path, help="keep worlds with violations here")
    parser.add_argument("--output", type=Path, help="append the results to this file")
    given = parser.parse_args()
    if given.shrink and (given.replay is None or given.again):
        parser.error("--shrink is for --replay, without --again")
    return given


if __name__ == "__main__":
    sys.exit(main())
