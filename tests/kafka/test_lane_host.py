"""Several lanes in one process: each copies, ends and fails for itself, and only one thread sends."""

from __future__ import annotations

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest

from kmirror.engine.lane.host import LaneHost
from kmirror.engine.lane.lane import Lane, run_lane
from kmirror.engine.lane.reports.state_log import Claims
from kmirror.engine.lane_channel import CancelLane, HostSpec, LaneEnded, StartLane
from kmirror.engine.lanes.lane_hosts import LaneHosts
from kmirror.engine.spec import LaneResult, LaneSpec
from kmirror.engine.threads import call_in_thread
from kmirror.errors import KmirrorError
from kmirror.state.records import EngineState, Incarnation
from tests.support.clusters import ClusterPair
from tests.support.lane import Mirror, assert_same, fill
from tests.support.spawned import PROCESSES
from tests.support.waiting import PATIENCE_S, wait_until

SENDER = "the sender"


class Processes:
    """Run hosts in processes of the test instead of Spark's workers."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.ended: list[Future[None]] = []

    def submit(self, name: str, function: Callable[[HostSpec, int], None], argument: HostSpec) -> Future[None]:
        process = PROCESSES.Process(target=function, args=(argument, 0), name=name, daemon=True)
        process.start()
        self.started.append(process)

        def wait() -> None:
            process.join()
            if process.exitcode:
                raise KmirrorError(f"{name} ended with {process.exitcode}")

        self.ended.append(call_in_thread(wait))
        return self.ended[-1]

    def cancel(self, name: str) -> None:
        """Kill it."""
        for process, ended in zip(self.started, self.ended, strict=True):
            if process.name == name:
                process.kill()
                ended.exception(PATIENCE_S)

    def close(self) -> None:
        """Kill what is left, frozen or not."""
        for process, ended in zip(self.started, self.ended, strict=True):
            process.kill()
            ended.exception(PATIENCE_S)


@pytest.fixture
def mirrors(cluster_pair: ClusterPair) -> Iterator[list[Mirror]]:
    """Return two mirrors, each with a topic with some records."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(closing(Mirror(cluster_pair.source, cluster_pair.destination, ttl_ms=5_000)))
            for _ in range(2)
        ]
        for mirror in made:
            fill(mirror, mirror.topic(), 20)
            mirror.claim()
        yield made


def topic_of(mirror: Mirror) -> str:
    (assignment,) = mirror.spec().assignments
    return str(assignment.source_topic)


def is_copied(mirror: Mirror) -> bool:
    return mirror.destination_ends() == mirror.source_ends()


def copy_more(mirror: Mirror) -> None:
    """Check that new records of a mirror are copied."""
    fill(mirror, topic_of(mirror), 10)
    wait_until(lambda: is_copied(mirror))
    assert_same(mirror, topic_of(mirror))


class Hosted:
    """A host in a thread of the test, with what it says of its lanes."""

    def __init__(self) -> None:
        self.ended: dict[str, LaneEnded] = {}
        self.host = LaneHost(self._tell)
        self._thread = threading.Thread(target=self.host.run, args=(self._before_sending,), name=SENDER, daemon=True)
        self._thread.start()

    def _before_sending(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCONT})

    def _tell(self, message: LaneEnded) -> None:
        self.ended[message.name] = message

    def start(self, *mirrors: Mirror) -> None:
        """Start a lane for each mirror, named after it."""
        for mirror in mirrors:
            self.host.start(StartLane(mirror.name, mirror.spec()))

    def close(self) -> None:
        self.host.stop()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    with closing(Hosted()) as made:
        yield made


def test_each_lane_copies_and_one_that_its_engine_stops_ends_alone(hosted: Hosted, mirrors: list[Mirror]) -> None:
    stopped, other = mirrors
    hosted.start(*mirrors)
    wait_until(lambda: all(map(is_copied, mirrors)))
    stopped.claim(state=EngineState.STOPPING)
    wait_until(lambda: stopped.name in hosted.ended)
    result = hosted.ended[stopped.name].result
    assert isinstance(result, LaneResult)
    assert (result.ended, result.clean) == ("STOPPED", True)
    copy_more(other)
    assert hosted.ended.keys() == {stopped.name}
    # its last report says how far it came
    assert max(row.destination_offset or 0 for one in stopped.progress() for row in one.rows) == 20


def test_a_lane_that_fails_ends_alone(hosted: Hosted, mirrors: list[Mirror]) -> None:
    broken, other = mirrors
    hosted.start(*mirrors)
    wait_until(lambda: all(map(is_copied, mirrors)))
    hosted.host._lanes[broken.name].lane._broken(ZeroDivisionError("of a test"))
    wait_until(lambda: broken.name in hosted.ended)
    assert hosted.ended[broken.name] == LaneEnded(broken.name, None, "ZeroDivisionError: of a test")
    copy_more(other)


