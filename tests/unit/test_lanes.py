"""What an engine sends its lanes and when: a running lane gets the changes, and is restarted only if it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.clock import now
from kmirror.engine.executors import Executor
from kmirror.engine.lanes.lanes import ARRIVAL_SECONDS, Lanes
from kmirror.engine.spec import LaneResult, LaneSpec
from kmirror.engine.status.journal import Level
from kmirror.state.assignment import Assignment, Recovery
from kmirror.state.lane_change_record import LaneChangeRecord
from kmirror.state.records import EngineRecord, EngineState, Incarnation, PartitionState, ProgressRecord, ProgressRow

TTL = 5.0


@dataclass
class Lease:
    """What lanes need of a lease."""

    predecessor_may_write_until: float = 0.0
    lease_id: str = "L"
    record = EngineRecord("m", "L", EngineState.RUNNING, "h", "b", 1, 2, None, None, 3, 4, int(TTL * 1000))


class Engine:
    """An engine with lanes that only run in name; it says what is to be said at once."""

    mirror = "m"
    waits = False

    def __init__(self, lanes: int = 1) -> None:
        self.lease = Lease()
        self.specs: list[LaneSpec] = []
        self.futures: list[Future[LaneResult]] = []
        self.notes: list[str] = []
        self.reported: list[LaneChangeRecord] = []
        self.cancelled: list[str] = []
        self.places: list[Executor | None] = []
        self.wanted: list[Assignment] = []
        self.count = lanes
        self.lanes = Lanes(self, self, self.lease, self, [])  # type: ignore[arg-type]

    def spec(
        self,
        lane: int,
        generation: int,
        assignments: Iterable[Assignment],
        *,
        predecessor_may_write: bool,
        unsettled: Sequence[int],
    ) -> LaneSpec:
        return LaneSpec(
            "m",
            lane,
            generation,
            "L",
            {},
            {},
            tuple(assignments),
            5000,
            predecessor_may_write,
            0,
            None,
            tuple(unsettled),
        )

    def with_state(self, assignment: Assignment) -> Assignment:
        return replace(assignment, begun=True)

    def note(self, sentence: str, level: Level = Level.INFO, *, about_spark: bool = False) -> None:
        self.notes.append(sentence)

    def record(self, what: str, result: str, details: Mapping[str, object]) -> None:
        self.notes.append(f"{what} {result}")

    def submit(
        self,
        name: str,
        function: Callable[[LaneSpec, int], LaneResult],
        argument: LaneSpec,
        place: Executor | None = None,
    ) -> Future[LaneResult]:
        self.specs.append(argument)
        self.places.append(place)
        self.futures.append(Future())
        return self.futures[-1]

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)

    def is_waiting(self, name: str) -> bool:
        return self.waits

    def go(self, wanted: str | list[Assignment] | None = None, at: float = 0.0, *, beats: bool = True) -> None:
        """Turn until nothing is to be done any more."""
        if wanted is not None:
            self.wanted = [one(name) for name in wanted] if isinstance(wanted, str) else wanted
            self.lanes.plan_now = True
        for _ in range(3):
            self.lanes.tick(at)
            if self.lanes.plan_now and not self.lanes.stopping:
                self.lanes.plan(self.wanted, self.count, {})
            if beats:
                said = tuple(self.lanes.unsent)
                self.reported += said
                self.lanes.sent(self.lanes.claims(), said, self.lanes.fences)
            self.lanes.start_due(at)

    def hear(self, lane: int = 0, *, taken: int = 0, given_up: int = 0, attempt: int = 0, rows: str = "") -> str:
        """Hear of a lane's progress; return of which topics it is news, and of which it was the last word."""
        generation = max(spec.generation for spec in self.specs if spec.lane == lane)
        found = tuple(ProgressRow(name, 0, 1, 1, 0, 1, None, PartitionState.MIRRORING) for name in rows)
        record = ProgressRecord("m", lane, "L", generation, attempt, "h", 1, 0, found, False, taken, given_up)
        words, last_words = self.lanes.take_report(record)
        return "|".join("".join(row.topic for row, _ in some) for some in (words, last_words))

    def end(self, future: int = -1, how: str = "STOPPED", *, clean: bool = True) -> None:
        spec = self.specs[future]
        self.futures[future].set_result(LaneResult(spec.lane, spec.generation, 0, how, "", clean=clean))


