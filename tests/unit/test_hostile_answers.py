"""Answers that no broker should have given: a frame error and a new connection at most."""

from __future__ import annotations

import socket
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st
from kafka.protocol.consumer import ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse
from kafka.protocol.producer import (
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    ProduceResponse,
    WriteTxnMarkersResponse,
)
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from kmirror.cluster.connection import ConnectFailedError, Connection
from kmirror.cluster.groups import group_members
from kmirror.cluster.groups.share_offsets import decode_altered, decode_described
from kmirror.cluster.groups.streams_groups import decode_topics
from kmirror.cluster.protocol import api_versions, fetch, list_offsets, markers, metadata, produce, transactions
from kmirror.cluster.protocol.wire import FrameError, unsigned_varint
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.security.sasl import authenticate
from kmirror.cluster.stream import Stream
from kmirror.errors import OutcomeUnknown, Reason, UnreachableError
from tests.support.fetch_messages import full_answer
from tests.support.frames import PLAIN
from tests.support.hostile import AMOUNTS, corrupted, explore

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def encoded(message: Any, version: int) -> bytes:
    """Encode an answer with the second library, from its correlation id on."""
    message.API_VERSION = version
    message.with_header(correlation_id=1)
    return bytes(message.encode(header=True))


def produced() -> bytes:
    topic = ProduceResponse.TopicProduceResponse
    part = topic.PartitionProduceResponse
    error = part.BatchIndexAndErrorMessage(batch_index=1, batch_index_error_message="too old")
    parts = [
        part(index=0, error_code=0, base_offset=5, record_errors=[], error_message=None),
        part(index=1, error_code=87, base_offset=-1, record_errors=[error], error_message="one record"),
    ]
    return encoded(ProduceResponse(responses=[topic(name="t", topic_id=ID, partition_responses=parts)]), 12)


def marked() -> bytes:
    marker = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic = marker.WritableTxnMarkerTopicResult
    part = topic.WritableTxnMarkerPartitionResult
    topics = [
        topic(name="t", partitions=[part(partition_index=0, error_code=0), part(partition_index=1, error_code=6)])
    ]
    return encoded(WriteTxnMarkersResponse(markers=[marker(producer_id=5, topics=topics)]), 1)


def added() -> bytes:
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
    part = topic.AddPartitionsToTxnPartitionResult(partition_index=1, partition_error_code=51)
    topics = [topic(name="t", results_by_partition=[part])]
    return encoded(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics), transactions.VERSION)


def listed() -> bytes:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse
    part = topic.ListOffsetsPartitionResponse(partition_index=0, error_code=0, timestamp=-1, offset=9, leader_epoch=2)
    return encoded(ListOffsetsResponse(topics=[topic(name="t", partitions=[part])]), 9)


def described(version: int, partitions: int = 1) -> bytes:
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="there", port=9092, rack="r")
    topic = MetadataResponse.MetadataResponseTopic
    parts = [
        topic.MetadataResponsePartition(
            error_code=0,
            partition_index=number,
            leader_id=1,
            leader_epoch=3,
            replica_nodes=[1, 2],
            isr_nodes=[1],
            offline_replicas=[],
        )
        for number in range(partitions)
    ]
    topics = [topic(error_code=0, name="t", topic_id=ID, is_internal=False, partitions=parts)]
    answer = MetadataResponse(brokers=[broker], cluster_id="c", controller_id=1, topics=topics)
    return encoded(answer, version)


def offered() -> bytes:
    kind = ApiVersionsResponse.ApiVersion
    kinds = [kind(api_key=key, min_version=key, max_version=key + 3) for key in range(3)]
    return encoded(ApiVersionsResponse(error_code=0, api_keys=kinds, throttle_time_ms=7), api_versions.VERSION)


