"""Partitions of which a source broker does not return what it has: when each is fetched by itself, in turn."""

from __future__ import annotations

from typing import cast

from kmirror.cluster.protocol.fetch import FetchKey
from kmirror.cluster.stream import Stream
from kmirror.engine.lane.brokers.links import SourceLink
from kmirror.engine.lane.partition.source_view import SourceView
from tests.support.partition_shell import Shell, facts


def link_of(*shells: Shell) -> SourceLink:
    link = SourceLink(1, cast(Stream, None), "kmirror", 13, "silent")
    link.partitions = {FetchKey(bytes(16), index, "t"): shell.copy for index, shell in enumerate(shells)}
    return link


def copying() -> Shell:
    shell = Shell()
    shell.inspect(facts())
    assert shell.copy.wants_records
    return shell


def test_silent_partitions_take_turns() -> None:
    shells = copying(), copying(), copying()
    link = link_of(*shells)
    seen = [link.next_silent(0.0) for _ in range(6)]
    assert seen == [shell.copy for shell in shells] * 2


def test_one_that_waits_or_may_not_be_fetched_lets_others_go_first() -> None:
    waiting, deferred, ready = copying(), copying(), copying()
    link = link_of(waiting, deferred, ready)
    waiting.copy.source.brought_nothing(0.0)
    deferred.copy.source.is_deferred = True
    assert [link.next_silent(0.1), link.next_silent(0.2)] == [ready.copy, ready.copy]
    assert link.next_silent(0.6) is waiting.copy


def test_pauses_and_waits_grow_until_something_arrives() -> None:
    view, at, pauses, waits = SourceView(), 100.0, [], []
    for _ in range(6):
        waits.append(view.fetch_wait_ms)
        view.brought_nothing(at)
        pauses.append(view.fetch_again_at - at)
    assert pauses == [0.5, 1, 2, 4, 4, 4]
    assert waits == [500, 1000, 2000, 4000, 4000, 4000]
    view.brought_something()
    assert view.fetch_wait_ms == 500
