"""Steps of a stop after mirroring has ended: remove filler, clamp group offsets, apply deferred settings, lift ACLs.

They need the destination only, and each can be done twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient, Lookup
from kmirror.cluster.protocol.acl_binding import EVERYONE, AclBinding, AclPermission, Operation, ResourceType
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.produce import FIRST_OWN_PRODUCER_ID
from kmirror.cluster.protocol.read_up_to import Batches
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.rights.acl_commands import admin_options, grant_line
from kmirror.cluster.rights.acls import kafka_acls_line
from kmirror.cluster.rights.authorized import missing_rights
from kmirror.cluster.topics.policies import refuses_settings, settled_to_change
from kmirror.cluster.topics.settling import with_settled
from kmirror.cluster.topics.topic_settings import topic_defaults, topic_settings
from kmirror.cluster.topics.trim import has_unfinished_trim, restore_settings, trim_compacted
from kmirror.cluster.writing.writable import probe_writable
from kmirror.commands import option
from kmirror.engine.histories.filler_end import filler_end
from kmirror.errors import BrokerError, KmirrorError, OutcomeUnknown, Reason, UnreachableError
from kmirror.ops.add.topic_admin import TopicAdmin
from kmirror.ops.base.context import as_kmirror_error, now_ms
from kmirror.ops.base.retrying import is_transient
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.groups.at_stop import age_note, clamp_groups
from kmirror.ops.groups.commit import refused_sentences
from kmirror.ops.groups.group_facts import log_bounds
from kmirror.ops.rights.lift import lift_rights, plan_lift
from kmirror.ops.rights.protection import survey
from kmirror.ops.show.cluster_view import BackgroundQuery
from kmirror.ops.stop.first_source import FirstSource
from kmirror.ops.stop.report import partitions_of
from kmirror.ops.stop.work import RUN_AGAIN, PresentSettings, StopWork
from kmirror.state.internal_topics import STATE_TOPIC
from kmirror.state.rights_records import SHARED
from kmirror.sync.acl_index import AclIndex, Resource
from kmirror.sync.setting_changes import retention_notes, settings_at_stop
from kmirror.words import counted, listed

#: What a stop needs on a topic; DELETE only if its first copy may be unfinished.
_NEEDED = ("DESCRIBE", "READ", "WRITE", "DELETE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS")
_NAMED = 5
#: How long to wait for settings that are being read; then they are asked for again.
_SETTINGS_S = 3.0
_START_AND_END = (Lookup(EARLIEST), Lookup(LATEST, log_end=True))


def ask_for_settings(work: StopWork) -> None:
    """Start to read the topics' settings beside what a stop does before it needs them: far away they take long."""
    names = [topic.topic for topic in work.topics]
    query = BackgroundQuery(work.destination.properties, work.destination.cluster_id)
    work.resources.enter_context(closing(query))
    query.start(lambda client: _read_settings(client, names))
    work.settings_query, work.present = query, None


def _read_settings(client: ClusterClient, topics: Sequence[str]) -> PresentSettings:
    return topic_settings(client, topics), topic_defaults(client, STATE_TOPIC)


def _present_settings(work: StopWork) -> PresentSettings:
    if work.present is None:
        found = work.settings_query and work.settings_query.answer(time.monotonic() + _SETTINGS_S)
        if not isinstance(found, tuple):
            found = _read_settings(work.destination.client, [topic.topic for topic in work.left])
        work.present = found
    return work.present


