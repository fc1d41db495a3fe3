"""Where an old source's log and its new primary's fork, and which records are after the fork."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.histories.fork import Fork
from kmirror.ops.base.divergence import Divergence, Logs, divergence, divergence_of_extra_partition, shared_end
from kmirror.ops.failback.progress import TopicStep, TopicWork
from kmirror.state.archive_proofs import Proof
from kmirror.state.workflow_records import WorkflowRecord

WORK = TopicWork(
    "orders",
    TopicStep.ARCHIVE,
    "id",
    "orders.kmirror-archive.1",
    {0: (5, 9)},
    {0: 9},
    {0: 5},
    {"g": {0: 7}},
    {0: Proof("archive", 0, 5, 4, 0)},
    {1: 3},
    4,
    None,
    {"min.insync.replicas": "2"},
    3,
)


def test_what_is_recorded_of_a_topic_is_read_back_also_where_an_older_version_wrote_it() -> None:
    facts = json.loads(json.dumps(WORK.facts()))
    record = WorkflowRecord("m", "failback orders", WORK.step, "actor", 0, 0, facts)
    assert TopicWork.of("orders", record) == WORK
    del facts["proved"]
    assert TopicWork.of("orders", record) == replace(WORK, proved={})


PLACE = TopicPartition("orders", 0)


def logs(here: tuple[int, int], there: tuple[int, int], lmo: int | None = None) -> Logs:
    return Logs(PLACE, *here, *there, lmo)


def judged(known: Logs, fork: Fork, shown: range) -> Divergence:
    """Judge a log that shows a record at each of these offsets."""
    behind = [offset for offset in shown if offset >= shared_end(known, fork)]
    lmo = known.last_mirrored_offset
    return divergence(known, fork, len(behind), None if lmo is None else sum(offset >= lmo for offset in behind))


def test_a_log_that_ends_where_mirroring_stopped_needs_the_delta_only() -> None:
    found = judged(logs((0, 100), (0, 130), 100), Fork(100, False, 99), range(100))
    assert (found.shared_end, found.diverges, found.offsets_to_copy) == (100, False, 30)


def test_records_after_the_last_mirrored_one_are_after_the_fork() -> None:
    found = judged(logs((0, 105), (0, 130), 100), Fork(100, True, 99), range(105))
    assert (found.shared_end, found.records, found.never_copied) == (100, 5, 5)
    assert found.diverges
    assert not found.must_recreate
    assert "5 records after it" in str(found)


def test_a_marker_at_the_end_that_shows_nothing_is_no_obstacle() -> None:
    found = judged(logs((0, 101), (0, 130), 100), Fork(101, False, 99), range(100))
    assert (found.shared_end, found.diverges) == (101, False)
    # unless the new primary does not get so far
    found = judged(logs((0, 102), (0, 101), 100), Fork(101, False, 99), range(100))
    assert (found.shared_end, found.records, found.diverges) == (100, 0, True)


def test_records_compacted_at_the_new_primary_are_still_below_the_last_mirrored_offset() -> None:
    found = judged(logs((0, 100), (0, 130), 100), Fork(100, False, 40), range(100))
    assert (found.shared_end, found.diverges) == (100, False)
    # not if the old source has lost its tail since: they may be new
    found = judged(logs((0, 90), (0, 130), 100), Fork(90, False, 40), range(90))
    assert (found.shared_end, found.records, found.never_copied, found.diverges) == (41, 49, 0, True)
    # records after it count as never copied, although nothing contradicts them: the cleaner took what did
    found = judged(logs((0, 103), (0, 130), 100), Fork(103, False, 40), range(103))
    assert (found.shared_end, found.records, found.diverges) == (100, 3, True)


@pytest.mark.parametrize(
    ("known", "fork"),
    [
        # the new primary lost its tail from 80 on, and was written to
        (logs((0, 100), (0, 130), 100), Fork(80, True, 79)),
        # or was not
        (logs((0, 100), (0, 80), 100), Fork(80, False, 79)),
        # the old source did
        (logs((0, 90), (0, 130), 100), Fork(80, True, 79)),
    ],
)
def test_contents_go_before_the_last_mirrored_offset(known: Logs, fork: Fork) -> None:
    found = judged(known, fork, range(known.here_end))
    assert (found.shared_end, found.diverges) == (80, True)
    assert "lost its tail" in " ".join(found.notes)


def test_an_old_source_that_only_lost_its_tail_gets_it_back() -> None:
    found = judged(logs((0, 90), (0, 130), 100), Fork(90, False, 89), range(90))
    assert (found.shared_end, found.diverges, found.offsets_to_copy) == (90, False, 40)


def test_if_retention_has_left_nothing_to_compare_all_counts_as_after_the_fork() -> None:
    found = judged(logs((0, 103), (150, 200), 100), Fork(150, False, None), range(103))
    assert (found.shared_end, found.records, found.never_copied) == (0, 103, 3)
    assert "the new primary's log starts at 150" in str(found)
    # one that continues exactly there loses nothing: the last mirrored offset is believed
    found = judged(logs((0, 100), (100, 200), 100), Fork(100, False, None), range(100))
    assert (found.shared_end, found.diverges) == (100, False)
    assert "the last mirrored offset alone" in " ".join(found.notes)
    # unless the old source ends below it: it has lost its tail since, and what it has there may be new
    found = judged(logs((0, 90), (50, 200), 100), Fork(90, False, None), range(90))
    assert (found.shared_end, found.records, found.diverges) == (0, 90, True)
    assert "but the log here ends at 90: one of the two logs has lost its tail" in " ".join(found.notes)
    # one that starts later cannot be gone on with
    found = judged(logs((0, 100), (101, 200), 100), Fork(101, False, None), range(100))
    assert (found.diverges, found.must_recreate) == (True, False)
    found = judged(logs((10, 100), (101, 200), 100), Fork(101, False, None), range(10, 100))
    assert (found.diverges, found.must_recreate) == (True, True)


def test_a_trimmed_log_that_starts_after_the_fork_is_recreated() -> None:
    found = judged(logs((50, 100), (0, 130), 100), Fork(100, False, 99), range(50, 100))
    assert (found.shared_end, found.diverges) == (100, False)
    found = judged(logs((103, 105), (0, 130), 100), Fork(103, True, None), range(103, 105))
    assert (found.shared_end, found.records, found.must_recreate) == (103, 2, True)
    found = judged(logs((103, 103), (0, 130), 100), Fork(103, False, None), range(0))
    assert (found.diverges, found.must_recreate) == (True, True)
    # emptied by retention, where mirroring stopped
    found = judged(logs((100, 100), (0, 130), 100), Fork(100, False, None), range(0))
    assert (found.shared_end, found.diverges) == (100, False)


def test_without_stored_state_contents_alone_decide() -> None:
    found = judged(logs((0, 100), (0, 130)), Fork(100, False, 99), range(100))
    assert (found.shared_end, found.diverges, found.never_copied) == (100, False, None)
    found = judged(logs((0, 105), (0, 130)), Fork(100, True, 99), range(105))
    assert (found.shared_end, found.records, found.must_recreate) == (100, 5, False)
    found = judged(logs((0, 0), (0, 130)), Fork(0, False, None), range(0))
    assert (found.diverges, found.offsets_to_copy) == (False, 130)
    found = judged(logs((60, 60), (0, 130)), Fork(60, False, None), range(0))
    assert found.must_recreate


def test_a_partition_that_the_new_primary_lacks() -> None:
    found = divergence_of_extra_partition(logs((0, 5), (0, 0)), 5)
    assert (found.diverges, found.must_recreate, found.records) == (True, True, 5)


def test_a_difference_that_only_a_full_comparison_finds() -> None:
    """A cleaner had removed record 40 for one that was cut since."""
    known = replace(logs((0, 100), (0, 130), 100), differs_at=40)
    found = judged(known, Fork(100, False, 99), range(100))
    assert (found.shared_end, found.records, found.must_recreate) == (40, 60, True)
    assert "found a difference at offset 40" in str(found)
    # what the search for the fork sees as well, it sees better
    found = judged(known, Fork(40, True, 39), range(100))
    assert (found.shared_end, found.records, found.must_recreate) == (40, 60, False)
    # and what was cut since is no matter any more
    found = judged(replace(known, here_end=30), Fork(30, False, 29), range(30))
    assert (found.shared_end, found.diverges) == (30, False)
