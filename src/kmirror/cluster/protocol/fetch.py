"""The Fetch request, from version 12 on: incremental sessions (KIP-227) and diverging epochs (KIP-595).

Version 13 names topics by id (KIP-516, brokers from 3.1 on), version 12 by name; else they are the same. A name does
not distinguish a topic from one that was created in its place: a fetch by name needs a request for its id besides.

A request may name our rack (KIP-392). If a replica is nearer, the leader answers with that replica instead of records;
a follower serves what it knows to be replicated.

In a session both sides remember the partitions: a request names only what changed since the one before, an answer only
partitions with news. Sentinels of the answer become None. What an error code means here:

* 1 OFFSET_OUT_OF_RANGE: start and watermark are −1; ask ListOffsets. From a follower: it may be behind.
* 6, 74, 75: the leader moved, or one side has stale metadata.
* 100 UNKNOWN_TOPIC_ID: no topic with this id (any more); 103: the id belongs to another name.
* at the top level 70, 71: the broker forgot the session; start a new one. 106: a topic's id changed; likewise.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import LeaderAddress, TopicPartition
from kmirror.cluster.protocol.wire import (
    INT32,
    NO_TAGS,
    Api,
    Exchange,
    FrameError,
    compact_string,
    decodes,
    framed,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    tagged_fields,
    unsigned_varint,
)

API_KEY = 1
LOWEST_VERSION = 12
HIGHEST_VERSION = 13
API = Api(API_KEY, "Fetch", LOWEST_VERSION, HIGHEST_VERSION)
FIRST_VERSION_WITH_TOPIC_IDS = 13

_READ_COMMITTED = 1
_NEW_SESSION = 0
_NO_SESSION = -1
_NO_EPOCH = -1

_REQUEST_HEAD = struct.Struct(">iiiibii")
_PARTITION = struct.Struct(">iiqiqiB")
_ANSWER_HEAD = struct.Struct(">ihi")
_ANSWER_PARTITION = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iq")


class FetchKey(NamedTuple):
    """A partition: its topic's id, and its topic's name, which brokers before 3.1 need."""

    topic_id: bytes
    partition: int
    topic: str


class FetchPosition(NamedTuple):
    """Where to fetch a partition from; leader epochs are None where they are not known."""

    fetch_offset: int
    last_fetched_epoch: int | None
    current_leader_epoch: int | None
    partition_max_bytes: int


class AbortedTransaction(NamedTuple):
    """A producer whose records from `first_offset` to its next ABORT marker must not be shown."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition's part of an answer. `records` is a view into the frame; a batch at its end may be cut off."""

    key: FetchKey
    error_code: int
    high_watermark: int | None
    last_stable_offset: int | None
    log_start_offset: int | None
    aborted_transactions: tuple[AbortedTransaction, ...]
    records: memoryview
    diverging_epoch: tuple[int, int] | None
    #: The replica that the leader wants us to fetch from; None in the normal case.
    preferred_read_replica: int | None = None


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """One decoded answer."""

    error_code: int
    throttle_time_ms: int
    partitions: list[FetchedPartition]