def one(topic: str) -> Assignment:
    return Assignment(
        topic=topic, partition=0, source_topic=topic, source_topic_id="s", destination_topic_id="d", producer_id=1 << 62
    )


def changes(reported: LaneChangeRecord) -> tuple[int, str, str]:
    return (
        reported.revision,
        "".join(topic for topic, _ in reported.given_up),
        "".join(assigned.topic for assigned in reported.taken),
    )


@pytest.fixture
def engine() -> Engine:
    """An engine with one lane at work, which has been heard of."""
    made = Engine()
    made.go("abc")
    made.hear()
    made.go()
    return made


def test_a_running_lane_is_sent_changes_and_is_not_restarted(engine: Engine) -> None:
    engine.go("acd")
    assert [changes(reported) for reported in engine.reported] == [(1, "b", "d")]
    assert engine.reported[0].taken[0].begun
    assert (engine.lanes.claims(), engine.lanes.revisions()) == ({0: Incarnation(1, 0)}, {0: 1})
    assert len(engine.specs) == 1
    assert engine.notes == ["lane 0 of m runs, with 3 partitions"]


def test_what_a_lane_releases_is_free_when_it_says_so(engine: Engine) -> None:
    assert not engine.lanes.is_free("b")
    engine.go("ac")
    assert not engine.lanes.is_free("b")
    engine.hear(taken=1, given_up=0)
    assert not engine.lanes.is_free("b")
    assert engine.hear(taken=1, given_up=1, rows="abc") == "ac|b"
    assert engine.lanes.is_free("b")
    # a record that is read twice says no more of it
    assert engine.hear(taken=1, given_up=1, rows="abc") == "ac|"


def test_what_is_wanted_differently_comes_back_once_it_was_released(engine: Engine) -> None:
    recovered = replace(one("b"), recovery=Recovery(1))
    engine.go([one("a"), recovered, one("c")])
    engine.go()
    assert [changes(reported) for reported in engine.reported] == [(1, "b", "")]
    # what the lane says of its former life is no news
    assert engine.hear(taken=1, given_up=1, rows="b") == "|b"
    engine.go()
    assert [changes(reported) for reported in engine.reported] == [(1, "b", ""), (2, "", "b")]
    assert engine.reported[1].taken[0].recovery == Recovery(1)
    assert engine.hear(taken=1, given_up=1, rows="b") == "|"
    assert engine.hear(taken=2, given_up=2, rows="b") == "b|"


def test_a_lane_that_has_not_reported_is_sent_nothing_yet() -> None:
    engine = Engine()
    engine.go("ab")
    engine.go("bc")
    assert engine.reported == []
    assert not engine.lanes.is_free("a")
    engine.hear()
    engine.go()
    assert [changes(reported) for reported in engine.reported] == [(1, "a", "c")]


def test_a_change_is_said_until_a_heartbeat_is_through(engine: Engine) -> None:
    engine.go("abcd", beats=False)
    engine.go("abcde", beats=False)
    assert [changes(reported) for reported in engine.lanes.unsent] == [(1, "", "d"), (2, "", "e")]
    engine.go()
    assert [changes(reported) for reported in engine.reported] == [(1, "", "d"), (2, "", "e")]
    assert engine.lanes.unsent == []


def test_thousands_of_partitions_are_sent_in_several_changes(engine: Engine) -> None:
    new = [replace(one("t"), partition=number) for number in range(600)]
    engine.go([one("a"), *new])
    assert [(len(reported.given_up), len(reported.taken)) for reported in engine.reported] == [
        (2, 250),
        (0, 250),
        (0, 100),
    ]
    assert engine.lanes.revisions() == {0: 3}


@pytest.mark.parametrize("how", ["OUTDATED", "SUPERSEDED", "LOST_ENGINE"])
def test_a_lane_that_missed_a_change_is_restarted_with_all_its_work(engine: Engine, how: str) -> None:
    engine.go("acd")
    engine.end(how=how, clean=False)
    engine.go()
    assert engine.lanes.claims() == {0: Incarnation(2, 0)}
    assert engine.lanes.revisions() == {}
    assert [a.topic for a in engine.specs[-1].assignments] == ["a", "c", "d"]
    assert engine.specs[-1].predecessor_may_write
    # what is still on its way to what it was to release is unknown
    assert not engine.lanes.is_free("b")
    engine.lease.predecessor_may_write_until = 0.0
    assert engine.lanes.is_free("b")


