"""Settings of mirror topics follow their sources', on real brokers; deferred ones are set by the stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.topics.topic_settings import topic_defaults, topic_settings
from kmirror.engine.driver.side_jobs import JobEvent
from kmirror.engine.status.journal import Level
from kmirror.ops.add.add import add
from kmirror.ops.add.topic_admin import TopicAdmin
from kmirror.ops.base.context import Destination, change
from kmirror.ops.jobs.settings_sync import SettingsSyncJob
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.show.describe_settings import describe_settings
from kmirror.ops.stop.failover import failover
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.records import TopicRecord
from kmirror.state.snapshot import Changes
from kmirror.sync.setting_changes import SettingsChange, SettingState, settings_at_stop
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.mirrors import delete_topic, make_topic, new_mirror, properties_of, selector, settings_of
from tests.support.side_jobs import run_once, view_of
from tests.support.topics import alter_topic
from tests.support.waiting import wait_until


class Synced:
    """A mirror of one topic, and the job that syncs its settings."""

    def __init__(self, pair: ClusterPair, destination: Destination, job: SettingsSyncJob, mirror: str, topic: str):
        self.pair, self.destination, self.job, self.mirror, self.topic = pair, destination, job, mirror, topic

    def at_source(self, **settings: str | None) -> None:
        alter_topic(self.pair.source, self.topic, **settings)

    def here(self, **settings: str | None) -> None:
        alter_topic(self.pair.destination, self.topic, **settings)

    def sync(self) -> list[JobEvent]:
        return run_once(self.job, self.destination, self.mirror)

    def values(self) -> dict[str, str]:
        return settings_of(self.pair.destination, self.topic)

    def overrides(self) -> dict[str, str | None]:
        return {key: one.value for key, one in settings_here(self.destination, self.topic).items() if one.is_override}

    def record(self) -> TopicRecord:
        found = self.destination.state().topic(self.mirror, self.topic)
        assert found is not None
        return found

    def states(self) -> dict[str, str]:
        return {row.key or "": row.state.value for row in describe_settings(self.destination, self.mirror) if row.state}


@pytest.fixture
def synced(cluster_pair: ClusterPair, destination: Destination) -> Iterator[Synced]:
    topic = unique_topic("settings")
    make_topic(cluster_pair.source, topic, retention_ms="60000", segment_ms="7200000", compression_type="zstd")
    mirror = new_mirror(destination, cluster_pair.source, topic_properties_exclude="flush.messages,index[.].*")
    assert add(destination, mirror, selector(topic)).exit_code == 0
    with closing(SettingsSyncJob(mirror, properties_of(cluster_pair.destination))) as job:
        yield Synced(cluster_pair, destination, job, mirror, topic)


def settings_here(destination: Destination, topic: str) -> TopicSettings:
    found = topic_settings(destination.client, [topic])[topic]
    assert not isinstance(found, int)
    return found


def test_changes_at_the_source_are_followed_with_an_event_and_deferred_ones_are_stored(synced: Synced) -> None:
    assert synced.sync() == []
    synced.at_source(segment_ms="3600000", retention_ms="120000", flush_ms="9000", flush_messages="7")
    (event,) = synced.sync()
    assert (event.what, event.result) == ("settings", "CHANGED")
    assert event.details == {
        "topic": synced.topic,
        "set": {"segment.ms": "3600000", "flush.ms": "9000"},
        "removed": [],
        "heldBack": {"retention.ms": "120000"},
    }
    assert "segment.ms=3600000" in (event.note or "")
    found = synced.values()
    assert (found["segment.ms"], found["flush.ms"], found["retention.ms"]) == ("3600000", "9000", "-1")
    assert found["flush.messages"] != "7"
    record = synced.record()
    assert (record.deferred or {})["retention.ms"] == "120000"
    assert (record.settings or {})["flush.ms"] == "9000"
    assert synced.sync() == []


def test_only_settings_of_kmirror_are_removed_and_those_set_by_others_are_kept(synced: Synced) -> None:
    synced.at_source(flush_ms="9000", segment_jitter_ms="5")
    synced.sync()
    synced.here(flush_ms="1", preallocate="true")
    synced.at_source(flush_ms=None, segment_jitter_ms=None, segment_ms=None, preallocate="true")
    synced.sync()
    synced.at_source(preallocate=None)
    synced.sync()
    overrides = synced.overrides()
    assert overrides["flush.ms"] == "1"
    assert overrides["preallocate"] == "true"
    assert not {"segment.jitter.ms", "segment.ms"} & set(overrides)
    assert not {"flush.ms", "preallocate", "segment.ms"} & set(synced.record().settings or {})


def test_what_mirroring_needs_is_put_back(synced: Synced) -> None:
    synced.here(retention_ms="1000", cleanup_policy="compact", message_timestamp_type="LogAppendTime")
    assert synced.states()["retention.ms"] == "PENDING"
    synced.sync()
    found = synced.values()
    assert (found["retention.ms"], found["cleanup.policy"]) == ("-1", "delete")
    assert found["message.timestamp.type"] == "CreateTime"


def test_a_policy_that_will_lose_the_stored_state_is_warned_of_once(synced: Synced) -> None:
    assert synced.sync() == []
    alter_topic(synced.pair.destination, STATE_TOPIC, cleanup_policy="compact,delete")
    try:
        (event,) = synced.sync()
        assert event.level is Level.WARNING
        assert event.note is not None
        assert event.note.startswith("topic __kmirror_state has cleanup.policy=compact,delete, which would lose")
        assert "kafka-configs" in event.note
        assert synced.sync() == []
    finally:
        alter_topic(synced.pair.destination, STATE_TOPIC, cleanup_policy="compact")
    assert synced.sync() == []


def test_nothing_is_synced_when_that_is_switched_off(synced: Synced) -> None:
    change_config(synced.destination, synced.mirror, {"sync.topic.configs.enabled": "false"})
    synced.at_source(segment_ms="3600000")
    assert synced.sync() == []
    assert synced.values()["segment.ms"] == "7200000"


def test_another_source_topic_of_the_name_is_not_followed(synced: Synced) -> None:
    delete_topic(synced.pair.source, synced.topic)
    make_topic(synced.pair.source, synced.topic, flush_ms="9000")
    assert synced.sync() == []
    assert "flush.ms" not in synced.overrides()


def test_another_topic_of_the_name_here_is_not_touched(synced: Synced) -> None:
    delete_topic(synced.pair.destination, synced.topic)
    assert synced.sync() == []
    make_topic(synced.pair.destination, synced.topic)
    assert synced.sync() == []
    assert synced.overrides() == {}


def test_the_stop_gives_back_what_was_held(synced: Synced) -> None:
    admin = TopicAdmin(synced.destination)
    defaults = topic_defaults(synced.destination.client, STATE_TOPIC)

    def left() -> SettingsChange:
        return settings_at_stop(synced.record(), settings_here(synced.destination, synced.topic), defaults)

    assert set(admin.set_settings({synced.topic: left()}).values()) == {None}
    wait_until(lambda: left() == {})  # a busy broker shows them later
    overrides = synced.overrides()
    assert (overrides["retention.ms"], overrides["compression.type"]) == ("60000", "zstd")
    # the source leaves all others to its brokers, and the brokers here do the same
    assert set(overrides) == {"retention.ms", "compression.type", "segment.ms"}
    values = synced.values()
    assert (values["message.timestamp.type"], values["max.message.bytes"]) == ("CreateTime", "1048588")


def test_a_run_that_a_stop_overtakes_leaves_the_topic_as_the_stop_made_it(synced: Synced) -> None:
    """It read the source for so long, or was suspended; the stop does not wait for it."""
    view = view_of(synced.destination, synced.mirror)
    assert failover(synced.destination, synced.mirror).result.exit_code == 0
    stopped = synced.overrides()
    assert stopped["retention.ms"] == "60000"
    assert list(synced.job.run(view)) == []
    assert synced.overrides() == stopped


def test_describe_says_what_differs_and_why(synced: Synced) -> None:
    synced.at_source(flush_messages="7", min_insync_replicas="1")
    synced.here(flush_ms="1")
    rows = {row.key: row for row in describe_settings(synced.destination, synced.mirror, selector(synced.topic))}
    assert {key: row.state for key, row in rows.items() if row.state is not SettingState.HELD_BACK} == {
        "cleanup.policy": SettingState.SYNCED,
        "delete.retention.ms": SettingState.SYNCED,
        "flush.messages": SettingState.EXCLUDED,
        "flush.ms": SettingState.LOCAL,
        "max.compaction.lag.ms": SettingState.SYNCED,
        "min.compaction.lag.ms": SettingState.SYNCED,
        "segment.ms": SettingState.SYNCED,
    }
    row = rows["retention.ms"]
    assert (row.source_value, row.destination_value, row.state) == ("60000", "-1", SettingState.HELD_BACK)

    printed = typed(synced.pair.destination, "describe", "--mirror", synced.mirror, "--settings", "--json")
    assert printed.returncode == 0, printed.stderr
    row = next(row for row in json.loads(printed.stdout) if row["key"] == "compression.type")
    assert row == {
        "mirror": synced.mirror,
        "topic": synced.topic,
        "sourceTopic": synced.topic,
        "key": "compression.type",
        "sourceValue": "zstd",
        "destinationValue": "producer",
        "state": "HELD_BACK",
        "why": row["why"],
    }
    table = typed(synced.pair.destination, "describe", "--mirror", synced.mirror, "--settings").stdout.splitlines()
    assert table[0].split() == ["MIRROR", "TOPIC", "KEY", "SOURCE", "DESTINATION", "STATE", "WHY"]
    assert [synced.mirror, synced.topic, "flush.ms"] in [line.split()[:3] for line in table]
    both = typed(synced.pair.destination, "describe", "--settings", "--failed")
    assert both.returncode == 2


def test_describe_says_what_it_can_when_the_source_is_not_there(synced: Synced) -> None:
    record = synced.destination.state().mirror(synced.mirror)
    assert record is not None
    nowhere = replace(record, source={"bootstrap.servers": "127.0.0.1:1"})
    change(synced.destination, synced.mirror, lambda _: Changes((nowhere,)))
    rows = {row.key: row for row in describe_settings(synced.destination, synced.mirror)}
    assert rows["segment.ms"].state is SettingState.SOURCE_UNKNOWN
    assert (rows["retention.ms"].source_value, rows["retention.ms"].state) == ("60000", SettingState.HELD_BACK)
