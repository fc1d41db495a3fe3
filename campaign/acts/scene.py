"""What acts work on: a running world. An act is a function that does something and returns what undoes it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import TopicPartition

from campaign.clusters import Side
from campaign.engine import Engine
from campaign.logins import admin
from campaign.world import Act, Fault, Topic, World

Undo = Callable[[], None]
#: The record of what was done.
Note = dict[str, Any]
#: By topic and partition: the reported end of a copy, and how many records are known to be lost, None if unknown.
Ends = dict[str, dict[str, tuple[int, int | None]]]

_CALM_S = 90.0
#: Refused, partly done, histories differ.
_SPOILED = (3, 4, 7)
#: A topic that these were done to may have other records below the offset.
_OTHER_RECORDS = frozenset({Act.DELETE_TOPIC, Act.RECREATE_TOPIC, Act.UNCLEAN_ELECTION})


@dataclass
class Scene:
    """A running world, and the state of its topics."""

    world: World
    source: Side
    destination: Side
    engine: Engine
    #: Of the mirror from the destination to a third cluster, if there is one.
    behind: Engine | None = None
    third: Side | None = None
    #: A cluster that no mirror has to do with.
    decoy: Side | None = None
    #: By topic, the acts that were done to it.
    marks: dict[str, set[Act]] = field(default_factory=dict)
    #: Partitions of each topic, including those added later.
    partitions: dict[str, int] = field(default_factory=dict)
    #: Topics that a verb has stopped or may have stopped: a topic with a fence marker cannot be adopted.
    halted: set[str] = field(default_factory=set)
    #: Topics whose mirroring a verb has ended, and where.
    ends: Ends = field(default_factory=dict)
    #: By topic, the offset of partition 0 below which its records were deleted.
    deleted: dict[str, int] = field(default_factory=dict)
    #: What to do once nothing is wrong any more; `stops` come last.
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    stops: list[Callable[[], None]] = field(default_factory=list)
    #: The violations found then.
    found: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.partitions = {topic.name: topic.partitions for topic in self.world.topics}

    def side(self, fault: Fault, note: Note) -> Side:
        """Draw a cluster."""
        side = (self.source, self.destination)[fault.draw >> 8 & 1]
        note["side"] = side.name
        return side

    def topic(self, fault: Fault, note: Note, act: Act | None = None) -> Topic:
        """Draw a topic of the source; with an act, record that it was done to it."""
        topic = self.world.topics[fault.draw % len(self.world.topics)]
        note["topic"] = topic.name
        if act is not None:
            self.marks.setdefault(topic.name, set()).add(act)
        return topic

    def sides(self) -> list[Side]:
        """Return the clusters."""
        return [self.source, self.destination, *(side for side in (self.third, self.decoy) if side)]

    def engines(self) -> list[Engine]:
        """Return the running engines."""
        return [self.engine, *([self.behind] if self.behind else ())]

    def delete_again(self) -> None:
        """Delete records of the source again: a broker that is killed within a minute after that has them back."""
        client = admin(self.source.direct)
        for topic, offset in self.deleted.items():
            if not self.marks.get(topic, set()) & _OTHER_RECORDS:
                for done in client.delete_records([TopicPartition(topic, 0, offset)]).values():
                    done.result(30)

    def store_ends(self, output: str) -> None:
        """Store the reported ends of copies from the answer of a verb that stops."""
        for topic, ends in ends_of(output).items():
            self.ends.setdefault(topic, {}).update(ends)

    def until_calm(
        self, verb: str, *arguments: str, mirror: str, also: frozenset[int] = frozenset()
    ) -> tuple[int, str] | None:
        """Type a verb until it ends with 0 or another of these codes; never getting there is a violation.

        If a topic of the mirror is no longer copied, a verb may say so.
        """
        spoiled = any(self.marks.get(name) or name in self.halted for name in self.world.names(mirror))
        codes = {0, *also, *(_SPOILED if spoiled else ())}
        deadline = time.monotonic() + _CALM_S
        while True:
            code, output = self.engine.verb(verb, *arguments, mirror=mirror)
            if code in codes:
                return code, output
            if time.monotonic() > deadline:
                self.found.append({"what": f"{verb} does not come to its end", "code": code, "said": output[-2000:]})
                return None
            time.sleep(0.5)


def ends_of(output: str) -> Ends:
    """Return what the answer of a verb says about the ends of copies."""
    ends: Ends = {}
    for row in json.loads(output)["results"] if output.strip() else ():
        if row["partition"] is not None and row["lastMirroredOffset"] is not None:
            ends.setdefault(row["topic"], {})[str(row["partition"])] = row["lastMirroredOffset"], row["lag"]
    return ends
