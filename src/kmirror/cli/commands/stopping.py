"""`pause`, `resume`, `promote`, `failover`, `remove`: the verbs that stop copying, temporarily or for good."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from kmirror.cli.commands.direction import direction
from kmirror.cli.commands.evidence_files import Report
from kmirror.cli.commands.hook_options import HOOKS, verb_hooks
from kmirror.cli.options import MASTER, Call, duration_option, mirror_option, report_option, topics_option, verb
from kmirror.cli.terminal import plain_tables as tables
from kmirror.errors import KmirrorError, UsageError

if TYPE_CHECKING:
    from kmirror.ops.base.context import Destination
    from kmirror.ops.stop.report import VerbReport
    from kmirror.ops.stop.steps import Gate
    from kmirror.settings.patterns import TopicSelector

_MOST_SHOWN = 20
#: For promote and switchover.
BLOCK_PRODUCERS = click.Option(
    ["--block-producers"],
    is_flag=True,
    help="When almost caught up, deny everyone WRITE on the source topics. Needs ALTER on the source cluster.",
)
_TOPICS = "Destination topics. Default: all topics of the mirror."


@verb(
    "pause",
    "Pause copying.\n\nThe topics stay read-only. Without --topics the whole mirror is paused, including topics that"
    " it discovers later.",
    mirror_option(),
    topics_option(_TOPICS),
    examples=(
        "kmirror pause --mirror dr --bootstrap-server b:9092",
        "kmirror pause --mirror dr --topics orders --bootstrap-server b:9092",
    ),
    changes=True,
    dry_run=True,
)
def pause_verb(call: Call, mirror: str, topics: TopicSelector | None) -> int:
    from kmirror.ops.mirrors.pause import pause

    with call.destination() as destination:
        return call.show(pause(destination, mirror, topics, dry_run=call.dry_run))


@verb(
    "resume",
    "Resume copying.",
    mirror_option(),
    topics_option(_TOPICS),
    examples=(
        "kmirror resume --mirror dr --bootstrap-server b:9092",
        "kmirror resume --mirror dr --topics orders --bootstrap-server b:9092",
    ),
    changes=True,
    dry_run=True,
)
def resume_verb(call: Call, mirror: str, topics: TopicSelector | None) -> int:
    from kmirror.ops.mirrors.pause import resume

    with call.destination() as destination:
        return call.show(resume(destination, mirror, topics, dry_run=call.dry_run))


@verb(
    "promote",
    "Stop mirroring topics once they are fully copied (planned migration).\n\nA topic is stopped when its lag is 0, its"
    " source has received no records for the --idle time, and topic settings and group offsets are in sync. Topics that"
    " are not ready by --timeout (or on Ctrl-C) stay mirrored. If no engine is running, promote copies the rest"
    " itself.",
    mirror_option(),
    topics_option(_TOPICS),
    topics_option("Topics to exclude.", flags=("--exclude",)),
    duration_option("--timeout", "Give up after this long and exit with 5. Default: wait forever.", name="timeout_ms"),
    duration_option("--idle", "How long the source must receive no records. Default: 10s.", name="idle_ms"),
    click.Option(["--allow-producers"], is_flag=True, help="Do not wait for producers to stop."),
    BLOCK_PRODUCERS,
    click.Option(["--verify"], is_flag=True, help="Compare records before stopping a topic."),
    click.Option(["--together"], is_flag=True, help="Stop all topics at the same time, or none."),
    click.Option(
        ["--batch"], type=click.IntRange(1), metavar="N", help="Promote in batches of N topics that stop together."
    ),
    duration_option("--pause", "With --batch: how long to wait between batches. Default: 0s.", name="pause_ms"),
    MASTER,
    *HOOKS,
    report_option(),
    examples=(
        "kmirror promote --mirror dr --dry-run --bootstrap-server b:9092",
        "kmirror promote --mirror dr --timeout 30m --bootstrap-server b:9092",
        "kmirror promote --mirror dr --topics orders,payments --together --verify --bootstrap-server b:9092",
        "kmirror promote --mirror dr --batch 20 --pause 5m --report batches.json --bootstrap-server b:9092",
    ),
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
    block_producers: bool,
    verify: bool,
    together: bool,
    batch: int | None,
    pause_ms: int | None,
    master: str,
    before: str | None,
    after: str | None,
    hook_ms: int | None,
    report: str | None,
) -> int:
    if pause_ms is not None and batch is None:
        raise UsageError("--pause requires --batch", "give both, or neither")
    if allow_producers and idle_ms is not None:
        raise UsageError("--idle and --allow-producers exclude each other", "give one of them")
    if block_producers and idle_ms is not None:
        raise UsageError("--idle and --block-producers exclude each other", "give one of them")
    from kmirror.ops.run.signals import stopping
    from kmirror.ops.stop.batches import promote_in_batches
    from kmirror.ops.stop.promote import promote
    from kmirror.ops.stop.promote_request import IDLE_MS, PromoteRequest

    evidence = Report.at(report) if report else None
    idle = None if allow_producers else IDLE_MS if idle_ms is None else idle_ms
    request = PromoteRequest(mirror, topics, exclude, timeout_ms, idle, verify, master, together, block_producers)
    hooks, dry_run = verb_hooks(call, "promote", before, after, hook_ms), call.dry_run

    def work(gate: Gate) -> VerbReport:
        with stopping() as stop, call.output.promoting() as show:
            if batch is None:
                return promote(destination, request, show, stop, dry_run=dry_run, gate=gate)
            pause = pause_ms or 0
            return promote_in_batches(destination, request, batch, pause, show, stop, dry_run=dry_run, gate=gate)

    with call.destination() as destination:
        done = hooks.carry_out(destination, work, dry_run=dry_run)
    return show_stopped(call, done, evidence)


@verb(
    "failover",
    "Stop mirroring immediately and make the topics writable.\n\nFor disaster recovery: needs neither the source nor a"
    " running engine. Fences any engine that is still running and reports how many records were not copied. Without"
    " --topics it stops the whole mirror and its topic discovery. Use --dry-run for a failover drill.",
    mirror_option(),
    topics_option(_TOPICS),
    click.Option(
        ["--fence-with-record"],
        is_flag=True,
        help="If kmirror may not write markers: fence with one visible record per partition.",
    ),
    *HOOKS,
    report_option(),
    examples=(
        "kmirror failover --mirror dr --dry-run --bootstrap-server b:9092",
        "kmirror failover --mirror dr --report failover.json --bootstrap-server b:9092",
        "kmirror failover --mirror dr --topics orders --yes --bootstrap-server b:9092",
    ),
    changes=True,
    dry_run=True,
)
def failover_verb(
    call: Call,
    mirror: str,
    topics: TopicSelector | None,
    fence_with_record: bool,
    before: str | None,
    after: str | None,
    hook_ms: int | None,
    report: str | None,
) -> int:
    from kmirror.ops.stop.failover import failover

    hooks = verb_hooks(call, "failover", before, after, hook_ms)
    stop = partial(failover, mirror=mirror, topics=topics, fence_with_record=fence_with_record)

    def hooked(destination: Destination, dry_run: bool) -> VerbReport:
        return hooks.carry_out(destination, lambda gate: stop(destination, dry_run=dry_run, gate=gate), dry_run=dry_run)

    return _stop(call, mirror, hooked, "Stop mirroring these topics now?", report)


@verb(
    "remove",
    "Remove topics from a mirror and make them writable.\n\nThe topics stay on the destination, stop immediately"
    " whatever their lag, and are not discovered again.",
    mirror_option(),
    topics_option("Destination topics to remove. Repeatable.", required=True),
    report_option(),
    examples=(
        "kmirror remove --mirror dr --topics orders --bootstrap-server b:9092",
        "kmirror remove --mirror dr --topics 'test-.*' --dry-run --bootstrap-server b:9092",
    ),
    changes=True,
    dry_run=True,
)
def remove_verb(call: Call, mirror: str, topics: TopicSelector, report: str | None) -> int:
    from kmirror.ops.stop.failover import remove

    return _stop(call, mirror, partial(remove, mirror=mirror, topics=topics), "Stop mirroring these topics?", report)


def _stop(call: Call, mirror: str, stop: Callable[..., VerbReport], question: str, report: str | None) -> int:
    """Show what a stop would do and ask, unless `--yes` is given; then stop, or with `--dry-run` only show it."""
    evidence = Report.at(report) if report else None
    with call.destination() as destination:
        if not call.dry_run and not call.yes:
            _ask(call, destination, mirror, stop(destination, dry_run=True), question)
        done = stop(destination, dry_run=call.dry_run)
    return show_stopped(call, done, evidence)


def _ask(call: Call, destination: Destination, mirror: str, preview: VerbReport, question: str) -> None:
    """Show what would be done, and ask for confirmation.

    Raises:
        RefusedError: the answer is no, or there is no terminal.
    """
    screen = call.output.screen
    for line in direction(destination, mirror):
        screen.note(line)
    from kmirror.ops.stop.report import needs_attention, totals_sentences

    totals, rows = preview.result.totals, preview.result.results
    for line in totals_sentences(totals) if totals is not None and totals.partitions else ():
        screen.note(line)
    shown = [row for row in rows if needs_attention(row)]
    for row in shown[:_MOST_SHOWN]:
        screen.note(row.message or row.result.value)
    if len(shown) > _MOST_SHOWN:
        screen.note(f"and {len(shown) - _MOST_SHOWN} more; --dry-run shows all of them")
    for warning in preview.result.warnings:
        screen.note(warning)
    call.require_yes(question)


def show_stopped(call: Call, done: VerbReport, evidence: Report | None) -> int:
    """Show what a verb that stops topics did, write its report, and return the exit code."""
    if evidence:
        try:
            evidence.write(done.evidence)
        except KmirrorError as error:
            # the exit code says what happened to the clusters
            call.output.screen.note(f"kmirror: warning: {error}")
    code = call.show(done.result)
    if not call.dry_run and code == 0:
        seconds = (done.evidence["endedMs"] - done.evidence["beganMs"]) / 1000
        call.output.screen.note(f"done in {tables.elapsed(seconds)}")
    return code
