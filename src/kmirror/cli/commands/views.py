"""`list`, `wait`, `check`, `events`: verbs that leave everything as it is, besides `describe` and `top`."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import click

from kmirror.cli.failures import ended_by_signals
from kmirror.cli.name_cache import cache_names
from kmirror.cli.options import (
    ALL_MIRRORS,
    Call,
    assignments_option,
    duration_option,
    file_option,
    flag_option,
    mirror_option,
    topics_option,
    verb,
)
from kmirror.commands import on_mirror
from kmirror.errors import ExitCode, UsageError
from kmirror.settings.durations import parse_timestamp
from kmirror.words import counted, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kmirror.settings.patterns import TopicSelector

#: How many unreadable records are named.
_MOST_UNREADABLE = 3


@verb(
    "list",
    "List the mirrors on a destination.",
    examples=(
        "kmirror list --bootstrap-server b:9092",
        "kmirror list --bootstrap-server b:9092 --command-config admin.properties --json",
    ),
)
def list_verb(call: Call) -> int:
    from kmirror.ops.show.describe import unreadable_notes
    from kmirror.ops.show.listing import list_mirrors
    from kmirror.status.mirror_status import KAFKA_MIRRORS, MIRRORS

    with call.destination() as destination:
        rows = list_mirrors(destination)
        unreadable = unreadable_notes(destination)
        cache_names(destination)
    call.output.rows(KAFKA_MIRRORS if call.kafka_action else MIRRORS, rows)
    for mirror, number in ((row.mirror, row.not_added) for row in rows if row.not_added):
        what = counted(number, "source topic matches its filters and is", "source topics match its filters and are")
        why = f"`{on_mirror('describe', mirror)}` says why"
        call.output.screen.note(f"kmirror: note: mirror {visible(mirror)}: {what} not mirrored; {why}")
    for mirror, number in ((row.mirror, row.failing_jobs) for row in rows if row.failing_jobs):
        what = counted(number, "job beside copying fails", "jobs beside copying fail")
        call.output.screen.note(
            f"kmirror: note: mirror {visible(mirror)}: {what}; `{on_mirror('describe', mirror)}` says why"
        )
    return exit_code(call, unreadable)


def exit_code(call: Call, unreadable: Sequence[str]) -> int:
    """Warn of what is stored and was not read, and return the exit code of a verb that showed the rest."""
    if not unreadable:
        return ExitCode.OK
    for message in unreadable[:_MOST_UNREADABLE]:
        call.output.screen.note(f"kmirror: warning: {message}")
    if (more := len(unreadable) - _MOST_UNREADABLE) > 0:
        call.output.screen.note(f"kmirror: warning: {counted(more, 'more record')} cannot be read")
    call.output.screen.note("  the output is incomplete")
    return ExitCode.PARTLY_DONE


@verb(
    "wait",
    "Wait until topics are caught up, stopped, healthy or drained.\n\nExits with 5 on --timeout, and immediately if"
    " waiting cannot help. Drained means that consumer groups have read everything on the source; objective, that all"
    " topics that objective.rpo names are within their objectives.",
    mirror_option(),
    topics_option("Destination topics. Default: all topics of the mirror."),
    click.Option(
        ["--for", "condition"],
        type=click.Choice(["caught-up", "stopped", "healthy", "drained", "objective"]),
        required=True,
        help="Condition to wait for.",
    ),
    topics_option("With drained: groups to wait for. Default: all synced groups.", flags=("--groups",), of_source=True),
    duration_option("--timeout", "How long to wait, such as 30s or 5m.", name="timeout_ms", required=True),
    examples=(
        "kmirror wait --mirror dr --for caught-up --timeout 5m --bootstrap-server b:9092",
        "kmirror wait --mirror dr --topics orders --for stopped --timeout 30m --bootstrap-server b:9092",
        "kmirror wait --mirror dr --for drained --groups billing --timeout 5m --bootstrap-server b:9092",
        "kmirror wait --mirror dr --for objective --timeout 1m --bootstrap-server b:9092",
    ),
)
def wait_verb(
    call: Call,
    mirror: str,
    topics: TopicSelector | None,
    condition: str,
    groups: TopicSelector | None,
    timeout_ms: int,
) -> int:
    from kmirror.ops.show.wait import Condition, wait

    wanted = Condition(condition)
    what = f"waiting for {mirror} to be {wanted.words}"
    with call.destination() as destination, call.output.waiting(what) as on_check:
        done = wait(destination, mirror, wanted, timeout_ms, topics=topics, groups=groups, on_check=on_check)
    return call.show(done)


@verb(
    "check",
    "Check connections, broker versions, rights and settings.\n\nChecks a stored mirror (--mirror), or a file before"
    " you create a mirror from it (--mirror-config). Prints the kafka-acls commands that grant missing rights.\n\nWith"
    " --probe it also finds out whether the destination's brokers guarantee what copying relies on, by appends,"
    " markers, fences and deletions on a topic of its own, which it deletes again. Exits with 3 if they do not.",
    mirror_option(required=False),
    file_option("--mirror-config", "File to check, as for `kmirror create`."),
    assignments_option("--config", "Set or override one property of FILE. Repeatable."),
    flag_option("--probe", "Try what copying relies on, on a temporary topic."),
    examples=(
        "kmirror check --mirror-config source.properties --bootstrap-server b:9092",
        "kmirror check --probe --bootstrap-server b:9092",
        "kmirror check --mirror dr --bootstrap-server b:9092 --command-config kmirror.properties",
    ),
)
def check_verb(call: Call, mirror: str | None, mirror_config: str | None, config: dict[str, str], probe: bool) -> int:
    from kmirror.ops.check.check import check

    if mirror and mirror_config:
        raise UsageError("--mirror and --mirror-config exclude each other", "give one of them")
    if config and not mirror_config:
        raise UsageError("--config requires --mirror-config", "give both, or --mirror alone")
    with ended_by_signals() if probe else nullcontext():
        report = check(
            call.properties(),
            mirror=mirror,
            properties={**call.read_properties(mirror_config), **config} if mirror_config else None,
            expect_cluster_id=call.expect_cluster_id,
            probe=probe,
            on_line=call.output.check_line,
        )
    call.output.check(report)
    return report.exit_code


def _time_ms(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    return None if value is None else parse_timestamp(value, round(time.time() * 1000), "--since")


@verb(
    "events",
    "Show who did what to a mirror, when, and the result.\n\nT is a time such as 2026-03-01T12:00:00Z, or a duration"
    " such as 2h. With --follow --json each event is one line.",
    mirror_option(ALL_MIRRORS, required=False),
    click.Option(
        ["--since", "since_ms"],
        metavar="T",
        callback=_time_ms,
        help="Show only events since this time, or this long ago.",
    ),
    flag_option("--follow", "Show new events as they arrive. Ctrl-C exits with 0."),
    examples=(
        "kmirror events --mirror dr --since 24h --bootstrap-server b:9092",
        "kmirror events --since 2026-03-01T12:00:00Z --json --bootstrap-server b:9092",
        "kmirror events --mirror dr --follow --json --bootstrap-server b:9092",
    ),
)
def events_verb(call: Call, mirror: str | None, since_ms: int | None, follow: bool) -> int:
    from kmirror.ops.show.events import EVENTS, events, follow_events, hidden_notes

    if follow:
        screen, show = call.output.screen, call.output.following(EVENTS)
        with suppress(KeyboardInterrupt), call.destination() as destination:
            for found in follow_events(destination, mirror, since_ms, lambda text: screen.note(f"kmirror: {text}")):
                show(found)
                if screen.is_unread:
                    break
        return 0
    with call.destination() as destination:
        page = events(destination, mirror, since_ms)
    call.output.rows(EVENTS, page.events)
    return exit_code(call, hidden_notes(page))


@verb(
    "in-charge",
    "Show which cluster takes the writes of a mirror's topics.\n\nExits with 0 if that is certain, whichever it is, and"
    " with 5 if it is not certain now: during a stop, and if topics have moved in part. Takes some seconds, as long as"
    " the old cluster may still count as in charge elsewhere. It needs READ on __kmirror_state of both clusters.",
    mirror_option(),
    click.Option(["--topic"], metavar="TOPIC", help="One topic of the mirror. Default: all together."),
    examples=(
        "kmirror in-charge --mirror dr --bootstrap-server b:9092",
        "kmirror in-charge --mirror dr --topic orders --json --bootstrap-server b:9092",
    ),
)
def in_charge_verb(call: Call, mirror: str, topic: str | None) -> int:
    from kmirror.ops.show.charge_keeper import IN_CHARGE
    from kmirror.ops.show.ends_in_charge import in_charge

    with call.destination() as destination, call.output.waiting(f"finding out which end of {mirror} is in charge"):
        ends = in_charge(destination, mirror, topic)
    call.output.rows(IN_CHARGE, ends)
    return ExitCode.OK if any(end.in_charge for end in ends) else ExitCode.TIMED_OUT
