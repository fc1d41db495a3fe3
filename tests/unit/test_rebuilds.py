"""When topics are rebuilt: claimed first, then worked on, whatever is heard of the claim before or after it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kmirror.engine.driver.rebuilds import Rebuilds
from kmirror.errors import Reason, RefusedError
from kmirror.work import Watch, WorkView
from tests.support.waiting import wait_until


class Rebuilder:
    """Claims when it is let, and notes what it is asked for."""

    def __init__(self) -> None:
        self.may_claim = threading.Event()
        self.refusal: RefusedError | None = None
        self.begun: list[str] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.carried_out: list[str] = []

    def begin(self, topic: str, reason: Reason, *, consented: bool) -> None:
        self.begun.append(topic)
        assert self.may_claim.wait(30)
        if self.refusal:
            raise self.refusal

    def carry_out(self, topic: str, watch: Watch) -> None:
        self.carried_out.append(topic)
        watch(WorkView(f"archiving {topic}", 0.0, 1.0, "offset", 30, 90))
        assert self.may_end.wait(30)


@pytest.fixture
def rebuilder() -> Iterator[Rebuilder]:
    made = Rebuilder()
    yield made
    made.may_claim.set()
    made.may_end.set()


def tick(rebuilds: Rebuilds, *claimed: str) -> None:
    rebuilds.tick(claimed, lambda topic: True, 0.0)


def settled(rebuilds: Rebuilds, *claimed: str) -> None:
    """Let all that runs end, and have it noticed."""

    def is_over() -> bool:
        tick(rebuilds, *claimed)
        return not rebuilds.is_running

    wait_until(is_over)


def test_a_claim_may_be_seen_before_its_thread_has_ended(rebuilder: Rebuilder) -> None:
    rebuilds = Rebuilds(rebuilder, pytest.fail)
    rebuilds.want("orders", Reason.SOURCE_TOPIC_RECREATED, consented=False)
    tick(rebuilds, "orders")
    wait_until(lambda: rebuilder.carried_out)
    assert not rebuilds.is_wanted("orders")
    rebuilder.may_claim.set()
    wait_until(lambda: not any(thread.name == "kmirror-rebuild orders" for thread in threading.enumerate()))
    settled(rebuilds)
    assert (rebuilder.begun, set(rebuilder.carried_out)) == (["orders"], {"orders"})


def test_how_far_a_rebuild_is_is_known_while_it_runs(rebuilder: Rebuilder) -> None:
    rebuilder.may_end.clear()
    rebuilds = Rebuilds(rebuilder, pytest.fail)
    tick(rebuilds, "orders")
    wait_until(lambda: rebuilds.progress)
    assert {topic: (view.done, view.total) for topic, view in rebuilds.progress.items()} == {"orders": (30, 90)}
    rebuilder.may_end.set()
    settled(rebuilds)
    assert rebuilds.progress == {}


def test_a_rebuilt_topic_is_not_begun_again_while_its_claim_is_still_seen(rebuilder: Rebuilder) -> None:
    rebuilder.may_claim.set()
    rebuilds = Rebuilds(rebuilder, pytest.fail)
    for _ in range(3):
        settled(rebuilds, "orders")
    assert (rebuilder.carried_out, rebuilds.done) == (["orders"], 1)
    # if it stays for long, something else is asked for
    rebuilds.tick(["orders"], lambda topic: True, 10.0)
    wait_until(lambda: len(rebuilder.carried_out) == 2)


def test_a_claim_that_was_refused_is_made_again_only_with_consent(rebuilder: Rebuilder) -> None:
    notes: list[str] = []
    rebuilds = Rebuilds(rebuilder, notes.append)
    rebuilder.refusal = RefusedError("too many", "wait")
    rebuilder.may_claim.set()
    for _ in range(2):
        rebuilds.want("orders", Reason.SOURCE_TOPIC_RECREATED, consented=False)
        settled(rebuilds)
    assert (rebuilder.begun, len(notes)) == (["orders"], 1)
    rebuilder.refusal = None
    rebuilds.want("orders", Reason.SOURCE_TOPIC_RECREATED, consented=True)
    assert rebuilds.is_wanted("orders")
    settled(rebuilds)
    assert rebuilder.begun == ["orders", "orders"]


def test_few_topics_are_rebuilt_at_once_and_the_others_after_them(rebuilder: Rebuilder) -> None:
    topics = [f"orders-{number}" for number in range(20)]
    rebuilder.may_end.clear()
    rebuilds = Rebuilds(rebuilder, pytest.fail)
    tick(rebuilds, *topics)
    tick(rebuilds, *topics)
    wait_until(lambda: len(rebuilds.progress) == 8)
    assert sum(thread.name.startswith("kmirror-rebuild") for thread in threading.enumerate()) == 8
    rebuilder.may_end.set()
    settled(rebuilds, *topics)
    assert sorted(rebuilder.carried_out) == sorted(topics)
