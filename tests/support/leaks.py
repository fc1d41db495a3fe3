"""Search for secrets wherever an operator, another user or another program could find them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.follower import PartitionFollower
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.engine import Engine, typed


def process_texts(engine: Engine) -> Iterator[tuple[str, bytes]]:
    """Yield command line and environment of each of an engine's processes, by where they were found."""
    yield from texts_of_processes(process.pid for process in engine.tree().all)


def texts_of_processes(pids: Iterable[int]) -> Iterator[tuple[str, bytes]]:
    """Yield command line and environment of processes, by where they were found."""
    for folder in (Path(f"/proc/{pid}") for pid in pids):
        command = (folder / "cmdline").read_bytes()
        yield f"cmdline of {command[:80]!r}", command
        yield f"environ of {command[:80]!r}", (folder / "environ").read_bytes()


def folder_texts(engine: Engine) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an engine's run folder, whose lock it holds."""
    driver = engine.tree().driver
    assert driver is not None
    held = [os.readlink(link) for link in Path(f"/proc/{driver.pid}/fd").iterdir()]
    (lock,) = [Path(name) for name in held if "kmirror-run-" in name and name.endswith("/lock")]
    yield from file_texts(lock.parent)


def file_texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of all files below a folder."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    for file in files:
        yield str(file), file.read_bytes()


def topic_texts(client: ClusterClient) -> Iterator[tuple[str, bytes]]:
    """Yield what kmirror stores on a destination, record by record, superseded ones included."""
    for topic in (STATE_TOPIC, EVENTS_TOPIC):
        tail = PartitionFollower(client, TopicPartition(topic, 0))
        answer = tail.poll(1000)
        while answer.records or not answer.reached_end:
            yield from ((topic, (record.key or b"") + (record.value or b"")) for record in answer.records)
            answer = tail.poll(1000)
        tail.close()


def verb_texts(cluster: SandboxCluster, *command_config: str) -> Iterator[tuple[str, bytes]]:
    """Yield the output of verbs that read a mirror or fail, for people and for programs, with `-vv`."""
    for verb in (
        *(("list",), ("describe",), ("describe", "--settings"), ("describe", "--wide"), ("events",)),
        *(("config", "--mirror", "m"), ("check", "--mirror", "m"), ("describe", "--mirror", "no-such-mirror")),
        *(("pause", "--mirror", "m", "--dry-run"), ("failover", "--mirror", "m", "--dry-run")),
    ):
        for options in ((), ("--json", "-vv")):
            done = typed(cluster, *verb, *options, *command_config)
            yield " ".join((*verb, *options)), (done.stdout + done.stderr).encode()


def places_of(texts: Iterable[tuple[str, bytes]], secrets: Iterable[str]) -> list[str]:
    """Return where one of the secrets is."""
    wanted = [secret.encode() for secret in secrets]
    return [where for where, text in texts if any(secret in text for secret in wanted)]
