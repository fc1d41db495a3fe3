"""`create`, `add`, `recover`, `config`, `delete`: the verbs that change what is remembered of a mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kmirror.cli.direction import direction
from kmirror.cli.names import remember_names
from kmirror.cli.options import Call, assignments_option, mirror_option, topics_option, verb

if TYPE_CHECKING:
    from kmirror.patterns import TopicSelector
    from kmirror.settings import StartFrom


def _start_from(_: click.Context, __: click.Parameter, value: str | None) -> StartFrom | None:
    from kmirror.settings import parse_start_from

    return None if value is None else parse_start_from("--start-from", value)


@verb(
    "create",
    "Store a mirror: a source, filters and settings.\n\nThe file holds Java client properties for the source, and"
    " settings of the mirror. Secrets in it stand as references, such as ${env:NAME}.",
    mirror_option(),
    click.Option(["--mirror-config"], metavar="FILE", required=True, help="Properties of the source and the mirror."),
    assignments_option("--config", "One more property; goes before the file's. May be repeated."),
    click.Option(["--if-not-exists"], is_flag=True, help="Be content with a mirror that is there and the same."),
    example="kmirror create --mirror m --mirror-config source.properties --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
)
def create_verb(call: Call, mirror: str, mirror_config: str, config: dict[str, str], if_not_exists: bool) -> int:
    from kmirror.cluster.properties import read_properties
    from kmirror.ops.create import create

    properties = read_properties(mirror_config)
    with call.destination() as destination:
        done = create(destination, mirror, properties, config, if_not_exists=if_not_exists, dry_run=call.dry_run)
        remember_names(destination)
    call.output.result(done)
    return done.exit_code


@verb(
    "add",
    "Make topics of the source mirror topics.\n\nLIST holds names and regular expressions of source topics, separated"
    " by commas, or is @FILE. Expressions stay in the mirror's filters: later topics follow."
    "\n\nWHEN is earliest, latest or timestamp:T, with T as 2026-03-01T12:00:00Z or epoch milliseconds. It is looked up"
    " once, now. Partitions that the source gets later begin at their start, and an adopted topic goes on where its"
    " records end.",
    mirror_option(),
    topics_option("Source topics; may be repeated.", required=True),
    topics_option("Leave these out, now and later.", flags=("--exclude",)),
    click.Option(["--adopt"], is_flag=True, help="Take over destination topics whose content is the source's."),
    click.Option(["--allow-missing"], is_flag=True, help="Names need not exist on the source yet."),
    click.Option(
        ["--start-from"], metavar="WHEN", callback=_start_from, help="Where the copies begin; else start.from decides."
    ),
    example="kmirror add --mirror m --topics 'orders,payments\\..*' --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
)
def add_verb(
    call: Call,
    mirror: str,
    topics: TopicSelector,
    exclude: TopicSelector | None,
    adopt: bool,
    allow_missing: bool,
    start_from: StartFrom | None,
) -> int:
    from kmirror.ops.add import add

    with call.destination() as destination:
        done = add(
            destination,
            mirror,
            topics,
            exclude=exclude,
            adopt=adopt,
            allow_missing=allow_missing,
            start_from=start_from,
            dry_run=call.dry_run,
        )
        remember_names(destination)
    call.output.result(done)
    return done.exit_code


@verb(
    "recover",
    "Have FAILED partitions tried again at once.\n\nWhere records are at stake nothing is"
    " done without consent: it prints what would be lost first. The consent holds for that loss only.",
    mirror_option(),
    topics_option("Destination topics; every topic by default. May be repeated."),
    click.Option(
        ["--accept-loss"], is_flag=True, help="Go on without records that the source deleted before they were copied."
    ),
    click.Option(["--trim"], is_flag=True, help="With --accept-loss: delete the mirror's records before the loss too."),
    click.Option(
        ["--accept-reset"],
        is_flag=True,
        help="Archive and rebuild topics whose source was deleted and created again.",
    ),
    click.Option(
        ["--accept-divergence"],
        is_flag=True,
        help="Archive what the source does not have, and rebuild topics whose histories part.",
    ),
    example="kmirror recover --mirror m --topics orders --accept-loss --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
    irreversible=True,
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
    from kmirror.errors import RefusedError, UsageError
    from kmirror.ops.recover import Consent, recover

    if trim and not accept_loss:
        raise UsageError("--trim goes with --accept-loss", "give both, or neither")
    consent = Consent(accept_loss, trim, accept_reset, accept_divergence)
    with call.destination() as destination:
        if any((accept_loss, accept_reset, accept_divergence)) and not call.dry_run and not call.yes:
            preview = recover(destination, mirror, topics, consent, dry_run=True)
            for line in direction(destination, mirror):
                call.output.screen.tell(line)
            for row in preview.results:
                call.output.screen.tell(row.message or row.result.value)
            if not call.confirm("Go on like this?"):
                raise RefusedError("the answer was no: nothing was changed")
        done = recover(destination, mirror, topics, consent, dry_run=call.dry_run)
    call.output.result(done)
    return done.exit_code


@verb(
    "config",
    "Show or change a mirror's settings.\n\nWithout --set and --unset it shows them all, and the source's properties.",
    mirror_option(),
    assignments_option("--set", "Give a setting a value; may be repeated."),
    click.Option(["--unset"], metavar="K", multiple=True, help="Give a setting its default back; may be repeated."),
    example="kmirror config --mirror m --set retry.timeout.ms=60000 --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
)
def config_verb(call: Call, mirror: str, set: dict[str, str], unset: tuple[str, ...]) -> int:  # noqa: A002
    from kmirror.ops.config import change_config, show_config

    with call.destination() as destination:
        if not set and not unset:
            call.output.settings(show_config(destination, mirror))
            return 0
        done = change_config(destination, mirror, set, unset, dry_run=call.dry_run)
    call.output.result(done)
    return done.exit_code


@verb(
    "delete",
    "Forget a mirror; its topics stay.\n\nThey must be stopped or gone. No topic is deleted.",
    mirror_option(),
    example="kmirror delete --mirror m --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
    irreversible=True,
)
def delete_verb(call: Call, mirror: str) -> int:
    from kmirror.errors import RefusedError
    from kmirror.ops.delete import delete
    from kmirror.ops.results import Outcome

    with call.destination() as destination:
        done = delete(destination, mirror, dry_run=True)
        if not call.dry_run and any(row.result is Outcome.DONE for row in done.results):
            if not call.yes:
                for line in direction(destination, mirror):
                    call.output.screen.tell(line)
            if not call.confirm(f"Forget mirror {mirror}?"):
                raise RefusedError("the answer was no: nothing was changed")
            done = delete(destination, mirror)
        remember_names(destination)
    call.output.result(done)
    return done.exit_code
