"""Give the destination's brokers their own cores.

The throughput of a destination depends on its cores. Alone on a small machine it has all of them; in a copy it shares
them with the source and the copier. To see how much of a destination's capacity a copier uses, both are measured with
the destination on its own half of the cores, and everything else on the other half.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bench.clusters import Pair


@contextmanager
def cores_apart(pair: Pair) -> Iterator[None]:
    """Pin the destination's brokers to the upper half of the cores, and everything started meanwhile to the lower."""
    cores = sorted(os.sched_getaffinity(0))
    theirs = set(cores[len(cores) // 2 :])
    others = set(cores) - theirs or theirs
    try:
        _keep(pair, theirs, others)
        yield
    finally:
        _keep(pair, set(cores), set(cores))


def _keep(pair: Pair, theirs: set[int], others: set[int]) -> None:
    for cluster, cores in ((pair.destination, theirs), (pair.source, others)):
        for broker in cluster.sandbox.brokers:
            for thread in os.listdir(f"/proc/{broker.pid}/task"):
                try:
                    os.sched_setaffinity(int(thread), cores)
                except ProcessLookupError:
                    continue
    os.sched_setaffinity(0, others)
