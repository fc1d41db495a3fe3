"""The primitive types of Kafka's protocol: one case table drives both directions, and bad bytes end in FrameError."""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import UUID

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from kmirror.cluster.protocol import api_versions
from kmirror.cluster.protocol.wire import (
    NO_TOPIC_ID,
    FrameError,
    compact_string,
    format_topic_id,
    parse_topic_id,
    read_compact_string,
    read_unsigned_varint,
    request_header,
    skip_tagged_fields,
    tagged_fields,
    unsigned_varint,
)

VARINTS = [
    (0, b"\x00"),
    (1, b"\x01"),
    (127, b"\x7f"),
    (128, b"\x80\x01"),
    (300, b"\xac\x02"),
    (16_383, b"\xff\x7f"),
    (16_384, b"\x80\x80\x01"),
    ((1 << 31) - 1, b"\xff\xff\xff\xff\x07"),
    ((1 << 32) - 1, b"\xff\xff\xff\xff\x0f"),
]


@pytest.mark.parametrize(("value", "data"), VARINTS)
def test_an_unsigned_varint_both_ways(value: int, data: bytes) -> None:
    assert unsigned_varint(value) == data
    assert read_unsigned_varint(data, 0) == (value, len(data))
    assert read_unsigned_varint(b"??" + data + b"!", 2) == (value, 2 + len(data))


@pytest.mark.parametrize("data", [data[:cut] for _, data in VARINTS for cut in range(len(data))])
def test_a_varint_cut_short_is_a_frame_error(data: bytes) -> None:
    with pytest.raises(FrameError, match="ends in the middle of a length"):
        read_unsigned_varint(data, 0)


def test_a_varint_of_more_than_five_bytes_is_a_frame_error() -> None:
    with pytest.raises(FrameError, match="more than five bytes"):
        read_unsigned_varint(b"\x80" * 5 + b"\x01", 0)


@pytest.mark.parametrize("text", ["", "a", "Straße", "x" * 126, "x" * 127, "x" * 40_000])
def test_a_compact_string_both_ways(text: str) -> None:
    data = compact_string(text)
    assert read_compact_string(data, 0) == (text, len(data))
    assert read_compact_string(memoryview(b"??" + data + b"!"), 2) == (text, 2 + len(data))


def test_a_null_string_is_none() -> None:
    assert read_compact_string(b"\x00", 0) == (None, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x05abc", "longer than the answer"),
        (b"\xff\xff\xff\xff\x0fabc", "longer than the answer"),
        (b"\x03\xff\xfe", "not UTF-8"),
        (b"", "in the middle of a length"),
    ],
)
def test_a_string_that_cannot_be_is_a_frame_error(data: bytes, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        read_compact_string(data, 0)


TAGGED = [
    (b"\x00", {}),
    (b"\x01\x00\x03abc", {0: b"abc"}),
    (b"\x02\x01\x00\x85\x01\x02xy", {1: b"", 133: b"xy"}),
]


@pytest.mark.parametrize(("data", "fields"), TAGGED)
def test_tagged_fields(data: bytes, fields: dict[int, bytes]) -> None:
    assert tagged_fields(data + b"rest", 0) == (fields, len(data))
    assert skip_tagged_fields(data + b"rest", 0) == len(data)


@pytest.mark.parametrize("read", [skip_tagged_fields, tagged_fields])
@pytest.mark.parametrize(
    "data",
    [data[:cut] for data, _ in TAGGED for cut in range(len(data))]
    + [b"\x01\x00\xff\xff\xff\xff\x0fabc", b"\xff\xff\xff\xff\x0f" + b"\x00" * 20],
)
def test_tagged_fields_that_reach_outside_the_answer_are_a_frame_error(
    read: Callable[[bytes, int], object], data: bytes
) -> None:
    with pytest.raises(FrameError):
        read(data, 0)


@pytest.mark.parametrize("client_id", ["kmirror", "", "Zähler-1"])
def test_the_request_header_is_the_one_a_second_library_writes(client_id: str) -> None:
    message = ApiVersionsRequest(client_software_name="x", client_software_version="1", version=3)
    message.with_header(correlation_id=0x01020304, client_id=client_id)
    header = request_header(18, 3, 0x01020304, client_id)
    assert bytes(message.encode(header=True)).startswith(header)
    assert bytes(message.encode(header=True))[len(header) :] == b"\x02x\x021\x00"


def test_the_first_request_of_a_connection_is_the_one_a_second_library_writes() -> None:
    message = ApiVersionsRequest(client_software_name="kmirror", client_software_version="1", version=3)
    message.with_header(correlation_id=7, client_id="c")
    written = api_versions.exchange("kmirror").encode(7, api_versions.VERSION, "c")
    assert written == bytes(message.encode(header=True, framed=True))


@pytest.mark.parametrize("features", [[], ["metadata.version", "transaction.version"]])
def test_the_versions_are_those_that_a_second_library_writes(features: list[str]) -> None:
    kind, feature = ApiVersionsResponse.ApiVersion, ApiVersionsResponse.SupportedFeatureKey
    versions = {0: (3, 13), 18: (0, 4), 74: (0, 0)}
    message = ApiVersionsResponse(
        error_code=0,
        api_keys=[kind(api_key=key, min_version=low, max_version=high) for key, (low, high) in versions.items()],
        throttle_time_ms=250,
        supported_features=[feature(name=name, min_version=0, max_version=2) for name in features],
    )
    message.API_VERSION = 3
    message.with_header(correlation_id=7)
    assert api_versions.answer(memoryview(bytes(message.encode(header=True)))) == ((0, versions), 250)


def test_a_broker_that_does_not_know_our_first_request_says_so_in_the_oldest_layout() -> None:
    frame = struct.pack(">ihihhh", 7, 35, 1, 18, 0, 2)
    assert api_versions.answer(memoryview(frame)) == ((35, {}), 0)


def test_a_topic_id_is_printed_as_kafka_prints_it() -> None:
    # org.apache.kafka.common.Uuid.toString() of 00000000-0000-0000-0000-000000000001 and of all ones
    assert format_topic_id(UUID(int=1).bytes) == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert format_topic_id(b"\xff" * 16) == "_____________________w"
    assert format_topic_id(NO_TOPIC_ID) is None


@pytest.mark.parametrize("topic_id", [UUID(int=1).bytes, b"\xff" * 16, bytes(range(16))])
def test_a_printed_topic_id_is_read_again(topic_id: bytes) -> None:
    printed = format_topic_id(topic_id)
    assert printed is not None
    assert parse_topic_id(printed) == topic_id
