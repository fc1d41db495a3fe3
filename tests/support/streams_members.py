"""A member of a group of the streams protocol (KIP-1071), which no Python client speaks: StreamsGroupHeartbeat (88)."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import Broker
from kmirror.cluster.protocol.wire import (
    INT16,
    INT32,
    NO_TAGS,
    compact_string,
    framed,
    request_header,
    skip_tagged_fields,
)
from kmirror.cluster.security.client_config import client_config
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.mirrors import properties_of
from tests.support.waiting import wait_until

_API_KEY = 88
_NULL, _EMPTY, _ABSENT = b"\0", b"\1", b"\xff"
_JOINS, _LEAVES = 0, -1
_COORDINATOR_MOVED = {14, 15, 16}


@contextmanager
def streams_member(cluster: SandboxCluster, group: str, topic: str) -> Iterator[None]:
    """Keep a member in a Streams group of a cluster of one broker: an application that reads a topic."""
    name = str(uuid.uuid4())
    with ClusterClient(client_config(properties_of(cluster))) as client:
        (broker,) = client.metadata([]).brokers.values()
        ClusterGroups(client).committed({group: GroupKind.CONSUMER})  # makes sure that it has a coordinator
        joining = _heartbeat(group, name, _JOINS, topic)
        wait_until(lambda: _code(client, broker, joining) not in _COORDINATOR_MOVED)
        assert _code(client, broker, joining) == 0
        try:
            yield
        finally:
            assert _code(client, broker, _heartbeat(group, name, _LEAVES, None)) == 0


def _heartbeat(group: str, member: str, epoch: int, topic: str | None) -> bytes:
    is_new = topic is not None
    fields = [
        compact_string(group),
        compact_string(member),
        struct.pack(">ii", epoch, 0),
        _NULL + _NULL,  # instance and rack
        INT32.pack(30_000 if is_new else -1),
        _topology(topic) if topic is not None else _ABSENT,
        (_EMPTY if is_new else _NULL) * 3,  # active, standby and warm-up tasks
        compact_string(member) if is_new else _NULL,  # the process
        _ABSENT,  # endpoint
        _EMPTY if is_new else _NULL,  # client tags
        _NULL + _NULL,  # offsets of tasks
        b"\0",  # resume
    ]
    return b"".join(fields) + NO_TAGS


def _topology(topic: str) -> bytes:
    subtopology = compact_string("0") + b"\2" + compact_string(topic) + _EMPTY * 5 + NO_TAGS
    return b"\1" + INT32.pack(0) + b"\2" + subtopology + NO_TAGS


def _code(client: ClusterClient, broker: Broker, body: bytes) -> int:
    connection = client.connect(broker.node_id, broker.host, broker.port)
    correlation_id = connection.next_correlation_id()
    request = request_header(_API_KEY, 0, correlation_id, "streams") + body
    answer = connection.exchange_frame([framed(request)], correlation_id, 30.0)
    position = skip_tagged_fields(answer, 4) + INT32.size  # the header's tags, and the throttle
    (code,) = INT16.unpack_from(answer, position)
    return int(code)
