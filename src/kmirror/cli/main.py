"""Run a command line: the one place where errors become exit codes. It imports no Kafka or Spark client."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NoReturn

import click

from kmirror.cli.failures import INTERRUPTED, explain
from kmirror.cli.options import COMPLETE_VARIABLE, Session
from kmirror.cli.terminal.screen import Screen
from kmirror.cli.verbs import kmirror
from kmirror.errors import ExitCode, KmirrorError, UsageError

#: Verbs that change nothing themselves, but are used for what their exit code says.
_CODE_MATTERS = frozenset({"wait", "verify"})
#: How seldom to search for cycles of objects, which are few: each search looks at what is known of all partitions.
_COLLECTED_AFTER = (10_000, 20, 100)


def main(arguments: Sequence[str], screen: Screen | None = None, *, kafka_action: str | None = None) -> int:
    """Run one command line and return its exit code; by default it writes to this process's streams."""
    session = Session(screen or Screen.of_this_process(), kafka_action=kafka_action)

    def work() -> int:
        with kmirror.make_context("kmirror", list(arguments), obj=session) as context:
            return int(kmirror.invoke(context))

    return guarded(session, arguments, work)


def guarded(session: Session, arguments: Sequence[str], work: Callable[[], int]) -> int:
    """Run `work` and return the exit code, whatever ends it."""
    failure: Exception | None = None
    code = 0
    try:
        _answer_interrupts()
        code = work()
    except click.exceptions.Exit as done:
        code = done.exit_code
    except (KeyboardInterrupt, click.Abort) as interruption:
        session.screen.note("kmirror: interrupted")
        for what_is_left in getattr(interruption, "__notes__", ()):
            session.screen.note(f"  {what_is_left}")
        code = INTERRUPTED
    except OSError as error:
        # a help text has no reader or no room; verbs write through `Screen`, which handles that
        if session.output:
            failure = error
        elif not isinstance(error, BrokenPipeError):
            failure = KmirrorError(f"standard output cannot be written: {error.strerror}")
    except Exception as error:
        failure = error
    if failure is not None and _was_interrupted(failure):
        session.screen.note("kmirror: interrupted")
        return INTERRUPTED
    if failure is not None:
        return _report(failure, session, arguments)
    return int(code or _lost_output(session))


def _answer_interrupts() -> None:
    """Answer Ctrl-C from here on; while the command line was loaded it ended the process (`start`)."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _was_interrupted(failure: BaseException) -> bool:
    """Return whether Ctrl-C led to a failure: what it interrupts may fail in its own way, such as a callback from C."""
    cause: BaseException | None = failure
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, KeyboardInterrupt):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def entry_point() -> None:
    """Run the command line of this process and exit."""
    run_process(main, lambda: kmirror)


def run_process(run: Callable[[Sequence[str]], int], command: Callable[[], click.Command]) -> NoReturn:
    """Run this process's command line with `run` and exit, or answer a shell that completes `command`."""
    _open_missing_streams()
    gc.set_threshold(*_COLLECTED_AFTER)
    if "PYTHONWARNINGS" in os.environ:
        # meant for other programs: with `error`, a library's warning would end a command
        warnings.simplefilter("ignore")
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from kmirror.cli.commands.completion import answer

        sys.exit(answer(command(), instruction))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # a second one, while the first was answered
        code = INTERRUPTED
    # neither a second Ctrl-C nor a reader that is gone may change the exit code now
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _open_missing_streams() -> None:
    """Open the streams that the caller closed (`>&-`), or a connection would get their number and take our output."""
    for number, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # gets the lowest number that is free: this one
            os.set_inheritable(os.open(os.devnull, flags), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))


def _lost_output(session: Session) -> int:
    """Return the exit code of a command that succeeded: what only shows something fails if that cannot be written.

    For others the code says what happened to the clusters.
    """
    verb = session.verb
    shows = verb is None or ((not verb.changes or session.dry_run) and verb.name not in _CODE_MATTERS)
    return ExitCode.UNEXPECTED if shows and session.screen.failure is not None else ExitCode.OK


def _report(failure: Exception, session: Session, arguments: Sequence[str]) -> int:
    """Show why the command failed, and return the exit code."""
    from kmirror.cli.terminal.output import output_for
    from kmirror.ops.base.results import ErrorInfo, VerbResult

    if isinstance(failure, click.exceptions.NoArgsIsHelpError):
        session.screen.note(failure.format_message())
        return UsageError.exit_code
    error = explain(failure, session.command)
    info = ErrorInfo.of(error)
    document: dict[str, object] = {"error": info.to_json()}
    if session.verb is not None and session.verb.changes:
        name = session.command.removeprefix("kmirror ")
        document = VerbResult.failed(name, session.mirror or "", error, dry_run=session.dry_run).to_json()
    output = session.output or output_for(_written_output(arguments), session.screen)
    if session.verbosity > 1:
        session.screen.note("".join(traceback.format_exception(failure)).rstrip())
    output.failure(info, document)
    return int(error.exit_code)


def _written_output(arguments: Sequence[str]) -> str:
    """Return the output format in arguments that could not be parsed."""
    as_json = "--json" in arguments or "--output=json" in arguments or ("--output", "json") in pairwise(arguments)
    return "json" if as_json else "table"
