"""The plan of a failback, made before the first change, then printed or carried out. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from kmirror.cluster.client import LATEST
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.protocol.read_up_to import REMOTE_STORAGE
from kmirror.cluster.topics.leaders import newest_leaders
from kmirror.cluster.topics.log_dirs import partition_sizes
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import on_mirror
from kmirror.errors import Reason, RefusedError
from kmirror.ops.add.add import require_recreatable
from kmirror.ops.base.bulk import Bulk, SparkChoice
from kmirror.ops.base.context import Destination, actor, naming_cluster, now_ms
from kmirror.ops.base.divergence import Divergence, KnownFork
from kmirror.ops.base.gone import described_topic
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.failback.choice import chosen_topics
from kmirror.ops.failback.facts import (
    NewPrimary,
    TopicComparison,
    compare_topics,
    partitions_of,
    require_takes_copies,
    require_unused,
)
from kmirror.ops.failback.progress import Progress, TopicStep, TopicWork
from kmirror.ops.stop.work import is_stopped
from kmirror.settings.patterns import TopicSelector
from kmirror.state.engine_identity import living_engine
from kmirror.state.records import DesiredState, MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.state.store import DEFAULT_TIMEOUT_S
from kmirror.status.observed import is_gone
from kmirror.words import counted, listed
from kmirror.work import Meter, Watch

#: How long to watch the old source's log ends for writes.
WATCH_S = 2.0
_HOW = (
    "--recreate archives these records, deletes the topics and copies them in full; --offline --plan FILE archives"
    " them and writes a plan for `kmirror truncate-logs`, after which only the delta is copied; --discard archives"
    " nothing"
)


class Strategy(Enum):
    """How a log is brought back to the fork."""

    RECREATE = "recreate"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True)
class FailbackRequest:
    """What to fail back; `properties` are how to reach the new primary, `plan` is the file that OFFLINE writes."""

    mirror: str
    properties: Mapping[str, str]
    topics: TopicSelector | None = None
    strategy: Strategy | None = None
    plan: str | None = None
    discard: bool = False
    watch_s: float = WATCH_S
    spark: SparkChoice = field(default_factory=SparkChoice)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with each topic.

    `mirrored` are already mirrored from the new primary, `deleted` were deleted by an earlier run, `comparisons` are
    the others. `works` is the stored progress by topic, `sizes` are bytes at the new primary, `tiered` are those
    topics with something to remove whose logs are tiered here, unless all are recreated.
    """

    request: FailbackRequest
    mirrored: tuple[str, ...]
    deleted: tuple[TopicWork, ...]
    comparisons: tuple[TopicComparison, ...]
    works: Mapping[str, TopicWork]
    sizes: Mapping[TopicPartition, int]
    warnings: tuple[str, ...]
    tiered: tuple[str, ...]

    @property
    def diverging(self) -> list[TopicComparison]:
        """The topics with something here that must be removed first."""
        return [one for one in self.comparisons if one.diverges]

    @property
    def cuts(self) -> bool:
        """Whether logs must be cut on stopped brokers before anything is mirrored."""
        return self.request.strategy is Strategy.OFFLINE and bool(self.diverging)

    def rows(self) -> list[TopicResult]:
        """Return the rows of a dry run."""
        rows = [already_mirrored_row(name) for name in self.mirrored]
        for work in self.deleted:
            kept = f"its records after the fork are in {work.archive}" if work.archive else "none of it was archived"
            message = f"{work.topic} was deleted and is to be recreated; {kept}"
            rows.append(TopicResult(work.topic, None, Outcome.DONE, message))
        for one in self.comparisons:
            if one.here is None:
                message = f"{one.topic} is to be created: {counted(len(one.there.partitions), 'partition')}"
                rows.append(TopicResult(one.topic, None, Outcome.DONE, message))
            rows += rows_of(one)
        return rows

    def refusal(self) -> RefusedError | None:
        """Return why the request cannot be carried out, None if it can."""
        diverging = self.diverging
        if diverging and self.request.strategy is None:
            records = sum(divergence.records for one in diverging for divergence in one.divergences)
            return RefusedError(
                f"the old source has {counted(records, 'record')} of {counted(len(diverging), 'topic')} that the new "
                "primary lacks, after the fork of the two logs",
                _HOW,
            )
        stuck = [one.topic for one in diverging if one.must_recreate]
        if stuck and self.cuts:
            return RefusedError(
                f"{stuck[0]}: truncating its logs is not enough ({counted(len(stuck), 'topic')}), as their rows say",
                "use --recreate for these topics, and --topics to handle the others separately",
            )
        if self.tiered and self.cuts:
            return RefusedError(
                f"{listed(self.tiered)}: tiered, and tiered logs cannot be truncated on stopped brokers",
                "use --recreate for these topics, and --topics to handle the others separately",
            )
        return None

    def refused_rows(self) -> list[TopicResult]:
        """Return the rows of a failback that is refused because of records after forks."""
        refused = {
            divergence.topic_partition
            for one in self.diverging
            for divergence in one.divergences
            if divergence.diverges
        }
        return [
            replace(row, result=Outcome.REFUSED if (row.topic, row.partition) in refused else Outcome.NOOP)
            for row in self.rows()
        ]

    def forks(self) -> list[KnownFork]:
        """Return the forks, for the evidence."""
        recreates = self.request.strategy is Strategy.RECREATE
        return [
            self._fork(divergence, recreates=recreates and one.diverges)
            for one in self.comparisons
            for divergence in one.divergences
        ]

    def _fork(self, divergence: Divergence, *, recreates: bool) -> KnownFork:
        logs = divergence.logs
        all_offsets = logs.there_end - logs.there_start
        offsets = all_offsets if recreates else divergence.offsets_to_copy
        size = self.sizes.get(divergence.topic_partition)
        to_copy = None if size is None else size * offsets // all_offsets if all_offsets else 0
        return KnownFork(divergence, offsets, to_copy)


