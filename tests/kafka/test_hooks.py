"""Commands before and after the verbs that move topics, on real clusters."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kmirror.errors import Reason
from kmirror.ops.base.context import change
from kmirror.ops.show.describe import describe
from kmirror.state.internal_topics import EVENTS_TOPIC, STATE_TOPIC
from kmirror.state.records import PENDING_STOP, DesiredState, PartitionState
from kmirror.state.snapshot import Changes
from kmirror_sandbox.cluster import SandboxCluster
from tests.support.clusters import unique_topic
from tests.support.engine import command, typed
from tests.support.forked import Forked
from tests.support.groups import commit, committed
from tests.support.hook_scripts import is_running, script
from tests.support.json_documents import check
from tests.support.local_engine import LocalEngine
from tests.support.mirrors import produce, properties_of, settings_of
from tests.support.round_trip import Trip, make_old_topic
from tests.support.visible import bounds
from tests.support.waiting import PATIENCE_S, wait_until

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"


class World:
    """A topic on A that is mirrored to B, or has failed over there, with a group on both."""

    def __init__(self, trip: Trip, folder: Path, verb: str) -> None:
        self.trip, self.verb, self.report = trip, verb, folder / "report.json"
        self.topic, self.group = unique_topic(), unique_topic("g")
        if verb == "failback":
            trip.go(self.topic)
        else:
            make_old_topic(trip.a, self.topic)
            produce(trip.a, self.topic, ["one", "two"])
            assert add_topic(trip, self.topic) == 0
            trip.copy_to_b()
        for cluster in (trip.a, trip.b):
            commit(cluster, self.group, self.topic, {0: 1})
        # how the cluster on which the verb runs reaches the other one, or the other one reaches it
        file = folder / "other.properties"
        file.write_text(f"bootstrap.servers={trip.b.bootstrap_servers}\n")
        self.here = trip.a if verb == "failback" else trip.b
        config = ("--mirror-config", str(file)) if verb in ("failback", "switchover") else ()
        self.arguments = ("--mirror", trip.mirror, *config, "--yes", "--json", "--report", str(self.report))

    def run(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """Run the verb; return its exit code, its document and what people see."""
        done = typed(self.here, self.verb, *self.arguments, *arguments)
        return done.returncode, json.loads(done.stdout), done.stderr

    def process(self, out: Path, *arguments: str) -> Forked:
        """Start the verb as a process."""
        with out.open("wb") as file:
            line = command(self.here, self.verb, *self.arguments, *arguments, with_spark=False)
            return Forked(line, stdout=file, stderr=subprocess.STDOUT)

    def seen(self) -> list[object]:
        """Return what a verb could change: ends and settings of topics, kmirror's own among them, and offsets."""
        return [self._seen_on(cluster) for cluster in (self.trip.a, self.trip.b)]

    def _seen_on(self, cluster: SandboxCluster) -> object:
        there = AdminClient(properties_of(cluster)).list_topics(timeout=30).topics
        topics = sorted({self.topic, STATE_TOPIC, EVENTS_TOPIC} & there.keys())
        ends = {one.topic: found for one, found in bounds(cluster, topics).items()}
        return sorted(there), ends, settings_of(cluster, self.topic), committed(cluster, self.group, self.topic)


def add_topic(trip: Trip, topic: str) -> int:
    done = typed(trip.b, "add", "--mirror", trip.mirror, "--topics", topic)
    return done.returncode


