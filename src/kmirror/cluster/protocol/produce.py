"""The Produce request, one batch per partition, encoded as a list of buffers so that no batch is ever copied.

Version 13 names topics by id (brokers from 4.1 on), versions 9 to 12 by name. What an error code means here:

* 0: appended at `base_offset`, or a repeat of one of the producer's last five batches: the offset it got then, and the
  batch's largest timestamp as if it were a log append time.
* 45: the log end is not where this batch's sequence number says. Nothing was written.
* 47: a higher epoch of our producer id exists: another writer fenced us.
* 7, 20: written at the leader, perhaps not replicated: read the log end.
* 100: no topic with this id (any more).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import (
    INT32,
    NO_TAGS,
    Api,
    Buffer,
    Exchange,
    compact_string,
    decodes,
    read_compact_string,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    unsigned_varint,
)

API_KEY = 0
LOWEST_VERSION = 9
HIGHEST_VERSION = 13
API = Api(API_KEY, "Produce", LOWEST_VERSION, HIGHEST_VERSION)
FIRST_VERSION_WITH_TOPIC_IDS = 13

ACKS_ALL = -1
#: Brokers assign producer ids from 0 up. To append by offset, use an id from here up, which brokers never reach, and
#: always the same one for a partition.
FIRST_OWN_PRODUCER_ID = 1 << 62

_HEAD = struct.Struct(">hi")
_PARTITION_ANSWER = struct.Struct(">ihqqq")
#: The same, and the three bytes after it where there is no error.
_PLAIN_ANSWER = struct.Struct(">ihqqq3s")
_topic_of = itemgetter(0)
#: The log append time of records that keep their own.
_NO_TIME = -1
#: A compact string that is null.
NULL_STRING = b"\x00"
#: No record errors, no message, no tagged fields: how almost every partition's answer ends.
_NO_ERRORS = b"\x01\x00\x00"
#: Length, correlation id and throttle; a byte for each of the other fields.
_LEAST_ANSWER_BYTES = 16


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a leader remembers about one producer (DescribeProducers, KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int | None


@dataclass(frozen=True, slots=True)
class AppendLimits:
    """What a broker's settings mean for appends; None for what it does not say."""

    #: How long it remembers an idle producer id.
    expiration_ms: int | None = None
    #: The largest request that it takes.
    request_bytes: int | None = None


NO_LIMITS = AppendLimits()


class Append(NamedTuple):
    """One batch for one partition; `batch.set_producer` has been applied to it."""

    topic: str
    topic_id: bytes
    partition: int
    batch: memoryview | bytes | bytearray


class AppendAnswer(NamedTuple):
    """One partition's answer. `topic` is a name or, from version 13 on, 16 bytes of id."""

    topic: str | bytes
    partition: int
    error_code: int
    base_offset: int
    error_message: str | None
    #: The timestamp that the broker gave all records in place of their own (LogAppendTime), epoch ms; None if none.
    log_append_time: int | None = None


