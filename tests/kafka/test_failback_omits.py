"""Topics that a failback or a switchover of a whole mirror omits, on real brokers.

Once, they took topics that `kmirror remove` had made independent: what the old source had of its own was deleted. And a
topic that its owner had deleted held up all the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import pytest
from confluent_kafka.admin import AdminClient

from kmirror.errors import ExitCode, RefusedError
from kmirror.ops.add.add import add
from kmirror.ops.failback.failback import failback
from kmirror.ops.failback.plan import FailbackRequest, Strategy
from kmirror.ops.failback.switchover import SwitchoverRequest, switchover
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover, remove
from tests.support.clusters import unique_topic
from tests.support.groups import member
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import produce, properties_of, selector
from tests.support.round_trip import Trip, archives_of, make_old_topic
from tests.support.visible import shown
from tests.support.waiting import wait_until


def values(trip: Trip, topic: str) -> list[bytes | None]:
    """Return what A has in it."""
    return [record.value for record in shown(trip.a, topic)]


def made_independent(trip: Trip, removed: str, *others: str) -> str | None:
    """Mirror topics to B, remove one there, and write to it on both sides; return its id on A."""
    for topic in (removed, *others):
        make_old_topic(trip.a, topic)
        produce(trip.a, topic, ["common"])
    assert add(trip.at_b, trip.mirror, selector(removed, *others)).exit_code == 0
    trip.copy_to_b()
    assert remove(trip.at_b, trip.mirror, selector(removed)).result.exit_code == 0
    produce(trip.a, removed, ["of A", "of A as well"])
    produce(trip.b, removed, ["of B"])
    return trip.at_a.client.metadata([removed]).topics[removed].printed_topic_id


def assert_untouched(trip: Trip, removed: str, topic_id: str | None) -> None:
    assert trip.at_a.client.metadata([removed]).topics[removed].printed_topic_id == topic_id
    assert trip.at_a.state().topic(trip.mirror, removed) is None
    produce(trip.a, removed, ["still writable"])
    assert values(trip, removed) == [b"common", b"of A", b"of A as well", b"still writable"]


@pytest.mark.slow
def test_a_failback_omits_a_removed_topic_unless_it_is_named(trip: Trip) -> None:
    removed, failed_over = unique_topic(), unique_topic()
    topic_id = made_independent(trip, removed, failed_over)
    assert failover(trip.at_b, trip.mirror).result.exit_code == 0
    produce(trip.a, failed_over, ["lost"])
    drill = trip.back(strategy=Strategy.RECREATE, dry_run=True)
    # a pattern does not name it
    done = trip.back(".*", strategy=Strategy.RECREATE)
    for one in (drill, done):
        assert one.result.exit_code == 0, one.result
        assert {row.topic for row in one.result.results} == {failed_over}
        (warning,) = [warning for warning in one.result.warnings if removed in warning]
        assert "`kmirror remove`" in warning
    assert list(archives_of(done)) == [failed_over]
    assert_untouched(trip, removed, topic_id)
    with pytest.raises(RefusedError, match="nothing is left to fail back"):
        trip.back(f"{removed}.*")
    # its name is the decision to take it
    named = trip.back(removed, strategy=Strategy.RECREATE)
    assert named.result.exit_code == 0, named.result
    assert archives_of(named)[removed]["records"] == 3


@pytest.mark.slow
def test_a_switchover_omits_a_removed_topic_even_if_it_is_in_use(trip: Trip) -> None:
    removed, other = unique_topic(), unique_topic()
    topic_id = made_independent(trip, removed, other)
    request = SwitchoverRequest(trip.mirror, properties_of(trip.b), timeout_ms=120_000, idle_ms=0, watch_s=0.1)
    with LocalEngine(trip.at_b, trip.mirror) as engine, member(trip.a, unique_topic("g"), removed):
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_b, trip.mirror, selector(other))))
        drill = switchover(trip.at_b, request, dry_run=True).result
        done = switchover(trip.at_b, request).result
    for one in (drill, done):
        assert one.exit_code == 0, one
        assert {row.topic for row in one.results} == {other}
        assert [warning for warning in one.warnings if removed in warning and "`kmirror remove`" in warning]
    assert_untouched(trip, removed, topic_id)
    assert [topic.topic for topic in trip.at_a.state().topics(trip.mirror)] == [other]


def test_a_topic_that_was_removed_in_the_other_direction_is_omitted_as_well(trip: Trip) -> None:
    removed, other = unique_topic(), unique_topic()
    trip.go(removed, other)
    assert trip.back().result.exit_code == 0
    assert remove(trip.at_a, trip.mirror, selector(removed)).result.exit_code == 0
    produce(trip.a, removed, ["of A"])
    request = SwitchoverRequest(trip.mirror, properties_of(trip.b), watch_s=0.1)
    for one in (trip.back().result, switchover(trip.at_b, request, dry_run=True).result):
        assert {row.topic for row in one.results} == {other}, one
        assert [warning for warning in one.warnings if removed in warning and "`kmirror remove`" in warning]
    # copied to B again, it is no longer on its own
    assert remove(trip.at_a, trip.mirror, selector(other)).result.exit_code == 0
    to_b = FailbackRequest(trip.mirror, properties_of(trip.a), selector(removed), Strategy.RECREATE, watch_s=0.1)
    assert failback(trip.at_b, to_b).result.exit_code == 0
    assert failover(trip.at_b, trip.mirror).result.exit_code == 0
    assert {row.topic for row in trip.back().result.results} == {removed}


def delete_on_b(trip: Trip, topic: str) -> None:
    admin = AdminClient(properties_of(trip.b))
    admin.delete_topics([topic])[topic].result(30)
    wait_until(lambda: bool(trip.at_b.client.metadata([topic]).topics[topic].error_code))


@pytest.mark.slow
def test_a_topic_that_its_owner_has_deleted_does_not_hold_up_the_others(trip: Trip) -> None:
    deleted, other = unique_topic(), unique_topic()
    trip.go(deleted, other)
    delete_on_b(trip, deleted)
    request = SwitchoverRequest(trip.mirror, properties_of(trip.b), watch_s=0.1)
    for one in (trip.back(dry_run=True).result, switchover(trip.at_b, request, dry_run=True).result):
        assert [warning for warning in one.warnings if f"{deleted}: omitted, because" in warning], one
    named = replace(request, topics=selector(deleted, other))
    absent = f"{deleted}: the new primary has no such topic"
    with pytest.raises(RefusedError, match=absent):
        trip.back(deleted, other)
    with pytest.raises(RefusedError, match=absent):
        switchover(trip.at_b, named)
    lines: list[str] = []
    done = switchover(trip.at_b, request, lambda view: lines.extend(view.lines)).result
    assert done.exit_code == 0, done
    assert [line for line in lines if "start clients of 1 topic here" in line], lines
    assert [line for line in lines if f"not known whether {deleted} can be written here" in line], lines
    assert [topic.topic for topic in trip.at_a.state().topics(trip.mirror)] == [other]
    assert {row.topic for row in trip.back().result.results} == {other}


def test_a_switchover_whose_way_back_needs_a_decision_does_not_say_that_waiting_helps(trip: Trip) -> None:
    topic = unique_topic()
    trip.go(topic)
    request = SwitchoverRequest(trip.mirror, properties_of(trip.b), watch_s=0.1)
    with pytest.MonkeyPatch.context() as patched:

        def refuse(*_: object) -> NoReturn:
            raise RefusedError("too few replicas", "add brokers")

        patched.setattr("kmirror.ops.failback.failback.make_plan", refuse)
        assert switchover(trip.at_b, request).result.exit_code == ExitCode.PARTLY_DONE
    assert switchover(trip.at_b, request).result.exit_code == 0
