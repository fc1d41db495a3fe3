"""A broker that is cut off from the controllers answers from what it last knew: topics may exist all the same."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition, newest
from kmirror.cluster.protocol.wire import NO_TOPIC_ID, format_topic_id
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.topic_requests import delete_topics, topic_errors
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.errors import KmirrorError, Reason, UnreachableError
from kmirror.ops.add.archive_admin import next_archive
from kmirror.ops.add.topic_admin import await_deleted, begin_deletion
from kmirror.ops.base.context import Destination, change
from kmirror.ops.base.gone import gone_topics, is_there
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.jobs.rebuild_claim import claim
from kmirror.ops.stop.source_after_stop import check_source_after_stop
from kmirror.ops.stop.source_ends import SourceEndsRequest
from kmirror.ops.stop.work import StopResults
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.state.records import PENDING_REBUILD, DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import Deadline
from kmirror_sandbox.cluster import SandboxBroker, SandboxCluster
from tests.support.clusters import freeze, unique_topic
from tests.support.mirrors import make_topic, new_mirror, produce
from tests.support.stores import state_store
from tests.support.waiting import wait_until


def client(broker: SandboxBroker) -> ClusterClient:
    return ClusterClient(client_config({"bootstrap.servers": f"{broker.host}:{broker.port}"}))


def controller(cluster: SandboxCluster) -> int:
    """Return the node of the active controller, by what a node has written down of its vote."""
    stored = Path(cluster.brokers[0].log_dir, "__cluster_metadata-0", "quorum-state")
    return int(json.loads(stored.read_text(encoding="utf-8"))["leaderId"])


def create(broker: SandboxBroker, topic: str, *others: SandboxBroker) -> None:
    """Create a topic of one partition, led by this broker, with replicas on others."""
    admin = AdminClient({"bootstrap.servers": f"{broker.host}:{broker.port}"})
    new = NewTopic(topic, 1, replica_assignment=[[broker.node_id, *(one.node_id for one in others)]])
    admin.create_topics([new], request_timeout=60)[topic].result(70)


@contextmanager
def cut_off(cluster: SandboxCluster, topic: str) -> Iterator[tuple[SandboxBroker, SandboxBroker]]:
    """Create a topic that one broker does not know and cannot learn of; yield that broker, and one that knows it.

    A topic of this name that exists is replaced: that broker shows the old one.
    """
    knowing = next(broker for broker in cluster.brokers if broker.node_id == controller(cluster))
    stale, third = (broker for broker in cluster.brokers if broker.node_id != knowing.node_id)
    freeze(cluster, stale.node_id)
    with client(knowing) as asked:  # until then clients may take the frozen one for the controller
        wait_until(lambda: stale.node_id not in asked.metadata([]).brokers)
        if not asked.metadata([topic]).topics[topic].error_code:
            delete_topics(asked, [topic])
            wait_until(lambda: asked.metadata([topic]).topics[topic].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION)
    create(knowing, topic)
    for broker in (knowing, third):
        freeze(cluster, broker.node_id)
    cluster.signal(stale.node_id, signal.SIGCONT)
    try:
        yield stale, knowing
    finally:
        for broker in (knowing, third):
            cluster.signal(broker.node_id, signal.SIGCONT)


def record(topic: str, topic_id: bytes | None) -> TopicRecord:
    printed = format_topic_id(topic_id) if topic_id else None
    return TopicRecord("m", topic, topic, "source-id", printed, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)


def test_a_topic_is_not_gone_because_one_broker_does_not_know_it(three_brokers: SandboxCluster) -> None:
    archived, other = unique_topic(), unique_topic("old")
    topic = f"{archived}.kmirror-archive.1"
    create(three_brokers.brokers[0], other)
    with client(three_brokers.brokers[0]) as asked:
        wait_until(lambda: asked.metadata([other]).topics[other].error_code == 0)
        other_id = asked.metadata([other]).topics[other].topic_id
        delete_topics(asked, [other])
        wait_until(lambda: asked.metadata([other]).topics[other].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION)
        # once every broker says so, it is gone
        assert gone_topics(asked, [record(other, other_id)], asked.metadata([other]).topics) == {other}
    with cut_off(three_brokers, topic) as (stale, knowing), client(stale) as asked:
        found = asked.metadata([topic, other]).topics
        # a new topic looks like a deleted one here
        assert [found[name].error_code for name in (topic, other)] == [Code.BROKER_NOT_AVAILABLE] * 2
        assert set(topic_errors(asked, [other_id]).values()) == {Code.BROKER_NOT_AVAILABLE}
        assert not gone_topics(asked, [record(other, other_id)], found)
        # nor is one that a failback or a rebuild has archived and may delete
        with pytest.raises(KmirrorError, match=f"the destination does not describe {topic}: BROKER_NOT_AVAILABLE"):
            is_there(asked, topic, "its id")
        # nor is its name free for the next archive
        with pytest.raises(KmirrorError, match=f"the destination does not describe {topic}: BROKER_NOT_AVAILABLE"):
            next_archive(asked, archived)
        three_brokers.signal(knowing.node_id, signal.SIGCONT)
        wait_until(lambda: asked.metadata([topic]).topics[topic].error_code == 0)
        topic_id = asked.metadata([topic]).topics[topic].topic_id
        assert topic_errors(asked, [topic_id]) == {topic_id: 0}
        assert not gone_topics(asked, [record(topic, topic_id)], asked.metadata([topic]).topics)

    def next_name() -> str | None:
        with client(stale) as asked, suppress(KmirrorError):
            return next_archive(asked, archived)
        return None

    wait_until(lambda: next_name() == f"{archived}.kmirror-archive.2")


def test_a_deleted_topic_is_awaited_at_each_broker_also_where_another_one_has_its_name(
    three_brokers: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that still shows the old one takes offsets for it, and deletes them with it."""
    topic = unique_topic()
    create(three_brokers.brokers[0], topic, *three_brokers.brokers[1:])
    with client(three_brokers.brokers[0]) as asked:
        old = asked.metadata([topic])
        old_id = old.topics[topic].printed_topic_id
        begin_deletion(asked, topic, old_id)
        await_deleted(asked, topic, old_id)
        create(three_brokers.brokers[0], topic, *three_brokers.brokers[1:])
        ask_each, stale = asked.ask_each, [old, old, None]

        def ask_stale(*arguments: Any, **options: Any) -> list[Any]:
            *others, last = ask_each(*arguments, **options)
            return [*others, stale.pop(0) if stale else last]

        monkeypatch.setattr(asked, "ask_each", ask_stale)
        await_deleted(asked, topic, old_id)
        assert not stale


