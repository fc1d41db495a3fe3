"""A kmirror command that is killed at a chosen moment: at one of the records it writes, or after one of its steps.

Everything that a verb stores goes through `StateWriter.commit`; a `StepRunner` and the cut of a log directory report
each step. This module, run as a program, counts them, and is otherwise the command itself. It prints what it did to
stderr, and then sends itself SIGKILL.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kmirror.state.snapshot import Changes
from kmirror.state.waiting import Deadline
from kmirror.state.writer import StateWriter
from tests.support import forked

_ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill: `before` or `after` the record of this number, or after this `step`; from 1 on."""

    when: str
    number: int

    def __str__(self) -> str:
        return f"{self.when} {self.number}"


def run_killed(
    moment: Moment, command: Sequence[str], environ: Mapping[str, str] | None = None
) -> tuple[bool, subprocess.CompletedProcess[str]]:
    """Run a command line made by `tests.support.engine.command`; return whether it was killed.

    One that ends before that must succeed.
    """
    words = [sys.executable, "-m", "tests.support.killed", moment.when, str(moment.number), *command[3:]]
    if command[3] in {"promote", "switchover"}:  # they may start Spark
        done = subprocess.run(words, capture_output=True, text=True, cwd=_ROOT, env=environ, check=False, timeout=180)
    else:
        done = forked.run(words, env=environ)
    assert done.returncode in (0, -signal.SIGKILL), f"{moment}: {done.returncode} {done.stderr}"
    return done.returncode != 0, done


def _kill_at_record(when: str, number: int) -> None:
    commit, numbers = StateWriter.commit, itertools.count(1)

    def counted(self: StateWriter, changes: Changes, deadline: Deadline) -> None:
        at = next(numbers)
        if (when, at) == ("before", number):
            _die(f"before record {at}: {_told(changes)}")
        commit(self, changes, deadline)
        _say(f"record {at}: {_told(changes)}")
        if (when, at) == ("after", number):
            _die(f"after record {at}")

    StateWriter.commit = counted  # type: ignore[method-assign]


def _kill_at_step(number: int) -> None:
    from kmirror.ops.failback import truncate_logs
    from kmirror.ops.stop.steps import StepRunner

    numbers = itertools.count(1)

    def checkpoint(step: str) -> None:
        at = next(numbers)
        _say(f"step {at}: {step}")
        if at == number:
            _die(f"after step {at}")

    walk = StepRunner.walk

    def watched(self: StepRunner, steps: Any, work: Any) -> None:
        self._checkpoint = checkpoint
        walk(self, steps, work)

    StepRunner.walk = watched  # type: ignore[method-assign]
    module: Any = truncate_logs
    module.truncate_logs = partial(module.truncate_logs, checkpoint=checkpoint)
    module.undo_truncation = partial(module.undo_truncation, checkpoint=checkpoint)


def _told(changes: Changes) -> str:
    keys = [*(record.key for record in changes.records), *changes.tombstones]
    return "; ".join(" ".join(str(word) for word in key) for key in keys) or "an event"


def _say(line: str) -> None:
    sys.stderr.write(f"[{line}]\n")
    sys.stderr.flush()


def _die(line: str) -> None:
    _say(f"killed {line}")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    moment_name, ordinal, *words_of_verb = sys.argv[1:]
    if moment_name == "step":
        _kill_at_step(int(ordinal))
    else:
        _kill_at_record(moment_name, int(ordinal))
    sys.argv[1:] = words_of_verb
    from kmirror.cli.main import entry_point

    entry_point()
