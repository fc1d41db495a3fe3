"""A stop is interrupted in the middle: frozen until another command has undone it, or cut off from the destination."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import pytest

from kmirror.cluster.client import LATEST
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import ExitCode, KmirrorError, Reason, UnreachableError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover, remove
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.ops.stop.steps import StepRunner
from kmirror.state.records import DesiredState, EngineState, PartitionState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, MakeCluster, unique_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, properties_of, selector, settings_of
from tests.support.round_trip import CutOffError
from tests.support.waiting import wait_until

CLAIMED = "record which topics are stopped, and why: engines release them"
LIFTED = "lift the write protection, and probe that the topics are writable"
ENDS_RECORDED = "record where the source's records end (LMO); from here on others may write"


def mirrored(pair: ClusterPair, destination: Destination, *topics: str, **settings: str) -> str:
    """Return a new mirror of new topics of these names, with three records each."""
    mirror = new_mirror(destination, pair.source)
    for topic in topics:
        make_topic(pair.source, topic, 1, **{"retention_ms": "-1", **settings})
        produce(pair.source, topic, ["one", "two", "three"])
    assert add(destination, mirror, selector(*topics)).exit_code == 0
    return mirror


@pytest.mark.parametrize(
    ("verb", "frozen_after"),
    [("failover", CLAIMED), ("remove", CLAIMED), ("remove", ENDS_RECORDED), ("remove", LIFTED)],
    ids=["failover claimed", "remove claimed", "remove ends recorded", "remove lifted"],
)
def test_a_stop_that_was_undone_while_it_was_frozen_changes_nothing_of_the_live_mirror(
    cluster_pair: ClusterPair, destination: Destination, verb: str, frozen_after: str
) -> None:
    """Once, it fenced the engine that copies the topic again, or gave the topic the settings and rights of a stop."""
    undone, half_way = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, undone, half_way, compression_type="gzip")
    frozen = 0

    def freeze(does: str) -> None:
        nonlocal frozen
        if does != frozen_after:
            return
        frozen += 1
        with Destination.open(destination.properties) as another:
            assert remove(another, mirror, selector(undone)).result.exit_code == 0
            added = add(another, mirror, selector(undone), adopt=True)
            assert added.exit_code == 0, added
        time.sleep(1.1)  # what was seen later is taken as it was

    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        with Destination.open(destination.properties) as slow:
            done = (
                failover(slow, mirror, checkpoint=freeze)
                if verb == "failover"
                else remove(slow, mirror, selector(undone, half_way), checkpoint=freeze)
            ).result
        running = destination.state().engine(mirror)
    assert frozen == 1
    rows = {row.topic: row for row in done.results}
    assert (rows[undone].result, rows[undone].reason) == (Outcome.FAILED, Reason.FENCED), done
    assert rows[half_way].result is Outcome.DONE, done
    assert done.exit_code == ExitCode.PARTLY_DONE
    topic = destination.state().topic(mirror, undone)
    assert topic is not None
    assert (topic.desired, topic.pending_operation) == (DesiredState.ACTIVE, None)
    place = TopicPartition(undone, 0)
    assert destination.client.list_offsets({place: LATEST}, log_end=True)[place].offset == 3
    assert settings_of(cluster_pair.destination, undone)["compression.type"] == "producer"
    if verb == "remove":
        assert running is not None
        assert running.state is EngineState.RUNNING


LOST = UnreachableError("no answer", None, Reason.DESTINATION_UNREACHABLE)
REFUSED = UnreachableError("wrong password", None, Reason.AUTHENTICATION_FAILED)


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [(LOST, Outcome.TIMED_OUT, ExitCode.TIMED_OUT), (REFUSED, Outcome.FAILED, ExitCode.PARTLY_DONE)],
    ids=["for a while", "for good"],
)
@pytest.mark.parametrize("after", [CLAIMED, ENDS_RECORDED])
def test_a_failover_that_loses_the_destination_has_a_row_for_each_topic(
    cluster_pair: ClusterPair,
    destination: Destination,
    after: str,
    error: UnreachableError,
    outcome: Outcome,
    code: ExitCode,
) -> None:
    """Once, it ended as if nothing had been changed, with neither rows nor a report."""
    before, gone, left = unique_topic(), unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, before, gone, left)
    assert failover(destination, mirror, selector(before)).result.exit_code == 0
    delete_topic(cluster_pair.destination, gone)

    def lose(does: str) -> None:
        if does == after:
            raise error

    done = failover(destination, mirror, checkpoint=lose)
    assert {row.topic: row.result for row in done.result.results} == {
        before: Outcome.NOOP,
        gone: outcome if after == CLAIMED else Outcome.DONE,
        left: outcome,
    }
    assert done.result.exit_code == code, done
    assert f"{left} is not stopped yet: the destination: {error.message}" in str(done.result.to_json()["results"])
    assert done.result.totals is not None
    assert done.result.totals.rpo_ms is None
    assert len(done.evidence["partitions"]) == 3
    assert failover(destination, mirror).result.exit_code == 0


@pytest.mark.slow
def test_a_failover_whose_destination_freezes_ends_with_its_rows(
    cluster_pair: ClusterPair, mortal_cluster: SandboxCluster
) -> None:
    topic = unique_topic()
    with Destination.open(properties_of(mortal_cluster)) as destination:
        mirror = mirrored(ClusterPair(cluster_pair.source, mortal_cluster), destination, topic)

        def freeze(does: str) -> None:
            if does == ENDS_RECORDED:
                mortal_cluster.signal(1, signal.SIGSTOP)

        try:
            done = failover(destination, mirror, checkpoint=freeze).result
        finally:
            mortal_cluster.signal(1, signal.SIGCONT)
        assert [row.result for row in done.results] == [Outcome.TIMED_OUT], done
        assert done.exit_code == ExitCode.TIMED_OUT

        def is_back() -> bool:
            with suppress(KmirrorError):
                return failover(destination, mirror).result.exit_code == 0
            return False

        wait_until(is_back)


def test_a_promote_finishes_a_stop_that_had_begun_without_its_source(
    make_cluster: MakeCluster, cluster_pair: ClusterPair, destination: Destination
) -> None:
    """Once, it ended with exit code 6, and the topic was neither mirrored nor writable."""
    topic, source = unique_topic(), make_cluster("a")
    mirror = mirrored(ClusterPair(source, cluster_pair.destination), destination, topic)

    def cut(does: str) -> None:
        if does == CLAIMED:
            raise CutOffError

    request = PromoteRequest(mirror, idle_ms=None, timeout_ms=120_000)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(destination, mirror)))
        with pytest.raises(CutOffError):
            promote(destination, request, runner=StepRunner(cut))
    source.kill(1)
    done = promote(destination, request).result
    assert (done.exit_code, {row.result for row in done.results}) == (ExitCode.TIMED_OUT, {Outcome.TIMED_OUT}), done
    assert "not checked after the stop" in str(done.results[0].message)
    (row,) = describe(destination, mirror)
    assert (row.state, row.last_mirrored_offset) == (PartitionState.STOPPED, 3)
