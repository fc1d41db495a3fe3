"""Which offsets groups get at the destination, from two clusters' views."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.cluster.groups.share_offsets import decode_altered, decode_described, encode_alter
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.group_offsets import Committed, GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import FrameError
from kmirror.ops.groups.at_stop import age_note
from kmirror.ops.groups.commit import is_still_true
from kmirror.state.group_records import GroupReason, GroupRecord, GroupsRecord
from kmirror.state.record_kinds import decode, encode
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from kmirror.state.waiting import now_ms
from kmirror.sync.group_changes import (
    GroupPlan,
    GroupView,
    MirroredTopics,
    clamped,
    differing_partitions,
    kept_rows,
    marked_absent,
    plan_group,
    recorded,
    restricted,
    with_kept,
)

AT = TopicPartition("orders", 0)
PLACE = TopicPartition("eu.orders", 0)
TOPICS = MirroredTopics({"orders": "eu.orders"})
NOBODY = GroupView(GroupKind.CONSUMER)
LOG = {PLACE: (0, 100)}


def source(offset: int, metadata: str = "") -> GroupView:
    return GroupView(GroupKind.CONSUMER, has_members=True, committed={AT: Committed(offset, metadata)})


def here(offset: int, *, members: bool = False, kind: GroupKind = GroupKind.CONSUMER) -> GroupView:
    return GroupView(kind, members, {PLACE: Committed(offset)})


def stored(*offsets: int) -> GroupRecord:
    return GroupRecord("m", "g", "g", "consumer", 1, {"eu.orders": {0: offsets}})


def plan(
    there: GroupView,
    destination: GroupView = NOBODY,
    record: GroupRecord | None = None,
    topics: MirroredTopics = TOPICS,
    bounds: tuple[int, int] | None = (0, 100),
    *,
    due: bool = False,
) -> GroupPlan:
    return plan_group("g", "g", there, destination, topics, {PLACE: bounds} if bounds else {}, record, is_due=due)


def set_to(planned: GroupPlan) -> list[int]:
    return [row.target.offset for row in planned.changes]


def test_a_group_that_is_new_here_gets_the_sources_offset_and_metadata() -> None:
    (row,) = plan(source(40, "stream time")).changes
    assert (row.topic_partition, row.destination_offset, row.target) == (PLACE, None, Committed(40, "stream time"))


@pytest.mark.parametrize(("offset", "expected"), [(5, 10), (10, 10), (40, 40), (100, 100), (4_000, 100)])
def test_offsets_are_brought_into_the_log(offset: int, expected: int) -> None:
    assert set_to(plan(source(offset), bounds=(10, 100))) == [expected]
    assert clamped(offset, (10, 100)) == expected


def test_an_offset_that_was_put_back_without_its_metadata_gets_it() -> None:
    for bounds in (None, (0, 100)):
        (row,) = plan(source(40, "stream time"), here(40), stored(40), bounds=bounds).changes
        assert (row.destination_offset, row.target) == (40, Committed(40, "stream time"))


@pytest.mark.parametrize("record", [None, stored(39)])
def test_metadata_of_an_offset_of_others_is_left_alone(record: GroupRecord | None) -> None:
    planned = plan(source(40, "stream time"), here(40), record)
    assert (planned.changes, planned.skipped) == ((), None)


def test_metadata_is_left_alone_while_the_group_has_members() -> None:
    planned = plan(source(40, "stream time"), here(40, members=True), stored(40))
    assert (planned.changes, planned.skipped) == ((), None)


def test_what_is_equal_needs_no_look_at_the_log() -> None:
    assert differing_partitions(source(40), here(40), TOPICS) == set()
    assert differing_partitions(source(40), here(39), TOPICS) == {PLACE}
    assert differing_partitions(source(40), NOBODY, TOPICS) == {PLACE}
    planned = plan(source(40), here(40), bounds=None)
    assert (planned.changes, planned.skipped) == ((), None)


def test_what_was_brought_into_the_log_stays() -> None:
    assert set_to(plan(source(4_000), here(100), stored(100))) == []
    assert set_to(plan(source(4_000), here(100), stored(100), bounds=(0, 200))) == [200]


def test_a_rewind_is_followed() -> None:
    assert set_to(plan(source(3), here(40), stored(40))) == [3]


def test_topics_that_are_not_mirrored_do_not_count() -> None:
    other = GroupView(GroupKind.CONSUMER, committed={TopicPartition("payments", 0): Committed(7)})
    assert plan(other).rows == ()


def test_members_here_are_left_alone_until_they_are_gone() -> None:
    planned = plan(source(50), here(40, members=True), stored(40))
    assert (planned.changes, planned.skipped) == ((), GroupReason.HAS_MEMBERS)
    assert plan(source(40), here(40, members=True), stored(40)).skipped is None, "there is nothing to do for it"
    assert set_to(plan(source(50), here(40), stored(40))) == [50]


def test_what_a_local_consumer_has_committed_is_respected() -> None:
    assert plan(source(50), here(44), stored(40)).skipped is GroupReason.COMMITTED_HERE
    assert plan(source(50), here(44)).skipped is GroupReason.COMMITTED_HERE
    assert plan(source(44), here(44)).skipped is None
    # it was deleted here: kmirror commits it again
    assert set_to(plan(source(50), NOBODY, stored(40))) == [50]


def test_a_group_of_another_type_is_left_alone() -> None:
    assert plan(source(50), here(40, kind=GroupKind.SHARE), stored(40)).skipped is GroupReason.OTHER_TYPE


@pytest.mark.parametrize("key", ["eu.orders", PLACE])
def test_partitions_that_wait_are_left_alone_for_now(key: str | TopicPartition) -> None:
    planned = plan(source(50), topics=MirroredTopics(TOPICS.names, {key: GroupReason.NOT_ALIGNED}))
    assert [row.reason for row in planned.rows] == [GroupReason.NOT_ALIGNED]
    assert planned.skipped is None, "it passes by itself"
    assert (
        differing_partitions(source(50), NOBODY, MirroredTopics(TOPICS.names, {key: GroupReason.NOT_ALIGNED})) == set()
    )


def test_an_unknown_log_is_waited_for() -> None:
    (row,) = plan(source(50), bounds=None).rows
    assert (row.reason, row.is_change) == (GroupReason.UNKNOWN_NOW, False)


def test_trouble_with_a_group_is_reported() -> None:
    refused = replace(NOBODY, trouble=GroupReason.NOT_AUTHORIZED)
    assert plan(source(50), refused).skipped is GroupReason.NOT_AUTHORIZED


def test_killed_between_writing_down_and_setting_neither_offset_is_a_strangers() -> None:
    first = recorded(plan(source(40)), "m", 1)
    assert first is not None
    assert first.ours(*PLACE) == (40,)
    second = recorded(plan(source(50), here(40), first), "m", 2)
    assert second is not None
    assert second.ours(*PLACE) == (50, 40)
    for standing in (40, 50):
        assert plan(source(60), here(standing), second).skipped is None
    assert plan(source(60), here(45), second).skipped is GroupReason.COMMITTED_HERE


def test_what_has_arrived_makes_what_was_before_a_strangers() -> None:
    record = recorded(plan(source(50), here(50), stored(50, 40)), "m", 2)
    assert record is not None
    assert plan(source(60), here(40), record).skipped is GroupReason.COMMITTED_HERE


def test_what_is_kept_is_bounded() -> None:
    record: GroupRecord | None = None
    for offset in range(10, 20):
        record = recorded(plan(source(offset), here(offset - 1), record or stored(9)), "m", offset)
    assert record is not None
    assert record.ours(*PLACE) == (19, 18, 17)


def test_nothing_is_written_when_nothing_is_new() -> None:
    assert recorded(plan(source(40), here(40)), "m", 2) is None
    record = stored(40)
    assert recorded(plan(source(40), here(40), record), "m", 2) == record
    left_alone = recorded(plan(source(50), here(44), record), "m", 2)
    assert left_alone == replace(record, skipped=GroupReason.COMMITTED_HERE, time_ms=2)
    assert recorded(plan(source(51), here(45), left_alone), "m", 3) == left_alone
    assert recorded(plan(source(51), here(44), stored(44)), "m", 3, GroupReason.NOT_AUTHORIZED) == replace(
        stored(51, 44), skipped=GroupReason.NOT_AUTHORIZED, time_ms=3
    )


def test_topics_that_were_stopped_meanwhile_are_omitted() -> None:
    planned = plan(source(50))
    assert restricted(planned, TOPICS) == planned
    assert restricted(planned, MirroredTopics({})).rows == ()
    paused = restricted(planned, MirroredTopics(TOPICS.names, {"eu.orders": GroupReason.PAUSED_BY_OPERATOR}))
    assert paused.changes == ()


@pytest.mark.parametrize(("metadata", "expected"), [("x" * 16, "x" * 16), ("x" * 17, ""), ("\N{PILE OF POO}" * 9, "")])
def test_metadata_that_is_refused_is_omitted(metadata: str, expected: str) -> None:
    def at_source(offset: int, destination: GroupView, record: GroupRecord | None) -> GroupPlan:
        there = source(offset, metadata)
        return plan_group("g", "g", there, destination, TOPICS, LOG, record, longest_metadata=16)

    (row,) = at_source(40, NOBODY, None).changes
    assert row.target == Committed(40, expected)
    settled = at_source(
        40, here(40) if not expected else GroupView(GroupKind.CONSUMER, False, {PLACE: row.target}), stored(40)
    )
    assert settled.changes == ()
    assert settled.skipped is (None if expected else GroupReason.METADATA_REFUSED)


def test_the_limit_is_stored_with_what_is_refused_for_it() -> None:
    refused = recorded(plan(source(50), here(40), stored(40)), "m", 2, GroupReason.REFUSED, "limit=1")
    assert refused == replace(stored(50, 40), skipped=GroupReason.REFUSED, detail="limit=1", time_ms=2)
    again = recorded(plan(source(50), here(40), refused), "m", 3, GroupReason.NOT_AUTHORIZED, "error 30")
    assert again is not None
    assert (again.skipped, again.detail) == (GroupReason.NOT_AUTHORIZED, None)


# -- offsets that are kept, since they would expire ------------------------------------------------------------------


def kept(
    destination: GroupView, record: GroupRecord, topics: MirroredTopics = TOPICS, *, due: bool = False
) -> list[int]:
    rows = kept_rows(record, destination, topics, LOG, is_due=due)
    assert all(row.is_change for row in rows)
    return [row.target.offset for row in rows]


def test_what_is_right_is_committed_again_when_it_is_due() -> None:
    assert set_to(plan(source(40), here(40), stored(40))) == []
    for there, bounds in ((40, None), (40, (0, 100)), (4_000, (0, 40))):
        (row,) = plan(source(there, "stream time"), here(40), stored(40), bounds=bounds, due=True).changes
        assert (row.destination_offset, row.target) == (40, Committed(40, "stream time"))
    for other in (here(40, members=True), here(40, kind=GroupKind.SHARE)):
        assert set_to(plan(source(40), other, stored(40), due=True)) == []
    assert set_to(plan(source(40), here(40), stored(39), due=True)) == [], "another client's"


def test_what_has_vanished_is_put_back_as_last_synced() -> None:
    assert kept(NOBODY, stored(40, 39)) == [40]
    assert kept(NOBODY, stored(4_000)) == [100], "never outside the log"
    assert kept_rows(stored(40), NOBODY, TOPICS, {}, is_due=False) == (), "the log is not known now"


def test_what_is_here_is_kept_with_its_metadata_while_the_source_says_nothing() -> None:
    standing = replace(NOBODY, committed={PLACE: Committed(39, "stream time")})
    (row,) = kept_rows(stored(40, 39), standing, TOPICS, {}, is_due=True)
    assert (row.is_change, row.target) == (True, Committed(39, "stream time"))
    assert kept(standing, stored(40, 39)) == []


@pytest.mark.parametrize(
    "standing",
    [
        replace(NOBODY, has_members=True),
        replace(NOBODY, kind=GroupKind.SHARE),
        replace(NOBODY, trouble=GroupReason.UNKNOWN_NOW),
        here(44),
        here(40, members=True),
    ],
)
def test_what_others_use_is_not_kept(standing: GroupView) -> None:
    assert kept(standing, stored(40), due=True) == []


def test_only_offsets_of_the_logs_that_are_mirrored_are_kept() -> None:
    for reason in (GroupReason.PAUSED_BY_OPERATOR, GroupReason.PARTITION_FAILED, GroupReason.SOURCE_TOPIC_RECREATED):
        waiting = MirroredTopics(TOPICS.names, {"eu.orders": reason})
        assert kept(NOBODY, stored(40), waiting) == [40]
        planned = with_kept(plan(source(50), topics=waiting), kept_rows(stored(40), NOBODY, waiting, LOG, is_due=False))
        assert set_to(restricted(planned, waiting)) == [40], "what the source has now waits"
    anew = MirroredTopics(TOPICS.names, {PLACE: GroupReason.NOT_ALIGNED})
    assert kept(NOBODY, stored(40), anew) == []
    planned = with_kept(plan(source(50), topics=waiting), kept_rows(stored(40), NOBODY, waiting, LOG, is_due=False))
    assert restricted(planned, anew).changes == ()
    assert kept(NOBODY, stored(40), MirroredTopics({})) == []


def test_a_group_follows_the_source_where_that_has_an_offset() -> None:
    planned = with_kept(plan(source(50), NOBODY, stored(40)), kept_rows(stored(40), NOBODY, TOPICS, LOG, is_due=False))
    assert set_to(planned) == [50]


def test_what_the_source_does_not_have_any_more_is_not_kept_until_it_has_it_again() -> None:
    dropped = marked_absent(stored(40), [PLACE, TopicPartition("eu.orders", 1)], 2)
    assert dropped == replace(stored(40), absent={"eu.orders": (0,)}, time_ms=2)
    assert marked_absent(dropped, [PLACE], 3) is dropped
    assert kept(NOBODY, dropped, due=True) == kept(here(40), dropped, due=True) == []
    again = plan(source(40), here(40), dropped)
    assert again.returned == {PLACE}
    record = recorded(again, "m", 3)
    assert record is not None
    assert (record.absent, kept(NOBODY, record)) == ({}, [40])


def test_why_a_group_is_skipped_stays_while_the_source_says_nothing() -> None:
    record = replace(stored(40), skipped=GroupReason.COMMITTED_HERE)
    silent = GroupPlan("g", "g", GroupKind.CONSUMER, (), record, knows_source=False)
    assert recorded(silent, "m", 2) == record
    assert recorded(replace(silent, knows_source=True), "m", 2) == replace(record, skipped=None, time_ms=2)


def test_the_record_is_stored() -> None:
    record = replace(stored(50, 40), skipped=GroupReason.HAS_MEMBERS, absent={"eu.orders": (0,)}, extra={"later": 1})
    assert decode(*encode(record)) == record
    state = State.of([record, replace(record, group="a")])
    assert state.group("m", "g") == record
    assert [one.group for one in state.groups("m")] == ["a", "g"]


ALTERED = bytes.fromhex(
    "00000007 00"  # correlation id, no tags
    "00000000 0000 00 02"  # throttle, no error for the group, one topic
    "02 74 00000000000000000000000000000000 03"  # t, its id, two partitions
    "00000000 0000 00 00  00000001 0044 00 00"  # 0 is done, 1 has members
    "00 00"
)
DESCRIBED = bytes.fromhex(
    "00000007 00 00000000 02"  # one group
    "02 67 02 02 74 00000000000000000000000000000000 03"  # g, one topic t, two partitions
    "00000000 0000000000000005 00000001 0000 00 00"  # 0 begins at 5
    "00000001 ffffffffffffffff 00000001 0000 00 00"  # 1 was not used yet
    "00 0000 00 00 00"
)


def test_share_groups_answers() -> None:
    asked = [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert decode_altered(memoryview(ALTERED), asked) == {asked[0]: 0, asked[1]: 68}
    assert decode_described(memoryview(DESCRIBED)) == {"g": (0, {asked[0]: 5})}
    lacks_an_end = DESCRIBED.replace(b"\1\0\0\0\0", b"\1\0\5\0\0", 1)
    assert decode_described(memoryview(lacks_an_end)) == {"g": (Code.LEADER_NOT_AVAILABLE, {})}
    refused = bytes.fromhex("00000007 00 00000000 0044 00 01 00")
    assert decode_altered(memoryview(refused), asked) == dict.fromkeys(asked, 68)
    assert encode_alter("g", {asked[1]: 7, asked[0]: 5}) == bytes.fromhex(
        "02 67 02 02 74 03 00000000 0000000000000005 00 00000001 0000000000000007 00 00 00"
    )


@pytest.mark.parametrize("size", range(4, len(DESCRIBED) - 1))
def test_a_share_groups_answer_that_ends_too_early(size: int) -> None:
    with pytest.raises(FrameError):
        decode_described(memoryview(DESCRIBED[:size]))


def test_groups_after_the_last_of_too_many_names_may_be_unreadable() -> None:
    mirror, names = MirrorRecord("m", {}, {}, None, "eve@ops", 0), tuple(f"g{number:03}" for number in range(100))
    noted = GroupsRecord("m", 1_000, 5, names, 150)
    groups = ("a", "g050", "g100", "z")
    assert [noted.may_lack(group) for group in groups] == [False, True, True, True]
    assert [replace(noted, unreadable_count=0).may_lack(group) for group in groups] == [False, True, False, False]
    assert "group g000 and 149 more " in (age_note(State.of([mirror, noted]), mirror, 1_000) or "")
    assert decode(*encode(noted)) == noted


@pytest.mark.parametrize(("count", "is_due"), [(150, False), (149, True)])
def test_that_one_more_group_is_unreadable_is_stored(count: int, is_due: bool) -> None:
    unreadable = {f"g{number:03}" for number in range(150)}
    noted = GroupsRecord("m", now_ms(), 5, tuple(sorted(unreadable)[:100]), count)
    assert is_still_true(noted, unreadable) is not is_due
