"""Which cluster is in charge, by what was read of the clusters that are watched; for any thread.

An answer asks no cluster: what watches the clusters calls `take` after each of their answers, and what has not been
renewed no longer counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
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


class ChargeKeeper:
    """Keep what is known of some clusters, by their names, and answer by it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self._clusters = {name: SeenCluster(name) for name in names}
        #: By question and cluster, the last verdict, and what it was reached from.
        self._verdicts: dict[tuple[_Question, str], tuple[list[object], ChargeVerdict]] = {}
        #: By question that was asked before, the cluster that was last certain to be in charge.
        self._last: dict[_Question, str | None] = {}

    def take(self, name: str, cluster_id: str, bootstrap_servers: str, state: State, asked_at: float) -> None:
        """Take a cluster's whole state; `asked_at` is when its first request was sent (`engine.clock.now`).

        The state must have everything that was committed by then.
        """
        with self._lock:
            self._clusters[name] = self._clusters[name].after(cluster_id, bootstrap_servers, state, asked_at, now())
            for question in self._last:
                self._remember(question, now())

    def answer(self, mirror: str, name: str, topic: str | None = None, *, or_last: bool = False) -> EndInCharge:
        """Return whether a cluster is in charge; with `or_last`, where that is not certain, what was last certain."""
        at, question = now(), (mirror, topic)
        with self._lock:
            found = self._verdict(question, name, at)
            if ends_of(list(self._clusters.values()), mirror):
                self._remember(question, at)
            cluster = self._clusters.get(name, SeenCluster(name))
            is_last = or_last and found.in_charge is None
            was = self._last.get(question) == name
        return EndInCharge(
            mirror=mirror,
            topic=topic,
            cluster=name,
            cluster_id=cluster.cluster_id,
            bootstrap_servers=cluster.bootstrap_servers,
            in_charge=was if is_last else found.in_charge,
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

    def _remember(self, question: _Question, at: float) -> None:
        last = self._last.get(question)
        for name in self._clusters:
            verdict = self._verdict(question, name, at).in_charge
            if verdict:
                last = name
            elif verdict is False and last == name:
                last = None
        self._last[question] = last

    def _verdict(self, question: _Question, name: str, at: float) -> ChargeVerdict:
        clusters = list(self._clusters.values())
        facts: list[object] = [fact for one in clusters for fact in (one.holdings, one.since, one.is_fresh(at))]
        before, found = self._verdicts.get((question, name), ([], ChargeVerdict(None, "")))
        is_same = len(before) == len(facts) and all(map(is_, before, facts))
        if not is_same or (found.until is not None and at >= found.until):
            mirror, topic = question
            found = who_is_in_charge(clusters, mirror, name, at, topic)
            self._verdicts[question, name] = facts, found
        return found
