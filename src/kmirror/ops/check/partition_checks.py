"""Whether mirror topics have the partitions of their sources."""

from __future__ import annotations

from collections.abc import Sequence

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicMetadata, TopicPartition
from kmirror.commands import on_topics
from kmirror.ops.check.findings import DESTINATION, SOURCE, Findings
from kmirror.state.records import TopicRecord
from kmirror.words import counted, listed

_MOST_NAMED = 5
_WHAT = "partitions"


def check_partitions(
    findings: Findings, source: ClusterClient, destination: ClusterClient, topics: Sequence[TopicRecord]
) -> None:
    """Warn of partitions that only one of the clusters has. Raises UnreachableError."""
    there = source.metadata([topic.source_topic for topic in topics]).topics
    here = destination.metadata([topic.topic for topic in topics]).topics
    equal = 0
    for topic in topics:
        theirs = _count(there.get(topic.source_topic), topic.source_topic_id)
        ours = _count(here.get(topic.topic), topic.destination_topic_id)
        if theirs is None or ours is None:
            continue
        if ours > theirs:
            findings.warn(
                DESTINATION,
                _WHAT,
                f"{_named(topic.topic, theirs, ours)}: only the destination has them, and nothing is copied to them",
                f"keyed records go to other partitions than at the source; add them to {topic.source_topic} there too",
            )
        elif theirs > ours:
            findings.warn(
                SOURCE,
                _WHAT,
                f"{_named(topic.source_topic, ours, theirs)}: the mirror does not have them yet",
                "an engine adds them within refresh.interval.seconds; otherwise "
                f"`{on_topics('describe', topic.mirror, [topic.topic])}` says why not",
            )
        else:
            equal += 1
    if equal:
        findings.ok(DESTINATION, _WHAT, f"{counted(equal, 'topic')} with the partitions of the source")


def _count(found: TopicMetadata | None, topic_id: str | None) -> int | None:
    """Return how many partitions a topic has; None if it is unknown, or another topic has its name."""
    if found is None or found.error_code or (topic_id is not None and found.printed_topic_id not in (None, topic_id)):
        return None
    return len(found.partitions)


def _named(topic: str, first: int, end: int) -> str:
    return listed([str(TopicPartition(topic, p)) for p in range(first, end)], _MOST_NAMED)
