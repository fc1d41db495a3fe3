"""`pause`, `resume`, `promote`, `failover`, `remove`: the verbs that stop copying, temporarily or for good."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kmirror.cli.commands.direction import show_direction
from kmirror.cli.commands.evidence_files import Report
from kmirror.cli.commands.hook_options import HOOKED, verb_hooks
from kmirror.cli.options import (
    MASTER,
    REPORT,
    Call,
    duration_option,
    flag_option,
    mirror_option,
    topics_option,
    verb,
)
from kmirror.cli.terminal import plain_tables as tables
from kmirror.errors import UsageError

if TYPE_CHECKING:
    from kmirror.ops.base.context import Destination
    from kmirror.ops.stop.report import VerbReport
    from kmirror.ops.stop.steps import Gate
    from kmirror.settings.patterns import TopicSelector

_MOST_SHOWN = 20
#: For promote and switchover.
BLOCK_PRODUCERS = flag_option(
    "--block-producers",
    "When almost caught up, deny everyone WRITE on the source topics. Needs ALTER on the source cluster.",
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
    flag_option("--allow-producers", "Do not wait for producers to stop."),
    BLOCK_PRODUCERS,
    flag_option("--verify", "Compare records before stopping a topic."),
    flag_option("--together", "Stop all topics at the same time, or none."),
    click.Option(
        ["--batch"], type=click.IntRange(1), metavar="N", help="Promote in batches of N topics that stop together."
    ),
    duration_option("--pause", "With --batch: how long to wait between batches. Default: 0s.", name="pause_ms"),
    MASTER,
    *HOOKED,
    examples=(
        "kmirror promote --mirror dr --dry-run --bootstrap-server b:9092",
        "kmirror promote --mirror dr --timeout 30m --bootstrap-server b:9092",
        "kmirror promote --mirror dr --topics orders,payments --together --verify --bootstrap-server b:9092",
        "kmirror promote --mirror dr --batch 20 --pause 5m --report batches.json --bootstrap-server b:9092",
    ),
    changes=True,
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
    **hooked: Any,
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

    idle = None if allow_producers else IDLE_MS if idle_ms is None else idle_ms
    request = PromoteRequest(mirror, topics, exclude, timeout_ms, idle, verify, master, together, block_producers)

    def work(destination: Destination, gate: Gate) -> VerbReport:
        with stopping() as stop, call.output.promoting() as show:
            how: dict[str, Any] = {"dry_run": call.dry_run, "gate": gate}
            if batch is None:
                return promote(destination, request, show, stop, **how)
            return promote_in_batches(destination, request, batch, pause_ms or 0, show, stop, **how)

    return carry_out(call, "promote", work, **hooked)


@verb(
    "failover",
    "Stop mirroring immediately and make the topics writable.\n\nFor disaster recovery: needs neither the source nor a"
    " running engine. Fences any engine that is still running and reports how many records were not copied. Without"
    " --topics it stops the whole mirror and its topic discovery. Use --dry-run for a failover drill.",
    mirror_option(),
    topics_option(_TOPICS),
    flag_option(
        "--fence-with-record", "If kmirror may not write markers: fence with one visible record per partition."
    ),
    *HOOKED,
    examples=(
        "kmirror failover --mirror dr --dry-run --bootstrap-server b:9092",
        "kmirror failover --mirror dr --report failover.json --bootstrap-server b:9092",
        "kmirror failover --mirror dr --topics orders --yes --bootstrap-server b:9092",
    ),
    changes=True,
)
def failover_verb(
    call: Call,
    mirror: str,
    topics: TopicSelector | None,
    fence_with_record: bool,
    **hooked: Any,
) -> int:
    from kmirror.ops.stop.failover import failover

    stop = partial(failover, mirror=mirror, topics=topics, fence_with_record=fence_with_record)

    def work(destination: Destination, gate: Gate) -> VerbReport:
        return stop(destination, dry_run=call.dry_run, gate=gate)

    return carry_out(call, "failover", work, lambda destination: _ask(call, destination, mirror, stop), **hooked)


@verb(
    "remove",
    "Remove topics from a mirror and make them writable.\n\nThe topics stay on the destination, stop immediately"
    " whatever their lag, and are not discovered again.",
    mirror_option(),
    topics_option("Destination topics to remove. Repeatable.", required=True),
    REPORT,
    examples=(
        "kmirror remove --mirror dr --topics orders --bootstrap-server b:9092",
        "kmirror remove --mirror dr --topics 'test-.*' --dry-run --bootstrap-server b:9092",
    ),
    changes=True,
)
def remove_verb(call: Call, mirror: str, topics: TopicSelector, report: str | None) -> int:
    from kmirror.ops.stop.failover import remove

    stop = partial(remove, mirror=mirror, topics=topics)

    def work(destination: Destination, _: Gate) -> VerbReport:
        return stop(destination, dry_run=call.dry_run)

    return carry_out(call, "remove", work, lambda destination: _ask(call, destination, mirror, stop), report=report)


def carry_out(
    call: Call,
    verb: str,
    work: Callable[[Destination, Gate], VerbReport],
    ask: Callable[[Destination], None] = lambda _: None,
    *,
    before: str | None = None,
    after: str | None = None,
    hook_ms: int | None = None,
    report: str | None = None,
) -> int:
    """Ask unless that was answered, carry out a verb with its hooks, and show what it did; return the exit code."""
    evidence = Report.at(report) if report else None
    hooks = verb_hooks(call, verb, before, after, hook_ms)
    with call.destination() as destination:
        if not call.dry_run and not call.yes:
            ask(destination)
        done = hooks.carry_out(destination, partial(work, destination), dry_run=call.dry_run)
    return _show_stopped(call, done, evidence)


def _ask(call: Call, destination: Destination, mirror: str, stop: Callable[..., VerbReport]) -> None:
    """Show what a stop would do, and ask for confirmation.

    Raises:
        RefusedError: the answer is no, or there is no terminal.
    """
    preview, screen = stop(destination, dry_run=True), call.output.screen
    show_direction(screen, destination, mirror)
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
    call.require_yes("Stop mirroring these topics now?")


def _show_stopped(call: Call, done: VerbReport, evidence: Report | None) -> int:
    """Show what a verb that stops topics did, write its report, and return the exit code."""
    if evidence:
        evidence.write_or_warn(done.evidence, call.output.screen)
    code = call.show(done.result)
    if not call.dry_run and code == 0:
        seconds = (done.evidence["endedMs"] - done.evidence["beganMs"]) / 1000
        call.output.screen.note(f"done in {tables.elapsed(seconds)}")
    return code
