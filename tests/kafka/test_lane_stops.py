"""A lane between two real clusters stops a partition at what it cannot carry, and where two histories part."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from kafka.protocol.producer import WriteTxnMarkersRequest

from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.filler import filler_batch
from kmirror.errors import Reason
from kmirror.state.records import PartitionState
from tests.support.lane import Mirror, copy_of, fill
from tests.support.leader import OWN_ID, Leader, batch_of, create_topic, delete_topic, young
from tests.support.oracle import segment_files
from tests.support.real_logs import delete_records
from tests.support.topics import set_topic
from tests.support.visible import COMMITTED, bounds_of, shown

# -- what cannot be carried --------------------------------------------------------------------------------------------


def write_transaction(mirror: Mirror, topic: str) -> None:
    producer = Producer({"bootstrap.servers": mirror.source.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=0)
    producer.commit_transaction(30)


def write_marker(mirror: Mirror, topic: str) -> None:
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=OWN_ID,
                producer_epoch=0,
                transaction_result=True,
                topics=[marker.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
                coordinator_epoch=1,
            )
        ]
    )
    answer = mirror.at_source.ask_any(request, highest=1)
    assert answer.markers[0].topics[0].partitions[0].error_code == 0


def write_stamped(mirror: Mirror, topic: str) -> None:
    set_topic(mirror.source, topic, {"message.timestamp.type": "LogAppendTime"})

    def is_stamped() -> bool:
        fill(mirror, topic, 1)
        with Leader(mirror.source, topic) as leader:
            *_, last = batch_headers(leader.fetch(leader.log_end - 1).records)
        return last.is_log_append_time

    while not is_stamped():
        time.sleep(0.05)


def write_torn(mirror: Mirror, topic: str) -> None:
    """Write a batch, and flip a bit of it on the broker's disk."""
    (segment,) = segment_files(mirror.source, topic)
    position = segment.stat().st_size
    fill(mirror, topic, 1)
    with segment.open("r+b") as file:
        file.seek(position + 70)
        byte = file.read(1)[0]
        file.seek(position + 70)
        file.write(bytes([byte ^ 4]))


def test_what_cannot_be_carried_stops_its_partition_there_and_no_other(mirror: Mirror) -> None:
    torn, plain = mirror.topic(), mirror.topic()
    fill(mirror, torn, 20)
    write_torn(mirror, torn)
    fill(mirror, torn, 5)
    lane = mirror.start()
    mirror.wait(lane, lambda: copy_of(lane, torn).retry.failure)
    fill(mirror, plain, 30)
    mirror.wait(lane, lambda: mirror.destination_ends()[f"{plain}-0"] == 30)
    assert mirror.destination_ends()[f"{torn}-0"] == 20
    reports = {r.topic: r for r in mirror.rows_at_stop(lane)}
    assert (reports[torn].state, reports[torn].failed_offset) == ("FAILED", 20)
    assert reports[torn].reason is Reason.CORRUPT_BATCH
    assert "checksum" in str(reports[torn].message)
    assert (reports[plain].state, reports[plain].failed_offset) == ("MIRRORING", None)
    rows = {row.topic: row for row in mirror.progress()[-1].rows}
    assert rows[torn].state is PartitionState.FAILED


WRITERS = {"transaction": write_transaction, "marker": write_marker, "stamped": write_stamped}


def test_what_a_consumer_is_not_shown_as_it_is_stored_is_carried_all_the_same(mirror: Mirror) -> None:
    topics = {kind: mirror.topic() for kind in WRITERS}
    for kind, topic in topics.items():
        fill(mirror, topic, 20)
        WRITERS[kind](mirror, topic)
        fill(mirror, topic, 5)
    trimmed = mirror.topic()
    fill(mirror, trimmed, 9)
    admin = AdminClient({"bootstrap.servers": mirror.source.bootstrap_servers})
    for future in admin.delete_records([Place(trimmed, 0, 4)]).values():
        future.result(30)
    lane = mirror.start()
    mirror.wait_copied(lane)
    for topic in (*topics.values(), trimmed):
        fill(mirror, topic, 5)
    mirror.wait_copied(lane)
    reports = {r.topic: r for r in mirror.rows_at_stop(lane)}
    assert {report.state for report in reports.values()} == {"MIRRORING"}
    assert {topic: report.aligned_to for topic, report in reports.items()} == {
        **dict.fromkeys(topics.values()),
        trimmed: 4,
    }
    for topic in (*topics.values(), trimmed):
        wanted = shown(mirror.source, topic, isolation=COMMITTED)
        assert wanted
        assert shown(mirror.destination, mirror.mirror_of(topic)) == wanted
    assert bounds_of(mirror.destination, mirror.mirror_of(trimmed)).start == 4


