"""`pause`, `resume`, `promote`, `failover`, `remove`: the verbs that end copying, for a while or for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kmirror.cli import tables
from kmirror.cli.direction import direction
from kmirror.cli.options import MASTER, Call, duration_option, mirror_option, report_option, topics_option, verb
from kmirror.cli.report import Report
from kmirror.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from kmirror.ops.context import Destination
    from kmirror.ops.failover import Stopped
    from kmirror.patterns import TopicSelector

_MOST_SHOWN = 20
_TOPICS = "Destination topics; every topic by default. May be repeated."


@verb(
    "pause",
    "Stop copying for a while.\n\nThe topics stay read-only. Without --topics the whole mirror is paused, topics that"
    " it discovers later with it.",
    mirror_option(),
    topics_option(_TOPICS),
    example="kmirror pause --mirror m --topics orders --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
)
def pause_verb(call: Call, mirror: str, topics: TopicSelector | None) -> int:
    from kmirror.ops.pause import pause

    with call.destination() as destination:
        done = pause(destination, mirror, topics, dry_run=call.dry_run)
    call.output.result(done)
    return done.exit_code


@verb(
    "resume",
    "Go on copying what was paused.",
    mirror_option(),
    topics_option(_TOPICS),
    example="kmirror resume --mirror m --topics orders --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
)
def resume_verb(call: Call, mirror: str, topics: TopicSelector | None) -> int:
    from kmirror.ops.pause import resume

    with call.destination() as destination:
        done = resume(destination, mirror, topics, dry_run=call.dry_run)
    call.output.result(done)
    return done.exit_code


@verb(
    "promote",
    "Stop mirroring to topics as their copies become complete.\n\nThe planned migration: each topic is stopped when it"
    " lacks nothing, its source has stood still, and settings and groups agree. What is not stopped when the time runs"
    " out, or at Ctrl-C, is mirrored on. Where no engine is in charge, it copies itself.",
    mirror_option(),
    topics_option(_TOPICS),
    topics_option("Leave these out.", flags=("--exclude",)),
    duration_option("--timeout", "End with 5 after so long; without it, wait as long as it takes.", name="timeout_ms"),
    duration_option("--idle", "How long the source's end has to stand still; 10s unless given.", name="idle_ms"),
    click.Option(["--allow-producers"], is_flag=True, help="Do not wait until the source stands still."),
    click.Option(["--verify"], is_flag=True, help="Compare contents before a topic is stopped."),
    MASTER,
    report_option(),
    example="kmirror promote --mirror m --timeout 30m --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
)
def promote_verb(
    call: Call,
    mirror: str,
    topics: TopicSelector | None,
    exclude: TopicSelector | None,
    timeout_ms: int | None,
    idle_ms: int | None,
    allow_producers: bool,
    verify: bool,
    master: str,
    report: str | None,
) -> int:
    if allow_producers and idle_ms is not None:
        raise UsageError("--idle and --allow-producers say different things", "give one of them")
    from kmirror.ops.promote import IDLE_MS, PromoteRequest, promote
    from kmirror.ops.run import stopping

    evidence = Report.at(report) if report else None
    idle = None if allow_producers else IDLE_MS if idle_ms is None else idle_ms
    request = PromoteRequest(mirror, topics, exclude, timeout_ms, idle, verify, master)
    with call.destination() as destination, stopping() as stop, call.output.promoting() as show:
        done = promote(destination, request, show, stop, dry_run=call.dry_run)
    return _tell(call, done, evidence)


@verb(
    "failover",
    "Make mirror topics ordinary ones, at once.\n\nFor the day the source is lost: neither it nor an engine is needed."
    " Whoever still copies is shut out at the brokers, and what the source is known to have had beyond each copy is"
    " told. Without --topics the whole mirror is stopped, and its discovery. With --dry-run it is the drill.",
    mirror_option(),
    topics_option(_TOPICS),
    click.Option(
        ["--fence-with-record"],
        is_flag=True,
        help="Where kmirror may not write markers: shut a forgotten engine out by one visible record per partition.",
    ),
    report_option(),
    example="kmirror failover --mirror m --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
    irreversible=True,
)
def failover_verb(
    call: Call, mirror: str, topics: TopicSelector | None, fence_with_record: bool, report: str | None
) -> int:
    from kmirror.ops.failover import failover

    evidence = Report.at(report) if report else None
    with call.destination() as destination:
        if not call.dry_run and not call.yes:
            preview = failover(destination, mirror, topics, dry_run=True)
            _ask(call, destination, mirror, preview, "Stop mirroring to these topics now?")
        done = failover(destination, mirror, topics, fence_with_record=fence_with_record, dry_run=call.dry_run)
    return _tell(call, done, evidence)


@verb(
    "remove",
    "Stop mirroring to topics, for good.\n\nThe topics stay, and can be written to; they are not discovered again. How"
    " far their copies are does not matter.",
    mirror_option(),
    topics_option("Destination topics; may be repeated.", required=True),
    report_option(),
    example="kmirror remove --mirror m --topics orders --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
    irreversible=True,
)
def remove_verb(call: Call, mirror: str, topics: TopicSelector, report: str | None) -> int:
    from kmirror.ops.failover import remove

    evidence = Report.at(report) if report else None
    with call.destination() as destination:
        if not call.dry_run and not call.yes:
            preview = remove(destination, mirror, topics, dry_run=True)
            _ask(call, destination, mirror, preview, "Stop mirroring to these topics?")
        done = remove(destination, mirror, topics, dry_run=call.dry_run)
    return _tell(call, done, evidence)


def _ask(call: Call, destination: Destination, mirror: str, preview: Stopped, question: str) -> None:
    """Show what would be done, and ask.

    Raises:
        RefusedError: the answer is no, or there is nobody to ask.
    """
    screen = call.output.screen
    for line in direction(destination, mirror):
        screen.tell(line)
    rows = preview.result.results
    for row in rows[:_MOST_SHOWN]:
        screen.tell(row.message or row.result.value)
    if len(rows) > _MOST_SHOWN:
        behind = sum(row.lag or 0 for row in rows)
        screen.tell(f"and {len(rows) - _MOST_SHOWN} more; {behind:,} records are known to be missing in all")
    for warning in preview.result.warnings:
        screen.tell(warning)
    if not call.confirm(question):
        raise RefusedError("the answer was no: nothing was changed")


def _tell(call: Call, done: Stopped, evidence: Report | None) -> int:
    if evidence:
        evidence.write(done.evidence)
    call.output.result(done.result)
    if not call.dry_run and done.result.exit_code == 0:
        seconds = (done.evidence["endedMs"] - done.evidence["beganMs"]) / 1000
        call.output.screen.tell(f"done in {tables.elapsed(seconds)}")
    return done.result.exit_code
