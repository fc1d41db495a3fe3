"""Which topics move together: random estates whose applications are known, with and without hubs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror_plan.applications import NodeKind, applications_of
from kmirror_plan.inventory import GroupFacts, ProducerFacts, TopicFacts, shape_of


def topic(name: str, *, groups: tuple[str, ...] = (), is_compacted: bool = False, **facts: object) -> TopicFacts:
    """Return a topic, with the shape that its name shows."""
    given = {"partitions": 3, "offsets": 1000, "size": 1_000_000, "rate": 0.0, **facts}
    return TopicFacts(
        topic=name,
        shape=shape_of(name, is_compacted=is_compacted, groups=groups),
        is_compacted=is_compacted,
        **given,  # type: ignore[arg-type]
    )


def group(name: str, *reads: str) -> GroupFacts:
    return GroupFacts(group=name, kind=GroupKind.CONSUMER, members=1, reads=reads)


def producer(name: str, *writes: str) -> ProducerFacts:
    is_id = not name.isdigit()
    return ProducerFacts(name=name, transactional_id=name if is_id else None, writes=writes)


@dataclass
class Estate:
    """Applications, each a set of topics, with the clients that make it one, and hubs over all of them."""

    seed: int
    count: int
    applications: list[frozenset[str]] = field(default_factory=list)
    groups: dict[str, set[str]] = field(default_factory=dict)
    producers: dict[str, set[str]] = field(default_factory=dict)
    hubs: set[tuple[NodeKind, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        for number in range(self.count):
            self.add_application(number)

    def add_application(self, number: int) -> None:
        """Add services that read some topics and write the next ones, so that all are connected."""
        name = f"a{number}"
        topics = [f"{name}.t{one}" for one in range(self.chance.choice((2, 3, 5, 8, 20, 60)))]
        done = [topics[0]]
        self.producers[f"{number}000"] = {topics[0]}
        for one, next_topic in enumerate(topics[1:]):
            service = f"{name}.service{one}"
            reads = {done[-1]} if self.chance.random() < 0.7 else {self.chance.choice(done)}
            if self.chance.random() < 0.2:
                reads |= set(self.chance.sample(done, min(len(done), 3)))
            self.groups[service] = reads
            # a service is known to be one by its transactional id, or by a group that reads both ends
            self.producers[f"{number}{one + 1:03}"] = {next_topic}
            self.groups[f"{service}-watch"] = {next_topic, *reads}
            done.append(next_topic)
        self.groups[f"{name}.sink"] = {topics[-1]}
        if self.chance.random() < 0.3:
            self.groups[f"{name}.archive"] = set(topics)
        self.applications.append(frozenset(topics))

    def add_reader_of_all(self, name: str, share: float = 1.0) -> None:
        topics = sorted(one for some in self.applications for one in some)
        self.groups[name] = set(self.chance.sample(topics, round(share * len(topics))))
        self.hubs.add((NodeKind.GROUP, name))

    def add_gateway(self) -> None:
        self.producers["77777"] = {min(some) for some in self.applications}
        self.hubs.add((NodeKind.PRODUCER, "77777"))

    def add_topic_for_errors(self) -> None:
        for name in list(self.producers):
            if self.chance.random() < 0.8 and name != "77777":
                self.producers[name].add("errors")
        self.groups["error-desk"] = {"errors"}
        self.applications.append(frozenset({"errors"}))
        self.hubs.add((NodeKind.TOPIC, "errors"))

    def found(self) -> tuple[set[frozenset[str]], set[tuple[NodeKind, str]]]:
        """Return the applications and hubs that are found."""
        applications, hubs = applications_of(
            [topic(name) for some in self.applications for name in sorted(some)],
            [group(name, *sorted(reads)) for name, reads in self.groups.items()],
            [producer(name, *sorted(writes)) for name, writes in self.producers.items()],
        )
        return {frozenset(one.topics) for one in applications}, {(hub.kind, hub.name) for hub in hubs}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 30))])
def test_applications_are_found_whole_and_each_hub_is_named(seed: int) -> None:
    estate = Estate(seed, count=(50, 8, 20)[seed % 3])
    if seed % 2:
        estate.add_reader_of_all("audit")
    if seed % 5 in (1, 2):
        estate.add_reader_of_all("metrics", share=0.7)
    if seed % 7 in (1, 2, 3):
        estate.add_gateway()
    if seed % 3 == 1:
        estate.add_topic_for_errors()
    applications, hubs = estate.found()
    assert hubs == estate.hubs
    assert applications == set(estate.applications)