def test_a_lane_that_cannot_start_says_so_and_the_next_one_does(hosted: Hosted, mirrors: list[Mirror]) -> None:
    locked, other = mirrors
    spec = locked.spec(source_properties={"bootstrap.servers": "a:1", "ssl.ca.location": "a.pem"})
    hosted.host.start(StartLane(locked.name, spec))
    assert hosted.ended[locked.name].result is None
    assert "ssl.ca.location" in str(hosted.ended[locked.name].error)
    hosted.start(other)
    copy_more(other)


def test_a_lane_that_is_cancelled_copies_nothing_more(hosted: Hosted, mirrors: list[Mirror]) -> None:
    cancelled, other = mirrors
    hosted.start(*mirrors)
    wait_until(lambda: all(map(is_copied, mirrors)))
    hosted.host.cancel(CancelLane(cancelled.name))
    wait_until(lambda: cancelled.name in hosted.ended)
    fill(cancelled, topic_of(cancelled), 10)
    copy_more(other)
    assert set(cancelled.destination_ends().values()) == {20}


@pytest.mark.parametrize("before", [{"lanes": {}}, {"lease": "of its predecessor"}], ids=["unclaimed", "another lease"])
def test_a_lane_does_not_end_by_what_was_read_before_it_was_started(
    hosted: Hosted, mirrors: list[Mirror], monkeypatch: pytest.MonkeyPatch, before: dict[str, Any]
) -> None:
    later, other = mirrors
    later.claim(**before)
    hosted.start(other)
    wait_until(partial(is_copied, other))
    take, is_read = Claims._take, threading.Event()

    def late(claims: Claims, *given: Any) -> None:
        is_read.wait(PATIENCE_S)
        take(claims, *given)

    # as where many mirrors report: what is stored is read a moment later
    monkeypatch.setattr(Claims, "_take", late)
    later.claim()
    hosted.start(later)
    is_read.set()
    copy_more(later)
    assert not hosted.ended


