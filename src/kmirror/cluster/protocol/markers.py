"""The WriteTxnMarkers request (KIP-98), which fills offsets without showing consumers anything.

A broker writes one control batch of 78 bytes, one offset, per entry and partition. Consumers skip control batches in
either isolation level. The markers are COMMITs of a producer that has no transaction open, so they commit nothing.

What makes them safe is the producer they name: the one whose sequence numbers guard the partition's data. A leader
remembers the highest producer epoch and coordinator epoch it has seen of that producer, and refuses a marker that is
lower in either (47, 52). `fill_plan` says which epochs to use.

One request may hold many entries, for many partitions; a broker appends them one after the other and answers once, when
the last is replicated. Entries of one producer share one answer, in which a later success hides an earlier refusal:
after a request with more than one entry per partition, only the log end shows what was written. What a code means here:

* 0: the last entry was written;
* 6, 3, 9: the leader has moved; some entries may have been written before;
* 31: neither ALTER nor CLUSTER_ACTION on the cluster is granted; nothing was written;
* 47: the leader has seen a higher producer epoch; 52: a higher coordinator epoch; nothing more was written;
* 7, 20: written at the leader, perhaps not replicated: read the log end.

Two kinds of requests are never answered (seen on 3.9 and 4.3): one that names a partition twice in one entry, and one
whose last entries name a partition that the broker has no replica of, after others that it has.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import (
    INT32,
    NO_TAGS,
    Api,
    Exchange,
    compact_string,
    decodes,
    framed,
    read_partitions,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    unsigned_varint,
)

API_KEY = 27
LOWEST_VERSION = 1
#: Version 2 has the transaction protocol's version (KIP-1228); ours have none, as before.
HIGHEST_VERSION = 2
API = Api(API_KEY, "WriteTxnMarkers", LOWEST_VERSION, HIGHEST_VERSION)

#: The most offsets to fill with one request: some 10 ms of a warm broker's time, 50 ms of a cold one's, in which it
#: occupies one request thread. Three times as many are a third faster, a tenth a third slower.
MAX_MARKERS = 1000
#: A hole's last offset is filled by a request of its own: whatever the outcome of the requests before it, there is room
#: for one more marker, the one that fences them.
RESERVED_OFFSETS = 1

_ENTRY_HEAD = struct.Struct(">qhBB")
_PRODUCER_ID_BYTES = 8
_RESULT = struct.Struct(">ih")
_COMMIT = 1
_ONE = unsigned_varint(2)
_NO_PROTOCOL = b"\x00"


@dataclass(frozen=True, slots=True)
class Fill:
    """Fill `count` offsets of one partition. `coordinator_epoch` None: the request's."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    count: int
    coordinator_epoch: int | None = None


def request(
    correlation_id: int, version: int, client_id: str, fills: Iterable[Fill], coordinator_epoch: int = 0
) -> bytes:
    """Encode one framed request: an entry for each offset, so that no entry names a partition twice."""
    entries = bytearray()
    count = 0
    for fill in fills:
        epoch = coordinator_epoch if fill.coordinator_epoch is None else fill.coordinator_epoch
        entry = _ENTRY_HEAD.pack(fill.producer_id, fill.producer_epoch, _COMMIT, 2) + compact_string(fill.topic)
        entry += _ONE + INT32.pack(fill.partition) + NO_TAGS + INT32.pack(epoch)
        entry += NO_TAGS if version == LOWEST_VERSION else _NO_PROTOCOL + NO_TAGS
        entries += entry * fill.count
        count += fill.count
    header = request_header(API_KEY, version, correlation_id, client_id)
    return framed(header + unsigned_varint(count + 1) + entries + NO_TAGS)


def exchange(fills: Collection[Fill]) -> Exchange:
    """Return the request for markers of partitions; its answer is an error code for each."""

    def decode(frame: memoryview, version: int) -> tuple[dict[TopicPartition, int], int]:
        return {TopicPartition(*key): code for key, code in answer(frame, version).items()}, 0

    encode = partial(request, fills=fills)
    return Exchange(API, encode, decode)


@decodes("WriteTxnMarkers")
def answer(frame: memoryview, version: int) -> dict[tuple[str, int], int]:
    """Decode one frame (from its correlation id on) into error codes by topic and partition; all versions are alike.

    Where a partition has several codes, the last that is not 0.

    Raises:
        FrameError: not such an answer.
    """
    codes: dict[tuple[str, int], int] = {}
    position = skip_tagged_fields(frame, 4)
    producers, position = read_unsigned_varint(frame, position)
    for _ in range(producers - 1):
        found, position = read_partitions(frame, position + _PRODUCER_ID_BYTES, _RESULT)
        for topic, (partition, code) in found:
            if code or (topic, partition) not in codes:
                codes[topic, partition] = code
        position = skip_tagged_fields(frame, position)
    skip_tagged_fields(frame, position)
    return codes
