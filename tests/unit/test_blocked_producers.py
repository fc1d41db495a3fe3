"""When producers are blocked for a move, what is reported of how long, and what `check` finds left behind."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from kmirror.cluster.protocol.acl_binding import AclBinding
from kmirror.errors import KmirrorError
from kmirror.ops.base.blocked_producers import BlockedTopic, Denial, blocked_sentences, blocked_topics
from kmirror.ops.base.context import now_ms
from kmirror.ops.check.blocked import blocked_views
from kmirror.ops.stop.promote_readiness import Goal, Missing, Readiness, not_ready_until_blocked, topics_to_block
from kmirror.state.records import PENDING_PROMOTE, DesiredState, TopicOrigin, TopicRecord
from kmirror.state.rights_records import RightsRecord
from kmirror.state.snapshot import State
from kmirror.state.workflow_records import PROMOTE, WorkflowRecord
from kmirror.sync.acl_changes import denial

STOPPED = TopicRecord("m", "t", "t", None, None, DesiredState.STOPPED, 1, TopicOrigin.CREATED)
WAITING = TopicRecord("m", "t", "t", None, None, DesiredState.ACTIVE, 1, TopicOrigin.CREATED, PENDING_PROMOTE)
BLOCKED = RightsRecord("m", "t", blocked=(denial("t", "User:*"),), blocked_ms=1_000)


def test_a_copy_is_close_once_it_reaches_the_sources_end_within_seconds() -> None:
    goal = Goal(100, 0.0)
    assert not goal.is_close(50, 1.0, 110)
    assert not goal.is_close(100, 20.0, 300)  # 20 s for 100 records: the rest would take longer
    assert not goal.is_close(200, 21.0, 310)
    assert goal.is_close(300, 22.0, 400)
    assert goal.is_close(350, 26.0, 500)
    assert not goal.is_close(390, 28.0, 600)  # it has fallen behind again
    assert Goal(0, 0.0).is_close(0, 0.0, 0)


def readiness(**close: bool) -> Readiness:
    return Readiness({name: Missing(name, 0, None, is_close=is_close) for name, is_close in close.items()})


def test_topics_are_blocked_when_they_are_close_and_together_when_all_are() -> None:
    assert topics_to_block(readiness(a=True, b=False), (), together=False) == ["a"]
    assert topics_to_block(readiness(a=True, b=False), ["a"], together=False) == []
    assert topics_to_block(readiness(a=True, b=False), (), together=True) == []
    assert topics_to_block(readiness(a=True, b=True), ["a"], together=True) == ["b"]


def test_no_topic_is_ready_before_its_producers_are_blocked() -> None:
    found = not_ready_until_blocked(readiness(a=True, b=True), ["a"])
    assert found.missing["a"].what is None
    assert "they are blocked once" in str(found.missing["b"].what)


def test_how_long_writes_were_refused_is_reported_only_where_it_is_known() -> None:
    since = {"cut": 1_000, "dead": 1_000, "given": 1_000, "left": 3_000, "theirs": None}
    rows = blocked_topics(since, {"given": 4_000}, {"cut": 3_500, "theirs": 3_500}, ["cut", "dead", "theirs"])
    assert rows == (
        BlockedTopic(topic="cut", denial=Denial.KEPT, since_ms=1_000, until_ms=3_500),
        BlockedTopic(topic="dead", denial=Denial.KEPT, since_ms=1_000, until_ms=None),
        BlockedTopic(topic="given", denial=Denial.LIFTED, since_ms=1_000, until_ms=4_000),
        BlockedTopic(topic="left", denial=Denial.LEFT, since_ms=3_000, until_ms=None),
        BlockedTopic(topic="theirs", denial=Denial.KEPT, since_ms=None, until_ms=3_500),
    )
    assert [row.duration_ms for row in rows] == [2_500, None, 3_000, None, None]
    kept, lifted, left = blocked_sentences(rows, "kafka-acls …")
    assert "took writes: at most 2.5 s where it is known, unknown for dead, theirs." in kept
    assert lifted == "producers may write to given at the source again"
    assert left.startswith("the source still refuses writes to left, since 1970-01-01T00:00:03Z: run the same command")
    (only,) = blocked_sentences(rows[1:2], "kafka-acls …")
    assert "took writes: unknown." in only


@pytest.mark.parametrize(
    ("topic", "seen_ms_ago", "is_wanted", "word"),
    [
        (STOPPED, None, True, "which moved away from it"),
        (WAITING, 0, True, "while a promote waits"),
        (WAITING, 60_000, False, "left behind by a promote that was killed"),
        (WAITING, None, False, "left behind by a promote that was killed"),
    ],
)
def test_check_distinguishes_wanted_denials_from_those_left_behind(
    topic: TopicRecord, seen_ms_ago: int | None, is_wanted: bool, word: str
) -> None:
    alive = () if seen_ms_ago is None else (WorkflowRecord("m", PROMOTE, "WAITING", "x", 0, now_ms() - seen_ms_ago),)
    state = State.of([topic, BLOCKED, *alive])
    (found,) = blocked_views(state, "m", ("--bootstrap-server", "a:1"), lambda: BLOCKED.blocked, now_ms())
    assert (found.is_wanted, word in found.message) == (is_wanted, True)
    assert blocked_views(state, "m", (), lambda: (), now_ms()) == []

    def refused() -> Collection[AclBinding]:
        raise KmirrorError("no answer")

    (found,) = blocked_views(state, "m", (), refused, now_ms())
    assert "whether it still does is unknown: no answer" in found.message
    assert blocked_views(State.of([topic]), "m", (), refused, now_ms()) == []
