"""Rebuild a mirror topic whose source topic was recreated, or has another history, without losing old records.

1. The topic is *claimed*: its record says that it is being rebuilt, why, and into which archive its records go.
   Engines leave it alone from then on.
2. Records that the rebuilt topic will not hold are archived and compared (`engine.archive`). Then this is recorded,
   with the committed offsets of consumer groups, because the brokers delete them with the topic.
3. The topic is deleted, by its id, and created again with the source's partitions and settings.
4. Synced groups get their offsets from the source, others the new log's start; the record is completed, with an event.

After an interruption, `carry_out` continues at the recorded step. Nothing is deleted before its archive has been
verified to be complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.topics.log_dirs import disk_use
from kmirror.cluster.topics.policies import create_settled, settled_to_change
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import on_mirror, on_topics
from kmirror.engine.archive.archive_topic import archive_name
from kmirror.engine.archive.archiving import ArchiveSpec, PartitionRanges, archive_topic
from kmirror.engine.bulk.runner import SparkTasks, TaskRuntime
from kmirror.engine.driver.rebuilds import RESETS
from kmirror.engine.histories.fork_search import ForkQuestion, find_forks
from kmirror.engine.histories.stretches import LogEnds
from kmirror.engine.spec import own_producer_id
from kmirror.errors import BrokerError, ExitCode, KmirrorError, Reason, RefusedError, UnreachableError
from kmirror.ops.add.topic_admin import CREATION_S, TopicAdmin, await_topics, create_archive, delete_topic
from kmirror.ops.base.context import (
    Destination,
    actor,
    change,
    cluster_id_of,
    now_ms,
    require_mirror,
    require_same_cluster,
    source_client,
)
from kmirror.ops.base.gone import not_described
from kmirror.ops.base.source_settings import source_settings
from kmirror.ops.groups.restore import OffsetsByGroup, committed_on, restore_offsets
from kmirror.settings.parsing import stored_settings
from kmirror.state.event_records import Event
from kmirror.state.records import (
    PENDING_REBUILD,
    DesiredState,
    Guard,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    Rebuild,
    RebuildStep,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State
from kmirror.state.store import STATE_TOPIC
from kmirror.state.waiting import Deadline
from kmirror.sync.setting_changes import SettingsPlan, as_first_source, settings_for, settings_made
from kmirror.words import counted
from kmirror.work import Meter, Watch, unwatched

_HOUR_MS = 3_600_000


class LaneRuntime(TaskRuntime, Protocol):
    """The Spark application that lanes run in."""

    @property
    def spare_slots(self) -> int: ...


class TopicRebuilder:
    """Rebuild topics of one mirror of a destination; see `engine.driver.rebuilds.Rebuilder`."""

    def __init__(
        self, properties: Mapping[str, str], mirror: str, runtime: LaneRuntime, cluster_id: str | None = None
    ) -> None:
        self._properties = dict(properties)
        self._cluster_id = cluster_id
        self._mirror = mirror
        self._runtime = runtime

    def _tasks(self) -> SparkTasks:
        """Return the runner of tasks besides the lanes; one slot stays free for a lane that restarts."""
        return SparkTasks(self._runtime, max(1, self._runtime.spare_slots - 1))

    def begin(self, topic: str, reason: Reason, *, consented: bool) -> None:
        """Claim a topic.

        Raises:
            RefusedError: too many were rebuilt within the hour, or another operation on it is in progress.
        """
        with Destination.open(self._properties, cluster_id=self._cluster_id) as destination:
            archive = archive_name(topic, destination.client.metadata(None).topics)
            if not consented:
                _require_space(destination.client, topic, self._mirror)

            def decide(state: State) -> Changes:
                record = state.topic(self._mirror, topic)
                if record is None or record.desired is not DesiredState.ACTIVE or record.pending_operation:
                    raise RefusedError(f"another operation on {topic} is in progress", "check with `kmirror describe`")
                if not consented:
                    self._require_room(state)
                rebuild = Rebuild(reason, RebuildStep.ARCHIVE, archive, now_ms())
                details = {
                    "topic": topic,
                    "reason": reason,
                    "archive": archive,
                    "sourceTopicId": record.source_topic_id,
                }
                event = Event(now_ms(), self._mirror, "rebuild", actor(), "BEGUN", details)
                return Changes((replace(record, pending_operation=PENDING_REBUILD, rebuild=rebuild),), (), (event,))

            change(destination, self._mirror, decide)

    def _require_room(self, state: State) -> None:
        limit = stored_settings(require_mirror(state, self._mirror).settings).source_reset_auto_max_topics
        since = now_ms() - _HOUR_MS
        recent = [t for t in state.topics(self._mirror) if t.rebuild is not None or (t.rebuilt_at_ms or 0) > since]
        if len(recent) >= limit:
            raise RefusedError(
                f"{counted(len(recent), 'topic')} of mirror {self._mirror} rebuilt within the last hour: no more are "
                f"rebuilt automatically (source.reset.auto.max.topics={limit})",
                f"check the source; then: {on_mirror('recover', self._mirror)} --accept-reset",
            )

    def carry_out(self, topic: str, watch: Watch = unwatched) -> None:
        """Do the remaining steps of a topic's rebuild; no lane may write to it.

        Raises:
            KmirrorError: a step failed; nothing is lost, and it can be called again.
        """
        with Destination.open(self._properties, cluster_id=self._cluster_id) as destination:
            state = destination.state()
            mirror = require_mirror(state, self._mirror)
            with source_client(mirror.source, mirror.source_cluster_id) as source:
                require_same_cluster(mirror.source_cluster_id, cluster_id_of(source))
                record, rebuild = self._claimed(state, topic)
                found = _require_topic(source, record.source_topic)
                if rebuild.step is RebuildStep.ARCHIVE:
                    rebuild = self._with_ranges(destination, source, found, record, rebuild, mirror.source)
                    archived = self._archive(destination, record, rebuild, watch)
                    groups = committed_on(destination.client, topic)
                    rebuild = replace(rebuild, step=RebuildStep.REPLACE, groups=groups)
                    rebuild = self._record(destination, topic, rebuild, {"records": archived, "groups": groups})
                plan = self._settings(destination, source, mirror, record)
                made, plan = self._replace(destination, record, len(found.partitions), plan)
                bounds = _bounds(source, record.source_topic, len(found.partitions), read_committed=True)
                put, failed = restore_offsets(destination, source, mirror, record, rebuild.groups or {}, bounds)
                self._complete(destination, topic, found, made, plan, failed, put)

    def _claimed(self, state: State, topic: str) -> tuple[TopicRecord, Rebuild]:
        record = state.topic(self._mirror, topic)
        if record is None or record.rebuild is None or record.pending_operation != PENDING_REBUILD:
            raise RefusedError(f"{topic} is no longer being rebuilt", "check with `kmirror describe`", Reason.FENCED)
        return record, record.rebuild

    def _record(
        self, destination: Destination, topic: str, rebuild: Rebuild, details: Mapping[str, object] | None = None
    ) -> Rebuild:
        def decide(state: State) -> Changes:
            record, _ = self._claimed(state, topic)
            content = {"topic": topic, "archive": rebuild.archive, **(details or {})}
            event = Event(now_ms(), self._mirror, "rebuild", actor(), "ARCHIVED", content)
            return Changes((replace(record, rebuild=rebuild),), (), (event,) if details else ())

        change(destination, self._mirror, decide)
        return rebuild

    def _with_ranges(
        self,
        destination: Destination,
        source: ClusterClient,
        there: TopicMetadata,
        record: TopicRecord,
        rebuild: Rebuild,
        source_properties: Mapping[str, str],
    ) -> Rebuild:
        """Decide once what to archive, and record it: all records if the source topic was recreated."""
        if rebuild.ranges is not None:
            return rebuild
        _require_id(destination, record)
        found = destination.client.metadata([record.topic]).topics[record.topic]
        here = _bounds(destination.client, record.topic, len(found.partitions))
        ranges: dict[int, tuple[tuple[int, int], ...]] = {p: (bounds,) for p, bounds in here.items()}
        is_same = there.printed_topic_id in (None, record.source_topic_id)
        if is_same and rebuild.reason not in RESETS:
            ranges = self._differing(source, record, here, source_properties)
        ranges = {p: tuple((low, high) for low, high in mine if low < high) for p, mine in ranges.items()}
        return self._record(destination, record.topic, replace(rebuild, ranges=ranges))

    def _differing(
        self,
        source: ClusterClient,
        record: TopicRecord,
        here: Mapping[int, tuple[int, int]],
        source_properties: Mapping[str, str],
    ) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return the offsets that the source does not have: below its log start, and from the fork on."""
        there = _bounds(source, record.source_topic, len(here), read_committed=True)
        questions = [
            ForkQuestion(
                TopicPartition(record.source_topic, p),
                TopicPartition(record.topic, p),
                LogEnds(there[p][0], there[p][1], start, end),
            )
            for p, (start, end) in here.items()
            if p in there
        ]
        forks: dict[int, int] = {p: start for p, (start, _) in here.items()}
        name = f"forks of {record.topic}"
        with Meter(unwatched, name) as meter:
            for answer in find_forks(self._tasks(), name, questions, source_properties, self._properties, meter):
                if answer.fork is None:
                    raise answer.trouble or KmirrorError(f"the fork of {answer.question.destination} was not found")
                # records that could not be compared are archived as well
                partition = answer.question.destination.partition
                agreed = answer.fork.agreed_at
                forks[partition] = max(here[partition][0], agreed + 1 if agreed is not None else here[partition][0])
        return {
            p: ((start, min(max(start, there[p][0] if p in there else end), forks[p])), (forks[p], end))
            for p, (start, end) in here.items()
        }

    def _archive(self, destination: Destination, record: TopicRecord, rebuild: Rebuild, watch: Watch) -> int:
        """Archive and compare; return the number of archived records."""
        ranges = rebuild.ranges or {}
        wanted = tuple(PartitionRanges(p, mine) for p, mine in sorted(ranges.items()) if mine)
        if not wanted:
            return 0
        factor = stored_settings(require_mirror(destination.state(), self._mirror).settings).replication_factor
        create_archive(destination.client, record.topic, rebuild.archive, max(ranges) + 1, factor)
        spec = ArchiveSpec(self._properties, record.topic, rebuild.archive, record.destination_topic_id, wanted)
        saved = 0
        for outcome in archive_topic(spec, self._tasks(), watch).outcomes:
            partition = f"{record.topic}-{outcome.partition}"
            if outcome.trouble is not None:
                raise outcome.trouble
            if not outcome.saved or outcome.comparison is None:
                raise KmirrorError(
                    f"{rebuild.archive} does not hold what {partition} does: {outcome.comparison}",
                    f"nothing was deleted; delete {rebuild.archive}: kmirror recreates it",
                )
            saved += outcome.comparison.records
        now = _bounds(destination.client, record.topic, max(ranges) + 1)
        for p, mine in ranges.items():
            if mine and now[p][1] != mine[-1][1]:
                raise KmirrorError(
                    f"another client writes to {record.topic}-{p}, which is being rebuilt: it ends at {now[p][1]},"
                    f" but is archived up to {mine[-1][1]}",
                    "stop the client that writes to it",
                    Reason.DESTINATION_WRITTEN,
                )
        return saved

    def _settings(
        self, destination: Destination, source: ClusterClient, mirror: MirrorRecord, record: TopicRecord
    ) -> SettingsPlan:
        known = topic_settings(destination.client, [STATE_TOPIC])[STATE_TOPIC]
        name = record.source_topic
        found = source_settings(source, mirror.source, [name])
        settings = found.topics[name]
        if isinstance(settings, int):
            raise UnreachableError(f"the source does not return the settings of {name} (error {settings})")
        seen_ms = found.first_source_seen_ms.get(name)
        if name in found.unreadable:
            settings, seen_ms = as_first_source(settings, record), record.first_source_seen_ms
        exclude = stored_settings(mirror.settings).excluded_properties
        plan = settings_for(settings, None if isinstance(known, int) else known, exclude)
        return replace(plan.settling(record.settled or {}), first_source_seen_ms=seen_ms)

    def _replace(
        self, destination: Destination, record: TopicRecord, partitions: int, plan: SettingsPlan
    ) -> tuple[TopicMetadata, SettingsPlan]:
        """Delete the topic and create it again; return the new one, and the settings that the destination takes."""
        client, topic = destination.client, record.topic
        # a command that has stopped the topic meanwhile waits a moment for requests sent before this check
        self._claimed(destination.state(), topic)

        def is_there() -> bool:
            found = client.metadata([topic]).topics.get(topic)
            return found is not None and found.printed_topic_id == record.destination_topic_id

        delete_topic(client, topic, record.destination_topic_id, is_there)
        factor = stored_settings(require_mirror(destination.state(), self._mirror).settings).replication_factor
        try:
            plan = plan.settling(create_settled(client, topic, partitions, factor, plan.now))
        except BrokerError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise
        made = await_topics(client, [topic], Deadline(CREATION_S)).topics[topic]
        # created by us before an interruption, or by another client, for instance through auto-creation
        ends = _bounds(client, topic, len(made.partitions))
        if len(made.partitions) != partitions or any(end for _, end in ends.values()):
            raise RefusedError(
                f"another client created topic {topic} while it was being rebuilt",
                f"delete it and kmirror continues; the old records are in {record.rebuild and record.rebuild.archive}",
                Reason.DESTINATION_TOPIC_DELETED,
            )
        plan = plan.settling(settled_to_change(client, topic, plan.now))
        refused = TopicAdmin(destination).set_settings({topic: plan.now})[topic]
        if refused is not None:
            raise refused
        return made, plan

    def _complete(
        self,
        destination: Destination,
        topic: str,
        source: TopicMetadata,
        made: TopicMetadata,
        plan: SettingsPlan,
        failed: Mapping[str, str],
        put: OffsetsByGroup,
    ) -> None:
        count, new_id = len(made.partitions), made.printed_topic_id

        def decide(state: State) -> Changes:
            record, rebuild = self._claimed(state, topic)
            saved = any((rebuild.ranges or {}).values())
            at = now_ms()
            partitions = tuple(
                PartitionRecord(
                    self._mirror,
                    topic,
                    p,
                    PartitionState.LOG_ALIGNMENT,
                    at,
                    # not the old producer id: a late request to the old topic must not fit
                    guard=Guard(own_producer_id(self._mirror, f"{topic}\0{new_id}", p), 0, -1, 0),
                )
                for p in range(count)
            )
            known = {partition.key for partition in partitions}
            forgotten = [one.key for one in state.partitions(self._mirror, topic) if one.key not in known]
            complete = replace(
                record,
                source_topic_id=source.printed_topic_id,
                destination_topic_id=new_id,
                partitions=count,
                pending_operation=None,
                deferred=dict(plan.deferred),
                settings=settings_made(plan),
                settled=dict(plan.settled) or None,
                inherited=plan.inherited,
                first_source_seen_ms=plan.first_source_seen_ms,
                recoveries=None,
                rebuild=None,
                rebuilt_at_ms=at,
                archive=rebuild.archive if saved else record.archive,
            )
            details = {
                "topic": topic,
                "reason": rebuild.reason,
                "archive": rebuild.archive if saved else None,
                "formerSourceTopicId": record.source_topic_id,
                "sourceTopicId": source.printed_topic_id,
                "formerTopicId": record.destination_topic_id,
                "topicId": new_id,
                "groups": {
                    g: {"from": dict(o), "to": dict(put.get(g, {})), "failed": failed.get(g)}
                    for g, o in (rebuild.groups or {}).items()
                },
            }
            event = Event(at, self._mirror, "rebuild", actor(), ExitCode.OK.name, details)
            return Changes((*partitions, complete), tuple(forgotten), (event,))

        change(destination, self._mirror, decide)


