"""One thread that submits jobs to Spark and waits for all of them, however many there are."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kmirror.engine.executors import Executor
from kmirror.engine.spark.spark_context import RunningJob, active_jobs, one_row

if TYPE_CHECKING:
    from pyspark import SparkContext

#: How often to ask for ended jobs, for some seconds after one was submitted: most of those that end soon are short. And
#: how often later: lanes run for days.
_SOON_SECONDS, _YOUNG_SECONDS, _LATER_SECONDS = 0.02, 5.0, 0.5


@dataclass(slots=True, eq=False)
class JobRequest:
    """A job to run. `ended` or, also if that raises, `failed` is called once, in the thread of the watch."""

    group: str
    name: str
    function: Callable[[Any], Iterator[bytes]]
    place: Callable[[], Executor | None]
    ended: Callable[[bytes], None]
    failed: Callable[[BaseException], None]
    submitted_at: float = field(default=0.0, init=False)
    #: None until Spark has it.
    running: RunningJob | None = field(default=None, init=False)


class JobWatch:
    """Run jobs of one SparkContext; from any thread."""

    def __init__(self, context: Callable[[], SparkContext]) -> None:
        self._context = context
        self._requests: queue.SimpleQueue[JobRequest | None] = queue.SimpleQueue()
        self._jobs: list[JobRequest] = []
        #: What jobs without a preferred executor run over.
        self._row: Any = None
        self._thread = threading.Thread(target=self._run, name="spark jobs", daemon=True)
        self._thread.start()

    def submit(self, request: JobRequest) -> None:
        """Have Spark run a job soon."""
        self._requests.put(request)

    def close(self, timeout: float) -> None:
        """Have the thread end once no job is left, and wait for that."""
        self._requests.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        closing = False
        while self._jobs or not closing:
            try:
                request = self._requests.get(timeout=self._pause()) if self._jobs else self._requests.get()
            except queue.Empty:
                self._take_ends()
                continue
            if request is None:
                closing = True
            else:
                self._start(request)

    def _pause(self) -> float:
        is_young = time.monotonic() - self._jobs[-1].submitted_at < _YOUNG_SECONDS
        return _SOON_SECONDS if is_young else _LATER_SECONDS

    def _start(self, request: JobRequest) -> None:
        try:
            context, place = self._context(), request.place()
            if self._row is None:
                self._row = one_row(context, None)
            row = self._row if place is None else one_row(context, place)
            request.running = RunningJob(context, request.group, request.name, row, request.function)
        except BaseException as error:
            request.failed(error)
            return
        request.submitted_at = time.monotonic()
        self._jobs.append(request)

    def _take_ends(self) -> None:
        try:
            active = active_jobs(self._context())
        except BaseException as error:
            jobs, self._jobs = self._jobs, []
            for job in jobs:
                job.failed(error)
            return
        for job in [job for job in self._jobs if job.running is not None and job.running.number not in active]:
            self._take_end(job, job.running)

    def _take_end(self, job: JobRequest, running: RunningJob | None) -> None:
        try:
            if running is None or not running.is_done:
                return  # Spark lists a job a moment after it was submitted
            answer = running.result()
            self._jobs.remove(job)
            job.ended(answer)
        except BaseException as error:
            self._jobs = [one for one in self._jobs if one is not job]
            job.failed(error)
