"""Bulk work is cut, shared out, counted and put together, in threads and as Spark would; nothing is started here."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable, Generator, Iterable
from itertools import pairwise
from typing import Any

import pytest

from kmirror.engine.bulk.bulk_progress import ProgressAddress, receiving_progress, reporting_progress
from kmirror.engine.bulk.ranges import cut_offsets, group_by_size, task_bytes
from kmirror.engine.bulk.runner import SparkTasks, Task, Threads, Where, run_task, runner_beside_lanes
from kmirror.errors import KmirrorError, UsageError
from kmirror.ops.base.bulk import SPARK_FROM_BYTES, Bulk, SparkChoice
from kmirror.work import Add, Meter, WorkIsOverError, WorkView, unwatched
from tests.support.waiting import wait_until

MB = 1 << 20


def test_ranges_cover_every_offset_once() -> None:
    assert cut_offsets(100, 1100, 4) == [(100, 350), (350, 600), (600, 850), (850, 1100)]
    assert cut_offsets(5, 8, 100) == [(5, 6), (6, 7), (7, 8)]
    assert cut_offsets(5, 5, 3) == [(5, 5)]


def test_small_ranges_are_done_together_and_large_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmirror.engine.bulk.ranges._MOST_RANGES_PER_TASK", 2)
    sized = [("a", 4.0), ("b", 5.0), ("c", 2.0), ("d", 40.0), ("e", 1.0), ("f", 1.0), ("g", 1.0)]
    assert list(group_by_size(sized, 10.0)) == [("a", "b"), ("c",), ("d",), ("e", "f"), ("g",)]
    assert list(group_by_size([], 10.0)) == []


def test_tasks_are_enough_for_all_slots_and_neither_tiny_nor_huge() -> None:
    assert task_bytes(1600 * MB, 4) == 100 * MB
    assert task_bytes(MB, 4) == 8 * MB
    assert task_bytes(10**15, 4) == 256 * MB


# -- running -----------------------------------------------------------------------------------------------------------


class Workers:
    """Replaces Spark: the same bytes make their way there and back, and each task may be done several times."""

    slots = 3
    driver_host = bind_address = "127.0.0.1"

    def __init__(self, attempts: int = 1) -> None:
        self.attempts = attempts
        self.at_once: int | None = None

    def map(
        self, name: str, function: Callable[[Any, int], Any], arguments: Iterable[Any], at_once: int | None = None
    ) -> Generator[Any, None, None]:
        self.at_once = at_once
        for argument in arguments:
            for attempt in range(self.attempts):
                answer = pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(argument)), attempt)))
            yield answer


def double(number: int, progress: Add) -> int:
    """Do half of the work, and leave the rest out."""
    for _ in range(5):
        progress(1)
    return 2 * number


@pytest.mark.parametrize("runner", [Threads(2), SparkTasks(Workers()), SparkTasks(Workers(attempts=3))])
def test_each_task_is_done_and_each_unit_counted_once(runner: Any) -> None:
    views: list[WorkView] = []
    with Meter(views.append, "doubling", "unit", 100) as meter:
        assert sorted(runner.run("double", double, [Task(n, 10) for n in range(10)], meter)) == list(range(0, 20, 2))
    assert (views[-1].done, views[-1].total) == (50, 50)
    assert all(earlier.done <= later.done for earlier, later in pairwise(views))


@pytest.mark.parametrize("runner", [Threads(2), SparkTasks(Workers())])
def test_what_is_found_decides_what_comes_next(runner: Any) -> None:
    found: list[int] = []
    with Meter(unwatched, "") as meter:
        for result in runner.run("double", double, (Task(n, 0) for n in range(100) if not found), meter):
            found.append(result)  # noqa: PERF402 - the tasks read it meanwhile
    assert 1 <= len(found) <= 2


def test_a_failure_ends_the_others_and_so_does_leaving() -> None:
    begun, go_on = threading.Barrier(2), threading.Event()
    ended: list[int] = []

    def work(number: int, progress: Add) -> int:
        begun.wait(10)
        if number == 0:
            raise KmirrorError("no")
        try:
            go_on.wait(10)
            progress(1)
        except WorkIsOverError:
            ended.append(number)
            raise
        return number

    with Meter(unwatched, "") as meter:
        running = Threads(2).run("work", work, [Task(n, 1) for n in range(9)], meter)
        threading.Timer(0.05, go_on.set).start()
        with pytest.raises(KmirrorError, match="no"):
            list(running)
    assert ended == [1]


@pytest.mark.parametrize(("spare", "slots", "is_spark"), [(3, 2, True), (1, 1, True), (0, 1, False)])
def test_work_beside_lanes_never_waits_for_one_to_end(
    spare: int, slots: int, is_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Application(Workers):
        spare_slots = spare

    monkeypatch.setattr("kmirror.engine.bulk.runner._SLOT_SECONDS", 0.0)
    runner = runner_beside_lanes(Application())
    assert (runner.slots, isinstance(runner, SparkTasks)) == (slots, is_spark)


def test_no_more_run_at_once_than_are_wanted() -> None:
    workers = Workers()
    runner = SparkTasks(workers, 2)
    with Meter(unwatched, "") as meter:
        list(runner.run("double", double, [Task(1, 5)], meter))
    assert (runner.slots, workers.at_once, SparkTasks(workers).slots) == (2, 2, 3)


# -- telling -----------------------------------------------------------------------------------------------------------


def test_only_our_counts_are_received_while_a_task_runs() -> None:
    received: list[tuple[int, int]] = []
    with receiving_progress("127.0.0.1", "127.0.0.1", lambda task, done: received.append((task, done))) as address:
        assert address is not None
        with (
            reporting_progress(address._replace(token=bytes(16)), 7) as stranger,
            reporting_progress(address, 7) as own,
        ):
            stranger.add(99)
            own.add(5)
            wait_until(lambda: received == [(7, 5)])
            own.add(6)  # too soon to be sent
            assert own.done == 11
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noise:
            noise.sendto(b"x" * 5000, (address.host, address.port))
        with reporting_progress(address, 8) as own:
            own.add(1)
        wait_until(lambda: received[1:] == [(8, 1)])


def test_without_a_way_to_the_driver_tasks_continue() -> None:
    with receiving_progress("h", "203.0.113.1", lambda *_: None) as address:
        assert address is None
    for nowhere in (None, ProgressAddress("no such host", 9, bytes(16)), ProgressAddress("127.0.0.1", 9, bytes(16))):
        with reporting_progress(nowhere, 1) as own:
            own.add(3)
            assert own.done == 3


def test_a_count_that_comes_late_or_from_an_earlier_attempt_changes_nothing() -> None:
    """The driver may have given the work up by the time that a datagram comes."""

    class Late(Workers):
        def map(self, name: str, function: Any, arguments: Any, at_once: Any = None) -> Any:
            for call in arguments:
                with (
                    reporting_progress(call.address, call.number) as first,
                    reporting_progress(call.address, call.number) as second,
                ):
                    first.add(7)
                    wait_until(lambda: views[-1].done == 7)
                    second.add(4)  # the task begins again
                yield run_task(call, 1)

    views: list[WorkView] = []
    with Meter(views.append, "", "unit", 10) as meter:
        meter._shown_at = 0  # show the next
        assert list(SparkTasks(Late()).run("double", double, [Task(4, 10)], meter)) == [8]
    # it had done 7 once
    assert (views[-1].done, views[-1].total) == (7, 7)


# -- where -------------------------------------------------------------------------------------------------------------


def test_large_work_is_done_in_spark_and_small_work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bulk(SparkChoice("local[3]"), "verify", "m", 9, unwatched) as bulk:
        assert bulk.where(SPARK_FROM_BYTES - 1) is Where.THREADS
        assert bulk.where(SPARK_FROM_BYTES) is Where.SPARK
        assert (bulk.slots(Where.THREADS), bulk.slots(Where.SPARK)) == (4, 3)
        assert isinstance(bulk.runner(Where.THREADS), Threads)
        assert bulk.summary(Where.THREADS, 1) == "in 1 thread"
        assert bulk.summary(Where.THREADS, 99) == "in 4 threads"
        assert bulk.summary(Where.SPARK, 99) == "in 99 Spark tasks on local[3]"
        assert (bulk.place(Where.THREADS), bulk.place(Where.SPARK)) == ("in threads", "on Spark (local[3])")
        monkeypatch.setenv("JAVA_HOME", "/nonexistent")
        assert bulk.where(SPARK_FROM_BYTES) is Where.THREADS
    # the machines of a cluster have a Java of their own, and this one needs it to reach them: that is an error
    with Bulk(SparkChoice("spark://h:7077"), "verify", "m", 9, unwatched) as bulk:
        assert bulk.where(SPARK_FROM_BYTES) is Where.SPARK
        assert bulk.slots(Where.SPARK) == 9


def test_a_master_that_cannot_work_is_refused_before_anything_is_done() -> None:
    with pytest.raises(UsageError, match="not a Spark master"), Bulk(SparkChoice("x"), "v", "m", 1, unwatched):
        pass