def test_while_a_run_that_is_overruled_may_write_what_is_taken_is_taken_predecessor_may_write() -> None:
    engine = Engine(lanes=2)
    engine.go("ab")
    engine.hear(0)
    engine.hear(1)
    engine.end(0, how="FENCED", clean=False)
    engine.go("bcd", beats=False)
    engine.lease.predecessor_may_write_until = 0.0
    engine.go("bcdef", beats=False)
    # as long as no heartbeat has overruled it, its time does not even run out
    assert {reported.predecessor_may_write for reported in engine.lanes.unsent} == {True}
    engine.go()
    assert engine.lease.predecessor_may_write_until > 0
    assert not engine.lanes.is_free("a")


def test_a_heartbeat_that_was_put_together_before_a_run_was_fenced_does_not_fence_it() -> None:
    engine = Engine(lanes=2)
    engine.go("ab")
    engine.hear(0)
    engine.hear(1)
    for lane in (0, 1):
        # by the time it is stored, the next run may be fenced too
        claims, fences = engine.lanes.claims(), engine.lanes.fences
        engine.end(lane, how="FENCED", clean=False)
        engine.go("cd", beats=False)
        engine.lanes.sent(claims, (), fences)
        engine.lease.predecessor_may_write_until = 0.0
        assert not engine.lanes.is_free("a")
    engine.go()
    assert engine.lease.predecessor_may_write_until > 0
    engine.lease.predecessor_may_write_until = 0.0
    assert engine.lanes.is_free("a")


def test_a_lane_whose_worker_died_counts_with_what_it_says_from_then_on(engine: Engine) -> None:
    engine.go("ac")
    engine.hear(attempt=1)
    assert engine.lease.predecessor_may_write_until > 0
    # the former attempt's last word
    assert engine.hear(attempt=0, taken=1, given_up=1, rows="a") == "|"
    assert not engine.lanes.is_free("b")
    engine.lease.predecessor_may_write_until = 0.0
    assert engine.hear(attempt=1, taken=1, given_up=1, rows="a") == "a|"
    assert engine.lanes.is_free("b")


def test_the_last_partition_ends_the_lane_and_the_next_one_begins_another(engine: Engine) -> None:
    engine.go("")
    assert engine.reported == []
    assert engine.lanes.claims() == {}
    assert not engine.lanes.is_free("a")
    engine.go("d")
    assert engine.lanes.claims() == {}
    engine.end()
    engine.go()
    assert engine.lanes.is_free("a")
    assert engine.lanes.claims() == {0: Incarnation(2, 0)}
    assert [a.topic for a in engine.specs[-1].assignments] == ["d"]
    assert not engine.specs[-1].predecessor_may_write


def test_a_lane_that_does_not_report_is_silent_whatever_run_of_it_is_started_again() -> None:
    engine = Engine(lanes=2)
    engine.go("ab")
    # no lane has reported yet: nothing is known to be copied
    assert engine.lanes.silent(now()) == {0: None, 1: None}
    engine.hear(0)
    engine.hear(1)
    heard = now()
    assert engine.lanes.silent(heard + 9) == {}
    assert engine.lanes.silent(heard + 11).keys() == {0, 1}
    engine.end(0, how="FENCED", clean=False)
    engine.go(at=heard)
    assert engine.lanes.silent(heard + 9) == {}
    assert engine.lanes.silent(heard + 11).keys() == {0, 1}
    # one that has nothing to do need not report
    engine.go("a")
    assert engine.lanes.silent(heard + 11).keys() == {0}


def test_lanes_that_start_after_a_time_without_work_are_not_silent_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild of a mirror's only topic that took ten seconds ended with the event NO_WORKERS: no one was away."""
    engine.go("")
    engine.end()
    engine.go()
    assert engine.lanes.finished
    later = now() + 60
    monkeypatch.setattr("kmirror.engine.lanes.lanes.now", lambda: later)
    engine.go(at=later)
    engine.count = 2
    engine.go("ab", at=later)
    assert engine.lanes.silent(later + 9) == {}
    assert engine.lanes.silent(later + 11).keys() == {0, 1}


