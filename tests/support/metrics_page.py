"""docs/metrics.md, made of the metrics' declarations: `python -m tests.support.metrics_page` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmirror.ops.serve.metrics import METRICS, RUN_METRICS, Metric

PAGE = Path(__file__).parent.parent.parent / "docs" / "metrics.md"
_INTRODUCTION = """\
# Metrics

`kmirror run --http [HOST:]PORT` serves these at `/metrics`, as text for Prometheus, and as OpenMetrics for clients that
ask for it ([Health, metrics and status over HTTP](operating.md#health-metrics-and-status-over-http)).

- **What is not known is absent**, never 0. Rules that watch a lag also need `kmirror_partitions_lag_unknown > 0`, and
  `up == 0` or `absent(kmirror_healthy)` for an engine that is not there: one that is stuck answers 503.
- Values are what the running engine knows: `describe` looks at both clusters instead, and may be ahead by a few
  seconds. What `describe` calls OPEN_TRANSACTION is not looked for here.
- The lag is that of `describe`: the source's last stable offset, as it was told within the last 10 seconds, less the
  destination's log end as the lanes last reported it. While no worker reports, it is what is missing at most.
- Ends of logs are served for each partition only: sums of them over partitions mean nothing. To have the metrics of
  partitions, set `metrics.per.partition=true`: four series for each of them.
- Counters begin at 0 with each engine; `rate()` and `increase()` know that.

A mirror's metrics have the label `mirror` before those listed.
"""


def page() -> str:
    """Return the text of docs/metrics.md."""
    return "\n".join(
        [
            _INTRODUCTION,
            "## Mirrors\n",
            *_table(METRICS),
            "\n## The run itself\n\nThese are there from the start, also while `run` waits or stands by.\n",
            *_table(RUN_METRICS),
            "\n## The same elsewhere\n\nWhat comes nearest in Apache Kafka's cluster mirroring (KIP-1279) and"
            " in Confluent's cluster linking. Numbers\nneed not be equal: kmirror measures lag to the last stable"
            " offset.\n",
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
