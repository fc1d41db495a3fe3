"""`truncate-logs`: the one verb that works on a broker's files, and talks to no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmirror.cli.options import Call, verb

if TYPE_CHECKING:
    from kmirror.ops.truncate_logs import Preview


@verb(
    "truncate-logs",
    "Cut a stopped broker's logs where a failback plan says.\n\nRun it on each broker that has replicas of the plan's"
    " partitions, with every folder of its log.dirs, while all these brokers are stopped. What is cut is kept beside"
    " the logs.",
    click.Option(["--plan"], metavar="FILE", required=True, help="The plan that failback has written."),
    click.Option(
        ["--log-dir"], metavar="DIR", required=True, multiple=True, help="A folder of log.dirs; may be repeated."
    ),
    click.Option(["--undo"], is_flag=True, help="Put back what was cut; until the broker is started."),
    example="kmirror truncate-logs --plan plan.json --log-dir /var/lib/kafka/data",
    changes=True,
    dry_run=True,
    irreversible=True,
    destination=False,
)
def truncate_logs_verb(call: Call, plan: str, log_dir: tuple[str, ...], undo: bool) -> int:
    from kmirror.ops.truncate_logs import truncate_logs, undo_truncation
    from kmirror.ops.truncation_plan import read_plan

    asked = read_plan(plan)
    folders = [Path(folder).expanduser() for folder in log_dir]

    def agree(preview: Preview) -> bool:
        if not call.yes:
            tell = call.output.screen.tell
            tell(f"cluster:      {preview.cluster_id}, broker {preview.node_id}")
            tell(f"log dirs:     {', '.join(str(folder) for folder in preview.log_dirs)}")
            for row in preview.result.results:
                tell(f"{row.topic}-{row.partition}: {row.message or row.result.value}")
            for warning in preview.result.warnings:
                tell(f"warning: {warning}")
        return call.confirm("Cut these logs?")

    if undo:
        done = undo_truncation(asked, folders, dry_run=call.dry_run)
    else:
        done = truncate_logs(asked, folders, agree, dry_run=call.dry_run)
    call.output.result(done)
    return done.exit_code
