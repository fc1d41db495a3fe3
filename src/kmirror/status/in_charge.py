"""Which cluster is in charge of a mirror's topics: the rules. Pure.

A mirror has two ends. As long as a topic is copied, its source is in charge; once it is stopped, the cluster that it
was copied to. If it is then mirrored back and stopped there, that one is, and so on: each stop has a *term*, higher
than its source's when mirroring began. The highest term wins.

Both ends may be asked at the same time, by processes that see one of them or both. Never do both say yes:

* What a cluster has stored is believed for `FRESH_S` from the moment it was asked. A yes rests only on what has been
  seen unchanged for `SETTLED_S`, which is longer: by then what was before counts nowhere.
* The source of a first mirror says yes only while it sees that the topic is copied.
* A cluster where a topic was stopped says yes without seeing its source, which cannot say yes then. That ends once a
  cluster with a higher term is on record there as its standby: that one must be seen.
* A cluster with a higher term says yes without seeing its source only if it is on record there. Where it was not known
  what the source had stored, the term is a higher one.

What is not certain is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from kmirror.errors import Reason
from kmirror.state.records import PENDING_STOP, DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.words import counted

#: How long, in seconds, an answer counts as current, from the time of its request; and how long something must have
#: been seen before a cluster is said to be in charge because of it.
FRESH_S, SETTLED_S = 3.0, 3.5
#: The term of a stop whose source was never a copy itself.
FIRST_TERM = 1


class HeldStage(Enum):
    """What a cluster has stored of a topic."""

    NONE = auto()
    COPIED = auto()
    STOPPING = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class HeldTopic:
    """What a cluster has stored of one topic.

    `is_announced`: its source has on record that this cluster may take over, or had nothing stored; `standbys`: the
    terms of those that may take over from this one, by cluster id.
    """

    stage: HeldStage = HeldStage.NONE
    term: int = 0
    is_announced: bool = False
    source_id: str | None = None
    source_topic: str = ""
    standbys: tuple[tuple[str, int], ...] = ()


class ChargeVerdict(NamedTuple):
    """Whether a cluster is in charge, None if that is not certain, and why; `until`: when time alone may change it.

    `is_next`: it is about to be, and no other cluster is.
    """

    in_charge: bool | None
    why: str
    until: float | None = None
    is_next: bool = False


_NOTHING = HeldTopic()


@dataclass(frozen=True, slots=True)
class SeenCluster:
    """What one process knows of a cluster; times are of one monotonic clock, in seconds.

    `state` was asked for at `asked_at`; both are None before the first answer. `since` has when topics were first seen
    with what is stored of them now; those that are not in it are as they were at `first_seen_at`. That counts from the
    answer: something may have been stored long after it was asked for.
    """

    name: str
    cluster_id: str | None = None
    bootstrap_servers: str = ""
    state: State | None = None
    asked_at: float | None = None
    first_seen_at: float = 0.0
    holdings: Mapping[str, HeldTopic] = field(default_factory=dict)
    since: Mapping[str, float] = field(default_factory=dict)
    #: Its mirrors' topics, by mirror and by each name, here and at the source.
    named: Mapping[tuple[str, str], Sequence[TopicRecord]] = field(default_factory=dict)
    #: Why what it has answered since then does not count.
    doubt: str = ""

    def is_fresh(self, at: float) -> bool:
        """Return whether what was read still counts."""
        return self.asked_at is not None and at - self.asked_at <= FRESH_S

    def holding(self, topic: str) -> HeldTopic:
        """Return what it has stored of a topic."""
        return self.holdings.get(topic, _NOTHING)

    def settles_at(self, topic: str) -> float:
        """Return from when on what is stored of a topic may be relied on."""
        return self.since.get(topic, self.first_seen_at) + SETTLED_S

    def after(
        self, cluster_id: str, bootstrap_servers: str, state: State, asked_at: float, seen_at: float
    ) -> SeenCluster:
        """Return what is known after another answer; after a gap, or of another cluster, nothing was known before."""
        if self.state is None or cluster_id != self.cluster_id or not self.is_fresh(asked_at):
            first, named = holdings_in(state), _named_in(state)
            return SeenCluster(self.name, cluster_id, bootstrap_servers, state, asked_at, seen_at, first, named=named)
        seen = replace(self, bootstrap_servers=bootstrap_servers, state=state, asked_at=asked_at, doubt="")
        if _has_same_topics(self.state, state):
            return seen
        found = holdings_in(state)
        changed = _changed(self.holdings, found)
        since = {**self.since, **dict.fromkeys(changed, seen_at)} if changed else self.since
        return replace(seen, holdings=found, since=since, named=_named_in(state))


def _has_same_topics(one: State, other: State) -> bool:
    names = {mirror.name for mirror in (*one.mirrors, *other.mirrors)}
    return all(one.topics(name) is other.topics(name) for name in names)


def _changed(before: Mapping[str, HeldTopic], now: Mapping[str, HeldTopic]) -> set[str]:
    return {name for name in before.keys() | now.keys() if before.get(name, _NOTHING) != now.get(name, _NOTHING)}


def holdings_in(state: State) -> dict[str, HeldTopic]:
    """Return what is stored of each topic: by the mirror that copies it, or else by its stop with the highest term."""
    found: dict[str, HeldTopic] = {}
    for mirror in state.mirrors:
        for record in state.topics(mirror.name):
            holding = _holding_of(mirror, record)
            if _rank(holding) > _rank(found.get(record.topic, _NOTHING)):
                found[record.topic] = holding
    return found


def _named_in(state: State) -> dict[tuple[str, str], list[TopicRecord]]:
    found: dict[tuple[str, str], list[TopicRecord]] = {}
    for mirror in state.mirrors:
        for record in state.topics(mirror.name):
            for name in {record.topic, record.source_topic}:
                found.setdefault((mirror.name, name), []).append(record)
    return found


def _rank(holding: HeldTopic) -> tuple[bool, int]:
    return holding.stage in (HeldStage.COPIED, HeldStage.STOPPING), holding.term


def _holding_of(mirror: MirrorRecord, record: TopicRecord) -> HeldTopic:
    if record.stop_reason is Reason.REMOVED:
        return _NOTHING  # it is on its own on both clusters
    if record.pending_operation == PENDING_STOP:
        stage = HeldStage.STOPPING
    else:
        stage = HeldStage.STOPPED if record.desired is DesiredState.STOPPED else HeldStage.COPIED
    standbys = tuple(sorted((record.standbys or {}).items()))
    is_announced, source_id = bool(record.announced), mirror.source_cluster_id
    return HeldTopic(stage, term_of(record), is_announced, source_id, record.source_topic, standbys)


def term_of(record: TopicRecord) -> int:
    """Return the term of a topic's stop, past or to come."""
    return record.term or FIRST_TERM


