"""What a stop says was lost is true: asked of the source at the time, FAILED partitions and foreign records included.

Seen before: `describe` said lag 100, and the failover after it "0 records known after it", from a look minutes old. A
partition that had FAILED was stopped without a word on it. A foreign record at offset 100 made the last mirrored offset
101.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from kmirror.cli.main import main
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now_ms
from kmirror.errors import Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.mirrors.pause import pause
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover, remove
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.state.records import PartitionState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, freeze, unique_topic
from tests.support.foreign import write_idempotently, write_plainly
from tests.support.json_documents import check
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import create_again, make_topic, new_mirror, produce, properties_of, selector
from tests.support.waiting import wait_until


def mirrored(source: SandboxCluster, destination: Destination, topic: str, partitions: int = 1) -> str:
    """Return a new mirror of a new topic with three records in each partition."""
    mirror = new_mirror(destination, source)
    make_topic(source, topic, partitions, retention_ms="-1")
    for partition in range(partitions):
        produce(source, topic, ["one", "two", "three"], partition)
    assert add(destination, mirror, selector(topic)).exit_code == 0
    return mirror


def produce_at(cluster: SandboxCluster, topic: str, timestamp: int) -> None:
    """Append a record with a timestamp."""
    producer = Producer(properties_of(cluster))
    producer.produce(topic, "dated", timestamp=timestamp)
    assert producer.flush(30) == 0


def row_of(result: VerbResult, partition: int = 0) -> TopicResult:
    """Return the row of a partition, of a document that its schema describes."""
    check("result", result.to_json())
    (row,) = [row for row in result.results if row.partition == partition]
    return row


def test_what_the_source_received_since_it_was_last_read_is_known(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair.source, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    # five seconds of data, by their timestamps
    produce(cluster_pair.source, topic, ["x" * 5005] + ["y"] * 99)
    began = int(time.time() * 1000)
    rehearsed = failover(destination, mirror, dry_run=True)
    real = failover(destination, mirror)
    for done in (rehearsed, real):
        row, totals = row_of(done.result), done.result.totals
        assert done.result.exit_code == 0
        assert (row.last_mirrored_offset, row.lag) == (3, 100)
        assert totals is not None
        assert (totals.known_lost_records, totals.partitions_unknown, totals.rpo_ms) == (100, 0, 5000)
        assert totals.as_of_ms is not None
        assert totals.as_of_ms >= began
        check("report", done.evidence)
        assert done.evidence["totals"]["knownLostRecords"] == 100
    # asked again for what is done, verbs say the same
    for again in (failover(destination, mirror).result, promote(destination, PromoteRequest(mirror)).result):
        row = row_of(again)
        assert (row.result, row.reason, row.last_mirrored_offset, row.lag) == (Outcome.NOOP, Reason.FAILED_OVER, 3, 100)
        assert row.to_json()["rpoMs"] == 5000


def test_a_clock_that_is_ahead_makes_the_rpo_unknown(cluster_pair: ClusterPair, destination: Destination) -> None:
    """Once, the newest timestamp of the whole source partition was taken for that of a lost record: 0 s, or decades."""
    now, future = now_ms(), 4_102_444_800_000  # the year 2100
    timestamps = {
        "a record copied long ago": [future, now, now + 500],
        "the last copied record": [now, now + 50_000, now + 500],
        "the lost record": [now, now, future],
        "none": [now, now, now + 500],
    }
    topics = {unique_topic(): ahead for ahead in timestamps}
    for topic in topics:
        make_topic(cluster_pair.source, topic, retention_ms="-1", message_timestamp_after_max_ms=str(future))
    mirror = new_mirror(destination, cluster_pair.source)
    assert add(destination, mirror, selector(*topics)).exit_code == 0
    with LocalEngine(destination, mirror) as engine:
        for number in range(2):
            for topic, ahead in topics.items():
                produce_at(cluster_pair.source, topic, timestamps[ahead][number])
            engine.catch_up()
    for topic, ahead in topics.items():
        produce_at(cluster_pair.source, topic, timestamps[ahead][2])
    done = failover(destination, mirror).result
    assert {row.lag for row in done.results if row.at_stop} == {1}
    known = {topics[str(row.topic)]: row.rpo_ms for row in done.results if row.rpo_ms is not None}
    assert known == {"none": 500}
    assert done.totals is not None
    assert (done.totals.rpo_ms, done.totals.rpo_at_least_ms) == (None, 500)


def test_what_the_source_answers_counts_although_the_engines_clock_is_ahead(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the engine's last report was taken for the newer one, and a loss of 0 was reported as current."""
    topic = unique_topic()
    mirror = mirrored(cluster_pair.source, destination, topic)
    for module in ("control", "row_reports"):
        monkeypatch.setattr(f"kmirror.engine.lane.reports.{module}.now_ms", lambda: now_ms() + 60_000)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    monkeypatch.undo()
    assert max(one.time_ms for one in destination.state().progress(mirror)) > now_ms() + 30_000
    produce(cluster_pair.source, topic, ["later"] * 10)
    for dry_run in (True, False):
        done = failover(destination, mirror, dry_run=dry_run).result
        assert (row_of(done).last_mirrored_offset, row_of(done).lag) == (3, 10)


