"""Generated logs by the thousand: `python -m campaign.logs --seed S --logs N --output FILE`.

Hundreds of partitions at a time, each with its own history, are written to a real broker with raw requests, while
kmirror's lane copies them to another one. The brokers are restarted, and the lane is killed at random moments and
restarted. Once everything is copied the oracle, a process that knows nothing of kmirror, compares. Results are added to
FILE; batches of a seed that are in it are not repeated.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaign.log_batch import Batch
from campaign.results import Results
from campaign.world import NEW, OLD
from kmirror_sandbox.cluster import SandboxCluster, start_together

_BATCHES_A_PAIR = 4
_BROKER = {
    "log.cleaner.backoff.ms": "300",
    "log.segment.delete.delay.ms": "100",
    "log.index.size.max.bytes": "65536",
    "message.max.bytes": "8000000",
    "offsets.topic.num.partitions": "1",
}
_TIERS = {
    # hundreds of partitions are looked at for segments to move
    "remote.log.manager.task.interval.ms": "1500",
    # a broker that is killed before it has stored a start says that a tiered log starts where nothing can be read
    "log.flush.start.offset.checkpoint.interval.ms": "500",
}
_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
_SOURCE = {
    # a killed broker must not show deleted records again
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    # transactions are written by hand, without their coordinator
    "transaction.partition.verification.enable": "false",
}


def run_batches(
    seed: int, logs: int, at_once: int, folder: Path, known: set[str], tiered: bool | None = None
) -> Iterator[dict[str, Any]]:
    """Run the batches of a seed that are not known yet; yield each result.

    `tiered`: whether clusters have tiered storage; by default every other pair has.
    """
    clusters: list[SandboxCluster] = []
    current = None
    try:
        for number, first in enumerate(range(0, logs, at_once)):
            name = f"{seed}/{number}"
            stored = f"{name} tiered" if tiered else name
            if stored in known:
                continue
            pair = number // _BATCHES_A_PAIR
            if pair != current:
                _destroy(clusters)
                chance = random.Random(f"{seed}/{pair}")
                versions = chance.choice((OLD, NEW)), chance.choice((OLD, NEW))
                has_tiers = pair % 2 == 1 if tiered is None else tiered
                clusters = [
                    SandboxCluster(
                        side,
                        folder / f"{side}-{pair}",
                        kafka_version=version,
                        properties=_BROKER | extra | (_TIERS if has_tiers else {}),
                        java_options=_JAVA,
                        tiered=has_tiers,
                    )
                    for side, version, extra in zip(("source", "destination"), versions, (_SOURCE, {}), strict=True)
                ]
                start_together(clusters)
                current = pair
            batch = Batch(name, min(at_once, logs - first), (clusters[0], clusters[1]), folder)
            yield {"seed": stored, "versions": [cluster.kafka_version for cluster in clusters], **batch.run()}
    finally:
        _destroy(clusters)


def _destroy(clusters: list[SandboxCluster]) -> None:
    for cluster in clusters:
        cluster.destroy()
    clusters.clear()


def main() -> int:
    """Run until all logs are judged; return 1 if there was a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="of everything random (default: random)")
    parser.add_argument("--logs", type=int, default=500, help="how many (%(default)s)")
    parser.add_argument("--at-once", type=int, default=500, help="how many partitions at a time (%(default)s)")
    parser.add_argument(
        "--tiered",
        action="store_true",
        default=None,
        help="have tiered storage in all clusters (default: in every second pair)",
    )
    parser.add_argument("--output", type=Path, help="append the results to this file")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the brokers end too
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1, 1 << 30)
    results = Results(given.output)
    folder = Path(tempfile.mkdtemp(prefix="kmirror-logs-"))
    bad = 0
    for result in run_batches(seed, given.logs, given.at_once, folder, results.known_logs, given.tiered):
        results.add_logs(result)
        bad += bool(result["violations"])
        faults = ", ".join(f"{count} {what}" for what, count in result["faults"].items())
        verdict = f"VIOLATION: {result['violations'][:2]}, see {folder}" if result["violations"] else "ok"
        print(f"{result['seed']}: {result['logs']} logs, {result['seconds']:.0f} s [{faults}]: {verdict}", flush=True)
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
