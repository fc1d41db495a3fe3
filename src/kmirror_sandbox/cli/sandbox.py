"""`sandbox up | down | status`: two real Kafka clusters, `a` and `b`, on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmirror.bounded_files import expanded
from kmirror.cli.options import Call, VerbGroup, flag_option, folder_option, verb
from kmirror.commands import command_line, option
from kmirror.errors import RefusedError
from kmirror.words import counted
from kmirror_sandbox.cli.challenge import challenge_verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmirror.cli.terminal.output import Output
    from kmirror.ops.base.results import VerbResult
    from kmirror_sandbox.registry import SandboxStatus, SandboxStep

_DIRECTORY = folder_option("--dir", "directory", text="Sandbox directory. Default: ~/.local/state/kmirror/sandbox.")


@verb(
    "up",
    "Start clusters a and b, creating them if needed.\n\nUses KAFKA_HOME if it is set; otherwise downloads Kafka once"
    " from Maven Central and caches it. The brokers keep running after the command.",
    click.Option(["--brokers"], metavar="N", type=int, help="Brokers per cluster. Default: 1."),
    click.Option(["--kafka-version"], metavar="VERSION", help="Kafka version, such as 3.9.2."),
    click.Option(["--base-port"], metavar="PORT", type=int, help="First port. Default: 19092."),
    click.Option(
        ["--secured"],
        is_flag=False,
        flag_value="scram",
        type=click.Choice(("scram", "plain", "mtls", "oauth")),
        help="Use TLS, logins (default: scram) and ACLs. Writes client properties for the users admin and kmirror.",
    ),
    flag_option("--tiered", "Enable tiered storage, in a folder that can be slow, fail or be away. Needs a JDK."),
    _DIRECTORY,
    examples=(
        "kmirror sandbox up",
        "kmirror sandbox up --brokers 3 --kafka-version 3.9.2",
        "kmirror sandbox up --secured --dir /tmp/sandbox",
        "kmirror sandbox up --secured=mtls",
        "kmirror sandbox up --tiered",
    ),
    changes=True,
    destination=False,
)
def up_verb(
    call: Call,
    brokers: int | None,
    kafka_version: str | None,
    base_port: int | None,
    secured: str | None,
    tiered: bool,
    directory: str | None,
) -> int:
    from kmirror_sandbox.registry import MIRROR_FILE, SandboxOptions, plan_up, status, up

    folder, options = _folder(directory), SandboxOptions(brokers, kafka_version, base_port, secured, tiered)
    if call.dry_run:
        return _show(call, "sandbox up", plan_up(folder, options), status(folder))
    note = call.output.screen.note
    with call.output.working() as watch:
        done = up(folder, options, note, watch)
    _show(call, "sandbox up", done.steps, done.status)
    for file in done.status.control_files:
        note(f"how the store of its tiered topics behaves: {file}")
    source, destination = done.status.bootstrap_servers("a"), done.status.bootstrap_servers("b")
    if done.status.client_files:
        for file in done.status.client_files:
            note(f"client properties: {file}")
        trust = command_line("export", *_trust(folder, folder / "a" / MIRROR_FILE))
        note(f"so that mirrors may use their secrets: {trust}")
        flags = (
            *option("--mirror-config", str(folder / "a" / MIRROR_FILE)),
            *option("--bootstrap-server", destination),
            *option("--command-config", str(folder / "b" / "kmirror.properties")),
        )
        note(f"to mirror a to b: {command_line('kmirror', 'create', '--mirror', 'm', *flags)}")
        note("user kmirror has no ACLs yet, admin is a super user; to see the commands that grant what kmirror needs:")
        note(f"                  {command_line('kmirror', 'check', *flags)}")
        return 0
    note(f"to mirror a to b: echo bootstrap.servers={source} >a.properties")
    flags = ("--mirror-config", "a.properties", *option("--bootstrap-server", destination))
    note(f"                  {command_line('kmirror', 'create', '--mirror', 'm', *flags)}")
    return 0


@verb(
    "down",
    "Stop both clusters and delete their data.",
    _DIRECTORY,
    examples=("kmirror sandbox down", "kmirror sandbox down --dir /tmp/sandbox --dry-run"),
    changes=True,
    destination=False,
)
def down_verb(call: Call, directory: str | None) -> int:
    from kmirror_sandbox.registry import down, plan_down, status

    folder = _folder(directory)
    if call.dry_run:
        return _show(call, "sandbox down", plan_down(folder), status(folder))
    done = down(folder, report=call.output.screen.note)
    return _show(call, "sandbox down", done.steps, done.status)


@verb(
    "status",
    "Show the brokers of both clusters.",
    _DIRECTORY,
    examples=("kmirror sandbox status", "kmirror sandbox status --json"),
    destination=False,
)
def status_verb(call: Call, directory: str | None) -> int:
    from kmirror_sandbox.registry import status

    found = status(_folder(directory))
    show_status(call.output, found)
    return 0


@verb(
    "produce",
    "Write records to a topic.\n\nThe topic is created if needed.",
    click.Option(["--topic"], metavar="TOPIC", required=True, help="Topic to write to."),
    click.Option(["--count"], metavar="N", type=click.IntRange(1), default=1000, help="How many. Default: 1000."),
    click.Option(["--cluster"], type=click.Choice(("a", "b")), default="a", help="Cluster to write to. Default: a."),
    click.Option(
        ["--bootstrap-server"],
        metavar="HOST:PORT[,…]",
        help="Write to this cluster, which wants no login, instead.",
    ),
    _DIRECTORY,
    examples=(
        "kmirror sandbox produce --topic orders",
        "kmirror sandbox produce --topic orders --count 200 --cluster b",
    ),
    changes=True,
    dry_run=False,
    destination=False,
    documents=False,
)
def produce_verb(
    call: Call, topic: str, count: int, cluster: str, bootstrap_server: str | None, directory: str | None
) -> int:
    from kmirror_sandbox.cli.demo_traffic import make_topic, write_records
    from kmirror_sandbox.registry import status

    address = bootstrap_server
    if address is None:
        found = status(_folder(directory))
        if found.client_files:
            raise RefusedError("the clusters want a login", f"use a client of your own with {found.client_files[0]}")
        address = found.bootstrap_servers(cluster)
    make_topic(address, topic, 1, if_missing=True)
    write_records(address, topic, count)
    call.output.screen.note(f"wrote {counted(count, 'record')} to {topic} on {bootstrap_server or cluster}")
    return 0


sandbox_verb = VerbGroup(
    "sandbox",
    help="Run two real Kafka clusters on this machine.",
    commands={
        "up": up_verb,
        "down": down_verb,
        "status": status_verb,
        "produce": produce_verb,
        "challenge": challenge_verb,
    },
)


def _folder(directory: str | None) -> Path:
    from kmirror_sandbox.registry import default_directory

    return expanded(directory, "--dir").absolute() if directory else default_directory(os.environ)


def _trust(folder: Path, mirror_file: Path) -> list[str]:
    """Return the environment variables with which records of mirrors may use this sandbox's secrets."""
    from kmirror.cluster.security.properties import read_properties

    url = read_properties(mirror_file).get("sasl.oauthbearer.token.endpoint.url")
    variables = {"KMIRROR_TRUST_PATHS": str(folder), **({"KMIRROR_TRUST_TOKEN_URLS": url} if url else {})}
    return [f"{name}={value}" for name, value in variables.items()]


def _show(call: Call, name: str, steps: Sequence[SandboxStep], status: SandboxStatus) -> int:
    """Show what was done, or with `--dry-run` would be done."""
    from kmirror.ops.base.results import VerbResult
    from kmirror.ops.base.topic_results import Outcome, TopicResult

    would = "would " if call.dry_run else ""
    rows = [TopicResult(None, None, Outcome.DONE, f"{would}{step.text}") for step in steps]
    if not rows:
        rows = [TopicResult(None, None, Outcome.NOOP, "nothing to do")]
    show_status(call.output, status, VerbResult.of(name, "", rows, dry_run=call.dry_run))
    return 0


def show_status(output: Output, status: SandboxStatus, done: VerbResult | None = None) -> None:
    """Show the status of the sandbox, after what was `done`."""
    from kmirror_sandbox.registry import BROKERS

    def for_people() -> None:
        if done is not None and done.dry_run:
            output.result(done)
        elif status.brokers:
            output.rows(BROKERS, status.brokers)
        else:
            output.screen.note(f"no sandbox in {status.directory}; `kmirror sandbox up` creates one")

    output.document({**(done.to_json() if done else {}), **status.to_json()}, for_people)
