"""`kmirror.Client` on two real clusters, as docs/library.md shows it, and what it raises."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kmirror
from kmirror.ops.base.context import Destination
from kmirror.state.records import PartitionState
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.json_documents import check
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import make_topic, new_mirror, produce, properties_of
from tests.support.ports import free_base_port
from tests.support.visible import assert_mirrored
from tests.support.waiting import wait_until

PAGE = Path(__file__).parent.parent.parent / "docs" / "library.md"


def example(title: str, mirror: str, topic: str) -> str:
    """Return the program below a heading of the page, with names of this test's own."""
    text = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2]
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    program = found[1].replace('"migration"', f'"{mirror}"').replace('"orders"', f'"{topic}"')
    assert mirror in program
    return program


@pytest.fixture
def client(destination_cluster: SandboxCluster) -> kmirror.Client:
    return kmirror.Client(destination_cluster.bootstrap_servers)


def open_sockets() -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += descriptor.readlink().name.startswith("socket:")
        except FileNotFoundError:  # the listing's own
            continue
    return found


@pytest.mark.slow
def test_the_page_s_programs_work(
    cluster_pair: ClusterPair, destination: Destination, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mirror, topic = unique_topic("m"), unique_topic()
    source, target = cluster_pair.source.bootstrap_servers, cluster_pair.destination.bootstrap_servers
    make_topic(cluster_pair.source, topic, 2, retention_ms="-1")
    produce(cluster_pair.source, topic, ["one", "two", "three"])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    task: dict[str, Any] = {}
    exec(example("In a scheduler", mirror, topic), task)

    task["set_up"](target, source)
    task["set_up"](target, source)
    assert task["copied"](target, 0) is False, "no engine has copied anything"
    with LocalEngine(destination, mirror) as engine:
        engine.catch_up()
        assert task["copied"](target) is True
        assert task["compare"](target) == 3
        drill = tmp_path / "test_drill.py"
        drill.write_text(example("In tests", mirror, topic))
        passed = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(drill)],
            env=os.environ | {"KMIRROR_BOOTSTRAP_SERVER": target},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert passed.returncode == 0, passed.stdout
        assert "4 passed" in passed.stdout
        document = task["hand_over"](target, 0.5)
    check("result", document)
    assert (document["exitCode"], {row["result"] for row in document["results"]}) == (0, {"DONE"})
    assert_mirrored(cluster_pair.source, cluster_pair.destination, topic)
    assert handlers == {number: signal.getsignal(number) for number in handlers}
    out, err = capfd.readouterr()
    assert out == ""
    # the test's own clients of librdkafka may say what they like; kmirror's have another name
    assert [line for line in err.splitlines() if "|rdkafka#" not in line] == []

    # and back: the old source becomes the mirror, fails over, and lets go of it
    back = kmirror.Client(command_config=properties_of(cluster_pair.source))
    returned = back.failback(mirror, properties_of(cluster_pair.destination))
    assert [row.topic for row in returned.results if row.result is kmirror.Outcome.DONE]
    assert {row.mirror for row in back.list()} >= {mirror}
    stopped = back.failover(mirror)
    assert stopped.totals is not None
    assert stopped.totals.partitions == 2
    assert {row.state for row in back.describe(mirror)} == {PartitionState.STOPPED}


def test_rows_are_what_the_commands_print(client: kmirror.Client, cluster_pair: ClusterPair) -> None:
    mirror, topics = unique_topic("m"), [unique_topic(), unique_topic()]
    for topic in topics:
        make_topic(cluster_pair.source, topic)
    report = client.check(mirror_config=properties_of(cluster_pair.source), config={"topics.exclude": "none"})
    check("check", report.to_json())
    check("result", client.create(mirror, properties_of(cluster_pair.source)).to_json())
    client.add(mirror, topics, start_from="earliest", dry_run=True)
    assert client.describe(mirror) == ()
    client.add(mirror, topics, start_from="earliest")
    rows = client.describe(mirror, topics[0])
    check("describe", [row.to_json() for row in rows])
    assert [(row.topic, row.lag, row.reason) for row in rows] == [(topics[0], 0, kmirror.Reason.NO_ENGINE)]
    check("list", [row.to_json() for row in client.list()])
    assert [row.topics for row in client.list() if row.mirror == mirror] == [2]
    removed = client.remove(mirror, topics[1])
    assert [row.topic for row in removed.results] == [topics[1]]
    client.wait(mirror, "stopped", 0, topics[1])


