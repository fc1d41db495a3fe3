"""Measure how close `kmirror plan --trial` predicts the time of a copy: `python -m bench.predictions`.

A source with topics of large, medium and small batches is planned, with a trial copy; then its waves are copied by one
engine, one after another, and each time is compared with the prediction. That is done twice: as fast as this machine
copies, which varies, and with a quota at the source, as a path or a quota limits a real migration. Results replace
docs/results/plan.json.
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
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.rights.client_quotas import alter_quotas
from kmirror.cluster.security.client_config import client_config
from kmirror.ops.base.context import Destination
from kmirror.ops.show.describe import describe
from kmirror_plan.outcomes import wave_outcomes
from kmirror_plan.plan_files import read_plan

STORED = REPOSITORY / "docs" / "results" / "plan.json"
#: Megabytes of each data set.
_SIZES = {"256k": 6000, "16k": 4000, "1-record": 1600}
_TRIAL = 1200
#: The quota at the source in megabytes a second; what is copied then is so much less.
_QUOTA, _PART = 40, 2
_MIRROR = "bench-plan"
_ALLOWED = 0.25


def measure(pair: Pair, folder: Path, quota: int | None) -> list[dict[str, Any]]:
    """Plan and copy; return the waves with predicted and actual seconds. Raises CopyFailedError."""
    part = 1 if quota is None else _PART
    loads: list[Load] = [filled(pair, folder, DATA_SETS[key], size // part) for key, size in _SIZES.items()]
    if quota is not None:
        limit = Quota((("client-id", "kmirror"),), "consumer_byte_rate", quota * 1e6)
        with ClusterClient(client_config({"bootstrap.servers": pair.source.bootstrap_servers})) as client:
            if refused := alter_quotas(client, [limit], []):
                raise RuntimeError(f"the quota cannot be set: {refused}")
    config, plan = folder / "source.properties", folder / "plan"
    config.write_text(f"bootstrap.servers={pair.source.bootstrap_servers}\n", encoding="utf-8")
    server = ("--bootstrap-server", pair.destination.bootstrap_servers)
    on_mirror = ("--mirror", _MIRROR, *server)
    planning = kmirror(
        *("plan", "--mirror-config", str(config), "--topics", ",".join(load.topic for load in loads)),
        *("--sample", "1s", "--trial", f"{_TRIAL}MB", "--wave-bytes", "1MB", "--out", str(plan), *server),
    )
    for _ in range(2 if quota is None else 1):  # the first one warms up the brokers, as those of a real cluster are
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
    runs: list[dict[str, Any]] = []
    for quota in (None, _QUOTA):
        with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
            runs.append({"quota_megabytes_per_second": quota, "waves": measure(pair, Path(name), quota)})
            version = pair.source.sandbox.kafka_version
    ratios = [wave["actual_seconds"] / wave["predicted_seconds"] for run in runs for wave in run["waves"]]
    found = {"machine": asdict(describe_machine(version)), "allowed": _ALLOWED, "runs": runs}
    STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return int(any(abs(ratio - 1) > _ALLOWED for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
