"""Which Spark executor runs which function, as far as the driver knows, and how many lanes a mirror has there.

A Produce request carries one batch of each partition that a lane has at a broker, so two lanes need more requests than
one, here and at the destination. But a lane has one fetch in flight per source broker, so two lanes are faster with
large batches: 570 MB/s of 256 KB against 435 on two cores, for a seventh more CPU time. So with `copy.lanes=auto` the
default is two, and more where the machine has spare cores. Many mirrors on one machine have one lane each, and their
lanes share processes, of which there is one for each core (`lane_hosts`). Lanes share the connections that a mirror may
open to a broker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Executor:
    """A Spark executor: its id, its host, and how many tasks it runs at once."""

    name: str
    host: str
    cores: int

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"


@dataclass(frozen=True, slots=True)
class Placement:
    """The live executors, and the one that runs each function now; waiting functions are left out.

    `is_elastic`: dynamic allocation is on, so Spark adds executors for waiting functions and ends idle ones.
    """

    executors: tuple[Executor, ...]
    places: Mapping[str, Executor]
    is_elastic: bool = False

    @property
    def slots(self) -> int:
        """How many functions can run at once now."""
        return sum(executor.cores for executor in self.executors)


_LOCAL = re.compile(r"local(?:\[\s*(\*|[0-9]+).*\])?")
#: A lane keeps more than its own core busy: brokers need CPU too, wherever they run.
_CORES_PER_LANE = 4
_LEAST_LANES = 2
#: `copy.connections=auto`: a stock broker sends 100 KB each round trip over a connection, so over 80 ms this brings
#: some 100 MB/s.
_MOST_CONNECTIONS = 64


def cores_of(master: str) -> int | None:
    """Return the number of threads of a local Spark master, None for a cluster."""
    local = _LOCAL.fullmatch(master)
    if local is None:
        return None
    threads = local[1] or "1"
    return (os.cpu_count() or 1) if threads == "*" else max(1, int(threads))


def lanes_of(setting: int | None, master: str | None, mirrors: int = 1) -> int:
    """Return the number of lanes for `copy.lanes` (None for `auto`) of one of some mirrors on this Spark master."""
    if setting is not None:
        return setting
    cores = cores_of(master) if master is not None else None
    if cores is None:
        return _LEAST_LANES
    most = min(cores, max(_LEAST_LANES, -(-cores // _CORES_PER_LANE)))
    return max(1, min(most, _LEAST_LANES * cores // max(1, mirrors)))


def connections_of(setting: int | None, lanes: int) -> int:
    """Return how many connections each lane may open to a broker, for `copy.connections` (None for `auto`)."""
    return max(1, (setting or _MOST_CONNECTIONS) // max(1, lanes))
