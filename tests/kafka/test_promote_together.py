"""Groups of topics that are promoted together on real brokers: all of them are stopped, or none."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kmirror.cli.main import main
from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.writing.fence import FenceResult, replicated_ends
from kmirror.errors import ExitCode, Reason
from kmirror.ops.base.context import Destination
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.describe import describe
from kmirror.ops.stop import batches
from kmirror.ops.stop.batches import promote_in_batches
from kmirror.ops.stop.promote import promote
from kmirror.ops.stop.promote_request import PromoteRequest, PromoteView, Watcher
from kmirror.ops.stop.report import VerbReport
from kmirror.ops.stop.stop import stop
from kmirror.state.records import PartitionState
from kmirror.status.topic_state import TopicState
from tests.kafka.test_promote import mirrored
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.foreign import write_plainly
from tests.support.json_documents import check_printed
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import produce, properties_of, selector
from tests.support.promoting import until_said
from tests.support.visible import assert_mirrored, shown
from tests.support.waiting import wait_until


def states(destination: Destination, mirror: str) -> dict[str, TopicState]:
    return {row.topic: row.topic_state for row in describe(destination, mirror)}


def catch_up(engine: LocalEngine, destination: Destination, mirror: str) -> None:
    engine.catch_up()
    wait_until(lambda: all(row.initial_copy_complete for row in describe(destination, mirror)))


def request(mirror: str, timeout_ms: int | None = 60_000) -> PromoteRequest:
    return PromoteRequest(mirror, idle_ms=0, timeout_ms=timeout_ms, together=True)


def test_a_name_or_pattern_that_matches_nothing_stops_nothing(
    cluster_pair: ClusterPair, destination: Destination, tmp_path: Path
) -> None:
    first, stays = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, first, stays)
    file = tmp_path / "batch-1.txt"
    file.write_text(f"{first}\n{stays} # the big one\n", encoding="utf-8")
    words = ["promote", "--mirror", mirror, "--idle", "0s", "--timeout", "20s"]
    words += ["--bootstrap-server", cluster_pair.destination.bootstrap_servers]
    for more in (["--exclude", f"{stays}s"], ["--exclude", "none[.].*", "--batch", "1"], ["--topics", f"@{file}"]):
        assert main([*words, *more]) == ExitCode.REFUSED
        assert main([*words, *more, "--dry-run"]) == ExitCode.REFUSED
    assert states(destination, mirror) == {first: TopicState.PENDING_MIRROR, stays: TopicState.PENDING_MIRROR}


@pytest.mark.slow
def test_no_topic_is_stopped_before_all_are_ready(
    cluster_pair: ClusterPair, destination: Destination, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ready, held = sorted([unique_topic(), unique_topic()])
    mirror = mirrored(cluster_pair, destination, ready, held)
    producer = Producer({**properties_of(cluster_pair.source), "transactional.id": held})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(held, "undecided", partition=0)
    producer.flush(30)
    evidence = tmp_path / "evidence.json"
    words = ["promote", "--mirror", mirror, "--together", "--idle", "0s", "--json"]
    words += ["--bootstrap-server", cluster_pair.destination.bootstrap_servers]
    with LocalEngine(destination, mirror) as engine:
        catch_up(engine, destination, mirror)
        assert main([*words, "--dry-run"]) == ExitCode.TIMED_OUT
        drill = {row["topic"]: row for row in json.loads(capsys.readouterr().out)["results"]}
        assert drill[ready]["result"] == drill[held]["result"] == "TIMED_OUT"
        assert drill[ready]["message"] == f"{ready} would wait: it is ready and waits for {held}"

        says = f"not ready in time: it is ready and waits for {held}"
        for seconds in (10, 90):  # longer on a busy machine
            assert main([*words, "--timeout", f"{seconds}s"]) == ExitCode.TIMED_OUT
            rows = {row["topic"]: row for row in json.loads(capsys.readouterr().out)["results"]}
            if rows[ready]["message"].endswith(says):
                break
        assert rows[ready]["message"].endswith(says)
        assert "transaction" in rows[held]["message"]
        assert states(destination, mirror) == {ready: TopicState.ACTIVE, held: TopicState.ACTIVE}
        produce(cluster_pair.source, ready, ["four"])
        producer.commit_transaction(30)
        engine.catch_up()
        assert_mirrored(cluster_pair.source, cluster_pair.destination, ready)

        assert main([*words, "--timeout", "120s", "--report", str(evidence)]) == 0
    out = capsys.readouterr().out
    check_printed([*words, "--report", str(evidence)], out)
    reported = json.loads(out)
    assert {(row["topic"], row["result"], row["lag"]) for row in reported["results"]} == {
        (topic, "DONE", 0) for topic in (ready, held)
    }
    assert states(destination, mirror) == {ready: TopicState.STOPPED, held: TopicState.STOPPED}
    written = json.loads(evidence.read_text())
    assert (written["together"], written["partitions"]) == (True, reported["results"])


@pytest.mark.slow
def test_one_that_cannot_be_stopped_releases_all_of_them(cluster_pair: ClusterPair, destination: Destination) -> None:
    sound, foreign = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, sound, foreign)
    with LocalEngine(destination, mirror) as engine:
        catch_up(engine, destination, mirror)
        write_plainly(cluster_pair.destination, foreign, 1)
        produce(cluster_pair.source, foreign, ["four"])
        wait_until(lambda: states(destination, mirror)[foreign] is TopicState.FAILED)
        for dry_run in (False, True):
            done = promote(destination, request(mirror), dry_run=dry_run)
            rows = {row.topic: row for row in done.result.results}
            assert rows[foreign].reason is Reason.DESTINATION_WRITTEN
            assert rows[sound].result is Outcome.REFUSED
            assert foreign in str(rows[sound].message)
            assert done.result.exit_code not in (0, ExitCode.TIMED_OUT, ExitCode.REFUSED)
        assert states(destination, mirror)[sound] is TopicState.ACTIVE
        produce(cluster_pair.source, sound, ["four"])
        engine.catch_up()
        assert_mirrored(cluster_pair.source, cluster_pair.destination, sound)


@pytest.mark.slow
def test_none_is_writable_where_one_of_them_cannot_be_fenced(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, missed = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, first, missed)

    def silent(client: ClusterClient, partitions: Collection[TopicPartition]) -> dict[TopicPartition, FenceResult]:
        away = {
            partition: FenceResult(Code.NOT_LEADER_OR_FOLLOWER, None)
            for partition in partitions
            if partition.topic == missed
        }
        return {**replicated_ends(client, partitions), **away}

    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        monkeypatch.setattr("kmirror.ops.stop.fencing.replicated_ends", silent)
        done = promote(destination, request(mirror))
        assert {(row.topic, row.result) for row in done.result.results} == {
            (first, Outcome.TIMED_OUT),
            (missed, Outcome.FAILED),
        }
        assert done.result.exit_code == ExitCode.PARTLY_DONE
        assert {row.state for row in describe(destination, mirror)} == {PartitionState.STOPPING}
        # another command for other topics does not hide that
        monkeypatch.undo()
        other = promote(destination, PromoteRequest(mirror, selector(missed), idle_ms=0), dry_run=True)
        assert [w for w in other.result.warnings if first in w and "neither mirrored nor writable" in w]
        again = promote(destination, request(mirror))
    assert again.result.exit_code == 0, again.result
    assert {row.state for row in describe(destination, mirror)} == {PartitionState.STOPPED}


def test_a_source_that_moves_in_between_is_reported_exactly(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, moving = unique_topic(), unique_topic()
    mirror = mirrored(cluster_pair, destination, quiet, moving)

    def stop_and_write(*arguments: object) -> object:
        done = stop(*arguments)  # type: ignore[arg-type]
        produce(cluster_pair.source, moving, ["late", "later"])
        return done

    monkeypatch.setattr("kmirror.ops.stop.promote.stop", stop_and_write)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        done = promote(destination, request(mirror))
    assert done.result.exit_code == ExitCode.PARTLY_DONE
    (late,) = [row for row in done.result.results if row.result is not Outcome.DONE]
    assert (late.topic, late.partition, late.lag) == (moving, 0, 2)
    assert late.reason is Reason.SOURCE_WRITTEN_AFTER_STOP
    assert states(destination, mirror) == {quiet: TopicState.STOPPED, moving: TopicState.STOPPED}
    assert len(shown(cluster_pair.destination, quiet)) == 3


def interrupt_batches(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Have a promote in batches be interrupted once these words are said."""

    def promoted(
        destination: Destination, request: PromoteRequest, watcher: Watcher, stopping: threading.Event, **more: Any
    ) -> VerbReport:
        listen, has_said = until_said(words)

        def watch(view: PromoteView) -> None:
            watcher(view)
            listen(view)
            if has_said.is_set():
                stopping.set()

        return promote(destination, request, watch, stopping, **more)

    monkeypatch.setattr(batches, "promote", promoted)


