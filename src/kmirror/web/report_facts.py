"""The facts of a report: a mirror's stored state, and a snapshot of both clusters. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kmirror.cluster.client import ClusterClient
from kmirror.cluster.protocol.metadata import TopicPartition
from kmirror.engine.archive.archive_topic import archives_of
from kmirror.errors import KmirrorError, OutcomeUnknown
from kmirror.ops.base.context import REACH_TIMEOUT_S, Destination, actor, now_ms, require_mirror
from kmirror.ops.base.topic_results import Outcome, TopicResult
from kmirror.ops.base.versions import Role, broker_version
from kmirror.ops.show.cluster_view import Prober
from kmirror.ops.show.describe import read_status, with_open_transactions
from kmirror.ops.stop.report import stopped_row
from kmirror.state.event_records import Event
from kmirror.state.history_records import TimedPoint, points_of
from kmirror.state.records import PartitionState, TopicRecord
from kmirror.state.snapshot import State
from kmirror.status.mirror_status import MirrorStatus


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """One of the two clusters; `release` is None if unknown, `trouble` if it answered."""

    bootstrap_server: str | None
    cluster_id: str | None
    release: str | None
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """The facts of a report; times are epoch milliseconds, unknown is None."""

    made_ms: int
    made_by: str
    source: ClusterFacts
    destination: ClusterFacts
    status: MirrorStatus
    topics: tuple[TopicRecord, ...]
    #: The STOPPED partitions, with their known loss.
    stops: tuple[TopicResult, ...]
    #: Oldest first.
    history: tuple[TimedPoint, ...]
    events: tuple[Event, ...]
    #: Existing archives, by topic.
    archives: Mapping[str, tuple[str, ...]]
    #: How many stored records of the mirror this version cannot read.
    unreadable: int = 0


def report_facts(destination: Destination, mirror: str) -> ReportFacts:
    """Gather the facts. Works with the source down (it waits 3 s for it) and without an engine.

    Raises:
        RefusedError: there is no such mirror.
        UnreachableError: the destination does not answer.
    """
    state = destination.state()
    record = require_mirror(state, mirror)
    topics = state.topics(mirror)
    with Prober(destination) as prober:
        found, snapshots = read_status(prober, state, topics, (record,))
        (status,) = with_open_transactions(prober, found)
        releases = prober.ask_sources([(record, _release)])
    snapshot = snapshots.get(mirror)
    source = ClusterFacts(
        record.source.get("bootstrap.servers"),
        record.source_cluster_id,
        releases.get(mirror),
        str(snapshot.trouble) if snapshot is not None and snapshot.trouble is not None else None,
    )
    return ReportFacts(
        now_ms(),
        actor(),
        source,
        ClusterFacts(destination.bootstrap_server, destination.cluster_id, _own_release(destination.client)),
        status,
        topics,
        _stops(state, topics),
        tuple(points_of(state.history(mirror))),
        destination.store.read_events(mirror),
        archives_of([one.topic for one in topics], destination.client.metadata(timeout=REACH_TIMEOUT_S).topics),
        sum(one.key[1:2] == (mirror,) for one in state.unknown),
    )


def _release(client: ClusterClient, seconds: float) -> str:
    """Return the release of one broker of a cluster."""
    broker = next(iter(client.metadata([], timeout=seconds).brokers.values()))
    return broker_version(client, broker.node_id, broker.host, broker.port, Role.SOURCE).release


def _own_release(client: ClusterClient) -> str | None:
    try:
        return _release(client, 3.0)
    except (KmirrorError, OutcomeUnknown):
        return None


def _stops(state: State, topics: tuple[TopicRecord, ...]) -> tuple[TopicResult, ...]:
    return tuple(
        stopped_row(TopicPartition(topic.topic, one.partition), one, Outcome.DONE, one.reason)
        for topic in topics
        for one in state.partitions(topic.mirror, topic.topic)
        if one.state is PartitionState.STOPPED
    )
