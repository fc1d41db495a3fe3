"""No worker outlives its driver, and no runtime its `stop`: whatever is killed or frozen, and in which order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark import cloudpickle

from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions
from kmirror.engine.spark.run_folder import remove_abandoned
from kmirror.engine.spark.spark_failures import SparkLostError, TaskCancelledError
from kmirror.engine.threads import StoppedError
from tests.support.ending import killed_at_last, printed
from tests.support.processes import Process, tree, wait_gone
from tests.support.spark_driver import endless
from tests.support.waiting import PATIENCE_S, wait_until

cloudpickle.register_pickle_by_value(sys.modules[endless.__module__])

ROOT = Path(__file__).parent.parent.parent
KILL, FREEZE = signal.SIGKILL, signal.SIGSTOP


@dataclass(frozen=True, slots=True)
class Line:
    """The processes from a driver to its worker."""

    driver: Process
    jvm: Process
    daemon: Process
    worker: Process

    @classmethod
    def of(cls, folder: Path) -> Line:
        """Find the processes that left their ids in `folder`."""
        wait_until((folder / "driver").exists)
        wait_until(lambda: (folder / "function").exists() and (folder / "function").read_text().endswith("\n"))
        driver, jvm = map(int, (folder / "driver").read_text().split())
        worker, daemon, _ = map(int, (folder / "function").read_text().splitlines()[-1].split())
        return cls(tree(driver)[0], tree(jvm)[0], tree(daemon)[0], tree(worker)[0])

    @property
    def all(self) -> list[Process]:
        return [self.driver, self.jvm, self.daemon, self.worker]


def start_driver(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.spark_driver", str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def options(folder: Path) -> SparkOptions:
    return SparkOptions(slots=2, log_file=folder / "spark.log", app_name="test")


def own_line(spark: SparkRuntime, folder: Path) -> Line:
    """Return the processes from this one to the worker of `endless`."""
    assert spark._launched is not None
    (folder / "driver").write_text(f"{os.getpid()} {spark._launched.gateway.process.pid}")
    return Line.of(folder)


@pytest.mark.parametrize(
    ("harm", "output"),
    [
        pytest.param([("driver", KILL)], "", marks=pytest.mark.long),
        pytest.param([("jvm", KILL)], "SparkLostError", marks=pytest.mark.long),
        pytest.param([("daemon", KILL), ("driver", KILL)], "", marks=pytest.mark.long),
        pytest.param([("worker", FREEZE), ("driver", KILL)], "", marks=pytest.mark.long),
        # for every day: tests/spark/test_lifeline.py, where the line is one of processes without Spark
        pytest.param([("daemon", FREEZE), ("driver", KILL)], "", marks=pytest.mark.slow),
        pytest.param([("daemon", FREEZE), ("worker", FREEZE), ("jvm", KILL)], "SparkLostError", marks=pytest.mark.long),
    ],
    ids=lambda value: ", ".join(f"{who} {number.name}" for who, number in value) if isinstance(value, list) else "",
)
def test_no_process_is_left(tmp_path: Path, harm: list[tuple[str, signal.Signals]], output: str) -> None:
    with killed_at_last(start_driver(tmp_path)) as driver:
        line = Line.of(tmp_path)
        try:
            for who, number in harm:
                getattr(line, who).send(number)
            assert not wait_gone(line.all, PATIENCE_S)
            # Nothing but our own word: neither Spark nor Py4J writes to the terminal.
            assert printed(driver)[0] == output
        finally:
            for process in line.all:
                process.kill()
    remove_abandoned()


@pytest.mark.slow
def test_a_frozen_jvm_does_not_keep_workers_alive_when_the_driver_dies(tmp_path: Path) -> None:
    with killed_at_last(start_driver(tmp_path)):
        line = Line.of(tmp_path)
        try:
            line.jvm.send(FREEZE)
            line.driver.kill()
            assert not wait_gone([line.worker], PATIENCE_S)
        finally:
            for process in line.all:
                process.kill()
    remove_abandoned()


@pytest.mark.slow
def test_an_interrupt_reaches_the_driver_alone_and_workers_of_a_killed_daemon_are_replaced(tmp_path: Path) -> None:
    with killed_at_last(start_driver(tmp_path)) as driver:
        first = Line.of(tmp_path)
        try:
            os.killpg(driver.pid, signal.SIGINT)  # as a terminal does it
            wait_until((tmp_path / "interrupted").exists)
            assert wait_gone(first.all, 0.2) == first.all
            first.daemon.kill()
            assert not wait_gone([first.worker], PATIENCE_S)
            wait_until(lambda: len((tmp_path / "function").read_text().splitlines()) > 1)
            (tmp_path / "end").touch()
            assert printed(driver)[0] == "ended"
            # one line for each daemon: no attempt ended at the interrupt
            begun = (tmp_path / "function").read_text().splitlines()
            assert (len(begun), begun[0]) == (2, f"{first.worker.pid} {first.daemon.pid} 0")
        finally:
            for process in first.all:
                process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [None, *(pytest.param(who, marks=pytest.mark.long) for who in ("daemon", "jvm"))])
def test_stop_leaves_nothing(tmp_path: Path, frozen: str | None) -> None:
    with SparkRuntime(options(tmp_path)) as spark:
        with pytest.raises(RuntimeError, match="this process runs another Spark runtime"):
            SparkRuntime(options(tmp_path)).start()
        # the one that runs is none the worse for it
        stop_leaves_nothing(spark, tmp_path, frozen)


def stop_leaves_nothing(spark: SparkRuntime, folder: Path, frozen: str | None) -> None:
    future = spark.submit("endless", endless, str(folder))
    line = own_line(spark, folder)
    if frozen:
        getattr(line, frozen).send(FREEZE)
    spark.stop()
    assert not wait_gone([line.jvm, line.daemon, line.worker], PATIENCE_S)
    assert isinstance(future.exception(PATIENCE_S), TaskCancelledError)
    with pytest.raises(RuntimeError, match="runs no functions"):
        spark.submit("late", endless, str(folder))
    spark.stop()


@pytest.mark.slow
def test_losing_the_jvm_fails_what_runs_and_another_runtime_can_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    for folder in (first, again):
        folder.mkdir()
    with SparkRuntime(options(tmp_path)) as spark:
        future = spark.submit("endless", endless, str(first))
        line = own_line(spark, first)
        line.jvm.kill()
        with pytest.raises(SparkLostError, match="Spark's Java process"):
            future.result(PATIENCE_S)
        assert not wait_gone([line.jvm, line.daemon, line.worker], PATIENCE_S)

    with SparkRuntime(options(tmp_path)) as spark:
        # it ends although a worker is frozen
        stop_leaves_nothing(spark, again, "worker")
    # neither Spark nor Py4J writes to the terminal
    assert capfd.readouterr() == ("", "")


def stop_its_context(spark: SparkRuntime) -> None:
    """Do what Spark does when one of its event loops fails: its JVM lives on."""
    spark._running()._jsc.sc().stop()


def use_up_the_heap(spark: SparkRuntime) -> None:
    spark._running()._gateway.new_array(spark._running()._jvm.long, 10**9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "loss"),
    [(stop_its_context, "Spark's application local-"), (use_up_the_heap, "Spark's Java process ended unexpectedly")],
)
def test_a_local_spark_that_can_run_nothing_more_is_noticed(
    tmp_path: Path, harm: Callable[[SparkRuntime], None], loss: str
) -> None:
    with SparkRuntime(options(tmp_path)) as spark:
        assert spark.loss() is None
        with contextlib.suppress(Py4JError, OSError):  # a JVM that ends answers nothing
            harm(spark)
        wait_until(lambda: spark.loss() is not None)
        assert str(spark.loss()).startswith(loss)


@pytest.mark.slow
def test_stop_ends_a_start_that_is_under_way(tmp_path: Path) -> None:
    spark = SparkRuntime(options(tmp_path))
    errors: list[BaseException] = []

    def start() -> None:
        try:
            spark.start()
        except StoppedError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    try:
        wait_until(lambda: any("org.apache.spark" in process.command for process in tree(os.getpid())))
        jvm = [process for process in tree(os.getpid()) if "org.apache.spark" in process.command]
    finally:
        spark.stop()
        thread.join(PATIENCE_S)

    assert [str(error) for error in errors] == ["Spark was stopped during startup"]
    assert not wait_gone(jvm, PATIENCE_S)
