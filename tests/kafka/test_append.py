"""What brokers do with appended batches: the facts on which equal offsets rest, on each version there is."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from kmirror.cluster.producers import describe_producers
from kmirror.cluster.protocol.batch import batch_headers, crc_of, set_producer
from kmirror.cluster.protocol.batch_records import Record, make_batch, read_records
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.produce import FIRST_VERSION_WITH_TOPIC_IDS, Append
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.kafka_versions import EVERY_VERSION, is_older
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic, delete_topic, young
from tests.support.librdkafka import librdkafka
from tests.support.producers import whole_batches
from tests.support.shared_clusters import forgetful_cluster
from tests.support.stored import first_difference, stored_batches
from tests.support.waiting import wait_until

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
DAY_MS = 86_400_000


@pytest.fixture(scope="module", params=EVERY_VERSION)
def cluster(request: pytest.FixtureRequest) -> SandboxCluster:
    """Return a cluster that looks for expired producer ids all the time; how long they live is as everywhere, a day."""
    return forgetful_cluster(request, request.param)


@pytest.fixture
def forgetting(quick_to_forget: SandboxCluster) -> Iterator[Leader]:
    """Return the leader of a new topic there."""
    with Leader(quick_to_forget, create_topic(quick_to_forget)) as found:
        yield found


@pytest.fixture
def leader(cluster: SandboxCluster) -> Iterator[Leader]:
    """Return the leader of a new topic of one partition."""
    with Leader(cluster, create_topic(cluster)) as found:
        yield found


def changed(batch: bytearray, layout: str, position: int, value: int) -> bytearray:
    struct.pack_into(layout, batch, position, value)
    struct.pack_into(">I", batch, 17, crc_of(memoryview(batch)))
    return batch


def torn(batch: bytearray) -> bytearray:
    batch[-2] ^= 1
    return batch


# -- batches are kept as they are -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_an_appended_batch_is_stored_unchanged_but_for_offset_and_epoch(cluster: SandboxCluster, codec: str) -> None:
    source, destination = create_topic(cluster), create_topic(cluster)
    producer = whole_batches(source, {"bootstrap.servers": cluster.bootstrap_servers, "compression.type": codec})
    for number in range(40):
        headers = [("h", b"x"), ("h", None), ("", b"")] if number % 3 else []
        key, value = (None if number % 5 == 0 else b"k%d" % number), (None if number % 7 == 0 else b"v" * number * 50)
        producer.produce(source, value, key, 0, headers=headers, timestamp=1_600_000_000_000 - number)
        if number % 10 == 9:
            assert producer.flush(30) == 0
    with Leader(cluster, source) as read, Leader(cluster, destination) as write:
        data = read.fetch(0).records
        headers_of = list(batch_headers(data))
        assert [(h.record_count, h.compression_type) for h in headers_of] == [(10, codec)] * 4
        sent = []
        for header in headers_of:
            batch = bytearray(data[header.position : header.position + header.size_in_bytes])
            assert write.append(batch, header.base_offset) == (0, header.base_offset)
            sent.append(bytes(batch))
        kept = write.fetch(0).records
        for header, was_sent in zip(batch_headers(kept), sent, strict=True):
            stored = bytes(kept[header.position : header.position + header.size_in_bytes])
            assert stored[8:12] + stored[16:] == was_sent[8:12] + was_sent[16:]  # all but base offset and leader epoch
            assert crc_of(memoryview(stored)) == header.crc
    log_dir = cluster.brokers[0].log_dir
    assert first_difference(log_dir, log_dir, source, 0, destination, same_batches=True) is None


@pytest.mark.parametrize("codec", CODECS)
def test_batches_made_here_are_read_by_java(cluster: SandboxCluster, codec: str) -> None:
    """A topic with a codec of its own makes the broker decode and re-encode every record."""
    records = [
        Record(0, 1_600_000_000_000, b"k", b"v" * 3000, (("h", b"x"), ("n", None))),
        Record(1, 1_600_000_000_005, None, b""),
        Record(2, 1_600_000_000_001, b"", None),
    ]
    other = "gzip" if codec == "zstd" else "zstd"
    with Leader(cluster, create_topic(cluster, settings={"compression.type": other})) as leader:
        assert leader.append_as_is(make_batch(records, compression_type=codec)).error_code == 0
        data = leader.fetch(0).records
        (header,) = batch_headers(data)
        assert header.compression_type == other
        assert list(read_records(data, header)) == records


def test_one_request_for_many_partitions_is_answered_for_each(cluster: SandboxCluster) -> None:
    topic = create_topic(cluster, partitions=20)
    with Leader(cluster, topic) as leader:
        batches = [batch_of(1 + p) for p in range(20)]
        for batch in batches:
            set_producer(memoryview(batch), OWN_ID, 0, 0)
        torn(batches[7])
        answers = leader.as_is(*[Append(topic, leader.topic_id, p, batch) for p, batch in enumerate(batches)])
        assert {a.partition: a.error_code for a in answers} == {
            p: Code.CORRUPT_MESSAGE if p == 7 else 0 for p in range(20)
        }


def test_requests_on_one_connection_are_carried_out_in_order(leader: Leader) -> None:
    from kmirror.cluster.protocol import produce
    from kmirror.cluster.protocol.wire import INT32
    from kmirror.cluster.stream import Stream

    stream = Stream(leader.connection, 1 << 20)
    sent = []
    for number in range(5):
        batch = batch_of(3, timestamp=young())
        set_producer(memoryview(batch), OWN_ID, 0, number * 3)
        correlation_id = leader.connection.next_correlation_id()
        append = Append(leader.partition.topic, leader.topic_id, 0, batch)
        version = leader.produce_version
        stream.send(produce.request(correlation_id, version, "kmirror", [append], acks=-1, timeout_ms=9000))
        sent.append(correlation_id)
    answered: list[tuple[int, int, int]] = []
    while len(answered) < 5:
        frame = stream.receive()
        if frame is not None:
            ((answer,), _) = produce.answer(frame, version)
            answered.append((INT32.unpack_from(frame)[0], answer.error_code, answer.base_offset))
    assert answered == [(correlation_id, 0, i * 3) for i, correlation_id in enumerate(sent)]


REFUSED: dict[str, tuple[Callable[[], bytearray], Code]] = {
    "a wrong checksum": (lambda: torn(batch_of()), Code.CORRUPT_MESSAGE),
    "fewer records than offsets": (lambda: changed(batch_of(3), ">i", 23, 5), Code.INVALID_RECORD),
    "no records": (lambda: changed(changed(batch_of()[:61], ">i", 57, 0), ">i", 8, 49), Code.INVALID_RECORD),
    "a marker": (lambda: changed(batch_of(), ">h", 21, 0x20), Code.INVALID_RECORD),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_batch_that_is_not_whole_is_refused(leader: Leader, kind: str) -> None:
    make, code = REFUSED[kind]
    batch = make()
    if code is not Code.CORRUPT_MESSAGE:
        set_producer(memoryview(batch), OWN_ID, 0, 0)
    assert leader.append_as_is(batch).error_code == code
    assert leader.log_end == 0
    assert leader.append(batch_of(), 0) == (0, 0)


def test_a_base_offset_other_than_zero_is_refused(leader: Leader) -> None:
    batch = batch_of()
    struct.pack_into(">q", batch, 0, 5)
    assert leader.append_as_is(batch).error_code == Code.INVALID_RECORD
    assert leader.log_end == 0


def test_a_batch_larger_than_the_topic_allows_is_refused(cluster: SandboxCluster) -> None:
    with Leader(cluster, create_topic(cluster, settings={"max.message.bytes": "1000"})) as leader:
        assert leader.append(batch_of(value=b"x" * 1000), 0) == (Code.MESSAGE_TOO_LARGE, -1)
        assert leader.append(batch_of(value=b"x" * 900), 0) == (0, 0)


def test_a_record_without_a_key_is_refused_on_a_compacted_topic(cluster: SandboxCluster) -> None:
    with Leader(cluster, create_topic(cluster, settings={"cleanup.policy": "compact"})) as leader:
        assert leader.append(batch_of(key=None), 0)[0] == Code.INVALID_RECORD
        assert leader.append(batch_of(key=b"k", value=None), 0) == (0, 0)


@pytest.mark.parametrize("timestamp", [0, 1, 32_503_680_000_000])
def test_any_timestamp_is_taken_with_the_settings_of_a_mirror(leader: Leader, timestamp: int) -> None:
    assert leader.append(batch_of(timestamp=timestamp), 0) == (0, 0)


def test_a_timestamp_above_the_limit_is_refused(cluster: SandboxCluster) -> None:
    limits = {"message.timestamp.before.max.ms": str(DAY_MS), "message.timestamp.after.max.ms": str(DAY_MS)}
    if is_older(cluster.kafka_version, "3.6"):
        limits = {"message.timestamp.difference.max.ms": str(DAY_MS)}
    with Leader(cluster, create_topic(cluster, settings=limits)) as leader:
        for timestamp in (young() - 2 * DAY_MS, young() + 2 * DAY_MS):
            assert leader.append(batch_of(timestamp=timestamp), 0) == (Code.INVALID_TIMESTAMP, -1)


def test_a_topic_with_log_append_time_gets_new_timestamps(cluster: SandboxCluster) -> None:
    with Leader(cluster, create_topic(cluster, settings={"message.timestamp.type": "LogAppendTime"})) as leader:
        assert leader.append(batch_of(timestamp=1000), 0) == (0, 0)
        (header,) = batch_headers(leader.fetch(0).records)
        assert header.is_log_append_time
        assert header.max_timestamp > 1_700_000_000_000


def test_offsets_inside_an_uncompressed_batch_are_not_checked(leader: Leader) -> None:
    """So a copy has to verify batches itself, by the source's checksum."""
    batch = batch_of(2)
    second_record = 61 + 1 + batch[61] // 2
    assert batch[second_record + 3] == 2  # offset delta 1
    batch[second_record + 3] = 10
    assert leader.append(batch, 0) == (0, 0)
    data = leader.fetch(0).records
    (header,) = batch_headers(data)
    assert [r.offset for r in read_records(data, header)] == [0, 5]


