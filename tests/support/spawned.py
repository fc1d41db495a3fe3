"""Functions of a test as processes of their own; what most of them need is imported once, in a server that forks.

Spawned, each of them would take a second of a processor to import it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from tests.support.waiting import PATIENCE_S

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "confluent_kafka.admin", "kmirror.ops.add.add", "tests.support.clusters"])


def exit_code_of(function: Callable[..., object], *arguments: Any) -> int | None:
    """Run a function in a process to its end, and return the exit code: negative for a signal."""
    process = PROCESSES.Process(target=function, args=arguments, daemon=True)
    process.start()
    return ended(process)


def ended(process: BaseProcess) -> int | None:
    """Wait for a process's end, and return the exit code; None if it did not end and was killed."""
    try:
        process.join(PATIENCE_S)
        return process.exitcode
    finally:
        process.kill()
        process.join()
