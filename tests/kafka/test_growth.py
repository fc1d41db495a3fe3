"""A source topic that gets more partitions while it is mirrored: what no lane copies is lag, and never left behind.

Each verb is tried on such a topic at each moment: before its engine knows, while the destination refuses to add the
partitions, when they exist but are not copied, when they are copied in part, and in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

import kmirror
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.driver import Ending
from kmirror.errors import ExitCode, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import change, require_mirror
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.check.check import check
from kmirror.ops.failback.plan import Strategy
from kmirror.ops.failback.switchover import SwitchoverRequest, switchover
from kmirror.ops.run.outcome import outcome
from kmirror.ops.show.describe import describe
from kmirror.ops.show.listing import list_mirrors
from kmirror.ops.show.wait import Condition, wait
from kmirror.ops.stop.failover import failover, remove
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.ops.stop.report import VerbReport
from kmirror.ops.verify.verify import VerifyRequest, verify
from kmirror.state.records import PartitionState
from kmirror.state.snapshot import Changes, State
from kmirror.status.topic_state import TopicState
from kmirror.web.report_facts import report_facts
from tests.support.archiving import assert_holds
from tests.support.clusters import unique_topic
from tests.support.groups import commit, committed
from tests.support.growing import (
    PARTITIONS,
    VALUES,
    Moment,
    ends_of,
    grow,
    grow_and_fill,
    grown,
    partitions_refused,
    writing,
)
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, produce, properties_of, selector
from tests.support.promoting import until_said
from tests.support.round_trip import Trip, archives_of
from tests.support.visible import assert_mirrored, shown
from tests.support.waiting import wait_until


def moments(*quick: Moment) -> list[object]:
    """Return all moments; those that are not among the quick ones are slow."""
    return [pytest.param(one, marks=() if one in quick else pytest.mark.slow, id=one.name) for one in Moment]


def lacking(trip: Trip, topic: str) -> dict[int, int]:
    """Return by partition how many records the destination lacks."""
    here = ends_of(trip.b, topic)
    return {partition: end - here.get(partition, 0) for partition, end in ends_of(trip.a, topic).items()}


@pytest.mark.slow
@pytest.mark.parametrize("moment", moments(Moment.UNSEEN, Moment.REFUSED))
def test_what_no_lane_copies_is_lag(trip: Trip, moment: Moment) -> None:
    with grown(trip, moment) as topic:
        library = kmirror.Client(trip.b.bootstrap_servers)
        done = wait(trip.at_b, trip.mirror, Condition.CAUGHT_UP, 1)
        rows = {row.partition: row for row in describe(trip.at_b, trip.mirror)}
        assert rows.keys() == set(range(PARTITIONS))
        if moment is Moment.PARTLY:
            assert all(row.source_offset == 100 for row in rows.values())
        else:
            known = {partition: row.lag for partition, row in rows.items()}
            assert known == lacking(trip, topic)
            (listed,) = (row for row in list_mirrors(trip.at_b) if row.mirror == trip.mirror)
            assert listed.max_lag == max(lacking(trip, topic).values())
            assert report_facts(trip.at_b, trip.mirror).status.row.max_lag == listed.max_lag
            assert {row.partition: row.lag for row in library.describe(trip.mirror)} == known
        outcome = verify(trip.at_b, VerifyRequest(trip.mirror))
        assert {row.partition for row in outcome.rows} == rows.keys()
        assert {row.result for row in outcome.rows} == {Outcome.DONE}
        if moment is Moment.COPIED:
            assert wait(trip.at_b, trip.mirror, Condition.CAUGHT_UP, 120_000).exit_code == 0
            assert wait(trip.at_b, trip.mirror, Condition.HEALTHY, 120_000).exit_code == 0
            assert sum(row.records for row in outcome.rows) == 300
            return
        assert done.exit_code == ExitCode.TIMED_OUT
        with pytest.raises(kmirror.TimedOutError):
            library.wait(trip.mirror, "caught-up", 0.1)
        if moment is Moment.PARTLY:
            return
        assert wait(trip.at_b, trip.mirror, Condition.HEALTHY, 1).exit_code == ExitCode.TIMED_OUT
        assert {rows[partition].reason for partition in (1, 2)} == {Reason.PARTITION_MISSING}
        at_destination = {rows[partition].destination_offset for partition in (1, 2)}
        assert at_destination == ({0} if moment is Moment.CREATED else {None})
        if moment is Moment.REFUSED:
            assert "the destination: adding partitions" in str(rows[1].error_message)
            assert "THROTTLING_QUOTA_EXCEEDED (89): this client's quota of changes" in str(rows[1].error_message)
            assert {row.topic_state for row in rows.values()} == {TopicState.PENDING_MIRROR}
            sources = [
                line for line in check(trip.at_b.properties, mirror=trip.mirror).lines if line.what == "partitions"
            ]
            assert [line.cluster for line in sources] == ["source"]
            assert f"{topic}-1, {topic}-2" in sources[0].message


@pytest.mark.slow
@pytest.mark.parametrize("moment", moments(Moment.UNSEEN))
def test_a_promote_copies_everything_first(trip: Trip, moment: Moment) -> None:
    with grown(trip, moment) as topic:
        if moment is Moment.UNSEEN:
            drill = promote(trip.at_b, PromoteRequest(trip.mirror, idle_ms=0), dry_run=True).result
            assert drill.exit_code == ExitCode.TIMED_OUT
            assert f"{topic}-1, {topic}-2 are new at the source" in str(drill.results[0].message)
        if moment is Moment.REFUSED:
            request = PromoteRequest(trip.mirror, idle_ms=500, timeout_ms=120_000, verify=True)
            refused = promote(trip.at_b, request, *until_said("THROTTLING_QUOTA_EXCEEDED")).result
            assert refused.exit_code == ExitCode.TIMED_OUT
            assert "THROTTLING_QUOTA_EXCEEDED" in str(refused.results[0].message)
            assert {row.topic_state for row in describe(trip.at_b, trip.mirror)} == {TopicState.PENDING_MIRROR}
            return
        commit(trip.a, topic, topic, {1: 50, 2: 1_000})
        with writing(trip.a, topic, 2):
            busy = promote(trip.at_b, PromoteRequest(trip.mirror, idle_ms=3_000, timeout_ms=2_000)).result
        assert busy.exit_code == ExitCode.TIMED_OUT, "a producer writes to a new partition"
        done = promote(trip.at_b, PromoteRequest(trip.mirror, idle_ms=500, timeout_ms=100_000, verify=True)).result
        assert done.exit_code == 0, done
        assert {row.partition: (row.result, row.last_mirrored_offset) for row in done.results} == {
            partition: (Outcome.DONE, end) for partition, end in ends_of(trip.a, topic).items()
        }
        # offsets of groups come along, and none is past its log
        assert committed(trip.b, topic, topic) == {1: 50, 2: ends_of(trip.a, topic)[2]}
        for partition in range(PARTITIONS):
            assert_mirrored(trip.a, trip.b, topic, partition)
            record = trip.at_b.state().partition(trip.mirror, topic, partition)
            assert record is not None
            assert (record.state, record.last_mirrored_epoch) == (PartitionState.STOPPED, 0)


STOPS: dict[str, Callable[..., VerbReport]] = {
    "failover": lambda trip, **how: failover(trip.at_b, trip.mirror, **how),
    "remove": lambda trip, topic, **how: remove(trip.at_b, trip.mirror, selector(topic), **how),
}


@pytest.mark.parametrize(
    ("moment", "verb"),
    [
        pytest.param(
            moment,
            verb,
            marks=()
            if (moment, verb) in {(Moment.REFUSED, "failover"), (Moment.CREATED, "remove"), (Moment.COPIED, "failover")}
            else pytest.mark.slow,
            id=f"{moment.name}-{verb}",
        )
        for moment, verb in product(Moment, STOPS)
    ],
)
def test_a_stop_counts_what_was_not_copied_as_lost_and_nothing_else(trip: Trip, moment: Moment, verb: str) -> None:
    with grown(trip, moment) as topic:
        how = {"topic": topic} if verb == "remove" else {}
        drill = STOPS[verb](trip, **how, dry_run=True).result
        if moment is not Moment.PARTLY:
            assert {row.partition: row.lag for row in drill.results} == lacking(trip, topic)
        done = STOPS[verb](trip, **how).result
        assert done.exit_code == 0, done
        mirrored = {row.partition: row.last_mirrored_offset for row in done.results}
        lost = {partition: end - (mirrored[partition] or 0) for partition, end in ends_of(trip.a, topic).items()}
        assert {row.partition: row.lag for row in done.results} == lost
        assert done.totals is not None
        assert done.totals.known_lost_records == sum(lost.values())
        assert (done.totals.rpo_ms == 0) == (not any(lost.values()))
        if verb == "failover":
            # the marker that fences the engine, on every partition there is
            assert ends_of(trip.b, topic) == {p: (mirrored[p] or 0) + 1 for p in ends_of(trip.b, topic)}
        only_there = {row.partition for row in done.results if "exists on the source only" in str(row.message)}
        assert only_there == ({1, 2} if moment in (Moment.UNSEEN, Moment.REFUSED) else set())
        # the same again, and in a report, from what was stored
        again = STOPS[verb](trip, **how).result
        assert {row.partition: (row.result, row.lag) for row in again.results} == {
            partition: (Outcome.NOOP, lag) for partition, lag in lost.items()
        }
        assert {row.partition: row.lag for row in report_facts(trip.at_b, trip.mirror).stops} == lost
        assert {row.state for row in describe(trip.at_b, trip.mirror)} == {PartitionState.STOPPED}


@pytest.mark.parametrize("moment", moments())
def test_a_failback_brings_every_partition_back(trip: Trip, moment: Moment) -> None:
    with grown(trip, moment) as topic:
        assert failover(trip.at_b, trip.mirror).result.exit_code == 0
        lost = [record for partition in (1, 2) for record in shown(trip.a, topic, partition)]
        copied = sum(len(shown(trip.b, topic, p)) for p in (1, 2) if p in ends_of(trip.b, topic))
    done = trip.back(strategy=Strategy.RECREATE)
    assert done.result.exit_code == 0, done.result
    archived = archives_of(done).get(topic)
    assert (archived["records"] if archived else 0) == len(lost) - copied
    if moment in (Moment.UNSEEN, Moment.CREATED):
        assert_holds(trip.a, f"{topic}.kmirror-archive.1", lost[: len(VALUES)], partition=1)
    trip.copy_to_a()
    trip.assert_same(topic, len(ends_of(trip.b, topic)))


@pytest.mark.parametrize("moment", moments())
def test_a_switchover_takes_every_partition_along(trip: Trip, moment: Moment) -> None:
    with grown(trip, moment) as topic:
        timeout_ms = 4_000 if moment is Moment.REFUSED else 100_000
        request = SwitchoverRequest(trip.mirror, properties_of(trip.b), None, timeout_ms, 500, watch_s=0.1)
        done = switchover(trip.at_b, request).result
        assert done.exit_code == (ExitCode.TIMED_OUT if moment is Moment.REFUSED else 0), done
    if moment is not Moment.REFUSED:
        produce(trip.b, topic, ["from the new primary"], 2)
        trip.copy_to_a()
        trip.assert_same(topic, PARTITIONS)


def test_the_count_is_stored_before_a_record_is_copied_and_an_older_one_is_corrected(trip: Trip) -> None:
    with grown(trip, Moment.CREATED) as topic:
        assert stored_count(trip, topic) == 1
    # as an older engine leaves it: the partitions exist, and are not counted
    assert {row.reason for row in describe(trip.at_b, trip.mirror) if row.partition} == {Reason.NO_ENGINE}
    with LocalEngine(trip.at_b, trip.mirror):
        wait_until(lambda: sum(ends_of(trip.b, topic).values()) > 100)
        assert stored_count(trip, topic) == PARTITIONS
    (event,) = (one for one in trip.at_b.store.read_events(trip.mirror) if one.what == "partitions")
    assert (event.result, event.details) == ("added", {"topic": topic, "partitions": PARTITIONS})


@pytest.mark.slow
def test_a_run_has_not_caught_up_while_partitions_cannot_be_added(trip: Trip) -> None:
    topic = unique_topic()
    make_topic(trip.a, topic, retention_ms="-1")
    assert add(trip.at_b, trip.mirror, selector(topic)).exit_code == 0
    grow_and_fill(trip.a, topic, 2, VALUES)
    with partitions_refused(trip.b), LocalEngine(trip.at_b, trip.mirror) as engine:
        wait_until(lambda: engine.engine.source.lacking)
        wait_until(lambda: engine.engine.partitions.reached(TopicPartition(topic, 0)))
        assert not engine.engine.caught_up
        request = RunRequest((trip.mirror,), until_caught_up=True)
        (own, added) = outcome(request, engine.engines, Ending.TIMED_OUT, {}).results
    assert own.result is Outcome.DONE
    assert (added.result, added.reason, added.lag) == (Outcome.TIMED_OUT, Reason.PARTITION_MISSING, 100)
    assert "THROTTLING_QUOTA_EXCEEDED" in str(added.message)


def stored_count(trip: Trip, topic: str) -> int:
    """Return how many partitions are counted in a topic's record."""
    record = trip.at_b.state().topic(trip.mirror, topic)
    assert record is not None
    return record.partitions


