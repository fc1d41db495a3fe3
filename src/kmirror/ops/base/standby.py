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
from kmirror.ops.base.upstream import stored_state_on
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import Changes, State, unreadable_error
from kmirror.status.in_charge import FIRST_TERM, HeldTopic, holdings_in, term_of
from kmirror.words import listed


def announce_takeover(destination: Destination, mirror: MirrorRecord, topics: Collection[str]) -> str | None:
    """Record at the source, then here, that this cluster may take over these topics of a mirror.

    Needed only for topics that the source may have stopped mirroring before. Returns why it could not be recorded.
    """
    if not _unannounced(destination.state(), mirror.name, topics):
        return None
    try:
        with Destination.open(mirror.source, mirror.source_cluster_id) as source:
            state = stored_state_on(mirror.source, connected=source.client)
            for record in state.unreadable():
                raise unreadable_error(record)
            held = holdings_in(state)
            change(destination, mirror.name, partial(_raised, mirror.name, topics, held))
            waiting = _unannounced(destination.state(), mirror.name, topics)
            terms = {one.source_topic: term_of(one) for one in waiting}
            known = terms.keys() - held.keys()
            for name in sorted(one.name for one in state.mirrors if _stopped(state, one.name, terms)):
                change(source, name, partial(_with_standby, name, destination.cluster_id, terms))
                known |= {one.topic for one in _stopped(source.state(), name, terms)}
        change(destination, mirror.name, partial(_announced, mirror.name, topics, known))
    except (KmirrorError, OutcomeUnknown) as error:
        return _uncertain(as_kmirror_error(error).message)
    return None


def uncertain_once_stopped(state: State, mirror: str, topics: Collection[str]) -> list[str]:
    """Return a warning if it will not be certain which cluster is in charge of these topics of a mirror."""
    names = [one.topic for one in _unannounced(state, mirror, topics)]
    return [_uncertain(listed(names))] if names else []


def _uncertain(what: str) -> str:
    return (
        "the source may not have on record that this cluster may take over, so after the next stop it is not certain"
        f" which of the two is in charge: {what}; for `kmirror in-charge` to know, run `kmirror add` with the same"
        f" topics before that, with the rights to read and write {STATE_TOPIC} there"
    )


def _unannounced(state: State, mirror: str, topics: Collection[str]) -> list[TopicRecord]:
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


def _raised(mirror: str, topics: Collection[str], held: Mapping[str, HeldTopic], state: State) -> Changes:
    """Return the records of topics whose terms are not higher than their sources', with a higher one."""
    waiting = [(one, held[one.source_topic]) for one in _unannounced(state, mirror, topics) if one.source_topic in held]
    return Changes(tuple(replace(one, term=held.term + 1) for one, held in waiting if term_of(one) <= held.term))


def _announced(mirror: str, topics: Collection[str], known: Collection[str], state: State) -> Changes:
    waiting = _unannounced(state, mirror, topics)
    return Changes(tuple(replace(one, announced=True) for one in waiting if one.source_topic in known))