@pytest.mark.slow
def test_a_source_topic_is_not_recreated_because_one_broker_shows_an_older_one(
    three_brokers: SandboxCluster, destination: Destination
) -> None:
    topic, mirror = unique_topic(), new_mirror(destination, three_brokers)
    create(three_brokers.brokers[0], topic)
    with client(three_brokers.brokers[0]) as asked:
        wait_until(lambda: asked.metadata([topic]).topics[topic].error_code == 0)
        old = asked.metadata([topic]).topics[topic].topic_id

    def begin(source_topic_id: bytes, *, consented: bool = True) -> TopicRecord | None:
        printed = format_topic_id(source_topic_id)
        mirrored = replace(record(topic, bytes(15) + b"\x01"), mirror=mirror, source_topic_id=printed)
        change(destination, mirror, lambda _: Changes((mirrored,)))
        claim(destination, mirror, topic, Reason.SOURCE_TOPIC_RECREATED, consented=consented)
        return destination.state().topic(mirror, topic)

    with cut_off(three_brokers, topic) as (stale, knowing):
        with client(stale) as asked:
            assert asked.metadata([topic]).topics[topic].topic_id == old
        # the newer one may be the one that was mirrored
        with pytest.raises(UnreachableError, match=f"source topic {topic} .* may still exist"):
            begin(bytes(15) + b"\x02", consented=False)
        claimed = begin(bytes(15) + b"\x02")
        assert claimed is not None
        assert claimed.pending_operation == PENDING_REBUILD
        three_brokers.signal(knowing.node_id, signal.SIGCONT)
        with client(knowing) as asked:
            wait_until(lambda: asked.metadata([topic]).topics[topic].topic_id not in {old, NO_TOPIC_ID})
            new = asked.metadata([topic]).topics[topic].topic_id
        with pytest.raises(UnreachableError, match=f"source topic {topic} .* may still exist"):
            begin(new)
    wait_until(lambda: _is_claimed(begin, old))