def forget_source(trip: Trip) -> None:
    """Have the mirror name an address where nothing answers."""

    def decide(state: State) -> Changes:
        record = require_mirror(state, trip.mirror)
        return Changes((replace(record, source={"bootstrap.servers": "127.0.0.1:1"}),))

    change(trip.at_b, trip.mirror, decide)


def test_a_source_that_is_gone_leaves_an_unknown_loss(trip: Trip) -> None:
    with grown(trip, Moment.REFUSED) as topic:
        pass
    forget_source(trip)
    lost = failover(trip.at_b, trip.mirror).result
    assert lost.totals is not None
    assert (lost.totals.known_lost_records, lost.totals.partitions_unknown) == (0, 2)
    assert [f"{topic}-{row.partition}" in str(row.message) for row in lost.results] == [True] * PARTITIONS
    assert "the number of its offsets is unknown" in str(lost.results[1].message)


@pytest.mark.slow
def test_partitions_that_only_the_destination_has_are_reported(trip: Trip) -> None:
    with grown(trip, Moment.COPIED) as topic:
        grow(trip.b, topic, PARTITIONS + 1)
        (extra,) = (row for row in describe(trip.at_b, trip.mirror) if row.partition == PARTITIONS)
        assert "the source has no such partition" in str(extra.error_message)
        assert extra.reason is Reason.PARTITIONS_DECREASED
        told = [line for line in check(trip.at_b.properties, mirror=trip.mirror).lines if line.what == "partitions"]
        assert [(line.cluster, line.ok) for line in told] == [("destination", True)]
        assert f"{topic}-{PARTITIONS}" in told[0].message
        assert wait(trip.at_b, trip.mirror, Condition.CAUGHT_UP, 120_000).exit_code == 0
        assert wait(trip.at_b, trip.mirror, Condition.HEALTHY, 120_000).exit_code == 0
        drill = promote(trip.at_b, PromoteRequest(trip.mirror, idle_ms=500), dry_run=True).result
        assert drill.exit_code == 0
        assert f"{topic}-{PARTITIONS} exists on the destination only: nothing was copied to it" in drill.warnings
        done = promote(trip.at_b, PromoteRequest(trip.mirror, idle_ms=500, timeout_ms=120_000)).result
        assert done.exit_code == 0
        assert {row.partition: row.lag for row in done.results} == dict.fromkeys(range(PARTITIONS + 1), 0)
