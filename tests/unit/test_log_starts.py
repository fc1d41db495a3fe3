"""A mirror's log start follows its source's after a while, and never past what the mirror has."""

from __future__ import annotations

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver.log_starts import LogStarts

P = TopicPartition("orders", 0)


def test_a_start_is_followed_once_it_is_as_old_as_the_delay() -> None:
    starts = LogStarts(60)
    starts.observe({P: 100}, 0)
    assert starts.due({P: 500}, 59) == {}
    assert starts.due({P: 500}, 60) == {P: 100}


def test_each_further_start_has_its_own_delay() -> None:
    starts = LogStarts(60)
    for second in range(0, 100, 10):
        starts.observe({P: 100 + second}, second)
    assert starts.due({P: 500}, 95) == {P: 130}
    starts.trimmed(P, 130)
    assert starts.due({P: 500}, 95) == {}
    assert starts.due({P: 500}, 100) == {P: 140}


def test_a_log_that_starts_at_0_needs_nothing() -> None:
    starts = LogStarts(0)
    starts.observe({P: 0}, 0)
    assert starts.due({P: 500}, 10) == {}


def test_what_the_source_lost_before_it_was_copied_keeps_the_mirror_as_it_is() -> None:
    starts = LogStarts(0)
    starts.observe({P: 100}, 0)
    starts.observe({P: 600}, 10)
    assert starts.due({P: 500}, 5) == {}


def test_a_start_that_goes_back_is_another_logs() -> None:
    starts = LogStarts(60)
    starts.observe({P: 100}, 0)
    starts.observe({P: 10}, 50)
    assert starts.due({P: 500}, 70) == {}
    assert starts.due({P: 500}, 110) == {P: 10}


def test_a_partition_that_is_not_asked_for_is_left_alone() -> None:
    starts = LogStarts(0)
    starts.observe({P: 100}, 0)
    assert starts.due({}, 10) == {}