def _is_claimed(begin: Callable[[bytes], TopicRecord | None], topic_id: bytes) -> bool:
    """Try it again once all brokers answer, and have heard of the new topic."""
    with suppress(UnreachableError):
        found = begin(topic_id)
        return found is not None and found.pending_operation == PENDING_REBUILD
    return False


@pytest.mark.slow
def test_a_partition_that_one_broker_does_not_know_is_no_difference(
    three_brokers: SandboxCluster, destination: Destination, destination_cluster: SandboxCluster
) -> None:
    topic, mirror = unique_topic(), new_mirror(destination, three_brokers)
    make_topic(destination_cluster, topic, 2)
    produce(destination_cluster, topic, ["1"], 1)
    knowing = next(one for one in three_brokers.brokers if one.node_id == controller(three_brokers))
    stale, third = (one for one in three_brokers.brokers if one.node_id != knowing.node_id)
    create(stale, topic)
    with client(stale) as asked, client(knowing) as other:
        wait_until(lambda: asked.metadata([topic]).topics[topic].error_code == 0)
        freeze(three_brokers, stale.node_id)
        wait_until(lambda: stale.node_id not in other.metadata([]).brokers)
    admin = AdminClient({"bootstrap.servers": f"{knowing.host}:{knowing.port}"})
    more = NewPartitions(topic, 2, replica_assignment=[[knowing.node_id]])
    admin.create_partitions([more], request_timeout=60)[topic].result(70)
    for broker in (knowing, third):
        freeze(three_brokers, broker.node_id)
    three_brokers.signal(stale.node_id, signal.SIGCONT)

    def adopt(state: State) -> Changes:
        known = state.mirror(mirror)
        assert known is not None
        source = {**known.source, "bootstrap.servers": f"{stale.host}:{stale.port}"}
        return Changes(
            (replace(known, source=source), replace(record(topic, None), mirror=mirror, source_topic_id=None))
        )

    change(destination, mirror, adopt)
    try:
        rows = {row.partition: row for row in verify(destination, VerifyRequest(mirror)).rows}
        assert (rows[1].result, rows[1].different) == (Outcome.TIMED_OUT, False)
        assert "whether the source has this partition is not certain" in rows[1].message
    finally:
        for broker in (knowing, third):
            three_brokers.signal(broker.node_id, signal.SIGCONT)


@pytest.mark.slow
def test_settings_come_from_a_broker_that_knows_the_topic(three_brokers: SandboxCluster) -> None:
    topic = unique_topic()
    with cut_off(three_brokers, topic) as (stale, knowing), client(stale) as asked:
        assert topic_settings(asked, [topic])[topic] == Code.UNKNOWN_TOPIC_OR_PARTITION
        (third,) = (one for one in three_brokers.brokers if one.node_id not in {stale.node_id, knowing.node_id})
        three_brokers.signal(third.node_id, signal.SIGCONT)
        # it is asked again once its silence is a while ago
        wait_until(lambda: not isinstance(topic_settings(asked, [topic])[topic], int))
        settings = topic_settings(asked, [topic], ["cleanup.policy"])[topic]
        assert not isinstance(settings, int)
        assert settings["cleanup.policy"].value == "delete"


