"""Holes are filled exactly, whatever becomes of requests: move by move, then with a broker and network of any kind."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.fill_plan import (
    MAX_COORDINATOR_EPOCH,
    MAX_PRODUCER_EPOCH,
    Done,
    Failed,
    FillPlan,
    Obstacle,
    ReadLeader,
    Step,
    WriteMarkers,
)
from kmirror.cluster.protocol.produce import ProducerState

PRODUCER, COORDINATOR = 3, 40
LAST, RIVAL = (PRODUCER, COORDINATOR + 1), (PRODUCER + 1, COORDINATOR)


def plan(log_end: int, end: int, **changes: int) -> FillPlan:
    return FillPlan(log_end, end, **{"producer_epoch": PRODUCER, "coordinator_epoch": COORDINATOR, **changes})


def remembers(producer_epoch: int, coordinator_epoch: int) -> ProducerState:
    return ProducerState(1 << 62, producer_epoch, 17, 0, coordinator_epoch, None)


def leader_read(
    made: FillPlan, memory: tuple[int, int] | None, log_end: int, high_watermark: int | None = None
) -> Step:
    producer = None if memory is None else remembers(*memory)
    return made.leader_read(producer, log_end, log_end if high_watermark is None else high_watermark)


def obstacle(step: Step) -> Obstacle:
    assert isinstance(step, Failed)
    return step.obstacle


# -- all is answered --------------------------------------------------------------------------------------------------


def test_nothing_to_fill() -> None:
    assert plan(7, 7).step == Done(PRODUCER, COORDINATOR)


def test_one_offset_is_filled_by_one_request() -> None:
    made = plan(7, 8)
    assert made.step == WriteMarkers(1, *LAST)
    assert made.answered(0) == Done(PRODUCER, COORDINATOR + 1)


def test_the_last_offset_is_left_to_a_request_of_its_own() -> None:
    made = plan(7, 9)
    assert made.step == WriteMarkers(1, PRODUCER, COORDINATOR)
    assert made.answered(0) == WriteMarkers(1, *LAST)
    assert made.answered(0) == Done(PRODUCER, COORDINATOR + 1)


def test_one_answer_for_many_markers_is_held_against_the_log_end() -> None:
    made = plan(0, 2500)
    counts = []
    while isinstance(made.step, WriteMarkers):
        counts.append(made.step.count)
        made.answered(0)
    assert counts == [1000, 1000, 499, 1]
    assert made.step == ReadLeader()
    assert leader_read(made, LAST, 2500) == Done(PRODUCER, COORDINATOR + 1)


def test_what_lacks_after_all_is_filled_in_another_round() -> None:
    made = plan(0, 10)
    made.answered(0)
    made.answered(0)
    assert leader_read(made, LAST, 7) == WriteMarkers(2, PRODUCER, COORDINATOR + 1)
    assert made.answered(0) == WriteMarkers(1, PRODUCER, COORDINATOR + 2)
    made.answered(0)
    assert leader_read(made, (PRODUCER, COORDINATOR + 2), 10) == Done(PRODUCER, COORDINATOR + 2)


def test_a_log_that_is_not_replicated_yet_is_read_again() -> None:
    made = plan(0, 3)
    made.answered(0)
    made.answered(0)
    assert leader_read(made, LAST, 3, high_watermark=2) == ReadLeader()
    assert leader_read(made, LAST, 3) == Done(PRODUCER, COORDINATOR + 1)


# -- answers are lacking ----------------------------------------------------------------------------------------------


def test_a_body_that_was_carried_out_without_an_answer() -> None:
    made = plan(0, 10)
    assert made.unanswered() == ReadLeader()
    assert leader_read(made, (PRODUCER, COORDINATOR), 9) == WriteMarkers(1, *LAST)
    assert made.answered(0) == Done(PRODUCER, COORDINATOR + 1)


@pytest.mark.parametrize("written", [0, 4, 8])
def test_a_body_that_may_still_be_in_flight_is_fenced_by_the_last_marker(written: int) -> None:
    made = plan(0, 10)
    made.unanswered()
    assert leader_read(made, None, written) == WriteMarkers(1, *LAST)
    assert made.answered(0) == ReadLeader()
    # one more of the body came before the last marker, none after it
    step = leader_read(made, LAST, written + 2)
    if written == 8:
        assert step == Done(PRODUCER, COORDINATOR + 1)
    elif written == 4:
        assert step == WriteMarkers(3, PRODUCER, COORDINATOR + 1)
    else:
        assert step == WriteMarkers(7, PRODUCER, COORDINATOR + 1)


def test_a_last_marker_that_was_written_without_an_answer() -> None:
    made = plan(7, 8)
    made.unanswered()
    assert leader_read(made, LAST, 8) == Done(PRODUCER, COORDINATOR + 1)


def test_a_last_marker_that_may_still_be_written_gets_a_rival() -> None:
    made = plan(7, 8)
    made.unanswered()
    assert leader_read(made, (PRODUCER, COORDINATOR), 7) == WriteMarkers(1, *RIVAL)
    assert made.answered(0) == ReadLeader()
    assert leader_read(made, RIVAL, 8) == Done(*RIVAL)


def test_a_rival_that_comes_too_late_is_refused() -> None:
    made = plan(7, 8)
    made.unanswered()
    leader_read(made, None, 7)
    assert made.answered(Code.TRANSACTION_COORDINATOR_FENCED) == ReadLeader()
    assert leader_read(made, LAST, 8) == Done(PRODUCER, COORDINATOR + 1)


@pytest.mark.parametrize("memory", [LAST, RIVAL])
def test_the_leaders_state_shows_which_of_two_unanswered_markers_was_written(memory: tuple[int, int]) -> None:
    made = plan(7, 8)
    made.unanswered()
    leader_read(made, None, 7)
    assert made.unanswered() == ReadLeader()
    assert leader_read(made, memory, 8) == Done(*memory)


def test_two_markers_of_which_none_was_written_yet_are_left_undecided() -> None:
    made = plan(7, 8)
    made.unanswered()
    leader_read(made, None, 7)
    made.unanswered()
    assert obstacle(leader_read(made, None, 7)) is Obstacle.UNDECIDED
    assert made.unused_coordinator_epoch > max(LAST[1], RIVAL[1])


def test_one_of_two_markers_written_between_memory_and_log_end_is_asked_for_again() -> None:
    made = plan(7, 8)
    made.unanswered()
    leader_read(made, None, 7)
    made.unanswered()
    assert leader_read(made, None, 8) == ReadLeader()
    assert leader_read(made, RIVAL, 8) == Done(*RIVAL)


def test_a_last_marker_and_a_body_without_answers() -> None:
    made = plan(0, 10)
    made.unanswered()
    assert leader_read(made, (PRODUCER, COORDINATOR), 5) == WriteMarkers(1, *LAST)
    made.unanswered()
    assert leader_read(made, (PRODUCER, COORDINATOR), 6) == WriteMarkers(1, *RIVAL)
    made.answered(0)
    assert leader_read(made, RIVAL, 8) == WriteMarkers(1, *RIVAL)
    assert made.answered(0) == WriteMarkers(1, PRODUCER + 1, COORDINATOR + 1)
    assert made.answered(0) == Done(PRODUCER + 1, COORDINATOR + 1)


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_ENOUGH_REPLICAS, Code.REQUEST_TIMED_OUT])
def test_after_a_refusal_nothing_is_left_but_some_may_be_written(code: Code) -> None:
    made = plan(0, 10)
    assert made.answered(code) == ReadLeader()
    assert leader_read(made, (PRODUCER, COORDINATOR), 4) == WriteMarkers(5, PRODUCER, COORDINATOR)
    made.answered(0)
    assert made.answered(code) == ReadLeader()
    assert leader_read(made, (PRODUCER, COORDINATOR), 9) == WriteMarkers(1, *LAST)
    assert made.answered(code) == ReadLeader()
    assert leader_read(made, LAST, 10) == Done(PRODUCER, COORDINATOR + 1)


def test_a_refused_marker_of_those_in_doubt_is_sent_again() -> None:
    made = plan(0, 10)
    made.unanswered()
    assert leader_read(made, None, 3) == WriteMarkers(1, *LAST)
    made.answered(Code.NOT_LEADER_OR_FOLLOWER)
    assert leader_read(made, None, 3) == WriteMarkers(1, *LAST)
    made.unanswered()
    assert leader_read(made, None, 3) == WriteMarkers(1, *RIVAL)
    made.answered(Code.NOT_LEADER_OR_FOLLOWER)
    assert leader_read(made, None, 3) == WriteMarkers(1, *RIVAL)


# -- ends --------------------------------------------------------------------------------------------------------------


def test_rights_are_missing() -> None:
    assert obstacle(plan(0, 5).answered(Code.CLUSTER_AUTHORIZATION_FAILED)) is Obstacle.NOT_AUTHORIZED


@pytest.mark.parametrize("code", [Code.INVALID_PRODUCER_EPOCH, Code.TRANSACTION_COORDINATOR_FENCED])
def test_another_writer_with_higher_epochs_was_here(code: int) -> None:
    assert obstacle(plan(0, 5).answered(code)) is Obstacle.FENCED


@pytest.mark.parametrize("memory", [(PRODUCER + 2, 0), (PRODUCER, COORDINATOR + 2), (PRODUCER + 1, COORDINATOR + 1)])
def test_the_leader_remembers_epochs_that_are_not_ours(memory: tuple[int, int]) -> None:
    made = plan(0, 5)
    made.unanswered()
    assert obstacle(leader_read(made, memory, 2)) is Obstacle.FENCED


def test_the_log_ends_where_we_cannot_have_brought_it() -> None:
    made = plan(3, 5)
    made.unanswered()
    assert obstacle(leader_read(made, None, 6)) is Obstacle.OVERSHOT
    made = plan(3, 5)
    made.unanswered()
    assert obstacle(leader_read(made, None, 2)) is Obstacle.TRUNCATED
    assert obstacle(plan(6, 5).step) is Obstacle.OVERSHOT
    # also while it is not known which of our last requests was carried out
    made = plan(3, 5)
    for _ in range(2):
        made.unanswered()
        assert isinstance(leader_read(made, None, 3), WriteMarkers)
    made.unanswered()
    assert obstacle(leader_read(made, None, 6)) is Obstacle.OVERSHOT


@pytest.mark.parametrize(
    "highest", [{"coordinator_epoch": MAX_COORDINATOR_EPOCH}, {"producer_epoch": MAX_PRODUCER_EPOCH}]
)
def test_with_the_last_epoch_holes_are_filled_and_doubts_stay(highest: dict[str, int]) -> None:
    made = plan(0, 2, **highest)
    made.answered(0)
    assert isinstance(made.answered(0), Done)
    made = plan(0, 1, **highest)
    made.unanswered()
    assert obstacle(leader_read(made, None, 0)) is Obstacle.UNDECIDED
    made = plan(0, 1, **highest)
    assert isinstance(made.step, WriteMarkers)
    memory = (made.step.producer_epoch, made.step.coordinator_epoch)
    made.unanswered()
    assert isinstance(leader_read(made, memory, 1), Done)


# -- a broker and a network that do anything --------------------------------------------------------------------------


@dataclass
class Broker:
    """One partition's leader: takes markers as brokers do. What is on its way arrives whenever the dice say."""

    chance: random.Random
    log_end: int
    memory: tuple[int, int] | None = None
    #: Markers still to come, request by request, each in order.
    on_their_way: list[list[tuple[int, int]]] = field(default_factory=list)

    def write(self, pair: tuple[int, int]) -> int:
        if self.memory and pair[0] < self.memory[0]:
            return Code.INVALID_PRODUCER_EPOCH
        if self.memory and pair[1] < self.memory[1]:
            return Code.TRANSACTION_COORDINATOR_FENCED
        self.memory = pair
        self.log_end += 1
        return 0

    def let_some_arrive(self, share: float) -> None:
        while self.on_their_way and self.chance.random() < share:
            request = self.chance.choice(self.on_their_way)
            self.write(request.pop(0))
            if not request:
                self.on_their_way.remove(request)


