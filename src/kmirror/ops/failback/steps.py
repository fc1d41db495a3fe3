"""What a failback does to topics of the old source: save what lies beyond the fork, delete, mirror.

Nothing is deleted before its archive has been found complete, and nothing that was written to after that.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from kmirror.cluster.client import LATEST, ClusterClient
from kmirror.cluster.protocol.batch import batch_headers
from kmirror.cluster.protocol.codes import Code
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.cluster.protocol.wire import parse_topic_id
from kmirror.cluster.reader import PartitionReader
from kmirror.cluster.topic_settings import topic_settings
from kmirror.engine.archive.archive_topic import archive_name, archive_settings
from kmirror.engine.archive.archiving import ArchiveSpec, PartitionRanges, archive_topic, divided
from kmirror.engine.compare.logs import compare_partition
from kmirror.errors import BrokerError, KmirrorError, RefusedError, UnreachableError
from kmirror.ops.add.topic_admin import await_topics
from kmirror.ops.context import Destination, actor, change, now_ms, source_client
from kmirror.ops.failback.facts import TopicLook
from kmirror.ops.failback.fork import Divergence
from kmirror.ops.failback.groups import standing_offsets
from kmirror.ops.failback.progress import Progress, TopicStep, TopicWork
from kmirror.ops.show.rows import engine_in_charge, is_gone
from kmirror.ops.stop.stop import is_stopped
from kmirror.settings.table import parse_settings
from kmirror.state.client import Deadline
from kmirror.state.events import Event
from kmirror.state.records import MirrorRecord
from kmirror.state.snapshot import Changes, State

_THREADS = 2
_CREATION_S = 60.0
_PAUSE_S = 0.2
_CLEANUP = "cleanup.policy"


# -- the mirror --------------------------------------------------------------------------------------------------------


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


def record_mirror(destination: Destination, record: MirrorRecord) -> None:
    """Store the mirror's record; one that is there already is replaced."""

    def decide(state: State) -> Changes:
        if state.mirror(record.name) == record:
            return Changes()
        details = {"sourceClusterId": record.source_cluster_id, "settings": dict(record.settings)}
        event = Event(now_ms(), record.name, "failback", actor(), "MIRROR", details)
        return Changes((record,), (), (event,))

    change(destination, record.name, decide)


# -- saving ------------------------------------------------------------------------------------------------------------


def fits(work: TopicWork, look: TopicLook, *, discard: bool) -> bool:
    """Tell whether what is under way of a topic is still about the topic as it stands."""
    return (
        look.here is not None
        and work.step in (TopicStep.ARCHIVE, TopicStep.SAVED)
        and work.topic_id == look.here.printed_topic_id
        and dict(work.ends) == look.ends
        and dict(work.limits) == _limits(look)
        and (dict(work.ranges) == _ranges(look, discard=discard) or (discard and work.step is TopicStep.SAVED))
    )


def saved(
    destination: Destination,
    progress: Progress,
    look: TopicLook,
    work: TopicWork | None,
    replication_factor: int,
    *,
    discard: bool,
) -> TopicWork:
    """Save what lies beyond the fork of a topic, unless that is done or not wanted; return the topic as it is then.

    Raises:
        KmirrorError: it was not saved; nothing was deleted.
    """
    assert look.here is not None
    if work is None or not fits(work, look, discard=discard):
        ranges = _ranges(look, discard=discard)
        archive = archive_name(look.topic, destination.client.metadata(None).topics) if ranges else None
        topic_id = look.here.printed_topic_id
        differs = work.differs if work is not None else {}
        work = TopicWork(
            look.topic, TopicStep.ARCHIVE, topic_id, archive, ranges, look.ends, _limits(look), differs=differs
        )
        work = progress.note(work, "archive begun")
    if work.step is TopicStep.SAVED:
        return work
    records = _archive(destination, work, len(look.here.partitions), replication_factor) if work.archive else 0
    require_untouched(destination, work)
    groups = {
        group: {place.partition: one.offset for place, one in offsets.items()}
        for group, offsets in standing_offsets(destination, {look.topic}).items()
    }
    return progress.note(replace(work, step=TopicStep.SAVED, groups=groups, records=records), "saved")


def _ranges(look: TopicLook, *, discard: bool) -> dict[int, tuple[int, int]]:
    if discard:
        return {}
    return {
        one.place.partition: (one.shared_end, one.logs.here_end)
        for one in look.divergences
        # a topic that is deleted loses all of it; what lies below is at the new primary too
        if one.lies_beyond and one.records
    }


def _limits(look: TopicLook) -> dict[int, int]:
    return {one.place.partition: one.shared_end for one in look.divergences}


