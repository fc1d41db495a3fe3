"""The standalone cluster of these tests runs PySpark on its workers, and its processes can be found."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.spark_standalone import StandaloneSpark

_APPLICATION = """
import os, sys
from pyspark import SparkConf, SparkContext
conf = SparkConf().setMaster(sys.argv[1]).setAppName("standalone").set("spark.ui.enabled", "false")
conf.set("spark.executor.memory", "512m").set("spark.driver.host", "127.0.0.1")
with SparkContext(conf=conf) as context:
    workers = context.parallelize(range(4), 4).map(lambda _: os.getppid()).distinct().collect()
    print(len(workers) > 0, flush=True)
    sys.stdin.read()
"""


def test_an_application_runs_on_the_workers_and_its_processes_are_found(standalone_spark: StandaloneSpark) -> None:
    assert standalone_spark.alive_workers() == 2
    environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with subprocess.Popen(
        [sys.executable, "-c", _APPLICATION, standalone_spark.master_url],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as application:
        assert application.stdout is not None
        assert application.stdout.readline() == "True\n"
        assert standalone_spark.running_applications() == ["standalone"]
        executors = standalone_spark.executor_pids()
        assert len(executors) == 2
        assert {standalone_spark.worker_of(pid).pid for pid in executors} == {
            worker.pid for worker in standalone_spark.workers
        }
        assert standalone_spark.python_pids()
        application.communicate()
    assert application.returncode == 0
