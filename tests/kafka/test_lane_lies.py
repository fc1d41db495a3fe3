"""A source whose answers are not true, before a lane: one partition fails and says why, the others are copied."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import pytest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse
from kafka.protocol.producer import ProduceResponse

from kmirror.cluster.protocol import fetch
from kmirror.cluster.protocol.wire import FrameError
from kmirror.engine.lane.partition import source_view
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.errors import Reason
from tests.support.hostile import repaired
from tests.support.lane import Mirror, copy_of, fill
from tests.support.shared_clusters import ForgetfulCluster
from tests.support.visible import shown
from tests.support.wire import API_VERSIONS, FETCH, METADATA, PRODUCE, Fault, Wire

RECORDS = 30

#: Change what a partition's part of an answer holds, in place.
Change = Callable[[memoryview], None]


def put(layout: str, *fields: tuple[int, int], mend: bool = True) -> Change:
    """Return the change of numbers in the header of the first batch."""

    def change(records: memoryview) -> None:
        size = 12 + struct.unpack_from(">i", records, 8)[0]
        for position, value in fields:
            struct.pack_into(layout, records, position, value)
        if mend and size <= len(records):
            records[:size] = repaired(bytearray(records[:size]))

    return change


def moved(by: int) -> Change:
    def change(records: memoryview) -> None:
        (base,) = struct.unpack_from(">q", records)
        struct.pack_into(">q", records, 0, base + by)

    return change


def more_records_than_there_are(records: memoryview) -> None:
    """Claim five more, at five more offsets."""
    (delta,) = struct.unpack_from(">i", records, 23)
    put(">i", (23, delta + 5), (57, delta + 6))(records)


class Lie(NamedTuple):
    name: str
    change: Change
    reason: Reason
    message: str


CORRUPT = Reason.CORRUPT_BATCH
LIES = [
    Lie("a base offset moved on", moved(1000), CORRUPT, "above its own high watermark"),
    Lie("one moved to the end of all offsets", moved((1 << 63) - 1), CORRUPT, "no log has such an offset"),
    Lie("one moved back", moved(-1000), CORRUPT, "no log has such an offset"),
    Lie("more offsets than there are", put(">i", (23, 1 << 30)), CORRUPT, "above its own high watermark"),
    Lie("a negative number of offsets", put(">i", (23, -7)), CORRUPT, "records at"),
    Lie("a negative number of records", put(">i", (57, -7)), CORRUPT, "records at"),
    Lie("more records than there are", more_records_than_there_are, Reason.RECORD_REJECTED, "rejects the batch"),
    Lie("a wrong checksum", put(">i", (17, 12345), mend=False), CORRUPT, "checksum"),
    Lie("a length that is negative", put(">i", (8, -5), mend=False), CORRUPT, "its length field says -5"),
    Lie("a length of 2 GB", put(">i", (8, (1 << 31) - 1), mend=False), CORRUPT, "never the rest"),
    Lie("a format to come", put(">b", (16, 9), mend=False), Reason.UNSUPPORTED_MESSAGE_FORMAT, "message format 9"),
    Lie("a codec to come", put(">h", (21, 7)), Reason.UNSUPPORTED_MESSAGE_FORMAT, "compression type 7"),
]
HONEST = len(LIES)


def lying_about(topic_id: bytes, changes: dict[int, Change]) -> Fault:
    """Return the fault of a Fetch answer with changed records of some partitions of a topic."""

    def fault(frame: bytes) -> bytes:
        answer = bytearray(frame)
        try:
            found, _ = fetch.decode_answer(memoryview(answer)[4:], {}, by_name=False)
        except (FrameError, struct.error, IndexError):
            return frame
        for part in found.partitions:
            change = changes.get(part.key.partition) if part.key.topic_id == topic_id else None
            if change is not None and len(part.records) > 61:
                change(part.records)
        return bytes(answer)

    return fault


@pytest.fixture
def wire(forgetful: ForgetfulCluster) -> Wire:
    return forgetful.wire


@pytest.fixture
def looped(forgetful: ForgetfulCluster) -> Iterator[Mirror]:
    """Return a mirror from topics to topics of the same cluster, whose broker is reached through a wire only."""
    with closing(Mirror(forgetful.behind_wire, forgetful.behind_wire)) as made:
        yield made


@pytest.mark.slow
def test_each_lie_fails_its_partition_and_no_other(looped: Mirror, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_view, "_NOTHING_SECONDS", 0.3)
    topic = looped.topic(partitions=HONEST + 1)
    for partition in range(HONEST + 1):
        fill(looped, topic, RECORDS, partition)
    topic_id = looped.at_source.metadata([topic]).topics[topic].topic_id
    wire.lie(FETCH, lying_about(topic_id, {index: lie.change for index, lie in enumerate(LIES)}))
    lane = looped.start()
    try:

        def failed(index: int) -> PartitionCopy | None:
            copy = copy_of(lane, looped.mirror_of(topic), index)
            return copy if copy.retry.failure else None

        looped.wait(lane, lambda: all(failed(index) for index in range(len(LIES))))
        for index, lie in enumerate(LIES):
            copy = failed(index)
            assert copy is not None
            assert copy.retry.failure is not None
            found = copy.retry.failure
            assert (lie.name, found.reason) == (lie.name, lie.reason), found.message
            assert lie.message in found.message, lie.name
        fill(looped, topic, RECORDS, HONEST)
        honest = f"{looped.mirror_of(topic)}-{HONEST}"
        looped.wait(lane, lambda: looped.destination_ends()[honest] == 2 * RECORDS)
        assert lane.control.ended is None
        ends = looped.destination_ends()
        assert [ends[f"{looped.mirror_of(topic)}-{index}"] for index in range(len(LIES))] == [0] * len(LIES)
    finally:
        wire.lie(FETCH, None)
    for index in range(len(LIES)):
        copy_of(lane, looped.mirror_of(topic), index).retry.wake_at = 0.0
    looped.wait_copied(lane)
    looped.stop(lane)
    for index in range(HONEST + 1):
        assert shown(looped.destination, looped.mirror_of(topic), index) == shown(looped.source, topic, index)


def rewritten(response: type, change: Callable[[object], None]) -> Fault:
    """Return the fault of an answer that is decoded, changed, and encoded again, whatever its version."""

    def fault(frame: bytes) -> bytes:
        for version in range(response.max_version, response.min_version - 1, -1):  # type: ignore[attr-defined]
            try:
                answer = response.decode(memoryview(frame)[4:], version=version, header=True)  # type: ignore[attr-defined]
                sound = bytes(answer.encode(header=True, framed=True))
            except (ValueError, IndexError, struct.error):
                continue
            if sound == frame:
                change(answer)
                return bytes(answer.encode(header=True, framed=True))
        return frame

    return fault


def lying_about_appends(topic_id: bytes) -> Callable[[object], None]:
    """Return the change of answers to appends: the first partition's landed elsewhere, the second's is a mystery."""

    def change(answer: object) -> None:
        for topic in answer.responses:  # type: ignore[attr-defined]
            for part in topic.partition_responses if topic.topic_id.bytes == topic_id else ():
                if part.index == 0:
                    part.base_offset += 7
                elif part.index == 1:
                    part.error_code, part.base_offset = 999, -1

    return change


def test_a_destination_that_does_not_say_what_it_did_is_not_believed(looped: Mirror, wire: Wire) -> None:
    topic = looped.topic(partitions=3)
    for partition in range(3):
        fill(looped, topic, RECORDS, partition)
    mirrored = looped.mirror_of(topic)
    topic_id = looped.at_destination.metadata([mirrored]).topics[mirrored].topic_id
    looped.claim()
    wire.lie(PRODUCE, rewritten(ProduceResponse, lying_about_appends(topic_id)))
    try:
        lane = looped.start(claim=False)
        moved_on, mystery, honest = (copy_of(lane, mirrored, partition) for partition in range(3))
        looped.wait(lane, lambda: moved_on.retry.failure)
        looped.wait(lane, lambda: mystery.progress.acknowledged == honest.progress.acknowledged == RECORDS)
        assert moved_on.retry.failure is not None
        assert moved_on.retry.failure.reason is Reason.OFFSET_MISMATCH
        assert any("refused: error (999)" in line for line in mystery.history)
        assert lane.control.ended is None
    finally:
        wire.lie(PRODUCE, None)
    looped.stop(lane)
    for partition in (1, 2):
        assert shown(looped.destination, mirrored, partition) == shown(looped.source, topic, partition)


def without_address(answer: object) -> None:
    for broker in answer.brokers:  # type: ignore[attr-defined]
        broker.host = ""


def with_an_absurd_port(answer: object) -> None:
    for broker in answer.brokers:  # type: ignore[attr-defined]
        broker.port = 1 << 20


def without_apis(answer: object) -> None:
    answer.api_keys.clear()  # type: ignore[attr-defined]


def with_absurd_versions(answer: object) -> None:
    for key in answer.api_keys:  # type: ignore[attr-defined]
        key.min_version, key.max_version = 30_000, -30_000


@pytest.mark.parametrize(
    ("api_key", "fault"),
    [
        pytest.param(METADATA, rewritten(MetadataResponse, without_address), id="no address"),
        pytest.param(METADATA, rewritten(MetadataResponse, with_an_absurd_port), id="no port", marks=pytest.mark.long),
        pytest.param(API_VERSIONS, rewritten(ApiVersionsResponse, without_apis), id="no apis"),
        pytest.param(
            API_VERSIONS,
            rewritten(ApiVersionsResponse, with_absurd_versions),
            id="no versions",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_lie_about_the_cluster_is_waited_out(looped: Mirror, wire: Wire, api_key: int, fault: Fault) -> None:
    topic = looped.topic()
    fill(looped, topic, RECORDS)
    looped.claim()
    spoiled = wire.spoiled
    wire.lie(api_key, fault)
    try:
        lane = looped.start(claim=False)
        looped.wait(lane, lambda: wire.spoiled >= spoiled + 3)
        assert lane.control.ended is None
    finally:
        wire.lie(api_key, None)
    looped.wait_copied(lane)
    assert looped.stop(lane).ended == "STOPPED"
