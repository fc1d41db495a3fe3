"""Fetches by name: their requests, held against a second implementation, and what proves whose records they bring."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from uuid import UUID

import pytest
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from kmirror.cluster.protocol import metadata
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fetch import FetchAnswer, FetchedPartition, FetchKey, FetchPosition, FetchSession
from kmirror.cluster.protocol.wire import FrameError
from kmirror.engine.lane.brokers.topic_proof import TopicProof
from tests.support.fetch_messages import SESSION, A, B

ORDERS, AUDIT = FetchKey(A.bytes, 0, "orders"), FetchKey(B.bytes, 2, "ängste")
AT = FetchPosition(5, 1, 7, 1000)
VERSION = metadata.FIRST_VERSION_WITH_TOPIC_IDS
#: The cluster's authorized operations and tagged fields, which are not read.
AFTER_TOPICS = 5


# -- requests and answers -------------------------------------------------------------------------------------------


def test_a_request_names_topics_and_forgets_them_by_name() -> None:
    session = FetchSession("kmirror", 12)
    for key in (ORDERS, AUDIT):
        session.want(key, AT)
    assert session.by_name
    assert not FetchSession("kmirror", 13).by_name
    assert session.request(1, max_wait_ms=5, max_bytes=9) == fetch_request(1, (0, 0), ["orders", "ängste"])
    session.answer(memoryview(fetch_answer({})))
    session.forget(AUDIT)
    assert session.request(2, max_wait_ms=5, max_bytes=9) == fetch_request(2, (SESSION, 1), [], {"ängste": [2]})


def test_an_answer_by_name_is_given_back_by_the_key_that_was_wanted() -> None:
    session = FetchSession("kmirror", 12)
    session.want(AUDIT, AT)
    session.request(1, max_wait_ms=5, max_bytes=9)
    (part, other) = session.answer(memoryview(fetch_answer({"ängste": b"abc", "other": b""}))).partitions
    assert (part.key, bytes(part.records), part.high_watermark) == (AUDIT, b"abc", 10)
    assert other.key.topic == ""
    with pytest.raises(FrameError):
        session.answer(memoryview(fetch_answer({"ängste": b"abc"}))[:-9])


def fetch_request(
    correlation_id: int, session: tuple[int, int], topics: Iterable[str], gone: Mapping[str, list[int]] | None = None
) -> bytes:
    topic, forgotten = FetchRequest.FetchTopic, FetchRequest.ForgottenTopic
    index = {"orders": 0, "ängste": 2}
    message = FetchRequest(
        replica_id=-1,
        max_wait_ms=5,
        min_bytes=1,
        max_bytes=9,
        isolation_level=1,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            topic(
                topic=name,
                partitions=[
                    topic.FetchPartition(
                        partition=index[name],
                        current_leader_epoch=AT.current_leader_epoch,
                        fetch_offset=AT.fetch_offset,
                        last_fetched_epoch=AT.last_fetched_epoch,
                        log_start_offset=-1,
                        partition_max_bytes=AT.partition_max_bytes,
                    )
                ],
            )
            for name in topics
        ],
        forgotten_topics_data=[forgotten(topic=name, partitions=found) for name, found in (gone or {}).items()],
        rack_id="",
        version=12,
    )
    message.with_header(correlation_id=correlation_id, client_id="kmirror")
    return bytes(message.encode(header=True, framed=True))


def fetch_answer(records: Mapping[str, bytes]) -> bytes:
    topic = FetchResponse.FetchableTopicResponse
    parts = {
        name: topic.PartitionData(
            partition_index=2,
            error_code=0,
            high_watermark=10,
            last_stable_offset=10,
            log_start_offset=0,
            aborted_transactions=[],
            preferred_read_replica=-1,
            records=data,
        )
        for name, data in records.items()
    }
    answers = [topic(topic=name, partitions=[part]) for name, part in parts.items()]
    message = FetchResponse(throttle_time_ms=0, error_code=0, session_id=SESSION, responses=answers, version=12)
    message.with_header(correlation_id=1)
    return bytes(message.encode(header=True))


# -- topics' ids ----------------------------------------------------------------------------------------------------


def test_ids_are_asked_for_and_read_as_a_second_implementation_writes_them() -> None:
    topic = MetadataRequest.MetadataRequestTopic
    message = MetadataRequest(
        topics=[topic(topic_id=UUID(int=0), name=name) for name in ("orders", "ängste")],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
        version=VERSION,
    )
    message.with_header(correlation_id=7, client_id="kmirror")
    asked = metadata.request(7, VERSION, "kmirror", ["orders", "ängste"])
    assert asked == message.encode(header=True, framed=True)
    data = ids_answer(7, {"orders": A, "ängste": B, "gone": None})
    found, _ = metadata.answer(memoryview(data), VERSION)
    topics = {name: (topic.error_code, topic.topic_id) for name, topic in found.topics.items()}
    assert topics == {"orders": (0, A.bytes), "ängste": (0, B.bytes), "gone": (3, bytes(16))}
    for end in range(4, len(data) - AFTER_TOPICS):
        with pytest.raises(FrameError):
            metadata.answer(memoryview(data)[:end], VERSION)


def ids_answer(correlation_id: int, ids: Mapping[str, UUID | None]) -> bytes:
    broker, topic = MetadataResponse.MetadataResponseBroker, MetadataResponse.MetadataResponseTopic
    partition = topic.MetadataResponsePartition
    message = MetadataResponse(
        throttle_time_ms=0,
        brokers=[broker(node_id=1, host="h", port=2, rack=rack) for rack in (None, "r")],
        cluster_id="c",
        controller_id=1,
        topics=[
            topic(
                error_code=0 if topic_id else 3,
                name=name,
                topic_id=topic_id or UUID(int=0),
                is_internal=False,
                partitions=[
                    partition(
                        error_code=0,
                        partition_index=index,
                        leader_id=1,
                        leader_epoch=0,
                        replica_nodes=[1, 2],
                        isr_nodes=[1],
                        offline_replicas=[],
                    )
                    for index in range(2 if topic_id else 0)
                ],
                authorized_operations=None,
            )
            for name, topic_id in ids.items()
        ],
        authorized_operations=None,
        version=VERSION,
    )
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True))


# -- proof ----------------------------------------------------------------------------------------------------------

FRAME = memoryview(b"....the answer's frame")


def part_of(key: FetchKey, records: bytes = b"", error_code: int = 0) -> FetchedPartition:
    return FetchedPartition(key, error_code, 10, 10, 0, (), memoryview(records), None)


class Broker:
    """Answer a proof's questions: each request is asked in turn, and knows the ids of the moment."""

    def __init__(self) -> None:
        self.proof = TopicProof("kmirror", count(1).__next__)
        self.ids: dict[str, UUID | None] = {"orders": A, "ängste": B}
        self._asked = 0

    def frames(self, requests: list[bytes]) -> list[memoryview]:
        """Return the answers to requests."""
        self._asked += len(requests)
        return [memoryview(ids_answer(self._asked, self.ids)) for _ in requests]

    def codes(self, *parts: FetchedPartition) -> dict[str, int]:
        """Have one fetch answered with these; return their error codes, once they are proven."""
        behind = self.frames(self.proof.begin())
        proven, questions = self.proof.hold(FetchAnswer(0, 0, list(parts)), FRAME)
        for view in behind + self.frames(questions):
            assert proven is None
            assert self.proof.expects(view)
            proven = self.proof.learn(view)
        assert proven is not None
        assert proven[1] is FRAME
        assert all(not len(part.records) for part in proven[0].partitions if part.error_code)
        return {part.key.topic: part.error_code for part in proven[0].partitions}


