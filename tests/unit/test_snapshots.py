"""What a running engine tells other threads: when they ask, and of what is stored only what is at the log's end."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from kmirror.engine.driver.snapshots import MirrorSnapshot, Snapshots
from kmirror.engine.status.state_feed import StoredRecords
from kmirror.state.record_kinds import Removed, Unknown
from kmirror.state.records import DesiredState, MirrorRecord, TopicOrigin, TopicRecord

MIRROR = MirrorRecord("m", {}, {}, None, "eve@ops", 0)


def topic(name: str, mirror: str = "m", partitions: int = 1) -> TopicRecord:
    return TopicRecord(mirror, name, name, None, None, DesiredState.ACTIVE, partitions, TopicOrigin.CREATED)


class CountingEngine:
    """Count how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def snapshot(self) -> MirrorSnapshot:
        self.asked += 1
        return cast("MirrorSnapshot", f"snapshot {self.asked}")


def test_nothing_is_copied_without_a_request_and_requests_share_one_answer() -> None:
    snapshots, engine = Snapshots(), CountingEngine()
    snapshots.turned([engine])
    assert (engine.asked, snapshots.turned_at is not None) == (0, True)
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(snapshots.ask(30))) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        snapshots.turned([engine])
    assert len(answers) == 3
    assert engine.asked <= 3
    snapshots.turned([engine])
    assert engine.asked <= 3


def test_a_driver_that_does_not_turn_does_not_answer() -> None:
    with pytest.raises(TimeoutError):
        Snapshots().ask(0.01)


def test_what_was_stored_once_is_not_shown_while_the_log_is_read_from_its_start() -> None:
    stored = StoredRecords("m", [MIRROR, topic("t", partitions=8), topic("other", "n")])
    assert stored.copy() == {MIRROR.key: MIRROR, topic("t").key: topic("t", partitions=8)}
    stored.take(topic("t", partitions=4))
    stored.take(topic("gone"))
    assert stored.copy()["topic", "m", "t"] == topic("t", partitions=8)
    for record in (MIRROR, Removed(("topic", "m", "gone")), topic("t", partitions=9), topic("u", "n")):
        stored.take(record)
    stored.catch_up()
    assert stored.copy() == {MIRROR.key: MIRROR, topic("t").key: topic("t", partitions=9)}
    # from then on each record counts; of one that a newer kmirror has written is known that we cannot read it
    stored.take(Removed(("topic", "m", "t")))
    stored.take(unknown := Unknown(MIRROR.key, "v 9"))
    stored.catch_up()
    assert stored.copy() == {MIRROR.key: unknown}
