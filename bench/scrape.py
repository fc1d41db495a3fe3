"""Measure a scrape of `run --http`: `python -m bench.scrape` prints CPU seconds, none of which the driver spends.

1,000 topics of 5 partitions, every one of which has changed since the last scrape.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from kmirror.engine.driver.snapshots import MirrorSnapshot
from kmirror.web.exposition import exposition
from kmirror.web.live_mirror import live_mirror
from kmirror.web.served import ServedStatus
from tests.support.live_engine import mirror_record, row, snapshot
from tests.support.scraped import OPENMETRICS

TOPICS, PARTITIONS, TIMES = 1_000, 5, 9


def scrape(found: MirrorSnapshot, accept: str = "") -> int:
    """Do what a thread of the server does; return the bytes that it would send."""
    now = ServedStatus("copying", found.time_ms, None, (live_mirror(found),))
    return len(exposition(now, accept)[0])


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that some work takes, as the median of several runs."""
    taken = []
    for _ in range(TIMES):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def main() -> None:
    """Measure and print."""
    rows = [row(f"some.topic.{topic:04}", index) for topic in range(TOPICS) for index in range(PARTITIONS)]
    found = snapshot(*rows)
    every = snapshot(*rows, mirror=mirror_record(metrics_per_partition="true"))
    print(f"{TOPICS:,} topics, {TOPICS * PARTITIONS:,} partitions; seconds of a core, and bytes:")
    for name, known, accept in (
        ("text", found, ""),
        ("OpenMetrics", found, OPENMETRICS),
        ("text, metrics.per.partition=true", every, ""),
    ):
        print(f"  {name}: {seconds(lambda known=known, accept=accept: scrape(known, accept)):.3f} s, ", end="")  # type: ignore[misc]
        print(f"{scrape(known, accept):,} bytes")


if __name__ == "__main__":
    main()
