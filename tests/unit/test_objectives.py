"""Objectives: how they are written, which one counts, what breaches one, why, and what events tell of it."""

from __future__ import annotations

from typing import Any

import pytest

from kmirror.columns import TEXT, Column, Table
from kmirror.engine.status.journal import MirrorJournal
from kmirror.engine.status.objective_watch import LOOK_SECONDS, ObjectiveWatch
from kmirror.errors import Reason, UsageError
from kmirror.settings.objectives import Objectives
from kmirror.state.event_records import Event
from kmirror.state.records import PartitionState
from kmirror.status.objective import BreachCause, breaches_of, cause_of
from kmirror.status.objective_state import ObjectiveState, objective_state
from kmirror.status.partition_row import PartitionRow
from kmirror.status.topic_status import TOPICS, TopicStatus
from tests.support.statuses import partition_row

KEY = "objective.rpo"


def test_the_first_pattern_that_matches_the_whole_name_counts() -> None:
    given = Objectives.parse(KEY, "payments-.*=30s, a{1,2}=1m , p.x=2h, .*-x=500ms,")
    assert str(given) == "payments-.*=30s, a{1,2}=1m, p.x=2h, .*-x=500ms"
    assert Objectives.parse(KEY, str(given)) == given
    found = {topic: given.of(topic) for topic in ("payments-x", "xpayments-1", "aa", "p.x", "pyx", "b-x", "b")}
    assert found == {
        "payments-x": 30_000,
        "xpayments-1": None,
        "aa": 60_000,
        "p.x": 7_200_000,
        "pyx": None,
        "b-x": 500,
        "b": None,
    }
    assert Objectives.parse(KEY, " ") == Objectives()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orders", "objective.rpo: 'orders' is not an objective"),
        ("a=1s, =2s", "objective.rpo: '=2s' is not an objective"),
        ("a=", "objective.rpo: a is empty"),
        ("a=soon", "objective.rpo: a: 'soon' is not a duration"),
        ("a=-5s", "objective.rpo: a: -5s is negative"),
        ("a=0s", "objective.rpo: a: the objective is zero"),
        ("(=1s", "objective.rpo: the pattern ( is not understood at character 1: a bracket is not closed"),
        ("(?=x)=1s", "objective.rpo: the pattern (?=x) is not understood at character 1: look-around is not supported"),
    ],
)
def test_what_is_no_objective_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Objectives.parse(KEY, text)
    assert refused.value.message == message


def test_what_is_unknown_is_never_within() -> None:
    found = [objective_state(limit, lag) for limit, lag in ((None, 5), (5, None), (5, 0), (5, 5), (5, 6))]
    assert found == [None, *map(ObjectiveState, ("UNKNOWN", "WITHIN", "WITHIN", "BREACHED"))]


def behind(**more: Any) -> PartitionRow:
    return partition_row(**{"lag": 7, "time_lag_ms": 60_000, "objective_ms": 30_000, "is_reported": True, **more})


def test_a_topic_is_judged_by_the_worst_of_its_partitions() -> None:
    stopped = behind(partition=2, state=PartitionState.STOPPED, objective_ms=None, time_lag_ms=None)
    within = behind(time_lag_ms=10)
    assert TopicStatus.of([within, stopped]).objective_state is ObjectiveState.WITHIN
    assert TopicStatus.of([within, behind(partition=1), stopped]).objective_state is ObjectiveState.BREACHED
    assert TopicStatus.of([within, behind(time_lag_ms=None)]).objective_state is ObjectiveState.UNKNOWN
    # what is unknown of one hides no breach of another
    assert TopicStatus.of([behind(partition=1), behind(time_lag_ms=None)]).objective_state is ObjectiveState.BREACHED
    assert TopicStatus.of([stopped]).objective_state is None


