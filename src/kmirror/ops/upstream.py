"""Where a source's topics come from: a chain of mirrors, followed to its first source.

A source topic may itself be a mirror topic there. Followed from cluster to cluster, such a chain ends at a topic that
is no mirror topic, at a cluster that cannot be reached from here (the credentials may exist only where that mirror
runs), or it returns to this destination: a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kmirror.cluster.acl_commands import grant_line
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.security.client_config import client_config
from kmirror.commands import option
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.ops.context import as_kmirror_error
from kmirror.state.records import DesiredState, MirrorRecord
from kmirror.state.snapshot import State, unreadable_error
from kmirror.state.store import STATE_TOPIC, StateStore

#: The most clusters to follow a chain through; real ones have two or three links.
_LONGEST_CHAIN = 8
#: How long to wait for a cluster further up.
_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class Upstream:
    """The topics of a source that are mirror topics there, and by topic a description of the loop back here."""

    copies: frozenset[str] = frozenset()
    loops: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Link:
    """A source topic being followed: its name (`topic`) on the cluster reached so far.

    `place` describes that cluster, `rest` the path from there to here.
    """

    source_topic: str
    topic: str
    place: str
    rest: str


def links_of(topics: Iterable[str], prefix: str) -> list[Link]:
    """Return the first links of the chains of these source topics."""
    return [Link(topic, topic, "the source", f"→ {prefix}{topic} here") for topic in sorted(topics)]


def follow(
    state: State, links: Iterable[Link], destination_cluster_id: str
) -> tuple[dict[str, str], dict[str, list[Link]]]:
    """Return the loops found, by source topic, and by mirror of this cluster the links one cluster further up.

    `state` is kmirror's stored state on the cluster that the links have reached. Links that end there are left out.
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
    """Return the current mirror topics of a mirror of this cluster."""
    return [topic.topic for topic in state.topics(mirror.name) if topic.desired is not DesiredState.STOPPED]


def upstream_of(
    mirror: MirrorRecord, destination_cluster_id: str, prefix: str, topics: Collection[str], warn: Callable[[str], None]
) -> Upstream:
    """Find out where topics of a mirror's source come from; `warn` is called for clusters that cannot be read."""
    state = _visible_state(mirror.source, "the source", None, warn)
    if state is None:
        return Upstream()
    copies = frozenset(topic for upper in state.mirrors for topic in copies_in(state, upper)) & frozenset(topics)
    loops: dict[str, str] = {}
    here: list[tuple[State, list[Link]]] = [(state, links_of(copies, prefix))]
    for _ in range(_LONGEST_CHAIN):
        above: list[tuple[State, list[Link]]] = []
        for stored, links in here:
            found, further = follow(stored, links, destination_cluster_id)
            loops |= found
            for name, up in further.items():
                upper = stored.mirror(name)
                if upper is None:
                    continue
                seen = _visible_state(upper.source, up[0].place, _TIMEOUT_MS, warn)
                if seen is not None:
                    above.append((seen, up))
        here = above
    return Upstream(copies, loops)


def stored_state_on(properties: Mapping[str, str], timeout_ms: int | None = None) -> State:
    """Read kmirror's stored state on the cluster of these client properties.

    Raises:
        KmirrorError: it does not answer (within `timeout_ms`), we may not read it, or some of it is lost.
        OutcomeUnknown: it stopped responding.
    """
    config = client_config(properties)
    if timeout_ms is not None:
        config = replace(config, connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms)
    with ClusterClient(config) as client:
        topic = client.metadata([STATE_TOPIC]).topics.get(STATE_TOPIC)
    if topic is not None and topic.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
        raise UnreachableError(
            f"we lack READ on topic {STATE_TOPIC} there, if there is one",
            grant_line(config, ("READ",), *option("--topic", STATE_TOPIC)),
            Reason.NOT_AUTHORIZED,
        )
    store = StateStore(config)
    try:
        return store.read() if timeout_ms is None else store.read(timeout_ms / 1000)
    finally:
        store.close()


def _visible_state(
    properties: Mapping[str, str], place: str, timeout_ms: int | None, warn: Callable[[str], None]
) -> State | None:
    """Return kmirror's stored state on a cluster; None if it cannot be read from here."""
    try:
        state = stored_state_on(properties, timeout_ms)
        for record in state.unreadable():
            raise unreadable_error(record)
        return state
    except (KmirrorError, OutcomeUnknown) as error:
        warn(f"mirrors on {place} that may lead back here are not visible: {as_kmirror_error(error).message}")
        return None
