"""A partition is released when nothing can arrive any more: answered, or lost for long enough. No sockets, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.engine.histories.judge import Fail
from kmirror.engine.lane.changes import WorkChanges
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.reports.row_reports import row_of
from kmirror.errors import Reason
from kmirror.state.assignment import Assignment
from kmirror.state.lane_change_record import LaneChangeRecord
from tests.support.partition_shell import ASSIGNMENT, SETTLE, Shell, facts, stored

NEW = Assignment(
    topic="another",
    partition=0,
    source_topic="payments",
    source_topic_id="another id",
    destination_topic_id=None,
    producer_id=(1 << 62) + 6,
    known_end=4,
)


class Lane:
    """What is to be changed: some partitions, of which nothing is sent but by hand."""

    def __init__(self, *shells: Shell) -> None:
        self.partitions = [shell.copy for shell in shells]
        self.revoked: list[PartitionCopy] = []
        self.revision = 0
        self.active: dict[PartitionCopy, None] = {}
        self.control = self
        self.detached: list[PartitionCopy] = []
        self.begun: list[PartitionCopy] = []
        self.hung_up: list[PartitionCopy] = []
        self.reports = 0
        self.changes = WorkChanges(self, self.detached.extend, self.hung_up.append, self.begin)  # type: ignore[arg-type]

    def report_soon(self) -> None:
        self.reports += 1

    def copies_of(self, assignments: Sequence[Assignment], at: float, *, in_doubt: bool) -> list[PartitionCopy]:
        return [PartitionCopy(one, quiet_until=at + SETTLE if in_doubt else 0.0) for one in assignments]

    def begin(self, partitions: Sequence[PartitionCopy], unsettled_lanes: Sequence[int]) -> None:
        self.begun += partitions

    def take(
        self,
        at: float,
        revision: int = 1,
        given_up: Sequence[Assignment] = (),
        taken: Sequence[Assignment] = (),
        *,
        in_doubt: bool = False,
    ) -> None:
        partitions = tuple((one.topic, one.partition) for one in given_up)
        reported = tuple(taken)
        self.changes.take(LaneChangeRecord("m", 0, "L", 1, revision, partitions, reported, in_doubt), at)

    @property
    def revisions(self) -> tuple[int, int]:
        return self.revision, self.changes.released_revision


def test_a_partition_with_nothing_in_flight_is_released_at_once(copying: Shell) -> None:
    lane = Lane(copying)
    lane.take(copying.now, given_up=[ASSIGNMENT], taken=[NEW])
    assert lane.revisions == (1, 1)
    assert (lane.detached, lane.reports) == ([copying.copy], 1)
    assert [copy.assignment for copy in lane.partitions] == [NEW]
    assert lane.begun == lane.partitions
    # it is reported until the engine knows that it was released
    assert lane.revoked == [copying.copy]
    lane.changes.acknowledged(0)
    assert lane.revoked == [copying.copy]
    lane.changes.acknowledged(1)
    assert lane.revoked == []


def test_what_is_in_flight_is_waited_for_and_nothing_follows(copying: Shell) -> None:
    lane = Lane(copying)
    copying.fetch(stored(10), stored(11))
    copying.send()
    copying.fetch(stored(12))
    lane.take(copying.now, given_up=[ASSIGNMENT])
    assert copying.send() == []
    assert lane.revisions == (1, 0)
    copying.answer()
    lane.changes.on_tick(copying.now)
    assert lane.revisions == (1, 0)
    copying.answer()
    lane.changes.on_tick(copying.now)
    assert lane.revisions == (1, 1)
    assert (copying.copy.progress.acknowledged, lane.hung_up) == (12, [])


def test_what_is_not_answered_is_hung_up_on_and_waited_out(copying: Shell) -> None:
    lane = Lane(copying)
    copying.fetch(stored(10))
    copying.send()
    lane.take(copying.now, given_up=[ASSIGNMENT])
    copying.now += 1.5
    lane.changes.on_tick(copying.now)
    assert lane.hung_up == []
    copying.now += 1
    lane.changes.on_tick(copying.now)
    assert lane.hung_up == [copying.copy]
    copying.lose_destination()
    copying.now += SETTLE - 0.1
    lane.changes.on_tick(copying.now)
    assert lane.revisions == (1, 0)
    copying.now += 0.2
    lane.changes.on_tick(copying.now)
    assert lane.revisions == (1, 1)


def refused(shell: Shell) -> None:
    shell.answer(Code.NOT_LEADER_OR_FOLLOWER)


def failed(shell: Shell) -> None:
    shell.answer(Code.INVALID_PRODUCER_EPOCH)


def taken(shell: Shell) -> None:
    shell.answer()


@pytest.mark.parametrize("answer", [refused, failed, taken])
def test_any_answer_releases_a_revoked_partition(copying: Shell, answer: Callable[[Shell], None]) -> None:
    lane = Lane(copying)
    copying.fetch(stored(10))
    copying.send()
    lane.take(copying.now, given_up=[ASSIGNMENT])
    answer(copying)
    lane.changes.on_tick(copying.now)
    assert lane.revisions == (1, 1)


def test_one_that_is_inspected_is_not_inspected_any_more(shell: Shell) -> None:
    lane = Lane(shell)
    shell.copy.begin_inspection(shell.now)
    lane.take(shell.now, given_up=[ASSIGNMENT])
    assert shell.status == "draining"
    assert lane.revisions == (1, 1)


def test_a_revoked_partition_that_failed_is_reported_as_failed(shell: Shell) -> None:
    lane = Lane(shell)
    shell.inspect(facts(5), Fail(Reason.SOURCE_DIVERGED, "other records", 5))
    lane.take(shell.now, given_up=[ASSIGNMENT])
    assert lane.revisions == (1, 1)
    assert row_of(shell.copy).reason is Reason.SOURCE_DIVERGED


def test_what_a_predecessor_may_still_write_to_is_not_released_yet() -> None:
    shell = Shell(quiet_until=float("inf"))
    lane = Lane(shell)
    lane.take(shell.now, given_up=[ASSIGNMENT])
    assert lane.revisions == (1, 0)
    shell.copy.predecessor_ends(shell.now + 3)
    lane.changes.on_tick(shell.now + 2.9)
    assert lane.revisions == (1, 0)
    lane.changes.on_tick(shell.now + 3)
    assert lane.revisions == (1, 1)


def test_changes_count_as_carried_out_in_their_order(copying: Shell) -> None:
    lane = Lane(copying)
    copying.fetch(stored(10))
    copying.send()
    lane.take(copying.now, 1, given_up=[ASSIGNMENT], taken=[NEW])
    lane.take(copying.now, 2, given_up=[NEW])
    assert lane.revisions == (2, 0)
    copying.answer()
    lane.changes.on_tick(copying.now)
    assert lane.revisions == (2, 2)
    assert lane.partitions == []


def test_a_partition_may_come_back(copying: Shell) -> None:
    lane = Lane(copying)
    lane.take(copying.now, 1, given_up=[ASSIGNMENT])
    lane.take(copying.now, 2, taken=[ASSIGNMENT], in_doubt=True)
    (again,) = lane.partitions
    assert again is not copying.copy
    free_at = copying.now + SETTLE
    assert (again.nothing_can_arrive(free_at - 0.01), again.nothing_can_arrive(free_at)) == (False, True)
    assert again.assignment == ASSIGNMENT
