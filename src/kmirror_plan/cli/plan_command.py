"""`plan`: what moves together, in which waves, how long it takes, and what is in the way."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from dataclasses import replace

import click

from kmirror.cli.failures import ended_by_signals
from kmirror.cli.options import Call, assignments_option, duration_option, file_option, folder_option, verb
from kmirror.commands import Arguments, option, options
from kmirror.errors import UsageError
from kmirror.words import counted

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
#: A lower-case b is a bit to people who buy lines: `800Mb/s` is 100MB/s.
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)\s*((?:[KMGTkmgt][Ii]?)?B?)(?:/s)?")


def parse_size(text: str, flag: str) -> int:
    """Return bytes: `500MB`, `1.5GB`, `80MB/s`; a MB is 1,000,000 bytes. Raises UsageError."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[found[2].upper().rstrip("B")]) if found else 0
    if size <= 0:
        raise UsageError(f"{flag}: {text!r} is not a size", "give bytes, such as 500MB or 1.5GB; b is a bit")
    return size


def _size_option(flag: str, text: str, metavar: str = "N") -> click.Option:
    def read(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
        return None if value is None else parse_size(value, flag)

    return click.Option([flag], metavar=metavar, callback=read, help=text)


@verb(
    "plan",
    "Plan a migration: waves, times, and what is in the way.\n\nReads both clusters; only --trial changes something."
    " Topics, groups and producers that are connected are an application, which no wave splits. Times are predicted"
    " only if it is known how fast a copy is: say it (--bandwidth), or have some records copied (--trial).\n\nWith"
    " --out it writes the plan as JSON and as a page, a runbook, and a file with the topics of each wave for `kmirror"
    " add --topics @FILE`. --against says what has changed since.",
    file_option("--mirror-config", "File with the source's properties, as for `kmirror create`."),
    assignments_option("--config", "Set or override one property of FILE. Repeatable."),
    click.Option(
        ["--topics", "--topic"],
        metavar="LIST",
        multiple=True,
        help="Source topics. Default: topics.include of the file, else all.",
    ),
    duration_option("--sample", "Time between the two readings that rates come from. Default: 30s.", name="sample_ms"),
    _size_option("--wave-bytes", "Bytes of a wave at most, such as 500GB. Default: 100GB without --wave-time."),
    duration_option("--wave-time", "Copy time of a wave at most, such as 4h. Needs a rate.", name="wave_ms"),
    _size_option("--bandwidth", "Bytes a copy brings per second, such as 80MB/s.", "R"),
    _size_option("--trial", "Copy this many bytes to measure how fast a copy is, such as 1GB; removed afterwards."),
    folder_option("--out", text="Directory to write the plan to."),
    folder_option("--against", text="Directory of an earlier plan: show what has changed since."),
    click.Option(
        ["--mirror"], metavar="M", default="migration", show_default=True, help="Mirror's name in the runbook."
    ),
    examples=(
        "kmirror plan --mirror-config source.properties --bootstrap-server b:9092",
        "kmirror plan --mirror-config source.properties --bandwidth 80MB/s --wave-time 4h --out plan"
        " --bootstrap-server b:9092",
        "kmirror plan --against plan --bootstrap-server b:9092",
    ),
)
def plan_verb(
    call: Call,
    mirror_config: str | None,
    config: dict[str, str],
    topics: tuple[str, ...],
    sample_ms: int | None,
    wave_bytes: int | None,
    wave_ms: int | None,
    bandwidth: int | None,
    trial: int | None,
    out: str | None,
    against: str | None,
    mirror: str,
) -> int:
    from kmirror.ops.base.trust_checks import require_usable_once_stored
    from kmirror.ops.mirrors.create import check_name, checked_properties
    from kmirror_plan.differences import CHANGES, changes_between
    from kmirror_plan.plan_files import RUNBOOK_FILE, PlanFolder, read_plan
    from kmirror_plan.planning import PlanRequest, plan
    from kmirror_plan.waves import CopyRates

    check_name(mirror)
    if against is None and mirror_config is None:
        raise UsageError("--mirror-config is missing", "give the file of the source, or --against for an earlier plan")
    if bandwidth is not None and trial is not None:
        raise UsageError("--bandwidth and --trial exclude each other", "give one of them")
    if wave_ms is not None and bandwidth is None and trial is None:
        raise UsageError("--wave-time needs --bandwidth or --trial", "say how fast a copy is: --bandwidth 80MB/s")
    before = None
    if against is not None:
        if out or mirror_config or config or topics or wave_bytes or wave_ms or bandwidth or trial:
            raise UsageError("--against takes everything from the earlier plan", "give only --sample besides")
        before = read_plan(against)
        request = PlanRequest.stored(before["mirrorConfig"], before["options"])
        # who sent the plan need not be an operator of this host
        require_usable_once_stored(checked_properties(request.mirror_config)[0])
    else:
        properties = {**call.read_properties(str(mirror_config)), **config}
        request = PlanRequest(properties, topics, 30_000, wave_bytes, wave_ms, CopyRates(bandwidth), trial)
    if sample_ms is not None:
        request = replace(request, sample_ms=sample_ms)
    folder = PlanFolder.at(out) if out else None
    with (
        ended_by_signals() if trial else nullcontext(),
        call.destination() as destination,
        call.output.waiting("planning") as progress,
    ):
        made = plan(destination, request, progress)
    if before is not None:
        call.output.rows(CHANGES, changes_between(before, made.to_json()))
        return 0
    written = folder.write(made, mirror, _source(mirror_config, config), _destination(call)) if folder else []
    call.output.document(made.to_json(), lambda: _show(call, made))
    if folder:
        call.output.screen.note(f"wrote {counted(len(written), 'file')} to {folder.path}: begin with {RUNBOOK_FILE}")
    return 0


def _show(call: Call, made: object) -> None:
    from kmirror_plan.migration_plan import WAVES_SHOWN, MigrationPlan
    from kmirror_plan.plan_page import summary

    if not isinstance(made, MigrationPlan):
        raise TypeError(made)
    call.output.rows(WAVES_SHOWN, made.waves)
    for level, sentence in summary(made):
        call.output.screen.line(f"{'! ' if level == 'bad' else ''}{sentence}")


def _source(mirror_config: str | None, config: dict[str, str]) -> Arguments:
    """Return the options that name the source, as they are given in another folder."""
    overrides = options("--config", (f"{key}={value}" for key, value in config.items()))
    return (*option("--mirror-config", _whole(mirror_config)), *overrides)


def _whole(path: str | None) -> str:
    """Return a path as it is named in another folder."""
    return os.path.abspath(path) if path else ""


def _destination(call: Call) -> Arguments:
    """Return the options that name the destination, as they are given in another folder."""
    given = (
        ("--bootstrap-server", call.bootstrap_server),
        ("--command-config", _whole(call.command_config)),
        ("--cluster", call.cluster),
    )
    return tuple(argument for flag, value in given if value for argument in option(flag, value))
