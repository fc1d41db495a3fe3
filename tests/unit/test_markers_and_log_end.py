"""WriteTxnMarkers, transactions and ListOffsets by hand, against the requests and answers of a second library."""

from __future__ import annotations

import random
from typing import Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.producer import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from kmirror.cluster.protocol import list_offsets, markers, transactions
from kmirror.cluster.protocol.markers import Fill
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import FrameError

OWN_ID = (1 << 62) + 5
MARKER_VERSIONS = range(markers.LOWEST_VERSION, markers.HIGHEST_VERSION + 1)
LOG_END_VERSIONS = range(list_offsets.LOWEST_VERSION, list_offsets.HIGHEST_VERSION + 1)

_Marker = WriteTxnMarkersResponse.WritableTxnMarkerResult
_MarkerTopic = _Marker.WritableTxnMarkerTopicResult
_MarkerPartition = _MarkerTopic.WritableTxnMarkerPartitionResult
_OffsetsTopic = ListOffsetsResponse.ListOffsetsTopicResponse
_OffsetsPartition = _OffsetsTopic.ListOffsetsPartitionResponse


def framed(answer: Any, version: int) -> memoryview:
    """Encode an answer as a broker does, and return it from its correlation id on."""
    answer.API_VERSION = version
    answer.with_header(correlation_id=7)
    return memoryview(answer.encode(header=True, framed=True))[4:]


# -- markers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", MARKER_VERSIONS)
def test_a_request_has_an_entry_for_each_offset(version: int) -> None:
    fills = [Fill("orders", 3, OWN_ID, 2, 2), Fill("ключи", 0, OWN_ID + 1, 0, 1, coordinator_epoch=90)]
    data = markers.request(11, version, "kmirror", fills, 41)
    read = WriteTxnMarkersRequest.decode(data, version=version, header=True, framed=True)
    assert (read.header.correlation_id, read.header.client_id) == (11, "kmirror")
    entries = [
        (m.producer_id, m.producer_epoch, m.transaction_result, m.coordinator_epoch, t.name, list(t.partition_indexes))
        for m in read.markers
        for t in m.topics
    ]
    assert entries == [
        (OWN_ID, 2, True, 41, "orders", [3]),
        (OWN_ID, 2, True, 41, "orders", [3]),
        (OWN_ID + 1, 0, True, 90, "ключи", [0]),
    ]
    assert {m.transaction_version for m in read.markers} == {0}


@pytest.mark.parametrize("version", MARKER_VERSIONS)
def test_a_large_request_is_read_to_its_end(version: int) -> None:
    data = markers.request(1, version, "kmirror", [Fill("t", 0, OWN_ID, 0, 20_000)], 1)
    assert len(WriteTxnMarkersRequest.decode(data, version=version, header=True, framed=True).markers) == 20_000


def marker_answer(codes: list[tuple[str, int, int]], version: int) -> memoryview:
    results = [
        _Marker(
            producer_id=OWN_ID,
            topics=[_MarkerTopic(name=topic, partitions=[_MarkerPartition(partition_index=p, error_code=code)])],
        )
        for topic, p, code in codes
    ]
    return framed(WriteTxnMarkersResponse(markers=results), version)


@pytest.mark.parametrize("version", MARKER_VERSIONS)
def test_of_several_codes_of_a_partition_the_worst_counts(version: int) -> None:
    codes = [("t", 0, 0), ("t", 0, 6), ("t", 0, 0), ("t", 1, 0), ("u", 0, 47)]
    assert markers.answer(marker_answer(codes, version), version) == {("t", 0): 6, ("t", 1): 0, ("u", 0): 47}
    assert markers.answer(marker_answer([], version), version) == {}


def test_a_marker_answer_cut_off_anywhere_is_a_frame_error() -> None:
    data = marker_answer([("topic", 0, 0), ("topic", 1, 52)], 1)
    for cut in range(4, len(data)):
        with pytest.raises(FrameError):
            markers.answer(data[:cut], 1)


# -- transactions -----------------------------------------------------------------------------------------------------

PRODUCER = (1 << 40, 7)


def test_partitions_are_added_to_the_transaction_of_a_producer() -> None:
    partitions = [TopicPartition("orders", 3), TopicPartition("ключи", 0), TopicPartition("orders", 1)]
    data = transactions.add_partitions("id-1", PRODUCER, partitions).encode(5, transactions.VERSION, "kmirror")
    read = AddPartitionsToTxnRequest.decode(data, version=transactions.VERSION, header=True, framed=True)
    assert (read.header.correlation_id, read.header.client_id) == (5, "kmirror")
    assert read.v3_and_below_transactional_id == "id-1"
    assert (read.v3_and_below_producer_id, read.v3_and_below_producer_epoch) == PRODUCER
    added = {topic.name: list(topic.partitions) for topic in read.v3_and_below_topics}
    assert added == {"orders": [3, 1], "ключи": [0]}


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_is_ended(commits: bool) -> None:
    data = transactions.end("id-1", PRODUCER, commits=commits).encode(6, transactions.VERSION, "kmirror")
    read = EndTxnRequest.decode(data, version=transactions.VERSION, header=True, framed=True)
    assert (read.header.correlation_id, read.transactional_id, read.committed) == (6, "id-1", commits)
    assert (read.producer_id, read.producer_epoch) == PRODUCER


