"""`describe`: each mirrored partition, once or watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from kmirror.cli.commands.views import exit_code
from kmirror.cli.name_cache import cache_names
from kmirror.cli.options import ALL_MIRRORS, Call, flag_option, mirror_option, topics_option, verb
from kmirror.cli.terminal.output import TableOutput
from kmirror.errors import UsageError

if TYPE_CHECKING:
    from kmirror.columns import Table
    from kmirror.ops.base.context import Destination
    from kmirror.ops.show.cluster_view import Prober
    from kmirror.settings.patterns import TopicSelector

#: Scripts written for Confluent's kafka-mirrors compare stdout with this line to see that a promotion is complete.
_NONE_PENDING = "No mirror topics found."


@verb(
    "describe",
    "Show offsets, lag and state of each mirrored partition.\n\nWorks with the source down and without a running"
    " engine. Unknown numbers are shown as -.",
    mirror_option(ALL_MIRRORS, required=False),
    topics_option("Destination topics. Default: all mirror topics."),
    flag_option("--failed", "Show only FAILED partitions and the reason."),
    flag_option("--stopped", "Show only STOPPED partitions: last mirrored offset, time, reason."),
    click.Option(
        ["--pending-stopped-only"],
        is_flag=True,
        hidden=True,
        help="Show only topics that are being promoted (kafka-mirrors).",
    ),
    flag_option("--wide", "Also show time lag, rate, time left and reason."),
    flag_option("--groups", "Show the synced group offsets instead."),
    flag_option("--settings", "Show topic settings that differ from the source, and why."),
    flag_option("--watch", "Refresh every two seconds on a terminal, until q or Ctrl-C."),
    examples=(
        "kmirror describe --mirror dr --bootstrap-server b:9092",
        "kmirror describe --mirror dr --wide --watch --bootstrap-server b:9092",
        "kmirror describe --mirror dr --failed --bootstrap-server b:9092",
        "kmirror describe --mirror dr --topics orders --groups --json --bootstrap-server b:9092",
    ),
)
def describe_verb(
    call: Call,
    mirror: str | None,
    topics: TopicSelector | None,
    failed: bool,
    stopped: bool,
    pending_stopped_only: bool,
    wide: bool,
    groups: bool,
    settings: bool,
    watch: bool,
) -> int:
    if failed + stopped + groups + settings > 1 or (wide and (groups or settings)):
        one = "--wide, --groups and --settings" if wide else "--failed, --stopped, --groups and --settings"
        raise UsageError(f"{one} exclude each other", "give one of them")
    from kmirror.ops.show.cluster_view import Prober
    from kmirror.ops.show.describe import describe, topic_notes, unreadable_notes
    from kmirror.ops.show.describe_groups import GROUPS, describe_groups
    from kmirror.ops.show.describe_settings import TOPIC_SETTINGS, describe_settings
    from kmirror.status.partition_row import (
        FAILED_PARTITIONS,
        KAFKA_FAILED_PARTITIONS,
        KAFKA_PARTITIONS,
        PARTITIONS,
        STOPPED_PARTITIONS,
        WIDE_FAILED_PARTITIONS,
        WIDE_PARTITIONS,
        WIDE_STOPPED_PARTITIONS,
        retried_notes,
    )

    notes: list[str] = []

    def read(destination: Destination, prober: Prober) -> tuple[Sequence[Any], Sequence[str]]:
        """Return the rows, and a sentence for each stored record that could not be read."""
        if groups:
            rows: Sequence[Any] = describe_groups(destination, mirror, topics)
        elif settings:
            rows = describe_settings(destination, mirror, topics)
        else:
            rows = describe(destination, mirror, topics, prober=prober)
        if failed:
            notes.extend(retried_notes(rows))
            rows = [row for row in rows if row.failed]
        if stopped:
            rows = [row for row in rows if row.state == "STOPPED"]
        if pending_stopped_only:
            rows = [row for row in rows if row.topic_state == "PENDING_STOPPED"]
        return rows, unreadable_notes(destination, mirror)

    tables = (
        (groups, GROUPS),
        (settings, TOPIC_SETTINGS),
        (wide and failed, WIDE_FAILED_PARTITIONS),
        (wide and stopped, WIDE_STOPPED_PARTITIONS),
        (wide, WIDE_PARTITIONS),
        (failed, KAFKA_FAILED_PARTITIONS if call.kafka_action else FAILED_PARTITIONS),
        (stopped, STOPPED_PARTITIONS),
        (call.kafka_action is not None, KAFKA_PARTITIONS),
    )
    table: Table[Any] = next((one for is_asked, one in tables if is_asked), PARTITIONS)
    if watch:
        return _watch(call, f"kmirror describe  {mirror or 'all mirrors'}", table, read)
    with call.destination() as destination, Prober(destination) as prober:
        rows, unreadable = read(destination, prober)
        notes += () if groups or settings else topic_notes(destination, mirror, topics)
        cache_names(destination)
    if pending_stopped_only and not rows and isinstance(call.output, TableOutput):
        call.output.screen.line(_NONE_PENDING)
    else:
        call.output.rows(table, rows)
    for note in notes:
        call.output.screen.note(f"kmirror: note: {note}")
    return exit_code(call, unreadable)


def _watch(
    call: Call,
    title: str,
    table: Table[Any],
    read: Callable[[Destination, Prober], tuple[Sequence[Any], Sequence[str]]],
) -> int:
    """Refresh a table until the user quits."""
    from kmirror.cli.terminal.live_screen import require_terminal, show_live
    from kmirror.cli.terminal.table_view import TableView
    from kmirror.ops.show.cluster_view import Prober

    if not isinstance(call.output, TableOutput):
        raise UsageError("--watch and --json exclude each other", "run describe --json repeatedly instead")
    require_terminal(call.output.screen, "--watch", "without --watch describe prints once; scripts use `kmirror wait`")
    destination = call.destination()

    @contextmanager
    def opened() -> Iterator[Callable[[], tuple[Sequence[Any], Sequence[str]]]]:
        with destination, Prober(destination) as prober:
            yield lambda: read(destination, prober)

    show_live(call.output.screen, opened(), TableView(f"{title}  {destination.bootstrap_server}", table))
    return 0
