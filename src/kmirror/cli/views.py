"""`list`, `describe`, `wait`, `check`: the verbs that look and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kmirror.cli.names import remember_names
from kmirror.cli.options import Call, assignments_option, duration_option, mirror_option, topics_option, verb
from kmirror.cli.output import TableOutput
from kmirror.errors import UsageError

if TYPE_CHECKING:
    from kmirror.patterns import TopicSelector

#: Scripts written for Confluent's kafka-mirrors compare its standard output with this line to see a promotion end.
_NONE_PENDING = "No mirror topics found."


@verb(
    "list",
    "Show the mirrors of a destination.",
    example="kmirror list --bootstrap-server b:9092",
)
def list_verb(call: Call) -> int:
    from kmirror.ops.listing import list_mirrors

    with call.destination() as destination:
        rows = list_mirrors(destination)
        remember_names(destination)
    call.output.mirrors(rows)
    return 0


@verb(
    "describe",
    "Show every mirrored partition: offsets, lag, state.\n\nIt works with the source down and with no engine running;"
    " numbers that are not known are -.",
    mirror_option(required=False),
    topics_option("Destination topics; every topic by default. May be repeated."),
    click.Option(["--failed"], is_flag=True, help="Only FAILED partitions, and why."),
    click.Option(
        ["--pending-stopped-only"],
        is_flag=True,
        hidden=True,
        help="Only topics that are being promoted (kafka-mirrors).",
    ),
    click.Option(["--groups"], is_flag=True, help="The groups whose offsets are taken over, instead of partitions."),
    click.Option(["--settings"], is_flag=True, help="Topics' settings that differ from the source's, and why."),
    example="kmirror describe --mirror m --failed --bootstrap-server b:9092",
)
def describe_verb(
    call: Call,
    mirror: str | None,
    topics: TopicSelector | None,
    failed: bool,
    pending_stopped_only: bool,
    groups: bool,
    settings: bool,
) -> int:
    from kmirror.ops.describe import describe
    from kmirror.ops.describe_groups import describe_groups
    from kmirror.ops.describe_settings import describe_settings

    if failed + groups + settings > 1:
        raise UsageError(
            "--failed is about partitions, --groups about groups, --settings about topics' settings", "give one of them"
        )
    with call.destination() as destination:
        if settings:
            call.output.topic_settings(describe_settings(destination, mirror, topics))
            return 0
        if groups:
            call.output.groups(describe_groups(destination, mirror, topics))
            return 0
        rows = describe(destination, mirror, topics, failed=failed)
        remember_names(destination)
    if pending_stopped_only:
        rows = tuple(row for row in rows if row.topic_state == "PENDING_STOPPED")
        if not rows and isinstance(call.output, TableOutput):
            call.output.screen.line(_NONE_PENDING)
            return 0
    call.output.partitions(rows, failed=failed)
    return 0


@verb(
    "wait",
    "Wait until topics are caught up, stopped or healthy.\n\nEnds with 5 when the time runs out, and at once when"
    " waiting cannot help.",
    mirror_option(),
    topics_option("Destination topics; every topic by default. May be repeated."),
    click.Option(
        ["--for", "condition"],
        type=click.Choice(["caught-up", "stopped", "healthy"]),
        required=True,
        help="What to wait for.",
    ),
    duration_option("--timeout", "How long at most: 30s, 5m.", name="timeout_ms", required=True),
    example="kmirror wait --mirror m --for caught-up --timeout 5m --bootstrap-server b:9092",
)
def wait_verb(call: Call, mirror: str, topics: TopicSelector | None, condition: str, timeout_ms: int) -> int:
    from kmirror.ops.wait import Condition, wait

    with call.destination() as destination, call.output.waiting(f"waiting for {mirror} to be {condition}") as on_look:
        done = wait(destination, mirror, Condition(condition), timeout_ms, topics=topics, on_look=on_look)
    call.output.result(done)
    return done.exit_code


@verb(
    "check",
    "Look ahead: do both clusters answer, and are they new enough?\n\nThe source is that of a"
    " stored mirror, or that of a file you mean to create one with.",
    mirror_option(required=False),
    click.Option(["--mirror-config"], metavar="FILE", help="The file to create a mirror with."),
    assignments_option("--config", "One more property; goes before the file's. May be repeated."),
    example="kmirror check --mirror-config source.properties --bootstrap-server b:9092",
)
def check_verb(call: Call, mirror: str | None, mirror_config: str | None, config: dict[str, str]) -> int:
    from kmirror.cluster.properties import read_properties
    from kmirror.ops.check import check

    if mirror and mirror_config:
        raise UsageError("--mirror and --mirror-config both name a source", "give one of them")
    if config and not mirror_config:
        raise UsageError("--config adds to --mirror-config, which is missing", "give both, or --mirror alone")
    report = check(
        call.properties(),
        mirror=mirror,
        properties={**read_properties(mirror_config), **config} if mirror_config else None,
        expect_cluster_id=call.expect_cluster_id,
        on_line=call.output.check_line,
    )
    call.output.check(report)
    return report.exit_code


@verb(
    "events",
    "Show who did what to mirrors, when, with what result.\n\nT is a time, such as 2026-03-01T12:00:00Z, or how long"
    " ago: 2h.",
    mirror_option(required=False),
    click.Option(["--since"], metavar="T", help="Only what happened since then."),
    example="kmirror events --mirror m --since 24h --bootstrap-server b:9092",
)
def events_verb(call: Call, mirror: str | None, since: str | None) -> int:
    from kmirror.ops.events import events

    with call.destination() as destination:
        found = events(destination, mirror, since)
    call.output.events(found)
    return 0
