"""Which cluster is in charge, by what was read of the clusters that are watched; for any thread.

An answer asks no cluster: what watches the clusters calls `take` after each of their answers, and what has not been
renewed no longer counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from operator import is_

from kmirror.columns import FLAG, TEXT, TIME, Table, columns_of, shown, table_row
from kmirror.engine.clock import epoch_ms, now
from kmirror.state.snapshot import State
from kmirror.status.in_charge import ChargeVerdict, SeenCluster, ends_of, who_is_in_charge


@table_row
class EndInCharge:
    """One end of a mirror, and whether it is in charge."""

    mirror: str = shown(TEXT, "the mirror", "MIRROR")
    topic: str | None = shown(TEXT.null_when("all its topics are meant"), "the topic", "TOPIC", default=None)
    cluster: str = shown(TEXT, "the cluster, as it is named where it is watched", "CLUSTER")
    cluster_id: str | None = shown(TEXT.null_when("it has not answered yet"), "its id", "CLUSTER-ID")
    bootstrap_servers: str = shown(TEXT, "its bootstrap servers", "BOOTSTRAP-SERVERS")
    in_charge: bool | None = shown(
        FLAG.null_when("that is not certain"),
        "whether it is the cluster that takes the writes",
        "IN-CHARGE",
        cell=lambda found: {True: "yes", False: "no", None: None}[found],
    )
    reason: str = shown(TEXT, "why, in words", "REASON")
    as_of: int | None = shown(TIME.null_when("it has not answered yet"), "when its state was last asked for")
    #: True if it is not certain, and the last certain answer is given again.
    is_last: bool = False


IN_CHARGE: Table[EndInCharge] = Table(
    columns_of(EndInCharge),
    "MIRROR TOPIC CLUSTER CLUSTER-ID BOOTSTRAP-SERVERS IN-CHARGE REASON",
    none="no mirrors",
    optional="TOPIC",
)

#: A mirror, and one of its topics or all.
_Question = tuple[str, str | None]
#: What is known of the clusters; other facts are another object.
_Facts = list[object]
#: How long a question is remembered that no one asks, in seconds. There are as many as mirrors and their topics.
_FORGET_S = 600.0


@dataclass(slots=True)
class _Asked:
    """A question about a mirror that is watched: when it was last asked, and what was found."""

    at: float
    #: The id of the cluster that was last certain to be in charge.
    last: str | None = None
    #: By cluster, the last verdict, and what it was reached from.
    verdicts: dict[str, tuple[_Facts, ChargeVerdict]] = field(default_factory=dict)


class ChargeKeeper:
    """Keep what is known of some clusters, by their names, and answer by it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._clusters = {name: SeenCluster(name) for name in names}
        self._asked: dict[_Question, _Asked] = {}
        self._facts: _Facts = []

    def take(self, name: str, cluster_id: str, bootstrap_servers: str, state: State, asked_at: float) -> None:
        """Take a cluster's whole state; `asked_at` is when its first request was sent (`engine.clock.now`).

        The state must have everything that was committed by then.
        """
        with self._lock:
            at = now()
            self._clusters[name] = self._clusters[name].after(cluster_id, bootstrap_servers, state, asked_at, at)
            for question in [one for one, asked in self._asked.items() if at - asked.at > _FORGET_S]:
                del self._asked[question]
            facts = self._facts_at(at)
            for question, asked in self._asked.items():
                self._remember(question, asked, at, facts)

    def doubt(self, name: str, why: str) -> None:
        """Take it that a cluster has answered, but not certainly with everything that was committed by then."""
        with self._lock:
            if self._clusters[name].doubt != why:
                self._clusters[name] = replace(self._clusters[name], doubt=why)

    def answer(self, mirror: str, name: str, topic: str | None = None, *, or_last: bool = False) -> EndInCharge:
        """Return whether a cluster is in charge; with `or_last`, where that is not certain, what was last certain."""
        question, last = (mirror, topic), None
        with self._lock:
            clusters, is_known = list(self._clusters.values()), question in self._asked
        if is_known or ends_of(clusters, mirror, topic):
            with self._lock:
                at = now()
                asked, facts = self._asked.setdefault(question, _Asked(at)), self._facts_at(at)
                asked.at = at
                found = self._verdict(question, asked, name, at, facts)
                self._remember(question, asked, at, facts)
                last = asked.last
        else:
            found = who_is_in_charge(clusters, mirror, name, now(), topic)
        cluster = self._clusters.get(name, SeenCluster(name))
        is_last = or_last and found.in_charge is None and last is not None
        return EndInCharge(
            mirror=mirror,
            topic=topic,
            cluster=name,
            cluster_id=cluster.cluster_id,
            bootstrap_servers=cluster.bootstrap_servers,
            in_charge=last == cluster.cluster_id if is_last else found.in_charge,
            reason=f"as last known, because now {found.why}" if is_last else found.why,
            as_of=None if cluster.asked_at is None else epoch_ms(cluster.asked_at),
            is_last=is_last,
        )

    def answers(self) -> list[EndInCharge]:
        """Return the answer for each end of each mirror that is watched."""
        with self._lock:
            clusters = list(self._clusters.values())
            mirrors = sorted({one.name for cluster in clusters if cluster.state for one in cluster.state.mirrors})
            ends = [(mirror, name) for mirror in mirrors for name in ends_of(clusters, mirror)]
        return [self.answer(mirror, name) for mirror, name in ends]

    @property
    def names(self) -> list[str]:
        """The names of the clusters."""
        return list(self._clusters)

    def _facts_at(self, at: float) -> _Facts:
        clusters = self._clusters.values()
        facts: _Facts = [x for one in clusters for x in (one.holdings, one.since, one.is_fresh(at), one.doubt)]
        if len(facts) != len(self._facts) or not all(map(is_, facts, self._facts)):
            self._facts = facts
        return self._facts

    def _remember(self, question: _Question, asked: _Asked, at: float, facts: _Facts) -> None:
        for name, cluster in self._clusters.items():
            verdict = self._verdict(question, asked, name, at, facts).in_charge
            if verdict:
                asked.last = cluster.cluster_id
            elif verdict is False and asked.last == cluster.cluster_id:
                asked.last = None

    def _verdict(self, question: _Question, asked: _Asked, name: str, at: float, facts: _Facts) -> ChargeVerdict:
        before, found = asked.verdicts.get(name, (None, ChargeVerdict(None, "")))
        if before is not facts or (found.until is not None and at >= found.until):
            mirror, topic = question
            found = who_is_in_charge(list(self._clusters.values()), mirror, name, at, topic)
            asked.verdicts[name] = facts, found
        return found
