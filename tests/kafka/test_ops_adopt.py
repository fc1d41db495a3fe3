"""`add --adopt` takes a topic only when its log is proved to be the beginning of the source's."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from kmirror.errors import ExitCode, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.state.records import TopicOrigin
from kmirror.words import counted
from kmirror.work import WorkView
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import make_topic, new_mirror, outcomes, produce, selector, settings_of
from tests.support.real_logs import delete_records
from tests.support.watching import assert_grows

RECORDS = [f"value {i}" for i in range(20)]


@pytest.fixture
def topic(cluster_pair: ClusterPair) -> str:
    """Return a topic of two partitions on both clusters; the source's partition 1 holds RECORDS."""
    name = unique_topic()
    make_topic(cluster_pair.source, name, 2, retention_ms="-1")  # the records are old
    make_topic(cluster_pair.destination, name, 2, retention_ms="3600000000000", compression_type="lz4")
    produce(cluster_pair.source, name, RECORDS, partition=1)
    return name


@pytest.mark.parametrize("copied", [0, 12, 20])
def test_a_true_prefix_is_adopted_and_its_settings_are_put_right(
    cluster_pair: ClusterPair, destination: Destination, topic: str, copied: int
) -> None:
    produce(cluster_pair.destination, topic, RECORDS[:copied], partition=1)
    name = new_mirror(destination, cluster_pair.source)
    dry = add(destination, name, selector(topic), adopt=True, dry_run=True)
    assert (dry.exit_code, outcomes(dry)) == (0, {topic: "DONE"})
    assert settings_of(cluster_pair.destination, topic)["compression.type"] == "lz4"
    views: list[WorkView] = []
    assert add(destination, name, selector(topic), adopt=True, watch=views.append).exit_code == ExitCode.OK
    if copied:
        assert_grows(views, "comparing")
        assert views[-1].total == copied
    else:
        assert views == []  # nothing is compared
    found = settings_of(cluster_pair.destination, topic)
    assert (found["retention.ms"], found["compression.type"]) == ("-1", "producer")
    record = destination.state().topic(name, topic)
    assert record is not None
    assert (record.origin, record.pending_operation) == (TopicOrigin.ADOPTED, None)
    assert record.destination_topic_id == destination.client.metadata([topic]).topics[topic].printed_topic_id


@pytest.mark.parametrize(
    ("held", "fork", "beyond"),
    [
        (["something else"], 0, 1),
        ([*RECORDS[:12], "written here", "and here", "and here again"], 12, 3),
        ([*RECORDS, "one more than the source has"], 20, 1),
    ],
    ids=["other content", "parted in the middle", "longer than the source"],
)
def test_where_the_logs_part_it_is_refused_with_the_number_of_records(
    cluster_pair: ClusterPair, destination: Destination, topic: str, held: list[str], fork: int, beyond: int
) -> None:
    produce(cluster_pair.destination, topic, held, partition=1)
    name = new_mirror(destination, cluster_pair.source)
    before = destination.state().records
    settings = settings_of(cluster_pair.destination, topic)
    result = add(destination, name, selector(topic), adopt=True)
    (row,) = result.results
    assert (result.exit_code, row.reason) == (ExitCode.REFUSED, Reason.DESTINATION_WRITTEN)
    assert f"{topic}-1 is not a prefix of its source: they fork at offset {fork}" in (row.message or "")
    assert f"{counted(beyond, 'record')} after it" in (row.message or "")
    assert f"kmirror failback --mirror {name}" in (row.hint or "")
    assert destination.state().records == before
    assert settings_of(cluster_pair.destination, topic) == settings


def test_a_log_that_cannot_be_compared_now_is_not_to_be_deleted(
    cluster_pair: ClusterPair, destination: Destination, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kmirror.engine.compare.visible_log._PATIENCE_S", 0.5)
    producer = Producer(
        {"bootstrap.servers": cluster_pair.destination.bootstrap_servers, "transactional.id": unique_topic("open")}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, RECORDS[0].encode(), partition=1)
    producer.flush(30)
    result = add(destination, new_mirror(destination, cluster_pair.source), selector(topic), adopt=True)
    (row,) = result.results
    assert (result.exit_code, row.result) == (ExitCode.TIMED_OUT, Outcome.TIMED_OUT), row
    assert "a transaction is open there" in (row.message or "")
    assert "delete" not in (row.hint or "")
    producer.abort_transaction(30)


def test_what_the_source_has_nothing_left_of_is_refused(
    cluster_pair: ClusterPair, destination: Destination, topic: str
) -> None:
    produce(cluster_pair.destination, topic, ["whose is this?"], partition=1)
    delete_records(cluster_pair.source, topic, 15, partition=1)
    result = add(destination, new_mirror(destination, cluster_pair.source), selector(topic), adopt=True)
    (row,) = result.results
    assert (result.exit_code, row.reason) == (ExitCode.REFUSED, Reason.SOURCE_TRUNCATED)
    assert f"cannot compare {topic}-1 with its source: it ends at offset 1, but the source starts at 15" in str(
        row.message
    )
    assert destination.state().topics(result.mirror) == ()


def test_without_adopt_an_existing_topic_is_refused_even_when_it_is_empty(
    cluster_pair: ClusterPair, destination: Destination, topic: str
) -> None:
    name = new_mirror(destination, cluster_pair.source)
    result = add(destination, name, selector(topic))
    assert result.exit_code == ExitCode.REFUSED
    assert "--adopt" in (result.results[0].hint or "")


def test_partition_counts_have_to_be_equal(cluster_pair: ClusterPair, destination: Destination) -> None:
    name, topic = new_mirror(destination, cluster_pair.source), unique_topic()
    make_topic(cluster_pair.source, topic, 2)
    make_topic(cluster_pair.destination, topic, 3)
    result = add(destination, name, selector(topic), adopt=True)
    assert result.exit_code == ExitCode.REFUSED
    assert "with 3 partitions" in (result.results[0].message or "")
