"""The only module that touches PySpark: a SparkContext on our own gateway, and what its public API does not offer.

PySpark is imported on first use: commands that need no Spark must not wait for it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kmirror.engine.executors import Executor

if TYPE_CHECKING:
    from pyspark import SparkContext

    from kmirror.engine.spark.gateway import Gateway

#: How many attempts of a task are searched for the running one.
TASK_ATTEMPTS = 16
#: What Spark and Hadoop call a user without a name.
_NAMELESS = "kmirror"


def make_context(gateway: Gateway, settings: Mapping[str, str], worker_python: str) -> SparkContext:
    """Connect to the JVM and create the SparkContext in it.

    Must not run in the main thread, where PySpark would install a SIGINT handler.
    """
    from py4j import java_gateway
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    # Py4J reports a lost JVM to the root logger, which would print it; its own logger is silent by default.
    java_gateway.logging = java_gateway.logger
    with _environment(
        PYSPARK_GATEWAY_PORT=str(gateway.port), PYSPARK_GATEWAY_SECRET=gateway.secret, PYSPARK_PIN_THREAD="true"
    ):
        connection = launch_gateway()
    if not has_user_name():
        # as containers with random user ids have it: Hadoop would refuse to log in to the operating system
        users = connection.jvm.org.apache.hadoop.security.UserGroupInformation
        users.setLoginUser(users.createRemoteUser(_NAMELESS))
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    context = SparkContext(conf=conf, gateway=connection)
    context.pythonExec = worker_python
    # When the JVM is killed, PySpark's accumulator server would print a traceback.
    server: socketserver.BaseServer = context._accumulatorServer
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    return context


def has_user_name() -> bool:
    """Return whether the user id of this process has a name."""
    try:
        return bool(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return False


def stop_context(context: SparkContext) -> None:
    """Stop the application, which tells the cluster that it has finished. Blocks as long as the JVM does."""
    context._jsc.stop()


def is_stopped(context: SparkContext) -> bool:
    """Return whether the application has ended in a JVM that lives on. Blocks as long as the JVM does."""
    return bool(context._jsc.sc().isStopped())


def forget_context(context: SparkContext | None) -> None:
    """Drop the context and its gateway after the JVM has ended, so that this process can start another."""
    from pyspark import SparkContext

    if context is not None:
        server, context._accumulatorServer = context._accumulatorServer, None
        context._jsc = None
        context.stop()
        threading.Thread(target=server.shutdown, name="spark accumulators", daemon=True).start()
    connection, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if connection is not None:
        connection.shutdown()


def one_row(context: SparkContext, place: Executor | None) -> Any:
    """Return a Java RDD of one row, whose job runs preferably on `place`; any number of jobs may use it."""
    jvm: Any = context._jvm
    places = jvm.PythonUtils.toSeq([] if place is None else [f"executor_{place.host}_{place.name}"])
    row = jvm.scala.Tuple2(bytearray(b"."), places)
    any_class = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").AnyRef()
    return context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq([row]), any_class).toJavaRDD()


class RunningJob:
    """A job with one task that Spark runs. All calls block as long as the JVM takes to answer, not until the job ends.

    One thread makes all of them: PySpark keeps a thread of the JVM for each thread that calls it.
    """

    def __init__(
        self, context: SparkContext, group: str, name: str, row: Any, function: Callable[[Any], Iterator[bytes]]
    ) -> None:
        """Have Spark run `function` over `one_row`; it yields one row."""
        from pyspark.core.rdd import RDD
        from pyspark.serializers import NoOpSerializer

        context.setJobGroup(group, name, interruptOnCancel=False)
        rdd: Any = RDD(row, context, NoOpSerializer()).mapPartitions(function)
        rdd._jrdd_deserializer = NoOpSerializer()
        self._action: Any = rdd._jrdd.collectAsync()
        #: The number by which `active_jobs` lists it; None if it ended at once.
        self.number: int | None = next(iter(self._action.jobIds()), None)

    @property
    def is_done(self) -> bool:
        """True when it has ended."""
        return bool(self._action.isDone())

    def result(self) -> bytes:
        """Return the row of a job that has ended, or raise what ended it."""
        (answer,) = self._action.get()
        return bytes(answer)


def active_jobs(context: SparkContext) -> set[int]:
    """Return the numbers of the jobs that run, as Spark saw it a moment ago. Blocks as long as the JVM does."""
    jvm: Any = context._jvm
    listed = str(jvm.java.util.Arrays.toString(context._jsc.sc().statusTracker().getActiveJobIds()))
    return {int(number) for number in listed.strip("[]").split(",") if number}


def cancel_job(context: SparkContext, group: str) -> None:
    """Cancel the job of `group`, even if it has not started yet. Blocks as long as the JVM does."""
    context._jsc.sc().cancelJobGroupAndFutureJobs(group)


def is_waiting(context: SparkContext, group: str) -> bool:
    """Return True if the job of `group` exists and none of its tasks runs. Blocks as long as the JVM does."""
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in stages_of(context, group)]
    return bool(stages) and not any(stage is not None and stage.numActiveTasks for stage in stages)


def stages_of(context: SparkContext, group: str) -> list[int]:
    """Return the stage ids of `group`, none before its job starts. Blocks as long as the JVM does."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    return [stage for job in jobs if job is not None for stage in job.stageIds]


def executor_of(context: SparkContext, stage: int) -> str | None:
    """Return the id of the executor that runs the only task of a stage now. Blocks as long as the JVM does."""
    tasks = context._jsc.sc().statusStore().taskList(stage, 0, TASK_ATTEMPTS)
    running = [task for task in map(tasks.apply, range(tasks.size())) if task.status() == "RUNNING"]
    return str(running[-1].executorId()) if running else None


def executors(context: SparkContext) -> list[Executor]:
    """Return the executors that are alive; none with a local master, where the JVM itself runs the tasks."""
    listed = context._jsc.sc().statusStore().executorList(True)
    summaries = [listed.apply(index) for index in range(listed.size())]
    return [
        Executor(str(summary.id()), _host_of(str(summary.hostPort())), int(summary.totalCores()))
        for summary in summaries
        if summary.id() != "driver"
    ]


def _host_of(address: str) -> str:
    """Return the host of an executor's address, which has no port until its block manager registers."""
    return address.rpartition(":")[0] or address


def from_java(error: BaseException) -> str | None:
    """Return the JVM's message if `error` is an exception raised there; None if the connection failed."""
    from py4j.protocol import Py4JJavaError

    if not isinstance(error, Py4JJavaError):
        return None
    with contextlib.suppress(Exception):
        found = error.java_exception
        if found.getClass().getName() == "java.util.concurrent.ExecutionException":
            found = found.getCause()
        return str(found.getMessage())
    return None


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables temporarily: the only way to give PySpark a gateway that already runs."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
