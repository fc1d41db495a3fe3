"""The document of `--report`: who did what, when, to which clusters, with what result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kmirror.columns import COUNT, FLAG, OBJECT, TEXT, TIME, Column, Only, Type, document, list_of, object_of
from kmirror.errors import ExitCode
from kmirror.ops.base.blocked_producers import BLOCKED
from kmirror.ops.base.client_gaps import CLIENTS
from kmirror.ops.base.context import Destination, actor, now_ms
from kmirror.ops.base.divergence import FORK
from kmirror.ops.base.results import ERROR_OR_NULL, EXIT_CODE, HOOKS, TOTALS, VerbResult
from kmirror.ops.base.topic_results import GROUP_RESULTS, RESULTS
from kmirror.state.records import MirrorRecord


@dataclass(frozen=True, slots=True)
class VerbRun:
    """One run of a verb, and its clusters; `began_ms` in epoch milliseconds."""

    verb: str
    destination: Destination
    mirror: MirrorRecord
    began_ms: int


_SOURCE: tuple[Column[MirrorRecord], ...] = (
    Column("clusterId", TEXT.null_when("not recorded"), "id of the cluster", lambda mirror: mirror.source_cluster_id),
    Column(
        "bootstrapServer",
        TEXT.null_when("not recorded"),
        "its addresses, comma-separated",
        lambda mirror: mirror.source.get("bootstrap.servers"),
    ),
)
#: Which cluster the destination is.
DESTINATION: tuple[Column[Destination], ...] = (
    Column("clusterId", TEXT, "id of the cluster", lambda destination: destination.cluster_id),
    Column("bootstrapServer", TEXT, "its addresses, comma-separated", lambda destination: destination.bootstrap_server),
)
#: The first keys of every report.
VERB_RUN: tuple[Column[VerbRun], ...] = (
    Column("verb", TEXT, "the command", lambda run: run.verb),
    Column("mirror", TEXT, "the mirror", lambda run: run.mirror.name),
    Column("operator", TEXT, "who ran it: user@host", lambda _: actor()),
    Column("beganMs", TIME, "when it began", lambda run: run.began_ms),
    Column("endedMs", TIME, "when it ended", lambda _: now_ms()),
    Column("source", object_of(_SOURCE), "the source of the mirror", lambda run: document(_SOURCE, run.mirror)),
    Column(
        "destination",
        object_of(DESTINATION),
        "the destination of the mirror",
        lambda run: document(DESTINATION, run.destination),
    ),
)


@dataclass(frozen=True, slots=True)
class VerbEvidence:
    """What a verb did: its document, its `steps` in seconds, and `more` keys of some verbs."""

    result: VerbResult
    steps: Mapping[str, float]
    more: Mapping[str, Any] = field(default_factory=dict)


_STEP: tuple[Column[tuple[str, float]], ...] = (
    Column("step", TEXT, "the step", lambda step: step[0]),
    Column("seconds", Type("number", "seconds", minimum=0), "how long it took", lambda step: round(step[1], 3)),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a promote: its topics, when it began and ended in epoch milliseconds, and its exit code."""

    topics: tuple[str, ...]
    began_ms: int
    ended_ms: int
    exit_code: ExitCode


_BATCH: tuple[Column[Batch], ...] = (
    Column("topics", list_of(TEXT), "its topics", lambda batch: list(batch.topics)),
    Column("beganMs", TIME, "when it began", lambda batch: batch.began_ms),
    Column("endedMs", TIME, "when it ended", lambda batch: batch.ended_ms),
    Column("exitCode", EXIT_CODE, "its exit code", lambda batch: int(batch.exit_code)),
)
_ARCHIVE: tuple[Column[Mapping[str, Any]], ...] = (
    Column("archive", TEXT, "the topic that holds the records", lambda saved: saved["archive"]),
    Column("records", COUNT, "how many records it holds", lambda saved: saved["records"]),
)


def _more(key: str, kind: Type, meaning: str, where: str) -> Column[VerbEvidence]:
    """Return the column of a key in `more`."""
    return Column(
        key, kind, meaning, lambda evidence: evidence.more[key], only=Only(where, lambda evidence: key in evidence.more)
    )


_RETURNED = OBJECT.null_when("it failed before it found anything")
EVIDENCE: tuple[Column[VerbEvidence], ...] = (
    Column("dryRun", FLAG, "whether nothing was changed, because of --dry-run", lambda done: done.result.dry_run),
    Column(
        "steps",
        list_of(object_of(_STEP)),
        "how long each step took",
        lambda done: [document(_STEP, step) for step in done.steps.items()],
    ),
    Column(
        "totals",
        object_of(TOTALS).null_when("the command does not stop partitions at once"),
        "the total loss",
        lambda done: done.result.totals and done.result.totals.to_json(),
    ),
    Column(
        "partitions",
        RESULTS.type,
        "how it ended, by topic or partition",
        lambda done: [row.to_json() for row in done.result.results],
    ),
    Column(
        "groups",
        list_of(object_of(GROUP_RESULTS)),
        "how it ended for committed offsets",
        lambda done: [row.to_json() for row in done.result.groups],
    ),
    Column(
        "clients",
        object_of(CLIENTS),
        "what clients of the source will lack at the destination after they move",
        lambda done: done.result.clients and done.result.clients.to_json(),
        only=Only("failover, remove, promote", lambda done: done.result.clients),
    ),
    Column("warnings", list_of(TEXT), "warnings for people", lambda done: list(done.result.warnings)),
    Column("exitCode", EXIT_CODE, "the exit code", lambda done: int(done.result.exit_code)),
    Column(
        "error",
        ERROR_OR_NULL,
        "why not everything was done",
        lambda done: done.result.error and done.result.error.to_json(),
    ),
    Column(
        HOOKS.key,
        HOOKS.type,
        HOOKS.meaning,
        lambda done: HOOKS.value(done.result),
        only=Only(
            "promote, failover, failback and switchover with --before or --after", lambda done: done.result.hooks
        ),
    ),
    _more("together", FLAG, "whether --together was given", "promote, and switchover that stopped after it"),
    Column(
        "blockedProducers",
        BLOCKED.type,
        "what became of producers that were denied WRITE at the source",
        lambda done: [BLOCKED.document(row) for row in done.result.blocked],
        only=Only("promote and switchover that have denied it", lambda done: done.result.blocked),
    ),
    Column(
        "batches",
        list_of(object_of(_BATCH)),
        "the batches that were promoted, in their order",
        lambda done: [document(_BATCH, batch) for batch in done.more["batches"]],
        only=Only("promote with --batch, of more than one batch", lambda done: "batches" in done.more),
    ),
    _more("forks", list_of(object_of(FORK)), "where the two logs of each partition fork", "failback"),
    _more(
        "archives",
        Type("object", "object by topic", items=object_of(_ARCHIVE)),
        "where the records after the fork were saved",
        "failback",
    ),
    _more("promote", OBJECT, "the report of its promote", "switchover that has promoted all topics"),
    _more("failback", _RETURNED, "the report of its failback", "switchover that has promoted all topics"),
)


def evidence_of(
    destination: Destination,
    mirror: MirrorRecord,
    result: VerbResult,
    began_ms: int,
    steps: Mapping[str, float],
    **more: Any,
) -> dict[str, Any]:
    """Return the document of `--report`; `steps` are durations in seconds."""
    run = VerbRun(result.verb, destination, mirror, began_ms)
    return document(VERB_RUN, run) | document(EVIDENCE, VerbEvidence(result, steps, more))
