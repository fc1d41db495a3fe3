"""Processes that tests start by themselves: however a test ends, none of them is left."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.processes import tree
from tests.support.waiting import PATIENCE_S


@contextmanager
def killed_at_last(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Kill a process and all below it at the end of the block, if it still runs then, and close its pipes."""
    with process:
        try:
            yield process
        finally:
            _kill_tree(process)


def printed(process: subprocess.Popen[str], seconds: float = PATIENCE_S) -> tuple[str, str]:
    """Return what a process prints to its end; if it does not end, kill it and all below it, and fail with that."""
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill_tree(process)
        said = process.communicate(timeout=PATIENCE_S)
        raise AssertionError(f"it has not ended within {seconds} s: {said}") from None


def terminated(process: subprocess.Popen[bytes]) -> None:
    """End a process with SIGTERM, or with SIGKILL if that takes too long, which is an error."""
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    finally:
        _kill_tree(process)


def _kill_tree(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        for one in tree(process.pid):
            one.kill()
