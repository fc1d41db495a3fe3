"""What is stored, but hidden by a transaction that another program left open, is waited for before anything is decided.

A command's own transaction is hidden if another began between its last read and its commit and does not end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from kmirror.cluster.writing.transactional_writer import TransactionalWriter
from kmirror.engine.clock import now_ms
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination, require_mirror
from kmirror.ops.show.charge_keeper import ChargeKeeper
from kmirror.ops.show.describe import unreadable_notes
from kmirror.ops.show.events import follow_events
from kmirror.ops.show.listing import list_mirrors
from kmirror.ops.stop.failover import failover
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror.state.snapshot import Changes
from kmirror.state.waiting import BRIEFLY_S, Deadline
from kmirror.state.writer import StateWriter
from kmirror.web.recent import RecentEvents
from kmirror.web.watch_service import WatchService
from kmirror.web.watched_cluster import WatchedCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.mirrors import make_topic, new_mirror, properties_of, selector
from tests.support.waiting import wait_until

#: Longer than a read that does not wait for transactions.
HIDDEN_S = 4.0


@contextmanager
def hiding_commits(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    """Have another program's transaction begin right before the next commit: it hides that until it ends."""
    producer = Producer({**config, "transactional.id": f"test-{unique_topic()}", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    commit = TransactionalWriter.commit

    def late(writer: TransactionalWriter, *given: Any) -> Any:
        if not hidden:
            hidden.append(writer)
            for topic in (STATE_TOPIC, EVENTS_TOPIC):
                producer.produce(topic, key=b'["test"]', value=None, partition=0)
            assert producer.flush(30) == 0
        return commit(writer, *given)

    hidden: list[TransactionalWriter] = []
    with monkeypatch.context() as patched:
        patched.setattr(TransactionalWriter, "commit", late)
        yield producer
    assert hidden


def ending(producer: Producer) -> threading.Timer:
    timer = threading.Timer(HIDDEN_S, producer.abort_transaction, (30,))
    timer.start()
    return timer


def test_a_mirror_just_created_is_found(
    cluster_pair: ClusterPair, destination: Destination, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    with hiding_commits(config, monkeypatch) as producer:
        mirror = new_mirror(destination, cluster_pair.source)
    timer = ending(producer)
    with Destination.open(properties_of(cluster_pair.destination)) as other:
        assert mirror in [row.mirror for row in list_mirrors(other)]
        assert add(other, mirror, selector(topic)).exit_code == 0
    timer.join()


@pytest.mark.slow
def test_what_may_be_hidden_is_said(
    cluster_pair: ClusterPair, destination: Destination, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = new_mirror(destination, cluster_pair.source)
    recent = RecentEvents(lambda: Destination.open(properties_of(cluster_pair.destination)))
    assert recent.last().trouble is None
    with hiding_commits(config, monkeypatch) as producer:
        mirror = new_mirror(destination, cluster_pair.source)
    with Destination.open(properties_of(cluster_pair.destination)) as other:
        shown = typed(cluster_pair.destination, "events", "--mirror", earlier)
        assert "warning: __kmirror_events has an unfinished transaction at offset " in shown.stderr
        assert shown.returncode == 4
        with closing(recent):
            wait_until(lambda: "__kmirror_events has an unfinished transaction" in str(recent.last().trouble))
        said: list[str] = []
        following = follow_events(other, None, now_ms() - 60_000, said.append)
        assert earlier in {event.mirror for event in next(following)}
        (note,) = unreadable_notes(other)
        assert note.startswith("__kmirror_state has an unfinished transaction at offset ")
        printed = typed(cluster_pair.destination, "list")
        assert (printed.returncode, f"warning: {note}" in printed.stderr) == (4, True)
        assert "version" not in printed.stderr
        other.state(BRIEFLY_S)
        producer.abort_transaction(30)
        assert unreadable_notes(other) == (note,)  # what was read before lacks it
        assert unreadable_notes(other) == ()
        assert mirror in {event.mirror for event in next(following)}
        assert [words.partition(" at offset ")[0] for words in said] == [
            "__kmirror_events has an unfinished transaction"
        ]
        assert mirror in [row.mirror for row in list_mirrors(other)]


@pytest.mark.slow
def test_a_watched_cluster_says_that_something_is_hidden(
    cluster_pair: ClusterPair, destination: Destination, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mirrors' engines seem silent meanwhile."""
    watched = WatchedCluster("dr", lambda: properties_of(cluster_pair.destination))
    service = WatchService([watched], ChargeKeeper(["dr"]))
    with service.watching():
        wait_until(lambda: watched.status.as_of_ms is not None and watched.status.error is None)
        with hiding_commits(config, monkeypatch) as producer:
            new_mirror(destination, cluster_pair.source)
        wait_until(lambda: "has an unfinished transaction at offset" in str(watched.status.error))
        hidden_since_ms = watched.status.error_since_ms
        assert watched.status.as_of_ms == hidden_since_ms
        producer.abort_transaction(30)
        wait_until(lambda: watched.status.error is None)
        assert (watched.status.as_of_ms or 0) > (hidden_since_ms or 0)


def test_a_failover_ends_what_its_dead_engine_has_left_open(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, it waited for the brokers to abort it: 20 s in the middle of a disaster."""
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    mirror = new_mirror(destination, cluster_pair.source)
    assert add(destination, mirror, selector(topic)).exit_code == 0

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, Destination.open(destination.properties) as other:
        patched.setattr("kmirror.state.writer._TRANSACTION_TIMEOUT_MS", 60_000)
        patched.setattr(TransactionalWriter, "_commit", die)
        engine = StateWriter(other.store, "engine", mirror)
        engine.open(Deadline(30))
        with pytest.raises(KeyboardInterrupt):
            engine.commit(Changes((require_mirror(other.state(), mirror),)), Deadline(30))
    done = failover(destination, mirror).result
    assert done.exit_code == 0, done
