"""Claim a topic for its rebuild, unless an operator must decide.

Without consent few topics are rebuilt within an hour, and only while their archives are certain to fit on the disks, as
far as their free space is known. A topic counts as recreated only if no broker of the source knows the one that was
mirrored: one that is cut off from the controllers shows an older topic of the same name, and ids never come back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.codes import Code, code_name
from kmirror.cluster.protocol.metadata import TopicPartition, exchange
from kmirror.cluster.protocol.read_up_to import local_start_by_settings
from kmirror.cluster.protocol.topic_configs import TopicSettings
from kmirror.cluster.rights.acl_commands import grant_line
from kmirror.cluster.topics.log_dirs import disk_use
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import on_mirror, on_topics, option
from kmirror.engine.driver.rebuilds import ConsentNeededError
from kmirror.errors import RESET_REASONS, KmirrorError, Reason, RefusedError, UnreachableError
from kmirror.ops.add.archive_admin import next_archive
from kmirror.ops.base.context import Destination, change, now_ms, own_event, require_mirror, source_client
from kmirror.ops.groups.group_facts import log_bounds
from kmirror.settings.parsing import stored_settings
from kmirror.state.records import PENDING_REBUILD, DesiredState, MirrorRecord, Rebuild, RebuildStep
from kmirror.state.snapshot import Changes, State
from kmirror.state.waiting import refused
from kmirror.words import counted

_HOUR_MS = 3_600_000
#: What the headers of an archived record take at most, as long as its offset has twelve digits.
_HEADER_BYTES = 90


def claim(destination: Destination, mirror: str, topic: str, reason: Reason, *, consented: bool) -> None:
    """Claim a topic.

    Raises:
        ConsentNeededError: too many were rebuilt within the hour, or its archive may not fit.
        RefusedError: another operation on it is in progress.
        UnreachableError: a cluster does not answer, or a broker of the source still knows the mirrored topic, or may:
            without consent, all must answer.
    """
    state = destination.state()
    record = state.topic(mirror, topic)
    if reason in RESET_REASONS and record is not None and record.source_topic_id is not None:
        _require_gone(require_mirror(state, mirror), record.source_topic, record.source_topic_id, consented=consented)
    archive = next_archive(destination.client, topic)
    others = _under_way(state)
    if not consented:
        _require_space(destination.client, topic, mirror, others)

    def decide(state: State) -> Changes:
        record = state.topic(mirror, topic)
        if record is None or record.desired is not DesiredState.ACTIVE or record.pending_operation:
            raise RefusedError(f"another operation on {topic} is in progress", "check with `kmirror describe`")
        if not consented:
            _require_room(state, mirror)
            if new := sorted(_under_way(state).keys() - others.keys()):
                raise RefusedError(f"the archive of {new[0]} has begun: space is needed for both", "kmirror retries it")
        rebuild = Rebuild(reason, RebuildStep.ARCHIVE, archive, now_ms())
        details = {"topic": topic, "reason": reason, "archive": archive, "sourceTopicId": record.source_topic_id}
        event = own_event(mirror, "rebuild", "BEGUN", details)
        return Changes((replace(record, pending_operation=PENDING_REBUILD, rebuild=rebuild),), (), (event,))

    change(destination, mirror, decide)


def settings_of(client: ClusterClient, topic: str) -> TopicSettings:
    """Return the settings of a topic, none if no broker knows it. Raises KmirrorError: they are not returned."""
    found = topic_settings(client, [topic])[topic]
    if found == Code.UNKNOWN_TOPIC_OR_PARTITION:
        return {}
    if isinstance(found, int):
        raise unreadable_settings(client, topic, found)
    return found


def unreadable_settings(client: ClusterClient, topic: str, code: int) -> KmirrorError:
    """Return the error for a cluster that answers with a code instead of a topic's settings."""
    grant = grant_line(client.config, ("DESCRIBE_CONFIGS",), *option("--topic", topic))
    return refused(code, code_name(code), f"reading the settings of {topic}", None, grant)


def _require_gone(mirror: MirrorRecord, topic: str, topic_id: str, *, consented: bool) -> None:
    with source_client(mirror.source, mirror.source_cluster_id) as source:
        answers = source.ask_each(source.metadata([]).brokers.values(), exchange([topic]))
        shown = [one for found in answers if found is not None and (one := found.topics.get(topic)) is not None]
        known = [one for one in shown if one.error_code != Code.UNKNOWN_TOPIC_OR_PARTITION]
        is_silent = None in answers and not consented
        if is_silent or any(one.printed_topic_id in (None, topic_id) for one in known):
            raise UnreachableError(
                f"source topic {topic} ({topic_id}) may still exist: a broker knows it, or shows no topic id, "
                "or does not answer",
                "kmirror retries it; check that all of the source's brokers are up and can reach its controllers",
            )


def _require_room(state: State, mirror: str) -> None:
    limit = stored_settings(require_mirror(state, mirror).settings).source_reset_auto_max_topics
    since = now_ms() - _HOUR_MS
    recent = [t for t in state.topics(mirror) if t.rebuild is not None or (t.rebuilt_at_ms or 0) > since]
    if len(recent) >= limit:
        raise ConsentNeededError(
            f"{counted(len(recent), 'topic')} of mirror {mirror} rebuilt within the last hour: no more are "
            f"rebuilt automatically (source.reset.auto.max.topics={limit})",
            f"check the source; then: {on_mirror('recover', mirror)} --accept-reset",
        )


def _under_way(state: State) -> dict[str, str]:
    """Return by topic, of all mirrors, the archives that are not complete."""
    every = (topic for mirror in state.mirrors for topic in state.topics(mirror.name))
    return {one.topic: one.rebuild.archive for one in every if one.rebuild and one.rebuild.step is RebuildStep.ARCHIVE}


def _require_space(client: ClusterClient, topic: str, mirror: str, others: Mapping[str, str]) -> None:
    """Refuse an automatic archive that would fill one of the destination's disks, if their free space is known.

    `others` are the archives that need space too, by topic.
    """
    accept = f"{on_topics('recover', mirror, [topic])} --accept-reset"
    if (settings := settings_of(client, topic)) and local_start_by_settings(settings) is None:
        raise ConsentNeededError(
            f"{topic} has tiered storage: how much space its archive needs on the brokers' disks is unknown",
            f"check that it fits; then: {accept}",
        )
    found = disk_use(client, {topic, *others, *others.values()})
    if found is None:
        return
    topics = client.metadata([topic, *others]).topics
    of_headers: dict[str, list[int]] = {name: [] for name in topics}
    places = [
        TopicPartition(name, partition) for name, described in topics.items() for partition in described.partitions
    ]
    for place, (start, end) in log_bounds(client, places).items():
        of_headers[place.topic].append(_HEADER_BYTES * (end - start))
    total = largest = 0
    for name, headers in of_headers.items():
        replicas, archived = found.replica_bytes[name], found.replica_bytes[others[name]] if name in others else ()
        left = max(0, sum(replicas) + sum(headers) * topics[name].replication_factor - sum(archived))
        total += left
        largest += min(left, max(replicas, default=0) + max(headers, default=0))
    if (lacking := found.lacking(total, largest)) is not None:
        needed, free = lacking
        beside = ", with those under way," if others else ""
        raise ConsentNeededError(
            f"an archive of {topic}{beside} may need {needed:,} bytes on one disk, but the fullest has {free:,} free",
            f"free some space; then: {accept}",
        )
