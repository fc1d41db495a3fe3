"""The view that decisions are taken on."""

from dataclasses import replace

import pytest

from kmirror.errors import Reason, RefusedError
from kmirror.state.group_records import GroupsRecord
from kmirror.state.history_records import HistoryPoint, HistoryRecord
from kmirror.state.record_kinds import Record, Unknown
from kmirror.state.records import (
    DesiredState,
    EngineRecord,
    EngineState,
    Key,
    LaneRowsRecord,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    ProgressRecord,
    TopicOrigin,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, Report, State


def mirror(name: str) -> MirrorRecord:
    return MirrorRecord(name, {}, {}, None, "eve@ops", 0)


def topic(mirror_name: str, name: str) -> TopicRecord:
    return TopicRecord(mirror_name, name, name, None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)


def partition(mirror_name: str, topic_name: str, number: int) -> PartitionRecord:
    return PartitionRecord(mirror_name, topic_name, number, PartitionState.MIRRORING, 0)


def progress(mirror_name: str, lane: int) -> ProgressRecord:
    return ProgressRecord(mirror_name, lane, "L", 0, 0, "h", 1, 0, ())


RECORDS: list[Record | Unknown] = [
    mirror("b"),
    mirror("a"),
    topic("a", "z"),
    topic("a", "y"),
    topic("b", "x"),
    partition("a", "y", 11),
    partition("a", "y", 2),
    partition("a", "z", 0),
    progress("a", 10),
    progress("a", 9),
    Unknown(("zebra", "a", 7), "records of kind 'zebra' are not known to this version"),
    Unknown(("partition", "b", "x", 0), "its schema version is 2"),
    Unknown(("history", "a", 1), "its schema version is 2"),
    Unknown((), "its key cannot be read"),
]


def test_a_state_answers_by_name_and_in_order() -> None:
    state = State.of(RECORDS)
    assert state.mirrors == (mirror("a"), mirror("b"))
    assert state.mirror("a") == mirror("a")
    assert state.mirror("c") is None
    assert state.topics("a") == (topic("a", "y"), topic("a", "z"))
    assert state.topics("c") == ()
    assert state.topic("a", "z") == topic("a", "z")
    assert state.partitions("a", "y") == (partition("a", "y", 2), partition("a", "y", 11))
    assert state.partition("a", "y", 3) is None
    assert state.progress("a") == (progress("a", 9), progress("a", 10))
    assert state.engine("a") is None


def test_a_mirror_with_a_record_of_a_newer_version_is_not_to_be_changed() -> None:
    state = State.of(RECORDS)
    state.require_readable("a")  # a merely unknown kind does not prevent it
    with pytest.raises(RefusedError, match=r"\['partition', 'b', 'x', 0\] .* schema version is 2") as refused:
        state.require_readable("b")
    assert refused.value.hint == (
        "use the kmirror version that wrote it, or a newer one; if none wrote it, remove it with a tombstone"
    )
    assert refused.value.reason is Reason.STATE_UNREADABLE
    assert [record.key for record in state.unreadable()] == [("partition", "b", "x", 0)]


def test_a_mirror_whose_settings_have_words_of_a_newer_version_cannot_be_read() -> None:
    newer = replace(mirror("a"), settings={"source.reset.policy": "quarantine"})
    state = State.of([newer, mirror("b")])
    assert state.mirrors == (mirror("b"),)
    with pytest.raises(RefusedError, match="quarantine"):
        state.require_readable("a")
    only_a_key = replace(mirror("a"), settings={"copy.warp": "9"})
    assert State.of([only_a_key]).mirror("a") == only_a_key


def test_forgetting_a_mirror_forgets_what_newer_versions_kept_about_it_too() -> None:
    keys = State.of(RECORDS).keys_of("a")
    assert len(keys) == 10
    assert ("zebra", "a", 7) in keys


def test_changes_know_whether_there_is_anything_to_write() -> None:
    assert not Changes()
    assert Changes(tombstones=(("mirror", "a"),))


def test_reports_change_a_state_as_if_it_was_read_again() -> None:
    page = LaneRowsRecord("a", 9, 0, "L", 0, 0, ())
    engine = EngineRecord("a", "L", EngineState.RUNNING, "h", "b", 1, 1, None, None, 0, 0, 10_000)
    hour = HistoryRecord("a", 7, ())
    stored: dict[Key, Record | Unknown] = {record.key: record for record in [*RECORDS, page, hour]}
    state = State.of(stored.values())
    news: list[Report] = [
        replace(progress("a", 9), time_ms=5),
        progress("b", 0),
        replace(page, page=1),
        engine,
        GroupsRecord("a", 3, 5),
        replace(hour, hour=6),
        replace(hour, points=(HistoryPoint(1, 0, 0, None, None, None, 0, 0),)),
    ]
    after = state.with_reports(news)
    before, stored = State.of(stored.values()), {**stored, **{record.key: record for record in news}}
    assert after == State.of(stored.values())
    assert state == before, "the one before stays as it was"