def find_fillers(work: StopWork) -> None:
    """Find filler before the first record, left by first copies that never reached the records."""
    client = work.destination.client
    work.topics = work.left
    work.first_source = FirstSource(work.state.mirror(work.request.mirror), work.topics)
    suspects: list[TopicPartition] = []
    for topic in work.topics:
        for partition in partitions_of(topic):
            record = work.state.partition(topic.mirror, *partition)
            if record is not None and record.last_mirrored_offset and not (record.aligned or record.begun):
                suspects.append(partition)
    try:
        starts, ends = client.look_up_offsets(suspects, _START_AND_END)
        for partition in suspects:
            start, end = starts[partition].offset, ends[partition].offset
            if start is None or end is None:
                why = f"whether filler is left in {partition} is unknown: its leader does not say where its log is"
                work.fail(partition.topic, UnreachableError(why, None, Reason.DESTINATION_UNREACHABLE))
                continue
            if start == end:
                continue
            own = _writer_at(client, partition, start)
            if own is None or own < FIRST_OWN_PRODUCER_ID:
                continue
            if (found := filler_end(client, partition, start, end, own)) > start:
                work.fillers[partition] = found
    except (KmirrorError, OutcomeUnknown) as error:
        for name in {partition.topic for partition in suspects}:
            work.fail(name, as_kmirror_error(error))


def trim_fillers(work: StopWork) -> str:
    """Delete the filler that was found."""
    client = work.destination.client
    try:
        present, _ = _present_settings(work)
        unfinished = [name for name, one in present.items() if not isinstance(one, int) and has_unfinished_trim(one)]
        if unfinished or work.fillers:
            work.drop_taken()
            unfinished = [topic.topic for topic in work.left if topic.topic in unfinished]
            work.settings_query = work.present = None
        restore_settings(client, unfinished)
        troubles: dict[str, KmirrorError] = {}
        for partition, trimmed in trim_compacted(client, work.fillers).items() if work.fillers else ():
            if trimmed.error_code:
                troubles[partition.topic] = KmirrorError(
                    f"the filler in {partition} could not be deleted (error {trimmed.error_code})",
                    f"until then readers see {counted(work.fillers[partition], 'empty record')}; DELETE on the topic "
                    "is needed",
                )
            else:
                work.done.warnings.append(_trimmed_text(work, partition))
        for name, trouble in troubles.items():
            work.fail(name, trouble)
    except (KmirrorError, OutcomeUnknown) as error:
        for name in {partition.topic for partition in work.fillers} or {topic.topic for topic in work.topics}:
            work.fail(name, as_kmirror_error(error))
    return "filler trimmed"


def foresee_trim(work: StopWork) -> None:
    """Report the partitions that would be empty."""
    work.done.warnings += [_trimmed_text(work, partition) for partition in work.fillers]


def _trimmed_text(work: StopWork, partition: TopicPartition) -> str:
    return f"{partition} held no record of its source yet, and {work.becomes} empty at {work.fillers[partition]}"


def _writer_at(client: ClusterClient, partition: TopicPartition, start: int) -> int | None:
    """Return the producer id of the first batch of a log; None if there is no batch."""
    found = PartitionReader(client, partition).read_known(start)
    return found.headers[0].producer_id if isinstance(found, Batches) else None


def read_ranges(work: StopWork) -> None:
    """Read where the logs start and end."""
    partitions = [partition for topic in work.left for partition in partitions_of(topic)]
    try:
        work.ranges = log_bounds(work.destination.client, partitions, work.metadata)
        if unknown := [str(partition) for partition in partitions if partition not in work.ranges]:
            work.done.warnings.append(
                f"offsets of groups in {listed(unknown)} were not checked: it is unknown where the logs "
                f"start and end; {RUN_AGAIN}"
            )
    except (KmirrorError, OutcomeUnknown) as error:
        work.done.warnings.append(f"group offsets could not be read: {error}")


def clamp_group_offsets(work: StopWork) -> str:
    """Move synced group offsets that are outside the logs into them, and put back what has vanished.

    A promote has just synced all that the source has.
    """
    put_back, dry_run = work.request.reason is not Reason.PROMOTED, not work.runner.acts
    try:
        with work.none_taken():
            groups = clamp_groups(
                work.destination, work.request.mirror, work.ranges or {}, put_back=put_back, dry_run=dry_run
            )
        work.done.groups += groups.results
        seen_ms = (one.source_as_of_ms for one in work.at_stop.values())
        mirror, source_seen_ms = work.state.mirror(work.request.mirror), max(filter(None, seen_ms), default=None)
        if put_back and mirror is not None and (note := age_note(work.state, mirror, source_seen_ms)) is not None:
            work.done.warnings.append(note)
        work.done.warnings += groups.warnings(dry_run=dry_run) if put_back else refused_sentences(groups.results)
    except (KmirrorError, OutcomeUnknown) as error:
        work.done.warnings.append(f"group offsets could not be read: {error}")
    return "groups clamped"


