"""An engine between two real clusters whose lanes do not run: the test writes their reports."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.job_pool import Pools
from kmirror.engine.driver.mirror import MirrorEngine
from kmirror.engine.driver.state_tail import StateTail
from kmirror.engine.spec import LaneResult, LaneSpec
from kmirror.errors import Reason, RefusedError
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.lease import Lease
from kmirror.state.records import Incarnation, PartitionRecord, PartitionState, ProgressRecord, ProgressRow
from kmirror.state.snapshot import Changes
from kmirror.work import Watch
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import make_topic, new_mirror, produce
from tests.support.waiting import PATIENCE_S

ALIGNING, MIRRORING, PAUSED = PartitionState.LOG_ALIGNMENT, PartitionState.MIRRORING, PartitionState.PAUSED
FIVE = ["a", "bb", "ccc", "dddd", "eeeee"]


class NoRebuilder:
    """Rebuild nothing."""

    def begin(self, topic: str, reason: Reason, *, consented: bool) -> None:
        raise RefusedError(f"{topic} is not rebuilt here")

    def carry_out(self, topic: str, watch: Watch) -> None:
        raise RefusedError(f"{topic} is not rebuilt here")


class IdleLanes:
    """Take lanes, and run none of them."""

    def __init__(self) -> None:
        self.specs: list[LaneSpec] = []
        self._running: list[tuple[LaneSpec, Future[LaneResult]]] = []

    def submit(
        self, name: str, function: Callable[[LaneSpec, int], LaneResult], argument: LaneSpec, place: object = None
    ) -> Future[LaneResult]:
        future: Future[LaneResult] = Future()
        self.specs.append(argument)
        self._running.append((argument, future))
        return future

    def cancel(self, name: str) -> None:
        raise AssertionError(f"{name} was cancelled")

    def is_waiting(self, name: str) -> bool:
        return False

    def end(self) -> None:
        """Let those that run end cleanly."""
        for spec, future in self._running:
            future.set_result(LaneResult(spec.lane, spec.generation, 0, "STOPPED", "asked to", clean=True))
        self._running.clear()


class Run:
    """One engine in charge, from its start to its end."""

    def __init__(self, destination: Destination, mirror: str) -> None:
        self._destination, self._mirror = destination, mirror
        self.lanes = IdleLanes()
        self._pools, self._tail = Pools(), StateTail()
        identity = EngineIdentity.of_this_process("app", "local[1]")
        self._lease = Lease.acquire(destination.store, mirror, identity, 5_000)
        state = destination.state()
        self.engine = MirrorEngine(
            mirror, state, self._lease, destination.properties, self.lanes, "eve@ops", NoRebuilder()
        )

    def __enter__(self) -> Run:
        self.engine.start(self._pools, self._tail)
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()
        self.lanes.end()
        deadline = time.monotonic() + PATIENCE_S
        while not self.engine.finished:
            assert time.monotonic() < deadline
            self.engine.tick()
            self._pools.tick()
        self.engine.leave()
        self.engine.close()
        self._tail.close()
        self._pools.close()

    def until(self, condition: Callable[[], bool], *, lanes_end: bool = False) -> None:
        """Let the engine work until something holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, (self.engine.journal.notes, self.engine.partitions.rows)
            if lanes_end:
                self.lanes.end()
            self._pools.tick()
            self.engine.tick()
            time.sleep(0.02)

    def report(self, *rows: ProgressRow, fills_by_transactions: bool = False) -> None:
        """Report as the lane that was started last, and wait until the engine has received it."""
        self.say(*rows, fills_by_transactions=fills_by_transactions)
        heard = {TopicPartition(row.topic, row.partition): row for row in rows}
        self.until(lambda: all(self.engine.partitions.rows.get(place) == row for place, row in heard.items()))

    def say(self, *rows: ProgressRow, fills_by_transactions: bool) -> None:
        """Report as the lane that was started last."""
        spec = self.lanes.specs[-1]
        record = ProgressRecord(
            self._mirror, spec.lane, spec.lease_id, spec.generation, 0, "h", 1, now_ms(), rows, fills_by_transactions
        )
        change(self._destination, self._mirror, lambda _: Changes((record,)))

    def stored(self, topic: str, partition: int = 0) -> PartitionRecord:
        """Return what is stored of a partition after the engine's next heartbeat."""
        self.heartbeat()
        found = self._destination.state().partition(self._mirror, topic, partition)
        assert found is not None
        return found

    def begins(self) -> dict[tuple[str, int], tuple[int, bool]]:
        """Return where the lane that was started last must begin: first offset and `begun`."""
        reported = self.lanes.specs[-1].assignments if self.lanes.specs else ()
        return {(a.topic, a.partition): (a.first_offset, a.begun) for a in reported}

    def incarnations(self) -> dict[int, Incarnation]:
        """Return which lanes may write, by the next heartbeat."""
        self.heartbeat()
        return dict(self._lease.record.lanes)

    def is_caught_up(self) -> bool:
        """Return what `run --until-caught-up` checks."""
        return self.engine.caught_up

    def forget_the_source(self) -> None:
        """Pretend that the source has not answered yet; it will soon."""
        self.engine.partitions.targets = None

    def heartbeat(self) -> None:
        """Let the engine work until its next heartbeat is written."""
        before = self._lease.record.last_seen_ms
        self.until(lambda: self._lease.record.last_seen_ms > before)


def row(
    topic: str,
    state: PartitionState,
    destination_offset: int,
    *,
    source_log_start: int = 0,
    begun: bool = False,
    aligned_to: int | None = None,
) -> ProgressRow:
    return ProgressRow(
        topic, 0, 5, 5, source_log_start, destination_offset, None, state, begun=begun, aligned_to=aligned_to
    )


@pytest.fixture
def mirror(cluster_pair: ClusterPair, destination: Destination) -> str:
    return new_mirror(destination, cluster_pair.source, copy_lanes="1", refresh_interval_seconds="1")


@pytest.fixture
def topic(cluster_pair: ClusterPair) -> str:
    """Return a source topic of one partition with five records."""
    name = unique_topic()
    make_topic(cluster_pair.source, name)
    produce(cluster_pair.source, name, FIVE)
    return name
