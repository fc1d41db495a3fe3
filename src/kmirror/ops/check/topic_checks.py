"""Checks of topics: their settings, formats, partitions and replicas, and whether they can be deleted."""

from __future__ import annotations

from collections.abc import Sequence

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import ClusterMetadata, TopicMetadata, TopicPartition
from kmirror.cluster.rights.acl_commands import alter_topic
from kmirror.cluster.topics.message_formats import (
    BROKER_FORMAT,
    OLD_TOPIC_HINT,
    TOPIC_FORMAT,
    old_broker_formats,
    old_topic_format,
)
from kmirror.cluster.topics.topic_requests import DELETION_DISABLED
from kmirror.cluster.topics.topic_settings import topic_settings
from kmirror.commands import on_topics
from kmirror.errors import Reason
from kmirror.ops.check.findings import AllFindings, Findings
from kmirror.state.internal_topics import EVENTS_TOPIC, EVENTS_TOPIC_SETTINGS, STATE_TOPIC, STATE_TOPIC_SETTINGS
from kmirror.state.records import TopicRecord
from kmirror.words import counted, listed

_MOST_NAMED = 5
#: What lines are about.
_FORMAT, _OWN_SETTINGS, _PARTITIONS = "message format", "settings of kmirror's topics", "partitions"
_DELETION, _LEAST = "delete.topic.enable", "min.insync.replicas"
_POLICY, _SIZE, _UNCLEAN = "cleanup.policy", "max.message.bytes", "unclean.leader.election.enable"
_OWN_TOPICS = {STATE_TOPIC: STATE_TOPIC_SETTINGS, EVENTS_TOPIC: EVENTS_TOPIC_SETTINGS}


def check_deletion(findings: Findings, client: ClusterClient) -> None:
    """Warn of brokers that say that topics cannot be deleted. Raises UnreachableError."""
    found = client.broker_configs(client.metadata([]).brokers, [_DELETION])
    off = [f"broker {node}" for node, own in sorted(found.items()) if own.get(_DELETION) == "false"]
    if off:
        message = (
            f"{_DELETION}=false on {listed(off, _MOST_NAMED)}: a mirror topic whose source was recreated is archived "
            "but not rebuilt, and failback --recreate cannot delete"
        )
        findings.warn("deleting topics", message, DELETION_DISABLED)


def check_formats(findings: Findings, client: ClusterClient, topics: Sequence[str]) -> None:
    """Report brokers and mirror topics that refuse batches of format 2. Raises UnreachableError."""
    brokers = old_broker_formats(client)
    if brokers is None:
        return
    old = [f"broker {node} has {BROKER_FORMAT}={value}" for node, value in sorted(brokers.items()) if value]
    if old:
        hint = f"remove {BROKER_FORMAT} from server.properties, or set 0.11 or later, and restart the brokers"
        findings.fail(_FORMAT, _too_low(old), hint, Reason.RECORD_REJECTED)
        return
    found = topic_settings(client, topics, [TOPIC_FORMAT]) if topics else {}
    formats = {topic: old_topic_format(own) for topic, own in sorted(found.items()) if not isinstance(own, int)}
    if set_too_low := [f"{topic} has {TOPIC_FORMAT}={value}" for topic, value in formats.items() if value]:
        findings.fail(_FORMAT, _too_low(set_too_low), OLD_TOPIC_HINT, Reason.RECORD_REJECTED)
    else:
        findings.ok(_FORMAT, "brokers take batches of format 2")


def _too_low(old: Sequence[str]) -> str:
    return f"{listed(old, _MOST_NAMED)}: copied batches are refused below 0.11"