DECODERS: dict[str, tuple[bytes, Callable[[memoryview], object]]] = {
    "fetch": (full_answer(), lambda frame: fetch.FetchSession("k", 13).answer(frame)),
    "fetch by name": (full_answer(), lambda frame: fetch.decode_answer(frame, {}, by_name=True)),
    "produce": (produced(), lambda frame: produce.answer(frame, 12)),
    "produce by id": (produced(), lambda frame: produce.answer(frame, 13)),
    "markers": (marked(), lambda frame: markers.answer(frame, 1)),
    "partitions of a transaction": (added(), transactions.added),
    "end of a transaction": (encoded(EndTxnResponse(error_code=51), transactions.VERSION), transactions.ended),
    "versions": (offered(), api_versions.answer),
    "offsets": (listed(), lambda frame: list_offsets.answer(frame, 9)),
    "metadata": (described(12), lambda frame: metadata.answer(frame, 12)),
    "metadata without ids": (described(9), lambda frame: metadata.answer(frame, 9)),
    "topic ids": (described(10), lambda frame: metadata.answer(frame, 10)),
    "share offsets": (listed(), decode_described),
    "share offsets set": (listed(), lambda frame: decode_altered(frame, [])),
    "topics of a streams group": (listed(), decode_topics),
    "members of consumer groups": (listed(), group_members.decode_described),
    "a member's assignment": (b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0", group_members.decode_assignment),
}


@pytest.mark.parametrize("name", DECODERS)
@AMOUNTS
def test_an_answer_is_read_or_a_frame_error(name: str, amount: int) -> None:
    sound, decode = DECODERS[name]

    def check(data: bytes) -> None:
        with suppress(FrameError):
            decode(memoryview(data))

    explore(amount, corrupted([sound]) | st.binary(max_size=60), check)


@pytest.mark.slow
def test_ten_thousand_partitions_in_one_answer_take_some_times_its_size() -> None:
    frame = memoryview(described(12, 10_000))
    found, _ = metadata.answer(frame, 12)
    assert found.topics["t"].partitions.keys() == set(range(10_000))
    tracemalloc.start()
    try:
        metadata.answer(frame, 12)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(frame)
        # a false count takes what is there, not what it says
        tracemalloc.reset_peak()
        counted = bytes(frame).replace(b"\x00" + unsigned_varint(10_001), b"\x00" + unsigned_varint((1 << 32) - 1), 1)
        assert counted != frame
        with pytest.raises(FrameError):
            metadata.answer(memoryview(counted), 12)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(frame)
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@AMOUNTS
def test_a_large_answer_is_read_or_a_frame_error(amount: int) -> None:
    # the beginning is what is spoiled; what follows it is long
    sound = described(12, 10_000)

    def check(data: bytes) -> None:
        with suppress(FrameError):
            metadata.answer(memoryview(data + sound[200:]), 12)

    explore(amount, corrupted([sound[:200]]), check)


# -- over a connection -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [("", 9092), (None, 9092), ("127.0.0.1", 0), ("127.0.0.1", -1), ("127.0.0.1", 1 << 16), ("a..b", 1), ("\0", 1)],
)
def test_an_address_that_is_none_is_a_broker_that_cannot_be_reached(address: tuple[Any, int]) -> None:
    with pytest.raises(ConnectFailedError, match="cannot connect to"):
        Connection.open(*address, PLAIN)


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


def test_a_frame_takes_memory_as_its_bytes_arrive_not_as_its_length_says() -> None:
    ours, theirs = socket.socketpair()
    before = resident_bytes()
    stream = Stream(Connection("there", 1, PLAIN, ours), 100_000)
    theirs.sendall(struct.pack(">i", 1 << 30) + bytes(50_000))
    assert stream.receive() is None
    connection = Connection("there", 1, PLAIN, theirs)
    connection._largest_frame = 1 << 30
    ours.setblocking(True)
    ours.sendall(struct.pack(">i", 1 << 30) + bytes(50_000))
    with pytest.raises(OutcomeUnknown, match="timed out"):
        connection.exchange_frame([], 1, 0.05)
    assert resident_bytes() - before < 100 << 20
    stream.close()
    connection.close()


def test_a_throttle_of_weeks_is_asked_after_within_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    ours, theirs = socket.socketpair()
    connection = Connection("there", 1, PLAIN, ours)
    connection.note_throttle((1 << 31) - 1)
    connection.wait_for_throttle()
    assert [299 < seconds <= 300 for seconds in waits] == [True]
    connection.close()
    theirs.close()


# -- logins ------------------------------------------------------------------------------------------------------------

SCRAM = client_config(
    {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="${env:PASSWORD}";',
    },
    {"PASSWORD": "secret"},
)


def logged_in(answers: Callable[[bytes], bytes | None]) -> int:
    """Log in to a broker that answers so; `%n` is the client's nonce."""
    asked: list[Any] = []

    def exchange(request: Any, version: int, timeout: float) -> Any:
        if request.name.startswith("SaslHandshake"):
            return SaslHandshakeResponse(error_code=0, mechanisms=["SCRAM-SHA-256"])
        asked.append(request)
        nonce = asked[0].auth_bytes.partition(b"r=")[2]
        return SaslAuthenticateResponse(
            error_code=0, error_message=None, auth_bytes=answers(nonce), session_lifetime_ms=0
        )

    return authenticate(exchange, SCRAM, "there:9092")


def refused(answer: bytes | None) -> UnreachableError:
    with pytest.raises(UnreachableError) as error:
        logged_in(lambda nonce: answer.replace(b"%n", nonce) if answer is not None else None)
    assert "secret" not in str(error.value)
    return error.value


@AMOUNTS
def test_a_broker_that_is_none_is_not_logged_in_to(amount: int) -> None:
    def check(answer: bytes) -> None:
        assert refused(answer).reason is Reason.AUTHENTICATION_FAILED

    explore(amount, corrupted([b"r=%n99,s=c2FsdA==,i=4096"]) | st.binary(max_size=40), check)


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"r=%n9", b"r=%n9,s=c2FsdA==,i=-1", b"r=%n9,s=c2FsdA==,i=0", b"r=%n9,s=c2FsdA==,i=2147483647", b"\xff"],
)
def test_half_an_answer_to_a_login_is_a_refusal(answer: bytes | None) -> None:
    assert "did not prove that it knows the password of u" in refused(answer).message
