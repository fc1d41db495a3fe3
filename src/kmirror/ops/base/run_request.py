"""What `run` is asked to do, and the address on which it listens, as `--http [HOST:]PORT` gives it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What `run` is asked to do; durations in milliseconds, None for no limit. `all_mirrors` excludes `mirrors`."""

    mirrors: tuple[str, ...]
    master: str = "local[*]"
    until_caught_up: bool = False
    timeout_ms: int | None = None
    for_ms: int | None = None
    standby: bool = False
    take_over: bool = False
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    all_mirrors: bool = False

    @property
    def named(self) -> tuple[str, ...]:
        """The mirrors to show before they are known; `*` stands for all."""
        return self.mirrors or ("*",)

    @property
    def fails_fast(self) -> bool:
        """True if nothing else would end the wait for a cluster that does not answer at the start."""
        return self.until_caught_up and self.timeout_ms is None