# -- histories that part -----------------------------------------------------------------------------------------------


def test_a_destination_with_other_records_is_left_alone(mirror: Mirror) -> None:
    same, other, longer = mirror.topic(), mirror.topic(), mirror.topic()
    for topic in (same, other, longer):
        with Leader(mirror.source, topic) as leader:
            leader.append_as_is(batch_of(3, value=b"of the source"))
    for topic, value, count in ((same, b"of the source", 3), (other, b"of somebody", 3), (longer, b"of the source", 9)):
        with Leader(mirror.destination, topic) as leader:
            leader.append_as_is(batch_of(count, value=value))
    lane = mirror.start()
    mirror.wait(lane, lambda: copy_of(lane, other).retry.failure and copy_of(lane, longer).retry.failure)
    fill(mirror, same, 2)
    mirror.wait(lane, lambda: mirror.destination_ends()[f"{same}-0"] == 5)
    reports = {r.topic: r for r in mirror.rows_at_stop(lane)}
    assert (reports[other].reason, reports[other].failed_offset) == (Reason.DESTINATION_WRITTEN, 0)
    assert (reports[longer].reason, reports[longer].failed_offset) == (Reason.DESTINATION_WRITTEN, 3)
    assert "(6 records, from offset 3 on, a producer without an id): it ends at offset 9" in str(
        reports[longer].message
    )
    assert mirror.destination_ends() == {f"{same}-0": 5, f"{other}-0": 3, f"{longer}-0": 9}


def test_a_foreign_record_in_the_copy_stops_it_at_once(mirror: Mirror) -> None:
    topic = mirror.topic(partitions=2)
    fill(mirror, topic, 4)
    lane = mirror.start()
    mirror.wait_copied(lane)
    with Leader(mirror.destination, topic) as leader:
        assert leader.append_as_is(batch_of(1)).base_offset == 4
    with Leader(mirror.source, topic) as leader:  # as three batches, so that some may be in flight together
        for number in range(3):
            leader.append_as_is(batch_of(2, value=b"%d" % number))
    mirror.wait(lane, lambda: copy_of(lane, topic).retry.failure)
    fill(mirror, topic, 6, partition=1)
    mirror.wait(lane, lambda: mirror.destination_ends()[f"{topic}-1"] == 6)
    report = mirror.rows_at_stop(lane)[0]
    assert (report.state, report.reason, report.failed_offset) == ("FAILED", Reason.DESTINATION_WRITTEN, 4)
    assert "(1 record, from offset 4 on, " in (report.message or "")


@pytest.mark.slow
def test_a_foreign_record_is_noticed_while_the_source_is_idle(mirror: Mirror) -> None:
    topic = mirror.topic(partitions=2)
    for partition in range(2):
        fill(mirror, topic, 4, partition=partition)
    lane = mirror.start()
    mirror.wait_copied(lane)
    with Leader(mirror.destination, topic) as leader:
        assert leader.append_as_is(batch_of(2)).base_offset == 4
    mirror.wait(lane, lambda: copy_of(lane, topic).retry.failure)
    report, other = mirror.rows_at_stop(lane)
    assert (report.reason, report.failed_offset) == (Reason.DESTINATION_WRITTEN, 4)
    assert "(2 records, from offset 4 on, a producer without an id)" in (report.message or "")
    assert other.state == "MIRRORING"


