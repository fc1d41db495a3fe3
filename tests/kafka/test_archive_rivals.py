"""Several engines archive the same partition, one after another or at once: none spoils what another writes."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from confluent_kafka import Producer

from kmirror.cluster.append import OffsetAppender
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.archive import copy as archive_copy
from kmirror.engine.archive.archive_topic import archive_producer_id
from kmirror.errors import HistoriesDifferError, KmirrorError, Reason, RefusedError
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.archiving import check, make_archive, save
from tests.support.leader import Leader
from tests.support.oracle import dump_log
from tests.support.saved_topics import (
    StoppedError,
    assert_saved,
    cluster,
    make_topic,
    short_memory,
    small_batches,
    stop_after,
)
from tests.support.waiting import wait_until

__all__ = ["cluster", "short_memory", "small_batches"]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("old", [0, 60], ids=["young", "old"])
@pytest.mark.parametrize("finished", [True, False], ids=["after the other", "between the other's batches"])
def test_who_comes_later_shuts_out_the_earlier_one(cluster: SandboxCluster, old: int, finished: bool) -> None:
    topic = make_topic(cluster, 60, old=old)
    archive = make_archive(cluster, topic)

    def overtake(_: int) -> None:
        if finished:
            save(cluster, topic, archive, [(0, 60)])
        else:
            with pytest.raises(StoppedError):
                save(cluster, topic, archive, [(0, 60)], stop_after(2))
        time.sleep(0.3)  # the broker looks for what it may forget

    with pytest.raises(RefusedError) as caught:
        save(cluster, topic, archive, [(0, 60)], overtake)
    assert caught.value.reason is Reason.FENCED
    save(cluster, topic, archive, [(0, 60)])
    assert_saved(cluster, topic, archive, [(0, 60)])


@pytest.mark.usefixtures("small_batches")
def test_a_forgotten_writer_is_fenced_nevertheless(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive's last batch says which epoch was used, when the leader does not know it any more."""
    topic = make_topic(cluster, 60, old=60)
    archive = make_archive(cluster, topic)

    def overtake(_: int) -> None:
        with Leader(cluster, archive) as leader:
            wait_until(lambda: leader.producer(archive_producer_id(leader.partition)) is None)
        patched.undo()
        with pytest.raises(StoppedError):
            save(cluster, topic, archive, [(0, 60)], stop_after(1))

    with monkeypatch.context() as patched:
        patched.setattr(OffsetAppender, "renew", lambda appender: None)
        with pytest.raises(RefusedError) as caught:
            save(cluster, topic, archive, [(0, 60)], overtake)
    assert caught.value.reason is Reason.FENCED
    save(cluster, topic, archive, [(0, 60)])
    assert_saved(cluster, topic, archive, [(0, 60)])


@pytest.mark.usefixtures("small_batches")
def test_without_markers_the_sequence_is_guard_enough(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for who may not write them: of young records none is written twice."""

    def refuse(out: OffsetAppender, *, above: int) -> None:
        raise RefusedError("no right", None, Reason.NOT_AUTHORIZED)

    monkeypatch.setattr(OffsetAppender, "take_over", refuse)
    topic = make_topic(cluster, 60)
    archive = make_archive(cluster, topic)

    def overtake(_: int) -> None:
        with pytest.raises(StoppedError):
            save(cluster, topic, archive, [(0, 60)], stop_after(2))

    with pytest.raises(HistoriesDifferError):
        save(cluster, topic, archive, [(0, 60)], overtake)
    assert not save(cluster, topic, archive, [(0, 60)]).guarded
    assert_saved(cluster, topic, archive, [(0, 60)])
    assert [batch for batch in dump_log(cluster, archive) if batch.is_control] == []


@pytest.mark.usefixtures("small_batches")
def test_two_that_begin_at_once_never_share_an_epoch(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes in while the other one reads, and is forgotten before that one continues.

    They had the same epoch; the first batch of each was welcome.
    """
    topic = make_topic(cluster, 60, old=60)
    archive = make_archive(cluster, topic)
    look = archive_copy._end_of

    def look_slowly(client: ClusterClient, partition: TopicPartition) -> object:
        seen = look(client, partition)
        monkeypatch.setattr(archive_copy, "_end_of", look)
        with monkeypatch.context() as patched:
            patched.setattr(OffsetAppender, "renew", lambda appender: None)
            with pytest.raises(StoppedError):
                save(cluster, topic, archive, [(0, 60)], stop_after(1))
        with Leader(cluster, archive) as leader:
            wait_until(lambda: leader.producer(archive_producer_id(leader.partition)) is None)
        return seen

    monkeypatch.setattr(archive_copy, "_end_of", look_slowly)
    save(cluster, topic, archive, [(0, 60)])
    assert_saved(cluster, topic, archive, [(0, 60)])
    first, *_, last = (batch.producer_epoch for batch in dump_log(cluster, archive) if not batch.is_control)
    assert first < last


def assert_three_at_once_save(cluster: SandboxCluster, *, old: int) -> None:
    """Have three copy the same until each has done it; again, if none of them was refused on the way."""

    def go_on_until_done(topic: str, archive: str, start: Barrier) -> int:
        refusals = 0
        start.wait()
        while True:
            try:
                save(cluster, topic, archive, [(0, 1000)], lambda _: time.sleep(0.005))
            except KmirrorError:
                refusals += 1
                time.sleep(random.random() / 5)
            else:
                return refusals

    refusals = 0
    while not refusals:
        topic = make_topic(cluster, 1000, old=old)
        archive = make_archive(cluster, topic)
        with ThreadPoolExecutor(3) as pool:
            refusals = sum(pool.map(go_on_until_done, [topic] * 3, [archive] * 3, [Barrier(3)] * 3))
        assert_saved(cluster, topic, archive, [(0, 1000)])


@pytest.mark.slow
def test_several_at_the_same_time(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_copy, "_BATCH_BYTES", 5000)
    assert_three_at_once_save(cluster, old=0)


@pytest.mark.long
@pytest.mark.parametrize("_", range(10))
def test_several_at_the_same_time_many_times(cluster: SandboxCluster, monkeypatch: pytest.MonkeyPatch, _: int) -> None:
    """With old records there is a moment behind each batch in which the broker may forget; it looks all the time."""
    monkeypatch.setattr(archive_copy, "_BATCH_BYTES", 5000)
    assert_three_at_once_save(cluster, old=500)


def test_a_foreign_producer_is_noticed(cluster: SandboxCluster) -> None:
    topic = make_topic(cluster, 10)
    archive = make_archive(cluster, topic)

    def interfere(_: int) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce(archive, b"foreign", partition=0)
        assert producer.flush(30) == 0

    save(cluster, topic, archive, [(0, 10)], interfere)
    found = check(cluster, topic, archive, [(0, 10)])
    assert found.first_difference is not None
    assert "an extra record" in found.first_difference.what
    with pytest.raises(RefusedError, match="not an archived"):
        save(cluster, topic, archive, [(0, 10)])