class FetchSession:
    """One session with one broker: builds requests, reads answers.

    `want` and `forget` record changes; a request names those changes only. After an answer whose top-level error is not
    0, the next request starts a new session and names everything. Brokers hold a limited number of sessions; with
    `incremental` false each request is independent and the broker keeps nothing.
    """

    def __init__(self, client_id: str, version: int, *, incremental: bool = True) -> None:
        self.by_name = version < FIRST_VERSION_WITH_TOPIC_IDS
        self._version = version
        self._client_id = client_id
        self._first_epoch = _NEW_SESSION if incremental else _NO_SESSION
        self._session_id = 0
        self._session_epoch = self._first_epoch
        self._wanted: dict[FetchKey, FetchPosition] = {}
        # dictionaries, not sets: a request names partitions in the order of the calls
        self._changed: dict[FetchKey, None] = {}
        self._forgotten: dict[FetchKey, None] = {}
        self._known: set[FetchKey] = set()
        #: Topic ids and names, by what an answer calls a topic: its id, or its encoded name.
        self._topics: dict[bytes, tuple[bytes, str]] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, key: FetchKey, position: FetchPosition) -> None:
        """Fetch this partition from here from the next request on."""
        self._topics[key.topic.encode() if self.by_name else key.topic_id] = key.topic_id, key.topic
        self._wanted[key] = position
        self._changed[key] = None
        self._forgotten.pop(key, None)

    def forget(self, key: FetchKey) -> None:
        """Do not fetch this partition from the next request on."""
        if self._wanted.pop(key, None) is not None:
            self._changed.pop(key, None)
            if key in self._known:
                self._forgotten[key] = None

    def reset(self) -> None:
        """Start a new session with the next request."""
        self._session_id, self._session_epoch = 0, self._first_epoch
        self._known.clear()
        self._forgotten.clear()

    def request(
        self, correlation_id: int, *, max_wait_ms: int, max_bytes: int, read_committed: bool = True, rack: str = ""
    ) -> bytes:
        """Encode the next request, framed; with a `rack` the leader may name a nearer replica."""
        keys = self._changed if self._session_epoch > 0 else self._wanted
        by_topic: dict[bytes, bytearray] = {}
        counts: dict[bytes, int] = {}
        for key in keys:
            at = self._wanted[key]
            topic = self._named(key)
            by_topic.setdefault(topic, bytearray()).extend(
                _PARTITION.pack(
                    key.partition,
                    _NO_EPOCH if at.current_leader_epoch is None else at.current_leader_epoch,
                    at.fetch_offset,
                    _NO_EPOCH if at.last_fetched_epoch is None else at.last_fetched_epoch,
                    -1,
                    at.partition_max_bytes,
                    0,
                )
            )
            counts[topic] = counts.get(topic, 0) + 1
        gone: dict[bytes, list[int]] = {}
        for key in self._forgotten:
            gone.setdefault(self._named(key), []).append(key.partition)
        isolation = _READ_COMMITTED if read_committed else 0
        out = bytearray(request_header(API_KEY, self._version, correlation_id, self._client_id))
        out += _REQUEST_HEAD.pack(-1, max_wait_ms, 1, max_bytes, isolation, self._session_id, self._session_epoch)
        out += unsigned_varint(len(by_topic) + 1)
        for topic, partitions in by_topic.items():
            out += topic + unsigned_varint(counts[topic] + 1) + partitions + NO_TAGS
        out += unsigned_varint(len(gone) + 1)
        for topic, indexes in gone.items():
            out += topic + unsigned_varint(len(indexes) + 1)
            out += struct.pack(f">{len(indexes)}i", *indexes) + NO_TAGS
        out += compact_string(rack) + NO_TAGS
        if self._first_epoch == _NEW_SESSION:
            self._known.update(keys)
        self._known.difference_update(self._forgotten)
        self._changed = {}
        self._forgotten = {}
        return framed(out)

    def _named(self, key: FetchKey) -> bytes:
        """Encode a topic as a request names it."""
        return compact_string(key.topic) if self.by_name else key.topic_id

    def answer(self, frame: memoryview) -> FetchAnswer:
        """Read the answer to the last request (`frame` starts at the correlation id).

        Raises:
            FrameError: not such an answer.
        """
        answer, session_id = decode_answer(frame, self._topics, by_name=self.by_name)
        if answer.error_code or session_id == 0:
            self.reset()
        else:
            self._session_id = session_id
            self._session_epoch = 1 if self._session_epoch >= 0x7FFFFFFF else self._session_epoch + 1
        return answer


def exchange(
    positions: Mapping[FetchKey, FetchPosition], *, max_wait_ms: int, max_bytes: int, read_committed: bool = True
) -> Exchange:
    """Return a request without a session for partitions with one leader; its answer is a FetchAnswer."""

    def session(version: int, client_id: str) -> FetchSession:
        made = FetchSession(client_id, version, incremental=False)
        for key, position in positions.items():
            made.want(key, position)
        return made

    def encode(correlation_id: int, version: int, client_id: str) -> bytes:
        return session(version, client_id).request(
            correlation_id, max_wait_ms=max_wait_ms, max_bytes=max_bytes, read_committed=read_committed
        )

    def decode(frame: memoryview, version: int) -> tuple[FetchAnswer, int]:
        answer = session(version, "").answer(frame)
        return answer, answer.throttle_time_ms

    return Exchange(API, encode, decode)


