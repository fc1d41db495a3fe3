"""Which topics come first: the chosen ones that are behind and move; none that is stuck, caught up or FAILED."""

from __future__ import annotations

from kmirror.engine.lanes.priorities import Priorities
from kmirror.errors import Reason
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import PartitionState, ProgressRecord, ProgressRow

NOW_MS = 1_000_000


def take(
    priorities: Priorities, topic: str, end: int, at: float, *, source_end: int = 100, caught_up_ms: int | None = None
) -> None:
    row = ProgressRow(
        f"b.{topic}",
        0,
        source_end,
        source_end,
        0,
        end,
        None,
        PartitionState.MIRRORING,
        caught_up_ms=caught_up_ms,
        reason=Reason.SOURCE_UNREACHABLE if topic == "pay-down" else None,
    )
    priorities.take(topic, ProgressRecord("m", 0, "L", 1, 0, "h", 1, NOW_MS, (row,)), row, at)


def test_chosen_topics_that_are_behind_come_first() -> None:
    priorities = Priorities()
    take(priorities, "pay", 5, 1.0)
    assert priorities.topics(1.0) == ()
    priorities.choose(TopicSelector(("pay.*",)))
    for topic in ("pay", "pay-in", "orders", "pay-down"):
        take(priorities, topic, 5, 1.0)
    assert priorities.topics(2.0) == ("b.pay", "b.pay-in")
    take(priorities, "pay", 100, 2.0)
    assert priorities.topics(2.0) == ("b.pay-in",)
    priorities.choose(TopicSelector(("orders",)))
    assert priorities.topics(2.0) == ()


def test_one_that_had_everything_a_moment_ago_is_not_behind() -> None:
    priorities = Priorities()
    priorities.choose(TopicSelector(("pay",)))
    take(priorities, "pay", 5, 1.0, caught_up_ms=NOW_MS - 4000)
    assert priorities.topics(1.0) == ()
    take(priorities, "pay", 5, 1.0, caught_up_ms=NOW_MS - 6000)
    assert priorities.topics(1.0) == ("b.pay",)


def test_a_topic_that_does_not_move_holds_up_no_other() -> None:
    priorities = Priorities()
    priorities.choose(TopicSelector(("pay",)))
    for at in range(1, 12):
        take(priorities, "pay", 5, float(at))
    assert priorities.topics(10.5) == ("b.pay",)
    assert priorities.topics(11.5) == ()
    take(priorities, "pay", 6, 12.0)
    assert priorities.topics(12.0) == ("b.pay",)
    # nor one whose lane says nothing any more
    assert priorities.topics(23.0) == ()
