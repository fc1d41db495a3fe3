"""What a seed determines: clusters, topics, load, faults with their times, and how it ends. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

OLD, NEW = "3.9.2", "4.3.1"
#: How many consecutive worlds share their clusters.
WORLDS_A_GROUND = 8


class Kind(StrEnum):
    """The kinds of logs."""

    PLAIN = "plain"
    TINY = "tiny"
    LARGE = "large"
    BURSTS = "bursts"
    TRANSACTIONS = "transactions"
    COMPACTED = "compacted"
    TRIMMED = "trimmed"


class Act(StrEnum):
    """What the nemesis does."""

    KILL_ENGINE = "kill-engine"
    KILL_DRIVER = "kill-driver"
    FREEZE_DRIVER = "freeze-driver"
    KILL_LANE = "kill-lane"
    FREEZE_LANE = "freeze-lane"
    FREEZE_JVM = "freeze-jvm"
    SECOND_ENGINE = "second-engine"

    KILL_BROKER = "kill-broker"
    FREEZE_BROKER = "freeze-broker"
    STOP_BROKER = "stop-broker"
    KILL_CONTROLLER = "kill-controller"
    FREEZE_CONTROLLER = "freeze-controller"
    FULL_DISK = "full-disk"
    MOVE_LEADERS = "move-leaders"
    QUOTA = "quota"
    MUTATION_QUOTA = "mutation-quota"
    UNCLEAN_ELECTION = "unclean-election"
    UPGRADE = "upgrade"

    CUT_LINK = "cut-link"
    HOLE = "hole"
    HOLE_ONE_WAY = "hole-one-way"
    DELAY = "delay"
    THROTTLE = "throttle"
    CUT_IN_FRAME = "cut-in-frame"
    WRONG_CLUSTER = "wrong-cluster"

    DELETE_RECORDS = "delete-records"
    GROW_TOPIC = "grow-topic"
    RECREATE_TOPIC = "recreate-topic"
    DELETE_TOPIC = "delete-topic"
    FOREIGN_WRITE = "foreign-write"

    SLOW_STORE = "slow-store"
    FAILING_STORE = "failing-store"
    STORE_AWAY = "store-away"
    REMOTE_QUOTA = "remote-quota"

    REVOKE_RIGHTS = "revoke-rights"
    ROTATE_PASSWORD = "rotate-password"

    PAUSE = "pause"
    LOOK = "look"
    VERIFY = "verify"
    TWO_VERBS = "two-verbs"
    KILL_VERB = "kill-verb"
    KILL_STOP = "kill-stop"


class Condition(StrEnum):
    """What holds for a whole world. Results count them with the faults, if they had an effect."""

    #: kmirror is far away from one cluster.
    DISTANCE = "distance"
    #: The destination limits the settings of topics.
    TOPIC_POLICY = "topic-policy"
    #: The destination forgets the offsets of groups without members after a minute.
    GROUP_EXPIRY = "group-expiry"


#: Acts after which a topic may be FAILED, with the reasons that each explains.
DESERVED = {
    Act.RECREATE_TOPIC: frozenset({"SOURCE_TOPIC_RECREATED", "SOURCE_TOPIC_DELETED", "PARTITIONS_DECREASED"}),
    Act.DELETE_TOPIC: frozenset({"SOURCE_TOPIC_DELETED"}),
    Act.FOREIGN_WRITE: frozenset({"DESTINATION_WRITTEN", "OFFSET_MISMATCH"}),
    Act.UNCLEAN_ELECTION: frozenset({"SOURCE_DIVERGED"}),
}
#: Acts on the store of a tiered topic's older segments; worlds with such topics have these for a third of theirs.
STORE_ACTS = (Act.SLOW_STORE, Act.FAILING_STORE, Act.STORE_AWAY, Act.REMOTE_QUOTA)
_STORE_SHARE = 1 / 3
#: Acts that replace others, so that the other faults of a seed stay the same; and how often.
HOUSE_ACTS = (Act.MUTATION_QUOTA, Act.WRONG_CLUSTER)
_HOUSE_SHARE = 1 / 5
#: Another cluster answers for at least so long.
_SHORTEST_S = {Act.WRONG_CLUSTER: 3.0, Act.MUTATION_QUOTA: 5.0}
#: How often each other act is drawn, relative to the rest.
_WEIGHTS = {act: 4 for act in Act if act not in (*STORE_ACTS, *HOUSE_ACTS)} | {
    Act.KILL_BROKER: 6,
    Act.FREEZE_BROKER: 6,
    Act.RECREATE_TOPIC: 1,
    Act.DELETE_TOPIC: 1,
    Act.FOREIGN_WRITE: 1,
    Act.DELETE_RECORDS: 2,
    Act.GROW_TOPIC: 2,
    Act.VERIFY: 2,
    Act.LOOK: 2,
    Act.UPGRADE: 3,
    Act.HOLE: 6,
    Act.HOLE_ONE_WAY: 6,
    Act.CUT_IN_FRAME: 6,
    Act.KILL_VERB: 6,
}
#: For a world of 30 seconds; scaled down in shorter ones.
_DURATIONS = (0.5, 2.0, 5.0, 8.0, 14.0)


#: By how many seconds clocks are off.
_CLOSE_CLOCKS = (0.0, 0.0, 8.0, -8.0)
_CLOCKS = (0.0, 0.0, 15.0, -15.0, 3 * 3600.0, -26 * 3600.0)


class Ending(StrEnum):
    """How a world ends."""

    PROMOTE = "promote"
    FAILOVER = "failover"
    FAILOVER_UNDER_LOAD = "failover-under-load"
    FAILOVER_SOURCE_DEAD = "failover-source-dead"
    FAILBACK = "failback"
    SWITCHOVER = "switchover"


@dataclass(frozen=True, slots=True)
class Ground:
    """The clusters that some worlds share: source, destination, and in a chain a third one."""

    versions: tuple[str, ...]
    brokers: tuple[int, ...]
    #: kmirror must log in, and brokers enforce ACLs.
    secured: bool
    #: Decides how many replicas topics have.
    draw: int
    #: Source and destination have tiered storage.
    tiered: bool
    #: The destination has a policy for the settings of topics.
    has_policy: bool = False
    #: The destination forgets groups without members soon.
    forgets_groups: bool = False
    #: There is a cluster that no mirror has to do with, but whose brokers may answer in place of others.
    has_decoy: bool = False

    def replicas(self, brokers: int) -> int:
        """Return how many replicas topics have on a cluster of this many brokers."""
        return min(brokers, 2 + self.draw % 2)

    def allows(self, act: Act) -> bool:
        """Return whether an act can be done here."""
        match act:
            case Act.REVOKE_RIGHTS | Act.ROTATE_PASSWORD:
                return self.secured
            case Act.MOVE_LEADERS:
                return max(self.brokers) > 1
            case Act.UNCLEAN_ELECTION:
                # the remaining controllers must elect: one of the other two is down
                return self.brokers[0] == 3 and self.replicas(3) == 2
            case Act.KILL_CONTROLLER | Act.FREEZE_CONTROLLER:
                return max(self.brokers) > 1
            case Act.SLOW_STORE | Act.FAILING_STORE | Act.STORE_AWAY | Act.REMOTE_QUOTA:
                return self.tiered
            case Act.UPGRADE:
                return OLD in self.versions[:2]
            case Act.WRONG_CLUSTER:
                return self.has_decoy
            case _:
                return True


def ground_of(seed: int) -> Ground:
    """Return the ground of the world of a seed."""
    chance = random.Random(f"ground {seed // WORLDS_A_GROUND}")
    sides = 3 if chance.random() < 0.2 else 2
    house = random.Random(f"house of ground {seed // WORLDS_A_GROUND}")
    return Ground(
        tuple(chance.choice((OLD, NEW)) for _ in range(sides)),
        tuple(chance.choice((1, 1, 2, 3)) if side < 2 else 1 for side in range(sides)),
        chance.random() < 0.3,
        chance.randrange(1 << 16),
        random.Random(f"tiers of ground {seed // WORLDS_A_GROUND}").random() < 2 / 3,
        has_policy=house.random() < 0.3,
        forgets_groups=house.random() < 0.3,
        has_decoy=house.random() < 0.5,
    )


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the source, and the number of the mirror that copies it."""

    name: str
    kind: Kind
    partitions: int
    codec: str
    mirror: int = 0
    #: Its older segments are only in the store; those of its mirror topic are.
    tiered: bool = False
    mirror_tiered: bool = False
    #: Its application writes for some seconds only: then its log ends where it does, whatever is read of it.
    rests: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """One act: when it begins and how long it lasts, in seconds, and what draws its victim."""

    at: float
    act: Act
    seconds: float
    draw: int


