"""Draw the results."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure import Copy
from bench.report import TITLES, Results, cpu, throughput

_COLOURS = {
    "kmirror": "#1f6f8b",
    "mirrormaker": "#d98e04",
    "ceiling": "#9aa5a8",
    "kmirror-apart": "#6fb3c8",
    "ceiling-apart": "#c9cfd1",
}
_DOTS = "#222222"
_BAR = 0.17


def draw(results: Results, path: Path) -> None:
    """Write a PNG: throughput and CPU as bars of medians, with a dot for each round."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = 3 if results.latencies else 2
    figure, axes = pyplot.subplots(rows, 1, figsize=(13, 1.5 + 3.8 * rows))
    _bars(axes[0], results, throughput, list(TITLES))
    axes[0].set_title("Throughput, MB/s (more is better)")
    _bars(axes[1], results, cpu, ["kmirror", "mirrormaker"])
    axes[1].set_title("CPU seconds for a GB copied (less is better)")
    if results.latencies:
        _latency(axes[2], results)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="#e4e4e4")
        axis.set_axisbelow(True)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, bbox_to_anchor=(0.5, 0.02))
    figure.suptitle(
        f"One Kafka topic of 8 partitions copied to another cluster: up to {results.megabytes:,} MB",
        fontsize=14,
    )
    figure.text(0.5, 0.955, f"bars: medians of {results.rounds} rounds; dots: each round", ha="center", fontsize=9)
    figure.text(0.5, 0.01, f"{results.machine.title}; {results.machine.measured_at[:10]}", ha="center", fontsize=8)
    figure.tight_layout(rect=(0, 0.045, 1, 0.965))
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def _bars(axis: Any, results: Results, number: Callable[[Copy], float], contenders: list[str]) -> None:
    shown = [one for one in contenders if any(copy.contender == one for copy in results.copies)]
    for place, contender in enumerate(shown):
        for group, data_set in enumerate(results.data_sets):
            values = results.values(data_set.key, contender, number)
            if not values:
                continue
            x = group + (place - (len(shown) - 1) / 2) * _BAR
            median = statistics.median(values)
            label = TITLES[contender] if group == 0 else None
            axis.bar(x, median, _BAR * 0.92, color=_COLOURS[contender], label=label)
            axis.plot([x] * len(values), values, "o", color=_DOTS, markersize=3)
            text = f"{median:.0f}" if median >= 20 else f"{median:.1f}"
            axis.annotate(text, (x, max(values)), (0, 5), textcoords="offset points", ha="center", fontsize=10)
    titles = [data_set.title.replace(", ", ",\n").replace(" a batch", "\na batch") for data_set in results.data_sets]
    axis.set_xticks(range(len(results.data_sets)), titles)


def _latency(axis: Any, results: Results) -> None:
    shown = results.latencies
    for place, latency in enumerate(shown):
        for group, value in enumerate((latency.added_ms.p50, latency.added_ms.p99)):
            x = group + (place - (len(shown) - 1) / 2) * _BAR
            axis.bar(x, value, _BAR * 0.92, color=_COLOURS[latency.contender])
            axis.annotate(f"{value:.1f}", (x, value), (0, 5), textcoords="offset points", ha="center", fontsize=10)
    axis.set_xticks([0, 1], ["p50, 200 records/s", "p99, 200 records/s"])
    axis.set_title("Added latency, ms (less is better)")
