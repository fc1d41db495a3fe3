"""Which leader of a source partition is believed, and when a lane leaves one that is cut off from the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, cast

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import Broker, ClusterMetadata, TopicPartition
from kmirror.cluster.security.client_config import client_config
from kmirror.engine.histories.judge import Copy
from kmirror.engine.histories.source_leaders import SourceLeaders
from kmirror.engine.lane.brokers.background_requests import BackgroundRequests
from kmirror.engine.lane.leader_checks import CHECK_SECONDS, LeaderChecks
from kmirror.engine.lane.partition.states import Status
from kmirror.errors import Reason
from tests.support.partition_shell import ASSIGNMENT, EPOCH_MS, Shell, facts
from tests.unit.test_newer_leader import PARTITION, metadata

TOPICS = [PARTITION.topic]
OLD, NEW = metadata(1, 5), metadata(2, 6)


class Source(ClusterClient):
    """Brokers by what each says of the leader, None for those that are silent; the first one is asked first."""

    def __init__(self, **says: ClusterMetadata | None) -> None:
        super().__init__(client_config({"bootstrap.servers": "h:1"}))
        self.says: dict[int, ClusterMetadata | None] = {1: OLD, 2: OLD, 3: OLD, 4: OLD}
        self.says |= {int(name[1:]): answer for name, answer in says.items()}
        self.asked: list[int] = []

    def metadata(self, *_: Any, **__: Any) -> ClusterMetadata:
        answer = self.says[1]
        assert answer is not None
        return answer

    def ask_each(self, brokers: Iterable[Broker], *_: Any, **__: Any) -> list[Any]:
        nodes = [broker.node_id for broker in brokers]
        self.asked += nodes
        return [self.says[node] for node in nodes]


def leader(found: ClusterMetadata | None) -> tuple[int | None, int] | None:
    known = found.leader(PARTITION) if found else None
    return (known.leader_id, known.leader_epoch) if known else None


def test_one_broker_is_enough_while_it_names_no_older_leader() -> None:
    source = Source()
    leaders = SourceLeaders(source)
    assert leader(leaders.metadata(TOPICS, 1)) == (1, 5)
    source.says[1] = NEW
    assert leader(leaders.metadata(TOPICS, 1)) == (2, 6)
    assert not source.asked


def test_an_older_leader_is_not_believed_while_a_broker_is_silent() -> None:
    source = Source(b1=NEW)
    leaders = SourceLeaders(source)
    leaders.metadata(TOPICS, 1)
    source.says |= {1: OLD, 2: None}
    assert leader(leaders.metadata(TOPICS, 1)) == (2, 6)
    assert source.asked == [1, 2, 3, 4]
    # and still is not the next time
    assert leader(leaders.metadata(TOPICS, 1)) == (2, 6)
    # it was another topic, without an id, once no broker knows the newer leader
    source.says[2] = OLD
    assert leader(leaders.metadata(TOPICS, 1)) == (1, 5)


def test_each_broker_is_asked_in_turn_and_the_newest_is_remembered() -> None:
    source = Source(b3=NEW)
    leaders = SourceLeaders(source)
    assert leaders.ask_next(TOPICS) is None
    leaders.metadata(TOPICS, 1)
    assert [leader(leaders.ask_next(TOPICS)) for _ in range(4)] == [(1, 5), (2, 6), (2, 6), (2, 6)]
    assert source.asked == [2, 3, 4, 1]
    # the first one is asked for an inspection, is cut off, and another one knows
    assert leader(leaders.metadata(TOPICS, 1)) == (2, 6)


def test_what_a_former_leader_may_have_said_is_in_doubt() -> None:
    source = Source(b3=NEW)
    doubts = SourceLeaders(source).doubts
    assert doubts([], OLD, 1) == {}
    assert not source.asked
    changed = "the leader of state-0 has changed: broker 2 leads it now, leader epoch 6"
    assert doubts([PARTITION], OLD, 1) == {PARTITION: changed}
    source.says[4] = metadata(None, 7)
    changed = "the leader of state-0 has changed: no broker leads it now, leader epoch 7"
    assert doubts([PARTITION], OLD, 1) == {PARTITION: changed}
    source.says[4] = OLD
    assert doubts([PARTITION], NEW, 1) == {}
    source.says[2] = None
    uncertain = "whether broker 2 still leads state-0 is not certain: 1 broker does not answer"
    assert doubts([PARTITION], NEW, 1) == {PARTITION: uncertain}
    # none of its replicas is there
    source.says |= {2: NEW, 4: None}
    assert doubts([PARTITION], NEW, 1) == {}


class Answering:
    """Answer each question after leaders at once, with what is known."""

    def __init__(self) -> None:
        self.asked: list[set[str]] = []
        self.known: ClusterMetadata | None = None
        self.now = 0.0

    def ask_for_leaders(self, topics: Collection[str], done: Callable[[ClusterMetadata | None, float], None]) -> None:
        self.asked.append(set(topics))
        done(self.known, self.now)


def test_a_lane_leaves_a_leader_that_has_a_successor() -> None:
    shell, source = Shell(), Answering()
    copying = shell.copy
    copying.begin_inspection(0.0)
    copying.inspected(facts(source_leader=(1, 5)), Copy(0), 0.0, EPOCH_MS)
    checks = LeaderChecks(cast(BackgroundRequests, source))

    def check(known: ClusterMetadata | None) -> Status:
        source.known = known
        source.now += CHECK_SECONDS
        checks.on_tick([copying], source.now)
        return copying.status

    checks.on_tick([copying], source.now)
    assert not source.asked
    assert check(None) is Status.COPYING
    assert check(of_source(OLD)) is Status.COPYING
    newer = of_source(NEW)
    assert check(newer) is Status.WAITING
    assert copying.retry.trouble is not None
    assert copying.retry.trouble.reason is Reason.SOURCE_UNREACHABLE
    assert copying.retry.trouble.message == (
        "the leader of orders-3 has changed: broker 2 leads it now, leader epoch 6"
    )
    copying.begin_inspection(source.now)
    copying.inspected(facts(source_leader=(2, 6)), Copy(0), source.now, EPOCH_MS)
    assert check(newer) is Status.COPYING
    assert source.asked == [{"orders"}] * 4
    checks.on_tick([copying], source.now + CHECK_SECONDS / 2)
    assert len(source.asked) == 4


def of_source(found: ClusterMetadata) -> ClusterMetadata:
    """Return the same answer about the source partition of the copy."""
    of_state = found.topics[PARTITION.topic]
    source = TopicPartition(ASSIGNMENT.source_topic, ASSIGNMENT.partition)
    one = of_state.partitions[0]._replace(partition=source.partition)
    topic = type(of_state)(source.topic, 0, of_state.topic_id, False, {source.partition: one})
    return ClusterMetadata(found.cluster_id, found.controller_id, found.brokers, {source.topic: topic})