def test_a_source_topic_created_again_is_not_taken_for_the_old_one(mirror: Mirror) -> None:
    topic = mirror.topic()
    fill(mirror, topic, 4)
    lane = mirror.start()
    mirror.wait_copied(lane)
    delete_topic(mirror.source, topic)
    create_topic(mirror.source, name=topic)
    fill(mirror, topic, 9)  # it outgrows what was copied of the old one
    mirror.wait(lane, lambda: copy_of(lane, topic).retry.failure)
    report = mirror.rows_at_stop(lane)[0]
    assert (report.reason, report.failed_offset) == (Reason.SOURCE_TOPIC_RECREATED, 4)
    assert mirror.destination_ends() == {f"{topic}-0": 4}


def test_a_mirror_topic_created_again_is_not_written(mirror: Mirror) -> None:
    topic = mirror.topic()
    fill(mirror, topic, 4)
    lane = mirror.start()
    mirror.wait_copied(lane)
    delete_topic(mirror.destination, topic)
    create_topic(mirror.destination, name=topic)
    fill(mirror, topic, 3)
    mirror.wait(lane, lambda: copy_of(lane, topic).retry.failure)
    report = mirror.rows_at_stop(lane)[0]
    assert (report.reason, report.failed_offset) == (Reason.DESTINATION_TOPIC_DELETED, 0)
    assert mirror.destination_ends() == {f"{topic}-0": 0}


def test_a_source_topic_that_is_gone_fails_after_the_retry_time(mirror: Mirror) -> None:
    topic = mirror.topic()
    fill(mirror, topic, 4)
    lane = mirror.start(retry_timeout_ms=1000)
    mirror.wait_copied(lane)
    delete_topic(mirror.source, topic)
    mirror.wait(lane, lambda: copy_of(lane, topic).retry.failure)
    report = mirror.rows_at_stop(lane)[0]
    assert (report.state, report.reason, report.failed_offset) == ("FAILED", Reason.SOURCE_TOPIC_DELETED, 4)


def test_a_mirror_of_a_mirror_waits_until_that_begins_where_it_is_to(mirror: Mirror) -> None:
    topic = mirror.topic()
    with Leader(mirror.source, topic) as leader:
        assert leader.append_as_is(filler_batch(20, young())).error_code == 0
    fill(mirror, topic, 5)
    lane = mirror.start()
    mirror.wait(lane, lambda: copy_of(lane, topic).retry.trouble)
    assert mirror.destination_ends() == {f"{topic}-0": 0}
    delete_records(mirror.source, topic, 20)
    mirror.wait_copied(lane)
    mirror.wait(lane, lambda: bounds_of(mirror.destination, topic).start == 20)
    assert shown(mirror.destination, topic) == shown(mirror.source, topic)
    assert mirror.rows_at_stop(lane)[0].reason is None


def test_a_destination_that_gives_records_its_own_time_stops_the_copy_there(mirror: Mirror) -> None:
    topic, other = mirror.topic(), mirror.topic()
    fill(mirror, topic, 20)
    lane = mirror.start()
    mirror.wait_copied(lane)
    set_topic(mirror.destination, mirror.mirror_of(topic), {"message.timestamp.type": "LogAppendTime"})
    producer = Producer({"bootstrap.servers": mirror.source.bootstrap_servers})
    producer.produce(topic, b"value", partition=0, timestamp=1_700_000_000_000)
    assert producer.flush(30) == 0
    mirror.wait(lane, lambda: copy_of(lane, topic).retry.failure)
    set_topic(mirror.destination, mirror.mirror_of(topic), {"message.timestamp.type": "CreateTime"})
    fill(mirror, topic, 5)
    fill(mirror, other, 5)
    mirror.wait(lane, lambda: mirror.destination_ends()[f"{other}-0"] == 5)
    reports = {r.topic: r for r in mirror.rows_at_stop(lane)}
    assert (reports[topic].state, reports[topic].failed_offset) == ("FAILED", 20)
    assert reports[topic].reason is Reason.OFFSET_MISMATCH
    assert "message.timestamp.type" in str(reports[topic].message)
    assert mirror.destination_ends()[f"{topic}-0"] == 21
    assert reports[other].state == "MIRRORING"