# -- the sequence number is a compare-and-swap on the log end ---------------------------------------------------------


def test_an_unknown_producer_may_begin_anywhere(leader: Leader) -> None:
    assert leader.append(batch_of(2), 123_456) == (0, 0)
    assert leader.append(batch_of(2), 77, producer_id=OWN_ID + 1) == (0, 2)


def test_the_right_sequence_is_appended_and_a_wrong_one_is_not(leader: Leader) -> None:
    now = young()
    assert leader.append(batch_of(3, timestamp=now), 0) == (0, 0)
    for wrong in (1, 2, 4, 1000, 0x7FFFFFFF):
        assert leader.append(batch_of(3, timestamp=now), wrong) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert leader.log_end == 3
    assert leader.append(batch_of(3, timestamp=now), 3) == (0, 3)
    state = leader.producer()
    assert state is not None
    assert (state.last_sequence, state.producer_epoch, state.last_timestamp) == (5, 0, now)


def test_one_of_the_last_five_batches_again_gets_its_first_offset(leader: Leader) -> None:
    now = young()
    for number in range(7):
        assert leader.append(batch_of(2, timestamp=now), number * 2) == (0, number * 2)
    for number in range(2, 7):
        assert leader.append(batch_of(2, timestamp=now), number * 2) == (0, number * 2)
    for forgotten in range(2):
        assert leader.append(batch_of(2, timestamp=now), forgotten * 2)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    # another length at the same first sequence is not the same batch
    assert leader.append(batch_of(1, timestamp=now), 12)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.log_end == 14