def test_nothing_is_taken_before_the_ids_are_known() -> None:
    broker = Broker()
    assert broker.proof.begin() == []
    proven, (question,) = broker.proof.hold(FetchAnswer(0, 0, [part_of(ORDERS, b"r")]), FRAME)
    assert proven is None
    assert question == metadata.request(1, VERSION, "kmirror", ["orders"])
    # the next fetch asks behind itself for what brought records last
    proven = broker.proof.learn(memoryview(ids_answer(1, broker.ids)))
    assert proven is not None
    assert broker.proof.begin() == [metadata.request(2, VERSION, "kmirror", ["orders"])]


def test_an_answer_without_partitions_needs_no_proof_and_what_is_learnt_for_it_counts_for_no_other() -> None:
    broker = Broker()
    assert broker.codes(part_of(ORDERS, b"r")) == {"orders": 0}
    behind = broker.frames(broker.proof.begin())
    assert broker.proof.hold(FetchAnswer(0, 0, []), FRAME) == ((FetchAnswer(0, 0, []), FRAME), [])
    second = broker.proof.begin()  # its answer is not here yet, the first one's ids are
    assert broker.proof.learn(behind[0]) is None
    assert not broker.proof.expects(behind[0])
    broker.ids["orders"] = UUID(int=9)
    proven, questions = broker.proof.hold(FetchAnswer(0, 0, [part_of(ORDERS, b"r")]), FRAME)
    assert (proven, questions) == (None, [])
    proven = broker.proof.learn(broker.frames(second)[0])
    assert proven is not None
    assert [part.error_code for part in proven[0].partitions] == [Code.UNKNOWN_TOPIC_ID]


@pytest.mark.parametrize("now_there", [UUID(int=9), UUID(int=0), None])
def test_what_is_of_another_topic_is_refused_as_a_fetch_by_id_is(now_there: UUID | None) -> None:
    broker = Broker()
    broker.ids["orders"] = now_there
    found = broker.codes(part_of(ORDERS, b"r"), part_of(AUDIT, b"r"))
    assert found == {"orders": Code.UNKNOWN_TOPIC_ID, "ängste": 0}


def test_ends_without_records_are_proven_too_and_errors_need_no_proof() -> None:
    broker = Broker()
    broker.ids["orders"] = UUID(int=9)
    assert broker.codes(part_of(ORDERS), part_of(AUDIT, error_code=6)) == {
        "orders": Code.UNKNOWN_TOPIC_ID,
        "ängste": 6,
    }
