"""`verify`: compare source and destination record by record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.security.client_config import ClientConfig, ClusterAccess, client_config
from kmirror.cluster.topics.log_dirs import partition_sizes
from kmirror.columns import document
from kmirror.commands import on_mirror, option
from kmirror.engine.compare.difference import retention_note
from kmirror.engine.compare.verification import Extent, PartitionVerdict, Piece
from kmirror.errors import ExitCode, Reason, UsageError
from kmirror.ops.base.bulk import Bulk, SparkChoice
from kmirror.ops.base.context import Destination, now_ms, require_mirror, source_client
from kmirror.ops.base.evidence import VERB_RUN, VerbRun
from kmirror.ops.base.results import ErrorInfo
from kmirror.ops.base.selection import select_topics
from kmirror.ops.base.topic_results import Outcome
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.left_behind import LeftBehind
from kmirror.ops.verify.comparing import ComparisonPlan, carry_out, differing, indivisible_topics, plan_comparison
from kmirror.ops.verify.verify_results import (
    VERIFY_EVIDENCE,
    PlannedRange,
    Subject,
    VerifyEvidence,
    VerifyOutcome,
    VerifyRow,
    error_of,
    exit_code_of,
    row_of,
)
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.records import DesiredState, MirrorRecord, PartitionRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.observed import ClusterSnapshot, is_gone
from kmirror.sync.setting_changes import retention_notes
from kmirror.work import Meter, Watch, unwatched

_MOST_SAMPLES = 100_000
#: What comparing a topic takes, on either side.
_NEEDED = ("READ", "DESCRIBE_CONFIGS")


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What to verify; `topics` None is every topic of the mirror, `sample` None is everything in them."""

    mirror: str
    topics: TopicSelector | None = None
    #: Compare head, tail and this many random ranges of each partition instead of everything.
    sample: int | None = None
    spark: SparkChoice = field(default_factory=SparkChoice)


def verify(destination: Destination, request: VerifyRequest, watch: Watch = unwatched) -> VerifyOutcome:
    """Compare every partition up to its last mirrored offset, or up to the destination's log end.

    Topics may be mirrored meanwhile. `watch` is called from this thread.

    Raises:
        UsageError: a contradictory request.
        RefusedError: no such mirror or topic, the source is another cluster.
        UnreachableError: a cluster does not answer at all.
        KmirrorError: Spark does not start.
    """
    with _Run(destination, request, watch) as run:
        rows, plan = run.read_clusters()
        if plan.shares:
            with run.step("compare"):
                run.compare(plan)
        rows += [row_of(subject, run.verdicts.get(key, PartitionVerdict())) for key, subject in run.subjects.items()]
        rows.sort(key=lambda row: (row.topic, row.partition if row.partition is not None else -1))
        return run.outcome(rows, plan)


def explain(destination: Destination, request: VerifyRequest, watch: Watch = unwatched) -> list[PlannedRange]:
    """Return what `verify` would compare in which task, without comparing or starting Spark. Raises as `verify`."""
    with _Run(destination, request, watch) as run:
        _, plan = run.read_clusters()
        return [
            PlannedRange(
                topic=piece.topic,
                partition=piece.partition,
                start=piece.start,
                end=piece.end,
                size_in_bytes=run.size_of(piece),
                task=task,
                where=plan.where,
            )
            for task, share in enumerate(plan.shares)
            for piece in share.pieces
        ]


def _read_clusters(
    destination: Destination, mirror: MirrorRecord, topics: Sequence[TopicRecord]
) -> tuple[ClusterSnapshot, ClusterSnapshot, Set[str]]:
    """Return what both clusters say; also on which sides other brokers know more partitions, or may know more."""
    with Prober(destination) as prober:
        names = [topic.topic for topic in topics]
        here, sources = prober.read(names, [(mirror, [topic.source_topic for topic in topics])])
    there = sources[mirror.name]
    if there.trouble is not None:
        raise there.trouble
    uncertain: set[str] = set()
    if odd := [topic for topic in topics if _has_other_partitions(topic, here, there)]:
        if _may_have_more(destination.client, here, [topic.topic for topic in odd]):
            uncertain.add("destination")
        with source_client(mirror.source, mirror.source_cluster_id) as source:
            if _may_have_more(source, there, [topic.source_topic for topic in odd]):
                uncertain.add("source")
    return here, there, uncertain