def play(seed: int, met: Counter[str]) -> None:
    """Fill a few holes one behind the other; whatever may come later, nothing shifts."""
    chance = random.Random(seed)
    broker = Broker(chance, chance.randrange(50))
    trouble = chance.choice([0.1, 0.4, 0.8])
    epochs = (0, 0)
    if chance.random() < 0.5:
        broker.memory = (0, 5)
        epochs = (0, 6)
    for _ in range(4):
        end = broker.log_end + chance.choice([1, 1, 2, 3, 8, 30])
        made = FillPlan(
            broker.log_end,
            end,
            producer_epoch=epochs[0],
            coordinator_epoch=epochs[1],
            max_count=chance.choice([1, 5, 99]),
        )
        for _ in range(300):
            broker.let_some_arrive(0.3)
            assert broker.log_end <= end
            match made.step:
                case WriteMarkers() as ask:
                    markers = [(ask.producer_epoch, ask.coordinator_epoch)] * ask.count
                    met["rival"] += ask.producer_epoch > epochs[0] and made.in_doubt
                    fate = chance.random()
                    if fate > trouble:
                        made.answered([broker.write(pair) for pair in markers][-1])
                    elif fate > trouble * 0.6:
                        broker.on_their_way.append(markers)
                        broker.let_some_arrive(0.7)
                        made.unanswered()
                        met["unanswered"] += 1
                    elif fate > trouble * 0.3:
                        made.unanswered()
                        met["lost"] += 1
                    else:
                        for pair in markers[: chance.randrange(ask.count + 1)]:
                            broker.write(pair)
                        made.answered(Code.NOT_LEADER_OR_FOLLOWER)
                        met["refused"] += 1
                case ReadLeader():
                    memory = broker.memory
                    broker.let_some_arrive(0.2)
                    log_end = broker.log_end
                    broker.let_some_arrive(0.2)
                    leader_read(made, memory, log_end, chance.choice([log_end, log_end, log_end - 1]))
                case Done():
                    break
                case Failed() as failed:
                    assert failed.obstacle is Obstacle.UNDECIDED, (seed, failed)
                    met["undecided"] += 1
                    broker.let_some_arrive(1)
                    assert broker.log_end <= end, seed
                    return
        assert isinstance(made.step, Done), (seed, made)
        assert broker.log_end == end, seed
        broker.let_some_arrive(1 if chance.random() < 0.5 else 0.3)
        assert broker.log_end == end, (seed, "something shifted the log afterwards")
        epochs = (made.step.producer_epoch, made.step.coordinator_epoch)
        assert broker.memory == epochs, seed
        met["done"] += 1


def test_whatever_happens_the_log_ends_where_it_should_and_stays() -> None:
    met: Counter[str] = Counter()
    for seed in range(4000):
        play(seed, met)
    assert min(met[name] for name in ("unanswered", "lost", "refused", "undecided", "rival")) > 200, met
    assert met["done"] > 8000, met