@pytest.mark.parametrize(
    ("waited", "replaced_after"),
    [
        pytest.param(0.0, 10, id="the destination is prompt"),
        pytest.param(7.0, 17, id="the destination is slow"),
        pytest.param(60.0, 70, id="the destination was away for a minute"),
        pytest.param(300.0, 70, id="a slow destination does not explain everything"),
    ],
)
def test_what_the_engine_s_own_heartbeats_waited_is_no_silence_of_a_lane(waited: float, replaced_after: int) -> None:
    engine = Engine()
    engine.lanes.waited_seconds = 50.0  # before it was started: that explains nothing
    engine.go("a")
    engine.lanes.waited_seconds = 100.0  # before it reported
    engine.hear()
    heard = now()
    engine.lanes.waited_seconds = 100.0 + waited
    assert engine.lanes.silent(heard + replaced_after - 1) == {}
    engine.go(at=heard + replaced_after - 1)
    assert len(engine.specs) == 1
    assert engine.lanes.are_late(heard + 5)  # the source is asked for its ends all the same
    assert engine.lanes.silent(heard + replaced_after + 1).keys() == {0}
    engine.go(at=heard + replaced_after + 1)
    assert len(engine.specs) == 2
    assert engine.specs[1].predecessor_may_write  # the earlier run is fenced, whatever it was
    assert "lane 0 of m stopped responding and is replaced" in engine.notes


def test_a_lane_that_begins_or_is_to_end_has_longer_while_the_destination_is_slow() -> None:
    engine = Engine()
    begun = now()
    engine.go("a", at=begun)
    engine.lanes.waited_seconds = 20.0
    engine.go(at=begun + 100)
    assert len(engine.specs) == 1
    engine.hear()
    engine.go("", at=begun - 20)
    engine.lanes.waited_seconds = 25.0
    engine.go(at=begun - 6)
    assert engine.cancelled == []
    engine.go(at=begun - 4)
    assert len(engine.cancelled) == 1


def test_a_lane_that_begins_beside_one_that_reports_has_time_for_its_first_report() -> None:
    engine = Engine(lanes=2)
    engine.go("a")
    engine.hear(0)
    engine.go("ab")
    assert engine.lanes.silent(now()) == {}
    assert engine.lanes.silent(now() + 11).keys() == {0, 1}


