"""What promote checks besides offsets: settings, rights, contents, and groups that also read topics not promoted.

`FinalCheck` is everything that is checked again right before a stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kmirror.cluster.client import EARLIEST, ClusterClient
from kmirror.cluster.connection import WrongClusterError
from kmirror.cluster.groups.cluster_groups import ClusterGroups
from kmirror.cluster.protocol.group_offsets import GroupKind
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.rights.authorized import missing_rights
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import on_topics
from kmirror.engine.driver.side_jobs import JobView
from kmirror.errors import HISTORY_REASONS, KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.ops.base.context import (
    Destination,
    as_kmirror_error,
    cluster_id_of,
    naming_cluster,
    now_ms,
    require_mirror,
    require_same_cluster,
    source_client,
)
from kmirror.ops.base.topic_results import GroupResult, Outcome, TopicResult
from kmirror.ops.groups.commit import reason_text
from kmirror.ops.groups.sync import final_sync
from kmirror.ops.jobs.settings_sync import SettingsSyncJob
from kmirror.ops.rights.producer_block import ProducerBlock
from kmirror.ops.stop.promote_readiness import ReadinessChecker
from kmirror.settings.parsing import stored_settings
from kmirror.settings.patterns import TopicSelector
from kmirror.state.engine_identity import living_engine
from kmirror.state.records import MirrorRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.state.store import DEFAULT_TIMEOUT_S
from kmirror.sync.setting_changes import retention_notes, sync_settings
from kmirror.words import visible
from kmirror.work import Watch

if TYPE_CHECKING:
    from kmirror.ops.stop.promote_request import PromoteRequest

_MOST_NAMED = 10
_SOURCE_S = 10.0
#: Why contents could not be compared now: promote waits, as while a cluster does not answer at all.
_MAY_PASS = (None, Reason.SOURCE_UNREACHABLE, Reason.DESTINATION_UNREACHABLE)
#: What a stop needs on a topic whose copy is complete.
_NEEDED = ("DESCRIBE", "READ", "WRITE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS")


def settings_trouble(
    destination: Destination, mirror: str, topics: Collection[str], *, dry_run: bool = False
) -> dict[str, str]:
    """Sync the settings of these topics from their sources; return by topic, as a sentence, what still differs.

    With `dry_run` they are only compared. Returns nothing if the mirror does not sync settings.

    Raises RefusedError, UnreachableError: as for `source_client`.
    """
    state = destination.state()
    record = require_mirror(state, mirror)
    settings = stored_settings(record.settings)
    known = [topic for name in topics if (topic := state.topic(mirror, name))]
    if not settings.sync_topic_configs_enabled or not known:
        return {}
    trouble, is_recorded = _compare_settings(destination, record, known)
    if not dry_run and (trouble or not is_recorded):
        # only if needed: while producers are blocked, every second counts
        job = SettingsSyncJob(mirror, destination.properties, destination.cluster_id)
        try:
            list(job.run(JobView(record, settings, tuple(known), {}, {})))
        except (KmirrorError, OutcomeUnknown) as error:
            return {topic.topic: f"settings: {error}" for topic in known}
        finally:
            job.close()
        state = destination.state()
        known = [topic for name in topics if (topic := state.topic(mirror, name))]
        trouble, _ = _compare_settings(destination, record, known)
    return trouble


def _compare_settings(
    destination: Destination, mirror: MirrorRecord, topics: Sequence[TopicRecord]
) -> tuple[dict[str, str], bool]:
    """Return by topic what differs, as a sentence, and whether the stored settings that a stop will apply are current.

    Settings of a first source are not read: they do not count as current for topics that have one.
    """
    with source_client(mirror.source, mirror.source_cluster_id) as source:
        there = topic_settings(source, [topic.source_topic for topic in topics])
    here = topic_settings(destination.client, [topic.topic for topic in topics])
    left_out = stored_settings(mirror.settings).excluded_properties
    trouble, is_recorded = {}, True
    for topic in topics:
        wanted, present = there.get(topic.source_topic, 0), here.get(topic.topic, 0)
        if isinstance(wanted, int) or isinstance(present, int):
            trouble[topic.topic] = "settings: they cannot be read on both sides"
            continue
        sync = sync_settings(topic, wanted, present, left_out)
        is_recorded &= sync.record == topic and topic.first_source_seen_ms is None
        if sync.changes:
            trouble[topic.topic] = f"settings: {', '.join(sorted(sync.changes))} differ from the source's"
    return trouble, is_recorded


def rights_trouble(destination: Destination, topics: Sequence[str]) -> dict[str, str]:
    """Return by topic, as a sentence, the rights on it that a stop needs and the destination does not grant.

    Raises UnreachableError: the destination does not answer.
    """
    return {
        topic: f"rights: the destination does not grant us {' and '.join(rights)} on it"
        for topic, rights in missing_rights(destination.client, topics, _NEEDED).items()
    }


def verify_trouble(
    destination: Destination, mirror: str, topics: Sequence[str], master: str, watch: Watch
) -> tuple[dict[str, list[TopicResult]], dict[str, str]]:
    """Compare contents; return by topic the rows of those that cannot be promoted, and why others are not compared yet.

    Raises RefusedError, UnreachableError: as `verify`.
    """
    from kmirror.ops.base.bulk import SparkChoice
    from kmirror.ops.verify.verify import VerifyRequest, verify

    request = VerifyRequest(mirror, TopicSelector(tuple(topics)), spark=SparkChoice(master))
    outcome = verify(destination, request, watch)
    failed: dict[str, list[TopicResult]] = {}
    unknown: dict[str, str] = {}
    for row in (row for row in outcome.rows if row.result is not Outcome.DONE):
        may_pass = row.result is Outcome.TIMED_OUT or (row.reason in _MAY_PASS and not row.is_lasting)
        if may_pass and not row.different:
            where = row.topic if row.partition is None else f"{row.topic}-{row.partition}"
            unknown.setdefault(row.topic, f"contents: {where} {row.message}")
            continue
        # what differs is a difference of histories, whatever is known of its cause
        reason = Reason.OFFSET_MISMATCH if row.different and row.reason not in HISTORY_REASONS else row.reason
        hint = f"{on_topics('verify', mirror, [row.topic])} shows the first difference"
        failed.setdefault(row.topic, []).append(
            TopicResult(row.topic, row.partition, Outcome.FAILED, row.message, reason, hint=hint)
        )
    return failed, unknown


def require_source(source: ClusterClient, mirror: MirrorRecord, *, is_needed: bool) -> str:
    """Return a sentence on whether the source answers, which it must if it `is_needed`: what has begun ends without it.

    Raises:
        RefusedError: another cluster answers as the source.
        UnreachableError: it does not answer.
    """
    try:
        require_same_cluster(mirror.source_cluster_id, cluster_id_of(source))
    except UnreachableError as error:
        if is_needed or isinstance(error, WrongClusterError):
            raise
        return f"the source does not answer: {error.message}"
    return f"the source answers: cluster {mirror.source_cluster_id}"


def missing_beginnings(
    destination: Destination, source: ClusterClient, mirror: str, topics: Collection[TopicRecord]
) -> list[str]:
    """Return a warning for each partition that lacks records which its source still has: they were deleted here."""
    partitions = {
        TopicPartition(topic.topic, number): TopicPartition(topic.source_topic, number)
        for topic in topics
        for number in range(topic.partitions)
    }
    try:
        state = destination.state()
        here = destination.client.list_offsets(dict.fromkeys(partitions, EARLIEST))
        there = source.list_offsets(dict.fromkeys(partitions.values(), EARLIEST), timeout=_SOURCE_S)
    except (KmirrorError, OutcomeUnknown) as error:
        return [f"whether the copies lack records that were deleted here is unknown: {error}"]
    warnings = []
    for partition, source_partition in partitions.items():
        start, source_start = here[partition].offset, there[source_partition].offset
        record = state.partition(mirror, *partition)
        begin = None if source_start is None else max(source_start, record.first_offset or 0 if record else 0)
        if start is not None and begin is not None and begin < start:
            which = f"offset {begin} is" if start == begin + 1 else f"offsets {begin} to {start - 1} are"
            warnings.append(f"{partition}: {which} on the source only: the log here starts at {start}")
    return warnings


@dataclass(slots=True)
class FinalCheck:
    """Check topics that are `ready` once more; `blockers` says by topic why it cannot be stopped now.

    Without `acts`, for a dry run, nothing is changed or waited for, and neither contents are compared nor ends, which
    have just been read, are read again.

    `drop` is called with topics of `waiting` that cannot be stopped at all and their rows, and removes them from it.
    """

    destination: Destination
    request: PromoteRequest
    source: ClusterClient
    checker: ReadinessChecker
    waiting: Mapping[str, TopicRecord]
    ready: Sequence[str]
    drop: Callable[[str, list[TopicResult]], None]
    watch: Watch
    #: What blocks producers at the source, if that was requested.
    producer_block: ProducerBlock | None = None
    #: When the time runs out, by `time.monotonic`.
    until: float = math.inf
    acts: bool = True
    blockers: dict[str, str] = field(default_factory=dict)
    groups: tuple[GroupResult, ...] = ()

    @property
    def going(self) -> list[str]:
        """The topics that can be stopped now."""
        return [name for name in self.ready if name in self.waiting and name not in self.blockers]

    def run(self) -> None:
        """Check everything; if a cluster does not answer, no topic can be stopped now."""
        destination, request, ends = self.destination, self.request, self.checker.high_watermarks
        before = {name: ends(self.waiting[name]) for name in self.ready}
        try:
            self._block(settings_trouble(destination, request.mirror, self.ready, dry_run=not self.acts))
            if request.together:
                self._block(rights_trouble(destination, self.ready))
            if request.verify and self.acts and (going := self.going):
                failed, unknown = verify_trouble(destination, request.mirror, going, request.master, self.watch)
                self.blockers |= unknown
                for name, rows in failed.items():
                    self.drop(name, rows)
            self._sync_groups()
            if not self.acts:
                return
            with naming_cluster("the source", Reason.SOURCE_UNREACHABLE):
                waiting = [self.waiting[name] for name in self.ready if name in self.waiting]
                self.checker.read_source_ends(self.source, waiting, self.until)
                if self.producer_block is not None:
                    self.blockers |= self.producer_block.unsettled(waiting, ends)
        except (KmirrorError, OutcomeUnknown) as error:
            self.blockers.update(dict.fromkeys(self.ready, str(error)))
        for name in self.going:
            if (trouble := self.checker.partition_trouble(self.waiting[name])) is not None:
                self.blockers[name] = trouble
            elif None in ends(self.waiting[name]):
                self.blockers[name] = "not all ends of the source are known now"
            elif request.idle_ms is not None and ends(self.waiting[name]) != before[name]:
                self.blockers[name] = "producers: the source's end moved a moment ago"

    def _block(self, trouble: Mapping[str, str]) -> None:
        for name, why in trouble.items():
            self.blockers[name] = f"{self.blockers[name]}; {why}" if name in self.blockers else why

    def _sync_groups(self) -> None:
        topics = self.going
        if not topics:
            return
        try:
            self.groups = final_sync(self.destination, self.request.mirror, topics, dry_run=not self.acts)
        except (KmirrorError, OutcomeUnknown) as error:
            self.blockers |= dict.fromkeys(topics, f"groups: {as_kmirror_error(error).message}")
        for row in self.groups:
            if row.result in (Outcome.TIMED_OUT, Outcome.FAILED):
                why = f"group {row.group} is not at the same offset as at the source ({row.reason or 'moving'})"
                self.blockers.setdefault(row.topic, why)


def dry_run_warnings(
    destination: Destination,
    source: ClusterClient,
    checker: ReadinessChecker,
    state: State,
    mirror: str,
    waiting: Mapping[str, TopicRecord],
    left: Collection[TopicRecord],
    groups: Iterable[GroupResult],
) -> list[str]:
    """Return what an operator should know before a promote of the `waiting`; the stop of those not `left` had begun.

    `groups` are reported already.
    """
    warnings = [
        f"{partition} exists on the destination only: nothing was copied to it"
        for topic in left
        for partition in checker.extra_partitions(topic)
    ]
    warnings += retention_notes(waiting.values(), now_ms())
    warnings += missing_beginnings(destination, source, mirror, left)
    if living_engine(destination.store, state.engine(mirror), DEFAULT_TIMEOUT_S) is None:
        warnings.append("no engine is in charge: promote would run one itself")
    if stored_settings(require_mirror(state, mirror).settings).sync_group_offsets_enabled:
        refused = {row.group for row in groups if row.result is Outcome.REFUSED}
        warnings += skipped_groups(state, mirror, waiting, refused)
        warnings += other_topics_of_groups(source, state, mirror, waiting.values())
    return warnings


def skipped_groups(state: State, mirror: str, topics: Collection[str], reported: Collection[str]) -> list[str]:
    """Return a warning for each group that the sync skips, if it was synced for one of these topics or never was.

    Groups that are `reported` already are omitted.
    """
    return [
        f"group {visible(one.destination_group)} is skipped by the sync: {reason_text(one.skipped, one.detail)}"
        for one in state.groups(mirror)
        if one.skipped is not None
        and one.destination_group not in reported
        and (not one.offsets or not one.offsets.keys().isdisjoint(topics))
    ]


def other_topics_of_groups(source: ClusterClient, state: State, mirror: str, batch: Iterable[TopicRecord]) -> list[str]:
    """Return a warning for each group that also uses topics of the source that are not part of this batch."""
    settings = stored_settings(require_mirror(state, mirror).settings)
    names = {topic.source_topic for topic in batch}
    groups = ClusterGroups(source)
    try:
        kinds = {
            name: one.kind
            for name, one in groups.listed().items()
            if one.kind is GroupKind.CONSUMER and settings.selects_group(name)
        }
        found = groups.committed(kinds)
    except (KmirrorError, OutcomeUnknown) as error:
        return [f"the topics used by groups could not be read: {error}"]
    warnings = []
    for group, offsets in sorted(found.items()):
        used = set() if isinstance(offsets, int) else {partition.topic for partition in offsets}
        if used & names and (others := sorted(used - names)):
            more = ", …" if len(others) > _MOST_NAMED else ""
            warnings.append(f"group {group} also uses {', '.join(others[:_MOST_NAMED])}{more}, not part of this batch")
    return warnings
