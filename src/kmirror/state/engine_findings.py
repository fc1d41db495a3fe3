"""What an engine finds out about its mirror and stores with its heartbeats, for those who look from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kmirror.errors import Reason


class Lacking(NamedTuple):
    """A mirror topic that lacks partitions: how many its source has, and why adding them failed."""

    partitions: int
    reason: Reason | None
    message: str


class NotAdded(NamedTuple):
    """Source topics that a mirror's filters select and that could not be added: how many, and of the first ones why."""

    topics: int
    why: Mapping[str, str]


class JobFailure(NamedTuple):
    """Since when each run of a side job has failed, as far as this engine knows, and what the last one failed with."""

    since_ms: int
    message: str
