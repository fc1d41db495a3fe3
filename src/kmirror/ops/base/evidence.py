"""The document of `--report`: who did what, when, to which clusters, with what result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kmirror.columns import (
    COUNT,
    FLAG,
    OBJECT,
    TEXT,
    TIME,
    Column,
    Only,
    Type,
    columns_of,
    document,
    list_of,
    object_of,
    shown,
    table_row,
)
from kmirror.errors import ExitCode
from kmirror.ops.base.context import Destination, actor, now_ms
from kmirror.ops.base.divergence import FORK
from kmirror.ops.base.results import EXIT_CODE, RESULT, TOTALS, VerbResult
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
    Column("source", object_of(_SOURCE), "the source of the mirror", lambda run: run.mirror),
    Column("destination", object_of(DESTINATION), "the destination of the mirror", lambda run: run.destination),
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


@table_row(kw_only=False)
class Batch:
    """One batch of a promote: its topics, when it began and ended in epoch milliseconds, and its exit code."""

    topics: tuple[str, ...] = shown(list_of(TEXT), "its topics")
    began_ms: int = shown(TIME, "when it began")
    ended_ms: int = shown(TIME, "when it ended")
    exit_code: ExitCode = shown(EXIT_CODE, "its exit code")


_ARCHIVE: tuple[Column[Mapping[str, Any]], ...] = (
    Column("archive", TEXT, "the topic that holds the records", lambda saved: saved["archive"]),
    Column("records", COUNT, "how many records it holds", lambda saved: saved["records"]),
)
_OF_RESULT = {column.key: column for column in RESULT}


def _of_result(key: str, new_key: str = "") -> Column[VerbEvidence]:
    """Return the column that the document of the verb has, too."""
    return _OF_RESULT[key].of_part(lambda evidence: evidence.result, new_key)


def _more(key: str, kind: Type, meaning: str, where: str) -> Column[VerbEvidence]:
    """Return the column of a key in `more`."""
    return Column(
        key, kind, meaning, lambda evidence: evidence.more[key], only=Only(where, lambda evidence: key in evidence.more)
    )


_RETURNED = OBJECT.null_when("it failed before it found anything")
EVIDENCE: tuple[Column[VerbEvidence], ...] = (
    _of_result("dryRun"),
    Column("steps", list_of(object_of(_STEP)), "how long each step took", lambda done: done.steps.items()),
    Column(
        "totals",
        object_of(TOTALS).null_when("the command does not stop partitions at once"),
        "the total loss",
        lambda done: done.result.totals,
    ),
    _of_result("results", "partitions"),
    _of_result("groups"),
    _of_result("clients"),
    Column("warnings", list_of(TEXT), "warnings for people", lambda done: done.result.warnings),
    _of_result("exitCode"),
    _of_result("error"),
    _of_result("hooks"),
    _more("together", FLAG, "whether --together was given", "promote, and switchover that stopped after it"),
    _of_result("blockedProducers"),
    _more(
        "batches",
        list_of(object_of(columns_of(Batch))),
        "the batches that were promoted, in their order",
        "promote with --batch, of more than one batch",
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
