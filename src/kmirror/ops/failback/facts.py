"""What a failback reads: what the new primary has stored, whether the old source is idle, where their logs fork.

Nothing is changed here.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kmirror.cluster.client import EARLIEST, LATEST, ClusterClient
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.cluster.rights.acl_commands import admin_options
from kmirror.cluster.security.client_config import ClusterAccess
from kmirror.cluster.topics.leaders import newest_leaders
from kmirror.cluster.topics.log_dirs import partition_sizes
from kmirror.cluster.topics.message_formats import OLD_TOPIC_HINT, TOPIC_FORMAT, refused_formats
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import command_line, option
from kmirror.engine.bulk.ranges import bytes_per_offset
from kmirror.engine.compare.counting import RangeToCount, RecordCount, count_records
from kmirror.engine.histories.fork import Fork
from kmirror.engine.histories.fork_search import SEARCH_BYTES, ForkQuestion, find_forks
from kmirror.engine.histories.stretches import LogEnds
from kmirror.errors import KmirrorError, Reason, RefusedError, TimedOutError, UnreachableError
from kmirror.ops.base.bulk import Bulk
from kmirror.ops.base.context import Destination, naming_cluster, now_ms
from kmirror.ops.base.divergence import Divergence, Logs, divergence, divergence_of_extra_partition, shared_end
from kmirror.ops.base.gone import not_described
from kmirror.ops.base.upstream import stored_state_on
from kmirror.ops.failback.groups import LiveGroup, live_groups
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import PartitionRecord, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.observed import is_gone
from kmirror.words import at_time, counted, listed, visible
from kmirror.work import Meter, Watch

_NAMED = 5


class InUseError(RefusedError):
    """Clients still use the old source's topics: they may stop, so that asking again later can help."""


@dataclass(frozen=True, slots=True)
class NewPrimary:
    """The cluster that the old source is to mirror: how to reach it, and what it has stored about the mirror.

    `topics` are its records of the topics that were mirrored to it; None if it has no such mirror.
    """

    client: ClusterClient
    properties: Mapping[str, str]
    cluster_id: str
    state: State
    topics: tuple[TopicRecord, ...] | None


@dataclass(frozen=True, slots=True)
class TopicComparison:
    """One topic on both clusters; `here` is None if the old source has none of that name."""

    topic: str
    here: TopicMetadata | None
    there: TopicMetadata
    divergences: tuple[Divergence, ...]

    @property
    def diverges(self) -> bool:
        """True if something here must be removed before the topic can be mirrored."""
        return any(one.diverges for one in self.divergences)

    @property
    def must_recreate(self) -> bool:
        """True if cutting tails is not enough."""
        return any(one.must_recreate for one in self.divergences)

    @property
    def ends(self) -> dict[int, int]:
        """Where the logs here ended when they were compared, by partition."""
        return {one.topic_partition.partition: one.logs.here_end for one in self.divergences}


def new_primary(
    client: ClusterClient, properties: Mapping[str, str], cluster_id: str, mirror: str, here: str
) -> NewPrimary:
    """Read what the new primary has stored about the mirror from cluster `here`.

    Raises RefusedError: its mirror of that name is another one, or renames topics.
    """
    with naming_cluster("the new primary", Reason.SOURCE_UNREACHABLE):
        state = stored_state_on(properties)
    state.require_readable(mirror)
    record = state.mirror(mirror)
    if record is None:
        return NewPrimary(client, properties, cluster_id, state, None)
    if record.source_cluster_id != here:
        raise RefusedError(
            f"mirror {mirror} on the new primary mirrors cluster {record.source_cluster_id}, but this is {here}",
            "check that --bootstrap-server is the old source and --mirror the name of its mirror there",
            Reason.SOURCE_CLUSTER_CHANGED,
        )
    if prefix := stored_settings(record.settings).topic_prefix:
        raise RefusedError(
            f"mirror {mirror} on the new primary has topic.prefix={prefix}: its topics have different names here",
            "create a separate mirror here with `kmirror create`",
        )
    return NewPrimary(client, properties, cluster_id, state, state.topics(mirror))


