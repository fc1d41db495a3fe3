"""When fetches overlap over a long path: in steps, while records come, and without waking the lane in vain."""

from __future__ import annotations

import pytest

from kmirror.cluster.protocol.fetch import FetchedPartition
from kmirror.engine.lane.brokers.links import Poll
from kmirror.engine.lane.partition.intake import Frame
from kmirror.engine.lane.partition.partition_copy import PartitionCopy
from kmirror.engine.lane.polls import Polls
from tests.support.partition_shell import KEY, Shell, facts, stored

NOW = 1000.0


def polls_of(shell: Shell, round_trip: float = 0.08) -> tuple[Polls, list[PartitionCopy]]:
    moved: list[PartitionCopy] = []
    return Polls(round_trip, lambda _: KEY, moved.append), moved


def copying() -> Shell:
    shell = Shell()
    shell.inspect(facts())
    shell.copy.source.node_id = 1
    return shell


def part(*batches: bytearray) -> FetchedPartition:
    records = memoryview(bytearray(b"".join(batches)))
    return FetchedPartition(KEY, 0, 1 << 40, 1 << 40, 0, (), records, None)


def test_there_is_nothing_to_do_before_the_first_record() -> None:
    polls, _ = polls_of(copying())
    assert (polls.seconds_left(NOW), polls.due(NOW), polls.connections) == (None, [], 0)


@pytest.mark.parametrize("rate", [1000, 1_000_000, 100_000_000])
def test_whatever_is_due_the_next_step_is_later(rate: int) -> None:
    shell = copying()
    polls, _ = polls_of(shell)
    at = NOW
    for _ in range(300):
        polls.note(shell.copy, rate // 100, at)
        at += 0.01
    polls.due(at)
    left = polls.seconds_left(at)
    assert left is not None
    assert left > 0.009


def test_a_short_path_needs_none() -> None:
    shell = copying()
    polls, _ = polls_of(shell, 0.005)
    polls.note(shell.copy, 100, NOW)
    assert polls.due(NOW + 1) == []


def test_a_partition_without_records_for_a_second_takes_no_part_any_more() -> None:
    shell = copying()
    polls, _ = polls_of(shell)
    polls.note(shell.copy, 100, NOW)
    assert polls.due(NOW + 0.5) == [shell.copy]
    assert polls.due(NOW + 1.5) == []
    assert polls.seconds_left(NOW + 1.5) is None


def test_what_another_fetch_brought_is_omitted() -> None:
    shell = copying()
    polls, moved = polls_of(shell)
    shell.fetch(stored(0, 5), stored(5, 5))
    answer = part(stored(0, 5), stored(5, 5), stored(10, 5))
    poll = Poll({KEY: (shell.copy, 0, None)}, NOW)
    polls.answered(poll, [answer], Frame(answer.records), NOW)
    assert [batch.base_offset for batch in shell.copy.queue] == [0, 5, 10]
    assert moved == [shell.copy]
    polls.answered(poll, [part(stored(0, 5), stored(5, 5))], Frame(answer.records), NOW)
    assert len(shell.copy.queue) == 3
    assert moved == [shell.copy]


def test_an_answer_of_another_epoch_or_from_before_is_not_used() -> None:
    shell = copying()
    polls, moved = polls_of(shell)
    shell.fetch(stored(0, 5))
    later = part(stored(0, 5), stored(5, 5, epoch=3))
    polls.answered(Poll({KEY: (shell.copy, 0, None)}, NOW), [later], Frame(later.records), NOW)
    shell.copy.source.attached_at = NOW + 1
    same = part(stored(0, 5), stored(5, 5))
    polls.answered(Poll({KEY: (shell.copy, 0, None)}, NOW), [same], Frame(same.records), NOW)
    assert shell.copy.intake.next_offset == 5
    assert not moved
