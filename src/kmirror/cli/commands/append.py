"""`append`: write records from a file at the offsets given there."""

from __future__ import annotations

from kmirror.cli.options import Call, file_option, verb
from kmirror.errors import ExitCode


@verb(
    "append",
    "Append records from a file at their offsets.\n\nFor manual repair. FILE has one JSON object per line: topic,"
    " partition, offset, timestamp, key, value, and optionally headers and encoding (text or base64). Nothing is"
    " written unless each partition's log ends exactly where its first record belongs. Mirror topics must be paused or"
    " stopped.",
    file_option("--file", "JSON lines file, one record per line.", required=True),
    examples=(
        "kmirror append --file records.jsonl --dry-run --bootstrap-server b:9092",
        "kmirror append --file records.jsonl --yes --json --bootstrap-server b:9092",
    ),
    changes=True,
    dry_run=True,
)
def append_verb(call: Call, file: str) -> int:
    from kmirror.ops.append.append_file import append

    with call.destination() as destination:
        done = append(destination, file, dry_run=call.dry_run or not call.yes)
        if not call.dry_run and not call.yes and done.exit_code == ExitCode.OK:
            for row in done.results:
                call.output.screen.note(f"{row.topic}-{row.partition}: {row.message}")
            for warning in done.warnings:
                call.output.screen.note(f"warning: {warning}")
            call.require_yes(f"Append these records on cluster {destination.cluster_id}?")
            done = append(destination, file)
    return call.show(done)