def _has_other_partitions(topic: TopicRecord, here: ClusterSnapshot, there: ClusterSnapshot) -> bool:
    ours, theirs = here.topics.get(topic.topic), there.topics.get(topic.source_topic)
    return ours is not None and theirs is not None and ours.partitions.keys() != theirs.partitions.keys()


def _may_have_more(client: ClusterClient, found: ClusterSnapshot, topics: Sequence[str]) -> bool:
    """Return whether any broker knows more partitions, as one that lags behind does not, or does not answer."""
    newest, without_answer = client.newest_metadata(topics)
    more = [name for name in topics if newest.topics[name].partitions.keys() - found.topics[name].partitions.keys()]
    return bool(without_answer or more)


def _subjects(
    state: State,
    mirror: MirrorRecord,
    topics: Sequence[TopicRecord],
    here: ClusterSnapshot,
    there: ClusterSnapshot,
    uncertain: Set[str],
    logins: Mapping[str, ClientConfig],
) -> tuple[list[VerifyRow], list[Subject]]:
    """Return rows for what cannot be compared, and subjects for what can."""
    rows: list[VerifyRow] = []
    subjects: list[Subject] = []
    for topic in topics:
        ours, theirs = here.topics.get(topic.topic), there.topics.get(topic.source_topic)
        row = _topic_trouble(topic, ours, theirs, logins)
        if row is not None or ours is None or theirs is None:
            rows += [row] if row else []
            continue
        records = {record.partition: record for record in state.partitions(mirror.name, topic.topic)}
        recreated = None
        if topic.source_topic_id and theirs.printed_topic_id not in (None, topic.source_topic_id):
            recreated = (
                f"the source topic was deleted and created again: "
                f"its id was {topic.source_topic_id}, it is {theirs.printed_topic_id} now"
            )
        for partition in sorted({*ours.partitions, *theirs.partitions}):
            found = _subject(topic, partition, records.get(partition), recreated, here, there, uncertain)
            if isinstance(found, Subject):
                subjects.append(found)
            else:
                rows.append(found)
    return rows, subjects


def _topic_trouble(
    topic: TopicRecord, ours: TopicMetadata | None, theirs: TopicMetadata | None, logins: Mapping[str, ClientConfig]
) -> VerifyRow | None:
    def row(reason: Reason | None, message: str, hint: str | None = None) -> VerifyRow:
        message = f"could not be compared: {message}"
        return VerifyRow(
            topic=topic.topic, partition=None, result=Outcome.FAILED, message=message, reason=reason, hint=hint
        )

    for found, name, side, login in (
        (ours, topic.topic, "destination", logins["destination"]),
        (theirs, topic.source_topic, "source", logins["source"]),
    ):
        code = found.error_code if found else Code.UNKNOWN_TOPIC_OR_PARTITION
        if code == Code.TOPIC_AUTHORIZATION_FAILED:
            grant = grant_line(login, _NEEDED, *option("--topic", name))
            return row(Reason.NOT_AUTHORIZED, f"no right to DESCRIBE topic {name} of the {side}", grant)
        if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            reason = Reason.DESTINATION_TOPIC_DELETED if side == "destination" else Reason.SOURCE_TOPIC_DELETED
            return row(reason, f"the {side} has no topic {name}")
        if code and code != Code.LEADER_NOT_AVAILABLE:
            return row(None, f"the {side} does not describe topic {name} (error {code})", "try again")
    if is_gone(topic, ours):
        message = "the mirror topic was deleted; another topic now has its name"
        return row(Reason.DESTINATION_TOPIC_DELETED, message)
    return None


def _without_offsets(found: ClusterSnapshot, partition: TopicPartition, cluster: str) -> str:
    """Return why the offsets of a partition are unknown."""
    leader_id = found.topics[partition.topic].partitions[partition.partition].leader_id
    if leader_id is None:
        return f"{partition} has no leader on the {cluster}"
    return f"broker {leader_id} of the {cluster}, which leads {partition}, does not say where it starts and ends"


