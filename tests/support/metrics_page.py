"""docs/metrics.md, generated from the declarations of metrics: `python -m tests.support.metrics_page` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmirror.web.metrics import METRICS, Metric
from kmirror.web.run_metrics import RUN_METRICS

PAGE = Path(__file__).parent.parent.parent / "docs" / "metrics.md"
_INTRODUCTION = """\
# Metrics

`kmirror run --http [HOST:]PORT` and `kmirror serve` serve these at `/metrics`, as text for Prometheus and as
OpenMetrics for clients that ask for it ([Health, metrics and status over HTTP](http.md)).

- **Unknown values are absent**, never 0. Rules on a lag also need `kmirror_partitions_lag_unknown > 0`, and `up == 0`
  or `absent(kmirror_healthy)` for a missing engine: one that is stuck answers 503.
- Values are what the running engine knows; `describe` reads both clusters instead, and may be a few seconds ahead.
  OPEN_TRANSACTION of `describe` is not detected by `run`, and by `serve` within some two minutes.
- The lag is that of `describe`: the source's last stable offset, read within the last 10 seconds, minus the
  destination's log end as the lanes last reported it. While no worker reports, it is an upper bound. Of paused topics
  both ends are read every `refresh.interval.seconds`: they fall behind, and `KmirrorLag` fires for them too.
- Log ends are served per partition only, because sums over partitions mean nothing. `metrics.per.partition=true`
  enables them: four series per partition.
- Counters start at 0 with each engine; `rate()` and `increase()` handle that.

A mirror's metrics have the label `mirror` in addition to those listed, from `serve` also `cluster`. `serve` knows what
is stored, and so has no samples of these: {engine}.
"""


def page() -> str:
    """Return the text of docs/metrics.md."""
    return "\n".join(
        [
            _INTRODUCTION.format(engine=", ".join(f"`{one.name}`" for one in METRICS if one.of_engine)),
            "## Mirrors\n",
            *_table(METRICS),
            "\n## The run itself, and watched clusters\n\nThese exist from the start, also while `run` waits or stands"
            " by.\n",
            *_table(RUN_METRICS),
            "\n## The same elsewhere\n\nThe closest metrics of Apache Kafka's cluster mirroring (KIP-1279) and"
            " Confluent's cluster linking. Numbers\nmay differ: kmirror measures lag to the last stable offset.\n",
            "| metric | KIP-1279 | Cluster Linking |\n|---|---|---|",
            *(
                f"| `{one.name}` | {one.kip_1279 or '–'} | {one.cluster_linking or '–'} |"
                for one in METRICS
                if one.kip_1279 or one.cluster_linking
            ),
            "",
        ]
    )


def _table(metrics: Sequence[Metric[Any]]) -> list[str]:
    rows = [
        f"| `{one.name}` | {one.kind} | {one.unit} | {', '.join(f'`{label}`' for label in one.labels) or '–'}"
        f" | {one.meaning} | {one.absent or '–'} |"
        for one in metrics
    ]
    return ["| metric | type | unit | labels | meaning | absent |\n|---|---|---|---|---|---|", *rows]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
