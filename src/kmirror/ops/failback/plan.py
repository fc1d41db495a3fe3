"""What a failback is going to do: found out before the first change, then printed or carried out.

Nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.log_dirs import partition_sizes
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.topic_settings import topic_settings
from kmirror.columns import document
from kmirror.errors import Reason, RefusedError
from kmirror.ops.bulk import Bulk, SparkChoice
from kmirror.ops.context import Destination, actor, naming_cluster, now_ms
from kmirror.ops.failback.facts import NewPrimary, TopicLook, choose, look, places_of, require_still
from kmirror.ops.failback.fork import FORK, Divergence, KnownFork
from kmirror.ops.failback.progress import Progress, TopicStep, TopicWork
from kmirror.ops.gone import is_gone
from kmirror.ops.results import Outcome, TopicResult
from kmirror.ops.show.rows import engine_in_charge
from kmirror.ops.stop.work import is_stopped
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import DesiredState, MirrorRecord
from kmirror.state.snapshot import State
from kmirror.words import counted
from kmirror.work import Meter, Watch

#: How long the old source's log ends are watched.
WATCH_S = 2.0
_HOW = (
    "--recreate archives these records, deletes the topics and copies them in full; --offline --plan FILE archives"
    " them and writes a plan for `kmirror truncate-logs`, after which only the delta is copied; --discard archives"
    " nothing"
)


class Way(Enum):
    """Name how a log is brought back to where the two part."""

    RECREATE = "recreate"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class FailbackRequest:
    """What is to come back; `properties` say how the new primary is reached, `plan` is the file that OFFLINE writes."""

    mirror: str
    properties: Mapping[str, str]
    topics: TopicSelector | None = None
    way: Way | None = None
    plan: str | None = None
    discard: bool = False
    watch_s: float = WATCH_S
    spark: SparkChoice = field(default_factory=SparkChoice)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with each topic.

    `mirrored` come from the new primary already, `deleted` were deleted by a failback before this one, `looks` are how
    the others stand. `works` is what is under way by topic, `sizes` are bytes at the new primary.
    """

    request: FailbackRequest
    mirrored: tuple[str, ...]
    deleted: tuple[TopicWork, ...]
    looks: tuple[TopicLook, ...]
    works: Mapping[str, TopicWork]
    sizes: Mapping[TopicPartition, int]
    warnings: tuple[str, ...]

    @property
    def beyond(self) -> list[TopicLook]:
        """Return the topics of which something has to go."""
        return [one for one in self.looks if one.lies_beyond]

    @property
    def cuts(self) -> bool:
        """Tell whether logs are to be cut on stopped brokers before anything is mirrored."""
        return self.request.way is Way.OFFLINE and bool(self.beyond)

    def rows(self) -> list[TopicResult]:
        """Return what a dry run shows."""
        rows = [already_mirrored(name) for name in self.mirrored]
        for work in self.deleted:
            kept = f"its records after the fork are in {work.archive}" if work.archive else "none of it was archived"
            told = f"{work.topic} was deleted and is to be recreated; {kept}"
            rows.append(TopicResult(work.topic, None, Outcome.DONE, told))
        for one in self.looks:
            if one.here is None:
                told = f"{one.topic} is to be created: {counted(len(one.there.partitions), 'partition')}"
                rows.append(TopicResult(one.topic, None, Outcome.DONE, told))
            rows += rows_of(one)
        return rows

    def refusal(self) -> RefusedError | None:
        """Return why it cannot go on as it was asked to."""
        beyond = self.beyond
        if beyond and self.request.way is None:
            records = sum(divergence.records for one in beyond for divergence in one.divergences)
            return RefusedError(
                f"the old source has {counted(records, 'record')} of {counted(len(beyond), 'topic')} that the new "
                "primary lacks, after the fork of the two logs",
                _HOW,
            )
        stuck = [one.topic for one in beyond if one.must_recreate]
        if stuck and self.cuts:
            return RefusedError(
                f"{stuck[0]}: truncating its logs is not enough ({counted(len(stuck), 'topic')}), as their rows say",
                "use --recreate for these topics, and --topics to handle the others separately",
            )
        return None

    def refused_rows(self) -> list[TopicResult]:
        """Return the rows of a failback that was refused for what lies beyond."""
        beyond = {divergence.place for one in self.beyond for divergence in one.divergences if divergence.lies_beyond}
        return [
            replace(row, result=Outcome.REFUSED if (row.topic, row.partition) in beyond else Outcome.NOOP)
            for row in self.rows()
        ]

    def forks(self) -> list[dict[str, Any]]:
        """Return the evidence of where logs part."""
        recreates = self.request.way is Way.RECREATE
        return [
            self._fork(divergence, recreates=recreates and one.lies_beyond)
            for one in self.looks
            for divergence in one.divergences
        ]

    def _fork(self, divergence: Divergence, *, recreates: bool) -> dict[str, Any]:
        logs = divergence.logs
        all_offsets = logs.there_end - logs.there_start
        offsets = all_offsets if recreates else divergence.offsets_to_copy
        size = self.sizes.get(divergence.place)
        to_copy = None if size is None else size * offsets // all_offsets if all_offsets else 0
        return document(FORK, KnownFork(divergence, offsets, to_copy))


