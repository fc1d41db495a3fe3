"""Objectives of topics: how far a copy may be behind in time, as in `payments-.*=30s, .*=10m`. Pure.

The first pattern that matches a topic counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kmirror.errors import UsageError
from kmirror.settings.durations import format_duration, parse_duration
from kmirror.settings.patterns import TopicSelector, split_at_commas, split_patterns

_HINT = "write PATTERN=DURATION, separated by commas, such as payments-.*=30s, .*=10m"


@dataclass(frozen=True, slots=True)
class Objectives:
    """Patterns of topics, each with the longest time lag that is allowed, in milliseconds."""

    rules: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, key: str, text: str) -> Objectives:
        """Parse the value of a setting.

        Raises:
            UsageError: a pattern or a duration is invalid; names it.
        """
        return cls(tuple(_rule(key, part.strip()) for part in split_at_commas(text) if part.strip()))

    def of(self, topic: str) -> int | None:
        """Return the objective of a topic in milliseconds; None if it has none."""
        return _found(self.rules, topic) if self.rules else None

    def __str__(self) -> str:
        """Return the value as it is written."""
        return ", ".join(f"{pattern}={format_duration(objective_ms)}" for pattern, objective_ms in self.rules)


def _rule(key: str, text: str) -> tuple[str, int]:
    # an expression may hold the sign, a duration does not
    pattern, sign, duration = (part.strip() for part in text.rpartition("="))
    if not sign or not pattern:
        raise UsageError(f"{key}: {text!r} is not an objective", _HINT)
    (pattern,) = split_patterns(pattern, key)
    objective_ms = parse_duration(duration, f"{key}: {pattern}")
    if objective_ms == 0:
        raise UsageError(f"{key}: {pattern}: the objective is zero", "give a duration such as 30s")
    return pattern, objective_ms


@lru_cache(maxsize=65_536)
def _found(rules: tuple[tuple[str, int], ...], topic: str) -> int | None:
    return next((objective_ms for pattern, objective_ms in rules if TopicSelector((pattern,)).matches(topic)), None)
