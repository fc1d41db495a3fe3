"""`demo`: two real clusters, live traffic, an engine killed half-way, a source that is lost and comes back, and proofs.

Every number it prints is measured while it runs. However it ends, it stops what it started and removes its folder.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kmirror.cli import tables
from kmirror.cli.demo_output import CommandRunner, DemoOutput, RunningCommand
from kmirror.cli.options import Call, verb
from kmirror.commands import on_mirror
from kmirror.errors import ExitCode

if TYPE_CHECKING:
    from kmirror.cli.demo_traffic import LiveProducer, Watcher
    from kmirror.cli.screen import Screen
    from kmirror.sandbox.cluster import SandboxCluster

TOPIC = "orders"
MIRROR = "demo"
PARTITIONS = 4

_HISTORY = 100_000
_BURST = 400_000
_RECORDS_PER_SECOND = 1000
_PATIENCE_S = 120.0
_LIVE_S = 5.0
_LATE = 3
_LOCAL = 1000


@verb(
    "demo",
    "Watch a copy, crash, failover and failback, step by step.\n\nStarts two Kafka clusters on this machine,"
    " mirrors a topic under live traffic, kills the engine half-way and restarts it, loses the source, fails over and"
    " back, and compares every record. The first run downloads Kafka from Maven Central. Cleans up after itself.",
    examples=("kmirror demo", "kmirror demo -v"),
    changes=True,
    destination=False,
    documents=False,
)
def demo_verb(call: Call) -> int:
    with _ended_by_signals(), ExitStack() as stack:
        return _Demo(call.output.screen, stack).play()


class _StepFailedError(Exception):
    """A command did not end as it should."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(command, code)
        self.command = command
        self.code = code


