"""What a rehearsal finds by comparing both sides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.quota import Quota
from kmirror.cluster.protocol.topic_configs import TopicSetting, TopicSettings
from kmirror.ops.base.client_gaps import ClientGaps
from kmirror_rehearse.rehearsal_evidence import lost_records, sum_if_known
from kmirror_rehearse.rehearsal_findings import (
    Finding,
    FindingLevel,
    GroupPositions,
    Kind,
    Side,
    clocks_off,
    groups_that_lack,
    loss_misreported,
    schemas_left_out,
    settings_that_differ,
    streams_topics_left_out,
)
from kmirror_rehearse.rehearser import clients_that_lack

DAY, ENDLESS = "86400000", "-1"


def side(**settings: str) -> Side:
    """Return a side whose topic `t` has these settings, `_` for `.`; those with a `~` are not set on the topic."""
    found: TopicSettings = {
        key.replace("_", "."): TopicSetting(value.lstrip("~"), not value.startswith("~"))
        for key, value in settings.items()
    }
    return Side(settings={"t": found})


def kinds(found: Iterable[Finding]) -> list[tuple[FindingLevel, Kind, str]]:
    return [(one.level, one.kind, one.subject) for one in found]


@pytest.mark.parametrize(
    ("key", "ours", "theirs", "level"),
    [
        ("retention_ms", DAY, DAY, None),
        ("retention_ms", ENDLESS, DAY, FindingLevel.BAD),
        ("retention_ms", DAY, ENDLESS, FindingLevel.WARN),
        ("retention_ms", "~604800000", f"~{DAY}", FindingLevel.BAD),
        ("retention_bytes", "1000", "2000", FindingLevel.WARN),
        ("max_message_bytes", "2000000", "~1048588", FindingLevel.BAD),
        ("cleanup_policy", "compact", "~delete", FindingLevel.BAD),
        ("cleanup_policy", "compact", "compact,delete", FindingLevel.BAD),
        ("segment_bytes", "1000000", "~1073741824", FindingLevel.WARN),
        ("segment_bytes", "~1000000", "~1073741824", None),
        ("min_insync_replicas", "~2", "~1", None),
        ("min_insync_replicas", "2", "~1", FindingLevel.WARN),
        ("remote_storage_enable", "~true", "~false", None),
    ],
)
def test_a_setting_is_compared_by_what_it_decides(key: str, ours: str, theirs: str, level: FindingLevel | None) -> None:
    found = list(settings_that_differ(side(**{key: ours}), side(**{key: theirs}), is_sandbox=False))
    assert kinds(found) == ([] if level is None else [(level, Kind.SETTING_DIFFERS, "t")])


def test_what_only_a_cluster_can_have_is_not_asked_of_a_sandbox() -> None:
    assert not list(settings_that_differ(side(min_insync_replicas="2"), side(), is_sandbox=True))


def test_settings_that_cannot_be_read_are_unknown_and_not_equal() -> None:
    refused = Side(settings={"t": 29})
    for ours, theirs in ((refused, side()), (side(), refused), (side(), Side())):
        (found,) = settings_that_differ(ours, theirs, is_sandbox=True)
        assert (found.level, found.kind) == (FindingLevel.BAD, Kind.UNKNOWN)


def at(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


def group(offsets: Mapping[TopicPartition, int]) -> GroupPositions:
    return GroupPositions(GroupKind.CONSUMER, offsets, frozenset(one.topic for one in offsets))


def test_groups_lack_positions_are_ahead_and_read_more() -> None:
    source = Side(
        groups={
            "same": group({at("a"): 5}),
            "none": group({at("a"): 5, at("a", 1): 3}),
            "part": group({at("a"): 5, at("a", 1): 3}),
            "ahead": group({at("a"): 5}),
            "more": group({at("a"): 5, at("b"): 1}),
            "elsewhere": group({at("b"): 1}),
            "console-consumer-7": group({at("a"): 5}),
        }
    )
    there = Side(
        groups={
            "p.same": group({at("x.a"): 5}),
            "part": group({at("x.a"): 5}),
            "ahead": group({at("x.a"): 9}),
            "more": group({at("x.a"): 4}),
        }
    )
    found = list(groups_that_lack(source, there, {"a": "x.a"}, {"same": "p.same"}, {"a-0": 7, "a-1": 7}))
    assert kinds(found) == [
        (FindingLevel.BAD, Kind.GROUP_AHEAD, "ahead"),
        (FindingLevel.WARN, Kind.GROUP_READS_MORE, "more"),
        (FindingLevel.BAD, Kind.GROUP_NOT_SYNCED, "none"),
        (FindingLevel.BAD, Kind.GROUP_NOT_SYNCED, "part"),
    ]
    assert "2 partitions of a" in found[2].message
    assert "1 partition of a" in found[3].message


def test_groups_that_cannot_be_read_are_unknown() -> None:
    for source, there in ((Side(groups_trouble="refused"), Side()), (Side(), Side(groups_trouble="refused"))):
        (found,) = groups_that_lack(source, there, {}, {}, {})
        assert (found.level, found.kind) == (FindingLevel.BAD, Kind.UNKNOWN)


def test_internal_topics_of_an_application_are_missed_only_if_the_rest_of_it_is_there() -> None:
    groups = {"count": group({at("in"): 1}), "other": group({at("elsewhere"): 1})}
    topics = frozenset({"in", "count-a-changelog", "count-b-repartition", "other-a-changelog", "a-changelog"})
    found = list(streams_topics_left_out(Side(groups=groups, topics=topics), {"in", "count-b-repartition"}))
    assert kinds(found) == [(FindingLevel.BAD, Kind.STREAMS_TOPIC_LEFT_OUT, "count")]
    assert "count-a-changelog" in found[0].message
    assert "repartition" not in found[0].message.partition(":")[0]


def test_schemas_are_missed_by_id() -> None:
    assert not list(schemas_left_out({"t": {1, 2}}, {1, 2, 3}, is_copied=True))
    (found,) = schemas_left_out({"t": {1, 2}, "u": set()}, {1}, is_copied=True)
    assert found.message == "records name the schemas 2, and the copied _schemas lacks them"
    (found,) = schemas_left_out({"t": {1}}, set(), is_copied=False)
    assert "_schemas is not copied" in found.message


def test_clocks_are_off_in_both_directions() -> None:
    assert not list(clocks_off({"a": 5_000, "b": -5_000}))
    found = list(clocks_off({"a": 60_000, "b": -60_000}))
    assert [one.message[:31] for one in found] == ["its clock is 1m ahead of this h", "its clock is 1m behind this hos"]


@pytest.mark.parametrize(
    ("least", "most", "counted", "is_misreported"),
    [
        (0, 0, 0, False),
        (0, 100, 0, False),
        (50, 80, 50, False),
        (40, 60, 120, False),
        (40, 60, 121, True),
        (51, 80, 50, True),
        (None, None, 0, True),
    ],
)
def test_a_loss_is_misreported(least: int | None, most: int | None, counted: int | None, is_misreported: bool) -> None:
    assert bool(list(loss_misreported(least, most, counted))) == is_misreported


def test_a_loss_that_could_not_be_counted_is_a_warning() -> None:
    for least, most in ((0, 10), (None, None)):
        (found,) = loss_misreported(least, most, None)
        assert (found.level, found.kind, found.subject) == (FindingLevel.WARN, Kind.UNKNOWN, "loss")


def test_what_was_lost_is_not_counted_if_one_partition_does_not_say_how_far_it_was_mirrored() -> None:
    a, b = TopicPartition("t", 0), TopicPartition("t", 1)
    known = lost_records([a, b], {a: 10, b: 5}, {a: 7, b: 9})
    assert (known, sum_if_known(known, [a, b])) == ({a: 3, b: 0}, 3)
    for ends, mirrored in (({a: 10, b: 5}, {a: 7}), ({a: 10}, {a: 7, b: 5})):
        lost = lost_records([a, b], ends, mirrored)
        assert (lost, sum_if_known(lost, [a, b])) == ({a: 3, b: None}, None)
    assert sum_if_known(lost_records([a, b], {a: 10, b: 5}, {}), [a, b]) is None


def test_what_clients_lack_is_bad_and_what_is_unknown_a_warning() -> None:
    gaps = ClientGaps(
        found_ms=1,
        rights=(),
        quotas=(Quota((("user", "app"),), "producer_byte_rate", 1.0),),
        scram_users=("app",),
        unknown=("which rights",),
        warned=("which rights",),
    )
    for is_sandbox, level in ((False, FindingLevel.BAD), (True, FindingLevel.WARN)):
        assert kinds(clients_that_lack(gaps, is_sandbox=is_sandbox)) == [
            (level, Kind.CLIENTS_LACK, "clients"),
            (level, Kind.CLIENTS_LACK, "clients"),
            (FindingLevel.WARN, Kind.UNKNOWN, "clients"),
        ]