def _require_space(client: ClusterClient, topic: str, mirror: str) -> None:
    """Refuse an automatic archive that would fill the destination's disks, if their free space is known."""
    found = disk_use(client, topic)
    if found is not None and found.topic_bytes > found.free_bytes:
        raise RefusedError(
            f"an archive of {topic} needs {found.topic_bytes:,} bytes, but {found.free_bytes:,} are free",
            f"free some space; then: {on_topics('recover', mirror, [topic])} --accept-reset",
        )


def _require_topic(source: ClusterClient, name: str) -> TopicMetadata:
    found = source.metadata([name]).topics.get(name)
    if found is None or found.error_code or not found.partitions:
        raise UnreachableError(f"the source has no topic {name} now", "it is rebuilt once it exists again")
    return found


def _require_id(destination: Destination, record: TopicRecord) -> None:
    found = destination.client.metadata([record.topic]).topics[record.topic]
    if found.error_code not in (0, Code.UNKNOWN_TOPIC_OR_PARTITION):
        raise not_described(found)
    if found.error_code or found.printed_topic_id != record.destination_topic_id:
        raise RefusedError(
            f"mirror topic {record.topic} was deleted or recreated",
            "nothing of it can be archived; to mirror it again: " + on_topics("add", record.mirror, [record.topic]),
            Reason.DESTINATION_TOPIC_DELETED,
        )


def _bounds(
    client: ClusterClient, topic: str, partitions: int, *, read_committed: bool = False
) -> dict[int, tuple[int, int]]:
    """Return log start and end of each partition: the log end offset, or with `read_committed` the last stable one."""
    topic_partitions = [TopicPartition(topic, partition) for partition in range(partitions)]
    end_lookup = Lookup(LATEST, read_committed=read_committed, log_end=not read_committed)
    starts, ends = client.look_up_offsets(topic_partitions, (Lookup(EARLIEST), end_lookup))
    found = {}
    for topic_partition in topic_partitions:
        start, end = starts[topic_partition].offset, ends[topic_partition].offset
        if start is None or end is None:
            raise UnreachableError(f"the offsets of {topic_partition} are unknown at the moment", "kmirror retries it")
        found[topic_partition.partition] = (start, end)
    return found
