"""StreamsGroupDescribe (89), version 0: the topics that an application with group.protocol=streams reads (KIP-1071).

A group answers with its topology: for each subtopology its source topics, the repartition topics that it writes and
reads, and the changelogs of its stores. Encoded by hand, since no Python library knows this request.
"""

from __future__ import annotations

from kmirror.cluster.connection import Connection
from kmirror.cluster.groups.group_members import DescribedGroup
from kmirror.cluster.protocol.wire import (
    INT16,
    INT32,
    NO_TAGS,
    compact_string,
    decodes,
    read_compact_string,
    read_unsigned_varint,
    skip_tagged_fields,
)

DESCRIBE_API_KEY = 89

_VERSION = 0
_ONE_ELEMENT = b"\2"
_FALSE = b"\0"
#: An array of topics with settings: the number of partitions and the replication factor follow each name.
_PARTITIONS_AND_FACTOR = INT32.size + INT16.size


def are_described(connection: Connection) -> bool:
    """Return whether a broker knows groups of the streams protocol."""
    return DESCRIBE_API_KEY in connection.api_versions


def describe(connection: Connection, group: str, timeout: float) -> DescribedGroup | int:
    """Return a group with the topics that its application reads, none before it has said so; or its error code.

    Raises:
        OutcomeUnknown: no whole answer in time.
        FrameError: an answer that cannot be read.
    """
    body = _ONE_ELEMENT + compact_string(group) + _FALSE + NO_TAGS
    code, topics = decode_topics(connection.ask(DESCRIBE_API_KEY, _VERSION, body, timeout))
    return code or DescribedGroup((), topics)


@decodes("StreamsGroupDescribe")
def decode_topics(frame: memoryview) -> tuple[int, frozenset[str]]:
    """Decode an answer about one group, from its correlation id on, up to its members. Raises FrameError."""
    position = skip_tagged_fields(frame, 4) + INT32.size  # the header's tags, and the throttle
    _, position = read_unsigned_varint(frame, position)
    (code,) = INT16.unpack_from(frame, position)
    position += INT16.size
    for _ in ("message", "group", "state"):
        _, position = read_compact_string(frame, position)
    position += 2 * INT32.size  # epochs
    topics: set[str] = set()
    if frame[position] != 1:  # no topology yet
        return code, frozenset()
    subtopologies, position = read_unsigned_varint(frame, position + 1 + INT32.size)
    for _ in range(subtopologies - 1):
        _, position = read_compact_string(frame, position)
        sources, position = _names(frame, position)
        _, position = _names(frame, position)  # the repartition topics that it writes
        changelogs, position = _topics(frame, position)
        repartitions, position = _topics(frame, position)
        topics |= sources | changelogs | repartitions
        position = skip_tagged_fields(frame, position)
    return code, frozenset(topics)


def _names(frame: memoryview, position: int) -> tuple[set[str], int]:
    found = set()
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count - 1):
        name, position = read_compact_string(frame, position)
        found.add(name or "")
    return found, position


def _topics(frame: memoryview, position: int) -> tuple[set[str], int]:
    found = set()
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count - 1):
        name, position = read_compact_string(frame, position)
        settings, position = read_unsigned_varint(frame, position + _PARTITIONS_AND_FACTOR)
        for _ in range(settings - 1):
            _, position = read_compact_string(frame, position)
            _, position = read_compact_string(frame, position)
            position = skip_tagged_fields(frame, position)
        position = skip_tagged_fields(frame, position)
        found.add(name or "")
    return found, position