@dataclass(frozen=True, slots=True)
class Host:
    """Where processes of kmirror appear to run: a host without a name is this one, and its clock is right."""

    name: str = ""
    clock_s: float = 0.0


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a seed decides."""

    seed: int
    ground: Ground
    topics: tuple[Topic, ...]
    faults: tuple[Fault, ...]
    ending: Ending
    #: Settings of its mirrors, and properties of their clients on both clusters.
    settings: Mapping[str, str]
    client: Mapping[str, str]
    seconds: float
    #: Of the engine, and of the operators.
    engine_host: Host
    operator_host: Host
    #: The source's store is too slow to be read until its topics' lanes have run for so long.
    slow_start_s: float = 0.0
    #: The round trip to the source's brokers, or to the destination's.
    round_trip_s: float = 0.0
    is_destination_far: bool = False

    @property
    def mirrors(self) -> tuple[str, ...]:
        """Return the names of its mirrors to the destination, unique among worlds."""
        return tuple(f"m{self.seed}-{number}" for number in sorted({topic.mirror for topic in self.topics}))

    def names(self, mirror: str) -> list[str]:
        """Return the topics that a mirror copies."""
        return [topic.name for topic in self.topics if mirror == f"m{self.seed}-{topic.mirror}"]


def with_acts(world: World, acts: Sequence[Act]) -> World:
    """Return a world with only these acts, at their own times."""
    faults = [replace(fault, act=acts[number % len(acts)]) for number, fault in enumerate(world.faults)]
    return replace(world, faults=tuple(fault for fault in faults if world.ground.allows(fault.act)))


def world_of(seed: int, seconds: float = 15.0, faults: int = 10) -> World:
    """Make the world of a seed, with at most this many faults, and at least three quarters of them."""
    # tiers have their own draws: a seed without them is the world that it always was
    chance, tiers = random.Random(seed), random.Random(f"tiers {seed}")
    ground = ground_of(seed)
    kinds = [chance.choice(list(Kind)) for _ in range(chance.randint(2, 4))]
    mirrors = chance.choice((1, 1, 2, 3))
    topics = tuple(
        Topic(
            f"w{seed}-{number}-{kind}",
            kind,
            chance.choice((1, 1, 2, 4)),
            chance.choice(("none", "none", "lz4", "zstd", "snappy", "gzip")),
            number % mirrors,
            # brokers refuse tiered topics that are compacted
            tiered=ground.tiered and kind is not Kind.COMPACTED and tiers.random() < 0.7,
            mirror_tiered=ground.tiered and kind is not Kind.COMPACTED and tiers.random() < 0.5,
            rests=ground.tiered and tiers.random() < 0.4,
        )
        for number, kind in enumerate(kinds)
    )
    weights = {act: weight for act, weight in _WEIGHTS.items() if ground.allows(act)}
    count = chance.randint(max(1, (3 * faults + 3) // 4), faults)
    drawn = chance.choices(list(weights), list(weights.values()), k=count)
    made = sorted(
        (
            Fault(
                round(chance.uniform(0.5, seconds * 0.9), 2),
                act,
                round(chance.choice(_DURATIONS) * min(1.0, seconds / 30) * chance.uniform(0.5, 1.5), 2),
                chance.randrange(1 << 16),
            )
            for act in drawn
        ),
        key=lambda fault: fault.at,
    )
    if ground.tiered:
        made = [_of_store(fault, tiers, seconds) if tiers.random() < _STORE_SHARE else fault for fault in made]
    house = random.Random(f"house {seed}")
    made = [
        _of_house(fault, house, ground) if fault.act not in STORE_ACTS and house.random() < _HOUSE_SHARE else fault
        for fault in made
    ]
    settings = {
        "copy.lanes": chance.choice(("1", "2", "auto")),
        "source.divergence.policy": chance.choice(("fail", "auto")),
    }
    # holes that are longer than a request's patience, and shorter ones
    client = chance.choice(({}, {"request.timeout.ms": "3000"}))
    ending = chance.choice(list(Ending))
    # a promote waits for an engine whose clock is behind until that shows a time after its topics were added
    clocks = _CLOSE_CLOCKS if ending in (Ending.PROMOTE, Ending.SWITCHOVER, Ending.FAILBACK) else _CLOCKS
    hosts = (
        (Host(), Host()) if chance.random() < 0.4 else (_host(chance, "engines", clocks), _host(chance, "ops", clocks))
    )
    slow_start = tiers.choice((0.0, 6.0, 15.0)) if any(topic.tiered for topic in topics) else 0.0
    distance = random.Random(f"distance {seed}")
    far = distance.choice((0.0, 0.0, 0.02, 0.05, 0.1)), distance.random() < 0.4
    return World(seed, ground, topics, tuple(made), ending, settings, client, seconds, *hosts, slow_start, *far)


def _of_store(fault: Fault, chance: random.Random, seconds: float) -> Fault:
    """Return a fault of a store at the same moment; a copy takes a few empty answers as they come, but not many."""
    lasting = round(chance.uniform(0.2, 0.9) * seconds, 2)
    return replace(fault, act=chance.choice(STORE_ACTS), seconds=lasting)


def _of_house(fault: Fault, chance: random.Random, ground: Ground) -> Fault:
    """Return a fault of these at the same moment."""
    act = chance.choice([act for act in HOUSE_ACTS if ground.allows(act)])
    return replace(fault, act=act, seconds=max(fault.seconds, _SHORTEST_S[act]))


def _host(chance: random.Random, name: str, clocks: Sequence[float]) -> Host:
    return Host(name, chance.choice(clocks))
