"""The yardstick: what plain fetches bring over the path, by the number of connections.

Each connection fetches the same few megabytes again and again, one request at a time, and nothing is decoded: it is
what brokers and path can do, not a copy.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from dataclasses import dataclass

from bench.clusters import Cluster
from bench.contenders import Load
from bench.measure import CopyFailedError
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol import fetch
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.security.client_config import client_config

CONNECTIONS = (1, 8, 32, 64)
#: What one fetch asks for, and half of which an answer must hold at least.
_FETCHED_BYTES = 4 << 20
#: Until connections are as fast as they get, and how long is measured.
_GROWTH_S, _MEASURED_S = 5.0, 6.0
_ROUND_TRIPS_OF_GROWTH = 20
_FRAME = struct.Struct(">i")
_BUFFER = bytearray(1 << 20)


@dataclass(slots=True)
class _Fetcher:
    """One connection: its request, and how much of the answer to it is still to come."""

    connection: socket.socket
    request: bytes
    rest: int = 0


def fetch_rate(source: Cluster, load: Load, connections: int, round_trip_ms: float) -> float:
    """Return how many megabytes a second this many connections bring.

    Raises:
        CopyFailedError: a broker refused, or an answer is much smaller than asked.
    """
    fetchers = _fetchers(source, load, connections)
    selector = selectors.DefaultSelector()
    for fetcher in fetchers:
        selector.register(fetcher.connection, selectors.EVENT_WRITE, fetcher)
    began = time.monotonic() + _GROWTH_S + _ROUND_TRIPS_OF_GROWTH * round_trip_ms / 1000
    count, now = 0, time.monotonic()
    try:
        while now < began + _MEASURED_S:
            for key, events in selector.select(0.1):
                if events & selectors.EVENT_WRITE:
                    selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
                    key.data.connection.send(key.data.request)
                else:
                    received = _receive(key.data)
                    count += received if time.monotonic() >= began else 0
            now = time.monotonic()
    finally:
        selector.close()
        for fetcher in fetchers:
            fetcher.connection.close()
    return count / (now - began) / 1e6


def _receive(fetcher: _Fetcher) -> int:
    """Take in what has arrived, and send the next request after the end of an answer; return the bytes."""
    connection = fetcher.connection
    if fetcher.rest == 0:
        head = connection.recv(_FRAME.size, socket.MSG_PEEK)
        if not head:
            raise CopyFailedError("a broker closed a connection")
        if len(head) < _FRAME.size:
            return 0
        fetcher.rest = _FRAME.size + _FRAME.unpack(head)[0]
        if fetcher.rest < _FETCHED_BYTES // 2:
            raise CopyFailedError(f"a broker answered a fetch with {fetcher.rest:,} bytes")
    received = connection.recv_into(_BUFFER, min(fetcher.rest, len(_BUFFER)))
    if not received:
        raise CopyFailedError("a broker closed a connection")
    fetcher.rest -= received
    if fetcher.rest == 0:
        connection.send(fetcher.request)
    return received


def _fetchers(source: Cluster, load: Load, connections: int) -> list[_Fetcher]:
    """Open the connections, spread over the partitions and their logs."""
    with ClusterClient(client_config({"bootstrap.servers": source.bootstrap_servers})) as client:
        metadata = client.metadata([load.topic])
    topic_id = metadata.topics[load.topic].topic_id
    assert topic_id is not None
    found = []
    for number in range(connections):
        topic_partition = TopicPartition(load.topic, number % load.amount.partitions)
        leader = metadata.leader(topic_partition)
        assert leader is not None
        assert leader.leader_id is not None
        broker = metadata.brokers[leader.leader_id]
        session = fetch.FetchSession("bench-far", fetch.HIGHEST_VERSION, incremental=False)
        key = fetch.FetchKey(topic_id, topic_partition.partition, load.topic)
        session.want(key, fetch.FetchPosition(_offset(load, number, connections), None, None, _FETCHED_BYTES))
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((broker.host, broker.port))
        found.append(_Fetcher(connection, session.request(1, max_wait_ms=500, max_bytes=_FETCHED_BYTES)))
    return found


def _offset(load: Load, number: int, connections: int) -> int:
    """Return where a connection fetches: somewhere in the log, but with enough after it."""
    records = load.amount.records // load.amount.partitions
    bytes_a_record = load.amount.stored_bytes / load.amount.records
    last = max(0, records - int(_FETCHED_BYTES / bytes_a_record))
    return last * number // connections