def next_term(own: HeldTopic | None, source: HeldTopic | None, *, is_source_known: bool) -> int:
    """Return the term of a topic that begins to be mirrored, by what is stored of it here and at its source."""
    here = 0 if own is None else own.term
    if own is not None and own.stage is HeldStage.COPIED:
        return here  # what an interrupted add has begun
    if not is_source_known:
        return here + 2  # not the first; the source's, once it is known, may raise it
    return max(here, 0 if source is None else source.term) + 1


class CopyElsewhere(NamedTuple):
    """A topic on the cluster that it is copied to: its name there, and what its mirror has stored of it."""

    home: SeenCluster
    topic: str
    holding: HeldTopic


class EndTopic(NamedTuple):
    """One topic of a mirror on one of its ends: its name there, and its copy if that is elsewhere."""

    topic: str
    copy: CopyElsewhere | None = None


def ends_of(clusters: Sequence[SeenCluster], mirror: str, topic: str | None = None) -> list[str]:
    """Return the names of the clusters that are ends of a mirror, or of one of its topics."""
    return [one.name for one in clusters if any(_links(clusters, one, mirror, topic))]


def _links(
    clusters: Sequence[SeenCluster], own: SeenCluster, mirror: str, topic: str | None = None
) -> Iterator[EndTopic]:
    """Yield the mirror's topics on a cluster, or one of them: those copied to it, and those copied from it."""
    for home in clusters:
        record = home.state.mirror(mirror) if home.state is not None else None
        if home.state is None or record is None:
            continue
        named = home.state.topics(mirror) if topic is None else home.named.get((mirror, topic), ())
        topics = (one for one in named if one.stop_reason is not Reason.REMOVED)
        if home is own:
            yield from (EndTopic(one.topic) for one in topics if topic in (None, one.topic))
        elif own.cluster_id is not None and record.source_cluster_id == own.cluster_id:
            yield from (
                EndTopic(one.source_topic, CopyElsewhere(home, one.topic, _holding_of(record, one))) for one in topics
            )


