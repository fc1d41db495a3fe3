"""The plan: what was read, what moves together, in which waves, and what is in the way. Pure.

`PLAN.document` is what `--json` prints and `plan.json` holds; `plan --against` reads it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kmirror.columns import (
    COUNT,
    FLAG,
    OBJECT,
    TEXT,
    TIME,
    Column,
    Table,
    Type,
    columns_of,
    document,
    list_of,
    object_of,
    shown,
    table_row,
)
from kmirror.ops.check.findings import CHECKS, CheckLine
from kmirror.words import byte_count, counted
from kmirror_plan.applications import Application, Hub, NodeKind, applications_of
from kmirror_plan.inventory import (
    BYTES,
    BYTES_PER_SECOND,
    GroupFacts,
    Inventory,
    ProducerFacts,
    Shape,
    TopicFacts,
    Unseen,
)
from kmirror_plan.waves import WAVE_COUNTS, CopyRates, Wave, WaveLimits, waves_of

VERSION = 1
#: As many partitions on a broker, replicas included, as Kafka's own advice allows.
_MOST_REPLICAS = 4_000


@table_row
class Room:
    """What the destination has, and what it needs for the plan."""

    cluster_id: str = shown(TEXT, "its cluster id")
    brokers: int = shown(COUNT, "its brokers")
    replicas: int | None = shown(COUNT.null_when("it could not be read"), "partitions there now, replicas included")
    free: int | None = shown(
        BYTES.null_when("we lack DESCRIBE on the cluster, or a broker before Kafka 3.3 does not say"),
        "bytes free on all brokers' disks together",
        key="freeBytes",
    )
    replication_factor: int | None = shown(
        COUNT.null_when("the brokers' default could not be read"), "replicas of each mirror topic"
    )
    taken: tuple[str, ...] = shown(list_of(TEXT), "planned topics whose names exist there already", key="takenTopics")


@table_row
class RoomNeed:
    """Something of the destination that the plan needs, and whether it suffices."""

    what: str = shown(TEXT, "what is needed", "NEEDED")
    is_enough: bool | None = shown(FLAG.null_when("it is not known"), "whether there is enough")
    message: str = shown(TEXT, "how much, of what", "MESSAGE")


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """A plan, with what it was made from; `options` are those of the command."""

    made_ms: int
    mirror_config: Mapping[str, str]
    options: Mapping[str, Any]
    inventory: Inventory
    room: Room
    rates: CopyRates
    applications: tuple[Application, ...]
    hubs: tuple[Hub, ...]
    waves: tuple[Wave, ...]
    findings: tuple[CheckLine, ...]
    needs: tuple[RoomNeed, ...]

    @property
    def topics(self) -> tuple[TopicFacts, ...]:
        """The topics that are planned."""
        return tuple(topic for topic in self.inventory.topics if topic.shape is not Shape.MIRRORMAKER)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as `--json` prints it."""
        return document(MIGRATION_PLAN, self)


TOPICS_READ: Table[TopicFacts] = Table(columns_of(TopicFacts), "TOPIC SHAPE PARTITIONS OFFSETS BYTES RATE")
GROUPS_READ: Table[GroupFacts] = Table(columns_of(GroupFacts), "GROUP KIND MEMBERS")
PRODUCERS_READ: Table[ProducerFacts] = Table(columns_of(ProducerFacts), "PRODUCER")
UNSEEN: Table[Unseen] = Table(columns_of(Unseen), "UNKNOWN WHY")
APPLICATIONS: Table[Application] = Table(columns_of(Application), "APPLICATION")
HUBS: Table[Hub] = Table(columns_of(Hub), "HUB NAME TOPICS CONNECTS")
WAVES: Table[Wave] = Table(columns_of(Wave), "WAVE PARTITIONS BYTES WRITTEN COPY CAUGHT-UP")
WAVES_SHOWN: Table[Wave] = Table(
    (*columns_of(Wave), *WAVE_COUNTS), "WAVE APPLICATIONS TOPICS PARTITIONS BYTES WRITTEN COPY CAUGHT-UP"
)
NEEDS: Table[RoomNeed] = Table(columns_of(RoomNeed), "NEEDED MESSAGE")