def failing_all(step: Callable[[StopWork], str | None]) -> Callable[[StopWork], str | None]:
    """Return the function with a lasting error of it reported for each topic that is left, so that none is stopped."""

    def run(work: StopWork) -> str | None:
        try:
            return step(work)
        except (KmirrorError, OutcomeUnknown) as error:
            if is_transient(error):
                raise
            for topic in work.left:
                work.fail(topic.topic, as_kmirror_error(error))
            return None

    return run


@failing_all
def find_settings(work: StopWork) -> None:
    """Find the settings that were deferred while topics were mirrored."""
    destination = work.destination
    names = {topic.topic for topic in work.topics}
    applied = work.first_source.applied(destination.config, work.done.warnings)
    work.topics = [topic for topic in applied if topic.topic in names]
    work.done.warnings += retention_notes(work.topics, now_ms())
    present, defaults = _present_settings(work)
    for topic in work.left:
        found = present.get(topic.topic, 0)
        if isinstance(found, int):
            hint = grant_line(destination.config, ("DESCRIBE_CONFIGS",), *option("--topic", topic.topic))
            message = f"the settings of {topic.topic} cannot be read"
            work.fail(topic.topic, KmirrorError(message, hint, Reason.NOT_AUTHORIZED))
        elif change := settings_at_stop(topic, found, defaults):
            work.settings[topic.topic] = change


@failing_all
def apply_settings(work: StopWork) -> str:
    """Give topics their deferred settings."""
    work.drop_taken()
    for name, error in _set_settings(work, work.settings).items():
        if error is not None and (work.runner.acts or refuses_settings(error)):  # a dry run looks at rights later
            message = f"{name} did not get its deferred settings: {error.message}"
            hint = RUN_AGAIN if error.hint is None else f"{RUN_AGAIN}; before that: {error.hint}"
            work.fail(name, KmirrorError(message, hint, error.reason))
    return "settings applied"


def _set_settings(work: StopWork, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, KmirrorError | None]:
    """Set what the destination accepts of each topic's settings; what it refuses by policy must not hold up a stop."""
    destination, is_dry_run = work.destination, not work.runner.acts
    admin = TopicAdmin(destination)
    found = admin.set_settings(changes, validate_only=is_dry_run)
    accepted: dict[str, Mapping[str, str | None]] = {}
    for name, error in found.items():
        if refuses_settings(error):
            try:
                settled = settled_to_change(destination.client, name, changes[name], kept=())
            except BrokerError:
                continue
            accepted[name] = with_settled(changes[name], settled)
            work.done.warnings += [
                f"{name}: the destination refuses {key}={changes[name][key]}, as its source has it: "
                + ("its present value stays" if value is None else f"it is {value}")
                for key, value in settled.items()
            ]
    some = {name: settings for name, settings in accepted.items() if settings}
    return found | dict.fromkeys(accepted) | (admin.set_settings(some) if some and not is_dry_run else {})


@failing_all
def lift_protection(work: StopWork) -> str:
    """Lift the write protection, and probe that the topics are writable."""
    destination = work.destination
    with work.none_taken():
        names = [topic.topic for topic in work.left]
        lifts = lift_rights(destination, work.request.mirror, names) if names else {}
    for name, lifted in lifts.items():
        if lifted.error is not None:
            work.fail(name, lifted.error)
    lagging = {name: lifted.lagging for name, lifted in lifts.items() if lifted.lagging and lifted.error is None}
    if lagging:
        brokers = listed([str(node_id) for node_id in sorted(frozenset().union(*lagging.values()))])
        work.done.warnings.append(
            f"whether clients may write to {listed(sorted(lagging), _NAMED)} yet is unknown on brokers {brokers}: they "
            "do not answer, or have not applied the changed ACLs"
        )
    partitions = [partition for topic in work.left for partition in partitions_of(topic)]
    probed = probe_writable(destination.client, partitions, metadata=work.metadata) if names else {}
    refused = {one.topic for one, error in probed.items() if error and error.reason is Reason.NOT_AUTHORIZED}
    denied, commands = _denied(work, refused - work.failed.keys())
    unproven = {*denied, *lagging}
    for partition, error in probed.items():
        if error is None or partition.topic in work.failed or partition.topic in denied:
            continue
        if error.reason is Reason.NOT_AUTHORIZED:
            hint = f"{RUN_AGAIN}; before that: {commands.get(partition.topic, error.hint)}"
            work.fail(partition.topic, KmirrorError(error.message, hint, error.reason))
            continue
        # a broker that is away must not hold up a stop
        unproven.add(partition.topic)
        work.done.warnings.append(f"whether {partition} can be written could not be probed: {error.message}")
    work.done.writable_ms |= dict.fromkeys([t.topic for t in work.left if t.topic not in unproven], now_ms())
    return "rights lifted"


