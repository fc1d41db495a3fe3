"""`failback`, `switchover`: the verbs that reverse the direction of a mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kmirror.cli.commands.hook_options import HOOKED
from kmirror.cli.commands.stopping import BLOCK_PRODUCERS, carry_out
from kmirror.cli.options import (
    MASTER,
    SPARK_CONF,
    Call,
    duration_option,
    file_option,
    flag_option,
    mirror_option,
    topics_option,
    verb,
)
from kmirror.errors import UsageError

if TYPE_CHECKING:
    from kmirror.ops.base.context import Destination
    from kmirror.ops.failback.failback import FailbackPreview
    from kmirror.ops.stop.report import VerbReport
    from kmirror.ops.stop.steps import Gate
    from kmirror.settings.patterns import TopicSelector

_TOPICS = "Topics. Default: all topics of the mirror."


@verb(
    "failback",
    "Make the old source a mirror of the new primary.\n\nRun it against the old source; FILE describes the new primary."
    " It shows, per partition, the offset where the two logs fork and how many records exist only on the old source."
    " If there are any, it exits with 3 until you choose how to proceed: --recreate archives them, deletes the topic"
    " and copies it in full; --offline archives them and writes a plan for `kmirror truncate-logs`, after which the"
    " same failback command copies only the missing records.",
    mirror_option(),
    file_option("--mirror-config", "Connection to the new primary and mirror settings.", required=True),
    topics_option(_TOPICS),
    flag_option("--recreate", "Delete topics with extra records and copy them in full."),
    flag_option("--offline", "Write a plan to truncate the logs of stopped brokers."),
    file_option("--plan", "File to write the --offline plan to."),
    flag_option("--discard", "Do not archive the extra records."),
    MASTER,
    SPARK_CONF,
    *HOOKED,
    examples=(
        "kmirror failback --mirror back --mirror-config b.properties --dry-run --bootstrap-server a:9092",
        "kmirror failback --mirror back --mirror-config b.properties --recreate --bootstrap-server a:9092",
        "kmirror failback --mirror back --mirror-config b.properties --offline --plan plan.json"
        " --bootstrap-server a:9092",
    ),
    changes=True,
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
    master: str,
    spark_conf: dict[str, str],
    **hooked: Any,
) -> int:
    if recreate and offline:
        raise UsageError("--recreate and --offline exclude each other", "give one of them")
    if offline != (plan is not None):
        raise UsageError("--offline and --plan FILE require each other", "give both or neither")
    if discard and not (recreate or offline):
        raise UsageError("--discard requires --recreate or --offline", "give one of them with it")
    from kmirror.ops.base.bulk import SparkChoice
    from kmirror.ops.failback.failback import failback
    from kmirror.ops.failback.plan import FailbackRequest, Strategy

    def agree(preview: FailbackPreview) -> bool:
        if not call.yes:
            screen = call.output.screen
            screen.note(f"source:       {preview.new_primary}; it answers")
            screen.note(f"destination:  {preview.old_source}")
            for row in preview.result.results:
                screen.note(row.message or row.result.value)
            for warning in preview.result.warnings:
                screen.note(warning)
        return call.confirm("Make the destination a mirror of the source as shown?")

    strategy = Strategy.RECREATE if recreate else Strategy.OFFLINE if offline else None
    spark = SparkChoice(master, spark_conf)
    request = FailbackRequest(mirror, call.read_properties(mirror_config), topics, strategy, plan, discard, spark=spark)

    def work(destination: Destination, gate: Gate) -> VerbReport:
        with call.output.working() as watch:
            return failback(destination, request, agree, watch, dry_run=call.dry_run, gate=gate)

    return carry_out(call, "failback", work, **hooked)


@verb(
    "switchover",
    "Swap source and destination (planned).\n\nPromotes the topics on the destination and makes the source a"
    " mirror of it; no records are copied again. FILE describes how the source's side reaches the destination. Topics"
    " that are not ready by --timeout (or on Ctrl-C) stay mirrored; run the same command again to continue.",
    mirror_option(),
    file_option("--mirror-config", "Connection to the destination and mirror settings.", required=True),
    topics_option(_TOPICS),
    duration_option("--timeout", "Give up after this long and exit with 5. Default: wait forever.", name="timeout_ms"),
    BLOCK_PRODUCERS,
    MASTER,
    *HOOKED,
    examples=(
        "kmirror switchover --mirror dr --mirror-config b.properties --dry-run --bootstrap-server b:9092",
        "kmirror switchover --mirror dr --mirror-config b.properties --timeout 30m --bootstrap-server b:9092",
    ),
    changes=True,
)
def switchover_verb(
    call: Call,
    mirror: str,
    mirror_config: str,
    topics: TopicSelector | None,
    timeout_ms: int | None,
    block_producers: bool,
    master: str,
    **hooked: Any,
) -> int:
    from kmirror.ops.failback.switchover import SwitchoverRequest, switchover
    from kmirror.ops.run.signals import stopping

    request = SwitchoverRequest(
        mirror, call.read_properties(mirror_config), topics, timeout_ms, master=master, block_producers=block_producers
    )

    def work(destination: Destination, gate: Gate) -> VerbReport:
        with stopping() as stop, call.output.promoting() as show:
            return switchover(destination, request, show, stop, dry_run=call.dry_run, gate=gate)

    return carry_out(call, "switchover", work, **hooked)
