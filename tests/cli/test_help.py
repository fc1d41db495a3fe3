"""What `--help` says, to the letter where people and scripts rely on it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click
import pytest

from kmirror import __version__
from kmirror.cli.main import VERBS, kmirror

if TYPE_CHECKING:
    from .conftest import Run

HELP = """\
Usage: kmirror [OPTIONS] COMMAND [ARGS]...

  Mirror Kafka topics between stock clusters with the same offsets, record for
  record. Commands talk to the destination; a mirror knows its source.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Commands:
  create         Store a mirror: a source, filters and settings.
  add            Make topics of the source mirror topics.
  run            Copy, until told to stop or until all is copied.
  list           Show the mirrors of a destination.
  describe       Show every mirrored partition: offsets, lag, state.
  wait           Wait until topics are caught up, stopped or healthy.
  pause          Stop copying for a while.
  resume         Go on copying what was paused.
  recover        Have FAILED partitions tried again at once.
  truncate-logs  Cut a stopped broker's logs where a failback plan says.
  promote        Stop mirroring to topics as their copies become complete.
  failover       Make mirror topics ordinary ones, at once.
  failback       Make the old source a mirror of the new primary.
  switchover     Change roles with the source, as planned.
  remove         Stop mirroring to topics, for good.
  verify         Compare source and destination, record by record.
  config         Show or change a mirror's settings.
  events         Show who did what to mirrors, when, with what result.
  check          Look ahead: do both clusters answer, and are they new enough?
  delete         Forget a mirror; its topics stay.
  sandbox        Two real Kafka clusters on this machine, to try things.
  demo           Watch it work, told step by step.

  `kmirror COMMAND --help` shows a command's options and an example. To see it
  work: kmirror demo
"""

WAIT_HELP = """\
Usage: kmirror wait [OPTIONS]

  Wait until topics are caught up, stopped or healthy.

  Ends with 5 when the time runs out, and at once when waiting cannot help.

Options:
  --mirror M                      The mirror's name.  [required]
  --topics, --topic LIST          Destination topics; every topic by default.
                                  May be repeated.
  --for [caught-up|stopped|healthy]
                                  What to wait for.  [required]
  --timeout D                     How long at most: 30s, 5m.  [required]
  -h, --help                      Show this message and exit.

Common options:
  --bootstrap-server HOST:PORT  The destination's brokers, separated by
                                commas; else KMIRROR_BOOTSTRAP_SERVER.
  --command-config FILE         Client properties for the destination, as
                                Kafka's tools take.
  --cluster NAME                The destination by its name in kmirror.toml.
  --expect-cluster-id ID        Refuse to work on any other destination.
  --output [table|json]         For people or for scripts; table by default.
  --json                        The same as --output json.
  -v, --verbose                 Tell more on standard error; -vv tells all.

Example:
  kmirror wait --mirror m --for caught-up --timeout 5m --bootstrap-server b:9092
"""


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(run: Run, flag: str) -> None:
    shown = run(flag)
    assert (shown.code, shown.out, shown.err) == (0, HELP, "")


def test_without_a_command_it_is_usage_and_help(run: Run) -> None:
    shown = run()
    assert (shown.code, shown.out, shown.err) == (2, "", HELP)


def test_help_of_a_verb(run: Run) -> None:
    shown = run("wait", "--help")
    assert (shown.code, shown.out, shown.err) == (0, WAIT_HELP, "")


def test_version(run: Run) -> None:
    shown = run("--version")
    assert (shown.code, shown.out, shown.err) == (0, f"kmirror {__version__}\n", "")


def _commands() -> list[tuple[str, click.Command]]:
    context = click.Context(kmirror)
    found = []
    for name in VERBS:
        command = kmirror.get_command(context, name)
        assert command is not None
        inner = command.commands if isinstance(command, click.Group) else {}
        found += [(f"{name} {verb}", one) for verb, one in inner.items()] or [(name, command)]
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_the_list_of_commands_and_each_command_say_the_same(verb: str) -> None:
    command = kmirror.get_command(click.Context(kmirror), verb)
    assert command is not None
    assert (command.help or "").split("\n")[0] == VERBS[verb][1]


@pytest.mark.parametrize(("name", "command"), _commands())
def test_every_example_can_be_typed(run: Run, name: str, command: click.Command) -> None:
    shown = run(*name.split(), "--help")
    example = shown.out.split("Example:\n  ")[1].rstrip("\n")
    words = shlex.split(example)
    assert words[: 1 + len(name.split())] == ["kmirror", *name.split()]
    parsed = command.make_context(name, words[1 + len(name.split()) :])
    assert parsed.args == []