def test_a_lane_that_cannot_be_closed_has_ended_all_the_same(
    hosted: Hosted, mirrors: list[Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosted.start(mirrors[0])
    wait_until(partial(is_copied, mirrors[0]))
    close = Lane.close

    def fails(lane: Lane) -> None:
        close(lane)
        raise OSError("of a test")

    monkeypatch.setattr(Lane, "close", fails)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    hosted.host.cancel(CancelLane(mirrors[0].name))
    wait_until(lambda: mirrors[0].name in hosted.ended)


def test_the_thread_that_sends_starts_no_thread_that_would_take_its_sigcont(
    hosted: Hosted, mirrors: list[Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, start = list[tuple[str, bool]](), threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        if threading.current_thread().name == SENDER:
            blocked = signal.SIGCONT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            started.append((thread.name, blocked))
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noting)
    hosted.start(*mirrors)
    wait_until(lambda: all(map(is_copied, mirrors)))
    assert {name for name, _ in started} >= {"kmirror-connect"}
    assert {blocked for _, blocked in started} == {True}


@pytest.fixture
def hosts() -> Iterator[tuple[LaneHosts, Processes]]:
    with closing(Processes()) as processes:
        with closing(LaneHosts(processes, 2)) as made:
            yield made, processes
        for ended in processes.ended:
            ended.exception(PATIENCE_S)


def submit(hosts: LaneHosts, mirror: Mirror, spec: LaneSpec | None = None) -> Future[LaneResult]:
    return hosts.submit(mirror.name, run_lane, spec or mirror.spec())


@pytest.mark.slow
def test_lanes_are_spread_over_processes_and_end_with_theirs(
    hosts: tuple[LaneHosts, Processes], mirrors: list[Mirror]
) -> None:
    runner, processes = hosts
    futures = [submit(runner, mirror) for mirror in mirrors]
    assert all(runner.is_waiting(mirror.name) for mirror in mirrors)
    wait_until(lambda: all(map(is_copied, mirrors)))
    assert not any(runner.is_waiting(mirror.name) for mirror in mirrors)
    assert len(processes.started) == 2
    killed, other = mirrors
    processes.started[0].kill()
    error = futures[0].exception(PATIENCE_S)
    assert isinstance(error, KmirrorError)
    assert "has ended" in str(error) or "ended with" in str(error)
    copy_more(other)
    assert not futures[1].done()
    # another process takes its place
    wait_until(lambda: len(runner._hosts) == 1)
    killed.claim(lanes={0: Incarnation(2, 0)})
    submit(runner, killed, killed.spec(generation=2))
    copy_more(killed)


def test_a_process_whose_lanes_have_ended_gets_the_next_one(
    hosts: tuple[LaneHosts, Processes], mirrors: list[Mirror]
) -> None:
    runner, processes = hosts
    first, second = mirrors
    future = submit(runner, first)
    first.claim(state=EngineState.STOPPING)
    assert future.result(PATIENCE_S).ended == "STOPPED"
    future = submit(runner, second)
    wait_until(partial(is_copied, second))
    assert len(processes.started) == 1
    assert not future.done()


@pytest.mark.slow
def test_a_frozen_process_is_killed_when_one_of_its_lanes_is_cancelled(
    hosts: tuple[LaneHosts, Processes], mirrors: list[Mirror]
) -> None:
    runner, processes = hosts
    futures = [submit(runner, mirror) for mirror in mirrors]
    wait_until(lambda: all(map(is_copied, mirrors)))
    os.kill(processes.started[0].pid, signal.SIGSTOP)
    runner.cancel(mirrors[0].name)
    assert isinstance(futures[0].exception(PATIENCE_S), KmirrorError)
    assert str(processes.ended[0].exception(PATIENCE_S)).endswith(f"ended with {-signal.SIGKILL}")
    copy_more(mirrors[1])


def test_a_lane_whose_source_does_not_answer_is_cancelled_alone(mirrors: list[Mirror]) -> None:
    stuck, other = mirrors
    with closing(Processes()) as processes:
        with closing(LaneHosts(processes, 1)) as runner, socket.create_server(("127.0.0.1", 0)) as silent:
            going = submit(runner, other)
            wait_until(partial(is_copied, other))
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            ended = submit(runner, stuck, stuck.spec(source_properties={"bootstrap.servers": address}))
            silent.settimeout(PATIENCE_S)
            connection, _ = silent.accept()
            runner.cancel(stuck.name)
            assert str(ended.exception(0)) == "it was cancelled"
            copy_more(other)
            assert not going.done()
            connection.close()
        for one in processes.ended:
            one.exception(PATIENCE_S)


@pytest.mark.slow
def test_a_process_that_freezes_before_it_starts_a_lane_is_not_waited_for(mirrors: list[Mirror]) -> None:
    ended, later = mirrors
    with closing(Processes()) as processes:
        with closing(LaneHosts(processes, 1)) as runner:
            future = submit(runner, ended)
            wait_until(partial(is_copied, ended))
            ended.claim(state=EngineState.STOPPING)
            assert future.result(PATIENCE_S).ended == "STOPPED"
            os.kill(processes.started[0].pid, signal.SIGSTOP)
            future = submit(runner, later)
            assert not runner.is_waiting(later.name)
            runner.cancel(later.name)
            assert isinstance(future.exception(PATIENCE_S), KmirrorError)
            wait_until(lambda: not runner._hosts)
            submit(runner, later)
            wait_until(partial(is_copied, later))
        for one in processes.ended:
            one.exception(PATIENCE_S)


def test_a_stranger_who_says_nothing_keeps_no_host_waiting(
    hosts: tuple[LaneHosts, Processes], mirrors: list[Mirror]
) -> None:
    runner, _ = hosts
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(runner._listener.spec(0).address)
        submit(runner, mirrors[0])
        wait_until(partial(is_copied, mirrors[0]))


def test_a_listener_without_a_free_file_for_a_moment_lets_a_host_in_later(
    hosts: tuple[LaneHosts, Processes], mirrors: list[Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, processes = hosts
    accept, failed = runner._listener.accept, list[OSError]()

    def accept_later() -> socket.socket:
        if not failed:
            failed.append(OSError(errno.EMFILE, "too many open files"))
            raise failed[0]
        return accept()

    with socket.socket(socket.AF_UNIX) as stranger:
        monkeypatch.setattr(runner._listener, "accept", accept_later)
        stranger.connect(runner._listener.spec(0).address)  # ends the call that waits
        wait_until(lambda: failed)
    submit(runner, mirrors[0])
    wait_until(partial(is_copied, mirrors[0]))
    assert len(processes.started) == 1


def test_a_process_that_is_continued_after_it_was_stopped_ends(
    hosts: tuple[LaneHosts, Processes], mirrors: list[Mirror]
) -> None:
    runner, processes = hosts
    future = submit(runner, mirrors[0])
    wait_until(partial(is_copied, mirrors[0]))
    os.kill(processes.started[0].pid, signal.SIGSTOP)
    os.kill(processes.started[0].pid, signal.SIGCONT)
    assert isinstance(future.exception(PATIENCE_S), KmirrorError)
    assert str(processes.ended[0].exception(PATIENCE_S)).endswith(f"ended with {int(signal.SIGCONT)}")
