"""Which lane copies what, and what changes for lanes at work when something else is wanted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.lanes.lane_plan import Change, Held, assign, changes
from kmirror.state.assignment import Assignment, Recovery


def one(topic: str, partition: int = 0) -> Assignment:
    return Assignment(
        topic=topic,
        partition=partition,
        source_topic=f"b.{topic}",
        source_topic_id="s",
        destination_topic_id="d",
        producer_id=1 << 62,
    )


def some(names: str) -> list[Assignment]:
    """Return one partition for each letter."""
    return [one(name) for name in names]


def names(assignments: Iterable[Assignment]) -> str:
    return "".join(assignment.topic for assignment in assignments)


def place(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)


def plan(wanted: str, held: dict[int, str], *, lanes: int = 2, leaving: dict[int, str] | None = None) -> dict[int, str]:
    """Return by lane what changes: letters that are released, a plus, letters that are taken; `end` where it ends."""
    has = {
        lane: Held(some(copies), [place(name) for name in (leaving or {}).get(lane, "")])
        for lane, copies in held.items()
    }
    return {
        lane: "-".join(
            [
                f"{''.join(p.topic for p in change.revoked)}+{names(change.assigned)}",
                *(["end"] if change.ends else []),
            ]
        )
        for lane, change in changes(some(wanted), range(lanes), {}, has).items()
    }


def test_a_first_plan_shares_by_what_is_to_be_done() -> None:
    weights = {place("a"): 100, place("b"): 60, place("c"): 50}
    assert assign(some("abcd"), range(2), weights) == {0: tuple(some("ad")), 1: tuple(some("bc"))}
    assert assign(some("abcd"), [3], weights) == {3: tuple(some("abcd"))}
    assert assign(some("abcd"), [], weights) == {}


def test_nothing_changes_where_nothing_else_is_wanted() -> None:
    assert plan("abcd", {0: "ab", 1: "cd"}) == {}
    # however badly that is shared
    assert plan("abcd", {0: "abc", 1: "d"}) == {}


def test_one_more_goes_to_the_lane_with_the_least_to_do_and_nothing_moves() -> None:
    assert plan("abcde", {0: "ab", 1: "c"}) == {0: "+e", 1: "+d"}
    assert plan("abc", {0: "ab"}) == {1: "+c"}


def test_one_less_is_released_by_the_lane_that_has_it() -> None:
    assert plan("acd", {0: "ab", 1: "cd"}) == {0: "b+"}
    assert plan("acde", {0: "ab", 1: "cd"}) == {0: "b+e"}


def test_a_changed_assignment_is_released_and_taken_by_the_next_plan() -> None:
    before = some("abc")
    after = [before[0], replace(before[1], recovery=Recovery(1)), before[2]]
    assert changes(after, [0], {}, {0: Held(before)}) == {0: Change((place("b"),))}
    assert changes(after, [0], {}, {0: Held([before[0], before[2]], [place("b")])}) == {}
    assert changes(after, [0], {}, {0: Held([before[0], before[2]])}) == {0: Change((), (after[1],))}


def test_partitions_being_released_belong_to_no_other_lane() -> None:
    assert plan("abc", {0: "a", 1: "c"}, leaving={0: "b"}) == {}
    assert plan("abcd", {0: "a", 1: "c"}, leaving={0: "b"}) == {0: "+d"}


def test_a_lane_with_nothing_left_ends() -> None:
    assert plan("a", {0: "a", 1: "b"}) == {1: "b+-end"}
    # also while the last of it is being released
    assert plan("a", {0: "a", 1: ""}, leaving={1: "b"}) == {1: "+-end"}


def test_a_lane_whose_last_partition_comes_back_at_once_does_not_end() -> None:
    changed = replace(one("b"), recovery=Recovery(1))
    held = {0: Held(some("a")), 1: Held(some("b"))}
    assert changes([one("a"), changed], range(2), {}, held) == {1: Change((place("b"),))}
    held = {0: Held(some("a")), 1: Held((), [place("b")])}
    assert changes([one("a"), changed], range(2), {}, held) == {}
    held = {0: Held(some("a")), 1: Held()}
    assert changes([one("a"), changed], range(2), {}, held) == {1: Change((), (changed,))}


def test_lanes_that_there_are_not_to_be_any_more_end_before_others_take_what_they_have() -> None:
    assert plan("abc", {0: "a", 1: "bc"}, lanes=1) == {1: "bc+-end"}
    assert plan("abc", {0: "a", 1: ""}, leaving={1: "bc"}, lanes=1) == {1: "+-end"}
    assert plan("abc", {0: "a"}, lanes=1) == {0: "+bc"}