def test_records_that_arrive_between_two_requests_are_no_open_transaction(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair.source, destination, topic)
    asked = ClusterClient.look_up_offsets
    arriving = [["four", "five"]]

    def look_up_offsets(client: ClusterClient, partitions: Any, lookups: Any, **options: Any) -> Any:
        first = asked(client, partitions, lookups[:1], **options)
        if any(lookup.read_committed for lookup in lookups) and TopicPartition(topic, 0) in partitions:
            produce(cluster_pair.source, topic, arriving.pop())
        return first + (asked(client, partitions, lookups[1:], **options) if lookups[1:] else [])

    monkeypatch.setattr(ClusterClient, "look_up_offsets", look_up_offsets)
    row = row_of(failover(destination, mirror, dry_run=True).result)
    assert not arriving, "they arrived between the requests"
    assert (row.lag, "open transaction" in (row.message or "")) == (5, False)


def test_the_end_of_a_recreated_source_topic_is_not_reported(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair.source, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    create_again(cluster_pair.source, topic)
    produce(cluster_pair.source, topic, ["other"] * 9)
    row = row_of(failover(destination, mirror).result)
    assert (row.last_mirrored_offset, row.lag) == (3, 0)
    assert "was deleted and created again: its current records were not copied" in str(row.message)
    assert row.rpo_ms is None


def test_a_failed_partition_says_why_and_counts(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair.source, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    produce(cluster_pair.source, topic, ["later"] * 550)
    partition = ClientPartition(topic, 0, 53)
    admin = AdminClient(properties_of(cluster_pair.source))
    admin.delete_records([partition])[partition].result(30)
    with LocalEngine(destination, mirror):
        wait_until(lambda: describe(destination, mirror)[0].state is PartitionState.FAILED)
        for dry_run in (True, False):
            done = failover(destination, mirror, dry_run=dry_run).result
            row = row_of(done)
            assert (row.last_mirrored_offset, row.lag) == (3, 550), row
            assert row.to_json()["failureReason"] == "SOURCE_TRUNCATED"
            assert "its 50 offsets 3 to 52 were deleted before they were copied" in str(row.message)
            assert done.totals is not None
            assert (done.totals.failed_partitions, done.totals.known_lost_records) == (1, 550)
    assert "SOURCE_TRUNCATED" in str(row_of(failover(destination, mirror).result).message)


def test_the_last_mirrored_offset_is_where_the_sources_records_end(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    """The foreign records were not noticed when these topics are stopped."""
    found, other, adopted = unique_topic(), unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair.source, destination, found)
    for topic in (other, adopted):
        make_topic(cluster_pair.source, topic, retention_ms="-1")
        produce(cluster_pair.source, topic, ["one", "two", "three"])
    make_topic(cluster_pair.destination, adopted, retention_ms="-1")
    produce(cluster_pair.destination, adopted, ["one", "two", "three"])
    assert add(destination, mirror, selector(other)).exit_code == 0
    assert add(destination, mirror, selector(adopted), adopt=True).exit_code == 0
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    writers = {
        found: write_idempotently(cluster_pair.destination, found, 1),
        other: write_plainly(cluster_pair.destination, other, 2),
        adopted: write_plainly(cluster_pair.destination, adopted, 1),
    }
    produce(cluster_pair.source, found, ["four"])
    done = remove(destination, mirror, selector(found, adopted)).result
    done_others = failover(destination, mirror).result
    rows = {row.topic: row for row in (*done.results, *done_others.results) if row.result is Outcome.DONE}
    assert {topic: (row.last_mirrored_offset, row.lag) for topic, row in rows.items()} == {
        found: (3, 1),
        other: (3, 0),
        adopted: (3, 0),
    }
    assert {topic: row.to_json()["foreignRecords"] for topic, row in rows.items()} == {found: 1, other: 2, adopted: 1}
    for topic, writer in writers.items():
        assert f"from {writer} " in str(rows[topic].message)
        assert "at offset 3 and after" in str(rows[topic].message)
    assert {(row.topic, row.last_mirrored_offset) for row in describe(destination, mirror)} == {
        (topic, 3) for topic in (found, other, adopted)
    }
    refused = add(destination, mirror, selector(found), adopt=True)
    assert refused.exit_code == 3, refused


def test_a_foreign_record_that_the_engine_has_found(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    mirror = mirrored(cluster_pair.source, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        write_plainly(cluster_pair.destination, topic, 2)
        produce(cluster_pair.source, topic, ["four", "five"])
        wait_until(lambda: describe(destination, mirror)[0].state is PartitionState.FAILED)
    # a new engine finds it FAILED from its beginning
    with LocalEngine(destination, mirror) as engine:
        wait_until(lambda: bool(engine.engine.failures))
        row = row_of(remove(destination, mirror, selector(topic)).result)
    assert (row.result, row.last_mirrored_offset, row.lag) == (Outcome.DONE, 3, 2), row
    assert row.to_json()["failureReason"] == "DESTINATION_WRITTEN"
    assert "2 foreign records from a producer without an id are at offset 3 and after" in str(row.message)


def test_a_switched_back_topic_is_all_its_sources(cluster_pair: ClusterPair, destination: Destination) -> None:
    """What was local once is the source's after it was mirrored there and adopted here: an old report says nothing."""
    topic = unique_topic()
    mirror = mirrored(cluster_pair.source, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    assert remove(destination, mirror, selector(topic)).result.exit_code == 0
    for cluster in (cluster_pair.source, cluster_pair.destination):
        produce(cluster, topic, ["local", "too"])
    assert add(destination, mirror, selector(topic), adopt=True).exit_code == 0
    row = row_of(failover(destination, mirror).result)
    assert (row.result, row.last_mirrored_offset, row.lag) == (Outcome.DONE, 5, 0), row


@pytest.mark.parametrize("source_is", ["alive", "dead", pytest.param("frozen", marks=pytest.mark.slow)])
def test_a_failover_is_right_whatever_the_source_does(
    destination: Destination, mortal_cluster: SandboxCluster, source_is: str
) -> None:
    topic, partitions = unique_topic(), 5
    source = mortal_cluster
    mirror = mirrored(source, destination, topic, partitions)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    produce(source, topic, ["fourth"] * 10, partition=2)
    if source_is == "dead":
        source.kill(source.brokers[0].node_id)
    elif source_is == "frozen":
        freeze(source, source.brokers[0].node_id)
    done = failover(destination, mirror).result
    assert done.exit_code == 0, done
    assert [row.last_mirrored_offset for row in done.results] == [3] * partitions
    assert done.totals is not None
    lost = 10 if source_is == "alive" else 0
    assert [row.lag for row in done.results] == [0, 0, lost, 0, 0]
    assert (done.totals.partitions, done.totals.known_lost_records) == (partitions, lost)
    assert (done.totals.source_trouble is None) is (source_is == "alive")
    # the ten records were acknowledged after a lane had seen the source last: nothing says that none was
    assert (done.totals.rpo_ms is None) is (source_is != "alive")
    assert all("the source ended at" in str(row.message) for row in done.results)
    assert destination.state().partition(mirror, *TopicPartition(topic, 2)) is not None


def test_what_an_engine_knew_of_a_dead_source_is_known_to_the_next_one(
    destination: Destination, mortal_cluster: SandboxCluster
) -> None:
    topic, source = unique_topic(), mortal_cluster
    mirror = mirrored(source, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    lease_id, killed_ms = {report.lease_id for report in destination.state().progress(mirror)}, now_ms()
    source.kill(source.brokers[0].node_id)
    with LocalEngine(destination, mirror):
        wait_until(
            lambda: any(one.rows and one.lease_id not in lease_id for one in destination.state().progress(mirror))
        )
        (shown,) = describe(destination, mirror)
        assert (shown.source_offset, shown.lag, shown.last_known_lag) == (3, None, 0), shown
        assert shown.as_of_ms is not None
        assert shown.as_of_ms <= killed_ms
        done = failover(destination, mirror).result
    assert (row_of(done).lag, row_of(done).last_mirrored_offset) == (0, 3), done


def test_what_was_known_of_the_source_at_a_pause_is_known_when_it_dies(
    destination: Destination, mortal_cluster: SandboxCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, source = unique_topic(), mortal_cluster
    mirror = mirrored(source, destination, topic)
    make_topic(source, other := unique_topic(), 3)  # so many that no lane ends
    assert add(destination, mirror, selector(other)).exit_code == 0
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        assert pause(destination, mirror, selector(topic)).exit_code == 0
        wait_until(lambda: all(row.topic != topic for _, row in destination.state().last_rows(mirror)))
    paused_ms = now_ms()
    source.kill(source.brokers[0].node_id)
    (shown,) = describe(destination, mirror, selector(topic))
    assert (shown.state, shown.source_offset, shown.lag, shown.last_known_lag) == ("PAUSED", 3, None, 0), shown
    assert shown.as_of_ms is not None
    assert shown.as_of_ms <= paused_ms
    assert main(["failover", "--mirror", mirror, "--bootstrap-server", destination.bootstrap_server]) == 3
    (lag,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("largest lag:")]
    assert lag.startswith("largest lag:  not known; last known 0 at 20")
    row = row_of(failover(destination, mirror, selector(topic)).result)
    assert (row.lag, row.last_mirrored_offset) == (0, 3), row


def losses(destination: Destination, mirror: str) -> set[int]:
    """Return when lanes say that they lost the source."""
    rows = [row for report in destination.state().progress(mirror) for row in report.rows]
    return {row.source_lost_ms for row in rows if row.source_lost_ms is not None}


@pytest.mark.slow
def test_an_engine_that_saw_the_source_die_says_when(destination: Destination, mortal_cluster: SandboxCluster) -> None:
    topic, source = unique_topic(), mortal_cluster
    mirror = mirrored(source, destination, topic)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        for number in range(20):
            produce(source, topic, [f"{number}"] * 10)
        wait_until(lambda: describe(destination, mirror)[0].source_records_per_second)
        killed_ms = now_ms()
        source.kill(source.brokers[0].node_id)
        wait_until(lambda: losses(destination, mirror))
        first, noticed_ms = losses(destination, mirror), now_ms()
        done = failover(destination, mirror).result
    row, totals = row_of(done), done.totals
    assert totals is not None
    known = row.at_stop
    assert known is not None
    assert known.source_as_of_ms is not None
    assert known.source_lost_ms is not None
    assert killed_ms - 1000 <= known.source_as_of_ms <= known.source_lost_ms
    assert killed_ms <= known.source_lost_ms <= noticed_ms
    assert first == {known.source_lost_ms}, "it is when the loss was noticed, however long it lasts"
    assert totals.source_lost_ms == known.source_lost_ms
    assert totals.estimated_more_at_loss_records <= totals.estimated_more_records
    assert totals.rpo_at_loss_ms == known.source_lost_ms - known.source_as_of_ms
