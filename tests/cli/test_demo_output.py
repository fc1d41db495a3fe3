"""How `demo` runs commands and ends them."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

from kmirror import __version__
from kmirror.cli.terminal.screen import Screen
from kmirror_sandbox.cli.demo_output import CommandRunner, DemoOutput, RunningCommand
from kmirror_sandbox.process import identify
from tests.support.waiting import wait_until


def an_output() -> tuple[DemoOutput, io.StringIO]:
    out = io.StringIO()
    return DemoOutput(Screen(out, io.StringIO(), io.StringIO())), out


def test_chapters_and_commands(tmp_path: Path) -> None:
    output, out = an_output()
    output.heading("First")
    output.say("One thing.", "Another.")
    assert CommandRunner(output, tmp_path, {"KMIRROR_CONFIG": "/dev/null"}).run("--version") == 0
    output.heading("Then")
    output.command(["cat", "a file"])
    output.aside("The end.")
    assert out.getvalue() == (
        "\n"
        "1  First\n"
        "   One thing.\n"
        "   Another.\n"
        "   $ kmirror --version\n"
        f"     kmirror {__version__}\n"
        "\n"
        "2  Then\n"
        "   $ cat 'a file'\n"
        "\n"
        "The end.\n"
    )


def test_what_fails_says_so(tmp_path: Path) -> None:
    output, out = an_output()
    assert CommandRunner(output, tmp_path, {}).run("nonsense") == 2
    assert "     kmirror: no such command nonsense\n" in out.getvalue()


def test_a_killed_command_takes_its_children_with_it() -> None:
    output, out = an_output()
    process = subprocess.Popen(
        ["sh", "-c", "sleep 60 & sh -c 'sleep 60 & echo up; wait'; wait"], stdout=subprocess.PIPE, text=True
    )
    running = RunningCommand(process, output)
    while "up" not in out.getvalue():
        assert running.exit_code is None
    killed = running.kill()
    assert len(killed) == 4
    assert running.exit_code == -9
    wait_until(lambda: not any(identify(pid) for pid in killed))
    assert running.kill() == []


def test_a_muted_command_is_not_shown() -> None:
    output, out = an_output()
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running = RunningCommand(process, output)
    running.mute()
    assert process.stdin is not None
    process.stdin.write("secret\n")
    process.stdin.close()
    assert running.wait() == 0
    assert out.getvalue() == ""
