"""`apply` and `export`: the mirrors of a destination as a file that is kept in Git."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kmirror.cli.commands.direction import show_direction
from kmirror.cli.commands.evidence_files import AtomicFile
from kmirror.cli.name_cache import cache_names, cached_mirrors
from kmirror.cli.options import (
    MASTER,
    SPARK_CONF,
    Call,
    file_option,
    flag_option,
    mirror_option,
    topics_option,
    verb,
)

if TYPE_CHECKING:
    from kmirror.settings.patterns import TopicSelector


@verb(
    "apply",
    "Make the mirrors of the destination those of a file.\n\nFILE is TOML: the sources, settings and topics of mirrors,"
    " and whether they are paused. Prints the changes as a plan, then makes them as the other commands would. What the"
    " file does not have stays as it is. --prune removes settings, filters, and mirrors that never had a topic; what"
    " makes a topic writable or deletes another mirror must be named. Applying again changes nothing.",
    file_option("--file", "File of mirrors (TOML).", required=True, short="-f"),
    flag_option("--prune", "Also remove what the file does not have."),
    topics_option(
        "Mirror topics that the file does not have: remove them, and make them writable.", flags=("--prune-topics",)
    ),
    click.Option(
        ["--prune-mirror"],
        metavar="M",
        multiple=True,
        shell_complete=cached_mirrors,
        help="A mirror that the file does not have: fail over its topics, and delete it. Repeatable.",
    ),
    MASTER,
    SPARK_CONF,
    examples=(
        "kmirror apply -f mirrors.toml --dry-run --bootstrap-server b:9092",
        "kmirror apply -f mirrors.toml --bootstrap-server b:9092",
        "kmirror apply -f mirrors.toml --prune --prune-topics orders --yes --bootstrap-server b:9092",
    ),
    changes=True,
)
def apply_verb(
    call: Call,
    file: str,
    prune: bool,
    prune_topics: TopicSelector | None,
    prune_mirror: tuple[str, ...],
    master: str,
    spark_conf: dict[str, str],
) -> int:
    from kmirror.ops.base.bulk import SparkChoice
    from kmirror.ops.base.topic_results import Outcome
    from kmirror.ops.declare.apply import ApplyRequest, apply
    from kmirror.ops.declare.mirrors_file import read_mirrors_file
    from kmirror.ops.declare.state_difference import Prune

    pruned = Prune.of(prune, prune_topics, prune_mirror)
    request = ApplyRequest(read_mirrors_file(Path(file)), pruned, SparkChoice(master, spark_conf))
    screen = call.output.screen
    with call.destination() as destination, call.output.working() as watch:
        run = partial(apply, destination, request, watch=watch)
        if (pruned.topics or pruned.mirrors) and not call.dry_run and not call.yes:
            rows = run(dry_run=True).changes or ()
            removed = [row for row in rows if row.change.startswith("- ") and row.result is Outcome.DONE]
            for mirror in dict.fromkeys(row.mirror for row in removed):
                show_direction(screen, destination, mirror)
            for row in removed:
                screen.note(f"{row.mirror}: {row.change}")
            if removed:
                call.require_yes("Remove these?")
        done = run(screen.note, dry_run=False) if not call.dry_run else run(dry_run=True)
        cache_names(destination)
    return call.show(done)


@verb(
    "export",
    "Write the mirrors of the destination as a file for apply.\n\nIt has what differs from the defaults, and of secrets"
    " the references that are stored. Applying it changes nothing.",
    mirror_option("Name of a mirror. Repeatable. Default: all mirrors.", required=False, multiple=True),
    file_option("--file", "File to write. Default: standard output.", short="-f"),
    examples=(
        "kmirror export --bootstrap-server b:9092",
        "kmirror export --mirror dr --file mirrors.toml --bootstrap-server b:9092",
    ),
    default_output=False,
)
def export_verb(call: Call, mirror: tuple[str, ...], file: str | None) -> int:
    import tomllib

    from kmirror.ops.base.results import VerbResult
    from kmirror.ops.base.topic_results import Outcome, TopicResult
    from kmirror.ops.declare.export import export

    written = AtomicFile.at(file, "--file", "the file of mirrors") if file is not None else None
    with call.destination() as destination:
        text = export(destination, mirror)
    if written is None:
        call.output.document(tomllib.loads(text), lambda: call.output.screen.line(text.rstrip("\n")))
        return 0
    written.write(text)
    wrote = f"wrote {written.path}"
    return call.show(VerbResult.of("export", ",".join(mirror), [TopicResult(None, None, Outcome.DONE, wrote)]))