def request(
    correlation_id: int,
    version: int,
    client_id: str,
    appends: Sequence[Append],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> list[Buffer]:
    """Encode one framed request. `appends` has at most one batch per partition, and is grouped by topic."""
    groups = [list(group) for _, group in groupby(appends, _topic_of)]
    prefix = request_header(API_KEY, version, correlation_id, client_id)
    prefix += NULL_STRING if transactional_id is None else compact_string(transactional_id)
    prefix += _HEAD.pack(acks, timeout_ms) + unsigned_varint(len(groups) + 1)
    buffers: list[Buffer] = [b""]
    size = 0
    pack = INT32.pack
    for group in groups:
        topic, topic_id, _, _ = group[0]
        name = topic_id if version >= FIRST_VERSION_WITH_TOPIC_IDS else compact_string(topic)
        prefix += name + unsigned_varint(len(group) + 1)
        for _, _, partition, batch in group:
            length = len(batch)
            prefix += pack(partition) + unsigned_varint(length + 1)
            buffers += (prefix, batch)
            size += len(prefix) + length
            prefix = NO_TAGS
        prefix += NO_TAGS
    prefix += NO_TAGS
    buffers.append(prefix)
    buffers[0] = INT32.pack(size + len(prefix))
    return buffers


def request_bytes(version: int, client_id: str, appends: Sequence[Append]) -> int:
    """Return the size of a request as its broker counts it: without the length before it."""
    prefix, *_ = request(0, version, client_id, appends, acks=ACKS_ALL, timeout_ms=0)
    return int(INT32.unpack_from(prefix)[0])


def exchange(appends: Sequence[Append], timeout_ms: int, transactional_id: str | None = None) -> Exchange:
    """Return the request that appends batches and waits for their replicas; its answer is by partition."""
    request_of = partial(request, acks=ACKS_ALL, timeout_ms=timeout_ms, transactional_id=transactional_id)
    names: dict[str | bytes, str] = {}
    for append in appends:
        names[append.topic] = names[append.topic_id] = append.topic

    def encode(correlation_id: int, version: int, client_id: str) -> bytes:
        return b"".join(request_of(correlation_id, version, client_id, appends))

    def decode(frame: memoryview, version: int) -> tuple[dict[TopicPartition, AppendAnswer], int]:
        answers, throttle_time_ms = answer(frame, version)
        return {TopicPartition(names.get(one.topic, ""), one.partition): one for one in answers}, throttle_time_ms

    return Exchange(API, encode, decode)


def least_answer_bytes(partitions: int) -> int:
    """Return the smallest size in bytes of a framed answer for this many partitions."""
    return _LEAST_ANSWER_BYTES + partitions * _PLAIN_ANSWER.size


@decodes("Produce")
def answer(frame: memoryview, version: int) -> tuple[list[AppendAnswer], int]:
    """Decode one frame (from its correlation id on) into the partitions' answers and the throttle in milliseconds.

    Raises:
        FrameError: not such an answer.
    """
    position = skip_tagged_fields(frame, 4)
    topics, position = read_unsigned_varint(frame, position)
    answers: list[AppendAnswer] = []
    for _ in range(topics - 1):
        topic: str | bytes | None
        if version >= FIRST_VERSION_WITH_TOPIC_IDS:
            topic = bytes(frame[position : position + 16])
            position += 16
        else:
            topic, position = read_compact_string(frame, position)
        count, position = read_unsigned_varint(frame, position)
        end = position + _PLAIN_ANSWER.size * (count - 1)
        plain = list(_PLAIN_ANSWER.iter_unpack(frame[position:end])) if position < end < len(frame) else []
        if all(rest == _NO_ERRORS for _, _, _, _, _, rest in plain):
            make, name = tuple.__new__, topic or ""
            answers += [
                make(AppendAnswer, (name, index, code, base, None, None if stamp == _NO_TIME else stamp))
                for index, code, base, stamp, _, _ in plain
            ]
            count, position = count - len(plain), end if plain else position
        for _ in range(count - 1):
            index, code, base_offset, stamp, _ = _PARTITION_ANSWER.unpack_from(frame, position)
            log_append_time = None if stamp == _NO_TIME else stamp
            position += _PARTITION_ANSWER.size
            if frame[position : position + 3] == _NO_ERRORS:
                position += 3
                answers.append(AppendAnswer(topic or "", index, code, base_offset, None, log_append_time))
                continue
            errors, position = read_unsigned_varint(frame, position)
            detail = None
            for _ in range(errors - 1):
                detail, position = read_compact_string(frame, position + 4)
                position = skip_tagged_fields(frame, position)
            message, position = read_compact_string(frame, position)
            position = skip_tagged_fields(frame, position)
            answers.append(AppendAnswer(topic or "", index, code, base_offset, detail or message, log_append_time))
        position = skip_tagged_fields(frame, position)
    (throttle_time_ms,) = INT32.unpack_from(frame, position)
    return answers, throttle_time_ms