def who_is_in_charge(
    clusters: Sequence[SeenCluster], mirror: str, name: str, at: float, topic: str | None = None
) -> ChargeVerdict:
    """Return whether the cluster of that name is in charge of a mirror's topics, or of one, at a time."""
    own = next((one for one in clusters if one.name == name), None)
    if own is None:
        return ChargeVerdict(None, f"cluster {name} is not watched")
    if (trouble := _trouble(own, at)) is not None:
        return ChargeVerdict(None, trouble)
    clusters = _each_once(clusters, own, at)
    links: dict[str, list[EndTopic]] = {}
    for link in _links(clusters, own, mirror, topic):
        links.setdefault(link.topic, []).append(link)
    if not links:
        unseen = [one.name for one in clusters if _trouble(one, at) is not None]
        what = f"topic {topic} of mirror {mirror}" if topic is not None else f"mirror {mirror}"
        more = f"; not readable: {', '.join(unseen)}" if unseen else ""
        return ChargeVerdict(None, f"{name} is not known as an end of {what}{more}")
    known = {one.cluster_id: one for one in clusters if one.cluster_id is not None}
    verdicts = {one: _verdict(own, one, found, known, at) for one, found in links.items()}
    return _together(verdicts)


def _each_once(clusters: Sequence[SeenCluster], own: SeenCluster, at: float) -> list[SeenCluster]:
    """Return each cluster once, also where it is watched under several names: no cluster is another one than itself."""
    kept = {own.cluster_id: own}
    for one in sorted(clusters, key=lambda one: _trouble(one, at) is not None):
        kept.setdefault(one.cluster_id, one)
    return [one for one in clusters if one.cluster_id is None or kept[one.cluster_id] is one]


def _trouble(cluster: SeenCluster, at: float) -> str | None:
    """Return why a cluster's state cannot be relied on."""
    doubt = f": {cluster.doubt}" if cluster.doubt else ""
    if cluster.state is None or cluster.asked_at is None:
        return f"the state of {cluster.name} has not been read yet{doubt}"
    if not cluster.is_fresh(at):
        return f"the state of {cluster.name} has not been read for more than {FRESH_S:g} s{doubt}"
    if cluster.state.unreadable():
        return f"a newer kmirror wrote some of the state of {cluster.name}"
    return None


def _together(verdicts: Mapping[str, ChargeVerdict]) -> ChargeVerdict:
    times = [one.until for one in verdicts.values() if one.until is not None]
    until = min(times, default=None)
    # a topic that is late, or new, does not keep the clients of all others out; more than half must have been stopped
    counts = {topic: one for topic, one in verdicts.items() if not one.is_next} or verdicts
    for topic, one in counts.items():
        if one.in_charge is None:
            return ChargeVerdict(None, f"{topic}: {one.why}", until)
    moved = sum(one.in_charge is True for one in counts.values())
    if 0 < moved < len(counts):
        return ChargeVerdict(None, f"in charge of {moved:,} of {counted(len(verdicts), 'topic')} only", until)
    if not moved and (open_ones := [one.why for one in verdicts.values() if one.in_charge is None]):
        return ChargeVerdict(None, open_ones[0], until)
    if sum(one.is_next and one.in_charge is False for one in verdicts.values()) >= moved > 0:
        return ChargeVerdict(None, f"in charge of {moved:,} of {counted(len(verdicts), 'topic')} only", until)
    why, late = next(iter(counts.values())).why, len(verdicts) - len(counts)
    return ChargeVerdict(moved > 0, f"{why}; not of {counted(late, 'topic')} yet" if late else why, until)


