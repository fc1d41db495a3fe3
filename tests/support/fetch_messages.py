"""Fetch requests and answers as a second implementation of the protocol encodes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from kmirror.cluster.protocol.fetch import FetchAnswer, FetchKey, FetchPosition, FetchSession

A = UUID("00112233-4455-6677-8899-aabbccddeeff")
B = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
SESSION = 0x1234567

_Topic = FetchRequest.FetchTopic
_Forgotten = FetchRequest.ForgottenTopic
_TopicAnswer = FetchResponse.FetchableTopicResponse
PartitionAnswer = _TopicAnswer.PartitionData


def key(topic: UUID, partition: int) -> FetchKey:
    return FetchKey(topic.bytes, partition, "")


def at(offset: int, epoch: int = -1, leader_epoch: int = 0) -> FetchPosition:
    return FetchPosition(offset, epoch, leader_epoch, 1 << 20)


Wanted = Sequence[tuple[FetchKey, FetchPosition]]


def expected_request(
    correlation_id: int,
    session: tuple[int, int],
    wanted: Wanted = (),
    forgotten: Iterable[FetchKey] = (),
    isolation_level: int = 1,
    rack_id: str = "",
) -> bytes:
    """Encode the request with the second library."""
    message = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=8 << 20,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            _Topic(
                topic_id=topic_id,
                partitions=[
                    _Topic.FetchPartition(
                        partition=k.partition,
                        current_leader_epoch=p.current_leader_epoch,
                        fetch_offset=p.fetch_offset,
                        last_fetched_epoch=p.last_fetched_epoch,
                        log_start_offset=-1,
                        partition_max_bytes=p.partition_max_bytes,
                    )
                    for k, p in wanted
                    if k.topic_id == topic_id.bytes
                ],
            )
            for topic_id in dict.fromkeys(UUID(bytes=k.topic_id) for k, _ in wanted)
        ],
        forgotten_topics_data=[
            _Forgotten(topic_id=topic_id, partitions=[k.partition for k in forgotten if k.topic_id == topic_id.bytes])
            for topic_id in dict.fromkeys(UUID(bytes=k.topic_id) for k in forgotten)
        ],
        rack_id=rack_id,
        version=13,
    )
    message.with_header(correlation_id=correlation_id, client_id="kmirror")
    return bytes(message.encode(header=True, framed=True))


def answer(
    partitions: Iterable[tuple[UUID, Any]] = (), *, session_id: int = SESSION, error_code: int = 0, throttle: int = 0
) -> bytes:
    """Encode an answer with the second library, from its correlation id on."""
    by_topic: dict[UUID, list[Any]] = {}
    for topic_id, partition in partitions:
        by_topic.setdefault(topic_id, []).append(partition)
    message = FetchResponse(
        throttle_time_ms=throttle,
        error_code=error_code,
        session_id=session_id,
        responses=[_TopicAnswer(topic_id=topic_id, partitions=found) for topic_id, found in by_topic.items()],
        version=13,
    )
    message.with_header(correlation_id=1)
    return bytes(message.encode(header=True))


def partition_answer(index: int, **fields: Any) -> Any:
    usual = {
        "error_code": 0,
        "high_watermark": 10,
        "last_stable_offset": 10,
        "log_start_offset": 0,
        "aborted_transactions": [],
        "preferred_read_replica": -1,
        "records": b"",
    }
    return PartitionAnswer(partition_index=index, **(usual | fields))


def read(data: bytes) -> FetchAnswer:
    return FetchSession("kmirror", 13).answer(memoryview(data))


def full_answer() -> bytes:
    tags = {
        "diverging_epoch": PartitionAnswer.EpochEndOffset(epoch=4, end_offset=120),
        "current_leader": PartitionAnswer.LeaderIdAndEpoch(leader_id=3, leader_epoch=9),
    }
    aborted = [PartitionAnswer.AbortedTransaction(producer_id=7, first_offset=1)]
    return answer(
        [
            (A, partition_answer(0, records=b"r" * 40)),
            (A, partition_answer(1, aborted_transactions=aborted, **tags)),
            (B, partition_answer(0)),
        ]
    )
