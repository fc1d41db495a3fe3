"""Which topics a failback is about: those that the new primary has stopped, or those that are named.

Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.errors import Reason, RefusedError
from kmirror.ops.add.add_plan import owner_of
from kmirror.ops.base.context import Destination, naming_cluster, now_ms
from kmirror.ops.base.gone import gone_topics
from kmirror.ops.base.selection import select_topics
from kmirror.ops.failback.facts import NewPrimary
from kmirror.ops.stop.work import is_stopped
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.in_charge import HeldStage, holdings_in
from kmirror.sync.discovery import is_internal
from kmirror.words import listed

_NAMED = 5


def chosen_topics(
    destination: Destination, primary: NewPrimary, mirror: str, topics: TopicSelector | None
) -> tuple[list[str], list[str]]:
    """Return the names of the topics to fail back, and warnings that name those that are omitted.

    Raises RefusedError: one of them does not exist there, is not stopped there, or belongs to another mirror here.
    """
    warnings: list[str] = []
    if primary.topics is not None:
        chosen = select_topics(primary.topics, topics, f"of mirror {mirror} on the new primary")
        chosen, removed = topics_to_return(chosen, topics, destination.state())
        with naming_cluster("the new primary", Reason.SOURCE_UNREACHABLE):
            chosen, deleted = existing_topics(primary.client, chosen, topics)
        warnings = [*removed, *deleted]
        going = [topic.topic for topic in chosen if not is_stopped(topic)]
        if going:
            raise RefusedError(
                f"{_some(going)}: not stopped on the new primary, which still mirrors it from here",
                "stop it there first, with `kmirror promote` or `kmirror failover`; or exclude it with --topics",
            )
        names = [topic.topic for topic in chosen]
    else:
        names = _named(destination, primary, topics, mirror)
    require_not_owned(destination.state(), names, mirror, "here")
    require_not_owned(primary.state, names, mirror, "on the new primary")
    return names, [*warnings, *_in_charge_here(destination.state(), primary.state, names)]


def _in_charge_here(old_source: State, new_primary: State, names: Sequence[str]) -> list[str]:
    """Warn of topics that were stopped here later than on the new primary: the clusters may have been confused."""
    here, there = holdings_in(old_source), holdings_in(new_primary)
    stopped = {name: here[name].term for name in names if name in here and here[name].stage is HeldStage.STOPPED}
    later = [name for name, term in stopped.items() if name in there and term > there[name].term]
    what = (
        "stopped here after the cluster that is to be copied from, so this cluster is in charge, and loses what it has"
    )
    ask = "taken since: is --bootstrap-server the old source, and --mirror-config the new primary?"
    return [f"{_some(later)}: {what} {ask}"] if later else []


def topics_to_return(
    chosen: Sequence[TopicRecord], topics: TopicSelector | None, old_source: State
) -> tuple[list[TopicRecord], list[str]]:
    """Return which of the topics that `topics` selects are failed back, and warnings that name those that are omitted.

    A topic that was removed from the mirror, on either cluster, is on its own: only its plain name selects it.
    Raises RefusedError: none is left.
    """
    named = () if topics is None else topics.names
    removed = [one.topic for one in chosen if one.topic not in named and _is_removed(one, old_source)]
    warnings = []
    if removed:
        what = "`kmirror remove` has made it" if len(removed) == 1 else "`kmirror remove` has made them"
        warnings.append(
            f"{_some(removed)}: omitted, because {what} independent on both clusters; to fail it back as well, "
            "give its name with --topics, not a pattern"
        )
    return _left(chosen, removed, warnings), warnings


def existing_topics(
    new_primary: ClusterClient, chosen: Sequence[TopicRecord], topics: TopicSelector | None
) -> tuple[list[TopicRecord], list[str]]:
    """Return which of the topics that `topics` selects the new primary has; warnings name those that were deleted.

    Raises RefusedError: one that is named was deleted, or none is left.
    """
    named = () if topics is None else topics.names
    found = new_primary.metadata([one.topic for one in chosen]).topics
    gone = gone_topics(new_primary, chosen, found)
    deleted = [
        one.topic
        for one in chosen
        if found[one.topic].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
        and (one.destination_topic_id is None or one.topic in gone)
    ]
    if missing := [name for name in deleted if name in named]:
        raise RefusedError(f"{_some(missing)}: the new primary has no such topic", "leave it out with --topics")
    warnings = [f"{_some(deleted)}: omitted, because deleted on the new primary"] if deleted else []
    return _left(chosen, deleted, warnings), warnings


def _left(chosen: Sequence[TopicRecord], omitted: Collection[str], warnings: Sequence[str]) -> list[TopicRecord]:
    left = [one for one in chosen if one.topic not in omitted]
    if chosen and not left:
        raise RefusedError(f"nothing is left to fail back: {warnings[0]}")
    return left


def _is_removed(topic: TopicRecord, old_source: State) -> bool:
    """Return whether a topic was removed, either here or later from the mirror in the other direction."""
    other = old_source.topic(topic.mirror, topic.topic)
    stops_ms = [one.state_time_ms for one in old_source.partitions(topic.mirror, topic.topic)]
    return topic.stop_reason is Reason.REMOVED or (
        other is not None
        and other.stop_reason is Reason.REMOVED
        and max(stops_ms, default=now_ms()) >= (topic.added_at_ms or 0)
    )


def require_not_owned(state: State, topics: Sequence[str], mirror: str, where: str) -> None:
    """Refuse topics that belong to another mirror. Raises RefusedError."""
    for name in topics:
        owner = owner_of(state, name, mirror)
        if owner is not None:
            raise RefusedError(
                f"{name} is a mirror topic of mirror {owner} {where}",
                "stop it there first; or exclude it with --topics",
            )


def _named(destination: Destination, primary: NewPrimary, topics: TopicSelector | None, mirror: str) -> list[str]:
    if topics is None:
        has = [one.name for one in primary.state.mirrors]
        give = f"give the mirror's name there as --mirror, one of {_some(has)}; or " if has else ""
        raise RefusedError(
            f"the new primary has no mirror {mirror}, so the mirrored topics are unknown",
            f"{give}name them with --topics: the fork is then found by comparing contents",
        )
    with naming_cluster("the new primary", Reason.SOURCE_UNREACHABLE):
        there = primary.client.metadata(None).topics
    here = destination.client.metadata(None).topics
    both = [name for name, found in there.items() if not is_internal(found)]
    if missing := topics.missing_names(both):
        raise RefusedError(f"{_some(missing)}: the new primary has no such topic", "check the names")
    names = [name for name in topics.select(both) if name in topics.names or name in here]
    if missing := topics.unmatched(names):
        raise RefusedError(f"no topic that exists on both clusters matches {_some(missing)}", "check the patterns")
    return names


def _some(names: Sequence[str]) -> str:
    return listed(names, _NAMED)