def require_takes_copies(destination: Destination, topics: Sequence[str], where: str) -> None:
    """Refuse topics that are set to an old message format, in which brokers store no copy. Raises RefusedError."""
    settings = topic_settings(destination.client, topics, [TOPIC_FORMAT]) if topics else {}
    known = {topic: own for topic, own in settings.items() if not isinstance(own, int)}
    if refused := refused_formats(destination.client, known):
        named = _some([f"{topic} has {TOPIC_FORMAT}={value}" for topic, value in sorted(refused.items())])
        raise RefusedError(
            f"{named} {where}: copied batches are refused below 0.11",
            f"{OLD_TOPIC_HINT}; or exclude it with --topics",
            Reason.RECORD_REJECTED,
        )


def require_unused(destination: Destination, topics: Mapping[str, TopicMetadata], watch_s: float) -> None:
    """Watch the old source's topics for a while: refuse if a client writes to them, or groups with members read them.

    Raises:
        InUseError: names the groups, or the partitions.
        TimedOutError, UnreachableError: who leads them here is not certain, or what they hold is not known.
    """
    partitions = partitions_of(topics.values())
    if not partitions:
        return
    ask = partial(destination.client.list_offsets, metadata=newest_leaders(destination.client, partitions, "here"))
    before = ask(dict.fromkeys(partitions, LATEST), log_end=True)
    began = time.monotonic()
    require_unread(destination, topics)
    time.sleep(max(0.0, watch_s - (time.monotonic() - began)))
    after = ask(dict.fromkeys(partitions, LATEST), log_end=True)
    stable = ask(dict.fromkeys(partitions, LATEST), read_committed=True)
    for partition in partitions:
        if None in (before[partition].offset, after[partition].offset, stable[partition].offset):
            raise UnreachableError(
                f"whether clients write to {partition} here is unknown: its leader does not say where it ends",
                "check that all brokers here are up, and run the same command again",
                Reason.DESTINATION_UNREACHABLE,
            )
    moved = [str(partition) for partition in partitions if before[partition].offset != after[partition].offset]
    if moved:
        raise InUseError(
            f"another client writes to {_some(moved)} here: the log end moved within {watch_s:g} s",
            "stop the producers, or move them to the new primary, and run the same command again",
        )
    hidden = [str(partition) for partition in partitions if stable[partition].offset != after[partition].offset]
    if hidden:
        raise InUseError(
            f"{_some(hidden)} here has records that consumers cannot read yet: a transaction is open, or too few "
            "replicas are in sync",
            "wait until the transaction times out, or abort it with `kafka-transactions.sh … abort`",
            Reason.OPEN_TRANSACTION,
        )


def require_unread(destination: Destination, topics: Collection[str]) -> None:
    """Refuse if groups with members read these topics. Raises InUseError, and as `live_groups`."""
    groups = live_groups(destination, topics)
    if groups:
        at = at_time(now_ms())
        more = f"; and {counted(len(groups) - _NAMED, 'more group')}" if len(groups) > _NAMED else ""
        raise InUseError(
            f"{counted(len(groups), 'group has', 'groups have')} members at {at} that consume from "
            f"these topics here: {'; '.join(map(_named_group, groups[:_NAMED]))}{more}",
            "stop these consumers, or move them to the new primary, and run the same command again; brokers do "
            "not report how long a member has been silent: a dead one leaves the group when its session.timeout.ms has "
            "passed (45 s by default), so wait that long, and check with\n"
            + command_line(
                "kafka-consumer-groups",
                *admin_options(destination.config),
                *("--describe", "--members"),
                *option("--group", groups[0].group),
            ),
        )


