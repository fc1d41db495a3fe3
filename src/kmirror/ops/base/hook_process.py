"""Run a hook as a process of its own: a JSON document on stdin, bounded output, a time limit, and an end by force.

The process leads a session and a process group of its own. Ctrl-C at the terminal does not reach it: whoever waits for
it decides, and ends the whole group.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO

from kmirror.errors import UsageError
from kmirror.ops.base.hook_runs import (
    DEFAULT_LIMIT_MS,
    HookCommand,
    HookOutcome,
    HookOutput,
    HookRun,
    When,
    hook_run,
    split_command,
)

#: How often to look whether the process has ended, or must.
_STEP_S = 0.05
#: How long output is read that others, to whom the ended process left its stdout, still write.
_LAST_OUTPUT_S = 0.2
_READ_BYTES = 65_536


def hook_command(when: When, text: str, limit_ms: int | None = None) -> HookCommand:
    """Return the command of an option, after checking that its program can be run.

    Raises:
        UsageError: it cannot, or the limit is not positive.
    """
    flag = f"--{when}"
    if limit_ms is not None and limit_ms <= 0:
        raise UsageError("--hook-timeout is not positive", "give a duration such as 60s")
    arguments = split_command(flag, text)
    program = shutil.which(arguments[0])
    if program is None:
        name = arguments[0]
        if not os.path.dirname(name):
            why, hint = f"there is no program {name}", "give its path, or a program in a folder of PATH"
        elif os.path.isfile(name):
            why, hint = f"{name} is not executable", "make it executable with `chmod +x`"
        else:
            why, hint = f"there is no program {name}", "give the path of a program; ~ is not expanded"
        raise UsageError(f"{flag}: {why}", hint)
    return HookCommand(when, arguments, os.path.abspath(program), DEFAULT_LIMIT_MS if limit_ms is None else limit_ms)


def run_hook(
    command: HookCommand,
    document: bytes,
    must_end: Callable[[], bool] = lambda: False,
    environ: Mapping[str, str] | None = None,
) -> HookRun:
    """Run a hook to its end, and kill its process group at its time limit, or once `must_end` returns True.

    An exception, such as that of Ctrl-C, kills it too. `environ` is its environment, by default that of this process.
    """
    began, output = time.monotonic(), HookOutput()
    try:
        process = subprocess.Popen(
            command.arguments,
            executable=command.program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environ,
        )
    except OSError as error:
        output.take(f"{error.strerror or error}".encode())
        return hook_run(command, HookOutcome.FAILED, time.monotonic() - began, output)
    try:
        why = _attend(process, document, output, began + command.limit_ms / 1000, must_end)
    finally:
        _end(process)
    seconds = time.monotonic() - began
    if why is not None:
        return hook_run(command, why, seconds, output)
    code = 128 - process.returncode if process.returncode < 0 else process.returncode
    return hook_run(command, HookOutcome.FAILED if code else HookOutcome.DONE, seconds, output, code)


def _attend(
    process: subprocess.Popen[bytes],
    document: bytes,
    output: HookOutput,
    until: float,
    must_end: Callable[[], bool],
) -> HookOutcome | None:
    """Write its input and read its output until it has ended; otherwise return why it has to be killed."""
    stdin, stdout = _pipe(process.stdin), _pipe(process.stdout)
    left, drained_by = memoryview(document), float("inf")
    with selectors.DefaultSelector() as selector:
        selector.register(stdin, selectors.EVENT_WRITE)
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            has_ended = process.poll() is not None
            ready = [key.fileobj for key, _ in selector.select(0 if has_ended else _STEP_S)]
            if stdin in ready:
                left = _write(stdin, left)
                if not left:
                    selector.unregister(stdin)
                    stdin.close()
            has_read = stdout in ready and _read(stdout, output)
            if stdout in ready and not has_read:
                selector.unregister(stdout)
            now = time.monotonic()
            if has_ended:
                drained_by = min(drained_by, now + _LAST_OUTPUT_S)
                if not has_read or now >= drained_by:
                    return None
            elif must_end():
                return HookOutcome.INTERRUPTED
            elif now >= until:
                return HookOutcome.TIMED_OUT


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise RuntimeError("the process has no pipes")
    os.set_blocking(pipe.fileno(), False)
    return pipe


def _write(stdin: IO[bytes], left: memoryview) -> memoryview:
    """Write what fits; return the rest, nothing if it does not read its input."""
    try:
        return left[os.write(stdin.fileno(), left) :] if left else left
    except BlockingIOError:
        return left
    except OSError:
        return left[len(left) :]


def _read(stdout: IO[bytes], output: HookOutput) -> bool:
    """Take what it has written; return False at the end of its output."""
    try:
        data = os.read(stdout.fileno(), _READ_BYTES)
    except BlockingIOError:
        return True
    output.take(data)
    return bool(data)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group unless its leader has ended by itself, and close the pipes."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
