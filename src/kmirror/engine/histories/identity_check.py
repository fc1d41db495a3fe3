"""Tell whether partitions are there to be looked at: gone, forbidden, without a leader; or all of another cluster.

What a broker says of a name does not tell what is gone from what is forbidden; what it says of an id does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import UnsupportedVersionError
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.protocol.wire import parse_topic_id
from kmirror.engine.histories.judge import Trouble
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.state.assignment import Assignment
from kmirror.words import counted

#: Reasons for which the link to a source is refused as a whole: nothing of any topic can be copied.
LINK_REFUSED = frozenset({Reason.AUTHENTICATION_FAILED, Reason.SOURCE_CLUSTER_CHANGED})
_TIMEOUT = 10.0
_GONE_OR_FORBIDDEN = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.UNKNOWN_TOPIC_OR_PARTITION})


@dataclass(frozen=True, slots=True)
class Side:
    """Say how one side of assignments is called, and which reasons are its."""

    name: str
    topic: Callable[[Assignment], str]
    topic_id: Callable[[Assignment], str | None]
    partition: Callable[[Assignment], TopicPartition]
    gone: Reason
    unreachable: Reason


AT_SOURCE = Side(
    "source",
    lambda a: a.source_topic,
    lambda a: a.source_topic_id,
    lambda a: a.source,
    Reason.SOURCE_TOPIC_DELETED,
    Reason.SOURCE_UNREACHABLE,
)
AT_DESTINATION = Side(
    "mirror",
    lambda a: a.topic,
    lambda a: a.destination_topic_id,
    lambda a: a.destination,
    Reason.DESTINATION_TOPIC_DELETED,
    Reason.DESTINATION_UNREACHABLE,
)


def require_cluster(known: str | None, found: str | None) -> None:
    """Refuse a source that is another cluster than the mirror was made from.

    Raises:
        UnreachableError: reason SOURCE_CLUSTER_CHANGED, naming both ids.
    """
    if known and found != known:
        raise UnreachableError(
            f"another cluster answers at its address: the id is {found}, and this mirror was made from {known}",
            "nothing is copied from it",
            Reason.SOURCE_CLUSTER_CHANGED,
        )


def troubles(
    side: Side, client: ClusterClient, found: ClusterMetadata, assignments: Collection[Assignment]
) -> dict[Assignment, Trouble]:
    """Return why there is nothing to look up of partitions, for those of which there is not."""
    codes = {a: found.topics[name].error_code for a in assignments if (name := side.topic(a)) in found.topics}
    doubtful = {side.topic_id(a) for a, code in codes.items() if code in _GONE_OR_FORBIDDEN}
    ids = [parse_topic_id(topic_id) for topic_id in doubtful if topic_id is not None]
    try:
        by_id = client.topic_errors(ids, timeout=_TIMEOUT)
    except UnsupportedVersionError:  # brokers before Kafka 3.1: only what they say of the name is known
        by_id = {}
    except (KmirrorError, OutcomeUnknown):
        by_id = dict.fromkeys(ids, int(Code.UNKNOWN_SERVER_ERROR))
    told = {}
    for assignment in assignments:
        code = codes.get(assignment, Code.UNKNOWN_SERVER_ERROR)
        if code:
            topic_id = side.topic_id(assignment)
            told[assignment] = topic_trouble(
                side, assignment, code, by_id.get(parse_topic_id(topic_id)) if topic_id else None
            )
        elif missing := _missing_partition(side, assignment, found):
            told[assignment] = missing
    return told


def topic_trouble(side: Side, assignment: Assignment, by_name: int, by_id: int | None) -> Trouble:
    """Tell what is gone from what is forbidden, by what was said of the topic's name, and of its id where it is known.

    Where the two contradict each other, or the second look failed, nothing is sure: the safe thing is to look again.
    """
    name, topic_id = side.topic(assignment), side.topic_id(assignment)
    topic = f"{side.name} topic {name}"
    if by_name not in _GONE_OR_FORBIDDEN:
        return Trouble(side.unreachable, f"{topic}: {_named(by_name)}")
    if by_id == Code.UNKNOWN_TOPIC_ID and topic_id is not None:
        return Trouble(side.gone, f"{topic} ({topic_id}) does not exist any more", True)
    if by_id is None and by_name == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return Trouble(side.gone, f"{topic} does not exist", True)
    if by_name == Code.TOPIC_AUTHORIZATION_FAILED and by_id in (None, Code.TOPIC_AUTHORIZATION_FAILED):
        is_there = "" if by_id else ", if there is one"
        return Trouble(Reason.NOT_AUTHORIZED, f"no right to DESCRIBE {topic}{is_there}", True)
    return Trouble(
        side.unreachable, f"{topic}: by its name {_named(by_name)}, by its id {_named(by_id or 0)}; retrying"
    )


def _missing_partition(side: Side, assignment: Assignment, found: ClusterMetadata) -> Trouble | None:
    """Return what is wrong with a partition of a topic that is there: it is not, or has no leader."""
    name, topic = side.topic(assignment), found.topics[side.topic(assignment)]
    if assignment.partition not in topic.partitions:
        if side is AT_SOURCE and assignment.source_topic_id not in (None, topic.printed_topic_id):
            fewer = (
                f"source topic {name} was deleted and created again, with {counted(len(topic.partitions), 'partition')}"
            )
            return Trouble(Reason.PARTITIONS_DECREASED, fewer, True)
        return Trouble(side.gone, f"{side.name} topic {name} has no partition {assignment.partition}", True)
    if found.leader(side.partition(assignment)) is None:
        return Trouble(side.unreachable, f"{side.name} partition {side.partition(assignment)} has no leader now")
    return None


def _named(code: int) -> str:
    return f"{code_name(code)} ({code})" if code else "is there"
