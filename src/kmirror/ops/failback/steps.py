"""What a failback does with one topic that has records after the fork.

Nothing is deleted before it was compared with its archive, or if a client wrote to it after that, or reads it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.engine.archive.archiving import ArchiveSpec, PartitionRanges, archive_topic, bytes_of
from kmirror.errors import KmirrorError, OutcomeUnknown, Reason, RefusedError, settled
from kmirror.offline.survey import PlannedCut
from kmirror.ops.add.add import add
from kmirror.ops.add.archive_admin import create_archive, kept_until_ms, next_archive
from kmirror.ops.add.topic_admin import delete_topic
from kmirror.ops.base.bulk import Bulk
from kmirror.ops.base.context import Destination, NamedClusterError, as_kmirror_error
from kmirror.ops.base.divergence import Divergence
from kmirror.ops.base.gone import is_there
from kmirror.ops.base.retrying import interrupted_row
from kmirror.ops.base.topic_results import GroupResult, Outcome, TopicResult
from kmirror.ops.failback.facts import TopicComparison, require_unread
from kmirror.ops.failback.groups import require_committed, restore_offsets
from kmirror.ops.failback.plan import FailbackRequest, Plan, Strategy, rows_of
from kmirror.ops.failback.progress import Progress, TopicStep, TopicWork
from kmirror.ops.failback.recheck import is_usable, require_copied, require_untouched
from kmirror.ops.groups.restore import committed_on
from kmirror.ops.stop.steps import Step, StepRunner
from kmirror.settings.durations import format_duration
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import Settings
from kmirror.settings.value_types import StartFrom
from kmirror.state.archive_proofs import Proof
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import State
from kmirror.sync.setting_changes import kept_settings
from kmirror.words import counted
from kmirror.work import Meter, Watch

#: How often to record which partitions of the archive are verified.
PROOF_S = 10.0
AGAIN = "run the same command again to continue"


@dataclass(slots=True)
class FailbackRun:
    """A plan in progress, and its results so far."""

    destination: Destination
    mirror: MirrorRecord
    plan: Plan
    progress: Progress
    runner: StepRunner
    bulk: Bulk
    watch: Watch
    rows: list[TopicResult] = field(default_factory=list)
    groups: list[GroupResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    archives: dict[str, dict[str, Any]] = field(default_factory=dict)
    cuts: list[PlannedCut] = field(default_factory=list)
    #: When archives of what is cut begin to delete it.
    kept_until_ms: list[int] = field(default_factory=list)
    #: What the new primary has stored; topics whose producers it has on record as denied WRITE here.
    there: State = field(default_factory=State)
    denied: list[str] = field(default_factory=list)
    #: True once the beginning is recorded.
    has_begun: bool = False
    is_over: bool = False

    @property
    def settings(self) -> Settings:
        """The settings of the mirror."""
        return stored_settings(self.mirror.settings)

    def named(self, topic: str) -> str:
        """Return the topic's name, with its number if there are several to do."""
        topics = [*(work.topic for work in self.plan.deleted), *(one.topic for one in self.plan.diverging)]
        return topic if len(topics) == 1 else f"{topic} ({topics.index(topic) + 1} of {len(topics)} topics)"

    def attempt(self, topic: str, do: Callable[[], None]) -> None:
        """Do the work of one topic; an error becomes its row."""
        try:
            do()
        except (KmirrorError, OutcomeUnknown) as error:
            failed = as_kmirror_error(error)
            if isinstance(failed, NamedClusterError) and failed.reason is Reason.DESTINATION_UNREACHABLE:
                raise  # nothing can be recorded of the other topics either
            self.rows.append(interrupted_row(topic, failed.message, failed, failed.hint or AGAIN))


@dataclass(slots=True)
class Topic:
    """A topic with records after the fork; `known` is its recorded progress, `found` None once it was deleted."""

    run: FailbackRun
    known: TopicWork | None
    found: TopicComparison | None = None
    #: Its progress to be recorded, unless the recorded one still fits.
    planned: TopicWork | None = None
    is_over: bool = False

    @property
    def work(self) -> TopicWork:
        """Its recorded progress, once there is one."""
        return settled(self.known, "the progress of the topic")

    @property
    def comparison(self) -> TopicComparison:
        """What the search for its fork found."""
        return settled(self.found, "the topic's fork")

    def is_at(self, step: TopicStep) -> bool:
        """Return whether this is its recorded step."""
        return self.work.step is step

    def foresee(self, step: TopicStep) -> None:
        """Take it to a step without recording it."""
        self.known = replace(self.planned or self.work, step=step)

    def report_archive(self) -> None:
        """Report which archive has its records."""
        work = self.work
        if work.archive is not None:
            is_new = work.topic not in self.run.archives
            self.run.archives[work.topic] = {"archive": work.archive, "records": work.records}
            if is_new and work.kept_ms is not None:
                self.run.warnings.append(
                    f"{work.archive} keeps records only for {format_duration(work.kept_ms)} after they were archived:"
                    " the cluster's topic policy allows no endless retention"
                )


