"""`sandbox up | down | status`: two real Kafka clusters, `a` and `b`, on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kmirror.cli.options import Call, VerbGroup, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmirror.sandbox.registry import SandboxStatus, Step

_DIRECTORY = click.Option(
    ["--dir", "directory"], metavar="DIR", help="The sandbox's folder; ~/.local/state/kmirror/sandbox by default."
)


@verb(
    "up",
    "Start clusters a and b, and create them first if need be.\n\nKafka is fetched once from Maven Central and kept in"
    " the cache folder; KAFKA_HOME is used where it is set. The brokers run on after the command.",
    click.Option(["--brokers"], metavar="N", type=int, help="Brokers of each cluster; 1 by default."),
    click.Option(["--kafka-version"], metavar="VERSION", help="Kafka's version, such as 3.9.2."),
    click.Option(["--base-port"], metavar="PORT", type=int, help="The first port; 19092 by default."),
    click.Option(
        ["--secured"],
        is_flag=True,
        help="With TLS, logins and ACLs; what the users admin and kmirror need to log in is written to files.",
    ),
    _DIRECTORY,
    example="kmirror sandbox up --brokers 3",
    changes=True,
    dry_run=True,
    destination=False,
)
def up_verb(
    call: Call,
    brokers: int | None,
    kafka_version: str | None,
    base_port: int | None,
    secured: bool,
    directory: str | None,
) -> int:
    from kmirror.sandbox.registry import MIRROR_FILE, plan_up, status, up

    folder = _folder(directory)
    if call.dry_run:
        steps = plan_up(folder, brokers=brokers, kafka_version=kafka_version, base_port=base_port, secured=secured)
        return _show(call, "sandbox up", steps, status(folder))
    tell = call.output.screen.tell
    done = up(folder, brokers=brokers, kafka_version=kafka_version, base_port=base_port, secured=secured, report=tell)
    _show(call, "sandbox up", done.steps, done.status)
    source, destination = done.status.bootstrap_servers("a"), done.status.bootstrap_servers("b")
    if done.status.client_files:
        for file in done.status.client_files:
            tell(f"client properties: {file}")
        tell(f"to mirror a to b: kmirror create --mirror m --mirror-config {folder / 'a' / MIRROR_FILE}")
        tell(
            f"                  --bootstrap-server {destination} --command-config {folder / 'b' / 'kmirror.properties'}"
        )
        tell("the user kmirror has no rights yet: `kmirror check` prints what it needs; admin is a super user")
        return 0
    tell(f"to mirror a to b: echo bootstrap.servers={source} >a.properties")
    tell(f"                  kmirror create --mirror m --mirror-config a.properties --bootstrap-server {destination}")
    return 0


@verb(
    "down",
    "Stop both clusters and remove them with their data.",
    _DIRECTORY,
    example="kmirror sandbox down",
    changes=True,
    dry_run=True,
    destination=False,
)
def down_verb(call: Call, directory: str | None) -> int:
    from kmirror.sandbox.registry import down, plan_down, status

    folder = _folder(directory)
    if call.dry_run:
        return _show(call, "sandbox down", plan_down(folder), status(folder))
    done = down(folder, report=call.output.screen.tell)
    return _show(call, "sandbox down", done.steps, done.status)


@verb(
    "status",
    "Show the brokers of both clusters.",
    _DIRECTORY,
    example="kmirror sandbox status",
    destination=False,
)
def status_verb(call: Call, directory: str | None) -> int:
    from kmirror.sandbox.registry import status

    found = status(_folder(directory))
    call.output.sandbox(found, _status_document(found))
    return 0


sandbox_verb = VerbGroup(
    "sandbox",
    help="Two real Kafka clusters on this machine, to try things.",
    commands={"up": up_verb, "down": down_verb, "status": status_verb},
)


def _folder(directory: str | None) -> Path:
    from kmirror.sandbox.registry import default_directory

    return Path(directory).expanduser().absolute() if directory else default_directory(os.environ)


def _show(call: Call, name: str, steps: Sequence[Step], status: SandboxStatus) -> int:
    """Show what was done, or with `--dry-run` would be."""
    from kmirror.ops.results import Outcome, TopicResult, VerbResult

    would = "would " if call.dry_run else ""
    rows = [TopicResult(None, None, Outcome.DONE, f"{would}{step.text}") for step in steps]
    if not rows:
        rows = [TopicResult(None, None, Outcome.NOOP, "there is nothing to do")]
    call.output.sandbox(status, _status_document(status), VerbResult.of(name, "", rows, dry_run=call.dry_run))
    return 0


def _status_document(status: SandboxStatus) -> dict[str, Any]:
    """Return what `--json` prints of the brokers."""
    return {
        "directory": str(status.directory),
        "clientFiles": [str(file) for file in status.client_files],
        "brokers": [
            {
                "cluster": broker.cluster,
                "clusterId": broker.cluster_id,
                "nodeId": broker.node_id,
                "address": broker.address,
                "state": broker.state.value,
                "pid": broker.pid,
                "kafkaVersion": broker.kafka_version,
                "logFile": str(broker.log_file),
            }
            for broker in status.brokers
        ],
    }
