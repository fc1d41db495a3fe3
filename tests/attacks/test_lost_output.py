"""Commands whose output no one takes: a full disk, a stream that the caller closed, a terminal that hung up.

The exit code says what happened to the clusters, and an engine does not die of its own output.
"""

from __future__ import annotations

import errno
import io
import json
import subprocess
from pathlib import Path

import pytest

from kmirror.cli.main import main
from kmirror.cli.terminal.progress_lines import promoting
from kmirror.cli.terminal.screen import Screen
from kmirror.ops.stop.promote_request import PromoteView
from tests.support.clusters import ClusterPair, unique_topic
from tests.support.engine import command, typed
from tests.support.mirrored import Mirrored
from tests.support.mirrors import make_topic, produce
from tests.support.screens import Terminal, written

#: How a shell gives a command a standard output that cannot be written.
LOST = (">/dev/full", ">&-", ">/dev/full 2>&1", ">&- 2>&-", "<&- >&- 2>&-")


class Full(Terminal):
    """A terminal, or a file, that takes nothing."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC if not self._is_terminal else errno.EIO, "No room")


def lost(streams: str, *line: str) -> subprocess.CompletedProcess[str]:
    """Run a command line as a process with these streams."""
    shell = ["sh", "-c", f'exec "$@" {streams}', "sh", *line]
    return subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def mirrored(cluster_pair: ClusterPair, tmp_path: Path) -> Mirrored:
    topic = unique_topic()
    make_topic(cluster_pair.source, topic)
    produce(cluster_pair.source, topic, [f"{number}" for number in range(100)])
    made = Mirrored(cluster_pair.source, cluster_pair.destination, tmp_path, {topic: 1})
    made.create()
    return made


@pytest.mark.slow
def test_a_mirror_s_life_without_output(mirrored: Mirrored) -> None:
    where, name = mirrored.destination, ("--mirror", mirrored.name)
    for streams, seconds in zip(LOST, ("101", "102", "103", "104", "105"), strict=True):
        done = lost(streams, *command(where, "config", *name, "--set", f"refresh.interval.seconds={seconds}"))
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        settings = json.loads(typed(where, "config", *name, "--json").stdout)
        assert seconds in {one["value"] for one in settings}
    ran = lost(">/dev/full", *command(where, "run", *name, "--until-caught-up", "--timeout", "60s", with_spark=False))
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("standard output cannot be written: No space left on device") == 1
    stopped = lost(">/dev/full 2>&1", *command(where, "failover", *name, "--yes"))
    assert stopped.returncode == 0
    (row,) = mirrored.rows().values()
    # the fence takes an offset after the last record
    assert (row["topicState"], row["destinationOffset"]) == ("STOPPED", 101)
    again = lost(">/dev/full", *command(where, "promote", *name, "--topics", "no-such-topic", "--yes", "--json"))
    assert again.returncode == typed(where, "promote", *name, "--topics", "no-such-topic", "--yes").returncode != 0


@pytest.mark.slow
def test_what_only_shows_something_fails_if_that_is_lost(cluster_pair: ClusterPair) -> None:
    where = cluster_pair.destination
    for line in (command(where, "list"), command(where, "list", "--json"), [*command(where, "list")[:3], "--help"]):
        done = lost(">/dev/full", *line)
        assert done.returncode == 1
        assert "standard output cannot be written: No space left on device" in done.stderr
        assert "Traceback" not in done.stderr
    # closed on purpose
    assert lost(">&-", *command(where, "list")).returncode == 0


@pytest.mark.parametrize("is_terminal", [False, True])
def test_the_view_of_long_work_ends_nothing(is_terminal: bool) -> None:
    screen = Screen(Full(is_terminal=is_terminal), io.StringIO(), io.StringIO())
    with promoting(screen, on_terminal=is_terminal) as show:
        show(PromoteView(1.0, (), ("a line",), None))
    screen.console().print("text")
    screen.line("text")
    assert isinstance(screen.err, io.StringIO)
    assert screen.err.getvalue().count("standard output cannot be written") == 1


def test_the_disk_may_have_room_again() -> None:
    out = Full(is_terminal=False)
    screen = Screen(out, io.StringIO(), io.StringIO())
    screen.line("lost")
    screen.out = io.StringIO()
    screen.line("kept")
    assert written(screen)[0] == "kept\n"


def test_a_failure_is_shown_without_output(cluster_pair: ClusterPair) -> None:
    screen = Screen(Full(is_terminal=False), io.StringIO(), io.StringIO())
    code = main(
        ["describe", "--mirror", "none", "--bootstrap-server", cluster_pair.destination.bootstrap_servers], screen
    )
    assert code == 3
    assert isinstance(screen.err, io.StringIO)
    assert "kmirror: there is no mirror none" in screen.err.getvalue()
    assert "Traceback" not in screen.err.getvalue()