def mirror_for(
    destination: Destination,
    state: State,
    name: str,
    source: Mapping[str, str],
    settings: Mapping[str, str],
    cluster_id: str,
) -> MirrorRecord:
    """Return the mirror's record as it is to be: of the new primary, under the name that it has there.

    One of the same source keeps the settings that the file does not name.

    Raises:
        RefusedError: it mirrors another cluster, and has topics or an engine that are not stopped.
    """
    found = state.mirror(name)
    if found is None:
        state.require_readable(name)
        return MirrorRecord(name, dict(source), dict(settings), cluster_id, actor(), now_ms())
    here = destination.client.metadata([topic.topic for topic in state.topics(name)]).topics
    going = [t.topic for t in state.topics(name) if not is_stopped(state, t) and not is_gone(t, here.get(t.topic))]
    if found.source_cluster_id == cluster_id:
        merged = {**found.settings, **settings}
        resumes = found.discovery_ended and bool(going)
        paused = found.paused and bool(going)
        return replace(found, source=dict(source), settings=merged, discovery_ended=resumes, paused=paused)
    if going or engine_in_charge(state, name, now_ms()) is not None:
        what = f"and {going[0]} is not stopped" if going else "and an engine runs for it"
        raise RefusedError(
            f"mirror {name} here mirrors cluster {found.source_cluster_id}, {what}",
            "stop it first, or fail back with the mirror's name on the new primary",
        )
    return replace(
        found,
        source=dict(source),
        settings=dict(settings),
        source_cluster_id=cluster_id,
        discovery_ended=False,
        paused=False,
    )


def make_plan(
    destination: Destination,
    state: State,
    primary: NewPrimary,
    request: FailbackRequest,
    progress: Progress,
    bulk: Bulk,
    watch: Watch,
) -> Plan:
    """Look at both clusters, and say what is to be done with each topic.

    Raises:
        RefusedError: a topic cannot come back as it stands, or somebody still uses it here.
        UnreachableError: a cluster does not answer.
    """
    names = choose(destination, primary, request.mirror, request.topics)
    works = progress.load(state, names)
    mirrored = [n for n in names if n not in works and _is_mirrored(state, request.mirror, n, primary.cluster_id)]
    deleted = [name for name in names if name in works and _is_deleted(destination, works[name])]
    rest = [name for name in names if name not in mirrored and name not in deleted]
    found = destination.client.metadata(rest).topics
    with Meter(watch, "looking whether the old source is still in use"):
        require_still(destination, {n: found[n] for n in rest if not found[n].error_code}, request.watch_s)
    hints = {
        TopicPartition(name, p): at
        for name, work in works.items()
        for p, at in work.differs.items()
        if name in found and found[name].printed_topic_id == work.topic_id
    }
    looks, warnings = look(destination, primary, request.mirror, rest, hints, bulk, watch)
    sizes: Mapping[TopicPartition, int] = {}
    if rest:
        with naming_cluster("the new primary", Reason.SOURCE_UNREACHABLE):
            sizes = partition_sizes(primary.client, places_of(primary.client.metadata(rest).topics.values()))
    if request.way is not Way.OFFLINE:
        warnings += _expired(looks)
    if request.way is not Way.RECREATE:
        warnings += _cleaned(destination, looks)
    gone = tuple(works[name] for name in deleted)
    return Plan(request, tuple(mirrored), gone, tuple(looks), works, sizes, tuple(warnings))


def _is_deleted(destination: Destination, work: TopicWork) -> bool:
    """Tell whether a topic was deleted once it was saved, noted or not."""
    return work.step is TopicStep.CREATE or (work.step is TopicStep.SAVED and not is_there(destination.client, work))


def is_there(client: ClusterClient, work: TopicWork) -> bool:
    """Tell whether the very topic is still there, not one of its name that came later."""
    found = client.metadata([work.topic]).topics.get(work.topic)
    return found is not None and not found.error_code and found.printed_topic_id == work.topic_id


def _is_mirrored(state: State, mirror: str, name: str, cluster_id: str) -> bool:
    record, topic = state.mirror(mirror), state.topic(mirror, name)
    return (
        record is not None
        and record.source_cluster_id == cluster_id
        and topic is not None
        and topic.desired is not DesiredState.STOPPED
        and topic.pending_operation is None
    )


def _expired(looks: list[TopicLook]) -> list[str]:
    """Warn of records here that the new primary has deleted."""
    older = [
        [p.place for p in one.divergences if p.logs.here_start < min(p.logs.there_start, p.shared_end)]
        for one in looks
        if one.lies_beyond
    ]
    return [
        f"{places[0]}: the new primary has deleted older records (retention) that still exist here;"
        " --recreate deletes them without archiving them"
        for places in older
        if places
    ]


def _cleaned(destination: Destination, looks: list[TopicLook]) -> list[str]:
    """Warn where a record beyond the fork may have superseded one before it, which a cut does not bring back."""
    cut = [one.topic for one in looks if one.lies_beyond and not one.must_recreate]
    found = topic_settings(destination.client, cut) if cut else {}
    policies = {name: told["cleanup.policy"].value for name, told in found.items() if not isinstance(told, int)}
    names = [name for name in cut if "compact" in (policies.get(name) or "")]
    if not names:
        return []
    more = f" and {counted(len(names) - 1, 'more topic')}" if len(names) > 1 else ""
    return [
        f"{names[0]}{more}: cleanup.policy is compact. Because of records after the fork the cleaner here"
        " may have removed earlier ones, which a truncation does not restore: if so, the same command"
        " reports it after the truncation, and --recreate is needed"
    ]


def already_mirrored(topic: str) -> TopicResult:
    """Return the row of a topic with which nothing is to be done."""
    return TopicResult(topic, None, Outcome.NOOP, f"{topic} is already mirrored from the new primary")


def rows_of(one: TopicLook) -> list[TopicResult]:
    """Return a row for each partition that says how its logs part."""
    return [
        TopicResult(*d.place, Outcome.DONE, str(d), last_mirrored_offset=d.logs.last_mirrored_offset)
        for d in one.divergences
    ]