def mirror_for(
    destination: Destination,
    state: State,
    name: str,
    source: Mapping[str, str],
    settings: Mapping[str, str],
    cluster_id: str,
    where: str = "here",
) -> MirrorRecord:
    """Return the mirror's record to store: of the new primary, under the name that it has there.

    An existing record of the same source keeps the settings that the file does not name. `where` is what the old source
    is called in the message.

    Raises RefusedError: the existing mirror has another source, and a topic that is not stopped or a running engine.
    """
    found = state.mirror(name)
    if found is None:
        state.require_readable(name)
        return MirrorRecord(name, dict(source), dict(settings), cluster_id, actor(), now_ms())
    here = destination.client.metadata([topic.topic for topic in state.topics(name)]).topics
    going = [t.topic for t in state.topics(name) if not is_stopped(t) and not is_gone(t, here.get(t.topic))]
    if found.source_cluster_id == cluster_id:
        merged = {**found.settings, **settings}
        resumes = found.discovery_ended and bool(going)
        paused = found.paused and bool(going)
        return replace(found, source=dict(source), settings=merged, discovery_ended=resumes, paused=paused)
    if going or living_engine(destination.store, state.engine(name), DEFAULT_TIMEOUT_S) is not None:
        what = f"and {going[0]} is not stopped" if going else "and an engine runs for it"
        raise RefusedError(
            f"mirror {name} {where} mirrors cluster {found.source_cluster_id}, {what}",
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
    mirror: MirrorRecord,
    request: FailbackRequest,
    progress: Progress,
    bulk: Bulk,
    watch: Watch,
) -> Plan:
    """Read both clusters, and decide what to do with each topic.

    Raises:
        RefusedError: a topic cannot be failed back as it is, or created again, or clients still use it here.
        UnreachableError: a cluster does not answer.
    """
    names, omitted = chosen_topics(destination, primary, request.mirror, request.topics)
    works = progress.load(state, names)
    found = destination.client.metadata(names).topics
    mirrored = [
        n for n in names if n not in works and _is_mirrored(state, request.mirror, found[n], primary.cluster_id)
    ]
    deleted = [n for n in names if n in works and _is_deleted(destination, works[n], state.topic(request.mirror, n))]
    rest = [name for name in names if name not in mirrored and name not in deleted]
    with Meter(watch, "watching whether the old source is still in use"):
        require_unused(destination, {n: found[n] for n in rest if not found[n].error_code}, request.watch_s)
    differences = {
        TopicPartition(name, p): at
        for name, work in works.items()
        for p, at in work.differs.items()
        if found[name].printed_topic_id == work.topic_id
    }
    comparisons, warnings = compare_topics(destination, primary, request.mirror, rest, differences, bulk, watch)
    if request.strategy is Strategy.RECREATE:
        deletes = {one.topic: one.here for one in comparisons if one.diverges and one.here is not None}
        if deletes:
            require_recreatable(destination, state, mirror, primary.client, deletes)
    kept = [one for one in comparisons if not one.diverges or request.strategy is Strategy.OFFLINE]
    require_takes_copies(destination, [one.topic for one in kept if one.here is not None], "here")
    sizes: Mapping[TopicPartition, int] = {}
    if rest:
        with naming_cluster("the new primary", Reason.SOURCE_UNREACHABLE):
            sizes = partition_sizes(primary.client, partitions_of(primary.client.metadata(rest).topics.values()))
    if request.strategy is not Strategy.OFFLINE:
        warnings += _retention_warnings(comparisons)
    warnings += _never_there_warnings(request, comparisons)
    warnings += _only_here_warnings(primary, request.mirror, comparisons)
    cut = [one.topic for one in comparisons if one.diverges and request.strategy is not Strategy.RECREATE]
    settings = topic_settings(destination.client, cut) if cut else {}
    values = {
        name: {key: one.value for key, one in some.items()}
        for name, some in settings.items()
        if not isinstance(some, int)
    }
    tiered = tuple(name for name, some in values.items() if some.get(REMOTE_STORAGE) == "true")
    warnings += _compaction_warnings(
        [n for n, some in values.items() if "compact" in (some.get("cleanup.policy") or "")], comparisons
    )
    gone = tuple(works[name] for name in deleted)
    return Plan(request, tuple(mirrored), gone, tuple(comparisons), works, sizes, (*omitted, *warnings), tiered)


