"""`create`, `add`, `recover`, `config`, `delete`: the verbs that change a mirror's stored state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from kmirror.beside import beside
from kmirror.cli.commands.direction import show_direction
from kmirror.cli.name_cache import cache_names
from kmirror.cli.options import (
    MASTER,
    SPARK_CONF,
    Call,
    assignments_option,
    file_option,
    flag_option,
    mirror_option,
    topics_option,
    verb,
)

if TYPE_CHECKING:
    from kmirror.settings.patterns import TopicSelector
    from kmirror.settings.value_types import StartFrom


def _start_from(_: click.Context, __: click.Parameter, value: str | None) -> StartFrom | None:
    from kmirror.settings.value_types import parse_start_from

    return None if value is None else parse_start_from("--start-from", value)


@verb(
    "create",
    "Create a mirror: store its source, filters and settings.\n\nFILE is a Java properties file with the client"
    " properties of the source and the settings of the mirror. Write secrets as references such as ${env:NAME};"
    " plaintext secrets are refused.\n\n--from-mm2 and --from-link convert the file of another tool and show what"
    " became of each key. Each enabled flow of a MirrorMaker 2 file to this destination becomes a mirror.",
    mirror_option(required=False, new=True),
    file_option("--mirror-config", "Connection to the source and mirror settings."),
    file_option("--from-mm2", "Configuration of MirrorMaker 2 (connect-mirror-maker.properties)."),
    file_option("--from-link", "Configuration of a Confluent cluster link."),
    click.Option(
        ["--target"], metavar="ALIAS", help="With --from-mm2: alias of this destination. Default: compare cluster IDs."
    ),
    assignments_option("--config", "Set or override one property of FILE. Repeatable."),
    flag_option("--if-not-exists", "Succeed if an identical mirror already exists."),
    examples=(
        "kmirror create --mirror dr --mirror-config source.properties --bootstrap-server b:9092",
        "kmirror create --mirror dr --mirror-config source.properties --config 'topics.include=orders,payments\\..*'"
        " --bootstrap-server b:9092",
        "kmirror create --from-mm2 mm2.properties --dry-run --bootstrap-server b:9092",
    ),
    changes=True,
)
def create_verb(
    call: Call,
    mirror: str | None,
    mirror_config: str | None,
    from_mm2: str | None,
    from_link: str | None,
    target: str | None,
    config: dict[str, str],
    if_not_exists: bool,
) -> int:
    from kmirror.errors import UsageError
    from kmirror.ops.mirrors.create import create

    files = [file for file in (mirror_config, from_mm2, from_link) if file is not None]
    if len(files) != 1:
        raise UsageError(
            "the mirror's file is missing" if not files else "several files are given",
            "give one of --mirror-config FILE, --from-mm2 FILE and --from-link FILE",
        )
    if mirror is None and from_mm2 is None:
        raise UsageError("--mirror is missing", "give --mirror M; with --from-mm2 mirrors are named after their flows")
    if target is not None and from_mm2 is None:
        raise UsageError("--target requires --from-mm2", "leave it out")
    properties = call.read_properties(files[0])
    how = {"if_not_exists": if_not_exists, "dry_run": call.dry_run}
    with call.destination() as destination:
        if from_mm2 is not None:
            done = beside("create_from_mm2")(destination, properties, config, mirror=mirror, target=target, **how)
        elif from_link is not None:
            done = beside("create_from_link")(destination, mirror or "", properties, config, **how)
        else:
            done = create(destination, mirror or "", properties, config, **how)
        cache_names(destination)
    return call.show(done)


@verb(
    "add",
    "Add source topics to a mirror.\n\nLIST is a comma-separated list of topic names and regular expressions, or @FILE"
    " with one per line. Regular expressions are kept as filters: topics that match later are added automatically."
    "\n\nWHEN is earliest, latest or timestamp:T, where T is a time such as 2026-03-01T12:00:00Z or epoch milliseconds."
    " It is resolved to offsets now, once. Partitions added to the source later are copied from their start; an adopted"
    " topic continues at its log end.",
    mirror_option(),
    topics_option("Source topics to add. Repeatable.", required=True, of_source=True),
    topics_option("Source topics to exclude, now and later.", flags=("--exclude",), of_source=True),
    flag_option("--adopt", "Adopt existing destination topics whose records are a prefix of the source's."),
    flag_option("--allow-missing", "Accept names and patterns that match no source topic yet."),
    click.Option(
        ["--start-from"], metavar="WHEN", callback=_start_from, help="Where to start copying. Default: start.from."
    ),
    assignments_option("--config", "Set a config on created topics, instead of the source's value. Repeatable."),
    MASTER,
    SPARK_CONF,
    examples=(
        "kmirror add --mirror dr --topics 'orders,payments\\..*' --bootstrap-server b:9092",
        "kmirror add --mirror dr --topics '.*' --exclude 'test-.*' --dry-run --bootstrap-server b:9092",
        "kmirror add --mirror dr --topics clicks --start-from latest --bootstrap-server b:9092",
    ),
    changes=True,
)
def add_verb(
    call: Call,
    mirror: str,
    topics: TopicSelector,
    exclude: TopicSelector | None,
    adopt: bool,
    allow_missing: bool,
    start_from: StartFrom | None,
    config: dict[str, str],
    master: str,
    spark_conf: dict[str, str],
) -> int:
    from kmirror.ops.add.add import add
    from kmirror.ops.base.bulk import SparkChoice

    with call.destination() as destination, call.output.working() as watch:
        done = add(
            destination,
            mirror,
            topics,
            exclude=exclude,
            adopt=adopt,
            allow_missing=allow_missing,
            start_from=start_from,
            overrides=config,
            spark=SparkChoice(master, spark_conf),
            watch=watch,
            dry_run=call.dry_run,
        )
        cache_names(destination)
    return call.show(done)


@verb(
    "recover",
    "Retry FAILED partitions now.\n\nIf recovery would lose records, kmirror prints which and requires one of the"
    " --accept options. You accept only the loss that is printed.",
    mirror_option(),
    topics_option("Destination topics. Default: all topics of the mirror."),
    flag_option("--accept-loss", "Skip records that the source deleted before they were copied."),
    flag_option("--trim", "With --accept-loss: also delete the records before the lost ones."),
    flag_option("--accept-reset", "Archive and rebuild topics that were recreated on the source."),
    flag_option(
        "--accept-divergence", "Archive records that the source does not have, and rebuild topics that diverged."
    ),
    examples=(
        "kmirror recover --mirror dr --bootstrap-server b:9092",
        "kmirror recover --mirror dr --topics orders --accept-loss --dry-run --bootstrap-server b:9092",
        "kmirror recover --mirror dr --topics orders --accept-reset --bootstrap-server b:9092",
    ),
    changes=True,
)
def recover_verb(
    call: Call,
    mirror: str,
    topics: TopicSelector | None,
    accept_loss: bool,
    trim: bool,
    accept_reset: bool,
    accept_divergence: bool,
) -> int:
    from kmirror.errors import UsageError
    from kmirror.ops.mirrors.recover import Consent, recover

    if trim and not accept_loss:
        raise UsageError("--trim requires --accept-loss", "give both or neither")
    consent = Consent(accept_loss, trim, accept_reset, accept_divergence)
    with call.destination() as destination:
        shown = None
        if any((accept_loss, accept_reset, accept_divergence)) and not call.dry_run and not call.yes:
            shown = recover(destination, mirror, topics, consent, dry_run=True).results
            show_direction(call.output.screen, destination, mirror)
            for row in shown:
                call.output.screen.note(row.message or row.result.value)
            call.require_yes("Proceed?")
        with call.output.working() as watch:
            done = recover(destination, mirror, topics, consent, watch, dry_run=call.dry_run, shown=shown)
    return call.show(done)


@verb(
    "config",
    "Show or change a mirror's settings.\n\nWithout --set and --unset it shows all settings and the connection"
    " properties of the source.",
    mirror_option(),
    assignments_option("--set", "Change a setting. Repeatable."),
    click.Option(["--unset"], metavar="K", multiple=True, help="Reset a setting to its default. Repeatable."),
    examples=(
        "kmirror config --mirror dr --bootstrap-server b:9092",
        "kmirror config --mirror dr --set retry.timeout.ms=60000 --bootstrap-server b:9092",
        "kmirror config --mirror dr --unset retry.timeout.ms --bootstrap-server b:9092",
    ),
    changes=True,
)
def config_verb(call: Call, mirror: str, set: dict[str, str], unset: tuple[str, ...]) -> int:  # noqa: A002
    from kmirror.ops.mirrors.config import MIRROR_SETTINGS, change_config, show_config

    with call.destination() as destination:
        if not set and not unset:
            call.output.rows(MIRROR_SETTINGS, show_config(destination, mirror))
            return 0
        done = change_config(destination, mirror, set, unset, dry_run=call.dry_run)
    return call.show(done)


@verb(
    "delete",
    "Delete a mirror but keep its topics.\n\nEvery topic of the mirror must be STOPPED or already deleted.",
    mirror_option(),
    examples=(
        "kmirror delete --mirror dr --bootstrap-server b:9092",
        "kmirror delete --mirror dr --dry-run --bootstrap-server b:9092",
    ),
    changes=True,
)
def delete_verb(call: Call, mirror: str) -> int:
    from kmirror.ops.base.topic_results import Outcome
    from kmirror.ops.mirrors.delete import delete

    with call.destination() as destination:
        done = delete(destination, mirror, dry_run=True)
        if not call.dry_run and any(row.result is Outcome.DONE for row in done.results):
            if not call.yes:
                show_direction(call.output.screen, destination, mirror)
            call.require_yes(f"Delete mirror {mirror}? Its topics are kept.")
            done = delete(destination, mirror)
        done = replace(done, dry_run=call.dry_run)
        cache_names(destination)
    return call.show(done)