def test_a_repeat_is_recognised_by_its_numbers_not_by_its_content(leader: Leader) -> None:
    now = young()
    assert leader.append(batch_of(2, timestamp=now, value=b"one"), 0) == (0, 0)
    assert leader.append(batch_of(2, timestamp=now, value=b"two"), 0) == (0, 0)
    assert leader.log_end == 2


def test_sequences_wrap_at_two_to_the_31(leader: Leader) -> None:
    now, nearly = young(), 0x7FFFFFFF
    assert leader.append(batch_of(3, timestamp=now), nearly - 1) == (0, 0)
    assert leader.append(batch_of(3, timestamp=now), 2)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.append(batch_of(3, timestamp=now), 1) == (0, 3)
    assert leader.append(batch_of(3, timestamp=now), nearly - 1) == (0, 0)


def test_a_higher_epoch_shuts_out_the_lower_one(leader: Leader) -> None:
    now = young()
    assert leader.append(batch_of(2, timestamp=now), 0, epoch=3) == (0, 0)
    assert leader.append(batch_of(2, timestamp=now), 2, epoch=4)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert leader.append(batch_of(1, timestamp=now), 0, epoch=4) == (0, 2)
    for sequence in (0, 1, 2):
        assert leader.append(batch_of(2, timestamp=now), sequence, epoch=3) == (Code.INVALID_PRODUCER_EPOCH, -1)
    assert leader.log_end == 3


