"""The AddPartitionsToTxn and EndTxn requests (KIP-98), version 3: add partitions to a transaction, and end it.

A coordinator carries out the requests on one connection in order, so both may be sent at once. What a code means here:

* 51: it still writes the markers of the id's last transaction; nothing was begun;
* 14, 15, 16: it is loading, or has moved; what was asked may be in its log;
* 47, 90: another client uses the transactional id by now;
* 48: there is no transaction to end: the coordinator has aborted it.

AddPartitionsToTxn is repeated only after a refusal: for a transaction that is open it changes nothing and returns 0,
and for one that has ended meanwhile it opens another. EndTxn may be repeated: what has ended stays as it is. It returns
51 until all markers of the transaction are written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition, by_topic
from kmirror.cluster.protocol.wire import (
    INT16,
    INT32,
    NO_TAGS,
    Api,
    Exchange,
    compact_string,
    decodes,
    encoded_exchange,
    read_throttled_partitions,
    skip_tagged_fields,
    unsigned_varint,
)

ADD_PARTITIONS = 24
END = 26
#: The first flexible version, and the last for clients; all supported brokers know it.
VERSION = 3

_PRODUCER = struct.Struct(">qh")
_RESULT = struct.Struct(">ih")
_ABORT, _COMMIT = b"\x00", b"\x01"


def add_partitions(transactional_id: str, producer: tuple[int, int], partitions: Iterable[TopicPartition]) -> Exchange:
    """Return the request that adds partitions to the transaction of a producer id and epoch; its answer is `added`."""
    topics = by_topic(partitions)
    body = compact_string(transactional_id) + _PRODUCER.pack(*producer) + unsigned_varint(len(topics) + 1)
    for topic, indexes in topics.items():
        body += compact_string(topic) + unsigned_varint(len(indexes) + 1)
        body += struct.pack(f">{len(indexes)}i", *indexes) + NO_TAGS
    return encoded_exchange(Api(ADD_PARTITIONS, "AddPartitionsToTxn", VERSION, VERSION), body + NO_TAGS, added)


def end(transactional_id: str, producer: tuple[int, int], *, commits: bool) -> Exchange:
    """Return the request that commits or aborts the transaction of a producer id and epoch; its answer is `ended`."""
    how = _COMMIT if commits else _ABORT
    body = compact_string(transactional_id) + _PRODUCER.pack(*producer) + how + NO_TAGS
    return encoded_exchange(Api(END, "EndTxn", VERSION, VERSION), body, ended)


@decodes("AddPartitionsToTxn")
def added(frame: memoryview) -> tuple[dict[TopicPartition, int], int]:
    """Decode one frame (from its correlation id on) into error codes and the throttle in milliseconds.

    Raises:
        FrameError: not such an answer.
    """
    found, throttle_time_ms = read_throttled_partitions(frame, _RESULT)
    return {TopicPartition(topic, partition): code for topic, (partition, code) in found}, throttle_time_ms


def refusal_of(codes: Mapping[TopicPartition, int]) -> tuple[int, TopicPartition | None]:
    """Return the code that tells why partitions were not added, and one that has it; 0 if all were added."""
    refused = set(codes.values()) - {0}
    code = min(refused - {Code.OPERATION_NOT_ATTEMPTED} or refused, default=0)
    return code, next((partition for partition, one in codes.items() if one == code), None)


@decodes("EndTxn")
def ended(frame: memoryview) -> tuple[int, int]:
    """Decode one frame (from its correlation id on) into the error code and the throttle in milliseconds.

    Raises:
        FrameError: not such an answer.
    """
    position = skip_tagged_fields(frame, 4)
    (throttle_time_ms,) = INT32.unpack_from(frame, position)
    (code,) = INT16.unpack_from(frame, position + INT32.size)
    skip_tagged_fields(frame, position + INT32.size + INT16.size)
    return code, throttle_time_ms
