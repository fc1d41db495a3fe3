"""Functions in a real local Spark: results, errors, lost workers, cancelling."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark import cloudpickle

from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions
from kmirror.engine.spark.spark_failures import TaskCancelledError, TaskFailedError, WorkerTraceback
from kmirror.engine.spark.task import RemoteError
from kmirror.errors import Reason, RefusedError
from tests.support.processes import tree
from tests.support.waiting import wait_until

# Workers do not have the tests on their path, so functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file into which the Spark of this module logs."""
    return tmp_path_factory.mktemp("spark") / "spark.log"


@pytest.fixture(scope="module")
def spark(log_file: Path) -> Iterator[SparkRuntime]:
    """A local Spark with four slots on a machine in India, shared by the tests of this module."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        options = SparkOptions(slots=4, log_file=log_file, app_name="test")
        with SparkRuntime(options, {**os.environ, "TZ": "Asia/Kolkata"}) as runtime:
            yield runtime
    finally:
        signal.signal(signal.SIGINT, before)


class OddError(Exception):
    """An exception that pickles, and cannot be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def square(number: int, attempt: int) -> int:
    return number * number


def meet(folder: Path, attempt: int) -> int:
    """Return when three of these run at the same time."""
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 3:
        time.sleep(0.01)
    return os.getpid()


def refuse(counter: Path, attempt: int) -> None:
    with counter.open("a") as file:
        file.write("called\n")
    raise RefusedError("not so", "do it otherwise", Reason.FENCED)


def be_odd(argument: None, attempt: int) -> None:
    raise OddError("one", "two")


def return_what_cannot_travel(argument: None, attempt: int) -> object:
    return (number for number in range(3))


def die_at_first(argument: None, attempt: int) -> int:
    if attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return attempt


def die(argument: None, attempt: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def beat(file: Path, attempt: int) -> None:
    """Write the process id, then keep writing for ever."""
    while True:
        with file.open("a") as heartbeat:
            heartbeat.write(f"{os.getpid()}\n")
        time.sleep(0.01)


def answer_or_wait(argument: tuple[int, Path], attempt: int) -> int:
    number, go = argument
    while number == 0 and not go.exists():
        time.sleep(0.01)
    return number


def fail_or_beat(file: Path | None, attempt: int) -> None:
    if file is not None:
        beat(file, attempt)
    raise RefusedError("the first failure")


def alive(process: int) -> bool:
    return bool(tree(process))


def beating(file: Path) -> int:
    """Wait until `beat` runs, and return its process id."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
    return int(file.read_text().split()[0])


@pytest.mark.slow
def test_functions_run_at_the_same_time_each_in_a_process_of_its_own(spark: SparkRuntime, tmp_path: Path) -> None:
    futures = [spark.submit(f"meet {number}", meet, tmp_path) for number in range(3)]

    assert len({future.result(60) for future in futures}) == 3


def test_it_says_where_it_runs(spark: SparkRuntime) -> None:
    cores = os.cpu_count() or 1
    assert spark.master == f"local[{max(4, cores)},4]"
    assert spark.application_id.startswith("local-")
    assert spark.slots == 4


def test_its_log_has_the_times_of_ours(spark: SparkRuntime, log_file: Path) -> None:
    times = re.findall(r"^(\S+Z) WARN \w+: ", log_file.read_text(), re.MULTILINE)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(times[0])) < timedelta(minutes=30)


def test_signals_stay_the_callers(spark: SparkRuntime) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_exception_of_the_function_is_its_result_and_not_repeated(spark: SparkRuntime, tmp_path: Path) -> None:
    counter = tmp_path / "calls"

    with pytest.raises(RefusedError, match="not so") as caught:
        spark.submit("refuse", refuse, counter).result(60)

    assert (caught.value.hint, caught.value.reason) == ("do it otherwise", Reason.FENCED)
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "in refuse" in str(caught.value.__cause__)
    assert counter.read_text() == "called\n"


def test_what_cannot_travel_becomes_an_error_that_can(spark: SparkRuntime) -> None:
    with pytest.raises(RemoteError, match="OddError: one and two"):
        spark.submit("odd", be_odd, None).result(60)
    with pytest.raises(RemoteError, match="generator"):
        spark.submit("generator", return_what_cannot_travel, None).result(60)


def test_a_worker_that_dies_is_replaced(spark: SparkRuntime) -> None:
    assert spark.submit("die at first", die_at_first, None).result(60) == 1


def test_a_function_that_kills_every_worker_is_not_retried(spark: SparkRuntime) -> None:
    with pytest.raises(TaskFailedError, match=r"aborted die: .*4 times") as caught:
        spark.submit("die", die, None).result(60)

    assert caught.value.hint is not None
    assert "spark.log" in caught.value.hint
    assert spark.submit("square", square, 3).result(60) == 9


@pytest.mark.parametrize("frozen", [False, True])
def test_a_cancelled_function_is_dead_on_return(spark: SparkRuntime, tmp_path: Path, frozen: bool) -> None:
    other = spark.submit("other", beat, tmp_path / "other")
    future = spark.submit("beat", beat, tmp_path / "beat")
    process = beating(tmp_path / "beat")
    if frozen:
        os.kill(process, signal.SIGSTOP)

    spark.cancel("beat")

    assert not alive(process)
    with pytest.raises(TaskCancelledError, match="beat was cancelled"):
        future.result(60)
    assert not other.done()
    assert alive(beating(tmp_path / "other"))
    assert spark.submit("beat", square, 2).result(60) == 4
    spark.cancel("other")
    assert other.exception(60) is not None


def test_a_function_cancelled_before_it_began_never_runs(spark: SparkRuntime, tmp_path: Path) -> None:
    for number in range(5):
        future = spark.submit("beat", beat, tmp_path / str(number))
        spark.cancel("beat")
        with pytest.raises(TaskCancelledError):
            future.result(60)

    written = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    time.sleep(0.5)
    assert {file.name: file.stat().st_size for file in tmp_path.iterdir()} == written


def test_cancelling_what_does_not_run_does_nothing(spark: SparkRuntime) -> None:
    spark.cancel("nothing of that name")


def test_a_name_is_taken_while_its_function_runs(spark: SparkRuntime, tmp_path: Path) -> None:
    first = spark.submit("beat", beat, tmp_path / "beat")
    with pytest.raises(ValueError, match="a function named beat is running"):
        spark.submit("beat", square, 1)
    spark.cancel("beat")
    assert isinstance(first.exception(60), TaskCancelledError)


def test_map_yields_each_result_as_it_comes(spark: SparkRuntime, tmp_path: Path) -> None:
    go = tmp_path / "go"
    results = spark.map("answer", answer_or_wait, [(number, go) for number in range(9)])

    early = [next(results) for _ in range(8)]
    go.touch()

    assert sorted(early) == list(range(1, 9))
    assert list(results) == [0]


def test_the_first_failure_of_map_ends_the_others(spark: SparkRuntime, tmp_path: Path) -> None:
    file = tmp_path / "beat"

    with pytest.raises(RefusedError, match="the first failure"):
        list(spark.map("fail", fail_or_beat, [file, None]))

    wait_until(lambda: not file.exists() or not alive(beating(file)))
