"""`failback`, `switchover`: the verbs that turn a mirror round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kmirror.cli import tables
from kmirror.cli.options import MASTER, Call, duration_option, mirror_option, report_option, topics_option, verb
from kmirror.cli.report import Report
from kmirror.errors import UsageError

if TYPE_CHECKING:
    from kmirror.ops.failback import FailbackPreview
    from kmirror.ops.failover import Stopped
    from kmirror.patterns import TopicSelector

_TOPICS = "Topics, by name; every topic of the mirror by default. May be repeated."


@verb(
    "failback",
    "Make the old source a mirror of the new primary.\n\nThe destination is the old source; the file names the new"
    " primary. Says per partition where the two logs part, and how many records lie beyond that here. Where some do,"
    " it ends with 3 unless told how to go on. --recreate saves them in an archive, deletes the topic, and copies it in"
    " full. --offline saves them and writes a plan for `kmirror truncate-logs`; the same command run again after that"
    " copies only what is lacking.",
    mirror_option(),
    click.Option(
        ["--mirror-config"], metavar="FILE", required=True, help="Properties of the new primary and the mirror."
    ),
    topics_option(_TOPICS),
    click.Option(["--recreate"], is_flag=True, help="Delete topics that hold more, and copy them in full."),
    click.Option(["--offline"], is_flag=True, help="Write a plan to cut the logs of stopped brokers."),
    click.Option(["--plan"], metavar="FILE", help="Where the plan of --offline goes."),
    click.Option(["--discard"], is_flag=True, help="Do not save what lies beyond."),
    report_option(),
    example="kmirror failback --mirror m --mirror-config b.properties --bootstrap-server a:9092",
    changes=True,
    dry_run=True,
    irreversible=True,
)
def failback_verb(
    call: Call,
    mirror: str,
    mirror_config: str,
    topics: TopicSelector | None,
    recreate: bool,
    offline: bool,
    plan: str | None,
    discard: bool,
    report: str | None,
) -> int:
    if recreate and offline:
        raise UsageError("--recreate and --offline are two ways", "give one of them")
    if offline != (plan is not None):
        raise UsageError("--offline and --plan FILE belong together", "give both, or neither")
    if discard and not (recreate or offline):
        raise UsageError("--discard alone says not how to go on", "give --recreate or --offline with it")
    from kmirror.cluster.properties import read_properties
    from kmirror.ops.failback import FailbackRequest, Way, failback

    def agree(preview: FailbackPreview) -> bool:
        if not call.yes:
            screen = call.output.screen
            screen.tell(f"source:       {preview.new_primary}; it answers")
            screen.tell(f"destination:  {preview.old_source}")
            for row in preview.result.results:
                screen.tell(row.message or row.result.value)
            for warning in preview.result.warnings:
                screen.tell(warning)
        return call.confirm("Make the destination a mirror of the source, as said?")

    evidence = Report.at(report) if report else None
    way = Way.RECREATE if recreate else Way.OFFLINE if offline else None
    request = FailbackRequest(mirror, read_properties(mirror_config), topics, way, plan, discard)
    with call.destination() as destination:
        done = failback(destination, request, agree, dry_run=call.dry_run)
    return _tell(call, done, evidence)


@verb(
    "switchover",
    "Change roles with the source, as planned.\n\nTopics are promoted here; then their source becomes a mirror of this"
    " cluster, and nothing is copied again. The file says how the source's side reaches this cluster. What is not"
    " complete in time is mirrored on; the same command goes on where it was.",
    mirror_option(),
    click.Option(["--mirror-config"], metavar="FILE", required=True, help="Properties of this cluster and the mirror."),
    topics_option(_TOPICS),
    duration_option("--timeout", "End with 5 after so long; without it, wait as long as it takes.", name="timeout_ms"),
    MASTER,
    report_option(),
    example="kmirror switchover --mirror m --mirror-config b.properties --bootstrap-server b:9092",
    changes=True,
    dry_run=True,
)
def switchover_verb(
    call: Call,
    mirror: str,
    mirror_config: str,
    topics: TopicSelector | None,
    timeout_ms: int | None,
    master: str,
    report: str | None,
) -> int:
    from kmirror.cluster.properties import read_properties
    from kmirror.ops.run import stopping
    from kmirror.ops.switchover import SwitchoverRequest, switchover

    evidence = Report.at(report) if report else None
    request = SwitchoverRequest(mirror, read_properties(mirror_config), topics, timeout_ms, master=master)
    with call.destination() as destination, stopping() as stop, call.output.promoting() as show:
        done = switchover(destination, request, show, stop, dry_run=call.dry_run)
    return _tell(call, done, evidence)


def _tell(call: Call, done: Stopped, evidence: Report | None) -> int:
    if evidence:
        evidence.write(done.evidence)
    call.output.result(done.result)
    if not call.dry_run and done.result.exit_code == 0:
        seconds = (done.evidence["endedMs"] - done.evidence["beganMs"]) / 1000
        call.output.screen.tell(f"done in {tables.elapsed(seconds)}")
    return done.result.exit_code
