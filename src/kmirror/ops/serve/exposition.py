"""The text of /metrics: Prometheus' own format, or OpenMetrics for those who ask for it.

prometheus-client is imported here, and only when it is called: an engine that nobody scrapes does without.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kmirror.ops.serve.metrics import METRICS, RUN_METRICS, Metric, Now, Value
from kmirror.state.records import LATENCY_BOUNDS, Latencies

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

_BOUNDS = (*(repr(bound) for bound in LATENCY_BOUNDS), "+Inf")


def exposition(now: Now, accept: str) -> tuple[bytes, str]:
    """Return the text of all metrics, and its content type, in the format that an Accept header asks for."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(now))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


@dataclass(frozen=True, slots=True, eq=False)
class _Collector:
    """Hand the families of one moment to prometheus-client."""

    now: Now

    def collect(self) -> Iterator[Family]:
        """Yield each metric with its samples."""
        from prometheus_client.metrics_core import Metric as Family

        for metric in RUN_METRICS:
            yield _family(Family, metric, [({}, metric.values(self.now))])
        for of_mirror in METRICS if self.now.mirrors else ():
            values = [({"mirror": now.mirror}, of_mirror.values(now)) for now in self.now.mirrors]
            yield _family(Family, of_mirror, values)


def _family(
    make: type[Family], metric: Metric[Any], values: Iterable[tuple[Mapping[str, str], Iterable[Value]]]
) -> Family:
    """Return a metric with its samples; each part of `values` comes with labels that all of them have."""
    family = make(metric.name.removesuffix("_total"), metric.meaning, metric.kind)
    for given, found in values:
        for names, value in found:
            _add(family, metric.name, {**given, **dict(zip(metric.labels, names, strict=True))}, value)
    return family


def _add(family: Family, name: str, labels: dict[str, str], value: float | Latencies) -> None:
    if not isinstance(value, Latencies):
        family.add_sample(name, labels, value)
        return
    for bound, count in zip(_BOUNDS, accumulate(value.counts), strict=True):
        family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
    family.add_sample(f"{name}_count", labels, sum(value.counts))
    family.add_sample(f"{name}_sum", labels, value.seconds)
