"""What archives are called, which settings they have, and what the headers of their records say."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from kmirror.cluster.protocol.batch_records import Record
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.protocol.topic_configs import TopicSetting
from kmirror.engine.archive.archive_check import ArchiveComparison, ArchiveDifference
from kmirror.engine.archive.archive_topic import (
    Origin,
    archive_name,
    archive_producer_id,
    archive_settings,
    archives_of,
    checked_ranges,
    origin_headers,
    origin_of,
)
from kmirror.engine.archive.archiving import (
    ArchivePiece,
    ArchiveSpec,
    PartitionOutcome,
    PartitionRanges,
    copy_work_units,
    merged_outcome,
    pieces_of,
)
from kmirror.errors import RefusedError, UsageError
from kmirror.sync.discovery import is_internal

LONGEST = 249

# -- names -------------------------------------------------------------------------------------------------------------


def test_archives_are_counted() -> None:
    assert archive_name("orders", []) == "orders.kmirror-archive.1"
    existing = ["orders", "orders.kmirror-archive.1", "orders.kmirror-archive.9", "orders.kmirror-archive.10"]
    assert archive_name("orders", existing) == "orders.kmirror-archive.11"


@pytest.mark.parametrize(
    "other",
    [
        "orders.kmirror-archive.",
        "orders.kmirror-archive.07",
        "orders.kmirror-archive.7x",
        "orders.kmirror-archive.7.kmirror-archive.7",
        "my-orders.kmirror-archive.7",
        "orders2.kmirror-archive.7",
        "orders_kmirror-archive.7",
    ],
)
def test_what_is_no_archive_of_the_topic_does_not_count(other: str) -> None:
    assert archive_name("orders", [other]) == "orders.kmirror-archive.1"


def test_names_that_brokers_take_for_the_same_count() -> None:
    """A broker refuses a topic a_b where there is one a.b."""
    assert archive_name("a.b", ["a_b.kmirror-archive.3"]) == "a.b.kmirror-archive.4"


@pytest.mark.parametrize("length", [221, 222, 223, 224, 240, LONGEST])
def test_no_archive_has_a_name_that_is_too_long(length: int) -> None:
    topic = "t" * length
    first = archive_name(topic, [])
    later = archive_name(topic, [first.removesuffix("1") + "99999998"])
    assert later.endswith(".kmirror-archive.99999999")
    assert len(later) <= LONGEST
    assert re.fullmatch("[a-zA-Z0-9._-]+", later)
    assert is_internal(TopicMetadata(first, 0, bytes(16), False, {}))
    assert first.startswith(topic[:200])


def test_two_long_topics_never_share_their_archives() -> None:
    common = "t" * 240
    first = archive_name(common + "a", [])
    assert archive_name(common + "b", [first]).endswith(".kmirror-archive.1")
    assert archive_name(common + "b", [first]) != first
    # nor does a topic whose name is what another's was shortened to
    shortened = first.removesuffix(".kmirror-archive.1")
    assert not archive_name(shortened, []).startswith(shortened + ".")


def test_an_archive_keeps_everything_for_ever() -> None:
    older = archive_settings({"message.timestamp.difference.max.ms": TopicSetting("1", is_override=False)})
    limits = {key for key in older if "timestamp" in key} - {"message.timestamp.type"}
    assert limits == {"message.timestamp.difference.max.ms"}
    settings = archive_settings(3)
    assert settings.keys() - older.keys() == {"message.timestamp.before.max.ms", "message.timestamp.after.max.ms"}
    assert settings["retention.ms"] == settings["retention.bytes"] == "-1"
    assert settings["cleanup.policy"] == "delete"
    assert settings["max.message.bytes"] == "2147483647"


def test_each_partition_has_a_producer_id_of_its_own() -> None:
    ids = {archive_producer_id(TopicPartition(topic, index)) for topic in ("a", "b") for index in range(9)}
    assert len(ids) == 18
    assert all(FIRST_OWN_PRODUCER_ID <= one < 1 << 63 for one in ids)


# -- headers -----------------------------------------------------------------------------------------------------------


def test_headers_are_added_behind_a_records_own() -> None:
    own = (("kmirror.offset", b"7"), ("h", None), ("h", b""))
    origin = Origin(1 << 40, -1, -1)
    record = Record(3, 5, None, None, own + origin_headers(origin))
    assert record.headers[3:] == (
        ("kmirror.offset", b"1099511627776"),
        ("kmirror.leader.epoch", b"-1"),
        ("kmirror.timestamp", b"-1"),
    )
    assert origin_of(record) == (origin, own)


@pytest.mark.parametrize(
    "headers",
    [
        (),
        origin_headers(Origin(1, 2, 3))[:2],
        (*origin_headers(Origin(1, 2, 3)), ("h", b"")),
        (("kmirror.offset", b"x"), *origin_headers(Origin(1, 2, 3))[1:]),
        (("kmirror.offset", None), *origin_headers(Origin(1, 2, 3))[1:]),
    ],
)
def test_what_no_archive_has(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    assert origin_of(Record(3, 5, None, None, headers)) is None


# -- ranges and shares -------------------------------------------------------------------------------------------------


def test_empty_ranges_are_omitted() -> None:
    assert checked_ranges([(0, 0), (3, 5), (5, 9), (9, 9)]) == ((3, 5), (5, 9))


@pytest.mark.parametrize("ranges", [[(3, 6), (5, 9)], [(5, 9), (3, 5)], [(-1, 4)]])
def test_ranges_that_are_not_in_order_are_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(UsageError, match="not in order"):
        checked_ranges(ranges)


def test_partitions_are_shared_among_tasks() -> None:
    sizes = [5, 100, 0, 40, 60, 5]
    wanted = tuple(PartitionRanges(index, ((0, size),)) for index, size in enumerate(sizes))
    spec = ArchiveSpec({}, "t", "t.kmirror-archive.1", None, wanted)
    shares = copy_work_units(spec, {index: float(size << 20) for index, size in enumerate(sizes)}, 2)
    assert {one for share in shares for one in share.partitions} == set(wanted)
    assert sum(len(share.partitions) for share in shares) == len(wanted)
    # the largest come first, and alone where they are enough for one
    assert [[sizes[one.partition] for one in share.partitions] for share in shares] == [[100], [60], [40], [5, 5, 0]]
    assert pickle.loads(pickle.dumps(shares)) == shares


def test_an_archive_is_compared_in_pieces_that_leave_nothing_out() -> None:
    """However wrong the old offsets at the cuts are: all of both logs is in one piece each, in order."""
    wanted = PartitionRanges(3, ((10, 20), (30, 50)))
    cuts = [(105, 14), (110, 30), (115, 41)]
    assert list(pieces_of(wanted, (100, 120), cuts)) == [
        ArchivePiece(3, ((10, 14),), (100, 105)),
        ArchivePiece(3, ((14, 20),), (105, 110)),
        ArchivePiece(3, ((30, 41),), (110, 115)),
        ArchivePiece(3, ((41, 50),), (115, 120)),
    ]
    for wrong in ([], [(105, None)], [(105, 10), (110, 50), (115, 9999)], [(110, 30), (105, 35), (115, 30), (116, 7)]):
        found = list(pieces_of(wanted, (100, 120), wrong))
        assert [offset for one in found for low, high in one.ranges for offset in range(low, high)] == [
            *range(10, 20),
            *range(30, 50),
        ]
        assert [offset for one in found for offset in range(*one.archived)] == list(range(100, 120))
    # where nothing is to be saved, nothing may be in the archive
    assert list(pieces_of(PartitionRanges(0, ()), (0, 7), [])) == [ArchivePiece(0, (), (0, 7))]


def test_what_the_pieces_of_a_partition_found_is_put_in_order() -> None:
    copied = PartitionOutcome(0, None, None)

    def compared(*found: Any) -> PartitionOutcome:
        return PartitionOutcome(0, None, ArchiveComparison(*found))

    first, second = compared(10, 1), compared(20, 0)
    whole = merged_outcome(copied, [first, compared(0, 0), second])
    assert (whole.saved, whole.comparison) == (True, ArchiveComparison(30, 1))
    wrong = compared(3, 0, ArchiveDifference(24, "key"))
    later = compared(0, 0, ArchiveDifference(40, "value"))
    found = merged_outcome(copied, [first, wrong, later]).comparison
    assert found is not None
    assert found.first_difference == ArchiveDifference(24, "key")
    assert not merged_outcome(copied, [first, PartitionOutcome(0, None, None, RefusedError("no"))]).saved
    assert not merged_outcome(copied, []).saved


def test_nothing_is_saved_that_was_not_compared() -> None:
    assert not PartitionOutcome(0, None, None, RefusedError("no")).saved
    assert not PartitionOutcome(0, None, None).saved


def test_the_archives_of_topics_are_found_among_all_names() -> None:
    long = "x" * 249
    names = ["a.kmirror-archive.10", "a.kmirror-archive.2", "a", "b", "ab.kmirror-archive.1", "a.kmirror-archive.x"]
    first = archive_name(long, [])
    assert archives_of(["a", "b", long], [*names, first]) == {
        "a": ("a.kmirror-archive.2", "a.kmirror-archive.10"),
        long: (first,),
    }