@pytest.mark.slow
def test_a_leader_that_is_cut_off_does_not_say_where_the_source_ends(three_brokers: SandboxCluster) -> None:
    topic = unique_topic()
    topic_partition = TopicPartition(topic, 0)
    create(three_brokers.brokers[0], topic, *three_brokers.brokers[1:])
    produce(three_brokers, topic, ["1", "2", "3"])
    with client(three_brokers.brokers[0]) as asked:
        wait_until(lambda: asked.metadata([topic]).topics[topic].error_code == 0)
        partition = asked.metadata([topic]).topics[topic].partitions[0]
    stale, *others = sorted(three_brokers.brokers, key=lambda broker: broker.node_id != partition.leader_id)
    freeze(three_brokers, stale.node_id)
    with client(others[0]) as asked:
        wait_until(lambda: stale.node_id not in asked.metadata([topic]).brokers)
        wait_until(lambda: asked.metadata([topic]).leader(topic_partition) is not None)
        elsewhere = ",".join(f"{broker.host}:{broker.port}" for broker in others)
        producer = Producer({"bootstrap.servers": elsewhere})
        producer.produce(topic, "4")
        assert producer.flush(60) == 0
        newer = asked.metadata([topic])
    for broker in others:
        freeze(three_brokers, broker.node_id)
    three_brokers.signal(stale.node_id, signal.SIGCONT)
    mirror = MirrorRecord("m", {"bootstrap.servers": f"{stale.host}:{stale.port}"}, {}, None, "x", 0)
    try:
        with client(stale) as asked:
            # it answers as the leader that it was
            assert asked.list_offsets({topic_partition: LATEST})[topic_partition].offset == 3
            older, silent = asked.newest_metadata([topic])
            assert silent == {broker.node_id for broker in others}
            assert older.has_replica_on(topic_partition, silent)
            # who knows better is believed
            assert (
                newest([older, newer]).leader(topic_partition)
                == newer.leader(topic_partition)
                == newest([newer, older]).leader(topic_partition)
            )
            rows = [TopicResult(topic, 0, Outcome.DONE, last_mirrored_offset=3)]
            one = replace(record(topic, None), source_topic_id=older.topics[topic].printed_topic_id)
            after = check_source_after_stop(asked, {topic: one}, StopResults(rows, ends={topic_partition: 3}))
            assert ([row.result for row in after.rows], len(after.warnings)) == ([Outcome.TIMED_OUT], 1)
            question = SourceEndsRequest(mirror, [one], {})
            assert question.answer().ends == {}
            question.close()
    finally:
        for broker in others:
            three_brokers.signal(broker.node_id, signal.SIGCONT)
    with client(stale) as asked:
        wait_until(lambda: asked.newest_metadata([topic])[1] == frozenset())
        after = check_source_after_stop(asked, {topic: one}, StopResults(rows, ends={topic_partition: 3}))
        assert [(row.reason, row.lag, after.warnings) for row in after.rows] == [
            (Reason.SOURCE_WRITTEN_AFTER_STOP, 1, [])
        ]


def test_an_older_topic_of_the_name_on_a_stale_broker_does_not_make_the_mirror_topic_gone(
    three_brokers: SandboxCluster,
) -> None:
    topic = unique_topic()
    create(three_brokers.brokers[0], topic)
    with client(three_brokers.brokers[0]) as asked:
        wait_until(lambda: asked.metadata([topic]).topics[topic].error_code == 0)
        found = asked.metadata([topic]).topics
        now = found[topic].topic_id
        assert not gone_topics(asked, [record(topic, now)], found)
        # the record names a topic id that no broker has: deleted and created again
        wait_until(lambda: gone_topics(asked, [record(topic, bytes(15) + b"\x07")], found) == {topic})
        # metadata from before the topic was created again: only its id decides
        older = {topic: type(found[topic])(topic, 0, bytes(15) + b"\x07", False, found[topic].partitions)}
        assert not gone_topics(asked, [record(topic, now)], older)


def test_a_command_waits_until_it_is_certain_that_nothing_is_stored(three_brokers: SandboxCluster) -> None:
    topic = unique_topic()
    silent, other, _ = three_brokers.brokers
    store = state_store(client_config({"bootstrap.servers": f"{other.host}:{other.port}"}))
    freeze(three_brokers, silent.node_id)
    # while the silent broker is still a member of the cluster, it might know the topic
    with pytest.raises(UnreachableError, match=f"not all brokers answer, and those that do have no topic {topic}"):
        store._described(topic, Deadline(0.1))
    assert store._described(topic, Deadline(60)) is None
    store.close()
