"""When topics are rebuilt: claimed first, then worked on, whatever is heard of the claim before or after it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kmirror.engine.driver.rebuilds import ConsentNeededError, Rebuilds
from kmirror.errors import Reason, UnreachableError
from kmirror.work import Watch, WorkView
from tests.support.waiting import wait_until

RESET = Reason.SOURCE_TOPIC_RECREATED


class Rebuilder:
    """Claims when it is let, and notes what it is asked for."""

    def __init__(self) -> None:
        self.may_claim = threading.Event()
        self.refusal: Exception | None = None
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


def running() -> int:
    return sum(thread.name.startswith("kmirror-rebuild") for thread in threading.enumerate())


def settled(rebuilds: Rebuilds, *claimed: str) -> None:
    """Let all that runs end, and have it noticed."""

    def is_over() -> bool:
        tick(rebuilds, *claimed)
        return not running()

    wait_until(is_over)
    tick(rebuilds, *claimed)


def test_a_claim_may_be_seen_before_its_thread_has_ended(rebuilder: Rebuilder) -> None:
    rebuilds = Rebuilds(rebuilder, pytest.fail)
    rebuilds.want("orders", RESET, 0.0, consented=False)
    tick(rebuilds, "orders")
    wait_until(lambda: rebuilder.carried_out)
    assert not rebuilds.is_wanted("orders")
    rebuilder.may_claim.set()
    wait_until(lambda: not running())
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


@pytest.mark.parametrize("error", [UnreachableError("the destination's leader moves"), ValueError("unexpected")])
def test_a_claim_that_failed_is_made_again_after_a_pause(rebuilder: Rebuilder, error: Exception) -> None:
    notes: list[str] = []
    rebuilds = Rebuilds(rebuilder, notes.append)
    rebuilder.refusal = error
    rebuilder.may_claim.set()
    rebuilds.want("orders", RESET, 0.0, consented=False)
    settled(rebuilds)
    assert not rebuilds.is_wanted("orders")
    # other partitions of the topic are FAILED too
    rebuilds.want("orders", RESET, 0.1, consented=False)
    settled(rebuilds)
    assert rebuilder.begun == ["orders"]
    rebuilds.want("orders", RESET, 5.0, consented=False)
    settled(rebuilds)
    assert (rebuilder.begun, len(notes)) == (["orders"] * 2, 1)
    rebuilder.refusal = None
    rebuilds.want("orders", RESET, 60.0, consented=False)
    settled(rebuilds)
    assert rebuilds.is_wanted("orders")
    rebuilds.want("orders", RESET, 100.0, consented=False)
    settled(rebuilds, "orders")
    assert (rebuilder.begun, set(rebuilder.carried_out)) == (["orders"] * 3, {"orders"})


def test_a_claim_that_was_refused_is_made_again_only_with_consent(rebuilder: Rebuilder) -> None:
    notes: list[str] = []
    rebuilds = Rebuilds(rebuilder, notes.append)
    rebuilder.refusal = ConsentNeededError("too many", "wait")
    rebuilder.may_claim.set()
    for _ in range(2):
        rebuilds.want("orders", RESET, 0.0, consented=False)
        settled(rebuilds)
    assert (rebuilder.begun, len(notes)) == (["orders"], 1)
    rebuilder.refusal = None
    rebuilds.want("orders", RESET, 0.0, consented=True)
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
    assert running() == 8
    rebuilder.may_end.set()

    def are_all_begun() -> bool:
        tick(rebuilds, *topics)
        return len(rebuilder.carried_out) == len(topics)

    wait_until(are_all_begun)
    assert sorted(rebuilder.carried_out) == sorted(topics)
