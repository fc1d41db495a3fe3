"""Rebuild a mirror topic whose source topic was recreated, or has another history, without losing old records.

1. The topic is *claimed*: its record says that it is being rebuilt, why, and into which archive its records go.
   Engines leave it alone from then on.
2. Records that the rebuilt topic will not hold are archived and compared (`engine.archive`), and this is recorded.
3. What brokers delete with the topic, as groups' committed offsets, is recorded. The topic is deleted, by its id, and
   created again with the source's partitions and settings.
4. Synced groups get their offsets from the source, others the new log's start; the record is completed, with an event.

After an interruption, `carry_out` continues at the recorded step. Nothing is deleted before its archive has been
verified to be complete.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.cluster.topics.policies import create_settled, settled_to_change
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import on_topics
from kmirror.engine.archive.archiving import ArchiveSpec, PartitionRanges, archive_topic
from kmirror.engine.bulk.runner import LaneRuntime, Runner, runner_beside_lanes
from kmirror.engine.histories.fork_search import ForkQuestion, find_forks
from kmirror.engine.histories.stretches import LogEnds
from kmirror.engine.spec import own_producer_id
from kmirror.errors import RESET_REASONS, BrokerError, ExitCode, KmirrorError, Reason, RefusedError, UnreachableError
from kmirror.ops.add.archive_admin import create_archive, is_kept, next_archive
from kmirror.ops.add.topic_admin import CREATION_S, TopicAdmin, await_deleted, await_topics, begin_deletion
from kmirror.ops.base.context import (
    Destination,
    actor,
    change,
    cluster_id_of,
    naming_cluster,
    naming_source,
    now_ms,
    own_event,
    require_mirror,
    require_same_cluster,
    source_client,
)
from kmirror.ops.base.gone import described_topic, is_there
from kmirror.ops.base.source_settings import source_settings
from kmirror.ops.groups.restore import OffsetsByGroup, committed_on, former_groups, restore_offsets
from kmirror.ops.jobs.rebuild_claim import claim, settings_of, unreadable_settings
from kmirror.ops.jobs.rebuild_topics import certain_bounds, require_id, require_topic
from kmirror.settings.parsing import stored_settings
from kmirror.state.archive_proofs import Proof
from kmirror.state.event_records import Event
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.records import (
    PENDING_REBUILD,
    Guard,
    MirrorRecord,
    PartitionRecord,
    PartitionState,
    Rebuild,
    RebuildStep,
    TopicRecord,
)
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import Deadline
from kmirror.sync.setting_changes import (
    SettingsPlan,
    as_first_source,
    own_settings,
    settings_for,
)
from kmirror.work import Meter, Watch, unwatched

#: How often to replace an empty topic that another client creates meanwhile, in one attempt.
_TRIES = 5
#: An attempt that took so many seconds had got on.
_LONG_S = 300.0


class TopicRebuilder:
    """Rebuild topics of one mirror of a destination; see `engine.driver.rebuilds.Rebuilder`."""

    def __init__(
        self, properties: Mapping[str, str], mirror: str, runtime: LaneRuntime, cluster_id: str | None = None
    ) -> None:
        self._properties = dict(properties)
        self._cluster_id = cluster_id
        self._mirror = mirror
        self._runtime = runtime
        #: Since when attempts have failed because a cluster does not answer or refuses us, by topic.
        self._failing: dict[str, float] = {}

    def begin(self, topic: str, reason: Reason, *, consented: bool) -> None:
        """Claim a topic. Raises as `claim`."""
        with Destination.open(self._properties, cluster_id=self._cluster_id) as destination:
            claim(destination, self._mirror, topic, reason, consented=consented)

    def carry_out(self, topic: str, watch: Watch = unwatched) -> None:
        """Do the remaining steps of a topic's rebuild; no lane may write to it.

        Raises:
            KmirrorError: a step failed; nothing is lost, and it can be called again.
        """
        began = time.monotonic()
        with Destination.open(self._properties, cluster_id=self._cluster_id) as destination:
            try:
                self._attempt(destination, topic, watch)
                self._failing.pop(topic, None)
            except KmirrorError as error:
                if time.monotonic() - began > _LONG_S:
                    self._failing.pop(topic, None)
                if error.reason is not Reason.FENCED:
                    self._record_trouble(destination, topic, error)
                raise

    def _record_trouble(self, destination: Destination, topic: str, error: KmirrorError) -> None:
        """Record why the rebuild fails, for those who look at the topic; what may pass once it lasts."""
        trouble = f"{error}: {error.hint}" if error.hint else str(error)
        since = self._failing.setdefault(topic, time.monotonic())

        def decide(state: State) -> Changes:
            record, rebuild = _claimed(state, self._mirror, topic)
            patience_s = stored_settings(require_mirror(state, self._mirror).settings).retry_timeout_ms / 1000
            may_pass = isinstance(error, UnreachableError) and time.monotonic() < since + patience_s
            if may_pass or rebuild.trouble == trouble:
                return Changes()
            return Changes((replace(record, rebuild=replace(rebuild, trouble=trouble)),))

        with suppress(KmirrorError):
            change(destination, self._mirror, decide)

    def _attempt(self, destination: Destination, topic: str, watch: Watch) -> None:
        state = destination.state()
        mirror = require_mirror(state, self._mirror)
        with source_client(mirror.source, mirror.source_cluster_id) as source:
            require_same_cluster(mirror.source_cluster_id, cluster_id_of(source))
            record, rebuild = _claimed(state, self._mirror, topic)
            found = require_topic(source, record.source_topic)
            require_id(found, record.source_topic_id, "source")
            with naming_cluster("the destination", Reason.DESTINATION_UNREACHABLE):
                RebuildAttempt(destination, source, mirror, record, found, self._tasks, watch).carry_out(rebuild)

    def _tasks(self) -> Runner:
        return runner_beside_lanes(self._runtime)


@dataclass(frozen=True, slots=True)
class _Saved:
    """What an archive holds: how many records, for how long (None: for ever), and the proofs, by partition."""

    records: int = 0
    kept_ms: int | None = None
    proved: Mapping[int, Proof] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RebuildAttempt:
    """The remaining steps of one topic's rebuild, with both clusters open; `there` is the source topic as it is now."""

    destination: Destination
    source: ClusterClient
    mirror: MirrorRecord
    record: TopicRecord
    there: TopicMetadata
    tasks: Callable[[], Runner]
    watch: Watch

    def carry_out(self, rebuild: Rebuild) -> None:
        """Do them, from the recorded step on. Raises KmirrorError, as `TopicRebuilder.carry_out`."""
        client, source, record = self.destination.client, self.source, self.record
        if rebuild.step is RebuildStep.ARCHIVE:
            rebuild = self._with_ranges(rebuild)
            archived = self._archive(rebuild)
            rebuild = replace(rebuild, step=RebuildStep.REPLACE, proved=archived.proved)
            rebuild = self._record(rebuild, {"records": archived.records, "retentionMs": archived.kept_ms})
        if is_there(client, record.topic, record.destination_topic_id):
            rebuild = self._record(self._with_what_goes(rebuild))
            self._require_archived(rebuild)
        made, plan = self._replace(self._settings(rebuild.own_settings or {}))
        bounds = self._source_bounds(len(self.there.partitions))
        before, deadline = rebuild.groups or {}, Deadline(CREATION_S)
        put, failed = restore_offsets(self.destination, source, self.mirror, record, before, bounds, deadline)
        self._complete(made, plan, failed, put)

    def _with_what_goes(self, rebuild: Rebuild) -> Rebuild:
        """Return the progress with what is deleted with the topic, as it is now: it may have been archived days ago."""
        # brokers may have forgotten those of a topic that an earlier attempt deleted, and that one of them still shows
        groups = {**(rebuild.groups or {}), **committed_on(self.destination.client, self.record.topic)}
        return replace(rebuild, groups=groups, replicas=self._replicas(), own_settings=self._own_settings())

    def _record(self, rebuild: Rebuild, details: Mapping[str, object] | None = None) -> Rebuild:
        topic, mirror = self.record.topic, self.mirror.name

        rebuild = replace(rebuild, trouble=None)

        def decide(state: State) -> Changes:
            record, _ = _claimed(state, mirror, topic)
            content = {"topic": topic, "archive": rebuild.kept_in, **(details or {})}
            event = own_event(mirror, "rebuild", "ARCHIVED", content)
            return Changes((replace(record, rebuild=rebuild),), (), (event,) if details else ())

        change(self.destination, mirror, decide)
        return rebuild

    def _with_ranges(self, rebuild: Rebuild) -> Rebuild:
        """Decide once what to archive, and record it; raises KmirrorError if the log ends before that now."""
        record = self.record
        if not is_there(self.destination.client, record.topic, record.destination_topic_id):
            raise RefusedError(
                f"mirror topic {record.topic} was deleted or recreated",
                "nothing of it can be archived; to mirror it again: "
                + on_topics("add", record.mirror, [record.source_topic]),
                Reason.DESTINATION_TOPIC_DELETED,
            )
        if rebuild.ranges is None:
            return self._record(replace(rebuild, ranges=self._ranges(rebuild)))
        now = certain_bounds(self.destination.client, record.topic, max(rebuild.ranges) + 1)
        if any(mine and now[p][1] < mine[-1][1] for p, mine in rebuild.ranges.items()):
            raise self._begun_again(rebuild, "it has lost records")
        return rebuild

    def _ranges(self, rebuild: Rebuild) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return what the rebuilt topic may not hold; the last range of each partition ends where its log does.

        That is all if the source topic was recreated, or if the mirror keeps what its source deletes.
        """
        client, record = self.destination.client, self.record
        found = client.metadata([record.topic]).topics[record.topic]
        here = certain_bounds(client, record.topic, len(found.partitions))
        ranges: dict[int, tuple[tuple[int, int], ...]] = {p: (bounds,) for p, bounds in here.items()}
        is_same = self.there.printed_topic_id in (None, record.source_topic_id)
        # what the source deletes from now on would be lost to a mirror that keeps it
        settings = stored_settings(require_mirror(self.destination.state(), self.mirror.name).settings)
        if is_same and rebuild.reason not in RESET_REASONS and settings.follow_log_start:
            ranges = self._differing(here)
        return {p: (*((low, high) for low, high in mine[:-1] if low < high), mine[-1]) for p, mine in ranges.items()}

    def _require_archived(self, rebuild: Rebuild) -> None:
        """Look again, right before the topic is deleted: all of it is in the archive, or at the source.

        Raises KmirrorError: it is not; the next attempt archives again.
        """
        now, then = self._ranges(rebuild), rebuild.ranges or {}
        saved = [p for p, mine in then.items() if any(low < high for low, high in mine)]
        if saved and not is_kept(self.destination.client, rebuild.archive, saved, rebuild.proved or {}):
            why = "this archive was deleted, has lost or got records, or soon deletes them"
        elif now.keys() != then.keys() or not all(
            mine and _is_within(now[p][-1], mine[-1]) for p, mine in then.items()
        ):
            why = "another client wrote to it, or the source lost records that both had"
        else:
            return
        raise self._begun_again(rebuild, why)

    def _begun_again(self, rebuild: Rebuild, why: str) -> KmirrorError:
        """Record that the topic goes into another archive; return the error that says why."""
        topic = self.record.topic
        archive = next_archive(self.destination.client, topic)
        self._record(replace(rebuild, step=RebuildStep.ARCHIVE, archive=archive, ranges=None, proved=None))
        where = f" in {rebuild.kept_in}" if rebuild.kept_in else ""
        return KmirrorError(
            f"{topic} is not deleted: since it was archived{where}, {why}",
            f"kmirror archives it again, in {archive}",
        )

    def _differing(self, here: Mapping[int, tuple[int, int]]) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return the offsets that the source does not have: below its log start, and from the fork on."""
        record = self.record
        there = self._source_bounds(min(len(here), len(self.there.partitions)))
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
            source = ClusterAccess(self.mirror.source, self.mirror.source_cluster_id)
            for answer in find_forks(self.tasks(), name, questions, source, self.destination.access, meter):
                if answer.fork is None:
                    with self._naming_source() if answer.troubled_side == "source" else nullcontext():
                        raise answer.trouble or KmirrorError(f"the fork of {answer.question.destination} was not found")
                # records that could not be compared are archived as well
                partition = answer.question.destination.partition
                agreed = answer.fork.agreed_at
                forks[partition] = max(here[partition][0], agreed + 1 if agreed is not None else here[partition][0])
        return {
            p: ((start, min(max(start, there[p][0] if p in there else end), forks[p])), (forks[p], end))
            for p, (start, end) in here.items()
        }

    def _source_bounds(self, partitions: int) -> dict[int, tuple[int, int]]:
        """Return log start and last stable offset of the source's first partitions."""
        with self._naming_source():
            return certain_bounds(self.source, self.record.source_topic, partitions, read_committed=True)

    def _naming_source(self) -> AbstractContextManager[None]:
        return naming_source(self.mirror.source_cluster_id)

    def _archive(self, rebuild: Rebuild) -> _Saved:
        """Archive and compare."""
        client, record, ranges = self.destination.client, self.record, rebuild.ranges or {}
        differing = {p: tuple((low, high) for low, high in mine if low < high) for p, mine in ranges.items()}
        wanted = tuple(PartitionRanges(p, mine) for p, mine in sorted(differing.items()) if mine)
        if not wanted:
            return _Saved()
        kept_ms = create_archive(client, record.topic, rebuild.archive, max(ranges) + 1, self._replicas())
        spec = ArchiveSpec(
            self.destination.properties, record.topic, rebuild.archive, record.destination_topic_id, wanted
        )
        saved, result = 0, archive_topic(spec, self.tasks(), self.watch)
        for outcome in result.outcomes:
            partition = f"{record.topic}-{outcome.partition}"
            if outcome.trouble is not None:
                raise outcome.trouble
            if not outcome.saved or outcome.comparison is None:
                raise KmirrorError(
                    f"{rebuild.archive} does not hold what {partition} does: {outcome.comparison}",
                    f"nothing was deleted; delete {rebuild.archive}: kmirror recreates it",
                )
            saved += outcome.comparison.records + outcome.comparison.only_archived
        now = certain_bounds(client, record.topic, max(ranges) + 1)
        for p, mine in ranges.items():
            if mine and now[p][1] != mine[-1][1]:
                longer = {**ranges, p: (*mine[:-1], (mine[-1][0], max(mine[-1][1], now[p][1])))}
                self._record(replace(rebuild, ranges=longer))
                raise KmirrorError(
                    f"another client writes to {record.topic}-{p}, which is being rebuilt: it ends at {now[p][1]},"
                    f" but is archived up to {mine[-1][1]}",
                    "stop the client that writes to it",
                    Reason.DESTINATION_WRITTEN,
                )
        return _Saved(saved, kept_ms, result.proofs)

    def _replicas(self) -> int:
        """Return the replication factor of the mirror's settings, or else that of the topic as long as it is there."""
        settings = stored_settings(require_mirror(self.destination.state(), self.mirror.name).settings)
        wanted = settings.replication_factor
        old = described_topic(self.destination.client, self.record.topic) if wanted < 1 else None
        return wanted if old is None else old.replication_factor

    def _own_settings(self) -> dict[str, str]:
        """Return the topic's settings that kmirror leaves alone, for the topic that replaces it."""
        exclude = stored_settings(self.mirror.settings).excluded_properties
        return own_settings(self.record, settings_of(self.destination.client, self.record.topic), exclude)

    def _settings(self, own: Mapping[str, str]) -> SettingsPlan:
        """Return the settings of the new topic: the source's, and those of the old one that kmirror leaves alone."""
        known = topic_settings(self.destination.client, [STATE_TOPIC])[STATE_TOPIC]
        record, name = self.record, self.record.source_topic
        with self._naming_source():
            found = source_settings(self.source, self.mirror.source, [name])
            settings = found.topics[name]
            if isinstance(settings, int):
                raise unreadable_settings(self.source, name, settings)
        seen_ms = found.first_source_seen_ms.get(name)
        if name in found.unreadable:
            settings, seen_ms = as_first_source(settings, record), record.first_source_seen_ms
        exclude = stored_settings(self.mirror.settings).excluded_properties
        plan = settings_for(settings, None if isinstance(known, int) else known, exclude)
        plan = plan.settling(record.settled or {})
        return replace(plan, now={**plan.now, **own}, first_source_seen_ms=seen_ms)

    def _replace(self, plan: SettingsPlan) -> tuple[TopicMetadata, SettingsPlan]:
        """Delete the topic and create it again; return the new one, and the settings that the destination takes."""
        client, topic, partitions = self.destination.client, self.record.topic, len(self.there.partitions)
        topic_id = self.record.destination_topic_id
        for _ in range(_TRIES):
            # a command that has stopped the topic meanwhile waits a moment for requests sent before this check
            _, rebuild = _claimed(self.destination.state(), self.mirror.name, topic)
            replicas = rebuild.replicas or self._replicas()
            begin_deletion(client, topic, topic_id)
            # at once: each client that asks for the topic may create it, with the brokers' defaults
            created = self._create(plan, replicas)
            await_deleted(client, topic, topic_id)
            created = created or self._create(plan, replicas)
            made = await_topics(client, [topic], Deadline(CREATION_S)).topics[topic]
            require_id(made, self.record.destination_topic_id, "destination")
            is_empty = not any(end for _, end in certain_bounds(client, topic, len(made.partitions)).values())
            fits = len(made.partitions) == partitions and (created is not None or made.replication_factor >= replicas)
            if fits or not is_empty:
                break
            topic_id = made.printed_topic_id
        if not fits or not is_empty:
            kept = f"the old records are in {rebuild.kept_in}" if rebuild.kept_in else "no old records were archived"
            raise RefusedError(
                f"another client created topic {topic} while it was being rebuilt",
                f"delete it and kmirror continues; {kept}",
                Reason.DESTINATION_TOPIC_DELETED,
            )
        plan = created or plan
        plan = plan.settling(settled_to_change(client, topic, plan.now))
        trouble = TopicAdmin(self.destination).set_settings({topic: plan.now})[topic]
        if trouble is not None:
            raise trouble
        return made, plan

    def _create(self, plan: SettingsPlan, replicas: int) -> SettingsPlan | None:
        """Create the topic, and return the settings that the destination takes; None if there is one of its name."""
        client, topic = self.destination.client, self.record.topic
        try:
            return plan.settling(create_settled(client, topic, len(self.there.partitions), replicas, plan.now))
        except BrokerError as error:
            if error.code != Code.TOPIC_ALREADY_EXISTS:
                raise
        return None

    def _complete(
        self, made: TopicMetadata, plan: SettingsPlan, failed: Mapping[str, str], put: OffsetsByGroup
    ) -> None:
        count, new_id, source_id = len(made.partitions), made.printed_topic_id, self.there.printed_topic_id
        mirror, topic = self.mirror.name, self.record.topic

        def decide(state: State) -> Changes:
            record, rebuild = _claimed(state, mirror, topic)
            at = now_ms()
            partitions = tuple(
                PartitionRecord(
                    mirror,
                    topic,
                    p,
                    PartitionState.LOG_ALIGNMENT,
                    at,
                    # not the old producer id: a late request to the old topic must not fit
                    guard=Guard(own_producer_id(mirror, f"{topic}\0{new_id}", p), 0, -1, 0),
                )
                for p in range(count)
            )
            known = {partition.key for partition in partitions}
            forgotten = [one.key for one in state.partitions(mirror, topic) if one.key not in known]
            complete = replace(
                record,
                source_topic_id=source_id,
                destination_topic_id=new_id,
                partitions=count,
                pending_operation=None,
                deferred=dict(plan.deferred),
                settings={key: value for key, value in plan.now.items() if key not in (rebuild.own_settings or {})},
                settled=dict(plan.settled) or None,
                inherited=plan.inherited,
                first_source_seen_ms=plan.first_source_seen_ms,
                recoveries=None,
                rebuild=None,
                rebuilt_at_ms=at,
                archive=rebuild.kept_in or record.archive,
            )
            details = {
                "topic": topic,
                "reason": rebuild.reason,
                "archive": rebuild.kept_in,
                "formerSourceTopicId": record.source_topic_id,
                "sourceTopicId": source_id,
                "formerTopicId": record.destination_topic_id,
                "topicId": new_id,
                "groups": {
                    g: {"from": dict(o), "to": dict(put.get(g, {})), "failed": failed.get(g)}
                    for g, o in (rebuild.groups or {}).items()
                },
            }
            event = Event(at, mirror, "rebuild", actor(), ExitCode.OK.name, details)
            former = former_groups(state, mirror, [topic], put)
            return Changes((*partitions, complete, *former), tuple(forgotten), (event,))

        change(self.destination, mirror, decide)


def _claimed(state: State, mirror: str, topic: str) -> tuple[TopicRecord, Rebuild]:
    record = state.topic(mirror, topic)
    if record is None or record.rebuild is None or record.pending_operation != PENDING_REBUILD:
        raise RefusedError(f"{topic} is no longer being rebuilt", "check with `kmirror describe`", Reason.FENCED)
    return record, record.rebuild


def _is_within(now: tuple[int, int], then: tuple[int, int]) -> bool:
    """Return whether a last range was archived; what the source has deleted since below it is deleted here, too."""
    return now[0] >= then[0] and now[1] == then[1]
