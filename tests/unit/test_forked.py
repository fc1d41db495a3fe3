"""A forked command is to its caller what a process of its own would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kmirror import __version__
from tests.support import fork_client
from tests.support.forked import Forked, _server, run, shell_command
from tests.support.processes import tree, wait_gone
from tests.support.waiting import PATIENCE_S

KMIRROR = [sys.executable, "-m", "kmirror"]
#: It waits for a cluster that is not there until it is ended.
WAITS = [sys.executable, "-m", "tests.support.without_spark", "run", "--mirror", "m", "--bootstrap-server"]


def test_what_it_prints_and_how_it_ends() -> None:
    done = run([*KMIRROR, "--version"])
    assert (done.returncode, done.stdout.split()[-1], done.stderr) == (0, __version__, "")
    wrong = run([*KMIRROR, "no-such-verb"])
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "no-such-verb" in wrong.stderr


def test_folder_and_environment_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "kmirror.toml").write_text("nonsense = [")
    words = [*KMIRROR, "list"]
    there = run(words, env={**os.environ, "KMIRROR_CONFIG": "kmirror.toml"}, cwd=tmp_path)
    assert (there.returncode, "kmirror.toml" in there.stderr) == (2, True), there
    elsewhere = run(words, env={**os.environ, "KMIRROR_BOOTSTRAP_SERVER": "127.0.0.1:1", "KMIRROR_CONFIG": os.devnull})
    assert (elsewhere.returncode, "127.0.0.1:1" in elsewhere.stderr) == (6, True), elsewhere


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_signals_reach_it(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with (tmp_path / "out").open("wb") as out:
        process = Forked(
            [*WAITS, "127.0.0.1:1"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    assert process.poll() is None
    while ", retrying: " not in (tmp_path / "out").read_text():
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == process.poll() == code
    process.send_signal(number)


def test_it_does_not_outlive_its_client(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        streams = (out.fileno(),) * 3
        connection, pid = fork_client.ask(_server(), [*WAITS[2:], "127.0.0.1:1"], os.environ, str(tmp_path), streams)
    (process,) = tree(pid)
    connection.close()
    assert not wait_gone([process], PATIENCE_S)


def test_in_a_shell_it_is_a_command_like_others(tmp_path: Path) -> None:
    script = f"""
        {shell_command("kmirror")} --version | tee version
        {shell_command("kmirror")} no-such-verb 2> wrong || echo $?
        {shell_command("tests.support.without_spark")} run --mirror m --bootstrap-server 127.0.0.1:1 > waits &
        until grep -q ", retrying: " waits; do sleep 0.05; done
        kill -INT $!
        wait $! && echo well
    """
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    printed = [__version__, "2", "well"]
    assert [line.split()[-1] for line in done.stdout.splitlines()] == printed, done
    assert "no-such-verb" in (tmp_path / "wrong").read_text()
