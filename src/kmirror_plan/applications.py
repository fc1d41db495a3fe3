"""Which topics belong together: the connected parts of what groups read and producers write. Pure.

Topics, groups and producers are the nodes of a graph; an edge is that one reads or writes the other. A part of it that
is connected to nothing else is an application: its clients meet no other topics, so it can move by itself.

A few nodes connect what has nothing to do with each other: a group that audits all topics, a gateway that writes to
them, a topic for everyone's errors. They are *hubs*, and left out of the graph. A hub is a node that alone connects
several parts, each of which would live without it: it has topics, a group that reads them, and a producer that writes
to them (if any producer is known). So a group that aggregates ten topics which no one else reads is no hub.

Hubs may cover each other: with two groups that read everything, no single one connects anything. So the nodes with
most edges are taken out together, more and more of them, until something falls apart; then those are put back that
connect little, the least first. What remains outside is a hub.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kmirror.columns import COUNT, TEXT, list_of, one_of, shown, table_row
from kmirror.words import counted
from kmirror_plan.inventory import (
    GroupFacts,
    ProducerFacts,
    Shape,
    TopicFacts,
    connect_cluster,
    streams_application,
    streams_group_of,
)

#: A hub connects so many parts that would live without it, or so many parts at all that have a topic and a client.
_LIVING_PARTS, _ANY_PARTS = 5, 20
#: How many nodes are taken out together while hubs are looked for.
_TAKEN_OUT = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class NodeKind(StrEnum):
    """What a node is."""

    TOPIC = "topic"
    GROUP = "group"
    PRODUCER = "producer"


Node = tuple[NodeKind, str]
Graph = Mapping[Node, frozenset[Node]]


@table_row
class Hub:
    """A client or topic that connects applications which have nothing else in common."""

    kind: NodeKind = shown(one_of("kind", NodeKind), "what it is", "HUB")
    name: str = shown(TEXT, "its name", "NAME")
    topics: int = shown(COUNT, "topics that it reads or writes; of a topic, its clients", "TOPICS")
    parts: int = shown(COUNT, "applications that it alone would connect", "CONNECTS")

    @property
    def reason(self) -> str:
        """What it means for the plan."""
        if self.kind is NodeKind.TOPIC:
            return (
                f"topic {self.name} is used by {counted(self.parts, 'application')}: it moves last, and its "
                " clients read or write at either cluster until all of them have moved"
            )
        does = "reads" if self.kind is NodeKind.GROUP else "writes"
        return (
            f"{self.kind} {self.name} {does} topics of {counted(self.parts, 'application')}: run it at both clusters "
            "until all of them have moved"
        )


@table_row
class Application:
    """Topics and clients that move together."""

    name: str = shown(TEXT, "its name: that of its largest group, or else of its largest topic", "APPLICATION")
    topics: tuple[str, ...] = shown(list_of(TEXT), "its topics")
    groups: tuple[str, ...] = shown(list_of(TEXT), "the groups that read them")
    producers: tuple[str, ...] = shown(list_of(TEXT), "the producers that write to them")


@dataclass(slots=True)
class _Parts:
    """The connected parts of some nodes, which grow as nodes are put in (disjoint sets)."""

    graph: Graph
    parent: dict[Node, Node] = field(default_factory=dict)
    #: Topics, groups and producers of each part, by its root.
    sizes: dict[Node, dict[NodeKind, int]] = field(default_factory=dict)

    def put(self, node: Node) -> None:
        """Put in a node, which connects the parts of its neighbours."""
        self.parent[node], self.sizes[node] = node, {kind: int(kind is node[0]) for kind in NodeKind}
        for root in self.around(node):
            sizes = self.sizes.pop(root)
            self.parent[root] = node
            for kind, count in sizes.items():
                self.sizes[node][kind] += count

    def around(self, node: Node) -> set[Node]:
        """Return the parts that have neighbours of a node, by their roots, without its own."""
        return {self.root(one) for one in self.graph[node] if one in self.parent} - {node}

    def root(self, node: Node) -> Node:
        """Return the part that a node is in."""
        while self.parent[node] != node:
            self.parent[node] = node = self.parent[self.parent[node]]
        return node

    def connected_by(self, node: Node, *, has_producers: bool) -> tuple[int, int]:
        """Return how many parts a node would connect that live without it, and how many with a topic and a client."""
        sizes = [self.sizes[root] for root in self.around(node)]
        living = sum(
            one[NodeKind.TOPIC] > 1 and one[NodeKind.GROUP] > 0 and (one[NodeKind.PRODUCER] > 0 or not has_producers)
            for one in sizes
        )
        return living, sum(one[NodeKind.TOPIC] > 0 and len([k for k in one if one[k]]) > 1 for one in sizes)


def applications_of(
    topics: Sequence[TopicFacts], groups: Sequence[GroupFacts], producers: Sequence[ProducerFacts]
) -> tuple[tuple[Application, ...], tuple[Hub, ...]]:
    """Return the applications of a cluster, each topic in one of them, and the hubs that were left out."""
    graph = _graph(topics, groups, producers)
    hubs = _hubs(graph, has_producers=bool(producers))
    parts = _parts_of(graph, [node for node in graph if node not in hubs])
    for kind, name in hubs:
        if kind is NodeKind.TOPIC:
            parts.append([(kind, name)])
    sizes = {topic.topic: topic.size or 0 for topic in topics}
    reads = {group.group: len(group.reads) for group in groups}
    taken: set[str] = set()
    found = []
    for part in sorted(parts, key=min):
        names = {kind: tuple(sorted(name for one, name in part if one is kind)) for kind in NodeKind}
        if not names[NodeKind.TOPIC]:
            continue
        name = max(names[NodeKind.GROUP], key=lambda one: (reads[one], one), default="")
        name = name or max(names[NodeKind.TOPIC], key=lambda one: (sizes[one], one))
        while name in taken:
            name += "'"
        taken.add(name)
        found.append(
            Application(
                name=name,
                topics=names[NodeKind.TOPIC],
                groups=names[NodeKind.GROUP],
                producers=names[NodeKind.PRODUCER],
            )
        )
    found.sort(key=lambda one: one.name)
    return tuple(found), tuple(
        Hub(kind=kind, name=name, topics=len(graph[kind, name]), parts=parts) for (kind, name), parts in hubs.items()
    )


def _graph(
    topics: Sequence[TopicFacts], groups: Sequence[GroupFacts], producers: Sequence[ProducerFacts]
) -> dict[Node, frozenset[Node]]:
    """Return all nodes with their neighbours."""
    found: dict[Node, set[Node]] = {(NodeKind.TOPIC, topic.topic): set() for topic in topics}
    names = [group.group for group in groups]

    def connect(one: Node, another: Node) -> None:
        found.setdefault(one, set()).add(another)
        found.setdefault(another, set()).add(one)

    def connect_topics(node: Node, some: Iterable[str]) -> None:
        for topic in some:
            if (NodeKind.TOPIC, topic) in found:
                connect(node, (NodeKind.TOPIC, topic))

    for group in groups:
        connect_topics((NodeKind.GROUP, group.group), group.reads)
    for producer in producers:
        node = (NodeKind.PRODUCER, producer.name)
        connect_topics(node, producer.writes)
        if producer.transactional_id and (streams := streams_group_of(producer.transactional_id, names)):
            connect(node, (NodeKind.GROUP, streams))
    workers: dict[str, list[str]] = defaultdict(list)
    for topic in topics:
        if (application := streams_application(topic.topic, names)) is not None:
            connect((NodeKind.TOPIC, topic.topic), (NodeKind.GROUP, application))
        if topic.shape is Shape.CONNECT:
            workers[connect_cluster(topic.topic)].append(topic.topic)
    for cluster, some in workers.items():
        # the workers' group has committed nothing, so it is known by its name only
        node = (NodeKind.GROUP, cluster if cluster in names else f"the workers of {cluster}")
        connect_topics(node, some)
    return {node: frozenset(neighbours) for node, neighbours in found.items()}


def _parts_of(graph: Graph, nodes: Iterable[Node]) -> list[list[Node]]:
    parts = _Parts(graph)
    for node in nodes:
        parts.put(node)
    found: dict[Node, list[Node]] = defaultdict(list)
    for node in parts.parent:
        found[parts.root(node)].append(node)
    return list(found.values())


def _hubs(graph: Graph, *, has_producers: bool) -> dict[Node, int]:
    """Return the hubs, each with how many parts it would connect."""
    hubs: dict[Node, int] = {}
    waiting = _parts_of(graph, graph)
    while waiting:
        part = waiting.pop()
        found = _hubs_in(graph, part, has_producers=has_producers)
        if found:
            hubs |= found
            waiting += _parts_of(graph, [node for node in part if node not in found])
    return dict(sorted(hubs.items()))


def _hubs_in(graph: Graph, part: Sequence[Node], *, has_producers: bool) -> dict[Node, int]:
    """Return hubs of one connected part; there may be more in what remains."""
    by_degree = sorted(part, key=lambda node: (-len(graph[node]), node))
    suspects = [node for node in by_degree[: _TAKEN_OUT[-1]] if len(graph[node]) >= _LIVING_PARTS]
    for count in (*(one for one in _TAKEN_OUT if one < len(suspects)), len(suspects)):
        out = set(suspects[:count])
        parts = _Parts(graph)
        for node in part:
            if node not in out:
                parts.put(node)
        while out:
            connected = {node: parts.connected_by(node, has_producers=has_producers) for node in out}
            # the least first; of those alike, the one with most edges: what reads all of one application makes it whole
            least = min(out, key=lambda node: (*connected[node], -len(graph[node]), node))
            living, any_parts = connected[least]
            if living >= _LIVING_PARTS or any_parts >= _ANY_PARTS:
                return {node: max(connected[node][0], 1) if connected[node][0] else connected[node][1] for node in out}
            parts.put(least)
            out.remove(least)
    return {}
