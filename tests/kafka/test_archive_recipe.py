"""docs/archives.md is followed word for word: Kafka's own tools and the script in it, on records thirty days old."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kmirror.engine.archive.archiving import ArchiveSpec, PartitionRanges, archive_topic
from kmirror.engine.bulk.runner import Threads
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.archiving import is_saved, make_archive
from tests.support.clusters import unique_topic
from tests.support.installed_logs import create_topics
from tests.support.kafka_tools import put_kafka_tools_into
from tests.support.log_batches import VisibleRecord
from tests.support.real_logs import start_at, write
from tests.support.visible import shown

TEXT = (Path(__file__).parent.parent.parent / "docs" / "archives.md").read_text()
#: What the documented examples say that is different here.
SECONDS_IN_DOCS, TOPIC_IN_DOCS, SERVERS_IN_DOCS = "1700000000", "orders", "localhost:9092"


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which Kafka's tools are found by their names, and this Python by its."""
    folder = tmp_path / "bin"
    folder.mkdir()
    put_kafka_tools_into(folder)
    (folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "python").chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def steps() -> Iterator[tuple[str, list[str]]]:
    """Yield the commands in the docs, each with the lines it is said to print."""
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL):
        for step in block.removeprefix("$ ").split("\n$ "):
            command, *printed = step.rstrip("\n").split("\n")
            yield command, printed


@pytest.mark.long
def test_the_recipe_does_what_it_says(
    destination_cluster: SandboxCluster, tools: dict[str, str], tmp_path: Path
) -> None:
    topic, seconds = unique_topic("recipe"), int(time.time()) - 30 * 86_400
    records = [
        VisibleRecord(1200, seconds * 1000, b"customer-1", b"first", (("region", b"eu"),)),
        VisibleRecord(1201, seconds * 1000 + 1, b"customer-2", b"second"),
        VisibleRecord(1202, seconds * 1000 + 2, None, b"\x00\xff", (("region", None), ("kmirror.offset", b"7"))),
    ]
    others = [VisibleRecord(0, seconds * 1000, b"k", None), VisibleRecord(1, 1, b"", b"")]
    create_topics(destination_cluster, {topic: {"retention.ms": "-1"}}, partitions=2)
    start_at(destination_cluster, topic, 1200, records)
    write(destination_cluster, topic, others, partition=1)
    assert [shown(destination_cluster, topic, partition) for partition in (0, 1)] == [records, others]
    archive = make_archive(destination_cluster, topic, 2)
    wanted = (PartitionRanges(0, ((1200, 1203),)), PartitionRanges(1, ((0, 2),)))
    spec = ArchiveSpec(destination_cluster.client_properties(), topic, archive, None, wanted)
    assert is_saved(archive_topic(spec, Threads()))

    (script,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "restore.py").write_text(script)
    differences = {
        SERVERS_IN_DOCS: destination_cluster.bootstrap_servers,
        TOPIC_IN_DOCS: topic,
        SECONDS_IN_DOCS: str(seconds),
    }

    def here(text: str) -> str:
        for old, new in differences.items():
            text = text.replace(old, new)
        return text

    followed = 0
    for command, expected in steps():
        done = subprocess.run(
            ["bash", "-c", here(command)], env=tools, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        printed = [" ".join(line.split()) for line in done.stdout.splitlines()]
        if "--list" in command:  # of other tests' archives
            printed = [line for line in printed if topic in line]
        assert printed == [here(line) for line in expected], command
        followed += 1
    assert followed == 5

    first, second = (content_of(shown(destination_cluster, f"{topic}-restored", partition)) for partition in (0, 1))
    assert first == content_of(records) + content_of(records[1:])  # all of it, then a part again
    assert second == content_of(others)


def content_of(records: list[VisibleRecord]) -> list[VisibleRecord]:
    """Return records without their offsets."""
    return [record._replace(offset=0) for record in records]