def _archive(destination: Destination, work: TopicWork, partitions: int, replication_factor: int) -> int:
    """Archive and compare; return how many records were saved."""
    assert work.archive is not None
    client = destination.client
    try:
        client.create_topic(work.archive, partitions, replication_factor, archive_settings())
    except BrokerError as error:
        if error.code != Code.TOPIC_ALREADY_EXISTS:
            raise
    await_topics(client, [work.archive], Deadline(_CREATION_S))
    wanted = tuple(PartitionRanges(p, (bounds,)) for p, bounds in sorted(work.ranges.items()))
    spec = ArchiveSpec(destination.properties, work.topic, work.archive, work.topic_id, wanted)
    count = 0
    with ThreadPoolExecutor(_THREADS, "archive") as threads:
        for result in threads.map(lambda share: archive_topic(share, 0), divided(spec, _THREADS)):
            for outcome in result.outcomes:
                place = f"{work.topic}-{outcome.partition}"
                if outcome.trouble is not None:
                    raise outcome.trouble
                if not outcome.saved or outcome.comparison is None:
                    raise KmirrorError(
                        f"{work.archive} does not hold what {place} does: {outcome.comparison}",
                        f"nothing was deleted; delete {work.archive} and run the command again to recreate it",
                    )
                count += outcome.comparison.records + outcome.comparison.only_archived
    return count


def require_untouched(destination: Destination, work: TopicWork) -> None:
    """Refuse to go on with a topic that somebody wrote to since it was looked at. Raises RefusedError."""
    places = [TopicPartition(work.topic, p) for p in work.ends]
    ends = destination.client.list_offsets(dict.fromkeys(places, LATEST), log_end=True)
    moved = [place for place in places if ends[place].offset != work.ends[place.partition]]
    if moved:
        raise RefusedError(
            f"another client wrote to {moved[0]}: it ended at {work.ends[moved[0].partition]}, and ends at "
            f"{ends[moved[0]].offset} now",
            "stop the producers and run the same command again",
        )


def cut_offset(destination: Destination, divergence: Divergence) -> int:
    """Return where the log here is to be cut: where the batch begins that holds the first offset to go.

    Raises:
        RefusedError: the new primary does not have that batch any more.
    """
    wanted, place = divergence.shared_end, divergence.place
    fetched = PartitionReader(destination.client, place).fetch(wanted)
    begins = next((h.base_offset for h in batch_headers(fetched.records) if h.next_offset > wanted), wanted)
    found = min(wanted, begins)
    if found < wanted and found < divergence.logs.there_start:
        raise RefusedError(
            f"{place} can be truncated only at offset {found}, where a batch starts, but the new primary's log "
            f"starts at {divergence.logs.there_start}",
            "use --recreate for this topic",
        )
    return found


def cleaned(destination: Destination, topics: Collection[str]) -> list[str]:
    """Return those topics from whose logs the cleaner removes superseded records; where that is not told, none."""
    found = topic_settings(destination.client, topics)
    settings = {name: told for name, told in found.items() if not isinstance(told, int)}
    return [name for name in topics if name in settings and "compact" in (settings[name][_CLEANUP].value or "")]


# -- deleting ----------------------------------------------------------------------------------------------------------


def delete(destination: Destination, progress: Progress, work: TopicWork) -> TopicWork:
    """Delete a saved topic, by its id, unless that is done; return it as it is then.

    Raises:
        RefusedError: somebody has written to it since.
        UnreachableError: it does not go away.
    """
    client = destination.client
    if is_there(client, work):
        require_untouched(destination, work)
        assert work.topic_id is not None
        client.delete_topics([parse_topic_id(work.topic_id)])
        deadline = Deadline(_CREATION_S)
        while is_there(client, work):
            if deadline.passed:
                raise UnreachableError(f"topic {work.topic} still exists {_CREATION_S:g} s after it was deleted")
            time.sleep(_PAUSE_S)
    progress.step("gone")
    return progress.note(replace(work, step=TopicStep.CREATE), "deleted")


def is_there(client: ClusterClient, work: TopicWork) -> bool:
    """Tell whether the very topic is still there, not one of its name that came later."""
    found = client.metadata([work.topic]).topics.get(work.topic)
    return found is not None and not found.error_code and found.printed_topic_id == work.topic_id


# -- mirroring ---------------------------------------------------------------------------------------------------------


def add_partitions(destination: Destination, looks: Collection[TopicLook]) -> None:
    """Give topics the partitions that the new primary has got since."""
    wanted = {
        look.topic: len(look.there.partitions)
        for look in looks
        if look.here is not None and len(look.there.partitions) > len(look.here.partitions)
    }
    if not wanted:
        return
    destination.client.create_partitions(wanted)
    deadline = Deadline(_CREATION_S)
    while not deadline.passed:
        found = await_topics(destination.client, list(wanted), deadline).topics
        if all(len(found[name].partitions) >= count for name, count in wanted.items()):
            return
        time.sleep(_PAUSE_S)
    raise UnreachableError(f"{min(wanted)} did not get its new partitions within {_CREATION_S:g} s", "try again")


def differences(destination: Destination, source: Mapping[str, str], look: TopicLook) -> dict[int, int]:
    """Compare all of a topic's partitions; return where they differ first."""
    found = {}
    with source_client(source) as there, ClusterClient(destination.config) as here:
        for one in look.divergences:
            compared = compare_partition(there, here, one.place, one.place)
            if compared.first_difference is not None:
                found[one.place.partition] = compared.first_difference.offset
    return found


def replication_factor_of(settings: Mapping[str, str]) -> int:
    """Return the replication factor of topics that are created; -1 is the brokers' default."""
    return parse_settings(settings).replication_factor
