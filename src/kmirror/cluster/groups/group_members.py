"""Members of consumer groups and the topics they read, as the groups' coordinators report them.

DescribeGroups is for groups of the classic protocol, ConsumerGroupDescribe (69), version 0, for those of the consumer
protocol (KIP-848), which is encoded by hand, since no Python library knows it. A classic member's assignment is bytes
that the group's leader wrote: a version, an array of topics with partitions, and data of the assignor's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kmirror.cluster import kafka_requests as kafka
from kmirror.cluster.connection import Connection
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.wire import (
    INT16,
    INT32,
    NO_TAGS,
    Buffer,
    FrameError,
    compact_string,
    decodes,
    read_compact_string,
    read_unsigned_varint,
    skip_tagged_fields,
    unsigned_varint,
)

DESCRIBE_API_KEY = 69

_VERSION = 0
_FALSE = b"\0"
_TOPIC_ID_BYTES = 16
#: The first version of DescribeGroups that answers GROUP_ID_NOT_FOUND where earlier ones report a Dead group.
_DESCRIBE_GROUPS = 6
#: The states in which all members know what they read, or there are none. While a group of the consumer protocol is
#: reconciling, its coordinator knows what each member will read.
_SETTLED = frozenset({"Stable", "Empty", "Dead", "Reconciling"})


class Member(NamedTuple):
    """One member of a group, as its coordinator reports it; brokers do not report how long it has been silent."""

    member_id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group's members and the topics they read, which are incomplete while it is not settled."""

    members: tuple[Member, ...]
    topics: frozenset[str]
    #: False while partitions are being assigned.
    is_settled: bool = True


def describe_classic(connection: Connection, groups: Sequence[str], timeout: float) -> dict[str, DescribedGroup | int]:
    """Return groups of the classic protocol by name, or their error codes.

    CORRUPT_MESSAGE is for a group whose leader has assigned what cannot be read.

    Raises:
        OutcomeUnknown: no whole answer in time.
    """
    request = kafka.DescribeGroupsRequest(groups=list(groups), include_authorized_operations=False)
    answer = connection.request(request, highest=_DESCRIBE_GROUPS, timeout=timeout)
    return {one.group_id: one.error_code or _classic(one) for one in answer.groups}


def _classic(group: Any) -> DescribedGroup | int:
    members = tuple(Member(one.member_id, one.client_id, one.client_host) for one in group.members)
    try:
        topics = frozenset[str]().union(*(decode_assignment(one.member_assignment or b"") for one in group.members))
    except FrameError:
        return int(Code.CORRUPT_MESSAGE)
    return DescribedGroup(members, topics, group.group_state in _SETTLED)


@decodes("ConsumerProtocolAssignment")
def decode_assignment(data: Buffer) -> frozenset[str]:
    """Decode the topics of a classic member's assignment; empty bytes assign nothing. Raises FrameError."""
    if not data:
        return frozenset()
    topics: set[str] = set()
    (count,) = INT32.unpack_from(data, INT16.size)
    position = INT16.size + INT32.size
    for _ in range(count):
        (length,) = INT16.unpack_from(data, position)
        position += INT16.size
        (partitions,) = INT32.unpack_from(data, position + length)
        if length < 0 or partitions < 0:
            raise FrameError("an assignment has a negative length")
        topics.add(bytes(data[position : position + length]).decode(errors="replace"))
        position += length + INT32.size + partitions * INT32.size
    return frozenset(topics)


def describe_consumer(connection: Connection, groups: Sequence[str], timeout: float) -> dict[str, DescribedGroup | int]:
    """Return groups of the consumer protocol by name, or their error codes.

    Raises:
        OutcomeUnknown: no whole answer in time.
        FrameError: an answer that cannot be read.
    """
    body = unsigned_varint(len(groups) + 1) + b"".join(map(compact_string, groups)) + _FALSE + NO_TAGS
    return decode_described(connection.ask(DESCRIBE_API_KEY, _VERSION, body, timeout))


@decodes("ConsumerGroupDescribe")
def decode_described(frame: memoryview) -> dict[str, DescribedGroup | int]:
    """Decode an answer, from its correlation id on; a member reads what it subscribes to. Raises FrameError."""
    found: dict[str, DescribedGroup | int] = {}
    position = skip_tagged_fields(frame, 4) + INT32.size  # the header's tags, and the throttle
    groups, position = read_unsigned_varint(frame, position)
    for _ in range(groups - 1):
        (code,) = INT16.unpack_from(frame, position)
        (_, group, state), position = _strings(frame, position + INT16.size, 3)  # an error message first
        _, position = read_compact_string(frame, position + 2 * INT32.size)  # epochs, and the assignor
        members: list[Member] = []
        topics: set[str] = set()
        count, position = read_unsigned_varint(frame, position)
        for _ in range(count - 1):
            (member_id, _, _), position = _strings(frame, position, 3)  # and the names of instance and rack
            (client_id, host), position = _strings(frame, position + INT32.size, 2)  # after an epoch
            members.append(Member(member_id, client_id, host))
            subscribed, position = read_unsigned_varint(frame, position)
            names, position = _strings(frame, position, subscribed - 1)
            topics.update(names)
            _, position = read_compact_string(frame, position)  # a pattern
            for _ in ("what is assigned", "what will be"):
                assigned, position = _assigned(frame, position)
                topics |= assigned
            position = skip_tagged_fields(frame, position)
        position = skip_tagged_fields(frame, position + INT32.size)  # after operations that are allowed
        found[group] = code or DescribedGroup(tuple(members), frozenset(topics), state in _SETTLED)
    return found


def _assigned(frame: memoryview, position: int) -> tuple[set[str], int]:
    """Read an assignment: topics by id and name, each with its partitions."""
    found = set()
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count - 1):
        name, position = read_compact_string(frame, position + _TOPIC_ID_BYTES)
        partitions, position = read_unsigned_varint(frame, position)
        position = skip_tagged_fields(frame, position + (partitions - 1) * INT32.size)
        found.add(name or "")
    return found, skip_tagged_fields(frame, position)


def _strings(frame: memoryview, position: int, count: int) -> tuple[list[str], int]:
    found = []
    for _ in range(count):
        text, position = read_compact_string(frame, position)
        found.append(text or "")
    return found, position