@pytest.mark.slow
def test_batches_follow_each_other_until_one_is_not_ready_and_then_continue(
    cluster_pair: ClusterPair,
    destination: Destination,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second, held = sorted([unique_topic(), unique_topic(), unique_topic()])
    mirror = mirrored(cluster_pair, destination, first, second, held)
    producer = Producer({**properties_of(cluster_pair.source), "transactional.id": held})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(held, "undecided", partition=0)
    producer.flush(30)
    evidence = tmp_path / "evidence.json"
    words = ["promote", "--mirror", mirror, "--batch", "2", "--pause", "100ms", "--idle", "0s", "--json"]
    words += ["--report", str(evidence), "--bootstrap-server", cluster_pair.destination.bootstrap_servers]
    with LocalEngine(destination, mirror) as engine:
        catch_up(engine, destination, mirror)
        assert main([*words, "--dry-run"]) == ExitCode.TIMED_OUT
        reported = capsys.readouterr().err
        assert f"batch 1: {first}, {second}" in reported
        assert f"batch 2: {held}" in reported
        assert set(states(destination, mirror).values()) == {TopicState.ACTIVE}

        with monkeypatch.context() as patched:
            interrupt_batches(patched, "a transaction of producer id")
            assert main([*words, "--timeout", "120s"]) == ExitCode.TIMED_OUT
        rows = json.loads(capsys.readouterr().out)["results"]
        assert {row["topic"] for row in rows if row["result"] == "DONE"} == {first, second}
        (missing,) = [row for row in rows if row["result"] != "DONE"]
        assert (missing["topic"], "transaction" in missing["message"]) == (held, True)
        assert states(destination, mirror) == {
            first: TopicState.STOPPED,
            second: TopicState.STOPPED,
            held: TopicState.ACTIVE,
        }
        written = json.loads(evidence.read_text())
        assert [(one["topics"], one["exitCode"]) for one in written["batches"]] == [([first, second], 0), ([held], 5)]

        producer.commit_transaction(30)
        assert main([*words, "--timeout", "120s"]) == 0
    out = capsys.readouterr().out
    check_printed(words, out)
    again = {row["topic"]: row["result"] for row in json.loads(out)["results"]}
    assert again == {first: "NOOP", second: "NOOP", held: "DONE"}


@pytest.mark.slow
def test_without_an_engine_that_starts_nothing_is_promoted_and_the_reason_is_reported(
    cluster_pair: ClusterPair,
    destination: Destination,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = sorted([unique_topic(), unique_topic()])
    mirror = mirrored(cluster_pair, destination, first, second)
    words = ["promote", "--mirror", mirror, "--batch", "1", "--pause", "100ms", "--idle", "0s", "--json"]
    words += ["--bootstrap-server", cluster_pair.destination.bootstrap_servers]
    assert main([*words, "--master", "nowhere"]) == ExitCode.USAGE
    assert "'nowhere' is not a Spark master" in capsys.readouterr().err
    monkeypatch.setattr("kmirror.ops.base.own_engine._START", "raise OSError('no space left')")
    interrupt_batches(monkeypatch, "one is started again")
    assert main([*words, "--timeout", "120s"]) == ExitCode.TIMED_OUT
    shown = capsys.readouterr()
    rows = {row["topic"]: row for row in json.loads(shown.out)["results"]}
    assert {topic: row["result"] for topic, row in rows.items()} == {first: "TIMED_OUT", second: "TIMED_OUT"}
    assert "no engine is in charge: one is started again (OSError: no space left)" in shown.err
    # when it is interrupted, the one that was started again has ended too, or is about to
    ended = "the one that promote started (ended: OSError: no space left|has not started yet)"
    assert re.search(rf"no engine is in charge of mirror {mirror}; {ended}", shown.err)
    assert {row.reason for row in describe(destination, mirror)} == {Reason.NO_ENGINE}


def test_a_batch_after_which_the_rest_is_not_healthy_is_the_last_one(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    first, second, foreign = sorted([unique_topic(), unique_topic(), unique_topic()])
    mirror = mirrored(cluster_pair, destination, first, second, foreign)
    with LocalEngine(destination, mirror) as engine:
        catch_up(engine, destination, mirror)
        write_plainly(cluster_pair.destination, foreign, 1)
        produce(cluster_pair.source, foreign, ["four"])
        wait_until(lambda: states(destination, mirror)[foreign] is TopicState.FAILED)
        done = promote_in_batches(
            destination, PromoteRequest(mirror, idle_ms=0, timeout_ms=120_000), 1, health_ms=2_000
        )
        assert states(destination, mirror)[second] is TopicState.ACTIVE
    rows = {row.topic: row for row in done.result.results}
    assert done.result.exit_code == ExitCode.HISTORIES_DIFFER
    assert (rows[first].result, rows[foreign].reason) == (Outcome.DONE, Reason.DESTINATION_WRITTEN)
    assert rows[second].result is Outcome.REFUSED
    assert rows[second].message == f"{second} was not stopped: the check after batch 1 failed before its turn"
