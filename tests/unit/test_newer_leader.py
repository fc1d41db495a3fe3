"""Whether a leader still is one, by what other brokers answer: never certain where another one may have committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import (
    Broker,
    ClusterMetadata,
    LeaderAddress,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from kmirror.cluster.protocol.wire import Exchange
from kmirror.cluster.security.client_config import client_config
from kmirror.cluster.topics.leaders import is_older, newer_leader, newest_leaders
from kmirror.errors import TimedOutError

PARTITION = TopicPartition("state", 0)


def metadata(
    leader: int | None, epoch: int, replicas: Iterable[int] = (1, 2, 3), in_sync: Iterable[int] | None = None
) -> ClusterMetadata:
    nodes = tuple(replicas)
    partition = PartitionMetadata(0, 0, leader, epoch, nodes, nodes if in_sync is None else tuple(in_sync))
    topic = TopicMetadata("state", 0, bytes(16), False, {0: partition})
    return ClusterMetadata("A", 1, {node: Broker(node, "h", node) for node in (1, 2, 3, 4)}, {"state": topic})


def address(found: ClusterMetadata) -> LeaderAddress:
    leader = found.leader_address(PARTITION)
    assert leader is not None
    return leader


KNOWN = metadata(1, 5)
SAME = replace(KNOWN)


class Brokers(ClusterClient):
    """Brokers by what each says of the leader, None for those that are silent."""

    def __init__(self, says: Mapping[int, ClusterMetadata | None]) -> None:
        super().__init__(client_config({"bootstrap.servers": "h:1"}))
        self.says = says
        self.asked: list[list[int]] = []

    def ask_each(self, brokers: Iterable[Broker], message: Any, **_: Any) -> list[Any]:
        assert isinstance(message, Exchange)
        nodes = [broker.node_id for broker in brokers]
        self.asked.append(nodes)
        return [self.says.get(node) for node in nodes]

    def metadata(self, topics: Iterable[str] | None = None, *, timeout: float | None = None) -> ClusterMetadata:
        return KNOWN


def found(says: Mapping[int, ClusterMetadata | None], known: ClusterMetadata = KNOWN) -> ClusterMetadata | None:
    return newer_leader(Brokers(says), PARTITION, known, 1)


def test_no_one_knows_a_newer_one() -> None:
    brokers = Brokers({1: SAME, 2: SAME, 3: metadata(9, 4)})
    assert newer_leader(brokers, PARTITION, KNOWN, 1) is None
    assert brokers.asked == [[1, 2, 3]], "one request to each replica, and to no one else"


def test_the_leader_knows_best_who_is_in_sync() -> None:
    before = metadata(1, 5, in_sync=[1, 2])
    assert found({1: before, 2: before}, before) is None
    with pytest.raises(TimedOutError, match="its replica on 3 did not answer"):
        found({1: KNOWN, 2: before}, before)


@pytest.mark.parametrize(
    ("read", "is_out_of_date"),
    [
        (address(KNOWN), False),
        (address(metadata(2, 6)), False),
        (address(metadata(2, 4)), True),
        (address(KNOWN)._replace(topic_id=b"another topic id"), True),
        (address(KNOWN)._replace(leader_epoch=-1), False),
        (None, True),
    ],
    ids=["the leader", "a newer one", "an older one", "of another topic", "one without an epoch", "none"],
)
def test_what_was_read_from_an_older_leader_is_out_of_date(read: LeaderAddress | None, is_out_of_date: bool) -> None:
    assert is_older(PARTITION, read, KNOWN) is is_out_of_date
    assert not is_older(PARTITION, read, metadata(None, 6))


def test_a_single_replica_needs_no_question() -> None:
    brokers = Brokers({})
    assert newer_leader(brokers, PARTITION, metadata(1, 5, [1]), 1) is None
    assert brokers.asked == []


def test_the_newest_one_counts_whichever_is_silent() -> None:
    newer, newest = metadata(2, 6), metadata(3, 7)
    assert found({2: newer, 3: newest}) is newest
    assert found({2: newest, 3: newer}) is newest
    assert found({2: newer, 3: None}) is newer


@pytest.mark.parametrize(
    ("replicas", "in_sync", "answering", "is_certain"),
    [
        ([1, 2, 3], [1, 2, 3], [2, 3], True),
        # it may have been elected and have committed alone
        ([1, 2, 3], [1, 2, 3], [2], False),
        ([1, 2, 3], [1, 2], [2], True),
        ([1, 2, 3], [1], [], False),
        ([1, 2, 3], [1], [2], True),
        ([1, 2], [1, 2], [], False),
        ([1, 2], [1], [], True),
        ([1, 2, 3, 4], [1, 2, 3], [2, 3], True),
        ([1, 2, 3, 4], [1, 2], [2], False),
        # on a broker that is not known
        ([1, 2, 9], [1, 2], [2], True),
        ([1, 2, 9], [1, 2, 9], [2], False),
    ],
)
def test_who_is_in_sync_and_most_replicas_must_answer(
    replicas: list[int], in_sync: list[int], answering: list[int], is_certain: bool
) -> None:
    known = metadata(1, 5, replicas, in_sync)
    says = dict.fromkeys([1, *answering], known)
    if is_certain:
        assert found(says, known) is None
        return
    with pytest.raises(TimedOutError, match="whether broker 1 still leads state-0 is not certain: its replica"):
        found(says, known)


@pytest.mark.parametrize(
    ("replicas", "answering", "is_enough"),
    [([1, 2, 3], [2], True), ([1, 2, 3], [], False), ([1, 2], [], True), ([1, 2, 3, 4], [2], False)],
)
def test_most_replicas_are_enough_for_who_must_not_be_held_up(
    replicas: list[int], answering: list[int], is_enough: bool
) -> None:
    known = metadata(1, 5, replicas)
    brokers = Brokers(dict.fromkeys([1, *answering], known))
    if is_enough:
        assert newer_leader(brokers, PARTITION, known, 1, strictly=False) is None
        return
    with pytest.raises(TimedOutError, match="did not answer"):
        newer_leader(brokers, PARTITION, known, 1, strictly=False)


def test_a_broker_that_does_not_know_the_topic_says_nothing() -> None:
    without = replace(KNOWN, topics={"state": TopicMetadata("state", 3, bytes(16), False, {})})
    with pytest.raises(TimedOutError, match="its replicas on 2, 3 did not answer"):
        found({1: KNOWN, 2: without, 3: without})


def test_another_topic_of_the_name_may_be_the_newer_one() -> None:
    other = replace(KNOWN, topics={"state": replace(KNOWN.topics["state"], topic_id=bytes(15) + b"\x01")})
    with pytest.raises(TimedOutError, match="broker 3 knows another topic of this name"):
        found({1: SAME, 2: SAME, 3: other})


def test_without_a_leader_all_replicas_are_asked() -> None:
    newer = metadata(2, 6)
    assert found({1: KNOWN, 2: newer, 3: newer}, metadata(None, 5)) is newer
    with pytest.raises(TimedOutError, match="who leads state-1 is not certain"):
        newer_leader(Brokers({}), TopicPartition("state", 1), KNOWN, 1)


def test_what_is_deleted_is_measured_by_the_newest_leader_that_any_broker_knows() -> None:
    brokers = Brokers({1: SAME, 2: metadata(2, 6), 3: SAME, 4: SAME})
    assert newest_leaders(brokers, [PARTITION]).leader_address(PARTITION) == address(metadata(2, 6))


def test_while_a_broker_with_a_replica_is_silent_nothing_is_measured() -> None:
    assert newest_leaders(Brokers({1: SAME, 2: SAME, 3: SAME}), [PARTITION]).topics == KNOWN.topics
    with pytest.raises(TimedOutError, match="who leads state-0 is not certain: brokers 3, 4 do not answer"):
        newest_leaders(Brokers({1: SAME, 2: SAME}), [PARTITION])
