"""A source topic that gets more partitions while it is mirrored: what nobody copies is lag, and never left behind."""

from __future__ import annotations

import threading

from kmirror.errors import ExitCode
from kmirror.ops.add.add import add
from kmirror.ops.context import Destination
from kmirror.ops.results import Outcome
from kmirror.ops.show.describe import describe
from kmirror.ops.show.listing import list_mirrors
from kmirror.ops.show.tables import TopicState
from kmirror.ops.show.wait import Condition, wait
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import PromoteRequest, promote
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.growing import ends_of, grow, grow_and_fill, partitions_refused
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, selector
from tests.support.waiting import wait_until

VALUES = [f"value {number}" for number in range(100)]


def mirrored(pair: ClusterPair, destination: Destination, **settings: str) -> tuple[str, str]:
    """Return a mirror and its only topic, of one partition with a hundred records."""
    topic = unique_topic()
    make_topic(pair.source, topic, retention_ms="-1")
    produce(pair.source, topic, VALUES)
    mirror = new_mirror(destination, pair.source, **settings)
    assert add(destination, mirror, selector(topic)).exit_code == 0
    return mirror, topic


def test_partitions_added_a_moment_before_are_copied_before_a_promote_stops_their_topic(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    mirror, topic = mirrored(cluster_pair, destination, refresh_interval_seconds="3600")
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        grow_and_fill(cluster_pair.source, topic, 3, VALUES)
        assert wait(destination, mirror, Condition.CAUGHT_UP, 1).exit_code == ExitCode.TIMED_OUT
        rows = {row.partition: (row.source_offset, row.lag) for row in describe(destination, mirror)}
        assert rows == {0: (100, 0), 1: (100, 100), 2: (100, 100)}
        assert list_mirrors(destination)[0].max_lag == 100
        done = promote(destination, PromoteRequest(mirror, idle_ms=500, timeout_ms=60_000))
    assert done.result.exit_code == 0, done.result
    assert ends_of(cluster_pair.destination, topic) == {0: 100, 1: 100, 2: 100}
    assert {row.partition: row.last_mirrored_offset for row in done.result.results} == {0: 100, 1: 100, 2: 100}


def test_partitions_that_the_destination_refuses_to_add_keep_a_topic_mirrored(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    mirror, topic = mirrored(cluster_pair, destination, refresh_interval_seconds="1")
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        with partitions_refused(cluster_pair.destination):
            grow_and_fill(cluster_pair.source, topic, 2, VALUES)
            wait_until(
                lambda: any("THROTTLING_QUOTA_EXCEEDED" in str(row.error_message) for row in describe(destination))
            )
            assert wait(destination, mirror, Condition.HEALTHY, 1).exit_code == ExitCode.TIMED_OUT
            done = promote(destination, PromoteRequest(mirror, idle_ms=500, timeout_ms=3_000))
            assert done.result.exit_code == ExitCode.TIMED_OUT
            assert f"{topic}-1" in str(done.result.results[0].message)
            assert {row.topic_state for row in describe(destination, mirror)} == {TopicState.PENDING_MIRROR}
            drill = failover(destination, mirror, dry_run=True)
            (lost,) = [row for row in drill.result.results if row.partition == 1]
            assert lost.lag == 100
            assert drill.result.totals is not None
            assert drill.result.totals.known_lost_records == 100
            stopped = failover(destination, mirror)
        assert stopped.result.totals == failover(destination, mirror).result.totals or stopped.result.totals
    assert [(row.partition, row.lag) for row in failover(destination, mirror).result.results] == [(0, 0), (1, 100)]


def test_a_topic_that_grew_after_it_was_added_is_stopped_with_all_its_partitions(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    mirror, topic = mirrored(cluster_pair, destination, refresh_interval_seconds="1")
    end = threading.Event()

    def write() -> None:
        while not end.wait(0.1):
            produce(cluster_pair.source, topic, ["more"], 1)

    writer = threading.Thread(target=write)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        grow_and_fill(cluster_pair.source, topic, 3, VALUES)
        wait_until(lambda: ends_of(cluster_pair.destination, topic) == {0: 100, 1: 100, 2: 100})
        record = destination.state().topic(mirror, topic)
        assert record is not None
        assert record.partitions == 3
        drill = failover(destination, mirror, dry_run=True)
        assert drill.result.totals is not None
        assert drill.result.totals.known_lost_records == 0
        writer.start()
        try:
            busy = promote(destination, PromoteRequest(mirror, idle_ms=2_000, timeout_ms=5_000))
        finally:
            end.set()
            writer.join()
        assert busy.result.exit_code == ExitCode.TIMED_OUT
        done = promote(destination, PromoteRequest(mirror, idle_ms=500, timeout_ms=60_000))
    assert done.result.exit_code == 0
    ends = ends_of(cluster_pair.source, topic)
    assert {row.partition: (row.result, row.last_mirrored_offset) for row in done.result.results} == {
        partition: (Outcome.DONE, end) for partition, end in ends.items()
    }


def test_partitions_that_only_the_destination_has_are_told(cluster_pair: ClusterPair, destination: Destination) -> None:
    mirror, topic = mirrored(cluster_pair, destination, refresh_interval_seconds="1")
    grow(cluster_pair.destination, topic, 2)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        extra = [row for row in describe(destination, mirror) if row.partition == 1]
        assert "the source has no such partition" in str(extra[0].error_message)
        assert wait(destination, mirror, Condition.CAUGHT_UP, 20_000).exit_code == 0
        drill = promote(destination, PromoteRequest(mirror, idle_ms=500), dry_run=True)
        assert any(f"{topic}-1" in warning for warning in drill.result.warnings)
        done = promote(destination, PromoteRequest(mirror, idle_ms=500, timeout_ms=60_000))
        assert done.result.exit_code == 0
