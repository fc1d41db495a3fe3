"""Destination topics are created as mirroring needs them; what was interrupted is finished, what exists is kept."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kmirror.errors import ExitCode, Reason, RefusedError, UsageError
from kmirror.ops.add import add_steps, filling
from kmirror.ops.add.add import add
from kmirror.ops.add.topic_admin import TopicAdmin
from kmirror.ops.base.context import Destination, change
from kmirror.ops.jobs.settings_sync import SettingsSyncJob
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.mirrors.create import create
from kmirror.ops.mirrors.recover import recover
from kmirror.ops.show.describe import describe
from kmirror.state.records import PENDING_ADD, DesiredState, TopicOrigin, TopicRecord
from kmirror.state.snapshot import Changes, State
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.holes import write_holes
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import (
    delete_topic,
    make_topic,
    new_mirror,
    outcomes,
    produce,
    properties_of,
    selector,
    settings_of,
)
from tests.support.side_jobs import run_once
from tests.support.spawned import exit_code_of
from tests.support.topics import set_topic
from tests.support.visible import assert_mirrored

ENDLESS = "9223372036854775807"


def topics_of(destination: Destination) -> set[str]:
    return set(destination.client.metadata().topics)


def test_topics_that_are_created_keep_the_settings_that_an_operator_gives_them(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic, segment_ms="7200000", flush_messages="7")
    name = new_mirror(destination, cluster_pair.source)
    for key in ("compression.type", "cleanup.policy"):
        with pytest.raises(UsageError, match=f"--config {key} cannot be set on a mirror topic"):
            add(destination, name, selector(topic), overrides={key: "1"})
    reported = add(destination, name, selector(topic), overrides={"segment.ms": "3600000"}, dry_run=True)
    assert "segment.ms=3600000" in str(reported.results[0].message)
    added = add(destination, name, selector(topic), overrides={"segment.ms": "3600000"})
    assert outcomes(added) == {topic: "DONE"}
    with closing(SettingsSyncJob(name, destination.properties)) as job:
        assert run_once(job, destination, name) == []
    found = settings_of(cluster_pair.destination, topic)
    assert (found["segment.ms"], found["flush.messages"]) == ("3600000", "7")
    record = destination.state().topic(name, topic)
    assert record is not None
    assert record.settings is not None
    assert ("segment.ms" in record.settings, record.settings["flush.messages"]) == (False, "7")


def test_add_creates_the_topic_as_mirroring_needs_it_and_remembers_the_rest(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    make_topic(
        cluster_pair.source,
        topic,
        3,
        compression_type="zstd",
        retention_ms="60000",
        message_timestamp_type="LogAppendTime",
        max_message_bytes="2000000",
        segment_ms="7200000",
        min_insync_replicas="1",
    )
    name = new_mirror(destination, cluster_pair.source, topic_prefix="a.")
    result = add(destination, name, selector(topic))
    assert (result.exit_code, outcomes(result)) == (0, {f"a.{topic}": "DONE"})

    found = settings_of(cluster_pair.destination, f"a.{topic}")
    expected = {
        "compression.type": "producer",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": ENDLESS,
        "message.timestamp.after.max.ms": ENDLESS,
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": "2147483647",
        "segment.ms": "7200000",
    }
    assert {key: found[key] for key in expected} == expected

    record = destination.state().topic(name, f"a.{topic}")
    there = cluster_pair.source, topic
    assert record is not None
    assert (record.source_topic, record.partitions, record.desired) == (topic, 3, DesiredState.ACTIVE)
    assert (record.origin, record.pending_operation) == (TopicOrigin.CREATED, None)
    assert record.source_topic_id == topic_id(*there)
    assert record.destination_topic_id == topic_id(cluster_pair.destination, f"a.{topic}")
    assert record.deferred is not None
    # what the source says, for the stop; what it leaves to its brokers too
    assert record.deferred == {
        "compression.type": "zstd",
        "max.message.bytes": "2000000",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": ENDLESS,
        "message.timestamp.after.max.ms": "3600000",
        "retention.ms": "60000",
        "retention.bytes": "-1",
    }


def test_a_mirror_topic_takes_batches_larger_than_its_source_takes_today(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic, value = unique_topic(), random.Random(1).randbytes(3_000_000)
    make_topic(cluster_pair.source, topic, max_message_bytes="4000000")
    put(cluster_pair.source, topic, value)
    set_topic(cluster_pair.source, topic, {"max.message.bytes": "1000"})
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        put(cluster_pair.source, topic, value)
    name = new_mirror(destination, cluster_pair.source)
    dry = add(destination, name, selector(topic), dry_run=True)
    # what every mirror topic has is counted, not listed
    message = f"would create with 1 partition, to mirror {topic}; 11 settings as every mirror topic has"
    assert dry.results[0].message == message
    assert add(destination, name, selector(topic)).exit_code == ExitCode.OK
    put(cluster_pair.destination, topic, value)
    record = destination.state().topic(name, topic)
    assert record is not None
    assert record.deferred is not None
    assert record.deferred["max.message.bytes"] == "1000"


def put(cluster: SandboxCluster, topic: str, value: bytes) -> None:
    refused: list[str] = []
    producer = Producer({**properties_of(cluster), "message.max.bytes": 10_000_000})
    producer.produce(topic, value, on_delivery=lambda error, _: refused.append(error.name()) if error else None)
    assert producer.flush(30) == 0
    assert refused == []


def topic_id(cluster: SandboxCluster, topic: str) -> str | None:
    with Destination.open(properties_of(cluster)) as opened:
        return opened.client.metadata([topic]).topics[topic].printed_topic_id


def test_a_dry_run_says_the_same_and_changes_nothing(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    name = new_mirror(destination, cluster_pair.source)
    before = destination.state().records
    patterns = selector(topic, f"{topic}-later.*")
    dry = add(destination, name, patterns, allow_missing=True, dry_run=True)
    assert destination.state().records == before
    assert topic not in topics_of(destination)
    real = add(destination, name, patterns, allow_missing=True)
    assert (dry.exit_code, outcomes(dry)) == (real.exit_code, outcomes(real)) == (0, {None: "DONE", topic: "DONE"})


def test_an_expression_that_matches_nothing_is_refused_and_leaves_nothing(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    name = new_mirror(destination, cluster_pair.source)
    before = destination.state().records
    for dry_run in (True, False):
        result = add(destination, name, selector(f"{topic}.*"), dry_run=dry_run)
        assert (result.exit_code, outcomes(result)) == (ExitCode.REFUSED, {None: "REFUSED"})
    assert destination.state().records == before
    # beside one that matches
    make_topic(cluster_pair.source, topic)
    mixed = add(destination, name, selector(f"{topic}.*", f"no-{topic}.*"))
    assert mixed.exit_code == ExitCode.PARTLY_DONE
    found = destination.state().mirror(name)
    assert found is not None
    assert found.settings["topics.include"] == f"{topic}.*"


def test_adding_again_changes_nothing(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    name = new_mirror(destination, cluster_pair.source)
    add(destination, name, selector(f"{topic}.*"))
    before, events = destination.state().records, destination.store.read_events(name)
    again = add(destination, name, selector(f"{topic}.*"))
    assert (again.exit_code, outcomes(again)) == (0, {topic: "NOOP"})
    assert destination.state().records == before
    assert destination.store.read_events(name) == events


def test_expressions_are_kept_in_the_filters_and_names_only_when_missing(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    name = new_mirror(destination, cluster_pair.source)
    add(destination, name, selector(topic, f"{topic}-[ab]"), exclude=selector(f"{topic}-b"), allow_missing=True)
    add(destination, name, selector(f"{topic}-later"), allow_missing=True)
    mirror = destination.state().mirror(name)
    assert mirror is not None
    assert mirror.settings == {
        "topics.include": f"{topic}-[ab],{topic}-later",
        "topics.exclude": f"{topic}-b",
    }


def test_one_refused_topic_does_not_stop_the_others(cluster_pair: ClusterPair, destination: Destination) -> None:
    fine, taken, missing = unique_topic(), unique_topic(), unique_topic("missing")
    for topic in (fine, taken):
        make_topic(cluster_pair.source, topic)
    make_topic(cluster_pair.destination, taken)
    name = new_mirror(destination, cluster_pair.source)
    result = add(destination, name, selector(fine, taken, missing))
    assert outcomes(result) == {fine: "DONE", taken: "REFUSED", missing: "REFUSED"}
    assert result.exit_code == ExitCode.PARTLY_DONE
    assert [topic.topic for topic in destination.state().topics(name)] == [fine]


def test_what_the_brokers_would_refuse_is_refused_before_anything_is_written(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    name = new_mirror(destination, cluster_pair.source, replication_factor="7")
    before = destination.state().records
    for dry_run in (True, False):
        result = add(destination, name, selector(topic), dry_run=dry_run)
        assert result.exit_code == ExitCode.REFUSED
        assert "replication" in (result.results[0].message or "").lower()
    assert destination.state().records == before


@pytest.mark.parametrize("claimed_before", [False, True])
def test_what_the_brokers_refuse_in_the_end_is_given_back(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch, claimed_before: bool
) -> None:
    fine, refused = unique_topic(), unique_topic()
    for topic in (fine, refused):
        make_topic(cluster_pair.source, topic)
    name = new_mirror(destination, cluster_pair.source)
    if claimed_before:
        claim = TopicRecord(name, refused, refused, None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED, "add")
        change(destination, name, lambda _: Changes((claim,)))
    create_topics = TopicAdmin.create

    def change_your_mind(self: TopicAdmin, topics: Any, *, validate_only: bool = False, **how: Any) -> Any:
        if not validate_only:
            topics = [replace(t, replication_factor=7) if t.name == refused else t for t in topics]
        return create_topics(self, topics, validate_only=validate_only, **how)

    monkeypatch.setattr(TopicAdmin, "create", change_your_mind)
    before = destination.state().topic(name, refused)
    result = add(destination, name, selector(fine, refused))
    assert (result.exit_code, outcomes(result)) == (4, {fine: "DONE", refused: "REFUSED"})
    assert destination.state().topic(name, refused) == before
    assert describe(destination, name, selector(fine))[0].destination_offset == 0


def test_two_mirrors_cannot_own_one_topic(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    one, two = (new_mirror(destination, cluster_pair.source) for _ in range(2))
    add(destination, one, selector(topic))
    result = add(destination, two, selector(topic), adopt=True)
    assert result.exit_code == ExitCode.REFUSED
    assert f"is a mirror topic of mirror {one}" in (result.results[0].message or "")


def test_a_copy_is_not_copied_back(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    forth = new_mirror(destination, cluster_pair.source)
    add(destination, forth, selector(topic))
    with Destination.open(properties_of(cluster_pair.source)) as source:
        back = new_mirror(source, cluster_pair.destination, topic_prefix="b.")
        (row,) = add(source, back, selector(topic)).results
        assert (row.result, row.reason) == ("REFUSED", Reason.LOOP)
        assert f"{topic} here → {topic} on the source (mirror {forth} there) → b.{topic} here" in (row.message or "")
        assert f"b.{topic}" not in topics_of(source)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the topic is created", "before the record is completed"])
def test_an_add_that_was_killed_is_finished_by_the_same_command(
    cluster_pair: ClusterPair, destination: Destination, moment: str
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic, 2)
    name = new_mirror(destination, cluster_pair.source)
    assert exit_code_of(add_and_die, destination.properties, name, topic, moment) == 9
    assert (topic in topics_of(destination)) == (moment == "before the record is completed")
    claimed = destination.state().topic(name, topic)
    assert claimed is not None
    assert claimed.pending_operation == PENDING_ADD
    assert "interrupted" in (describe(destination, name)[0].error_message or "")

    result = add(destination, name, selector(topic))
    assert (result.exit_code, outcomes(result)) == (0, {topic: "DONE"})
    record = destination.state().topic(name, topic)
    assert record is not None
    assert (record.pending_operation, record.partitions) == (None, 2)
    assert record.destination_topic_id == topic_id(cluster_pair.destination, topic)


def add_and_die(properties: dict[str, str], name: str, topic: str, moment: str) -> None:
    def die(*_: Any) -> None:
        os._exit(9)

    create_topics = TopicAdmin.create

    def die_unless_validating(self: TopicAdmin, topics: Any, *, validate_only: bool = False, **how: Any) -> Any:
        return create_topics(self, topics, validate_only=True, **how) if validate_only else die()

    if moment == "before the topic is created":
        TopicAdmin.create = die_unless_validating  # type: ignore[method-assign]
    else:
        add_steps._complete = die  # type: ignore[assignment]
    with Destination.open(properties) as destination:
        add(destination, name, selector(topic))


def test_a_mirror_topic_that_was_deleted_is_created_again_when_asked(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    name = new_mirror(destination, cluster_pair.source, topic_prefix="p.")
    add(destination, name, selector(topic))
    first = destination.state().topic(name, f"p.{topic}")
    delete_topic(cluster_pair.destination, f"p.{topic}")
    (row,) = describe(destination, name)
    assert row.reason is Reason.DESTINATION_TOPIC_DELETED
    assert f"to mirror it again: kmirror add --mirror {name} --topics {topic}, if" in (row.error_message or "")
    (refused,) = recover(destination, name).results
    assert f": kmirror add --mirror {name} --topics {topic}, if" in (refused.hint or "")
    assert outcomes(add(destination, name, selector(topic))) == {f"p.{topic}": "DONE"}
    again = destination.state().topic(name, f"p.{topic}")
    assert first is not None
    assert again is not None
    assert again.destination_topic_id != first.destination_topic_id
    assert describe(destination, name)[0].reason is Reason.NO_ENGINE


def test_another_cluster_behind_the_sources_address_is_refused(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    name = new_mirror(destination, cluster_pair.source)
    record = destination.state().mirror(name)
    assert record is not None
    pretend_the_source_was_another(destination, name)
    with pytest.raises(RefusedError) as caught:
        add(destination, name, selector("t"))
    assert caught.value.reason is Reason.SOURCE_CLUSTER_CHANGED
    assert cluster_pair.source.cluster_id in caught.value.message


def pretend_the_source_was_another(destination: Destination, name: str) -> None:
    def decide(state: State) -> Changes:
        found = state.mirror(name)
        assert found is not None
        return Changes((replace(found, source_cluster_id="another"),))

    change(destination, name, decide)


BAD: dict[str, tuple[Callable[[Destination, str], Any], type[Exception]]] = {
    "an unknown mirror": (lambda d, name: add(d, f"{name}x", selector("t")), RefusedError),
    "a contradiction": (
        lambda d, name: add(d, name, selector("t.*"), exclude=selector("t.*"), dry_run=True),
        UsageError,
    ),
    "a name that is excluded": (lambda d, name: add(d, name, selector("t"), exclude=selector("t.*")), UsageError),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_changes_nothing(cluster_pair: ClusterPair, destination: Destination, case: str) -> None:
    name = new_mirror(destination, cluster_pair.source)
    before = destination.state().records
    attempt, error = BAD[case]
    with pytest.raises(error) as caught:
        attempt(destination, name)
    assert getattr(caught.value, "hint", None)
    assert destination.state().records == before


def test_filters_of_topics_that_were_all_refused_are_not_kept(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    make_topic(cluster_pair.destination, topic)
    name = new_mirror(destination, cluster_pair.source)
    result = add(destination, name, selector(f"{topic}.*"))
    assert result.exit_code == ExitCode.REFUSED
    mirror = destination.state().mirror(name)
    assert mirror is not None
    assert mirror.settings == {}


def test_an_excluded_topic_needs_the_filter_changed_first(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    name = new_mirror(destination, cluster_pair.source)
    change_config(destination, name, {"topics.exclude": f"{topic}.*"})
    assert add(destination, name, selector(topic)).exit_code == ExitCode.REFUSED
    change_config(destination, name, {}, ["topics.exclude"])
    assert add(destination, name, selector(topic)).exit_code == ExitCode.OK


@pytest.mark.slow
def test_kafka_3_9_on_both_sides_and_its_own_timestamp_limit(
    make_cluster: MakeCluster, cluster_pair: ClusterPair
) -> None:
    old = make_cluster("old", kafka_version="3.9.2", properties={"log.message.timestamp.difference.max.ms": "86400000"})
    topic, back = unique_topic(), unique_topic("back")
    make_topic(cluster_pair.source, topic)
    # Kafka 4 refuses segments of less than a megabyte
    make_topic(old, back, message_timestamp_difference_max_ms="1000", segment_bytes="10000")
    with Destination.open(properties_of(old)) as destination:
        name = new_mirror(destination, cluster_pair.source)
        assert add(destination, name, selector(topic)).exit_code == ExitCode.OK
        assert settings_of(old, topic)["message.timestamp.difference.max.ms"] == ENDLESS
        produce(old, topic, ["so old that the brokers' own limit would refuse it"])
    with Destination.open(properties_of(cluster_pair.destination)) as destination:
        name = f"m-{back}"
        create(destination, name, properties_of(old))
        result = add(destination, name, selector(back))
        assert (result.exit_code, outcomes(result)) == (0, {back: "DONE"})
        found = settings_of(cluster_pair.destination, back)
        assert "message.timestamp.difference.max.ms" not in found
        assert found["segment.bytes"] == "1048576"


@pytest.mark.slow
def test_a_message_format_of_the_source_topic_that_takes_no_copy_is_not_taken_over(make_cluster: MakeCluster) -> None:
    source, old = (make_cluster(name, kafka_version="2.8.2") for name in ("source", "old"))
    topic = unique_topic()
    make_topic(source, topic, message_format_version="0.10.2")
    produce(source, topic, ["in a format of its own", "before the copy"])
    with Destination.open(properties_of(old)) as destination:
        name = new_mirror(destination, source)
        assert add(destination, name, selector(topic)).exit_code == ExitCode.OK
        assert settings_of(old, topic)["message.format.version"] != "0.10.2"
        with LocalEngine(destination, name) as engine:
            engine.catch_up()
    assert_mirrored(source, old, topic)


def test_what_takes_long_to_fill_is_warned_of_with_its_cost(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, compacted, plain = (unique_topic() for _ in range(3))
    make_topic(cluster_pair.source, late, 2)
    make_topic(cluster_pair.source, compacted, cleanup_policy="compact")
    make_topic(cluster_pair.source, plain)
    write_holes(cluster_pair.source, compacted, stretches=((5, 10), (3000, 5)))
    for topic in (late, plain):
        produce(cluster_pair.source, topic, [str(number) for number in range(40)])
    admin = AdminClient(properties_of(cluster_pair.source))
    for done in admin.delete_records([TopicPartition(late, 0, 30)]).values():
        assert done.result(30).low_watermark == 30
    name = new_mirror(destination, cluster_pair.source)
    topics = selector(f"{late},{compacted},{plain}")
    assert add(destination, name, topics, dry_run=True).warnings == ()
    monkeypatch.setattr(filling, "_MANY_BELOW_START", 30)
    monkeypatch.setattr(filling, "_MANY_HOLES", 2500)
    below, holes = add(destination, name, topics, dry_run=True).warnings
    assert below == (
        f"{late} begins at offset 30: 30 offsets below are filled and deleted again before its first record is copied, "
        "for a while about 21 B at the destination, in about 1s"
    )
    assert holes == (
        f"{compacted} is compacted: by samples of 1 partition, about 3,000 offsets hold no record; they are filled "
        "with markers, about 234.4 KB at the destination until its cleaner removes them, in about 1s, longer without "
        "the right to write markers"
    )
    assert add(destination, name, topics).warnings == (below, holes)
    # they are mirror topics now
    assert add(destination, name, topics).warnings == ()


def test_what_was_aborted_is_part_of_a_filling_and_what_cannot_be_read_is_named(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted, unread = unique_topic(), unique_topic()
    writers = []
    for topic in (aborted, unread):
        make_topic(cluster_pair.source, topic)
        writers.append(Producer({**properties_of(cluster_pair.source), "transactional.id": topic}))
        writers[-1].init_transactions(30)
        writers[-1].begin_transaction()
    for number in range(300):
        writers[0].produce(aborted, b"%d" % number)
    assert writers[0].flush(30) == 0
    writers[0].abort_transaction(30)
    # it stays open: what follows is not returned to readers of committed records
    writers[1].produce(unread, b"first")
    assert writers[1].flush(30) == 0
    produce(cluster_pair.source, unread, [str(number) for number in range(40)])
    monkeypatch.setattr(filling, "_MANY_HOLES", 30)
    name = new_mirror(destination, cluster_pair.source)
    holes, unknown = add(destination, name, selector(aborted, unread), dry_run=True).warnings
    assert holes == (
        f"{aborted} has transactions: by samples of 1 partition, about 300 offsets hold no record; they are filled "
        "with markers, about 23.5 KB at the destination, in about 1s, longer without the right to write markers"
    )
    assert unknown == f"how many offsets have to be filled is unknown where the source could not be read: {unread}-0"
    writers[1].abort_transaction(30)


def test_a_name_that_collides_at_the_destination_is_refused_with_what_helps(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    name = unique_topic()
    make_topic(cluster_pair.source, f"{name}.a_b")
    make_topic(cluster_pair.destination, f"{name}_a.b")
    mirror = new_mirror(destination, cluster_pair.source)
    for dry_run in (True, False):
        (row,) = add(destination, mirror, selector(f"{name}.a_b"), dry_run=dry_run).results
        assert "collides with existing topic" in str(row.message)
        assert "topic.prefix" in str(row.hint)
