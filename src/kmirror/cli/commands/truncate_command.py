"""`truncate-logs`: the one verb that works on a broker's files and connects to no cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kmirror.bounded_files import expanded
from kmirror.cli.options import Call, file_option, flag_option, folder_option, verb

if TYPE_CHECKING:
    from kmirror.ops.failback.truncate_logs import Preview


@verb(
    "truncate-logs",
    "Truncate a stopped broker's logs as a failback plan says.\n\nRun it on each broker with replicas of the plan's"
    " partitions, while all these brokers are stopped. Pass every directory of log.dirs. The truncated records are kept"
    " next to the logs.",
    file_option("--plan", "Plan written by `kmirror failback --offline`.", required=True),
    folder_option("--log-dir", text="One directory of log.dirs. Repeatable.", required=True, multiple=True),
    flag_option("--undo", "Restore the truncated records; possible until the broker is started."),
    examples=(
        "kmirror truncate-logs --plan plan.json --log-dir /var/lib/kafka/data --dry-run",
        "kmirror truncate-logs --plan plan.json --log-dir /data1/kafka --log-dir /data2/kafka",
        "kmirror truncate-logs --plan plan.json --log-dir /var/lib/kafka/data --undo",
    ),
    changes=True,
    destination=False,
)
def truncate_logs_verb(call: Call, plan: str, log_dir: tuple[str, ...], undo: bool) -> int:
    from kmirror.ops.failback.truncate_logs import truncate_logs, undo_truncation
    from kmirror.ops.failback.truncation_plan import read_plan

    asked = read_plan(plan)
    folders = [expanded(folder, "--log-dir") for folder in log_dir]

    def agree(preview: Preview) -> bool:
        if not call.yes:
            note = call.output.screen.note
            note(f"cluster:      {preview.cluster_id}, broker {preview.node_id}")
            note(f"log dirs:     {', '.join(str(folder) for folder in preview.log_dirs)}")
            for row in preview.result.results:
                note(f"{row.topic}-{row.partition}: {row.message or row.result.value}")
            for warning in preview.result.warnings:
                note(f"warning: {warning}")
        return call.confirm("Truncate these logs?")

    with call.output.working() as watch:
        if undo:
            done = undo_truncation(asked, folders, watch, dry_run=call.dry_run)
        else:
            done = truncate_logs(asked, folders, agree, watch, dry_run=call.dry_run)
    return call.show(done)
