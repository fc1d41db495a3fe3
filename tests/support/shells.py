"""Real shells, for tests of completion.

An installed one is used, or else Debian's.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.debian import library_path, unpacked

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
    root = unpacked("shells", name, _PACKAGES, _complete)
    environment = library_path(root)
    if name == "zsh":
        functions = sorted(str(path) for path in (root / "usr/share/zsh/functions").rglob("*") if path.is_dir())
        (modules,) = Path(environment["LD_LIBRARY_PATH"]).glob("zsh/*")
        # zsh takes no MODULE_PATH from its environment
        (root / ".zshenv").write_text(f"module_path=({modules})\nZDOTDIR=$HOME\n")
        environment |= {"ZDOTDIR": str(root), "FPATH": ":".join(functions)}
    program = next(path for path in (root / "usr/bin" / name, root / "bin" / name) if path.exists())
    return Shell(name, str(program), environment)


def _complete(root: Path) -> None:
    (root / "usr/etc").symlink_to("../etc")  # beside it fish looks for what belongs to it


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
