"""Have the source of topics that are mirrored back record that this cluster may take over from it.

From then on the source counts as in charge of them only while it sees this cluster, which in turn may count as in
charge without seeing the source (`status.in_charge`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import Destination, as_kmirror_error, change, own_event
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.status.in_charge import FIRST_TERM, term_of


def announce_takeover(destination: Destination, mirror: MirrorRecord, topics: Collection[str]) -> str | None:
    """Record at the source, then here, that this cluster may take over these topics of a mirror.

    Needed only for topics that were mirrored the other way before. Returns why it could not be recorded.
    """
    terms = {one.source_topic: term_of(one) for one in _not_announced(destination.state(), mirror.name, topics)}
    if not terms:
        return None
    known: set[str] = set()
    try:
        with Destination.open(mirror.source, mirror.source_cluster_id) as source:
            state = source.state()
            for name in sorted(one.name for one in state.mirrors if _stopped(state, one.name, terms)):
                change(source, name, partial(_with_standby, name, destination.cluster_id, terms))
                known |= {one.topic for one in _stopped(source.state(), name, terms)}
        change(destination, mirror.name, partial(_announced, mirror.name, topics, known))
    except (KmirrorError, OutcomeUnknown) as error:
        return (
            "the source has not on record that this cluster may take over again, so after the next stop it is not"
            f" certain which of the two is in charge: {as_kmirror_error(error).message}; for `kmirror in-charge` to"
            " know, run the same command again with the right to write __kmirror_state there"
        )
    return None


def _not_announced(state: State, mirror: str, topics: Collection[str]) -> list[TopicRecord]:
    return [
        one
        for one in state.topics(mirror)
        if one.topic in topics
        and one.desired is not DesiredState.STOPPED
        and term_of(one) > FIRST_TERM
        and not one.announced
    ]


def _stopped(state: State, mirror: str, topics: Collection[str]) -> list[TopicRecord]:
    return [one for one in state.topics(mirror) if one.topic in topics and one.desired is DesiredState.STOPPED]


def _with_standby(mirror: str, cluster_id: str, terms: Mapping[str, int], state: State) -> Changes:
    """Return the records of the topics that were stopped at the source, with the cluster that may take over."""
    records = [
        replace(one, standbys={**(one.standbys or {}), cluster_id: terms[one.topic]})
        for one in _stopped(state, mirror, terms)
        if (one.standbys or {}).get(cluster_id) != terms[one.topic]
    ]
    details = {"clusterId": cluster_id, "count": len(records)}
    event = own_event(mirror, "standby", "RECORDED", details)
    return Changes(tuple(records), (), (event,)) if records else Changes()


def _announced(mirror: str, topics: Collection[str], known: Collection[str], state: State) -> Changes:
    waiting = _not_announced(state, mirror, topics)
    return Changes(tuple(replace(one, announced=True) for one in waiting if one.source_topic in known))