def test_a_lane_that_begins_after_all_others_have_ended_has_time_for_its_first_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a mirror is resumed: its workers were not asked for anything meanwhile."""
    engine = Engine(lanes=2)
    engine.go("ab")
    engine.hear(0)
    engine.hear(1)
    engine.go("")
    engine.end(0)
    engine.end(1)
    engine.go()
    assert engine.lanes.finished
    later = now() + 3600
    monkeypatch.setattr("kmirror.engine.lanes.lanes.now", lambda: later)
    engine.go("ab")
    assert engine.lanes.silent(later + 9) == {}
    assert engine.lanes.silent(later + 11).keys() == {0, 1}


def test_a_lane_that_no_worker_has_begun_is_left_in_the_queue() -> None:
    engine = Engine()
    engine.waits = True
    begun = now()
    engine.go("a", at=begun)
    engine.go(at=begun + 100)
    engine.go(at=begun + 150)
    assert len(engine.specs) == 1
    assert engine.notes == []


def test_fewer_lanes_take_over_what_the_others_had_once_those_have_ended() -> None:
    engine = Engine(lanes=2)
    engine.go("ab")
    engine.hear(0)
    engine.hear(1)
    engine.count = 1
    engine.go("ab")
    engine.go("ab")
    assert (engine.lanes.claims(), engine.reported) == ({0: Incarnation(1, 0)}, [])
    engine.end(1)
    engine.go()
    assert [(reported.lane, changes(reported)) for reported in engine.reported] == [(0, (1, "", "b"))]
    assert not engine.lanes.is_free("b")
    assert TopicPartition("b", 0) == engine.specs[1].assignments[0].destination


def test_lanes_that_are_renewed_end_clean_and_begin_again_without_a_wait() -> None:
    engine = Engine(lanes=2)
    engine.go("ab")
    engine.hear(0)
    engine.lanes.restart()
    engine.go("ab")
    # the other one waits for a worker, and is seen to wait
    assert engine.lanes.claims() == {1: Incarnation(1, 0)}
    assert list(engine.lanes.silent(now() + 100)) == [1]
    engine.end(0)
    engine.hear(1)
    engine.go("ab")
    engine.go("ab")
    assert engine.lanes.claims() == {0: Incarnation(2, 0)}
    engine.end(1)
    engine.go("ab")
    engine.go("ab")
    assert engine.lanes.claims() == {0: Incarnation(2, 0), 1: Incarnation(2, 0)}
    assert [(one.lane, one.generation, one.predecessor_may_write) for one in engine.specs[2:]] == [
        (0, 2, False),
        (1, 2, False),
    ]
    assert sorted(a.topic for spec in engine.specs[2:] for a in spec.assignments) == ["a", "b"]
    assert engine.reported == []


def test_work_goes_to_another_place_when_a_lane_runs_there(engine: Engine) -> None:
    there = Executor("7", "spark-3", 2)
    engine.lanes.move_lane(0, there)
    engine.go("abc")
    assert (engine.places[1:], [spec.assignments for spec in engine.specs[1:]]) == ([there], [()])
    assert (engine.reported, engine.lanes.working(), engine.lanes.is_moving) == ([], {0}, True)
    engine.hear(1)
    engine.go("abcd")
    # what is new goes where all else goes
    assert [(reported.lane, *changes(reported)) for reported in engine.reported] == [(0, 1, "abc", ""), (1, 1, "", "d")]
    engine.hear(0, taken=1, given_up=1)
    engine.go()
    engine.go()
    assert [(reported.lane, *changes(reported)) for reported in engine.reported[2:]] == [(1, 2, "", "abc")]
    assert engine.lanes.claims() == {1: Incarnation(1, 0)}
    engine.end(0)
    engine.go()
    assert not engine.lanes.is_moving
    assert not engine.specs[1].predecessor_may_write
    assert engine.cancelled == []


@pytest.mark.parametrize("ends", [True, False])
def test_a_lane_that_does_not_come_leaves_all_as_it_was(engine: Engine, ends: bool) -> None:
    engine.lanes.move_lane(0, Executor("7", "spark-3", 2))
    engine.go("abc")
    if ends:
        engine.futures[-1].set_exception(RuntimeError("no such place"))
    engine.go("abc", at=ARRIVAL_SECONDS + 1)
    assert (engine.lanes.is_moving, engine.lanes.claims(), engine.reported) == (False, {0: Incarnation(1, 0)}, [])
    assert len(engine.cancelled) == (not ends)
    # it had nothing: no lane has to wait for it
    assert engine.lease.predecessor_may_write_until == 0.0


def test_a_lane_that_there_is_room_for_takes_its_part_when_it_has_come(engine: Engine) -> None:
    engine.count = 2
    engine.go("abc")
    assert engine.lanes.has_room
    engine.lanes.fill_slots()
    engine.go()
    assert (engine.reported, engine.lanes.has_room) == ([], False)
    engine.hear(1)
    engine.go("abc")
    assert [(reported.lane, *changes(reported)) for reported in engine.reported] == [(0, 1, "c", "")]
    engine.hear(0, taken=1, given_up=1)
    engine.go()
    assert [(reported.lane, *changes(reported)) for reported in engine.reported[1:]] == [(1, 1, "", "c")]


def test_partitions_go_to_the_lane_that_is_named() -> None:
    engine = Engine(lanes=2)
    engine.go("abcd")
    engine.hear(0)
    engine.hear(1)
    engine.lanes.move_partitions({TopicPartition("a", 0): 1})
    engine.go("abcd")
    assert [(reported.lane, *changes(reported)) for reported in engine.reported] == [(0, 1, "a", "")]
    engine.hear(0, taken=1, given_up=1)
    engine.go()
    engine.go()
    assert [(reported.lane, *changes(reported)) for reported in engine.reported[1:]] == [(1, 1, "", "a")]
    assert not engine.lanes.is_moving


def test_without_room_a_lane_that_waits_for_a_worker_gives_its_work_to_those_that_run() -> None:
    engine = Engine(lanes=2)
    begun = now()
    engine.go("ab", at=begun)
    engine.hear(0)
    engine.waits = True
    engine.lanes.limit = 1
    engine.go("ab", at=begun)
    assert (engine.lanes.claims(), engine.cancelled) == ({0: Incarnation(1, 0)}, [])
    engine.go(at=begun + 3)
    assert len(engine.cancelled) == 1
    engine.futures[1].set_exception(RuntimeError("cancelled"))
    engine.go("ab", at=begun + 3)
    assert [(reported.lane, reported.predecessor_may_write, *changes(reported)) for reported in engine.reported] == [
        (0, True, 1, "", "b")
    ]
