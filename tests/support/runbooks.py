"""The runbooks of docs/runbooks as programs: bash runs their commands in order.

What follows `sh` on a ```sh block says what it is: nothing, a step that ends with 0; `exit=N`, one that ends with N;
`settings`, the variables that the operator sets first; `running`, a command that keeps running while others are typed.
Kafka's own tools, and kmirror, are small scripts in a folder that is first in the PATH. There kmirror needs no Spark
unless a test asks for it, and finds a Java that starts brokers fast.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.clusters import put_quick_java_into
from tests.support.ending import killed_at_last, printed
from tests.support.engine import ROOT
from tests.support.forked import shell_command
from tests.support.kafka_tools import put_kafka_tools_into
from tests.support.processes import tree
from tests.support.waiting import PATIENCE_S

DOCS = ROOT / "docs"

_SETTING = re.compile(r"export ([A-Z_]+)=(\S+)")
_PATIENCE_S = 240


@dataclass(frozen=True, slots=True)
class Block:
    """One ```sh block: its heading, what follows `sh`, and what is typed."""

    section: str
    kind: str
    text: str

    @property
    def exit_code(self) -> int:
        """Return the exit code that it ends with."""
        return int(self.kind.removeprefix("exit=")) if self.kind.startswith("exit=") else 0


def blocks_of(markdown: str) -> list[Block]:
    """Return the ```sh blocks of a page, in order."""
    found, section, kind = [], "", None
    lines: list[str] = []
    for line in markdown.splitlines():
        if kind is None and line.startswith("#"):
            section = line.lstrip("#").strip()
        elif kind is None and (fence := re.fullmatch(r"```sh ?(.*)", line)):
            kind, lines = fence.group(1), []
        elif kind is not None and line == "```":
            found.append(Block(section, kind, "\n".join(lines)))
            kind = None
        elif kind is not None:
            lines.append(line)
    return found


class Operator:
    """Work through a runbook, heading by heading, in a folder; `given` are the variables of its settings block."""

    def __init__(self, page: str, folder: Path, given: Mapping[str, str], *, with_spark: bool = False) -> None:
        self._folder = folder
        path = f"{tools_in(folder / 'bin', with_spark=with_spark)}:{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "KMIRROR_CONFIG": os.devnull}
        self.environ.pop("JAVA_HOME", None)  # it would come before the PATH
        blocks = blocks_of((DOCS / "runbooks" / f"{page}.md").read_text(encoding="utf-8"))
        self._left = [block for block in blocks if block.kind != "settings"]
        self._running: list[subprocess.Popen[str]] = []
        for block in blocks:
            if block.kind == "settings":
                self._set(block.text, given)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for running in self._running:
            for process in tree(running.pid):
                process.kill()
            running.wait()
        assert kind or not self._left, f"these were not typed: {[block.text for block in self._left]}"

    def follow(self, section: str) -> str:
        """Type everything under the headings that begin so, and return the output."""
        chosen = [block for block in self._left if block.section.startswith(section)]
        assert chosen, f"there is nothing to type under {section!r}; left is {[block.section for block in self._left]}"
        self._left = [block for block in self._left if block not in chosen]
        return "".join(self._type(block) for block in chosen)

    def skip(self, section: str) -> None:
        """Skip what is under the headings that begin so: another case is followed."""
        chosen = [block for block in self._left if block.section.startswith(section)]
        assert chosen, f"there is nothing to leave out under {section!r}"
        self._left = [block for block in self._left if block not in chosen]

    def interrupt(self, seconds: float = PATIENCE_S) -> list[int]:
        """Press Ctrl-C in every window in which something runs; return the exit codes."""
        for running in self._running:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGINT)
        return self.ended(seconds)

    def ended(self, seconds: float = PATIENCE_S) -> list[int]:
        """Wait for the end of everything that runs; return the exit codes."""
        codes = [running.wait(seconds) for running in self._running]
        self._running = []
        return codes

    def _set(self, text: str, given: Mapping[str, str]) -> None:
        for line in text.splitlines():
            setting = _SETTING.match(line)
            assert setting, f"not a setting: {line}"
            name, value = setting.groups()
            self.environ[name] = self.environ[value[1:]] if value.startswith("$") else given[name]

    def _type(self, block: Block) -> str:
        command = ["bash", "-euo", "pipefail", "-c", block.text]
        if block.kind == "running":
            output = self._folder / f"running-{time.monotonic_ns()}.out"
            with output.open("w") as file:
                self._running.append(
                    subprocess.Popen(
                        command,
                        cwd=self._folder,
                        env=self.environ,
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        text=True,
                        start_new_session=True,
                    )
                )
            return ""
        started = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with killed_at_last(started):
            out, _ = printed(started, _PATIENCE_S)
        assert started.returncode == block.exit_code, f"{block.section}: {block.text}\n{started.returncode}\n{out}"
        return out


def tools_in(folder: Path, *, with_spark: bool = True) -> Path:
    """Put kmirror and Kafka's own tools into a new folder, for the PATH; return the folder."""
    for_brokers = folder / "for-brokers"
    for_brokers.mkdir(parents=True)
    put_quick_java_into(for_brokers)
    cases = [f"sandbox) export PATH={for_brokers}:$PATH;;"]
    if not with_spark:
        cases.append(f'run|verify|promote|switchover) exec {shell_command("tests.support.without_spark")} "$@";;')
    else:
        cases.append(f'run|verify|promote|switchover) exec {sys.executable} -m kmirror "$@";;')
    _script(folder / "kmirror", f'case $1 in {" ".join(cases)} esac\nexec {shell_command("kmirror")} "$@"')
    put_kafka_tools_into(folder)
    return folder


def _script(path: Path, lines: str) -> None:
    path.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
    path.chmod(0o755)
