"""Predicted and actual times of waves: what is known, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmirror.state.records import TopicRecord
from kmirror.status.partition_row import PartitionRow
from kmirror_plan.outcomes import wave_outcomes
from tests.support.report_facts import report_facts

PLAN = {"waves": [{"number": 1, "topics": ["orders"], "copySeconds": 20.0}, {"number": 2, "topics": ["x"]}]}


def known(**changes: object) -> tuple[list[TopicRecord], list[PartitionRow]]:
    """Return a topic and its one partition, copied ten seconds after it was added."""
    facts = report_facts()
    topic = replace(facts.topics[0], topic="orders", source_topic="orders", added_at_ms=5_000)
    row = replace(facts.status.partitions[0], topic="orders", initial_copy_complete=True, initial_copy_ms=15_000)
    return [topic], [replace(row, **changes)]  # type: ignore[arg-type]


def test_a_copied_wave_has_its_time_and_how_it_compares() -> None:
    first, second = wave_outcomes(PLAN, *known())
    assert (first.predicted_seconds, first.actual_seconds) == (20.0, 10.0)
    assert first.message == "copied in 0.50 × the predicted time"
    assert (second.actual_seconds, second.message) == (None, "not added to this mirror")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initial_copy_complete": False, "initial_copy_ms": None}, "0 of 1 topic is copied"),
        ({"initial_copy_ms": None}, "copied; when is not known: an older version copied it"),
    ],
)
def test_what_is_not_known_has_no_time(changes: dict[str, object], message: str) -> None:
    first, _ = wave_outcomes(PLAN, *known(**changes))
    assert (first.actual_seconds, first.message) == (None, message)


def test_a_topic_of_which_is_not_known_when_it_was_added_leaves_a_wave_without_time() -> None:
    (topic,), (row,) = known()
    early = replace(topic, topic="early", source_topic="early", added_at_ms=None)
    plan = {"waves": [{"number": 1, "topics": ["orders", "early"], "copySeconds": 20.0}]}
    (wave,) = wave_outcomes(plan, [topic, early], [row, replace(row, topic="early")])
    assert (wave.actual_seconds, wave.message) == (None, "copied; when is not known: an older version copied it")
