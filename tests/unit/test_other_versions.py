"""What other versions of kmirror have stored: all of an older one's is read, none of a newer one's half understood."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror.engine.status.health import MirrorHealth
from kmirror.engine.status.journal import MirrorJournal
from kmirror.engine.status.mirror_topics import MirrorTopics
from kmirror.engine.status.partitions import MirrorPartitions
from kmirror.engine.status.state_feed import StateFeed
from kmirror.errors import Reason, UsageError
from kmirror.settings.parsing import stored_settings, unknown_settings
from kmirror.state.event_records import decode_event
from kmirror.state.group_records import GroupRecord
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.record_kinds import Record, Removed, Unknown, decode, encode
from kmirror.state.records import MirrorRecord, PartitionState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.mirror_status import MirrorStatus
from kmirror.status.observed import ClusterSnapshot
from kmirror.status.partition_row import PARTITIONS
from kmirror.status.topic_state import TopicState
from tests.support.statuses import status_of

#: Written by the kmirror of 2026-11-22, of schema version 1: a mirror of four topics with an engine in charge, of which
#: one was paused and one failed over; keys and values are the bytes of the two internal topics, compacted.
FILE = Path(__file__).parent.parent / "support" / "older_state.jsonl"
OLDER = [json.loads(line) for line in FILE.read_text().splitlines()]
STORED = [(one["key"].encode(), one["value"].encode()) for one in OLDER if one["topic"] == "__kmirror_state"]
EVENTS = [(one["key"].encode(), one["value"].encode()) for one in OLDER if one["topic"] == "__kmirror_events"]

NOW = 1_795_423_905_000
LOOK = ClusterSnapshot(NOW)


def older() -> list[Record]:
    found = [decode(key, value) for key, value in STORED]
    return [record for record in found if not isinstance(record, Removed | Unknown)]


def status(state: State) -> MirrorStatus:
    mirror = state.mirror("m")
    assert mirror is not None
    return status_of(state, mirror, state.topics("m"), LOOK, None, NOW)


def test_all_that_an_older_version_stored_is_read() -> None:
    records = older()
    assert len(records) == len(STORED) == 18
    assert {record.key[0] for record in records} == {
        *("mirror", "topic", "partition", "engine", "progress", "change", "group", "groups", "rights")
    }
    assert [decode_event(key, value, 0).what for key, value in EVENTS] == ["create", "add", "run", "pause", "failover"]
    (group,) = (record for record in records if isinstance(record, GroupRecord))
    assert group.offsets["orders"] == {0: (7,), 1: (50,)}


def test_nothing_of_an_older_version_is_lost_when_it_is_written_again() -> None:
    for (key, value), record in zip(STORED, older(), strict=True):
        again_key, again = encode(record)
        before, after = json.loads(value), json.loads(again)
        if isinstance(record, LaneChangeRecord) or key.startswith(b'["progress"'):
            before.pop("columns"), after.pop("columns")  # newer columns, and rows that have them
            before.pop("rows" if "rows" in before else "taken"), after.pop("rows" if "rows" in after else "taken")
        assert again_key == key
        assert before.items() <= after.items()


def test_rows_are_made_of_what_an_older_version_stored() -> None:
    rows = {(row.topic, row.partition): row for row in status(State.of(older())).partitions}
    assert {partition: row.state for partition, row in rows.items()} == {
        ("audit", 0): PartitionState.MIRRORING,
        ("orders", 0): PartitionState.MIRRORING,
        ("orders", 1): PartitionState.MIRRORING,
        ("payments", 0): PartitionState.PAUSED,
        ("users", 0): PartitionState.STOPPED,
    }
    assert rows["users", 0].last_mirrored_offset == 50
    assert rows["users", 0].reason is Reason.FAILED_OVER
    assert rows["orders", 0].is_reported
    assert rows["orders", 0].reason is None


NEWER = [
    pytest.param(b'["engine","m"]', b'"v":1', b'"v":2', id="a higher v"),
    pytest.param(b'["partition","m","orders",0]', b"MIRRORING", b"REWINDING", id="an unknown word"),
    pytest.param(b'["topic","m","orders"]', b'"partitions":2', b'"partitions":"2"', id="another type"),
    pytest.param(b'["mirror","m"]', b'{"sync', b'{"source.reset.policy":"quarantine","sync', id="a setting's value"),
]


@pytest.mark.parametrize(("key", "ours", "theirs"), NEWER)
def test_what_a_newer_version_keeps_of_a_mirror_shows_in_its_rows(key: bytes, ours: bytes, theirs: bytes) -> None:
    stored = dict(STORED)
    assert ours in stored[key]
    stored[key] = stored[key].replace(ours, theirs)
    state = State.of([record for record in (decode(*one) for one in stored.items()) if not isinstance(record, Removed)])
    (unreadable,) = state.unreadable("m")
    assert list(unreadable.key) == json.loads(key)
    if state.mirror("m") is None:
        return  # it is in no table: `list` names the record and exits with 4
    rows = {(row.topic, row.partition): row for row in status(state).partitions}
    assert rows["users", 0].reason is Reason.FAILED_OVER
    flagged = [row for row in rows.values() if row.topic != "users"]
    assert {row.reason for row in flagged} == {Reason.STATE_UNREADABLE}
    assert "cannot be read" in (flagged[0].error_message or "")
    assert {row.topic_state for row in flagged} <= {TopicState.LINK_FAILED, TopicState.PAUSED}
    assert PARTITIONS.notes is not None
    assert any("not known to be copied" in note for note in PARTITIONS.notes(list(rows.values())))
    summed = status(state).row
    assert (summed.state, summed.reason) == (TopicState.LINK_FAILED, Reason.STATE_UNREADABLE)


def test_an_engine_gets_records_that_it_cannot_read_unless_they_are_history() -> None:
    topic = next(record for record in older() if isinstance(record, TopicRecord))
    mirror = next(record for record in older() if isinstance(record, MirrorRecord))
    newer = Unknown(topic.key, "its schema version is 2")
    replica = StateFeed("m")
    replica.take(newer)
    replica.take(topic)
    replica.take(Unknown(("partition", "m", "orders", 1), "its schema version is 2"))
    assert [met for met in replica.catch_up() if isinstance(met, Unknown)] == [
        Unknown(("partition", "m", "orders", 1), "its schema version is 2")
    ]
    assert replica.take(newer) == [newer]
    assert replica.take(Unknown(("topic", "n", "orders"), "of another mirror")) == []
    assert replica.take(Unknown(("zebra", "m"), "records of kind 'zebra' are not known")) == []
    assert replica.take(Unknown(("group", "m", "g"), "written by another job")) == []
    (found,) = replica.take(replace(mirror, settings={"source.reset.policy": "quarantine"}))
    assert isinstance(found, Unknown)
    assert "quarantine" in found.problem


def test_settings_of_a_newer_version_have_no_effect_and_are_reported_once() -> None:
    raw = {"copy.warp": "9", "copy.lanes": "3"}
    assert stored_settings(raw).copy_lanes == 3
    assert unknown_settings(raw) == ("copy.warp",)
    with pytest.raises(UsageError, match=r"copy\.lanes"):
        stored_settings({"copy.lanes": "many"})
    record = next(record for record in older() if isinstance(record, MirrorRecord))
    journal = MirrorJournal("m", "eve@ops", lambda: 0)
    topics = MirrorTopics(
        replace(record, settings=raw), (), MirrorPartitions("m", (), (), MirrorHealth(0), journal), journal
    )
    assert topics.take_mirror(replace(record, settings=raw | {"copy.lanes": "4"}))
    assert [note.text for note in journal.notes] == ["this kmirror ignores unknown settings: copy.warp"]
