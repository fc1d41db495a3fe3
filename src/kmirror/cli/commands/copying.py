"""`run`, `verify` and `append`: the verbs that copy, compare and write records."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

import click

from kmirror.cli.commands.evidence_files import Report
from kmirror.cli.commands.hook_options import HOOK_TIMEOUT, event_hook
from kmirror.cli.failures import explain
from kmirror.cli.options import (
    HTTP_HOST,
    MASTER,
    REPORT,
    SPARK_CONF,
    Call,
    duration_option,
    file_option,
    flag_option,
    mirror_option,
    offered_files,
    topics_option,
    verb,
)
from kmirror.cli.terminal import plain_tables as tables
from kmirror.errors import NOT_COPYING, ExitCode, UsageError
from kmirror.words import byte_count, counted, one_line

if TYPE_CHECKING:
    from kmirror.engine.driver.driver import RunView
    from kmirror.ops.base.results import VerbResult
    from kmirror.ops.verify.verify_results import VerifyOutcome
    from kmirror.settings.patterns import TopicSelector


@verb(
    "run",
    "Copy records until stopped or caught up.\n\nCtrl-C or SIGTERM stops it cleanly with exit code 0. If it is killed,"
    " start it again: no record is lost or copied twice. SIGHUP makes it read passwords and certificates again and log"
    " in to the source with them.\n\nOn a terminal it shows a live table. Otherwise stdout is a log: a line for each"
    " change, and a summary every minute. With --json the log is on stderr.",
    mirror_option("Name of the mirror. Repeatable.", required=False, multiple=True),
    flag_option("--all", "Copy every mirror on the destination, including those created later.", name="all_mirrors"),
    MASTER,
    flag_option("--until-caught-up", "Exit once everything present at the start is copied."),
    duration_option("--timeout", "With --until-caught-up: give up after this long and exit with 5.", name="timeout_ms"),
    duration_option("--for", "Stop after this long, such as 30s or 8h.", name="for_ms"),
    flag_option("--standby", "Wait until the running engine stops, then copy."),
    flag_option("--take-over", "Fence the running engine and replace it."),
    SPARK_CONF,
    click.Option(
        ["--http"],
        metavar="[HOST:]PORT",
        help="Serve /healthz, /readyz, /metrics and a status page over HTTP, on localhost unless HOST is given.",
    ),
    HTTP_HOST,
    click.Option(["--metrics-port"], metavar="PORT", help="Same as --http PORT."),
    click.Option(
        ["--log-format"],
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Log format; json is one object per line.",
    ),
    click.Option(["--on-event"], metavar="CMD", help="Run this command for new events, with the events on its stdin."),
    duration_option(
        "--on-event-interval",
        "Least time between two runs of the --on-event command. Default: 10s.",
        name="interval_ms",
    ),
    HOOK_TIMEOUT,
    file_option("--log-file", "Also write the log to this file, rotated at 10 MB; five old files are kept."),
    examples=(
        "kmirror run --mirror dr --bootstrap-server b:9092",
        "kmirror run --all --http 0.0.0.0:8080 --bootstrap-server b:9092",
        "kmirror run --mirror dr --until-caught-up --timeout 1h --bootstrap-server b:9092",
        "kmirror run --mirror dr --master spark://spark:7077 --spark-conf spark.executor.memory=4g --standby"
        " --bootstrap-server b:9092",
    ),
    changes=True,
)
def run_verb(
    call: Call,
    mirror: tuple[str, ...],
    all_mirrors: bool,
    master: str,
    until_caught_up: bool,
    timeout_ms: int | None,
    for_ms: int | None,
    standby: bool,
    take_over: bool,
    spark_conf: dict[str, str],
    http: str | None,
    http_host: tuple[str, ...],
    metrics_port: str | None,
    log_format: str,
    on_event: str | None,
    interval_ms: int | None,
    hook_ms: int | None,
    log_file: str | None,
) -> int:
    if timeout_ms is not None and not until_caught_up:
        raise UsageError("--timeout requires --until-caught-up", "to copy for a fixed time, give --for")
    if http is not None and metrics_port is not None:
        raise UsageError("--http and --metrics-port exclude each other", "give --http alone")
    if http_host and http is None and metrics_port is None:
        raise UsageError("--http-host requires --http", "without --http nothing listens")
    from kmirror.cli.commands.log_file import LogFile
    from kmirror.cli.terminal.run_log import RunLog
    from kmirror.engine.clock import now_ms
    from kmirror.ops.base.run_request import RunRequest
    from kmirror.ops.run.run import preview, run
    from kmirror.web.address import Address
    from kmirror.web.http_server import serving_run

    events = event_hook(",".join(mirror) or "*", on_event, interval_ms, hook_ms)
    flag, where = ("--http", http) if http is not None else ("--metrics-port", metrics_port)
    serve = None
    if where is not None:
        hosts = tuple(name.lower() for name in http_host)
        serve = partial(serving_run, call.destination, Address.parse(where, flag), hosts)
    request = RunRequest(
        mirror, master, until_caught_up, timeout_ms, for_ms, standby, take_over, spark_conf, all_mirrors
    )
    if call.dry_run:
        return call.show(preview(call.destination, request))
    seconds = 0.0
    service_manager = ServiceManager.of_this_process()
    with closing(LogFile.at(log_file, call.output.screen.note)) if log_file else nullcontext() as file:
        log = RunLog(file.write, log_format) if file is not None else None
        try:
            with call.output.running(log_format) as show:

                def watch(view: RunView) -> None:
                    nonlocal seconds
                    seconds = view.elapsed_seconds
                    service_manager.report_alive(view.phase)
                    if log is not None:
                        log.take(view)
                    show(view)

                done = run(call.destination, request, watch, serve, events)
        except Exception as error:
            service_manager.report_stopping()
            if log is not None:
                log.fail(now_ms(), request.named, explain(error))
            raise
        service_manager.report_stopping()
        sentence = headline(done, until_caught_up, seconds)
        if log is not None:
            log.end(now_ms(), done, sentence)
    call.output.run_ended(done, sentence, log_format)
    return done.exit_code


@verb(
    "verify",
    "Compare source and destination record by record.\n\nCompares offsets, timestamps, keys, values and headers up to"
    " the last mirrored offset, or to the current end of topics that are still mirrored. Mirroring can continue"
    " meanwhile. Exits with 7 if anything differs.",
    mirror_option(),
    topics_option("Destination topics. Default: all topics of the mirror."),
    flag_option("--full", "Compare every record (default)."),
    click.Option(
        ["--sample"],
        metavar="N",
        type=int,
        help="Compare only the start, the end and N random ranges of each partition.",
    ),
    MASTER,
    SPARK_CONF,
    flag_option("--explain", "Show which task would compare which ranges, and exit."),
    REPORT,
    examples=(
        "kmirror verify --mirror dr --bootstrap-server b:9092",
        "kmirror verify --mirror dr --topics orders --sample 20 --bootstrap-server b:9092",
        "kmirror verify --mirror dr --report verify.json --bootstrap-server b:9092",
    ),
)
def verify_verb(
    call: Call,
    mirror: str,
    topics: TopicSelector | None,
    full: bool,
    sample: int | None,
    master: str,
    spark_conf: dict[str, str],
    explain: bool,
    report: str | None,
) -> int:
    if full and sample is not None:
        raise UsageError("--full and --sample exclude each other", "give one of them")
    if explain and report is not None:
        raise UsageError("--explain and --report exclude each other", "--explain compares nothing")
    from kmirror.ops.base.bulk import SparkChoice
    from kmirror.ops.verify.verify import VerifyRequest, verify
    from kmirror.ops.verify.verify import explain as explained
    from kmirror.ops.verify.verify_results import VERIFY_PLAN

    request = VerifyRequest(mirror, topics, sample, SparkChoice(master, spark_conf))
    if explain:
        with call.destination() as destination:
            call.output.rows(VERIFY_PLAN, explained(destination, request))
        return 0
    evidence = Report.at(report) if report else None
    began = time.monotonic()
    with call.destination() as destination, call.output.working() as watch:
        outcome = verify(destination, request, watch)
    if evidence:
        evidence.write_or_warn(outcome.evidence, call.output.screen)
    call.output.verified(outcome, verified(outcome, time.monotonic() - began))
    return outcome.exit_code


def verified(outcome: VerifyOutcome, seconds: float) -> str:
    """Return the outcome of a comparison as a sentence."""
    if not outcome.rows:
        return "nothing compared: the mirror has no topics"
    word = "equal" if outcome.exit_code == 0 else "DIFFERENT" if outcome.exit_code == 7 else "not all compared"
    partitions = counted(sum(row.partition is not None for row in outcome.rows), "partition")
    records = counted(sum(row.records for row in outcome.rows), "record")
    size = byte_count(sum(row.size_in_bytes for row in outcome.rows))
    where = f", {outcome.how}" if outcome.how else ""
    return f"{word}: {partitions}, {records}, {size} compared in {tables.elapsed(seconds)}{where}"


def headline(done: VerbResult, until_caught_up: bool, seconds: float) -> str:
    """Return the outcome of a run as a sentence."""
    lags = [row.lag for row in done.results if row.topic is not None]
    if not lags:
        return f"stopped after {tables.elapsed(seconds)}"
    behind = sum(lag for lag in lags if lag is not None)
    reached = until_caught_up and done.exit_code == 0 and behind == 0 and None not in lags
    partitions = counted(len(lags), "partition")
    if reached:
        return f"caught up after {tables.elapsed(seconds)}: {partitions}, lag 0"
    lag = f"{behind:,}"
    if None in lags:
        lag = f"≥ {behind:,}, unknown for {counted(lags.count(None), 'partition')}" if behind else "unknown"
    causes = (row for row in done.results if row.reason and (row.lag is None or row.reason in NOT_COPYING))
    cause = next((f": {row.reason}, {one_line(row.message)}" for row in causes), "")
    return f"stopped after {tables.elapsed(seconds)}: {partitions}, lag {lag}{cause}"


class ServiceManager:
    """Notify the service manager that started this process; without one, do nothing."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._is_ready_sent = False

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the one named by the environment."""
        address = environ.get("NOTIFY_SOCKET")
        return cls("\0" + address[1:] if address and address.startswith("@") else address)

    def report_alive(self, status: str) -> None:
        """Report that the process is alive and what it does; the first time also that it is ready.

        An engine that waits for its clusters, or is on standby, counts as ready: it needs no help to start copying.
        """
        first = "" if self._is_ready_sent else "READY=1\n"
        self._is_ready_sent = True
        self._send(f"{first}WATCHDOG=1\nSTATUS={status}")

    def report_stopping(self) -> None:
        """Report that the process is about to end."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifier:
            notifier.setblocking(False)
            notifier.sendto(message.encode(), self._address)