def _subject(
    topic: TopicRecord,
    partition: int,
    record: PartitionRecord | None,
    recreated: str | None,
    here: ClusterSnapshot,
    there: ClusterSnapshot,
    uncertain: Set[str],
) -> Subject | VerifyRow:
    last_mirrored = record.last_mirrored_offset if record else None

    def row(result: Outcome, message: str, reason: Reason | None = None, **more: Any) -> VerifyRow:
        return VerifyRow(
            topic=topic.topic,
            partition=partition,
            result=result,
            message=message,
            reason=reason,
            last_mirrored_offset=last_mirrored,
            **more,
        )

    ours, theirs = TopicPartition(topic.topic, partition), TopicPartition(topic.source_topic, partition)
    again = f"try again; `{on_mirror('check', topic.mirror)}` shows which brokers do not answer, and why"
    stopped = topic.desired is DesiredState.STOPPED
    source_offset, source_start = there.last_stable_offset.get(theirs), there.log_start_offset.get(theirs)
    log_end, log_start = here.high_watermark.get(ours), here.log_start_offset.get(ours)
    for side, found, name in (("destination", here, topic.topic), ("source", there, topic.source_topic)):
        if side in uncertain and partition not in found.topics[name].partitions:
            what = f"could not be compared: whether the {side} has this partition is not certain"
            return row(Outcome.TIMED_OUT, f"{what}: its brokers disagree, or not all of them answer", hint=again)
    if partition not in here.topics[topic.topic].partitions:
        lag = None if stopped or source_offset is None else source_offset - (source_start or 0)
        yet = "" if stopped else " yet"
        return row(Outcome.DONE, f"not on the destination{yet}" + (f", lag {lag}" if lag else ""), lag=lag)
    if log_end is None or log_start is None:
        return row(Outcome.FAILED, f"could not be compared: {_without_offsets(here, ours, 'destination')}", hint=again)
    end = log_end if last_mirrored is None or not stopped else last_mirrored
    if partition not in there.topics[topic.source_topic].partitions:
        if end <= log_start:
            return row(Outcome.DONE, "empty, and the source has no such partition")
        message = f"differs: the source has no such partition, the destination has offsets {log_start} to {end - 1}"
        return row(Outcome.FAILED, message, Reason.PARTITIONS_DECREASED, different=True, start=log_start, end=end)
    if source_offset is None or source_start is None:
        return row(Outcome.FAILED, f"could not be compared: {_without_offsets(there, theirs, 'source')}", hint=again)
    start = max(log_start, source_start)
    notes = (retention_note(source_start, log_start),) if source_start != log_start else ()
    lag = None if stopped else max(0, source_offset - log_end)
    # one that was stopped and ends before that has lost its tail, whatever the source still has
    start = min(start, end, log_end)
    # a log that ends before the start of its source is either old or not aligned yet
    has_lower_start = log_start < start and (start < end or stopped)
    return Subject(
        topic.topic,
        partition,
        start,
        end,
        lag,
        last_mirrored,
        recreated,
        notes,
        destination_start=log_start if has_lower_start else None,
        unaligned=not stopped
        and record is not None
        and not (record.aligned or record.begun or record.initial_copy_complete),
    )


