"""The options that name commands of the operator: `--before` and `--after` of a verb, `--on-event` of `run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kmirror.cli.options import REPORT, Call, duration_option
from kmirror.errors import UsageError

if TYPE_CHECKING:
    from kmirror.ops.run.event_hook import EventHook
    from kmirror.ops.stop.verb_hooks import VerbHooks

HOOK_TIMEOUT = duration_option("--hook-timeout", "Kill the command after this long. Default: 60s.", name="hook_ms")
#: Of verbs that move topics: commands to run before and after, and the file of evidence.
HOOKED = (
    click.Option(
        ["--before"],
        metavar="CMD",
        help="Run this command before the first change. Unless it exits with 0, nothing is changed.",
    ),
    click.Option(["--after"], metavar="CMD", help="Run this command at the end, with the result on its stdin."),
    HOOK_TIMEOUT,
    REPORT,
)


def verb_hooks(call: Call, verb: str, before: str | None, after: str | None, hook_ms: int | None) -> VerbHooks:
    """Return the hooks of a call.

    Raises:
        UsageError: a program cannot be run, or there is a time limit without a command.
    """
    from kmirror.ops.base.hook_process import hook_command
    from kmirror.ops.base.hook_runs import When
    from kmirror.ops.run.signals import stopping
    from kmirror.ops.stop.verb_hooks import VerbHooks

    if hook_ms is not None and before is None and after is None:
        raise UsageError("--hook-timeout requires --before or --after", "give a command, or leave it out")
    first, last = (
        None if text is None else hook_command(when, text, hook_ms)
        for when, text in ((When.BEFORE, before), (When.AFTER, after))
    )
    return VerbHooks(verb, first, last, call.output.screen.note, stopping)


def event_hook(mirrors: str, command: str | None, interval_ms: int | None, hook_ms: int | None) -> EventHook | None:
    """Return what a run of these mirrors passes events on to; None without `--on-event`.

    Raises:
        UsageError: the program cannot be run, or there are times without a command.
    """
    from kmirror.ops.base.hook_process import hook_command
    from kmirror.ops.base.hook_runs import When
    from kmirror.ops.run.event_hook import DEFAULT_INTERVAL_MS, EventHook

    if command is None:
        for flag, given in (("--on-event-interval", interval_ms), ("--hook-timeout", hook_ms)):
            if given is not None:
                raise UsageError(f"{flag} requires --on-event", "give a command, or leave it out")
        return None
    interval = DEFAULT_INTERVAL_MS if interval_ms is None else interval_ms
    return EventHook(hook_command(When.EVENT, command, hook_ms), mirrors, interval)
