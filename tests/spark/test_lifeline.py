"""What ties a worker to its driver, with real processes and no Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kmirror.engine import lifeline
from tests.support.ending import killed_at_last
from tests.support.processes import tree
from tests.support.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent


def run(code: str) -> str:
    """Run Python code as a process of its own and return what it prints; it ends of itself."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "sender", ["main", *(pytest.param(one, marks=pytest.mark.slow) for one in ("main-of-two", "second"))]
)
def test_a_frozen_sender_that_is_continued_sends_not_one_byte_more(sender: str) -> None:
    command = [sys.executable, "-m", "tests.support.freeze_trials", sender, "200"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=250)

    assert json.loads(done.stdout) == {f"exit {int(signal.SIGCONT)}": 200}


def test_only_one_thread_may_send() -> None:
    code = """
import threading
from kmirror.engine import lifeline

lifeline.tie_to_driver(1)
go = threading.Event()
first = threading.Thread(target=lambda: (lifeline.die_on_continue(), go.wait()), name="first")
first.start()
try:
    lifeline.die_on_continue()
except RuntimeError as error:
    print(error)
go.set()
first.join()
lifeline.die_on_continue()
lifeline.tie_to_driver(1)
next_task = threading.Thread(target=lifeline.die_on_continue)
next_task.start()
next_task.join()
print("then the next")
"""
    assert run(code) == "thread first of this process already sends, so MainThread cannot\nthen the next\n"


def test_a_child_dies_with_the_process_that_forked_it() -> None:
    code = """
import os, signal, sys, time
from kmirror.engine import lifeline

if os.fork() == 0:
    lifeline.tie_children()
    worker = os.fork()
    if worker == 0:
        time.sleep(600)
    print(worker, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
"""
    process = int(run(code))

    # The output ends when the last process that holds it has ended, so the worker is gone now.
    assert not tree(process)


def test_a_child_whose_parent_died_before_it_was_tied_ends_at_once() -> None:
    code = """
import os, signal, time
from kmirror.engine import lifeline

if os.fork() == 0:
    daemon = os.getpid()
    if os.fork() == 0:
        while os.getppid() == daemon:
            time.sleep(0.01)
        lifeline.die_with_parent(daemon)
        print("still here", flush=True)
    os._exit(0)
os.wait()
"""
    assert run(code) == ""


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_worker_ends_when_an_ancestor_dies_though_those_between_are_frozen(victim: int) -> None:
    """Four generations; the oldest but one named is killed, those below it are frozen and pass nothing on."""
    code = f"""
import os, signal, sys, time
from kmirror.engine import lifeline

if os.fork() == 0:
    line = []
    for generation in range(3):
        line.append(os.getpid())
        if os.fork() > 0:
            time.sleep(600)
    lifeline.tie_to_driver(3)
    line.reverse()
    for process in line[:{victim} - 1]:
        os.kill(process, signal.SIGSTOP)
    print(os.getpid(), *line, flush=True)
    os.kill(line[{victim} - 1], signal.SIGKILL)
    time.sleep(600)
else:
    time.sleep(600)
"""
    with killed_at_last(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)) as oldest:
        assert oldest.stdout is not None
        worker, *line = map(int, oldest.stdout.readline().split())
        try:
            wait_until(lambda: not tree(worker))
        finally:
            for process in [oldest.pid, *line]:
                os.kill(process, signal.SIGKILL)


def test_the_parent_of_a_process_is_known_while_it_lives() -> None:
    assert lifeline.parent_of(os.getpid()) == os.getppid()
    assert lifeline.parent_of(2**22 + 1) is None
