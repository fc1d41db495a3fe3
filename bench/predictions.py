"""Measure how close `kmirror plan --trial` predicts the time of a copy: `python -m bench.predictions`.

A source with topics of large, medium and small batches is planned, with a trial copy; then its waves are copied by one
engine, one after another, and each time is compared with the prediction. Results replace docs/results/plan.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.__main__ import filled
from bench.clusters import Pair
from bench.contenders import Load
from bench.data import DATA_SETS
from bench.machine import describe_machine
from bench.processes import REPOSITORY, Running, carry_out, kmirror, start
from kmirror.ops.base.context import Destination
from kmirror.ops.show.describe import describe
from kmirror_plan.outcomes import wave_outcomes
from kmirror_plan.plan_files import read_plan

STORED = REPOSITORY / "docs" / "results" / "plan.json"
#: Megabytes of each data set.
_SIZES = {"256k": 6000, "16k": 4000, "1-record": 1600}
_TRIAL = "1200MB"
_MIRROR = "bench-plan"
_ALLOWED = 0.25


def measure(pair: Pair, folder: Path) -> list[dict[str, Any]]:
    """Plan and copy; return the waves with predicted and actual seconds. Raises CopyFailedError."""
    loads: list[Load] = [filled(pair, folder, DATA_SETS[key], size) for key, size in _SIZES.items()]
    config, plan = folder / "source.properties", folder / "plan"
    config.write_text(f"bootstrap.servers={pair.source.bootstrap_servers}\n", encoding="utf-8")
    server = ("--bootstrap-server", pair.destination.bootstrap_servers)
    on_mirror = ("--mirror", _MIRROR, *server)
    planning = kmirror(
        *("plan", "--mirror-config", str(config), "--topics", ",".join(load.topic for load in loads)),
        *("--sample", "1s", "--trial", _TRIAL, "--wave-bytes", "1MB", "--out", str(plan), *server),
    )
    # the first one warms up the brokers, as those of a real cluster are
    carry_out(planning)
    carry_out(planning)
    carry_out(kmirror("create", "--mirror-config", str(config), *on_mirror))
    log = folder / "kmirror.log"
    running = Running([start(kmirror("run", *on_mirror), log)], log, ends_itself=False)
    try:
        for file in sorted(plan.glob("wave-*.topics")):
            carry_out(kmirror("add", "--topics", f"@{file}", *on_mirror))
            carry_out(kmirror("wait", "--for", "caught-up", "--timeout", "10m", *on_mirror))
    finally:
        running.end()
    with Destination.open({"bootstrap.servers": pair.destination.bootstrap_servers}) as destination:
        topics = destination.state().topics(_MIRROR)
        outcomes = wave_outcomes(read_plan(str(plan)), topics, describe(destination, _MIRROR))
    return [asdict(one) for one in outcomes]


def main() -> int:
    """Measure once and store the result; return 1 if a prediction was further off than is allowed."""
    with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
        waves = measure(pair, Path(name))
        version = pair.source.sandbox.kafka_version
    ratios = [one["actual_seconds"] / one["predicted_seconds"] for one in waves]
    found = {"machine": asdict(describe_machine(version)), "allowed": _ALLOWED, "waves": waves}
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return int(any(abs(ratio - 1) > _ALLOWED for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
