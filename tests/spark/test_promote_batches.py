"""`promote --batch` while no engine runs: it runs one itself, for all of its batches, and leaves none behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from kmirror.errors import ExitCode
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.show.describe import describe
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import command, run_to_its_end, typed
from tests.support.foreign import write_plainly
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of, selector
from tests.support.visible import assert_mirrored
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PAUSE_MS = 1500


@pytest.fixture
def destination(cluster_pair: ClusterPair) -> Iterator[Destination]:
    with Destination.open(properties_of(cluster_pair.destination)) as opened:
        yield opened


def mirrored(pair: ClusterPair, destination: Destination, count: int) -> tuple[str, list[str]]:
    """Return a mirror and its topics in the order of their batches; nothing is copied yet."""
    mirror, topics = new_mirror(destination, pair.source), sorted(unique_topic() for _ in range(count))
    for topic in topics:
        make_topic(pair.source, topic, retention_ms="-1")
        produce(pair.source, topic, ["one", "two", "three"])
    assert add(destination, mirror, selector(*topics)).exit_code == 0
    return mirror, topics


def promote(where: SandboxCluster, mirror: str, *options: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Promote one topic at a time; return the exit code, the rows by topic, and what was said meanwhile."""
    words = ("--mirror", mirror, "--batch", "1", "--pause", f"{PAUSE_MS}ms", "--idle", "0s", "--json")
    done = run_to_its_end(command(where, "promote", *words, *options), 300)
    assert done.stdout, done.stderr
    return done.returncode, {row["topic"]: row for row in json.loads(done.stdout)["results"]}, done.stderr


def engines_of(mirror: str) -> list[str]:
    """Return the command lines of engines that run for a mirror."""
    lines = [command_line(Path(entry)) for entry in glob("/proc/[0-9]*/cmdline")]
    return [line for line in lines if f" run --json --mirror {mirror} " in line]


def command_line(file: Path) -> str:
    """Return the words of a process, none if it has ended."""
    with suppress(OSError):
        return file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def copied_once(destination: Destination, mirror: str) -> set[str]:
    """Return the topics whose first copy is complete and which have not failed."""
    return {row.topic for row in describe(destination, mirror) if row.initial_copy_complete and row.reason is None}


def described(where: SandboxCluster, mirror: str) -> dict[str, tuple[str, str]]:
    """Return state and reason of each topic."""
    rows = json.loads(typed(where, "describe", "--mirror", mirror, "--json").stdout)
    return {row["topic"]: (row["topicState"], row["reason"]) for row in rows}


def test_without_an_engine_every_batch_is_promoted_until_a_check_fails(
    cluster_pair: ClusterPair, destination: Destination, tmp_path: Path
) -> None:
    where, evidence = cluster_pair.destination, tmp_path / "evidence.json"
    mirror, (first, second, third, foreign) = mirrored(cluster_pair, destination, 4)
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        write_plainly(where, foreign, 1)
        produce(cluster_pair.source, foreign, ["four"])
        wait_until(lambda: described(where, mirror)[foreign][0] == "FAILED")
        copied = {first, second, third}
        wait_until(
            lambda: all(row.initial_copy_complete for row in describe(destination, mirror) if row.topic in copied)
        )
    # nothing copies these before a promote does
    for topic in (first, second, third):
        produce(cluster_pair.source, topic, ["four"])

    code, rows, said = promote(where, mirror)
    assert (code, rows[first]["result"], rows[first]["lag"]) == (ExitCode.HISTORIES_DIFFER, "DONE", 0), rows
    assert rows[foreign]["reason"] == "DESTINATION_WRITTEN"
    for topic in (second, third):
        assert rows[topic]["result"] == "REFUSED"
        assert rows[topic]["message"] == f"{topic} was not stopped: the check after batch 1 failed before its turn"
    assert "no engine is in charge: one is started" in said
    assert "batch 2 of 4" not in said
    reasons = [reason for _, reason in described(where, mirror).values()]
    assert reasons == ["PROMOTED", "NO_ENGINE", "NO_ENGINE", "DESTINATION_WRITTEN"]
    assert engines_of(mirror) == []

    code, rows, said = promote(where, mirror, "--exclude", foreign, "--report", str(evidence))
    assert code == 0, rows
    assert {topic: row["result"] for topic, row in rows.items()} == {first: "NOOP", second: "DONE", third: "DONE"}
    assert said.count("no engine is in charge") == 1, "one engine is there for both batches"
    batches = json.loads(evidence.read_text())["batches"]
    assert [(batch["topics"], batch["exitCode"]) for batch in batches] == [([second], 0), ([third], 0)]
    assert batches[1]["beganMs"] - batches[0]["endedMs"] >= PAUSE_MS
    assert [reason for _, reason in described(where, mirror).values()] == ["PROMOTED"] * 3 + ["DESTINATION_WRITTEN"]
    assert engines_of(mirror) == []
    for topic in (first, second, third):
        assert_mirrored(cluster_pair.source, where, topic)
