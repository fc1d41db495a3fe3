"""How `demo` runs commands and ends them."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

from kmirror import __version__
from kmirror.cli.screen import Screen
from kmirror.cli.story import Kmirror, Running, Story
from kmirror.sandbox.process import identify
from tests.support.waiting import wait_until


def a_story() -> tuple[Story, io.StringIO]:
    out = io.StringIO()
    return Story(Screen(out, io.StringIO(), io.StringIO())), out


def test_a_story(tmp_path: Path) -> None:
    story, out = a_story()
    story.begin("First")
    story.say("One thing.", "Another.")
    assert Kmirror(story, tmp_path, {"KMIRROR_CONFIG": "/dev/null"}).run("--version") == 0
    story.begin("Then")
    story.command(["cat", "a file"])
    story.aside("The end.")
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
    story, out = a_story()
    assert Kmirror(story, tmp_path, {}).run("nonsense") == 2
    assert "     kmirror: no such command nonsense\n" in out.getvalue()


def test_a_killed_command_takes_its_children_with_it() -> None:
    story, out = a_story()
    process = subprocess.Popen(
        ["sh", "-c", "sleep 60 & sh -c 'sleep 60 & echo up; wait'; wait"], stdout=subprocess.PIPE, text=True
    )
    running = Running(process, story)
    while "up" not in out.getvalue():
        assert running.exit_code is None
    killed = running.kill()
    assert len(killed) == 4
    assert running.exit_code == -9
    wait_until(lambda: not any(identify(pid) for pid in killed))
    assert running.kill() == []


def test_a_muted_command_is_not_told() -> None:
    story, out = a_story()
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running = Running(process, story)
    running.mute()
    assert process.stdin is not None
    process.stdin.write("secret\n")
    process.stdin.close()
    assert running.ended() == 0
    assert out.getvalue() == ""
