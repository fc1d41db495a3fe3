"""When a lane writes where an earlier run of it might: its engine says whether the time of that one is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from kmirror.engine.clock import now, now_ms
from kmirror.engine.lane.lane import Lane
from kmirror.engine.lane.partition.states import Status
from kmirror.engine.lane.reports import control
from kmirror.engine.lane.reports.state_log import STATE_PARTITION
from kmirror.state.records import Incarnation
from tests.support.clusters import ClusterPair
from tests.support.lane import Mirror
from tests.support.mirrors import produce
from tests.support.topics import alter_topic
from tests.support.waiting import wait_until


@pytest.fixture
def mirror(cluster_pair: ClusterPair) -> Iterator[Mirror]:
    with closing(Mirror(cluster_pair.source, cluster_pair.destination)) as made:
        produce(cluster_pair.source, made.topic(), ["one", "two"])
        yield made


def test_a_lane_need_not_wait_for_runs_that_cannot_write_any_more(mirror: Mirror) -> None:
    mirror.claim(settle_ms=0)
    # without that word it would wait for ten minutes
    lane = mirror.start(claim=False, predecessor_may_write=True, ttl_ms=600_000)
    mirror.wait_copied(lane)
    assert mirror.stop(lane).clean


@pytest.mark.parametrize(("attempt", "settle_ms"), [(0, 1), (1, 0)], ids=["time is left", "Spark started it again"])
def test_a_lane_waits_while_another_run_of_it_may_write(mirror: Mirror, attempt: int, settle_ms: int) -> None:
    mirror.claim(lanes={0: Incarnation(1, 0)}, settle_ms=settle_ms)
    lane = mirror.start(attempt, claim=False, predecessor_may_write=True, ttl_ms=600_000)
    (partition,) = lane.partitions
    # its own claim is written, and the partition was inspected
    wait_until(lambda: 0 < partition.retry.wake_at - now() < 601)
    assert partition.status is Status.WAITING
    mirror.stop(lane)


@pytest.mark.slow
def test_reports_of_a_lane_whose_clock_is_hours_ahead_are_read(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    hours_ms = 3 * 3_600_000
    # as it is with every broker since 4.0
    alter_topic(mirror.destination, STATE_PARTITION.topic, **{"message.timestamp.after.max.ms": "3600000"})
    monkeypatch.setattr(control, "now_ms", lambda: now_ms() + hours_ms)
    lane = mirror.start(4)
    mirror.wait_copied(lane)
    mirror.wait(lane, lambda: [one for one in mirror.progress() if one.attempt == 4])
    assert max(one.time_ms for one in mirror.progress()) > now_ms() + hours_ms / 2
    assert mirror.stop(lane).clean


def test_a_lane_that_is_ended_before_its_first_turn_says_how(mirror: Mirror) -> None:
    lane = Lane(mirror.spec(), 0)
    assert lane.run(lambda: lane.control._end("FENCED", "another engine took over")).ended == "FENCED"
