"""`kmirror` with threads of its own process in Spark's place: `python -m tests.support.without_spark run …`.

All else of `run` and `verify` is as it is: the engine, its lease, its lanes, what they print, and how they end. Spark
takes seconds of every core to start; where a test is about logs, and not about workers, they are better spent. And
before topics are promoted, a source's end has to stand still for a shorter time; and the log of a run sums up every few
seconds, not once a minute.
"""

from __future__ import annotations

from typing import Self

from kmirror.cli import run_log
from kmirror.cli.main import entry_point
from kmirror.engine.spark import application as spark
from kmirror.engine.spark.conf import SparkOptions
from kmirror.ops.run import spark as spark_of_a_run
from kmirror.ops.stop import promote
from tests.support.local_engine import Threads

#: For how long unless a command says so.
IDLE_MS = 2_000
SUMMARY_SECONDS = 5.0


class ThreadRuntime(Threads):
    """Stand in for `SparkRuntime`: the same functions, run by threads."""

    is_lost = False

    def __init__(self, options: SparkOptions) -> None:
        super().__init__()
        self.slots = options.slots

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Do nothing: threads are there."""

    def stop(self) -> None:
        """Wait for what still runs: it has been told to end."""
        self._pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    for module in (spark, spark_of_a_run):
        module.SparkRuntime = ThreadRuntime  # type: ignore[attr-defined]
    promote.IDLE_MS = IDLE_MS
    run_log.SUMMARY_SECONDS = SUMMARY_SECONDS
    entry_point()
