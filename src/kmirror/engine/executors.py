"""Which Spark executor runs which function, as far as the driver knows. Plain data."""

from __future__ import annotations

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