@pytest.fixture
def world(trip: Trip, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    """Return the world of a verb, failover if none is given."""
    return World(trip, tmp_path, getattr(request, "param", "failover"))


VERBS = pytest.mark.parametrize(
    "world", ["promote", "failover", pytest.param("switchover", marks=pytest.mark.slow), "failback"], indirect=True
)


@VERBS
def test_what_fails_before_stops_the_verb_and_nothing_is_changed(world: World, tmp_path: Path) -> None:
    given, after = tmp_path / "given", tmp_path / "after"
    before = script(tmp_path / "before", f"cat > {given}; echo asking; printf 'dns says \\033[1mno\\n' >&2; exit 7")
    seen = world.seen()
    code, document, said = world.run("--before", f"{before} 'to b'", "--after", f"touch {after}")
    assert (code, after.exists(), world.seen()) == (3, False, seen)
    message = "the --before command exited with 7: dns says \\x1b[1mno"
    assert (document["error"]["message"], document["exitCode"], document["results"]) == (message, 3, [])
    assert "before: asking\nbefore: dns says \\x1b[1mno\n" in said
    report = json.loads(world.report.read_text())
    for found in (document, report):
        (run,) = found["hooks"]
        assert (run["when"], run["command"], run["outcome"]) == ("before", f"{before} 'to b'", "FAILED")
        assert (run["exitCode"], run["output"]) == (7, "asking\ndns says \\x1b[1mno")
    assert (report["exitCode"], report["error"]["message"]) == (3, message)
    asked = json.loads(given.read_text())
    check("hook", asked)
    clusters = [world.trip.a, world.trip.b]
    source, destination = reversed(clusters) if world.verb == "failback" else clusters
    for side, cluster in (("source", source), ("destination", destination)):
        assert asked[side] == {"clusterId": cluster.cluster_id, "bootstrapServer": cluster.bootstrap_servers}
    assert (asked["verb"], asked["mirror"], asked["when"]) == (world.verb, world.trip.mirror, "before")
    assert (asked["topics"], "exitCode" in asked) == ([world.topic], False)


@pytest.mark.slow
@VERBS
def test_a_dry_run_shows_the_commands_and_runs_none(world: World, tmp_path: Path) -> None:
    made = tmp_path / "made"
    code, document, _ = world.run("--before", f"touch {made}", "--after", f"touch '{made} 2'", "--dry-run")
    assert (code in (0, 5), list(tmp_path.glob("made*"))) == (True, []), document
    assert document["steps"][0] == f"run the --before command: touch {made}"
    assert document["steps"][-1] == f"run the --after command: touch '{made} 2'"
    assert [(run["when"], run["outcome"], run["seconds"]) for run in document["hooks"]] == [
        ("before", "NOT_RUN", None),
        ("after", "NOT_RUN", None),
    ]


@VERBS
def test_a_command_that_hangs_is_killed_and_nothing_is_changed(world: World) -> None:
    seen = world.seen()
    code, document, _ = world.run("--before", "sleep 600", "--hook-timeout", "1ms")
    assert (code, world.seen()) == (3, seen)
    assert document["error"]["message"] == "the --before command was killed after 1ms"
    assert [(run["outcome"], run["exitCode"]) for run in document["hooks"]] == [("TIMED_OUT", None)]


@pytest.mark.slow
@pytest.mark.parametrize("world", ["failover", "failback"], indirect=True)
def test_what_runs_after_is_given_the_result_and_its_failure_is_reported(world: World, tmp_path: Path) -> None:
    given = tmp_path / "given"
    after = script(tmp_path / "after", f"cat > {given}; echo no chat today; exit 5")
    code, document, said = world.run("--before", "true", "--after", str(after))
    assert code == 4
    message = "the --after command exited with 5: no chat today"
    report = json.loads(world.report.read_text())
    for found in (document, report):
        assert (found["exitCode"], found["error"]["code"], found["error"]["message"]) == (4, 4, message)
        assert [(run["when"], run["exitCode"]) for run in found["hooks"]] == [("before", 0), ("after", 5)]
    assert f"kmirror: {message}\n" in said
    shown = json.loads(given.read_text())
    check("hook", shown)
    assert (shown["when"], shown["exitCode"], shown["error"]) == ("after", 0, None)
    assert shown["results"] == document["results"]
    # it is done, and run again the command runs again
    again, repeated, _ = world.run("--after", f"tee {given}")
    assert (again, {row["result"] for row in repeated["results"]}) == (0, {"NOOP"})
    assert json.loads(given.read_text())["results"] == repeated["results"]
    assert len(json.loads(world.report.read_text())["earlier"]) == 1


def test_another_exit_code_stays_what_it_is(world: World, trip: Trip, tmp_path: Path) -> None:
    # a promote whose time runs out
    world.verb = "promote"
    given = tmp_path / "given"
    after = script(tmp_path / "after", f"cat > {given}; exit 1")
    arguments = ("--after", str(after), "--idle", "1h", "--timeout", "1ms")
    with LocalEngine(trip.at_b, trip.mirror):
        produce(trip.a, world.topic, ["three"])
        code, document, said = world.run(*arguments)
    shown = json.loads(given.read_text())
    assert (code, shown["exitCode"], document["error"]["code"]) == (5, 5, 5)
    assert "the --after command exited with 1" in said
    assert json.loads(world.report.read_text())["warnings"][-1] == "the --after command exited with 1"


@pytest.mark.slow
@pytest.mark.parametrize("world", ["promote", "switchover"], indirect=True)
def test_no_command_runs_unless_all_preconditions_hold(world: World, tmp_path: Path) -> None:
    """Once, a switchover ran it first, and then refused what a promote does not take."""
    made, here = tmp_path / "made", world.trip.at_b
    seen = world.seen()
    for arguments, expected in ((("--timeout", "0s"), 2), (("--master", "nowhere"), 2)):
        done = typed(world.here, world.verb, *world.arguments, "--before", f"touch {made}", *arguments)
        assert (done.returncode, made.exists(), world.seen()) == (expected, False, seen), done
    (topic,) = here.state().topics(world.trip.mirror)
    pending = replace(topic, pending_operation=PENDING_STOP, desired=DesiredState.STOPPED)
    failing_over = replace(pending, stop_reason=Reason.FAILED_OVER)
    change(here, world.trip.mirror, lambda _: Changes((failing_over,)))
    seen = world.seen()
    done = typed(world.here, world.verb, *world.arguments, "--before", f"touch {made}")
    assert (done.returncode, made.exists(), world.seen()) == (3, False, seen), done
    assert "a failover of it has started" in done.stdout
    change(here, world.trip.mirror, lambda _: Changes((topic,)))


@pytest.mark.slow
def test_an_ordinary_promote_and_switchover_have_both_commands(
    trip: Trip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(trip, tmp_path, "switchover")
    hosts, chat = tmp_path / "hosts", tmp_path / "chat"
    hosts.write_text("127.0.0.1 other.name my.orders.name\n192.0.2.1 orders.name\n")
    monkeypatch.setenv("CHAT", str(chat))
    dns, say = f"{EXAMPLES}/dns-hook.sh orders.name {hosts}", f"{EXAMPLES}/chat-hook.sh"
    typed(trip.b, "config", "--mirror", trip.mirror, "--set", "sync.group.offsets.enabled=false")
    with LocalEngine(trip.at_b, trip.mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_b, trip.mirror)))
        code, document, _ = world.run("--before", dns, "--after", dns)
    assert code == 0, document
    assert [run["outcome"] for run in document["hooks"]] == ["DONE", "DONE"]
    assert hosts.read_text() == "127.0.0.1 other.name my.orders.name\n127.0.0.1 orders.name\n"
    back = World(trip, tmp_path, "promote")
    back.here, back.topic = trip.a, world.topic
    with LocalEngine(trip.at_a, trip.mirror) as engine:
        engine.catch_up()
        wait_until(lambda: all(row.initial_copy_complete for row in describe(trip.at_a, trip.mirror)))
        code, document, _ = back.run("--batch", "1", "--idle", "0s", "--before", say, "--after", say)
    assert code == 0, document
    began, ended = chat.read_text().splitlines()
    assert began.startswith(f"kmirror: promote of {trip.mirror} by ")
    assert began.endswith(f" begins: 1 topics, to {trip.a.bootstrap_servers}")
    assert ended.startswith(f"kmirror: promote of {trip.mirror} by ")
    assert ended.endswith(" is done: 1 topics")