def _is_deleted(destination: Destination, work: TopicWork, made: TopicRecord | None) -> bool:
    """Return whether a topic was deleted after it was archived, and is now to be created, or `made` was.

    One that another client has created since, and written to, is compared like any other.
    """
    if work.step not in (TopicStep.CREATE, TopicStep.SAVED):
        return False
    found = described_topic(destination.client, work.topic)
    if found is None:
        return True
    if found.printed_topic_id in (None, work.topic_id):
        return False
    is_ours = (
        made is not None
        and made.desired is not DesiredState.STOPPED
        and made.destination_topic_id == found.printed_topic_id
    )
    wanted = dict.fromkeys(partitions_of([found]), LATEST)
    leaders = newest_leaders(destination.client, wanted, "here")
    ends = destination.client.list_offsets(wanted, log_end=True, metadata=leaders)
    return is_ours or all(end.offset == 0 for end in ends.values())


def _is_mirrored(state: State, mirror: str, found: TopicMetadata, cluster_id: str) -> bool:
    record, topic = state.mirror(mirror), state.topic(mirror, found.name)
    return (
        record is not None
        and record.source_cluster_id == cluster_id
        and topic is not None
        and topic.desired is not DesiredState.STOPPED
        and topic.pending_operation is None
        and not is_gone(topic, found)
    )


def _retention_warnings(comparisons: list[TopicComparison]) -> list[str]:
    """Warn of records here that the new primary has deleted."""
    older = [[d for d in one.divergences if d.deleted_there] for one in comparisons if one.diverges]
    return [
        f"{_named(some)}: the new primary has deleted older records that still exist here; --recreate deletes them"
        " without archiving them"
        for some in older
        if some
    ]


def _never_there_warnings(request: FailbackRequest, comparisons: list[TopicComparison]) -> list[str]:
    """Warn of records here that the new primary is not known to have had, and say what happens to them."""
    warnings = []
    keep = on_mirror("config", request.mirror, "--set", "follow.log.start=false")
    for comparison in comparisons:
        kept = f"the mirror topic keeps them until the new primary deletes later ones. To keep them even then: {keep}"
        if comparison.diverges and request.strategy is Strategy.RECREATE:
            kept = f"--recreate {'deletes' if request.discard else 'archives'} them, too"
        some = [(one, one.never_there) for one in comparison.divergences if one.never_there]
        if some:
            (low, high), which = some[0][1], _named([one for one, _ in some])
            warnings.append(
                f"{which}: offsets {low} to {high - 1} exist only here: the new primary is not known to have had them;"
                f" {kept}"
            )
    return warnings


def _only_here_warnings(primary: NewPrimary, mirror: str, comparisons: list[TopicComparison]) -> list[str]:
    """Warn of records here that the new primary deleted only because it took no longer retention while mirrored."""
    shorter = {topic.topic for topic in primary.topics or () if "retention.ms" in (topic.settled or {})}
    keep = on_mirror("config", mirror, "--set", "follow.log.start=false")
    return [
        f"{one.topic_partition}: offsets {one.deleted_there[0]} to {one.deleted_there[1] - 1}"
        " exist only here, because the new primary keeps records for a shorter time; as a mirror topic it is trimmed"
        f" to the new primary's log start after follow.log.start.delay.ms. To keep them, before `kmirror run`: {keep}"
        for comparison in comparisons
        if comparison.topic in shorter
        for one in comparison.divergences
        if one.deleted_there
    ]


def _named(some: list[Divergence]) -> str:
    more = f" and {counted(len(some) - 1, 'more partition')}" if len(some) > 1 else ""
    return f"{some[0].topic_partition}{more}"


def _compaction_warnings(compacted: Collection[str], comparisons: list[TopicComparison]) -> list[str]:
    """Warn if a record after a fork may have superseded an earlier one, which a cut does not restore."""
    names = [one.topic for one in comparisons if one.topic in compacted and not one.must_recreate]
    if not names:
        return []
    more = f" and {counted(len(names) - 1, 'more topic')}" if len(names) > 1 else ""
    return [
        f"{names[0]}{more}: cleanup.policy is compact. Because of records after the fork the cleaner here"
        " may have removed earlier ones, which a truncation does not restore: if so, the same command"
        " reports it after the truncation, and --recreate is needed"
    ]


def already_mirrored_row(topic: str) -> TopicResult:
    """Return the row of a topic with nothing to do."""
    return TopicResult(topic, None, Outcome.NOOP, f"{topic} is already mirrored from the new primary")


def rows_of(one: TopicComparison) -> list[TopicResult]:
    """Return a row for each partition that says where its logs fork."""
    return [
        TopicResult(*d.topic_partition, Outcome.DONE, str(d), last_mirrored_offset=d.logs.last_mirrored_offset)
        for d in one.divergences
    ]
