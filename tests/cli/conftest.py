"""Run command lines in this process, as a script would see them: arguments in; exit code, output and errors out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from kmirror.cli.main import main
from tests.support.json_documents import check_printed


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command line ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `kmirror ARGUMENTS` in an empty folder, with nothing configured, on lines of 80 characters."""
    for name in ("KMIRROR_BOOTSTRAP_SERVER", "KMIRROR_COMMAND_CONFIG", "KMIRROR_CONFIG", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def run_kmirror(*arguments: str) -> Ran:
        code = main(arguments)
        captured = capsys.readouterr()
        check_printed(arguments, captured.out)
        return Ran(code, captured.out, captured.err)

    return run_kmirror


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a terminal be one of 120 colourful characters, whatever the tests themselves are run in."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