@verb(
    "append",
    "Append records from a file at their offsets.\n\nFor manual repair. FILE has one JSON object per line: topic,"
    " partition, offset, timestamp, key, value, and optionally headers and encoding (text or base64). Nothing is"
    " written unless each partition's log ends exactly where its first record belongs. Mirror topics must be paused or"
    " stopped.",
    click.Option(["--topic"], metavar="TOPIC", help="All records are for this topic; lines may leave it out."),
    file_option("--file", "JSON lines file, one record per line; the same as FILE."),
    click.Argument(["path"], required=False, metavar="[FILE]", shell_complete=offered_files),
    examples=(
        "kmirror append --topic orders records.jsonl --dry-run --bootstrap-server b:9092",
        "kmirror append records.jsonl --yes --json --bootstrap-server b:9092",
    ),
    changes=True,
)
def append_verb(call: Call, topic: str | None, file: str | None, path: str | None) -> int:
    from kmirror.ops.append.append_file import append

    if (path is None) == (file is None):
        raise UsageError("name one file of records", "as in `kmirror append --topic orders records.jsonl`")
    file = path or file or ""
    with call.destination() as destination:
        done = append(destination, file, topic, dry_run=call.dry_run or not call.yes)
        if not call.dry_run and not call.yes and done.exit_code == ExitCode.OK:
            for row in done.results:
                call.output.screen.note(f"{row.topic}-{row.partition}: {row.message}")
            for warning in done.warnings:
                call.output.screen.note(f"warning: {warning}")
            call.require_yes(f"Append these records on cluster {destination.cluster_id}?")
            done = append(destination, file, topic)
    return call.show(replace(done, dry_run=call.dry_run))
