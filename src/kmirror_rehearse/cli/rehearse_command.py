"""`rehearse`: fail over for real, without touching production."""

from __future__ import annotations

import os

import click

from kmirror.cli.commands.hook_options import HOOK_TIMEOUT
from kmirror.cli.failures import ended_by_signals
from kmirror.cli.options import (
    BOOTSTRAP_ENVIRONMENT,
    Call,
    assignments_option,
    duration_option,
    file_option,
    flag_option,
    folder_option,
    topics_option,
    verb,
)
from kmirror.errors import UsageError
from kmirror.settings.patterns import TopicSelector

_CHECK_MS = 300_000


@verb(
    "rehearse",
    "Rehearse a failover and the way back.\n\nCopies recent records of the source, which is only read, cuts them off,"
    " fails over, writes and reads a record of each topic, fails back, compares, and removes everything. Without"
    " --bootstrap-server the clusters are started on this machine; a cluster that is named must be empty. Reports the"
    " RTO by phase, the loss that `failover` reports and the one counted, and what clients would lack. Exits with 4 if"
    " anything is wrong.",
    file_option("--mirror-config", "File with the source's properties, as for `kmirror create`.", required=True),
    assignments_option("--config", "Set or override one property of FILE. Repeatable."),
    topics_option("Source topics. Default: topics.include of the file, else all.", of_source=True),
    duration_option("--window", "How old the copied records are at most. Default: 1h.", name="window_ms"),
    flag_option("--whole", "Copy topics from their beginning instead."),
    duration_option("--live", "How long to follow the source before it is cut off. Default: 20s.", name="live_ms"),
    duration_option("--timeout", "How long the first copy may take. Default: 30m.", name="copy_ms"),
    duration_option("--rto", "Fail if clients cannot write within this time of the cut.", name="most_ms"),
    click.Option(
        ["--check"],
        metavar="CMD",
        help="Run this command after the failover; KMIRROR_BOOTSTRAP_SERVER has the address of the new primary.",
    ),
    HOOK_TIMEOUT,
    folder_option("--out", text="Directory for the evidence: a JSON document and a page for each rehearsal."),
    examples=(
        "kmirror rehearse --mirror-config source.properties",
        "kmirror rehearse --mirror-config source.properties --topics 'orders-.*' --check ./smoke-test --rto 60s"
        " --out rehearsals",
    ),
    changes=True,
)
def rehearse_verb(
    call: Call,
    mirror_config: str,
    config: dict[str, str],
    topics: TopicSelector | None,
    window_ms: int | None,
    whole: bool,
    live_ms: int | None,
    copy_ms: int | None,
    most_ms: int | None,
    check: str | None,
    hook_ms: int | None,
    out: str | None,
) -> int:
    from kmirror.ops.base.hook_process import hook_command
    from kmirror.ops.base.hook_runs import When
    from kmirror_rehearse.rehearsal import preview, rehearse
    from kmirror_rehearse.rehearsal_evidence import PHASES, Rehearsal
    from kmirror_rehearse.rehearsal_files import RehearsalFolder
    from kmirror_rehearse.rehearsal_findings import FINDINGS
    from kmirror_rehearse.rehearsal_page import summary
    from kmirror_rehearse.rehearsal_run import COPY_MS, LIVE_MS, WINDOW_MS, RehearsalRequest

    if whole and window_ms is not None:
        raise UsageError("--whole and --window exclude each other", "give one of them")
    if hook_ms is not None and check is None:
        raise UsageError("--hook-timeout requires --check", "give a command, or leave it out")
    limit_ms = _CHECK_MS if hook_ms is None else hook_ms
    command = None if check is None else hook_command(When.CHECK, check, limit_ms)
    folder = RehearsalFolder.at(out) if out else None
    properties = {**call.read_properties(mirror_config), **config}
    named = call.bootstrap_server or call.cluster or call.command_config or os.environ.get(BOOTSTRAP_ENVIRONMENT)
    request = RehearsalRequest(
        properties,
        topics,
        call.properties() if named else None,
        call.expect_cluster_id,
        None if whole else WINDOW_MS if window_ms is None else window_ms,
        LIVE_MS if live_ms is None else live_ms,
        COPY_MS if copy_ms is None else copy_ms,
        most_ms,
        command,
    )
    if call.dry_run:
        return call.show(preview(request))
    with ended_by_signals(), call.output.waiting("rehearsing") as progress:
        done = rehearse(request, progress)

    def show(found: Rehearsal) -> None:
        call.output.rows(PHASES, found.phases)
        call.output.rows(FINDINGS, found.findings)
        for level, sentence in summary(found):
            if level != "bad":
                call.output.screen.line(sentence)

    page = folder.write(done) if folder else None
    call.output.document(done.to_json(), lambda: show(done))
    if page is not None:
        call.output.screen.note(f"the evidence: {page}")
    if done.error is not None:
        from kmirror.cli.terminal.output import show_error

        show_error(call.output.screen, done.error)
    return done.exit_code
