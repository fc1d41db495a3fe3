"""Measure how close `kmirror plan --trial` predicts the time of a copy: `python -m bench.predictions [NUMBER]...`.

A source with topics of large, medium and small batches is planned, with a trial copy; then its waves are copied by one
engine, one after another, and each time is compared with the prediction. That is done three times: as fast as this
machine copies, which varies; with a quota at the source, as a path or a quota limits a real migration; and with the
quota on an estate of fifty applications and 2,000 topics. Results replace those of the same run (by NUMBER, from 1; by
default of all) in docs/results/plan.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
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
from tests.support.estates import FIFTY_APPLICATIONS, RealEstate

STORED = REPOSITORY / "docs" / "results" / "plan.json"
#: Megabytes of each data set.
_SIZES = {"256k": 6000, "16k": 4000, "1-record": 1600}
_TRIAL = 1200
#: The quota at the source in megabytes a second; what is copied of these then is so much less.
_QUOTA, _PART = 40, 2
#: Of the estate: what a producer writes to each topic, how large its waves are, and how many of them are copied.
_ESTATE_TOPIC_BYTES, _ESTATE_WAVE, _ESTATE_WAVES = 4_000_000, "1200MB", 3
_MIRROR = "bench-plan"
_ALLOWED = 0.25


def limit(pair: Pair) -> None:
    """Set the quota at the source."""
    quota = Quota((("client-id", "kmirror"),), "consumer_byte_rate", _QUOTA * 1e6)
    with ClusterClient(client_config({"bootstrap.servers": pair.source.bootstrap_servers})) as client:
        if refused := alter_quotas(client, [quota], []):
            raise RuntimeError(f"the quota cannot be set: {refused}")


def of_three_topics(pair: Pair, folder: Path, *, limited: bool) -> dict[str, Any]:
    """Measure with three topics, one of each class."""
    part = _PART if limited else 1
    loads: list[Load] = [filled(pair, folder, DATA_SETS[key], size // part) for key, size in _SIZES.items()]
    if limited:
        limit(pair)
    # without a quota the first plan warms up the brokers, as those of a real cluster are
    waves = measure(pair, folder, ",".join(load.topic for load in loads), "1MB", plans=1 if limited else 2)
    return {"quota_megabytes_per_second": _QUOTA if limited else None, "estate": None, "waves": waves}


def of_an_estate(pair: Pair, folder: Path) -> dict[str, Any]:
    """Measure with fifty applications."""
    sandbox = pair.source.sandbox
    estate = RealEstate(sandbox, FIFTY_APPLICATIONS, topic_bytes=_ESTATE_TOPIC_BYTES, record_bytes=4_000)
    estate.write()
    limit(pair)
    waves = measure(pair, folder, f"{estate.prefix}.*", _ESTATE_WAVE, copied=_ESTATE_WAVES)
    found = {"applications": len(estate.applications), "topics": len(estate.topics)}
    return {"quota_megabytes_per_second": _QUOTA, "estate": found, "waves": waves}


#: The runs, in the order of their results.
_RUNS: tuple[Callable[[Pair, Path], dict[str, Any]], ...] = (
    partial(of_three_topics, limited=False),
    partial(of_three_topics, limited=True),
    of_an_estate,
)


def measure(
    pair: Pair, folder: Path, topics: str, wave_bytes: str, *, plans: int = 1, copied: int | None = None
) -> list[dict[str, Any]]:
    """Plan and copy the first waves, by default all; return them with predicted and actual seconds.

    Raises CopyFailedError.
    """
    config, plan = folder / "source.properties", folder / "plan"
    config.write_text(f"bootstrap.servers={pair.source.bootstrap_servers}\n", encoding="utf-8")
    server = ("--bootstrap-server", pair.destination.bootstrap_servers)
    on_mirror = ("--mirror", _MIRROR, *server)
    planning = kmirror(
        *("plan", "--mirror-config", str(config), "--topics", topics),
        *("--sample", "1s", "--trial", f"{_TRIAL}MB", "--wave-bytes", wave_bytes, "--out", str(plan), *server),
    )
    for _ in range(plans):
        carry_out(planning)
    carry_out(kmirror("create", "--mirror-config", str(config), *on_mirror))
    log = folder / "kmirror.log"
    running = Running([start(kmirror("run", *on_mirror), log)], log, ends_itself=False)
    try:
        for file in sorted(plan.glob("wave-*.topics"))[:copied]:
            carry_out(kmirror("add", "--topics", f"@{file}", *on_mirror))
            carry_out(kmirror("wait", "--for", "caught-up", "--timeout", "10m", *on_mirror))
    finally:
        running.end()
    with Destination.open({"bootstrap.servers": pair.destination.bootstrap_servers}) as destination:
        added = destination.state().topics(_MIRROR)
        outcomes = wave_outcomes(read_plan(str(plan)), added, describe(destination, _MIRROR))
    return [asdict(one) for one in outcomes[:copied]]


def main() -> int:
    """Measure and store the results; return 1 if a prediction was further off than is allowed."""
    found = json.loads(STORED.read_text(encoding="utf-8"))
    runs: list[dict[str, Any]] = found["runs"]
    chosen = [int(one) - 1 for one in sys.argv[1:]] or range(len(_RUNS))
    for number in chosen:
        with tempfile.TemporaryDirectory(prefix="kmirror-bench-") as name, Pair(Path(name)) as pair:
            machine = asdict(describe_machine(pair.source.sandbox.kafka_version))
            runs[number : number + 1] = [{"machine": machine, **_RUNS[number](pair, Path(name))}]
        STORED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    measured = [runs[number] for number in chosen]
    sys.stdout.write(json.dumps(measured, indent=1) + "\n")
    ratios = [wave["actual_seconds"] / wave["predicted_seconds"] for run in measured for wave in run["waves"]]
    return int(any(abs(ratio - 1) > _ALLOWED for ratio in ratios))


if __name__ == "__main__":
    sys.exit(main())
