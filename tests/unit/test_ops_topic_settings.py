"""Settings of a mirror topic: what is taken over, what never, and what waits for the stop."""

from __future__ import annotations

import pytest

from kmirror.ops.topic_settings import HELD_BACK, TopicSetting, settings_for, settings_to_change

ENDLESS = "9223372036854775807"
SOURCE = {
    "cleanup.policy": TopicSetting("compact", False),
    "max.message.bytes": TopicSetting("1048588", False),
    "delete.retention.ms": TopicSetting("86400000", False),
    "retention.ms": TopicSetting("604800000", False),
    "compression.type": TopicSetting("zstd", True),
    "message.timestamp.type": TopicSetting("LogAppendTime", True),
    "message.timestamp.after.max.ms": TopicSetting("3600000", False),
    "segment.bytes": TopicSetting("2000000", True),
    "segment.ms": TopicSetting("604800000", False),
    "min.insync.replicas": TopicSetting("2", True),
    "unclean.leader.election.enable": TopicSetting("true", True),
    "leader.replication.throttled.replicas": TopicSetting("*", True),
    "remote.storage.enable": TopicSetting("true", True),
    "local.retention.ms": TopicSetting("1", True),
    "some.day.invented": TopicSetting("1", True),
}
KNOWN = set(HELD_BACK) - {"message.timestamp.difference.max.ms"} | set(SOURCE) - {"some.day.invented"}


def test_what_matters_is_set_though_the_source_leaves_it_to_its_brokers() -> None:
    now = settings_for(SOURCE, KNOWN).now
    assert now["cleanup.policy"] == "compact"
    assert now["delete.retention.ms"] == "86400000"


def test_other_settings_are_taken_over_only_where_the_source_topic_sets_them() -> None:
    now = settings_for(SOURCE, KNOWN).now
    assert now["segment.bytes"] == "2000000"
    assert "segment.ms" not in now


def test_what_belongs_to_a_cluster_is_never_taken_over() -> None:
    plan = settings_for(SOURCE, KNOWN)
    local = {key for key in SOURCE if key.startswith(("min.", "unclean.", "leader.", "remote.", "local."))}
    assert not local & (set(plan.now) | set(plan.deferred))


def test_what_would_change_or_delete_the_copy_is_held_back_until_the_stop() -> None:
    plan = settings_for(SOURCE, KNOWN)
    assert {key: plan.now[key] for key in HELD_BACK if key in plan.now} == {
        "compression.type": "producer",
        "max.message.bytes": "2147483647",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": ENDLESS,
        "message.timestamp.after.max.ms": ENDLESS,
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }
    assert plan.deferred == {
        "compression.type": "zstd",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.after.max.ms": "3600000",
        "retention.ms": "604800000",
    }


def test_a_setting_the_destination_does_not_know_is_left_out_and_told() -> None:
    plan = settings_for(SOURCE, KNOWN)
    assert plan.left_out == ("some.day.invented",)
    assert "some.day.invented" not in plan.now
    assert settings_for(SOURCE, None).now["some.day.invented"] == "1"


def test_only_a_destination_that_has_it_gets_the_timestamp_difference_of_kafka_3() -> None:
    key = "message.timestamp.difference.max.ms"
    assert key not in settings_for(SOURCE, KNOWN).now
    assert settings_for(SOURCE, {*KNOWN, key}).now[key] == ENDLESS


def test_an_existing_topic_is_changed_only_where_mirroring_needs_it() -> None:
    plan = settings_for(SOURCE, KNOWN)
    present = {
        **{key: TopicSetting(value, False) for key, value in plan.now.items()},
        "retention.ms": TopicSetting("1000", True),
        "max.message.bytes": TopicSetting("9000000", True),
        "segment.bytes": TopicSetting("5000000", True),
        "delete.retention.ms": TopicSetting("5", True),
    }
    assert settings_to_change(plan, present) == {
        "retention.ms": "-1",
        "max.message.bytes": "2147483647",
        "delete.retention.ms": "86400000",
    }


@pytest.mark.parametrize(("at_source", "here"), [("14", "1048576"), ("1048576", "1048576"), ("2000000", "2000000")])
def test_segments_are_never_smaller_than_newer_brokers_and_our_own_batches_need(at_source: str, here: str) -> None:
    source = {**SOURCE, "segment.bytes": TopicSetting(at_source, True)}
    assert settings_for(source, KNOWN).now["segment.bytes"] == here
