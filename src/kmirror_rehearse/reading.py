"""Read what a rehearsal compares: settings and groups of both sides, schemas that records name, clocks."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.batch_records import Record, make_batch, read_records
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.fetch import FetchTarget
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.reader import PartitionReader, fetched
from kmirror.cluster.topics.topic_requests import create_topic, delete_topics
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import now_ms
from kmirror_rehearse.rehearsal_findings import GroupPositions, Side

SCHEMAS = "_schemas"
#: How a record begins whose value or key is written by a schema registry's serializer: this byte, and a schema's id.
_MAGIC, _ID_BYTES = 0, 4
_SAMPLE_BYTES = 256 << 10
_PATIENCE_S = 10.0
_PAUSE_S = 0.1

Ends = Mapping[TopicPartition, tuple[int, int]]


def read_side(client: ClusterClient, topics: Mapping[str, str]) -> Side:
    """Read one side; `topics` are the names there of the source's topics.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    found = topic_settings(client, topics.values()) if topics else {}
    names = client.metadata(None).topics
    positions, trouble = {}, None
    try:
        positions = _groups(client)
    except (KmirrorError, OutcomeUnknown) as error:
        trouble = str(error)
    settings = {source: found[name] for source, name in topics.items() if name in found}
    return Side(settings, positions, frozenset(names), trouble)


def _groups(client: ClusterClient) -> dict[str, GroupPositions]:
    groups = ClusterGroups(client)
    kinds = {name: one.kind for name, one in groups.listed(whole=False).items() if one.kind is not GroupKind.OTHER}
    positions = {}
    for name, offsets in groups.committed(kinds).items():
        if isinstance(offsets, int):
            raise BrokerError(offsets, code_name(offsets), f"reading the offsets of group {name}")
        known = {at: one.offset for at, one in offsets.items()}
        positions[name] = GroupPositions(kinds[name], known, frozenset(at.topic for at in known))
    return positions


def log_ends(client: ClusterClient, partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """Return where logs begin and end, where both are known. Raises UnreachableError."""
    starts, ends = client.look_up_offsets(partitions, [Lookup(EARLIEST), Lookup(LATEST, log_end=True)])
    return {
        at: (start, end)
        for at in partitions
        if (start := starts[at].offset) is not None and (end := ends[at].offset) is not None
    }


def newest_records(client: ClusterClient, ends: Ends) -> dict[str, list[Record]]:
    """Return some of the newest records of each topic, where they can be read."""
    found: dict[str, list[Record]] = {}
    for at, (start, end) in sorted(ends.items()):
        if end > start and not found.get(at.topic):
            with suppress(KmirrorError, OutcomeUnknown):
                begin = max(start, end - 200)
                found[at.topic] = list(_records(client, at, begin, end, _SAMPLE_BYTES))
    return found


def _records(
    client: ClusterClient, at: TopicPartition, start: int, end: int, most_bytes: int | None = None
) -> Iterator[Record]:
    read = 0
    for answer in PartitionReader(client, at, patience_s=_PATIENCE_S).batches(start, end):
        for header in answer.headers:
            read += header.size_in_bytes
            if header.is_control:
                continue
            with suppress(KmirrorError):  # what cannot be read is no record for an application either
                yield from (one for one in read_records(answer.data, header) if start <= one.offset < end)
        if most_bytes is not None and read >= most_bytes:
            return


def schema_ids(records: Mapping[str, Sequence[Record]]) -> dict[str, set[int]]:
    """Return the ids of schemas that records may name, by topic: those that a schema registry's serializer wrote."""
    found: dict[str, set[int]] = {}
    for topic, some in records.items():
        ids = [_schema_id(one.value) for one in some if one.value is not None]
        if ids and None not in ids:
            found[topic] = {one for one in ids if one is not None}
    return found


def _schema_id(value: bytes) -> int | None:
    if len(value) <= 1 + _ID_BYTES or value[0] != _MAGIC:
        return None
    return int.from_bytes(value[1 : 1 + _ID_BYTES], "big")


def registered_schemas(client: ClusterClient, topic: str) -> set[int]:
    """Return the ids of the schemas that a registry has stored in its topic. Raises KmirrorError, OutcomeUnknown."""
    at = TopicPartition(topic, 0)
    ids = set()
    for start, end in log_ends(client, [at]).values():
        for record in _records(client, at, start, end):
            with suppress(ValueError, AttributeError):
                stored = json.loads(record.value or b"null") or {}
                if isinstance(stored.get("id"), int):
                    ids.add(stored["id"])
    return ids


def clock_ahead_ms(client: ClusterClient, topic: str) -> int:
    """Return by how much the clock of a broker is ahead of this host's, with a topic that is created and deleted.

    Raises KmirrorError, OutcomeUnknown: the topic cannot be created or written.
    """
    create_topic(client, topic, 1, -1, {"message.timestamp.type": "LogAppendTime"})
    try:
        at = TopicPartition(topic, 0)
        before = now_ms()
        write_to(client, [at], b"", b"clock")
        after = now_ms()
        (start, end) = log_ends(client, [at])[at]
        for answer in PartitionReader(client, at, patience_s=_PATIENCE_S).batches(start, end):
            for header in answer.headers:
                stamp = header.max_timestamp
                return stamp - after if stamp > after else min(0, stamp - before)
        raise KmirrorError(f"the record that was written to {topic} cannot be read")
    finally:
        delete_topics(client, [topic])


def is_slowed_by_quota(client: ClusterClient, at: TopicPartition) -> bool:
    """Return whether a cluster delays fetches of this client by a quota. Raises KmirrorError, OutcomeUnknown."""
    leader = client.metadata([at.topic]).leader_address(at)
    if leader is None:
        return False
    (start, _) = log_ends(client, [at]).get(at, (0, 0))
    connection = client.connect(leader.node_id, leader.host, leader.port)
    return bool(fetched(connection, FetchTarget(leader, at).exchange(start, 1, 0)).throttle_time_ms)


def write_to(
    client: ClusterClient, partitions: Collection[TopicPartition], key: bytes, value: bytes
) -> dict[TopicPartition, int]:
    """Write one record to each partition, as any producer does; return error codes. New leaders are waited for.

    Raises:
        UnreachableError: no broker answers.
    """
    codes: dict[TopicPartition, int] = {}
    left, until = set(partitions), time.monotonic() + _PATIENCE_S
    while left:
        batch = bytes(make_batch([Record(0, now_ms(), key, value, ())]))
        codes |= client.send_batches(left, lambda _, batch=batch: batch)  # type: ignore[misc]
        left = {at for at in left if codes[at] in _PASSING}
        if not left or time.monotonic() > until:
            break
        time.sleep(_PAUSE_S)
    return codes


_PASSING = {
    Code.UNKNOWN_TOPIC_OR_PARTITION,
    Code.LEADER_NOT_AVAILABLE,
    Code.NOT_LEADER_OR_FOLLOWER,
    Code.BROKER_NOT_AVAILABLE,
}


def has_record(client: ClusterClient, at: TopicPartition, start: int, value: bytes) -> bool:
    """Return whether a record with this value can be read from `start` on. Raises KmirrorError, OutcomeUnknown."""
    for _, end in log_ends(client, [at]).values():
        return any(one.value == value for one in _records(client, at, start, end))
    return False
