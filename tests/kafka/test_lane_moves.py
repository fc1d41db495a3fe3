"""Lanes that change executors, and lanes that come and go, while they copy: the copy is the same, and continues.

Threads replace the executors of a Spark cluster.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from kmirror.engine.executors import Executor
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.show.describe import describe
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, properties_of, selector
from tests.support.stored import first_difference, log_dir_of
from tests.support.waiting import wait_until

FIRST, SECOND = Executor("0", "host-a", 8), Executor("1", "host-b", 8)
PARTITIONS = 8


@contextmanager
def written_to(source: SandboxCluster, topic: str) -> Iterator[None]:
    """Write some records a second to each partition."""
    stop = threading.Event()

    def write() -> None:
        producer = Producer(properties_of(source))
        while not stop.wait(0.05):
            for partition in range(PARTITIONS):
                producer.produce(topic, bytes(200), partition=partition)
            producer.poll(0)
        assert producer.flush(30) == 0

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


@pytest.mark.slow
def test_a_copy_continues_while_lanes_move_come_and_go(cluster_pair: ClusterPair, destination: Destination) -> None:
    topic = unique_topic("moved")
    make_topic(cluster_pair.source, topic, PARTITIONS)
    mirror = new_mirror(destination, cluster_pair.source, copy_lanes="4")
    assert add(destination, mirror, selector(topic)).exit_code == 0

    def workers() -> Counter[str | None]:
        return Counter(row.worker for row in describe(destination, mirror))

    with written_to(cluster_pair.source, topic), LocalEngine(destination, mirror, executors=(FIRST,)) as engine:
        wait_until(lambda: workers() == {"host-a/0": 8})
        assert len(engine.lanes) == 4

        engine.threads.executors = (FIRST, SECOND)
        wait_until(lambda: workers() == {"host-a/0": 4, "host-b/1": 4})
        assert len(engine.lanes) == 6
        assert sum("moves from host-a/0 to host-b/1" in note for note in engine.notes) == 2

        engine.threads.executors = (Executor("2", "host-c", 3),)
        wait_until(lambda: len({row.lane for row in describe(destination, mirror)}) == 3)
        wait_until(lambda: any("room for 3 lanes" in note for note in engine.notes))
        change_config(destination, mirror, {"copy.lanes": "2"})
        wait_until(lambda: len({row.lane for row in describe(destination, mirror)}) == 2)
        change_config(destination, mirror, {"copy.lanes": "3"})
        # partitions that have about as much to copy are spread by their number
        wait_until(lambda: sorted(Counter(row.lane for row in describe(destination, mirror)).values()) == [2, 3, 3])
        assert not engine.engine.failures
        # none of them was started again
        assert engine.engine.snapshot().lane_restarts == 0
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
    theirs, ours = log_dir_of(cluster_pair.source), log_dir_of(cluster_pair.destination)
    assert [first_difference(theirs, ours, topic, partition) for partition in range(PARTITIONS)] == [None] * PARTITIONS


@pytest.mark.slow
def test_a_lane_makes_room_for_a_rebuild_where_lanes_have_all_cores(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic, recreated = unique_topic("stays"), unique_topic("recreated")
    make_topic(cluster_pair.source, topic, PARTITIONS)
    make_topic(cluster_pair.source, recreated)
    produce(cluster_pair.source, recreated, ["old"])
    mirror = new_mirror(destination, cluster_pair.source, copy_lanes="3", refresh_interval_seconds="1")
    assert add(destination, mirror, selector(topic, recreated)).exit_code == 0
    with LocalEngine(destination, mirror, executors=(Executor("2", "host-c", 3),)) as engine:
        threads, run = engine.threads, engine.threads.map

        def queued(*work: Any, **more: Any) -> Generator[Any, None, None]:
            """Wait for a core, as Spark does."""
            wait_until(lambda: threads.placement is not None and len(threads.placement.places) < 3)
            yield from run(*work, **more)

        threads.map = queued  # type: ignore[method-assign]
        engine.catch_up()
        delete_topic(cluster_pair.source, recreated)
        make_topic(cluster_pair.source, recreated)
        wait_until(lambda: any(row.topic == recreated and row.archive for row in describe(destination, mirror)))
        wait_until(lambda: any("room for all lanes" in note for note in engine.notes))
        assert any("room for 2 lanes" in note for note in engine.notes)
        wait_until(lambda: len({row.lane for row in describe(destination, mirror)}) == 3)
        assert not engine.engine.failures