def added_answer(codes: dict[TopicPartition, int], throttle: int = 0) -> memoryview:
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    part = topic.AddPartitionsToTxnPartitionResult
    topics = [
        topic(name=name, results_by_partition=[part(partition_index=at, partition_error_code=code)])
        for (name, at), code in codes.items()
    ]
    answer = AddPartitionsToTxnResponse(throttle_time_ms=throttle, results_by_topic_v3_and_below=topics)
    return framed(answer, transactions.VERSION)


def test_codes_of_added_partitions_and_of_a_commit_are_read() -> None:
    codes = {TopicPartition("t", 0): 0, TopicPartition("u", 4): 29}
    assert transactions.added(added_answer(codes, throttle=30)) == (codes, 30)
    committed = framed(EndTxnResponse(throttle_time_ms=20, error_code=51), transactions.VERSION)
    assert transactions.ended(committed) == (51, 20)
    for answer, read in ((added_answer(codes), transactions.added), (committed, transactions.ended)):
        for cut in range(4, len(answer)):
            with pytest.raises(FrameError):
                read(answer[:cut])


# -- log ends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LOG_END_VERSIONS)
def test_log_ends_are_asked_for_with_each_partitions_leader_epoch(version: int) -> None:
    epochs = {TopicPartition("t", 0): 5, TopicPartition("u", 2): -1, TopicPartition("t", 7): 0}
    wanted = {topic_partition: (epoch, list_offsets.LATEST) for topic_partition, epoch in epochs.items()}
    data = list_offsets.request(3, version, "kmirror", wanted, replica_id=list_offsets.DEBUGGING_REPLICA)
    read = ListOffsetsRequest.decode(data, version=version, header=True, framed=True)
    assert (read.header.correlation_id, read.replica_id, read.isolation_level) == (3, -2, 0)
    assert {
        TopicPartition(topic.name, p.partition_index): (p.current_leader_epoch, p.timestamp)
        for topic in read.topics
        for p in topic.partitions
    } == {partition: (epoch, -1) for partition, epoch in epochs.items()}


def offsets_answer(found: dict[TopicPartition, tuple[int, int]], version: int, throttle: int = 0) -> memoryview:
    topics = [
        _OffsetsTopic(
            name=topic,
            partitions=[_OffsetsPartition(partition_index=p, error_code=code, timestamp=-1, offset=at, leader_epoch=4)],
        )
        for (topic, p), (code, at) in found.items()
    ]
    return framed(ListOffsetsResponse(throttle_time_ms=throttle, topics=topics), version)


@pytest.mark.parametrize("version", LOG_END_VERSIONS)
def test_log_ends_are_read(version: int) -> None:
    found = {TopicPartition("t", 0): (0, 1 << 40), TopicPartition("t", 1): (74, -1), TopicPartition("u", 0): (0, 0)}
    data = offsets_answer(found, version, throttle=250)
    assert list_offsets.answer(data, version) == (
        {
            TopicPartition("t", 0): (0, 1 << 40, 4, None),
            TopicPartition("t", 1): (74, None, 4, None),
            TopicPartition("u", 0): (0, 0, 4, None),
        },
        250,
    )


def test_a_log_end_answer_cut_off_anywhere_is_a_frame_error() -> None:
    data = offsets_answer({TopicPartition("topic", 0): (0, 3), TopicPartition("u", 0): (0, 3)}, 7)
    for cut in range(4, len(data)):
        with pytest.raises(FrameError):
            list_offsets.answer(data[:cut], 7)


def test_garbage_is_an_answer_or_a_frame_error() -> None:
    rng = random.Random(3)
    whole = (
        (bytes(marker_answer([("topic", 0, 0), ("topic", 1, 52)], 1)), lambda data: markers.answer(data, 1)),
        (bytes(offsets_answer({TopicPartition("topic", 0): (0, 3)}, 7)), lambda data: list_offsets.answer(data, 7)),
        (bytes(added_answer({TopicPartition("topic", 0): 0})), transactions.added),
    )
    refused = 0
    for data, read in whole:
        for position in range(4, len(data)):
            for garbage in (b"\xff", b"\xff\xff\xff\xff\x0f", b"\x00", rng.randbytes(4)):
                broken = bytearray(data)
                broken[position : position + len(garbage)] = garbage
                try:
                    read(memoryview(broken))
                except FrameError:
                    refused += 1
    assert refused > 50