class FetchedAlone(NamedTuple):
    """The answer to a fetch of one partition; `part` is None if the broker returned nothing of it, as when throttling.

    `error_code` is that of the whole answer, or of the part.
    """

    part: FetchedPartition | None
    error_code: int
    throttle_time_ms: int


class FetchTarget(NamedTuple):
    """A partition to fetch by itself, its leader, and what to be shown of it."""

    leader: LeaderAddress
    partition: TopicPartition
    read_committed: bool = True

    def exchange(self, offset: int, max_bytes: int, max_wait_ms: int = 0) -> Exchange:
        """Return a request without a session; its answer is a FetchedAlone."""
        key = FetchKey(self.leader.topic_id, self.partition.partition, self.partition.topic)
        positions = {key: FetchPosition(offset, None, self.leader.known_epoch, max_bytes)}
        asked = exchange(positions, max_wait_ms=max_wait_ms, max_bytes=max_bytes, read_committed=self.read_committed)

        def decode(frame: memoryview, version: int) -> tuple[FetchedAlone, int]:
            answer, throttle_time_ms = asked.decode(frame, version)
            parts = () if answer.error_code else answer.partitions
            part = next((part for part in parts if part.key == key), None)
            error_code = part.error_code if part else answer.error_code
            return FetchedAlone(part, error_code, throttle_time_ms), throttle_time_ms

        return replace(asked, decode=decode)


@decodes("Fetch")
def decode_answer(
    frame: memoryview, known: Mapping[bytes, tuple[bytes, str]], *, by_name: bool
) -> tuple[FetchAnswer, int]:
    """Decode one frame into the answer and its session id; `known` has ids and names by what answers call topics.

    Raises:
        FrameError: not such an answer.
    """
    position = skip_tagged_fields(frame, 4)
    throttle_time_ms, error_code, session_id = _ANSWER_HEAD.unpack_from(frame, position)
    position += _ANSWER_HEAD.size
    topics, position = read_unsigned_varint(frame, position)
    partitions: list[FetchedPartition] = []
    for _ in range(topics - 1):
        size = 16
        if by_name:
            size, position = read_unsigned_varint(frame, position)
            size -= 1
        called = bytes(frame[position : position + size])
        topic_id, topic = known.get(called, (called, ""))
        count, position = read_unsigned_varint(frame, position + size)
        for _ in range(count - 1):
            partition, position = _partition(frame, position, topic_id, topic)
            partitions.append(partition)
        position = skip_tagged_fields(frame, position)
    return FetchAnswer(error_code, throttle_time_ms, partitions), session_id


def _partition(frame: memoryview, position: int, topic_id: bytes, topic: str) -> tuple[FetchedPartition, int]:
    index, code, high_watermark, last_stable, log_start = _ANSWER_PARTITION.unpack_from(frame, position)
    position += _ANSWER_PARTITION.size
    count, position = read_unsigned_varint(frame, position)
    aborted = []
    for _ in range(count - 1):
        aborted.append(AbortedTransaction(*_ABORTED.unpack_from(frame, position)))
        position = skip_tagged_fields(frame, position + _ABORTED.size)
    (preferred,) = INT32.unpack_from(frame, position)
    position += INT32.size
    length, position = read_unsigned_varint(frame, position)
    end = position + max(length - 1, 0)
    if end > len(frame):
        raise FrameError("a Fetch answer ends in the middle of its records")
    records = frame[position:end]
    diverging = None
    if frame[end] == 0:
        position = end + 1
    else:
        tags, position = tagged_fields(frame, end)
        if 0 in tags:
            diverging = _EPOCH_END.unpack_from(tags[0])
            diverging = None if diverging[0] < 0 and diverging[1] < 0 else diverging
    known = code == Code.NONE
    return (
        FetchedPartition(
            FetchKey(topic_id, index, topic),
            code,
            high_watermark if known and high_watermark >= 0 else None,
            last_stable if known and last_stable >= 0 else None,
            log_start if known and log_start >= 0 else None,
            tuple(aborted),
            records,
            diverging,
            preferred if known and preferred >= 0 else None,
        ),
        position,
    )
