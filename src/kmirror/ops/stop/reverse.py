"""Where the live mirror is after a failback or a switchover: both clusters then have one of the same name.

A stop that finds nothing left to stop may have been meant for the other cluster.
"""

from __future__ import annotations

from collections.abc import Collection

from kmirror.commands import on_mirror, option
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import Destination
from kmirror.ops.base.upstream import stored_state_on
from kmirror.state.records import DesiredState, MirrorRecord
from kmirror.words import counted

_TIMEOUT_MS = 3_000


def live_elsewhere(destination: Destination, mirror: MirrorRecord, topics: Collection[str], verb: str) -> list[str]:
    """Return a warning for each mirror on the source that copies stopped `topics` from here; none if it is unknown."""
    try:
        state = stored_state_on(mirror.source, _TIMEOUT_MS)
    except (KmirrorError, OutcomeUnknown):
        return []
    servers = mirror.source.get("bootstrap.servers", "")
    warnings = []
    for other in state.mirrors:
        if other.source_cluster_id != destination.cluster_id:
            continue
        live = [
            topic
            for topic in state.topics(other.name)
            if topic.source_topic in topics and topic.desired is not DesiredState.STOPPED
        ]
        if live:
            warnings.append(
                f"mirror {mirror.name} is stopped on this cluster, {destination.cluster_id}; the live one is mirror"
                f" {other.name} on cluster {mirror.source_cluster_id}, which copies {counted(len(live), 'topic')} from"
                f" here: `{on_mirror(verb, other.name, *option('--bootstrap-server', servers))}`"
            )
    return warnings
