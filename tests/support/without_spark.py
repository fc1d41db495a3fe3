"""`kmirror` with threads of its own process instead of Spark: `python -m tests.support.without_spark run …`.

The rest of `run` and `verify` is unchanged: the engine, its lease, its lanes, their output, and how they end. Starting
Spark takes seconds of every core; tests about logs, and not about workers, save them. Also, a source's end must stay
unchanged for a shorter time before topics are promoted, and the log of a run has a summary every few seconds, not once
a minute.
"""

from __future__ import annotations

from typing import Self

from kmirror.cli.main import entry_point
from kmirror.cli.terminal import run_log
from kmirror.engine.spark import application as spark
from kmirror.engine.spark.conf import SparkOptions
from kmirror.ops.base import spark as spark_of_a_run
from kmirror.ops.stop import promote_request
from tests.support.local_engine import Threads

#: The default for commands that do not set it.
IDLE_MS = 2_000
SUMMARY_SECONDS = 5.0


class ThreadRuntime(Threads):
    """Stand in for `SparkRuntime`: the same functions, run by threads."""

    def __init__(self, options: SparkOptions) -> None:
        super().__init__()
        self.slots = options.slots

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def loss(self) -> None:
        """Return nothing: threads are not lost."""

    def start(self) -> None:
        """Do nothing: threads are there."""

    def stop(self) -> None:
        """Wait for what still runs: it was asked to end."""
        self._pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    for module in (spark, spark_of_a_run):
        module.SparkRuntime = ThreadRuntime  # type: ignore[attr-defined]
    spark_of_a_run.IS_POSSIBLE = False  # type: ignore[attr-defined] # lanes are threads of one process already
    promote_request.IDLE_MS = IDLE_MS
    run_log.SUMMARY_SECONDS = SUMMARY_SECONDS
    entry_point()
