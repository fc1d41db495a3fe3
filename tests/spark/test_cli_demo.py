"""`demo`: the first thing people see. It has to work, and to leave nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.clusters import broker_processes
from tests.support.ending import killed_at_last, printed


@pytest.fixture
def temporary_folder(tmp_path: Path) -> Iterator[Path]:
    """Return the folder below which the demo keeps what it makes; when it is over, that is nothing."""
    folder = tmp_path / "t"
    folder.mkdir()
    yield folder
    assert broker_processes(folder) == []
    assert list(folder.glob("kmirror-demo-*")) == []


@contextmanager
def demo(temporary_folder: Path, *verb: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "kmirror", *(verb or ("demo",))],
        env={**os.environ, "TMPDIR": str(temporary_folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with killed_at_last(started) as process:
        yield process


def without_progress(err: str) -> str:
    """Return what was written to stderr without the progress of clusters that take more than two seconds to start."""
    return re.sub(r"^ +\d+s  starting 2 clusters .*\n", "", err, flags=re.MULTILINE)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_demo_from_beginning_to_end(temporary_folder: Path) -> None:
    with demo(temporary_folder) as running:
        out, err = printed(running, 780)
    assert (without_progress(err), out.splitlines()[-3].startswith("Equal every time")) == ("", True), out
    written, copied = re.search(r"in mid-copy: a has ([0-9,]+) records, b has ([0-9,]+)\.", out).groups()  # type: ignore[union-attr]
    assert 0 < int(copied.replace(",", "")) <= int(written.replace(",", ""))
    compared = re.findall(r"^ +equal: 4 partitions, ([0-9,]+) records", out, re.MULTILINE)
    before, after = (int(records.replace(",", "")) for records in compared[1:])
    # what b was written to after the failover came over; what only a had was saved, and counted
    assert after == before + 1000
    assert re.search(r"orders was recreated and is copied in full; orders\.kmirror-archive\.1 holds 3 records", out)


@pytest.mark.slow
def test_the_challenge_passes(temporary_folder: Path) -> None:
    with demo(temporary_folder, "sandbox", "challenge") as running:
        out, err = printed(running, 480)
    assert without_progress(err) == ""
    assert out.splitlines()[-1].startswith("ALL SCENARIOS PASSED in "), out
    position = "source log truncation detected at position 1000: the source starts at offset 1150 and ends at 1200"
    assert f"ERROR   challenge truncated-0 FAILED SOURCE_TRUNCATED: {position}" in out
    assert (
        "ERROR   challenge reset-0 FAILED SOURCE_TOPIC_RECREATED: source topic reset detected at position 1000" in out
    )


@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "number"),
    [("Two Kafka clusters", signal.SIGTERM), ("$ kmirror create", signal.SIGINT), ("copying: 1 topic", signal.SIGINT)],
)
def test_an_interrupted_demo_leaves_nothing_behind(temporary_folder: Path, line: str, number: signal.Signals) -> None:
    with demo(temporary_folder) as running:
        assert running.stdout is not None
        assert any(line in reported for reported in running.stdout)
        running.send_signal(number)
        _, err = printed(running)
    assert (running.returncode, without_progress(err)) == (130, "kmirror: interrupted\n")
