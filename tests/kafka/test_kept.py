"""Nothing is deleted while nothing is copied: `describe` says how much is kept, and the next engine deletes it."""

from __future__ import annotations

from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.show.describe import describe
from kmirror.status.partition_row import PARTITIONS, PartitionRow
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.waiting import wait_until


def test_what_is_kept_without_an_engine_is_reported_and_deleted_by_the_next_one(cluster_pair: ClusterPair) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic, retention_ms="-1")
    produce(cluster_pair.source, topic, [f"value {number}" for number in range(10)])
    with Destination.open(properties_of(cluster_pair.destination)) as destination:
        mirror = new_mirror(
            destination, cluster_pair.source, follow_log_start_delay_ms="0", refresh_interval_seconds="1"
        )
        assert add(destination, mirror, selector(topic)).exit_code == 0

        def row() -> PartitionRow:
            (found,) = describe(destination, mirror)
            return found

        with LocalEngine(destination, mirror) as engine:
            engine.catch_up()
        admin = AdminClient(properties_of(cluster_pair.source))
        for done in admin.delete_records([Place(topic, 0, 7)]).values():
            done.result(30)
        found = row()
        assert (found.destination_log_start, PARTITIONS.document(found)["keptBeyondSourceLogStart"]) == (0, 7)
        assert "keeps 7 offsets that the source has deleted" in (found.error_message or "")
        with LocalEngine(destination, mirror):
            wait_until(lambda: row().destination_log_start == 7)
        found = row()
        assert found.kept_beyond_source_log_start == 0
        assert "keeps" not in (found.error_message or "")
