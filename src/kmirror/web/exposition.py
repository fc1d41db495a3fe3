"""The text of /metrics: Prometheus' own format, or OpenMetrics for clients that accept it.

prometheus-client decides which of them a client accepts; it is imported on first use, so that an engine that is not
scraped does without. The lines are written here: the library's samples cost eight times as much, and a mirror may have
thousands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any

from kmirror.state.records import LATENCY_BOUNDS, Latencies
from kmirror.web.metrics import METRICS, Metric, Value
from kmirror.web.run_metrics import RUN_METRICS
from kmirror.web.served import ServedStatus
from kmirror.words import visible_lines

_OPENMETRICS = "application/openmetrics-text"
_BOUNDS = (*(repr(bound) for bound in LATENCY_BOUNDS), "+Inf")
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def exposition(run: ServedStatus, accept: str) -> tuple[bytes, str]:
    """Return the text of all metrics, and its content type, in the format that an Accept header asks for."""
    from prometheus_client.exposition import choose_encoder

    _, content_type = choose_encoder(accept)
    is_openmetrics = content_type.startswith(_OPENMETRICS)
    lines = [line for metric in RUN_METRICS for line in _lines(metric, [("", metric.samples(run))], is_openmetrics)]
    mirrors = [(_labels(("cluster", "mirror"), (one.cluster or "", one.name)), one) for one in run.current_mirrors]
    for of_mirror in METRICS if mirrors else ():
        values = [(labels, of_mirror.samples(one)) for labels, one in mirrors]
        lines += _lines(of_mirror, values, is_openmetrics)
    if is_openmetrics:
        lines.append("# EOF")
    return "\n".join((*lines, "")).encode(), content_type


def _lines(metric: Metric[Any], values: Iterable[tuple[str, Iterable[Value]]], is_openmetrics: bool) -> Iterator[str]:
    """Yield a metric's lines; each part of `values` comes with a label for all its samples, or with ""."""
    name = metric.name
    family = name.removesuffix("_total") if is_openmetrics else name
    yield f"# HELP {family} {metric.meaning}"
    yield f"# TYPE {family} {metric.kind}"
    for given, found in values:
        for names, value in found:
            own = _labels(metric.labels, names)
            labels = f"{given},{own}" if given and own else given or own
            if isinstance(value, Latencies):
                yield from _histogram(name, labels, value)
            else:
                yield f"{name}{{{labels}}} {float(value)!r}" if labels else f"{name} {float(value)!r}"


def _histogram(name: str, labels: str, value: Latencies) -> Iterator[str]:
    for bound, count in zip(_BOUNDS, accumulate(value.counts), strict=True):
        yield f'{name}_bucket{{{labels},le="{bound}"}} {float(count)!r}'
    yield f"{name}_count{{{labels}}} {float(sum(value.counts))!r}"
    yield f"{name}_sum{{{labels}}} {value.seconds!r}"


@lru_cache(maxsize=65536)
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    labels = (pair for pair in zip(names, values, strict=True) if pair[1] or pair[0] != "cluster")
    return ",".join(f'{name}="{visible_lines(value).translate(_ESCAPES)}"' for name, value in labels)
