"""What is weak about the replication of topics."""

from __future__ import annotations

import pytest

from kmirror.ops.mirrors.replication import Replication, weak_replication


@pytest.mark.parametrize(
    ("replicas", "min_in_sync", "brokers", "said"),
    [
        (1, 1, 1, []),
        (1, None, 1, []),
        (1, 2, 1, ["so min.insync.replicas=2 can never be met"]),
        (1, 1, 2, ["on a cluster of 2 brokers"]),
        (1, 2, 3, ["on a cluster of 3 brokers", "so min.insync.replicas=2 can never be met"]),
        (2, 2, 3, []),
        (2, 3, 3, ["so min.insync.replicas=3 can never be met"]),
        (3, None, 3, []),
    ],
)
def test_what_is_said(replicas: int, min_in_sync: int | None, brokers: int, said: list[str]) -> None:
    notes = weak_replication({"a": Replication(replicas, min_in_sync, True)}, brokers)
    assert [words in message for words, (message, _) in zip(said, notes, strict=True)] == [True] * len(said)


def test_topics_alike_share_a_line_and_the_hint_names_their_settings() -> None:
    own, there = Replication(1, 1, False), Replication(1, 1, True)
    found = {"__kmirror_state": own, "new mirror topics": own, "orders": there}
    (new, hint), (old, command) = weak_replication(found, 3)
    assert new.startswith("__kmirror_state, new mirror topics get 1 replica")
    assert hint.startswith("set replication.factor and state.replication.factor")
    assert old.startswith("orders has 1 replica")
    assert command.startswith("add replicas with kafka-reassign-partitions.sh")
