"""One Spark application, held by this process: start it, run functions in its workers, stop it in bounded time.

Every function is a job of its own with one task, so that stopping or losing one stalls no other; one thread waits for
all of them. Spark replaces a worker that dies and runs the function again, with the next `attempt`; an exception of the
function is its result.

PySpark installs a SIGINT handler when it runs in the main thread, and signals belong to the caller: so a helper thread
creates the SparkContext. Other calls into the JVM that could hang also run in threads, with a time limit.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import queue
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kmirror.engine.executors import Executor, Placement
from kmirror.engine.spark import conf as spark_conf
from kmirror.engine.spark.conf import SparkOptions
from kmirror.engine.spark.executor_tracker import ExecutorTracker
from kmirror.engine.spark.gateway import own_environment
from kmirror.engine.spark.job_watch import JobRequest, JobWatch
from kmirror.engine.spark.launch import Launched, all_settings, launch
from kmirror.engine.spark.run_folder import FolderWatch, run_folder
from kmirror.engine.spark.shipping import WORKER_MODULES
from kmirror.engine.spark.spark_context import (
    cancel_job,
    executors,
    forget_context,
    from_java,
    is_stopped,
    is_waiting,
    make_context,
    stop_context,
)
from kmirror.engine.spark.spark_failures import (
    SparkLostError,
    TaskCancelledError,
    WorkerTraceback,
    explain,
    first_line,
    not_started,
)
from kmirror.engine.spark.task import Mark, TaskOutcome, check_imports, run_task
from kmirror.engine.threads import call_in_thread, call_with_timeout, wait_until
from kmirror.errors import KmirrorError, TimedOutError

if TYPE_CHECKING:
    from pyspark import SparkContext

A = TypeVar("A")
R = TypeVar("R")

_CONTEXT_SECONDS = 90.0
_FIRST_TASK_SECONDS = 60.0
#: How much longer YARN and Kubernetes get for each: jobs of others may go first, and nodes fetch Spark.
_MANAGED_SECONDS = 240.0
_EXECUTORS_SECONDS = 3.0
_CALL_SECONDS = 3.0
_CHECK_SECONDS = 1.0
_DEATH_SECONDS = 2.0
_THREADS_SECONDS = 1.0

#: Held by the runtime that is started: PySpark allows one context in a process.
_one_runtime = threading.Lock()


@dataclass(slots=True)
class _Job:
    """A submitted function: `group` is its Spark job group, never reused; `place` is the preferred executor."""

    name: str
    group: str
    mark: Mark | None
    future: Future[Any] = field(default_factory=Future)
    place: Executor | None = None
    cancelled: bool = False
    request: JobRequest | None = None

    def forbid(self) -> None:
        """Keep workers from starting it."""
        self.cancelled = True
        if self.mark is not None:
            with contextlib.suppress(OSError):  # without its folder no worker starts anyway
                self.mark.cancelled_file.touch()


class SparkRuntime:
    """A Spark application for functions of the form ``function(argument, attempt)``; a context manager."""

    def __init__(self, options: SparkOptions, environ: Mapping[str, str] | None = None) -> None:
        self._options = options
        self._local = spark_conf.is_local(options.master)
        given = os.environ if environ is None else environ
        self._environ = own_environment(given) if self._local else dict(given)
        self._resources = contextlib.ExitStack()
        self._folder: Path | None = None
        self._launched: Launched | None = None
        self._watch: FolderWatch | None = None
        self._context: SparkContext | None = None
        #: What the JVM was last asked.
        self._is_stopped: Future[bool] | None = None
        self._executors: ExecutorTracker | None = None
        self._application_id = ""
        self._jobs: dict[str, _Job] = {}
        #: What `map` runs. Single steps on a set: from any thread.
        self._mapped: set[Future[Any]] = set()
        self._watching: JobWatch | None = None
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        #: Held while Spark starts and while it ends.
        self._changing = threading.Lock()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopping.is_set() else "running" if self._context else "not started"
        return f"<SparkRuntime {self.master} {state}, {len(self._jobs)} functions>"

    @property
    def master(self) -> str:
        """The Spark master that Spark is given."""
        return spark_conf.effective_master(self._options)

    @property
    def application_id(self) -> str:
        """The ID of the Spark application."""
        self._running()
        return self._application_id

    @property
    def slots(self) -> int:
        """How many functions can run at once: as many as requested, or as many cores as the cluster has now."""
        if self._local:
            return self._options.slots
        return min(self._options.slots, sum(executor.cores for executor in executors(self._running())))

    @property
    def spare_slots(self) -> int:
        """How many functions of all `map`s could run beside the others now: on a local master, whose threads share its
        cores, no more than without the threads for what may come later; at least one where Spark makes room for it.
        """
        if self._local:
            capacity = spark_conf.local_threads(self._options)
            most = spark_conf.local_threads(replace(self._options, later_slots=0))
        else:
            most = capacity = sum(executor.cores for executor in executors(self._running()))
        placement = self.placement
        least = int(placement is not None and placement.is_elastic)
        with self._lock:
            return max(least, min(most, capacity - len(self._jobs) + len(self._mapped)))

    @property
    def driver_host(self) -> str:
        """The address at which workers reach this process."""
        return str(self._running().getConf().get("spark.driver.host"))

    @property
    def bind_address(self) -> str:
        """The local address to listen on for workers."""
        return str(self._running().getConf().get("spark.driver.bindAddress") or self.driver_host)

    @property
    def placement(self) -> Placement | None:
        """Where functions ran a moment ago; None with a local master and while Spark does not answer."""
        return self._executors.last if self._executors is not None else None

    def loss(self) -> SparkLostError | None:
        """Return why nothing more can run, if Spark's application, process or folder is gone; None in the normal case.

        Raises OSError or RuntimeError if it could not look: it may next time.
        """
        launched, watch = self._launched, self._watch
        if launched is None or watch is None or self._stopping.is_set():
            return None
        if launched.gateway.has_ended:
            return SparkLostError(
                "Spark's Java process ended unexpectedly: copying has stopped",
                f"run it again; the cause may be in {self._options.log_file}",
            )
        missing = watch.missing()
        # asked last: an application that ends removes its files
        if self._was_ended() and not self._stopping.is_set():
            return SparkLostError(
                f"Spark's application {self._application_id} on {self.master} has ended: copying has stopped",
                f"run it again; the cause may be in {self._options.log_file}, or in the cluster's logs",
            )
        if missing is not None and not self._stopping.is_set():
            return SparkLostError(
                f"{missing} was removed, without which Spark starts no workers: copying has stopped",
                "run it again, with TMPDIR set to a folder that no one cleans",
            )
        return None

    def start(self) -> None:
        """Start Spark; on a cluster, also check that its workers can run our code.

        Raises UsageError or RefusedError if that cannot work as it is, another KmirrorError if it may work later, or
        StoppedError when another thread calls `stop` meanwhile; then nothing is left running.
        """
        spark_conf.check(self._options, self._environ)
        with self._changing:
            if not _one_runtime.acquire(blocking=False):
                raise RuntimeError("this process runs another Spark runtime")
            self._resources.callback(_one_runtime.release)
            try:
                self._start()
            except BaseException as error:
                text = from_java(error)
                message, cause = text or first_line(error), error if text is None else None
                self._end()
                if isinstance(error, Exception) and not isinstance(error, KmirrorError):
                    raise not_started(message, self._options.log_file) from cause
                raise

    def submit(
        self, name: str, function: Callable[[A, int], R], argument: A, place: Executor | None = None
    ) -> Future[R]:
        """Run function(argument, attempt) in a worker; functions that run at the same time need different names.

        It runs on `place` if that has a free core within a second, otherwise where the fewest functions run. The future
        fails with what the function raised, or with TaskFailedError, TaskCancelledError or SparkLostError.
        """
        from pyspark import cloudpickle

        payload = cloudpickle.dumps((function, argument))
        with self._lock:
            if self._stopping.is_set() or self._folder is None:
                raise RuntimeError(f"{self!r} runs no functions")
            if name in self._jobs:
                raise ValueError(f"a function named {name} is running")
            number = next(self._numbers)
            mark = Mark.at(self._folder / f"task-{number}") if self._local else None
            job = self._jobs[name] = _Job(name, f"{name} #{number}", mark, place=place)
            self._watching = self._watching or JobWatch(self._running)
            job.request = JobRequest(
                job.group,
                name,
                partial(run_task, payload=payload, generations=3 if self._local else 2, mark=mark),
                partial(self._placed, job),
                lambda answer: self._complete(job, pickle.loads(answer)),
                lambda error: self._fail(job, error),
            )
        self._watching.submit(job.request)
        return job.future

    def map(
        self, name: str, function: Callable[[A, int], R], arguments: Iterable[A], at_once: int | None = None
    ) -> Generator[R, None, None]:
        """Yield function(argument, attempt) for all `arguments`, in the order in which they finish.

        At most `slots` run at once, or `at_once`, with those of other `map`s; one can always run. The first failure is
        raised and cancels the others, as does closing the iterator.
        """
        waiting = enumerate(arguments)
        running: dict[Future[R], str] = {}
        done: queue.SimpleQueue[Future[R]] = queue.SimpleQueue()
        slots = max(1, at_once or self.slots)
        try:
            while True:
                while not running or max(len(running), len(self._mapped)) < slots:
                    if (following := next(waiting, None)) is None:
                        break
                    number, argument = following
                    future = self.submit(f"{name} {number}", function, argument)
                    running[future] = f"{name} {number}"
                    self._mapped.add(future)
                    future.add_done_callback(self._mapped.discard)
                    future.add_done_callback(done.put)
                if not running:
                    return
                future = done.get()
                del running[future]
                yield future.result()
        finally:
            for left in running.values():
                self.cancel(left)

    def failures_of_executors(
        self, name: str, function: Callable[[A, int], object], argument: A, seconds: float
    ) -> list[Exception]:
        """Run function(argument, attempt) once for each executor and return what it raised, each error once.

        One that has not run it within `seconds` is left out. A local master's workers are this machine: none are asked.
        """
        if self._local:
            return []
        alive: Iterable[Executor] = ()
        with contextlib.suppress(Exception):  # what runs next reports a Spark that does not answer
            alive = call_with_timeout(partial(executors, self._running()), _CALL_SECONDS)
        # one that was cancelled may still be running
        placed = {f"{name} on {executor} #{next(self._numbers)}": executor for executor in alive}
        futures = {asked: self.submit(asked, function, argument, place) for asked, place in placed.items()}
        wait(futures.values(), seconds)
        for asked in [asked for asked, future in futures.items() if not future.done()]:
            self.cancel(asked)
        errors = [future.exception() for future in futures.values() if future.done()]
        return list({str(error): error for error in errors if isinstance(error, Exception)}.values())

    def cancel(self, name: str) -> None:
        """Kill the function's worker at once: its `finally` blocks do not run. An unknown name is ignored.

        With a local master the worker is dead on return; on a cluster it dies within 3 s if it can be reached.
        """
        with self._lock:
            job = self._jobs.get(name)
        if job is None:
            return
        job.forbid()
        with contextlib.suppress(Exception):
            call_with_timeout(partial(cancel_job, self._running(), job.group), _CALL_SECONDS)
        self._kill_worker(job)

    def is_waiting(self, name: str) -> bool:
        """Return True if Spark does not have the function yet, or says within a second that no worker has it."""
        with self._lock:
            job = self._jobs.get(name)
        if job is None:
            return False
        if job.request is not None and job.request.running is None:
            return True  # Spark does not have it yet
        try:
            return call_with_timeout(partial(is_waiting, self._running(), job.group), _CHECK_SECONDS)
        except Exception:
            return False

    def stop(self) -> None:
        """Stop Spark and everything it started, frozen workers or a frozen JVM included, within some 5 s.

        Running functions are killed and their futures fail with TaskCancelledError. Any thread may call this, at any
        time and more than once.
        """
        self._stopping.set()
        with self._changing:
            self._end()

    def _start(self) -> None:
        self._folder = self._resources.enter_context(run_folder())
        self._watch = FolderWatch(self._folder)
        settings = all_settings(self._options, self._environ, self._folder)
        launched = self._launched = launch(self._options, self._environ, self._folder, settings, self._stopping)
        python = spark_conf.worker_python(self._options, self._environ)
        more = _MANAGED_SECONDS if spark_conf.is_managed(self._options.master) else 0.0
        seconds = _CONTEXT_SECONDS + more
        try:
            create = partial(make_context, launched.gateway, settings, python)
            self._context = call_with_timeout(create, seconds, self._stopping)
        except TimedOutError as error:
            raise TimedOutError(
                f"{self.master} did not start Spark's application within {seconds:.0f} s",
                f"check that it answers and has room; the cause may be in {self._options.log_file}",
            ) from error
        self._application_id = str(self._context.applicationId)
        # With a local master this only starts the Python daemon while the caller continues.
        first_task = self.submit("import check", check_imports, WORKER_MODULES)
        if not self._local:
            self._await_workers(first_task, _FIRST_TASK_SECONDS + more)
            is_elastic = settings.get("spark.dynamicAllocation.enabled", "").lower() == "true"
            tracker = self._executors = ExecutorTracker(self._context, self._groups, is_elastic=is_elastic)
            threading.Thread(target=tracker.follow, args=(self._stopping,), name="spark executors", daemon=True).start()

    def _was_ended(self) -> bool:
        """Return True if the application has ended in a JVM that lives on: by its cluster, or by a failure of Spark."""
        if self._context is None:
            return False
        if self._is_stopped is None or self._is_stopped.done():  # a frozen JVM is not asked again and again
            self._is_stopped = call_in_thread(partial(is_stopped, self._context))
        wait([asked := self._is_stopped], _CHECK_SECONDS)
        return asked.done() and asked.exception() is None and asked.result()

    def _groups(self) -> dict[str, str]:
        """Return the Spark job groups of the functions that run, by name."""
        with self._lock:
            return {name: job.group for name, job in self._jobs.items()}

    def _await_workers(self, first_task: Future[None], seconds: float) -> None:
        """Wait for the first task, then a moment for more executors, so that functions spread over them."""
        try:
            wait_until(first_task.done, seconds, self._stopping)
        except TimedOutError as error:
            raise TimedOutError(
                f"no worker of {self.master} accepted a task within {seconds:.0f} s",
                "free some cores or memory, or ask for less (--spark-conf spark.executor.memory=512m)",
            ) from error
        first_task.result()
        with contextlib.suppress(TimedOutError):
            wait_until(lambda: self.slots >= self._options.slots, _EXECUTORS_SECONDS, self._stopping)

    def _end(self) -> None:
        with self._lock:
            jobs, watching = list(self._jobs.values()), self._watching
            self._watching = None
        for job in jobs:
            job.forbid()
            self._kill_worker(job)
        if self._context is not None and not self._local:
            # A local Spark ends with its JVM.
            with contextlib.suppress(Exception):
                call_with_timeout(partial(stop_context, self._context), _CALL_SECONDS)
        if self._launched is not None:
            self._launched.close()
            forget_context(self._context)
        if watching is not None:
            watching.close(_THREADS_SECONDS)
        if self._folder is not None:
            sys.path[:] = [entry for entry in sys.path if not entry.startswith(str(self._folder))]
        self._resources.close()
        self._folder = self._launched = self._context = None

    def _fail(self, job: _Job, error: BaseException) -> None:
        """Complete the future of a job that Spark has not run to its end."""
        cancelled = TaskCancelledError(f"{job.name} was cancelled")
        self._complete(
            job,
            TaskOutcome(error=cancelled if job.cancelled else explain(job.name, error, self._options.log_file)),
        )

    def _complete(self, job: _Job, outcome: TaskOutcome) -> None:
        with self._lock:
            del self._jobs[job.name]
        if outcome.error is None:
            job.future.set_result(outcome.value)
        else:
            if outcome.trace:
                outcome.error.__cause__ = WorkerTraceback(outcome.trace)
            job.future.set_exception(outcome.error)

    def _placed(self, job: _Job) -> Executor | None:
        """Choose the executor, then the host, that runs the fewest of our functions; Spark might put all on one."""
        if self._local:
            return job.place
        alive = executors(self._running())
        if job.place not in alive:
            placement = self.placement
            with self._lock:
                known = placement.places if placement is not None else {}
                load = Counter(known.get(name, other.place) for name, other in self._jobs.items() if other is not job)
                on_host = Counter(executor.host for executor in load.elements() if executor is not None)
                free = [executor for executor in alive if load[executor] < executor.cores]
                job.place = min(free, key=lambda one: (load[one], on_host[one.host], one.name), default=None)
        return job.place

    def _kill_worker(self, job: _Job) -> None:
        """Kill the process that runs `job` if it is on this machine, and wait until it is dead."""
        if job.mark is None or self._launched is None:
            return
        with contextlib.suppress(OSError, ValueError, TimedOutError):
            process = int(job.mark.pid_file.read_text())
            if os.getsid(process) == self._launched.gateway.process.pid:
                os.kill(process, signal.SIGKILL)
                wait_until(lambda: not _exists(process), _DEATH_SECONDS)

    def _running(self) -> SparkContext:
        if self._context is None:
            raise RuntimeError(f"{self!r} has no context")
        return self._context


def _exists(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False
