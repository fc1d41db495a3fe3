"""Check whether partitions exist and can be read: not gone, forbidden, without a leader, or of another cluster.

A broker's error code for a topic name does not distinguish gone from forbidden; that for a topic id does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.connection import UnsupportedVersionError
from kmirror.cluster.protocol.codes import UNAUTHORIZED, Code, code_name
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicPartition
from kmirror.cluster.protocol.wire import parse_topic_id
from kmirror.cluster.topics.topic_requests import topic_errors
from kmirror.engine.histories.judge import Trouble
from kmirror.errors import LINK_REFUSED, BrokerError, KmirrorError, OutcomeUnknown, Reason
from kmirror.state.assignment import Assignment
from kmirror.words import counted

_TIMEOUT = 10.0
_GONE_OR_FORBIDDEN = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code.UNKNOWN_TOPIC_OR_PARTITION})


@dataclass(frozen=True, slots=True)
class TopicSide:
    """The source or destination side of assignments, and its reason codes."""

    name: str
    topic: Callable[[Assignment], str]
    topic_id: Callable[[Assignment], str | None]
    partition: Callable[[Assignment], TopicPartition]
    gone: Reason
    unreachable: Reason


AT_SOURCE = TopicSide(
    "source",
    lambda a: a.source_topic,
    lambda a: a.source_topic_id,
    lambda a: a.source,
    Reason.SOURCE_TOPIC_DELETED,
    Reason.SOURCE_UNREACHABLE,
)
AT_DESTINATION = TopicSide(
    "mirror",
    lambda a: a.topic,
    lambda a: a.destination_topic_id,
    lambda a: a.destination,
    Reason.DESTINATION_TOPIC_DELETED,
    Reason.DESTINATION_UNREACHABLE,
)


def destination_trouble(error: KmirrorError | OutcomeUnknown, what: str) -> Trouble:
    """Return the trouble for an error of the destination.

    A login that it refuses is not told as such, because the state of a link is about the source's.
    """
    is_forbidden = isinstance(error, BrokerError) and error.code in UNAUTHORIZED
    reason = Reason.NOT_AUTHORIZED if is_forbidden else error.reason
    if reason is None or reason in LINK_REFUSED:
        reason = Reason.DESTINATION_UNREACHABLE
    return Trouble(reason, f"{what}: {error}", is_forbidden)


def troubles(
    side: TopicSide, client: ClusterClient, found: ClusterMetadata, assignments: Collection[Assignment]
) -> dict[Assignment, Trouble]:
    """Return the troubles of the partitions that are missing, forbidden or without a leader."""
    codes = {a: found.topics[name].error_code for a in assignments if (name := side.topic(a)) in found.topics}
    doubtful = {side.topic_id(a) for a, code in codes.items() if code in _GONE_OR_FORBIDDEN}
    ids = [parse_topic_id(topic_id) for topic_id in doubtful if topic_id is not None]
    try:
        by_id = topic_errors(client, ids, timeout=_TIMEOUT)
    except UnsupportedVersionError:  # brokers before Kafka 3.1 have codes for names only
        by_id = {}
    except (KmirrorError, OutcomeUnknown):
        by_id = dict.fromkeys(ids, int(Code.UNKNOWN_SERVER_ERROR))
    found_troubles = {}
    for assignment in assignments:
        code = codes.get(assignment, Code.UNKNOWN_SERVER_ERROR)
        if code:
            topic_id = side.topic_id(assignment)
            found_troubles[assignment] = topic_trouble(
                side, assignment, code, by_id.get(parse_topic_id(topic_id)) if topic_id else None
            )
        elif missing := _missing_partition(side, assignment, found):
            found_troubles[assignment] = missing
    return found_troubles


def topic_trouble(side: TopicSide, assignment: Assignment, by_name: int, by_id: int | None) -> Trouble:
    """Distinguish gone from forbidden, by the error codes for the topic's name and, if known, for its id.

    If the two contradict each other, or the second request failed, nothing is certain: check again. A mirror topic that
    no broker knows is gone for good, while a source topic may be about to be created again.
    """
    name, topic_id = side.topic(assignment), side.topic_id(assignment)
    topic = f"{side.name} topic {name}"
    if by_name not in _GONE_OR_FORBIDDEN:
        return Trouble(side.unreachable, f"{topic}: {_named(by_name)}")
    if by_id == Code.UNKNOWN_TOPIC_ID and topic_id is not None:
        return Trouble(side.gone, f"{topic} ({topic_id}) no longer exists", True, side is AT_DESTINATION)
    if by_id is None and by_name == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return Trouble(side.gone, f"{topic} does not exist", True, side is AT_DESTINATION)
    if by_name == Code.TOPIC_AUTHORIZATION_FAILED and by_id in (None, Code.TOPIC_AUTHORIZATION_FAILED):
        is_there = "" if by_id else ", if there is one"
        return Trouble(Reason.NOT_AUTHORIZED, f"no right to DESCRIBE {topic}{is_there}", True)
    return Trouble(side.unreachable, f"{topic}: by name {_named(by_name)}, by id {_named(by_id or 0)}; retrying")


def _missing_partition(side: TopicSide, assignment: Assignment, found: ClusterMetadata) -> Trouble | None:
    """Return the trouble of a partition that its topic does not have, or that has no leader."""
    name, topic = side.topic(assignment), found.topics[side.topic(assignment)]
    if assignment.partition not in topic.partitions:
        known, shown = side.topic_id(assignment), topic.printed_topic_id
        if known is not None and shown is None:
            what = f"{side.name} topic {name}: no partition {assignment.partition}, but no topic id either; retrying"
            return Trouble(side.unreachable, what)
        if side is AT_SOURCE and known not in (None, shown):
            number = counted(len(topic.partitions), "partition")
            fewer = f"source topic reset detected: source topic {name} was deleted and created again, with {number}"
            return Trouble(Reason.PARTITIONS_DECREASED, fewer, True)
        return Trouble(side.gone, f"{side.name} topic {name} has no partition {assignment.partition}", True)
    if found.leader(side.partition(assignment)) is None:
        return Trouble(side.unreachable, f"{side.name} partition {side.partition(assignment)} has no leader")
    return None


def _named(code: int) -> str:
    return f"{code_name(code)} ({code})" if code else "it exists"