class _Run:
    """A verification in progress: what is known of each partition, and how long each step took."""

    def __init__(self, destination: Destination, request: VerifyRequest, watch: Watch) -> None:
        if request.sample is not None and not 0 <= request.sample <= _MOST_SAMPLES:
            raise UsageError(
                f"--sample {request.sample} is not a number from 0 to {_MOST_SAMPLES}", "omit it to compare all"
            )
        self._state = destination.state()
        self._mirror = require_mirror(self._state, request.mirror)
        topics = self._state.topics(request.mirror)
        self._topics = select_topics(topics, request.topics, f"of mirror {request.mirror}")
        self.subjects: dict[TopicPartition, Subject] = {}
        self.verdicts: dict[TopicPartition, PartitionVerdict] = {}
        self._extents: dict[TopicPartition, Extent] = {}
        self._destination = destination
        self._request = request
        self._watch = watch
        self._began_ms = now_ms()
        #: Each step, and its duration in milliseconds.
        self._steps: list[tuple[str, int]] = []
        self._sources = {topic.topic: topic.source_topic for topic in self._topics}
        lanes = stored_settings(self._mirror.settings).copy_lanes
        self._bulk = Bulk(request.spark, "verify", request.mirror, lanes, watch)

    def __enter__(self) -> Self:
        self._bulk.__enter__()
        self._left = LeftBehind(self._mirror, whole=self._request.topics is None)
        return self

    def __exit__(self, *error: Any) -> None:
        with self._left:
            self._bulk.__exit__(*error)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step."""
        began = time.monotonic()
        yield
        self._steps.append((name, round((time.monotonic() - began) * 1000)))

    def read_clusters(self) -> tuple[list[VerifyRow], ComparisonPlan]:
        """Read both clusters; return rows for what cannot be compared, and a plan for the rest."""
        mirror = self._mirror
        with self.step("look"), Meter(self._watch, f"reading both clusters of mirror {mirror.name}"):
            here, there, uncertain = _read_clusters(self._destination, mirror, self._topics)
            logins = {"destination": self._destination.config, "source": client_config(mirror.source)}
            rows, subjects = _subjects(self._state, mirror, self._topics, here, there, uncertain, logins)
            self.subjects = {TopicPartition(subject.topic, subject.partition): subject for subject in subjects}
            return rows, self._plan([subject for subject in subjects if subject.has_work])

    def _plan(self, subjects: Sequence[Subject]) -> ComparisonPlan:
        mirror, destination = self._mirror, self._destination
        clusters = ClusterAccess(mirror.source, mirror.source_cluster_id), destination.access
        if not subjects:
            return plan_comparison(self._bulk, (), *clusters)
        sizes = partition_sizes(destination.client, [TopicPartition(one.topic, one.partition) for one in subjects])
        with source_client(mirror.source, mirror.source_cluster_id) as source:
            pairs = dict.fromkeys((self._sources[one.topic], one.topic) for one in subjects)
            indivisible = indivisible_topics(source, destination.client, pairs)
        for one in subjects:
            partition = TopicPartition(one.topic, one.partition)
            self._extents[partition] = Extent(
                one.topic,
                one.partition,
                self._sources[one.topic],
                one.start,
                one.end,
                sizes.get(partition),
                one.topic not in indivisible,
                one.destination_start,
            )
        extents, sample = list(self._extents.values()), self._request.sample
        return plan_comparison(self._bulk, extents, *clusters, sample)

    def size_of(self, piece: Piece) -> int | None:
        """Return about how many bytes a piece has; None if brokers do not report the size of its partition."""
        extent = self._extents[piece.destination]
        return None if extent.size_in_bytes is None else round(extent.bytes_per_offset * (piece.end - piece.start))

    def compare(self, plan: ComparisonPlan) -> None:
        """Compare as planned."""
        what = f"comparing mirror {self._request.mirror}"
        self.verdicts = carry_out(self._bulk, plan, what, self._watch, differing)

    def outcome(self, rows: Sequence[VerifyRow], plan: ComparisonPlan) -> VerifyOutcome:
        """Return the result with its evidence."""
        mirror, tasks = self._mirror, len(plan.shares)
        code = exit_code_of(rows)
        error = error_of(rows, code)
        warnings = [*retention_notes(self._topics, now_ms())]
        left = self._left.warnings(self._destination.state, "not compared")
        nothing = f"mirror {mirror.name} has no topics yet: nothing was compared"
        if left and not rows:
            code = ExitCode.REFUSED
            error, left = ErrorInfo(code, nothing, left[0]), []
        warnings += left if rows or error else [nothing]
        shown = tuple(replace(row, source_topic=self._sources.get(row.topic)) for row in rows)
        where = plan.where if tasks else None
        how = self._bulk.summary(plan.where, tasks) if tasks else ""
        outcome = VerifyOutcome(
            mirror=mirror.name,
            exit_code=code,
            rows=shown,
            error=error,
            where=where,
            tasks=tasks,
            warnings=tuple(warnings),
            how=how,
        )
        deed = VerbRun("verify", self._destination, mirror, self._began_ms)
        work = VerifyEvidence(outcome, tuple(self._steps), self._bulk.master, self._request.sample)
        return replace(outcome, evidence=document(VERB_RUN, deed) | document(VERIFY_EVIDENCE, work))
