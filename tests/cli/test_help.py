"""What `--help` says, to the letter where people and scripts rely on it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from kmirror import __version__
from kmirror.cli.verbs import VERBS, kmirror

if TYPE_CHECKING:
    from .conftest import Run

HELP = """\
Usage: kmirror [OPTIONS] COMMAND [ARGS]...

  Mirror Kafka topics between stock clusters with the same offsets, record for
  record. All commands connect to the destination; the mirror stores how to
  reach its source.

Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

Set up:
  plan           Plan a migration: waves, times, and what is in the way.
  check          Check connections, broker versions, rights and settings.
  create         Create a mirror: store its source, filters and settings.
  add            Add source topics to a mirror.
  apply          Make the mirrors of the destination those of a file.
  export         Write the mirrors of the destination as a file for apply.

Copy:
  run            Copy records until stopped or caught up.
  pause          Pause copying.
  resume         Resume copying.

Monitor and verify:
  list           List the mirrors on a destination.
  describe       Show offsets, lag and state of each mirrored partition.
  top            Show rate, lag and time left of each topic, live.
  wait           Wait until topics are caught up, stopped, healthy or drained.
  in-charge      Show which cluster takes the writes of a mirror's topics.
  verify         Compare source and destination record by record.
  events         Show who did what to a mirror, when, and the result.
  report         Write an HTML report about a mirror.
  serve          Serve a page and metrics of mirrors without copying.

Stop, fail over and fail back:
  promote        Stop mirroring topics once they are fully copied (planned
                 migration).
  failover       Stop mirroring immediately and make the topics writable.
  remove         Remove topics from a mirror and make them writable.
  failback       Make the old source a mirror of the new primary.
  truncate-logs  Truncate a stopped broker's logs as a failback plan says.
  switchover     Swap source and destination (planned).
  rehearse       Rehearse a failover and the way back.

Operate:
  recover        Retry FAILED partitions now.
  append         Append records from a file at their offsets.
  config         Show or change a mirror's settings.
  delete         Delete a mirror but keep its topics.
  pack           Pack this Python for Spark's workers.
  help           Show a page of the documentation, or the help of a command.
  completion     Print the shell completion script for kmirror and kafka-
                 mirrors.

Try it out:
  sandbox        Run two real Kafka clusters on this machine.
  demo           Watch a copy, crash, failover and failback, step by step.

  `kmirror COMMAND --help` shows the options and examples of a command,
  `kmirror help` the documentation. To see kmirror work: kmirror demo
"""

WAIT_HELP = """\
Usage: kmirror wait [OPTIONS]

  Wait until topics are caught up, stopped, healthy or drained.

  Exits with 5 on --timeout, and immediately if waiting cannot help. Drained
  means that consumer groups have read everything on the source; objective,
  that all topics that objective.rpo names are within their objectives.

Options:
  --mirror M                      Name of the mirror.  [required]
  --topics, --topic LIST          Destination topics. Default: all topics of
                                  the mirror.
  --for [caught-up|stopped|healthy|drained|objective]
                                  Condition to wait for.  [required]
  --groups LIST                   With drained: groups to wait for. Default:
                                  all synced groups.
  --timeout D                     How long to wait, such as 30s or 5m.
                                  [required]
  -h, --help                      Show this message and exit.

Common options:
  --bootstrap-server HOST:PORT  Brokers of the destination, comma-separated.
                                Default: KMIRROR_BOOTSTRAP_SERVER.
  --command-config FILE         Client properties for the destination, as for
                                Kafka's tools. Default:
                                KMIRROR_COMMAND_CONFIG.
  --cluster NAME                Name of the destination in kmirror.toml.
  --expect-cluster-id ID        Fail unless the destination has this cluster
                                ID.
  --output [table|json]         Output format. Default: table.
  --json                        Short for --output json.
  -v, --verbose                 Log to stderr; -vv logs debug messages and
                                tracebacks.

Examples:
  kmirror wait --mirror dr --for caught-up --timeout 5m --bootstrap-server b:9092
  kmirror wait --mirror dr --topics orders --for stopped --timeout 30m --bootstrap-server b:9092
  kmirror wait --mirror dr --for drained --groups billing --timeout 5m --bootstrap-server b:9092
  kmirror wait --mirror dr --for objective --timeout 1m --bootstrap-server b:9092
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
def test_every_verb_has_examples_that_can_be_typed(run: Run, name: str, command: click.Command) -> None:
    shown = run(*name.split(), "--help")
    examples = shown.out.split("Examples:\n")[1].splitlines()
    assert len(examples) >= 2
    for example in examples:
        words = shlex.split(example)
        assert words[: 1 + len(name.split())] == ["kmirror", *name.split()]
        parsed = command.make_context(name, words[1 + len(name.split()) :])
        assert parsed.args == []


def test_every_verb_that_acts_takes_yes() -> None:
    looks = {
        "list",
        "describe",
        "top",
        "report",
        "serve",
        "wait",
        "verify",
        "events",
        "in-charge",
        "check",
        "plan",
        "completion",
        "pack",
        "export",
        "help",
        "sandbox status",
    }
    context = click.Context(kmirror)
    for name in VERBS:
        command = kmirror.get_command(context, name)
        inner = command.commands if isinstance(command, click.Group) else {}
        for words, one in {f"{name} {sub}": found for sub, found in inner.items()}.items() or [(name, command)]:
            assert one is not None
            options = {flag for option in one.params for flag in option.opts}
            assert ("--yes" in options) is (words not in looks), words


def test_every_verb_takes_json_but_those_that_the_readme_names() -> None:
    without = {name for name, one in _commands() if "--json" not in {flag for o in one.params for flag in o.opts}}
    named = ["demo", "help", "completion", "pack", "serve", "top"]
    assert without == {*named, "sandbox challenge", "sandbox produce"}
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    *most, last = (f"`{name}`" for name in named)
    sentence = f"Every command except {', '.join(most)} and {last} takes `--json`"
    assert sentence in " ".join(readme.split())
