"""What a random log will hold: each feature is drawn independently, so that all combinations occur."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.support.log_cleaning import Tombstones


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The features of a log."""

    base_offset: int
    steps: int
    old_formats: tuple[int, ...]
    is_compacted: bool
    tombstones: Tombstones
    ends_in_a_hole: bool
    has_idempotent: bool
    transactional_producers: int
    stays_open: bool
    append_time: str
    has_far_times: bool
    has_headers: bool
    has_null_keys: bool
    keys: int
    is_trimmed: bool
    is_emptied: bool
    large_records: int
    is_narrowed: bool
    segments: int

    @classmethod
    def of(cls, chance: random.Random) -> LogPlan:
        """Draw a plan."""

        def happens(probability: float) -> bool:
            return chance.random() < probability

        # trimmed, or compacted for long, little of them would be left
        old_formats = chance.choice([(0,), (1,), (0, 1), (0, 1)]) if happens(0.35) else ()
        is_compacted = happens(0.6)
        ends_in_a_hole = is_compacted and happens(0.35)
        return cls(
            base_offset=chance.choice([0, 0, 0, 0, chance.randrange(1, 400), chance.randrange(400, 70_000)]),
            steps=chance.choice([chance.randrange(15, 60), chance.randrange(60, 150)]),
            old_formats=old_formats,
            is_compacted=is_compacted,
            tombstones=Tombstones.GONE if ends_in_a_hole or happens(0.2) else Tombstones.MARKED,
            ends_in_a_hole=ends_in_a_hole,
            has_idempotent=happens(0.5),
            transactional_producers=chance.randrange(1, 6) if happens(0.7) else 0,
            stays_open=happens(0.4),
            append_time=chance.choice(["all", "begins", "ends"]) if happens(0.35) else "never",
            has_far_times=happens(0.55),
            has_headers=happens(0.6),
            has_null_keys=happens(0.6),
            keys=chance.choice([4, 20, 100, 1000]),
            is_trimmed=happens(0.1 if old_formats else 0.6),
            is_emptied=happens(0.15),
            large_records=chance.randrange(1, 3) if happens(0.6) else 0,
            is_narrowed=happens(0.35),
            segments=chance.choice([1, 2, 3, 5, 8, 13, 30]),
        )
