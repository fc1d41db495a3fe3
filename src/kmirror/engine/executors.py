"""Where functions run on a Spark cluster, as far as Spark's driver knows. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Executor:
    """A process that runs tasks: Spark's name for it, its host, and how many tasks it runs at once."""

    name: str
    host: str
    cores: int

    def __str__(self) -> str:
        return f"{self.host}/{self.name}"


@dataclass(frozen=True, slots=True)
class Placement:
    """The executors that are alive, and by function the one that runs it now; functions that wait are left out.

    `is_elastic`: Spark brings more executors where functions wait for one, and ends idle ones (dynamic allocation).
    """

    executors: tuple[Executor, ...]
    places: Mapping[str, Executor]
    is_elastic: bool = False

    @property
    def slots(self) -> int:
        """How many functions can run at once now."""
        return sum(executor.cores for executor in self.executors)
