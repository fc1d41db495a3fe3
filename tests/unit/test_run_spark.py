"""How many threads a run has Spark start, where Spark's own words go, and how long they are kept."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from kmirror.engine.executors import Placement
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import local_threads
from kmirror.engine.spark.spark_failures import SparkLostError
from kmirror.engine.threads import call_in_thread
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.base.spark import new_log_file, spark_options, watched
from tests.support.stores import mirror
from tests.support.waiting import PATIENCE_S, polls, wait_until


def test_logs_of_runs_that_have_ended_are_deleted_and_never_one_of_a_run_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = new_log_file().parent
    # no process has a number as large: Linux ends at 4,194,304
    files = [folder / f"spark-{pid}.log" for pid in (os.getppid(), *range(5_000_000, 5_000_021))]
    for age, file in enumerate(files):
        file.touch()
        os.utime(file, (age, age))
    new_log_file()
    living, ended, *younger = files
    assert {*folder.iterdir()} == {living, *younger}
    assert not ended.exists()


def test_a_running_mirror_may_be_given_any_number_of_lanes_and_a_rebuild_still_finds_a_thread() -> None:
    options = spark_options(RunRequest(("m",), "local[2]"), [mirror("m")], Path("spark.log"))
    most_lanes, one_that_restarts, rebuild = 256, 1, 1
    assert local_threads(options) >= most_lanes + one_that_restarts + rebuild


def test_a_rebuild_takes_no_more_of_a_local_master_than_its_cores_and_slots() -> None:
    options = spark_options(RunRequest(("m",), "local[2]"), [mirror("m")], Path("spark.log"))
    assert SparkRuntime(options).spare_slots == options.slots


@pytest.mark.parametrize("is_elastic", [False, True])
def test_a_rebuild_never_waits_for_a_cluster_whose_cores_lanes_have_unless_that_grows(
    is_elastic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = SparkRuntime(spark_options(RunRequest(("m",), "spark://h:7077"), [mirror("m")], Path("spark.log")))
    monkeypatch.setattr(SparkRuntime, "_running", lambda _: None)
    monkeypatch.setattr("kmirror.engine.spark.application.executors", lambda _: [])
    tracker = SimpleNamespace(last=Placement((), {}, is_elastic))
    monkeypatch.setattr(runtime, "_executors", tracker)
    assert runtime.spare_slots == is_elastic


class Started(SparkRuntime):
    """A runtime whose functions end when a test says so."""

    def __init__(self) -> None:
        super().__init__(spark_options(RunRequest(("m",), "local[8]"), [mirror("m")], Path("spark.log")))
        self.running: dict[str, Future[Any]] = {}
        self.most = 0

    def submit(self, name: str, *_: Any) -> Future[Any]:
        future = self.running[name] = Future()
        self.most = max(self.most, len(self.running))
        return future

    def end(self, name: str) -> None:
        self.running.pop(name).set_result(name)


def test_rebuilds_of_several_topics_share_what_the_lanes_leave_and_each_of_them_gets_on() -> None:
    runtime, at_once, topics = Started(), 4, ("a", "b", "c")

    def rebuild(topic: str) -> list[Any]:
        return list(runtime.map(topic, pow, range(10), at_once))

    ends = [call_in_thread(partial(rebuild, topic)) for topic in topics]
    wait_until(lambda: {name.split()[0] for name in runtime.running} == {*topics} and len(runtime.running) >= at_once)
    for _ in polls():
        for name in list(runtime.running):
            runtime.end(name)
        if all(end.done() for end in ends):
            break
    assert [sorted(end.result()) for end in ends] == [[f"{topic} {n}" for n in range(10)] for topic in topics]
    assert runtime.most <= at_once + len(topics) - 1


def test_a_loss_of_spark_is_noticed_after_a_look_for_it_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kmirror.ops.base.spark._CHECK_S", 0.01)
    runtime, stop = Started(), threading.Event()
    troubles = [OSError(errno.EMFILE, "too many open files"), RuntimeError("can't start new thread")]
    looks = Mock(side_effect=[*troubles, None, DEFAULT], return_value=SparkLostError("it ended"))
    monkeypatch.setattr(runtime, "loss", looks)
    with watched(runtime, stop) as lost:
        assert stop.wait(PATIENCE_S)
    assert [str(loss) for loss in lost] == ["it ended"]
