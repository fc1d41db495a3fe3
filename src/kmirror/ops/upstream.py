"""Where a source's topics come from: mirrors that kmirror remembers there, followed up to their beginning.

A source topic may itself be a mirror topic there. Followed from cluster to cluster, such a chain ends at a topic that
is nobody's copy, at a cluster that cannot be reached from here (what mirrors need to log in may be known only where
they run), or comes back to this destination: a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.acl_commands import grant_line
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.security.client_config import client_config
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.ops.context import told
from kmirror.state.records import DesiredState, MirrorRecord
from kmirror.state.snapshot import State, unreadable_error
from kmirror.state.store import STATE_TOPIC, StateStore

#: Chains are followed no further: real ones have two or three links.
_LONGEST_CHAIN = 8
#: How long a cluster further up is waited for.
_PATIENCE_MS = 5_000


@dataclass(frozen=True, slots=True)
class Upstream:
    """Which topics of a source are mirror topics there, and the ways round that lead back here, in words, by topic."""

    copies: frozenset[str] = frozenset()
    loops: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """A source topic that is followed: what it is called at the cluster we have come to, and the way down from there.

    `place` is that cluster in words, `rest` the way from there to here.
    """

    source_topic: str
    topic: str
    place: str
    rest: str


def links_of(topics: Iterable[str], prefix: str) -> list[Link]:
    """Return the beginnings of the ways up from these source topics."""
    return [Link(topic, topic, "the source", f"→ {prefix}{topic} here") for topic in sorted(topics)]


def follow(
    state: State, links: Iterable[Link], destination_cluster_id: str
) -> tuple[dict[str, str], dict[str, list[Link]]]:
    """Return the loops found, by source topic, and by mirror of this cluster the links one cluster further up.

    `state` is what kmirror remembers on the cluster that the links have come to. A link that leads no further is left
    out.
    """
    by_topic = {topic: mirror for mirror in state.mirrors for topic in copies_in(state, mirror)}
    loops: dict[str, str] = {}
    further: dict[str, list[Link]] = {}
    for link in links:
        mirror = by_topic.get(link.topic)
        record = state.topic(mirror.name, link.topic) if mirror is not None else None
        if mirror is None or record is None:
            continue
        rest = f"→ {link.topic} on {link.place} (mirror {mirror.name} there) {link.rest}"
        if mirror.source_cluster_id == destination_cluster_id:
            loops[link.source_topic] = f"{record.source_topic} here {rest}"
        else:
            place = f"cluster {mirror.source_cluster_id}"
            up = Link(link.source_topic, record.source_topic, place, rest)
            further.setdefault(mirror.name, []).append(up)
    return loops, further


def copies_in(state: State, mirror: MirrorRecord) -> list[str]:
    """Return the topics that a mirror of this cluster owns now."""
    return [topic.topic for topic in state.topics(mirror.name) if topic.desired is not DesiredState.STOPPED]


def upstream_of(
    mirror: MirrorRecord, destination_cluster_id: str, prefix: str, topics: Collection[str], warn: Callable[[str], None]
) -> Upstream:
    """Look up where topics of a mirror's source come from; `warn` hears of what cannot be seen from here."""
    state = _seen(mirror.source, "the source", None, warn)
    if state is None:
        return Upstream()
    copies = frozenset(topic for upper in state.mirrors for topic in copies_in(state, upper)) & frozenset(topics)
    loops: dict[str, str] = {}
    here: list[tuple[State, list[Link]]] = [(state, links_of(copies, prefix))]
    for _ in range(_LONGEST_CHAIN):
        above: list[tuple[State, list[Link]]] = []
        for remembered, links in here:
            found, further = follow(remembered, links, destination_cluster_id)
            loops |= found
            for name, up in further.items():
                upper = remembered.mirror(name)
                seen = _seen(upper.source, up[0].place, _PATIENCE_MS, warn) if upper is not None else None
                if seen is not None:
                    above.append((seen, up))
        here = above
    return Upstream(copies, loops)


def remembered_on(properties: Mapping[str, str], patience_ms: int | None = None) -> State | None:
    """Read what kmirror remembers on a cluster that these client properties name; None where it remembers nothing.

    Raises:
        KmirrorError: it does not answer (within `patience_ms`), or we may not read it.
        OutcomeUnknown: it fell silent.
    """
    config = client_config(properties)
    if patience_ms is not None:
        config = replace(config, connect_timeout_ms=patience_ms, request_timeout_ms=patience_ms)
    with ClusterClient(config) as client:
        memory = client.metadata([STATE_TOPIC]).topics.get(STATE_TOPIC)
    if memory is None or memory.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if memory.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
        raise UnreachableError(
            f"we lack READ on topic {STATE_TOPIC} there, if there is one",
            grant_line(config, ("READ",), f"--topic {STATE_TOPIC}"),
            Reason.NOT_AUTHORIZED,
        )
    store = StateStore(config)
    try:
        return store.read() if patience_ms is None else store.read(patience_ms / 1000)
    finally:
        store.close()


def _seen(
    properties: Mapping[str, str], place: str, patience_ms: int | None, warn: Callable[[str], None]
) -> State | None:
    """Return what kmirror remembers on a cluster; None where it remembers nothing, or that cannot be seen from here."""
    try:
        state = remembered_on(properties, patience_ms)
        for record in state.unreadable() if state is not None else ():
            raise unreadable_error(record)
        return state
    except (KmirrorError, OutcomeUnknown) as error:
        warn(f"mirrors on {place} that may lead back here are not visible: {told(error).message}")
        return None
