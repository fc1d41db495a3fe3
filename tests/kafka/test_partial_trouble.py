"""A broker of the destination is away when mirroring is stopped: what it leads is named, and stopped later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kmirror.cluster.client import LATEST
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import ExitCode, Reason
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.base.results import VerbResult
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.describe import describe
from kmirror.ops.stop.failover import failover
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest
from kmirror.ops.stop.stop import stop
from kmirror.state.records import PartitionState
from kmirror.status.topic_state import TopicState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import QUICK_FAILOVER, MakeCluster, unique_topic
from tests.support.leader import create_topic
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.visible import shown
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

THREE = {"default.replication.factor": "3", "min.insync.replicas": "2", **QUICK_FAILOVER}
#: The broker that goes away.
GONE = 3
#: Where the destination's replicas of each topic's partitions are.
PLACES = {"safe": [[1, 2]], "spread": [[1], [2], [GONE]], "away": [[GONE]]}


@pytest.fixture(scope="module")
def three(make_module_cluster: MakeCluster) -> SandboxCluster:
    return make_module_cluster("three", brokers=3, properties=THREE)


class Stage:
    """A mirror of three topics: one that does without the broker, one that partly does, one that does not."""

    def __init__(self, source: SandboxCluster, three: SandboxCluster, destination: Destination) -> None:
        self.source, self.three, self.destination = source, three, destination
        self.mirror = new_mirror(destination, source)
        self.topics = {kind: unique_topic(kind) for kind in PLACES}
        for kind, topic in self.topics.items():
            make_topic(source, topic, len(PLACES[kind]), retention_ms="-1")
            for partition in range(len(PLACES[kind])):
                produce(source, topic, ["one", "two", "three"], partition)
            create_topic(three, name=topic, partitions=len(PLACES[kind]), replicas=PLACES[kind])
        added = add(destination, self.mirror, selector(*self.topics.values()), adopt=True)
        assert added.exit_code == 0, added

    @property
    def safe(self) -> str:
        return self.topics["safe"]

    @property
    def places(self) -> list[TopicPartition]:
        return [TopicPartition(topic, p) for kind, topic in self.topics.items() for p in range(len(PLACES[kind]))]

    def lose_broker(self) -> None:
        self.three.kill(GONE)

    def regain_broker(self) -> None:
        self.three.start_broker(GONE)

        def all_led() -> bool:
            found = self.destination.client.list_offsets(dict.fromkeys(self.places, LATEST), log_end=True)
            return all(answer.offset is not None for answer in found.values())

        wait_until(all_led)

    def outcomes(self, result: VerbResult) -> dict[str, set[Outcome]]:
        """Return what became of each kind of topic."""
        found: dict[str, set[Outcome]] = {kind: set() for kind in self.topics}
        for row in result.results:
            found[next(kind for kind, topic in self.topics.items() if topic == row.topic)].add(row.result)
        return found

    def assert_all_stopped(self, reason: Reason) -> None:
        """Everything is stopped where the source ends, holds what it does, and takes records."""
        rows = describe(self.destination, self.mirror)
        assert {(r.topic, r.partition) for r in rows} == set(self.places)
        assert {(r.state, r.reason, r.last_mirrored_offset) for r in rows} == {(PartitionState.STOPPED, reason, 3)}
        for place in self.places:
            assert shown(self.three, *place)[:3] == shown(self.source, *place)
            before = len(shown(self.three, *place))
            produce(self.three, place.topic, ["local"], place.partition)
            assert len(shown(self.three, *place)) == before + 1


@contextmanager
def staged(source: SandboxCluster, three: SandboxCluster) -> Iterator[Stage]:
    """Make a mirror for the block; all brokers run when it begins."""
    three.start()
    with Destination.open(properties_of(three)) as destination:
        yield Stage(source, three, destination)


def test_failover_while_a_leader_is_away(source_cluster: SandboxCluster, three: SandboxCluster) -> None:
    with staged(source_cluster, three) as stage:
        with LocalEngine(stage.destination, stage.mirror) as engine:
            engine.catch_up()
        stage.lose_broker()
        done = failover(stage.destination, stage.mirror).result
        assert done.exit_code == ExitCode.PARTLY_DONE, done
        assert stage.outcomes(done) == {"safe": {Outcome.DONE}, "spread": {Outcome.FAILED}, "away": {Outcome.FAILED}}
        failed = [row for row in done.results if row.result is Outcome.FAILED]
        assert {(row.topic, row.partition) for row in failed} == {
            (stage.topics["spread"], 2),
            (stage.topics["away"], 0),
        }
        assert all(re.search("ends? is unknown", str(row.message)) for row in failed)
        assert all("the same command" in str(row.hint) for row in failed)
        states = {row.topic: row.topic_state for row in describe(stage.destination, stage.mirror)}
        assert states[stage.safe] is TopicState.STOPPED
        assert states[stage.topics["away"]] is not TopicState.STOPPED
        produce(three, stage.safe, ["taken at once"])
        # as long as the broker is away it stays so
        again = failover(stage.destination, stage.mirror).result
        assert again.exit_code == ExitCode.PARTLY_DONE
        assert stage.outcomes(again)["safe"] == {Outcome.NOOP}
        stage.regain_broker()
        finished = failover(stage.destination, stage.mirror).result
        assert finished.exit_code == 0, finished
        stage.assert_all_stopped(Reason.FAILED_OVER)


def test_promote_waits_for_a_leader_and_gives_its_topics_back(
    source_cluster: SandboxCluster, three: SandboxCluster
) -> None:
    with (
        staged(source_cluster, three) as stage,
        LocalEngine(stage.destination, stage.mirror) as engine,
    ):
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(stage.destination, stage.mirror)))
        stage.lose_broker()
        done = promote(stage.destination, PromoteRequest(stage.mirror, idle_ms=None, timeout_ms=30_000)).result
        # asked later it may well be complete: nothing has failed
        assert done.exit_code == ExitCode.TIMED_OUT, done
        assert stage.outcomes(done) == {
            "safe": {Outcome.DONE},
            "spread": {Outcome.TIMED_OUT},
            "away": {Outcome.TIMED_OUT},
        }
        missing = [row for row in done.results if row.result is Outcome.TIMED_OUT]
        assert all("1 partition has no leader" in str(row.message) for row in missing), missing
        stage.regain_broker()
        finished = promote(stage.destination, PromoteRequest(stage.mirror, idle_ms=None, timeout_ms=90_000)).result
        assert finished.exit_code == 0, finished
        stage.assert_all_stopped(Reason.PROMOTED)


def test_promote_loses_a_leader_in_the_middle_of_the_stop(
    source_cluster: SandboxCluster, three: SandboxCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        staged(source_cluster, three) as stage,
        LocalEngine(stage.destination, stage.mirror) as engine,
    ):
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(stage.destination, stage.mirror)))

        def lose_and_stop(*arguments: object) -> object:
            stage.lose_broker()
            return stop(*arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr("kmirror.ops.stop.promote.stop", lose_and_stop)
            done = promote(stage.destination, PromoteRequest(stage.mirror, idle_ms=None, timeout_ms=120_000)).result
        assert done.exit_code == ExitCode.PARTLY_DONE, done
        assert stage.outcomes(done) == {"safe": {Outcome.DONE}, "spread": {Outcome.FAILED}, "away": {Outcome.FAILED}}
        stage.regain_broker()
        # their stop has begun: they wait for nothing any more
        finished = promote(stage.destination, PromoteRequest(stage.mirror, timeout_ms=120_000)).result
        assert finished.exit_code == 0, finished
        assert stage.outcomes(finished)["safe"] == {Outcome.NOOP}
        stage.assert_all_stopped(Reason.PROMOTED)
