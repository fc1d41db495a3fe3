"""The command `kmirror`: which verbs there are, and the one place where errors become exit codes.

A verb's module is imported when the verb is asked for, and nothing here needs Kafka or Spark: what a person waits for
after pressing Tab is the time this module takes to import.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from kmirror import __version__
from kmirror.cli.failures import INTERRUPTED, explain
from kmirror.cli.options import COMPLETE_VARIABLE, Session, VerbGroup
from kmirror.cli.screen import Screen
from kmirror.errors import UsageError

#: What `kmirror --help` shows: under each heading the verbs, each with its module and its summary.
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
        "describe": ("describing", "Show offsets, lag and state of each mirrored partition."),
        "top": ("top", "Show rate, lag and time left of each topic, live."),
        "wait": ("views", "Wait until topics are caught up, stopped, healthy or drained."),
        "verify": ("copying", "Compare source and destination record by record."),
        "events": ("views", "Show who did what to a mirror, when, and the result."),
        "report": ("reporting", "Write what is known of a mirror as one HTML page."),
    },
    "Stop, fail over and fail back": {
        "promote": ("stopping", "Stop mirroring topics once they are fully copied (planned migration)."),
        "failover": ("stopping", "Stop mirroring immediately and make the topics writable."),
        "remove": ("stopping", "Remove topics from a mirror and make them writable."),
        "failback": ("returning", "Make the old source a mirror of the new primary."),
        "truncate-logs": ("offline", "Truncate a stopped broker's logs as a failback plan says."),
        "switchover": ("returning", "Swap source and destination (planned)."),
    },
    "Operate": {
        "recover": ("mirrors", "Retry FAILED partitions now."),
        "append": ("appending", "Append records from a file at their offsets."),
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
    """A group that knows its verbs by name and imports them one at a time."""

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
        """Offer the verbs, without importing them, and the options."""
        verbs = [CompletionItem(name, help=VERBS[name][1]) for name in VERBS if name.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section, without importing them."""
        width = max(map(len, VERBS))
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in verbs.items()])


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
    """Carry out one command line and return its exit code; by default it writes to this process's streams."""
    session = Session(screen or Screen.of_this_process(), kafka_columns=kafka_columns)

    def work() -> int:
        with kmirror.make_context("kmirror", list(arguments), obj=session) as context:
            return int(kmirror.invoke(context))

    return guarded(session, arguments, work)


def guarded(session: Session, arguments: Sequence[str], work: Callable[[], int]) -> int:
    """Do the work of one command line, and return its exit code, whatever ends it."""
    failure: Exception | None = None
    code = 0
    try:
        code = work()
    except click.exceptions.Exit as done:
        code = done.exit_code
    except (KeyboardInterrupt, click.Abort):
        session.screen.tell("kmirror: interrupted")
        code = INTERRUPTED
    except BrokenPipeError as error:
        # Help whose reader is gone; a verb writes through `Screen`, which knows that case.
        failure = error if session.output else None
    except Exception as error:
        failure = error
    return int(code) if failure is None else _report(failure, session, arguments)


def entry_point() -> None:
    """Run the command line of this process and exit."""
    run_process(main, lambda: kmirror)


def run_process(run: Callable[[Sequence[str]], int], command: Callable[[], click.Command]) -> NoReturn:
    """Run this process's command line with `main`, or one like it, and exit; or complete that of `command`."""
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from kmirror.cli.completion import answer

        sys.exit(answer(command(), instruction))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    # From here on nothing changes what happened: neither a second Ctrl-C nor a reader that is gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _report(failure: Exception, session: Session, arguments: Sequence[str]) -> int:
    """Show why the command failed, and return the exit code of that."""
    from kmirror.cli.output import output_for
    from kmirror.ops.results import ErrorInfo, VerbResult

    if isinstance(failure, click.exceptions.NoArgsIsHelpError):
        session.screen.tell(failure.format_message())
        return UsageError.exit_code
    error = explain(failure, session.command)
    told = ErrorInfo.of(error)
    document: dict[str, object] = {"error": told.to_json()}
    if session.verb is not None and session.verb.changes:
        name = session.command.removeprefix("kmirror ")
        document = VerbResult.failed(name, session.mirror or "", error, dry_run=session.dry_run).to_json()
    output = session.output or output_for(_written_output(arguments), session.screen)
    if session.verbosity > 1:
        traceback.print_exception(failure, file=session.screen.err)
    output.failure(told, document)
    return int(error.exit_code)


def _written_output(arguments: Sequence[str]) -> str:
    """Return the output that arguments ask for which could not be parsed."""
    as_json = "--json" in arguments or "--output=json" in arguments or ("--output", "json") in pairwise(arguments)
    return "json" if as_json else "table"


def _show_version(ctx: click.Context) -> None:
    click.echo(f"kmirror {__version__}")
    ctx.exit()