def _plan_archive(topic: Topic) -> None:
    """Decide which records go into which archive."""
    run, found, known = topic.run, topic.comparison, topic.known
    if known is not None and _fits(known, found, run.plan.request) and is_usable(run.destination, known):
        return
    ranges, older = _ranges(found, run.plan.request), _older(found, run.plan.request)
    archive = next_archive(run.destination.client, found.topic) if ranges or older else None
    differs, groups = (known.differs, known.groups) if known is not None else ({}, {})
    here = settled(found.here, "the topic's id")
    topic.planned = TopicWork(
        found.topic,
        TopicStep.ARCHIVE,
        here.printed_topic_id,
        archive,
        ranges,
        found.ends,
        _limits(found),
        groups,
        differs=differs,
        older=older,
    )


def _begin_archive(topic: Topic) -> str:
    topic.known = topic.run.progress.record(settled(topic.planned, "what goes into the archive"))
    return "archive begun"


def _fits(work: TopicWork, found: TopicComparison, request: FailbackRequest) -> bool:
    """Return whether the recorded progress of a topic still fits the topic as it is now."""
    wanted = _ranges(found, request), _older(found, request)
    return (
        found.here is not None
        and work.step in (TopicStep.ARCHIVE, TopicStep.SAVED)
        and work.topic_id == found.here.printed_topic_id
        and dict(work.ends) == found.ends
        and dict(work.limits) == _limits(found)
        and ((dict(work.ranges), dict(work.older)) == wanted or (request.discard and work.step is TopicStep.SAVED))
    )


def _ranges(found: TopicComparison, request: FailbackRequest) -> dict[int, tuple[int, int]]:
    if request.discard:
        return {}
    return {
        one.topic_partition.partition: (one.shared_end, one.logs.here_end)
        for one in found.divergences
        if one.diverges and one.records
    }


def _older(found: TopicComparison, request: FailbackRequest) -> dict[int, tuple[int, int]]:
    """Return the other offsets that the new primary never had, if the topic is to be deleted."""
    if request.discard or request.strategy is not Strategy.RECREATE:
        return {}
    return {one.topic_partition.partition: one.never_there for one in found.divergences if one.never_there}


def _limits(found: TopicComparison) -> dict[int, int]:
    return {one.topic_partition.partition: one.shared_end for one in found.divergences}


def _save(topic: Topic) -> str:
    run, work = topic.run, topic.work
    if work.archive:
        work = _archive(topic, work.archive)
    require_untouched(run.destination, work)
    topic.known = run.progress.record(replace(work, step=TopicStep.SAVED))
    return "saved"


def _archive(topic: Topic, archive: str) -> TopicWork:
    """Archive and compare; return its progress with what the archive holds."""
    run, work = topic.run, topic.work
    client = run.destination.client
    kept_ms = create_archive(client, work.topic, archive, len(work.ends), run.settings.replication_factor)
    wanted = tuple(PartitionRanges(p, ranges) for p, ranges in work.to_archive.items())
    spec = ArchiveSpec(run.destination.properties, work.topic, archive, work.topic_id, wanted)
    where = run.bulk.where(sum(bytes_of(client, spec).values()))
    count, recorded_at = 0, time.monotonic()

    def note(proofs: Mapping[int, Proof]) -> None:
        nonlocal recorded_at
        if time.monotonic() - recorded_at >= PROOF_S:
            topic.known = run.progress.record(replace(topic.work, proved=dict(proofs)), with_event=False)
            recorded_at = time.monotonic()

    runner, named = run.bulk.runner(where), f"{run.named(work.topic)} {run.bulk.place(where)}"
    result = archive_topic(spec, runner, run.watch, named, work.proved, note)
    for outcome in result.outcomes:
        partition = f"{work.topic}-{outcome.partition}"
        if outcome.trouble is not None:
            raise outcome.trouble
        if not outcome.saved or outcome.comparison is None:
            raise KmirrorError(
                f"{archive} does not hold what {partition} does: {outcome.comparison}",
                f"nothing was deleted; delete {archive} and run the command again to recreate it",
            )
        count += outcome.comparison.records + outcome.comparison.only_archived
    return replace(work, records=count, proved=result.proofs, kept_ms=kept_ms)


def _delete(topic: Topic) -> str:
    run, client, work = topic.run, topic.run.destination.client, topic.work
    if is_there(client, work.topic, work.topic_id):
        require_copied(run.destination, run.mirror, topic.comparison, run.bulk, run.watch)
        require_unread(run.destination, [work.topic])
        work = topic.known = run.progress.record(_with_what_goes(run, work), with_event=False)
        require_untouched(run.destination, work)
        topic_id = settled(work.topic_id, "the id of the topic to delete")
        with Meter(run.watch, f"deleting {run.named(work.topic)}"):
            delete_topic(client, work.topic, topic_id)
    return "gone"


