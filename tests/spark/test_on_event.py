"""`run --on-event`: the engine's events reach a command, and one that hangs holds up neither the copy nor the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.hook_scripts import is_running, script
from tests.support.json_documents import check
from tests.support.mirrored import Mirrored
from tests.support.mirrors import make_topic, produce
from tests.support.waiting import wait_until


@pytest.mark.parametrize("with_spark", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_events_reach_a_command_and_one_that_hangs_holds_up_nothing(
    source_cluster: SandboxCluster, destination_cluster: SandboxCluster, tmp_path: Path, with_spark: bool
) -> None:
    topic, more = unique_topic(), unique_topic()
    for name in (topic, more):
        make_topic(source_cluster, name, retention_ms="-1")
        produce(source_cluster, name, ["one"])
    given, pid, fails = tmp_path / "given", tmp_path / "pid", tmp_path / "fails"
    hook = script(
        tmp_path / "hook",
        f"cat >> {given}; echo >> {given}\ntest -e {fails} && exit 3\n"
        f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600",
    )
    with Mirrored(source_cluster, destination_cluster, tmp_path, {topic: 1}, with_spark=with_spark) as mirror:
        mirror.create(f"topics.include={topic},{more}", "refresh.interval.seconds=1")

        def events() -> list[tuple[str, str]]:
            documents = [json.loads(line) for line in given.read_text().split("\n")[:-1]] if given.exists() else []
            for document in documents:
                check("event-hook", document)
                assert document["destination"]["clusterId"] == destination_cluster.cluster_id
            return [(one["what"], one["result"]) for document in documents for one in document["events"]]

        engine = mirror.engine("--on-event", str(hook), "--on-event-interval", "100ms", "--hook-timeout", "1h")
        mirror.wait(engine, pid.exists)
        assert ("run", "started") in events()
        # it hangs from now on
        produce(source_cluster, topic, ["two"])
        mirror.topics[more] = 1
        mirror.wait_until_equal(engine, [topic, more])
        assert engine.interrupt() == 0, engine.output
        wait_until(lambda: not is_running(int(pid.read_text())))
        seen = len(events())
        fails.touch()
        engine = mirror.engine("--on-event", str(hook), "--on-event-interval", "0s", with_spark=False)
        mirror.wait(engine, lambda: ("run", "started") in events()[seen:])
        mirror.wait(engine, lambda: "the --on-event command exited with 3" in engine.output)
        assert engine.interrupt() == 0, engine.output
