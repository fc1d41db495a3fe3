"""Produce requests and answers, held byte for byte against a second implementation of the protocol."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from kmirror.cluster.protocol.produce import Append, AppendAnswer, answer, least_answer_bytes, request
from kmirror.cluster.protocol.wire import FrameError

A = UUID("00112233-4455-6677-8899-aabbccddeeff")
B = UUID("ffeeddcc-bbaa-9988-7766-554433221100")
IDS = {"a": A, "bë": B}

_Topic = ProduceRequest.TopicProduceData
_TopicAnswer = ProduceResponse.TopicProduceResponse
_PartitionAnswer = _TopicAnswer.PartitionProduceResponse
_RecordError = _PartitionAnswer.BatchIndexAndErrorMessage


def append(topic: str, partition: int, batch: bytes | bytearray | memoryview) -> Append:
    return Append(topic, IDS[topic].bytes, partition, batch)


def expected_request(version: int, appends: Sequence[Append]) -> bytes:
    """Encode the request with the second library."""
    message = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            _Topic(
                name=topic,
                topic_id=IDS[topic],
                partition_data=[
                    _Topic.PartitionProduceData(index=a.partition, records=bytes(a.batch))
                    for a in appends
                    if a.topic == topic
                ],
            )
            for topic in dict.fromkeys(a.topic for a in appends)
        ],
        version=version,
    )
    message.with_header(correlation_id=9, client_id="kmirror")
    return bytes(message.encode(header=True, framed=True))


def encoded_answer(version: int, partitions: Iterable[tuple[str, Any]] = (), throttle: int = 0) -> bytes:
    """Encode an answer with the second library, from its correlation id on."""
    by_topic: dict[str, list[Any]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    message = ProduceResponse(
        responses=[
            _TopicAnswer(name=topic, topic_id=IDS[topic], partition_responses=found)
            for topic, found in by_topic.items()
        ],
        throttle_time_ms=throttle,
        version=version,
    )
    message.with_header(correlation_id=9)
    return bytes(message.encode(header=True))


def partition_answer(index: int, **fields: Any) -> Any:
    usual = {
        "error_code": 0,
        "base_offset": 100,
        "log_append_time_ms": -1,
        "log_start_offset": 0,
        "record_errors": [],
        "error_message": None,
    }
    return _PartitionAnswer(index=index, **(usual | fields))


def named(version: int, topic: str) -> str | bytes:
    return IDS[topic].bytes if version >= 13 else topic


@pytest.mark.parametrize("version", [11, 12, 13])
@pytest.mark.parametrize(
    "appends",
    [
        [],
        [append("a", 0, b"x" * 61)],
        [append("a", 0, b"x" * 61), append("a", 1, b"y" * 126), append("bë", 7, b"z" * 127)],
        [append("a", p, bytes([p]) * (p * 100)) for p in range(200)],
        [append("bë", 3, bytearray(b"r" * 200_000)), append("a", 4, memoryview(b"-ss-")[1:3])],
    ],
    ids=["none", "one", "three", "many", "large"],
)
def test_a_request_is_the_one_a_second_library_writes(version: int, appends: list[Append]) -> None:
    buffers = request(9, version, "kmirror", appends, acks=-1, timeout_ms=30_000)
    assert b"".join(buffers) == expected_request(version, appends)


def test_no_batch_is_copied() -> None:
    batches = [memoryview(bytearray(100)), memoryview(bytearray(200))]
    buffers = request(9, 13, "kmirror", [append("a", i, b) for i, b in enumerate(batches)], acks=-1, timeout_ms=1)
    assert [b for b in buffers if isinstance(b, memoryview)] == batches
    assert all(any(b is batch for b in buffers) for batch in batches)


@pytest.mark.parametrize("version", [11, 12, 13])
def test_an_answer_for_many_partitions(version: int) -> None:
    data = encoded_answer(
        version,
        [
            ("a", partition_answer(0, base_offset=1 << 40)),
            ("a", partition_answer(5, error_code=45, base_offset=-1)),
            ("bë", partition_answer(1, error_code=87, base_offset=-1, error_message="no")),
            ("bë", partition_answer(2, log_append_time_ms=1_700_000_000_000)),
        ],
        throttle=250,
    )
    a, b = named(version, "a"), named(version, "bë")
    assert answer(memoryview(data), version) == (
        [
            AppendAnswer(a, 0, 0, 1 << 40, None),
            AppendAnswer(a, 5, 45, -1, None),
            AppendAnswer(b, 1, 87, -1, "no"),
            AppendAnswer(b, 2, 0, 100, None, 1_700_000_000_000),
        ],
        250,
    )


@pytest.mark.parametrize("version", [11, 12, 13])
@pytest.mark.parametrize("count", [1, 8, 200])
def test_no_answer_is_shorter_than_said(version: int, count: int) -> None:
    for code, base_offset in ((0, 5), (45, -1)):
        rows = [("a", partition_answer(number, error_code=code, base_offset=base_offset)) for number in range(count)]
        size = 4 + len(encoded_answer(version, rows))
        assert size - 20 <= least_answer_bytes(count) <= size


@pytest.mark.parametrize("version", [11, 13])
def test_an_answer_for_nothing(version: int) -> None:
    assert answer(memoryview(encoded_answer(version)), version) == ([], 0)


@pytest.mark.parametrize("version", [11, 13])
def test_the_error_of_a_record_says_more_than_that_of_its_batch(version: int) -> None:
    errors = [
        _RecordError(batch_index=0, batch_index_error_message="too old"),
        _RecordError(batch_index=3, batch_index_error_message="much too old"),
    ]
    refused = partition_answer(0, error_code=32, record_errors=errors, error_message="one or more records")
    plain = partition_answer(1)
    data = encoded_answer(version, [("a", refused), ("a", plain)])
    first, second = answer(memoryview(data), version)[0]
    assert (first.error_code, first.error_message) == (32, "much too old")
    assert (second.error_code, second.error_message, second.base_offset) == (0, None, 100)


@pytest.mark.parametrize("version", [11, 13])
def test_tagged_fields_are_skipped(version: int) -> None:
    leader = _PartitionAnswer.LeaderIdAndEpoch(leader_id=2, leader_epoch=5)
    moved = partition_answer(0, error_code=6, base_offset=-1, current_leader=leader)
    message = ProduceResponse(
        responses=[_TopicAnswer(name="a", topic_id=A, partition_responses=[moved, partition_answer(1)])],
        throttle_time_ms=7,
        node_endpoints=[ProduceResponse.NodeEndpoint(node_id=2, host="h", port=9092, rack=None)],
        version=version,
    )
    message.with_header(correlation_id=9)
    found, throttle_time_ms = answer(memoryview(bytes(message.encode(header=True))), version)
    assert [(f.partition, f.error_code) for f in found] == [(0, 6), (1, 0)]
    assert throttle_time_ms == 7


def full_answer(version: int) -> bytes:
    errors = [_RecordError(batch_index=0, batch_index_error_message="too old")]
    return encoded_answer(
        version,
        [
            ("a", partition_answer(0)),
            ("bë", partition_answer(1, error_code=32, record_errors=errors, error_message="wrong")),
        ],
        throttle=5,
    )


@pytest.mark.parametrize("version", [11, 13])
def test_an_answer_cut_off_anywhere_is_a_frame_error(version: int) -> None:
    data = full_answer(version)
    # The last byte counts the tagged fields of the whole answer; none is of interest, so it is not read.
    for cut in range(len(data) - 1):
        with pytest.raises(FrameError):
            answer(memoryview(data[:cut]), version)


@pytest.mark.parametrize("version", [11, 13])
def test_garbage_in_any_place_is_an_answer_or_a_frame_error(version: int) -> None:
    data = full_answer(version)
    rng = random.Random(3)
    refused = 0
    for position in range(4, len(data)):
        for garbage in (b"\xff", b"\xff\xff\xff\xff\x0f", b"\x00", rng.randbytes(8)):
            broken = bytearray(data)
            broken[position : position + len(garbage)] = garbage
            try:
                answer(memoryview(broken), version)
            except FrameError:
                refused += 1
    assert refused > 100