class _Demo:
    """The clusters, the traffic and the commands of one demo; `stack` cleans all of it up."""

    def __init__(self, screen: Screen, stack: ExitStack) -> None:
        self._screen = screen
        self._output = DemoOutput(screen)
        self._stack = stack
        self._folder = Path(tempfile.mkdtemp(prefix="kmirror-demo-"))
        stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._began = time.monotonic()

    def play(self) -> int:
        """Run the demo; return 0 if every comparison found everything equal."""
        self._output.aside("Real brokers, a real engine, live traffic. Ctrl-C ends it at any time and cleans up.")
        try:
            source, destination = self._start_clusters()
            traffic, here, there = self._start_traffic(source, destination)
            kmirror = self._command_line(destination)
            self._make_mirror(kmirror, source)
            engine = self._copy(kmirror, there)
            self._verify(kmirror, "The same records at the same offsets?")
            self._kill(engine, traffic, here, there)
            self._copy_again(kmirror, traffic, there)
            self._verify(kmirror, "And the proof once more")
            self._lose_source(kmirror, source)
            self._write_to_new_primary(destination)
            self._fail_back(source, destination)
        except _StepFailedError as failed:
            self._output.aside(f"`{failed.command}` exited with {failed.code}: the demo failed.", "bold red")
            return failed.code
        seconds = tables.elapsed(time.monotonic() - self._began)
        self._output.aside(
            f"Equal every time; {seconds} from the first broker to here. Everything is removed now.", "bold green"
        )
        self._output.aside(
            "Next: `kmirror sandbox up` starts two clusters to play with, `kmirror --help` lists the commands."
        )
        return ExitCode.OK

    def _start_clusters(self) -> tuple[SandboxCluster, SandboxCluster]:
        from kmirror.cli.progress import working
        from kmirror.sandbox.cluster import SandboxCluster, start_together

        self._output.heading("Two Kafka clusters on this machine")
        with working(self._screen, on_terminal=self._screen.is_terminal) as watch:
            clusters = [
                SandboxCluster(name, self._folder / name, report=self._output.say, watch=watch) for name in ("a", "b")
            ]
            for cluster in clusters:
                self._stack.callback(cluster.destroy)
                cluster.fetch()
            began = time.monotonic()
            start_together(clusters, watch)
        source, destination = clusters
        self._output.say(
            f"a, the source, is {source.bootstrap_servers}; b, the destination, is {destination.bootstrap_servers}.",
            f"Kafka {source.kafka_version}, unpatched, up after {tables.elapsed(time.monotonic() - began)}.",
        )
        return source, destination

    def _start_traffic(
        self, source: SandboxCluster, destination: SandboxCluster
    ) -> tuple[LiveProducer, Watcher, Watcher]:
        from kmirror.cli.demo_traffic import LiveProducer, Watcher, make_topic

        make_topic(source.bootstrap_servers, TOPIC, PARTITIONS)
        traffic = self._stack.enter_context(LiveProducer(source.bootstrap_servers, TOPIC, _RECORDS_PER_SECOND))
        here, there = (Watcher(cluster.bootstrap_servers, TOPIC, PARTITIONS) for cluster in (source, destination))
        self._stack.callback(here.close)
        self._stack.callback(there.close)
        traffic.burst(_HISTORY)
        here.wait_for(_HISTORY, _PATIENCE_S)
        self._output.say(
            f"a has a topic, {TOPIC}, with {PARTITIONS} partitions and {here.total():,} records,",
            f"and a producer that keeps writing about {_RECORDS_PER_SECOND:,} records a second to it, acks=all.",
        )
        return traffic, here, there

    def _command_line(self, destination: SandboxCluster) -> CommandRunner:
        nothing_configured = self._folder / "kmirror.toml"
        nothing_configured.touch()
        environ = {"KMIRROR_BOOTSTRAP_SERVER": destination.bootstrap_servers, "KMIRROR_CONFIG": str(nothing_configured)}
        return CommandRunner(self._output, self._folder, environ)

    def _write_properties(self, cluster: SandboxCluster) -> str:
        """Write, and show, the file that describes the source of a mirror."""
        name, properties = f"{cluster.name}.properties", f"bootstrap.servers={cluster.bootstrap_servers}"
        (self._folder / name).write_text(f"{properties}\n", encoding="utf-8")
        self._output.command(["cat", name])
        self._output.printed(properties)
        return name

    def _make_mirror(self, kmirror: CommandRunner, source: SandboxCluster) -> None:
        self._output.heading("A mirror from a to b")
        file = self._write_properties(source)
        self._must(kmirror, "create", "--mirror", MIRROR, "--mirror-config", file)
        self._must(kmirror, "add", "--mirror", MIRROR, "--topics", TOPIC)

    def _copy(self, kmirror: CommandRunner, there: Watcher) -> RunningCommand:
        self._output.heading("Copy while the producer keeps writing")
        engine = kmirror.start("run", "--mirror", MIRROR)
        self._stack.callback(engine.kill)
        there.wait_for(_HISTORY, _PATIENCE_S)
        time.sleep(_LIVE_S)
        engine.mute()
        self._must(kmirror, "wait", "--mirror", MIRROR, "--for", "caught-up", "--timeout", f"{_PATIENCE_S:g}s")
        self._must(kmirror, "describe", "--mirror", MIRROR)
        return engine

    def _kill(self, engine: RunningCommand, traffic: LiveProducer, here: Watcher, there: Watcher) -> None:
        self._output.heading("Pull the plug half-way")
        if engine.exit_code is not None:
            raise _StepFailedError(on_mirror("run", MIRROR), engine.exit_code)
        before = there.total()
        self._output.say(f"The producer writes {_BURST:,} more records as fast as it can; the engine copies them.")
        burst = threading.Thread(target=traffic.burst, args=(_BURST,), name="kmirror-demo-burst", daemon=True)
        burst.start()
        there.wait_for(before + _BURST // 3, _PATIENCE_S)
        killed = engine.kill()
        copied, written = there.total(), here.total()
        self._output.command(["kill", "-9", *map(str, killed)])
        self._output.say(f"Driver, JVM and workers are gone in mid-copy: a has {written:,} records, b has {copied:,}.")
        burst.join()
        self._output.say("The producer noticed nothing and keeps writing.")

    def _copy_again(self, kmirror: CommandRunner, traffic: LiveProducer, there: Watcher) -> None:
        self._output.heading("Restart it and let it catch up")
        acknowledged = traffic.close()
        self._output.say(f"The producer stops; a has acknowledged {acknowledged:,} records.")
        self._must(kmirror, "run", "--mirror", MIRROR, "--until-caught-up", "--timeout", f"{_PATIENCE_S:g}s")
        copied = there.total()
        if copied != acknowledged:
            self._output.say(f"b has {copied:,} records, which is not the same.")
            raise _StepFailedError(on_mirror("run", MIRROR, "--until-caught-up"), ExitCode.HISTORIES_DIFFER)
        self._output.say(f"b has {copied:,} records: none lost, none copied twice.")

    def _lose_source(self, kmirror: CommandRunner, source: SandboxCluster) -> None:
        from kmirror.cli.demo_traffic import write_records

        self._output.heading("The source is lost: failover")
        write_records(source.bootstrap_servers, TOPIC, _LATE)
        pid = source.brokers[0].pid
        source.kill(source.brokers[0].node_id)
        self._output.say(f"{_LATE} more records, which no engine has seen, reach a. Then:")
        self._output.command(["kill", "-9", str(pid)])
        self._output.say("The broker of a is gone. b takes over, which needs neither a nor an engine.")
        self._must(kmirror, "failover", "--mirror", MIRROR, "--yes")
        self._output.say(f"That is the known loss. The last {_LATE} records are not in it; they reappear below.")

    def _write_to_new_primary(self, destination: SandboxCluster) -> None:
        from kmirror.cli.demo_traffic import write_records

        write_records(destination.bootstrap_servers, TOPIC, _LOCAL)
        self._output.say(f"Clients now write to b: {_LOCAL:,} new records, acks=all.")

    def _fail_back(self, source: SandboxCluster, destination: SandboxCluster) -> None:
        self._output.heading("The source comes back: failback")
        source.start_broker(source.brokers[0].node_id)
        self._output.say(f"a is back, with {_LATE} records that b never got. It becomes the mirror of b.")
        file = self._write_properties(destination)
        self._output.command(["export", f"KMIRROR_BOOTSTRAP_SERVER={source.bootstrap_servers}"])
        kmirror = self._command_line(source)
        self._must(kmirror, "failback", "--mirror", MIRROR, "--mirror-config", file, "--recreate", "--yes")
        self._output.say("Nothing was thrown away: the records that only a had are in an archive topic now.")
        self._must(kmirror, "run", "--mirror", MIRROR, "--until-caught-up", "--timeout", f"{_PATIENCE_S:g}s")
        self._must(kmirror, "verify", "--mirror", MIRROR)
        self._must(kmirror, "describe", "--mirror", MIRROR)

    def _verify(self, kmirror: CommandRunner, title: str) -> None:
        self._output.heading(title)
        self._must(kmirror, "verify", "--mirror", MIRROR)

    def _must(self, kmirror: CommandRunner, *arguments: str) -> None:
        code = kmirror.run(*arguments)
        if code:
            raise _StepFailedError(f"kmirror {' '.join(arguments)}", code)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does, and let no signal disturb the cleanup."""

    def end(*_: object) -> NoReturn:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
