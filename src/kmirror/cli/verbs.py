"""The command `kmirror` and its verbs.

A verb's module is imported only when the verb is used, and nothing here imports Kafka or Spark clients: the time that
this module takes to import is what a user waits for after pressing Tab.
"""

from __future__ import annotations

import importlib

import click
from click.shell_completion import CompletionItem

from kmirror import __version__
from kmirror.cli.options import VerbGroup

#: The sections of `kmirror --help`: by verb, its module (after a dot: beside this one) and its summary.
SECTIONS = {
    "Set up": {
        "plan": ("kmirror_plan.cli.plan_command", "Plan a migration: waves, times, and what is in the way."),
        "check": (".commands.views", "Check connections, broker versions, rights and settings."),
        "create": (".commands.mirrors", "Create a mirror: store its source, filters and settings."),
        "add": (".commands.mirrors", "Add source topics to a mirror."),
        "apply": (".commands.declare_commands", "Make the mirrors of the destination those of a file."),
        "export": (".commands.declare_commands", "Write the mirrors of the destination as a file for apply."),
    },
    "Copy": {
        "run": (".commands.copying", "Copy records until stopped or caught up."),
        "pause": (".commands.stopping", "Pause copying."),
        "resume": (".commands.stopping", "Resume copying."),
    },
    "Monitor and verify": {
        "list": (".commands.views", "List the mirrors on a destination."),
        "describe": (".commands.describe_command", "Show offsets, lag and state of each mirrored partition."),
        "top": (".commands.top_command", "Show rate, lag and time left of each topic, live."),
        "wait": (".commands.views", "Wait until topics are caught up, stopped, healthy or drained."),
        "in-charge": (".commands.views", "Show which cluster takes the writes of a mirror's topics."),
        "verify": (".commands.copying", "Compare source and destination record by record."),
        "events": (".commands.views", "Show who did what to a mirror, when, and the result."),
        "report": (".commands.report_command", "Write an HTML report about a mirror."),
        "serve": (".commands.serve_command", "Serve a page and metrics of mirrors without copying."),
    },
    "Stop, fail over and fail back": {
        "promote": (".commands.stopping", "Stop mirroring topics once they are fully copied (planned migration)."),
        "failover": (".commands.stopping", "Stop mirroring immediately and make the topics writable."),
        "remove": (".commands.stopping", "Remove topics from a mirror and make them writable."),
        "failback": (".commands.failback_commands", "Make the old source a mirror of the new primary."),
        "truncate-logs": (".commands.truncate_command", "Truncate a stopped broker's logs as a failback plan says."),
        "switchover": (".commands.failback_commands", "Swap source and destination (planned)."),
        "rehearse": ("kmirror_rehearse.cli.rehearse_command", "Rehearse a failover and the way back."),
    },
    "Operate": {
        "recover": (".commands.mirrors", "Retry FAILED partitions now."),
        "append": (".commands.copying", "Append records from a file at their offsets."),
        "config": (".commands.mirrors", "Show or change a mirror's settings."),
        "delete": (".commands.mirrors", "Delete a mirror but keep its topics."),
        "pack": (".commands.pack_command", "Pack this Python for Spark's workers."),
        "help": (".commands.help_pages", "Show a page of the documentation, or the help of a command."),
        "completion": (".commands.completion", "Print the shell completion script for kmirror and kafka-mirrors."),
    },
    "Try it out": {
        "sandbox": ("kmirror_sandbox.cli.sandbox", "Run two real Kafka clusters on this machine."),
        "demo": ("kmirror_sandbox.cli.demo", "Watch a copy, crash, failover and failback, step by step."),
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
        found = getattr(importlib.import_module(VERBS[name][0], __package__), f"{name.replace('-', '_')}_verb")
        if not isinstance(found, click.Command):
            raise TypeError(f"{name} is not a command")
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


def _show_version(ctx: click.Context) -> None:
    click.echo(f"kmirror {__version__}")
    ctx.exit()


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
