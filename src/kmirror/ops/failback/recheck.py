"""What must still hold right before a topic is deleted: the plan may be hours old by then.

What a failback deletes, it has either archived or seen at the new primary. So nothing may have been written here since,
and the new primary must still have what it had.
"""

from __future__ import annotations

from dataclasses import replace

from kmirror.cluster.client import LATEST, require
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.cluster.topics.leaders import newest_leaders
from kmirror.errors import Reason, RefusedError, UnreachableError
from kmirror.ops.add.archive_admin import is_kept, is_kept_for_now
from kmirror.ops.base.bulk import Bulk
from kmirror.ops.base.context import Destination, naming_cluster, source_client
from kmirror.ops.base.gone import described_topic
from kmirror.ops.failback.facts import TopicComparison, bounds_of, forks_of
from kmirror.ops.failback.progress import TopicStep, TopicWork
from kmirror.state.records import MirrorRecord
from kmirror.work import Watch

_AGAIN = "run the same command again: it compares the two logs again"


def require_untouched(destination: Destination, work: TopicWork) -> None:
    """Refuse to continue with a topic that another client changed since the plan was made.

    Raises:
        RefusedError: one did.
        KmirrorError: that is unknown.
    """
    client, topic = destination.client, work.topic
    found = described_topic(client, topic)
    if found is None or found.printed_topic_id != work.topic_id or found.partitions.keys() != work.ends.keys():
        raise RefusedError(f"{topic} was deleted, was recreated or has other partitions since it was compared", _AGAIN)
    wanted = {TopicPartition(topic, p): LATEST for p in work.ends}
    ends = client.list_offsets(wanted, log_end=True, metadata=newest_leaders(client, wanted, "here"))
    for partition, answer in ends.items():
        if answer.offset is None:
            raise UnreachableError(
                f"cannot look up the log end of {partition} here: {code_name(answer.error_code)}",
                "run the same command again once it has a leader",
            )
        if answer.offset != (end := work.ends[partition.partition]):
            raise RefusedError(
                f"another client wrote to {partition}: it ended at {end}, and ends at {answer.offset} now",
                "stop the producers and run the same command again",
            )
    if not is_archived(destination, work):
        raise RefusedError(
            f"{topic} is kept: its archive {work.archive} was deleted since it was proved, has lost or got records, or"
            " soon deletes them",
            "run the same command again: it archives them again",
        )


def is_archived(destination: Destination, work: TopicWork) -> bool:
    """Return whether a topic's archive is as it was verified, and is kept; True without one. Raises as `kept_ms`."""
    return work.archive is None or is_kept(destination.client, work.archive, work.to_archive, work.proved)


def is_usable(destination: Destination, work: TopicWork) -> bool:
    """Return whether the recorded archive of a topic will do, complete or not. Raises as `kept_ms`."""
    if work.step is not TopicStep.ARCHIVE:
        return is_archived(destination, work)
    client, archive = destination.client, work.archive
    return (
        archive is None or described_topic(client, archive) is None or is_kept_for_now(client, archive, work.to_archive)
    )


def require_copied(
    destination: Destination, mirror: MirrorRecord, found: TopicComparison, bulk: Bulk, watch: Watch
) -> None:
    """Refuse to delete a topic unless the new primary still has what both logs had in common.

    Raises:
        RefusedError: its topic is gone or another one, or its log was cut or written again below the fork.
        UnreachableError, BrokerError: it does not answer, or does not say whether it has the topic.
    """
    topic = found.topic
    then = {d.topic_partition: d for d in found.divergences if d.topic_partition.partition in found.there.partitions}
    with (
        source_client(mirror.source, mirror.source_cluster_id) as client,
        naming_cluster("the new primary", Reason.SOURCE_UNREACHABLE),
    ):
        there = client.metadata([topic]).topics[topic]
        if there.error_code != Code.UNKNOWN_TOPIC_OR_PARTITION:
            require(there.error_code, f"looking up {topic} at the new primary")
        if there.error_code or there.printed_topic_id != found.there.printed_topic_id:
            raise RefusedError(f"{topic} was deleted or recreated at the new primary since it was compared", _AGAIN)
        starts, ends = bounds_of(client, list(then), "at the new primary")
    logs = [replace(one.logs, there_start=starts[p], there_end=ends[p]) for p, one in then.items()]
    forks = forks_of(destination, ClusterAccess(mirror.source, mirror.source_cluster_id), logs, bulk, watch)
    for partition, one in then.items():
        fork, shared = forks[partition], min(one.shared_end, one.logs.there_end)
        left = min(ends[partition], fork.offset) if fork.contradicts else ends[partition]
        if left < shared:
            raise RefusedError(
                f"the new primary has lost records of {partition} since it was compared: both logs were the same up to"
                f" offset {shared}, and now are up to {left}",
                _AGAIN,
            )
