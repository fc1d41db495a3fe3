"""`run --all` of many mirrors: few threads for all their side jobs, and sources that never answer delay only their own.

Lanes do not run here.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from kmirror.engine.clock import now
from kmirror.engine.driver.driver import Limits, RunView, drive
from kmirror.engine.driver.engines import Engines
from kmirror.engine.driver.side_jobs import JobEvent, JobView, SideJob
from kmirror.engine.driver.snapshots import Snapshots
from kmirror.ops.base.context import Destination, change, now_ms, source_client
from kmirror.ops.base.destination_job import DestinationJob
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.run import engine_start
from kmirror.ops.run.supervisor import EngineSupervisor
from kmirror.state.records import DesiredState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import Changes
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.idle_engine import IdleLanes
from tests.support.mirrors import make_topic, new_mirror, properties_of, settings_of
from tests.support.topics import alter_topic
from tests.support.waiting import PATIENCE_S, wait_until

ALIVE, DEAD = 9, 3
#: The most side jobs of all mirrors that run at once, and the most monitors.
MOST = 16
#: Who waits for an answer of a dead source waits as long as the test lasts.
FOREVER_MS = 3_600_000

own_jobs_of = engine_start.side_jobs_of


class Asking(DestinationJob):
    """A further job, which asks the source for its topics."""

    def __init__(self, name: str, mirror: str, destination_properties: Mapping[str, str]) -> None:
        super().__init__(mirror, destination_properties)
        self.name = name

    def run(self, view: JobView) -> Iterable[JobEvent]:
        with source_client(view.mirror.source) as source:
            source.metadata()
        return ()


def jobs_of(mirror: str, destination_properties: Mapping[str, str], cluster_id: str | None = None) -> list[SideJob]:
    """Return the jobs of a mirror. Six wait for its source without a limit of their own, if they are switched on."""
    more = [Asking(name, mirror, destination_properties) for name in ("asking", "asking again")]
    return [*own_jobs_of(mirror, destination_properties, cluster_id), *more]


JOBS = {f"kmirror-{job.name}" for job in jobs_of("m", {})}


class IdleRuntime(IdleLanes):
    """Stand in for Spark: lanes wait for a worker for ever."""

    placement = None

    def is_waiting(self, name: str) -> bool:
        return True

    def failures_of_executors(self, *_: object) -> list[Exception]:
        return []


def discovering(prefix: str) -> dict[str, str]:
    """Return the settings of a mirror that adds topics with a prefix."""
    topics = [{"name": prefix, "patternType": "PREFIXED", "filterType": "INCLUDE"}]
    return {
        "auto.create.mirror.topics.enable": "true",
        "auto.create.mirror.topics.filters": json.dumps({"topicFilters": topics}),
        "refresh.interval.seconds": "1",
    }


def store_dead(destination: Destination, address: str) -> str:
    """Store a mirror with a topic, whose source connects and never answers; return its name."""
    name = unique_topic("dead")
    timeouts = dict.fromkeys(("request.timeout.ms", "socket.connection.setup.timeout.ms"), str(FOREVER_MS))
    source = {"bootstrap.servers": address, **timeouts}
    mirror = MirrorRecord(
        name, source, {**discovering(name), "emit.checkpoints.enabled": "true"}, "a-cluster", "eve@ops", now_ms()
    )
    topic = TopicRecord(name, name, name, None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED)
    change(destination, name, lambda _: Changes((mirror, topic)))
    return name


def mirrored(destination: Destination) -> set[str]:
    """Return the topics of all mirrors."""
    state = destination.state()
    return {topic.topic for mirror in state.mirrors for topic in state.topics(mirror.name)}


class Run:
    """What `run --all` does once Spark has started, in a thread, and which threads it has."""

    def __init__(self, destination: Destination) -> None:
        #: Threads of other tests, which may wait for a dead source for as long as it says.
        self._others = set(threading.enumerate())
        self._stop, self._runtime = threading.Event(), IdleRuntime()
        self._snapshots = Snapshots()
        self._supervisor = EngineSupervisor(destination, RunRequest((), all_mirrors=True), destination.state())
        self._supervisor.use(self._runtime, self._runtime)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._drive)
        #: The most threads that were seen at once, by name.
        self.most: Counter[str] = Counter()
        self.most_jobs = 0

    def _drive(self) -> None:
        drive(Engines(), self._stop, Limits(), self._see, now(), self._supervisor, self._snapshots)
        self._supervisor.close()

    def _see(self, view: RunView) -> None:
        assert view.mirrors

    def count_threads(self) -> Counter[str]:
        """Return how many threads have each name now."""
        found = Counter(thread.name for thread in threading.enumerate() if thread not in self._others)
        self.most |= found
        self.most_jobs = max(self.most_jobs, sum(found[name] for name in JOBS))
        return found

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, and watch the threads."""

        def holds() -> object:
            self.count_threads()
            return condition()

        wait_until(holds)

    def jobs_left(self) -> dict[str, set[str]]:
        """Return by mirror which side jobs have not succeeded yet."""
        found = self._snapshots.ask(PATIENCE_S)
        return {one.mirror: set(one.jobs) - one.jobs_done_at.keys() for one in found}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run until the `with` block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(PATIENCE_S)


