"""A show on two real clusters of its own: where it prints, how it runs commands, and how it cleans up."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from kmirror.cli.terminal import plain_tables as tables
from kmirror_sandbox.cli.demo_output import CommandRunner, DemoOutput

if TYPE_CHECKING:
    from kmirror.cli.terminal.screen import Screen
    from kmirror_sandbox.cluster import SandboxCluster


class StepFailedError(Exception):
    """A command did not end as it should."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(command, code)
        self.command = command
        self.code = code


class Stage:
    """Two clusters, `a` and `b`, and commands in a folder of their own; `stack` cleans all of it up."""

    def __init__(self, screen: Screen, stack: ExitStack) -> None:
        self.screen = screen
        self.output = DemoOutput(screen)
        self.stack = stack
        self.folder = Path(tempfile.mkdtemp(prefix="kmirror-demo-"))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.began = time.monotonic()

    def start_clusters(self) -> tuple[SandboxCluster, SandboxCluster]:
        """Start the source and the destination; they end with the stack."""
        from kmirror.cli.terminal.progress_lines import working
        from kmirror_sandbox.cluster import SandboxCluster, start_together

        self.output.heading("Two Kafka clusters on this machine")
        with working(self.screen, on_terminal=self.screen.is_terminal) as watch:
            clusters = [
                SandboxCluster(name, self.folder / name, report=self.output.say, watch=watch) for name in ("a", "b")
            ]
            for cluster in clusters:
                self.stack.callback(cluster.destroy)
                cluster.fetch()
            began = time.monotonic()
            start_together(clusters, watch)
        source, destination = clusters
        self.output.say(
            f"a, the source, is {source.bootstrap_servers}; b, the destination, is {destination.bootstrap_servers}.",
            f"Kafka {source.kafka_version}, unpatched, up after {tables.elapsed(time.monotonic() - began)}.",
        )
        return source, destination

    def command_line(self, destination: SandboxCluster) -> CommandRunner:
        """Return what runs commands against a destination, whatever this machine has configured."""
        nothing_configured = self.folder / "kmirror.toml"
        nothing_configured.touch()
        environ = {"KMIRROR_BOOTSTRAP_SERVER": destination.bootstrap_servers, "KMIRROR_CONFIG": str(nothing_configured)}
        return CommandRunner(self.output, self.folder, environ)

    def write_properties(self, cluster: SandboxCluster) -> str:
        """Write, and show, the file that describes the source of a mirror."""
        name, properties = f"{cluster.name}.properties", f"bootstrap.servers={cluster.bootstrap_servers}"
        (self.folder / name).write_text(f"{properties}\n", encoding="utf-8")
        self.output.command(["cat", name])
        self.output.printed(properties)
        return name

    def must(self, kmirror: CommandRunner, *arguments: str) -> None:
        """Run a command; raise StepFailedError unless it ends with 0."""
        code = kmirror.run(*arguments)
        if code:
            raise StepFailedError(f"kmirror {' '.join(arguments)}", code)
