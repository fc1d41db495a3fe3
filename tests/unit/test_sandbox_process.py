"""Processes that outlive us: known by pid and start, so that a recycled pid is never taken for one of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kmirror_sandbox.process import (
    ProcessIdentity,
    identify,
    is_alive,
    send_signal,
    spawn,
    started_from_proc_stat,
    started_from_ps,
    terminate,
    wait_gone,
)

Start = Callable[[str], ProcessIdentity]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a shell script whose output goes to `output`."""
    started: list[ProcessIdentity] = []

    def run(script: str) -> ProcessIdentity:
        started.append(spawn(["/bin/sh", "-c", script], os.environ, tmp_path / "output"))
        return started[-1]

    yield run
    for process in started:
        send_signal(process, signal.SIGKILL)
    assert wait_gone(started, 10) == []


def wait_for_output(file: Path, text: str) -> None:
    while text not in (file.read_text() if file.exists() else ""):
        time.sleep(0.01)


def test_a_process_runs_in_a_session_of_its_own_and_writes_to_its_file(start: Start, tmp_path: Path) -> None:
    process = start("echo to stdout; echo to stderr >&2; read line || echo no stdin; sleep 60")
    wait_for_output(tmp_path / "output", "to stdout\nto stderr\nno stdin\n")
    assert is_alive(process)
    assert identify(process.pid) == process
    assert os.getsid(process.pid) == process.pid


def test_it_heeds_the_signals_that_we_ignore(start: Start, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        process = start("echo ready; sleep 60")
    finally:
        signal.signal(signal.SIGTERM, before)
    wait_for_output(tmp_path / "output", "ready")
    assert terminate([process], grace_s=30) == []
    assert not is_alive(process)


def test_a_stubborn_process_is_ended_by_force(start: Start, tmp_path: Path) -> None:
    stubborn = start("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    wait_for_output(tmp_path / "output", "ready")
    meek = start("sleep 60")
    assert terminate([stubborn, meek], grace_s=0.2) == [stubborn]
    assert not is_alive(stubborn)
    assert not is_alive(meek)


def test_a_frozen_process_is_alive_and_can_be_ended(start: Start) -> None:
    process = start("sleep 60")
    assert send_signal(process, signal.SIGSTOP)
    wait_for_output(Path(f"/proc/{process.pid}/stat"), ") T ")
    assert is_alive(process)
    assert terminate([process], grace_s=0.1) == [process]


def test_an_ended_child_is_no_longer_alive(start: Start) -> None:
    process = start("exit 0")
    assert wait_gone([process], 30) == []
    assert identify(process.pid) is None
    assert not send_signal(process, signal.SIGKILL)


def test_a_recycled_pid_is_neither_alive_nor_signalled(start: Start) -> None:
    process = start("sleep 60")
    earlier = replace(process, started="the start of an earlier process with this pid")
    assert not is_alive(earlier)
    assert not send_signal(earlier, signal.SIGKILL)
    assert terminate([earlier], grace_s=1) == []
    assert is_alive(process)


def test_the_start_time_is_read_whatever_the_name_of_the_program() -> None:
    after_name = "S 1 2 3 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 88123 100 1 2"
    assert started_from_proc_stat(f"7 (a) b (c)) {after_name}") == "88123"
    assert started_from_proc_stat(f"7 (java) Z{after_name[1:]}") is None


def test_a_process_whose_first_thread_has_ended_alone_is_not_gone() -> None:
    """So a killed JVM looks for some milliseconds, while its other threads still hold its ports."""
    fields = ["Z", *("0" for _ in range(16)), "34", "0", "88123"]
    assert started_from_proc_stat(f"7 (java) {' '.join(fields)}") == "88123"
    fields[17] = "1"
    assert started_from_proc_stat(f"7 (java) {' '.join(fields)}") is None


def test_the_start_time_is_read_from_ps_where_there_is_no_proc() -> None:
    assert started_from_ps("Ss   Sat Nov 21 11:49:12 2026\n") == "Sat Nov 21 11:49:12 2026"
    assert started_from_ps("Z+   Sat Nov 21 11:49:12 2026\n") is None
    assert started_from_ps("") is None
