"""Functions on a Spark cluster whose machines have Python and Spark, and of ours only what is shipped to them."""

from __future__ import annotations

import os
import signal
import sys
import time
import venv
from pathlib import Path

import pytest
from pyspark import cloudpickle

from kmirror.engine.spark import application as spark_module
from kmirror.engine.spark.application import SparkRuntime
from kmirror.engine.spark.conf import SparkOptions
from kmirror.engine.spark.spark_failures import TaskCancelledError
from kmirror.errors import RefusedError, TimedOutError, UnreachableError
from kmirror_sandbox.ports import free_ports
from tests.support.processes import tree
from tests.support.spark_standalone import StandaloneSpark
from tests.support.waiting import wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of this version that has no library installed."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture
def options(standalone_spark: StandaloneSpark, bare_python: Path, tmp_path: Path) -> SparkOptions:
    """Options for the standalone cluster: two lanes and one spare."""
    return SparkOptions(
        slots=3,
        log_file=tmp_path / "spark.log",
        app_name="test",
        master=standalone_spark.master_url,
        conf={"spark.pyspark.python": str(bare_python)},
    )


def look_around(seconds: float, attempt: int) -> tuple[int, list[str]]:
    """Return this worker's parent and where its modules come from."""
    import cramjam
    import crc32c
    import kafka

    import kmirror.engine.lane.lane  # noqa: F401 - what lanes import must be there

    time.sleep(seconds)
    return os.getppid(), [str(module.__file__) for module in (sys.modules["kmirror"], crc32c, cramjam, kafka)]


def stay(file: Path, attempt: int) -> str:
    """Write the process id and its executor's, run until `end` exists beside it."""
    with file.open("a") as lines:
        lines.write(f"{os.getpid()} {os.getppid()}\n")
    while not (file.parent / "end").exists():
        time.sleep(0.01)
    return f"attempt {attempt}"


def pids(file: Path) -> list[int]:
    """Wait until `stay` runs, and return the process id of its worker and of its daemon."""
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"), 60)
    return [int(word) for word in file.read_text().splitlines()[-1].split()]


@pytest.mark.long
def test_workers_run_what_is_shipped_and_functions_spread(
    standalone_spark: StandaloneSpark, options: SparkOptions
) -> None:
    with SparkRuntime(options) as spark:
        assert spark.slots == 3
        assert spark.application_id.startswith("app-")
        for _ in range(3):
            lanes = [spark.submit(f"lane {number}", look_around, 0.5) for number in range(2)]
            places = [lane.result(60) for lane in lanes]
            # One daemon for each executor, one executor on each of the two machines.
            assert len({daemon for daemon, _ in places}) == 2
            for _, files in places:
                assert all("/kmdeps/" in file for file in files)
        assert standalone_spark.alive_workers() == 2
        assert standalone_spark.running_applications() == ["test"]
        assert {standalone_spark.worker_of(pid) for pid in standalone_spark.executor_pids()} == {
            *standalone_spark.workers
        }
        assert standalone_spark.python_pids()

    wait_until(lambda: not standalone_spark.python_pids())
    wait_until(lambda: not standalone_spark.running_applications())


@pytest.mark.long
def test_a_function_is_cancelled_and_another_outlives_its_executor(
    standalone_spark: StandaloneSpark, options: SparkOptions, tmp_path: Path
) -> None:
    with SparkRuntime(options) as spark:
        cancelled = spark.submit("cancelled", stay, tmp_path / "cancelled")
        moved = spark.submit("moved", stay, tmp_path / "moved")
        worker, _ = pids(tmp_path / "cancelled")

        spark.cancel("cancelled")

        assert isinstance(cancelled.exception(60), TaskCancelledError)
        wait_until(lambda: not tree(worker))

        worker, daemon = pids(tmp_path / "moved")
        executor = next(pid for pid in standalone_spark.executor_pids() if daemon in [p.pid for p in tree(pid)])
        # A frozen daemon cannot pass the end of its executor on to the worker.
        os.kill(daemon, signal.SIGSTOP)
        os.kill(executor, signal.SIGKILL)
        wait_until(lambda: not tree(worker))
        os.kill(daemon, signal.SIGKILL)

        wait_until(lambda: len((tmp_path / "moved").read_text().splitlines()) == 2, 60)
        (tmp_path / "end").touch()
        assert moved.result(60) == "attempt 1"


@pytest.mark.long
def test_workers_without_the_right_python_are_refused(options: SparkOptions) -> None:
    missing = SparkOptions(
        slots=1,
        log_file=options.log_file,
        app_name="test",
        master=options.master,
        conf={"spark.pyspark.python": "no-such-python"},
    )

    with pytest.raises(RefusedError, match="the Spark workers have no no-such-python") as caught:
        SparkRuntime(missing).start()

    assert caught.value.hint == "set their Python: --spark-conf spark.pyspark.python=PATH"


@pytest.mark.slow
def test_a_full_cluster_is_distinguished_from_a_slow_one(
    options: SparkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = SparkOptions(
        slots=1,
        log_file=options.log_file,
        app_name="test",
        master=options.master,
        conf={"spark.executor.memory": "2g"},
    )
    monkeypatch.setattr(spark_module, "_FIRST_TASK_SECONDS", 2)

    with pytest.raises(TimedOutError, match="accepted a task within 2 s") as caught:
        SparkRuntime(greedy).start()

    assert caught.value.hint == "free some cores or memory, or ask for less (--spark-conf spark.executor.memory=512m)"


def test_a_master_that_does_not_answer_is_said_at_once(tmp_path: Path) -> None:
    master = f"spark://127.0.0.1:{free_ports(1)[0]}"
    nobody = SparkOptions(slots=1, log_file=tmp_path / "spark.log", app_name="test", master=master)

    with pytest.raises(UnreachableError, match=f"the Spark master {master} does not answer"):
        SparkRuntime(nobody).start()


@pytest.mark.long
def test_a_local_cluster_runs_the_same_and_leaves_nothing(bare_python: Path, tmp_path: Path) -> None:
    import pyspark

    options = SparkOptions(
        slots=2,
        log_file=tmp_path / "spark.log",
        app_name="test",
        master="local-cluster[2,1,1024]",
        conf={"spark.pyspark.python": str(bare_python)},
    )
    with SparkRuntime(options) as spark:
        lanes = [spark.submit(f"lane {number}", look_around, 0.5) for number in range(2)]
        places = [lane.result(60) for lane in lanes]

    assert len({daemon for daemon, _ in places}) == 2
    assert all("/kmdeps/" in file for _, files in places for file in files)
    assert not Path(pyspark.__file__).with_name("work").exists()
    assert not [process for process in tree(os.getpid()) if "org.apache.spark.executor" in process.command]
