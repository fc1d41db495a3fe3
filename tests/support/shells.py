"""Real shells, for tests of completion.

An installed one is used. Otherwise Debian's packages are downloaded to the cache folder and unpacked there, which needs
neither root nor an installation; without apt-get the test fails and says what to install.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kmirror.engine.spark.shipping import cache_folder

#: The shells, with the packages that they need on top of a minimal Debian, which has bash.
_PACKAGES = ("zsh", "zsh-common", "fish", "fish-common", "libpcre2-32-0")
_PATIENCE_S = 120.0
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?>=]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-B]|[=>])")


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell that can be started, with what it needs in its environment."""

    name: str
    path: str
    environment: Mapping[str, str] = field(default_factory=dict)


def find_shell(name: str, search_path: str | None = None) -> Shell:
    """Return a shell: the installed one (`search_path` replaces PATH), or one downloaded for the tests."""
    installed = shutil.which(name, path=search_path)
    if installed:
        return Shell(name, installed)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        pytest.fail(f"this test needs {name}: install it, so that it is found in PATH")
    root = _fetched()
    (library,) = {path.parent for path in root.glob("usr/lib/*-linux-gnu/*")}
    environment = {"LD_LIBRARY_PATH": str(library)}
    if name == "zsh":
        functions = sorted(str(path) for path in (root / "usr/share/zsh/functions").rglob("*") if path.is_dir())
        (modules,) = library.glob("zsh/*")
        # zsh takes no MODULE_PATH from its environment
        (root / ".zshenv").write_text(f"module_path=({modules})\nZDOTDIR=$HOME\n")
        environment |= {"ZDOTDIR": str(root), "FPATH": ":".join(functions)}
    program = next(path for path in (root / "usr/bin" / name, root / "bin" / name) if path.exists())
    return Shell(name, str(program), environment)


def _fetched() -> Path:
    """Return the folder with the shells' unpacked packages; downloaded once."""
    base = cache_folder(os.environ) / "shells"
    root = base / "fetched"
    base.mkdir(parents=True, exist_ok=True)
    with (base / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if root.exists():
            return root
        unfinished = base / ".unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        for folder in ("lists/partial", "archives/partial"):
            (unfinished / "apt" / folder).mkdir(parents=True)
        options = [
            *("-o", f"Dir::State::lists={unfinished / 'apt/lists'}"),
            *("-o", f"Dir::Cache={unfinished / 'apt'}"),
            *("-o", "APT::Sandbox::User="),
            *("-o", "Debug::NoLocking=1"),
        ]
        for command in (["update"], ["download", *_PACKAGES]):
            _run(["apt-get", "-q", *options, *command], unfinished)
        for package in unfinished.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(unfinished / "root")], unfinished)
        (unfinished / "root/usr/etc").symlink_to("../etc")  # beside it fish looks for what belongs to it
        (unfinished / "root").rename(root)
        shutil.rmtree(unfinished)
    return root


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"


class Terminal:
    """A shell on its own terminal, with simulated typing, Tab included."""

    def __init__(self, shell: Shell, *arguments: str, environment: Mapping[str, str]) -> None:
        self._seen = ""
        pid, self._descriptor = pty.fork()
        if pid == 0:
            given = {
                "PATH": os.environ["PATH"],
                "TERM": "dumb",
                "LC_ALL": "C.UTF-8",
                **shell.environment,
                **environment,
            }
            os.execve(shell.path, [shell.name, *arguments], given)
        self._pid = pid

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)

    def type(self, text: str) -> None:
        """Type this."""
        os.write(self._descriptor, text.encode())

    def read_until(self, pattern: str) -> str:
        """Wait until this appears in the shell's output from now on, and return the first group of the match."""
        until = time.monotonic() + _PATIENCE_S
        readable = select.poll()  # select() only supports the first 1,024 descriptors of a process
        readable.register(self._descriptor, select.POLLIN)
        while (found := re.search(pattern, self._seen)) is None:
            assert time.monotonic() < until, f"{pattern} did not appear in:\n{self._seen}"
            if readable.poll(1000):
                self._seen = _ESCAPES.sub("", self._seen + os.read(self._descriptor, 65_536).decode(errors="replace"))
        self._seen = self._seen[found.end() :]
        return found[1]
