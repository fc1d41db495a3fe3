"""What mirrors do between two versions of Kafka: a copy of every kind of log, a failover, a fork, a reset, a failback.

Each step asserts what it is about, and is given a mirror and topics of its own.
"""

from __future__ import annotations

from contextlib import suppress

from confluent_kafka import KafkaException

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.archive.archive_topic import archives_of
from kmirror.engine.histories.identity_check import AT_SOURCE, troubles
from kmirror.errors import ExitCode, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.failback.plan import Strategy
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.run.engine_start import side_jobs_of
from kmirror.ops.stop.failover import failover
from kmirror.state.assignment import Assignment
from kmirror.state.records import PartitionState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.groups import commit, committed
from tests.support.installed_logs import install
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, properties_of, selector
from tests.support.round_trip import Trip, produce_batches
from tests.support.shared_clusters import quick_logs
from tests.support.visible import assert_intact, assert_mirrored, shown
from tests.support.waiting import wait_until

#: The least that can be set, and a record that it lets a lane wait for many seconds after.
_THROTTLE = 65_536
_LARGE = "x" * 450_000


class VersionScenario:
    """A source and a destination, of any versions."""

    def __init__(self, source: SandboxCluster, destination: SandboxCluster) -> None:
        self.source = source
        self.destination = destination
        self._at = Destination.open(properties_of(destination))

    def close(self) -> None:
        """Close the connections."""
        self._at.close()

    def copies(self) -> None:
        """Every kind of log is copied as its readers see it; the source is restarted to be given them."""
        topics = {unique_topic(name): log for name, log in quick_logs().items()}
        install(self.source, topics)
        mirror = new_mirror(self._at, self.source)
        assert add(self._at, mirror, selector(*topics)).exit_code is ExitCode.OK
        with LocalEngine(self._at, mirror) as engine:
            engine.catch_up()
        for topic in topics:
            assert_mirrored(self.source, self.destination, topic)
            assert_intact(self.destination, topic)

    def forks(self) -> None:
        """A topic with a group fails over, is written to on both sides, and the fork is found at its offset."""
        topic, group = self._topic(20), unique_topic("g")
        commit(self.source, group, topic, {0: 7})
        mirror = new_mirror(self._at, self.source, sync_group_offsets_interval_seconds="1")
        assert add(self._at, mirror, selector(topic)).exit_code is ExitCode.OK
        with LocalEngine(self._at, mirror, side_jobs_of(mirror, self._at.properties)) as engine:
            engine.catch_up()
            wait_until(lambda: committed(self.destination, group, topic) == {0: 7})
        stopped = failover(self._at, mirror).result
        assert stopped.exit_code is ExitCode.OK
        (row,) = [one for one in stopped.results if one.partition == 0]
        assert row.last_mirrored_offset == 20
        produce(self.source, topic, ["only there"])
        produce(self.destination, topic, ["only here"])  # it is writable
        assert [record.value for record in shown(self.destination, topic)][19:] == [b"r19", b"only here"]
        refused = add(self._at, new_mirror(self._at, self.source), selector(topic), adopt=True)
        assert refused.exit_code is ExitCode.REFUSED
        assert "they fork at offset 20" in str(refused.results[0].message)

    def resets(self) -> None:
        """A topic is deleted and created again while it is not fetched: nothing of the new one is copied.

        It has more records than the old one had, in leader epoch 0 as before.
        """
        topic = self._topic(20)
        mirror = new_mirror(self._at, self.source, throttle_bytes_per_second=str(_THROTTLE))
        assert add(self._at, mirror, selector(topic)).exit_code is ExitCode.OK
        with LocalEngine(self._at, mirror) as engine:
            engine.catch_up()
            produce(self.source, topic, [_LARGE])
            wait_until(lambda: len(shown(self.destination, topic)) == 21)
            delete_topic(self.source, topic)
            wait_until(lambda: self._has_made(topic))
            produce_batches(self.source, topic, [f"other-{n}" for n in range(60)], 5)
            assert change_config(self._at, mirror, {}, ["throttle.bytes.per.second"]).exit_code is ExitCode.OK
            wait_until(lambda: self._at.state().partitions(mirror, topic)[0].state is PartitionState.FAILED)
        assert self._at.state().partitions(mirror, topic)[0].reason is Reason.SOURCE_TOPIC_RECREATED
        assert len(shown(self.destination, topic)) == 21

    def loses_a_topic(self) -> None:
        """A source topic that is gone is distinguished from one that may not be seen."""
        topic = self._topic(1)
        with ClusterClient(client_config(properties_of(self.source))) as client:
            metadata = client.metadata([topic])
            partition = Assignment(
                topic=topic,
                partition=0,
                source_topic=topic,
                source_topic_id=metadata.topics[topic].printed_topic_id,
                destination_topic_id=None,
                producer_id=0,
            )
            assert troubles(AT_SOURCE, client, metadata, [partition]) == {}
            delete_topic(self.source, topic)
            found = troubles(AT_SOURCE, client, client.metadata([topic]), [partition])
            assert found[partition].reason is Reason.SOURCE_TOPIC_DELETED

    def returns(self) -> None:
        """A topic fails over, is written to on both sides, and fails back: what only the old source had is archived."""
        topic = unique_topic()
        with Trip(self.source, self.destination) as trip:
            trip.go(topic, records=30)
            produce_batches(self.destination, topic, ["new", "newer"], 1)
            produce_batches(self.source, topic, ["left behind"], 1)
            assert trip.back(topic, strategy=Strategy.RECREATE).result.exit_code is ExitCode.OK
            trip.copy_to_a()
            trip.assert_same(topic)
            archive = archives_of([topic], trip.at_a.client.metadata().topics)[topic][-1]
            assert [record.value for record in shown(self.source, archive)] == [b"left behind"]

    def _topic(self, records: int) -> str:
        topic = unique_topic()
        make_topic(self.source, topic, retention_ms="-1")  # records bear an old time
        produce_batches(self.source, topic, [f"r{n}" for n in range(records)], 5)
        return topic

    def _has_made(self, topic: str) -> bool:
        with suppress(KafkaException):  # with ZooKeeper, topics are deleted some time after they are gone
            make_topic(self.source, topic)
            return True
        return False
