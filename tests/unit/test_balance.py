"""Which partitions change lanes because one lane needs far longer than another one."""

from __future__ import annotations

from collections.abc import Mapping

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.lanes.balance import SAMPLE_SECONDS, Balance, Position
from kmirror.engine.lanes.lane_plan import shares

SIZE = 1000.0


def place(name: str) -> TopicPartition:
    return TopicPartition(name, 0)


class Lanes:
    """Lanes that copy their partitions in equal parts, as fast as they can; letters are partitions."""

    def __init__(self, held: Mapping[int, str], speeds: Mapping[int, int], left: Mapping[str, int]) -> None:
        self.held = {lane: set(names) for lane, names in held.items()}
        self.speeds = dict(speeds)
        self.coming: dict[str, int] = {}
        self.left = dict(left)
        self.ends = {name: 0 for names in held.values() for name in names}
        self.balance = Balance()
        self.at = 0.0
        self.reported: list[str] = []

    def go(self, seconds: float) -> str:
        """Return the moves of this time: which letters went to which lane."""
        first = len(self.reported)
        until = self.at + seconds
        while self.at < until:
            self.at += SAMPLE_SECONDS
            for lane, names in self.held.items():
                self._copy(lane, sorted(names))
            positions = {
                place(name): Position(end, self.left[name], SIZE)
                for name, end in self.ends.items()
                if name in self.left
            }
            self.balance.take({n: {place(p) for p in names} for n, names in self.held.items()}, positions, self.at)
            moves = self.balance.moves(self.at)
            for partition, to in moves.items():
                for names in self.held.values():
                    names.discard(partition.topic)
                self.held[to].add(partition.topic)
            if moves:
                self.reported.append(f"{''.join(sorted(p.topic for p in moves))}>{to}")
        return " ".join(self.reported[first:])

    def _copy(self, lane: int, names: list[str]) -> None:
        for name in names:
            self.left[name] = self.left.get(name, 0) + int(self.coming.get(name, 0) * SAMPLE_SECONDS)
        room = int(self.speeds[lane] * SAMPLE_SECONDS)
        while room > 0 and (behind := [name for name in names if self.left[name]]):
            for name in behind:
                copied = min(self.left[name], max(1, room // len(behind)))
                self.left[name] -= copied
                self.ends[name] += copied
                room -= copied


def test_a_lane_that_got_more_bytes_gives_away_what_makes_both_end_together() -> None:
    lanes = Lanes({0: "abcd", 1: "e"}, {0: 100, 1: 100}, dict.fromkeys("abcde", 10000))
    assert lanes.go(60) == "d>1"
    assert lanes.go(100) == ""


def test_a_slow_lane_keeps_what_it_can_do_in_the_same_time() -> None:
    left = dict.fromkeys("abcdefgh", 5000)
    lanes = Lanes({0: "abcd", 1: "efgh"}, {0: 5, 1: 100}, left)
    assert lanes.go(200) != ""
    # the smallest is never taken from it: a lane without any would end
    assert len(lanes.held[0]) >= 1
    assert len(lanes.held[1]) >= 7


def test_a_lane_that_cannot_follow_gives_away_before_it_is_far_behind() -> None:
    lanes = Lanes({0: "abcd", 1: "efgh"}, {0: 20, 1: 400}, dict.fromkeys("abcdefgh", 0))
    lanes.coming = dict.fromkeys("abcdefgh", 10)
    lanes.go(400)
    assert len(lanes.held[0]) <= 2
    before = lanes.reported.copy()
    lanes.go(600)
    assert lanes.reported == before
    assert not any(pace.is_behind for pace in lanes.balance.paces.values())


def test_nothing_moves_while_all_keep_up_or_are_as_fast() -> None:
    lanes = Lanes({0: "abc", 1: "d"}, {0: 100, 1: 100}, dict.fromkeys("abcd", 0))
    lanes.coming = dict.fromkeys("abcd", 30)
    assert lanes.go(300) == ""
    lanes = Lanes({0: "ab", 1: "cd"}, {0: 100, 1: 90}, dict.fromkeys("abcd", 90_000))
    assert lanes.go(600) == ""
    # what is left is done within seconds
    lanes = Lanes({0: "ab", 1: "c"}, {0: 100, 1: 100}, {"a": 1500, "b": 1500, "c": 0})
    assert lanes.go(60) == ""


def test_a_partition_of_which_not_all_is_known_is_no_reason() -> None:
    lanes = Lanes({0: "ab", 1: "c"}, {0: 0, 1: 100}, {"c": 100})
    lanes.left["a"] = lanes.left["b"] = 0
    assert lanes.go(30) == ""


def test_what_was_moved_in_vain_is_not_moved_back_soon() -> None:
    lanes = Lanes({0: "ab", 1: "c"}, {0: 1, 1: 100}, {"a": 90_000, "b": 90_000, "c": 0})
    assert lanes.go(40) == "b>1"
    # it was not the lane that was slow
    lanes.speeds = {0: 100, 1: 1}
    lanes.left["a"] = 0
    assert lanes.go(250) == ""


def test_a_lane_that_comes_gets_an_equal_part_by_bytes() -> None:
    held = {0: [place(name) for name in "abcd"], 1: [place(name) for name in "efgh"]}
    assert len(shares(2, held, {})) == 2
    weights = {place("a"): 900.0, place("b"): 300.0, place("c"): 200.0, place("e"): 100.0}
    assert shares(2, held, weights) == {place("b"): 2, place("c"): 2}


def test_a_lane_that_comes_always_gets_something_where_another_has_two() -> None:
    assert shares(1, {0: [place("a"), place("b")]}, {place("a"): 300.0, place("b"): 300.0}) == {place("b"): 1}
    held = {0: [place("a"), place("b")], 1: [place("c")], 2: [place("d")]}
    weights = {place("a"): 300.0, place("b"): 300.0}
    assert len(shares(3, held, weights)) == 1
    assert shares(1, {0: [place("a")]}, {}) == {}
