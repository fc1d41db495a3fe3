"""`failback`: make the old source a mirror of the new primary again.

1. What the new primary remembers is read, and that the old source stands still is looked at (`failback_look`).
2. For every partition it is found where the two logs part, and how much lies beyond that here (`failback_fork`).
3. That is shown; where something lies beyond and nobody has said how to go on, this is the end.
4. What lies beyond is saved in archives. Then the topic is deleted, or a plan for `truncate-logs` is written, and the
   same command does the rest after that.
5. The topics become mirror topics of the new primary: those that stand here are adopted, which compares all they hold.
   Groups' offsets from before become kmirror's (`failback_groups`).

Nothing is recorded before the question is answered. From then on every step is (`failback_progress`): the command
started again goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any

from kmirror.cluster.log_dirs import partition_sizes
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.errors import ExitCode, KmirrorError, OutcomeUnknown, Reason, RefusedError, UsageError
from kmirror.offline.survey import PlannedCut
from kmirror.ops.add.add import add
from kmirror.ops.check.versions import require_supported
from kmirror.ops.context import Destination, naming_cluster, now_ms, source_client, told
from kmirror.ops.evidence import evidence_of
from kmirror.ops.failback.facts import NewPrimary, TopicLook, choose, look, new_primary, require_still
from kmirror.ops.failback.fork import Divergence
from kmirror.ops.failback.groups import put_back, take_over
from kmirror.ops.failback.progress import Checkpoint, Progress, TopicStep, TopicWork
from kmirror.ops.failback.steps import (
    add_partitions,
    cleaned,
    cut_offset,
    delete,
    differences,
    is_there,
    mirror_for,
    record_mirror,
    replication_factor_of,
    require_untouched,
    saved,
)
from kmirror.ops.failback.truncation_plan import TruncationPlan, write_plan
from kmirror.ops.mirrors.create import check_name, checked_properties, source_cluster_id
from kmirror.ops.results import ErrorInfo, GroupResult, Outcome, TopicResult, VerbResult
from kmirror.ops.stop.failover import Stopped
from kmirror.settings.patterns import TopicSelector
from kmirror.settings.table import parse_settings
from kmirror.state.client import boottime
from kmirror.state.records import DesiredState, MirrorRecord
from kmirror.state.snapshot import State

#: How long the old source's log ends are watched.
WATCH_S = 2.0
_AGAIN = "run the same command again to continue"
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


@dataclass(frozen=True, slots=True)
class FailbackPreview:
    """What is about to be done, for whoever has to agree; clusters in words."""

    new_primary: str
    old_source: str
    result: VerbResult


#: Called once before the first change; False leaves all as it is.
Agree = Callable[[FailbackPreview], bool]


def failback(
    destination: Destination,
    request: FailbackRequest,
    agree: Agree = lambda _: True,
    *,
    dry_run: bool = False,
    checkpoint: Checkpoint = lambda _: None,
) -> Stopped:
    """Make the old source, `destination`, a mirror of the cluster that the request's properties name.

    Raises:
        UsageError: a property or a flag is not understood.
        RefusedError: a precondition does not hold, or nobody agrees; nothing was changed.
        UnreachableError: a cluster does not answer; the same command goes on.
    """
    if (request.way is Way.OFFLINE) != (request.plan is not None):
        raise UsageError("--offline and --plan FILE belong together", "give both, or neither")
    return _Failback(destination, request, agree, checkpoint).run(dry_run=dry_run)


@dataclass(slots=True)
class _Done:
    """How it went."""

    rows: list[TopicResult] = field(default_factory=list)
    groups: list[GroupResult] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    steps: dict[str, float] = field(default_factory=dict)
    archives: dict[str, dict[str, Any]] = field(default_factory=dict)


class _Failback:
    def __init__(
        self, destination: Destination, request: FailbackRequest, agree: Agree, checkpoint: Checkpoint
    ) -> None:
        self._destination = destination
        self._request = request
        self._agree = agree
        self._progress = Progress(destination, request.mirror, self._timed(checkpoint))
        self._done = _Done()
        self._began_ms = now_ms()
        self._at = boottime()
        self._looks: list[TopicLook] = []
        self._sizes: Mapping[TopicPartition, int] = {}

    def _timed(self, checkpoint: Checkpoint) -> Checkpoint:
        def reached(step: str) -> None:
            self._note_time(step)
            checkpoint(step)

        return reached

    def _note_time(self, step: str) -> None:
        self._done.steps[step] = self._done.steps.get(step, 0.0) + boottime() - self._at
        self._at = boottime()

    def run(self, *, dry_run: bool) -> Stopped:
        destination, request = self._destination, self._request
        check_name(request.mirror)
        source, settings = checked_properties(request.properties)
        if prefix := parse_settings(settings).topic_prefix:
            raise RefusedError(
                f"the file sets topic.prefix={prefix}: topics would not keep their own names",
                "leave it out",
            )
        require_supported(destination.client, "the old source")
        cluster_id = source_cluster_id(destination, source)
        with source_client(source) as client:
            state = destination.state()
            mirror = mirror_for(destination, state, request.mirror, source, settings, cluster_id)
            primary = new_primary(client, source, cluster_id, request.mirror, destination.cluster_id)
            names = choose(destination, primary, request.mirror, request.topics)
            works = self._progress.load(state, names)
            mirrored = [name for name in names if name not in works and self._is_mirrored(state, name, cluster_id)]
            created = [name for name in names if name in works and self._is_deleted(works[name])]
            rest = [name for name in names if name not in mirrored and name not in created]
            self._look(primary, rest, works)
            rows = self._preview(mirrored, created, works)
            refusal = self._refusal()
            if dry_run or refusal is not None:
                return self._ended_before(mirror, rows, refusal, dry_run=dry_run)
            preview = FailbackPreview(
                f"{cluster_id} at {source.get('bootstrap.servers', '-')}",
                f"{destination.cluster_id} at {destination.bootstrap_server}",
                VerbResult.of("failback", request.mirror, rows, dry_run=True, warnings=self._done.warnings),
            )
            if not self._agree(preview):
                raise RefusedError("not confirmed: nothing was changed")
            self._at = boottime()
            self._carry_out(mirror, mirrored, created, works)
            return self._result(mirror, self._done.rows, dry_run=False)

    def _is_deleted(self, work: TopicWork) -> bool:
        """Tell whether a topic was deleted once it was saved, noted or not."""
        client = self._destination.client
        return work.step is TopicStep.CREATE or (work.step is TopicStep.SAVED and not is_there(client, work))

    def _is_mirrored(self, state: State, name: str, cluster_id: str) -> bool:
        record, topic = state.mirror(self._request.mirror), state.topic(self._request.mirror, name)
        return (
            record is not None
            and record.source_cluster_id == cluster_id
            and topic is not None
            and topic.desired is not DesiredState.STOPPED
            and topic.pending_operation is None
        )

    # -- looking --------------------------------------------------------------------------------------------------

    def _look(self, primary: NewPrimary, names: Sequence[str], works: Mapping[str, TopicWork]) -> None:
        destination = self._destination
        found = destination.client.metadata(names).topics
        require_still(destination, {n: found[n] for n in names if not found[n].error_code}, self._request.watch_s)
        hints = {
            TopicPartition(name, p): at
            for name, work in works.items()
            for p, at in work.differs.items()
            if name in found and found[name].printed_topic_id == work.topic_id
        }
        self._looks, warnings = look(destination, primary, self._request.mirror, names, hints)
        self._done.warnings += warnings
        if names:
            with naming_cluster("the new primary", Reason.SOURCE_UNREACHABLE):
                known = primary.client.metadata(names).topics.values()
                places = [TopicPartition(topic.name, index) for topic in known for index in topic.partitions]
                self._sizes = partition_sizes(primary.client, places)
        self._note_time("looked")

    @property
    def _beyond(self) -> list[TopicLook]:
        return [one for one in self._looks if one.lies_beyond]

    def _preview(
        self, mirrored: Sequence[str], created: Sequence[str], works: Mapping[str, TopicWork]
    ) -> list[TopicResult]:
        rows = [_noop(name) for name in mirrored]
        for name in created:
            archive = works[name].archive
            kept = f"its records after the fork are in {archive}" if archive else "none of it was archived"
            rows.append(TopicResult(name, None, Outcome.DONE, f"{name} was deleted and is to be recreated; {kept}"))
        for one in self._looks:
            if one.here is None:
                many = len(one.there.partitions)
                rows.append(
                    TopicResult(one.topic, None, Outcome.DONE, f"{one.topic} is to be created: {many} partitions")
                )
            rows += [_row(divergence, Outcome.DONE, str(divergence)) for divergence in one.divergences]
            self._warn_of_expired(one)
        self._warn_of_cleaned()
        return rows

    def _warn_of_expired(self, one: TopicLook) -> None:
        older = [p.place for p in one.divergences if p.logs.here_start < min(p.logs.there_start, p.shared_end)]
        if older and one.lies_beyond and self._request.way is not Way.OFFLINE:
            self._done.warnings.append(
                f"{older[0]}: the new primary has deleted older records (retention) that still exist here;"
                " --recreate deletes them without archiving them"
            )

    def _warn_of_cleaned(self) -> None:
        """A record beyond the fork may have superseded one before it, which a cut does not bring back."""
        cut = [one.topic for one in self._beyond if not one.must_recreate]
        if not cut or self._request.way is Way.RECREATE:
            return
        names = cleaned(self._destination, cut)
        if names:
            more = f" and {len(names) - 1} more topics" if len(names) > 1 else ""
            self._done.warnings.append(
                f"{names[0]}{more}: cleanup.policy is compact. Because of records after the fork the cleaner here"
                " may have removed earlier ones, which a truncation does not restore: if so, the same command"
                " reports it after the truncation, and --recreate is needed"
            )

    def _refusal(self) -> RefusedError | None:
        """Return why it cannot go on as it was asked to."""
        beyond, way = self._beyond, self._request.way
        if not beyond:
            return None
        records = sum(divergence.records for one in beyond for divergence in one.divergences)
        if way is None:
            return RefusedError(
                f"{records} records of {len(beyond)} topics exist only on the old source, after the fork of the two"
                " logs",
                _HOW,
            )
        stuck = [one.topic for one in beyond if one.must_recreate]
        if way is Way.OFFLINE and stuck:
            return RefusedError(
                f"{stuck[0]}: truncating its logs is not enough ({len(stuck)} topics), as their rows say",
                "use --recreate for these topics, and --topics to handle the others separately",
            )
        return None

    def _ended_before(
        self, mirror: MirrorRecord, rows: Sequence[TopicResult], refusal: RefusedError | None, *, dry_run: bool
    ) -> Stopped:
        if dry_run:
            if refusal is not None:
                self._done.warnings.append(f"without further options it would stop here: {refusal.message}")
            return self._result(mirror, rows, dry_run=True)
        assert refusal is not None
        beyond = {divergence.place for one in self._beyond for divergence in one.divergences if divergence.lies_beyond}
        shown = tuple(
            TopicResult(
                row.topic,
                row.partition,
                Outcome.REFUSED if TopicPartition(row.topic or "", row.partition or 0) in beyond else Outcome.NOOP,
                row.message,
                last_mirrored_offset=row.last_mirrored_offset,
            )
            for row in rows
        )
        result = VerbResult(
            "failback",
            mirror.name,
            dry_run=False,
            exit_code=ExitCode.REFUSED,
            results=_sorted(shown),
            error=ErrorInfo.of(refusal),
            warnings=tuple(self._done.warnings),
        )
        return Stopped(result, self._evidence(mirror, result))

    # -- carrying out ---------------------------------------------------------------------------------------------

    def _carry_out(
        self, mirror: MirrorRecord, mirrored: Sequence[str], created: Sequence[str], works: Mapping[str, TopicWork]
    ) -> None:
        request, done = self._request, self._done
        beyond = self._beyond
        if not self._looks and not created and not self._progress.is_under_way:
            done.rows += [_noop(name) for name in mirrored]
            return
        self._progress.begin(
            {
                "sourceClusterId": mirror.source_cluster_id,
                "way": request.way.value if request.way else None,
                "discard": request.discard,
                "topics": [one.topic for one in beyond][:100],
                "count": len(self._looks) + len(created),
            }
        )
        done.rows += [_noop(name) for name in mirrored]
        if request.way is Way.OFFLINE and beyond:
            self._plan_cuts(mirror, works)
        else:
            record_mirror(self._destination, mirror)
            self._progress.step("mirror recorded")
            self._mirror(mirror, [one for one in self._looks if not one.lies_beyond])
            for name in created:
                self._attempt(name, partial(self._create, mirror, works[name]))
            for one in beyond:
                self._attempt(one.topic, partial(self._recreate, mirror, one, works.get(one.topic)))
        bad = any(row.result not in (Outcome.DONE, Outcome.NOOP) for row in done.rows)
        is_over = not bad and not (request.way is Way.OFFLINE and beyond)
        outcome = "PARTLY_DONE" if bad else ExitCode.OK.name if is_over else "PLANNED"
        self._progress.finish(outcome, {"archives": done.archives, "plan": request.plan}, is_over=is_over)

    def _attempt(self, topic: str, step: Callable[[], None]) -> None:
        """Do what belongs to one topic; what goes wrong does not keep the others from theirs."""
        try:
            step()
        except (KmirrorError, OutcomeUnknown) as error:
            failed = told(error)
            hint = failed.hint or _AGAIN
            self._done.rows.append(TopicResult(topic, None, Outcome.FAILED, failed.message, failed.reason, hint=hint))

    def _save(self, mirror: MirrorRecord, one: TopicLook, work: TopicWork | None) -> TopicWork:
        factor = replication_factor_of(mirror.settings)
        work = saved(self._destination, self._progress, one, work, factor, discard=self._request.discard)
        if work.archive is not None:
            self._done.archives[one.topic] = {"archive": work.archive, "records": work.records}
        return work

    def _recreate(self, mirror: MirrorRecord, one: TopicLook, work: TopicWork | None) -> None:
        self._create(mirror, delete(self._destination, self._progress, self._save(mirror, one, work)))

    def _create(self, mirror: MirrorRecord, work: TopicWork) -> None:
        topic = work.topic
        if work.archive is not None:
            self._done.archives[topic] = {"archive": work.archive, "records": work.records}
        result = add(self._destination, mirror.name, TopicSelector((topic,)), adopt=True)
        self._done.warnings += result.warnings
        bad = [row for row in result.results if row.result not in (Outcome.DONE, Outcome.NOOP)]
        if bad:
            self._done.rows += bad
            return
        self._progress.step("created")
        settings = parse_settings(mirror.settings)
        self._done.groups += put_back(self._destination, mirror.name, settings, topic, work.groups, work.places)
        self._progress.forget([topic])
        self._progress.step("groups put back")
        kept = (
            f"{work.records} records from after the fork are in {work.archive}"
            if work.archive
            else "nothing was archived"
        )
        row = TopicResult(topic, None, Outcome.DONE, f"{topic} was recreated and is copied in full; {kept}")
        self._done.rows.append(row)

    def _mirror(self, mirror: MirrorRecord, looks: Sequence[TopicLook]) -> None:
        """Adopt topics that are the beginning of the new primary's, and create those that are not there."""
        if not looks:
            return
        destination, done = self._destination, self._done
        add_partitions(destination, looks)
        limits = {divergence.place: divergence.shared_end for one in looks for divergence in one.divergences}
        # before somebody syncs them: whoever is killed in between does the same again
        done.groups += take_over(destination, mirror.name, parse_settings(mirror.settings), limits)
        self._progress.step("groups taken over")
        result = add(destination, mirror.name, TopicSelector(tuple(one.topic for one in looks)), adopt=True)
        done.warnings += result.warnings
        rows = {row.topic: row for row in result.results}
        for one in looks:
            row = rows.get(one.topic)
            if row is None or row.result in (Outcome.DONE, Outcome.NOOP):
                self._progress.forget([one.topic])
                done.rows += [_row(divergence, Outcome.DONE, str(divergence)) for divergence in one.divergences]
                if not one.divergences:
                    done.rows.append(row or _noop(one.topic))
                continue
            if row.reason is Reason.DESTINATION_WRITTEN:
                self._attempt(one.topic, partial(self._note_difference, mirror, one))
                hint = "run the same command again: it finds the fork there and shows the records after it"
                row = replace(row, result=Outcome.FAILED, hint=hint)
            done.rows.append(row)
        self._progress.step("adopted")

    def _note_difference(self, mirror: MirrorRecord, one: TopicLook) -> None:
        """Remember where a topic differs that the search for the fork took for the same."""
        assert one.here is not None
        differs = differences(self._destination, mirror.source, one)
        if differs:
            topic_id = one.here.printed_topic_id
            work = TopicWork(one.topic, TopicStep.DIFFERS, topic_id, ends=one.ends, differs=differs)
            self._progress.note(work, "difference found")

    def _plan_cuts(self, mirror: MirrorRecord, works: Mapping[str, TopicWork]) -> None:
        """Save what lies beyond, and write the plan by which it is cut."""
        request, destination = self._request, self._destination
        assert request.plan is not None
        cuts: list[PlannedCut] = []
        for one in self._looks:
            if not one.lies_beyond:
                done = f"{one.topic}: no records after the fork; run the same command again to mirror it"
                self._done.rows.append(TopicResult(one.topic, None, Outcome.NOOP, done))
                continue

            self._attempt(one.topic, partial(self._plan_cut, mirror, one, works.get(one.topic), cuts))
        if cuts:
            ordered = tuple(sorted(cuts, key=lambda cut: (cut.topic, cut.partition)))
            write_plan(TruncationPlan(destination.cluster_id, mirror.name, now_ms(), ordered), request.plan)
            self._done.warnings.append(
                f"the plan is {request.plan}. Next: stop all brokers of this cluster cleanly; on each, run `kmirror "
                f"truncate-logs --plan {request.plan} --log-dir DIR`; start them; run the same failback command again"
            )
        self._progress.step("planned")

    def _plan_cut(self, mirror: MirrorRecord, one: TopicLook, work: TopicWork | None, cuts: list[PlannedCut]) -> None:
        kept = self._save(mirror, one, work)
        require_untouched(self._destination, kept)
        assert kept.topic_id is not None
        planned = []
        for divergence in one.divergences:
            if divergence.lies_beyond:
                place, end = divergence.place, divergence.logs.here_end
                at = cut_offset(self._destination, divergence)
                planned.append(PlannedCut(place.topic, kept.topic_id, place.partition, at, end))
        cuts += planned
        self._done.rows += [_row(divergence, Outcome.DONE, str(divergence)) for divergence in one.divergences]

    # -- telling --------------------------------------------------------------------------------------------------

    def _result(self, mirror: MirrorRecord, rows: Sequence[TopicResult], *, dry_run: bool) -> Stopped:
        result = VerbResult.of(
            "failback",
            mirror.name,
            _sorted(rows),
            dry_run=dry_run,
            groups=self._done.groups,
            warnings=self._done.warnings,
        )
        return Stopped(result, self._evidence(mirror, result))

    def _evidence(self, mirror: MirrorRecord, result: VerbResult) -> dict[str, Any]:
        document = evidence_of(self._destination, mirror, result, self._began_ms, self._done.steps)
        recreates = self._request.way is Way.RECREATE
        document["forks"] = [
            self._fork_told(divergence, recreates=recreates and one.lies_beyond)
            for one in self._looks
            for divergence in one.divergences
        ]
        document["archives"] = self._done.archives
        return document

    def _fork_told(self, divergence: Divergence, *, recreates: bool) -> dict[str, Any]:
        logs = divergence.logs
        all_offsets = logs.there_end - logs.there_start
        offsets = all_offsets if recreates else divergence.offsets_to_copy
        size = self._sizes.get(divergence.place)
        return {
            "topic": divergence.place.topic,
            "partition": divergence.place.partition,
            "sharedEnd": divergence.shared_end,
            "recordsBeyond": divergence.records,
            "neverCopied": divergence.never_copied,
            "lastMirroredOffset": logs.last_mirrored_offset,
            "lastMirroredEpoch": logs.last_mirrored_epoch,
            "logStart": logs.here_start,
            "logEnd": logs.here_end,
            "newPrimaryLogStart": logs.there_start,
            "newPrimaryLogEnd": logs.there_end,
            "offsetsToCopy": offsets,
            "bytesToCopy": None if size is None else size * offsets // all_offsets if all_offsets else 0,
            "notes": list(divergence.notes),
        }


def _row(divergence: Divergence, outcome: Outcome, message: str) -> TopicResult:
    lmo = divergence.logs.last_mirrored_offset
    return TopicResult(*divergence.place, outcome, message, last_mirrored_offset=lmo)


def _noop(topic: str) -> TopicResult:
    return TopicResult(topic, None, Outcome.NOOP, f"{topic} is already mirrored from the new primary")


def _sorted(rows: Sequence[TopicResult]) -> tuple[TopicResult, ...]:
    return tuple(sorted(rows, key=lambda row: (row.topic or "", -1 if row.partition is None else row.partition)))