@pytest.mark.parametrize(
    ("row", "is_throttled", "since_ms", "code"),
    [
        (behind(reason=Reason.SOURCE_UNREACHABLE, error_message="no answer"), True, 0, BreachCause.SOURCE),
        (behind(reason=Reason.NO_WORKERS), False, 0, BreachCause.NO_WORKERS),
        (behind(reason=Reason.PAUSED_BY_OPERATOR), False, 0, BreachCause.PAUSED),
        (behind(reason=Reason.ENGINE_SILENT), False, 0, BreachCause.DESTINATION),
        (behind(reason=Reason.RECORD_REJECTED), False, 0, BreachCause.DESTINATION),
        (behind(reason=Reason.CORRUPT_BATCH), False, 0, BreachCause.FAILED),
        (behind(throttle_bytes_per_second=70_000, source_path=(1, 5)), True, 0, BreachCause.THROTTLE),
        (behind(throttle_bytes_per_second=70_000, source_path=(1, 5)), False, 0, BreachCause.PATH),
        # breached at 70,000, when no engine ran
        (behind(source_path=(1, 5)), False, 70_001, BreachCause.NO_ENGINE),
        (behind(), False, 70_000, BreachCause.COPY),
    ],
)
def test_the_cause_of_a_breach_is_named(
    row: PartitionRow, is_throttled: bool, since_ms: int, code: BreachCause
) -> None:
    cause = cause_of([behind(time_lag_ms=0), row], since_ms, 100_000, is_throttled=is_throttled)
    assert cause.code is code
    assert cause.message


def event(time_ms: int, result: str, topic: str = "t", what: str = "objective", **details: Any) -> Event:
    return Event(time_ms, "m", what, "me@here", result, {"topic": topic, **details})


def spans(*events: Event) -> list[tuple[str, int, int | None]]:
    return [(one.topic, one.from_ms, one.until_ms) for one in breaches_of(events)]


def test_events_tell_when_objectives_were_breached() -> None:
    first = event(1, "BREACHED", objectiveMs=5, cause="THROTTLE", message="limited")
    (breach,) = breaches_of([first])
    assert (breach.objective_ms, breach.cause, breach.message, breach.until_ms) == (5, "THROTTLE", "limited", None)
    assert [one.lasted_ms for one in breaches_of([first, event(8, "MET")])] == [7]
    both = [first, event(2, "BREACHED", "u"), event(3, "MET"), event(4, "MET", "v"), event(5, "BREACHED")]
    assert spans(*both) == [("t", 1, 3), ("u", 2, None), ("t", 5, None)]


def test_a_breach_lasts_over_a_restart_if_the_next_engine_finds_it_too() -> None:
    started = event(5, "started", what="run")
    assert spans(event(1, "BREACHED"), started, event(6, "BREACHED"), event(9, "MET")) == [("t", 1, 9)]
    assert spans(event(1, "BREACHED"), started, event(8, "started", what="run")) == [("t", 1, 5)]
    assert spans(event(1, "BREACHED"), started, event(6, "BREACHED")) == [("t", 1, None)]


def test_events_of_others_are_not_trusted() -> None:
    (breach,) = breaches_of([Event(1, "m", "objective", "x", "BREACHED", {"objectiveMs": "x", "cause": "y"})])
    assert (breach.topic, breach.objective_ms, breach.cause, breach.message) == ("None", 0, "COPY", "")


class Watched:
    """An engine's look at topics, and what it recorded."""

    def __init__(self) -> None:
        self.journal = MirrorJournal("m", "me@here", lambda: 0)
        self.watch = ObjectiveWatch(self.journal, 0)

    def look(self, at: float, *rows: PartitionRow, throttled_ms: int = 0) -> list[tuple[str, Any]]:
        """Look once; return the results and topics of new events."""
        before = len(self.journal.unstored())
        self.watch.take([TopicStatus.of([row]) for row in rows], throttled_ms, at, int(at * 1000))
        return [(one.result, one.details["topic"]) for one in self.journal.unstored()[before:]]