def test_what_is_wrong_is_raised_with_its_code_and_what_was_found(
    client: kmirror.Client, cluster_pair: ClusterPair, destination: Destination
) -> None:
    mirror, topic = new_mirror(destination, cluster_pair.source), unique_topic()
    make_topic(cluster_pair.source, topic, retention_ms="-1")
    produce(cluster_pair.source, topic, ["one"])
    with pytest.raises(kmirror.RefusedError, match="no topics yet") as refused:
        client.wait(mirror, "healthy", 0)
    assert (refused.value.exit_code, refused.value.result) == (3, None)
    client.add(mirror, topic)

    with pytest.raises(kmirror.TimedOutError) as late:
        client.wait(mirror, "caught-up", 0)
    assert late.value.exit_code is kmirror.ExitCode.TIMED_OUT
    assert [(row.topic, row.result, row.lag) for row in late.value.result.results] == [
        (topic, kmirror.Outcome.TIMED_OUT, 1)
    ]
    produce(cluster_pair.destination, topic, ["another client's"])
    with pytest.raises(kmirror.HistoriesDifferError) as different:
        client.verify(mirror)
    assert [(row.topic, row.different) for row in different.value.result.rows] == [(topic, True)]
    with pytest.raises(kmirror.UsageError, match="topics is empty"):
        client.failover(mirror, [])
    with pytest.raises(kmirror.RefusedError, match="not another"):
        kmirror.Client(cluster_pair.destination.bootstrap_servers, expect_cluster_id="another").list()
    unknown = f"127.0.0.1:{free_base_port()}"
    with pytest.raises(kmirror.UnreachableError) as silent:
        kmirror.Client(unknown).list()
    assert (silent.value.exit_code, silent.value.reason) == (6, kmirror.Reason.DESTINATION_UNREACHABLE)
    with pytest.raises(kmirror.UnreachableError, match="1 of") as failed:
        client.check(mirror_config={"bootstrap.servers": unknown})
    assert [line.reason for line in failed.value.result.lines if not line.ok] == [kmirror.Reason.SOURCE_UNREACHABLE]


def test_threads_share_a_client_and_nothing_stays_open(client: kmirror.Client, destination: Destination) -> None:
    client.list()
    before, threads = open_sockets(), threading.active_count()
    with ThreadPoolExecutor(4) as pool:
        found = [future.result() for future in [pool.submit(client.list) for _ in range(8)]]
    assert len({tuple(row.mirror for row in rows) for rows in found}) == 1
    # what earlier tests left behind may end meanwhile, or connect again
    wait_until(lambda: open_sockets() <= before and threading.active_count() <= threads)


@pytest.mark.slow
def test_the_other_verbs(client: kmirror.Client, cluster_pair: ClusterPair, destination: Destination) -> None:
    mirror, topic = new_mirror(destination, cluster_pair.source), unique_topic()
    make_topic(cluster_pair.source, topic)
    client.add(mirror, topic)
    for verb, state in ((client.pause, "PAUSED"), (client.resume, "PENDING_MIRROR")):
        check("result", verb(mirror).to_json())
        assert [row.topic_state for row in client.describe(mirror)] == [state]
    assert client.recover(mirror).results[0].result is kmirror.Outcome.NOOP
    with pytest.raises(kmirror.UsageError, match="trim requires accept_loss"):
        client.recover(mirror, trim=True)
    client.config(mirror, {"retry.timeout.ms": "60000"})
    assert [row.value for row in client.settings(mirror) if row.key == "retry.timeout.ms"] == ["60000"]
    client.config(mirror, {}, unset=["retry.timeout.ms"])
    assert [row.is_default for row in client.settings(mirror) if row.key == "retry.timeout.ms"] == [True]
    with pytest.raises(kmirror.RefusedError):
        client.delete(mirror)
    with pytest.raises(kmirror.RefusedError, match="must describe this one"):
        client.switchover(mirror, properties_of(cluster_pair.source), timeout=0)
    client.failover(mirror)
    client.delete(mirror)
    assert mirror not in [row.mirror for row in client.list()]
    done = [event.what for event in client.events(mirror)]
    assert done == ["create", "add", "pause", "resume", "config", "config", "failover", "delete"]
