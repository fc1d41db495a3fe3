"""The stored progress of work in several steps: a waiting promote, a failback, a switchover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: The `name` of a promote that waits for its topics to be complete.
PROMOTE = "promote"
#: A process that has not renewed its record for this long counts as gone.
_ALIVE_MS = 15_000


@dataclass(frozen=True, slots=True)
class WorkflowRecord:
    """The current step of such work, and who worked on it last; `facts` is JSON that belongs to the work.

    `last_seen_ms` is renewed while a process works on it.
    """

    mirror: str
    name: str
    step: str
    actor: str
    began_ms: int
    last_seen_ms: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str | int, ...]:
        return ("workflow", self.mirror, self.name)

    def is_alive(self, now_ms: int) -> bool:
        """Return whether a process works on it, by the clock of this machine."""
        return now_ms - self.last_seen_ms < _ALIVE_MS