def _denied(
    work: StopWork, topics: Collection[str], deferred: Collection[AclBinding] = ()
) -> tuple[set[str], dict[str, str]]:
    """Return the topics on which what is copied from the source denies kmirror WRITE, and add a FAILED row for each.

    They are stopped all the same: that stays, and no probe can succeed. `deferred` ACLs count as well. Returns also, by
    topic, the commands that delete the ACLs which deny it, whoever made them.
    """
    if not topics:
        return set(), {}
    mirror, cluster = work.request.mirror, admin_options(work.destination.config)
    state, surveyed = work.destination.state(), survey(work.destination.client, topics)
    copied = {*deferred, *(one for name in (*topics, SHARED) for one in state.rights(mirror, name).made)}
    acls, found = AclIndex({*surveyed.acls, *deferred}), dict[str, list[AclBinding]]()
    for topic in sorted(topics):
        writing = acls.on(Resource(ResourceType.TOPIC, topic), Operation.WRITE)
        denials = [one for one in writing if one.permission is AclPermission.DENY and surveyed.own.are_denied_by(one)]
        if denials:
            found[topic] = sorted(denials)
    lines = {one: kafka_acls_line(one, cluster, remove=True) for some in found.values() for one in some}
    hint = "\n".join(["to allow it, have an administrator run:", *dict.fromkeys(lines.values())])
    stopped = {topic for topic, some in found.items() if copied.issuperset(some)}
    for topic in sorted(stopped):
        some = found[topic]
        who = "everyone" if any(one.principal == EVERYONE for one in some) else "kmirror"
        why = f"{who} {work.becomes} denied WRITE on it; to allow it: {'; '.join(lines[one] for one in some)}"
        message = f"{topic} {work.becomes} stopped, but {why}"
        work.done.results.append(TopicResult(topic, None, Outcome.FAILED, message, Reason.NOT_AUTHORIZED, hint=hint))
    return stopped, {topic: "\n".join(lines[one] for one in some) for topic, some in found.items()}


def check_rights(work: StopWork) -> None:
    """Report the topics on which the destination does not grant what a stop needs."""
    is_complete = work.request.reason is Reason.PROMOTED
    needed = [right for right in _NEEDED if not (is_complete and right == "DELETE")]
    names = [topic.topic for topic in work.left]
    plan = plan_lift(work.state, work.request.mirror, names)
    given = {one for group in (*plan.give.values(), plan.shared) for one in group}
    deferred = [one for one in given if one.permission is AclPermission.DENY]
    missing = missing_rights(work.destination.client, names, needed)
    refused = [name for name in missing if "WRITE" in missing[name]]
    denied, commands = _denied(work, names if deferred else refused, deferred)
    for name in sorted(missing):
        rights = [right for right in missing[name] if right != "WRITE" or name not in denied]
        if not rights:
            continue
        message = f"the destination does not grant us {' and '.join(rights)} on topic {name}"
        hint = commands.get(name) or grant_line(work.destination.config, rights, *option("--topic", name))
        row = TopicResult(name, None, Outcome.FAILED, message, Reason.NOT_AUTHORIZED, hint=hint)
        work.done.results.append(row)
