"""The command `kmirror`: its verbs, and the one place where errors become exit codes.

A verb's module is imported only when the verb is used, and nothing here imports Kafka or Spark clients: the time that
this module takes to import is what a user waits for after pressing Tab.
"""

from __future__ import annotations

import importlib
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
from click.shell_completion import CompletionItem

from kmirror import __version__
from kmirror.cli.failures import INTERRUPTED, explain
from kmirror.cli.options import COMPLETE_VARIABLE, Session, VerbGroup
from kmirror.cli.screen import Screen
from kmirror.errors import ExitCode, KmirrorError, UsageError

#: The sections of `kmirror --help`: by verb, its module and its summary.
SECTIONS = {
    "Set up": {
        "check": ("views", "Check connections, broker versions, rights and settings."),
        "create": ("mirrors", "Create a mirror: store its source, filters and settings."),
        "add": ("mirrors", "Add source topics to a mirror."),
    },
    "Copy": {
        "run": ("copying", "Copy records until stopped or caught up."),
        "pause": ("stopping", "Pause copying."),
        "resume": ("stopping", "Resume copying."),
    },
    "Monitor and verify": {
        "list": ("views", "List the mirrors on a destination."),
        "describe": ("describe", "Show offsets, lag and state of each mirrored partition."),
        "top": ("top", "Show rate, lag and time left of each topic, live."),
        "wait": ("views", "Wait until topics are caught up, stopped, healthy or drained."),
        "verify": ("copying", "Compare source and destination record by record."),
        "events": ("views", "Show who did what to a mirror, when, and the result."),
        "report": ("report", "Write an HTML report about a mirror."),
    },
    "Stop, fail over and fail back": {
        "promote": ("stopping", "Stop mirroring topics once they are fully copied (planned migration)."),
        "failover": ("stopping", "Stop mirroring immediately and make the topics writable."),
        "remove": ("stopping", "Remove topics from a mirror and make them writable."),
        "failback": ("failback", "Make the old source a mirror of the new primary."),
        "truncate-logs": ("truncate_logs", "Truncate a stopped broker's logs as a failback plan says."),
        "switchover": ("failback", "Swap source and destination (planned)."),
    },
    "Operate": {
        "recover": ("mirrors", "Retry FAILED partitions now."),
        "append": ("append", "Append records from a file at their offsets."),
        "config": ("mirrors", "Show or change a mirror's settings."),
        "delete": ("mirrors", "Delete a mirror but keep its topics."),
        "help": ("pages", "Show a page of the documentation, or the help of a command."),
        "completion": ("completion", "Print the shell completion script for kmirror and kafka-mirrors."),
    },
    "Try it out": {
        "sandbox": ("sandbox", "Run two real Kafka clusters on this machine."),
        "demo": ("demo", "Watch a copy, crash, failover and failback, step by step."),
    },
}
#: Verb, module and summary, in the order of the help.
VERBS = {name: verb for verbs in SECTIONS.values() for name, verb in verbs.items()}


class Verbs(VerbGroup):
    """A group that imports its verbs lazily."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return a verb."""
        if name not in VERBS:
            return None
        found = getattr(importlib.import_module(f"kmirror.cli.{VERBS[name][0]}"), f"{name.replace('-', '_')}_verb")
        assert isinstance(found, click.Command)
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete verbs, without importing them, and options."""
        verbs = [CompletionItem(name, help=VERBS[name][1]) for name in VERBS if name.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section, without importing them."""
        width = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in verbs.items()])


#: Verbs that change nothing themselves, but are used for what their exit code says.
_CODE_MATTERS = frozenset({"wait", "verify"})

kmirror = Verbs(
    "kmirror",
    help="Mirror Kafka topics between stock clusters with the same offsets, record for record."
    " All commands connect to the destination; the mirror stores how to reach its source.",
    epilog="`kmirror COMMAND --help` shows the options and examples of a command, `kmirror help` the documentation."
    " To see kmirror work: kmirror demo",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            help="Show the version and exit.",
            callback=lambda ctx, _, asked: _show_version(ctx) if asked and not ctx.resilient_parsing else None,
        )
    ],
)


def main(arguments: Sequence[str], screen: Screen | None = None, *, kafka_columns: bool = False) -> int:
    """Run one command line and return its exit code; by default it writes to this process's streams."""
    session = Session(screen or Screen.of_this_process(), kafka_columns=kafka_columns)

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
    except (KeyboardInterrupt, click.Abort):
        session.screen.note("kmirror: interrupted")
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
    if "PYTHONWARNINGS" in os.environ:
        # meant for other programs: with `error`, a library's warning would end a command
        warnings.simplefilter("ignore")
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from kmirror.cli.completion import answer

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
    from kmirror.cli.output import output_for
    from kmirror.ops.results import ErrorInfo, VerbResult

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


def _show_version(ctx: click.Context) -> None:
    click.echo(f"kmirror {__version__}")
    ctx.exit()
