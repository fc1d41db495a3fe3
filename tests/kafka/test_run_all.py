"""`run --all` copies whatever mirrors a destination has: they come and go, and none of them holds up the others."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from kmirror.errors import RefusedError
from kmirror.ops.base.context import Destination, change, now_ms
from kmirror.ops.base.run_request import RunRequest
from kmirror.ops.run.engine_start import EngineStart
from kmirror.ops.run.run import preview
from kmirror.state.engine_identity import EngineIdentity
from kmirror.state.lease import Lease
from kmirror.state.records import DesiredState, EngineState, MirrorRecord, TopicOrigin, TopicRecord
from kmirror.state.snapshot import Changes
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import Engine, Pair, kmirror, typed
from tests.support.mirrors import new_mirror, properties_of
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def everything(empty_destination: SandboxCluster, tmp_path: Path) -> Iterator[tuple[SandboxCluster, Engine]]:
    """Give a destination without mirrors, and an engine that copies all of them."""
    engine = Engine(empty_destination, None, tmp_path / "all.out", with_spark=False)
    yield empty_destination, engine
    engine.destroy()


#: How to reach a source that is down.
SECURED = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}


def store(destination: SandboxCluster, name: str, source: dict[str, str]) -> None:
    """Store a mirror as `create` does, without looking at its source."""
    record = MirrorRecord(name, source, {}, "a-cluster", "eve@ops", now_ms())
    with Destination.open(properties_of(destination)) as opened:
        change(opened, name, lambda _: Changes((record,)))


@pytest.mark.slow
def test_mirrors_come_and_go(
    source_cluster: SandboxCluster, everything: tuple[SandboxCluster, Engine], tmp_path: Path
) -> None:
    destination, engine = everything
    first, second = (Pair(source_cluster, destination, tmp_path, unique_topic(), partitions=1) for _ in range(2))
    with closing(first), closing(second):
        wait_until(lambda: "waiting for a mirror: the destination has none to copy" in engine.output)
        refused = typed(destination, "run", "--all", "--until-caught-up")
        assert (refused.returncode, "there is no mirror to copy" in refused.stderr) == (3, True), refused
        # one whose source is down, and one whose password is unknown
        store(destination, "down", {"bootstrap.servers": "127.0.0.1:1"})
        store(destination, "locked", {**SECURED, "sasl.jaas.config": "${env:KM_NOT_THERE_AT_ALL}"})
        store(destination, "forbidden", {**SECURED, "sasl.jaas.config": "${env:NOT_FOR_MIRRORS}"})
        first.create()
        first.fill(10)
        first.wait_until_equal(engine)
        wait_until(lambda: "locked not copied by this engine: sasl.jaas.config: the reference" in engine.output)
        refusal = "forbidden not copied by this engine: sasl.jaas.config: this host lets no mirror use the environment"
        wait_until(lambda: refusal in engine.output)

        # another engine copies the second
        second.create("copy.lanes=1")
        wait_until(lambda: f"{second.topic}: ACTIVE" in engine.output)
        rival = second.engine("--take-over", with_spark=False)
        second.fill(10)
        second.wait_until_equal(rival)
        reported = f"WARNING {second.mirror} not copied by this engine: this engine is no longer in charge of mirror"
        wait_until(lambda: reported in engine.output)
        assert engine.process.poll() is None
        assert rival.stop() == 0
        second.fill(10)
        second.wait_until_equal(engine)

        # failed over, the first is let go, and may be deleted
        failed_over = typed(destination, "failover", "--mirror", first.mirror, "--yes")
        assert failed_over.returncode == 0, failed_over
        wait_until(lambda: f"{first.mirror} failed over as a whole: no longer copied" in engine.output)
        assert typed(destination, "delete", "--mirror", first.mirror, "--yes").returncode == 0
        for name in ("locked", "forbidden"):
            assert typed(destination, "delete", "--mirror", name, "--yes").returncode == 0
        wait_until(lambda: engine.output.count(" deleted: no longer copied") == 2)
        second.fill(10)
        second.wait_until_equal(engine)
        listed = {row["mirror"]: row["reason"] for row in json.loads(typed(destination, "list", "--json").stdout)}
        assert listed == {second.mirror: None, "down": None}

        # a standby takes over what the first one leaves, and holds nothing against it
        standby = Engine(destination, None, tmp_path / "standby.out", "--standby", with_spark=False)
        try:
            wait_until(lambda: "* waiting" in standby.output)
            assert engine.stop() == 0, engine.output
            second.fill(10)
            second.wait_until_equal(standby)
            assert standby.stop() == 0, standby.output
        finally:
            standby.destroy()

        # what cannot be copied to its end is reported by the exit code, and delays nothing
        second.fill(10)
        done = kmirror(destination, "run", "--all", "--until-caught-up", "--json", with_spark=False)
        rows = [(row["topic"], row["result"], row["reason"]) for row in json.loads(done.stdout)["results"]]
        assert rows == [(None, "FAILED", "SOURCE_UNREACHABLE"), (second.topic, "DONE", None)]
        assert done.returncode == 4
        second.assert_equal()


@pytest.mark.slow
def test_a_mirror_that_another_engine_takes_in_mid_copy_is_not_reported_as_done(
    source_cluster: SandboxCluster, empty_destination: SandboxCluster, tmp_path: Path
) -> None:
    taken, copied = (Pair(source_cluster, empty_destination, tmp_path, unique_topic(), partitions=1) for _ in range(2))
    with closing(taken), closing(copied):
        taken.create("copy.lanes=1", "throttle.bytes.per.second=65536")
        copied.create("copy.lanes=1")
        taken.fill(10_000)
        copied.fill(10)
        engine = Engine(empty_destination, None, tmp_path / "all.out", "--until-caught-up", "--json", with_spark=False)
        try:
            taken.wait_until_copying(engine)
            copied.wait_until_equal(engine)
            taken.engine("--take-over", with_spark=False)
            assert engine.wait(PATIENCE_S) == 4, engine.output
        finally:
            engine.destroy()
        printed, _ = json.JSONDecoder().raw_decode(engine.output, engine.output.index('{\n  "verb"'))
        rows = [(row["topic"], row["result"], row["reason"], row["lag"]) for row in printed["results"]]
        assert rows == [(None, "REFUSED", "FENCED", None), (copied.topic, "DONE", None, 0)]
        assert taken.destination_end() < taken.source_end()


@pytest.mark.slow
def test_of_several_named_mirrors_one_that_another_engine_had_is_taken_again(
    cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    source, destination = cluster_pair.source, cluster_pair.destination
    first, second = (Pair(source, destination, tmp_path, unique_topic(), partitions=1) for _ in range(2))
    with closing(first), closing(second):
        for pair in (first, second):
            pair.create("copy.lanes=1")
        engine = Engine(destination, first.mirror, tmp_path / "both.out", "--mirror", second.mirror, with_spark=False)
        try:
            for pair in (first, second):
                pair.fill(10)
                pair.wait_until_equal(engine)
            rival = second.engine("--take-over", with_spark=False)
            second.fill(10)
            second.wait_until_equal(rival)
            wait_until(lambda: f"{second.mirror} not copied by this engine" in engine.output)
            assert rival.stop() == 0
            for pair in (first, second):
                pair.fill(10)
                pair.wait_until_equal(engine)

            # when nothing is left to copy it ends, and says why
            for pair in (first, second):
                failed_over = typed(destination, "failover", "--mirror", pair.mirror, "--yes")
                assert failed_over.returncode == 0, failed_over
            wait_until(lambda: engine.process.poll() is not None)
            assert engine.process.returncode == 3, engine.output
        finally:
            engine.destroy()


@pytest.mark.slow
def test_a_mirror_is_taken_again_when_a_command_that_shut_out_its_slow_engine_has_ended(
    cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    source, destination = cluster_pair.source, cluster_pair.destination
    copied, stopped = (Pair(source, destination, tmp_path, unique_topic(), partitions=1) for _ in range(2))
    with closing(copied), closing(stopped):
        copied.create("copy.lanes=1")
        added = typed(destination, "add", "--mirror", copied.mirror, "--topics", stopped.topic)
        assert added.returncode == 0, added
        engine = copied.engine(with_spark=False)
        copied.fill(10)
        copied.wait_until_equal(engine)
        engine.process.send_signal(signal.SIGSTOP)
        failover = typed(destination, "failover", "--mirror", copied.mirror, "--topics", stopped.topic, "--yes")
        assert failover.returncode == 0, failover
        copied.fill(10)
        engine.process.send_signal(signal.SIGCONT)
        copied.wait_until_equal(engine)
        # its lane may have copied before its driver noticed
        shut_out = f"no longer in charge of mirror '{copied.mirror}': a command, process"
        wait_until(lambda: shut_out in engine.output)

        # another engine that takes over keeps it
        rival = copied.engine("--take-over", with_spark=False)
        assert engine.wait(PATIENCE_S) == 3, engine.output
        copied.fill(10)
        copied.wait_until_equal(rival)


@pytest.mark.slow
def test_a_standby_waits_for_a_login_that_is_written_after_a_boot(cluster_pair: ClusterPair, tmp_path: Path) -> None:
    pair = Pair(cluster_pair.source, cluster_pair.destination, tmp_path, unique_topic(), partitions=1)
    login, secret = tmp_path / "login.properties", tmp_path / "secret.properties"
    with closing(pair):
        pair.create("copy.lanes=1")
        pair.fill(10)
        refused = kmirror(pair.destination, "run", "--mirror", pair.mirror, "--command-config", str(login))
        assert refused.returncode == 2, refused
        options = ("--standby", "--command-config", str(login))
        engine = Engine(pair.destination, pair.mirror, tmp_path / "late.out", *options, with_spark=False)
        try:
            wait_until(lambda: f"cannot read the properties file {login}: No such file" in engine.output)
            login.write_text(f"client.id=${{file:{secret}:id}}")
            wait_until(lambda: f"cannot read the properties file {secret}: No such file" in engine.output)
            secret.write_text("id=late")
            pair.wait_until_equal(engine)
        finally:
            engine.destroy()


@pytest.mark.slow
def test_engines_with_standby_that_were_taken_over_while_paused_stand_by_again(
    cluster_pair: ClusterPair, tmp_path: Path
) -> None:
    pair = Pair(cluster_pair.source, cluster_pair.destination, tmp_path, unique_topic(), partitions=1)
    lost = f"{pair.mirror} not copied by this engine: this engine is no longer in charge of mirror"
    with closing(pair), Destination.open(properties_of(pair.destination)) as destination, ExitStack() as stack:

        def wait_until_in_charge(engine: Engine) -> None:
            wait_until(lambda: (found := destination.state().engine(pair.mirror)) and found.pid == engine.process.pid)
            pair.fill(10)
            pair.wait_until_equal(engine)

        def standby(name: str) -> Engine:
            engine = Engine(pair.destination, pair.mirror, tmp_path / name, "--standby", with_spark=False)
            stack.callback(engine.destroy)
            return engine

        pair.create("copy.lanes=1")
        first = standby("first.out")
        wait_until_in_charge(first)
        second = standby("second.out")
        for paused, other in ((first, second), (second, first)):
            paused.process.send_signal(signal.SIGSTOP)
            wait_until_in_charge(other)
            paused.process.send_signal(signal.SIGCONT)
            wait_until(lambda paused=paused: lost in paused.output)  # type: ignore[misc]
            assert "WARNING " + lost not in paused.output

        # an engine that an operator started keeps the mirror; stopping a waiting one is no failure
        operator = pair.engine("--take-over", with_spark=False)
        wait_until_in_charge(operator)
        taken_over = f"{lost} {pair.mirror!r}: process {operator.process.pid} "
        wait_until(lambda: taken_over in first.output)
        assert second.stop() == 0, second.output
        wait_until_in_charge(operator)

        # with nothing left to copy, a waiting engine ends, too
        failed_over = typed(pair.destination, "failover", "--mirror", pair.mirror, "--yes")
        assert failed_over.returncode == 0, failed_over
        assert first.wait(PATIENCE_S) == 3, first.output


@pytest.mark.parametrize("standby", [False, True])
@pytest.mark.parametrize(
    ("pending", "why"), [("stop", "is being stopped as a whole"), (None, "was failed over as a whole")]
)
def test_a_mirror_stopped_while_its_lease_is_waited_for_is_not_taken(
    destination: Destination, pending: str | None, why: str, standby: bool
) -> None:
    """A run that read the mirror before a failover claimed it takes the lease after the failover has released it."""
    name = unique_topic("m")
    before = MirrorRecord(name, {}, {}, "a-cluster", "eve@ops", now_ms())
    topic = TopicRecord(name, "t", "t", None, None, DesiredState.STOPPED, 1, TopicOrigin.CREATED)
    stopped = replace(before, discovery_ended=True), replace(topic, pending_operation=pending)
    change(destination, name, lambda _: Changes(stopped))
    start = EngineStart(destination, before, RunRequest((name,), standby=standby), Event())
    with closing(start), pytest.raises(RefusedError, match=why):
        start.take_lease()
    engine = destination.state().engine(name)
    assert engine is not None
    assert engine.state is EngineState.RELEASED


def test_a_dry_run_is_refused_while_another_engine_is_in_charge(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    mirror = new_mirror(destination, cluster_pair.source)
    request, properties = RunRequest((mirror,)), destination.properties
    lease = Lease.acquire(destination.store, mirror, EngineIdentity.of_this_process(master="local[1]"))

    def messages(request: RunRequest) -> list[str | None]:
        return [row.message for row in preview(lambda: Destination.open(properties), request).results]

    with closing(lease):
        with pytest.raises(RefusedError, match="an engine is in charge of mirror"):
            messages(request)
        (fences,) = messages(replace(request, take_over=True))
        (waits,) = messages(replace(request, standby=True))
        assert (f"and fence {lease.record.name}" in str(fences), "has stopped" in str(waits)) == (True, True)
        assert destination.state().engine(mirror) == lease.record
        lease.release()
    assert len(messages(request)) == 1