def test_other_producers_do_not_disturb_the_sequence(leader: Leader) -> None:
    """So a foreign record shifts what follows: the returned offset has to be compared, and the log end read."""
    now = young()
    assert leader.append(batch_of(2, timestamp=now), 0) == (0, 0)
    assert leader.append_as_is(batch_of(1)).base_offset == 2
    assert leader.append(batch_of(2, timestamp=now), 2) == (0, 3)
    foreign = Producer({"bootstrap.servers": librdkafka(leader.client.config)["bootstrap.servers"],
                        "enable.idempotence": True})  # fmt: skip
    foreign.produce(leader.partition.topic, b"v", partition=0)
    assert foreign.flush(30) == 0
    known = describe_producers(leader.client, [leader.partition])[leader.partition].producers
    assert len(known) == 2
    assert min(p.producer_id for p in known) < 1 << 32 < OWN_ID


# -- where the check fails open ---------------------------------------------------------------------------------------


def test_a_producer_whose_last_record_is_old_is_forgotten_and_any_sequence_taken(forgetting: Leader) -> None:
    old = young() - 40 * DAY_MS
    assert forgetting.append(batch_of(2, timestamp=old), 0) == (0, 0)
    wait_until(lambda: forgetting.producer() is None)
    assert forgetting.append(batch_of(2, timestamp=old), 0) == (0, 2)  # a repeat, appended twice
    wait_until(lambda: forgetting.producer() is None)
    assert forgetting.append(batch_of(2, timestamp=old), 999) == (0, 4)


def test_an_old_record_behind_young_ones_ends_the_memory(forgetting: Leader) -> None:
    now = young()
    assert forgetting.append(batch_of(1, timestamp=now), 0) == (0, 0)
    assert forgetting.append(batch_of(1, timestamp=now - 2 * DAY_MS), 1) == (0, 1)
    wait_until(lambda: forgetting.producer() is None)
    assert forgetting.append(batch_of(1, timestamp=now), 0) == (0, 2)


def test_a_record_without_a_timestamp_is_an_old_one(forgetting: Leader) -> None:
    assert forgetting.append(batch_of(1, timestamp=-1), 0) == (0, 0)
    wait_until(lambda: forgetting.producer() is None)


def test_a_young_record_keeps_the_memory(forgetting: Leader, quick_to_forget: SandboxCluster) -> None:
    assert forgetting.append(batch_of(1, timestamp=young()), 0) == (0, 0)
    with Leader(quick_to_forget, create_topic(quick_to_forget)) as other:  # while the check certainly ran
        other.append(batch_of(1, timestamp=young() - 40 * DAY_MS), 0)
        wait_until(lambda: other.producer() is None)
    assert forgetting.append(batch_of(1, timestamp=young()), 7)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_behind_a_refused_first_batch_the_second_lands_in_its_place(cluster: SandboxCluster) -> None:
    with Leader(cluster, create_topic(cluster, settings={"max.message.bytes": "1000"})) as leader:
        assert leader.append(batch_of(value=b"x" * 2000, timestamp=young()), 0)[0] == Code.MESSAGE_TOO_LARGE
        assert leader.append(batch_of(timestamp=young()), 1) == (0, 0)


