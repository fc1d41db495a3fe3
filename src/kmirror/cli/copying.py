"""`run` and `verify`: the verbs that read records, on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kmirror.cli import tables
from kmirror.cli.options import (
    MASTER,
    Call,
    assignments_option,
    duration_option,
    mirror_option,
    report_option,
    topics_option,
    verb,
)
from kmirror.cli.report import Report
from kmirror.errors import UsageError

if TYPE_CHECKING:
    from kmirror.engine.driver import RunView
    from kmirror.ops.results import VerbResult
    from kmirror.ops.verify import VerifyView
    from kmirror.ops.verify_results import VerifyOutcome
    from kmirror.patterns import TopicSelector

_SPARK_CONF = assignments_option("--spark-conf", "One setting of Spark's; may be repeated.")


@verb(
    "run",
    "Copy, until told to stop or until all is copied.\n\nCtrl-C and SIGTERM end it cleanly with 0. Killing it at any"
    " moment loses nothing and copies nothing twice: start it again.",
    mirror_option(multiple=True),
    MASTER,
    click.Option(["--until-caught-up"], is_flag=True, help="End when all that is there at the start is copied."),
    duration_option("--timeout", "With --until-caught-up: end with 5 after so long.", name="timeout_ms"),
    duration_option("--for", "End after so long: 30s, 8h.", name="for_ms"),
    click.Option(["--standby"], is_flag=True, help="Wait until no other engine is in charge."),
    click.Option(["--take-over"], is_flag=True, help="End the engine that is in charge."),
    _SPARK_CONF,
    example="kmirror run --mirror m --bootstrap-server b:9092",
    changes=True,
)
def run_verb(
    call: Call,
    mirror: tuple[str, ...],
    master: str,
    until_caught_up: bool,
    timeout_ms: int | None,
    for_ms: int | None,
    standby: bool,
    take_over: bool,
    spark_conf: dict[str, str],
) -> int:
    if timeout_ms is not None and not until_caught_up:
        raise UsageError("--timeout goes with --until-caught-up", "to copy for so long, give --for")
    from kmirror.ops.run import RunRequest, run

    request = RunRequest(mirror, master, until_caught_up, timeout_ms, for_ms, standby, take_over, spark_conf)
    seconds = 0.0
    with call.destination() as destination, call.output.running() as show:

        def watch(view: RunView) -> None:
            nonlocal seconds
            seconds = view.elapsed_seconds
            show(view)

        done = run(destination, request, watch)
    call.output.result(done, headline(done, until_caught_up, seconds))
    return done.exit_code


@verb(
    "verify",
    "Compare source and destination, record by record.\n\nOffsets, timestamps, keys, values and headers, up to the last"
    " mirrored offset or the present end; topics may be mirrored meanwhile. Ends with 7 where something differs.",
    mirror_option(),
    topics_option("Destination topics; every topic by default. May be repeated."),
    click.Option(["--full"], is_flag=True, help="Compare every record; this is the default."),
    click.Option(
        ["--sample"],
        metavar="N",
        type=int,
        help="Compare only beginning, end and N random ranges of each partition.",
    ),
    MASTER,
    _SPARK_CONF,
    report_option(),
    example="kmirror verify --mirror m --bootstrap-server b:9092",
)
def verify_verb(
    call: Call,
    mirror: str,
    topics: TopicSelector | None,
    full: bool,
    sample: int | None,
    master: str,
    spark_conf: dict[str, str],
    report: str | None,
) -> int:
    if full and sample is not None:
        raise UsageError("--full and --sample say different things", "give one of them")
    from kmirror.ops.verify import VerifyRequest, verify

    evidence = Report.at(report) if report else None
    request = VerifyRequest(mirror, topics, master, sample, spark_conf)
    seconds = 0.0
    with call.destination() as destination, call.output.comparing() as show:

        def watch(view: VerifyView) -> None:
            nonlocal seconds
            seconds = view.elapsed_seconds
            show(view)

        outcome = verify(destination, request, watch)
    if evidence:
        evidence.write(outcome.evidence)
    call.output.verified(outcome, verified(outcome, seconds))
    return outcome.exit_code


def verified(outcome: VerifyOutcome, seconds: float) -> str:
    """Return how a comparison ended, in a sentence."""
    word = "equal" if outcome.exit_code == 0 else "DIFFERENT" if outcome.exit_code == 7 else "not all compared"
    partitions = tables.counted(sum(row.partition is not None for row in outcome.rows), "partition")
    records = tables.counted(sum(row.records for row in outcome.rows), "record")
    size = tables.size(sum(row.size_in_bytes for row in outcome.rows))
    return f"{word}: {partitions}, {records}, {size} compared in {tables.elapsed(seconds)}"


def headline(done: VerbResult, until_caught_up: bool, seconds: float) -> str:
    """Return how a run ended, in a sentence."""
    lags = [row.lag for row in done.results]
    behind = sum(lag for lag in lags if lag is not None)
    reached = until_caught_up and done.exit_code == 0 and behind == 0 and None not in lags
    partitions = tables.counted(len(lags), "partition")
    if reached:
        return f"caught up after {tables.elapsed(seconds)}: {partitions}, lag 0"
    lag = "not known" if None in lags else f"{behind:,}"
    return f"stopped after {tables.elapsed(seconds)}: {partitions}, lag {lag}"
