"""Where a source's topics come from: a chain of mirrors, followed to its first source.

A source topic may itself be a mirror topic there. Followed from cluster to cluster, such a chain ends at a topic that
is no mirror topic, at a cluster that cannot be read from here, or it returns to this destination: a loop.

Whoever may write to a cluster's state decides what it says. So only names and cluster ids are read from it, never an
address or a login; a chain is followed only through clusters that this host's own `kmirror.toml` names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.properties import read_properties
from kmirror.commands import option
from kmirror.config_file import NamedCluster, load_config_file
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.ops.base.context import as_kmirror_error, cluster_id_of
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.records import DesiredState, MirrorRecord
from kmirror.state.snapshot import State, unreadable_error
from kmirror.state.store import StateStore
from kmirror.status.in_charge import HeldTopic, holdings_in
from kmirror.words import listed

#: The most clusters to follow a chain through; real ones have two or three links.
_LONGEST_CHAIN = 8
#: How long to wait for a cluster further up.
_TIMEOUT_MS = 5_000
#: How many of the clusters in kmirror.toml are asked for their ids at once.
_ASKED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Upstream:
    """The topics of a source that are mirror topics there, by topic a description of the loop back here.

    `unknown` says, by topic, why it is not known whether there is a loop. `held` is what the source has stored of its
    topics, None if that is not known.
    """

    copies: frozenset[str] = frozenset()
    loops: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, HeldTopic] | None = None

    def warnings(self) -> list[str]:
        """Return a sentence for each reason why something is unknown."""
        return [unknown_loop(why, topics) for why, topics in by_reason(self.unknown).items()]


def by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the sorted topics of each reason."""
    found: dict[str, list[str]] = {}
    for topic, why in sorted(reasons.items()):
        found.setdefault(why, []).append(topic)
    return found


def unknown_loop(why: str, topics: Collection[str]) -> str:
    """Return the sentence that a loop of these topics would not be noticed."""
    return f"whether {listed(sorted(topics))} may come from this cluster is unknown: {why}"


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
    """Return the loops found, by source topic, and by cluster id the links one cluster further up.

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
            further.setdefault(mirror.source_cluster_id or "?", []).append(up)
    return loops, further


def copies_in(state: State, mirror: MirrorRecord) -> list[str]:
    """Return the current mirror topics of a mirror of this cluster."""
    return [topic.topic for topic in state.topics(mirror.name) if topic.desired is not DesiredState.STOPPED]


def upstream_of(mirror: MirrorRecord, destination_cluster_id: str, prefix: str, topics: Collection[str]) -> Upstream:
    """Find out where topics of a mirror's source come from."""
    state = _visible_state(mirror.source, None)
    if isinstance(state, str):
        return Upstream(unknown=dict.fromkeys(topics, f"mirrors on the source are not visible: {state}"))
    copies = frozenset(topic for upper in state.mirrors for topic in copies_in(state, upper)) & frozenset(topics)
    named = _NamedClusters()
    loops: dict[str, str] = {}
    unknown: dict[str, str] = {}
    here: list[tuple[State, list[Link]]] = [(state, links_of(copies, prefix))]
    for _ in range(_LONGEST_CHAIN):
        above: dict[str, list[Link]] = {}
        for stored, links in here:
            found, further = follow(stored, links, destination_cluster_id)
            loops |= found
            for cluster_id, up in further.items():
                above.setdefault(cluster_id, []).extend(up)
        here = []
        for cluster_id, up in above.items():
            seen = named.state_of(cluster_id)
            if isinstance(seen, str):
                unknown |= {link.source_topic: seen for link in up}
            else:
                here.append((seen, up))
    left = {link.source_topic for _, links in here for link in links}
    unknown |= dict.fromkeys(left, f"it has passed through more than {_LONGEST_CHAIN} clusters")
    unknown = {topic: why for topic, why in unknown.items() if topic not in loops}
    return Upstream(copies, loops, unknown, holdings_in(state))


class _NamedClusters:
    """The clusters that this host's `kmirror.toml` names, by their ids; asked when the first is needed."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] | None = None
        self._silent: list[str] = []
        self._states: dict[str, State | str] = {}

    def state_of(self, cluster_id: str) -> State | str:
        """Return kmirror's stored state on a cluster, or why it is not known."""
        if cluster_id not in self._states:
            self._states[cluster_id] = self._read(cluster_id)
        return self._states[cluster_id]

    def _read(self, cluster_id: str) -> State | str:
        try:
            known = self._ask()
        except KmirrorError as error:
            return f"{cluster_id} cannot be looked up: {error.message}"
        if cluster_id not in known:
            silent = f"; {listed(self._silent)} in it did not answer" if self._silent else ""
            return f"it comes from cluster {cluster_id}, which kmirror.toml on this host does not name{silent}"
        state = _visible_state(known[cluster_id], _TIMEOUT_MS)
        return f"mirrors on cluster {cluster_id} are not visible: {state}" if isinstance(state, str) else state

    def _ask(self) -> dict[str, dict[str, str]]:
        if self._known is None:
            clusters = load_config_file().clusters
            with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
                answers = dict(zip(clusters, pool.map(_identified, clusters.values()), strict=True))
            self._known = dict(answer for answer in answers.values() if answer is not None)
            self._silent = sorted(name for name, answer in answers.items() if answer is None)
        return self._known


def _identified(cluster: NamedCluster) -> tuple[str, dict[str, str]] | None:
    """Return a cluster's id and client properties; None if it does not answer."""
    try:
        properties = read_properties(cluster.command_config) if cluster.command_config else {}
        properties["bootstrap.servers"] = cluster.bootstrap_server
        config = replace(client_config(properties), connect_timeout_ms=_TIMEOUT_MS, request_timeout_ms=_TIMEOUT_MS)
        with ClusterClient(config) as client:
            return cluster_id_of(client, _TIMEOUT_MS / 1000), properties
    except (KmirrorError, OutcomeUnknown):
        return None


def stored_state_on(
    properties: Mapping[str, str], timeout_ms: int | None = None, connected: ClusterClient | None = None
) -> State:
    """Read kmirror's stored state on the cluster of these client properties, to which there may be a client.

    Raises:
        KmirrorError: it does not answer (within `timeout_ms`), we may not read it, or some of it is lost.
        OutcomeUnknown: it stopped responding.
    """
    config = client_config(properties)
    if timeout_ms is not None:
        config = replace(config, connect_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms)
    with ClusterClient(config) if connected is None else nullcontext(connected) as client:
        topic = client.metadata([STATE_TOPIC]).topics.get(STATE_TOPIC)
        if topic is not None and topic.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
            raise UnreachableError(
                f"we lack READ on topic {STATE_TOPIC} there, if there is one",
                grant_line(config, ("READ",), *option("--topic", STATE_TOPIC)),
                Reason.NOT_AUTHORIZED,
            )
        store = StateStore(config, client)
        return store.read() if timeout_ms is None else store.read(timeout_ms / 1000)


def _visible_state(properties: Mapping[str, str], timeout_ms: int | None) -> State | str:
    """Return kmirror's stored state on a cluster, empty if there is none; or why it cannot be read from here."""
    try:
        state = stored_state_on(properties, timeout_ms)
        for record in state.unreadable():
            raise unreadable_error(record)
        return state
    except (KmirrorError, OutcomeUnknown) as error:
        return as_kmirror_error(error).message
