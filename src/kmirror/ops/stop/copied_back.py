"""What mirrors of the source copy from this cluster: after a failback, the live mirror is there."""

from __future__ import annotations

from collections.abc import Collection

from kmirror.commands import on_mirror, option
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import Destination
from kmirror.ops.base.upstream import stored_state_on
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.words import counted

#: Time that the source may take to show what is stored there.
_ELSEWHERE_MS = 3_000


def copied_back(
    destination: Destination, mirror: MirrorRecord, topics: Collection[str], timeout_ms: int
) -> dict[str, list[TopicRecord]]:
    """Return what mirrors of the source have stored of copies of these topics from here, also of stopped ones.

    Raises KmirrorError, OutcomeUnknown: that is unknown.
    """
    state = stored_state_on(mirror.source, timeout_ms) if topics else State.of([])
    return {
        other.name: [topic for topic in state.topics(other.name) if topic.source_topic in topics]
        for other in state.mirrors
        if other.source_cluster_id == destination.cluster_id
    }


def live_elsewhere(destination: Destination, mirror: MirrorRecord, topics: Collection[str], verb: str) -> list[str]:
    """Return a warning for each mirror on the source that copies stopped `topics` from here; none if it is unknown.

    After a failback or a switchover both clusters have a mirror of the same name: a stop that finds nothing left to
    stop may have been meant for the other cluster.
    """
    try:
        copies = copied_back(destination, mirror, topics, _ELSEWHERE_MS)
    except (KmirrorError, OutcomeUnknown):
        return []
    servers = mirror.source.get("bootstrap.servers", "")
    live = {name: [one for one in some if one.desired is not DesiredState.STOPPED] for name, some in copies.items()}
    return [
        f"mirror {mirror.name} is stopped on this cluster, {destination.cluster_id}; the live one is mirror"
        f" {name} on cluster {mirror.source_cluster_id}, which copies {counted(len(some), 'topic')} from"
        f" here: `{on_mirror(verb, name, *option('--bootstrap-server', servers))}`"
        for name, some in live.items()
        if some
    ]
