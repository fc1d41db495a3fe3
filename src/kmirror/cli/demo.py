"""`demo`: two real clusters, live traffic, an engine killed half-way, a source that is lost and comes back, and proofs.

Every number it tells is measured while it runs. Everything it starts is ended, and its folder removed, however it ends.
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
from kmirror.cli.options import Call, verb
from kmirror.cli.story import Kmirror, Running, Story
from kmirror.errors import ExitCode

if TYPE_CHECKING:
    from kmirror.cli.screen import Screen
    from kmirror.cli.traffic import LiveProducer, Watcher
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
    with _told_to_end_by_signals(), ExitStack() as stack:
        return _Demo(call.output.screen, stack).play()


class _StepFailedError(Exception):
    """A command did not end as it should."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(command, code)
        self.command = command
        self.code = code


class _Demo:
    """The clusters, the traffic and the commands of one demo; all of it goes with `stack`."""

    def __init__(self, screen: Screen, stack: ExitStack) -> None:
        self._screen = screen
        self._story = Story(screen)
        self._stack = stack
        self._folder = Path(tempfile.mkdtemp(prefix="kmirror-demo-"))
        stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._began = time.monotonic()

    def play(self) -> int:
        """Tell the story; return 0 when every comparison found everything equal."""
        self._story.aside("Real brokers, a real engine, live traffic. Ctrl-C ends it at any time and clears up.")
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
            self._story.aside(f"`{failed.command}` ended with {failed.code}: this demo has failed.", "bold red")
            return failed.code
        seconds = tables.elapsed(time.monotonic() - self._began)
        self._story.aside(
            f"Equal, each time; {seconds} from the first broker to here. All of it is removed now.", "bold green"
        )
        self._story.aside(
            "Next: `kmirror sandbox up` gives you two clusters to play with, `kmirror --help` all commands."
        )
        return ExitCode.OK

    def _start_clusters(self) -> tuple[SandboxCluster, SandboxCluster]:
        from kmirror.cli.progress import working
        from kmirror.sandbox.cluster import SandboxCluster, start_together

        self._story.begin("Two Kafka clusters on this machine")
        with working(self._screen, on_terminal=self._screen.is_terminal) as watch:
            clusters = [
                SandboxCluster(name, self._folder / name, report=self._story.say, watch=watch) for name in ("a", "b")
            ]
            for cluster in clusters:
                self._stack.callback(cluster.destroy)
                cluster.fetch()
            began = time.monotonic()
            start_together(clusters, watch)
        source, destination = clusters
        self._story.say(
            f"a, the source, is at {source.bootstrap_servers}; b, the destination, at {destination.bootstrap_servers}.",
            f"Kafka {source.kafka_version}, unpatched, up after {tables.elapsed(time.monotonic() - began)}.",
        )
        return source, destination

    def _start_traffic(
        self, source: SandboxCluster, destination: SandboxCluster
    ) -> tuple[LiveProducer, Watcher, Watcher]:
        from kmirror.cli.traffic import LiveProducer, Watcher, make_topic

        make_topic(source.bootstrap_servers, TOPIC, PARTITIONS)
        traffic = self._stack.enter_context(LiveProducer(source.bootstrap_servers, TOPIC, _RECORDS_PER_SECOND))
        here, there = (Watcher(cluster.bootstrap_servers, TOPIC, PARTITIONS) for cluster in (source, destination))
        self._stack.callback(here.close)
        self._stack.callback(there.close)
        traffic.burst(_HISTORY)
        here.wait_for(_HISTORY, _PATIENCE_S)
        self._story.say(
            f"On a there is a topic, {TOPIC}: {PARTITIONS} partitions, {here.total():,} records,",
            f"and a producer that goes on writing about {_RECORDS_PER_SECOND:,} records a second to it, acks=all.",
        )
        return traffic, here, there

    def _command_line(self, destination: SandboxCluster) -> Kmirror:
        nothing_configured = self._folder / "kmirror.toml"
        nothing_configured.touch()
        environ = {"KMIRROR_BOOTSTRAP_SERVER": destination.bootstrap_servers, "KMIRROR_CONFIG": str(nothing_configured)}
        return Kmirror(self._story, self._folder, environ)

    def _write_properties(self, cluster: SandboxCluster) -> str:
        """Write, and show, the file by which a mirror's source is named."""
        name, properties = f"{cluster.name}.properties", f"bootstrap.servers={cluster.bootstrap_servers}"
        (self._folder / name).write_text(f"{properties}\n", encoding="utf-8")
        self._story.command(["cat", name])
        self._story.printed(properties)
        return name

    def _make_mirror(self, kmirror: Kmirror, source: SandboxCluster) -> None:
        self._story.begin("A mirror from a to b")
        file = self._write_properties(source)
        self._must(kmirror, "create", "--mirror", MIRROR, "--mirror-config", file)
        self._must(kmirror, "add", "--mirror", MIRROR, "--topics", TOPIC)

    def _copy(self, kmirror: Kmirror, there: Watcher) -> Running:
        self._story.begin("Copy, while the producer goes on writing")
        engine = kmirror.start("run", "--mirror", MIRROR)
        self._stack.callback(engine.kill)
        there.wait_for(_HISTORY, _PATIENCE_S)
        time.sleep(_LIVE_S)
        engine.mute()
        self._must(kmirror, "wait", "--mirror", MIRROR, "--for", "caught-up", "--timeout", f"{_PATIENCE_S:g}s")
        self._must(kmirror, "describe", "--mirror", MIRROR)
        return engine

    def _kill(self, engine: Running, traffic: LiveProducer, here: Watcher, there: Watcher) -> None:
        self._story.begin("Pull the plug half-way")
        if engine.exit_code is not None:
            raise _StepFailedError(f"kmirror run --mirror {MIRROR}", engine.exit_code)
        before = there.total()
        self._story.say(f"The producer writes {_BURST:,} more records as fast as a takes them; the engine is on them.")
        burst = threading.Thread(target=traffic.burst, args=(_BURST,), name="kmirror-demo-burst", daemon=True)
        burst.start()
        there.wait_for(before + _BURST // 3, _PATIENCE_S)
        killed = engine.kill()
        copied, written = there.total(), here.total()
        self._story.command(["kill", "-9", *map(str, killed)])
        self._story.say(
            f"Driver, JVM and workers are gone, in the middle of it: a holds {written:,} records, b {copied:,}."
        )
        burst.join()
        self._story.say("The producer has noticed nothing, and goes on.")

    def _copy_again(self, kmirror: Kmirror, traffic: LiveProducer, there: Watcher) -> None:
        self._story.begin("Start it again, and let it catch up")
        acknowledged = traffic.close()
        self._story.say(f"The producer stops; a has acknowledged {acknowledged:,} records.")
        self._must(kmirror, "run", "--mirror", MIRROR, "--until-caught-up", "--timeout", f"{_PATIENCE_S:g}s")
        copied = there.total()
        if copied != acknowledged:
            self._story.say(f"b ends at {copied:,} records, and that is not the same.")
            raise _StepFailedError(f"kmirror run --mirror {MIRROR} --until-caught-up", ExitCode.HISTORIES_DIFFER)
        self._story.say(f"b holds {copied:,} records: none lost, none twice.")

    def _lose_source(self, kmirror: Kmirror, source: SandboxCluster) -> None:
        from kmirror.cli.traffic import write_records

        self._story.begin("The source is lost: failover")
        write_records(source.bootstrap_servers, TOPIC, _LATE)
        pid = source.brokers[0].pid
        source.kill(source.brokers[0].node_id)
        self._story.say(f"{_LATE} more records reach a, which no engine has seen, and then")
        self._story.command(["kill", "-9", str(pid)])
        self._story.say("The broker of a is gone. b takes over; that takes neither a nor an engine.")
        self._must(kmirror, "failover", "--mirror", MIRROR, "--yes")
        self._story.say(
            f"That is what is known to be lost. The last {_LATE} nobody had seen; they come to light below."
        )

    def _write_to_new_primary(self, destination: SandboxCluster) -> None:
        from kmirror.cli.traffic import write_records

        write_records(destination.bootstrap_servers, TOPIC, _LOCAL)
        self._story.say(f"From now on b is written to: {_LOCAL:,} new records, acks=all.")

    def _fail_back(self, source: SandboxCluster, destination: SandboxCluster) -> None:
        self._story.begin("The source comes back: failback")
        source.start_broker(source.brokers[0].node_id)
        self._story.say(f"a is there again, with {_LATE} records that b never got. It becomes the mirror of b.")
        file = self._write_properties(destination)
        self._story.command(["export", f"KMIRROR_BOOTSTRAP_SERVER={source.bootstrap_servers}"])
        kmirror = self._command_line(source)
        self._must(kmirror, "failback", "--mirror", MIRROR, "--mirror-config", file, "--recreate", "--yes")
        self._story.say("Nothing was thrown away: what only a had is in a topic of its own now.")
        self._must(kmirror, "run", "--mirror", MIRROR, "--until-caught-up", "--timeout", f"{_PATIENCE_S:g}s")
        self._must(kmirror, "verify", "--mirror", MIRROR)
        self._must(kmirror, "describe", "--mirror", MIRROR)

    def _verify(self, kmirror: Kmirror, title: str) -> None:
        self._story.begin(title)
        self._must(kmirror, "verify", "--mirror", MIRROR)

    def _must(self, kmirror: Kmirror, *arguments: str) -> None:
        code = kmirror.run(*arguments)
        if code:
            raise _StepFailedError(f"kmirror {' '.join(arguments)}", code)


@contextmanager
def _told_to_end_by_signals() -> Iterator[None]:
    """Let SIGTERM end things as Ctrl-C does, and let nothing disturb the clearing up."""

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