def compare_topics(
    destination: Destination,
    primary: NewPrimary,
    mirror: str,
    topics: Sequence[str],
    differences: Mapping[TopicPartition, int],
    bulk: Bulk,
    watch: Watch,
) -> tuple[list[TopicComparison], list[str]]:
    """Find where the logs of topics fork; also return warnings. `differences` are offsets known to differ.

    Raises:
        RefusedError: the new primary no longer has one of the topics, or a log cannot be compared.
        UnreachableError: a cluster does not answer.
        KmirrorError: the brokers here do not say whether there is one of the topics.
    """
    here = destination.client.metadata(topics).topics
    with naming_cluster("the new primary", Reason.SOURCE_UNREACHABLE):
        there = primary.client.metadata(topics).topics
        absent = [name for name in topics if there[name].error_code]
        if absent:
            raise RefusedError(
                f"{_some(absent)}: the new primary has no such topic, or kmirror may not see it"
                f" ({code_name(there[absent[0]].error_code)})",
                "leave it out with --topics",
            )
    if silent := [name for name in topics if here[name].error_code not in (0, Code.UNKNOWN_TOPIC_OR_PARTITION)]:
        raise not_described(here[silent[0]])
    existing = {name: here[name] for name in topics if not here[name].error_code}
    stored, warnings = _stored_records(primary, mirror, there, existing)
    pairs = {name: (existing[name], there[name]) for name in existing}
    logs = _logs(destination, primary, pairs, stored, differences)
    both = [
        one
        for topic_partition, one in logs.items()
        if topic_partition.partition in pairs[topic_partition.topic][1].partitions
    ]
    forks = forks_of(destination, ClusterAccess(primary.properties, primary.cluster_id), both, bulk, watch)
    counted_records = _count(destination, list(logs.values()), forks, bulk, watch)
    comparisons = []
    for name in topics:
        own = existing.get(name)
        topic_partitions = [] if own is None else partitions_of([own])
        found = [
            _divergence(logs[topic_partition], forks, counted_records.get(topic_partition, RecordCount()))
            for topic_partition in topic_partitions
        ]
        comparisons.append(TopicComparison(name, own, there[name], tuple(found)))
    return comparisons, warnings


def _stored_records(
    primary: NewPrimary, mirror: str, there: Mapping[str, TopicMetadata], here: Mapping[str, TopicMetadata]
) -> tuple[dict[TopicPartition, PartitionRecord], list[str]]:
    """Return the new primary's records of partitions whose topics were not recreated since; also warnings."""
    found: dict[TopicPartition, PartitionRecord] = {}
    warnings = []
    if primary.topics is None:
        warnings.append(f"the new primary has no mirror {mirror}: the fork is found by comparing contents only")
    for topic in primary.topics or ():
        name = topic.topic
        if name not in here:
            continue
        other = here[name].printed_topic_id not in (None, topic.source_topic_id) and topic.source_topic_id is not None
        if other or is_gone(topic, there[name]):
            side = "here" if other else "at the new primary"
            warnings.append(
                f"{name} was recreated {side} since it was mirrored: the fork is found by comparing contents only"
            )
            continue
        for record in primary.state.partitions(mirror, name):
            found[TopicPartition(name, record.partition)] = record
    return found, warnings


def _logs(
    destination: Destination,
    primary: NewPrimary,
    pairs: Mapping[str, tuple[TopicMetadata, TopicMetadata]],
    stored: Mapping[TopicPartition, PartitionRecord],
    differences: Mapping[TopicPartition, int],
) -> dict[TopicPartition, Logs]:
    ours = partitions_of(here for here, _ in pairs.values())
    both = [
        topic_partition
        for topic_partition in ours
        if topic_partition.partition in pairs[topic_partition.topic][1].partitions
    ]
    starts, ends = bounds_of(destination.client, ours, "here")
    with naming_cluster("the new primary", Reason.SOURCE_UNREACHABLE):
        there_starts, there_ends = bounds_of(primary.client, both, "at the new primary")
    logs = {}
    for topic_partition in ours:
        known, there_start = stored.get(topic_partition), there_starts.get(topic_partition, 0)
        logs[topic_partition] = Logs(
            topic_partition,
            starts[topic_partition],
            ends[topic_partition],
            there_start,
            there_ends.get(topic_partition, 0),
            known.last_mirrored_offset if known else None,
            known.last_mirrored_epoch if known else None,
            differences.get(topic_partition),
            there_start if known is None else known.first_offset or 0,
        )
    return logs


