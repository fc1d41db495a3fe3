"""`demo`: two real clusters, live traffic, an engine killed half-way, a source that is lost and comes back, and proofs.

Every number it prints is measured while it runs. However it ends, it stops what it started and removes its folder.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kmirror.cli.failures import ended_by_signals
from kmirror.cli.options import Call, verb
from kmirror.cli.terminal import plain_tables as tables
from kmirror.commands import on_mirror
from kmirror.errors import ExitCode
from kmirror_sandbox.cli.demo_output import CommandRunner, RunningCommand
from kmirror_sandbox.cli.demo_stage import Stage, StepFailedError

if TYPE_CHECKING:
    from kmirror_sandbox.cli.demo_traffic import LiveProducer, Watcher
    from kmirror_sandbox.cluster import SandboxCluster

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
    dry_run=False,
    destination=False,
    documents=False,
)
def demo_verb(call: Call) -> int:
    with ended_by_signals(), ExitStack() as stack:
        return _Demo(call.output.screen, stack).play()


class _Demo(Stage):
    """The traffic and the steps of one demo."""

    def play(self) -> int:
        """Run the demo; return 0 if every comparison found everything equal."""
        self.output.aside("Real brokers, a real engine, live traffic. Ctrl-C ends it at any time and cleans up.")
        try:
            source, destination = self.start_clusters()
            traffic, here, there = self._start_traffic(source, destination)
            kmirror = self.command_line(destination)
            self._make_mirror(kmirror, source)
            engine = self._copy(kmirror, there)
            self._verify(kmirror, "The same records at the same offsets?")
            self._kill(engine, traffic, here, there)
            self._copy_again(kmirror, traffic, there)
            self._verify(kmirror, "And the proof once more")
            self._lose_source(kmirror, source)
            self._write_to_new_primary(destination)
            self._fail_back(source, destination)
        except StepFailedError as failed:
            self.output.aside(f"`{failed.command}` exited with {failed.code}: the demo failed.", "bold red")
            return failed.code
        seconds = tables.elapsed(time.monotonic() - self.began)
        self.output.aside(
            f"Equal every time; {seconds} from the first broker to here. Everything is removed now.", "bold green"
        )
        self.output.aside(
            "Next: `kmirror sandbox up` starts two clusters to play with, `kmirror --help` lists the commands."
        )
        return ExitCode.OK

    def _start_traffic(
        self, source: SandboxCluster, destination: SandboxCluster
    ) -> tuple[LiveProducer, Watcher, Watcher]:
        from kmirror_sandbox.cli.demo_traffic import LiveProducer, Watcher, make_topic

        make_topic(source.bootstrap_servers, TOPIC, PARTITIONS)
        traffic = self.stack.enter_context(LiveProducer(source.bootstrap_servers, TOPIC, _RECORDS_PER_SECOND))
        here, there = (Watcher(cluster.bootstrap_servers, TOPIC, PARTITIONS) for cluster in (source, destination))
        self.stack.callback(here.close)
        self.stack.callback(there.close)
        traffic.burst(_HISTORY)
        here.wait_for(_HISTORY, _PATIENCE_S)
        self.output.say(
            f"a has a topic, {TOPIC}, with {PARTITIONS} partitions and {here.total():,} records,",
            f"and a producer that keeps writing about {_RECORDS_PER_SECOND:,} records a second to it, acks=all.",
        )
        return traffic, here, there

    def _make_mirror(self, kmirror: CommandRunner, source: SandboxCluster) -> None:
        self.output.heading("A mirror from a to b")
        file = self.write_properties(source)
        self.must(kmirror, "create", "--mirror", MIRROR, "--mirror-config", file)
        self.must(kmirror, "add", "--mirror", MIRROR, "--topics", TOPIC)

    def _copy(self, kmirror: CommandRunner, there: Watcher) -> RunningCommand:
        self.output.heading("Copy while the producer keeps writing")
        engine = kmirror.start("run", "--mirror", MIRROR)
        self.stack.callback(engine.kill)
        there.wait_for(_HISTORY, _PATIENCE_S)
        time.sleep(_LIVE_S)
        engine.mute()
        self.must(kmirror, "wait", "--mirror", MIRROR, "--for", "caught-up", "--timeout", f"{_PATIENCE_S:g}s")
        self.must(kmirror, "describe", "--mirror", MIRROR)
        return engine

    def _kill(self, engine: RunningCommand, traffic: LiveProducer, here: Watcher, there: Watcher) -> None:
        self.output.heading("Pull the plug half-way")
        if engine.exit_code is not None:
            raise StepFailedError(on_mirror("run", MIRROR), engine.exit_code)
        before = there.total()
        self.output.say(f"The producer writes {_BURST:,} more records as fast as it can; the engine copies them.")
        burst = threading.Thread(target=traffic.burst, args=(_BURST,), name="kmirror-demo-burst", daemon=True)
        burst.start()
        there.wait_for(before + _BURST // 3, _PATIENCE_S)
        killed = engine.kill()
        copied, written = there.total(), here.total()
        self.output.command(["kill", "-9", *map(str, killed)])
        self.output.say(f"Driver, JVM and workers are gone in mid-copy: a has {written:,} records, b has {copied:,}.")
        burst.join()
        self.output.say("The producer noticed nothing and keeps writing.")

    def _copy_again(self, kmirror: CommandRunner, traffic: LiveProducer, there: Watcher) -> None:
        self.output.heading("Restart it and let it catch up")
        acknowledged = traffic.close()
        self.output.say(f"The producer stops; a has acknowledged {acknowledged:,} records.")
        self.must(kmirror, "run", "--mirror", MIRROR, "--until-caught-up", "--timeout", f"{_PATIENCE_S:g}s")
        copied = there.total()
        if copied != acknowledged:
            self.output.say(f"b has {copied:,} records, which is not the same.")
            raise StepFailedError(on_mirror("run", MIRROR, "--until-caught-up"), ExitCode.HISTORIES_DIFFER)
        self.output.say(f"b has {copied:,} records: none lost, none copied twice.")

    def _lose_source(self, kmirror: CommandRunner, source: SandboxCluster) -> None:
        from kmirror_sandbox.cli.demo_traffic import write_records

        self.output.heading("The source is lost: failover")
        write_records(source.bootstrap_servers, TOPIC, _LATE)
        pid = source.brokers[0].pid
        source.kill(source.brokers[0].node_id)
        self.output.say(f"{_LATE} more records, which no engine has seen, reach a. Then:")
        self.output.command(["kill", "-9", str(pid)])
        self.output.say("The broker of a is gone. b takes over, which needs neither a nor an engine.")
        self.must(kmirror, "failover", "--mirror", MIRROR, "--yes")
        self.output.say(f"That is the known loss. The last {_LATE} records are not in it; they reappear below.")

    def _write_to_new_primary(self, destination: SandboxCluster) -> None:
        from kmirror_sandbox.cli.demo_traffic import write_records

        write_records(destination.bootstrap_servers, TOPIC, _LOCAL)
        self.output.say(f"Clients now write to b: {_LOCAL:,} new records, acks=all.")

    def _fail_back(self, source: SandboxCluster, destination: SandboxCluster) -> None:
        self.output.heading("The source comes back: failback")
        source.start_broker(source.brokers[0].node_id)
        self.output.say(f"a is back, with {_LATE} records that b never got. It becomes the mirror of b.")
        file = self.write_properties(destination)
        self.output.command(["export", f"KMIRROR_BOOTSTRAP_SERVER={source.bootstrap_servers}"])
        kmirror = self.command_line(source)
        self.must(kmirror, "failback", "--mirror", MIRROR, "--mirror-config", file, "--recreate", "--yes")
        self.output.say("Nothing was thrown away: the records that only a had are in an archive topic now.")
        self.must(kmirror, "run", "--mirror", MIRROR, "--until-caught-up", "--timeout", f"{_PATIENCE_S:g}s")
        self.must(kmirror, "verify", "--mirror", MIRROR)
        self.must(kmirror, "describe", "--mirror", MIRROR)

    def _verify(self, kmirror: CommandRunner, title: str) -> None:
        self.output.heading(title)
        self.must(kmirror, "verify", "--mirror", MIRROR)