def test_a_breach_and_its_end_are_recorded_once() -> None:
    watched = Watched()
    assert watched.watch.is_due(0, has_rules=True)
    assert watched.look(0, behind(), behind(topic="u", time_lag_ms=None)) == [("BREACHED", "t")]
    assert not watched.watch.is_due(LOOK_SECONDS - 1, has_rules=True)
    assert watched.look(5, behind(), behind(topic="u", time_lag_ms=None)) == []
    # what is unknown ends nothing
    assert watched.look(10, behind(time_lag_ms=None)) == []
    assert watched.look(15, behind(time_lag_ms=30_000)) == [("MET", "t")]
    assert watched.look(20, behind(time_lag_ms=30_000)) == []
    first, last = watched.journal.unstored()
    assert (first.details["objectiveMs"], first.details["timeLagMs"], first.details["cause"]) == (
        30_000,
        60_000,
        "NO_ENGINE",
    )
    assert last.details["lastedMs"] == 15_000
    assert [note.text for note in watched.journal.notes][1] == "t meets its objective again, after 15s"


def test_lanes_that_wait_for_the_limit_since_the_last_look_are_throttled() -> None:
    watched = Watched()
    limited = {"throttle_bytes_per_second": 70_000}
    watched.look(1000, behind(**limited), throttled_ms=500)
    watched.look(1005, behind(topic="u", **limited), throttled_ms=500)
    causes = [one.details["cause"] for one in watched.journal.unstored()]
    assert causes == ["THROTTLE", "COPY"]


def test_trouble_during_which_the_time_lag_was_unknown_is_the_cause() -> None:
    watched = Watched()
    watched.look(0, behind(time_lag_ms=None, reason=Reason.SOURCE_UNREACHABLE, error_message="no answer"))
    watched.look(5, behind(), throttled_ms=9)
    assert watched.look(10, behind(time_lag_ms=0)) == [("MET", "t")]
    watched.look(100, behind())
    watched.look(105, behind(time_lag_ms=0))
    # what is missing arrived after the trouble
    watched.look(110, behind(time_lag_ms=None, reason=Reason.NO_WORKERS))
    watched.look(200, behind())
    causes = [(one.details["cause"], one.details["message"]) for one in watched.journal.unstored()[::2]]
    assert causes[0] == ("SOURCE", "no answer")
    assert [cause for cause, _ in causes[1:]] == ["COPY", "COPY"]


def test_a_breach_ends_with_its_objective() -> None:
    watched = Watched()
    watched.look(0, behind())
    assert watched.watch.is_due(5, has_rules=False)
    assert watched.look(5, behind(objective_ms=None)) == [("MET", "t")]
    assert not watched.watch.is_due(60, has_rules=False)


def test_one_look_records_a_hundred_events_at_most() -> None:
    watched = Watched()
    rows = [behind(topic=f"t{number}") for number in range(150)]
    assert [len(watched.look(at, *rows)) for at in (0, 5, 10)] == [100, 50, 0]


def test_tables_show_objectives_where_there_are_some() -> None:
    shown = TOPICS.used_by([TopicStatus.of([behind()])])
    assert shown.headers == "TOPIC RATE LAG TIME-LAG OBJECTIVE RPO ETA STATE"
    assert [cell.text for cell in shown.cells([TopicStatus.of([behind()])])[0][3:6]] == ["1m", "30s", "BREACHED"]
    without = TOPICS.used_by([TopicStatus.of([behind(objective_ms=None)])])
    assert without.headers == "TOPIC RATE LAG TIME-LAG ETA STATE"


def test_optional_columns_are_shown_if_a_row_has_a_value() -> None:
    columns: tuple[Column[str], ...] = (
        Column("a", TEXT, "", str, "A"),
        Column("b", TEXT, "", lambda row: row or None, "B"),
    )
    table = Table(columns, "A B", optional="B")
    assert table.used_by(["", "x"]).headers == "A B"
    assert table.used_by([""]).headers == "A"
