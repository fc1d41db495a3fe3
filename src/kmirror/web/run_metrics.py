"""The metrics of a run, and of the clusters that `serve` watches, besides those of mirrors (`web.metrics`). Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from kmirror import __version__
from kmirror.web.metrics import Metric, Value
from kmirror.web.served import ServedStatus


def _healthy(run: ServedStatus) -> Iterator[Value]:
    yield from (((one.cluster or "", one.name), one.missing is None) for one in run.current_mirrors)
    yield from ((("", mirror), False) for mirror in run.not_copied)


def _cluster_ages(run: ServedStatus) -> Iterator[Value]:
    for one in run.clusters or ():
        if one.as_of_ms is not None:
            yield (one.name,), max(0, run.time_ms - one.as_of_ms) / 1000


#: The values of `phase`.
PHASES = ("waiting", "starting", "copying", "stopping")
RUN_METRICS: tuple[Metric[ServedStatus], ...] = (
    Metric(
        "kmirror_build_info",
        "1",
        "1; its labels are the versions of kmirror and of Python",
        lambda _: [((__version__, sys.version.split()[0]), 1)],
        labels=("version", "python"),
    ),
    Metric(
        "kmirror_run_phase",
        "1 or 0",
        f"1 for the current phase of `run`: {', '.join(PHASES)}; a mirror has metrics only while `run` is copying",
        lambda run: (((one,), one == run.phase) for one in PHASES) if run.clusters is None else (),
        "from `serve`",
        labels=("phase",),
    ),
    Metric(
        "kmirror_healthy",
        "1 or 0",
        "1 while `wait --for healthy` would succeed: records flow; with `--all` 0 for each mirror without an engine",
        _healthy,
        "while `run` waits or starts; from `serve` while the cluster cannot be read",
        labels=("cluster", "mirror"),
    ),
    Metric(
        "kmirror_cluster_up",
        "1 or 0",
        "1 if `serve` has read the stored state of a watched cluster within the last 10 seconds; while it is 0, the"
        " cluster's mirrors have no samples",
        lambda run: (((one.name,), one.is_fresh) for one in run.clusters or ()),
        "from `run`",
        labels=("cluster",),
    ),
    Metric(
        "kmirror_cluster_read_age_seconds",
        "seconds",
        "since `serve` last read the whole stored state of a watched cluster; it reads once a second",
        _cluster_ages,
        "before it was first read; from `run`",
        labels=("cluster",),
    ),
)
