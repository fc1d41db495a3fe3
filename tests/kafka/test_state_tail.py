"""What an engine that starts later is passed of the stored state, after the state's topic was recreated or cleaned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from kmirror.engine.driver import state_tail
from kmirror.engine.driver.state_tail import StateTail
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import Destination
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.record_kinds import Record, Removed, Unknown, encode
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import MakeCluster
from tests.support.live_engine import mirror_record, topic_record
from tests.support.mirrors import delete_topic, properties_of
from tests.support.round_trip import trim
from tests.support.topics import set_topic
from tests.support.waiting import wait_until


class Topics:
    """The topics that an engine knows of."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.passed: list[tuple[str, DesiredState]] = []
        self.has_caught_up = False
        self.errors: list[Exception] = []

    def take_stored(self, read: Record | Removed | Unknown) -> None:
        """Take a topic, or that it is gone."""
        if isinstance(read, TopicRecord):
            self.known.add(read.topic)
            self.passed.append((read.topic, read.desired))
        elif isinstance(read, Removed) and read.key[0] == "topic":
            self.known.discard(str(read.key[2]))

    def catch_up(self) -> None:
        """Know all."""
        self.has_caught_up = True

    def take_answer(self, error: KmirrorError | OutcomeUnknown | None) -> None:
        """Wait."""

    def broken(self, error: Exception) -> None:
        """Keep the error."""
        self.errors.append(error)


@pytest.fixture
def destination(make_cluster: MakeCluster) -> Iterator[tuple[SandboxCluster, Destination]]:
    cluster = make_cluster("state")
    with Destination.open(properties_of(cluster)) as found:
        found.store.ensure_topics()
        yield cluster, found


def _stored(topic: str) -> TopicRecord:
    return replace(topic_record(topic), source_topic_id=None, destination_topic_id=None)


def write(cluster: SandboxCluster, *topics: str) -> None:
    """Write a mirror with these topics to the state."""
    producer = Producer(properties_of(cluster))
    records: list[MirrorRecord | TopicRecord] = [mirror_record(), *map(_stored, topics)]
    for record in records:
        key, value = encode(record)
        producer.produce(STATE_TOPIC, value, key)
    assert producer.flush(30) == 0


def following(tail: StateTail, destination: Destination) -> Topics:
    """Return what an engine is passed that starts now."""
    found = Topics()
    tail.follow(destination.config, "m", found)
    wait_until(lambda: found.has_caught_up)
    return found


def test_a_topic_that_is_not_stored_any_more_is_forgotten_when_the_state_is_recreated(
    destination: tuple[SandboxCluster, Destination],
) -> None:
    cluster, there = destination
    write(cluster, "kept", "dropped")
    tail = StateTail()
    try:
        first = following(tail, there)
        assert first.known == {"kept", "dropped"}
        delete_topic(cluster, STATE_TOPIC)
        with Destination.open(properties_of(cluster)) as again:
            again.store.ensure_topics()
        write(cluster, "kept", "added")
        wait_until(lambda: first.known == {"kept", "added"})
        assert following(tail, there).known == {"kept", "added"}
        assert not first.errors
    finally:
        tail.close()


def test_what_was_cleaned_while_the_state_was_not_read_for_long_is_forgotten(
    destination: tuple[SandboxCluster, Destination], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tombstones are deleted after delete.retention.ms: who was away for longer does not read them."""
    cluster, there = destination
    write(cluster, "dropped")
    tail = StateTail()
    try:
        first = following(tail, there)
        write(cluster, "kept")
        wait_until(lambda: first.known == {"dropped", "kept"})
        set_topic(cluster, STATE_TOPIC, {"cleanup.policy": "compact,delete"})
        trim(cluster, STATE_TOPIC, 2)
        monkeypatch.setattr(state_tail, "FORGET_AFTER_S", 0.0)
        wait_until(lambda: first.known == {"kept"})
        assert following(tail, there).known == {"kept"}
    finally:
        tail.close()


def test_older_values_are_not_passed_where_the_state_is_read_again(
    destination: tuple[SandboxCluster, Destination], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers keep them for a while: for a moment, a stopped topic would be copied again."""
    cluster, there = destination
    write(cluster, "stopped")
    tail = StateTail()
    try:
        first = following(tail, there)
        producer = Producer(properties_of(cluster))
        key, value = encode(replace(_stored("stopped"), desired=DesiredState.STOPPED))
        producer.produce(STATE_TOPIC, value, key)
        assert producer.flush(30) == 0
        passed = [("stopped", DesiredState.ACTIVE), ("stopped", DesiredState.STOPPED)]
        wait_until(lambda: first.passed == passed)
        monkeypatch.setattr(state_tail, "FORGET_AFTER_S", 0.0)
        write(cluster, "another")
        wait_until(lambda: "another" in first.known)
        assert first.passed == [*passed, ("another", DesiredState.ACTIVE)]
    finally:
        tail.close()
