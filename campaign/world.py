"""What a seed stands for: two clusters, topics, load, faults with their moments, and how it ends. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

OLD, NEW = "3.9.2", "4.3.1"


class Kind(StrEnum):
    """Name the kinds of logs."""

    PLAIN = "plain"
    TINY = "tiny"
    LARGE = "large"
    BURSTS = "bursts"
    TRANSACTIONS = "transactions"
    COMPACTED = "compacted"
    TRIMMED = "trimmed"


class Act(StrEnum):
    """Name what the nemesis does."""

    KILL_ENGINE = "kill-engine"
    KILL_DRIVER = "kill-driver"
    FREEZE_DRIVER = "freeze-driver"
    KILL_LANE = "kill-lane"
    FREEZE_LANE = "freeze-lane"
    FREEZE_JVM = "freeze-jvm"
    KILL_SOURCE_BROKER = "kill-source-broker"
    FREEZE_SOURCE_BROKER = "freeze-source-broker"
    STOP_SOURCE_BROKER = "stop-source-broker"
    KILL_DESTINATION_BROKER = "kill-destination-broker"
    FREEZE_DESTINATION_BROKER = "freeze-destination-broker"
    STOP_DESTINATION_BROKER = "stop-destination-broker"
    DELETE_RECORDS = "delete-records"
    GROW_TOPIC = "grow-topic"
    RECREATE_TOPIC = "recreate-topic"
    FOREIGN_WRITE = "foreign-write"
    SECOND_ENGINE = "second-engine"
    PAUSE = "pause"
    LOOK = "look"
    VERIFY = "verify"


#: The acts after which a topic may be FAILED, with the reasons that each deserves.
DESERVED = {
    Act.RECREATE_TOPIC: frozenset({"SOURCE_TOPIC_RECREATED", "SOURCE_TOPIC_DELETED"}),
    Act.FOREIGN_WRITE: frozenset({"DESTINATION_WRITTEN", "OFFSET_MISMATCH"}),
}
#: How often each act is drawn, against the others.
_WEIGHTS = dict.fromkeys(Act, 3) | {
    Act.RECREATE_TOPIC: 1,
    Act.FOREIGN_WRITE: 1,
    Act.DELETE_RECORDS: 2,
    Act.GROW_TOPIC: 1,
    Act.VERIFY: 1,
    Act.STOP_SOURCE_BROKER: 2,
    Act.STOP_DESTINATION_BROKER: 2,
}


class Ending(StrEnum):
    """Name how a world ends."""

    PROMOTE = "promote"
    FAILOVER = "failover"
    FAILOVER_UNDER_LOAD = "failover-under-load"
    FAILOVER_SOURCE_DEAD = "failover-source-dead"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the source."""

    name: str
    kind: Kind
    partitions: int
    codec: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One act: when it begins and for how long it lasts, in seconds, and what draws its victim."""

    at: float
    act: Act
    seconds: float
    draw: int


@dataclass(frozen=True, slots=True)
class World:
    """All that a seed decides."""

    seed: int
    topics: tuple[Topic, ...]
    faults: tuple[Fault, ...]
    ending: Ending
    lanes: str
    seconds: float


def world_of(seed: int, seconds: float = 30.0, faults: int = 8) -> World:
    """Make the world of a seed."""
    chance = random.Random(seed)
    kinds = [chance.choice(list(Kind)) for _ in range(chance.randint(2, 4))]
    topics = tuple(
        Topic(
            f"w{seed}-{number}-{kind}",
            kind,
            chance.choice((1, 1, 2, 4)),
            chance.choice(("none", "none", "lz4", "zstd", "snappy", "gzip")),
        )
        for number, kind in enumerate(kinds)
    )
    drawn = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=chance.randint(max(1, faults // 2), faults))
    made = sorted(
        (
            Fault(
                round(chance.uniform(1.0, seconds * 0.9), 2),
                act,
                round(chance.choice((0.2, 1.0, 3.0, 6.0, 12.0)) * chance.uniform(0.5, 1.5), 2),
                chance.randrange(1 << 16),
            )
            for act in drawn
        ),
        key=lambda fault: fault.at,
    )
    return World(seed, topics, tuple(made), chance.choice(list(Ending)), chance.choice(("1", "2", "auto")), seconds)