def _with_what_goes(run: FailbackRun, work: TopicWork) -> TopicWork:
    """Return the progress with what is deleted with the topic, as it is now: it may have been archived days ago."""
    client = run.destination.client
    # brokers have forgotten those of a topic that was deleted before, and another client created again
    groups = {**work.groups, **committed_on(client, work.topic)}
    settings = kept_settings(topic_settings(client, [work.topic])[work.topic])
    found = client.metadata([work.topic]).topics[work.topic]
    return replace(work, groups=groups, settings=settings, replication_factor=found.replication_factor)


def _record_deleted(topic: Topic) -> str:
    topic.known = topic.run.progress.record(replace(topic.work, step=TopicStep.CREATE))
    return "deleted"


def _create(topic: Topic) -> str | None:
    run = topic.run
    with Meter(run.watch, f"creating {run.named(topic.work.topic)}"):
        work = topic.work
        result = add(
            run.destination,
            run.mirror.name,
            TopicSelector((work.topic,)),
            adopt=True,
            # all of it: what is before the fork was deleted here without being archived
            start_from=StartFrom(),
            overrides=work.settings,
            replication_factor=work.replication_factor,
        )
    run.warnings += result.warnings
    bad = [row for row in result.results if row.result not in (Outcome.DONE, Outcome.NOOP)]
    run.rows += bad
    topic.is_over = bool(bad)
    return None if bad else "created"


def _restore_groups(topic: Topic) -> str:
    run, work = topic.run, topic.work
    name, mirror = work.topic, run.mirror.name
    run.groups += restore_offsets(run.destination, mirror, run.settings, name, work.groups, work.group_limits)
    require_committed(run.groups, name)
    run.progress.delete([name])
    if work.archive:
        older = " and from before the new primary's copy began" if work.older else ""
        kept = f"{work.archive} holds {counted(work.records, 'record')} from after the fork{older}"
    elif run.plan.request.discard:
        kept = "nothing was archived, as requested"
    else:
        kept = f"nothing was archived: {counted(work.offsets_after_forks, 'offset')} after the forks held no records"
    run.rows.append(TopicResult(name, None, Outcome.DONE, f"{name} was recreated and is copied in full; {kept}"))
    return "groups put back"


def _plan_cut(topic: Topic) -> str | None:
    run, work, found = topic.run, topic.work, topic.comparison
    require_untouched(run.destination, work)
    topic_id = settled(work.topic_id, "the id of the topic to cut")
    here = found.here.partitions if found.here else {}
    epochs = {p: one.leader_epoch for p, one in here.items() if one.leader_epoch >= 0}
    if work.archive is not None:
        until_ms = kept_until_ms(run.destination.client, work.archive, work.ranges)
        run.kept_until_ms += [] if until_ms is None else [until_ms]
    run.cuts += [
        PlannedCut(
            work.topic,
            topic_id,
            one.topic_partition.partition,
            _cut_offset(run.destination, one),
            one.logs.here_end,
            epochs.get(one.topic_partition.partition),
        )
        for one in found.divergences
        if one.diverges
    ]
    run.rows += rows_of(found)
    return None


def _cut_offset(destination: Destination, divergence: Divergence) -> int:
    """Return where to cut the log here: the start of the batch that holds the first offset to remove.

    Raises RefusedError: the new primary no longer has that batch.
    """
    wanted, partition = divergence.shared_end, divergence.topic_partition
    found = wanted
    if wanted < divergence.logs.here_end:
        read = PartitionReader(destination.client, partition).read_known(wanted)
        found = min(wanted, read.headers[0].base_offset) if isinstance(read, Batches) else wanted
    if found < wanted and found < divergence.logs.there_start:
        raise RefusedError(
            f"{partition} can be truncated only at offset {found}, where a batch starts, but the new primary's log "
            f"starts at {divergence.logs.there_start}",
            "use --recreate for this topic",
        )
    return found


_SAVED: tuple[Step[Topic], ...] = (
    Step(
        "record which records after the fork go into which archive",
        _begin_archive,
        _plan_archive,
        lambda topic: topic.foresee(TopicStep.ARCHIVE),
        recorded=lambda topic: topic.planned is None,
    ),
    Step(
        "archive the records after the fork, and compare the archive with the log",
        _save,
        rehearse=lambda topic: topic.foresee(TopicStep.SAVED),
        recorded=lambda topic: topic.is_at(TopicStep.SAVED),
    ),
)
#: What is left to do with a topic that was deleted before.
CREATED: tuple[Step[Topic], ...] = (
    Step("create the topic as a mirror topic", _create, Topic.report_archive),
    Step("restore the groups' committed offsets, and delete the recorded progress", _restore_groups),
)
RECREATED: tuple[Step[Topic], ...] = (
    *_SAVED,
    Step("delete the topic, by its id, unless another client wrote to it since", _delete, Topic.report_archive),
    Step(
        "record that it was deleted",
        _record_deleted,
        rehearse=lambda topic: topic.foresee(TopicStep.CREATE),
        recorded=lambda topic: topic.is_at(TopicStep.CREATE),
    ),
    *CREATED,
)
PLANNED: tuple[Step[Topic], ...] = (
    *_SAVED,
    Step("find the batches at which to cut its logs", _plan_cut, Topic.report_archive),
)
