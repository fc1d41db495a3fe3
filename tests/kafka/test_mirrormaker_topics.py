"""MirrorMaker 2's own topics as kmirror writes them, read by Kafka's own clients for them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from struct import pack

import pytest

from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.driver import side_jobs
from kmirror.engine.driver.side_jobs import SideJob
from kmirror.errors import ExitCode, RefusedError, UsageError
from kmirror.ops.add.add import add
from kmirror.ops.base.context import Destination
from kmirror.ops.mirrors.config import change_config
from kmirror.ops.show.describe import topic_notes
from kmirror.ops.show.listing import list_mirrors
from kmirror.ops.show.wait import Condition, wait
from kmirror_compat.mirrormaker_jobs import CheckpointsJob, HeartbeatsJob
from kmirror_sandbox.jars import kafka_jars
from tests.support.class_archive import java
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import typed
from tests.support.groups import GroupScene, commit
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import delete_topic, make_topic, new_mirror, produce, selector
from tests.support.side_jobs import run_once
from tests.support.visible import shown
from tests.support.waiting import PATIENCE_S, wait_until

PATIENCE_MS = int(1000 * PATIENCE_S)

PROGRAM = Path(__file__).parent.parent / "support" / "other_tools" / "Translate.java"


def asked_in_java(bootstrap_servers: str, alias: str, group: str) -> set[str]:
    """Return what a Java program for MirrorMaker 2 is given."""
    jars = kafka_jars(None, os.environ, lambda line: None, ["connect-mirror", "kafka-tools"])
    command = [str(java()), "-cp", jars.classpath, "-Dlog4j2.level=OFF", "-XX:TieredStopAtLevel=1", str(PROGRAM)]
    arguments = [*command, bootstrap_servers, alias, group]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return set(done.stdout.splitlines())


@pytest.mark.slow
def test_programs_written_for_mirrormaker_2_find_the_same_offsets(
    cluster_pair: ClusterPair, destination: Destination
) -> None:
    topic, group, alias = unique_topic(), unique_topic("g"), unique_topic("a")
    make_topic(cluster_pair.source, topic, 2)
    produce(cluster_pair.source, topic, ["one", "two", "three"])
    produce(cluster_pair.source, topic, ["four"], partition=1)
    commit(cluster_pair.source, group, topic, {0: 2, 1: 1})
    mirror = new_mirror(
        destination,
        cluster_pair.source,
        source_cluster_alias=alias,
        topic_prefix=f"{alias}.",
        emit_checkpoints_interval_seconds="1",
    )
    assert add(destination, mirror, selector(topic)).exit_code == 0
    before = set(destination.client.metadata().topics)
    jobs: list[SideJob] = [
        CheckpointsJob(mirror, destination.properties),
        HeartbeatsJob(mirror, destination.properties),
    ]
    # unless it is asked for nothing is written
    assert [reported for job in jobs for reported in run_once(job, destination, mirror)] == []
    with LocalEngine(destination, mirror, jobs) as engine:
        engine.catch_up()
        assert set(destination.client.metadata().topics) == before
        with pytest.raises(UsageError, match=r"emit\.offset-syncs\.enabled=false and emit\.checkpoints\.enabled=true"):
            change_config(
                destination, mirror, {"emit.offset-syncs.enabled": "false", "emit.checkpoints.enabled": "true"}
            )
        change_config(
            destination,
            mirror,
            {f"emit.{what}.enabled": "true" for what in ("offset-syncs", "checkpoints", "heartbeats")},
        )
        syncs, marks = f"mm2-offset-syncs.{alias}.internal", f"{alias}.checkpoints.internal"
        wait_until(lambda: {syncs, marks, "heartbeats"} <= set(destination.client.metadata().topics))
        wait_until(lambda: len(shown(cluster_pair.destination, marks)) >= 2)
        wait_until(lambda: len(shown(cluster_pair.destination, syncs)) >= 2)
        found = asked_in_java(cluster_pair.destination.bootstrap_servers, alias, group)
    assert {line for line in found if line.startswith("offset")} == {
        f"offset {alias}.{topic}-0 2",
        f"offset {alias}.{topic}-1 1",
    }
    assert f"beat {alias} target" in found
    assert any(line.startswith("checkpoints") and marks in line for line in found)
    assert "heartbeats [heartbeats]" in found
    written = {record.key: record.value for record in shown(cluster_pair.destination, syncs)}
    name = topic.encode()
    assert written == {
        pack(">h", len(name)) + name + pack(">i", partition): pack(">qq", end, end)
        for partition, end in ((0, 3), (1, 1))
    }


def test_a_mirror_topic_of_that_name_is_never_written(cluster_pair: ClusterPair, destination: Destination) -> None:
    alias = unique_topic("a")
    marks = f"{alias}.checkpoints.internal"
    make_topic(cluster_pair.source, marks)
    mirror = new_mirror(destination, cluster_pair.source, source_cluster_alias=alias, emit_checkpoints_enabled="true")
    assert add(destination, mirror, selector(marks)).exit_code == 0
    job = CheckpointsJob(mirror, destination.properties)
    with pytest.raises(RefusedError, match=f"{marks} is a topic of mirror {mirror}: nothing is written into it"):
        run_once(job, destination, mirror)
    job.close()
    partition = TopicPartition(marks, 0)
    assert destination.client.list_offsets({partition: -1})[partition].offset == 0


@pytest.mark.parametrize("is_made_again", [False, True])
def test_what_was_written_is_written_again_once_the_topic_was_deleted(
    cluster_pair: ClusterPair, destination: Destination, is_made_again: bool
) -> None:
    alias = unique_topic("a")
    marks = f"{alias}.checkpoints.internal"
    scene = GroupScene(cluster_pair, destination, source_cluster_alias=alias, emit_checkpoints_enabled="true")
    scene.at_source(40)
    job = CheckpointsJob(scene.mirror, destination.properties)
    for _ in range(2):
        run_once(job, destination, scene.mirror)
    written = shown(cluster_pair.destination, marks)
    assert len(written) == 1
    delete_topic(cluster_pair.destination, marks)
    if is_made_again:
        make_topic(cluster_pair.destination, marks)
    for _ in range(2):
        run_once(job, destination, scene.mirror)
    again = shown(cluster_pair.destination, marks)
    found, before = ([(one.offset, one.key, (one.value or b"")[:-8]) for one in some] for some in (again, written))
    assert found == before
    # it may have become a mirror topic
    delete_topic(cluster_pair.destination, marks)
    make_topic(cluster_pair.source, marks)
    assert add(destination, scene.mirror, selector(marks)).exit_code == 0
    with pytest.raises(RefusedError, match="nothing is written into it"):
        run_once(job, destination, scene.mirror)
    job.close()
    scene.close()


@pytest.mark.slow
def test_a_job_that_fails_for_long_is_shown_until_it_succeeds(
    cluster_pair: ClusterPair, destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    alias = unique_topic("a")
    marks = f"{alias}.checkpoints.internal"
    make_topic(cluster_pair.source, marks)
    mirror = new_mirror(destination, cluster_pair.source, source_cluster_alias=alias, emit_checkpoints_enabled="true")
    assert add(destination, mirror, selector(marks)).exit_code == 0
    monkeypatch.setattr(side_jobs, "_LASTING_MS", 3_600_000)

    def failing() -> int | None:
        return next(row.failing_jobs for row in list_mirrors(destination) if row.mirror == mirror)

    with LocalEngine(destination, mirror, [CheckpointsJob(mirror, destination.properties)]) as engine:
        assert wait(destination, mirror, Condition.HEALTHY, PATIENCE_MS).exit_code == ExitCode.OK
        wait_until(lambda: any("nothing is written into it" in note for note in engine.notes))
        assert failing() == 0
        monkeypatch.setattr(side_jobs, "_LASTING_MS", 1_000)
        wait_until(failing)
        (note,) = topic_notes(destination, mirror)
        assert note.startswith(f"mirror {mirror}: MirrorMaker's checkpoints and offset syncs are not written since 20")
        assert note.endswith(f": {marks} is a topic of mirror {mirror}: nothing is written into it for MirrorMaker 2")
        assert topic_notes(destination, mirror, selector(marks)) == []
        at = cluster_pair.destination
        assert f"note: {note}\n" in typed(at, "describe", "--mirror", mirror).stderr
        assert f"note: mirror {mirror}: 1 job beside copying fails; `" in typed(at, "list").stderr
        for condition in (Condition.HEALTHY, Condition.CAUGHT_UP):  # records flow
            waited = wait(destination, mirror, condition, PATIENCE_MS)
            assert (waited.exit_code, note in waited.warnings) == (ExitCode.OK, True), waited
        assert [served.missing for served in engine.service.status(mirror).mirrors] == [None]
        change_config(destination, mirror, {"emit.checkpoints.enabled": "false"})
        wait_until(lambda: failing() == 0)
        assert topic_notes(destination, mirror) == []