def bounds_of(
    client: ClusterClient, partitions: Sequence[TopicPartition], where: str
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return log starts and last stable offsets, as the newest leaders say.

    Raises TimedOutError, UnreachableError: who they are, or an offset, is unknown; the message says `where`.
    """
    leaders = newest_leaders(client, partitions, where)
    starts = client.list_offsets(dict.fromkeys(partitions, EARLIEST), metadata=leaders)
    ends = client.list_offsets(dict.fromkeys(partitions, LATEST), read_committed=True, metadata=leaders)
    found: tuple[dict[TopicPartition, int], dict[TopicPartition, int]] = ({}, {})
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        if start.offset is None or end.offset is None:
            code = start.error_code or end.error_code
            raise UnreachableError(
                f"cannot look up the log start and end of {partition} {where}: {code_name(code)}",
                "try again once it has a leader",
            )
        found[0][partition], found[1][partition] = start.offset, end.offset
    return found


def forks_of(
    destination: Destination, primary: ClusterAccess, logs: Sequence[Logs], bulk: Bulk, watch: Watch
) -> dict[TopicPartition, Fork]:
    """Find the forks of partitions that both clusters have.

    Raises:
        RefusedError: a log cannot be compared.
        UnreachableError: a cluster does not answer.
    """
    questions = [
        ForkQuestion(
            one.topic_partition,
            one.topic_partition,
            LogEnds(one.there_start, one.there_end, one.here_start, one.here_end),
            one.last_mirrored_offset if one.differs_at is None else one.differs_at,
        )
        for one in logs
    ]
    where = bulk.where(SEARCH_BYTES * len(questions))
    runner = bulk.runner(where)
    found = {}
    with Meter(watch, f"searching for the forks {bulk.place(where)}", "partition", len(questions)) as meter:
        for answer in find_forks(runner, "forks", questions, primary, destination.access, meter):
            partition = answer.question.destination
            if answer.fork is None:
                side = "here" if answer.troubled_side == "destination" else "at the new primary"
                trouble = answer.trouble or KmirrorError("the search has failed")
                kinds = UnreachableError, TimedOutError
                kind = next((one for one in kinds if isinstance(trouble, one)), RefusedError)
                message = f"cannot find the fork of {partition}, {side}: {trouble.message}"
                raise kind(message, trouble.hint, trouble.reason)
            found[partition] = answer.fork
    return found


def _count(
    destination: Destination, logs: Sequence[Logs], forks: Mapping[TopicPartition, Fork], bulk: Bulk, watch: Watch
) -> dict[TopicPartition, RecordCount]:
    """Count the visible records here after the forks."""
    sizes = partition_sizes(destination.client, [one.topic_partition for one in logs]) if logs else {}
    wanted = [
        RangeToCount(
            one.topic_partition,
            shared_end(one, forks[one.topic_partition]) if one.topic_partition in forks else one.here_start,
            one.here_end,
            one.last_mirrored_offset if one.topic_partition in forks else None,
            bytes_per_offset(sizes.get(one.topic_partition), one.here_end - one.here_start),
        )
        for one in logs
    ]
    where = bulk.where(sum(one.estimated_bytes for one in wanted))
    offsets = sum(one.high - one.low for one in wanted)
    # before the meter starts: this may start Spark
    runner = bulk.runner(where)
    with Meter(watch, f"counting the records after the forks {bulk.place(where)}", "offset", offsets) as meter:
        return count_records(runner, destination.access, wanted, meter)


def _divergence(logs: Logs, forks: Mapping[TopicPartition, Fork], counted: RecordCount) -> Divergence:
    fork = forks.get(logs.topic_partition)
    if fork is None:
        return divergence_of_extra_partition(logs, counted.records)
    return divergence(logs, fork, counted.records, None if logs.last_mirrored_offset is None else counted.from_mark)


def partitions_of(topics: Iterable[TopicMetadata]) -> list[TopicPartition]:
    """Return all partitions of topics."""
    return [TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions]


def _named_group(group: LiveGroup) -> str:
    members = [f"{one.client_id} on {one.host.lstrip('/')} (member {one.member_id})" for one in group.members]
    who = _some(members) if members else "its members are unknown"
    return f"group {visible(group.group)} ({_some(group.topics)}): {who}"


def _some(names: Sequence[str]) -> str:
    return listed(names, _NAMED)