def check_memory(findings: Findings, client: ClusterClient) -> None:
    """Report settings with which the topics lose or refuse records.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    found = topic_settings(client, _OWN_TOPICS, list(EVENTS_TOPIC_SETTINGS))
    is_read, problems = False, 0
    for topic, wanted in _OWN_TOPICS.items():
        settings = found.get(topic)
        if settings is None or isinstance(settings, int):  # there is none yet, or we may not read it
            continue
        is_read = True
        for key, one in settings.items():
            if key in wanted and (trouble := _trouble(key, one.value, wanted[key])):
                problems += 1
                what = f"{topic} has {key}={one.value}: {trouble}"
                command = alter_topic(client.config, topic, f"{key}={wanted[key]}")
                if topic == EVENTS_TOPIC:
                    findings.warn(_OWN_SETTINGS, what, command)
                else:
                    findings.fail(_OWN_SETTINGS, what, command)
    if is_read and not problems:
        findings.ok(_OWN_SETTINGS, "they keep what is written to them")


def _trouble(key: str, value: str | None, wanted: str) -> str | None:
    """Return what a setting does to the topic's records; None if it does no harm."""
    if value is None or value == wanted:
        return None
    if key == _SIZE:
        return "larger records are refused" if int(value) < int(wanted) else None
    if key == _UNCLEAN:
        return "a leader that lacks records may be elected"
    return "older records are deleted" if key == _POLICY or wanted == "-1" else None


def check_partitions(
    findings: AllFindings, source: ClusterClient, destination: ClusterClient, topics: Sequence[TopicRecord]
) -> None:
    """Warn of partitions that only one of the clusters has. Raises UnreachableError."""
    at_source = source.metadata([topic.source_topic for topic in topics])
    at_destination = destination.metadata([topic.topic for topic in topics])
    _check_leaders(findings.source, at_source, Reason.SOURCE_UNREACHABLE)
    _check_leaders(findings.destination, at_destination, Reason.DESTINATION_UNREACHABLE)
    there, here = at_source.topics, at_destination.topics
    equal = 0
    for topic in topics:
        theirs = _count(there.get(topic.source_topic), topic.source_topic_id)
        ours = _count(here.get(topic.topic), topic.destination_topic_id)
        if theirs is None or ours is None:
            continue
        if ours > theirs:
            findings.destination.warn(
                _PARTITIONS,
                f"{_named(topic.topic, theirs, ours)}: only the destination has them, and nothing is copied to them",
                f"keyed records go to other partitions than at the source; add them to {topic.source_topic} there too",
            )
        elif theirs > ours:
            findings.source.warn(
                _PARTITIONS,
                f"{_named(topic.source_topic, ours, theirs)}: the mirror does not have them yet",
                "an engine adds them within refresh.interval.seconds; otherwise "
                f"`{on_topics('describe', topic.mirror, [topic.topic])}` says why not",
            )
        else:
            equal += 1
    if equal:
        findings.destination.ok(_PARTITIONS, f"{counted(equal, 'topic')} with the partitions of the source")


def check_in_sync(findings: Findings, client: ClusterClient, topics: Sequence[str]) -> None:
    """Report partitions of the destination that are led, but take no writes for lack of replicas.

    Raises:
        UnreachableError: the cluster does not answer.
    """
    settings = topic_settings(client, topics, [_LEAST]) if topics else {}
    least = {name: int(own[_LEAST].value or 1) for name, own in settings.items() if not isinstance(own, int)}
    few = [
        str(TopicPartition(name, index))
        for name, topic in sorted(client.metadata(least).topics.items())
        for index, one in sorted(topic.partitions.items())
        if one.leader_id is not None and len(one.in_sync_replicas) < min(least[name], len(one.replicas))
    ]
    if few:
        what = f"fewer in-sync replicas than {_LEAST}, so that brokers refuse writes: {listed(few, _MOST_NAMED)}"
        hint = f"bring back the brokers that hold the others, or lower {_LEAST} of the topics"
        findings.fail("in-sync replicas", what, hint, Reason.DESTINATION_UNREACHABLE)


def _check_leaders(findings: Findings, found: ClusterMetadata, reason: Reason) -> None:
    """Report partitions that no broker leads now."""
    every = (TopicPartition(name, index) for name, topic in found.topics.items() for index in topic.partitions)
    if without := [str(one) for one in sorted(every) if found.leader(one) is None]:
        hint = "bring back the brokers or log directories that hold them"
        findings.fail("leaders", f"no leader: {listed(without, _MOST_NAMED)}", hint, reason)


def _count(found: TopicMetadata | None, topic_id: str | None) -> int | None:
    """Return how many partitions a topic has; None if it is unknown, or another topic has its name."""
    if found is None or found.error_code or (topic_id is not None and found.printed_topic_id not in (None, topic_id)):
        return None
    return len(found.partitions)


def _named(topic: str, first: int, end: int) -> str:
    return listed([str(TopicPartition(topic, p)) for p in range(first, end)], _MOST_NAMED)