# -- a topic that is deleted and created again ------------------------------------------------------------------------


def test_an_append_for_a_topic_that_was_created_again(cluster: SandboxCluster) -> None:
    topic = create_topic(cluster)
    with Leader(cluster, topic) as leader:
        assert leader.append(batch_of(4, timestamp=young()), 0) == (0, 0)
        old_id = leader.topic_id
    delete_topic(cluster, topic)
    with Leader(cluster, create_topic(cluster)) as another:
        part = another.fetch(0, topic_id=old_id)
        unknown_id = Code.NONE if is_older(cluster.kafka_version, "3.1") else Code.UNKNOWN_TOPIC_ID
        assert part.error_code == unknown_id
    create_topic(cluster, name=topic)
    with Leader(cluster, topic) as again:
        assert again.topic_id != old_id
        assert again.fetch(0, topic_id=old_id).error_code == unknown_id
        batch = batch_of(4, timestamp=young())
        set_producer(memoryview(batch), OWN_ID, 0, 4)
        answer = again.append_as_is(batch, topic_id=old_id)
        if again.produce_version >= FIRST_VERSION_WITH_TOPIC_IDS:
            assert answer.error_code == Code.UNKNOWN_TOPIC_ID
            assert again.log_end == 0
        else:  # by name, it lands at the start of the new topic without an error
            assert (answer.error_code, answer.base_offset) == (0, 0)


# -- what survives -----------------------------------------------------------------------------------------------------


def leader_epoch(cluster: SandboxCluster, topic: str) -> int:
    with Leader(cluster, topic) as leader:
        return leader.leader_epoch


@pytest.mark.slow
def test_the_leaders_death_leaves_its_memory(mortal: SandboxCluster) -> None:
    cluster, now = mortal, young()
    topic = create_topic(cluster)
    with Leader(cluster, topic) as leader:
        first = leader.leader_epoch
        assert leader.append(batch_of(3, timestamp=now), 0) == (0, 0)
        assert leader.append(batch_of(2, timestamp=now), 3) == (0, 3)
    cluster.kill(1)
    cluster.start_broker(1)
    # Before 4.0 a broker that is back soon may lead on in the same epoch: epochs do not tell of its death there.
    if not is_older(cluster.kafka_version, "4.0"):
        wait_until(lambda: leader_epoch(cluster, topic) > first)
    with Leader(cluster, topic) as leader:
        state = leader.producer()
        assert state is not None
        assert state.last_sequence == 4
        assert leader.append(batch_of(2, timestamp=now), 3) == (0, 3)
        assert leader.append(batch_of(2, timestamp=now), 2)[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert leader.append(batch_of(2, timestamp=now), 5) == (0, 5)
        assert [b.base_offset for b in stored_batches(cluster.brokers[0].log_dir, topic, 0)] == [0, 3, 5]
        second = leader.leader_epoch
        # who had its epoch `first` up to 7 parted from this leader at 5, if that epoch ended here
        assert leader.fetch(7, last_fetched_epoch=first).diverging_epoch == ((first, 5) if second > first else None)
        assert leader.fetch(5, last_fetched_epoch=first).diverging_epoch is None
        assert leader.fetch(7, last_fetched_epoch=second).diverging_epoch is None
        assert leader.fetch(5, leader_epoch=second - 1).error_code == (Code.FENCED_LEADER_EPOCH if second else 0)
        assert leader.fetch(5, leader_epoch=second + 1).error_code == Code.UNKNOWN_LEADER_EPOCH
        assert leader.fetch(5, leader_epoch=second).error_code == 0
