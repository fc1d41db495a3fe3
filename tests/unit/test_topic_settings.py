"""Settings of a mirror topic: what is taken over, what never, and what waits for the stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kmirror.cluster.protocol.topic_configs import TopicSetting, TopicSettings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import DesiredState, TopicOrigin, TopicRecord
from kmirror.sync.setting_changes import (
    MIRROR_VALUES,
    ComparedSetting,
    SettingState,
    as_first_source,
    compare_settings,
    has_a_mirror_value,
    has_all_mirror_values,
    kept_settings,
    knows_no_first_source,
    own_settings,
    retention_notes,
    settings_at_stop,
    settings_for,
    settings_made,
    settings_to_change,
    settled_notes,
    settling,
    sync_settings,
)

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
KNOWN = set(MIRROR_VALUES) - {"message.timestamp.difference.max.ms"} | set(SOURCE) - {"some.day.invented"}


def test_what_matters_is_set_though_the_source_leaves_it_to_its_brokers() -> None:
    now = settings_for(SOURCE, KNOWN).now
    assert now["cleanup.policy"] == "compact"
    assert now["delete.retention.ms"] == "86400000"


def test_a_topic_that_takes_the_place_of_another_keeps_what_is_never_synced_but_names_no_brokers() -> None:
    assert kept_settings(SOURCE) == {
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "true",
        "remote.storage.enable": "true",
        "local.retention.ms": "1",
    }
    assert kept_settings({"min.insync.replicas": TopicSetting("1", False)}) == {}
    assert kept_settings(29) == {}


def test_other_settings_are_taken_over_only_where_the_source_topic_sets_them() -> None:
    now = settings_for(SOURCE, KNOWN).now
    assert now["segment.bytes"] == "2000000"
    assert "segment.ms" not in now


def test_what_belongs_to_a_cluster_is_never_taken_over() -> None:
    plan = settings_for(SOURCE, KNOWN)
    local = {key for key in SOURCE if key.startswith(("min.", "unclean.", "leader.", "remote.", "local."))}
    assert not local & (set(plan.now) | set(plan.deferred))


def test_settings_that_would_change_or_delete_the_copy_are_deferred_until_the_stop() -> None:
    plan = settings_for(SOURCE, KNOWN)
    assert {key: plan.now[key] for key in MIRROR_VALUES if key in plan.now} == {
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


def test_a_setting_that_the_destination_does_not_know_is_omitted_and_reported() -> None:
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


# -- while mirroring ------------------------------------------------------------------------------------------------


def mirror_topic(**fields: Any) -> TopicRecord:
    return TopicRecord("m", "t", "t", "S", "D", DesiredState.ACTIVE, 1, TopicOrigin.CREATED, **fields)


def as_made(source: TopicSettings, exclude: TopicSelector | None = None) -> tuple[TopicRecord, dict[str, TopicSetting]]:
    """Return the record and the settings of a mirror topic that was just created."""
    plan = settings_for(source, KNOWN, exclude or TopicSelector())
    present = {key: TopicSetting(found.value, False) for key, found in source.items() if key in KNOWN}
    present |= {key: TopicSetting(value, True) for key, value in plan.now.items()}
    record = mirror_topic(deferred=dict(plan.deferred), inherited=plan.inherited, settings=settings_made(plan))
    return record, present


def overridden(value: str) -> TopicSetting:
    return TopicSetting(value, True)


def test_nothing_changes_while_the_source_stays_as_it_is() -> None:
    record, present = as_made(SOURCE)
    sync = sync_settings(record, SOURCE, present)
    assert sync.changes == {}
    assert sync.record == record


def test_changes_of_the_source_are_made_here_and_deferred_ones_are_stored() -> None:
    record, present = as_made(SOURCE)
    source = {**SOURCE, "segment.bytes": overridden("3000000"), "retention.ms": overridden("1000")}
    sync = sync_settings(record, source, present)
    assert sync.changes == {"segment.bytes": "3000000"}
    assert (sync.record.deferred or {})["retention.ms"] == "1000"
    assert "retention.ms" in (record.inherited or ())
    assert "retention.ms" not in (sync.record.inherited or ())
    assert (sync.record.settings or {})["segment.bytes"] == "3000000"


def test_what_the_source_sets_no_more_is_removed_where_kmirror_had_set_it() -> None:
    record, present = as_made(SOURCE)
    source = {**SOURCE, "segment.bytes": TopicSetting("1073741824", False)}
    sync = sync_settings(record, source, present)
    assert sync.changes == {"segment.bytes": None}
    assert "segment.bytes" not in (sync.record.settings or {})
    # set here by an operator, to the same value or another one: it is theirs
    for forgotten in (replace(record, settings={}), replace(record, settings={"segment.bytes": "5000000"})):
        assert sync_settings(forgotten, source, present).changes == {}


def test_what_the_source_says_nothing_of_stays_as_it_is() -> None:
    record, present = as_made(SOURCE)
    for silent in ({}, {key: one for key, one in SOURCE.items() if key not in {"segment.bytes", "retention.ms"}}):
        sync = sync_settings(record, silent, present)
        assert sync.changes == {}
        assert sync.record == record


def test_what_an_operator_sets_here_is_kept_whatever_the_source_does() -> None:
    record, present = as_made(SOURCE)
    local = {**present, "segment.bytes": overridden("9000000")}
    sync = sync_settings(record, SOURCE, local)
    assert sync.changes == {}
    assert "segment.bytes" not in (sync.record.settings or {})
    changed = {**SOURCE, "segment.bytes": overridden("3000000")}
    assert sync_settings(sync.record, changed, local).changes == {}
    # until he takes it away again
    freed = {**local, "segment.bytes": TopicSetting("1073741824", False)}
    assert sync_settings(sync.record, changed, freed).changes == {"segment.bytes": "3000000"}


@pytest.mark.parametrize(("key", "value"), [("retention.ms", "1000"), ("cleanup.policy", "delete")])
def test_what_mirroring_needs_is_put_back(key: str, value: str) -> None:
    record, present = as_made(SOURCE)
    sync = sync_settings(record, SOURCE, {**present, key: overridden(value)})
    assert sync.changes == {key: present[key].value}


def test_excluded_settings_are_left_alone_and_excluded_deferred_ones_are_not_stored() -> None:
    exclude = TopicSelector(("delete.retention.ms", r"retention\..*"))
    record, present = as_made(SOURCE, exclude)
    assert "delete.retention.ms" not in (record.settings or {})
    assert present["retention.ms"].value == "-1"
    assert "retention.ms" not in (record.deferred or {})
    source = {**SOURCE, "delete.retention.ms": overridden("5")}
    assert sync_settings(record, source, present, exclude).changes == {}
    # excluded later: what was set stays, and is no longer managed
    record, present = as_made(SOURCE)
    sync = sync_settings(record, SOURCE, present, TopicSelector(("segment.bytes",)))
    assert sync.changes == {}
    assert "segment.bytes" not in (sync.record.settings or {})


# -- the stop -------------------------------------------------------------------------------------------------------


def test_the_stop_gives_the_sources_values_and_removes_what_it_leaves_to_its_brokers() -> None:
    record, present = as_made({**SOURCE, "retention.bytes": TopicSetting("-1", False)})
    defaults = {"retention.ms": "604800000", "max.message.bytes": "1048588", "retention.bytes": "-1"}
    changes = settings_at_stop(record, present, {**defaults, "cleanup.policy": "compact", "delete.retention.ms": "5"})
    assert changes == {
        # what was set only so that no other default could rule; the other one would be another value
        "cleanup.policy": None,
        "compression.type": "zstd",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": None,
        "retention.ms": None,
        "retention.bytes": None,
        # the source does not know it
        "message.timestamp.before.max.ms": None,
        # whether the brokers here have the source's default is not known
        "message.timestamp.after.max.ms": "3600000",
    }


def test_a_source_that_keeps_records_longer_than_the_brokers_here_by_its_defaults_is_followed() -> None:
    record, present = as_made(SOURCE)
    changes = settings_at_stop(record, present, {"retention.ms": "1000"})
    assert changes["retention.ms"] == "604800000"


def test_a_repeated_stop_changes_nothing_and_does_not_undo_an_operators_change() -> None:
    record, present = as_made(SOURCE)
    after = dict(present)
    for key, value in settings_at_stop(record, present).items():
        after[key] = TopicSetting("whatever the brokers say", False) if value is None else overridden(value)
    assert settings_at_stop(record, after) == {}
    assert "retention.ms" not in settings_at_stop(record, {**present, "retention.ms": overridden("5")})


def test_the_stop_removes_only_what_kmirror_set_and_the_source_leaves_to_its_brokers() -> None:
    defaults = {"cleanup.policy": "compact", "delete.retention.ms": "86400000"}
    record, present = as_made({**SOURCE, "cleanup.policy": overridden("compact")})
    changes = settings_at_stop(record, present, defaults)
    assert "cleanup.policy" not in changes
    assert changes["delete.retention.ms"] is None
    for theirs in (replace(record, settings={}), replace(record, inherited=None)):
        assert "delete.retention.ms" not in settings_at_stop(theirs, present, defaults)
    assert "delete.retention.ms" not in settings_at_stop(record, present, {**defaults, "delete.retention.ms": "5"})
    assert "delete.retention.ms" not in settings_at_stop(record, present)


# -- a mirror of a mirror -------------------------------------------------------------------------------------------


def test_along_a_chain_each_mirror_defers_what_the_first_source_has() -> None:
    first, present = as_made(SOURCE)
    assert has_all_mirror_values(present)
    seen = as_first_source(present, first)
    second, third_source = as_made(seen)
    assert (second.deferred, second.inherited) == (first.deferred, first.inherited)
    third, _ = as_made(as_first_source(third_source, second))
    assert (third.deferred, third.inherited) == (first.deferred, first.inherited)
    assert not any(knows_no_first_source(one) for one in (first, second, third))
    assert sync_settings(second, seen, third_source).changes == {}


def test_who_cannot_see_behind_a_mirror_topic_knows_that() -> None:
    _, present = as_made(SOURCE)
    blind, _ = as_made(present)
    assert knows_no_first_source(blind)
    # one value that only some topics have proves nothing
    assert has_a_mirror_value({"retention.ms": overridden("-1")})
    assert not has_all_mirror_values({**present, "retention.ms": overridden("5")})
    assert not has_a_mirror_value(SOURCE)


# -- describe -------------------------------------------------------------------------------------------------------


def states(rows: list[ComparedSetting]) -> dict[str, SettingState]:
    assert all(row.why for row in rows)
    return {row.key: row.state for row in rows}


def test_describe_says_of_each_setting_that_differs_why() -> None:
    exclude = TopicSelector(("delete.retention.ms",))
    record, present = as_made(SOURCE, exclude)
    present = {
        **present,
        "delete.retention.ms": TopicSetting("5", False),
        "min.insync.replicas": TopicSetting("1", False),
        "segment.ms": TopicSetting("1000", False),
        "flush.ms": overridden("1"),
        "segment.bytes": overridden("9000000"),
        "cleanup.policy": overridden("delete"),
    }
    source = {**SOURCE, "flush.ms": TopicSetting("5", False)}
    assert states(compare_settings(record, source, present, exclude)) == {
        "cleanup.policy": SettingState.PENDING,
        "compression.type": SettingState.HELD_BACK,
        "delete.retention.ms": SettingState.EXCLUDED,
        "flush.ms": SettingState.LOCAL,
        "max.message.bytes": SettingState.HELD_BACK,
        "message.timestamp.after.max.ms": SettingState.HELD_BACK,
        "message.timestamp.before.max.ms": SettingState.HELD_BACK,
        "message.timestamp.type": SettingState.HELD_BACK,
        "min.insync.replicas": SettingState.NEVER,
        "retention.bytes": SettingState.HELD_BACK,
        "retention.ms": SettingState.HELD_BACK,
        "segment.bytes": SettingState.LOCAL,
        "segment.ms": SettingState.BROKER_DEFAULT,
        "some.day.invented": SettingState.UNKNOWN_HERE,
    }


def test_describe_shows_what_kmirror_set_and_leaves_out_what_is_equal_by_itself() -> None:
    record, present = as_made(SOURCE)
    rows = compare_settings(record, SOURCE, present)
    found = states(rows)
    assert found["segment.bytes"] is SettingState.SYNCED
    assert "segment.ms" not in found
    (deferred,) = [row for row in rows if row.key == "compression.type"]
    assert (deferred.source_value, deferred.destination_value) == ("zstd", "producer")


def test_describe_says_what_it_can_without_the_source() -> None:
    record, present = as_made(SOURCE)
    rows = {row.key: row for row in compare_settings(record, None, present)}
    assert rows["segment.bytes"].state is SettingState.SOURCE_UNKNOWN
    assert rows["segment.bytes"].source_value is None
    # what it said last
    assert rows["compression.type"].source_value == "zstd"
    assert rows["compression.type"].state is SettingState.HELD_BACK


def test_describe_says_so_where_nothing_is_synced() -> None:
    record, present = as_made(SOURCE)
    changed = {**SOURCE, "segment.bytes": overridden("3000000")}
    (row,) = [r for r in compare_settings(record, changed, present, is_synced=False) if r.key == "segment.bytes"]
    assert row.state is SettingState.PENDING
    assert "sync.topic.configs.enabled=false" in row.why


def test_a_topic_that_is_taken_over_counts_what_it_has_of_its_source_as_set() -> None:
    plan = settings_for(SOURCE, KNOWN)
    present = {"segment.bytes": overridden("2000000"), "delete.retention.ms": overridden("5")}
    made = settings_made(plan, present)
    assert made["segment.bytes"] == "2000000"
    assert made["delete.retention.ms"] == "86400000"
    assert "segment.bytes" not in settings_made(plan, {"segment.bytes": overridden("7000000")})


DELETING = {**SOURCE, "cleanup.policy": TopicSetting("delete", False)}
SETTLED = {"max.message.bytes": "8000000", "retention.ms": str(30 * 86_400_000), "retention.bytes": None}


def test_what_a_destination_takes_instead_is_kept_while_mirrored_and_replaced_by_the_stop() -> None:
    plan = settings_for(DELETING, KNOWN).settling(SETTLED)
    assert plan.now["max.message.bytes"] == "8000000"
    assert "retention.bytes" not in plan.now
    record = mirror_topic(
        settings=dict(plan.now), settled=SETTLED, deferred=dict(plan.deferred), inherited=plan.inherited
    )
    present = {**DELETING, **{key: overridden(value) for key, value in plan.now.items()}}
    here = {**present, "retention.bytes": overridden("5")}
    assert sync_settings(record, DELETING, here).changes == {}
    rows = {row.key: row for row in compare_settings(record, DELETING, here)}
    assert rows["max.message.bytes"].state is SettingState.HELD_BACK
    assert rows["max.message.bytes"].why.startswith("the destination refuses 2147483647")
    assert rows["retention.bytes"].state is SettingState.LOCAL
    changes = settings_at_stop(record, here)
    assert changes["retention.ms"] == DELETING["retention.ms"].value
    assert "retention.bytes" not in changes
    assert settling(record, {"retention.ms": "5"}).settled == {**SETTLED, "retention.ms": "5"}


def test_a_topic_that_replaces_a_mirror_topic_gets_what_others_have_set_there() -> None:
    record, present = as_made(SOURCE)
    assert own_settings(record, present) == {}
    theirs = {"min.insync.replicas": "2", "remote.storage.enable": "true", "segment.bytes": "9000000"}
    local = {**present, **{key: overridden(value) for key, value in theirs.items()}}
    local["flush.ms"] = TopicSetting("1000", False)
    assert own_settings(record, local) == theirs
    # for some moments only
    others = {"leader.replication.throttled.replicas": "0:1", "retention.ms": "1000", "cleanup.policy": "delete"}
    local |= {key: overridden(value) for key, value in others.items()}
    assert own_settings(record, local) == theirs
    # excluded from the sync: what is set here stays
    assert own_settings(record, local, TopicSelector(("cleanup.policy",))) == {**theirs, "cleanup.policy": "delete"}
    # set by `add --config`
    assert own_settings(replace(record, settled={"retention.ms": None}), local) == {**theirs, "retention.ms": "1000"}


def test_what_is_weaker_is_said_once_for_all_topics_with_dates() -> None:
    plan = settings_for(DELETING, KNOWN).settling(SETTLED)
    notes = settled_notes({"a": plan, "b": plan}, 1_780_000_000_000)
    assert [note.partition(": ")[0] for note in notes] == ["a, b"] * 3
    batch, size, age = notes
    assert batch.endswith("a partition whose source has a larger batch fails, and says how large it is")
    assert "retention.bytes is not set to -1" in size
    assert "older records, now those before 2026-04-28T20:26:40Z, are deleted here" in age
    record = mirror_topic(settings=dict(plan.now), settled=SETTLED)
    assert "before 2026-04-28T20:26:40Z may have been deleted" in retention_notes([record], 1_780_000_000_000)[0]
    compacted = replace(record, settings={"cleanup.policy": "compact"})
    assert retention_notes([compacted, mirror_topic()], 1_780_000_000_000) == []
