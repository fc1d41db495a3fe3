"""What a tool says of a copy is held against where the logs end: what is not true is found."""

from __future__ import annotations

from typing import Any

import pytest

from campaign.claims import STANDS_STILL_S, Sample, judge_group, judge_idle_group, judge_loss, judge_samples

PLACE = ("t", 0)


def row(**changes: Any) -> dict[str, Any]:
    return {
        "topic": "t",
        "partition": 0,
        "state": "MIRRORING",
        "reason": None,
        "sourceOffset": 100,
        "destinationOffset": 90,
        "sourceLogStart": 20,
        "lag": 10,
        **changes,
    }


def sample(at: float = 0, *, source: int | None = 100, destination: int | None = 90, **changes: Any) -> Sample:
    sources = None if source is None else {PLACE: source}
    destinations = None if destination is None else {PLACE: destination}
    return Sample(at, at + 1, [row(**changes)], sources, sources, destinations, destinations)


def whats(*samples: Sample) -> list[str]:
    return [one["what"] for one in judge_samples(samples, {"t"})]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"destination": None}, []),
        ({"destinationOffset": None, "lag": None}, []),
        ({"destination": 91}, ["the destination ended later already"]),
        ({"destination": 89}, ["the destination does not end so late"]),
        ({"source": 99}, ["the source does not end so late"]),
        ({"lag": 9}, ["a lag that is not the difference of both ends"]),
        ({"destinationOffset": None}, ["a lag that is not the difference of both ends"]),
        ({"destination": None, "destinationOffset": None, "lag": 80}, []),
        ({"destination": None, "destinationOffset": None}, ["a lag that is not the difference of both ends"]),
        ({"destinationOffset": None, "lag": 80}, ["a lag that is not the difference of both ends"]),
        ({"sourceOffset": 80, "lag": 0}, []),
    ],
)
def test_ends_are_those_of_the_logs(changes: dict[str, Any], found: list[str]) -> None:
    assert whats(sample(**changes)) == found


def test_a_lag_is_by_where_the_source_ended_just_now() -> None:
    before = sample(0, source=150, sourceOffset=150, lag=60)
    assert whats(before, sample(30, source=150)) == ["a lag by a source's end that is 29 s old"]
    assert whats(before, sample(30, source=150, lag=None)) == []
    assert whats(before, sample(8, source=150)) == []


def test_a_stuck_copy_that_is_reported_as_healthy_is_found() -> None:
    times = [0.0, 20.0, STANDS_STILL_S + 1]
    assert whats(*(sample(at) for at in times)) == ["all is well, and nothing is copied"]
    assert whats(*(sample(at, reason="ENGINE_SILENT") for at in times)) == []
    moving = [sample(at, destination=90 + number, destinationOffset=90 + number, lag=10 - number)
              for number, at in enumerate(times)]  # fmt: skip
    assert whats(*moving) == []
    done = [sample(at, destination=100, destinationOffset=100, lag=0) for at in times]
    assert whats(*done) == []


def test_topics_that_were_harmed_are_omitted() -> None:
    assert judge_samples([sample(destination=91)], {"other"}) == []


def stopped(**changes: Any) -> dict[str, Any]:
    return {"topic": "t", "partition": 0, "lastMirroredOffset": 90, "lag": 10, "asOf": 5, "stopTimeMs": 5, **changes}


@pytest.mark.parametrize(
    ("changes", "ends", "acknowledged", "found"),
    [
        ({}, {PLACE: 100}, set(range(100)), []),
        ({"lag": 12}, {PLACE: 100}, set(range(100)), []),
        ({"lag": 9}, {PLACE: 100}, set(range(100)), ["more was lost than was reported"]),
        ({"lag": None}, {PLACE: 100}, set(range(100)), ["a loss is unknown although the source answers"]),
        ({"lag": None}, None, set(range(100)), []),
        ({"lag": 0}, None, {90}, ["a loss was reported as none"]),
        ({"lag": 0, "asOf": 1}, None, {90}, []),
        ({"lag": 0, "lastMirroredOffset": 100}, {PLACE: 100}, set(range(100)), []),
    ],
)
def test_the_reported_loss_is_judged(
    changes: dict[str, Any], ends: dict[tuple[str, int], int] | None, acknowledged: set[int], found: list[str]
) -> None:
    wrong = judge_loss([stopped(**changes)], ends, {PLACE: acknowledged})
    assert [one["what"] for one in wrong] == found


def test_a_group_is_never_ahead_of_its_source_and_once_quiet_where_it_is_there() -> None:
    bounds = {PLACE: (10, 100), ("t", 1): (0, 50)}
    assert judge_group({PLACE: 70}, {PLACE: 60}, bounds, quiet=False) == []
    assert judge_group({PLACE: 70}, {PLACE: 70}, bounds, quiet=True) == []
    assert judge_group({PLACE: 120}, {PLACE: 100}, bounds, quiet=True) == []
    assert judge_group({PLACE: 5}, {PLACE: 10}, bounds, quiet=True) == []
    for destination in ({PLACE: 71}, {PLACE: 70, ("t", 1): 1}):
        assert judge_group({PLACE: 70}, destination, bounds, quiet=False) != []
    for destination in ({PLACE: 69}, {}):
        assert judge_group({PLACE: 70}, destination, bounds, quiet=True) != []
    assert judge_group({PLACE: 120}, {PLACE: 110}, bounds, quiet=False) != []


def test_a_group_that_the_destination_has_forgotten_is_found() -> None:
    owed = {PLACE: 70, ("t", 1): 3}
    assert judge_idle_group(owed, {**owed, ("other", 0): 1}) == []
    assert judge_idle_group(owed, {PLACE: 70}) == ["('t', 1): 3 is forgotten"]