@pytest.mark.slow
def test_ctrl_c_before_changes_nothing_and_after_ends_as_usual(world: World, tmp_path: Path) -> None:
    pid, out = tmp_path / "pid", tmp_path / "out"
    hanging = script(tmp_path / "hanging", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600")
    for number, option, code in ((signal.SIGINT, "--before", 130), (signal.SIGTERM, "--after", 4)):
        seen = world.seen()
        process = world.process(out, option, str(hanging), "--hook-timeout", "1h")
        try:
            wait_until(pid.exists)
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == code, out.read_text()
        finally:
            process.kill()
        assert not is_running(int(pid.read_text()))
        pid.unlink()
        if option == "--before":
            assert world.seen() == seen
            assert "kmirror: interrupted\n  the --before command was ended; nothing was changed\n" in out.read_text()
    assert "the --after command was interrupted" in out.read_text()
    assert {row.state for row in describe(world.trip.at_b, world.trip.mirror)} == {PartitionState.STOPPED}


@pytest.mark.slow
@pytest.mark.parametrize("world", ["promote", "switchover", "failback"], indirect=True)
def test_ctrl_c_during_the_command_before_ends_any_of_the_verbs(world: World, tmp_path: Path) -> None:
    pid, out = tmp_path / "pid", tmp_path / "out"
    hanging = script(tmp_path / "hanging", f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 600")
    seen = world.seen()
    process = world.process(out, "--before", str(hanging), "--hook-timeout", "1h")
    try:
        wait_until(pid.exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130, out.read_text()
    finally:
        process.kill()
    assert not is_running(int(pid.read_text()))
    assert world.seen() == seen


def test_programs_are_looked_for_before_anything_happens(world: World, tmp_path: Path) -> None:
    for option, text in (("--before", "no-such-program"), ("--after", str(tmp_path)), ("--before", "'")):
        done = typed("127.0.0.1:1", "failover", "--mirror", "m", "--yes", option, text)
        assert (done.returncode, f"kmirror: {option}: " in done.stderr) == (2, True)
    alone = typed("127.0.0.1:1", "failover", "--mirror", "m", "--yes", "--hook-timeout", "5s")
    assert (alone.returncode, "requires --before or --after" in alone.stderr) == (2, True)
    # what is refused before the turn of the commands runs none
    made = tmp_path / "made"
    missing = typed(world.here, "failover", "--mirror", "none-of-this", "--yes", "--before", f"touch {made}")
    assert (missing.returncode, made.exists()) == (3, False)