#: Names of threads that run jobs of all mirrors; and of those that do for a moment whatever else may take long.
POOLED = {"kmirror-heartbeat", "kmirror-renewals", "kmirror-source", "kmirror-idle", *JOBS}
PASSING = {"kmirror-call", "kmirror-close"}
#: All threads of the pools.
MOST_POOLED = 32 + 3 * MOST


@pytest.mark.slow
def test_twice_as_many_mirrors_need_no_more_threads_and_none_of_their_own(
    source_cluster: SandboxCluster, empty_destination: SandboxCluster, silent: str
) -> None:
    with Destination.open(properties_of(empty_destination)) as destination:
        for _ in range(4):
            new_mirror(destination, source_cluster)
        dead = [store_dead(destination, silent) for _ in range(2)]
        run = Run(destination)
        with run.running():

            def settled(mirrors: int) -> Counter[str]:
                """Return the threads, but for those of the pools, once that many mirrors have engines at work."""
                run.until(
                    lambda: len(left := run.jobs_left()) == mirrors and not any(left[m] for m in left.keys() - dead)
                )
                run.until(lambda: not run.count_threads().keys() & PASSING)
                found = run.count_threads()
                assert sum(found[name] for name in POOLED) <= MOST_POOLED
                return Counter({name: count for name, count in found.items() if name not in POOLED})

            six = settled(6)
            for _ in range(4):
                new_mirror(destination, source_cluster)
            dead += [store_dead(destination, silent) for _ in range(2)]
            assert settled(12) == six
    assert {"kmirror-follow": 1, "kmirror-mirrors": 1}.items() <= six.items()


@pytest.fixture
def silent() -> Iterator[str]:
    """Return an address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
def test_the_side_jobs_of_many_mirrors_share_few_threads_and_dead_sources_hold_up_none(
    source_cluster: SandboxCluster, empty_destination: SandboxCluster, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_start, "side_jobs_of", jobs_of)
    topics = [unique_topic("found") for _ in range(ALIVE)]
    with Destination.open(properties_of(empty_destination)) as destination:
        alive = {new_mirror(destination, source_cluster, **discovering(topic)) for topic in topics}
        dead = {store_dead(destination, silent) for _ in range(DEAD)}
        run = Run(destination)
        with run.running():
            run.until(lambda: run.jobs_left().keys() == alive | dead)
            run.until(lambda: run.count_threads()["kmirror-group offsets"] >= DEAD)
            # the others have nothing to do: nothing keeps jobs of dead sources from more threads
            run.until(lambda: not any(run.jobs_left()[mirror] for mirror in alive))

            for topic in topics:
                make_topic(source_cluster, topic, segment_ms="7200000")
            run.until(lambda: mirrored(destination) >= set(topics))
            for topic in topics:
                alter_topic(source_cluster, topic, segment_ms="3600000")
            for topic in topics:
                run.until(lambda topic=topic: settings_of(empty_destination, topic)["segment.ms"] == "3600000")  # type: ignore[misc]
            assert 0 < run.most_jobs <= MOST
            assert 0 < run.most["kmirror-source"] <= MOST