def _verdict(
    own: SeenCluster, topic: str, links: Sequence[EndTopic], known: Mapping[str, SeenCluster], at: float
) -> ChargeVerdict:
    """Return whether a cluster, whose state is current, is in charge of one topic."""
    held = own.holding(topic)
    if held.stage is HeldStage.COPIED:
        return ChargeVerdict(False, f"it is copied from cluster {held.source_id}")
    if held.stage is HeldStage.STOPPING:
        # once it is mirrored back another cluster is, or is about to be
        return ChargeVerdict(False, "it is being stopped, and does not take writes yet", is_next=not held.standbys)
    if held.stage is HeldStage.STOPPED:
        relied = _stopped(own, topic, held, known, at)
    else:
        relied = _copied_elsewhere([link.copy for link in links if link.copy is not None], at)
    if isinstance(relied, ChargeVerdict):
        return relied
    settled, why = relied
    if at < settled:
        return ChargeVerdict(None, f"{why}, seen for less than {SETTLED_S:g} s", settled, is_next=True)
    return ChargeVerdict(True, why)


def _copied_elsewhere(copies: Sequence[CopyElsewhere], at: float) -> ChargeVerdict | tuple[float, str]:
    """Judge a topic of which nothing is stored here, by its copies; return from when on they say yes, and why."""
    if not copies:
        return ChargeVerdict(None, "nothing is stored about it here, and no watched cluster copies it from here")
    settled = 0.0
    for copy in copies:
        if (trouble := _trouble(copy.home, at)) is not None:
            return ChargeVerdict(None, trouble)
        if copy.holding.stage is not HeldStage.COPIED:
            return ChargeVerdict(False, f"its copy on {copy.home.name} has been stopped, or is being stopped")
        settled = max(settled, copy.home.settles_at(copy.topic))
    return settled, f"it is copied from here to {', '.join(sorted(copy.home.name for copy in copies))}"


def _stopped(
    own: SeenCluster, topic: str, held: HeldTopic, known: Mapping[str, SeenCluster], at: float
) -> ChargeVerdict | tuple[float, str]:
    """Judge a topic that was stopped here; return from when on that means yes, and why."""
    settled = own.settles_at(topic)
    for other in known.values():
        theirs = other.holding(topic)
        is_related = other is not own and theirs.source_id in (own.cluster_id, held.source_id)
        if not is_related or not other.is_fresh(at) or theirs.stage not in (HeldStage.STOPPING, HeldStage.STOPPED):
            continue
        if theirs.term > held.term:
            return ChargeVerdict(False, f"it was stopped later on {other.name}")
        if theirs.term == held.term:
            return ChargeVerdict(None, f"it was stopped on {other.name} as well, and neither stop is the later one")
    for cluster_id, term in held.standbys:
        if term <= held.term:
            continue
        standby = known.get(cluster_id)
        if standby is None:
            return ChargeVerdict(None, f"cluster {cluster_id} may have taken over, and is not watched")
        if (trouble := _trouble(standby, at)) is not None:
            return ChargeVerdict(None, f"{standby.name} may have taken over: {trouble}")
        theirs = standby.holding(topic)
        if theirs.stage is not HeldStage.COPIED or theirs.term <= held.term:
            return ChargeVerdict(None, f"{standby.name} may have taken over: it has no record of that any more")
        settled = max(settled, standby.settles_at(topic))
    if held.term > FIRST_TERM:
        source, is_known = known.get(held.source_id or ""), held.is_announced
        if source is not None and _trouble(source, at) is None:
            theirs = source.holding(held.source_topic)
            settled = max(settled, source.settles_at(held.source_topic))
            if theirs.stage is not HeldStage.STOPPING:  # what is on record here alone may have been planted
                is_known = theirs.stage is not HeldStage.STOPPED or (own.cluster_id, held.term) in theirs.standbys
        if not is_known:
            where = source.name if source is not None else f"cluster {held.source_id}"
            why = "may still count itself in charge: it is not known to have on record that this one may take over"
            return ChargeVerdict(None, f"{where} {why}")
    return settled, "mirroring to it was stopped here"