_READ = "it may not be read"
MIGRATION_PLAN: tuple[Column[MigrationPlan], ...] = (
    Column("version", Type("integer", "plan version", codes=(VERSION,)), "version of the format", lambda _: VERSION),
    Column("madeAt", TIME, "when the plan was made", lambda plan: plan.made_ms),
    Column("mirrorConfig", OBJECT, "the properties of `--mirror-config`", lambda plan: dict(plan.mirror_config)),
    Column("options", OBJECT, "the options of the command", lambda plan: dict(plan.options)),
    Column("sourceClusterId", TEXT, "the source's cluster id", lambda plan: plan.inventory.cluster_id),
    Column("readAt", TIME, "when the source was read", lambda plan: plan.inventory.read_at_ms),
    Column("sampleMs", COUNT, "milliseconds between the two readings", lambda plan: plan.inventory.sample_ms),
    Column(
        "copyBytesPerSecond",
        BYTES_PER_SECOND.null_when("it was neither given nor measured: no times are predicted"),
        "the rate of a copy that times are predicted from (`--bandwidth`, or the mean of a trial)",
        lambda plan: plan.rates.usual,
    ),
    Column(
        "copyBytesPerSecondByClass",
        Type("object", "object", items=BYTES_PER_SECOND),
        "the rates that a trial measured, by class of batches: large, medium, small, taken apart, unknown",
        lambda plan: dict(plan.rates.by_class),
    ),
    Column("destination", object_of(columns_of(Room)), "the destination", lambda plan: plan.room),
    Column("waves", WAVES.type, "the waves, in order", lambda plan: plan.waves),
    Column(
        "applications",
        APPLICATIONS.type,
        "the applications: topics and clients that move together",
        lambda plan: plan.applications,
    ),
    Column(
        "hubs",
        list_of(object_of((*HUBS.columns, Column("reason", TEXT, "what it means", lambda hub: hub.reason)))),
        "clients and topics that were left out because they would connect everything",
        lambda plan: [HUBS.document(one) | {"reason": one.reason} for one in plan.hubs],
    ),
    Column("topics", TOPICS_READ.type, "the topics", lambda plan: plan.topics),
    Column("groups", GROUPS_READ.type, "the groups that we may see", lambda plan: plan.inventory.groups),
    Column(
        "producers",
        PRODUCERS_READ.type,
        "the producers that brokers remember",
        lambda plan: plan.inventory.producers,
    ),
    Column(
        "principals",
        list_of(TEXT).null_when(f"the source has no authorizer, or {_READ}"),
        "principals with ACLs at the source",
        lambda plan: _list(plan.inventory.principals),
    ),
    Column("quotas", COUNT.null_when(_READ), "client quotas at the source", lambda plan: plan.inventory.quotas),
    Column(
        "scramUsers",
        list_of(TEXT).null_when(_READ),
        "users with SCRAM credentials at the source",
        lambda plan: _list(plan.inventory.scram_users),
    ),
    Column("needs", NEEDS.type, "what the destination needs", lambda plan: plan.needs),
    Column("findings", CHECKS.type, "what `check` finds for the same file", lambda plan: plan.findings),
    Column(
        "unknown",
        UNSEEN.type,
        "what could not be read, so that the plan may lack something",
        lambda plan: plan.inventory.unseen,
    ),
)


def _list(found: Sequence[str] | None) -> list[str] | None:
    return None if found is None else list(found)


def make_plan(
    inventory: Inventory,
    room: Room,
    findings: Sequence[CheckLine],
    *,
    made_ms: int,
    mirror_config: Mapping[str, str],
    options: Mapping[str, Any],
    limits: WaveLimits,
    rates: CopyRates,
) -> MigrationPlan:
    """Return the plan for what was read."""
    topics = [topic for topic in inventory.topics if topic.shape is not Shape.MIRRORMAKER]
    applications, hubs = applications_of(topics, inventory.groups, inventory.producers)
    hub_topics = frozenset(hub.name for hub in hubs if hub.kind is NodeKind.TOPIC)
    waves = waves_of(applications, {topic.topic: topic for topic in topics}, hub_topics, rates, limits)
    return MigrationPlan(
        made_ms=made_ms,
        mirror_config=dict(mirror_config),
        options=dict(options),
        inventory=inventory,
        room=room,
        rates=rates,
        applications=applications,
        hubs=hubs,
        waves=waves,
        findings=tuple(findings),
        needs=tuple(_needs(topics, room)),
    )


def _needs(topics: Sequence[TopicFacts], room: Room) -> list[RoomNeed]:
    found = []
    sizes, replicas = [topic.size for topic in topics], room.replication_factor
    known = [size for size in sizes if size is not None]
    needed = None if replicas is None else sum(known) * replicas
    of = "" if len(known) == len(sizes) else f", without {counted(len(sizes) - len(known), 'topic')} of unknown size"
    if needed is None:
        text = "how many replicas the destination makes is not known"
    elif room.free is None:
        text = f"{byte_count(needed)} are needed{of}; how much is free is not known"
    else:
        with_replicas = f"with {counted(replicas or 1, 'replica')}"
        text = f"{byte_count(needed)} are needed {with_replicas}{of}; {byte_count(room.free)} are free"
    enough = None if needed is None or room.free is None or (of and needed <= room.free) else needed <= room.free
    found.append(RoomNeed(what="disk", is_enough=enough, message=text))
    planned = sum(topic.partitions for topic in topics)
    if replicas is None or room.replicas is None:
        found.append(
            RoomNeed(
                what="partitions", is_enough=None, message=f"{counted(planned, 'partition is', 'partitions are')} added"
            )
        )
    else:
        total = -(-(room.replicas + planned * replicas) // max(1, room.brokers))
        on_each = f"{total:,} replicas on each of {counted(room.brokers, 'broker')}"
        text = f"{on_each} then; advised are {_MOST_REPLICAS:,} at most"
        found.append(RoomNeed(what="partitions", is_enough=total <= _MOST_REPLICAS, message=text))
    if room.taken:
        taken = counted(len(room.taken), "topic of the plan exists", "topics of the plan exist")
        text = f"{taken} at the destination already: see `add --adopt`"
        found.append(RoomNeed(what="names", is_enough=False, message=text))
    return found
