"""Which engines count for verbs: those whose heartbeats are seen, whatever clocks say.

A dead engine whose clock was hours ahead blocked both for hours; a live one whose clock was behind did not.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing

import pytest

from kmirror.errors import ExitCode, RefusedError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.ops.failback.plan import mirror_for
from kmirror.ops.mirrors.delete import delete
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.lease import Lease
from kmirror.state.records import EngineRecord, EngineState, MirrorRecord
from kmirror.state.snapshot import Changes
from kmirror.state.store import StateStore
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.mirrors import make_topic, new_mirror, selector

HOURS_MS = 3 * 3_600_000


def record_engine(destination: Destination, mirror: str, seen_ms: int) -> None:
    who = "far-away", "another-boot", 7, 7, None, None
    died = EngineRecord(mirror, "its-lease", EngineState.RUNNING, *who, seen_ms, seen_ms, 3_000)
    change(destination, mirror, lambda _: Changes((died,)))


def renewed(destination: Destination, mirror: str) -> MirrorRecord:
    state = destination.state()
    return mirror_for(destination, state, mirror, {"bootstrap.servers": "new:9092"}, {}, "another-cluster")


@pytest.mark.slow
def test_a_dead_engine_whose_clock_was_ahead_blocks_nothing(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    mirror = new_mirror(destination, cluster_pair.source)
    record_engine(destination, mirror, now_ms() + HOURS_MS)
    assert renewed(destination, mirror).source_cluster_id == "another-cluster"
    assert delete(destination, mirror, dry_run=True).exit_code == ExitCode.OK
    assert delete(destination, mirror).exit_code == ExitCode.OK
    assert destination.state().engine(mirror) is None


def test_a_promotes_dry_run_says_that_a_dead_engine_copies_nothing(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    mirror, topic = new_mirror(destination, cluster_pair.source), unique_topic()
    make_topic(cluster_pair.source, topic)
    assert add(destination, mirror, selector(topic)).exit_code == ExitCode.OK
    record_engine(destination, mirror, now_ms() + HOURS_MS)
    planned = promote(destination, PromoteRequest(mirror), dry_run=True).result
    assert "no engine is in charge: promote would run one itself" in planned.warnings


def test_one_that_was_seen_a_moment_ago_may_be_alive(cluster_pair: ClusterPair, destination: Destination) -> None:
    mirror = new_mirror(destination, cluster_pair.source)
    record_engine(destination, mirror, now_ms())
    with pytest.raises(RefusedError, match="process 7 on far-away"):
        delete(destination, mirror)
    record_engine(destination, mirror, now_ms() - 60_000)
    assert delete(destination, mirror).exit_code == ExitCode.OK


def test_an_engine_that_sends_heartbeats_is_in_charge_although_its_clock_is_behind(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is this test, which sends them."""
    mirror = new_mirror(destination, cluster_pair.source)
    monkeypatch.setattr("kmirror.state.lease.now_ms", lambda: now_ms() - HOURS_MS)
    with closing(StateStore(destination.config)) as store, ThreadPoolExecutor(1) as operator:
        lease = Lease.acquire(store, mirror, EngineIdentity.of_this_process())
        for verb in (delete, renewed):
            done = operator.submit(verb, destination, mirror)
            while wait([done], 0.5).not_done:
                lease.heartbeat({})
            with pytest.raises(RefusedError, match=r"an engine (is in charge|runs)"):
                done.result()
        lease.release()
    assert delete(destination, mirror).exit_code == ExitCode.OK
